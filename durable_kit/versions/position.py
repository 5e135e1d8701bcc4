"""Where a thread stands, told from its checkpoint alone, and kept beside it in a few bytes.

"Which threads still wait in code that I want to delete?" is asked of all threads at once, after
each deploy. Reading every state to answer it reads the whole database. But what the answer needs
is small, and is at hand whenever a checkpoint is stored:

    channel_values  {"branch:to:review": None, "flow_version": 1, "messages": […40 kB…]}
    position        flow_version 1, waits at review                            12 bytes

LangGraph tells the next super-step by channels: a node has a channel `branch:to:<node>`, a join of
several nodes a channel `join:<a>+<b>:<node>` with the set of those that have arrived, the packets
of Send lie in `__pregel_tasks`, and the input of a run in `__start__`. A checkpoint that holds one
of them, complete, has that node before it.

A position is stored with a check of its own, because the checksum of its record covers the state as
well, and whoever reads positions does not read states. Where the check fails the caller has to read
the thread.

Left out: nodes *inside* a subgraph that waits. The thread waits at the subgraph's node.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FLOW_VERSION = "flow_version"
"""The state channel in which a thread carries the version of the rules that it began with."""

UNPINNED_IS = 1
"""The flow_version, by definition, of a thread that began before threads were pinned."""

HELD_AFTER = "held_after_"
"""What the name of the node begins with in which threads wait that a branch has no path for."""

INPUT, SENDS, BRANCH, JOIN = "__start__", "__pregel_tasks", "branch:to:", "join:"


@dataclass(frozen=True, slots=True)
class Position:
    """Where one checkpoint stands. `waiting`: the nodes of its next super-step, sorted; empty for
    a run that has ended. `flow_version` is None where the state has none."""

    flow_version: int | None
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ThreadPosition:
    """Where a thread stands, by today's node names; since when, in microseconds UTC; and the
    state_version of its newest record."""

    thread_id: str
    position: Position
    state_version: int
    since_us: int


def flow_version_in(values: Mapping[str, Any]) -> Any:
    """What the state says of its flow_version; None if it says nothing (0: a channel's default)."""
    pinned = values.get(FLOW_VERSION)
    return None if type(pinned) is int and pinned == 0 else pinned


def position_of(values: Mapping[str, Any]) -> Position:
    """The position of a checkpoint, from its channel values."""
    waiting: set[str] = set()
    for channel, value in values.items():
        if channel.startswith(BRANCH):
            if _without_defer(value)[1]:
                waiting.add(channel[len(BRANCH) :])
        elif channel.startswith(JOIN):
            starts, node = parts_of_join(channel)
            arrived, finished = _without_defer(value)
            if finished and arrived == starts:
                waiting.add(node)
        elif channel == SENDS:
            waiting.update(packet.node for packet in value if hasattr(packet, "node"))
        elif channel == INPUT:
            waiting.add(INPUT)
    pinned = flow_version_in(values)
    return Position(pinned if type(pinned) is int else None, tuple(sorted(waiting)))


def _without_defer(value: Any) -> tuple[Any, bool]:
    """A deferred node's channel holds (value, whether all others have finished)."""
    return (value[0], bool(value[1])) if type(value) is tuple and len(value) == 2 else (value, True)


def parts_of_join(channel: str) -> tuple[set[str], str]:
    """The nodes that a join's channel waits for, and the node that it leads to."""
    starts, _, node = channel[len(JOIN) :].rpartition(":")
    return set(starts.split("+")), node


def pack_position(checkpoint_id: str, position: Position) -> list[Any]:
    """What is stored with a checkpoint."""
    return [position.flow_version, *position.waiting, _check(checkpoint_id, position)]


def unpack_position(checkpoint_id: str, packed: Any) -> Position | None:
    """The inverse of `pack_position`; None for what it never gave, or gave for another one."""
    if not isinstance(packed, list) or len(packed) < 2:
        return None
    flow_version, *waiting, check = packed
    if not all(isinstance(node, str) for node in waiting):
        return None
    position = Position(flow_version, tuple(waiting))
    return position if check == _check(checkpoint_id, position) else None


def _check(checkpoint_id: str, position: Position) -> int:
    """32 bits against a damaged byte or a row in the wrong place; not against malice."""
    said = f"{checkpoint_id} {position.flow_version} {position.waiting}"
    return zlib.crc32(said.encode("utf-8", "surrogatepass"))
