"""A process is killed, for real, at moments that nobody chose.

A worker puts, writes, compacts and prunes without end, and notes each acknowledged call in a file
of its own. It is killed, the database is held against the file, and the next worker goes on in
the same database. Whatever was acknowledged must be there; one call may be there that was not yet
acknowledged; nothing else.

This is process death. The page cache survives it, so it says nothing about power loss.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from durable_kit.delta_saver import DeltaSaver
from tests.anomalies.children import context
from tests.anomalies.graphs import thread
from tests.anomalies.kill_worker import (
    KEPT,
    THREADS,
    state_of,
    work_until_killed,
    write_next,
    writes_of,
)

KILLED = -(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)


def test_what_was_acknowledged_survives_every_kill(database_url: str, tmp_path: Path) -> None:
    kills = 15 if database_url.startswith("sqlite") else 6
    book = tmp_path / "acknowledged"
    book.touch()
    moments = random.Random(kills)
    reached: dict[str, int] = {}
    for kill in range(kills):
        kill_one(database_url, book, lines=moments.randint(1, 12), after_s=moments.uniform(0, 0.02))
        check(database_url, book.read_text(), about=f"kill {kill + 1}", reached=reached)
    steps = [int(line.split()[2]) for line in book.read_text().splitlines()]
    assert max(steps) > kills, "the workers hardly did anything"


def test_a_worker_that_acknowledges_before_it_commits_is_found_out(
    database_url: str, tmp_path: Path
) -> None:
    with DeltaSaver.open(database_url) as saver:
        for _ in range(3):
            step, config = write_next(saver, "first")
    last = f"put first {step} {config['configurable']['checkpoint_id']}\n"
    check(database_url, last, about="an honest worker")
    with pytest.raises(AssertionError, match="step 4 was acknowledged"):
        check(database_url, last + "put first 4 1ef00000\n", about="a hasty worker")
    with pytest.raises(AssertionError, match="writes of step 3 were acknowledged"):
        check(database_url, last + last.replace("put", "writes"), about="a hasty worker")
    with pytest.raises(AssertionError, match="more than one step was in flight"):
        check(database_url, last.replace("first 3", "first 1"), about="a forgetful worker")


def kill_one(url: str, book: Path, *, lines: int, after_s: float) -> None:
    """Start a worker, wait for so many lines of it, and kill it `after_s` later."""
    before = book.read_text().count("\n")
    worker = context.Process(target=work_until_killed, args=(url, str(book)), daemon=True)
    worker.start()
    try:
        give_up = time.monotonic() + 60
        while book.read_text().count("\n") < before + lines and worker.is_alive():
            assert time.monotonic() < give_up, "the worker does not start"
            time.sleep(0.005)
        time.sleep(after_s)
    finally:
        worker.kill()
        worker.join()
    assert worker.exitcode == KILLED
    worker.close()


def check(
    url: str, acknowledged: str, *, about: str, reached: dict[str, int] | None = None
) -> None:
    """Hold the database against the lines that the workers wrote.

    `reached`: the newest step of each thread at the last check. A worker killed before it could
    acknowledge leaves its step for the next one to build on, which may die as early.
    """
    reached = {} if reached is None else reached
    puts: dict[str, dict[int, str]] = {name: {} for name in THREADS}
    written: dict[str, int] = dict.fromkeys(THREADS, 0)
    for line in acknowledged.splitlines():
        what, thread_id, step, checkpoint_id = line.split()
        if what == "put":
            puts[thread_id][int(step)] = checkpoint_id
        else:
            written[thread_id] = int(step)
    with DeltaSaver.open(url) as saver:
        for thread_id in THREADS:
            if puts[thread_id]:
                before = reached.get(thread_id, 0)
                reached[thread_id] = check_thread(
                    saver, thread_id, puts[thread_id], written[thread_id], about, before
                )


def check_thread(
    saver: DeltaSaver, thread_id: str, puts: dict[int, str], written: int, about: str, before: int
) -> int:
    """Returns the newest step of the thread."""
    found = saver.verify(thread_id)
    assert found.ok, f"{about}: {found.problems}"
    rows = list(saver.list(thread(thread_id)))
    last = max(puts)
    newest = number(rows[0])
    assert newest >= last, f"{about}: step {last} was acknowledged, the newest is {newest}"
    # One more may be committed whose worker died before it could say so.
    known = max(last, before)
    assert newest <= known + 1, f"{about}: more than one step was in flight ({known} to {newest})"
    assert [number(row) for row in rows] == list(range(newest, newest - len(rows), -1)), about
    assert len(rows) >= min(KEPT, newest), f"{about}: {len(rows)} are left of {newest}"
    for row in rows:
        step = number(row)
        assert row.checkpoint["channel_values"] == state_of(step), f"{about}: step {step}"
        # A step that died between its commit and its line has an id that nobody knows.
        if step in puts:
            assert row.checkpoint["id"] == puts[step], f"{about}: step {step}"
        stored = [(channel, value) for _, channel, value in row.pending_writes or []]
        if step == written:
            assert stored, f"{about}: writes of step {step} were acknowledged"
        assert stored in ([], writes_of(step)), f"{about}: half of the writes of step {step}"
    return newest


def number(row: Any) -> int:
    step: int = row.checkpoint["channel_values"]["step"]
    return step
