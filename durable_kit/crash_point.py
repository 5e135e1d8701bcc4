"""Named places to die at.

A crash that comes after `sleep(0.3)` comes somewhere else on a slower machine, and a lesson that
crashes somewhere else teaches something else. So code that has an interesting moment names it:

    receipt = bank.charge(order)
    crash_point.reached("charge.after_effect")      # the money is gone, nobody has noted it yet
    return {"receipt": receipt}

    child   … charge ── "crash point reached: charge.after_effect" ── waits
    parent  …………………………………… reads that line ── kills ── looks at the exit status

The child announces, the parent kills: the process dies at this line on every machine. Unless its
environment names the point, a process that passes it pays for one comparison.

What is promised: the announced process goes no further by itself. What is not: its other OS
threads are not stopped, and what they do until the kill arrives, they do. If nobody kills it in
`PATIENCE_S` seconds, it ends with `NOBODY_CAME`: an experiment may fail, but it leaves no process.
"""

from __future__ import annotations

import os
import sys
import time

VARIABLE = "DURABLE_KIT_CRASH_POINT"
"""The environment variable that arms one point, by its name."""

ANNOUNCEMENT = "crash point reached: "
PATIENCE_S = 60.0
NOBODY_CAME = 97

_armed = os.environ.get(VARIABLE)  # read once: a process is armed before it starts


def reached(name: str) -> None:
    """Say that the program is at the point `name`; if that point is armed, wait to be killed."""
    if _armed is not None and _armed == name:
        _wait_for_the_kill(name)


def _wait_for_the_kill(name: str) -> None:
    sys.stdout.flush()  # what the program said before belongs before the announcement
    sys.stdout.write(ANNOUNCEMENT + name + "\n")
    sys.stdout.flush()
    time.sleep(PATIENCE_S)
    # Past `finally` and `atexit` alike: nothing may be tidied up that a kill would not tidy up.
    os._exit(NOBODY_CAME)
