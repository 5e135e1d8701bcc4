"""Rows in, rows out: the SQL of one log, and the checks each row must pass.

Nothing here knows what a state is. A row becomes a `Record`, a `WriteRecord` or a `Head` or it
raises `BrokenChain`; no row is skipped, repaired or guessed.

The checks of a record run in a fixed order, and the first failure is the one that is reported:
the sequence has no gap, the parent matches, the checksum is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from durable_kit.errors import BadInput
from durable_kit.storage.record import (
    ZERO,
    Head,
    Record,
    escape_text,
    pack_id,
    thread_key,
    unescape_text,
    unpack_id,
)
from durable_kit.storage.write_rows import WriteRows

_RECORD = """
    r.sequence, r.checkpoint_id, r.parent_id, r.parent_sequence, r.kind, r.depth,
    r.state_version, r.created_at_us, r.run_key, r.writes_count, r.metadata, r.body, r.checksum,
    p.checkpoint_id, p.checksum, p.depth
"""
_WITH_PARENT = """
    LEFT JOIN checkpoints p
           ON p.thread_key = r.thread_key AND p.sequence = r.parent_sequence
"""


class Place(NamedTuple):
    """Where a checkpoint is in its log, and what a writer must know of it."""

    sequence: int
    kind: str
    checksum: bytes
    writes_count: int


class LogRows(WriteRows):
    """The rows of one log (one thread and namespace) inside one transaction: head and records,
    beside the writes and packs that it inherits."""

    # -- the head ------------------------------------------------------------------------------

    def head(self) -> Head | None:
        """The head of the log; None if the log has never been written.

        Raises `BrokenChain` if the head is damaged, or gone while its records are there.
        """
        row = self._head_row()
        if row is None:
            if not self.any_record():
                return None
            # On PostgreSQL each statement sees what was committed when it started, so another
            # writer may have made the log in between. Look once more before calling it damage.
            row = self._head_row()
            if row is None:
                self.broken("the head of the log is gone, its records are there")
        try:
            head = head_from_row(row)
            intact = head.checksum == row[8]
        except (TypeError, ValueError) as error:
            self.broken(f"the head of the log cannot be read ({error})")
        if not intact:
            self.broken("the head of the log does not match its checksum")
        if (head.thread_id, head.namespace) != (self.thread_id, self.namespace):
            if thread_key(head.thread_id, head.namespace) != self.key:
                self.broken(f"the head of thread {head.thread_id!r} stands in its place")
            raise BadInput(
                f"Thread {self.thread_id!r} and thread {head.thread_id!r} have the same 64-bit "
                "key. Choose another thread id."
            )
        return head

    def _head_row(self) -> Any | None:
        return self.tx.row(
            """
            SELECT thread_id, namespace, next_sequence, latest_sequence, records, sequence_sum,
                   namespaces, digest, checksum
              FROM checkpoint_heads
             WHERE thread_key = :key
            """,
            key=self.key,
        )

    def any_record(self) -> bool:
        """Whether there is a record under the key of this log, with or without a head."""
        sql = "SELECT 1 FROM checkpoints WHERE thread_key = :key LIMIT 1"
        return self.tx.row(sql, key=self.key) is not None

    def new_head(self) -> Head:
        """Make the head of a log that has none (or return the one just made elsewhere)."""
        head = Head(self.thread_id, self.namespace, 1, 0, 0, 0, 0, ZERO)
        made = self.tx.execute(
            """
            INSERT INTO checkpoint_heads
                   (thread_key, thread_id, namespace, next_sequence, latest_sequence, records,
                    sequence_sum, namespaces, digest, checksum)
            VALUES (:key, :thread_id, :namespace, 1, 0, 0, 0, 0, :digest, :checksum)
                ON CONFLICT (thread_key) DO NOTHING
            """,
            key=self.key,
            thread_id=escape_text(self.thread_id),
            namespace=escape_text(self.namespace),
            digest=head.digest,
            checksum=head.checksum,
        ).rowcount
        if made and self.namespace:
            root_rows = LogRows(self.tx, self.thread_id, "", self.seal)
            root = root_rows.head() or root_rows.new_head()
            root_rows.save_head(replace(root, namespaces=root.namespaces ^ self.key))
        return self.head() or head

    def save_head(self, head: Head) -> None:
        self.tx.execute(
            """
            UPDATE checkpoint_heads
               SET next_sequence = :next_sequence, latest_sequence = :latest_sequence,
                   records = :records, sequence_sum = :sequence_sum, namespaces = :namespaces,
                   digest = :digest, checksum = :checksum
             WHERE thread_key = :key
            """,
            key=self.key,
            next_sequence=head.next_sequence,
            latest_sequence=head.latest_sequence,
            records=head.records,
            sequence_sum=head.sequence_sum,
            namespaces=head.namespaces,
            digest=head.digest,
            checksum=head.checksum,
        )

    # -- records -------------------------------------------------------------------------------

    def find(self, checkpoint_id: str, other_id: str | None = None) -> dict[str, Place]:
        """Where one or two checkpoints are, by id, for those that are there."""
        rows = self.tx.rows(
            """
            SELECT sequence, kind, checksum, writes_count, checkpoint_id
              FROM checkpoints
             WHERE thread_key = :key AND checkpoint_id IN (:one, :other)
            """,
            key=self.key,
            one=pack_id(checkpoint_id),
            other=pack_id(other_id if other_id is not None else checkpoint_id),
        )
        for row in rows:
            if type(row[0]) is not int:
                self.broken(f"its sequence is {row[0]!r}", checkpoint_id=unpack_id(row[4]))
        return {unpack_id(row[4]): Place(row[0], row[1], row[2], row[3]) for row in rows}

    def at(self, sequence: int) -> tuple[bytes, int, bytes | None] | None:
        """(checksum, writes_count, checksum of the last write record) of the record at `sequence`.

        The last is None where there are no writes, or a pack has them.
        """
        row = self.tx.row(
            """
            SELECT c.checksum, c.writes_count, w.checksum
              FROM checkpoints c
              LEFT JOIN checkpoint_writes w
                     ON w.thread_key = c.thread_key AND w.sequence = c.sequence
                    AND w.ordinal = c.writes_count - 1
             WHERE c.thread_key = :key AND c.sequence = :sequence
            """,
            key=self.key,
            sequence=sequence,
        )
        return None if row is None else (row[0], row[1], row[2])

    def chain(self, sequences: Sequence[int]) -> dict[int, Record]:
        """The records `sequences` and all that they are deltas on, checked, by sequence.

        One record says how long its chain is, and unless somebody forked the thread it is the
        records right before it: two plain statements, a tenth of the cost of the general one.
        """
        rows: list[Any] = []
        if len(sequences) == 1:
            rows = self._straight_chain(sequences[0])
        rows = rows or self._any_chain(sequences)
        records = {row[0]: self.record(row) for row in rows}
        for sequence in sequences:
            if sequence not in records:
                self.broken("a record that the log counts on is missing", sequence=sequence)
        return records

    def _straight_chain(self, sequence: int) -> list[Any]:
        """The rows of a chain without forks; nothing if it is not one."""
        rows = self.between(sequence, sequence)
        depth = rows[0][5] if rows else None
        if not isinstance(depth, int) or not 0 <= depth < sequence:
            return []
        if depth:
            rows[:0] = self.between(sequence - depth, sequence - 1)
        parents = [None, *(row[0] for row in rows[:-1])]
        return rows if len(rows) == depth + 1 and [row[3] for row in rows] == parents else []

    def _any_chain(self, sequences: Sequence[int]) -> list[Any]:
        """The rows of all chains: the database follows parent_sequence up to the snapshots."""
        return self.tx.rows(
            f"""
            WITH RECURSIVE chain (sequence, parent_sequence) AS (
                SELECT sequence, parent_sequence
                  FROM checkpoints
                 WHERE thread_key = :key AND {self.tx.among("sequence", "wanted")}
                UNION
                SELECT c.sequence, c.parent_sequence
                  FROM chain
                  JOIN checkpoints c
                    ON c.thread_key = :key AND c.sequence = chain.parent_sequence
            )
            SELECT {_RECORD}
              FROM chain
              JOIN checkpoints r ON r.thread_key = :key AND r.sequence = chain.sequence
              {_WITH_PARENT}
             ORDER BY r.sequence
            """,
            key=self.key,
            wanted=self.tx.many(sequences),
        )

    def between(self, low: int, high: int) -> list[Any]:
        """Raw rows of this log in a range of sequences, in order."""
        return self.some("AND r.sequence BETWEEN :low AND :high", low=low, high=high)

    def these(self, sequences: Sequence[int]) -> list[Any]:
        """Raw rows of some sequences."""
        if len(sequences) == 1:
            return self.between(sequences[0], sequences[0])
        return self.some(
            f"AND {self.tx.among('r.sequence', 'wanted')}", wanted=self.tx.many(sequences)
        )

    def some(self, where: str = "", order: str = "ORDER BY r.sequence", **params: Any) -> list[Any]:
        """Raw rows of this log, for `record` or for a look at damage."""
        return self.tx.rows(
            f"SELECT {_RECORD} FROM checkpoints r {_WITH_PARENT} "
            f"WHERE r.thread_key = :key {where} {order}",
            key=self.key,
            **params,
        )

    def some_at(self, key: Any) -> list[Any]:
        """Raw rows that stand under another key, without what their parents say."""
        return self.tx.rows(
            f"SELECT {_RECORD} FROM checkpoints r {_WITH_PARENT} "
            "WHERE r.thread_key = :key ORDER BY r.sequence",
            key=key,
        )

    def not_found_by_id(self) -> list[int]:
        """The sequences of rows that the index of ids does not lead to."""
        found = self.tx.rows(
            """
            SELECT r.sequence
              FROM checkpoints r
             WHERE r.thread_key = :key
               AND NOT EXISTS (
                   SELECT 1
                     FROM checkpoints i
                    WHERE i.thread_key = r.thread_key AND i.checkpoint_id = r.checkpoint_id
               )
            """,
            key=self.key,
        )
        return [row[0] for row in found]

    def record(self, row: Any) -> Record:
        """The record of one row. Raises `BrokenChain` if it fails a check."""
        record, problem = self.inspect(row)
        if record is None or problem is not None:
            self.broken(
                problem or "the row cannot be read",
                sequence=row[0],
                checkpoint_id=record.checkpoint_id if record is not None else None,
            )
        return record

    def inspect(self, row: Any) -> tuple[Record | None, str | None]:
        """(record, what is wrong with it or None) of one row."""
        try:
            _check_numbers(row)
            parent_id = unpack_id(row[2]) if row[2] is not None else None
            if row[4] == "delta" and row[13] is not None:
                parent_id = unpack_id(row[13])
            record = Record(
                self.thread_id,
                self.namespace,
                unpack_id(row[1]),
                parent_id,
                sequence=row[0],
                parent_sequence=row[3],
                kind=row[4],
                depth=row[5],
                state_version=row[6],
                created_at_us=row[7],
                run_key=row[8],
                writes_count=row[9],
                metadata=_bytes(row[10]),
                body=_bytes(row[11]),
                checksum=_bytes(row[12]),
            )
            parent_checksum = _bytes(row[14]) if row[14] is not None else None
        except (TypeError, ValueError) as error:
            return None, f"the row cannot be read ({error})"
        return record, _problem(record, parent_checksum, row[15])

    def insert(self, record: Record) -> bool:
        """Store a record. False, and nothing stored, if its checkpoint id is there already."""
        cursor = self._insert(
            """
            INSERT INTO checkpoints
                   (thread_key, sequence, checkpoint_id, parent_id, parent_sequence, kind, depth,
                    state_version, created_at_us, run_key, writes_count, metadata, body, checksum)
            VALUES (:key, :sequence, :checkpoint_id, :parent_id, :parent_sequence, :kind, :depth,
                    :state_version, :created_at_us, :run_key, :writes_count, :metadata, :body,
                    :checksum)
                ON CONFLICT (thread_key, checkpoint_id) DO NOTHING
            """,
            **self._columns(record),
        )
        return bool(cursor.rowcount)

    def update(self, record: Record) -> None:
        self.tx.execute(
            """
            UPDATE checkpoints
               SET checkpoint_id = :checkpoint_id, parent_id = :parent_id,
                   parent_sequence = :parent_sequence, kind = :kind, depth = :depth,
                   state_version = :state_version, created_at_us = :created_at_us,
                   run_key = :run_key, writes_count = :writes_count, metadata = :metadata,
                   body = :body, checksum = :checksum
             WHERE thread_key = :key AND sequence = :sequence
            """,
            **self._columns(record),
        )

    def _columns(self, record: Record) -> dict[str, Any]:
        parent_id = record.parent_id if record.kind != "delta" else None
        return {
            "key": self.key,
            "sequence": record.sequence,
            "checkpoint_id": pack_id(record.checkpoint_id),
            "parent_id": pack_id(parent_id) if parent_id is not None else None,
            "parent_sequence": record.parent_sequence,
            "kind": record.kind,
            "depth": record.depth,
            "state_version": record.state_version,
            "created_at_us": record.created_at_us,
            "run_key": record.run_key,
            "writes_count": record.writes_count,
            "metadata": record.metadata,
            "body": record.body,
            "checksum": record.checksum,
        }

    def delete(self, sequences: Sequence[int]) -> None:
        """Remove records and their rows of writes. The caller settles the head and the packs."""
        self.delete_writes(sequences)
        self.tx.execute(
            f"DELETE FROM checkpoints WHERE thread_key = :key AND "
            f"{self.tx.among('sequence', 'gone')}",
            key=self.key,
            gone=self.tx.many(sequences),
        )


def head_from_row(row: Any) -> Head:
    """A head as its row says, unchecked. Raises TypeError for a row that is not one."""
    thread_id, namespace, next_sequence, latest, records, sequence_sum, namespaces, digest = row[:8]
    return Head(
        unescape_text(thread_id),
        unescape_text(namespace),
        next_sequence,
        latest,
        records,
        sequence_sum,
        namespaces,
        _bytes(digest),
    )


def _check_numbers(row: Any) -> None:
    """SQLite keeps whatever a damaged number has become."""
    for place in (0, 5, 6, 7, 9):  # sequence, depth, state_version, created_at_us, writes_count
        if type(row[place]) is not int:
            raise TypeError(f"a number expected, {row[place]!r} found")


def _bytes(column: Any) -> bytes:
    if not isinstance(column, bytes | memoryview):
        raise TypeError(f"bytes expected, {type(column).__name__} found")
    return bytes(column)


def _problem(record: Record, parent_checksum: bytes | None, parent_depth: Any) -> str | None:
    """The first check that `record` fails, or None."""
    if record.kind == "delta":
        if parent_checksum is None:
            return (
                f"the sequence has a gap: its parent, sequence {record.parent_sequence}, is missing"
            )
        if not isinstance(parent_depth, int) or record.depth != parent_depth + 1:
            return (
                f"the sequence has a gap: it is delta {record.depth} of its chain, "
                f"its parent is {parent_depth}"
            )
        if not isinstance(record.parent_sequence, int) or record.parent_sequence >= record.sequence:
            return f"the parent does not match: sequence {record.parent_sequence} is not older"
    elif record.kind not in ("snapshot", "awaited"):
        return f"the kind {record.kind!r} is unknown"
    elif record.parent_sequence is not None or record.depth != 0:
        return "the parent does not match: a snapshot stands on no other record"
    try:
        intact = record.expected_checksum(parent_checksum) == record.checksum
    except (TypeError, ValueError):
        intact = False
    if not intact:
        return "the record does not match its checksum"
    return None
