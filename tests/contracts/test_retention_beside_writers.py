"""Prune, compact and copy while the thread goes on: neither side fails, and nothing is lost.

Retention reads how many writes a checkpoint has and then reads the writes. A run that stores one
more in between must be waited for or not seen; it must not look like damage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from .builders import Line

if TYPE_CHECKING:
    from durable_kit.delta_saver import DeltaSaver

STEPS = 40


def prune(saver: DeltaSaver, thread_id: str, turn: int) -> None:
    saver.prune([thread_id], strategy="keep_latest", keep_last=3)


def compact(saver: DeltaSaver, thread_id: str, turn: int) -> None:
    saver.compact(thread_id)


def copy(saver: DeltaSaver, thread_id: str, turn: int) -> None:
    saver.copy_thread(thread_id, f"copy {turn}")
    assert saver.verify(f"copy {turn}").ok
    saver.delete_thread(f"copy {turn}")


def verify(saver: DeltaSaver, thread_id: str, turn: int) -> None:
    assert saver.verify(thread_id).ok


def read(saver: DeltaSaver, thread_id: str, turn: int) -> None:
    rows = list(saver.list({"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}))
    newest = saver.get_tuple(rows[0].config)
    assert newest is not None
    assert len(newest.checkpoint["channel_values"]["log"]) >= len(rows) - 1


@pytest.mark.parametrize("act", [prune, compact, copy, verify, read])
def test_a_thread_grows_while_somebody_else_works_on_it(
    database_url: str, act: Callable[[Any, str, int], None]
) -> None:
    from durable_kit.delta_saver import DeltaSaver

    errors: list[BaseException] = []
    with DeltaSaver.open(database_url) as writer, DeltaSaver.open(database_url) as other:
        line = Line(writer, "t")
        line.put({"log": []})

        def grow() -> None:
            try:
                for step in range(STEPS):
                    at = line.config(line.tip)
                    line.write(at, ("log", step), task="a", path="~a")
                    line.write(at, ("log", -step), task="b", path="~b")
                    line.put({"log": [*range(step + 1)]})
            except BaseException as error:
                errors.append(error)

        worker = threading.Thread(target=grow)
        worker.start()
        turn = 0
        try:
            while worker.is_alive() and not errors:
                act(other, "t", turn)
                turn += 1
        finally:
            worker.join()
        assert errors == []
        assert turn > 0
        rows = line.rows(limit=3)
        assert [len(row.checkpoint["channel_values"]["log"]) for row in rows] == [40, 39, 38]
        for row, step in zip(rows[1:], (39, 38), strict=True):
            assert row.pending_writes == [("a", "log", step), ("b", "log", -step)]
        assert other.verify("t").ok
