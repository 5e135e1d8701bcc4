"""Savers that are wrong on purpose, each in one way.

A test suite is trusted because it is green; it should be trusted because it turns red. So each
fault here is planted in the reference saver, as a few lines that a tired person might write, and
`test_planted_faults.py` runs both suites on it: LangGraph's conformance package, which lets the
first seven through, and our contract, which must not.

What each of the seven would do to a run:

    dropped task_path       parallel branches replay in hash order; a list is rebuilt shuffled
    overwritten writes      a task that ran twice keeps the second result; the step has used the
                            first
    constant version        no node ever sees new input; the graph ends without running
    writes left behind      a thread id used again starts with a stranger's pending writes
    dropped parents         a subgraph's checkpoint no longer says which parent it belongs to
    lost large values       the longest conversations lose their messages, the short ones do not
    empty delta history     a DeltaChannel reads as empty after a restart

The rest are faults that this kind of store invites; they show that single clauses can fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from .reference_saver import Line, ReferenceSaver


class DroppedTaskPath(ReferenceSaver):
    """Takes the path and forgets it."""

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        super().put_writes(config, writes, task_id)


class OverwrittenWrites(ReferenceSaver):
    """INSERT OR REPLACE for all writes, where only special ones may be replaced."""

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        found = config["configurable"]
        place = (found["thread_id"], found.get("checkpoint_ns", ""), found["checkpoint_id"])
        for index in range(len(writes)):
            self.writes.get(place, {}).pop((task_id, index), None)
        super().put_writes(config, writes, task_id, task_path)


class ConstantVersion(ReferenceSaver):
    """A version for every channel, and always the same one."""

    def get_next_version(self, current: int | None, channel: None) -> int:
        return 1


class WritesLeftBehind(ReferenceSaver):
    """Deletes a thread's checkpoints; its writes stay until the id is used again."""

    def delete_thread(self, thread_id: str) -> None:
        writes = dict(self.writes)
        super().delete_thread(thread_id)
        self.writes = writes


class DroppedParents(ReferenceSaver):
    """Keeps the metadata it knows."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        kept = {key: value for key, value in metadata.items() if key != "parents"}
        return super().put(config, checkpoint, kept, new_versions)


class LostLargeValues(ReferenceSaver):
    """A column of 64 KB, and a driver that does not mind."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        fits = {
            channel: value
            for channel, value in checkpoint["channel_values"].items()
            if len(self.serde.dumps_typed(value)[1]) <= 65_536
        }
        return super().put(config, {**checkpoint, "channel_values": fits}, metadata, new_versions)


class EmptyDeltaHistory(ReferenceSaver):
    """An answer of the right shape."""

    def get_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> Any:
        return {channel: {"writes": []} for channel in channels}


class NewestById(ReferenceSaver):
    """ORDER BY checkpoint_id DESC."""

    def _visible(self, line: Line) -> list[str]:
        return sorted(super()._visible(line), reverse=True)


class SpecialWritesKept(ReferenceSaver):
    """First success for special writes as well: a second interrupt is never seen."""

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        found = config["configurable"]
        place = (found["thread_id"], found.get("checkpoint_ns", ""), found["checkpoint_id"])
        before = dict(self.writes.get(place, {}))
        super().put_writes(config, writes, task_id, task_path)
        self.writes[place].update(before)


class SharedObjects(ReferenceSaver):
    """Hands out the same tuple twice."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[Any, CheckpointTuple] = {}

    def _tuple(self, line: Line, checkpoint_id: str) -> CheckpointTuple:
        fresh = super()._tuple(line, checkpoint_id)
        row = self.rows[line][checkpoint_id]
        kept = self.kept.setdefault((line, checkpoint_id, row.checkpoint[1]), fresh)
        return fresh._replace(checkpoint=kept.checkpoint)


class LimitBelowZeroIsNone(ReferenceSaver):
    """LIMIT -1."""

    def list(self, config: Any, *, limit: int | None = None, **rest: Any) -> Iterator[Any]:
        return super().list(
            config, limit=None if limit is not None and limit < 0 else limit, **rest
        )


class UnknownFilterIgnored(ReferenceSaver):
    """Filters by the keys it knows and lets the others pass."""

    def list(
        self, config: Any, *, filter: dict[str, Any] | None = None, **rest: Any
    ) -> Iterator[Any]:
        known = {k: v for k, v in (filter or {}).items() if k in ("source", "step", "run_id")}
        return super().list(config, filter=known, **rest)


class EmptyNamespaceMeansAll(ReferenceSaver):
    """`if namespace:` where `is not None` was meant."""

    def list(self, config: Any, **rest: Any) -> Iterator[Any]:
        if config and not config["configurable"].get("checkpoint_ns"):
            config = {"configurable": {**config["configurable"], "checkpoint_ns": None}}
        return super().list(config, **rest)


class PruneDropsPendingWrites(ReferenceSaver):
    """Keeps the newest checkpoint, without the half of its step that is done."""

    def prune(self, thread_ids: Sequence[str], **arguments: Any) -> None:
        super().prune(thread_ids, **arguments)
        for place in [place for place in self.writes if place[0] in thread_ids]:
            del self.writes[place]


class PruneCutsTheDeltaChain(ReferenceSaver):
    """Removes every row but the newest, the ones that a DeltaChannel replays included."""

    def _remove(self, line: Line, ids: Any) -> None:
        super()._remove(line, ids)
        for checkpoint_id in [i for i, row in self.rows[line].items() if row.hidden]:
            del self.rows[line][checkpoint_id]


class LimitsUnchecked(ReferenceSaver):
    """Slices with whatever it is given: [-1:] keeps one, [0:] keeps none."""

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: Any = "keep_latest",
        keep_last: Any = None,
        older_than: Any = None,
    ) -> None:
        for line in [line for line in self.rows if line[0] in thread_ids]:
            if strategy == "keep_latest":
                self._remove(line, self._visible(line)[1 if keep_last is None else keep_last :])
            else:
                self._remove(line, self._visible(line))


class CopyOfTheNewestOnly(ReferenceSaver):
    """Copies what somebody would look at first."""

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        super().copy_thread(source_thread_id, target_thread_id)
        for line in [line for line in self.rows if line[0] == target_thread_id]:
            self._remove(line, self._visible(line)[1:])


THE_SEVEN: list[type[ReferenceSaver]] = [
    DroppedTaskPath,
    OverwrittenWrites,
    ConstantVersion,
    WritesLeftBehind,
    DroppedParents,
    LostLargeValues,
    EmptyDeltaHistory,
]
MORE: list[type[ReferenceSaver]] = [
    NewestById,
    SpecialWritesKept,
    SharedObjects,
    LimitBelowZeroIsNone,
    UnknownFilterIgnored,
    EmptyNamespaceMeansAll,
    PruneDropsPendingWrites,
    PruneCutsTheDeltaChain,
    LimitsUnchecked,
    CopyOfTheNewestOnly,
]
