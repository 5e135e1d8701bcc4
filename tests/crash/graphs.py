"""The graphs that are killed here, in a module that another process can import."""

from __future__ import annotations

import operator
import os
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph

from durable_kit import crash_point
from durable_kit.crash import worker

NODES = ("prepare", "charge", "notify")


class Order(TypedDict):
    log: Annotated[list[str], operator.add]


def three_nodes(saver: Any) -> Any:
    """prepare, charge, notify; each adds its name."""
    return chain(saver, *((name, None) for name in NODES))


def tidying(saver: Any) -> Any:
    """Compacts and prunes its own thread in the middle of the run."""

    def tidy(config: Any) -> None:
        thread_id = config["configurable"]["thread_id"]
        saver.compact(thread_id)
        saver.prune([thread_id], keep_last=2)

    def again(state: Order, config: RunnableConfig) -> dict[str, Any]:
        tidy(config)
        return {"log": ["tidy"]}

    return chain(saver, *((f"work {i}", None) for i in range(5)), ("tidy", again), ("end", None))


def failing(saver: Any) -> Any:
    """Its second node raises, unless the file named in the environment is there."""

    def fail(state: Order) -> dict[str, Any]:
        if not Path(os.environ["DURABLE_KIT_TEST_FILE"]).exists():
            raise ValueError("the bank is closed")
        return {"log": ["charge"]}

    return chain(saver, ("prepare", None), ("charge", fail), ("notify", None))


def parallel(saver: Any) -> Any:
    """Two branches in one super-step: `stock` is quick, `discount` has a point in its middle."""

    def discount(state: Order) -> dict[str, Any]:
        while not _stored(saver):  # the other branch's result, so that the kill meets only this
            time.sleep(0.001)
        crash_point.reached("discount.middle")
        return {"log": ["discount"]}

    builder: Any = StateGraph(Order)
    builder.add_node("stock", lambda state: {"log": ["stock"]})
    builder.add_node("discount", discount)
    builder.add_node("sum", lambda state: {"log": ["sum"]})
    for name in ("stock", "discount"):
        builder.add_edge(START, name)
    builder.add_edge(["stock", "discount"], "sum")
    builder.add_edge("sum", END)
    return builder.compile(checkpointer=saver)


def talkative(saver: Any) -> Any:
    """Its node prints what a finished process would say, and half a line."""

    def talk(state: Order) -> dict[str, Any]:
        print(f"{worker.FINISHED}\n{crash_point.ANNOUNCEMENT}elsewhere\nhalf a", end="", flush=True)
        return {"log": ["talk"]}

    return chain(saver, ("talk", talk), ("end", None))


def endless(saver: Any) -> Any:
    """A node that is done at once, and one that never returns."""

    def hang(state: Order) -> dict[str, Any]:
        time.sleep(600)
        return {}

    return chain(saver, ("work", None), ("hang", hang))


def chain(saver: Any, *nodes: Any) -> Any:
    builder: Any = StateGraph(Order)
    before = START
    for name, function in nodes:
        builder.add_node(name, function or (lambda state, name=name: {"log": [name]}))
        builder.add_edge(before, name)
        before = name
    builder.add_edge(before, END)
    return builder.compile(checkpointer=saver)


def async_sqlite(url: str) -> Any:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    return AsyncSqliteSaver.from_conn_string(url.removeprefix("sqlite:///"))


def _stored(saver: Any) -> bool:
    [(thread_id, _)] = {entry for entry in saver.threads() if entry[1] == ""}
    found = saver.get_tuple({"configurable": {"thread_id": thread_id}})
    return any(channel == "log" for _, channel, _ in found.pending_writes)
