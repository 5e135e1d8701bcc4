"""Is this still the graph that the thread stopped in?

LangGraph does not ask. A checkpoint names nodes and channels, and what the graph of today does not
have is passed over in silence:

    stored                         deployed                       resume
    waits at "review"              no such node                   returns at once, nothing done
    join:a+b:c = {"a"}             add_edge(["b", "a"], "c")      "c" never runs, no error
    key "note"                     no such key, interrupt_before  pauses for ever at one place

So the shape of a graph gets a fingerprint: nodes, edges, joins (a join is called by the order
in which its nodes were *written*), channels and reducers, subgraphs too. `fingerprinted` has it
stored with each checkpoint, in the metadata; the shape itself is stored once. `check_resume`
compares before anything runs, and tells two things apart:

    problems      this thread would be stranded, cut short or kept in a loop
    differences   the graph changed, and this thread does not notice

A thread that was never fingerprinted can have problems told all the same: they are found in its
checkpoint. Left out: what is inside a node, and a reducer that kept its name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from durable_kit.delta_saver import DeltaSaver
from durable_kit.versions.position import BRANCH, INPUT, JOIN, SENDS, parts_of_join, position_of

FINGERPRINT = "graph_fingerprint"
"""The key in a checkpoint's metadata."""


@dataclass(frozen=True, slots=True)
class GraphShape:
    """What a compiled graph consists of, as sorted texts. Nodes of a subgraph are `outer/inner`."""

    nodes: tuple[str, ...]
    edges: tuple[str, ...]
    joins: tuple[str, ...]
    channels: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits; the same in every process."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    @property
    def text(self) -> str:
        return json.dumps([self.nodes, self.edges, self.joins, self.channels])

    @classmethod
    def from_text(cls, text: str) -> GraphShape:
        """The inverse of `text`."""
        return cls(*(tuple(part) for part in json.loads(text)))

    def differences(self, now: GraphShape) -> tuple[str, ...]:
        """What is gone and what is new in `now`, a sentence each; nodes first."""
        return (
            *_told("node", self.nodes, now.nodes),
            *_told("join", self.joins, now.joins),
            *_told("channel", self.channels, now.channels),
            *_told("edge", self.edges, now.edges),
        )


@dataclass(frozen=True, slots=True)
class ResumeCheck:
    """What stands between a thread and the graph of today. Both are sentences for people."""

    problems: tuple[str, ...]
    differences: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def graph_fingerprint(graph: Any) -> str:
    """The fingerprint of a compiled graph."""
    return shape_of(graph).fingerprint


def shape_of(graph: Any, prefix: str = "") -> GraphShape:
    """The shape of a compiled graph, its subgraphs included."""
    nodes, edges, joins, channels = (set[str]() for _ in range(4))
    nodes |= {prefix + node for node in graph.nodes if node != INPUT}
    for name, channel in graph.channels.items():
        if name.startswith(JOIN):
            joins.add(prefix + name.removeprefix(JOIN).replace(":", " → "))
        elif not name.startswith((BRANCH, "__")):
            channels.add(f"{prefix}{name} ({_kind(channel)})")
    builder = getattr(graph, "builder", None)
    if builder is not None:
        edges |= {f"{prefix}{start} → {end}" for start, end in builder.edges}
        for start, branches in builder.branches.items():
            for branch in branches.values():
                ends = sorted((branch.ends or {}).values()) or ["any node"]
                edges.add(f"{prefix}{start} → {' or '.join(ends)}")
    for name, inner in graph.get_subgraphs():
        shape = shape_of(inner, f"{prefix}{name}/")
        nodes.update(shape.nodes)
        edges.update(shape.edges)
        joins.update(shape.joins)
        channels.update(shape.channels)
    return GraphShape(*(tuple(sorted(part)) for part in (nodes, edges, joins, channels)))


def fingerprinted(graph: Any) -> Any:
    """The same graph, with its fingerprint in the metadata of every checkpoint that it stores.

    On a `DeltaSaver` the shape is written to the database, once. Other savers have no place for
    it, so there the metadata holds the whole shape.
    """
    shape = shape_of(graph)
    saver = graph.checkpointer
    kept = shape.text
    if isinstance(saver, DeltaSaver):
        kept = shape.fingerprint
        with saver.database.write() as tx:
            tx.execute(
                """
                INSERT INTO graph_shapes (fingerprint, shape)
                VALUES (:fingerprint, :shape)
                    ON CONFLICT (fingerprint) DO NOTHING
                """,
                fingerprint=kept,
                shape=shape.text,
            )
    return graph.with_config(metadata={FINGERPRINT: kept})


