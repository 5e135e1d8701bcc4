"""Which checkpoints there are, and the proof that none is missing.

A record that was changed fails its own checksum. A record that has *gone* fails nothing: a list
without it looks like a list, and "there is no such checkpoint" like an answer. So whoever says
which checkpoints there are proves it first, and the proofs differ in price:

    none has gone, none has moved     the head counts the records and adds up their sequences;
                                      both are compared in the index, without reading a record
    this one is not a checkpoint      the record that says "awaited" has to check out
    there is none with this id        all records are read; the checksums must add up to the head's
                                      digest, and none may have the id (a damaged index hides rows)

What is on the list is checked when it is read (`materialize`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from durable_kit.storage.record import ZERO, Head, Record, xor
from durable_kit.storage.rows import LogRows, Place

Matches = Callable[[Record], bool]


def find_checkpoint(rows: LogRows, head: Head, checkpoint_id: str) -> Place | None:
    """Where a checkpoint is; None if there is none with this id, or only writes that wait for it.

    Raises `BrokenChain` where that cannot be proved.
    """
    found = rows.find(checkpoint_id).get(checkpoint_id)
    if found is None:
        prove_absence(rows, head, checkpoint_id)
        return None
    if found.kind == "awaited":
        prove_awaited(rows, [found.sequence])
        return None
    return found


def list_checkpoints(
    rows: LogRows,
    head: Head,
    *,
    checkpoint_id: str | None = None,
    before: str | None = None,
    limit: int | None = None,
    matches: Matches | None = None,
) -> list[int]:
    """The sequences of a log's checkpoints, the one written last first.

    `checkpoint_id`: only this one. `before`: only what was written before the checkpoint with
    this id; an unknown id is compared as text, as ids are sorted by time. `matches` looks at the
    record and
    its metadata. Raises `BrokenChain` if a record may be missing from the list.
    """
    if limit is not None and limit <= 0:
        return []
    if limit == 1 and checkpoint_id is None and before is None and matches is None:
        return [head.latest_sequence] if head.latest_sequence else []
    if checkpoint_id is None:
        prove_count(rows, head)
    end = head.next_sequence
    if before is not None:
        here = rows.find(before).get(before)
        if here is None:
            prove_absence(rows, head, before)
            matches = _earlier(before, matches)
        else:
            check_identity(rows, _checked(rows, [here.sequence])[0], before)
            end = here.sequence
    if checkpoint_id is not None:
        found = find_checkpoint(rows, head, checkpoint_id)
        if found is None:
            return []
        record = _checked(rows, [found.sequence])[0]
        check_identity(rows, record, checkpoint_id)
        chosen = record.sequence < end and (matches is None or matches(record))
        return [record.sequence] if chosen else []
    if matches is None:
        return list(_real(rows, end, limit))
    result: list[int] = []
    for row in rows.some("AND r.sequence < :end", "ORDER BY r.sequence DESC", end=end):
        record = rows.record(row)
        if record.kind != "awaited" and matches(record):
            result.append(record.sequence)
            if len(result) == limit:
                break
    return result


def check_identity(rows: LogRows, record: Record, checkpoint_id: str) -> None:
    """Make sure that the index of ids led to the right record. Raises `BrokenChain`."""
    if record.checkpoint_id != checkpoint_id:
        found = f"the index of ids leads to {record.checkpoint_id} instead"
        rows.broken(found, sequence=record.sequence, checkpoint_id=checkpoint_id)


def prove_count(rows: LogRows, head: Head) -> None:
    """Make sure that no record has gone or moved. Reads the index only. Raises `BrokenChain`."""
    # Masked, because a damaged sequence may be a number whose sum is none; the lowest and the
    # highest are compared as they are.
    found = rows.tx.row(
        """
        SELECT count(*), coalesce(sum(sequence & 1099511627775), 0),
               coalesce(min(sequence), 1), coalesce(max(sequence), 0)
          FROM checkpoints
         WHERE thread_key = :key
        """,
        key=rows.key,
    )
    assert found is not None
    count, total, lowest, highest = found
    if count != head.records:
        rows.broken(f"the log counts {head.records} records, {count} are there")
    whole = isinstance(lowest, int) and isinstance(highest, int)
    if total != head.sequence_sum or not whole or lowest < 1 or highest >= head.next_sequence:
        rows.broken("the sequence has a gap: a record has moved to a place that is not its own")


def prove_absence(rows: LogRows, head: Head, checkpoint_id: str) -> None:
    """Make sure that `checkpoint_id` was really never stored, or was removed in order.

    Reads the whole log. Raises `BrokenChain` if any record is missing or damaged.
    """
    for record in all_records(rows, head):
        if record.checkpoint_id == checkpoint_id:
            rows.broken(
                "the record is there, and the index does not lead to it",
                sequence=record.sequence,
                checkpoint_id=checkpoint_id,
            )


def all_records(rows: LogRows, head: Head) -> list[Record]:
    """Every record of the log, awaited ones too, in order of writing.

    Raises `BrokenChain` if one is missing or damaged.
    """
    records = [rows.record(row) for row in rows.some()]
    if len(records) != head.records:
        rows.broken(f"the log counts {head.records} records, {len(records)} are there")
    digest = ZERO
    for record in records:
        digest = xor(digest, record.checksum)
    if digest != head.digest:
        rows.broken("the records do not add up to the head's digest")
    return records


def prove_awaited(rows: LogRows, sequences: Sequence[int]) -> None:
    """Make sure that these records really only wait for their checkpoint."""
    for record in _checked(rows, sequences):
        assert record.kind == "awaited"


def _real(rows: LogRows, end: int, limit: int | None) -> Iterator[int]:
    """The sequences below `end` that are not awaited, downwards; those that are, checked."""
    left = limit
    while left is None or left > 0:
        found = rows.tx.rows(
            f"""
            SELECT sequence, kind
              FROM checkpoints
             WHERE thread_key = :key AND sequence < :end
             ORDER BY sequence DESC {"" if left is None else "LIMIT :left"}
            """,
            key=rows.key,
            end=end,
            **({} if left is None else {"left": left}),
        )
        awaited = [sequence for sequence, kind in found if kind == "awaited"]
        if awaited:
            prove_awaited(rows, awaited)
        yield from (sequence for sequence, kind in found if kind != "awaited")
        if left is None or len(found) < left:
            return
        left, end = len(awaited), found[-1][0]  # as many again as were not to be counted


def _checked(rows: LogRows, sequences: Sequence[int]) -> list[Record]:
    found = rows.these(sequences)
    if len(found) != len(sequences):
        rows.broken("a record that an index leads to is missing", sequence=sequences[0])
    return [rows.record(row) for row in found]


def _earlier(before: str, matches: Matches | None) -> Matches:
    return lambda record: record.checkpoint_id < before and (matches is None or matches(record))
