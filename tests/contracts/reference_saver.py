"""A saver that is meant to be obviously right: whole states, in dicts, nothing shared.

It is the yardstick for the contract, as the contract is for `DeltaSaver`. A contract that this
saver fails asks too much; a mutant of it that the contract passes shows what the contract cannot
see. So it trades everything for plainness: each checkpoint is one serialised blob with all its
values, reads decode afresh, and no checkpoint depends on another. Only a `DeltaChannel` does, by
LangGraph's design, and for it a removed checkpoint that a survivor replays is kept out of sight
(`hidden`) in place of being dropped.

InMemorySaver is not enough here: its newest checkpoint is the one with the greatest id, it has
no `prune`, `copy_thread` or `delete_for_runs`, and its integer versions would collide in forks.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)

Line = tuple[str, str]


@dataclass(frozen=True)
class Stored:
    """One checkpoint: where it stands in the order of writing, and its bytes."""

    sequence: int
    created_at: datetime
    parent_id: str | None
    checkpoint: tuple[str, bytes]
    metadata: tuple[str, bytes]
    hidden: bool = False


@dataclass(frozen=True)
class Write:
    """One pending write; its key is (task id, index)."""

    channel: str
    value: tuple[str, bytes]
    task_path: str


class PickleSerde:
    """Keeps every type, tuples too. Only for bytes that never leave this process."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return "pickle", pickle.dumps(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return pickle.loads(data[1])


