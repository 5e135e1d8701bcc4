"""Writers that meet share a commit, and each still gets what a commit of its own would give it."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from durable_kit import Database
from durable_kit.errors import BadInput


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'kit.db'}") as opened:
        with opened.write() as tx:
            tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
            tx.execute(
                "CREATE TABLE notes (id INTEGER, order_id INTEGER "
                "REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)"
            )
        opened._group_commit.patience_s = 20.0  # whatever else this machine has to do
        yield opened


@pytest.fixture
def commits(database: Database) -> list[str]:
    """Grows by one for each commit of the database's writer."""
    seen: list[str] = []
    with database.write() as tx:
        tx.driver.set_trace_callback(lambda sql: seen.append(sql) if sql == "COMMIT" else None)
    seen.clear()
    return seen


class Writer(threading.Thread):
    """An OS thread that writes one note, and holds its transaction open until it is told to end."""

    def __init__(
        self, database: Database, number: int, *, order: int | None = None, linger: bool = False
    ) -> None:
        super().__init__(daemon=True)
        self.database, self.number, self.order, self.linger = database, number, order, linger
        self.inside, self.may_end = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.fails: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with self.database.write(linger=self.linger) as tx:
                tx.execute(
                    "INSERT INTO notes (id, order_id) VALUES (:id, :order)",
                    id=self.number,
                    order=self.order,
                )
                self.inside.set()
                assert self.may_end.wait(20)
                if self.fails is not None:
                    raise self.fails
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.may_end.set()
        self.join(20)
        assert not self.is_alive()


def meeting(database: Database, *, order: int | None = None) -> tuple[Writer, Writer]:
    """Two writers: the first has handed its transaction over, the second is in its block."""
    first = Writer(database, 1)
    assert first.inside.wait(20)
    second = Writer(database, 2, order=order)
    until_waiting(database)
    first.may_end.set()
    assert second.inside.wait(20)
    return first, second


def lingering(database: Database) -> Writer:
    """A writer that has ended its block and waits for another, with nothing committed yet."""
    writer = Writer(database, 1, linger=True)
    writer.may_end.set()
    assert writer.inside.wait(20)
    writer.join(0.05)
    assert writer.is_alive(), "nobody was there, and it committed at once"
    assert notes(database) == []
    return writer


def until_waiting(database: Database) -> None:
    group: Any = database._group_commit
    deadline = time.monotonic() + 20
    while not group._waiting:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def notes(database: Database) -> list[int]:
    with closing(sqlite3.connect(str(database.url.database))) as other:
        return [row[0] for row in other.execute("SELECT id FROM notes ORDER BY id")]


def test_two_writers_that_meet_share_one_commit_and_return_after_it(
    database: Database, commits: list[str]
) -> None:
    first, second = meeting(database)
    first.join(0.2)
    assert first.is_alive(), "it returned before its work was on the disk"
    assert notes(database) == []
    second.end()
    first.join(20)
    assert (first.error, second.error) == (None, None)
    assert notes(database) == [1, 2]
    assert commits == ["COMMIT"]


def test_a_writer_that_meets_nobody_commits_at_once(database: Database, commits: list[str]) -> None:
    for number in (1, 2):
        Writer(database, number).end()
    assert notes(database) == [1, 2]
    assert len(commits) == 2


def test_a_block_that_raises_takes_nothing_of_the_others_with_it(database: Database) -> None:
    first, second = meeting(database)
    second.fails = ValueError("no")
    second.end()
    first.join(20)
    assert (first.error, second.error) == (None, second.fails)
    assert notes(database) == [1]


def test_a_commit_that_fails_is_heard_by_all_who_wait_for_it(database: Database) -> None:
    with database.write():
        pass
    database._group_commit._writer.execute("PRAGMA foreign_keys = ON")  # type: ignore[union-attr]
    first, second = meeting(database, order=77)  # there is no order 77: the commit will say so
    second.end()
    first.join(20)
    for writer in (first, second):
        assert isinstance(writer.error, sqlite3.IntegrityError), writer.error
    assert notes(database) == []
    Writer(database, 3).end()
    assert notes(database) == [3]


def test_who_announced_a_write_and_never_came_is_not_waited_for(database: Database) -> None:
    database._group_commit.patience_s = 0.05
    with database.soon():
        Writer(database, 1).end()
    assert notes(database) == [1]


