"""Named places to die at.

A crash that comes after `sleep(0.3)` comes somewhere else on a slower machine, and a lesson that
crashes somewhere else teaches something else. So code that has an interesting moment names it:

    receipt = bank.charge(order)
    crash_point.reached("charge.after_effect")      # the money is gone, nobody has noted it yet
    return {"receipt": receipt}

    child   … charge ── "crash point reached: charge.after_effect" ── waits
    parent  …………………………………… reads that line ── kills ── looks at the exit status

The child announces, the parent kills: the process dies at this line on every machine. A process
that nobody armed pays for one comparison, some 30 ns; the kit's own saver has its points in place
all the time. A process is armed by its environment before it starts, or by `arm` when it is
forked with everything imported; then it can also record what it passes, a line a point.

    "saver.put.before"        the first time that this point is reached
    "saver.put.before#3"      the third time

What is promised: the announced OS thread goes no further by itself, and each other one not beyond
its next point, which it no longer passes. What is not: between two points they go on until the
kill arrives; a commit that has begun in the background may still be made. With `others_go_on` only
the announced one stands still. If nobody kills the process in `PATIENCE_S` seconds, it ends with
`NOBODY_CAME`: an experiment may fail, but it leaves no process.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

VARIABLE = "DURABLE_KIT_CRASH_POINT"
"""The environment variable that arms one point: its name, or `name#occurrence`."""

ANNOUNCEMENT = "crash point reached: "
PATIENCE_S = 60.0
NOBODY_CAME = 97

_watch: Callable[[str], None] | None = None


def reached(name: str) -> None:
    """Say that the program is at the point `name`; if that point is armed, wait to be killed."""
    if _watch is not None:
        _watch(name)


def arm(
    point: str | None,
    *,
    record: Path | None = None,
    only: Collection[str] | None = None,
    announce: Callable[[str], None] | None = None,
    others_go_on: bool = False,
) -> None:
    """From now on, stop this process at `point`, and note each point it passes in `record`.

    `point` is a name or `name#occurrence`; None stops nowhere. `only`: the names to note, if not
    all. `announce` is given the line that tells the parent (default: it is written to stdout).
    `others_go_on`: let the other OS threads pass further points until the kill.
    Replaces what was armed before; with two Nones the process is as it was in the beginning.
    """
    global _watch
    nothing = point is None and record is None
    _watch = None if nothing else _Watch(point, record, only, announce or _say, others_go_on)


def parsed(point: str) -> tuple[str, int]:
    """`"name#3"` as ("name", 3); a name without a number means its first occurrence."""
    name, mark, number = point.rpartition("#")
    return (name, int(number)) if mark and number.isdecimal() else (point, 1)


def passed(record: Path) -> list[tuple[str, float]]:
    """What was recorded: each point passed, in order, with its time on `time.perf_counter`.

    The last is where the process died, if it was killed at a point and no other OS thread was to
    go on. A process that was never armed, or died before that, has passed none.
    """
    if not record.exists():
        return []
    lines = record.read_text("utf-8").split("\n")[:-1]  # the end of a line that was torn
    return [(name, int(at_ns) / 1e9) for at_ns, _, name in (line.partition(" ") for line in lines)]


class _Watch:
    """What an armed process does at each point."""

    def __init__(
        self,
        point: str | None,
        record: Path | None,
        only: Collection[str] | None,
        announce: Callable[[str], None],
        others_go_on: bool,
    ) -> None:
        self._name, self._occurrence = ("", 0) if point is None else parsed(point)
        self._announce, self._others_go_on = announce, others_go_on
        self._only = None if only is None else {*only, self._name}
        self._count = 0
        self._one_at_a_time = threading.Lock()  # kept, once all are to stand still
        self._record: int | None = None
        if record is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._record = os.open(record, flags, 0o644)

    def __call__(self, name: str) -> None:
        if self._only is not None and name not in self._only:
            return
        with self._one_at_a_time:
            if self._record is not None:
                # Straight to the operating system: a kill cannot take it back.
                os.write(self._record, b"%d %s\n" % (time.perf_counter_ns(), name.encode()))
            self._count += name == self._name
            due = name == self._name and self._count == self._occurrence
            if due and not self._others_go_on:
                self._die(name)
        if due:
            self._die(name)

    def _die(self, name: str) -> None:
        self._announce(ANNOUNCEMENT + name)
        time.sleep(PATIENCE_S)
        # Past `finally` and `atexit` alike: nothing may be tidied up that a kill would not.
        os._exit(NOBODY_CAME)


def _say(line: str) -> None:
    sys.stdout.flush()  # what the program said before belongs before the announcement
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


arm(os.environ.get(VARIABLE))
