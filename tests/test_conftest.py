"""The test bench, tested: both databases are real, empty and gone afterwards; CI sees skips."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import create_engine, text

ROOT = Path(__file__).parent.parent

TEST_FILE = """
import pytest

def test_runs(): pass

@pytest.mark.skip(reason="no moon tonight")
def test_marked(): pass

def test_skips_itself(): pytest.skip("no sun either")

@pytest.mark.xfail(reason="known to be wrong", strict=False)
def test_expected_to_fail(): assert False

@pytest.mark.xfail(reason="said to be wrong", strict=False)
def test_passes_unexpectedly(): pass
"""
SKIPPED_FILE = 'import pytest\npytest.importorskip("no_such_package", reason="no such package")\n'
REASONS = [
    "no moon tonight",
    "no sun either",
    "known to be wrong",
    "said to be wrong",
    "no such package",
]


def run_pytest(
    folder: Path, *, ci: bool, arguments: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """A pytest of its own, in a folder outside the project, with our conftest and settings."""
    (folder / "conftest.py").write_text(
        (ROOT / "tests" / "conftest.py").read_text("utf-8"), "utf-8"
    )
    environment = {k: v for k, v in os.environ.items() if k != "DURABLE_KIT_CI"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"),
         "--rootdir", str(folder), "-p", "no:cacheprovider", *arguments, str(folder)],
        env=environment | ({"DURABLE_KIT_CI": "1"} if ci else {}),
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def folder_with_skips(tmp_path: Path) -> Path:
    (tmp_path / "test_some_skips.py").write_text(TEST_FILE, "utf-8")
    (tmp_path / "test_whole_file_skipped.py").write_text(SKIPPED_FILE, "utf-8")
    return tmp_path


def test_on_a_laptop_a_skip_is_a_skip(folder_with_skips: Path) -> None:
    run = run_pytest(folder_with_skips, ci=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed, 3 skipped, 1 xfailed, 1 xpassed" in run.stdout


def test_in_ci_every_skip_and_xfail_is_a_failure_that_names_its_reason(
    folder_with_skips: Path,
) -> None:
    run = run_pytest(folder_with_skips, ci=True, arguments=("--continue-on-collection-errors",))
    assert run.returncode == 1, run.stdout + run.stderr
    assert "3 failed, 1 passed, 2 errors" in run.stdout
    assert [reason for reason in REASONS if reason not in run.stdout] == []


def test_a_database_url_opens_an_empty_database(database_url: str) -> None:
    engine = create_engine(database_url)
    with engine.begin() as tx:
        tx.execute(text("CREATE TABLE note (body TEXT NOT NULL)"))
        tx.execute(text("INSERT INTO note (body) VALUES ('kept')"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT body FROM note")).scalars().all() == ["kept"]
    engine.dispose()


@pytest.fixture
def closed_last() -> Iterator[ExitStack]:
    """Asked for first, so closed after the databases are dropped."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.postgres
def test_a_connection_left_open_does_not_keep_a_database_alive(
    closed_last: ExitStack, postgres_database: Callable[[], str]
) -> None:
    """The assertion is the clean-up: without FORCE it raises ObjectInUse."""
    import psycopg

    address = postgres_database().replace("postgresql+psycopg", "postgresql")
    connection = psycopg.connect(address)
    closed_last.callback(connection.close)
    assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("last_act", "exit_code"),
    [
        pytest.param("pass", 0, id="in order"),
        pytest.param("import psutil; psutil.Process().kill()", -9, id="killed"),
    ],
)
def test_the_embedded_postgresql_ends_with_its_session_even_a_killed_one(
    postgres_server: Any, tmp_path: Path, last_act: str, exit_code: int
) -> None:
    """`postgres_server` is asked for so that a machine without it skips here, not in the child."""
    (tmp_path / "test_in_child.py").write_text(
        "def test_it(postgres_server, database_url):\n"
        "    home = postgres_server.pgdata.parent\n"
        "    print('server:', postgres_server.get_pid(), home, flush=True)\n"
        f"    {last_act}\n",
        "utf-8",
    )
    run = run_pytest(tmp_path, ci=False, arguments=("-s", "-k", "postgresql"))
    if os.name == "posix":
        assert run.returncode == exit_code, run.stdout + run.stderr
    pid, home = run.stdout.split("server: ")[1].split()[:2]
    assert ends_within(20.0, int(pid))
    assert not Path(home).exists()


def ends_within(timeout_s: float, pid: int) -> bool:
    """A zombie has ended; only its parent has not asked for the exit status yet."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False
