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

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from durable_kit import crash_point
from durable_kit.clock import Clock
from durable_kit.errors import DurableKitError
from durable_kit.storage.composer import Composer, Draft
from durable_kit.storage.database import Database, Tx
from durable_kit.storage.listing import (
    prove_absence,
    prove_awaited,
)
from durable_kit.storage.namespaces import hold_back
from durable_kit.storage.record import (
    STATE_VERSION,
    ZERO,
    Head,
    Record,
    run_key,
    thread_key,
)
from durable_kit.storage.rows import LogRows, Place
from durable_kit.storage.seal import Seal
from durable_kit.storage.snapshot_policy import SnapshotPolicy
from durable_kit.storage.tip import Plan, StateCodec, Tip, plan
from durable_kit.storage.writes_log import WritesLog

_Early = tuple[list[tuple[int, int, bytes]], Record, Tip]
"""The parent's sources for which a record was made, the record, and the tip that it leaves."""


class _ParentMovedError(Exception):
    """The parent's row is not the one the delta was made for; make it again."""


class _KnownIdError(Exception):
    """The log has a row with the id that was to be appended."""


class CheckpointLog(WritesLog):
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
        super().__init__(database, codec, seal=seal, clock=clock, state_version=state_version)
        self.composer = Composer(codec, self.seal, policy, trust_identity=trust_identity)

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
        """The record as it will be if nobody but the parent's own tasks writes first.

        It is made before the transaction, while those tasks' writes are on their way to the disk.
        """
        if tip is None or tip.head is None or tip.left is None:
            return None
        sources, expected = tip.sources[:], tip.expected
        if not sources and expected is not None:
            sources.append(expected)
        made = self.composer.delta(draft, tip.head.next_sequence, tip, planned, sources)
        return None if made is None else (sources, *made)

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
        if early is not None and tip is not None and head is tip.head and early[0] == tip.sources:
            _, record, new_tip = early
        else:
            if early is not None and tip is not None:
                early[2].withdraw(tip)
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
        made = None
        if tip is not None:
            made = self.composer.delta(draft, sequence, tip, planned, tip.sources)
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
        checksum, count, last_write = rows.at(tip.sequence) or (b"", 0, None)
        if checksum != tip.checksum:
            raise _ParentMovedError
        # Remembered before their commit, which may have failed; others may stand there now.
        if count != len(tip.sources) or (count and last_write != tip.last_write):
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

    def _tip(self, key: int, draft: Draft) -> Tip | None:
        """The parent's state, from memory or from the log; None if the log has no such parent."""
        if draft.parent_id is None:
            return None
        with self._tips_lock:
            tip = self._tips.get(key)
            if tip is not None and tip.checkpoint_id == draft.parent_id and not tip.taken:
                tip.taken = True
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


def _with_record(head: Head, record: Record) -> Head:
    return head.with_one_more(record.sequence, record.checksum, latest=record.sequence)
