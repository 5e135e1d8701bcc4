"""What waits beside a checkpoint, and what a person makes of it: the experiments of lesson 02.

A super-step is a barrier. Its tasks run side by side; each one's result is stored as it arrives, as
*pending writes* of the checkpoint before; and only when all are there is the next checkpoint made
from them.

    checkpoint 1 ──┬── stock      done ── pending writes     stored
                   └── discount   ✗ killed
    resume         ├── stock      its writes are there       does not run
                   └── discount                              runs again
    checkpoint 2 ──┴── …

Two things follow that surprise people. The *node* is the unit of what is repeated: a call that is
done inside a node which is not, is made again (`measure_node_size`). And a task whose result waits
is not in `get_state().next` any more: the run is unfinished, and `next` is empty
(`kill_before_the_checkpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from durable_kit.crash.child import ChildFailed
from durable_kit.crash.experiment import AtPoint, Durability, Experiment, Kill
from durable_kit.crash.trial import Bench, Trial, run_trials
from durable_kit.delta_saver import DeltaSaver
from durable_kit.lab.chunked_agent import CALL_DONE, ChunkedAgent
from durable_kit.lab.order_agent import OrderAgent, order
from durable_kit.lab.workloads import sqlite_url

CHARGE_WAITS = AtPoint("saver.put.before", 5, then_ms=100)
"""In the order agent: the charge is made and its writes are stored; the checkpoint that takes them
up is about to be. 100 ms, since `DeltaSaver` commits both together if they come together."""


def measure_node_size(
    *,
    calls: int,
    calls_per_node: Sequence[int],
    call_ms: float,
    repeats: int,
    on_progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Kill an agent after each of its calls, for every node size; and let each run undisturbed.

    One row a trial: calls_per_node, killed_after_call (0: not killed), repeated_calls_count, and
    run_ms of those that were not killed. `repeats` is for the undisturbed ones; a kill after a
    given call repeats the same calls every time. Raises `ChildFailed` if a kill did not happen.
    """
    plans: list[tuple[Experiment, tuple[Kill, ...]]] = []
    for size in calls_per_node:
        experiment = Experiment(
            graph=ChunkedAgent(calls, size, call_ms),
            input={"answers": []},
            durability="sync",
            fsync=False,
        )
        plans += [(experiment, (AtPoint(CALL_DONE, k),)) for k in range(1, calls + 1)]
        plans += [(experiment, ())] * repeats
    rows = [_node_size_row(trial, calls) for trial in run_trials(plans, on_progress=on_progress)]
    return pd.DataFrame(rows)


def _node_size_row(trial: Trial, calls: int) -> dict[str, Any]:
    if not trial.crashed:
        raise ChildFailed(trial.story)
    made = sum(name == CALL_DONE for a in trial.attempts for name, _ in a.points)
    first = trial.attempts[0]
    agent: Any = trial.experiment.graph
    kill = first.kill
    return {
        "calls_per_node": agent.calls_per_node,
        "killed_after_call": kill.occurrence if isinstance(kill, AtPoint) else 0,
        "repeated_calls_count": made - calls,
        "run_ms": (first.returned_s - first.began_s) * 1000 if first.returned_s else None,
    }


# -- the trap ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KilledRun:
    """A killed run as it lies in its database. `next` and `tasks` are what `get_state` says."""

    url: str
    config: dict[str, Any]
    next: tuple[str, ...]
    tasks: tuple[str, ...]

    @property
    def looks_finished(self) -> bool:
        """`next` is empty, and the run is not over."""
        return bool(self.tasks) and not self.next


def kill_before_the_checkpoint(
    agent: OrderAgent, order_id: str, *, durability: Durability, folder: Path
) -> KilledRun:
    """Kill an order agent before the checkpoint that notes its charge, and look at what is left.

    `folder` keeps its database. LangGraph stores a task's writes and the next checkpoint in two OS
    threads, and the writes first. With "async" the next node may have run as well by then.
    """
    here = folder / order_id
    here.mkdir()
    thread = {"configurable": {"thread_id": order_id}}
    experiment = Experiment(
        graph=agent, input=order(order_id), durability=durability, config=thread, fsync=False
    )
    bench = Bench(experiment, here)
    if not bench.run(CHARGE_WAITS).death.killed:
        raise ChildFailed(bench.trial().story)
    url = sqlite_url(here / "agent.db")
    with DeltaSaver.open(url) as saver:
        state = agent(saver).get_state(thread)
    return KilledRun(url, thread, tuple(state.next), tuple(task.name for task in state.tasks))
