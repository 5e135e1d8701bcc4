"""The contract of a checkpoint saver: what a graph may rely on, as functions to be run.

LangGraph ships a conformance suite. It is worth passing and cannot be relied on: a saver that
drops `task_path` passes it, and rebuilds parallel writes in another order; so does one that keeps
the pending writes of a deleted thread, and one that loses every value above 64 KB. This contract
asks for the behaviour that a resumed run depends on, and `test_planted_faults.py` proves that it
notices those faults.

A clause is a function of one argument, `make_saver`, which returns a saver to work with. Clauses
use thread ids of their own, so one store may serve them all. They are kept by subject:

    clauses_writes         pending writes: order, first success, special rows, early arrival
    clauses_values         value and type at every step, whatever was edited
    clauses_state          address, parent, metadata, namespaces, newest, no aliasing
    clauses_listing        filters, limit, before, against InMemorySaver
    clauses_retention      delete, copy, prune: gone or unchanged, bad limits refused
    clauses_delta_history  what LangGraph's DeltaChannel replays, also after retention

`ThroughAsync` shows the same saver through its async methods, so that the contract covers both.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from . import (
    clauses_delta_history,
    clauses_listing,
    clauses_retention,
    clauses_state,
    clauses_values,
    clauses_writes,
)
from .builders import MakeSaver

Clause = Callable[[MakeSaver], None]

CONTRACT: list[Clause] = [
    *clauses_writes.CLAUSES,
    *clauses_values.CLAUSES,
    *clauses_state.CLAUSES,
    *clauses_listing.CLAUSES,
    *clauses_retention.CLAUSES,
    *clauses_delta_history.CLAUSES,
]
EXACT_ONLY: list[Clause] = list(clauses_values.EXACT_ONLY)
"""Clauses that a saver may give up for speed, if it says so."""
OWN_CODEC_ONLY: list[Clause] = list(clauses_values.OWN_CODEC_ONLY)
"""Clauses that no saver can keep on top of LangGraph's JsonPlusSerializer."""


def broken_clauses(
    make_saver: MakeSaver, clauses: Sequence[Clause] = tuple(CONTRACT)
) -> dict[str, str]:
    """Run the clauses and return the names of those that fail, each with its complaint."""
    broken = {}
    for clause in clauses:
        try:
            within(60.0, lambda clause=clause: clause(make_saver))
        except Exception as error:
            broken[clause.__name__] = f"{type(error).__name__}: {error}"[:500]
    return broken


def within(limit_s: float, call: Callable[[], None]) -> None:
    """Run `call`; a deadlock becomes a TimeoutError here, where the test suite would hang."""
    outcome: list[BaseException | None] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            outcome.append(error)
        else:
            outcome.append(None)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(limit_s)
    if not outcome:
        raise TimeoutError(f"no answer within {limit_s:.0f} s: a deadlock, or far too slow")
    if outcome[0] is not None:
        raise outcome[0]


class ThroughAsync(BaseCheckpointSaver[Any]):
    """A saver's async methods behind the sync names; every call has an event loop of its own."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        super().__init__(serde=saver.serde)
        self.saver = saver

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        return _now(self.saver.aput(config, checkpoint, metadata, new_versions))

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        _now(self.saver.aput_writes(config, writes, task_id, task_path))

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        return _now(self.saver.aget_tuple(config))

    def list(self, config: Any, **arguments: Any) -> Iterator[CheckpointTuple]:
        async def collect() -> list[CheckpointTuple]:
            return [row async for row in self.saver.alist(config, **arguments)]

        return iter(_now(collect()))

    def delete_thread(self, thread_id: str) -> None:
        _now(self.saver.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        _now(self.saver.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        _now(self.saver.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], **arguments: Any) -> None:
        _now(self.saver.aprune(thread_ids, **arguments))

    def get_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> Any:
        return _now(self.saver.aget_delta_channel_history(config=config, channels=channels))

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.saver.get_next_version(current, channel)


def _now(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)
