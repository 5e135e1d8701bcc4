"""Which threads still need the old path, and may it go?

Deleting a path too early strands the threads that wait in it; never deleting one leaves a museum.
The answer is a count, taken over all threads after the last deploy:

    flow_version  waits at    threads  since
    1             charge_v1         2  3 days ago      ◀── path 1 must stay
    2             review           40  5 minutes ago
    1             (ended)         310                  ◀── and if one of these gets another turn?

`drain_report` counts. On a `DeltaSaver` it reads no states: each record has its position beside it
(`position`), checked there. Any other LangGraph saver is read through `list`, every state of it.

A node that has finished beside one that has not is listed too: its result is a pending write, and
a position comes from the checkpoint, where that is not yet. To leave it out, the writes of each
task would have to be read.

What `may_go` promises: no thread, at its newest checkpoint, is on its way through that version.
Left out, and yours to decide: ended threads that may get another turn (they keep their pin; the
report counts them as `ended`), forks from older checkpoints, and threads that begin between the
count and the deploy: stop the code that pins to the old version first, then count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

from langgraph.checkpoint.base import BaseCheckpointSaver

from durable_kit.versions.position import UNPINNED_IS, Position, ThreadPosition, position_of


@runtime_checkable
class TellsPositions(Protocol):
    """A saver that knows where its threads stand without reading their states."""

    def positions(self) -> Iterator[ThreadPosition]: ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """Threads of one flow_version with one node before them. Times in UTC, microseconds."""

    flow_version: int
    node: str
    threads: int
    since_us: int
    oldest_thread_id: str


@dataclass(frozen=True, slots=True)
class DrainReport:
    """How many threads stand where. `waiting`: one entry a version and node; a thread that waits
    at two nodes is in two entries, and once in `unfinished`."""

    waiting: tuple[Waiting, ...]
    unfinished: dict[int, int]
    ended: dict[int, int]
    state_versions: dict[int, int]
    threads: int

    def may_go(self, flow_version: int) -> bool:
        """Whether the path of a flow_version may be deleted: no unfinished thread has it."""
        return not self.unfinished.get(flow_version)

    def may_remove_node(self, node: str) -> bool:
        """Whether no thread waits at a node."""
        return all(entry.node != node for entry in self.waiting)

    def may_remove_step(self, to: int) -> bool:
        """Whether no thread's newest checkpoint needs the `Step` to a state_version any more.

        Older checkpoints do, if somebody reads the history or forks from it.
        """
        return all(version >= to for version in self.state_versions)


def drain_report(saver: BaseCheckpointSaver[Any]) -> DrainReport:
    """Count the threads of a saver by flow_version and by the node that they wait at.

    A thread whose state has no flow_version counts as `UNPINNED_IS`.
    """
    told = saver.positions() if isinstance(saver, TellsPositions) else _read_all(saver)
    entries: dict[tuple[int, str], Waiting] = {}
    unfinished: dict[int, int] = {}
    ended: dict[int, int] = {}
    state_versions: dict[int, int] = {}
    threads = 0
    for thread in told:
        threads += 1
        pinned = thread.position.flow_version
        version = UNPINNED_IS if pinned is None else pinned
        counted = unfinished if thread.position.waiting else ended
        counted[version] = counted.get(version, 0) + 1
        shape = thread.state_version
        state_versions[shape] = state_versions.get(shape, 0) + 1
        for node in thread.position.waiting:
            entries[version, node] = _one_more(entries.get((version, node)), version, node, thread)
    return DrainReport(
        tuple(entries[key] for key in sorted(entries)), unfinished, ended, state_versions, threads
    )


def _one_more(entry: Waiting | None, version: int, node: str, thread: ThreadPosition) -> Waiting:
    if entry is None:
        return Waiting(version, node, 1, thread.since_us, thread.thread_id)
    older = thread.since_us < entry.since_us
    return Waiting(
        version,
        node,
        entry.threads + 1,
        thread.since_us if older else entry.since_us,
        thread.thread_id if older else entry.oldest_thread_id,
    )


def _read_all(saver: BaseCheckpointSaver[Any]) -> Iterator[ThreadPosition]:
    """The same from any saver. Its ids are sorted by time, and the highest is the newest."""
    newest: dict[str, tuple[str, ThreadPosition]] = {}
    for found in saver.list(None):
        where = found.config["configurable"]
        thread_id, checkpoint_id = where["thread_id"], found.checkpoint["id"]
        if where.get("checkpoint_ns") or checkpoint_id < newest.get(thread_id, ("",))[0]:
            continue
        position: Position = position_of(found.checkpoint["channel_values"])
        since_us = _micros(found.checkpoint["ts"])
        version: Any = found.metadata.get("state_version", 1)
        newest[thread_id] = (
            checkpoint_id,
            ThreadPosition(thread_id, position, version, since_us),
        )
    yield from (position for _, position in newest.values())


def _micros(text: str) -> int:
    when = datetime.fromisoformat(text)
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1e6)
