"""What a thread takes: in the log, and on the disk.

Two numbers that are often taken for one. *Live bytes* are what the stored records hold; *file
bytes* are what the database occupies. After a prune the first falls at once, the second only when
free pages are given back, and while a process has the database open, SQLite's write-ahead log
stands beside the file and counts as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from durable_kit.storage.checkpoint_log import CheckpointLog
from durable_kit.storage.database import Database
from durable_kit.storage.listing import all_records
from durable_kit.storage.namespaces import all_logs, logs_of, look
from durable_kit.storage.record import Record


@dataclass(frozen=True, slots=True)
class ThreadStats:
    """Sizes of one thread, all its namespaces together, and of the database around it.

    `live_bytes`: bodies, metadata and writes of this thread. `file_bytes`: the whole database on
    disk, of all threads; `free_bytes`: the part of it that holds nothing. `replay_depth`: deltas
    to fold for the newest state; `max_replay_depth`: for the deepest.
    """

    thread_id: str
    checkpoints: int
    snapshots: int
    deltas: int
    write_records: int
    live_bytes: int
    snapshot_bytes: int
    delta_bytes: int
    write_bytes: int
    replay_depth: int
    max_replay_depth: int
    file_bytes: int
    free_bytes: int


def stats_of(log: CheckpointLog, thread_id: str) -> ThreadStats:
    """Count one thread. Counts rows as they are, damaged or not; zero for an unknown thread."""
    checkpoints = snapshots = writes = 0
    snapshot_bytes = delta_bytes = write_bytes = depth = max_depth = 0
    with log.database.read() as tx:
        for rows in look(log, tx, thread_id).logs:
            for kind, count, size, deepest in tx.rows(
                """
                SELECT kind, count(*), coalesce(sum(length(body) + length(metadata)), 0),
                       max(CAST(depth AS INTEGER))
                  FROM checkpoints
                 WHERE thread_key = :key AND kind <> 'awaited'
                 GROUP BY kind
                """,
                key=rows.key,
            ):
                checkpoints += count
                max_depth = max(max_depth, deepest or 0)
                if kind == "snapshot":
                    snapshots += count
                    snapshot_bytes += int(size)
                else:
                    delta_bytes += int(size)
            row = tx.row(
                """
                SELECT (SELECT coalesce(sum(CAST(writes_count AS INTEGER)), 0)
                          FROM checkpoints WHERE thread_key = :key),
                       (SELECT coalesce(sum(length(body)), 0)
                          FROM checkpoint_writes WHERE thread_key = :key)
                       + (SELECT coalesce(sum(length(body)), 0)
                            FROM checkpoint_packs WHERE thread_key = :key)
                """,
                key=rows.key,
            )
            assert row is not None
            writes += int(row[0])
            write_bytes += int(row[1])
            newest = tx.row(
                """
                SELECT CAST(depth AS INTEGER)
                  FROM checkpoints
                 WHERE thread_key = :key AND kind <> 'awaited'
                 ORDER BY sequence DESC LIMIT 1
                """,
                key=rows.key,
            )
            if newest is not None and not rows.namespace:
                depth = newest[0] or 0
    file_bytes, free_bytes = disk_bytes(log.database)
    return ThreadStats(
        thread_id,
        checkpoints,
        snapshots,
        checkpoints - snapshots,
        writes,
        snapshot_bytes + delta_bytes + write_bytes,
        snapshot_bytes,
        delta_bytes,
        write_bytes,
        depth,
        max_depth,
        file_bytes,
        free_bytes,
    )


def disk_bytes(database: Database) -> tuple[int, int]:
    """(bytes on disk, bytes of them that hold nothing) of the whole database."""
    with database.read() as tx:
        if not tx.is_sqlite:
            row = tx.row("SELECT pg_database_size(current_database())")
            return (int(row[0]) if row is not None else 0), 0
        page = tx.execute("PRAGMA page_size").fetchone()[0]
        pages = tx.execute("PRAGMA page_count").fetchone()[0]
        free = tx.execute("PRAGMA freelist_count").fetchone()[0]
    total = page * pages
    if not database.in_memory:
        path = str(database.url.database)
        found = [Path(path + suffix) for suffix in ("", "-wal", "-shm")]
        total = sum(file.stat().st_size for file in found if file.exists())
    return total, page * free


def threads_of(log: CheckpointLog, thread_id: str | None = None) -> list[tuple[str, str]]:
    """(thread id, namespace) of every log, or of the logs of one thread, in order of name."""
    with log.database.read() as tx:
        if thread_id is not None:
            found = logs_of(log, tx, str(thread_id))
            return [(rows.thread_id, rows.namespace) for rows, _ in found]
        return all_logs(tx)


def records_of(log: CheckpointLog, thread_id: str) -> list[Record]:
    """The records of a thread, namespace by namespace, in order of writing."""
    with log.database.read() as tx:
        found: list[Record] = []
        for rows, head in logs_of(log, tx, thread_id):
            found += all_records(rows, head)
        return found
