"""Making a log smaller without changing what it says.

The records of a log lean on each other: a delta on its parent, a snapshot on the write records
whose bytes it does not repeat. Deleting rows by hand therefore breaks states that were to be
kept, and a plain DELETE of "everything but the latest" is the classic way to lose a thread:

    7 snapshot ◄─ 8 delta ◄─ 9 delta (the latest)
    DELETE 7, 8                             the state of 9 can no longer be told

Everything here goes through `rewrite`: remove some records, and write those that leaned on them
again so that each surviving state stays the same. It is one transaction, so a kill at any moment
leaves the log as it was or as it should be, and with `prove=True` the states are read back inside
that transaction and compared before it commits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from durable_kit import crash_point
from durable_kit.errors import BadInput, DurableKitError
from durable_kit.storage.fold import Writer, addresses, write_snapshot
from durable_kit.storage.listing import all_records
from durable_kit.storage.materialize import Entry
from durable_kit.storage.namespaces import hold_back, logs_of, look
from durable_kit.storage.record import (
    ZERO,
    Head,
    Record,
    run_key,
    unescape_text,
    xor,
)
from durable_kit.storage.rows import LogRows
from durable_kit.storage.runs import BODY, PACK, Address

if TYPE_CHECKING:
    from durable_kit.storage.checkpoint_log import CheckpointLog

Needs = Callable[[Sequence[Entry]], set[str]]
"""Given the entries to be kept, the ids of ancestors that they cannot do without."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What `prune` did to one log."""

    thread_id: str
    namespace: str
    removed: int
    kept: int
    proved: bool


# -- removing ---------------------------------------------------------------------------------


def prune(
    log: CheckpointLog,
    thread_ids: Sequence[str],
    *,
    strategy: str = "keep_latest",
    keep_last: int | None = None,
    older_than: timedelta | float | None = None,
    prove: bool = True,
    needs: Needs | None = None,
) -> list[Pruned]:
    """Remove checkpoints that are no longer wanted, in every namespace of the threads.

    `strategy="keep_latest"` keeps the `keep_last` newest of each namespace (1 if not given), with
    their pending writes; `older_than` (a timedelta, or seconds) removes only what was written
    longer ago than that. `strategy="delete"` removes everything. What a kept checkpoint needs to
    be read is kept as well.

    Raises `BadInput` for a limit that makes no sense before anything is read, and `BrokenChain`,
    with nothing changed, if a log is damaged.
    """
    _check_threads(thread_ids)
    if strategy not in ("keep_latest", "delete"):
        raise BadInput(f"strategy is {strategy!r}; it must be 'keep_latest' or 'delete'.")
    _check_keep_last(keep_last)
    if strategy == "delete" and (keep_last is not None or older_than is not None):
        raise BadInput(
            "strategy='delete' removes everything; keep_last and older_than contradict it."
        )
    age_us = _age_us(older_than)
    result: list[Pruned] = []
    for thread_id in thread_ids:
        if strategy == "delete":
            result += delete_thread(log, thread_id)
            continue
        with log.database.write() as tx:
            hold_back(tx, thread_id)
            for rows, head in logs_of(log, tx, thread_id):
                records = all_records(rows, head)
                real = [record for record in records if record.kind != "awaited"]
                newest = {record.sequence for record in real[-(keep_last or 1) :]}
                newest.add(head.latest_sequence)
                horizon_us = None if age_us is None else log.clock.now_us() - age_us
                gone = {
                    record.sequence
                    for record in real
                    if record.sequence not in newest
                    and (horizon_us is None or record.created_at_us < horizon_us)
                }
                gone -= _needed(log, rows, real, gone, needs)
                rewrite(log, rows, head, remove=gone, prove=prove)
                result.append(
                    Pruned(thread_id, rows.namespace, len(gone), len(real) - len(gone), prove)
                )
            crash_point.reached("saver.prune.before_commit")
    log.database.give_back()
    return result


