"""Writes that run ahead of their checkpoint, as they do in async mode all the time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from durable_kit import DeltaSaver
from durable_kit.storage import checkpoint_log
from durable_kit.storage.record import thread_key
from tests.anomalies.graphs import thread
from tests.anomalies.kill_worker import state_of, write_next, writes_of


def test_a_checkpoint_that_was_awaited_is_appended_at_the_first_try(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    class Counted(checkpoint_log._KnownIdError):
        def __init__(self) -> None:
            refused.append(1)

    with DeltaSaver.open(database_url) as saver:
        _, parent = write_next(saver, "first")
        monkeypatch.setattr(checkpoint_log, "_KnownIdError", Counted)
        for forgets in (True, False):
            ahead: Any = thread("first")
            ahead["configurable"]["checkpoint_id"] = f"1ef{int(forgets)}"
            saver.put_writes(ahead, writes_of(2), "task")
            if forgets:  # as another process would, which has not seen the writes come
                saver._log._ahead.clear()
            checkpoint: Any = {
                "v": 4,
                "id": f"1ef{int(forgets)}",
                "ts": "2024-05-06T07:08:09.000000+00:00",
                "channel_values": state_of(2),
                "channel_versions": {"messages": 2, "step": 2},
                "versions_seen": {},
                "updated_channels": [],
            }
            saver.put(parent, checkpoint, {"source": "loop", "step": 2, "parents": {}}, {})
            assert len(refused) == 1  # only the one who did not know
            found = saver.get_tuple(ahead)
            assert found is not None
            assert found.checkpoint["channel_values"] == state_of(2)
            assert [(c, v) for _, c, v in found.pending_writes or []] == writes_of(2)
        assert saver.verify("first").ok


def test_writes_let_a_checkpoint_that_is_on_its_way_go_first(database_url: str) -> None:
    with DeltaSaver.open(database_url) as saver:
        saver._log._order.at_most_s = 30.0
        write_next(saver, "first")
        ahead: Any = thread("first")
        ahead["configurable"]["checkpoint_id"] = "1ef5"
        late = threading.Thread(target=saver.put_writes, args=(ahead, writes_of(2), "task"))
        with saver._log._order.checkpoint(thread_key("first", ""), "1ef5"):
            late.start()
            late.join(timeout=0.1)
            assert late.is_alive(), "it did not wait"
            assert saver.stats("first").checkpoints == 1
        late.join(timeout=20)
        assert not late.is_alive()


def test_writes_that_no_checkpoint_follows_do_not_wait_for_one(database_url: str) -> None:
    with DeltaSaver.open(database_url) as saver:
        saver._log._order.at_most_s, saver._log._order.grace_s = 30.0, 0.0
        write_next(saver, "first")
        alone: Any = thread("first")
        alone["configurable"]["checkpoint_id"] = "1ef6"
        saver.put_writes(alone, writes_of(2), "task")  # a wait would be one of 30 s
        elsewhere: Any = thread("second")
        elsewhere["configurable"]["checkpoint_id"] = "1ef7"
        with saver._log._order.checkpoint(thread_key("first", ""), "1ef8"):
            saver.put_writes(elsewhere, writes_of(2), "task")
        assert saver.verify("first").ok


def test_writes_on_an_older_checkpoint_do_not_make_the_next_put_look_again(tmp_path: Path) -> None:
    """In async mode they come late all the time. What does change the head is looked at."""
    asked: list[str] = []
    with DeltaSaver.open(f"sqlite:///{tmp_path / 'kit.db'}") as saver:
        _, older = write_next(saver, "first")
        write_next(saver, "first")
        with saver._log.database.write() as tx:
            tx.driver.set_trace_callback(lambda sql: asked.append(" ".join(sql.split())))
        write_next(saver, "first")  # it looks: the transaction above was not the saver's
        asked.clear()
        saver.put_writes(older, writes_of(7), "late task")
        write_next(saver, "first")
        assert [sql for sql in asked if sql.startswith("INSERT INTO checkpoints")]
        assert [sql for sql in asked if "FROM checkpoint_heads" in sql] == []

        ahead: Any = thread("first")
        ahead["configurable"]["checkpoint_id"] = "1ef9"
        saver.put_writes(ahead, writes_of(8), "early task")  # a record that awaits its checkpoint
        asked.clear()
        write_next(saver, "first")
        assert [sql for sql in asked if "FROM checkpoint_heads" in sql]
        assert saver.verify("first").ok
        found = saver.get_tuple(older)
        assert found is not None
        assert ("late task", *writes_of(7)[0]) in (found.pending_writes or [])


def test_writes_that_were_remembered_and_not_stored_are_found_out(database_url: str) -> None:
    """What is kept in memory of a commit that failed. Another write stands in its place, and a
    count cannot tell the two."""
    ghost, real = "ghost" * 20, "other" * 20
    with DeltaSaver.open(database_url) as saver, DeltaSaver.open(database_url) as other:
        _, config = write_next(saver, "first")
        key = thread_key("first", "")
        tip = saver._log._tips[key]
        blob = saver._log.codec.encode("messages", [ghost])
        saver._log._remember_writes(key, tip.sequence, 0, blob, b"1" * 32, (None, None))
        tip.left = None
        at: Any = config
        other.put_writes(at, [("messages", [real])], "task")
        checkpoint: Any = {
            "v": 4,
            "id": "1ef9",
            "ts": "2024-05-06T07:08:09.000000+00:00",
            "channel_values": {"messages": [*state_of(1)["messages"], ghost, real], "step": 2},
            "channel_versions": {"messages": 2, "step": 2},
            "versions_seen": {},
            "updated_channels": [],
        }
        new = saver.put(at, checkpoint, {"source": "loop", "step": 2, "parents": {}}, {})
        for reader in (saver, other):
            found = reader.get_tuple(new)
            assert found is not None
            assert found.checkpoint["channel_values"] == checkpoint["channel_values"]
            assert reader.verify("first").ok
