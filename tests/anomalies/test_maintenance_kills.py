"""Killed in the middle of compact, prune, delete, copy or recover: all of it, or nothing.

Maintenance rewrites records that are fine. Forty kills at moments that nobody chose must find
every thread either as it was or as it was to become, and every state that is still told right.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from pathlib import Path

from durable_kit import DeltaSaver
from tests.anomalies.children import context
from tests.anomalies.graphs import thread
from tests.anomalies.maintenance_worker import KEPT, state_of, work

KILLED = 1 if sys.platform == "win32" else -signal.SIGKILL


def test_forty_kills_in_the_middle_of_maintenance_lose_and_mix_nothing(
    database_url: str, tmp_path: Path
) -> None:
    kills = 30 if database_url.startswith("sqlite") else 12
    book = tmp_path / "acknowledged"
    book.touch()
    moments = random.Random(kills)
    seen: dict[str, int] = {}
    for kill in range(kills):
        before = book.stat().st_size
        worker = context.Process(target=work, args=(database_url, book, 1000 * kill))
        worker.start()
        give_up = time.monotonic() + 30
        while book.stat().st_size == before and worker.is_alive():
            assert time.monotonic() < give_up, "no work is done"
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.15))
        worker.kill()
        worker.join()
        assert worker.exitcode == KILLED, "the worker died by itself"
        check(database_url, book.read_text(), seen, about=f"kill {kill + 1}")
    assert len(book.read_text().splitlines()) > 2 * kills, "the workers hardly did anything"


def check(url: str, acknowledged: str, seen: dict[str, int], *, about: str) -> None:
    """Hold the database against what was acknowledged, and what was there after the last kill."""
    last: dict[str, int] = {}
    told: set[tuple[str, int]] = set()
    for line in acknowledged.splitlines():
        thread_id, step = line.split()
        last[thread_id] = int(step)
        told.add((thread_id, int(step)))
    with DeltaSaver.open(url) as saver:
        for thread_id in sorted({name for name, _ in saver.threads()}):
            if thread_id == "victim":  # it may have been damaged, and not yet recovered
                saver.recover(thread_id)
            found = saver.verify(thread_id)
            assert found.ok, f"{about}: {thread_id}: {found.problems}"
            rows = list(saver.list(thread(thread_id)))
            steps = [row.checkpoint["channel_values"]["step"] for row in rows]
            assert steps == sorted(steps, reverse=True), f"{about}: {thread_id}: {steps}"
            for row, step in zip(rows, steps, strict=True):
                assert row.checkpoint["channel_values"] == state_of(step), f"{about}: {thread_id}"
                written = [value for _, _, value in row.pending_writes or []]
                # A step that was killed between its put and its write has none.
                whole = thread_id in ("main", "runs") and (thread_id, step) in told
                assert written == [step] or (written == [] and not whole), f"{about}: {step}"
            if thread_id in ("main", "runs"):
                known = max(last.get(thread_id, 0), seen.get(thread_id, 0))
                assert steps[0] in (known, known + 1), f"{about}: {known} was known, {steps}"
                seen[thread_id] = steps[0]
            if thread_id == "main":
                assert steps == list(range(steps[0], steps[0] - len(steps), -1)), about
                assert len(steps) >= min(KEPT, steps[0]), f"{about}: {steps}"
            if thread_id == "runs":
                # Whole runs are gone, or none of a run.
                assert len(steps) == len(set(steps)), about
                kept = [run for run in {step // 3 for step in steps} if run < steps[0] // 3]
                for run in kept:
                    expected = [step for step in range(3 * run, 3 * run + 3) if step]
                    assert [s for s in reversed(steps) if s // 3 == run] == expected, about
            if thread_id.startswith("copy"):
                assert steps == list(range(steps[0], steps[0] - len(steps), -1)), about
