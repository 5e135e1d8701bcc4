"""The one-minute crash: kill a worker that has just charged a card, then let another go on.

    worker 1   prepare ─ ✓ checkpoint ─ charge ─ the bank notes 49.99 ─ ✗ killed
    database   prepared: yes      next: charge                      (nothing says "charged")
    worker 2                                                  resumes ─ charge ─ notify ─ finished
    bank       ……………………………………………………… 49.99 ………………………………………… 49.99

Nothing here is simulated: two operating-system processes, a SQLite file, a ledger file, and a
kill that the exit status confirms. The result is not a bug of the checkpointer. The state came
back exactly as it was stored; the effect lies outside the state, and resuming goes back to a
super-step's beginning, not to a line.

`run_crash` returns a frozen `CrashStory`; `timeline` and `summary` of it are for figures and
tables. If the kill did not happen, it raises instead of telling a story.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from durable_kit.crash.child import ChildFailed, Death
from durable_kit.crash.experiment import AtPoint, Attempt, Experiment, Stored
from durable_kit.crash.trial import Bench
from durable_kit.lab.workloads import (
    AFTER_CHARGE,
    BANK_KNOWS,
    BANK_NOTED,
    CHARGED_BEFORE,
    LEDGER,
    Ledger,
    OrderWorker,
)

ORDER = {"order_id": "order-1001", "amount_cents": 4999}
STEPS = 3  # how often `on_progress` is told that something was done
BEGINS, RESUMES, KILLED, FINISHED = "begins", "resumes", "killed", "finished"
LANES = ("worker 1", "worker 2", "database", "bank")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened `t_s` seconds after the run began, in one of `LANES`."""

    t_s: float
    lane: str
    what: str


class EventLog:
    """Who did what, and when: seconds since the log was made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.events: list[Event] = []

    def note(self, lane: str, what: str) -> None:
        self.events.append(Event(time.perf_counter() - self._began, lane, what))

    def agent_says(self, what: str) -> None:
        """What an order agent in this process tells: the bank's answers go into the bank's lane."""
        bank = {BANK_NOTED: "charge noted", BANK_KNOWS: "asked: noted already"}
        self.note("bank" if what in bank else "agent", bank.get(what, what))

    def table(self) -> pd.DataFrame:
        """The events as columns t_s, lane, event: what `plots.timeline` takes."""
        return _table(self.events)


@dataclass(frozen=True, slots=True)
class CrashStory:
    """One crash from beginning to end. `ledger` is what the bank has noted, oldest first."""

    death: Death
    after_kill: Stored
    ledger_after_kill: tuple[dict[str, Any], ...]
    resumed: Death
    after_resume: Stored
    ledger: tuple[dict[str, Any], ...]
    events: tuple[Event, ...]
    resume_ms: float

    @property
    def charges(self) -> int:
        return len(self.ledger)

    def summary(self) -> pd.DataFrame:
        """Before and after the resume, side by side."""
        rows = [
            ("how the worker ended", self.death.how, self.resumed.how),
            (
                "state: charged",
                *(_said(s, "charged") for s in (self.after_kill, self.after_resume)),
            ),
            (
                "state: notified",
                *(_said(s, "notified") for s in (self.after_kill, self.after_resume)),
            ),
            (
                "next task",
                *(", ".join(s.tasks) or "none" for s in (self.after_kill, self.after_resume)),
            ),
            ("charges in the bank's ledger", len(self.ledger_after_kill), len(self.ledger)),
        ]
        columns = ["", "after the kill", "after the resume"]
        return pd.DataFrame(rows, columns=columns).set_index("")

    def timeline(self) -> pd.DataFrame:
        """The events with their times in seconds, for a table or `plots.timeline`."""
        return _table(self.events)


def run_crash(
    *,
    careful: bool = False,
    folder: Path | None = None,
    on_progress: Callable[[int, str], None] = lambda done, what: None,
    cancelled: threading.Event | None = None,
    timeout_s: float = 60.0,
) -> CrashStory:
    """Start a worker, kill it between the charge and the checkpoint, resume in a second worker.

    `careful` workers ask the bank before they charge. `folder` keeps the database and the ledger
    (default: a temporary one that is removed).
    `on_progress(done, what_comes)` is called `STEPS` times. Raises `ChildFailed` when the crash
    did not happen as told, or when `cancelled` was set; no process is left in any case.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="kit-crash-") as temporary:
            return run_crash(
                careful=careful,
                folder=Path(temporary),
                on_progress=on_progress,
                cancelled=cancelled,
                timeout_s=timeout_s,
            )
    if any(folder.iterdir()):
        raise ValueError(f"{folder} holds a run already. Give an empty folder.")
    bank = Ledger(folder / LEDGER)
    experiment = Experiment(graph=OrderWorker(folder, careful), input=ORDER, durability="sync")
    bench = Bench(experiment, folder, deadline_s=timeout_s, cancelled=cancelled)
    on_progress(0, "worker 1 runs, until it has charged")
    first = bench.run(AtPoint(AFTER_CHARGE))
    if not first.death.killed:
        raise ChildFailed(f"the crash did not happen: worker 1 {first.death.how}")
    ledger_after_kill = tuple(bank.entries())
    on_progress(1, "killed; worker 2 resumes")
    second = bench.run(None)
    if second.left is None or second.error is not None:
        raise ChildFailed(f"the resume failed: worker 2 {second.death.how}. {second.error}")
    on_progress(2, "asking the bank")
    ledger = tuple(bank.entries())
    on_progress(STEPS, "done")
    return CrashStory(
        death=first.death,
        after_kill=second.found,
        ledger_after_kill=ledger_after_kill,
        resumed=second.death,
        after_resume=second.left,
        ledger=ledger,
        events=tuple(_events(first, second)),
        resume_ms=((second.returned_s or second.ended_s) - second.began_s) * 1000,
    )


