"""Migrate what is stored, so that a step can be deleted one day.

Reading upcasts, so nobody has to rewrite anything. But as long as one thread stands at an old
version, its step must stay in the code, and steps pile up. `migrate` moves the newest checkpoint of
every thread, its pending writes included, to today's version, *in place*: the same checkpoint id,
since task ids, interrupts and the namespaces of subgraphs are made from it.

    order-1  ✓ done        one transaction a namespace:
    order-2  ✓ done          keep what was there (checkpoint_originals)
    order-3  ✗ killed        replace record and pending writes
    order-4                  a crash here leaves the whole namespace as it was
    run it again: goes on at order-3

What is promised: what a reader saw before is what it sees after; a kill at any point leaves each
thread at one version or the other, and running it again does the rest; a dry run finds the same
changes as the run. The original values are kept, encoded as they were, and `put_back` restores
those that nobody has built upon.

Left out: older checkpoints. They are upcast when read, as long as their steps are there; and after
that, they are refused. A subgraph that paused in a node which was renamed keeps the name of its
namespace, and with it the need for the step: it is listed as `left`, let it finish. Stop the code
of the older version first: it cannot read what was migrated, and says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import ormsgpack

from durable_kit import crash_point
from durable_kit.checkpoint_state import pack_metadata, to_state, write_mark
from durable_kit.delta_saver import DeltaSaver
from durable_kit.storage.checkpoint_log import CheckpointLog
from durable_kit.storage.composer import Draft
from durable_kit.storage.materialize import Entry, PendingWrite
from durable_kit.storage.namespaces import hold_back
from durable_kit.storage.record import ZERO, Record, WriteRecord, pack_body, pack_id
from durable_kit.storage.retention import replace_record
from durable_kit.storage.rows import LogRows
from durable_kit.storage.statistics import threads_of
from durable_kit.storage.tip import plan
from durable_kit.versions.migration import Migrations, Stored
from durable_kit.versions.position import pack_position, position_of

CRASH_POINTS = ("migrate.before_thread", "migrate.in_transaction", "migrate.after_thread")


@dataclass(frozen=True, slots=True)
class Change:
    """What a migration does to the newest checkpoint of one namespace.

    `gone`, `new`, `changed`: channels. `waits_at`: the nodes before it and after. `moved_writes`:
    how many pending writes get another task, channel or value.
    """

    thread_id: str
    namespace: str
    from_version: int
    to_version: int
    gone: tuple[str, ...]
    new: tuple[str, ...]
    changed: tuple[str, ...]
    waits_at: tuple[tuple[str, ...], tuple[str, ...]]
    moved_writes: int


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """`changes` were made, or would be in a dry run. `left`: (thread id, namespace) of subgraphs
    that keep an old node name. `current`: how many namespaces needed nothing."""

    changes: tuple[Change, ...]
    left: tuple[tuple[str, str], ...]
    current: int


def migrate(saver: DeltaSaver, *, dry_run: bool) -> MigrationReport:
    """Bring the newest checkpoint of every thread and namespace to today's version.

    Raises what reading raises (`MigrationFailed`, `NewerState`, `BrokenChain`); the threads before
    that one are done. Safe beside writers that run today's code.
    """
    reading, log = saver.reading, saver.reading.log
    changes: list[Change] = []
    left: list[tuple[str, str]] = []
    current = 0
    for thread_id, namespace in threads_of(log):
        entry = log.read(thread_id, namespace)
        while entry is not None and not reading.is_current(entry):
            if _has_old_name(saver.migrations, namespace):
                left.append((thread_id, namespace))
                break
            stored = reading.stored(entry)
            upcast = saver.migrations.upcast(stored)
            crash_point.reached("migrate.before_thread")
            if dry_run or _replace(saver, entry, upcast):
                changes.append(_change(entry, stored, upcast))
                break
            entry = log.read(thread_id, namespace)  # somebody has written meanwhile
        else:
            current += entry is not None
        crash_point.reached("migrate.after_thread")
    return MigrationReport(tuple(changes), tuple(left), current)


def put_back(saver: DeltaSaver) -> int:
    """Undo `migrate` where its checkpoint is still the newest, as it left it, without new writes.

    Returns how many namespaces are at their old version again. The others have moved on: older
    code cannot take them over.
    """
    log = saver.reading.log
    done = 0
    for thread_id, namespace in threads_of(log):
        entry = log.read(thread_id, namespace)
        if entry is None:
            continue
        with log.database.write() as tx:
            hold_back(tx, thread_id)
            rows = log.rows(tx, thread_id, namespace)
            original = _original(rows, entry.record)
            if original is None or not _is_untouched(rows, entry):
                continue
            record = replace(
                entry.record, state_version=original.state_version, metadata=original.metadata
            )
            state = {name: log.codec.decode(name, data) for name, data in original.values.items()}
            _store(log, rows, record, state, original.writes)
            tx.execute(
                """
                DELETE FROM checkpoint_originals
                 WHERE thread_key = :key AND checkpoint_id = :checkpoint_id
                """,
                key=rows.key,
                checkpoint_id=pack_id(record.checkpoint_id),
            )
            done += 1
    return done


# -- what changes ------------------------------------------------------------------------------


def _has_old_name(migrations: Migrations, namespace: str) -> bool:
    names = "|".join(part.partition(":")[0] for part in namespace.split("|"))
    return migrations.today(namespace) != names


def _change(entry: Entry, stored: Stored, upcast: Stored) -> Change:
    before = stored.checkpoint["channel_values"]
    after = upcast.checkpoint["channel_values"]
    return Change(
        entry.record.thread_id,
        entry.record.namespace,
        stored.oldest_version,
        upcast.state_version,
        gone=tuple(sorted(before.keys() - after.keys())),
        new=tuple(sorted(after.keys() - before.keys())),
        changed=tuple(sorted(n for n in before.keys() & after.keys() if before[n] != after[n])),
        waits_at=(position_of(before).waiting, position_of(after).waiting),
        moved_writes=sum(
            old[:3] != new[:3] for old, new in zip(stored.writes, upcast.writes, strict=True)
        ),
    )


# -- changing it -------------------------------------------------------------------------------


def _replace(saver: DeltaSaver, entry: Entry, upcast: Stored) -> bool:
    """Put the migrated checkpoint in place of `entry`; False if that is not the newest any more."""
    log, record = saver.reading.log, entry.record
    position = None
    if not record.namespace:
        standing = position_of(upcast.checkpoint["channel_values"])
        position = pack_position(record.checkpoint_id, standing)
    metadata = pack_metadata(dict(saver.reading.metadata_of(record)), position)
    mark = write_mark(upcast.state_version)
    writes = [
        PendingWrite(
            new.task_id,
            old.task_path,
            old.slot,
            mark + new.channel,
            log.codec.encode(mark + new.channel, new.value),
        )
        for old, new in zip(entry.writes, upcast.writes, strict=True)
    ]
    made = replace(
        record,
        state_version=upcast.state_version,
        metadata=log.seal.seal(log.codec.encode("metadata", metadata)),
    )
    with log.database.write() as tx:
        hold_back(tx, record.thread_id)
        rows = log.rows(tx, record.thread_id, record.namespace)
        if not _is_untouched(rows, entry):
            return False
        now = _store(log, rows, made, to_state(dict(upcast.checkpoint)), writes)  # type: ignore[arg-type]
        _keep(log, rows, entry, now)
        # A crash here has changed nothing; after the commit, the thread is done.
        crash_point.reached("migrate.in_transaction")
    return True


def _is_untouched(rows: LogRows, entry: Entry) -> bool:
    head = rows.head()
    record = entry.record
    newest = head is not None and head.latest_sequence == record.sequence
    found = rows.at(record.sequence)
    return newest and found is not None and found[:2] == (record.checksum, record.writes_count)


def _store(
    log: CheckpointLog,
    rows: LogRows,
    record: Record,
    state: Mapping[str, Any],
    writes: Sequence[PendingWrite],
) -> Record:
    """Store another state and other pending writes under the id of the newest checkpoint."""
    rows.delete_writes([record.sequence])
    count, previous = 0, ZERO
    for (task_id, path), group in groupby(writes, key=lambda write: write[:2]):
        mine = list(group)
        header = [[write.slot, write.name, len(write.encoded)] for write in mine]
        body = pack_body(header, b"".join(write.encoded for write in mine))
        put = WriteRecord(record.sequence, count, pack_id(task_id), pack_id(path), body, ZERO)
        previous = rows.insert_writes(put, previous)
        count += 1
    draft = Draft(
        record.thread_id,
        record.namespace,
        record.checkpoint_id,
        record.parent_id,
        record.metadata,
        record.run_key,
        record.created_at_us,
        record.state_version,
    )
    planned = plan(None, state, log.codec, trust_identity=False)
    made, _ = log.composer.snapshot(rows, draft, record.sequence, None, planned, state)
    made = replace(made, writes_count=count)
    head = rows.head()
    assert head is not None
    replace_record(log, rows, head, made)
    return made


# -- what was there ----------------------------------------------------------------------------


class _Original(NamedTuple):
    """A checkpoint as it was before: its metadata as stored, its values and writes encoded."""

    state_version: int
    metadata: bytes
    values: dict[str, bytes]
    writes: list[PendingWrite]


def _keep(log: CheckpointLog, rows: LogRows, entry: Entry, now: Record) -> None:
    values = {name: value.encoded() for name, value in entry.image.items()}
    writes = [[*write] for write in entry.writes]
    kept = [entry.record.state_version, entry.record.metadata, values, writes]
    body = rows.seal.seal(ormsgpack.packb(kept))
    rows.tx.execute(
        """
        INSERT INTO checkpoint_originals
               (thread_key, checkpoint_id, replaced_at_us, replaced_by, writes_count, body,
                checksum)
        VALUES (:key, :checkpoint_id, :replaced_at_us, :replaced_by, :writes_count, :body,
                :checksum)
            ON CONFLICT (thread_key, checkpoint_id) DO UPDATE
           SET replaced_by = excluded.replaced_by, writes_count = excluded.writes_count
        """,
        key=rows.key,
        checkpoint_id=pack_id(entry.record.checkpoint_id),
        replaced_at_us=log.clock.now_us(),
        replaced_by=now.checksum,
        writes_count=now.writes_count,
        body=body,
        checksum=hashlib.sha256(body).digest(),
    )


def _original(rows: LogRows, record: Record) -> _Original | None:
    """What the record `record` was before it was migrated; None if it was not, or has changed."""
    row = rows.tx.row(
        """
        SELECT body, checksum
          FROM checkpoint_originals
         WHERE thread_key = :key AND checkpoint_id = :checkpoint_id
           AND replaced_by = :replaced_by AND writes_count = :writes_count
        """,
        key=rows.key,
        checkpoint_id=pack_id(record.checkpoint_id),
        replaced_by=record.checksum,
        writes_count=record.writes_count,
    )
    if row is None:
        return None
    body = bytes(row[0])
    if hashlib.sha256(body).digest() != bytes(row[1]):
        rows.broken(
            "the kept original does not match its checksum", checkpoint_id=record.checkpoint_id
        )
    state_version, metadata, values, writes = ormsgpack.unpackb(rows.seal.unseal(body))
    return _Original(state_version, metadata, values, [PendingWrite(*write) for write in writes])
