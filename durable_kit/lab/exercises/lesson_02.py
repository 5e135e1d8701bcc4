"""Exercises of lesson 02: who runs again, is it over, and the history that fools `next`."""

from __future__ import annotations

from functools import cache
from typing import Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from durable_kit.lab.exercises import Exercise

EVENTS = ("A returns", "A stored", "B returns", "B stored", "checkpoint")


def _check_who_runs_again(answer: Any) -> str | None:
    """A set of letters."""
    given = {str(letter).strip().upper() for letter in answer}
    if not given <= set("ABCD"):
        return f"{sorted(given - set('ABCD'))} is not among the branches A to D."
    if "A" in given:
        return "A is in the set, and its writes wait beside the checkpoint: it does not run again."
    missing = sorted(set("BCD") - given)
    if missing:
        return f"{', '.join(missing)} left nothing in the database that could be used."
    return None


class _Two(TypedDict, total=False):
    first: int
    second: int


@cache
def snapshots() -> dict[str, tuple[Any, str]]:
    """What a thread may look like -> (LangGraph's own snapshot of it, what is to be done)."""
    builder: Any = StateGraph(_Two)
    builder.add_node("first", lambda state: {"first": 1})
    builder.add_node("second", lambda state: {"second": 2})
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    saver = InMemorySaver()
    graph = builder.compile(checkpointer=saver)

    def thread(name: str) -> Any:
        return {"configurable": {"thread_id": name}}

    for name in ("stopped between two nodes", "a result waits beside the checkpoint"):
        graph.invoke({}, thread(name), interrupt_before=["second"])
    stopped = graph.get_state(thread(name))
    [task] = stopped.tasks
    saver.put_writes(stopped.config, [("second", 2)], task.id)  # done, and then killed
    graph.invoke({}, thread("finished"))
    what = {
        "nothing is stored": "begin",
        "stopped between two nodes": "resume",
        "a result waits beside the checkpoint": "resume",
        "finished": "done",
    }
    return {name: (graph.get_state(thread(name)), act) for name, act in what.items()}


def _check_what_to_do(answer: Any) -> str | None:
    """A function from a snapshot to "begin", "resume" or "done"."""
    if not callable(answer):
        return f"{answer!r} is not a function of a snapshot."
    for name, (snapshot, expected) in snapshots().items():
        found = answer(snapshot)
        if found != expected:
            return f"for a thread where {name}, it says {found!r}; {expected!r} is right."
    return None


def _check_schedule(answer: Any) -> str | None:
    """Events of one super-step before the kill."""
    events = list(answer)
    unknown = [event for event in events if event not in EVENTS]
    if unknown:
        return f"{unknown[0]!r} is not an event; there are {', '.join(EVENTS)}."
    if len(set(events)) < len(events):
        return "each event happens once at most."
    for branch in "AB":
        stored, returned = f"{branch} stored", f"{branch} returns"
        if stored in events and returned not in events[: events.index(stored)]:
            return f"{branch} cannot be stored before it has returned."
    if "checkpoint" in events:
        both = {"A returns", "B returns"}
        if not both <= set(events[: events.index("checkpoint")]):
            return "the checkpoint comes when both branches have returned."
        return "the checkpoint was made: the next super-step's tasks are in `next`."
    waiting = [branch for branch in "AB" if f"{branch} stored" not in events]
    if waiting:
        return (
            f"{' and '.join(waiting)} would still be named in `next`: no writes of it are stored."
        )
    return None


EXERCISES = (
    Exercise(
        "02.warm-up",
        "A task runs again unless its writes are stored; what it had done before does not count.",
        _check_who_runs_again,
        (
            "Of which branches does the database know the result?",
            "Only pending writes keep a task from running again. Returning is not storing.",
            "In the run of this lesson stock was stored and did not run again; discount was not.",
        ),
        {"C", "D"},
    ),
    Exercise(
        "02.build",
        "A run is over when a checkpoint exists and no task is left, whatever `next` says.",
        _check_what_to_do,
        (
            "Four kinds of thread: never begun, stopped, stopped with a result waiting, finished.",
            "`tasks` names what a resume has to look at; `created_at` is None where nothing is.",
            "For next=(), tasks=(charge,), created_at='2026-…' the answer is 'resume'.",
        ),
        lambda snapshot: "resume" if snapshot.next else "done" if snapshot.values else "begin",
    ),
    Exercise(
        "02.adversarial",
        "An empty `next` proves only that no task lacks a stored result.",
        _check_schedule,
        (
            "Which events make a name disappear from `next`?",
            "A name leaves `next` when its writes are stored; the run goes on at the checkpoint.",
            "With one branch: A returns, A stored, and the kill comes before the checkpoint.",
        ),
        ["A returns", "A stored", "B returns"],
    ),
)
