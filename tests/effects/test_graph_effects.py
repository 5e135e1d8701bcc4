"""Nodes, tasks and tools as effects: what a graph runs again, the world sees once."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.errors import GraphInterrupt, ParentCommand
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode, ToolRuntime
from langgraph.types import Command, Send, interrupt

from durable_kit import (
    BadInput,
    DeltaSaver,
    IdempotencyConflict,
    IdempotentGateway,
    NotRecorded,
)
from durable_kit.effects.keys import CallKeys
from durable_kit.effects.receipt import Status
from durable_kit.graph_effects import (
    RECORDED,
    call_keys,
    effect_once,
    is_open,
    place_in_conversation,
    tool_once,
)
from durable_kit.serde_codec import default_codec

THREAD: Any = {"configurable": {"thread_id": "t-1"}}


class State(TypedDict, total=False):
    order_id: str
    answers: Annotated[list[str], operator.add]
    messages: Annotated[list[Any], operator.add]
    charged: str


@pytest.fixture
def saver(tmp_path: Any) -> Iterator[DeltaSaver]:
    with DeltaSaver.open(f"sqlite:///{tmp_path / 'kit.db'}") as saver:
        yield saver


@pytest.fixture
def pay(saver: DeltaSaver) -> IdempotentGateway:
    return IdempotentGateway(saver.database, tool_name="payments", wait_s=0, codec=default_codec())


def graph_of(saver: Any, *nodes: Any, **more: Any) -> Any:
    builder: Any = StateGraph(State)
    names = [getattr(node, "__name__", "tools") for node in nodes]
    for name, node in zip(names, nodes, strict=True):
        builder.add_node(name, node)
    for before, after in zip([START, *names], [*names, END], strict=True):
        if before in more:
            builder.add_conditional_edges(before, more[before])
        else:
            builder.add_edge(before, after)
    return builder.compile(checkpointer=saver)


# ---------------------------------------------------------------------------------- keys


def test_two_wanted_calls_have_two_keys_and_a_replayed_one_finds_its_own() -> None:
    def one_run() -> list[str]:
        keys = CallKeys(thread_id="t", node="poll", turn=0)
        return [keys.next("poll"), keys.next("poll"), keys.next("notice")]

    assert one_run() == one_run()
    assert len(set(one_run())) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a/b", "c", 1), ("a", "b/c", 1)),
        (("a", "b", 1), ("a", "b", 11)),
        (("a", "b", 1), ("a", "b", "1")),
        (("a", "b", 0), ("a", "b", "")),
        (("", "", 0), ("/", "", 0)),
        (("a\0", "b", 0), ("a", "\0b", 0)),
        (("%2F", "b", 0), ("/", "b", 0)),
    ],
)
def test_no_two_places_write_the_same_key(one: Any, other: Any) -> None:
    keys = [
        CallKeys(thread_id=thread, node=node, turn=turn).next("act").encode()
        for thread, node, turn in (one, other)
    ]
    assert keys[0] != keys[1]


def test_a_turn_is_needed_and_zero_is_one(saver: DeltaSaver) -> None:
    with pytest.raises(BadInput, match="turn"):
        CallKeys(thread_id="t", node="n", turn=True)
    with pytest.raises(BadInput, match="turn"):
        CallKeys(thread_id="t", node="n", turn=None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="thread"):
        call_keys(turn=0)
    assert CallKeys(thread_id="t", node="n", turn=0).next("a") == "a:t/n/0/0"


def test_one_notice_for_each_bad_answer_in_a_loop_that_pauses(
    saver: DeltaSaver, pay: IdempotentGateway
) -> None:
    """The node asks until the answer is good. Each resume runs it again from its beginning."""
    notices: list[str] = []
    naive: list[str] = []

    def ask(state: State) -> State:
        keys = call_keys(turn=len(state.get("answers", [])))
        while True:
            answer = interrupt("how many?")
            if answer.isdecimal():
                return {"answers": [answer]}
            naive.append(answer)
            pay.call(
                idempotency_key=keys.next("notice"),
                request=answer,
                effect=lambda intent: notices.append(intent.request),
            )

    graph = graph_of(saver, ask)
    graph.invoke({"order_id": "o"}, THREAD)
    for answer in ("many", "many", "7"):
        graph.invoke(Command(resume=answer), THREAD)
    assert notices == ["many", "many"], "two equal answers, two notices"
    assert len(naive) == 5, "without the gateway a notice is sent again with every resume"
    assert graph.get_state(THREAD).values["answers"] == ["7"]


def test_a_loop_over_nodes_sends_in_each_turn_and_not_again_in_a_replay(
    saver: DeltaSaver, pay: IdempotentGateway
) -> None:
    sent: list[str] = []
    steps: list[int] = []

    def poll(state: State, config: RunnableConfig) -> State:
        turn = len(state.get("answers", []))
        steps.append(config["metadata"]["langgraph_step"])
        receipt = pay.call(
            idempotency_key=call_keys(turn=turn).next("poll"),
            request="poll",
            effect=lambda intent: sent.append(intent.idempotency_key) or len(sent),  # type: ignore[func-returns-value]
        )
        return {"answers": [str(receipt.response)]}

    graph = graph_of(saver, poll, poll=lambda state: END if len(state["answers"]) == 3 else "poll")
    done = graph.invoke({"order_id": "o"}, THREAD)
    assert done["answers"] == ["1", "2", "3"]
    middle = next(s for s in graph.get_state_history(THREAD) if s.values.get("answers") == ["1"])
    replayed = graph.invoke(None, middle.config)
    assert replayed["answers"] == ["1", "2", "3"]
    assert len(sent) == 3
    assert steps[3:] != steps[1:3], "LangGraph's step would not have been a key: a replay moves it"


def test_parallel_copies_of_a_node_are_told_apart(
    saver: DeltaSaver, pay: IdempotentGateway
) -> None:
    sent: list[str] = []

    def start(state: State) -> State:
        return {}

    def send(state: State) -> State:
        pay.call(
            idempotency_key=call_keys(turn=0).next("e-mail"),
            request="the same for all",
            effect=lambda intent: sent.append(intent.idempotency_key),
        )
        return {"answers": ["sent"]}

    builder: Any = StateGraph(State)
    builder.add_node("start", start)
    builder.add_node("send", send)
    builder.add_edge(START, "start")
    builder.add_conditional_edges("start", lambda state: [Send("send", {}) for _ in range(3)])
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"order_id": "o"}, THREAD)
    assert len(set(sent)) == len(sent) == 3


# ---------------------------------------------------------------------------------- signals


SIGNALS = [GraphInterrupt(()), ParentCommand(Command(goto="x"))]


@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: type(signal).__name__)
def test_signals_of_langgraph_pass_as_they_are_and_leave_no_trace(
    pay: IdempotentGateway, signal: Exception
) -> None:
    def effect(intent: Any) -> None:
        raise signal

    async def effect_async(intent: Any) -> None:
        raise signal

    with pytest.raises(type(signal)) as sync:
        pay.call(idempotency_key="k", request=1, effect=effect)
    with pytest.raises(type(signal)) as not_sync:
        asyncio.run(pay.acall(idempotency_key="k", request=1, effect=effect_async))
    assert sync.value is signal
    assert not_sync.value is signal
    left = pay.receipt("k")
    assert left is not None
    assert (left.status, left.attempt, left.failure, left.first_sent_at_us) == (
        Status.REQUESTED,
        0,
        None,
        None,
    )


@pytest.mark.parametrize("use_async", [False, True], ids=["sync", "async"])
def test_a_node_that_pauses_inside_the_wrapper_is_resumed(
    saver: DeltaSaver, pay: IdempotentGateway, use_async: bool
) -> None:
    charged = []

    def pay_for(state: State) -> State:
        answer = interrupt("may I?")
        charged.append(answer)
        return {"charged": answer}

    async def pay_for_async(state: State) -> State:
        return pay_for(state)

    node = effect_once(pay, key=lambda state: f"charge:{state['order_id']}")(
        pay_for_async if use_async else pay_for
    )
    graph = graph_of(saver, node)

    def run(given: Any) -> Any:
        if use_async:
            return asyncio.run(graph.ainvoke(given, THREAD))
        return graph.invoke(given, THREAD)

    paused = run({"order_id": "o"})
    assert paused["__interrupt__"][0].value == "may I?"
    assert run(Command(resume="yes"))["charged"] == "yes"
    receipt = pay.receipt("charge:o")
    assert receipt is not None
    assert (receipt.status, receipt.attempt, receipt.threads) == (Status.SUCCEEDED, 1, ("t-1",))
    assert charged == ["yes"]


# ---------------------------------------------------------------------------------- wrappers


def test_a_node_that_crashes_after_its_effect_does_not_repeat_it(
    saver: DeltaSaver, pay: IdempotentGateway
) -> None:
    charged: list[str] = []
    crashes = [True]

    @effect_once(pay, key=lambda order_id: f"charge:{order_id}")
    def charge_card(order_id: str) -> str:
        charged.append(order_id)
        return "charge-1"

    def charge(state: State) -> State:
        charge_id = charge_card(state["order_id"])
        if crashes.pop() if crashes else False:
            raise RuntimeError("the process dies here")
        return {"charged": charge_id}

    graph = graph_of(saver, charge)
    with pytest.raises(RuntimeError):
        graph.invoke({"order_id": "o"}, THREAD)
    assert is_open(graph)("t-1")
    assert graph.invoke(None, THREAD)["charged"] == "charge-1"
    assert charged == ["o"]
    assert not is_open(graph)("t-1")


def test_a_node_may_answer_with_a_command_and_messages(
    saver: DeltaSaver, pay: IdempotentGateway
) -> None:
    runs = []

    @effect_once(pay, key=lambda state: f"say:{state['order_id']}")
    def say(state: State, config: RunnableConfig) -> Any:
        runs.append(config["configurable"]["thread_id"])
        return Command(update={"messages": [AIMessage("paid", id="m1")]}, goto=END)

    def fails_once(state: State) -> State:
        return {}

    graph = graph_of(saver, say, fails_once)
    first = graph.invoke({"order_id": "o"}, THREAD)
    again = graph.invoke({"order_id": "o"}, {"configurable": {"thread_id": "t-2"}})
    assert first["messages"] == again["messages"] == [AIMessage("paid", id="m1")]
    assert runs == ["t-1"], "the key is the order's, so the second thread gets the receipt"
    receipt = pay.receipt("say:o")
    assert receipt is not None
    assert receipt.threads == ("t-1", "t-2")


def test_a_changed_state_is_another_request(saver: DeltaSaver, pay: IdempotentGateway) -> None:
    @effect_once(pay, key=lambda state: "charge")
    def charge(state: State) -> State:
        return {"charged": "1"}

    graph = graph_of(saver, charge)
    graph.invoke({"order_id": "o"}, THREAD)
    with pytest.raises(IdempotencyConflict):
        graph.invoke({"order_id": "another"}, THREAD)


def test_tasks_that_are_called_again_are_found_by_their_number(
    saver: DeltaSaver, pay: IdempotentGateway
) -> None:
    sent: list[int] = []
    crashes = [True]

    @task
    @effect_once(pay, key=lambda amount: call_keys(turn=0).next("order"))
    def order(amount: int) -> int:
        sent.append(amount)
        return len(sent)

    @entrypoint(checkpointer=saver)
    def buy(amount: int) -> list[int]:
        numbers = [order(amount).result(), order(amount).result()]
        if crashes.pop() if crashes else False:
            raise RuntimeError("the process dies here")
        return numbers

    with pytest.raises(RuntimeError):
        buy.invoke(5, THREAD, durability="exit")  # the tasks' results are lost with the process
    assert buy.invoke(5, THREAD) == [1, 2]
    assert sent == [5, 5], "two wanted equal orders are two, and each is once"


def test_an_async_function_is_wrapped_as_one(pay: IdempotentGateway) -> None:
    calls = []

    @effect_once(pay, key=lambda order_id: order_id)
    async def charge(order_id: str, amount_cents: int = 5) -> str:
        calls.append(amount_cents)
        return "paid"

    async def work() -> None:
        assert await charge("o") == "paid"
        assert await charge(order_id="o", amount_cents=5) == "paid"

    asyncio.run(work())
    assert calls == [5]


def test_arguments_without_a_name_are_refused(pay: IdempotentGateway) -> None:
    for function in (lambda *orders: 1, lambda order_id, /: 1):
        with pytest.raises(BadInput, match="no name"):
            effect_once(pay, key=lambda: "k")(function)


def test_a_replay_in_recorded_mode_looks_only(saver: DeltaSaver, pay: IdempotentGateway) -> None:
    charged = []

    def prepare(state: State) -> State:
        return {}

    @effect_once(pay, key=lambda state: f"charge:{state['order_id']}")
    def charge(state: State) -> State:
        charged.append(state["order_id"])
        return {"charged": "1"}

    graph = graph_of(saver, prepare, charge)
    graph.invoke({"order_id": "o"}, THREAD)
    before = next(s for s in graph.get_state_history(THREAD) if s.next == ("charge",))
    looking = {"configurable": {**before.config["configurable"], **RECORDED["configurable"]}}
    assert graph.invoke(None, looking)["charged"] == "1"
    with pytest.raises(NotRecorded):
        graph.invoke(
            {"order_id": "new"}, {"configurable": {"thread_id": "t-2", **RECORDED["configurable"]}}
        )
    assert charged == ["o"]


# ---------------------------------------------------------------------------------- tools


def assistant(*calls: Any) -> AIMessage:
    return AIMessage(
        "", tool_calls=[{"name": n, "args": a, "id": i, "type": "tool_call"} for n, a, i in calls]
    )


@pytest.mark.parametrize("use_async", [False, True], ids=["sync", "async"])
def test_a_tool_acts_once_although_the_model_gives_the_call_another_id(
    saver: DeltaSaver, pay: IdempotentGateway, use_async: bool
) -> None:
    charged: list[Any] = []

    @tool
    def charge(order_id: str, amount_cents: int, runtime: ToolRuntime) -> str:
        """Charge an order."""
        charged.append((order_id, amount_cents, runtime.tool_call_id))
        return f"charged {amount_cents}"

    def key(order_id: str, runtime: ToolRuntime) -> str:
        place = place_in_conversation(runtime.state["messages"], str(runtime.tool_call_id))
        return f"charge:{order_id}:{place}"

    wrapped = tool_once(charge, pay, key=key)
    assert wrapped.tool_call_schema.model_json_schema() == (  # type: ignore[union-attr]
        charge.tool_call_schema.model_json_schema()  # type: ignore[union-attr]
    )
    graph = graph_of(saver, ToolNode([wrapped]))
    args = {"order_id": "o", "amount_cents": 5}

    def run(thread: str, *ids: str) -> list[str]:
        given = {"messages": [assistant(*(("charge", args, i) for i in ids))]}
        config: Any = {"configurable": {"thread_id": thread}}
        if use_async:
            out = asyncio.run(graph.ainvoke(given, config))
        else:
            out = graph.invoke(given, config)
        return [message.content for message in out["messages"][1:]]

    # Two equal calls in one message are wanted: two orders.
    assert run("t-1", "call-1", "call-2") == ["charged 5", "charged 5"]
    # The model was asked again after a crash, and gave its calls other ids.
    assert run("t-2", "call-8", "call-9") == ["charged 5", "charged 5"]
    assert sorted(charge[2] for charge in charged) == ["call-1", "call-2"]


def test_a_place_that_is_not_there_is_refused() -> None:
    messages = [assistant(("a", {}, "1")), AIMessage("done"), assistant(("a", {}, "2"))]
    assert place_in_conversation(messages, "2") == "1.0"
    with pytest.raises(BadInput, match="whole history"):
        place_in_conversation(messages[:1], "2")


def test_the_gateway_itself_needs_no_langgraph(tmp_path: Any) -> None:
    import subprocess
    import sys

    code = (
        "import sys\n"
        "from durable_kit import Database, IdempotentGateway\n"
        f"db = Database.open('sqlite:///{(tmp_path / 'x.db').as_posix()}')\n"
        "pay = IdempotentGateway(db, tool_name='payments')\n"
        "print(pay.call(idempotency_key='k', request=1, effect=lambda i: 'ok').response)\n"
        "print([m for m in sys.modules if m.startswith(('langgraph', 'langchain'))])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["ok", "[]"]
