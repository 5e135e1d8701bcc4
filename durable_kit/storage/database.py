"""One door to the database.

A durable kit stands or falls with four settings that are easy to leave out. On SQLite:

- `synchronous=FULL`: with NORMAL a commit can vanish when the power fails (process death alone
  loses nothing either way, which is why a kill test never notices).
- `journal_mode=WAL`: a long reader does not block the writer.
- `BEGIN IMMEDIATE` for every write: a transaction that reads first and then wants to write can be
  refused at once with "database is locked", however long the waiting time, because two such
  transactions could never both go on. Taking the write lock at the start makes them queue.
- a waiting time on every connection, so that four processes on one file take turns.

`Database.open(url)` sets them on each connection it makes, translates the two failures that call
for different acts (`StorageFull`: make room, nothing was written; `StorageBusy`: somebody holds
the write lock, try again), and keeps to the process that opened it: a child made by `fork` gets
connections of its own and never closes the ones it inherited, since closing an inherited SQLite
handle drops the parent's file locks.

    with database.write() as tx:        # one transaction: all of it, or nothing
        tx.execute("INSERT INTO notes (text) VALUES (:text)", text="hello")

Statements are plain SQL with `:name` parameters. They reach the driver through SQLAlchemy, so
`pandas.read_sql(query, database.engine)` reads the same engine.

Left out: no connection is shared between `fork`ed processes, and an in-memory database
(`sqlite://`) lives in one process and dies with it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import QueuePool, StaticPool

from durable_kit.errors import BadInput, StorageBusy, StorageDamaged, StorageFull

# SQLAlchemy loads a good part of itself when the first engine is made: do that now, not in the
# middle of the first open.
sa.create_engine("sqlite://").dispose()

_INHERITED: list[Any] = []  # connections of a parent process: kept so that nothing closes them
_OPEN: WeakSet[Database] = WeakSet()  # the SQLite databases of this process
_FORKING: list[Database] = []  # those whose write lock is held while it forks
_A_DAY_S = 86_400
_DAMAGED = ("disk image is malformed", "malformed database schema", "not a database")
_UNUSABLE = ("unable to open database file", "readonly database")


class Tx:
    """One open transaction. A function that takes a `Tx` joins it; it never commits.

    Statements go straight to the driver: the kit runs seven small ones a step, and building a
    result object for each costs more than SQLite does. `connection` is the SQLAlchemy connection
    of the same transaction, for Core statements of your own.
    """

    __slots__ = ("_database", "connection", "driver")

    def __init__(self, database: Database, connection: sa.Connection) -> None:
        self._database = database
        self.connection = connection
        self.driver: Any = connection.connection.dbapi_connection

    @property
    def is_sqlite(self) -> bool:
        return self._database.is_sqlite

    @property
    def integrity_error(self) -> type[Exception]:
        """What the driver raises for a second row with the same key."""
        error: type[Exception] = self._database._engine.dialect.loaded_dbapi.IntegrityError
        return error

    def execute(self, sql: str, **params: Any) -> Any:
        """Run one statement with `:name` parameters; returns the driver's cursor."""
        cursor = self.driver.cursor()
        # SQLite's driver knows `:name` itself.
        cursor.execute(sql if self._database.is_sqlite else _for_psycopg(sql), params)
        return cursor

    def rows(self, sql: str, **params: Any) -> list[Any]:
        """All rows of one query, as tuples."""
        found: list[Any] = self.execute(sql, **params).fetchall()
        return found

    def row(self, sql: str, **params: Any) -> Any | None:
        """The first row of one query, or None."""
        return self.execute(sql, **params).fetchone()

    def among(self, column: str, name: str) -> str:
        """SQL for "`column` is one of the integers in parameter `name`" (see `many`).

        SQLite has no array parameters and unpacks a JSON text; PostgreSQL takes an array.
        """
        if self.is_sqlite:
            return f"{column} IN (SELECT value FROM json_each(:{name}))"
        return f"{column} = ANY(:{name})"

    def many(self, numbers: Sequence[int]) -> Any:
        """The parameter value that goes with `among`."""
        return f"[{','.join(map(str, numbers))}]" if self.is_sqlite else list(numbers)


class _Here(threading.local):
    """What one OS thread is doing."""

    tx: Tx | None = None  # the write transaction it has open


