"""Connections to one SQLite file, each with the settings that durability needs.

They come from the standard library's driver, without a pool's machinery in between: the kit opens
a database in every process that resumes an agent, and runs some ten small statements a step.

Two things about SQLite decide what is kept and what is closed here:

- It keeps its own account of a process's file locks, in memory. A child made by `fork` that
  inherits an open file believes in locks that only its parent holds, and closing the inherited
  handle drops the parent's. So idle connections are closed before a fork, and one that was in use
  stays behind in the child, unused and unclosed.
- A database in memory lives in its connection. There is one, and all share it.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from typing import Any

import sqlalchemy as sa

_KEPT_IDLE = 8
_RETRY_S = 0.02


class SqliteConnections:
    """Open connections to one file: `take` one, `give` it back."""

    def __init__(self, url: sa.URL, *, busy_timeout_s: float, synchronous: str) -> None:
        self._busy_timeout_s = busy_timeout_s
        self._synchronous = synchronous
        self._file = url.database or ":memory:"
        self._arguments: dict[str, Any] = {"check_same_thread": False, "timeout": busy_timeout_s}
        if url.query:  # SQLAlchemy knows what each of them means
            (self._file,), arguments = url.get_dialect()().create_connect_args(url)
            self._arguments |= arguments
        self.in_memory = self._file == ":memory:"
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._taken = 0

    def take(self) -> sqlite3.Connection:
        """A connection for the caller alone, until it is given back."""
        with self._lock:
            self._taken += 1
            if self._idle:
                return self._idle.pop()
        try:
            return self.open()
        except BaseException:
            with self._lock:
                self._taken -= 1
            raise

    def give(self, connection: sqlite3.Connection) -> None:
        """Take back what `take` gave. What it left open is rolled back."""
        try:
            if connection.in_transaction:
                connection.rollback()
        except sqlite3.Error:  # nothing is to be saved of it
            self.drop(connection)
            return
        with self._lock:
            if self.in_memory or len(self._idle) < _KEPT_IDLE:
                self._taken -= 1
                self._idle.append(connection)
                return
        self.drop(connection)

    def drop(self, connection: sqlite3.Connection) -> None:
        """Close what `take` gave, rolling back what it left open."""
        with self._lock:
            self._taken -= 1
        connection.close()

    def close(self) -> int:
        """Close what is idle. Returns how many connections are in use."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()
            return self._taken

    def open(self) -> sqlite3.Connection:
        """A new connection with the kit's settings."""
        connection: sqlite3.Connection = sqlite3.connect(self._file, **self._arguments)
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        connection.isolation_level = None  # the kit says BEGIN itself
        connection.text_factory = _text  # a damaged text is for the checksums to notice
        # Must come before the first table: later it would need a VACUUM. And only then: it takes
        # the write lock and rewrites the header, also where it changes nothing.
        try:
            empty = connection.execute("PRAGMA page_count").fetchone()[0] == 0
        except UnicodeDecodeError as error:  # of a message that quotes the damaged schema
            raise sqlite3.DatabaseError("malformed database schema: it is not text") from error
        if empty:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        tries_left = self._busy_timeout_s / _RETRY_S
        while True:
            # Switching to WAL is the one statement that the timeout does not cover.
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or tries_left <= 0:
                    raise
            tries_left -= 1
            time.sleep(_RETRY_S)
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        # Reading a long conversation passes each page once; keeping 2 MB of them, as SQLite does by
        # itself, costs more than reading one again.
        connection.execute("PRAGMA cache_size = -256")


def _text(column: bytes) -> str:
    return column.decode("utf-8", "surrogateescape")
