"""From what the log holds to what LangGraph is given.

The other half of `delta_saver`: an entry of the log (a record, its state, its pending writes) as a
`CheckpointTuple`. Everything that reads goes through `CheckpointReading`, so this is where old
records become what the code of today expects (see `versions/migration`), and where an error learns
in which thread it happened.

    log      record at state_version 1, :total = "49.90", write 2:total_cents
    reading  Migrations.upcast
    caller   {"total_cents": 4990}, write total_cents

A record of today costs two comparisons more than it would without migrations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from langgraph.checkpoint.base import CheckpointMetadata, CheckpointTuple

from durable_kit.checkpoint_state import (
    config_of,
    from_state,
    packed_position,
    split_write_name,
    unpack_metadata,
    write_mark,
)
from durable_kit.errors import BrokenChain, UnloadableValue
from durable_kit.storage.checkpoint_log import CheckpointLog
from durable_kit.storage.materialize import Entry, PendingWrite
from durable_kit.storage.newest import Newest, newest_records
from durable_kit.storage.record import Record
from durable_kit.versions.migration import Migrations, Stored, Written
from durable_kit.versions.moved_subgraphs import stored_namespace
from durable_kit.versions.position import Position, ThreadPosition, position_of, unpack_position


class CheckpointReading:
    """Entries of one log as LangGraph's tuples, upcast by `migrations`."""

    def __init__(self, log: CheckpointLog, migrations: Migrations) -> None:
        self.log = log
        self.migrations = migrations
        self._mark = write_mark(migrations.current)

    def tuple_of(self, entry: Entry, namespace: str | None = None) -> CheckpointTuple:
        """`namespace`: the name that it is asked by, where that is not the one it is stored under.

        Raises `BrokenChain`, `UnloadableValue`, `NewerState` or `MigrationFailed`.
        """
        record = entry.record
        metadata = self.metadata_of(record)
        asked = record.namespace if namespace is None else namespace
        if self.is_current(entry) and asked == record.namespace:
            checkpoint: Any = from_state(record.checkpoint_id, entry.state(self.log.codec.decode))
            writes = [self._write(record, write)[:3] for write in entry.writes]
        else:
            upcast = self.upcast(entry, namespace=asked)
            checkpoint = upcast.checkpoint
            writes = [write[:3] for write in upcast.writes]
        parent = record.parent_id
        return CheckpointTuple(
            config=config_of(record.thread_id, asked, record.checkpoint_id),
            checkpoint=checkpoint,
            metadata=metadata,
            parent_config=config_of(record.thread_id, asked, parent) if parent else None,
            pending_writes=writes,
        )

    def is_current(self, entry: Entry) -> bool:
        """Whether record and pending writes were all made by code of today's state_version."""
        mark = self._mark
        return entry.record.state_version == self.migrations.current and all(
            write.name.startswith(mark) for write in entry.writes
        )

    def upcast(self, entry: Entry, *, namespace: str | None = None) -> Stored:
        """The checkpoint and its pending writes as code of today sees them."""
        return self.migrations.upcast(self.stored(entry, namespace))

    def stored(self, entry: Entry, namespace: str | None = None) -> Stored:
        """The checkpoint and its pending writes as they were stored."""
        record = entry.record
        state = entry.state(self.log.codec.decode)
        return Stored(
            place=_place(record),
            checkpoint=dict(from_state(record.checkpoint_id, state)),
            step=self.metadata_of(record).get("step", -1),
            namespace=record.namespace,
            asked_namespace=record.namespace if namespace is None else namespace,
            state_version=record.state_version,
            writes=[self._write(record, write) for write in entry.writes],
        )

    def channels_of(
        self, entry: Entry, channels: Collection[str]
    ) -> tuple[list[tuple[str, str, Any]], dict[str, Any]]:
        """Of some channels, the pending writes and the stored values. Decodes nothing else, but
        upcasts an old record as a whole."""
        if self.is_current(entry):
            record = entry.record
            written = [
                self._write(record, w)
                for w in entry.writes
                if split_write_name(w.name)[1] in channels
            ]
            decode = self.log.codec.decode
            values = {
                channel: entry.image[name].decode(partial(decode, name))
                for channel in channels
                if (name := ":" + channel) in entry.image
            }
        else:
            upcast = self.upcast(entry)
            written = [write for write in upcast.writes if write.channel in channels]
            stored = upcast.checkpoint["channel_values"]
            values = {channel: stored[channel] for channel in channels if channel in stored}
        return [write[:3] for write in written], values

    def stored_under(self, thread_id: str, namespace: str) -> str:
        """The name in the log of a namespace: a subgraph keeps the one that it began with."""
        if not namespace or not self.migrations.renamed_nodes:
            return namespace
        return stored_namespace(self.log, self, self.migrations, thread_id, namespace)

    def positions(self) -> Iterator[ThreadPosition]:
        """Where every thread stands. A state is read only where its position cannot be trusted."""
        today = self.migrations.node_today
        for newest in newest_records(self.log):
            position = unpack_position(newest.checkpoint_id, self._packed_position(newest))
            if position is None:  # stored without one, or damaged: the whole record has the say
                entry = self.log.read(newest.thread_id, "")
                assert entry is not None
                position = position_of(self.tuple_of(entry).checkpoint["channel_values"])
            else:
                nodes = sorted(today(node, "") for node in position.waiting)
                position = Position(position.flow_version, tuple(nodes))
            yield ThreadPosition(
                newest.thread_id, position, newest.state_version, newest.created_at_us
            )

    def _packed_position(self, newest: Newest) -> Any:
        try:
            plain = self.log.seal.unseal(newest.metadata)
            return packed_position(self.log.codec.decode("metadata", plain))
        except (ValueError, TypeError, UnloadableValue):
            return None

    def metadata_of(self, record: Record) -> CheckpointMetadata:
        """Raises `BrokenChain` if it cannot be opened."""
        try:
            plain = self.log.seal.unseal(record.metadata)
            return unpack_metadata(self.log.codec.decode("metadata", plain))
        except (ValueError, TypeError, UnloadableValue) as error:
            raise BrokenChain(
                thread_id=record.thread_id,
                namespace=record.namespace,
                checkpoint_id=record.checkpoint_id,
                sequence=record.sequence,
                found=f"its metadata cannot be opened ({error}); was it sealed with another key?",
                remedy="Open the saver with the serde that stored it.",
            ) from error

    def matches(self, record: Record, filter: Mapping[str, Any]) -> bool:
        """Whether the metadata equals `filter`, key by key."""
        metadata = self.metadata_of(record)
        return all(value == metadata.get(key) for key, value in filter.items())

    def _write(self, record: Record, write: PendingWrite) -> Written:
        try:
            value = self.log.codec.decode(write.name, write.encoded)
        except UnloadableValue as error:
            raise error.at(f"{_place(record)}, a pending write") from error
        version, channel = split_write_name(write.name)
        return Written(write.task_id, channel, value, version)


def _place(record: Record) -> str:
    inside = f", namespace {record.namespace!r}" if record.namespace else ""
    return f"thread {record.thread_id!r}{inside}, checkpoint {record.checkpoint_id}"
