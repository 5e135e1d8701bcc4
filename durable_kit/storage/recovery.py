"""Finding damage, and falling back from it as an explicit act.

Reading a damaged thread raises. That is right for the agent, which must not go on from a state
that never was, and useless for the person who has to get it going again. `verify` tells all that
is wrong, and `recover` falls back to what checks out:

    7 ✓   8 ✓   9 ✗ (a byte differs)   10 (a delta on 9)   11 (a delta on 10)
          └ newest state that can be told: 8;  lost: 3 steps

Nothing is deleted. The rows that failed, and those that lean on them, are moved to `quarantine`
as they were found. A lost pending write costs less than a step: its task runs again, which is why
a task's effect must be safe to repeat.

`recover` never runs by itself: whether falling back three steps is acceptable depends on what
those steps did to the outside world.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import ormsgpack

from durable_kit.storage.database import Tx
from durable_kit.storage.record import escape_text, thread_key, unescape_text
from durable_kit.storage.rows import LogRows
from durable_kit.storage.survey import Problem, Survey, digest_of

if TYPE_CHECKING:
    from durable_kit.storage.checkpoint_log import CheckpointLog


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found in one thread."""

    thread_id: str
    records: int
    problems: list[Problem]

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `recover` did to one thread.

    `kept_checkpoint_id`: the newest state of the root namespace that checks out (None if nothing
    does). `lost_steps`: checkpoints that can no longer be told. `lost_writes`: pending write
    records of kept checkpoints that are gone; their tasks run again. `lost_bytes`: the size of
    everything moved to quarantine.
    """

    thread_id: str
    kept_checkpoint_id: str | None
    lost_steps: int
    lost_writes: int
    lost_bytes: int
    problems: list[Problem]


def verify(log: CheckpointLog, thread_id: str) -> Verification:
    """Check every record of a thread, in every namespace, and report each bad one.

    Reads the whole thread. Raises nothing for damage.
    """
    problems: list[Problem] = []
    records = 0
    with log.database.read() as tx:
        for rows in _logs(log, tx, thread_id):
            survey = Survey(log.reader, rows)
            records += survey.count
            problems += survey.problems
    return Verification(thread_id, records, problems)


def recover(log: CheckpointLog, thread_id: str) -> Recovery:
    """Fall back to the newest state that checks out; bad records go to quarantine.

    One transaction: a kill leaves the thread as damaged as it was. A thread without damage is
    left alone.
    """
    problems: list[Problem] = []
    kept: str | None = None
    lost_steps = lost_writes = lost_bytes = 0
    with log.database.write() as tx:
        for rows in _logs(log, tx, thread_id):
            survey = Survey(log.reader, rows)
            problems += survey.problems
            if survey.problems:
                mended = _mend(log, rows, survey)
                lost_steps += mended[0]
                lost_writes += mended[1]
                lost_bytes += mended[2]
            head = rows.head()
            if head is not None and head.latest_sequence and not rows.namespace:
                kept = rows.chain([head.latest_sequence])[head.latest_sequence].checkpoint_id
            log.forget(rows.key)
    return Recovery(thread_id, kept, lost_steps, lost_writes, lost_bytes, problems)


def _mend(log: CheckpointLog, rows: LogRows, survey: Survey) -> tuple[int, int, int]:
    """Quarantine what is bad and settle the head. Returns lost steps, writes and bytes."""
    now_us = log.clock.now_us()
    reasons = {p.sequence: p.found for p in survey.problems if p.sequence is not None}
    lost_bytes = 0
    for sequence, row in survey.bad.items():
        reason = reasons.get(sequence, "it leans on a record that is bad")
        lost_bytes += _quarantine(rows, "checkpoints", sequence, reason, now_us, list(row[:13]))
    for write in survey.bad_writes:
        reason = reasons.get(write.sequence, "its checkpoint is bad")
        lost_bytes += _quarantine(
            rows, "checkpoint_writes", write.sequence, reason, now_us, list(write)
        )
        rows.tx.execute(
            "DELETE FROM checkpoint_writes WHERE thread_key = :key AND sequence = :sequence "
            "AND ordinal = :ordinal",
            key=rows.key,
            sequence=write.sequence,
            ordinal=write.ordinal,
        )
    for pack in survey.bad_packs:
        reason = reasons.get(pack.pack, "it cannot be read")
        lost_bytes += _quarantine(rows, "checkpoint_packs", pack.pack, reason, now_us, list(pack))
    rows.delete_packs([pack.pack for pack in survey.bad_packs])
    if survey.bad:
        rows.delete(sorted(survey.bad))
    lost_writes = 0
    for sequence, record in survey.good.items():
        left = survey.intact.get(sequence, 0)
        if left != record.writes_count:
            lost_writes += max(record.writes_count - left, 0)
            rows.count_writes(sequence, left)
    real = [n for n, record in survey.good.items() if record.kind != "awaited"]
    missing = max((survey.head.records if survey.head else 0) - survey.count, 0)
    used = [n for n in (*survey.good, *survey.bad) if isinstance(n, int)]
    next_sequence = max(survey.head.next_sequence if survey.head else 1, max(used, default=0) + 1)
    rows.tx.execute("DELETE FROM checkpoint_heads WHERE thread_key = :key", key=rows.key)
    head = rows.new_head()
    rows.save_head(
        replace(
            head,
            next_sequence=next_sequence,
            latest_sequence=max(real, default=0),
            records=len(survey.good),
            digest=digest_of(survey.good.values()),
        )
    )
    return len(survey.bad) + missing, lost_writes, lost_bytes


def _quarantine(
    rows: LogRows, source: str, sequence: int, reason: str, now_us: int, columns: list[Any]
) -> int:
    packed = ormsgpack.packb(columns, default=str)
    rows.tx.execute(
        """
        INSERT INTO quarantine (thread_id, namespace, source, sequence, reason, moved_at_us, columns)
        VALUES (:thread_id, :namespace, :source, :sequence, :reason, :moved_at_us, :columns)
        """,
        thread_id=escape_text(rows.thread_id),
        namespace=escape_text(rows.namespace),
        source=source,
        sequence=sequence,
        reason=reason,
        moved_at_us=now_us,
        columns=packed,
    )
    return len(packed)


def _logs(log: CheckpointLog, tx: Tx, thread_id: str) -> Iterator[LogRows]:
    """The logs of a thread, found also where heads are damaged."""
    seen: set[str] = set()
    for row in tx.rows(
        """
        SELECT thread_key, thread_id, namespace, next_sequence, latest_sequence, records, digest
          FROM checkpoint_heads
         WHERE thread_id = :thread_id
         ORDER BY namespace
        """,
        thread_id=escape_text(thread_id),
    ):
        namespace = unescape_text(row[2]) if isinstance(row[2], str) else ""
        seen.add(namespace)
        yield log.rows(tx, thread_id, namespace)
    if "" not in seen:
        key = thread_key(thread_id, "")
        if tx.row("SELECT 1 FROM checkpoints WHERE thread_key = :key LIMIT 1", key=key):
            yield log.rows(tx, thread_id, "")
