"""Reading a history: a fixed number of statements, and no more rows than were asked for.

LangGraph's SqliteSaver asks for the pending writes of each checkpoint with a statement of its own
(N + 1), and every row it reads holds a whole state. Here the number of statements does not depend
on the number of checkpoints, `limit` and `before` bound what the database itself does, and the
work for one state is bounded by the distance to its snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from durable_kit import Database, DeltaSaver, EveryN, SizeRatio
from durable_kit.storage.database import Tx
from tests.contracts.builders import Line

from .connections import each_connection


@dataclass
class Work:
    """What a read asked of the database."""

    statements: int = 0
    rows: int = 0


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Work]:
    """Count the statements and the rows of every transaction of the kit."""
    work = Work()
    execute = Tx.execute

    class Cursor:
        def __init__(self, cursor: Any) -> None:
            self._cursor = cursor

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cursor, name)

        def __iter__(self) -> Iterator[Any]:
            for row in self._cursor:
                work.rows += 1
                yield row

        def fetchall(self) -> list[Any]:
            return list(self)

        def fetchone(self) -> Any:
            return next(iter(self), None)

    def counting(tx: Tx, sql: str, **params: Any) -> Any:
        work.statements += 1
        return Cursor(execute(tx, sql, **params))

    with monkeypatch.context() as patch:
        patch.setattr(Tx, "execute", counting)
        yield work


def fill(saver: Any, thread_id: str, steps: int) -> Line:
    line = Line(saver, thread_id)
    messages: list[str] = []
    for step in range(steps):
        at = line.put({"messages": list(messages), "n": step})
        said = [f"message {step}, which is long enough to lie at an address"]
        line.write(at, ("messages", said), task=f"t{step}")
        messages += said
    return line


@pytest.mark.parametrize("policy", [SizeRatio(), EveryN(10)], ids=str)
def test_a_history_takes_the_same_statements_for_10_100_and_1000_checkpoints(
    policy: Any, database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "peer.db")) as peer:
        asked: list[int] = []
        for steps in (10, 50):
            line = fill(peer, f"t{steps}", steps)
            statements: list[str] = []
            peer.conn.set_trace_callback(statements.append)
            line.rows()
            peer.conn.set_trace_callback(None)
            asked.append(len(statements))
        assert asked[1] >= asked[0] + 40, "the naive saver asks once for each checkpoint"

    asked = []
    with Database.open(database_url, synchronous="OFF") as database:
        saver = DeltaSaver(database, policy=policy)
        for steps in (10, 100, 1000 if database.is_sqlite else 300):
            line = fill(saver, f"t{steps}", steps)
            with counted(monkeypatch) as work:
                rows = line.rows()
            assert len(rows) == steps
            assert len(rows[0].checkpoint["channel_values"]["messages"]) == steps - 1
            asked.append(work.statements)
    assert asked[1] == asked[2], asked  # ten times the history, not one statement more
    assert asked[0] <= asked[1], asked  # a short thread has no packs yet to ask for
    assert asked[2] <= 12


def test_a_limit_bounds_the_rows_that_are_read(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database.open(database_url, synchronous="OFF") as database:
        saver = DeltaSaver(database, policy=EveryN(10))
        read = {}
        for steps in (100, 1000):
            line = fill(saver, f"t{steps}", steps)
            middle = line.rows()[steps // 2].config
            for name, arguments in {
                "limit 1": {"limit": 1},
                "limit 5": {"limit": 5},
                "5 before": {"limit": 5, "before": middle},
            }.items():
                with counted(monkeypatch) as work:
                    found = line.rows(**arguments)
                assert len(found) == arguments["limit"]
                read[name, steps] = work.rows
            with counted(monkeypatch) as work:
                line.read()
            read["latest", steps] = work.rows
        for name in ("limit 1", "limit 5", "5 before", "latest"):
            assert read[name, 1000] < read[name, 100] + 15, (name, read)


def test_the_work_of_one_read_is_bounded_by_the_distance_to_the_snapshot(
    tmp_path: Path,
) -> None:
    steps_of_the_machine = {}
    with Database.open(f"sqlite:///{tmp_path / 'kit.db'}", synchronous="OFF") as database:
        saver = DeltaSaver(database, policy=EveryN(10, self_contained=True))
        for steps in (50, 500):
            line = fill(saver, f"t{steps}", steps)
            for name, read in {
                "latest": line.read,
                "limit 1": lambda line=line: line.rows(limit=1),
                "limit 3": lambda line=line: line.rows(limit=3),
            }.items():
                steps_of_the_machine[name, steps] = _machine_steps(database, read)
    for name in ("latest", "limit 1", "limit 3"):
        few, many = steps_of_the_machine[name, 50], steps_of_the_machine[name, 500]
        assert many < 2 * few + 1000, f"{name}: {few} steps in 50 checkpoints, {many} in 500"


def _machine_steps(database: Database, read: Any) -> int:
    """How many instructions SQLite's virtual machine runs for a read, in hundreds."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    with each_connection(database, lambda driver: driver.set_progress_handler(tick, 10)):
        read()
    with database.read() as tx:
        tx.driver.set_progress_handler(None, 0)
    return count


@pytest.mark.parametrize("old_turns", [2, 6, 20])
def test_a_thread_that_was_migrated_reads_no_further_than_its_last_snapshot(
    old_turns: int, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Old turns, each a whole conversation step; then an empty store takes over the thread.
    with Database.open(database_url, synchronous="OFF") as database:
        saver = DeltaSaver(database, policy=EveryN(4, self_contained=True))
        line = fill(saver, "t", old_turns)
        messages = list(line.read().checkpoint["channel_values"]["messages"])
        for step in range(4):
            line.put({"messages": [*messages, *range(step)], "n": step})
        with counted(monkeypatch) as work:
            found = line.read()
        assert len(found.checkpoint["channel_values"]["messages"]) == old_turns - 1 + 3
        assert work.rows <= 12, "the snapshot and at most three deltas, whatever came before"
