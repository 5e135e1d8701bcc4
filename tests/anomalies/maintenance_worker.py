"""A worker that is killed in the middle of maintenance.

It writes, compacts, prunes, deletes runs, copies threads, damages a thread and recovers it, round
after round, and notes what was acknowledged in a file that it fsyncs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base.id import uuid6

from durable_kit import Database, DeltaSaver, EveryN

from .graphs import thread
from .stories import small_packs

KEPT = 6  # checkpoints that survive each prune
RUN = 3  # steps of a run


def state_of(step: int) -> dict[str, Any]:
    first = max(0, step - 12)
    return {
        "messages": [f"message {n}, long enough to lie at an address" for n in range(first, step)],
        "facts": {f"key {n % 5}": f"set in step {n} " * 3 for n in range(first, step)},
        "step": step,
    }


def write_next(saver: DeltaSaver, thread_id: str, **about: Any) -> int:
    """One more step at the end of a thread, with its pending writes; its number."""
    newest = saver.get_tuple(thread(thread_id))
    step = 1 if newest is None else newest.checkpoint["channel_values"]["step"] + 1
    checkpoint: Any = {
        "v": 4,
        "id": str(uuid6(clock_seq=step % 1000)),
        "ts": "2024-05-06T07:08:09+00:00",
        "channel_values": state_of(step),
        "channel_versions": {"step": step},
        "versions_seen": {},
        "updated_channels": None,
    }
    at: Any = thread(thread_id) if newest is None else newest.config
    about = {"source": "loop", "step": step, "parents": {}, **about}
    stored = saver.put(at, checkpoint, about, {"step": step})  # type: ignore[arg-type]
    saver.put_writes(stored, [("step", step)], "task", "path")
    return step


def work(url: str, acknowledged: Path, seed: int) -> None:
    """Round after round, until killed."""
    with Database.open(url) as database, small_packs(), acknowledged.open("a") as book:
        saver = DeltaSaver(database, policy=EveryN(5))

        def acknowledge(thread_id: str, step: int) -> None:
            book.write(f"{thread_id} {step}\n")
            book.flush()
            os.fsync(book.fileno())

        turn = seed
        while True:
            turn += 1
            for thread_id in ("main", "victim"):
                acknowledge(thread_id, write_next(saver, thread_id))
            step = write_next(saver, "runs", run_id=f"run {_next(saver, 'runs') // RUN}")
            acknowledge("runs", step)
            saver.compact("main")
            saver.copy_thread("main", f"copy {turn}")
            saver.prune(["main", "victim"], keep_last=KEPT)
            if step % RUN == 0:
                saver.delete_for_runs([f"run {step // RUN - 3}"])
            with database.write() as tx:
                tx.execute(
                    "UPDATE checkpoints SET created_at_us = 1 "
                    "WHERE sequence = (SELECT latest_sequence FROM checkpoint_heads "
                    "WHERE thread_id = 'victim') AND thread_key = (SELECT thread_key "
                    "FROM checkpoint_heads WHERE thread_id = 'victim')"
                )
            saver.recover("victim")
            for name, _ in list(saver.threads()):
                if name.startswith("copy") and name != f"copy {turn}":
                    saver.delete_thread(name)


def _next(saver: DeltaSaver, thread_id: str) -> int:
    newest = saver.get_tuple(thread(thread_id))
    return 1 if newest is None else int(newest.checkpoint["channel_values"]["step"]) + 1
