"""When is a full snapshot worth writing?

Deltas are cheap to write and dear to read: the state is the last snapshot plus every delta since.
Snapshots are the opposite. A fixed interval looks like the obvious middle and is not one:

    EveryN(100), state growing by one message a step
      step    100  snapshot of    100 messages
      step    200  snapshot of    200 messages
      …
      step 10,000  snapshot of 10,000 messages      together 505,000 messages for 10,000 steps

The interval divides the constant and stays quadratic. `SizeRatio` waits until the deltas have
earned the snapshot: all snapshots together never cost more than 1/ratio of the data that arrived,
so the total stays linear, and reading folds at most ratio times the snapshot's size.

A snapshot normally does not write bytes again that the log already holds: it lists where they
lie. That keeps it small, and it means that one lost write record takes every later state with it.
`self_contained=True` writes everything out: a snapshot that stands on its own, for its full size.
`compact` always writes that kind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from durable_kit.errors import BadInput


@dataclass(frozen=True, slots=True)
class Chain:
    """The deltas since the last snapshot, as a policy sees them.

    `depth`: how many there are, the one about to be written included.
    `delta_bytes`: the data they brought.
    `snapshot_bytes`: about what a snapshot would take now.
    """

    depth: int
    delta_bytes: int
    snapshot_bytes: int


class SnapshotPolicy(Protocol):
    """Decides, before a record is written, whether it becomes a snapshot."""

    @property
    def self_contained(self) -> bool: ...

    def wants_snapshot(self, chain: Chain) -> bool: ...


@dataclass(frozen=True, slots=True)
class SizeRatio:
    """A snapshot once the deltas have brought `ratio` times its size. Total bytes stay linear.

    `max_depth` bounds the fold where deltas are tiny beside the state: after that many, a snapshot
    is written whatever its size. A state that keeps growing by tiny deltas is then in the hands of
    an `EveryN(max_depth)`; a higher bound costs reading time instead.
    """

    ratio: float = 32.0
    max_depth: int = 1000
    self_contained: bool = False

    def __post_init__(self) -> None:
        _check_ratio("SizeRatio: ratio", self.ratio)
        _check_count("SizeRatio: max_depth", self.max_depth)

    def wants_snapshot(self, chain: Chain) -> bool:
        return (
            chain.depth > self.max_depth or chain.delta_bytes >= self.ratio * chain.snapshot_bytes
        )


@dataclass(frozen=True, slots=True)
class EveryN:
    """A snapshot at every n-th checkpoint of a chain: at most n - 1 deltas to fold."""

    n: int
    self_contained: bool = False

    def __post_init__(self) -> None:
        _check_count("EveryN: n", self.n)

    def wants_snapshot(self, chain: Chain) -> bool:
        return chain.depth >= self.n


def _check_ratio(what: str, value: object) -> None:
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 < value < math.inf  # nor is NaN
    ):
        raise BadInput(f"{what} is {value!r}; it must be a number above 0.")


def _check_count(what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInput(f"{what} is {value!r}; it must be a whole number of at least 1.")
