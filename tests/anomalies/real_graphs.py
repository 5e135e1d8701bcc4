"""Small real graphs, one per way in which a checkpointer has been seen to fail.

They live in a module because a second process must be able to build them again, from a name: what
the first process has in memory is exactly what must not be needed. `build("fan_out:7", saver)`
gives the graph "fan_out" with the seed 7.

Each graph is deterministic, so that the same inputs give the same states under any checkpointer.
"""

from __future__ import annotations

import operator
import random
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels import Topic
from langgraph.channels.delta import DeltaChannel
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Command, Overwrite, Send, interrupt


def appended(state: list[Any], writes: list[Any]) -> list[Any]:
    """A reducer for DeltaChannel: order matters, batching does not."""
    return [*state, *(item for write in writes for item in write)]


class Appending(TypedDict):
    items: Annotated[list[str], operator.add]
    table: dict[str, Any]
    count: int


def appending(saver: Any, seed: int) -> Any:
    """A loop of five steps: a list that grows, a dict that is patched, a number."""

    def step(state: Appending) -> dict[str, Any]:
        count = state.get("count", 0) + 1
        table = {**state.get("table", {}), f"k{count % 3}": [count, float(count), str(count)]}
        return {"items": [f"item {count}"], "table": table, "count": count}

    def again(state: Appending) -> str:
        return END if state["count"] % 5 == 0 else "step"

    return (
        StateGraph(Appending)
        .add_node("step", step)
        .add_edge(START, "step")
        .add_conditional_edges("step", again, ["step", END])
        .compile(checkpointer=saver)
    )


