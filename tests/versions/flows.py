"""One order flow in the versions that a team would deploy one after the other.

Rules of version 1: charge what was quoted. Rules of version 2: 5 % more. The flow pauses at
`review`, in the same super-step in which `reserve` finishes, so that a waiting thread has pending
writes.
"""

from __future__ import annotations

from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from durable_kit.versions.flow_router import FlowRouter, FlowVersion

YES = Command(resume="yes")


class Order(TypedDict, total=False):
    quoted: int
    reserved: bool
    approved: str
    charged: int
    flow_version: FlowVersion


def thread(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def quote(state: Order) -> Order:
    return {"quoted": 100}


def reserve(state: Order) -> Order:
    return {"reserved": True}


def review(state: Order) -> Order:
    return {"approved": interrupt({"price": state["quoted"]})}


def charge_by_rules_1(state: Order) -> Order:
    return {"charged": state["quoted"]}


def charge_by_rules_2(state: Order) -> Order:
    return {"charged": state["quoted"] * 105 // 100}


def unpinned(saver: Any, *, rules: int, review_node: str = "review") -> Any:
    """The flow as teams write it first: whatever is deployed decides."""
    builder: Any = _begin(review_node)
    builder.add_edge(START, "quote")
    builder.add_node("charge", charge_by_rules_1 if rules == 1 else charge_by_rules_2)
    builder.add_edge(review_node, "charge")
    builder.add_edge("charge", END)
    return builder.compile(checkpointer=saver)


def pinned(
    saver: Any,
    router: FlowRouter,
    *,
    paths: tuple[int, ...] = (1, 2),
    review_node: str = "review",
) -> Any:
    """The flow with a pin and a branch: a path for each version of the rules."""
    builder: Any = _begin(review_node)
    builder.add_node("pin", router.pin)
    builder.add_edge(START, "pin")
    builder.add_edge("pin", "quote")
    for version in paths:
        rules = charge_by_rules_1 if version == 1 else charge_by_rules_2
        builder.add_node(f"charge_{version}", rules)
        builder.add_edge(f"charge_{version}", END)
    router.branch(builder, review_node, {version: f"charge_{version}" for version in paths})
    return builder.compile(checkpointer=saver)


def _begin(review_node: str) -> Any:
    builder: Any = StateGraph(Order)
    builder.add_node("quote", quote)
    builder.add_node("reserve", reserve)
    builder.add_node(review_node, review)
    builder.add_edge("quote", "reserve")
    builder.add_edge("quote", review_node)
    return builder