class ReferenceSaver(BaseCheckpointSaver[int]):
    """All eight capabilities over three dicts, one thread of execution."""

    def __init__(self) -> None:
        super().__init__(serde=PickleSerde())
        self.rows: dict[Line, dict[str, Stored]] = {}
        self.writes: dict[tuple[str, str, str], dict[tuple[str, int], Write]] = {}
        self.sequence = 0

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        line, parent_id = _line(config), get_checkpoint_id(config)
        rows = self.rows.setdefault(line, {})
        again = rows.get(checkpoint["id"])
        self.sequence += 1
        stored = Stored(
            again.sequence if again else self.sequence,
            again.created_at if again else datetime.now(UTC),
            again.parent_id if again else parent_id,
            self.serde.dumps_typed(checkpoint),
            self.serde.dumps_typed(get_checkpoint_metadata(config, metadata)),
        )
        rows[checkpoint["id"]] = stored
        return _config(line, checkpoint["id"])

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        fresh = {}
        for index, (channel, value) in enumerate(writes):
            key = (task_id, WRITES_IDX_MAP.get(channel, index))
            fresh[key] = Write(channel, self.serde.dumps_typed(value), task_path)
        stored = self.writes.setdefault(
            (*_line(config), config["configurable"]["checkpoint_id"]), {}
        )
        stored.update(
            {key: write for key, write in fresh.items() if key[1] < 0 or key not in stored}
        )

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        line, checkpoint_id = _line(config), get_checkpoint_id(config)
        visible = self._visible(line)
        if checkpoint_id is None:
            checkpoint_id = next(iter(visible), None)
        if checkpoint_id is None or checkpoint_id not in visible:
            return None
        return self._tuple(line, checkpoint_id)

    def list(
        self,
        config: Any,
        *,
        filter: dict[str, Any] | None = None,
        before: Any = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        if limit is not None and limit < 0:
            raise ValueError(f"limit is {limit}; give 0 or more, or None for all")
        left = float("inf") if limit is None else limit
        for line in self._lines(config):
            for checkpoint_id in self._listed(line, config, before):
                row = self._tuple(line, checkpoint_id)
                if all(row.metadata.get(k) == v for k, v in (filter or {}).items()):
                    if left <= 0:
                        return
                    left -= 1
                    yield row

    def get_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> Any:
        line, checkpoint_id = _line(config), get_checkpoint_id(config)
        if checkpoint_id is None:
            checkpoint_id = next(iter(self._visible(line)), "")
        history: dict[str, Any] = {channel: {"writes": []} for channel in channels}
        for ancestor in self._ancestors(line, checkpoint_id):
            row = self._tuple(line, ancestor)
            for channel, entry in history.items():
                if "seed" not in entry:
                    here = [w for w in row.pending_writes or [] if w[1] == channel]
                    entry["writes"] = here + entry["writes"]
                    if channel in row.checkpoint["channel_values"]:
                        entry["seed"] = row.checkpoint["channel_values"][channel]
        return history

    def delete_thread(self, thread_id: str) -> None:
        for line in [line for line in self.rows if line[0] == thread_id]:
            del self.rows[line]
        for key in [key for key in self.writes if key[0] == thread_id]:
            del self.writes[key]

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        for line in self.rows:
            self._remove(
                line,
                [
                    i
                    for i in self._visible(line)
                    if self._tuple(line, i).metadata.get("run_id") in set(run_ids)
                ],
            )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        for (thread_id, ns), rows in list(self.rows.items()):
            if thread_id == source_thread_id:
                self.rows[target_thread_id, ns] = dict(rows)
        for (thread_id, ns, checkpoint_id), writes in list(self.writes.items()):
            if thread_id == source_thread_id:
                self.writes[target_thread_id, ns, checkpoint_id] = dict(writes)

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | float | None = None,
    ) -> None:
        _check_limits(thread_ids, strategy, keep_last, older_than)
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            for line in [line for line in self.rows if line[0] == thread_id]:
                old = list(self._visible(line))[keep_last or 1 :]
                self._remove(
                    line,
                    [
                        i
                        for i in old
                        if older_than is None or self._age_s(line, i) > _seconds(older_than)
                    ],
                )

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return self.get_tuple(config)

    async def alist(self, config: Any, **arguments: Any) -> AsyncIterator[CheckpointTuple]:
        for row in self.list(config, **arguments):
            yield row

    async def adelete_thread(self, thread_id: str) -> None:
        self.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], **arguments: Any) -> None:
        self.prune(thread_ids, **arguments)

    async def aget_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> Any:
        return self.get_delta_channel_history(config=config, channels=channels)

    def _visible(self, line: Line) -> list[str]:
        """Ids that may be seen, the one written last first."""
        rows = self.rows.get(line, {})
        return sorted((i for i in rows if not rows[i].hidden), key=lambda i: -rows[i].sequence)

    def _age_s(self, line: Line, checkpoint_id: str) -> float:
        age = datetime.now(UTC) - self.rows[line][checkpoint_id].created_at
        return age.total_seconds()

    def _lines(self, config: Any) -> list[Line]:
        if config is None:
            return list(self.rows)
        thread_id, ns = (
            config["configurable"]["thread_id"],
            config["configurable"].get("checkpoint_ns"),
        )
        return [line for line in self.rows if line[0] == thread_id and ns in (None, line[1])]

    def _listed(self, line: Line, config: Any, before: Any) -> list[str]:
        found, wanted = self._visible(line), config and get_checkpoint_id(config)
        before_id = before and get_checkpoint_id(before)
        if before_id:
            found = found[found.index(before_id) + 1 :] if before_id in found else []
        return [i for i in found if not wanted or i == wanted]

    def _tuple(self, line: Line, checkpoint_id: str) -> CheckpointTuple:
        row = self.rows[line][checkpoint_id]
        writes = self.writes.get((*line, checkpoint_id), {})
        ordered = sorted(writes, key=lambda key: writes_sort_key(writes[key].task_path, *key))
        return CheckpointTuple(
            _config(line, checkpoint_id),
            self.serde.loads_typed(row.checkpoint),
            self.serde.loads_typed(row.metadata),
            _config(line, row.parent_id) if row.parent_id else None,
            [
                (key[0], writes[key].channel, self.serde.loads_typed(writes[key].value))
                for key in ordered
            ],
        )

    def _ancestors(self, line: Line, checkpoint_id: str) -> Iterator[str]:
        rows = self.rows.get(line, {})
        current = rows[checkpoint_id].parent_id if checkpoint_id in rows else None
        while current is not None and current in rows:
            yield current
            current = rows[current].parent_id

    def _remove(self, line: Line, ids: Collection[str]) -> None:
        """Hide these; then drop what is hidden and what no visible checkpoint descends from."""
        rows = self.rows[line]
        for checkpoint_id in ids:
            rows[checkpoint_id] = replace(rows[checkpoint_id], hidden=True)
        needed = {a for i in self._visible(line) for a in self._ancestors(line, i)}
        for checkpoint_id in [i for i in rows if rows[i].hidden and i not in needed]:
            del rows[checkpoint_id]
            self.writes.pop((*line, checkpoint_id), None)


def _line(config: Any) -> Line:
    found = config["configurable"]
    return found["thread_id"], found.get("checkpoint_ns", "")


def _config(line: Line, checkpoint_id: str) -> Any:
    return {
        "configurable": {
            "thread_id": line[0],
            "checkpoint_ns": line[1],
            "checkpoint_id": checkpoint_id,
        }
    }


def _check_limits(thread_ids: Any, strategy: Any, keep_last: Any, older_than: Any) -> None:
    if isinstance(thread_ids, str):
        raise TypeError("thread_ids is a string; give a list of thread ids")
    if strategy not in ("keep_latest", "delete"):
        raise ValueError(f"strategy {strategy!r} is neither 'keep_latest' nor 'delete'")
    if keep_last is not None and (type(keep_last) is not int or keep_last < 1):
        raise ValueError(f"keep_last is {keep_last!r}; give a whole number from 1 up, or None")
    if older_than is not None and not 0 <= _seconds(older_than) < float("inf"):
        raise ValueError(f"older_than is {older_than!r}; give a timedelta or seconds, 0 or more")


def _seconds(age: Any) -> float:
    if isinstance(age, timedelta):
        return age.total_seconds()
    if type(age) not in (int, float):
        raise TypeError(f"older_than is {age!r}; give a timedelta or seconds, or None")
    return float(age)
