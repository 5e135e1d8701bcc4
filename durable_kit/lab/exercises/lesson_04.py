"""Exercises of lesson 04: where a naive agent pays twice, what a look-up may say, and when it lies.

The build exercise is the one that goes wrong most often in practice: a look-up that takes "I could
not ask" for "it is not there".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durable_kit.effects.outcomes import Absent, CannotTell, Found
from durable_kit.lab.effect_trials import AMBIGUOUS, POINTS
from durable_kit.lab.exercises import Exercise
from durable_kit.lab.provider_client import NoEffect, OutcomeUnknown, Reply

KEY = "charge:order-1001"
MOVES = ("A sends", "A dies", "B asks", "B sends", "provider acts")
"""What can happen around a request that takes its time. B sends only if it was told "not there"."""


def _check_points(answer: Any) -> str | None:
    """At which points of death does a naive agent charge twice?"""
    if not isinstance(answer, set | frozenset | list | tuple) or not set(answer) <= set(POINTS):
        return f"give a set of names among {', '.join(POINTS)}."
    for point in POINTS:
        if point in answer and point not in AMBIGUOUS:
            why = "the charge is in its own table" if point == POINTS[-1] else "nothing was sent"
            return f"a kill at {point} leaves one charge: {why} by then."
        if point in AMBIGUOUS and point not in answer:
            return f"{point} is missing: the request is out, and our table does not say so."
    return None


class _Client:
    """What a learner's look-up is given: a client that can be asked for a key."""

    def __init__(self, answer: Callable[[], list[Reply]]) -> None:
        self._answer = answer
        self.asked: list[str | None] = []

    def find(self, *, key: str | None = None, order_id: str | None = None) -> list[Reply]:
        self.asked.append(key)
        return self._answer()


def _raises(error: Exception) -> Callable[[], list[Reply]]:
    def answer() -> list[Reply]:
        raise error

    return answer


def _check_lookup(answer: Any) -> str | None:
    """A function (client, key) that answers Found, Absent or CannotTell."""
    if not callable(answer):
        return f"{answer!r} is not a function of (client, key)."
    body = {"id": "charge-1", "amount_cents": 4999}
    done, pending = (Reply("charge-1", s, False, {**body, "state": s}) for s in ("done", "pending"))
    cases: list[tuple[str, Callable[[], list[Reply]], type]] = [
        ("the provider has it, done", lambda: [done], Found),
        ("the provider knows of nothing", list, Absent),
        ("the provider did not answer", _raises(OutcomeUnknown("no answer")), CannotTell),
        ("the provider was not reached", _raises(NoEffect("not reached")), CannotTell),
        ("the provider has it, pending", lambda: [pending], CannotTell),
    ]
    for what, reply, right in cases:
        client = _Client(reply)
        found = answer(client, KEY)
        if client.asked != [KEY]:
            return f"it asked for {client.asked}, not once for {KEY!r}."
        if not isinstance(found, right):
            return f"where {what}, it said {found!r}; that is {right.__name__}."
        if isinstance(found, Found) and found.response != done.body:
            return f"the response it found is {found.response!r}; the receipt needs {done.body!r}."
    return None


def _check_schedule(answer: Any) -> str | None:
    """An order of moves after which a customer is charged twice, although B asked first."""
    if not isinstance(answer, list | tuple) or not set(answer) <= set(MOVES):
        return f"use a list made of {', '.join(repr(move) for move in MOVES)}."
    if len(set(answer)) != len(answer):
        return "each move happens at most once."
    charges = 0
    under_way = told_absent = False
    for place, move in enumerate(answer):
        if move == "A sends":
            under_way = True
        elif move == "A dies":
            if not under_way:
                return "A died before it had sent anything; then there is nothing in doubt."
        elif move == "provider acts":
            if not under_way:
                return "the provider acted, but no request was under way."
            charges += 1
        elif "A dies" not in answer[:place]:
            return f"{move!r}: B comes only after A has died."
        elif move == "B asks":
            told_absent = charges == 0
        elif not told_absent:
            return "B sends only if it has asked and was told that nothing is there."
        else:
            charges += 1
    return None if charges == 2 else f"after this there is {charges} charge; two were asked for."


def _lookup_that_takes_silence_for_absence(client: Any, key: str) -> Any:
    try:
        found = client.find(key=key)
    except Exception:
        return Absent()
    return Found(found[0].body) if found else Absent()


EXERCISES = (
    Exercise(
        "04.warm-up",
        "A naive agent charges twice after a death between its request and its own note.",
        _check_points,
        (
            "For each point: what would the resumed agent find in its own table?",
            "It charges again where the request was out and the note was not written.",
            "gateway.after_intent: not sent yet, so once. provider.after_send: sent, not noted.",
        ),
        {"provider.after_effect", "gateway.after_reply", "gateway.before_receipt"},
    ),
    Exercise(
        "04.build",
        "A look-up says Found only for what is done, Absent only for what the provider denies, "
        "and CannotTell for everything else.",
        _check_lookup,
        (
            "What does your function say when the network is down?",
            "An error of the look-up, and a request that is pending, prove nothing.",
            (
                "try: found = client.find(key=key); except ProviderError as error: return "
                "CannotTell(str(error)). Then: nothing → Absent(), found[0].done → Found(…body)."
            ),
        ),
        _lookup_that_takes_silence_for_absence,
    ),
    Exercise(
        "04.adversarial",
        "“Not there” is not “will never be there”: a request may still be on its way.",
        _check_schedule,
        (
            "When is B's answer right, and later wrong?",
            "The provider must act after B has asked.",
            'Begin with ["A sends", "A dies", "B asks"]: B is told "not there". Who moves next?',
        ),
        ["A sends", "A dies", "provider acts", "B asks", "B sends"],
    ),
)
