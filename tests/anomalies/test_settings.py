"""Settings that nothing reminds you of: what SQLite does when the power fails, and who waits.

With `synchronous=NORMAL` a committed step can be gone after a power loss. No test that kills a
process notices, since the page cache survives a process. So the setting itself is what is tested:
on every connection that the kit makes, also on those made late, in another OS thread, after an
error and after a fork.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from durable_kit import Database, DeltaSaver
from durable_kit.errors import BadInput
from tests.contracts.builders import Line

from .connections import each_connection

FULL, NORMAL = 2, 1


def settings(driver: Any) -> dict[str, Any]:
    """What one connection is set to."""
    names = ("synchronous", "journal_mode", "busy_timeout", "auto_vacuum")
    return {name: driver.execute(f"PRAGMA {name}").fetchone()[0] for name in names}


STRICT = {"synchronous": FULL, "journal_mode": "wal", "busy_timeout": 30_000, "auto_vacuum": 2}


@pytest.fixture
def database(tmp_path: Path) -> Any:
    with Database.open(f"sqlite:///{tmp_path / 'kit.db'}") as opened:
        yield opened


def test_a_plain_connection_keeps_neither_the_wait_nor_the_journal_by_itself(
    tmp_path: Path,
) -> None:
    with closing(sqlite3.connect(tmp_path / "plain.db")) as plain:
        found = settings(plain)
    assert found["journal_mode"] != "wal"
    assert found["busy_timeout"] < STRICT["busy_timeout"]


def test_every_connection_that_the_kit_takes_is_set_to_survive_a_power_loss(
    database: Database,
) -> None:
    seen: list[dict[str, Any]] = []

    with each_connection(database, lambda driver: seen.append(settings(driver))):
        line = Line(DeltaSaver(database))
        for step in range(3):
            line.write(line.put({"messages": ["hello"] * step}), ("messages", ["x"]))
        saver = line.saver
        saver.compact(line.thread_id)
        saver.prune([line.thread_id])
        line.rows()
    with database.write() as tx:
        seen.append(settings(tx.driver))
    assert len(seen) >= 5
    assert all(found == STRICT for found in seen), seen


def test_connections_of_many_threads_at_once_are_set_alike(database: Database) -> None:
    seen: list[dict[str, Any]] = []
    everyone = threading.Barrier(12)

    def look() -> None:
        with database.read() as tx:
            everyone.wait(10)  # all twelve connections are open now
            seen.append(settings(tx.driver))

    threads = [threading.Thread(target=look) for _ in range(12)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(20)
    assert seen == [STRICT] * 12


def test_the_writer_is_set_and_usable_after_a_transaction_that_failed(database: Database) -> None:
    with pytest.raises(ZeroDivisionError), database.write() as tx:
        tx.execute("INSERT INTO kit_schema (version) VALUES (7)")
        1 / 0  # noqa: B018
    with database.write() as tx:
        assert settings(tx.driver) == STRICT
        assert tx.rows("SELECT version FROM kit_schema WHERE version = 7") == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_connections_of_a_forked_child_are_set_alike(database: Database) -> None:
    with database.write():
        pass
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with database.write() as tx, ExitStack() as stack:
                reader = stack.enter_context(database.read())
                same = settings(tx.driver) == settings(reader.driver) == STRICT
            os.write(write_end, b"strict" if same else b"differs")
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    assert os.read(read_end, 100) == b"strict"
    os.close(read_end)


def test_a_weaker_setting_has_to_be_asked_for_by_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'weak.db'}"
    with Database.open(url, synchronous="normal", busy_timeout_s=1.5) as weak:
        with weak.read() as tx:
            found = settings(tx.driver)
    assert (found["synchronous"], found["busy_timeout"]) == (NORMAL, 1500)
    with pytest.raises(BadInput, match="FULL"):
        Database.open(url, synchronous="safe")


def test_write_transactions_take_the_lock_at_once_and_not_at_their_first_write(
    database: Database,
) -> None:
    # A transaction that reads first and then wants to write is refused at once, however long the
    # waiting time, when somebody has written in between. Show it, and show that the kit cannot
    # get there.
    path = str(database.url.database)
    with closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as naive:
        naive.execute("BEGIN")
        naive.execute("SELECT count(*) FROM kit_schema").fetchone()
        with database.write() as tx:
            tx.execute("INSERT INTO kit_schema (version) VALUES (1)")
            tx.execute("DELETE FROM kit_schema WHERE rowid > 1")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            naive.execute("UPDATE kit_schema SET version = 1")
        naive.execute("ROLLBACK")
        with database.write(), closing(sqlite3.connect(path, timeout=0)) as other:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf")])
def test_a_waiting_time_that_makes_no_sense_is_refused(tmp_path: Path, wait: float) -> None:
    with pytest.raises(BadInput, match="busy_timeout_s"):
        Database.open(f"sqlite:///{tmp_path / 'kit.db'}", busy_timeout_s=wait)
