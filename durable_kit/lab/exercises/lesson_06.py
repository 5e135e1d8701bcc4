"""Exercises of lesson 06: silent changes, a step that keeps cents, and a careless drain."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from durable_kit.lab.exercises import Exercise
from durable_kit.versions.migration import Migrations, Step, Stored, Written

PRICES = ("0.29", "1.15", "4.35", "19.99", "49.90", "1234567.89", "0.00")
ACTS = ("count", "an old worker begins a thread", "stop the old workers", "delete path 1")


def _check_silent(answer: Any) -> str | None:
    """The set of letters of those changes that go wrong without any error."""
    try:
        letters = {str(letter).strip().upper() for letter in answer}
    except TypeError:
        return f"{answer!r} is not a set of letters."
    wrong = letters - set("ABCD")
    if wrong:
        return f"{', '.join(sorted(wrong))} is none of the letters A to D."
    if "B" in letters:
        return "B raises a KeyError at the first read: that is loud."
    if "D" in letters:
        return "D changes nothing that a stored thread stands on."
    missing = {"A", "C"} - letters
    if missing:
        return f"{' and '.join(sorted(missing))} went wrong above, and no error was raised."
    return None


def _stored(price: str) -> Stored:
    checkpoint = {
        "v": 4,
        "id": "1f0c0de0-0000-6000-8000-000000000001",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {"amount": price, "order_id": "order-1", "branch:to:charge": None},
        "channel_versions": {"__start__": 2, "order_id": 2, "amount": 3, "branch:to:charge": 3},
        "versions_seen": {"quote": {"branch:to:quote": 2}},
        "updated_channels": ["amount"],
    }
    write = Written("00000000-0000-0000-0000-000000000000", "amount", price, 1)
    return Stored("thread 'order-1'", checkpoint, 1, "", "", 1, [write])


def _check_step(answer: Any) -> str | None:
    """A Step to version 2: `amount`, euros as text, becomes `amount_cents`, a whole number."""
    if not isinstance(answer, Step):
        return f"{type(answer).__name__} is not a Step."
    migrations = Migrations(answer)
    for price in PRICES:
        expected = int(Decimal(price) * 100)
        seen = migrations.upcast(_stored(price))
        values = seen.checkpoint["channel_values"]
        found = values.get("amount_cents")
        if "amount" in values:
            return "the old field is still in the state."
        if found != expected or type(found) is not int:
            return f"{price} euros became {found!r} cents; {expected} were expected."
        if values.get("order_id") != "order-1":
            return "another field was lost."
        [write] = seen.writes
        if (write.channel, write.value) != ("amount_cents", expected):
            return f"a pending write of {price} became {write.value!r} to {write.channel!r}."
        if migrations.upcast(seen) != seen:
            return "migrating twice is not the same as migrating once."
    return None


def _check_drain(answer: Any) -> str | None:
    """The shortest order of acts in which the count says "may go" and a thread is stranded."""
    if not isinstance(answer, Sequence) or isinstance(answer, str):
        return "give a list of acts, in order."
    unknown = [act for act in answer if act not in ACTS]
    if unknown:
        return f"{unknown[0]!r} is none of {', '.join(ACTS)}."
    threads, old_workers, may_go, stranded = 0, True, False, 0
    for act in answer:
        if act == "count":
            may_go = threads == 0
        elif act == "stop the old workers":
            old_workers = False
        elif act == "delete path 1":
            if not may_go:
                return "the last count did not say that the path may go; then it was not deleted."
            stranded = threads
        elif old_workers:
            threads += 1
        else:
            return "an old worker begins a thread after the old workers were stopped."
    if not stranded:
        return "no thread was stranded: nothing waited in path 1 when it was deleted."
    if len(answer) > 3:
        return f"that works in {len(answer)} acts; three are enough."
    return None


EXERCISES = (
    Exercise(
        "06.warm-up",
        "A change is silent when a thread ends, or goes on, in a wrong way and nothing raises.",
        _check_silent,
        (
            "Which of the trials above had an error, and which only had wrong numbers?",
            "A resume that finds nothing to do returns like one that has finished.",
            "New rules without a router: eight threads ended, all of them charged too much.",
        ),
        {"B", "C"},
    ),
    Exercise(
        "06.build",
        "The step gives every stored amount, in the state and in pending writes, exactly in cents.",
        _check_step,
        (
            "rename says where the value goes, convert what becomes of it.",
            "convert is looked up by the new name, and gets the old value.",
            "float('0.29') * 100 is 28.999999999999996. Decimal('0.29') * 100 is 29.00.",
        ),
        Step(
            to=2,
            says="in cents",
            rename={"amount": "amount_cents"},
            convert={"amount_cents": lambda euros: int(float(euros) * 100)},
        ),
    ),
    Exercise(
        "06.adversarial",
        "A count is true at the moment of the count.",
        _check_drain,
        (
            "What may happen between looking and acting?",
            "Whoever can still begin threads of version 1 makes the count wrong.",
            "Two acts are in every answer: count first, delete path 1 last. One fits in between.",
        ),
        ["count", "stop the old workers", "delete path 1"],
    ),
)
