"""The log that checkpoints are kept in.

One log for each thread and namespace. It is only ever added to:

    put_writes(1, task A)     checkpoint_writes  (1, 0)   m2
    put(2, parent 1)          checkpoints        2        delta on 1: messages + (at writes 1, 0)
    put_writes(2, task B)     checkpoint_writes  (2, 0)   m3
    ── killed here ──
    read                      state of 2, and m3 pending: B need not run again

`append` and `append_writes` each take one transaction. Either may come first: writes whose
checkpoint has not arrived wait under a record of the kind "awaited", which `append` replaces.

What `append` promises when it returns: the record is committed, under the database's strictest
setting, and reading it gives back what was passed, in value and type. What it promises when it
raises: nothing of it is stored.

The log knows nothing of LangGraph: a state is a dict of named values.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from durable_kit import crash_point
from durable_kit.clock import Clock, SystemClock
from durable_kit.errors import DurableKitError
from durable_kit.storage.composer import Composer, Draft
from durable_kit.storage.database import Database, Tx
from durable_kit.storage.listing import (
    prove_absence,
    prove_awaited,
)
from durable_kit.storage.log_reader import LogReader
from durable_kit.storage.materialize import pending
from durable_kit.storage.namespaces import hold_back
from durable_kit.storage.queue_order import QueueOrder
from durable_kit.storage.record import (
    STATE_VERSION,
    ZERO,
    Head,
    Record,
    WriteRecord,
    blob_of,
    header_of,
    pack_body,
    pack_id,
    run_key,
    thread_key,
)
from durable_kit.storage.rows import LogRows, Place
from durable_kit.storage.seal import Seal
from durable_kit.storage.snapshot_policy import SnapshotPolicy
from durable_kit.storage.tip import Plan, StateCodec, Tip, plan
from durable_kit.storage.tx import Moment

_KEPT_TIPS = 64  # how many threads' last states a log keeps in memory
_KEPT_AHEAD = 10_000  # and how many ids of checkpoints whose writes came first


@dataclass(frozen=True, slots=True)
class Write:
    """One pending write of a task.

    `slot` from 0 up is a regular write: the first value stored under (task, slot) stays.
    A negative slot is special (an interrupt, a resume): the last value stored replaces the others.
    """

    slot: int
    name: str
    value: Any


_Early = tuple[Moment, Record, Tip]
"""The moment for which a record was made, the record, and the tip that it leaves."""


class _ParentMovedError(Exception):
    """The parent's row is not the one the delta was made for; make it again."""


class _KnownIdError(Exception):
    """The log has a row with the id that was to be appended."""


