"""A worker that is killed: it writes without end, and says what was acknowledged.

Every state is a function of its number, so that whoever reads the database knows what must stand
in it. A line of the file `acknowledged` is written and fsynced *after* the call returned:

    put(step 8) ── committed ── returns ── "put thread 8 …" ── fsync ── put_writes(…) ── …
                              ✗ killed here: the database is one step ahead of the file
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TextIO

from langgraph.checkpoint.base.id import uuid6

from durable_kit.delta_saver import DeltaSaver
from durable_kit.storage.snapshot_policy import EveryN

from .graphs import thread

THREADS = ("first", "second")
KEPT = 5  # checkpoints that survive each prune


def state_of(step: int) -> dict[str, Any]:
    """A window of messages: it grows at its end and is cut at its front."""
    first = max(0, step - 40)
    return {
        "messages": [f"message {number} " + "words " * 20 for number in range(first, step)],
        "step": step,
    }


def writes_of(step: int) -> list[tuple[str, Any]]:
    """What the tasks of a step wrote."""
    return [("messages", [f"answer {step}"]), ("step", step)]


def write_next(saver: DeltaSaver, thread_id: str) -> tuple[int, dict[str, Any]]:
    """One more step at the end of the thread; its number and its config."""
    newest = saver.get_tuple(thread(thread_id))
    step = 1 if newest is None else newest.checkpoint["channel_values"]["step"] + 1
    versions: dict[str, Any] = {"messages": step, "step": step}
    checkpoint: Any = {
        "v": 4,
        "id": str(uuid6(clock_seq=step)),
        "ts": "2024-05-06T07:08:09.000000+00:00",
        "channel_values": state_of(step),
        "channel_versions": versions,
        "versions_seen": {"node": {"step": step - 1}},
        "updated_channels": ["messages", "step"],
    }
    at: Any = thread(thread_id) if newest is None else newest.config
    about: Any = {"source": "loop", "step": step, "parents": {}}
    return step, saver.put(at, checkpoint, about, versions)  # type: ignore[return-value]


def work_until_killed(url: str, acknowledged: str) -> None:
    with DeltaSaver.open(url, policy=EveryN(16)) as saver, Path(acknowledged).open("a") as book:
        while True:
            for thread_id in THREADS:
                step, config = write_next(saver, thread_id)
                acknowledge(book, "put", thread_id, step, config)
                saver.put_writes(config, writes_of(step), "task", "path")  # type: ignore[arg-type]
                acknowledge(book, "writes", thread_id, step, config)
                if step % 7 == 0:
                    saver.compact(thread_id)
                if step % 11 == 0:
                    saver.prune([thread_id], keep_last=KEPT)


def acknowledge(book: TextIO, what: str, thread_id: str, step: int, config: dict[str, Any]) -> None:
    checkpoint_id = config["configurable"]["checkpoint_id"]
    book.write(f"{what} {thread_id} {step} {checkpoint_id}\n")
    book.flush()
    os.fsync(book.fileno())
