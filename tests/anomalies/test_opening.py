"""Opening: by eight at once, by one that dies half way, by one that may only read."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_kit import DeltaSaver
from durable_kit.storage.schema import MIGRATIONS
from tests.anomalies.children import context
from tests.anomalies.open_worker import open_and_die, open_and_write, use_without_rights
from tests.contracts.builders import Line, facts

KILLED = -(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)


@pytest.mark.parametrize("statement", [3, 5, 7])
def test_eight_open_an_empty_database_at_once_and_one_is_killed_half_way(
    database_url: str, statement: int
) -> None:
    everyone = context.Barrier(8)
    names = [f"thread-{n}" for n in range(7)]
    children = [
        context.Process(target=open_and_write, args=(database_url, name, everyone))
        for name in names
    ]
    doomed = context.Process(target=open_and_die, args=(database_url, statement, everyone))
    for child in (*children, doomed):
        child.start()
    for child in (*children, doomed):
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 7
    assert doomed.exitcode in (KILLED, 0), "another may have made all the tables before"
    with DeltaSaver.open(database_url) as saver:
        assert sorted(name for name, _ in saver.threads()) == names
        assert all(saver.verify(name).ok for name in names)
        with saver.database.read() as tx:
            assert tx.rows("SELECT version FROM kit_schema") == [(len(MIGRATIONS),)]


def test_one_that_is_killed_half_way_alone_leaves_an_empty_database(database_url: str) -> None:
    for statement in (3, 5, 7, 9):
        alone = context.Barrier(1)
        doomed = context.Process(target=open_and_die, args=(database_url, statement, alone))
        doomed.start()
        doomed.join(60)
        assert doomed.exitcode == KILLED
    with DeltaSaver.open(database_url) as saver:
        assert list(saver.threads()) == []
        Line(saver, "t").put({"n": 1})


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that others may enter; pytest's own are closed to them."""
    made = Path(tempfile.mkdtemp(prefix="kit-"))
    made.chmod(0o755)
    yield made
    made.chmod(0o755)
    shutil.rmtree(made)


def without_rights(url: str, tmp_path: Path) -> dict[str, str]:
    out = tmp_path / "said"
    child = context.Process(target=use_without_rights, args=(url, out))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    return dict(line.split(": ", 1) for line in out.read_text().splitlines())


@pytest.mark.skipif(sys.platform == "win32", reason="file modes are POSIX")
@pytest.mark.parametrize("what", ["file", "directory", "directory, of an open database"])
def test_one_that_may_only_read_reads_or_is_told_so_and_changes_nothing(
    what: str, folder: Path, tmp_path: Path
) -> None:
    file = folder / "kit.db"
    url = f"sqlite:///{file}"
    with DeltaSaver.open(url) as saver:
        line = Line(saver, "t")
        line.put({"n": 1})
        before = [facts(row) for row in line.rows()]
        if what == "directory, of an open database":
            said = without_rights(url, tmp_path)
    if what != "directory, of an open database":
        content = file.read_bytes()
        file.chmod(0o444)
        folder.chmod(0o777 if what == "file" else 0o555)
        said = without_rights(url, tmp_path)
        assert file.read_bytes() == content
    for answer in said.values():
        assert answer == "ok" or answer.startswith("BadInput"), said
    refused = {name for name, answer in said.items() if answer != "ok"}
    assert refused, "it may not write, and was told that it did"
    if said["open"] == "ok":
        assert refused == {"put", "write"}, said
    else:
        assert "kit.db" in said["open"]
    with DeltaSaver.open(url) as saver:
        assert [facts(row) for row in saver.list(line.config())] == before
        assert saver.verify("t").ok


@pytest.mark.skipif(sys.platform == "win32", reason="file modes are POSIX")
def test_a_new_database_in_a_directory_without_rights_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    folder.chmod(0o555)
    said = without_rights(f"sqlite:///{folder / 'new.db'}", tmp_path)
    assert set(said) == {"open"}
    assert said["open"].startswith("BadInput")
    assert list(folder.iterdir()) == []
