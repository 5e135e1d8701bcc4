"""Crash points where nobody wrote any: in a compiled graph, and in a saver of somebody else.

    node.charge.enter     before the node's function is called
    node.charge.exit      it has returned; LangGraph has not been told what
    saver.put.before      ┐ around each call of the saver, whichever it is
    saver.put.after       ┘ (and saver.put_writes.before, .after)

A crash at `node.charge.exit` is the worst there is for an effect: it has happened, and there is no
trace of it inside. A crash at `saver.put.before` is the same for all nodes of a super-step.

`DeltaSaver` has its points built in, and more of them: inside its transactions, just before the
commit (`saver.put.before_commit`, `saver.put_writes.before_commit`, `saver.compact.before_commit`,
`saver.prune.before_commit`). From outside a saver, its transactions cannot be seen.

Left out: a subgraph is one node of its parent. Give its own nodes points by passing it through
`graph_with_points` before it is added.
"""

from __future__ import annotations

import copy
from contextvars import ContextVar
from typing import Any

from langchain_core.runnables import Runnable

from durable_kit import crash_point
from durable_kit.crash.witness import Witness
from durable_kit.delta_saver import DeltaSaver

_inside: ContextVar[bool] = ContextVar("inside a call of the saver", default=False)


def graph_with_points(graph: Any, *, witness: Witness | None = None) -> Any:
    """A copy of the compiled `graph` with a crash point where each node begins and ends.

    `witness` is told of each node run as well: the begin before the point, the end before the
    point. The graph that was given stays as it is.
    """
    nodes = {
        name: node
        if name.startswith("__")  # LangGraph's own
        else node.copy({"bound": _NodeWithPoints(node.bound, name, witness)})
        for name, node in graph.nodes.items()
    }
    return graph.copy({"nodes": nodes})


def saver_with_points(saver: Any) -> Any:
    """A copy of `saver` with a crash point before and after each write, sync and async.

    It is of a subclass of the saver's own class, and shares its connection. A `DeltaSaver` is
    returned as it is: it has more points than can be put around it.
    """
    if isinstance(saver, DeltaSaver):
        return saver
    watched = copy.copy(saver)
    own = type(saver)
    watched.__class__ = type(own.__name__, (own,), _around(own))
    return watched


class _NodeWithPoints(Runnable[Any, Any]):
    """Stands in for a node's own runnable."""

    def __init__(self, inner: Runnable[Any, Any], name: str, witness: Witness | None) -> None:
        self._inner = inner
        self._node = name
        self._witness = witness

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        about = self._enter(config)
        result = self._inner.invoke(input, config, **kwargs)
        self._exit(about)
        return result

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        about = self._enter(config)
        result = await self._inner.ainvoke(input, config, **kwargs)
        self._exit(about)
        return result

    def _enter(self, config: Any) -> tuple[str, int, str]:
        known = config["metadata"]
        namespace = str(known.get("langgraph_checkpoint_ns", ""))  # "research:<id>|search:<id>"
        path = "|".join(part.partition(":")[0] for part in namespace.split("|")) or self._node
        task_id = str(config["configurable"].get("__pregel_task_id", ""))
        about = path, int(known.get("langgraph_step", 0)), task_id
        if self._witness is not None:
            self._witness.begins(*about)
        crash_point.reached(f"node.{self._node}.enter")
        return about

    def _exit(self, about: tuple[str, int, str]) -> None:
        if self._witness is not None:
            self._witness.ended(*about)
        crash_point.reached(f"node.{self._node}.exit")


def _around(own: Any) -> dict[str, Any]:
    """The four writing methods with points around them.

    Some savers' async methods call the sync ones; `_inside` keeps a write from being told twice.
    """

    def put(self: Any, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        with _Points("saver.put"):
            return own.put(self, config, checkpoint, metadata, new_versions)

    def put_writes(self: Any, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        with _Points("saver.put_writes"):
            own.put_writes(self, config, writes, task_id, task_path)

    async def aput(
        self: Any, config: Any, checkpoint: Any, metadata: Any, new_versions: Any
    ) -> Any:
        with _Points("saver.put"):
            return await own.aput(self, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self: Any, config: Any, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        with _Points("saver.put_writes"):
            await own.aput_writes(self, config, writes, task_id, task_path)

    return {"put": put, "put_writes": put_writes, "aput": aput, "aput_writes": aput_writes}


class _Points:
    """Around one write. An exception in it passes without the second point."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._outermost = not _inside.get()
        if self._outermost:
            crash_point.reached(f"{self._name}.before")
            self._token = _inside.set(True)

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._outermost:
            _inside.reset(self._token)
            if kind is None:
                crash_point.reached(f"{self._name}.after")
