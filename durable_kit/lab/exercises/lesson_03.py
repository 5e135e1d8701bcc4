"""Exercises of lesson 03: count what is lost, choose a mode, and lose an acknowledged commit."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from durable_kit.lab.exercises import Exercise
from durable_kit.lab.power_loss import (
    FORGETS,
    PROCESS_DEATH,
    Acknowledged,
    Event,
    Sync,
    Write,
    survivors,
)

MODES = ("sync", "async", "exit")


def lost_steps(mode: str, *, step_ms: int, commit_ms: int, steps: int) -> int:
    """Modelled: steps lost if the process dies at the moment in which step number `steps` returns.

    Commits are made one after another, in order, and none has begun before its step has returned.
    """
    if mode == "exit":
        return steps
    returned_ms = free_ms = now_ms = 0
    commits_end_ms = []
    for _ in range(steps):
        returned_ms = now_ms = now_ms + step_ms
        free_ms = max(free_ms, now_ms) + commit_ms
        commits_end_ms.append(free_ms)
        if mode == "sync":
            now_ms = free_ms
    return sum(end_ms > returned_ms for end_ms in commits_end_ms)


def wall_ms(mode: str, *, step_ms: int, commit_ms: int, steps: int) -> int:
    """Modelled: how long an undisturbed run takes, its flush included."""
    if mode == "sync":
        return steps * (step_ms + commit_ms)
    if mode == "exit":
        return steps * step_ms + commit_ms
    return step_ms + max(step_ms, commit_ms) * (steps - 1) + commit_ms


def _check_counts(answer: Any) -> str | None:
    """A number for each mode: 10 steps of 1 ms, a commit takes 5 ms, killed as the 10th returns."""
    if not isinstance(answer, Mapping) or set(answer) != set(MODES):
        return f"give a dictionary with the keys {', '.join(MODES)}."
    for mode in MODES:
        right = lost_steps(mode, step_ms=1, commit_ms=5, steps=10)
        if answer[mode] != right:
            return f"for {mode} it says {answer[mode]!r}; counted step by step it is {right}."
    return None


def _check_choice(answer: Any) -> str | None:
    """A function choose(step_ms, commit_ms, steps, may_lose) -> the quickest mode that may be."""
    if not callable(answer):
        return f"{answer!r} is not a function of (step_ms, commit_ms, steps, may_lose)."
    for step_ms, commit_ms, steps, may_lose in (
        (1, 5, 10, 1),
        (20, 2, 50, 1),
        (1, 2, 100, 60),
        (1, 5, 10, 8),
        (5, 5, 40, 2),
        (1, 2, 100, 100),
        (50, 1, 3, 1),
    ):
        times = {"step_ms": step_ms, "commit_ms": commit_ms, "steps": steps}
        allowed = [mode for mode in MODES if lost_steps(mode, **times) <= may_lose]
        best = min(wall_ms(mode, **times) for mode in allowed)
        chosen = answer(step_ms, commit_ms, steps, may_lose)
        where = f"step {step_ms} ms, commit {commit_ms} ms, {steps} steps, may lose {may_lose}"
        if chosen not in MODES:
            return f"{where}: {chosen!r} is no durability mode."
        lost = lost_steps(chosen, **times)
        if lost > may_lose:
            return f"{where}: {chosen} loses {lost}."
        if wall_ms(chosen, **times) > best:
            return f"{where}: {chosen} takes {wall_ms(chosen, **times)} ms, {best} would do."
    return None


def _check_schedule(answer: Any) -> str | None:
    """The shortest list of "write", "sync", "acknowledge" after which power loss takes a commit."""
    events = list(answer)
    known: dict[str, Event] = {
        "write": Write("agent.db-wal", 0, b"the commit"),
        "sync": Sync("agent.db-wal"),
        "acknowledge": Acknowledged(1),
    }
    unknown = [event for event in events if event not in known]
    if unknown:
        return f"{unknown[0]!r} is not an event; there are {', '.join(known)}."
    if "acknowledge" not in events:
        return "nothing was acknowledged, so nothing that was promised can be lost."
    if "write" not in events[: events.index("acknowledge")]:
        return "nothing had been written when it was acknowledged: that is a lie, not a loss."
    done = [known[event] for event in events]
    killed, unplugged = (
        survivors(done, fate=fate, rng=random.Random(0)).get("agent.db-wal", b"")
        for fate in (PROCESS_DEATH, FORGETS)
    )
    if not killed:
        return "a killed process would lose it as well."
    if unplugged:
        return "the commit is on the disk, and survives the power."
    if len(events) > 2:
        return f"it is lost, and with {len(events)} events; there is a shorter one."
    return None


EXERCISES = (
    Exercise(
        "03.warm-up",
        "What is lost is what has been executed and not been committed; commits queue.",
        _check_counts,
        (
            "Draw two lanes over 10 ms: steps above, commits below. When does the first one end?",
            "In async the commits run one after another beside the steps, each 5 ms long.",
            "With 3 steps: they return at 1, 2, 3 ms; the first commit would end at 6: 3 are lost.",
        ),
        {"sync": 1, "async": 2, "exit": 10},
    ),
    Exercise(
        "03.build",
        "The mode is the quickest whose loss you can bear; it depends on the pace of the steps.",
        _check_choice,
        (
            "When are the steps slower than the commits, and what does async then lose?",
            (
                "sync loses 1 and takes steps · (step + commit). async loses what has queued. exit "
                "loses all, and commits once."
            ),
            (
                "Step 1 ms, commit 5 ms, 10 steps, may lose 1: async would lose 9, exit 10, so "
                "sync it is, although it takes 60 ms and exit 15."
            ),
        ),
        lambda step_ms, commit_ms, steps, may_lose: "sync" if may_lose < 2 else "async",
    ),
    Exercise(
        "03.adversarial",
        "Acknowledged is not synced: a killed process cannot tell the two apart, the power can.",
        _check_schedule,
        (
            "What must not have happened before the power fails?",
            "The commit is written and acknowledged; no sync of its file comes before the end.",
            "write, sync, acknowledge survives both deaths. Take something away.",
        ),
        ["write", "sync", "acknowledge"],
    ),
)
