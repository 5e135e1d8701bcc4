"""A drop-in LangGraph checkpointer that stores what changed.

    graph = builder.compile(checkpointer=DeltaSaver.open("sqlite:///kit.db"))

That line is the whole change to an agent. What it buys, measured by
`python -m durable_kit measure storage`: bytes that grow with the conversation instead of with its
square, a history that can be read without holding every state at once, damage that is noticed,
and `verify`, `recover`, `compact`, `prune` to live with it.

What a checkpointer cannot buy. It keeps the agent's state and position. It does not know what the
agent did to the world between two checkpoints:

    checkpoint 7 ─ node "charge" starts ─ the card is charged ─ ✗ killed ─ checkpoint 8 never comes
    resume from 7: "charge" runs again

Resuming replays to a boundary, not to a line. So the effect must be idempotent, queryable or
compensable; see the gateway for that part.

Differences from LangGraph's own savers, all on the strict side:

- A value that could not come back equal is refused by `put`, with its path (`UnstorableValue`);
  a class that is gone raises when it is read. Classes of your own go on the allow-list:
  `DeltaSaver.open(url, serde=Codec(allow=[Order]))`. An exception that a node raised is kept as
  its `repr`, as LangGraph keeps it.
- The newest checkpoint is the one written last, not the one with the highest id: clocks step back.
- Reading a damaged thread raises `BrokenChain`; nothing shorter or older is given instead.
- Objects of `list` (get_state_history) are shared between the checkpoints it yields: treat them
  as read-only. `get_tuple` gives objects of its own.

This file only translates between LangGraph's words and the log's; what happens to bytes is in
`durable_kit/storage`.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import ERROR

from durable_kit import crash_point, delta_channels
from durable_kit.checkpoint_reading import CheckpointReading
from durable_kit.checkpoint_state import (
    config_of,
    log_of,
    merged_metadata,
    pack_metadata,
    to_state,
    write_mark,
)
from durable_kit.clock import Clock
from durable_kit.errors import BadInput
from durable_kit.serde_codec import ChannelCodec, default_codec, for_serde
from durable_kit.storage import recovery, retention, schema  # noqa: F401 - schema: load it now
from durable_kit.storage.checkpoint_log import CheckpointLog
from durable_kit.storage.codec import Codec
from durable_kit.storage.database import Database
from durable_kit.storage.materialize import Entry
from durable_kit.storage.record import Record
from durable_kit.storage.snapshot_policy import SizeRatio, SnapshotPolicy
from durable_kit.storage.statistics import ThreadStats, records_of, stats_of, threads_of
from durable_kit.storage.writes_log import Write
from durable_kit.versions.migration import Migrations
from durable_kit.versions.position import ThreadPosition, pack_position, position_of


class DeltaSaver(BaseCheckpointSaver[int]):
    """LangGraph checkpoints as snapshots and deltas in SQLite or PostgreSQL.

    `policy`: when a full snapshot is written (`SizeRatio`, `EveryN`).
    `trust_identity`: a put that costs what is new instead of what is there. It takes leading list
    items that are the same objects as last time as unchanged, so an item that a node edits *in
    place* is not stored until the next snapshot, which notices, logs a warning and stores the
    truth. Leave it off unless your nodes never edit messages they have already returned.
    `serde`: a LangGraph serde of your own, `EncryptedSerializer` included (then all values,
    deltas and metadata are encrypted on disk; ids, namespaces, sizes and times are not).
    `clock`: tells when a record was written, for `prune(older_than=…)`; never decides order.
    `migrations`: how the states of older code become what this code expects, on every way of
    reading. Without any, records of newer code are refused all the same (`NewerState`).

    All methods are safe to call from several OS threads and processes. Each async method runs
    its sync twin in a worker thread: cancelling the await does not cancel the commit.
    """

    def __init__(
        self,
        database: Database,
        *,
        policy: SnapshotPolicy | None = None,
        trust_identity: bool = False,
        serde: SerializerProtocol | None = None,
        clock: Clock | None = None,
        migrations: Migrations | None = None,
    ) -> None:
        if not isinstance(database, Database):
            raise BadInput(
                f"DeltaSaver needs a Database, not {type(database).__name__}; "
                'to open one by URL, use DeltaSaver.open("sqlite:///kit.db").'
            )
        chosen = serde if serde is not None else default_codec()
        super().__init__(serde=chosen)
        self.database = database
        self._owns_database = False
        self._policy = policy or SizeRatio()
        self._trust_identity = trust_identity
        self._clock = clock
        self.migrations = migrations or Migrations()
        self._write_mark = write_mark(self.migrations.current)
        self._log = self._new_log()
        self.reading = CheckpointReading(self._log, self.migrations)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        policy: SnapshotPolicy | None = None,
        trust_identity: bool = False,
        serde: SerializerProtocol | None = None,
        clock: Clock | None = None,
        migrations: Migrations | None = None,
    ) -> DeltaSaver:
        """Open the database at `url`, make its tables if it has none, and close it with the saver.

        Raises `BadInput` for a URL that cannot be used; see `Database.open`.
        """
        database = Database.open(url)
        try:
            saver = cls(
                database,
                policy=policy,
                trust_identity=trust_identity,
                serde=serde,
                clock=clock,
                migrations=migrations,
            )
        except BaseException:
            database.close()
            raise
        saver._owns_database = True
        return saver

    def close(self) -> None:
        """Close the database, if `open` opened it."""
        if self._owns_database:
            self.database.close()

    def __enter__(self) -> DeltaSaver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> DeltaSaver:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    # -- LangGraph's contract: writing ---------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. When this returns it is committed, and no reference is kept.

        Every channel of the state is looked at, not only those in `new_versions`: a node may have
        edited a value in place without returning it. LangGraph's own channels (joins, branches)
        change through the runtime alone, so there the version decides. It must: in async mode a
        checkpoint holds the very set in which the runtime collects a join's next arrivals.
        """
        crash_point.reached("saver.put.before")
        thread_id, namespace = log_of(config)
        with self.database.soon():
            merged = merged_metadata(config, metadata)
            run_id = merged.get("run_id")
            standing = None if namespace else position_of(checkpoint["channel_values"])
            position = pack_position(checkpoint["id"], standing) if standing else None
            self._log.append(
                thread_id=thread_id,
                namespace=self.reading.stored_under(thread_id, namespace),
                checkpoint_id=checkpoint["id"],
                parent_id=config["configurable"].get("checkpoint_id"),
                state=to_state(checkpoint),
                metadata=pack_metadata(merged, position),
                run_id=run_id if isinstance(run_id, str) else None,
                unchanged={
                    ":" + channel
                    for channel in checkpoint["channel_values"]
                    if channel not in new_versions and channel.startswith(("join:", "branch:"))
                },
            )
        crash_point.reached("saver.put.after")
        return config_of(thread_id, namespace, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote. The checkpoint it started from may arrive later.

        Ordinary writes keep the first value stored for a task and place; an interrupt, resume or
        error replaces the one before it.
        """
        crash_point.reached("saver.put_writes.before")
        thread_id, namespace = log_of(config)
        mark = self._write_mark
        self._log.append_writes(
            thread_id=thread_id,
            namespace=self.reading.stored_under(thread_id, namespace),
            checkpoint_id=config["configurable"]["checkpoint_id"],
            task_id=task_id,
            task_path=task_path,
            writes=[
                Write(WRITES_IDX_MAP.get(channel, place), mark + channel, _storable(channel, value))
                for place, (channel, value) in enumerate(writes)
            ],
        )
        crash_point.reached("saver.put_writes.after")

    # -- LangGraph's contract: reading ---------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names, or the one written last; None if there is none."""
        thread_id, namespace = log_of(config)
        stored = self.reading.stored_under(thread_id, namespace)
        entry = self._log.read(thread_id, stored, config["configurable"].get("checkpoint_id"))
        return None if entry is None else self.reading.tuple_of(entry, namespace)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, the one written last first; of all threads if `config` is None.

        `filter` keeps those whose metadata equals it, key by key (a missing key counts as None,
        as in LangGraph's in-memory saver). Metadata is matched before any state is read, and
        `limit` goes into the query. The number of SQL statements does not depend on the number of
        checkpoints.

        The tuples are decoded one by one as you go. Objects are *shared*: a message that stands
        in 3,000 states is one object, so do not edit what this yields.
        """
        if filter is not None and not isinstance(filter, Mapping):
            raise BadInput(f"filter is {filter!r}; it must be a dict of metadata keys and values.")
        return self._list(config, dict(filter or {}), before, limit)

    def _list(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any],
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Iterator[CheckpointTuple]:
        wanted = config["configurable"] if config else {}
        left = limit
        asked: str | None = wanted.get("checkpoint_ns")
        for thread_id, namespace in threads_of(self._log, wanted.get("thread_id")):
            if asked is not None and self.reading.stored_under(thread_id, asked) != namespace:
                continue
            if left is not None and left <= 0:
                return
            entries = self._log.history(
                thread_id,
                namespace,
                checkpoint_id=wanted.get("checkpoint_id"),
                before=before["configurable"].get("checkpoint_id") if before else None,
                limit=left,
                matches=(lambda record: self.reading.matches(record, filter)) if filter else None,
            )
            left = None if left is None else left - len(entries)
            # Popped as they are yielded: a state that the caller drops is not kept here.
            entries.reverse()
            while entries:
                yield self.reading.tuple_of(entries.pop(), asked)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What LangGraph's `DeltaChannel` is rebuilt from: its last stored value, and the writes
        since, oldest first. Reads in stretches from snapshot to snapshot of the log."""
        thread_id, namespace = log_of(config)
        return delta_channels.history(
            self._log,
            self.reading,
            thread_id,
            self.reading.stored_under(thread_id, namespace),
            config["configurable"].get("checkpoint_id"),
            channels,
        )

    # -- LangGraph's contract: removing and copying --------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with all its namespaces, checkpoints and writes."""
        retention.delete_thread(self._log, str(thread_id))
        self.database.give_back()

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of some runs; the states of the others stay the same.

        Raises `BadInput`, with nothing removed, where a `DeltaChannel` of a remaining checkpoint
        is rebuilt from one of these.
        """
        retention.delete_runs(self._log, run_ids, needs=self._delta_channel_ancestors)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, history and pending writes included, to an id that is not in use."""
        retention.copy_thread(self._log, source_thread_id, target_thread_id)

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | float | None = None,
        prove: bool = True,
    ) -> Any:
        """Remove checkpoints that are no longer wanted; see `retention.prune`.

        Keeps the `keep_last` newest of each namespace (1 if not given) with their pending writes,
        and the ancestors that a `DeltaChannel` of theirs is rebuilt from. With `prove` the kept
        states are read again before the commit. Returns what was done, one entry a namespace.
        """
        return retention.prune(
            self._log,
            thread_ids,
            strategy=strategy,
            keep_last=keep_last,
            older_than=older_than,
            prove=prove,
            needs=self._delta_channel_ancestors,
        )

    # -- what the kit adds ---------------------------------------------------------------------

    def verify(self, thread_id: str) -> recovery.Verification:
        """Check every record of a thread and report each bad one. Raises nothing for damage."""
        return recovery.verify(self._log, thread_id)

    def recover(self, thread_id: str) -> recovery.Recovery:
        """Fall back to the newest state that checks out. Nothing is deleted: bad records go to
        the table `quarantine`. Returns what was lost, in steps, writes and bytes."""
        return recovery.recover(self._log, thread_id)

    def compact(self, thread_id: str) -> int:
        """Make the newest checkpoint of each namespace a snapshot that stands on its own.

        Writers may go on meanwhile. Returns how many checkpoints were rewritten.
        """
        return retention.compact(self._log, thread_id)

    def stats(self, thread_id: str) -> ThreadStats:
        """Sizes of a thread and of its database: live bytes, file bytes, records, replay depth."""
        return stats_of(self._log, thread_id)

    def positions(self) -> Iterator[ThreadPosition]:
        """Where every thread stands, without reading states. Raises `BrokenChain`."""
        return self.reading.positions()

    def threads(self) -> Iterator[tuple[str, str]]:
        """(thread id, namespace) of everything stored."""
        return iter(threads_of(self._log))

    def records(self, thread_id: str) -> Iterator[Record]:
        """The records of a thread in order of writing, namespace by namespace.

        Raises `BrokenChain` at the first that fails its checks.
        """
        return iter(records_of(self._log, thread_id))

    # -- LangGraph's contract: async -----------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (item := await asyncio.to_thread(next, found, None)) is not None:
            yield item

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await asyncio.to_thread(
            lambda: self.get_delta_channel_history(config=config, channels=channels)
        )

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than: timedelta | float | None = None,
        prove: bool = True,
    ) -> Any:
        return await asyncio.to_thread(
            lambda: self.prune(
                thread_ids,
                strategy=strategy,
                keep_last=keep_last,
                older_than=older_than,
                prove=prove,
            )
        )

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> DeltaSaver:
        """A saver on the same database that also loads these classes (LangGraph's strict mode)."""
        if not isinstance(self.serde, Codec):
            return super().with_allowlist(extra_allowlist)  # type: ignore[return-value]
        clone = copy.copy(self)
        clone._owns_database = False
        clone.serde = self.serde.allowing([(entry[0], entry[1]) for entry in extra_allowlist])
        clone._log = clone._new_log()
        clone.reading = CheckpointReading(clone._log, clone.migrations)
        return clone

    # -- helpers -------------------------------------------------------------------------------

    def _new_log(self) -> CheckpointLog:
        codec, seal = for_serde(self.serde)
        return CheckpointLog(
            self.database,
            ChannelCodec(codec),
            policy=self._policy,
            seal=seal,
            clock=self._clock,
            trust_identity=self._trust_identity,
            state_version=self.migrations.current,
        )

    def _delta_channel_ancestors(self, kept: Sequence[Entry]) -> set[str]:
        return delta_channels.needed_ancestors(self._log, kept, self.reading.metadata_of)


def _storable(channel: str, value: Any) -> Any:
    """An exception that ended a task is kept as text: LangGraph only shows it."""
    return repr(value) if channel == ERROR and isinstance(value, BaseException) else value
