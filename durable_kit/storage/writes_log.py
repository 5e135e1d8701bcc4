"""What tasks wrote, stored before the checkpoint that takes it up.

    put_writes(1, task A)     checkpoint_writes  (1, 0)   m2
    ── killed here ──
    read                      state of 1, and m2 pending: A need not run again

A log keeps in memory the last state of each thread that it has met (its tip), since the next delta
is made against it; and what was written on top of it, since the new bytes of that delta are likely
to lie there. `CheckpointLog` adds the checkpoints.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from durable_kit import crash_point
from durable_kit.clock import Clock, SystemClock
from durable_kit.storage.database import Database
from durable_kit.storage.log_reader import LogReader
from durable_kit.storage.materialize import PendingWrite, pending
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
    thread_key,
)
from durable_kit.storage.rows import LogRows
from durable_kit.storage.seal import Seal
from durable_kit.storage.tip import StateCodec, Tip
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


def _settled(writes: Sequence[Write]) -> list[Write]:
    """One write a slot: what would be left if these were stored one after the other."""
    settled: dict[int, Write] = {}
    for write in writes:
        if write.slot < 0 or write.slot not in settled:
            settled[write.slot] = write
    return list(settled.values())


class WritesLog(LogReader):
    """Append what tasks wrote to the logs of one database, and read them."""

    def __init__(
        self,
        database: Database,
        codec: StateCodec,
        *,
        seal: Seal | None = None,
        clock: Clock | None = None,
        state_version: int = STATE_VERSION,
    ) -> None:
        super().__init__(database, codec, seal=seal)
        self.state_version = state_version
        self.clock = clock or SystemClock()
        self._tips: OrderedDict[int, Tip] = OrderedDict()
        self._tips_lock = threading.Lock()
        self._order = QueueOrder()
        self._ahead: set[tuple[int, str]] = set()  # checkpoints whose writes came here first

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
            (write.slot, write.name, self.codec.encode(write.name, write.value))
            for write in _settled(writes)
        ]
        if not encoded:
            return
        key = thread_key(thread_id, namespace)
        self._order.wait_for(key, checkpoint_id)
        with self._tips_lock:
            tip = self._tips.get(key)
        blob = b"".join([data for _, _, data in encoded])
        # The usual case is the first write on the checkpoint stored last. One statement finds out
        # whether that is still so, and counts it.
        usual = tip is not None and tip.checkpoint_id == checkpoint_id and not tip.sources
        if tip is not None and usual:
            tip.expected = (tip.sequence, 0, blob)
        try:
            # The task is done: its checkpoint is about to come.
            with self.database.write(linger=True) as tx:
                hold_back(tx, thread_id)
                rows = self.rows(tx, thread_id, namespace)
                sequence, count, previous, awaited = 0, 0, ZERO, False
                if tip is not None and usual and rows.count_first_write(tip.sequence, tip.checksum):
                    sequence = tip.sequence
                if not sequence:
                    sequence, count, awaited = self._checkpoint_for_writes(rows, checkpoint_id)
                    if count:
                        stored = list(rows.writes([sequence], {sequence: count}))
                        previous = stored[-1].checksum
                        encoded = self._not_yet(stored, task_id, task_path, encoded)
                    if not encoded:
                        return
                    rows.count_writes(sequence, count + 1)
                    blob = b"".join([data for _, _, data in encoded])
                header = [[slot, name, len(data)] for slot, name, data in encoded]
                body = pack_body(header, blob)
                record = WriteRecord(
                    sequence, count, pack_id(task_id), pack_id(task_path), body, ZERO
                )
                checksum = rows.insert_writes(record, previous)
                # A record that awaits its checkpoint changes the head, which a tip may have kept.
                moments = (None, None) if awaited else tx.moments()
                tx.then.append(
                    partial(self._remember_writes, key, sequence, count, blob, checksum, moments)
                )
                crash_point.reached("saver.put_writes.before_commit")
        except BaseException:
            self.forget(key)  # it may be ahead of what was committed
            raise

    def _checkpoint_for_writes(self, rows: LogRows, checkpoint_id: str) -> tuple[int, int, bool]:
        """(sequence, number of write records, whether it is newly awaited) of a checkpoint."""
        found = rows.find(checkpoint_id).get(checkpoint_id)
        if found is None:
            return self._await(rows, rows.head() or rows.new_head(), checkpoint_id), 0, True
        return found.sequence, found.writes_count, False

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
        self,
        stored: Sequence[WriteRecord],
        task_id: str,
        task_path: str,
        encoded: list[tuple[int, str, bytes]],
    ) -> list[tuple[int, str, bytes]]:
        """Those of `encoded` that change what the task has stored so far."""
        mine = [
            (record, header_of(record.body), blob_of(record.body))
            for record in stored
            if record.task_id == pack_id(task_id)
        ]
        taken = {write.slot: write for write in pending(mine)}
        return [
            (slot, name, data)
            for slot, name, data in encoded
            if slot not in taken
            or (slot < 0 and taken[slot] != PendingWrite(task_id, task_path, slot, name, data))
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
            if tip is None:
                return
            if tip.sequence == sequence and len(tip.sources) == ordinal:
                tip.sources.append((sequence, ordinal, blob))
                tip.last_write, tip.expected = checksum, None
            elif tip.sequence == sequence:
                return  # more has been written on it than was remembered
            # Writes on another checkpoint change nothing that the tip knows.
            if moments[0] is not None and tip.left == moments[0]:
                tip.left = moments[1]

    # -- tips --------------------------------------------------------------------------------------

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
