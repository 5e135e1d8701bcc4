"""What is right and what is wrong in one log.

Recovery needs the opposite of reading: not the first failure, but every record sorted into those
whose state can be told and those whose state cannot, and the reason for each. Damage spreads
along two lines, and a survey follows both:

    a delta leans on its parent            8 ✗  →  9, 10, 11 cannot be told
    a snapshot leans on the bytes it names    write (3,0) ✗  →  every state with that message
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from durable_kit.errors import BrokenChain
from durable_kit.storage.fold import addresses
from durable_kit.storage.materialize import Reader
from durable_kit.storage.record import ZERO, Head, PackRecord, Record, WriteRecord, xor
from durable_kit.storage.rows import LogRows
from durable_kit.storage.runs import BODY, PACK


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in one log. `sequence` and `checkpoint_id` where they are known."""

    namespace: str
    sequence: int | None
    checkpoint_id: str | None
    found: str

    def __str__(self) -> str:
        where = f"namespace {self.namespace!r}" if self.namespace else "root namespace"
        if self.sequence is not None:
            where += f", sequence {self.sequence}"
        if self.checkpoint_id is not None:
            where += f", checkpoint {self.checkpoint_id}"
        return f"{where}: {self.found}"


class Survey:
    """Every row of one log, sorted. Raises nothing for damage.

    `good`: records whose state can be told, by sequence. `bad`: the raw rows of the others.
    `intact`: how many write records of each checkpoint are in order. `bad_writes`, `bad_packs`:
    rows that are not. `orphans`: write records that are in order and have lost their checkpoint;
    a good state may still have its bytes there.
    """

    def __init__(self, reader: Reader, rows: LogRows) -> None:
        self.rows = rows
        self.problems: list[Problem] = []
        self.good: dict[int, Record] = {}
        self.bad: dict[int, Any] = {}
        self.intact: dict[int, int] = {}
        self.bad_writes: list[WriteRecord] = []
        self._sound_writes: dict[int, list[WriteRecord]] = {}
        self.bad_packs: list[PackRecord] = []
        self._raw = {row[0]: row for row in rows.some()}
        self.count = len(self._raw)
        self.head = self._read_head()
        self._sort_records()
        self._good_packs: set[int] = set()
        packed = self._read_packs()
        self._read_writes(packed)
        self._follow_addresses(reader)
        self.orphans = [
            write
            for sequence, writes in self._sound_writes.items()
            if sequence not in self.good
            for write in writes
        ]
        self._check_counts()
        self._check_sum()
        self._check_indexes()

    def _report(
        self, found: str, sequence: int | None = None, record: Record | None = None
    ) -> None:
        checkpoint_id = record.checkpoint_id if record is not None else None
        self.problems.append(Problem(self.rows.namespace, sequence, checkpoint_id, found))

    def _read_head(self) -> Head | None:
        try:
            return self.rows.head()
        except BrokenChain as error:
            self._report(error.found)
            return None

    def _sort_records(self) -> None:
        for sequence, row in self._raw.items():
            record, problem = self.rows.inspect(row)
            if record is None or problem is not None:
                self._report(problem or "the row cannot be read", sequence, record)
                self.bad[sequence] = row
            elif record.kind == "delta" and record.parent_sequence not in self.good:
                self.bad[sequence] = row  # its parent is bad, and was reported
            else:
                self.good[sequence] = record

    def _read_packs(self) -> dict[int, list[bytes]]:
        """The checksums that stand for the packed write records, by checkpoint."""
        packed: dict[int, list[bytes]] = {}
        for pack in self.rows.raw_packs():
            try:
                problem = self.rows.pack_problem(pack)
                if problem is not None:
                    self.rows.broken(problem)
                opened = pack._replace(body=self.rows.plain(pack.body, pack.pack))
                inside = [(w.sequence, w.ordinal) for w in self.rows.unpacked(opened)]
            except BrokenChain as error:
                self._report(error.found, pack.pack)
                self.bad_packs.append(pack)
                continue
            self._good_packs.add(pack.pack)
            for sequence, ordinal in inside:
                packed.setdefault(sequence, []).append(pack.checksum_of(sequence, ordinal))
        return packed

    def _read_writes(self, packed: dict[int, list[bytes]]) -> None:
        rows: dict[int, list[WriteRecord]] = {}
        for record in self.rows.raw_writes():
            rows.setdefault(record.sequence, []).append(record)
        for sequence in sorted(set(rows) | set(packed), key=repr):
            before = packed.get(sequence, [])
            here = rows.get(sequence, [])
            self.intact[sequence] = len(before) + self._in_order(before, here)
            sound = self.intact[sequence] - len(before)
            self._sound_writes[sequence], bad = here[:sound], here[sound:]
            if sequence not in self._raw:
                if here:
                    self._report("write records without their checkpoint", sequence)
            elif bad:
                problem = self.rows.write_problem(
                    bad[0],
                    self.intact[sequence],
                    here[-len(bad) - 1].checksum
                    if len(bad) < len(here)
                    else (before or [ZERO])[-1],
                )
                self._report(problem or "a write record is out of order", sequence)
            self.bad_writes += bad

    def _in_order(self, before: Sequence[bytes], here: Sequence[WriteRecord]) -> int:
        """How many of the rows `here` rightly follow the packed records `before`."""
        place, previous = len(before), before[-1] if before else ZERO
        for record in here:
            if self.rows.write_problem(record, place, previous) is not None:
                break
            place, previous = place + 1, record.checksum
        return place - len(before)

    def _follow_addresses(self, reader: Reader) -> None:
        """Move records whose bytes are missing, and what leans on them, from good to bad."""
        for sequence, record in list(self.good.items()):
            if record.kind == "delta" and record.parent_sequence not in self.good:
                problem = None
            else:
                problem = self._missing_bytes(reader, record)
                if problem is None:
                    continue
                self._report(problem, sequence, record)
            self.bad[sequence] = self._raw[sequence]
            del self.good[sequence]

    def _missing_bytes(self, reader: Reader, record: Record) -> str | None:
        """Why the state of an intact record cannot be told, or None."""
        try:
            header = reader.header(self.rows, record)
        except BrokenChain as error:
            return error.found
        for sequence, ordinal in sorted(addresses(header, record.kind, record.sequence)):
            if ordinal == BODY and sequence not in self.good:
                return f"its bytes lie in record {sequence}, which is missing or bad"
            if ordinal == PACK and sequence not in self._good_packs:
                return f"its bytes lie in pack {sequence}, which is missing or bad"
            if ordinal >= 0 and ordinal >= self.intact.get(sequence, 0):
                return (
                    f"its bytes lie in write record {ordinal} of sequence {sequence}, "
                    "which is missing or bad"
                )
        return None

    def _check_counts(self) -> None:
        for sequence, record in self.good.items():
            found = self.intact.get(sequence, 0)
            if record.writes_count != found:
                self._report(
                    f"the checkpoint counts {record.writes_count} write records, "
                    f"{found} are there and in order",
                    sequence,
                    record,
                )

    def _check_sum(self) -> None:
        if self.head is None:
            return
        if self.count != self.head.records:
            self._report(f"the log counts {self.head.records} records, {self.count} are there")
            return
        if self.bad:
            return
        latest = self.good.get(self.head.latest_sequence)
        if digest_of(self.good.values()) != self.head.digest:
            self._report("the records do not add up to the head's digest")
        elif self.head.latest_sequence and (latest is None or latest.kind == "awaited"):
            self._report("the newest checkpoint is missing", self.head.latest_sequence)

    def _check_indexes(self) -> None:
        """A damaged index leads past a sound row, to nothing."""
        for sequence in self.rows.not_found_by_id():
            self._report("the index of ids does not lead to it", sequence)
        found = self.rows.tx.rows(
            "SELECT sequence FROM checkpoints WHERE thread_key = :key AND sequence > 0",
            key=self.rows.key,
        )
        if not self.problems and len(found) != self.count:
            self._report(f"the index of sequences leads to {len(found)} of {self.count} records")


def digest_of(records: Any) -> bytes:
    """What the checksums of some records add up to."""
    digest = ZERO
    for record in records:
        digest = xor(digest, record.checksum)
    return digest
