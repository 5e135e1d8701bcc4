"""The graph that is killed to measure durability: one message a step, until it is told to end.

    step 3    work (step_ms) ─ return the message ─ (its checkpoint)

Without a file `end` in its folder it goes on for ever: a run that ends by itself before its kill
would be no crash. The process that resumes finds the file, with the number of messages to end at.

It knows nothing of being measured: the witness and the crash points are put around it.
"""

from __future__ import annotations

import operator
import random
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

NEVER_ENDS = 10**9  # steps: LangGraph's recursion_limit must not be what ends the run


class Talk(TypedDict):
    """The state: messages, only ever added to."""

    messages: Annotated[list[Any], operator.add]


def message(step: int, *, message_bytes: int) -> dict[str, Any]:
    """What step number `step` says: about so many bytes, different from every other step's."""
    noise = random.Random(step).randbytes(max(0, message_bytes - 50) // 2).hex()
    return {"role": "assistant", "step": step, "content": noise}


def end_at(folder: Path, steps: int) -> None:
    """Let the next process that builds the graph end after so many messages."""
    (folder / "end").write_text(str(steps))


def talk_graph(saver: Any, *, folder: Path, step_ms: float, message_bytes: int) -> Any:
    """A graph of one node that works for `step_ms`, and goes on for ever or until `end_at`."""
    from langgraph.graph import END, START, StateGraph

    end = folder / "end"
    last = int(end.read_text()) if end.exists() else NEVER_ENDS

    def say(state: Talk) -> dict[str, Any]:
        if step_ms:
            time.sleep(step_ms / 1000)
        return {"messages": [message(len(state["messages"]) + 1, message_bytes=message_bytes)]}

    def proceed(state: Talk) -> str:
        return "say" if len(state["messages"]) < last else END

    builder: Any = StateGraph(Talk)
    builder.add_node("say", say)
    builder.add_edge(START, "say")
    builder.add_conditional_edges("say", proceed, ["say", END])
    return builder.compile(checkpointer=saver)
