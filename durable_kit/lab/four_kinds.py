"""State, snapshot, event, effect: what is left of each after a kill, and what a resume makes of it.

    t ─────▶       1 state   2 snapshot   3 event    4 effect   5 state   6 event     7 snapshot
                   address   prepared     asked      e-mail     reply     answered    mailed
    ✗ after 4:     gone      there        there      there      –         –           –
    resume         from 2, so `mail` runs again; the fold of the events says the same state

`run_mail` runs the mail agent (`mail_agent.py`) in a process of its own, kills that at a named
point, looks at the three kinds that can be looked at, and lets another process resume. The provider
is a third process with a book of its own. Nothing is simulated, and if the kill did not happen it
raises. `sort_moments` is for the widget: it knows where each of the seven moments belongs.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd

from durable_kit.crash.child import ChildFailed, Death
from durable_kit.crash.experiment import AtPoint, Attempt, Experiment, Kill
from durable_kit.crash.trial import Bench
from durable_kit.event_log import Event, RunState, fold
from durable_kit.lab.mail_agent import (
    ANSWERED,
    ASKED,
    KNOWN,
    MAILED,
    PREPARED,
    SENT,
    THREAD,
    MailAgent,
    facts,
    order,
)
from durable_kit.lab.provider import Provider
from durable_kit.lab.provider_book import Entry
from durable_kit.lab.workloads import sqlite_url
from durable_kit.storage.database import Database

Kind = Literal["state", "snapshot", "event", "effect"]
KINDS: tuple[Kind, ...] = ("state", "snapshot", "event", "effect")
WHERE = {
    "state": "in the memory of a process",
    "snapshot": "in the agent's database, a whole state",
    "event": "in the agent's database, a fact",
    "effect": "in the provider's book",
}


class Moment(NamedTuple):
    """Something that came to be at a crash point, and of which kind it is."""

    point: str
    kind: Kind
    what: str


MOMENTS = (
    Moment(KNOWN, "state", "to = ada@example.org"),
    Moment(PREPARED, "snapshot", "prepared, next: mail"),
    Moment(ASKED, "event", "e-mail asked for"),
    Moment(SENT, "effect", "e-mail no. 1"),
    Moment(SENT, "state", "reply = email-1"),
    Moment(ANSWERED, "event", "e-mail answered"),
    Moment(MAILED, "snapshot", "mailed, next: finish"),
)
"""What a run leaves, in the order in which it comes to be."""


@dataclass(frozen=True, slots=True)
class Left:
    """What is there when no process of ours runs. (State is not: it ended with its process.)"""

    snapshot: dict[str, Any]
    next: tuple[str, ...]
    events: tuple[Event, ...]
    emails: tuple[Entry, ...]

    @property
    def folded(self) -> RunState:
        """The state as the events tell it."""
        return fold(self.events)


@dataclass(frozen=True, slots=True)
class MailStory:
    """One kill and one resume. `moments` has the columns t_s, lane, event, for `plots.timeline`."""

    killed_at: str
    death: Death
    after_kill: Left
    after_resume: Left
    moments: pd.DataFrame

    @property
    def emails(self) -> int:
        return len(self.after_resume.emails)


def run_mail(*, asks: bool, kill_at: str, cancelled: threading.Event | None = None) -> MailStory:
    """Kill the mail agent at the crash point `kill_at`, resume it, and look after both.

    The provider is a new one. Raises `ChildFailed` if the kill did not happen.
    """
    with (
        tempfile.TemporaryDirectory(prefix="kit-mail-") as temporary,
        Provider.start(honours_keys=False) as provider,
    ):
        url = sqlite_url(Path(temporary) / "agent.db")
        bench = Bench(
            Experiment(
                graph=MailAgent(provider.url, asks),
                input=order(),
                durability="sync",
                url=url,
                config=THREAD,
            ),
            Path(temporary),
            cancelled=cancelled,
        )
        first = _run(bench, AtPoint(kill_at))
        if not first.death.killed:
            raise ChildFailed(f"the crash did not happen: process 1 {first.death.how}")
        emails, events = tuple(provider.emails()), _events(url)
        second = _run(bench, None)
        assert second.left is not None  # it was not killed
        return MailStory(
            killed_at=kill_at,
            death=first.death,
            after_kill=Left(second.found.values, second.found.tasks, events, emails),
            after_resume=Left(
                second.left.values, second.left.tasks, _events(url), tuple(provider.emails())
            ),
            moments=_moments(first, second),
        )


def mail_trial(killed_at: str, resume: str) -> dict[str, Any]:
    """One kill as a trial for `measure.run_trials`; `resume` is "sends again" or "asks first"."""
    story = run_mail(asks=resume == "asks first", kill_at=killed_at)
    return {
        "emails_count": story.emails,
        "in_doubt_count": len(story.after_kill.folded.asked),
        "same_state": story.after_kill.folded.values == story.after_kill.snapshot,
        "killed_count": int(story.death.killed),
    }


def facts_table(events: Sequence[Event]) -> pd.DataFrame:
    """One row a fact: its version, its kind, and what it says."""
    rows = [(event.version, type(event.fact).__name__, _fields(event.fact)) for event in events]
    return pd.DataFrame(rows, columns=["version", "fact", "it says"])


def left_table(left: Left) -> pd.DataFrame:
    """The four kinds side by side: where each lives, and what it says."""
    values = ", ".join(f"{name} = {value}" for name, value in left.snapshot.items()) or "nothing"
    said = {
        "state": "nothing: the process has ended",
        "snapshot": f"{values}; next: {', '.join(left.next) or 'none'}",
        "event": ", ".join(type(event.fact).__name__ for event in left.events) or "nothing",
        "effect": ", ".join(f"e-mail no. {entry.no}" for entry in left.emails) or "nothing",
    }
    rows = [(kind, WHERE[kind], said[kind]) for kind in KINDS]
    return pd.DataFrame(rows, columns=["kind", "where it lives", "what is left"])


# -- the widget's part ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sorted:
    """The learner's sorting, and what a kill after `alive` moments leaves.

    `places` has a kind for each moment, or "" where none was chosen. `emails` counts those of a run
    that is resumed by one who does not ask.
    """

    places: tuple[str, ...]
    alive: int

    @property
    def right(self) -> int:
        return sum(place == m.kind for place, m in zip(self.places, MOMENTS, strict=True))

    @property
    def left(self) -> tuple[Moment, ...]:
        """What a kill at this moment leaves: all that has come to be, without the state."""
        return tuple(m for m in MOMENTS[: self.alive] if m.kind != "state")

    @property
    def resumes_at(self) -> str:
        """The node that a resume begins with; "" if there is no checkpoint to resume from."""
        snapshots = [m for m in self.left if m.kind == "snapshot"]
        return snapshots[-1].what.partition("next: ")[2] if snapshots else ""

    @property
    def emails(self) -> int:
        sent = any(m.kind == "effect" for m in self.left)
        return 1 + int(sent and self.resumes_at != "finish")

    @property
    def in_doubt(self) -> bool:
        """Whether the events tell of a request without an answer."""
        events = [m.what for m in self.left if m.kind == "event"]
        return len(events) == 1


def sort_moments(places: Sequence[str], *, killed_after: int) -> Sorted:
    """Judge a sorting. `killed_after`: how many of the moments came before the kill."""
    if len(places) != len(MOMENTS) or not 0 <= killed_after <= len(MOMENTS):
        raise ValueError(f"{len(places)} places, killed after {killed_after} of {len(MOMENTS)}.")
    return Sorted(tuple(places), killed_after)


# -- helpers -------------------------------------------------------------------------------------


def _fields(fact: Any) -> str:
    return ", ".join(f"{f.name} = {getattr(fact, f.name)}" for f in fields(fact))


def _run(bench: Bench, kill: Kill | None) -> Attempt:
    attempt = bench.run(kill)
    if attempt.error:
        raise ChildFailed(attempt.error)
    return attempt


def _events(url: str) -> tuple[Event, ...]:
    with Database.open(url) as database:
        return tuple(facts(database))


def _moments(first: Attempt, second: Attempt) -> pd.DataFrame:
    rows: list[tuple[float, str, str]] = []
    emails = 0
    for attempt in (first, second):
        if attempt is second:
            rows.append((second.began_s, "state", "another process resumes"))
        found = [(at_s, m) for point, at_s in attempt.points for m in MOMENTS if m.point == point]
        for place, (at_s, moment) in enumerate(found):
            emails += moment.kind == "effect"
            what = moment.what
            if moment.point == SENT:
                what = what.replace("1", str(emails))
            elif attempt is second and place == 0 and moment.kind == "snapshot":
                what = f"read: {what}"  # it is not new; the resume begins with it
            rows.append((at_s, moment.kind, what))
        rows.append((attempt.ended_s, "state", "killed" if attempt.death.killed else "finished"))
    table = pd.DataFrame(rows, columns=["t_s", "lane", "event"])
    table["t_s"] -= first.began_s
    return table
