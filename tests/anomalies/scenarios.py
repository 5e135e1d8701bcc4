"""What users do with a thread, as functions that drive a graph.

A scenario gets a `Driver`, which hides whether the graph runs by `invoke` or by `ainvoke`, and
returns what a user would have seen on the way. Run on two checkpointers it must return the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.types import Command

from .real_graphs import build


@dataclass
class Driver:
    """One thread of one graph, driven by its sync or by its async methods."""

    name: str
    saver: Any
    thread_id: str
    use_async: bool = False
    durability: Any = "sync"
    graph: Any = field(init=False)

    def __post_init__(self) -> None:
        self.graph = build(self.name, self.saver)
        self.config: Any = {"configurable": {"thread_id": self.thread_id}}

    def run(self, given: Any, at: Any = None, **metadata: Any) -> Any:
        """invoke or ainvoke, from the newest checkpoint or from `at`."""
        config = {**(at or self.config), "metadata": metadata}
        if self.use_async:
            return asyncio.run(self.graph.ainvoke(given, config, durability=self.durability))
        return self.graph.invoke(given, config, durability=self.durability)

    def stream(self, given: Any) -> list[Any]:
        """stream or astream: every value and update that a user would have been shown."""
        modes: Any = ["values", "updates"]
        if self.use_async:

            async def collect() -> list[Any]:
                parts = self.graph.astream(
                    given, self.config, stream_mode=modes, durability=self.durability
                )
                return [part async for part in parts]

            return asyncio.run(collect())
        return list(
            self.graph.stream(given, self.config, stream_mode=modes, durability=self.durability)
        )

    def history(self) -> list[Any]:
        """The states so far, oldest first."""
        if self.use_async:

            async def collect() -> list[Any]:
                return [state async for state in self.graph.aget_state_history(self.config)]

            return asyncio.run(collect())[::-1]
        return list(self.graph.get_state_history(self.config))[::-1]

    def values(self, at: Any = None) -> Any:
        config = at or self.config
        if self.use_async:
            return asyncio.run(self.graph.aget_state(config)).values
        return self.graph.get_state(config).values

    def update(self, at: Any, values: Any, as_node: str | None = None) -> Any:
        if self.use_async:
            return asyncio.run(self.graph.aupdate_state(at, values, as_node=as_node))
        return self.graph.update_state(at, values, as_node=as_node)


def lists_grow(drive: Driver) -> Any:
    return [drive.run({"count": 0}), drive.run({"items": ["from outside"], "count": 0})]


def messages_are_edited_and_removed(drive: Driver) -> Any:
    texts = ["one", "two", "three", "four", "reset", "five"]
    return [
        drive.run({"messages": [HumanMessage(text, id=f"h{n}")]}) for n, text in enumerate(texts)
    ]


def branches_run_in_parallel(drive: Driver) -> Any:
    return [drive.run({"plain": [f"turn {n}"], "delta": [f"turn {n}"]}) for n in range(2)]


def a_turn_is_left_for_another(drive: Driver) -> Any:
    """Two turns; then a second turn from after the first with another input; then on from both."""
    first = drive.run({"said": "hello", "log": ["hello"]})
    after_first = drive.history()[-1].config
    abandoned = drive.run({"said": "left", "log": ["left"]})
    old_tip = drive.history()[-1].config
    taken = drive.run({"said": "right", "log": ["right"], "rare": ["r"]}, at=after_first)
    new_tip = drive.history()[-1].config
    further = drive.run({"said": "further", "log": ["further"]})
    return [
        first,
        abandoned,
        taken,
        further,
        drive.values(after_first),
        drive.values(old_tip),
        drive.values(new_tip),
        drive.run({"said": "reset"}),
        drive.run({"said": "old again"}, at=old_tip),
        drive.values(old_tip),
        drive.values(new_tip),
    ]


def subgraphs_count_for_themselves(drive: Driver) -> Any:
    return [drive.run({"count": 0, "trace": []}) for _ in range(3)]


def questions_repeat_until_answered(drive: Driver) -> Any:
    answers = ("many", 3, 30, "yes", "absolutely")
    first = drive.run({"answers": []})
    return [first, *(drive.run(Command(resume=answer)) for answer in answers)]


def a_paused_tool_waits_for_its_answer(drive: Driver) -> Any:
    return [drive.run({"done": ["start"]}), drive.run(Command(resume="you may"))]


def old_states_are_edited(drive: Driver) -> Any:
    """update_state in the past, a run from there, and another update on the tip that was left."""
    drive.run({"count": 0})
    history = drive.history()
    tip, past = history[-1].config, history[3].config
    fork = drive.update(past, {"items": ["edited"], "table": {"new": True}}, as_node="step")
    seen = [drive.values(fork), drive.run(None, at=fork), drive.values(tip)]
    other = drive.update(tip, {"items": ["late note"]}, as_node="step")
    return [*seen, drive.values(other), drive.values(past), drive.run(None, at=past)]


def a_workflow_of_tasks_asks_and_remembers(drive: Driver) -> Any:
    seen = []
    for numbers, answer in ([1, 2, 3], 10), ([4], 20):
        seen += [drive.run(numbers), drive.run(Command(resume=answer))]
    return seen


SCENARIOS: dict[str, tuple[str, Callable[[Driver], Any]]] = {
    scenario.__name__: (graph, scenario)
    for graph, scenario in (
        ("appending", lists_grow),
        ("talking", messages_are_edited_and_removed),
        ("fan_out:1", branches_run_in_parallel),
        ("delta_turns", a_turn_is_left_for_another),
        ("nested", subgraphs_count_for_themselves),
        ("asking", questions_repeat_until_answered),
        ("three_tools", a_paused_tool_waits_for_its_answer),
        ("appending", old_states_are_edited),
        ("functional", a_workflow_of_tasks_asks_and_remembers),
    )
}