def delete_thread(log: CheckpointLog, thread_id: str) -> list[Pruned]:
    """Remove a thread: all namespaces, checkpoints and writes. Also works on a damaged one."""
    _check_threads([thread_id])
    result: list[Pruned] = []
    with log.database.write() as tx:
        hold_back(tx, thread_id)
        found = look(log, tx, thread_id)
        keys = {rows.key: rows.namespace for rows in found.logs}
        if found.lost:
            keys[found.lost] = "?"  # a namespace whose name was lost with its head
        for key in found.strays:  # whose place it is in loses nothing by this
            tx.execute("DELETE FROM checkpoint_heads WHERE thread_key = :key", key=key)
        for key, namespace in keys.items():
            removed = tx.execute(
                "DELETE FROM checkpoints WHERE thread_key = :key", key=key
            ).rowcount
            tx.execute("DELETE FROM checkpoint_writes WHERE thread_key = :key", key=key)
            tx.execute("DELETE FROM checkpoint_packs WHERE thread_key = :key", key=key)
            tx.execute("DELETE FROM checkpoint_originals WHERE thread_key = :key", key=key)
            tx.execute("DELETE FROM checkpoint_heads WHERE thread_key = :key", key=key)
            log.forget(key)
            if removed:
                result.append(Pruned(thread_id, namespace, removed, 0, proved=False))
    return result


def delete_runs(log: CheckpointLog, run_ids: Sequence[str], *, needs: Needs | None = None) -> None:
    """Remove the checkpoints of some runs, in every thread. The others keep their states.

    Raises `BadInput`, with nothing changed, if a checkpoint of another run could not be read
    without one of these.
    """
    _check_threads(run_ids, what="run_ids")
    if not run_ids:
        return
    with log.database.write() as tx:
        keys = [run_key(run_id) for run_id in run_ids]
        for (thread_id,) in tx.rows(
            f"""
            SELECT DISTINCT h.thread_id
              FROM checkpoints c
              JOIN checkpoint_heads h ON h.thread_key = c.thread_key
             WHERE {tx.among("c.run_key", "runs")}
             ORDER BY h.thread_id
            """,
            runs=tx.many(keys),
        ):
            hold_back(tx, unescape_text(thread_id))
        by_log: dict[int, set[int]] = {}
        for key, sequence in tx.rows(
            f"SELECT thread_key, sequence FROM checkpoints WHERE {tx.among('run_key', 'runs')}",
            runs=tx.many(keys),
        ):
            by_log.setdefault(key, set()).add(sequence)
        for key, gone in by_log.items():
            row = tx.row(
                "SELECT thread_id, namespace FROM checkpoint_heads WHERE thread_key = :key",
                key=key,
            )
            if row is None:
                continue
            rows = log.rows(tx, unescape_text(row[0]), unescape_text(row[1]))
            head = rows.head()
            assert head is not None
            real = [record for record in all_records(rows, head) if record.kind != "awaited"]
            needed = _needed(log, rows, real, gone, needs)
            if needed:
                raise BadInput(
                    f"thread {rows.thread_id!r}: {len(needed)} checkpoints of these runs hold "
                    "writes that later checkpoints are rebuilt from (a LangGraph DeltaChannel). "
                    "Delete the later runs as well, or the whole thread."
                )
            rewrite(log, rows, head, remove=gone, prove=True)
    log.database.give_back()


def copy_thread(log: CheckpointLog, source_id: str, target_id: str) -> None:
    """Copy all of a thread, history and pending writes included, to a new thread.

    Raises `BadInput` if the target exists already, or the source does not.
    """
    _check_threads([source_id, target_id])
    with log.database.write() as tx:
        for thread_id in sorted({source_id, target_id}):  # in one order, or two copies deadlock
            hold_back(tx, thread_id)
        if any(True for _ in logs_of(log, tx, target_id)):
            raise BadInput(
                f"Thread {target_id!r} exists already. Copy to a new id, or delete it first."
            )
        for rows, head in logs_of(log, tx, source_id):
            target = log.rows(tx, target_id, rows.namespace)
            records = all_records(rows, head)
            counts = {record.sequence: record.writes_count for record in records}
            packs = rows.packs()
            packed = {(w.sequence, w.ordinal) for pack in packs for w in rows.unpacked(pack)}
            for pack in packs:
                target.insert_pack(pack.pack, pack.first_sequence, pack.last_sequence, pack.body)
            after = {
                (w.sequence, w.ordinal): pack.checksum_of(w.sequence, w.ordinal)
                for pack in target.packs()
                for w in target.unpacked(pack)
            }
            for write in rows.writes(list(counts), counts):
                place = (write.sequence, write.ordinal)
                if place not in packed:
                    previous = after.get((write.sequence, write.ordinal - 1), ZERO)
                    after[place] = target.insert_writes(write, previous)
            new_head = target.new_head()
            checksums: dict[int, bytes] = {}
            digest = ZERO
            for record in records:
                moved = replace(record, thread_id=target_id)
                moved = moved.signed(checksums.get(record.parent_sequence or 0))
                checksums[record.sequence] = moved.checksum
                digest = xor(digest, moved.checksum)
                target.insert(moved)
            target.save_head(
                replace(
                    new_head,
                    next_sequence=head.next_sequence,
                    latest_sequence=head.latest_sequence,
                    records=head.records,
                    sequence_sum=head.sequence_sum,
                    digest=digest,
                )
            )