class Database:
    """One SQLAlchemy engine with the settings above. Safe to share between OS threads."""

    # Set by `_start`, anew in each process.
    _pid: int
    _engine: sa.Engine
    _here: _Here
    _write_lock: threading.RLock
    _writer: sa.Connection | None

    def __init__(self, url: sa.URL, *, busy_timeout_s: float, synchronous: str) -> None:
        self.url = url
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self.in_memory = self.is_sqlite and url.database in (None, "", ":memory:")
        self._busy_timeout_s = busy_timeout_s
        self._busy_timeout_ms = int(busy_timeout_s * 1000)
        self._synchronous = synchronous
        self._in_use_at_fork = False
        self._start()
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
        parsed = _checked_url(url)
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
        except BaseException as error:
            database.close()
            if isinstance(error, DBAPIError) and any(text in str(error) for text in _UNUSABLE):
                raise BadInput(
                    f"{url!r} cannot be used: {error.orig}. Name a file that this user may write, "
                    "and that is new or an SQLite database."
                ) from error
            raise
        return database

    @property
    def engine(self) -> sa.Engine:
        """The SQLAlchemy engine, for `pandas.read_sql` and your own queries."""
        self._check_process()
        return self._engine

    @property
    def writing(self) -> bool:
        """Whether this OS thread has a write transaction open."""
        return self._here.tx is not None

    @contextmanager
    def write(self) -> Iterator[Tx]:
        """One write transaction: committed when the block ends, rolled back when it raises.

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
            if not self.is_sqlite:
                with self._translated(), self._engine.begin() as connection:
                    here.tx = Tx(self, connection)
                    yield here.tx
                return
            # SQLite has one writer at a time. Inside this process a lock makes writers queue
            # fairly (the driver's own waiting is a sleep), and one connection serves them all.
            with self._write_lock:
                try:
                    if self._writer is None:
                        self._writer = self._engine.connect()
                    here.tx = tx = Tx(self, self._writer)
                    tx.driver.execute("BEGIN IMMEDIATE")
                    yield tx
                    if self._writer.in_transaction():  # the caller used SQLAlchemy in it
                        self._writer.commit()
                    else:
                        tx.driver.commit()
                except BaseException as error:
                    self._drop_writer()  # rolls back; the next write gets a fresh connection
                    self._translate(error)
                    raise
        finally:
            here.tx = None

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
            return
        with self._translated(), self._engine.connect() as connection:
            if not self.is_sqlite:
                # Several statements must see one state; PostgreSQL's default would not.
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield Tx(self, connection)

    def give_back(self) -> None:
        """Return free pages to the file system (SQLite; PostgreSQL has its own vacuum).

        Best effort: a reader that still needs the old pages delays it, which is no error. Nor is
        a database that this user may only read.
        """
        if not self.is_sqlite:
            return
        with self._write_lock, self.engine.connect() as connection:
            raw = connection.connection.cursor()
            try:
                # It frees one page a step and has no rows: `execute` would take one step.
                raw.executescript("PRAGMA incremental_vacuum")
                raw.execute("PRAGMA busy_timeout = 0")  # a long reader is not worth waiting for
                raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except Exception as error:
                if not any(text in str(error) for text in ("locked", "busy", "readonly")):
                    raise
            finally:
                raw.execute(f"PRAGMA busy_timeout = {self._busy_timeout_ms}")
                raw.close()

    def close(self) -> None:
        """Close every connection of this process. Closing twice is harmless."""
        if self._pid != os.getpid():
            return
        with self._write_lock:
            self._drop_writer()
        self._engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- helpers -----------------------------------------------------------------------------

    def _start(self) -> None:
        self._pid = os.getpid()
        self._here = _Here()
        self._write_lock = threading.RLock()
        self._writer = None
        if self.is_sqlite:
            self._engine = sa.create_engine(
                self.url,
                poolclass=StaticPool if self.in_memory else QueuePool,
                connect_args={"check_same_thread": False, "timeout": self._busy_timeout_s},
                **({} if self.in_memory else {"pool_size": 8, "max_overflow": 56}),
            )
            sa.event.listen(self._engine, "connect", self._on_sqlite_connect)
            sa.event.listen(self._engine, "begin", _on_sqlite_begin)
        else:
            self._engine = sa.create_engine(self.url, pool_size=8, max_overflow=56)

    def _check_process(self) -> None:
        if self._pid == os.getpid():
            return
        if self.in_memory or self._in_use_at_fork:
            reason = "holds it in memory" if self.in_memory else "was using it at the fork"
            raise BadInput(
                f"{self.url!r} cannot be used in this process: its parent {reason}. Start the "
                "process by spawn or forkserver, and open a file in it."
            )
        _INHERITED.extend([self._engine, self._writer])
        self._start()

    def _before_fork(self) -> bool:
        """Wait for a writer to end, and close what is idle. Whether the write lock is held now.

        SQLite keeps its own account of the locks of a process, in memory. A child that inherits
        an open file believes in locks that only its parent holds.
        """
        held = self._write_lock.acquire(timeout=self._busy_timeout_s)
        if self._pid == os.getpid() and not self.in_memory:
            if held and self._here.tx is None:
                self._drop_writer()
            self._in_use_at_fork = self._engine.pool.checkedout() > 0  # type: ignore[attr-defined]
            self._engine.dispose()
        return held

    def _after_fork(self) -> None:
        """In the parent, where the lock is held."""
        self._write_lock.release()

    def _on_sqlite_connect(self, connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the kit says BEGIN itself
        connection.text_factory = _text  # a damaged text is for the checksums to notice
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {self._busy_timeout_ms}")
        # Must come before the first table: later it would need a VACUUM. And only then: it takes
        # the write lock and rewrites the header, also where it changes nothing.
        try:
            empty = cursor.execute("PRAGMA page_count").fetchone()[0] == 0
        except UnicodeDecodeError as error:  # of a message that quotes the damaged schema
            raise self._damaged("its schema is not text") from error
        if empty:
            cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
        tries_left = self._busy_timeout_s / 0.02
        while True:
            # Switching to WAL is the one statement that busy_timeout does not cover.
            try:
                cursor.execute("PRAGMA journal_mode = WAL")
                break
            except Exception as error:
                if "locked" not in str(error) or tries_left <= 0:
                    raise
            tries_left -= 1
            time.sleep(0.02)
        cursor.execute(f"PRAGMA synchronous = {self._synchronous}")
        cursor.close()

    def _drop_writer(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._translate(error)
            raise

    def _damaged(self, reason: str) -> StorageDamaged:
        return StorageDamaged(
            f"{self.url!r}: the file itself is damaged ({reason}). Keep a copy of it, and restore "
            "a backup, or save what can be read with the .recover command of SQLite's own shell."
        )

    def _translate(self, error: BaseException) -> None:
        """Raise the kit's own error for the two failures that call for different acts."""
        # From SQLAlchemy (connect, commit) or from the driver itself (our statements).
        cause = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(cause, self._engine.dialect.loaded_dbapi.Error):
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
                raise self._damaged(reason) from error
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