class Talk(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def talking(saver: Any, seed: int) -> Any:
    """Answers, edits the answer before, removes every third message, and at "reset" all of them."""

    def answer(state: Talk) -> dict[str, Any]:
        number = len(state["messages"])
        last = state["messages"][-1]
        usage = {"input_tokens": number, "output_tokens": 1, "total_tokens": number + 1}
        return {"messages": [AIMessage(f"to {last.text}", id=f"a-{last.id}", usage_metadata=usage)]}

    def edit(state: Talk) -> dict[str, Any]:
        asked, answered = state["messages"][-2:]
        changed: list[Any] = [AIMessage(f"{answered.text}, edited", id=answered.id)]
        if asked.text == "reset":
            changed = [RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("after", id="after")]
        elif len(state["messages"]) > 5:
            changed.append(RemoveMessage(id=state["messages"][2].id))
        return {"messages": changed}

    return (
        StateGraph(Talk)
        .add_node("answer", answer)
        .add_node("edit", edit)
        .add_edge(START, "answer")
        .add_edge("answer", "edit")
        .compile(checkpointer=saver)
    )


class Fan(TypedDict):
    plain: Annotated[list[str], operator.add]
    delta: Annotated[list[str], DeltaChannel(appended, snapshot_frequency=4)]


def fan_out(saver: Any, seed: int) -> Any:
    """Six nodes with random names at once, then Send to eight workers, twice. Order matters."""
    chance = random.Random(seed)
    names = ["".join(chance.choices("abcxyzABC_-éß0123456789", k=8)) + str(n) for n in range(6)]

    def label(name: str) -> Any:
        return lambda state: {"plain": [name], "delta": [name]}

    def scatter(state: Fan) -> list[Send]:
        size = len(state["plain"])
        return [Send("worker", {"label": f"{size}-{n}"}) for n in chance_order(size)]

    def chance_order(size: int) -> list[int]:
        return random.Random(size).sample(range(8), 8)

    builder = StateGraph(Fan)
    for name in names:
        builder.add_node(name, label(name)).add_edge(START, name)
    builder.add_node("gather", lambda state: {"plain": ["|"], "delta": ["|"]})
    builder.add_node("worker", lambda call: {"plain": [call["label"]], "delta": [call["label"]]})
    builder.add_edge(names, "gather")
    builder.add_conditional_edges("gather", scatter, ["worker"])
    return builder.compile(checkpointer=saver)


class Turns(TypedDict):
    log: Annotated[list[str], DeltaChannel(appended, snapshot_frequency=3)]
    rare: Annotated[list[str], DeltaChannel(appended, snapshot_frequency=100)]
    said: str


def delta_turns(saver: Any, seed: int) -> Any:
    """Two nodes a turn on delta channels; "reset" overwrites one of them."""

    def hear(state: Turns) -> dict[str, Any]:
        if state["said"] == "reset":
            return {"log": Overwrite(["reset"]), "rare": ["heard reset"]}
        return {"log": [f"heard {state['said']}"]}

    def reply(state: Turns) -> dict[str, Any]:
        return {"log": [f"reply {len(state['log'])}"], "rare": [state["said"]]}

    return (
        StateGraph(Turns)
        .add_node("hear", hear)
        .add_node("reply", reply)
        .add_edge(START, "hear")
        .add_edge("hear", "reply")
        .compile(checkpointer=saver)
    )


class Counter(TypedDict):
    count: Annotated[int, operator.add]
    trace: Annotated[list[str], operator.add]


def nested(saver: Any, seed: int) -> Any:
    """A parent, a child and a grandchild, each with a counter of its own that is kept."""

    def bump(name: str) -> Any:
        return lambda state: {"count": 1, "trace": [f"{name} {state.get('count', 0) + 1}"]}

    grandchild = (
        StateGraph(Counter)
        .add_node("bump", bump("grandchild"))
        .add_edge(START, "bump")
        .compile(checkpointer=True)
    )

    def call_grandchild(state: Counter) -> dict[str, Any]:
        grandchild.invoke({"trace": []})
        return {"trace": ["called"]}

    child = (
        StateGraph(Counter)
        .add_node("bump", bump("child"))
        .add_node("größe", call_grandchild)
        .add_edge(START, "bump")
        .add_edge("bump", "größe")
        .compile(checkpointer=True)
    )

    def call_child(state: Counter) -> dict[str, Any]:
        result = child.invoke({"trace": []})
        return {"trace": [f"child at {result['count']}"]}

    return (
        StateGraph(Counter)
        .add_node("bump", bump("parent"))
        .add_node("kind", call_child)
        .add_edge(START, "bump")
        .add_edge("bump", "kind")
        .compile(checkpointer=saver)
    )


class Asking(TypedDict):
    answers: Annotated[list[Any], operator.add]
    accepted: Any


def asking(saver: Any, seed: int) -> Any:
    """Asks until the answer is a number above ten; the loop is a new question each time."""

    def ask(state: Asking) -> Command[Any]:
        turn = len(state.get("answers", []))
        answer = interrupt({"question": f"how many? (turn {turn})", "turn": turn})
        if isinstance(answer, int) and answer > 10:
            return Command(update={"answers": [answer], "accepted": answer}, goto="thank")
        return Command(update={"answers": [answer]}, goto="ask")

    def thank(state: Asking) -> dict[str, Any]:
        confirmed = interrupt("sure?")
        again = interrupt("really?")
        return {"answers": [confirmed, again]}

    return (
        StateGraph(Asking)
        .add_node("ask", ask, destinations=("ask", "thank"))
        .add_node("thank", thank)
        .add_edge(START, "ask")
        .compile(checkpointer=saver)
    )


class Tools(TypedDict):
    done: Annotated[list[str], operator.add]


def three_tools(saver: Any, seed: int) -> Any:
    """Three tools in one step; the second asks first. Their runs are counted in RUNS."""

    def tool(name: str) -> Any:
        def run(state: Tools) -> dict[str, Any]:
            allowed = interrupt(f"may I run {name}?") if name == "b" else True
            RUNS.append(name)
            return {"done": [f"{name} {allowed}"]}

        return run

    builder = StateGraph(Tools)
    for name in "abc":
        builder.add_node(name, tool(name)).add_edge(START, name).add_edge(name, "end")
    builder.add_node("end", lambda state: {"done": ["end"]})
    return builder.compile(checkpointer=saver)


RUNS: list[str] = []


class Topics(TypedDict):
    count: int
    topic: Annotated[list[str], Topic(str, accumulate=True)]


def topics(saver: Any, seed: int) -> Any:
    """Five steps that add to a channel which the runtime extends in place."""

    def step(state: Topics) -> dict[str, Any]:
        return {"count": state["count"] + 1, "topic": f"x{state['count']}"}

    def again(state: Topics) -> str:
        return END if state["count"] >= 5 else "step"

    return (
        StateGraph(Topics)
        .add_node("step", step)
        .add_edge(START, "step")
        .add_conditional_edges("step", again, ["step", END])
        .compile(checkpointer=saver)
    )


def functional(saver: Any, seed: int) -> Any:
    """The functional API: tasks in parallel, a question, and a value kept for the next call."""

    @task
    def double(number: int) -> int:
        return 2 * number

    @entrypoint(checkpointer=saver)
    def workflow(numbers: list[int], *, previous: Any = None) -> Any:
        doubled = [future.result() for future in [double(number) for number in numbers]]
        extra = interrupt({"sum so far": sum(doubled), "before": previous})
        kept = {"total": sum(doubled) + extra, "calls": (previous or {"calls": 0})["calls"] + 1}
        return entrypoint.final(value=[*doubled, extra], save=kept)

    return workflow


_GRAPHS = {
    build.__name__: build
    for build in (
        appending,
        talking,
        fan_out,
        delta_turns,
        nested,
        asking,
        three_tools,
        topics,
        functional,
    )
}


def build(name: str, saver: Any) -> Any:
    """The graph `name`, or `name:seed`, over a checkpointer."""
    kind, _, seed = name.partition(":")
    return _GRAPHS[kind](saver, int(seed or 0))
