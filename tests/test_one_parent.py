"""What a log keeps in memory of a checkpoint, where several OS threads build on it at once."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from durable_kit.serde_codec import ChannelCodec, default_codec
from durable_kit.storage.checkpoint_log import CheckpointLog
from durable_kit.storage.database import Database
from durable_kit.storage.image import _Buffer
from durable_kit.storage.snapshot_policy import EveryN
from durable_kit.storage.tip import Tip
from durable_kit.storage.writes_log import Write

CODEC = ChannelCodec(default_codec())
FIRST = ["a" * 50, "b" * 50]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CheckpointLog]:
    with Database.open(f"sqlite:///{tmp_path / 'kit.db'}") as database:
        log = CheckpointLog(database, CODEC, policy=EveryN(1000))
        append(log, "1", None, FIRST[:1])
        append(log, "2", "1", FIRST)
        yield log


def append(log: CheckpointLog, name: str, parent: str | None, messages: list[str]) -> None:
    log.append(
        thread_id="t",
        namespace="",
        checkpoint_id=name,
        parent_id=parent,
        state={":messages": messages},
        metadata={},
    )


def append_writes(log: CheckpointLog, on: str, task: str, message: str) -> None:
    log.append_writes(
        thread_id="t",
        namespace="",
        checkpoint_id=on,
        task_id=task,
        task_path="",
        writes=[Write(0, ":messages", [message])],
    )


def messages(log: CheckpointLog, name: str) -> Any:
    entry = log.read("t", "", name)
    assert entry is not None
    return entry.state(CODEC.decode)[":messages"]


def test_two_checkpoints_that_grow_from_one_parent_at_once_do_not_mix(
    log: CheckpointLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = threading.Barrier(2)
    grow, keep = _Buffer.grow, log._keep
    kept: dict[str, Tip] = {}

    def meet() -> None:
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.5)

    def growing(buffer: _Buffer, new: bytes) -> None:
        meet()
        grow(buffer, new)
        meet()

    def keeping(key: int, tip: Tip | None) -> None:
        assert tip is not None
        kept[tip.checkpoint_id] = tip
        keep(key, tip)

    monkeypatch.setattr(_Buffer, "grow", growing)
    monkeypatch.setattr(log, "_keep", keeping)
    states = {name: [*FIRST, name * 50] for name in "xy"}
    threads = [threading.Thread(target=append, args=(log, n, "2", states[n])) for n in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, state in states.items():
        assert messages(log, name) == state
        assert kept[name].image[":messages"].encoded() == CODEC.encode(":messages", state)


def test_writes_whose_commit_failed_are_not_where_a_later_checkpoint_looks_for_its_bytes(
    log: CheckpointLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A and B ran in one super-step, and the disk was full for A's writes alone."""
    a, b = "A" * 60, "B" * 60
    group: Any = log.database._group_commit

    def full(group_: Any) -> None:
        group.drop_writer()
        group._close(group_, sqlite3.OperationalError("database or disk is full"))

    def others_first(key: int) -> None:  # before A's OS thread comes to it
        monkeypatch.undo()
        append_writes(log, "2", "task b", b)
        append(log, "3", "2", [*FIRST, a, b])
        log.forget(key)

    monkeypatch.setattr(group, "_commit", full)
    monkeypatch.setattr(log, "forget", others_first)
    with pytest.raises(Exception, match="full"):
        append_writes(log, "2", "task a", a)
    assert messages(log, "3") == [*FIRST, a, b]