# -- rewriting --------------------------------------------------------------------------------


def compact(log: CheckpointLog, thread_id: str) -> int:
    """Turn the newest checkpoint of each namespace into a snapshot that stands on its own.

    Reading it folds nothing and needs no other record. Writers may go on: records that arrive
    meanwhile stay, as deltas on the snapshot. Returns how many checkpoints were rewritten.
    """
    _check_threads([thread_id])
    done = 0
    with log.database.read() as tx:
        namespaces = [rows.namespace for rows, _ in logs_of(log, tx, thread_id)]
    for namespace in namespaces:
        with log.database.write() as tx:
            hold_back(tx, thread_id)
            rows = log.rows(tx, thread_id, namespace)
            head = rows.head()
            if head is None or head.latest_sequence == 0:
                continue
            latest = rows.chain([head.latest_sequence])[head.latest_sequence]
            header = log.reader.header(rows, latest)
            if latest.kind == "snapshot" and not addresses(header, "snapshot", latest.sequence):
                continue
            rewrite(log, rows, head, renew=latest.sequence, prove=True)
            crash_point.reached("saver.compact.before_commit")
            done += 1
    return done


def replace_record(log: CheckpointLog, rows: LogRows, head: Head, replacement: Record) -> None:
    """Put another state under a stored id. Records that lean on the old one keep their states."""
    rewrite(log, rows, head, replacement=replacement, prove=True)


def rewrite(
    log: CheckpointLog,
    rows: LogRows,
    head: Head,
    *,
    remove: Iterable[int] = (),
    renew: int | None = None,
    replacement: Record | None = None,
    prove: bool,
) -> Head:
    """Change records of one log so that all other states stay the same. Returns the new head.

    `remove`: sequences that go, with their writes. `renew`: a record that becomes a self-contained
    snapshot of its own state. `replacement`: a record that takes the place of the one with its
    sequence.
    """
    gone = set(remove)
    if not gone and renew is None and replacement is None:
        return head
    since = renew if renew is not None else 0
    records = {
        row[0]: rows.record(row) for row in rows.some("AND r.sequence >= :since", since=since)
    }
    replaced = replacement.sequence if replacement is not None else None
    unsettled = {renew} if renew is not None else set()
    dissolved = _packs_of(rows, gone)

    def lost(run: Address | tuple[int, int]) -> bool:
        sequence, ordinal = run[:2]
        if ordinal == PACK:
            return sequence in dissolved
        return sequence in gone or (
            ordinal == BODY and (sequence == replaced or sequence in unsettled)
        )

    survivors: list[int] = []
    for sequence, record in records.items():  # ascending: what is pointed to comes first
        if sequence in gone or sequence == replaced or record.kind == "awaited":
            continue
        survivors.append(sequence)
        points = addresses(log.reader.header(rows, record), record.kind, sequence)
        based = record.kind == "delta" and record.parent_sequence in (gone | {replaced})
        if based or any(map(lost, points)):
            unsettled.add(sequence)
    entries = log.reader.entries(rows, survivors if prove else sorted(unsettled))
    before = _states(entries) if prove else {}

    for sequence in unsettled:
        for value in entries[sequence].image.values():
            value.lose(lost)
    if dissolved:
        _dissolve(rows, dissolved, gone)
    if gone:  # first: on a full disk this is where the room comes from
        rows.delete(sorted(gone))
    digest = head.digest
    settled: dict[int, Record] = {}
    for sequence, record in records.items():
        if sequence in gone:
            digest = xor(digest, record.checksum)
            continue
        new = record
        if replacement is not None and sequence == replaced:
            new = replacement
        elif sequence in unsettled:
            writer = Writer(sequence)
            header = write_snapshot(
                entries[sequence].image, writer, self_contained=sequence == renew
            )
            new = log.composer.sealed(record, sequence, header, bytes(writer.blob), None)
        elif record.kind == "delta" and record.parent_sequence in settled:
            parent = settled[record.parent_sequence]
            new = replace(record, depth=parent.depth + 1).signed(parent.checksum)
        if new is not record:
            rows.update(new)
            digest = xor(digest, xor(record.checksum, new.checksum))
            settled[sequence] = new
    left = [n for n, r in records.items() if n not in gone and r.kind != "awaited"]
    latest = head.latest_sequence
    if latest in gone:
        latest = max(left, default=0)
    removed = gone & records.keys()  # recovery has removed a record before its writes
    head = replace(
        head,
        records=head.records - len(removed),
        sequence_sum=head.sequence_sum - sum(removed),
        latest_sequence=latest,
        digest=digest,
    )
    rows.save_head(head)
    if prove and _states(log.reader.entries(rows, survivors)) != before:
        raise DurableKitError(
            f"thread {rows.thread_id!r}: a state that was to be kept would have changed. Nothing "
            "was changed; please report this together with the output of verify()."
        )
    log.forget(rows.key)
    return head


