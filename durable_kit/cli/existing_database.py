"""Open a database that is there, to look into it; never make one.

``sqlite3`` creates the file that it cannot find, and an ``inspect`` with a typing error would
answer "no threads" and leave an empty file behind. So the file is looked at first, read-only; and
a database without the kit's tables is left as it is, instead of being given them.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durable_kit.cli.terminal import CannotAskError, DamagedError

if TYPE_CHECKING:
    from durable_kit.delta_saver import DeltaSaver
    from durable_kit.versions.migration import Migrations

_MARK = "kit_schema"  # the table that every database of the kit has


@contextmanager
def existing_saver(
    url: str, *, writable: bool = False, migrations: Migrations | None = None
) -> Iterator[DeltaSaver]:
    """Open the kit's database at this URL for the length of a ``with`` block.

    Raises CannotAskError, in one sentence, for a bad URL, a missing or unreadable file, a
    directory, a file that the caller may not write when ``writable`` is asked, a server that
    does not answer, and a database that the kit has never written to; DamagedError when a record
    that was needed fails its checks.
    """
    _check_database(url, writable=writable)
    from sqlalchemy.exc import SQLAlchemyError

    from durable_kit.delta_saver import DeltaSaver
    from durable_kit.errors import BrokenChain, DurableKitError

    try:
        with DeltaSaver.open(url, migrations=migrations) as saver:
            yield saver
    except BrokenChain as error:
        raise DamagedError(str(error)) from error
    except (DurableKitError, SQLAlchemyError) as error:
        raise CannotAskError(_first_line(error)) from error


def require_thread(saver: DeltaSaver, thread_id: str) -> None:
    """Raise CannotAskError, naming a few that exist, when there is no such thread."""
    known = sorted({thread for thread, _ in saver.threads()})
    if thread_id not in known:
        some = ", ".join(known[:5]) + (", ..." if len(known) > 5 else "")
        there = f"There are {len(known)}: {some}." if known else "The database has no threads yet."
        raise CannotAskError(f"There is no thread {thread_id!r}. {there}")


def _check_database(url: str, *, writable: bool) -> None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except ArgumentError as error:
        hint = f" Did you mean sqlite:///{url}?" if Path(url).exists() else ""
        raise CannotAskError(
            f"{url!r} is not a database URL; write sqlite:///file.db or "
            f"postgresql+psycopg://user@host/name.{hint}"
        ) from error
    if parsed.drivername.startswith("sqlite"):
        _check_file(parsed.database, writable=writable)
    elif parsed.drivername.startswith("postgresql"):
        _check_server(parsed)
    else:
        raise CannotAskError(f"{url!r}: only sqlite and postgresql URLs are understood.")


def _check_file(database: str | None, *, writable: bool) -> None:
    if database in (None, "", ":memory:"):
        raise CannotAskError(
            "A database in memory is a new and empty one in every process; give the path of a "
            "file: sqlite:///file.db."
        )
    path = Path(str(database))
    if path.is_dir():
        raise CannotAskError(f"{path} is a directory; name the database file in it.")
    if not path.exists():
        hint = (
            "" if path.is_absolute() else " (an absolute path takes four slashes: sqlite:////...)"
        )
        raise CannotAskError(f"There is no file {path}{hint}.")
    if not os.access(path, os.R_OK):
        raise CannotAskError(f"{path} may not be read by this user.")
    if writable and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        raise CannotAskError(f"{path} or its folder may not be written by this user.")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            found = db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [_MARK]).fetchone()
    except sqlite3.OperationalError as error:
        raise CannotAskError(f"{path} cannot be opened: {error}.") from error
    except sqlite3.DatabaseError as error:
        raise CannotAskError(f"{path} is not a SQLite database ({error}).") from error
    if found is None:
        raise CannotAskError(f"{path} is no database of durable_kit: it has no table {_MARK}.")


def _check_server(url: Any) -> None:
    from sqlalchemy import create_engine, inspect
    from sqlalchemy.exc import SQLAlchemyError

    shown = url.render_as_string(hide_password=True)
    if "+" not in url.drivername:
        url = url.set(drivername="postgresql+psycopg")
    try:
        engine = create_engine(url, connect_args={"connect_timeout": 10})
    except ImportError as error:
        raise CannotAskError(
            f"{shown} needs the package psycopg: pip install 'durable-kit[postgres]'."
        ) from error
    try:
        found = inspect(engine).has_table(_MARK)
    except SQLAlchemyError as error:
        raise CannotAskError(f"{shown} does not answer: {_first_line(error)}") from error
    finally:
        engine.dispose()
    if not found:
        raise CannotAskError(f"{shown} is no database of durable_kit: it has no table {_MARK}.")


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__
