"""A disk that is full is not a database that is damaged.

`PRAGMA max_page_count` plays the disk: SQLite refuses the page that would be one too many with the
same error. The first error must say so, the thread must stay at its last good step, and the next
call after somebody made room must simply work.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from durable_kit.delta_saver import DeltaSaver
from durable_kit.errors import StorageFull
from durable_kit.storage.database import Database
from durable_kit.storage.snapshot_policy import EveryN
from tests.contracts.builders import Line, assert_same, facts

from .graphs import talking_graph, thread

NO_LIMIT = 2**32 - 2


class Disk:
    """How many pages the database may have."""

    def __init__(self) -> None:
        self.pages = NO_LIMIT

    def fill(self, saver: DeltaSaver, *, left: int) -> None:
        """From now on there is room for `left` more pages."""
        with saver.database.read() as tx:
            self.pages = tx.row("PRAGMA page_count")[0] + left
        saver.database.close()  # it opens again by itself, with the limit

    def make_room(self, saver: DeltaSaver) -> None:
        self.pages = NO_LIMIT
        saver.database.close()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk()
    connected = Database._on_sqlite_connect

    def on_connect(self: Database, connection: Any, record: Any) -> None:
        connected(self, connection, record)
        connection.execute(f"PRAGMA max_page_count = {found.pages}")

    monkeypatch.setattr(Database, "_on_sqlite_connect", on_connect)
    return found


@pytest.fixture
def saver(tmp_path: Path, disk: Disk) -> Iterator[DeltaSaver]:
    url = f"sqlite:///{tmp_path / 'kit.db'}"
    with DeltaSaver.open(url, policy=EveryN(1000)) as opened:
        yield opened


def noise(n_bytes: int) -> str:
    """Text that no compression makes small."""
    return random.Random(n_bytes).randbytes(n_bytes // 2).hex()


def everything(saver: DeltaSaver) -> dict[str, list[Any]]:
    """All rows of all tables."""
    with saver.database.read() as tx:
        names = [name for (name,) in tx.rows("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(tx.rows(f"SELECT * FROM {name}"), key=repr) for name in names}


def refused_whole(saver: DeltaSaver, call: Callable[[], Any]) -> None:
    """The call finds the disk full, says so, and changes no row."""
    before = everything(saver)
    with pytest.raises(StorageFull, match=r"no space left .* Make room"):
        call()
    assert everything(saver) == before
    assert saver.verify("full").ok


def test_a_put_that_finds_the_disk_full_leaves_the_last_good_step(
    saver: DeltaSaver, disk: Disk
) -> None:
    line = Line(saver, "full")
    line.put({"messages": ["small"]})
    good = facts(line.read())
    disk.fill(saver, left=2)
    refused_whole(saver, lambda: line.put({"messages": ["small", noise(100_000)]}))
    assert_same(facts(line.read()), good)
    disk.make_room(saver)
    line.put({"messages": ["small", noise(100_000)]})  # the same step again
    assert line.read().checkpoint["channel_values"]["messages"][1] == noise(100_000)
    assert len(line.rows()) == 2
    assert saver.verify("full").ok


def test_small_steps_go_on_to_the_last_free_page_and_not_beyond(
    saver: DeltaSaver, disk: Disk
) -> None:
    line = Line(saver, "full")
    line.put({"messages": []})
    disk.fill(saver, left=8)
    messages: list[str] = []
    with pytest.raises(StorageFull):
        for step in range(1000):
            line.put({"messages": [*messages, noise(1000 + step)]})
            messages.append(noise(1000 + step))
    assert len(messages) > 5
    assert line.read().checkpoint["channel_values"]["messages"] == messages
    assert len(line.rows()) == len(messages) + 1
    assert saver.verify("full").ok


def test_writes_that_find_the_disk_full_are_not_there_by_half(
    saver: DeltaSaver, disk: Disk
) -> None:
    line = Line(saver, "full")
    at = line.put({"messages": ["small"]})
    line.write(at, ("messages", "first"), task="first")
    disk.fill(saver, left=2)
    writes = [("messages", "second"), ("note", "fits"), ("document", noise(100_000))]
    refused_whole(saver, lambda: line.write(at, *writes, task="second"))
    assert line.read().pending_writes == [("first", "messages", "first")]
    disk.make_room(saver)
    line.write(at, *writes, task="second")
    assert line.read().pending_writes == [
        ("first", "messages", "first"),
        *[("second", channel, value) for channel, value in writes],
    ]


def test_a_compaction_that_finds_the_disk_full_changes_nothing(
    saver: DeltaSaver, disk: Disk
) -> None:
    line = Line(saver, "full")
    messages = [noise(100_000)]
    for step in range(5):
        messages = [*messages, f"message {step}"]
        line.put({"messages": messages})
    told = [facts(row) for row in line.rows()]
    disk.fill(saver, left=2)
    refused_whole(saver, lambda: saver.compact("full"))
    assert [facts(row) for row in line.rows()] == told
    line.put({"messages": [*messages, "there is room for a small step"]})
    disk.make_room(saver)
    assert saver.compact("full") == 1
    assert [facts(row) for row in line.rows()][1:] == told
    assert saver.verify("full").ok


def test_a_graph_goes_on_from_its_last_good_step_when_there_is_room_again(
    saver: DeltaSaver, disk: Disk
) -> None:
    graph = talking_graph(saver)
    graph.invoke({"messages": ["hello"]}, thread("full"))
    good = graph.get_state(thread("full"))
    disk.fill(saver, left=2)
    with pytest.raises(StorageFull):
        graph.invoke({"messages": [noise(100_000)]}, thread("full"))
    assert graph.get_state(thread("full")) == good
    assert saver.verify("full").ok
    disk.make_room(saver)
    said = graph.invoke({"messages": ["there"]}, thread("full"))["messages"]
    assert said == ["hello", "answer 1", "there", "answer 2"]


def test_beside_it_the_sqlite_saver_shows_its_user_the_bare_error_of_the_driver(
    tmp_path: Path,
) -> None:
    with closing(sqlite3.connect(tmp_path / "peer.db", check_same_thread=False)) as connection:
        graph = talking_graph(SqliteSaver(connection))
        graph.invoke({"messages": ["hello"]}, thread("full"))
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(sqlite3.OperationalError) as caught:
            graph.invoke({"messages": [noise(100_000)]}, thread("full"))
        # No file, no word about what was stored, no next act.
        assert str(caught.value) == "database or disk is full"