def test_an_announced_write_is_waited_for(database: Database, commits: list[str]) -> None:
    with database.soon():
        first = Writer(database, 1)
        assert first.inside.wait(20)
        first.may_end.set()
        with database.write() as tx:
            tx.execute("INSERT INTO notes (id) VALUES (2)")
    first.join(20)
    assert notes(database) == [1, 2]
    assert commits == ["COMMIT"]


def test_who_lingers_shares_its_commit_with_one_that_comes_after_it(
    database: Database, commits: list[str]
) -> None:
    database._group_commit.linger_s = 20.0
    first = lingering(database)
    Writer(database, 2).end()
    first.join(20)
    assert first.error is None
    assert notes(database) == [1, 2]
    assert commits == ["COMMIT"]


def test_who_lingers_in_vain_commits_by_itself(database: Database, commits: list[str]) -> None:
    began = time.monotonic()
    Writer(database, 1, linger=True).end()
    assert time.monotonic() - began < database._group_commit.patience_s / 2
    assert notes(database) == [1]
    assert commits == ["COMMIT"]


def test_nobody_lingers_while_others_wait_for_the_commit(
    database: Database, commits: list[str]
) -> None:
    """Else a checkpoint that has let a task's writes join would wait with them for the next."""
    database._group_commit.linger_s = 20.0
    first = Writer(database, 1)
    assert first.inside.wait(20)
    second = Writer(database, 2, linger=True)
    until_waiting(database)
    first.may_end.set()
    assert second.inside.wait(20)
    began = time.monotonic()
    second.end()
    first.join(20)
    assert time.monotonic() - began < 10
    assert notes(database) == [1, 2]
    assert commits == ["COMMIT"]


def test_who_waits_for_the_turn_commits_for_one_that_lingers(database: Database) -> None:
    database._group_commit.linger_s = 20.0
    first = lingering(database)
    database.give_back()
    first.join(20)
    assert not first.is_alive()
    assert notes(database) == [1]