@lru_cache(maxsize=512)
def _for_psycopg(sql: str) -> str:
    """`:name` as psycopg writes it, `%(name)s`; `::` (a cast) stays."""
    return re.sub(r"(?<![:\w]):([a-z_]\w*)", r"%(\1)s", sql.replace("%", "%%"))


def _text(column: bytes) -> str:
    return column.decode("utf-8", "surrogateescape")


def _on_sqlite_begin(connection: sa.Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    if not driver.in_transaction:  # `write` may have begun already
        driver.execute("BEGIN")


def _checked_url(url: str | sa.URL) -> sa.URL:
    try:
        parsed = sa.make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise BadInput(
            f"{url!r} is not a database URL. Use sqlite:///file.db or "
            "postgresql+psycopg://user@host/name."
        ) from error
    if backend == "postgresql" and "+" not in parsed.drivername:
        parsed = parsed.set(drivername="postgresql+psycopg")
    if backend not in ("sqlite", "postgresql"):
        raise BadInput(f"{backend!r} is not supported; the kit keeps to SQLite and PostgreSQL.")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise BadInput(
            f"The driver {parsed.drivername!r} is not supported. Use sqlite:// or "
            "postgresql+psycopg://."
        )
    if backend == "postgresql":
        try:
            import psycopg  # noqa: F401
        except ImportError as error:
            raise BadInput(
                "PostgreSQL needs the package psycopg: pip install 'durable-kit[postgres]'."
            ) from error
    if backend == "sqlite" and parsed.database not in (None, "", ":memory:"):
        path = Path(str(parsed.database))
        if path.is_dir():
            raise BadInput(f"{path} is a directory; name a file in it, for example kit.db.")
        if not path.parent.exists():
            raise BadInput(f"The directory {path.parent} does not exist; make it first.")
    return parsed


def _before_fork() -> None:
    _FORKING.extend(database for database in list(_OPEN) if database._before_fork())


def _after_fork_in_parent() -> None:
    while _FORKING:
        _FORKING.pop()._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_FORKING.clear
    )
