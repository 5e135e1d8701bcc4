"""One run of the order agent, killed and resumed, told so that it can be drawn.

A trial knows everything about a crash, and nobody can read it: node runs of two processes,
checkpoints with their times, what the database said between them, and what the provider's book
says, which has a clock of its own. This file puts all of it on one axis:

    process 1   prepare ■  stock ■        charge ▨ ✗ killed       ■ stored  ▨ lost, or in flight
                           discount ■     book: 45.00
    process 2                             charge ▧ notify ■       ▧ ran again
                                          book: 45.00 once more

Choose a durability, a place to die and the time of a step; `tell` makes a real run with real
processes and a real provider, and returns a frozen `RunStory`.

The times are those of one run on this machine. What is stored when a kill comes does not depend on
them in `sync` and `exit`, and does in `async`: that is what `async` means.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from durable_kit.clock import SystemClock
from durable_kit.crash.experiment import AtPoint, Attempt, Experiment
from durable_kit.crash.trial import Bench, Trial
from durable_kit.crash.witness import NodeRun
from durable_kit.lab.order_agent import AFTER_CHARGE, AFTER_EMAIL, OrderAgent, order
from durable_kit.lab.provider import Provider
from durable_kit.lab.provider_book import Entry
from durable_kit.lab.scripted_model import ScriptedModel

ORDER_ID = "order-1001"
STEPS = 4  # how often `on_progress` is told that something was done

POINTS = {
    "one branch stored, the other at work": "saver.put_writes.after#3",
    "both branches done, their checkpoint not committed": "saver.put.before_commit#4",
    "charge begins": "node.charge.enter",
    "the money is taken, the node not over": AFTER_CHARGE,
    "charge done, its checkpoint not committed": "saver.put.before_commit#5",
    "the e-mail is sent, the node not over": AFTER_EMAIL,
    "all done, the last checkpoint not committed": "saver.put.before_commit#6",
    "nowhere: no crash": "",
}
"""What a person reads -> the crash point. LangGraph's first writes and its first two checkpoints
are about the input; so the third writes are those of the quick branch, and the fourth checkpoint
that of both. A step's last writes and its checkpoint are stored by two OS threads: which of them is
there when the checkpoint is about to be committed, is different from run to run."""

STORED, LOST, IN_FLIGHT, AGAIN, FIRST = (
    "stored",
    "done, not stored",
    "in flight",
    "ran again",
    "ran for the first time",
)
Key = Literal["none", "order", "fresh"]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run, and where it shall die: `point` is one of `POINTS`."""

    durability: Literal["sync", "async", "exit"] = "sync"
    point: str = "the money is taken, the node not over"
    step_ms: float = 20.0
    key: Key = "none"


@dataclass(frozen=True, slots=True)
class Bar:
    """One node run. Times count from when its process began to run the graph."""

    process: int
    node: str
    step: int
    began_ms: float
    ended_ms: float
    fate: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that became durable: `what` is "writes", "checkpoint", "charge" or "email"."""

    process: int
    at_ms: float
    what: str


@dataclass(frozen=True, slots=True)
class RunStory:
    """One run from beginning to end. `next` and `tasks` are what the database said after the kill.

    `crashed` is False where the point was never reached, or none was chosen; then there was one
    process. `ends_ms`: when each process ended. `book`: what the provider has done for the order.
    """

    request: RunRequest
    crashed: bool
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    ends_ms: tuple[float, ...]
    stored_step: int | None
    next: tuple[str, ...]
    tasks: tuple[str, ...]
    executed_steps: int
    lost_steps: int
    repeated: tuple[str, ...]
    book: tuple[Entry, ...]

    @property
    def charges(self) -> int:
        return sum(entry.kind == "charge" for entry in self.book)

    def sentence(self) -> str:
        """How it went, in words."""
        if not self.crashed:
            why = "" if not POINTS[self.request.point] else "that place was never reached: "
            return f"No crash: {why}one process ran the agent to its end."
        again = ", ".join(self.repeated) or "nothing"
        said = f"The database said next: {self.next!r}, tasks: {self.tasks!r}."
        if self.stored_step is None:
            said = "The database knew nothing of the run."
        return (
            f"Nodes had worked in {_counted(self.executed_steps, 'super-step')} before the kill; "
            f"in {self.lost_steps} of them nothing was stored. {said} The second process ran "
            f"{again} again. The book has "
            f"{_counted(self.charges, 'charge')} and "
            f"{_counted(len(self.book) - self.charges, 'e-mail')}."
        )

    def runs_table(self) -> pd.DataFrame:
        """One row a node run."""
        columns = ["process", "node", "step", "began_ms", "ended_ms", "fate"]
        return pd.DataFrame(
            [[getattr(bar, c) for c in columns] for bar in self.bars], columns=columns
        )

    def book_table(self) -> pd.DataFrame:
        """The provider's book: one row an effect in the world."""
        rows = [
            (
                e.no,
                e.kind,
                "–" if e.amount_cents is None else f"{e.amount_cents / 100:.2f}",
                e.key or "–",
            )
            for e in self.book
        ]
        return pd.DataFrame(rows, columns=["no", "effect", "amount", "key"])


