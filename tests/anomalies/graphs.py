"""The smallest conversation: for tests that care about the steps and not about the words."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph


class Talk(TypedDict):
    messages: Annotated[list[str], operator.add]
    turn: int


def talking_graph(saver: Any) -> Any:
    """One node: it answers, and counts the turn. Three checkpoints a turn."""

    def answer(state: Talk) -> dict[str, Any]:
        turn = state.get("turn", 0) + 1
        return {"messages": [f"answer {turn}"], "turn": turn}

    return (
        StateGraph(Talk)
        .add_node("answer", answer)
        .add_edge(START, "answer")
        .compile(checkpointer=saver)
    )


def thread(thread_id: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread_id, **more}}