# -- helpers ----------------------------------------------------------------------------------


def _packs_of(rows: LogRows, gone: set[int]) -> set[int]:
    """The packs that hold writes of `gone`, and those that share a checkpoint with such a pack."""
    if not gone:
        return set()
    contents = {
        pack.pack: {writes.sequence for writes in rows.unpacked(pack)} for pack in rows.packs()
    }
    found: set[int] = set()
    touched = set(gone)
    while more := {n for n, inside in contents.items() if n not in found and inside & touched}:
        found |= more
        touched = set().union(*(contents[n] for n in more))
    return found


def _dissolve(rows: LogRows, packs: set[int], gone: set[int]) -> None:
    """Turn packs back into rows, without the writes of `gone`."""
    inside = {
        writes.sequence
        for pack in rows.packs()
        if pack.pack in packs
        for writes in rows.unpacked(pack)
    }
    kept = list(rows.writes(inside - gone, {}))
    rows.delete_packs(packs)
    rows.delete_writes(inside)
    at, previous = 0, ZERO
    for write in kept:
        if write.sequence != at:
            at, previous = write.sequence, ZERO
        previous = rows.insert_writes(write, previous)


def _needed(
    log: CheckpointLog, rows: LogRows, real: list[Record], gone: set[int], needs: Needs | None
) -> set[int]:
    """Which of `gone` the rest cannot do without."""
    if needs is None or not gone:
        return set()
    kept = [record.sequence for record in real if record.sequence not in gone]
    ids = needs([Entry(r, {}, [], 0) for r in real if r.sequence in set(kept)])
    return {record.sequence for record in real if record.checkpoint_id in ids} & gone


def _states(entries: dict[int, Entry]) -> dict[int, bytes]:
    """A digest of each state with its writes. Views of one buffer are hashed on from each other."""
    running: dict[int, tuple[int, hashlib._Hash]] = {}
    result: dict[int, bytes] = {}
    for sequence, entry in entries.items():
        total = hashlib.sha256(repr((entry.record.parent_id, entry.writes)).encode())
        total.update(entry.record.metadata)
        for name in sorted(entry.image):
            value = entry.image[name]
            total.update(repr((name, value.shape, value.items)).encode())
            total.update(value.digest(running))
        result[sequence] = total.digest()
    return result


def _check_threads(ids: Sequence[str], *, what: str = "thread_ids") -> None:
    if isinstance(ids, str) or not all(isinstance(one, str) for one in ids):
        raise BadInput(f"{what} must be a list of strings; it is {ids!r}.")


def _check_keep_last(keep_last: object) -> None:
    if keep_last is not None and (
        not isinstance(keep_last, int) or isinstance(keep_last, bool) or keep_last < 1
    ):
        raise BadInput(
            f"keep_last is {keep_last!r}; it must be a whole number of at least 1. "
            "To remove everything, say strategy='delete'."
        )


def _age_us(older_than: object) -> int | None:
    if older_than is None:
        return None
    seconds = older_than.total_seconds() if isinstance(older_than, timedelta) else older_than
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not math.isfinite(seconds)
        or seconds < 0
    ):
        raise BadInput(
            f"older_than is {older_than!r}; it must be a timedelta or a number of seconds, "
            "0 or more."
        )
    return int(seconds * 1_000_000)
