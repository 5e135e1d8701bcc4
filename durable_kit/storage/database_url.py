"""Which databases the kit can open, said before anything is opened."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from durable_kit.errors import BadInput

sa.make_url("sqlite://")  # SQLAlchemy compiles its pattern at the first one: now, not in an open


def checked_url(url: str | sa.URL) -> sa.URL:
    """The URL, parsed. Raises `BadInput` for one that cannot be used, with what can."""
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
    else:
        _check_file(parsed)
    return parsed


def _check_file(url: sa.URL) -> None:
    name = url.database
    if name in (None, "", ":memory:"):
        if url.query:
            raise BadInput(f"{url!r}: a database in memory takes no options. Use sqlite://.")
        return
    if url.query.get("mode") == "memory" or str(name).startswith("file::memory:"):
        raise BadInput(
            f"{url!r}: a database in memory that several connections share is not supported. "
            "Use sqlite:// (one process, one connection) or a file."
        )
    if str(name).startswith("file:"):
        return
    path = Path(str(name))
    if path.is_dir():
        raise BadInput(f"{path} is a directory; name a file in it, for example kit.db.")
    if not path.parent.exists():
        raise BadInput(f"The directory {path.parent} does not exist; make it first.")
