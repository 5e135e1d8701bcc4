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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import ormsgpack

from durable_kit.errors import StorageDamaged
from durable_kit.storage.database import Tx
from durable_kit.storage.namespaces import Namespaces, hold_back, look, orphaned_keys
from durable_kit.storage.record import escape_text, pack_id
from durable_kit.storage.retention import rewrite
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
    try:
        with log.database.read() as tx:
            _, surveys, problems = _surveyed(log, tx, thread_id)
    except StorageDamaged as error:
        return Verification(thread_id, 0, [Problem("", None, None, str(error))])
    return Verification(thread_id, sum(survey.count for survey in surveys), problems)


def recover(log: CheckpointLog, thread_id: str) -> Recovery:
    """Fall back to the newest state that checks out; bad records go to quarantine.

    One transaction: a kill leaves the thread as damaged as it was. A thread without damage is
    left alone.
    """
    kept: str | None = None
    lost = _Lost()
    with log.database.write() as tx:
        hold_back(tx, thread_id)
        found, surveys, problems = _surveyed(log, tx, thread_id)
        if problems and _reindexed(tx):  # a damaged index hides rows, and shows others
            found, surveys, _ = _surveyed(log, tx, thread_id)
        if problems and any(list(map(_brought_back, surveys))):
            found, surveys, _ = _surveyed(log, tx, thread_id)
        removal = _Removal(tx, thread_id, log.clock.now_us())
        for survey in surveys:
            if survey.problems:
                _mend(log, survey, removal, lost)
            log.forget(survey.rows.key)
        for key in found.strays:
            removal.of_head(key, "it stands under a key that is not its own")
        if found.lost:
            lost.steps += removal.of_log(found.lost, "its head is gone, and with it its namespace")
            log.forget(found.lost)
        if problems and found.logs:
            _settle_namespaces(found.logs[0], found.logs[1:])
        for rows in found.logs[:1]:
            head = rows.head()
            if head is not None and head.latest_sequence:
                kept = rows.chain([head.latest_sequence])[head.latest_sequence].checkpoint_id
        lost.bytes = removal.bytes
    return Recovery(thread_id, kept, lost.steps, lost.writes, lost.bytes, problems)


def _surveyed(
    log: CheckpointLog, tx: Tx, thread_id: str
) -> tuple[Namespaces, list[Survey], list[Problem]]:
    found = look(log, tx, thread_id)
    surveys = [Survey(log.reader, rows) for rows in found.logs]
    problems = [Problem("", None, None, problem) for problem in found.problems]
    for survey in surveys:
        problems += survey.problems
    return found, surveys, problems


def _reindexed(tx: Tx) -> bool:
    """Make the indexes anew from the rows. False if that did not work, or is not ours to do."""
    if not tx.is_sqlite:  # takes an index of its own there, and the rights to it
        return False
    try:
        for table in ("checkpoint_heads", "checkpoints", "checkpoint_writes", "checkpoint_packs"):
            tx.execute(f"REINDEX {table}")
    except tx.integrity_error:  # two rows with one key: they are for the survey to sort
        return False
    return True


def _brought_back(survey: Survey) -> bool:
    """Put records whose key was damaged under their own again.

    They stand under a key that no log has, and every other column of theirs checks out here.
    """
    rows, brought = survey.rows, False
    if survey.head is None or survey.count >= survey.head.records:
        return False
    for key in orphaned_keys(rows.tx):
        if key == rows.key:
            continue
        for row in rows.some_at(key):
            parent = survey.good.get(row[3])
            of_parent: tuple[Any, ...] = (None, None, None)
            if parent is not None:
                of_parent = (pack_id(parent.checkpoint_id), parent.checksum, parent.depth)
            record, problem = rows.inspect((*row[:13], *of_parent))
            if record is not None and problem is None:
                rows.tx.execute(
                    """
                    UPDATE checkpoints
                       SET thread_key = :key
                     WHERE thread_key = :was AND sequence = :sequence
                    """,
                    key=rows.key,
                    was=key,
                    sequence=record.sequence,
                )
                brought = True
    return brought


@dataclass(slots=True)
class _Lost:
    steps: int = 0
    writes: int = 0
    bytes: int = 0


