"""One door to the database.

A durable kit stands or falls with four settings that are easy to leave out. On SQLite:

- `synchronous=FULL`: with NORMAL a commit can vanish when the power fails (process death alone
  loses nothing either way, which is why a kill test never notices).
- `journal_mode=WAL`: a long reader does not block the writer.
- `BEGIN IMMEDIATE` for every write: a transaction that reads first and then wants to write can be
  refused at once with "database is locked", however long the waiting time, because two such
  transactions could never both go on. Taking the write lock at the start makes them queue.
- a waiting time on every connection, so that four processes on one file take turns.

`Database.open(url)` sets them on each connection it makes, translates the failures that call for
different acts (`StorageFull`: make room, nothing was written; `StorageBusy`: somebody holds the
write lock, try again), and keeps to the process that opened it: a child made by `fork` gets
connections of its own (see `sqlite_connections`).

    with database.write() as tx:        # one transaction: all of it, or nothing
        tx.execute("INSERT INTO notes (text) VALUES (:text)", text="hello")

Statements are plain SQL with `:name` parameters and go straight to the driver: the kit runs seven
small ones a step, and building a result object for each costs more than SQLite does. SQLAlchemy
brings the URLs, the pool for PostgreSQL, and `engine`, which is made when it is first asked for,
so that `pandas.read_sql(query, database.engine)` reads the same database.

Left out: no connection is shared between `fork`ed processes, and an in-memory database
(`sqlite://`) lives in one process and dies with it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from durable_kit.errors import BadInput, StorageBusy, StorageDamaged, StorageFull
from durable_kit.storage.database_url import checked_url
from durable_kit.storage.group_commit import GroupCommit
from durable_kit.storage.sqlite_connections import SqliteConnections
from durable_kit.storage.tx import Joined, Tx

__all__ = ["Database", "Tx"]

_INHERITED: list[Any] = []  # connections of a parent process: kept so that nothing closes them
_OPEN: WeakSet[Database] = WeakSet()  # the SQLite databases of this process
_FORKING: list[Database] = []  # those whose write lock is held while it forks
_A_DAY_S = 86_400
_DAMAGED = ("disk image is malformed", "malformed database schema", "not a database")
_UNUSABLE = ("unable to open database file", "readonly database")


class _Here(threading.local):
    """What one OS thread is doing."""

    tx: Tx | None = None  # the write transaction it has open


class Database:
    """The connections to one database, with the settings above. Safe to share between OS threads.

    SQLite has one writer at a time. Inside a process, writers queue and share a connection and,
    where they meet, a commit (see `group_commit`).
    """

    # Set by `_start`, anew in each process.
    _pid: int
    _here: _Here
    _engine: sa.Engine | None
    _sqlite: SqliteConnections
    _group_commit: GroupCommit

    def __init__(self, url: sa.URL, *, busy_timeout_s: float, synchronous: str) -> None:
        self.url = url
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self._busy_timeout_s = busy_timeout_s
        self._synchronous = synchronous
        self._in_use_at_fork = False
        self._start()
        self.in_memory = self.is_sqlite and self._sqlite.in_memory
        if self.is_sqlite:
            _OPEN.add(self)

    @classmethod
    def open(
        cls,
        url: str | sa.URL,
        *,
        busy_timeout_s: float = 30.0,
        synchronous: str = "FULL",
    ) -> Database:
        """Open `url` and bring its tables up to date.

        `url`: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://` (in memory), or
        `postgresql+psycopg://user:password@host/name`.
        `busy_timeout_s`: how long a writer waits for the write lock of another process (SQLite).
        `synchronous`: SQLite's setting; anything below FULL can lose commits on power loss.

        Raises `BadInput` for a URL that cannot be used, `SchemaMismatch` for a database written
        by newer code, `StorageBusy` when the lock is not to be had in time.
        """
        parsed = checked_url(url)
        if not 0 <= busy_timeout_s <= _A_DAY_S:  # nor is NaN
            raise BadInput(f"busy_timeout_s is {busy_timeout_s}; it must be 0 to {_A_DAY_S}.")
        if synchronous.upper() not in ("OFF", "NORMAL", "FULL", "EXTRA"):
            raise BadInput(
                f"synchronous is {synchronous!r}; SQLite knows OFF, NORMAL, FULL and EXTRA."
            )
        database = cls(parsed, busy_timeout_s=busy_timeout_s, synchronous=synchronous.upper())
        from durable_kit.storage.schema import migrate  # which builds on this module

        try:
            migrate(database)
            if not database.is_sqlite:
                # A checkpoint and the writes after it come in two OS threads at once. Made only
                # then, the second connection costs the first steps more than all their work.
                with database.engine.connect(), database.engine.connect():
                    pass
        except BaseException as error:
            database.close()
            cause = error.orig if isinstance(error, DBAPIError) else error
            if isinstance(cause, sqlite3.Error) and any(text in str(cause) for text in _UNUSABLE):
                raise BadInput(
                    f"{parsed!r} cannot be used: {cause}. Name a file that this user may write, "
                    "and that is new or an SQLite database."
                ) from error
            if not database.is_sqlite and type(cause).__name__ == "OperationalError":
                raise BadInput(
                    f"{parsed!r} cannot be reached: {str(cause).strip()}. Look whether the server "
                    "runs, and at host, port, database, user and password."
                ) from error
            raise
        return database

    @property
    def engine(self) -> sa.Engine:
        """An SQLAlchemy engine on the same database, for `pandas.read_sql` and your own queries.

        Its connections are its own, with the same settings. In memory there is one connection for
        all: a statement joins the transaction that is open, or commits by itself.
        """
        self._check_process()
        if self._engine is None:
            if self.in_memory:
                with self.write() as tx:
                    only = Joined(tx.driver)
                self._engine = sa.create_engine(
                    self.url, poolclass=StaticPool, creator=lambda: only
                )
            else:
                self._engine = sa.create_engine(self.url, creator=self._sqlite.open)
                sa.event.listen(self._engine, "begin", _on_sqlite_begin)
        return self._engine

    @property
    def writing(self) -> bool:
        """Whether this OS thread has a write transaction open."""
        return self._here.tx is not None

    @contextmanager
    def write(self, *, linger: bool = False) -> Iterator[Tx]:
        """One write transaction: committed when the block ends, rolled back when it raises.

        `linger`: another one of this process follows almost always; wait about a millisecond for
        it, so that the two share a commit (SQLite).

        Raises `BadInput` inside another one of the same OS thread: the two would wait for each
        other. Pass the `tx` on instead.
        """
        self._check_process()
        here = self._here
        if here.tx is not None:
            raise BadInput(
                "This OS thread has a write transaction open already. Pass its tx on to what is "
                "to join it, or end it first."
            )
        try:
            if self.is_sqlite:
                with self._group_commit.transaction(linger=linger) as here.tx:
                    yield here.tx
            else:
                with self.engine.begin() as connection:
                    here.tx = Tx(connection.connection.dbapi_connection, connection=connection)
                    yield here.tx
                    for act in here.tx.then:
                        act()
        except BaseException as error:
            self._translate(error)
            raise
        finally:
            here.tx = None

    def soon(self) -> AbstractContextManager[None]:
        """Say that a write follows in the block; one that ends meanwhile may be committed with it.

        Worth its while where something is prepared before the transaction.
        """
        self._check_process()
        return self._group_commit.soon() if self.is_sqlite else nullcontext()

    @contextmanager
    def read(self) -> Iterator[Tx]:
        """One read transaction: everything read in it belongs to the same moment.

        Inside a write transaction it sees what was committed before that. Only in memory, where
        there is one connection for both, it sees the open one.
        """
        self._check_process()
        if self.in_memory:
            if self._here.tx is not None:
                yield self._here.tx
            else:
                with self.write() as tx:
                    yield tx
        elif self.is_sqlite:
            with self._translated():
                driver = self._sqlite.take()
                try:
                    driver.execute("BEGIN")
                    yield Tx(driver)
                finally:
                    self._sqlite.give(driver)
        else:
            with self._translated(), self.engine.connect() as connection:
                # Several statements must see one state; PostgreSQL's default would not.
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
                with connection.begin():
                    yield Tx(connection.connection.dbapi_connection, connection=connection)

    def give_back(self) -> None:
        """Return free pages to the file system (SQLite; PostgreSQL has its own vacuum).

        Best effort: a reader that still needs the old pages delays it, which is no error. Nor is
        a database that this user may only read. Raises `BadInput` inside a write transaction.
        """
        self._check_process()
        self._check_idle()
        if not self.is_sqlite or self.in_memory:
            return
        with self._translated():
            self._group_commit.acquire()
            driver = None
            try:
                driver = self._sqlite.take()
                # It frees one page a step and has no rows: `execute` would take one step.
                driver.executescript("PRAGMA incremental_vacuum")
                driver.execute("PRAGMA busy_timeout = 0")  # a long reader is not worth waiting for
                driver.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.OperationalError as error:
                if not any(text in str(error) for text in ("locked", "busy", "readonly")):
                    raise
            finally:
                if driver is not None:
                    self._sqlite.drop(driver)
                self._group_commit.release()

    def close(self) -> None:
        """Close every connection of this process. Closing twice is harmless.

        Raises `BadInput` inside a write transaction of this OS thread.
        """
        if self._pid != os.getpid():
            return
        self._check_idle()
        if self.is_sqlite:
            self._group_commit.acquire()
            self._group_commit.drop_writer()
            self._sqlite.close()
            self._group_commit.release()
        if self._engine is not None:
            self._engine.dispose()
            if self.in_memory:
                self._engine = None

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- helpers -----------------------------------------------------------------------------

    def _start(self) -> None:
        self._pid = os.getpid()
        self._here = _Here()
        self._engine = None
        if self.is_sqlite:
            self._sqlite = SqliteConnections(
                self.url, busy_timeout_s=self._busy_timeout_s, synchronous=self._synchronous
            )
            # Only a wait for the disk is worth another wait.
            waits = not self._sqlite.in_memory and self._synchronous != "OFF"
            self._group_commit = GroupCommit(self._sqlite, linger_s=0.001 if waits else 0.0)
        else:
            self._engine = sa.create_engine(self.url, pool_size=8, max_overflow=56)

    def _check_process(self) -> None:
        if self._pid == os.getpid():
            return
        if self.is_sqlite and (self.in_memory or self._in_use_at_fork):
            reason = "holds it in memory" if self.in_memory else "was using it at the fork"
            raise BadInput(
                f"{self.url!r} cannot be used in this process: its parent {reason}. Start the "
                "process by spawn or forkserver, and open a file in it."
            )
        _INHERITED.extend([self._engine, *([self._group_commit] if self.is_sqlite else [])])
        self._start()

    def _check_idle(self) -> None:
        """The turn of a writer is not to be had twice: half of the block would be committed."""
        if self._here.tx is not None:
            raise BadInput("This OS thread has a write transaction open. End it first.")

    def _before_fork(self) -> bool:
        """Wait for a writer to end, and close what is idle. Whether the write lock is held now."""
        idle = self._here.tx is None
        held = self._group_commit.acquire(timeout_s=self._busy_timeout_s, within=not idle)
        if self._pid == os.getpid() and not self.in_memory:
            if held and idle:
                self._group_commit.drop_writer()
            self._in_use_at_fork = self._sqlite.close() > 0
            if self._engine is not None:
                self._engine.dispose()
        return held

    def _after_fork(self) -> None:
        """In the parent, where the lock is held."""
        self._group_commit.release()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._translate(error)
            raise

    def _translate(self, error: BaseException) -> None:
        """Raise the kit's own error for the failures that call for different acts."""
        # From SQLAlchemy (connect, commit) or from the driver itself (our statements).
        cause = error.orig if isinstance(error, DBAPIError) else error
        if not isinstance(cause, self._driver_error):
            return
        reason = str(cause)
        if "disk is full" in reason or type(cause).__name__ == "DiskFull":
            raise StorageFull(
                f"{self.url!r}: no space left ({reason}). Nothing of this transaction was "
                "stored. Make room (free disk space, prune old threads), then try again."
            ) from error
        if type(cause).__name__ in ("DeadlockDetected", "SerializationFailure"):
            raise StorageBusy(
                f"{self.url!r}: another transaction was in the way ({reason}). Nothing was "
                "stored; try again."
            ) from error
        if any(text in reason for text in _DAMAGED):
            raise StorageDamaged(
                f"{self.url!r}: the file itself is damaged ({reason}). Keep a copy of it, and "
                "restore a backup, or save what can be read with the .recover command of SQLite's "
                "own shell."
            ) from error
        if "readonly database" in reason or type(cause).__name__ == "InsufficientPrivilege":
            raise BadInput(
                f"{self.url!r} may only be read ({reason}). Nothing was stored. Use a database "
                "that this user may write, or only read."
            ) from error
        if "database is locked" in reason or "database table is locked" in reason:
            raise StorageBusy(
                f"{self.url!r}: another process held the write lock for more than "
                f"{self._busy_timeout_s} s. Nothing was stored; try again, or look for a "
                "process that keeps a write transaction open."
            ) from error

    @property
    def _driver_error(self) -> type[Exception]:
        if self.is_sqlite:
            return sqlite3.Error
        import psycopg

        return psycopg.Error


def _on_sqlite_begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _before_fork() -> None:
    _FORKING.extend(database for database in list(_OPEN) if database._before_fork())


def _after_fork_in_parent() -> None:
    while _FORKING:
        _FORKING.pop()._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_FORKING.clear
    )
