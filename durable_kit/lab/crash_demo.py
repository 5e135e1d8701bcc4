"""The one-minute crash: kill a worker that has just charged a card, then let another go on.

    worker 1   prepare ─ ✓ checkpoint ─ charge ─ the bank notes 49.99 ─ ✗ killed
    database   prepared: yes      next: charge                      (nothing says "charged")
    worker 2   stands by ……………………………………………………………………… resumes ─ charge ─ notify ─ finished
    bank       ……………………………………………………… 49.99 …………………………………………… 49.99

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

from durable_kit.crash.child import Child, ChildFailed, Death
from durable_kit.crash_point import ANNOUNCEMENT
from durable_kit.delta_saver import DeltaSaver
from durable_kit.lab.crash_worker import DATABASE, FINISHED, LEDGER, STANDS_BY, THREAD
from durable_kit.lab.workloads import (
    AFTER_CHARGE,
    BANK_KNOWS,
    BANK_NOTED,
    Ledger,
    order_graph,
    sqlite_url,
)

WORKER = "durable_kit.lab.crash_worker"
STEPS = 5  # how often `on_progress` is told that something was done
RESUMES = "resumes"
LANES = ("worker 1", "worker 2", "database", "bank")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at `t_s` seconds after the start, in one of `LANES`."""

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
class Stored:
    """What the database says of the run: the state, and the tasks that are to run next."""

    values: dict[str, Any]
    next: tuple[str, ...]
    checkpoints: int


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
                *(", ".join(s.next) or "none" for s in (self.after_kill, self.after_resume)),
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
    on_progress: Callable[[int, str], None] | None = None,
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
    return _Run(folder, careful, on_progress, cancelled, timeout_s).story()


class _Run:
    def __init__(
        self,
        folder: Path,
        careful: bool,
        on_progress: Callable[[int, str], None] | None,
        cancelled: threading.Event | None,
        timeout_s: float,
    ) -> None:
        self._folder = folder
        self._options = ["--careful"] if careful else []
        self._on_progress = on_progress or (lambda done, what: None)
        self._cancelled = cancelled
        self._timeout_s = timeout_s
        self._bank = Ledger(folder / LEDGER)
        self._log = EventLog()
        if (folder / DATABASE).exists() or self._bank.entries():
            raise ValueError(f"{folder} holds a run already. Give an empty folder.")

    def story(self) -> CrashStory:
        self._on_progress(0, "two workers start")
        with (
            self._start("start", "worker 1", crash_at=AFTER_CHARGE) as first,
            self._start("resume", "worker 2", crash_at=None) as second,
        ):
            self._until(first, ANNOUNCEMENT + AFTER_CHARGE, "worker 1")
            self._on_progress(1, "the card is charged, now the kill")
            death = first.kill()
            self._log.note("worker 1", "killed")
            if not death.killed:
                raise ChildFailed(f"the crash did not happen: worker 1 {death.how}")
            self._on_progress(2, "looking at what was stored")
            after_kill, ledger_after_kill = self._stored(), tuple(self._bank.entries())
            self._log.note("database", f"next: {', '.join(after_kill.next) or 'none'}")
            self._until(second, STANDS_BY, "worker 2")
            self._on_progress(3, "worker 2 resumes")
            self._log.note("worker 2", RESUMES)
            second.go()
            self._until(second, FINISHED, "worker 2")
            resumed = second.wait(timeout_s=self._timeout_s)
        if resumed.exit_code != 0:
            raise ChildFailed(f"the resume failed: worker 2 {resumed.how}")
        self._on_progress(4, "asking the bank")
        after_resume, ledger = self._stored(), tuple(self._bank.entries())
        self._log.note("database", f"next: {', '.join(after_resume.next) or 'none'}")
        self._on_progress(STEPS, "done")
        return CrashStory(
            death,
            after_kill,
            ledger_after_kill,
            resumed,
            after_resume,
            ledger,
            tuple(self._log.events),
        )

    def _start(self, what: str, worker: str, *, crash_at: str | None) -> Child:
        child = Child.start(
            WORKER,
            [what, str(self._folder), "--worker", worker, *self._options],
            crash_at=crash_at,
            deadline_s=self._timeout_s,
        )
        self._log.note(worker, f"process {child.pid} starts")
        return child

    def _until(self, child: Child, beginning: str, worker: str) -> None:
        def note(line: str) -> None:
            if line.startswith(f"{worker}: "):
                said = line.removeprefix(f"{worker}: ")
                if said == BANK_NOTED:
                    self._log.note("bank", f"charge no. {len(self._bank.entries())} noted")
                elif said == BANK_KNOWS:
                    self._log.note("bank", "asked: noted already")
                else:
                    self._log.note(worker, said)
            elif line in (FINISHED, STANDS_BY):
                self._log.note(worker, line)

        child.until(beginning, timeout_s=self._timeout_s, on_line=note, cancelled=self._cancelled)

    def _stored(self) -> Stored:
        """Open the database as any other process would, and ask LangGraph."""
        with DeltaSaver.open(sqlite_url(self._folder / DATABASE)) as saver:
            snapshot = order_graph(saver, self._bank).get_state(THREAD)
            checkpoints = saver.stats(THREAD["configurable"]["thread_id"]).checkpoints
        return Stored(dict(snapshot.values), tuple(t.name for t in snapshot.tasks), checkpoints)


def crash_trial(charge: str) -> dict[str, Any]:
    """One crash as a trial for `measure.run_trials`: `charge` is "naive" or "careful".

    `resume_ms` is the time from telling the second worker to go to its "finished".
    """
    story = run_crash(careful=charge == "careful")
    at_s = {event.what: event.t_s for event in story.events if event.lane == "worker 2"}
    return {
        "charges_count": story.charges,
        "killed_count": int(story.death.killed),
        "resume_ms": (at_s[FINISHED] - at_s[RESUMES]) * 1000,
    }


def _table(events: Sequence[Event]) -> pd.DataFrame:
    rows = [(round(event.t_s, 3), event.lane, event.what) for event in events]
    return pd.DataFrame(rows, columns=["t_s", "lane", "event"])


def _said(stored: Stored, field: str) -> str:
    return "yes" if stored.values.get(field) else "no"
