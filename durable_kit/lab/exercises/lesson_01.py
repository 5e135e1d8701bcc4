"""Exercises of lesson 01: the four kinds, what is in doubt, and what a log cannot tell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from durable_kit.event_log import (
    Event,
    Fact,
    NodeStarted,
    RunFailed,
    RunStarted,
    StatePatched,
    ToolFailed,
    ToolRequested,
    ToolSucceeded,
)
from durable_kit.lab.exercises import Exercise
from durable_kit.lab.four_kinds import KINDS

_KIND_OF = {
    "A": ("snapshot", "it says how things stand as a whole, and outlives the process"),
    "B": ("effect", "it is in somebody else's house; no rollback of ours reaches it"),
    "C": ("state", "it is a value in memory and ends with the process"),
    "D": ("event", "it says that one thing has happened"),
    "E": ("effect", "whoever has read it has read it"),
    "F": ("event", "it is one fact, in the past tense, although it lies beside the checkpoints"),
}

STEPS = ("note asked", "send", "note answered", "crash")
"""What a careful agent does, in this order, and how it can end."""


def _check_kinds(answer: Any) -> str | None:
    """A dict from the letters A to F to the four kinds."""
    if not isinstance(answer, dict) or set(answer) != set(_KIND_OF):
        return f"give a dict with the letters {', '.join(_KIND_OF)}."
    for letter, (kind, why) in _KIND_OF.items():
        if answer[letter] not in KINDS:
            return f"{letter}: {answer[letter]!r} is none of {', '.join(KINDS)}."
        if answer[letter] != kind:
            return f"{letter} is no {answer[letter]}: {why}."
    return None


def _logs() -> list[tuple[str, list[Fact], set[str]]]:
    """(what happened, the facts, the ids in doubt)"""

    def asked(request_id: str) -> Fact:
        return ToolRequested(request_id, "email", {})

    begun: list[Fact] = [RunStarted("t", {}), NodeStarted("mail")]
    return [
        ("nothing was asked for", begun, set()),
        ("mail:1 was asked for", [*begun, asked("mail:1")], {"mail:1"}),
        ("mail:1 was answered", [*begun, asked("mail:1"), ToolSucceeded("mail:1", "ok")], set()),
        ("mail:1 surely failed", [*begun, asked("mail:1"), ToolFailed("mail:1", "no")], set()),
        (
            "mail:2 was answered, mail:1 was not",
            [*begun, asked("mail:1"), asked("mail:2"), ToolSucceeded("mail:2", None)],
            {"mail:1"},
        ),
        (
            "mail:1 surely failed and was asked for again",
            [asked("mail:1"), ToolFailed("mail:1", "no"), NodeStarted("mail"), asked("mail:1")],
            {"mail:1"},
        ),
        (
            "the run failed while mail:1 was asked for",
            [*begun, asked("mail:1"), StatePatched({"mailed": True}), RunFailed("killed")],
            {"mail:1"},
        ),
    ]


def _check_in_doubt(answer: Any) -> str | None:
    """A function from events to the set of request ids that nobody knows the outcome of."""
    if not callable(answer):
        return f"{answer!r} is not a function of a list of events."
    for what, facts, in_doubt in _logs():
        events = [Event(version, fact, 0) for version, fact in enumerate(facts, start=1)]
        found = answer(events)
        if not isinstance(found, Iterable) or isinstance(found, str):
            return f"where {what}, it gave {found!r}; give a set of request ids."
        if set(found) != in_doubt:
            return f"where {what}, it gave {set(found) or 'nothing'}, not {in_doubt or 'nothing'}."
    return None


def _check_two_worlds(answer: Any) -> str | None:
    """Two runs of a careful agent with the same log and different worlds."""
    if not isinstance(answer, list | tuple) or len(answer) != 2:
        return "give two runs, as a list of two lists."
    for run in answer:
        if not isinstance(run, list | tuple) or not set(run) <= set(STEPS):
            return f"a run is a list made of {', '.join(repr(step) for step in STEPS)}."
        done = [step for step in run if step != "crash"]
        if list(run[: len(done)]) != done or done != list(STEPS[: len(done)]):
            return f"{list(run)} is no run of this agent: it notes, sends, notes; a crash ends it."
    first, second = (set(run) - {"crash"} for run in answer)
    if first - {"send"} != second - {"send"}:
        return "the two logs differ, so whoever reads them can tell the runs apart."
    if ("send" in first) == ("send" in second):
        return "the world is the same after both: in both it was sent, or in both it was not."
    return None


EXERCISES = (
    Exercise(
        "01.warm-up",
        "State ends with its process; a snapshot is a whole; an event is one fact; an effect is "
        "in the world.",
        _check_kinds,
        (
            "For each letter: which machine would have to burn down for it to be gone?",
            "What is in our database is a snapshot or an event. A whole, or one fact?",
            "D, a row 'payment asked for at 10:02', is one fact: an event. So what is F?",
        ),
        {**{letter: kind for letter, (kind, _) in _KIND_OF.items()}, "F": "snapshot"},
    ),
    Exercise(
        "01.build",
        "In doubt is each request that was asked for and has no answer since.",
        _check_in_doubt,
        (
            "Read the facts from the first to the last, with a set in your hand.",
            "ToolRequested puts its request_id in; ToolSucceeded and ToolFailed take theirs out.",
            (
                "asked(1), asked(2), succeeded(2): the set is {1}, {1, 2}, {1}. Use "
                "isinstance(event.fact, ToolRequested), and discard for taking out."
            ),
        ),
        lambda events: {e.fact.request_id for e in events if isinstance(e.fact, ToolRequested)},
    ),
    Exercise(
        "01.adversarial",
        "One log, two worlds: no reader of the log can tell which.",
        _check_two_worlds,
        (
            "Stop the agent at two places between which it writes nothing.",
            "Only 'send' may make the difference, and both runs must have noted the same.",
            'One of them is ["note asked", "crash"]. Where can the other one have died?',
        ),
        [["note asked", "crash"], ["note asked", "send", "note answered"]],
    ),
)