def test_many_threads_lose_nothing(database: Database) -> None:
    def work(thread: int) -> None:
        for number in range(25):
            with database.write() as tx:
                tx.execute("INSERT INTO notes (id) VALUES (:id)", id=100 * thread + number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert notes(database) == sorted(100 * t + n for t in range(8) for n in range(25))


def test_space_can_be_given_back_while_a_transaction_is_handed_over(database: Database) -> None:
    first, second = meeting(database)
    helper = threading.Thread(target=database.give_back)
    helper.start()
    second.end()
    helper.join(20)
    assert not helper.is_alive()
    first.join(20)
    assert notes(database) == [1, 2]


def test_who_is_interrupted_while_joining_is_no_reason_to_wait_for_ever(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    group: Any = database._group_commit
    group.patience_s = 0.01
    run, interrupted = group._run, KeyboardInterrupt()

    def interrupt(sql: str) -> None:
        if sql == "SAVEPOINT member":
            raise interrupted
        run(sql)

    monkeypatch.setattr(group, "_run", interrupt)
    first = Writer(database, 1)
    assert first.inside.wait(20)
    second = Writer(database, 2)
    until_waiting(database)
    first.end()
    second.end()
    assert second.error is interrupted
    assert notes(database) == ([] if first.error else [1])
    monkeypatch.undo()
    Writer(database, 3).end()
    assert 3 in notes(database)


def test_who_is_interrupted_while_waiting_for_the_commit_leaves_the_file_to_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with database.soon():
        first = Writer(database, 1)
        assert first.inside.wait(20)
        monkeypatch.setattr("durable_kit.storage.group_commit._Group.wait", interrupt)
        first.may_end.set()
        first.join(20)
        monkeypatch.undo()
    assert isinstance(first.error, KeyboardInterrupt)
    with closing(sqlite3.connect(str(database.url.database), timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")


def test_who_is_interrupted_before_it_waits_leaves_the_file_to_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lingers alone, so nobody else would commit for it."""

    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(database._group_commit), "_is_worth_it", interrupt)
    first = Writer(database, 1, linger=True)
    first.end()
    monkeypatch.undo()
    assert isinstance(first.error, KeyboardInterrupt)
    with closing(sqlite3.connect(str(database.url.database), timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")


def test_where_nobody_ever_follows_nobody_lingers_for_long(database: Database) -> None:
    """One OS thread that does one thing after the other would wait each time, for nothing."""
    database._group_commit.linger_s = 0.05
    began = time.monotonic()
    for number in range(30):
        with database.write(linger=True) as tx:
            tx.execute("INSERT INTO notes (id) VALUES (:id)", id=number)
    assert time.monotonic() - began < 30 * 0.05 / 2
    assert len(notes(database)) == 30


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///{}/off.db"])
def test_where_no_commit_waits_for_a_disk_nobody_lingers(url: str, tmp_path: Path) -> None:
    with Database.open(url.format(tmp_path), synchronous="OFF") as database:
        assert database._group_commit.linger_s == 0.0


def test_what_a_member_remembered_that_was_undone_is_not_believed(database: Database) -> None:
    """Its `then` has run, and its last statement is interrupted."""
    first = Writer(database, 1)
    assert first.inside.wait(20)
    left: list[Any] = []

    def fail() -> None:
        try:
            with database.write() as tx:
                left.append(tx.moments()[1])
                tx.then.append(lambda: left.append("remembered"))
                tx.then.append(lambda: tx.execute("no such statement"))
        except sqlite3.Error as error:
            left.append(error)

    second = threading.Thread(target=fail, daemon=True)
    second.start()
    until_waiting(database)
    first.end()
    second.join(20)
    assert left[1] == "remembered"
    assert isinstance(left[2], sqlite3.Error)
    with database.write() as tx:
        assert tx.moments()[0] != left[0]


@pytest.mark.parametrize("act", [Database.close, Database.give_back])
def test_half_of_a_block_is_not_committed_by_what_needs_the_turn_of_a_writer(
    database: Database, act: Callable[[Database], None]
) -> None:
    with pytest.raises(BadInput, match="End it first"), database.write() as tx:
        tx.execute("INSERT INTO notes (id) VALUES (1)")
        act(database)
    assert notes(database) == []


# ------------------------------------------------------------------------ moments


def moments(database: Database) -> tuple[Any, Any]:
    with database.write() as tx:
        return tx.moments()


def test_a_transaction_finds_what_the_last_one_left_if_nobody_wrote_in_between(
    database: Database,
) -> None:
    _, left = moments(database)
    found, left = moments(database)
    assert found is not None
    found, left = left, moments(database)
    assert left[0] == found


def test_a_write_of_another_connection_or_thread_makes_another_moment(database: Database) -> None:
    _, left = moments(database)
    with closing(sqlite3.connect(str(database.url.database))) as other, other:
        other.execute("INSERT INTO notes (id) VALUES (1)")
    found, left = moments(database)
    assert found != left
    _, left = moments(database)
    Writer(database, 2).end()
    assert moments(database)[0] != left


def test_a_transaction_that_was_undone_makes_another_moment(database: Database) -> None:
    _, left = moments(database)
    with pytest.raises(ValueError, match="no"), database.write():
        raise ValueError("no")
    assert moments(database)[0] != left


def test_connections_made_after_a_fork_name_other_moments(database: Database) -> None:
    _, left = moments(database)
    database._start()  # what a child does; what it has in memory is its parent's
    found = [moments(database)[0] for _ in range(10)]
    assert left not in found


def test_in_memory_no_moment_is_named() -> None:
    with Database.open("sqlite://") as memory:
        assert moments(memory) == (None, None)


def test_however_many_are_waiting_all_return(database: Database) -> None:
    first = Writer(database, 0)
    assert first.inside.wait(20)
    others = [Writer(database, n) for n in range(1, 40)]
    for writer in others:
        writer.may_end.set()
    first.end()
    for writer in others:
        writer.join(20)
    assert notes(database) == list(range(40))


def test_a_block_that_raises_does_not_wait_for_the_writer_after_it(database: Database) -> None:
    first = Writer(database, 1)
    assert first.inside.wait(20)
    second = Writer(database, 2)
    until_waiting(database)
    first.fails = RuntimeError("no")
    first.may_end.set()
    assert second.inside.wait(20)
    first.join(10)
    assert not first.is_alive(), "it waits for a block that has nothing to do with it"
    second.end()
    assert isinstance(first.error, RuntimeError)
    assert notes(database) == [2]