def _events(first: Attempt, second: Attempt) -> list[Event]:
    """What the two processes left behind them, in order of time: node runs, points, ends."""
    told: list[tuple[float, str, str]] = [
        (first.began_s, LANES[0], BEGINS),
        (first.ended_s, LANES[0], KILLED),
        (second.began_s, "database", f"next: {', '.join(second.found.tasks) or 'none'}"),
        (second.began_s, LANES[1], RESUMES),
        (second.returned_s or second.ended_s, LANES[1], FINISHED),
    ]
    if second.left is not None:
        said = f"next: {', '.join(second.left.tasks) or 'none'}"
        told.append((second.ended_s, "database", said))
    charges = 0
    for lane, attempt in zip(LANES, (first, second), strict=False):
        told += [(run.began_s, lane, run.node) for run in attempt.runs]
        for point, at_s in attempt.points:
            if point == AFTER_CHARGE:
                charges += 1
                told.append((at_s, "bank", f"charge no. {charges} noted"))
            elif point == CHARGED_BEFORE:
                told.append((at_s, "bank", "asked: noted already"))
    start_s = first.began_s  # before that a process was started, which takes the machine its time
    return [Event(at_s - start_s, lane, what) for at_s, lane, what in sorted(told)]


def crash_trial(charge: str) -> dict[str, Any]:
    """One crash as a trial for `measure.run_trials`: `charge` is "naive" or "careful".

    `resume_ms` is the time from the second worker's `invoke` to its end.
    """
    story = run_crash(careful=charge == "careful")
    return {
        "charges_count": story.charges,
        "killed_count": int(story.death.killed),
        "resume_ms": story.resume_ms,
    }


def _table(events: Sequence[Event]) -> pd.DataFrame:
    rows = [(round(event.t_s, 3), event.lane, event.what) for event in events]
    return pd.DataFrame(rows, columns=["t_s", "lane", "event"])


def _said(stored: Stored, field: str) -> str:
    return "yes" if stored.values.get(field) else "no"
