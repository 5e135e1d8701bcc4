"""The gateway around LangGraph's nodes, tasks and tools.

A node is run again: after a crash, after each `interrupt` in it, on every replay. What it returns
is replaced by what it returns the next time; what it did to the world is not. `effect_once` makes
one function of a graph an effect with a receipt:

    @effect_once(gateway, key=lambda state: f"charge:{state['order_id']}", lookup=ask_the_bank)
    def charge(state): ...                            a node: its update is the response

    @task
    @effect_once(gateway, key=lambda order_id, amount_cents: f"charge:{order_id}")
    def charge(order_id, amount_cents): ...           a task: its result is the response

    tool_once(charge_tool, gateway, key=lambda order_id: f"charge:{order_id}")

Its arguments are the request, its result is the response; both must be storable (`codec=
default_codec()` of `serde_codec` knows LangGraph's messages and commands). What LangGraph injects
(config, runtime, store, writer, injected state) is handed on and is not part of the request.

    first run    charge(state) ─ receipt ─ ✗ crash before the checkpoint
    resumed      the receipt answers; the function is not called

`interrupt`, commands to the parent and cancellation pass through as if the wrapper were not there:
no attempt is counted, and after the answer the function runs again from its beginning. So ask
first and act then, or better, ask in another node.

Replay and time travel may be told to look only: with `RECORDED` in the config, every wrapped call
answers from its receipt, or raises `NotRecorded`.

Hazard: a node that gets the whole state has the whole state as its request, and any change of it is
another request: IdempotencyConflict. Wrap a small function that takes what it needs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.tools import StructuredTool
from langgraph.config import get_config

from durable_kit.effects.gateway import IdempotentGateway
from durable_kit.effects.keys import CallKeys
from durable_kit.effects.receipt import Intent
from durable_kit.effects.steps import Function
from durable_kit.errors import BadInput

RECORDED: dict[str, Any] = {"configurable": {"effects": "recorded"}}
"""Merge it into the config of a replay: wrapped calls answer from receipts and do not act."""

INJECTED = frozenset({"config", "runtime", "store", "writer", "previous"})
"""Parameters that LangGraph fills in by their names."""

F = TypeVar("F", bound=Callable[..., Any])


def effect_once(
    gateway: IdempotentGateway, *, key: Callable[..., str], lookup: Function | None = None
) -> Callable[[F], F]:
    """Make a function, sync or async, an effect that happens once per key.

    `key` is a function of some of the arguments, by their names. `lookup(intent)` asks the
    provider, as for `IdempotentGateway.call`; `intent.request` holds the arguments by name.
    """

    def wrap(function: F) -> F:
        once: F = _wrapped(function, gateway, key, lookup, lambda name: name not in INJECTED)
        return once

    return wrap


def tool_once(
    tool: StructuredTool,
    gateway: IdempotentGateway,
    *,
    key: Callable[..., str],
    lookup: Function | None = None,
) -> StructuredTool:
    """A copy of a LangChain tool (made by `@tool`) whose effect happens once per key.

    The request is what the model may fill in; `key` may name injected arguments as well, such as
    `runtime` for `place_in_conversation`.
    """
    schema: Any = tool.tool_call_schema
    fields = schema["properties"] if isinstance(schema, dict) else schema.model_fields

    def wrapped(function: Any) -> Any:
        if function is None:
            return None
        return _wrapped(function, gateway, key, lookup, lambda name: name in fields)

    return tool.model_copy(
        update={"func": wrapped(tool.func), "coroutine": wrapped(tool.coroutine)}
    )


def call_keys(*, turn: int | str) -> CallKeys:
    """The keys of the node or task that is running: its thread, its name, and `turn`.

    `turn` comes from the state, and tells apart whatever runs this node more than once on the
    thread: the turns of a loop, the parallel copies of a subgraph. Copies that `Send` made of the
    node itself, and the calls of a task, are told apart by their number.

    Raises `BadInput` outside a run that has a thread.
    """
    config = _config()
    thread_id = config.get("configurable", {}).get("thread_id")
    if thread_id is None:
        raise BadInput(
            "There is no thread here, so no place that a replay could find again. Run the graph "
            "with a checkpointer and a thread_id, or name the operation yourself."
        )
    metadata = config.get("metadata", {})
    namespace = str(metadata.get("langgraph_checkpoint_ns", ""))
    node = "|".join(part.partition(":")[0] for part in namespace.split("|"))
    path = metadata.get("langgraph_path", ())
    numbers = [part for part in path if isinstance(part, int) and not isinstance(part, bool)]
    return CallKeys(
        thread_id=str(thread_id), node=node + "".join(f"#{n}" for n in numbers), turn=turn
    )


def place_in_conversation(messages: Sequence[Any], tool_call_id: str) -> str:
    """Where a tool call stands: "3.1" is the second call of the fourth message that calls tools.

    The model's id only serves to find the place. The place stays the same when the model is asked
    again after a crash, and its id does not.

    Hazard: it counts messages, so a history that is trimmed in between moves it.
    """
    calling = [message for message in messages if getattr(message, "tool_calls", None)]
    for turn, message in enumerate(calling):
        for number, call in enumerate(message.tool_calls):
            if call["id"] == tool_call_id:
                return f"{turn}.{number}"
    raise BadInput(f"No message calls a tool with the id {tool_call_id!r}. Pass the whole history.")


def is_open(graph: Any) -> Callable[[str], bool]:
    """For `clean_up`: whether a thread of this compiled graph has something left to run.

    `next` alone would not do: after some crashes it is empty although a task waits.
    """

    def asked(thread_id: str) -> bool:
        snapshot = graph.get_state({"configurable": {"thread_id": thread_id}})
        return bool(snapshot.next or snapshot.tasks or snapshot.interrupts)

    return asked


def _wrapped(
    function: Any,
    gateway: IdempotentGateway,
    key: Callable[..., str],
    lookup: Function | None,
    is_request: Callable[[str], bool],
) -> Any:
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise BadInput(
                f"{function.__qualname__} takes {parameter}, which has no name that a request "
                "could be stored under. Give every argument a name."
            )
    wanted = set(inspect.signature(key).parameters)

    def prepared(args: Any, kwargs: Any) -> tuple[IdempotentGateway, dict[str, Any]]:
        arguments = _named(signature, args, kwargs)
        request = {name: value for name, value in arguments.items() if is_request(name)}
        injected = {name: value for name, value in arguments.items() if not is_request(name)}

        def effect(intent: Intent) -> Any:
            return function(**intent.request, **injected)

        async def effect_async(intent: Intent) -> Any:
            return await function(**intent.request, **injected)

        config = _config()
        configurable = config.get("configurable", {})
        thread_id = configurable.get("thread_id")
        recorded = configurable.get("effects") == "recorded"
        return gateway.answering_from_receipts() if recorded else gateway, {
            "idempotency_key": key(**{n: v for n, v in arguments.items() if n in wanted}),
            "request": request,
            "effect": effect_async if inspect.iscoroutinefunction(function) else effect,
            "lookup": lookup,
            "thread_id": None if thread_id is None else str(thread_id),
        }

    @functools.wraps(function)
    def once(*args: Any, **kwargs: Any) -> Any:
        through, call = prepared(args, kwargs)
        return through.call(**call).response

    @functools.wraps(function)
    async def once_async(*args: Any, **kwargs: Any) -> Any:
        through, call = prepared(args, kwargs)
        return (await through.acall(**call)).response

    return once_async if inspect.iscoroutinefunction(function) else once


def _named(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments by name, defaults included: leaving one out is not another request."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        else:
            named[name] = value
    return named


def _config() -> Mapping[str, Any]:
    """The config of the run we are in; empty outside of one."""
    try:
        return get_config()
    except RuntimeError:
        return {}