def _mend(log: CheckpointLog, survey: Survey, removal: _Removal, lost: _Lost) -> None:
    """Quarantine what is bad in one log, and let its head say what is left."""
    rows = survey.rows
    reasons = {p.sequence: p.found for p in survey.problems if p.sequence is not None}
    for sequence in survey.bad:
        reason = reasons.get(sequence, "it leans on a record that is bad")
        removal.of_row("checkpoints", rows.key, {"sequence": sequence}, reason)
    leaned_on = {write.sequence for write in survey.orphans}
    for write in (*survey.bad_writes, *survey.orphans):
        reason = reasons.get(write.sequence, "its checkpoint is bad")
        place = {"sequence": write.sequence, "ordinal": write.ordinal}
        stays = write.sequence in leaned_on
        removal.of_row("checkpoint_writes", rows.key, place, reason, stays=stays)
    for pack in survey.bad_packs:
        reason = reasons.get(pack.pack, "it cannot be read")
        removal.of_row("checkpoint_packs", rows.key, {"pack": pack.pack}, reason)
    for sequence, record in survey.good.items():
        left = survey.intact.get(sequence, 0)
        if left != record.writes_count:
            lost.writes += max(record.writes_count - left, 0)
            rows.count_writes(sequence, left)
    # An awaited record is no step: it has no metadata and no body. What a bad row calls itself says
    # nothing.
    lost.steps += sum(1 for row in survey.bad.values() if any(row[10:12]))
    head = survey.head
    if head is not None:
        lost.steps += max(head.records - survey.count, 0)
    else:
        removal.of_head(rows.key, "it does not match its checksum")
        head = rows.new_head()
    used: list[object] = [*survey.good, *survey.bad]  # a damaged sequence may be anything
    head = replace(
        head,
        next_sequence=max(
            head.next_sequence, max((n for n in used if isinstance(n, int)), default=0) + 1
        ),
        latest_sequence=max(
            (n for n, record in survey.good.items() if record.kind != "awaited"), default=0
        ),
        records=len(survey.good),
        sequence_sum=sum(survey.good),
        digest=digest_of(survey.good.values()),
    )
    rows.save_head(head)
    # The bytes of a good state may lie in the writes of a bad checkpoint: let it have its own.
    rewrite(log, rows, head, remove=leaned_on, prove=True)


def _settle_namespaces(root: LogRows, others: Sequence[LogRows]) -> None:
    """Let the root's head vouch for the heads that are there."""
    head = root.head() or root.new_head()
    namespaces = 0
    for rows in others:
        namespaces ^= rows.key
    root.save_head(replace(head, namespaces=namespaces))


@dataclass(slots=True)
class _Removal:
    """Moves rows to quarantine as they are, whatever their columns hold."""

    tx: Tx
    thread_id: str
    now_us: int
    bytes: int = 0

    def of_row(
        self, table: str, key: int, place: Mapping[str, Any], reason: str, *, stays: bool = False
    ) -> None:
        """Move the row of `table` at `place`, a column and its value for each part of the key.

        `stays`: only copy it; the caller removes it later.
        """
        # A damaged place may be of any type, or NULL; PostgreSQL's columns hold what they say.
        same = "IS" if self.tx.is_sqlite else "="
        where = "".join(f" AND {column} {same} :{column}" for column in place)
        self._move(table, f"thread_key = :key{where}", reason, stays, key=key, **place)

    def of_head(self, key: int, reason: str) -> None:
        """Move a head."""
        self._move("checkpoint_heads", "thread_key = :key", reason, key=key)

    def of_log(self, key: int, reason: str) -> int:
        """Move everything that is stored under a key. Returns how many checkpoints that were."""
        for table in ("checkpoint_heads", "checkpoint_writes", "checkpoint_packs"):
            self._move(table, "thread_key = :key", reason, key=key)
        return self._move("checkpoints", "thread_key = :key", reason, key=key)

    def _move(self, table: str, where: str, reason: str, stays: bool = False, **params: Any) -> int:
        cursor = self.tx.execute(f"SELECT * FROM {table} WHERE {where}", **params)
        names = [column[0] for column in cursor.description]
        found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        for row in found:
            packed = ormsgpack.packb({name: _storable(value) for name, value in row.items()})
            self.bytes += len(packed)
            sequence = row.get("sequence", row.get("pack"))
            self.tx.execute(
                """
                INSERT INTO quarantine
                       (thread_id, source, sequence, reason, moved_at_us, columns)
                VALUES (:thread_id, :source, :sequence, :reason, :moved_at_us, :columns)
                """,
                thread_id=escape_text(self.thread_id),
                source=table,
                sequence=sequence if isinstance(sequence, int) else None,
                reason=escape_text(reason),
                moved_at_us=self.now_us,
                columns=packed,
            )
        if not stays:
            self.tx.execute(f"DELETE FROM {table} WHERE {where}", **params)
        return len(found)


def _storable(column: Any) -> Any:
    """A column's value for msgpack; text that is not UTF-8 as the bytes that it is."""
    if isinstance(column, str):
        raw = column.encode("utf-8", "surrogateescape")
        return column if raw.decode("utf-8", "replace") == column else raw
    return bytes(column) if isinstance(column, memoryview) else column
