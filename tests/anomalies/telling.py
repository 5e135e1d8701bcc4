"""A thread's whole story as plain data, so that two checkpointers can be compared.

Checkpoint ids, task ids and times differ from run to run, and so they are replaced: a checkpoint
by its place in its namespace, a task id by `*`. Everything else stays, types included: the result
is JSON in which 1, 1.0, true and "1" are four things.

One thing is left out of the rows: the stored snapshot of a `DeltaChannel`. The in-memory saver
shows it again at each later checkpoint until the channel moves on, and a saver that keeps what it
was given does not. Both lead to the same values, and those are compared, in the states.
"""

from __future__ import annotations

import json
import re
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Interrupt, Send

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def story(graph: Any, saver: Any, thread_id: str) -> dict[str, Any]:
    """The state that the graph shows at each of its checkpoints, and every row of the saver."""
    config = {"configurable": {"thread_id": thread_id}}
    return told({"states": states(graph, config), "rows": rows(saver, config)})


def states(graph: Any, config: Any) -> list[Any]:
    """`get_state_history`, oldest first: what a user sees."""
    history = list(graph.get_state_history(config))[::-1]
    places = {state.config["configurable"]["checkpoint_id"]: n for n, state in enumerate(history)}
    return [
        {
            "values": state.values,
            "next": list(state.next),
            "source": (state.metadata or {}).get("source"),
            "step": (state.metadata or {}).get("step"),
            "parent": _place(state.parent_config, places),
            "tasks": [
                [task.name, task.error and repr(task.error), list(task.interrupts)]
                for task in state.tasks
            ],
            "interrupts": list(state.interrupts),
        }
        for state in history
    ]


def rows(saver: Any, config: Any) -> dict[str, list[Any]]:
    """`list` of all namespaces, oldest first: what is stored, pending writes in their order."""
    by_namespace: dict[str, list[Any]] = {}
    for row in saver.list(config):
        by_namespace.setdefault(row.config["configurable"]["checkpoint_ns"], []).insert(0, row)
    found = {}
    for namespace, stored in by_namespace.items():
        places = {row.checkpoint["id"]: n for n, row in enumerate(stored)}
        found[_UUID.sub("*", namespace)] = [
            {
                "values": {
                    channel: value
                    for channel, value in row.checkpoint["channel_values"].items()
                    if not isinstance(value, _DeltaSnapshot)
                },
                "channels": sorted(row.checkpoint["channel_versions"]),
                "parent": _place(row.parent_config, places),
                "source": row.metadata.get("source"),
                "step": row.metadata.get("step"),
                "parents": sorted(row.metadata.get("parents", {})),
                "writes": [[channel, value] for _, channel, value in row.pending_writes or []],
            }
            for row in stored
        ]
    return found


def told(value: Any) -> Any:
    """A value as JSON data that keeps its types apart."""
    if isinstance(value, dict):
        return {_text(key): told(value[key]) for key in sorted(value, key=_text)}
    if type(value) is list:
        return [told(item) for item in value]
    if value is None or type(value) in (str, int, float, bool):
        return _UUID.sub("*", value) if isinstance(value, str) else value
    if isinstance(value, BaseMessage):
        return {type(value).__name__: told(value.model_dump())}
    if isinstance(value, Interrupt):
        return {"Interrupt": told(value.value)}
    if isinstance(value, Send):
        return {"Send": [value.node, told(value.arg)]}
    if isinstance(value, (set, frozenset)):
        return {type(value).__name__: sorted(as_text(told(item)) for item in value)}
    if type(value) is tuple:  # LangGraph's msgpack, in memory too, makes it a list
        return [told(item) for item in value]
    if isinstance(value, tuple):
        return {type(value).__name__: [told(item) for item in value]}
    return {type(value).__name__: _UUID.sub("*", repr(value))}


def as_text(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)


def _place(config: Any, places: dict[str, int]) -> int | None:
    return None if config is None else places.get(config["configurable"]["checkpoint_id"], -1)


def _text(key: Any) -> str:
    return key if isinstance(key, str) else f"{type(key).__name__} {key!r}"