class CheckpointLog(LogReader):
    """Append to the logs of one database, and read them.

    `policy` decides about snapshots. For `trust_identity` see `tip.py`. `state_version` is noted
    on each record; what it means is the caller's affair. Safe to share between OS threads.
    """

    def __init__(
        self,
        database: Database,
        codec: StateCodec,
        *,
        policy: SnapshotPolicy,
        seal: Seal | None = None,
        clock: Clock | None = None,
        trust_identity: bool = False,
        state_version: int = STATE_VERSION,
    ) -> None:
        super().__init__(database, codec, seal=seal)
        self.state_version = state_version
        self.clock = clock or SystemClock()
        self.composer = Composer(codec, self.seal, policy, trust_identity=trust_identity)
        self._tips: OrderedDict[int, Tip] = OrderedDict()
        self._tips_lock = threading.Lock()
        self._order = QueueOrder()
        self._ahead: set[tuple[int, str]] = set()  # checkpoints whose writes came here first

    # -- appending a checkpoint ----------------------------------------------------------------

    def append(
        self,
        *,
        thread_id: str,
        namespace: str,
        checkpoint_id: str,
        parent_id: str | None,
        state: Mapping[str, Any],
        metadata: Any,
        run_id: str | None = None,
        unchanged: Collection[str] = (),
    ) -> Record:
        """Store the state of a checkpoint. Storing the same one again changes nothing; storing
        another state under a known id replaces it.

        `unchanged`: names whose value is the parent's, whatever `state` holds for them.

        Raises `UnstorableValue` for what could not come back equal, before anything is written,
        and `BrokenChain` if the parent's chain is damaged.
        """
        draft = Draft(
            thread_id,
            namespace,
            checkpoint_id,
            parent_id,
            self.seal.seal(self.codec.encode("metadata", metadata)),
            run_key(run_id) if run_id is not None else None,
            self.clock.now_us(),
            self.state_version,
        )
        key = thread_key(thread_id, namespace)
        with self._order.checkpoint(key, checkpoint_id):
            return self._append_in_turn(key, draft, state, unchanged)

    def _append_in_turn(
        self, key: int, draft: Draft, state: Mapping[str, Any], unchanged: Collection[str]
    ) -> Record:
        checkpoint_id = draft.checkpoint_id
        # In async mode writes run ahead of their checkpoint as a rule: do not try without them.
        known = (key, checkpoint_id) in self._ahead
        self._ahead.discard((key, checkpoint_id))
        for _attempt in range(6):
            tip = self._tip(key, draft)
            # The costly part, encoding the state, happens before the transaction.
            planned = plan(
                tip,
                state,
                self.codec,
                trust_identity=self.composer.trust_identity,
                unchanged=unchanged,
            )
            early = None if known else self._early(draft, tip, planned)
            append = self._append_known if known else self._append
            try:
                with self.database.write() as tx:
                    record, new_tip = append(tx, draft, tip, planned, state, early)
                    tx.then.append(partial(self._keep, key, new_tip))
                    crash_point.reached("saver.put.before_commit")
            except _ParentMovedError:
                self.forget(key)
                continue
            except _KnownIdError:
                known = True
                continue
            except BaseException:
                self.forget(key)  # it may be ahead of what was committed
                raise
            return record
        raise DurableKitError(
            f"thread {draft.thread_id!r}: the parent {draft.parent_id} of {checkpoint_id} was "
            "rewritten again and again while a delta on it was being made. Try again when "
            "compaction has ended."
        )

    def _early(self, draft: Draft, tip: Tip | None, planned: Plan) -> _Early | None:
        """The record as it will be if nobody writes first; made while others wait for the disk."""
        if tip is None or tip.head is None or tip.left is None or self.database.in_transaction:
            return None
        left = tip.left  # before the tip's sources are read: a write that comes changes it last
        made = self.composer.delta(draft, tip.head.next_sequence, tip, planned)
        return None if made is None else (left, *made)

    def _append(
        self,
        tx: Tx,
        draft: Draft,
        tip: Tip | None,
        planned: Plan,
        state: Mapping[str, Any],
        early: _Early | None,
    ) -> tuple[Record, Tip | None]:
        hold_back(tx, draft.thread_id)
        rows = self.rows(tx, draft.thread_id, draft.namespace)
        found, left = tx.moments()
        if tip is not None and tip.head is not None and found is not None and tip.left == found:
            head = tip.head  # nobody has written since: it is what it was
        else:
            head = rows.head() or rows.new_head()
            self._check_parent(rows, head, draft, tip)
        if early is not None and early[0] == found:
            _, record, new_tip = early
        else:
            record, new_tip = self._record(rows, draft, head.next_sequence, tip, planned, state)
        if not rows.insert(record):
            raise _KnownIdError  # rare: undo what was done, and look what is there
        new_tip.head, new_tip.left = _with_record(head, record), left
        rows.save_head(new_tip.head)
        # A crash before the commit leaves the log as it was; after it, the record is there.
        return record, new_tip

    def _record(
        self,
        rows: LogRows,
        draft: Draft,
        sequence: int,
        tip: Tip | None,
        planned: Plan,
        state: Mapping[str, Any],
    ) -> tuple[Record, Tip]:
        made = self.composer.delta(draft, sequence, tip, planned) if tip is not None else None
        return made or self.composer.snapshot(rows, draft, sequence, tip, planned, state)

    def _append_known(
        self,
        tx: Tx,
        draft: Draft,
        tip: Tip | None,
        planned: Plan,
        state: Mapping[str, Any],
        _early: _Early | None,
    ) -> tuple[Record, Tip | None]:
        """Append where a row with this id is there: its writes came first, or it is put again."""
        hold_back(tx, draft.thread_id)
        rows = self.rows(tx, draft.thread_id, draft.namespace)
        head = rows.head() or rows.new_head()
        self._check_parent(rows, head, draft, tip)
        existing = rows.find(draft.checkpoint_id).get(draft.checkpoint_id)
        if existing is not None and existing.kind != "awaited":
            return self._append_again(rows, head, draft, existing.sequence, planned, tip, state)
        record, new_tip = self._record(rows, draft, head.next_sequence, tip, planned, state)
        if existing is not None:
            head, record = self._adopt_writes(rows, head, existing, record)
            new_tip.sources, new_tip.last_write = self.reader.sources(
                rows, record.sequence, record.writes_count
            )
        rows.insert(record)
        rows.save_head(_with_record(head, record))
        return record, new_tip

    def _check_parent(self, rows: LogRows, head: Head, draft: Draft, tip: Tip | None) -> None:
        """Make sure that the parent's row is what the delta was made for."""
        if tip is None:
            if draft.parent_id is not None and head.records and not rows.find(draft.parent_id):
                prove_absence(rows, head, draft.parent_id)
            return
        checksum, count = rows.at(tip.sequence) or (b"", 0)
        if checksum != tip.checksum:
            raise _ParentMovedError
        if count != len(tip.sources):
            tip.sources, tip.last_write = self.reader.sources(rows, tip.sequence, count)

    def _append_again(
        self,
        rows: LogRows,
        head: Head,
        draft: Draft,
        sequence: int,
        planned: Plan,
        tip: Tip | None,
        state: Mapping[str, Any],
    ) -> tuple[Record, Tip | None]:
        """A checkpoint whose id is stored already: nothing to do, or another state replaces it."""
        from durable_kit.storage.retention import replace_record  # it builds on this module

        entry = self.reader.entries(rows, [sequence])[sequence]
        encoded = {name: self.codec.encode(name, value) for name, value in state.items()}
        same_state = {n: value.encoded() for n, value in entry.image.items()} == encoded
        same_state &= entry.record.state_version == draft.state_version
        if same_state and self.seal.unseal(entry.record.metadata) == self.seal.unseal(
            draft.metadata
        ):
            return entry.record, None
        whole = plan(None, state, self.codec, trust_identity=False)
        replacement, _ = self._record(rows, draft, sequence, None, whole, state)
        replacement = replace(replacement, writes_count=entry.record.writes_count)
        replace_record(self, rows, head, replacement)
        self.forget(rows.key)
        return replacement, None

    def _adopt_writes(
        self, rows: LogRows, head: Head, awaited: Place, record: Record
    ) -> tuple[Head, Record]:
        """Move writes that came before their checkpoint under its record.

        The record takes a new sequence: the order of the log is the order of checkpoints, not of
        the writes that ran ahead of them.
        """
        old_sequence, count = awaited.sequence, awaited.writes_count
        prove_awaited(rows, [old_sequence])
        moved = list(rows.writes([old_sequence], {old_sequence: count}))
        rows.delete([old_sequence])
        previous = ZERO
        for write in moved:
            previous = rows.insert_writes(write._replace(sequence=record.sequence), previous)
        head = head.with_one_less(old_sequence, awaited.checksum)
        return head, replace(record, writes_count=count)

    # -- appending writes ----------------------------------------------------------------------

    def append_writes(
        self,
        *,
        thread_id: str,
        namespace: str,
        checkpoint_id: str,
        task_id: str,
        task_path: str,
        writes: Sequence[Write],
    ) -> None:
        """Store what one task wrote on top of a checkpoint, in one record.

        Storing the same writes again changes nothing; see `Write` for what replaces what.
        Raises `UnstorableValue` before anything is written.
        """
        encoded = [
            (write.slot, write.name, self.codec.encode(write.name, write.value)) for write in writes
        ]
        if not encoded:
            return
        key = thread_key(thread_id, namespace)
        self._order.wait_for(key, checkpoint_id)
        with self._tips_lock:
            tip = self._tips.get(key)
        try:
            with self.database.write() as tx:
                hold_back(tx, thread_id)
                rows = self.rows(tx, thread_id, namespace)
                sequence, count, previous = 0, 0, ZERO
                # The usual case is the first write on the checkpoint stored last. One statement
                # finds out whether that is still so, and counts it.
                usual = tip is not None and tip.checkpoint_id == checkpoint_id and not tip.sources
                if tip is not None and usual and rows.count_first_write(tip.sequence, tip.checksum):
                    sequence = tip.sequence
                if not sequence:
                    sequence, count = self._checkpoint_for_writes(rows, checkpoint_id)
                    if count:
                        stored = list(rows.writes([sequence], {sequence: count}))
                        previous = stored[-1].checksum
                        encoded = self._not_yet(stored, pack_id(task_id), encoded)
                    if not encoded:
                        return
                    rows.count_writes(sequence, count + 1)
                header = [[slot, name, len(data)] for slot, name, data in encoded]
                blob = b"".join([data for _, _, data in encoded])
                body = pack_body(header, blob)
                record = WriteRecord(
                    sequence, count, pack_id(task_id), pack_id(task_path), body, ZERO
                )
                checksum = rows.insert_writes(record, previous)
                tx.then.append(
                    partial(
                        self._remember_writes, key, sequence, count, blob, checksum, tx.moments()
                    )
                )
                crash_point.reached("saver.put_writes.before_commit")
        except BaseException:
            self.forget(key)  # it may be ahead of what was committed
            raise

    def _checkpoint_for_writes(self, rows: LogRows, checkpoint_id: str) -> tuple[int, int]:
        """(sequence, number of write records) of a checkpoint; awaited if it is not there."""
        found = rows.find(checkpoint_id).get(checkpoint_id)
        if found is None:
            return self._await(rows, rows.head() or rows.new_head(), checkpoint_id), 0
        return found.sequence, found.writes_count

    def _await(self, rows: LogRows, head: Head, checkpoint_id: str) -> int:
        record = Record(
            rows.thread_id,
            rows.namespace,
            checkpoint_id,
            None,
            sequence=head.next_sequence,
            parent_sequence=None,
            kind="awaited",
            depth=0,
            state_version=self.state_version,
            created_at_us=self.clock.now_us(),
            run_key=None,
            writes_count=0,
            metadata=b"",
            body=b"",
            checksum=ZERO,
        ).signed(None)
        rows.insert(record)
        rows.save_head(head.with_one_more(record.sequence, record.checksum))
        if len(self._ahead) >= _KEPT_AHEAD:
            self._ahead.clear()  # a hint only: without it `append` tries, and finds the row itself
        self._ahead.add((rows.key, checkpoint_id))
        return record.sequence

    def _not_yet(
        self, stored: Sequence[WriteRecord], task_id: bytes, encoded: list[tuple[int, str, bytes]]
    ) -> list[tuple[int, str, bytes]]:
        """Those of `encoded` that change what the task has stored so far."""
        mine = [
            (record, header_of(record.body), blob_of(record.body))
            for record in stored
            if record.task_id == task_id
        ]
        taken = {write.slot: write.encoded for write in pending(mine)}
        return [
            (slot, name, data)
            for slot, name, data in encoded
            if slot not in taken or (slot < 0 and taken[slot] != data)
        ]

    def _remember_writes(
        self,
        key: int,
        sequence: int,
        ordinal: int,
        blob: bytes,
        checksum: bytes,
        moments: tuple[Moment | None, Moment | None],
    ) -> None:
        with self._tips_lock:
            tip = self._tips.get(key)
            if tip is not None and tip.sequence == sequence and len(tip.sources) == ordinal:
                tip.sources.append((sequence, ordinal, blob))
                tip.last_write = checksum
                if tip.left == moments[0]:
                    tip.left = moments[1]

    # -- tips ----------------------------------------------------------------------------------

    def _tip(self, key: int, draft: Draft) -> Tip | None:
        """The parent's state, from memory or from the log; None if the log has no such parent."""
        if draft.parent_id is None:
            return None
        with self._tips_lock:
            tip = self._tips.get(key)
        if tip is not None and tip.checkpoint_id == draft.parent_id:
            return tip
        with self.database.read() as tx:
            rows = self.rows(tx, draft.thread_id, draft.namespace)
            head = rows.head()
            if head is None:
                return None
            entry = self._entry(rows, head, draft.parent_id)
            if entry is None:
                return None
            tip = Tip.of(entry.record, entry.delta_bytes, entry.image)
            tip.sources, tip.last_write = self.reader.sources(
                rows, tip.sequence, entry.record.writes_count
            )
        return tip

    def _keep(self, key: int, tip: Tip | None) -> None:
        if tip is None:
            return
        with self._tips_lock:
            self._tips[key] = tip
            self._tips.move_to_end(key)
            while len(self._tips) > _KEPT_TIPS:
                self._tips.popitem(last=False)

    def forget(self, key: int) -> None:
        """Drop what is kept in memory of one log: its records were rewritten."""
        with self._tips_lock:
            self._tips.pop(key, None)


def _with_record(head: Head, record: Record) -> Head:
    return head.with_one_more(record.sequence, record.checksum, latest=record.sequence)
