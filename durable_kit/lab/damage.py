"""One changed byte in a database file, where a person can watch what happens.

A disk, a cable or a backup changes a byte now and then, and nothing says so. SQLite does not
notice: it stores no checksum of its rows, and a changed letter is a perfectly good letter.

    specimen   a conversation of some forty messages, in a database file of its own
    flip       open the file as any program could, change one bit of one stored message
    look       SQLite reads the row without complaint; `verify` names it; `get_state` refuses
    recover    falls back to the newest state that checks out, and says what was lost

`flip_byte` works on the file, not through SQL, and on a closed database only: with a write-ahead
log beside the file, the newest bytes are not where they seem to be.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

from durable_kit.delta_saver import DeltaSaver
from durable_kit.lab.conversations import generate
from durable_kit.lab.workloads import replay_conversation, sqlite_url
from durable_kit.storage.recovery import Recovery
from durable_kit.storage.snapshot_policy import SnapshotPolicy
from durable_kit.storage.statistics import ThreadStats

THREAD_ID = "specimen"
TABLES = ("checkpoints", "checkpoint_writes", "checkpoint_packs")
WINDOW = 24  # bytes around the flipped one that must be found exactly once in the file


@dataclass(frozen=True, slots=True)
class Flip:
    """One byte that was changed: in which row, where in the file, from what to what."""

    table: str
    sequence: int
    file_offset: int
    before: int
    after: int

    def __str__(self) -> str:
        return (
            f"byte {self.file_offset:,} of the file, in {self.table} at sequence {self.sequence}: "
            f"0x{self.before:02x} → 0x{self.after:02x}"
        )


@dataclass(frozen=True, slots=True)
class Damaged:
    """What the checks say of a specimen. `error`: what reading its newest state raised, or ""."""

    flips: tuple[Flip, ...]
    records: int
    problems: tuple[str, ...]
    messages: int | None
    error: str


def make_specimen(
    path: Path, *, messages: int = 40, policy: SnapshotPolicy | None = None
) -> ThreadStats:
    """Store a generated conversation in a new database at `path`, close it, return its sizes."""
    with DeltaSaver.open(sqlite_url(path), policy=policy) as saver:
        replay_conversation(saver, generate(5, messages), thread_id=THREAD_ID)
        return saver.stats(THREAD_ID)


def flip_byte(path: Path, rng: Random, *, table: str = "", sequence: int | None = None) -> Flip:
    """Change one bit of one stored body in the file, chosen by `rng`.

    `table` and `sequence` narrow the choice. Raises ValueError if a write-ahead log is there (the
    database is open), or if nothing fits.
    """
    if path.with_name(path.name + "-wal").exists():
        raise ValueError(f"{path.name} is open, or was left by a crash: close it first.")
    bodies = [
        row
        for row in _bodies(path)
        if (not table or row[0] == table) and (sequence is None or row[1] == sequence)
    ]
    content = path.read_bytes()
    for _ in range(200):
        if not bodies:
            break
        found_table, found_sequence, body = rng.choices(bodies, [len(b[2]) for b in bodies])[0]
        at = rng.randrange(len(body) - WINDOW)
        window = body[at : at + WINDOW]
        # A body that crosses a page of the file does not lie there in one piece.
        if content.count(window) != 1:
            continue
        offset = content.index(window) + WINDOW // 2
        before = content[offset]
        after = before ^ (1 << rng.randrange(8))
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(bytes([after]))
        return Flip(found_table, found_sequence, offset, before, after)
    raise ValueError(f"{path.name} holds no body to damage (table {table!r}, sequence {sequence}).")


def look(path: Path, flips: tuple[Flip, ...] = ()) -> Damaged:
    """Open the database as a new process would: verify it, and try to read the newest state."""
    with DeltaSaver.open(sqlite_url(path)) as saver:
        report = saver.verify(THREAD_ID)
        messages, error = None, ""
        try:
            newest = saver.get_tuple({"configurable": {"thread_id": THREAD_ID}})
            if newest is not None:
                messages = len(newest.checkpoint["channel_values"]["messages"])
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    problems = tuple(str(problem) for problem in report.problems)
    return Damaged(flips, report.records, problems, messages, error)


def recover(path: Path) -> Recovery:
    """Fall back to the newest state that checks out; see `durable_kit.storage.recovery`."""
    with DeltaSaver.open(sqlite_url(path)) as saver:
        return saver.recover(THREAD_ID)


def delete_record(path: Path, sequence: int) -> None:
    """Remove one checkpoint's row from a closed database, as a restore from half a backup may."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM checkpoints WHERE sequence = ?", (sequence,))
        connection.commit()


def flip_in_whole_state(path: Path, text: str) -> None:
    """For comparison: change one bit of `text` in the newest checkpoint of a closed SqliteSaver."""
    with closing(sqlite3.connect(path)) as connection:
        row, blob = connection.execute(
            "SELECT rowid, checkpoint FROM checkpoints ORDER BY checkpoint_id DESC LIMIT 1"
        ).fetchone()
        at = blob.index(text.encode()) + len(text) // 2
        changed = blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]
        connection.execute("UPDATE checkpoints SET checkpoint = ? WHERE rowid = ?", (changed, row))
        connection.commit()


def _bodies(path: Path) -> list[tuple[str, int, bytes]]:
    """(table, sequence, body) of every stored body that is long enough to be found again."""
    found: list[tuple[str, int, bytes]] = []
    with closing(sqlite3.connect(path)) as connection:
        for table in TABLES:
            column = "pack" if table == "checkpoint_packs" else "sequence"
            query = f"SELECT {column}, body FROM {table}"  # noqa: S608 - names of our own
            found += [(table, row[0], bytes(row[1])) for row in connection.execute(query)]
    return [row for row in found if len(row[2]) > 2 * WINDOW]
