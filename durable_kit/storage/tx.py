"""One open transaction.

A function that takes a `Tx` joins the caller's transaction: what it does is committed with
everything else in it, or not at all. That is the whole of the outbox pattern, and the reason why
so many functions of the kit take one:

    with database.write() as tx:
        tx.execute("UPDATE orders SET paid = 1 WHERE id = :id", id=1001)
        outbox.enqueue(tx, message)            # sent if, and only if, the order is paid
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

Moment = tuple[int, int, int]


class Tx:
    """One open transaction. It never commits by itself.

    Statements are plain SQL with `:name` parameters, given to the driver as they are. `driver` is
    the driver's connection, `connection` an SQLAlchemy connection of the same transaction, for
    Core statements of your own. `then`: what to do when its block has ended, before the next writer
    of this process begins. The commit comes after that, and may fail.
    """

    __slots__ = ("_connection", "_number", "driver", "is_sqlite", "then")

    def __init__(
        self,
        driver: Any,
        *,
        connection: sa.Connection | None = None,
        number: tuple[int, int] = (0, 0),
    ) -> None:
        self.driver = driver
        self.is_sqlite = connection is None
        self.then: list[Callable[[], None]] = []
        self._connection = connection
        self._number = number

    @property
    def connection(self) -> sa.Connection:
        if self._connection is None:
            engine = sa.create_engine(
                "sqlite://", creator=lambda: Joined(self.driver), poolclass=NullPool
            )
            self._connection = engine.connect()
        return self._connection

    @property
    def integrity_error(self) -> type[Exception]:
        """What the driver raises for a second row with the same key."""
        if self.is_sqlite:
            return sqlite3.IntegrityError
        import psycopg

        return psycopg.IntegrityError

    def moments(self) -> tuple[Moment | None, Moment | None]:
        """Names for the state of the database that this write transaction found, and for the one
        that it leaves.

        Where one transaction finds what another had left, nobody has written in between, in this
        process or in any other. None where that cannot be told (PostgreSQL, a database in memory).
        """
        connection, count = self._number
        if not count:
            return None, None
        version = self.driver.execute("PRAGMA data_version").fetchone()[0]
        return (connection, version, count), (connection, version, count + 1)

    def execute(self, sql: str, **params: Any) -> Any:
        """Run one statement with `:name` parameters; returns the driver's cursor."""
        if self.is_sqlite:  # its driver knows `:name` itself
            return self.driver.execute(sql, params)
        return self.driver.execute(_for_psycopg(sql), params)

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


class Joined:
    """A driver's connection for SQLAlchemy to use, whose transaction is somebody else's to end."""

    def __init__(self, driver: sqlite3.Connection) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def commit(self) -> None:
        """The owner does."""

    rollback = close = commit


# A quoted text is taken whole, so that no colon in it is read as a parameter.
_PARAMETER = re.compile(r"('(?:[^']|'')*')|(?<![:\w]):([a-z_]\w*)")


@lru_cache(maxsize=512)
def _for_psycopg(sql: str) -> str:
    """`:name` as psycopg writes it, `%(name)s`; `::` (a cast) and quoted text stay."""
    return _PARAMETER.sub(lambda found: found[1] or f"%({found[2]})s", sql.replace("%", "%%"))
