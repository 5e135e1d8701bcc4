"""Exercises of lesson 00: an effect that is repeated, and the first two ways to live with that.

The build exercise asks for the oldest remedy, looking before acting. The adversarial one shows
what it is worth: between the look and the act there is room for somebody else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from durable_kit.lab.exercises import Exercise
from durable_kit.lab.workloads import Ledger


def _check_stored(answer: Any) -> str | None:
    """Which of four statements hold after the kill and before the resume?"""
    if not isinstance(answer, set | frozenset | list | tuple) or not set(answer) <= set("ABCD"):
        return f"{answer!r} is not a set of letters from A to D."
    chosen = set(answer)
    if "A" in chosen:
        return "A: the state cannot say charged; the checkpoint that would comes after the kill."
    if "C" in chosen:
        return "C: the ledger lies outside the agent's database; no transaction of that reaches it."
    if "B" not in chosen:
        return "B is missing: the bank had written its line before the process died."
    if "D" not in chosen:
        return "D is missing: the last checkpoint is the one before charge, so charge comes next."
    return None


def _check_safe_charge(answer: Any) -> str | None:
    """A function (ledger, order_id, amount_cents) that may be called again after a crash."""
    if not callable(answer):
        return f"{answer!r} is not a function of (ledger, order_id, amount_cents)."
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "bank.jsonl")
        answer(ledger, "order-1", 500)
        if _charges(ledger, "order-1") != 1:
            return f"the first call for order-1 left {_charges(ledger, 'order-1')} entries, not 1."
        answer(ledger, "order-1", 500)
        if _charges(ledger, "order-1") != 1:
            return (
                f"after a second call for order-1 there are {_charges(ledger, 'order-1')} entries."
            )
        answer(ledger, "order-2", 500)
        if _charges(ledger, "order-2") != 1:
            return (
                "another order of the same amount was not charged: order-2 has no entry of its own."
            )
        answer(Ledger(ledger.path), "order-1", 500)  # as after a restart: nothing is in memory
        if _charges(ledger, "order-1") != 1:
            return "after a restart order-1 was charged again; only the bank knows what was done."
        ledger.append({"charge": "order-3", "amount_cents": 500})  # by a process that then died
        answer(ledger, "order-3", 500)
        if _charges(ledger, "order-3") != 1:
            return (
                "a process charged order-3 and died, and after its restart order-3 was charged "
                "again; what you remember is gone by then, so ask the ledger."
            )
        other = Ledger(Path(folder) / "another-bank.jsonl")
        answer(other, "order-1", 500)
        if _charges(other, "order-1") != 1:
            return "order-1 was not charged in another, empty ledger; a memory of yours said no."
    return None


def _check_interleaving(answer: Any) -> str | None:
    """A schedule of two workers that look, and then append if they saw nothing."""
    steps = {"A looks", "A appends", "B looks", "B appends"}
    if not isinstance(answer, list | tuple) or not all(step in steps for step in answer):
        return f"use a list made of {', '.join(sorted(steps))}."
    seen: dict[str, int] = {}
    charges = 0
    for step in answer:
        worker, act = step.split()
        if act == "looks":
            seen[worker] = charges
        elif worker not in seen:
            return f"worker {worker} appends without having looked; it never does that."
        elif seen[worker] == 0:
            charges += 1
    if charges < 2:
        return f"this schedule leaves {charges} charge; the order was to be charged twice."
    if len(answer) > 4:
        return f"it is a counterexample, of {len(answer)} steps; there is one of 4."
    return None


def _charges(ledger: Ledger, order_id: str) -> int:
    return sum(entry.get("charge") == order_id for entry in ledger.entries())


def _charge_from_memory() -> Callable[[Ledger, str, int], None]:
    """Looks right, and forgets with the process that remembered."""
    done: set[tuple[int, str]] = set()

    def charge(ledger: Ledger, order_id: str, amount_cents: int) -> None:
        if (id(ledger), order_id) not in done:
            done.add((id(ledger), order_id))
            ledger.append({"charge": order_id, "amount_cents": amount_cents})

    return charge


EXERCISES = (
    Exercise(
        "00.warm-up",
        "The state remembers what was checkpointed, the world remembers what was done.",
        _check_stored,
        (
            "Go through the picture above with a finger: where is it when the kill comes?",
            "A checkpoint is written after a node returns. charge acted, and did not return.",
            (
                "Take prepare: it returned, its checkpoint is there, so the state says prepared. "
                "charge did not return, so nothing in the database says charged, and charge comes "
                "next (D). The ledger has its line (B)."
            ),
        ),
        {"A", "B"},
    ),
    Exercise(
        "00.build",
        "One order has at most one charge in the ledger, however often the step runs.",
        _check_safe_charge,
        (
            "Who knows for certain, after a restart, whether the card was charged?",
            "What a process remembers dies with it. Before acting, ask the ledger for this order.",
            'if not any(e["charge"] == order_id for e in ledger.entries()): append the entry.',
        ),
        _charge_from_memory(),
    ),
    Exercise(
        "00.adversarial",
        "Two workers that look before they act can still both act.",
        _check_interleaving,
        (
            "Each worker is right about what it saw. When is what it saw no longer true?",
            "The look and the append are two acts. Whatever happens between them is not seen.",
            'Begin with ["A looks", "B looks"]: both saw an empty ledger. Now let both append.',
        ),
        ["A looks", "A appends", "B looks", "B appends"],
    ),
)
