"""A full disk is not damage, and passes.

The naive reaction to a failed write is to take the thread for broken. Nothing is: the transaction
that found no room is undone, the last committed step is there, and the same call works as soon as
there is room. SQLite's `max_page_count` plays the full disk, on every connection of the kit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from durable_kit import Database, DeltaSaver, EveryN, SizeRatio
from durable_kit.errors import StorageFull
from durable_kit.storage.sqlite_connections import SqliteConnections
from tests.contracts.builders import Line, facts

from .connections import each_connection
from .graphs import talking_graph, thread
from .stories import small_packs


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'kit.db'}", synchronous="OFF") as opened:
        yield opened


@contextmanager
def full_disk(database: Database, *, pages_left: int) -> Iterator[None]:
    """Let the file grow by so many pages and no further."""
    limit = _pages(database) + pages_left
    database.close()  # what connects from now on is capped
    with each_connection(
        database, lambda driver: driver.execute(f"PRAGMA max_page_count = {limit}")
    ):
        yield
    database.close()  # and what connects after that is not


def _pages(database: Database) -> int:
    with database.read() as tx:
        return int(tx.row("PRAGMA page_count")[0])


def grow(line: Line, steps: int, *, size: int = 400, begin: int = 0) -> Any:
    """Steps with a message each; returns the config of the last one that was stored.

    A dict is edited now and then: its bytes lie nowhere until the next snapshot writes them, and a
    snapshot that was undone must not be believed to have done so.
    """
    for step in range(begin, begin + steps):
        facts_then = {f"key {n}": f"value {n} " * 5 for n in range(step // 4 + 3)}
        values = {
            "messages": [f"{n} " + "x" * 400 for n in range(step)],
            "facts": facts_then,
            "n": step,
        }
        at = line.put(values)
        line.write(at, ("messages", [f"{step} " + "x" * 400]), ("n", "x" * size), task=f"t{step}")
    return at


@pytest.mark.parametrize(
    "policy", [SizeRatio(), SizeRatio(0.5), EveryN(3), EveryN(3, True)], ids=str
)
@pytest.mark.parametrize("seed", range(2))
def test_a_put_without_room_says_so_and_the_same_put_works_when_there_is_room(
    database: Database, policy: Any, seed: int
) -> None:
    rng = random.Random(seed)
    with small_packs():
        saver = DeltaSaver(database, policy=policy)
        line = Line(saver, "t")
        grow(line, 5)
        stored, failures = 5, 0
        while stored < 40:
            with full_disk(database, pages_left=rng.randrange(3)):
                try:
                    while True:
                        before_put = [facts(row) for row in line.rows()]
                        grow(line, 1, size=rng.choice((400, 3000)), begin=stored)
                        stored += 1
                except StorageFull:
                    failures += 1
                rows = [facts(row) for row in DeltaSaver(database).list(line.config())]
                # The put may have found room, and its write none.
                assert rows == before_put or rows[1:] == before_put
                stored = len(rows)
                line.tip = rows[0]["checkpoint"]["id"]
                line.steps = stored
            assert saver.verify("t").ok
            # The same saver, with what it keeps in memory, goes on.
            grow(line, 1, begin=stored)
            stored += 1
            newest = DeltaSaver(database).get_tuple(line.config())
            assert newest is not None
            assert len(newest.checkpoint["channel_values"]["facts"]) == (stored - 1) // 4 + 3
            assert newest.checkpoint["channel_values"]["n"] == stored - 1
            assert len(newest.checkpoint["channel_values"]["messages"]) == stored - 1
        assert failures > 3
        assert [row.checkpoint["channel_values"]["n"] for row in line.rows()] == list(
            range(stored - 1, -1, -1)
        )
        assert DeltaSaver(database).verify("t").ok


def test_a_snapshot_that_was_undone_is_not_believed_to_hold_any_bytes(database: Database) -> None:
    saver = DeltaSaver(database, policy=EveryN(4))
    line = Line(saver, "t")
    facts_then = {f"key {n}": f"value {n} " * 20 for n in range(20)}
    line.put({"facts": facts_then, "n": 0})
    # A patch in two places: the bytes of the new dict as a whole lie nowhere in the log.
    facts_then = {**facts_then, "key 2": "edited", "key 17": "edited"}
    line.put({"facts": facts_then, "n": 1})
    line.put({"facts": facts_then, "n": 2})
    line.put({"facts": facts_then, "n": 3})
    newest = line.tip
    with full_disk(database, pages_left=0), pytest.raises(StorageFull):
        line.put({"facts": facts_then, "n": 4, "big": "x" * 100_000})  # would be a snapshot
    line.tip = newest
    line.put({"facts": facts_then, "n": 4})
    found = DeltaSaver(database).get_tuple(line.config())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"facts": facts_then, "n": 4}


def test_compaction_without_room_changes_nothing(database: Database) -> None:
    saver = DeltaSaver(database)
    line = Line(saver, "t")
    grow(line, 60, size=2000)
    before = [facts(row) for row in line.rows()]
    with full_disk(database, pages_left=2):
        with pytest.raises(StorageFull):
            saver.compact("t")
        assert [facts(row) for row in line.rows()] == before
        assert saver.verify("t").ok
    assert saver.compact("t") == 1
    assert [facts(row) for row in line.rows()] == before


def test_room_can_be_made_on_a_full_disk_by_pruning(database: Database) -> None:
    saver = DeltaSaver(database, policy=EveryN(3, self_contained=True))
    line = Line(saver, "t")
    grow(line, 30, size=2000)
    with full_disk(database, pages_left=0):
        with pytest.raises(StorageFull):
            grow(line, 5, size=20_000, begin=30)
        line = Line(saver, "t")
        saver.prune(["t"], keep_last=2)
        grow(line, 1, size=100)
        assert saver.verify("t").ok
        saver.delete_thread("t")
        grow(Line(saver, "another"), 5)


def test_a_graph_goes_on_at_the_step_that_found_no_room(database: Database) -> None:
    graph = talking_graph(DeltaSaver(database))
    for _ in range(3):
        graph.invoke({"messages": ["go " + "on " * 200]}, thread("t"))
    before = graph.get_state(thread("t")).values
    with full_disk(database, pages_left=0):
        with pytest.raises(StorageFull, match="Make room"):
            graph.invoke({"messages": ["go " + "on " * 20_000]}, thread("t"))
    state = graph.get_state(thread("t"))
    assert state.values["messages"][: len(before["messages"])] == before["messages"]
    result = graph.invoke({"messages": ["go"]}, thread("t"))
    assert result["turn"] == before["turn"] + 1
    assert DeltaSaver(database).verify("t").ok


def test_a_new_database_that_finds_no_room_for_its_tables_can_be_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'kit.db'}"
    open_connection = SqliteConnections.open

    def capped(connections: SqliteConnections) -> Any:
        connection = open_connection(connections)
        connection.execute("PRAGMA max_page_count = 5")
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(SqliteConnections, "open", capped)
        with pytest.raises(StorageFull):
            Database.open(url)
    with DeltaSaver.open(url) as saver:
        grow(Line(saver, "t"), 2)
        assert saver.verify("t").ok
