"""The same calls in few large nodes or in many small ones.

A node is the unit of what runs again. Eight model calls in one node are eight calls to be paid
twice when the process dies in the last of them; in eight nodes it is one, for seven more
checkpoints:

    [1 2 3 4 5 6 7 8]                  ✗ after call 7: seven are made again
    [1 2] [3 4] [5 6] [7 8]            ✗ after call 7: one is made again
                       └ CALL_DONE

This file imports little: whatever a graph's module imports, every process of a trial imports
before it can begin.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from durable_kit import crash_point
from durable_kit.lab.scripted_model import ScriptedModel

CALL_DONE = "call.done"
"""The crash point after each call, inside the node."""


class Calls(TypedDict):
    """The answers so far."""

    answers: Annotated[list[str], operator.add]


@dataclass(frozen=True, slots=True)
class ChunkedAgent:
    """`calls` model calls in a row, `calls_per_node` of them in each node."""

    calls: int
    calls_per_node: int
    call_ms: float

    def __call__(self, saver: Any) -> Any:
        model = ScriptedModel(step_ms=self.call_ms)

        def part(first: int) -> Callable[[Calls], Calls]:
            def node(state: Calls) -> Calls:
                answers = []
                for number in range(first, min(first + self.calls_per_node, self.calls)):
                    answers.append(model(f"call {number}"))
                    # A crash here has paid for this call, and for those before it in this node.
                    crash_point.reached(CALL_DONE)
                return {"answers": answers}

            return node

        builder: Any = StateGraph(Calls)
        before = START
        for first in range(0, self.calls, self.calls_per_node):
            name = f"part_{first}"
            builder.add_node(name, part(first))
            builder.add_edge(before, name)
            before = name
        builder.add_edge(before, END)
        return builder.compile(checkpointer=saver)
