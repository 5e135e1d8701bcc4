"""What LangGraph's durability modes lose when the process is killed, counted by a witness.

LangGraph stores checkpoints in one of three ways, and says which work may be lost in each:

    sync     the checkpoint of a step is stored before the next step begins
    async    it is stored in the background, while the next steps run
    exit     it is stored once, when the run ends

What may be lost is a sentence; how much is lost is a number, and it depends on how fast the steps
are. So a worker (`durability_worker.py`) is killed for real after a random number of steps, and the
database is asked how far the run had come. It cannot be asked how far it *should* have come: that
is what the witness is for, a file to which every executed step has added a line.

    worker     step 1 ─ step 2 ─ … ─ step 412 ─ ✗ killed
    witness    412 lines                            executed_steps
    database   97 messages                          recovered_steps
                                                    lost_steps = 315

A step counts as recovered when a resume would not execute it again: its message is in the state
that LangGraph reads back. What is recovered must be the beginning of what was executed, message
for message, and the exit status must say that the process was killed; otherwise the trial raises
and there is no number.

What is left out: power loss (the page cache survives a kill, and takes the last transactions with
it when the power goes), and the effects of the lost steps on the outside world. Those happened.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from durable_kit.crash.child import Child, ChildFailed
from durable_kit.delta_saver import DeltaSaver
from durable_kit.lab.durability_worker import (
    DATABASE,
    DURABILITIES,
    STANDS_BY,
    THREAD,
    WITNESS,
    Witness,
    message,
    talk_graph,
)
from durable_kit.lab.measure import Measured, run_trials
from durable_kit.lab.workloads import sqlite_url

WORKER = "durable_kit.lab.durability_worker"

KILL_BETWEEN: Mapping[float, tuple[int, int]] = {0: (100, 500), 20: (4, 20)}
"""step_ms -> the kill comes after so many steps: a fraction of a second of work for each."""

TIMEOUT_S = 60.0


def measure_durability(
    *,
    repeats: int,
    seed: int,
    durabilities: Sequence[str] = DURABILITIES,
    kill_between: Mapping[float, tuple[int, int]] = KILL_BETWEEN,
    cancelled: threading.Event | None = None,
    progress: bool = True,
) -> Measured:
    """Kill `repeats` workers for each durability and step time, in turns.

    The table has one row a kill: durability, step_ms, round, executed_steps, recovered_steps,
    lost_steps, ended. `seed` decides after how many steps each kill comes; how many more steps are
    executed until it arrives is the machine's affair. Raises `ChildFailed` if a kill did not happen
    as told; no process is left in any case.
    """
    rng = random.Random(seed)
    cases = [{"step_ms": ms, "durability": mode} for ms in kill_between for mode in durabilities]
    with closing(_workers(cases, repeats)) as workers:

        def trial(durability: str, step_ms: float) -> dict[str, Any]:
            return next(workers).killed(
                after_steps=rng.randint(*kill_between[step_ms]),
                # Somewhere in a step. A kill right after a line of the witness would always meet
                # the same window, and nothing else would be known.
                and_ms=rng.uniform(0, step_ms or 1),
            )

        return run_trials(
            trial,
            cases,
            repeats=repeats,
            label="killing workers",
            cancelled=cancelled,
            progress=progress,
        )


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker in a folder of its own; it imports, stands by, works, and is killed."""

    child: Child
    folder: Path

    @classmethod
    def start(cls, durability: str, step_ms: float, *, folder: Path) -> Worker:
        """Start one in the empty `folder`. The caller closes `child`."""
        arguments = [str(folder), "--durability", durability, "--step-ms", str(step_ms)]
        return cls(Child.start(WORKER, arguments, deadline_s=TIMEOUT_S), folder)

    def killed(self, *, after_steps: int, and_ms: float = 0) -> dict[str, Any]:
        """Let it go, kill it once it has executed `after_steps` steps, and count what is left.

        Raises `ChildFailed` if it ended by itself, or was too slow.
        """
        witness = Witness(self.folder / WITNESS)
        self.child.go()
        give_up_s = time.perf_counter() + TIMEOUT_S
        # The witness says when; the pause only keeps us from taking the worker's CPU.
        while witness.executed_steps() < after_steps and time.perf_counter() < give_up_s:
            time.sleep(0.001)
        time.sleep(and_ms / 1000)
        death = self.child.kill()
        executed = witness.executed_steps()
        if not death.killed or executed < after_steps:
            raise ChildFailed(
                f"the kill did not happen as told: after {executed} of {after_steps} steps the "
                f"worker {death.how}. Start it by hand to see its last words."
            )
        recovered = recovered_steps(self.folder)
        return {
            "executed_steps": executed,
            "recovered_steps": recovered,
            "lost_steps": executed - recovered,
            "ended": death.how,
        }


def recovered_steps(folder: Path) -> int:
    """Open the database as any other process would, and count the steps in the state.

    Raises `ChildFailed` if they are not the first steps that the witness saw, in order.
    """
    witness = Witness(folder / WITNESS)
    with DeltaSaver.open(sqlite_url(folder / DATABASE)) as saver:
        snapshot = talk_graph(saver, witness, step_ms=0).get_state(THREAD)
    messages: list[Any] = snapshot.values.get("messages", [])
    seen = [message(step) for step in witness.steps()]
    if messages != seen[: len(messages)]:
        raise ChildFailed(
            f"what came back is not what was executed: {len(messages)} messages, the last "
            f"{messages[-1]!r}, of {len(seen)} steps. This is damage, not loss."
        )
    return len(messages)


def _workers(cases: Sequence[Mapping[str, Any]], rounds: int) -> Generator[Worker]:
    """The workers in the order of `run_trials`. Those of one round are started together.

    They import for longer than they work. Done at once, that takes every core and less time; and
    it is over before the first of them may go, so that no import disturbs a measurement.
    """
    for _ in range(rounds):
        with ExitStack() as stack:
            workers = []
            for case in cases:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kit-durability-"))
                workers.append(Worker.start(**case, folder=Path(folder)))
                stack.enter_context(workers[-1].child)
            for worker in workers:
                worker.child.until(STANDS_BY, timeout_s=TIMEOUT_S)
            yield from workers