def check_resume(graph: Any, config: RunnableConfig) -> ResumeCheck:
    """Compare the newest checkpoint of a thread with the graph that is to resume it.

    Runs nothing. Subgraphs that wait are looked into as well.
    """
    saver = graph.checkpointer
    found = saver.get_tuple(config)
    if found is None:
        return ResumeCheck((), ())
    stored = _stored_shape(saver, found)
    differences: tuple[str, ...] = ()
    if isinstance(stored, GraphShape):
        differences = stored.differences(shape_of(graph))
    elif stored is not None:
        differences = (f"the thread was stored by graph {stored}, whose shape is not known here",)
    problems = list(_problems(graph, found))
    if any(graph.get_subgraphs()):
        problems += _inside(graph, saver, graph.get_state(config, subgraphs=True))
    return ResumeCheck(tuple(problems), differences)


def _problems(graph: Any, found: CheckpointTuple) -> Iterator[str]:
    values = found.checkpoint["channel_values"]
    for node in position_of(values).waiting:
        if node not in graph.nodes:
            yield (
                f"the thread waits at node {node!r}, which the graph does not have: a resume "
                "would return without running it. Bring the node back, or rename it in a Step."
            )
    for name, value in values.items():
        if name in graph.channels or name in (INPUT, SENDS) or name.startswith(BRANCH):
            continue
        if name.startswith(JOIN):
            yield _about_join(graph, name, value)
        else:
            yield (
                f"the state has {name!r}, which the graph does not have: it would be lost at the "
                "next step, and a graph with interrupt_before would pause here for ever. Bring "
                "the key back, or drop it in a Step."
            )
    for task_id, name, _ in found.pending_writes or ():
        if name not in graph.channels and not name.startswith("__"):
            yield (
                f"task {task_id} has finished and wrote {name!r}, which the graph does not have: "
                "the write would be ignored. Bring the channel back, or rename it in a Step."
            )


def _about_join(graph: Any, name: str, value: Any) -> str:
    arrived = sorted(value[0] if isinstance(value, tuple) else value)
    starts, node = parts_of_join(name)
    alike = [
        channel
        for channel in graph.channels
        if channel.startswith(JOIN) and parts_of_join(channel) == (starts, node)
    ]
    now = f"the graph calls it {alike[0]!r}" if alike else "the graph has no such join"
    act = "Write the nodes in the old order" if alike else "Bring the join back"
    return (
        f"at {name!r} the nodes {arrived} have arrived, and {now}: {node!r} would never run. "
        f"{act}, or rename the channel in a Step."
    )


def _inside(graph: Any, saver: BaseCheckpointSaver[Any], state: Any) -> Iterator[str]:
    """The problems of the subgraphs that wait below a state of `graph`."""
    inner = dict(graph.get_subgraphs())
    for task in state.tasks:
        paused = getattr(task.state, "config", None) and saver.get_tuple(task.state.config)
        if task.name in inner and paused:
            graph_of_it = inner[task.name]
            said = (*_problems(graph_of_it, paused), *_inside(graph_of_it, saver, task.state))
            yield from (f"in the subgraph {task.name!r}: {problem}" for problem in said)


def _stored_shape(
    saver: BaseCheckpointSaver[Any], found: CheckpointTuple
) -> GraphShape | str | None:
    """The shape that a checkpoint was stored under; its fingerprint, if that is all there is."""
    kept: Any = found.metadata.get(FINGERPRINT)
    if not isinstance(kept, str):
        return None
    if kept.startswith("["):
        return GraphShape.from_text(kept)
    if isinstance(saver, DeltaSaver):
        with saver.database.read() as tx:
            row = tx.row("SELECT shape FROM graph_shapes WHERE fingerprint = :kept", kept=kept)
        if row is not None:
            shape = GraphShape.from_text(row[0])
            return shape if shape.fingerprint == kept else kept
    return kept


def _told(what: str, before: Iterable[str], now: Iterable[str]) -> Iterator[str]:
    gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    yield from (f"the {what} {one} is gone" for one in gone)
    yield from (f"the {what} {one} is new" for one in new)


def _kind(channel: Any) -> str:
    kind = type(channel).__name__
    reducer = getattr(channel, "operator", None) or getattr(channel, "reducer", None)
    name = getattr(reducer, "__qualname__", None) if reducer is not None else None
    return f"{kind}, {getattr(reducer, '__module__', '?')}.{name}" if name else kind
