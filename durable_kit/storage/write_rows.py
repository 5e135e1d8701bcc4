"""The rows of pending writes and of packs, and the checks each must pass.

What tasks wrote on top of a checkpoint lies in rows of `checkpoint_writes`, in order of arrival,
each covering the checksum of the one before; older ones lie together in rows of
`checkpoint_packs`. Who reads writes does not see the difference: `writes` gives them back from
both, checked and opened.

Like all rows of a log, one that fails its check raises `BrokenChain`; none is skipped or guessed.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn

from durable_kit.errors import BrokenChain
from durable_kit.storage.database import Tx
from durable_kit.storage.packs import PackedWrites, read_pack
from durable_kit.storage.record import (
    ZERO,
    PackRecord,
    WriteRecord,
    blob_of,
    header_of,
    pack_body,
    thread_key,
)
from durable_kit.storage.seal import NoSeal, Seal

REMEDY = "Run verify() to see every bad record and recover() to fall back to the newest good state."


class WriteRows:
    """The writes of one log (one thread and namespace) inside one transaction."""

    def __init__(self, tx: Tx, thread_id: str, namespace: str, seal: Seal) -> None:
        self.tx = tx
        self.seal = seal
        self.thread_id = thread_id
        self.namespace = namespace
        self.key = thread_key(thread_id, namespace)

    # -- writes --------------------------------------------------------------------------------

    def writes(
        self, sequences: Collection[int], counts: Mapping[int, int]
    ) -> Iterator[WriteRecord]:
        """The write records of the checkpoints `sequences`, checked and opened (`body` is plain).

        From rows and from packs; records of one checkpoint come together and in order. `counts`:
        how many each checkpoint says it has, where known. Read it to the end: a missing record is
        noticed when the next checkpoint starts, or after the last.
        """
        wanted = sequences if isinstance(sequences, set) else set(sequences)
        if not wanted:
            return
        rows = self._write_rows(wanted)
        firsts = {row.sequence: row.ordinal for row in reversed(rows)}
        # A pack takes all that a checkpoint has; only a late one may be a row behind them.
        packed = self._packed_writes(
            {n for n in wanted if (firsts[n] if n in firsts else counts.get(n, 1))}
        )
        at, place, previous = 0, 0, ZERO
        missing = {n for n in wanted if counts.get(n)}
        for record in rows:
            if record.sequence != at:
                self._check_count(at, place, counts)
                at, place, previous = record.sequence, 0, ZERO
                missing.discard(at)
                for earlier in packed.pop(at, ()):
                    place, previous = place + 1, earlier.checksum
                    yield earlier
            problem = self.write_problem(record, place, previous)
            if problem is not None:
                self.broken(problem, sequence=at)
            place, previous = place + 1, record.checksum
            yield self.opened(record)
        self._check_count(at, place, counts)
        for sequence, records in packed.items():
            self._check_count(sequence, len(records), counts)
            missing.discard(sequence)
            yield from records
        for sequence in missing:
            self._check_count(sequence, 0, counts)

    def _write_rows(self, wanted: Collection[int]) -> list[WriteRecord]:
        low, high = min(wanted), max(wanted)
        if high - low < 2 * len(wanted):  # nearly all of a range: read the range
            where, params = "sequence BETWEEN :low AND :high", {"low": low, "high": high}
        else:
            where = self.tx.among("sequence", "wanted")
            params = {"wanted": self.tx.many(list(wanted))}
        rows = self.tx.execute(
            f"""
            SELECT sequence, ordinal, task_id, task_path, body, checksum
              FROM checkpoint_writes
             WHERE thread_key = :key AND {where}
             ORDER BY sequence, ordinal
            """,
            key=self.key,
            **params,
        )
        return [WriteRecord._make(row) for row in rows if row[0] in wanted]

    def raw_writes(self) -> list[WriteRecord]:
        """All rows of checkpoint_writes of this log as they are, in order."""
        rows = self.tx.execute(
            """
            SELECT sequence, ordinal, task_id, task_path, body, checksum
              FROM checkpoint_writes
             WHERE thread_key = :key
             ORDER BY sequence, ordinal
            """,
            key=self.key,
        )
        return [WriteRecord._make(row) for row in rows]

    def _packed_writes(self, wanted: Collection[int]) -> dict[int, list[WriteRecord]]:
        found: dict[int, list[WriteRecord]] = {}
        if not wanted:
            return found
        for pack in self.packs(
            "AND first_sequence <= :high AND last_sequence >= :low",
            low=min(wanted),
            high=max(wanted),
        ):
            for writes in self.unpacked(pack):
                if writes.sequence in wanted:
                    found.setdefault(writes.sequence, []).append(
                        WriteRecord(
                            writes.sequence,
                            writes.ordinal,
                            writes.task_id,
                            writes.task_path,
                            pack_body(writes.header(), writes.blob()),
                            pack.checksum_of(writes.sequence, writes.ordinal),
                        )
                    )
        for sequence, records in found.items():
            if [record.ordinal for record in records] != list(range(len(records))):
                self.broken("a packed write record is missing", sequence=sequence)
        return found

    def opened(self, record: WriteRecord) -> WriteRecord:
        """The record with its body unsealed."""
        if isinstance(self.seal, NoSeal):
            return record
        return record._replace(body=self.plain(record.body, record.sequence))

    def plain(self, body: bytes, sequence: int) -> bytes:
        """A body, unsealed."""
        try:
            return self.seal.unseal(body)
        except (ValueError, TypeError) as error:
            self.broken(
                f"its body cannot be opened ({error}); was it sealed with another key?",
                sequence=sequence,
            )

    # -- packs ---------------------------------------------------------------------------------

    def packs(self, where: str = "", **params: Any) -> list[PackRecord]:
        """The packs of this log, checked, oldest first. Their bodies are opened."""
        found: list[PackRecord] = []
        for pack in self.raw_packs(where, **params):
            problem = self.pack_problem(pack)
            if problem is not None:
                self.broken(problem, sequence=pack.pack)
            found.append(pack._replace(body=self.plain(pack.body, pack.pack)))
        return found

    def raw_packs(self, where: str = "", **params: Any) -> list[PackRecord]:
        """The rows of checkpoint_packs as they are."""
        return [
            PackRecord._make(row)
            for row in self.tx.execute(
                f"""
                SELECT pack, first_sequence, last_sequence, body, checksum
                  FROM checkpoint_packs
                 WHERE thread_key = :key {where}
                 ORDER BY pack
                """,
                key=self.key,
                **params,
            )
        ]

    def pack_problem(self, pack: PackRecord) -> str | None:
        """What is wrong with a row of checkpoint_packs, or None."""
        try:
            intact = pack.expected_checksum(self.key) == pack.checksum
        except TypeError:
            intact = False
        return None if intact else "the pack of its writes does not match its checksum"

    def unpacked(self, pack: PackRecord) -> Iterator[PackedWrites]:
        """The records in an opened pack."""
        try:
            yield from read_pack(pack.first_sequence, header_of(pack.body), blob_of(pack.body))
        except (ValueError, TypeError, LookupError, zlib.error) as error:
            self.broken(f"the pack of its writes cannot be read ({error})", sequence=pack.pack)

    def not_packed(self, before: int) -> set[tuple[int, int]]:
        """(sequence, ordinal) of the rows of writes of checkpoints before `before`, without those
        that are awaited."""
        found = self.tx.rows(
            """
            SELECT w.sequence, w.ordinal
              FROM checkpoint_writes w
              JOIN checkpoints c ON c.thread_key = w.thread_key AND c.sequence = w.sequence
             WHERE w.thread_key = :key AND w.sequence < :before AND c.kind <> 'awaited'
            """,
            key=self.key,
            before=before,
        )
        return {(row[0], row[1]) for row in found}

    def insert_pack(self, pack: int, first: int, last: int, body: bytes) -> None:
        """Store a pack with the plain `body`."""
        record = PackRecord(pack, first, last, self.seal.seal(body), ZERO)
        self.tx.execute(
            """
            INSERT INTO checkpoint_packs
                   (thread_key, pack, first_sequence, last_sequence, body, checksum)
            VALUES (:key, :pack, :first_sequence, :last_sequence, :body, :checksum)
            """,
            key=self.key,
            **record._replace(checksum=record.expected_checksum(self.key))._asdict(),
        )

    def delete_packs(self, packs: Collection[int]) -> None:
        self.tx.execute(
            f"DELETE FROM checkpoint_packs WHERE thread_key = :key AND "
            f"{self.tx.among('pack', 'gone')}",
            key=self.key,
            gone=self.tx.many(list(packs)),
        )

    def _check_count(self, sequence: int, found: int, counts: Mapping[int, int]) -> None:
        expected = counts.get(sequence)
        if expected is not None and expected != found:
            self.broken(
                f"the checkpoint counts {expected} write records, {found} are there",
                sequence=sequence,
            )

    def write_problem(self, record: WriteRecord, place: int, previous: bytes) -> str | None:
        """What is wrong with the write record at `place`, behind one with checksum `previous`."""
        if record.ordinal != place:
            return f"write record {place} of the checkpoint is missing"
        try:
            intact = record.expected_checksum(self.key, previous) == record.checksum
        except TypeError:
            intact = False
        return (
            None
            if intact
            else f"write record {place} of the checkpoint does not match its checksum"
        )

    def insert_writes(self, record: WriteRecord, previous: bytes) -> bytes:
        """Store a write record with a plain body behind the one with the checksum `previous`.

        Returns its own checksum.
        """
        sealed = record._replace(body=self.seal.seal(record.body))
        checksum = sealed.expected_checksum(self.key, previous)
        self._insert(
            """
            INSERT INTO checkpoint_writes
                   (thread_key, sequence, ordinal, task_id, task_path, body, checksum)
            VALUES (:key, :sequence, :ordinal, :task_id, :task_path, :body, :checksum)
            """,
            key=self.key,
            sequence=record.sequence,
            ordinal=record.ordinal,
            task_id=record.task_id,
            task_path=record.task_path,
            body=sealed.body,
            checksum=checksum,
        )
        return checksum

    def delete_writes(self, sequences: Collection[int]) -> None:
        self.tx.execute(
            f"DELETE FROM checkpoint_writes WHERE thread_key = :key AND "
            f"{self.tx.among('sequence', 'gone')}",
            key=self.key,
            gone=self.tx.many(list(sequences)),
        )

    def count_writes(self, sequence: int, count: int) -> None:
        """Say how many write records the checkpoint has now."""
        self.tx.execute(
            """
            UPDATE checkpoints
               SET writes_count = :count
             WHERE thread_key = :key AND sequence = :sequence
            """,
            key=self.key,
            sequence=sequence,
            count=count,
        )

    def count_first_write(self, sequence: int, checksum: bytes) -> bool:
        """Say that the checkpoint has one write record now.

        False, and nothing changed, if it has some already or is no longer the one with
        `checksum`: the thread may have been deleted, and another told in its place.
        """
        cursor = self.tx.execute(
            """
            UPDATE checkpoints
               SET writes_count = 1
             WHERE thread_key = :key AND sequence = :sequence AND writes_count = 0
               AND checksum = :checksum
            """,
            key=self.key,
            sequence=sequence,
            checksum=checksum,
        )
        return bool(cursor.rowcount)

    def _insert(self, sql: str, **columns: Any) -> Any:
        try:
            return self.tx.execute(sql, **columns)
        except self.tx.integrity_error as error:  # a row that was moved stands there
            self.broken(f"its place is taken ({error})", sequence=columns["sequence"])

    # -- failures ------------------------------------------------------------------------------

    def broken(
        self, found: str, *, sequence: int | None = None, checkpoint_id: str | None = None
    ) -> NoReturn:
        raise BrokenChain(
            thread_id=self.thread_id,
            namespace=self.namespace,
            checkpoint_id=checkpoint_id,
            sequence=sequence,
            found=found,
            remedy=REMEDY,
        )