def tell(
    request: RunRequest,
    *,
    on_progress: Callable[[int, str], None] = lambda done, what: None,
    cancelled: threading.Event | None = None,
) -> RunStory:
    """Run the order agent, kill it as asked, resume it, and ask the provider's book.

    Raises `ChildFailed` if a process does something else, or `cancelled` is set; none is left.
    """
    on_progress(0, "the provider starts")
    with (
        Provider.start() as provider,
        tempfile.TemporaryDirectory(prefix="kit-run-", ignore_cleanup_errors=True) as folder,
    ):
        agent = OrderAgent(
            provider.url, key=request.key, model=ScriptedModel(step_ms=request.step_ms)
        )
        experiment = Experiment(
            graph=agent, input=order(ORDER_ID), durability=request.durability, fsync=False
        )
        bench = Bench(experiment, Path(folder), cancelled=cancelled)
        point = POINTS[request.point]
        on_progress(1, "a process runs the agent")
        first = bench.run(AtPoint(*_parsed(point)) if point else None)
        if first.death.killed:
            on_progress(2, "killed; another process resumes")
            bench.run(None)
        on_progress(3, "asking the provider's book")
        book = tuple(provider.entries(ORDER_ID))
        on_progress(STEPS, "done")
        return story_of(request, bench.trial(), book)


def story_of(request: RunRequest, trial: Trial, book: tuple[Entry, ...]) -> RunStory:
    """What a trial and a book say, on one axis for each process."""
    stored, attempts = trial.after_kill, trial.attempts
    crashed = attempts[0].death.killed
    again = set(trial.repeated_runs)
    bars: list[Bar] = []
    marks: list[Mark] = []
    for number, attempt in enumerate(attempts, start=1):
        for run in attempt.runs:
            if number == 1:
                kept = not crashed or _kept(run, stored.step, stored.waiting_task_ids)
                fate = IN_FLIGHT if run.ended_s is None else STORED if kept else LOST
            else:
                fate = AGAIN if run in again else FIRST
            ended_s = attempt.ended_s if run.ended_s is None else run.ended_s
            began_ms, ended_ms = _ms(attempt, run.began_s), _ms(attempt, ended_s)
            bars.append(Bar(number, run.node, run.step, began_ms, ended_ms, fate))
        for name, at_s in attempt.points:
            what = {"saver.put.after": "checkpoint", "saver.put_writes.after": "writes"}.get(name)
            if what is not None:
                marks.append(Mark(number, _ms(attempt, at_s), what))
    marks += _effects(attempts, book)
    return RunStory(
        request=request,
        crashed=crashed,
        bars=tuple(bars),
        marks=tuple(marks),
        ends_ms=tuple(_ms(a, a.returned_s or a.ended_s) for a in attempts),
        stored_step=stored.step,
        next=stored.next,
        tasks=stored.tasks,
        executed_steps=trial.executed_steps,
        lost_steps=trial.lost_steps if crashed else 0,
        repeated=tuple(run.node for run in trial.repeated_runs),
        book=book,
    )


def _effects(attempts: tuple[Attempt, ...], book: tuple[Entry, ...]) -> list[Mark]:
    """The book's entries on the axis of the process in whose time they fall.

    The provider notes the time of day, the processes a counter: both are read here once, and the
    difference carries one over to the other.
    """
    day_s = SystemClock().now_us() / 1e6 - time.perf_counter()
    marks = []
    for entry in book:
        at_s = entry.at_us / 1e6 - day_s
        number = max(1, sum(a.began_s <= at_s for a in attempts))
        marks.append(Mark(number, max(0.0, _ms(attempts[number - 1], at_s)), entry.kind))
    return marks


def _kept(run: NodeRun, step: int | None, waiting: frozenset[str]) -> bool:
    """Whether a resume will not execute this run again."""
    return step is not None and (run.step <= step or run.task_id in waiting)


def _ms(attempt: Attempt, at_s: float) -> float:
    return (at_s - attempt.began_s) * 1000


def _parsed(point: str) -> tuple[str, int]:
    name, _, number = point.partition("#")
    return name, int(number or 1)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
