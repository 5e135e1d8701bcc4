"""Time as an argument.

Leases expire, retries wait, records carry the moment they were written. Code that reads the wall
clock wherever it needs it can only be tested by waiting, and it breaks when a clock steps back:

    host A writes checkpoint 7 at 10:00:00.500        (its clock runs half a second ahead)
    host B writes checkpoint 8 at 10:00:00.100
    "newest by time" answers 7, and the agent does step 8 again

So everything in the kit that needs the time is given a `Clock`, and nothing that decides *order*
asks it: order comes from sequence numbers that the database hands out.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of wall-clock time."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch, UTC. May step back: never use it for order."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000


class FakeClock:
    """A clock that moves only when told to, for tests and for notebooks about time."""

    def __init__(self, *, start_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = start_us

    def now_us(self) -> int:
        return self._now_us

    def advance(self, seconds: float) -> None:
        """Move by `seconds`; a negative value steps the clock back."""
        self._now_us += round(seconds * 1_000_000)
