"""A node gets another name, and the threads that wait at it must not notice.

LangGraph has no pointer to "where the thread stands". It has names, in six places:

    channel_values     branch:to:review, join:a+review:c = {"review"}, Send("review", …)
    channel_versions   branch:to:review
    versions_seen      {"review": {"branch:to:review": 7}}
    pending writes     to branch:to:review; and by a *task id*, a hash over the node's name
    interrupts         with an id that is a hash over the task's namespace
    subgraphs          stored under the namespace review:<task id>

Rename the node in code alone, and the next resume finds nothing to do: it returns normally, with
the old state, and nobody is told. Rename some of the places, and a task that had finished runs
again, since its writes are filed under a task that no longer exists.

The functions here rename all of them, purely: checkpoint in, checkpoint out. A task id cannot be
read, but it can be *made* again from the checkpoint, for each node that comes next, by the old
names and by the new ones; that gives the map from old ids to new.

What is promised: a write of a task that moves is found under the new id, or the caller is told that
it cannot be found. Left out: tasks of the functional API and error handlers of a node that was
renamed (the caller is told), ids from checkpoints of format 1, and the ids of interrupts *inside* a
subgraph whose node was renamed: `Command(resume=value)` reaches them, an old id does not.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from xxhash import xxh3_128_hexdigest

from durable_kit.versions.position import BRANCH, JOIN, SENDS, parts_of_join, position_of

PULL, PUSH = "__pregel_pull", "__pregel_push"
INTERRUPT, BUMPS = "__interrupt__", "__snapshot_bumps__"
NOBODYS_TASK = "00000000-0000-0000-0000-000000000000"

Names = Mapping[str, str]


class Task(NamedTuple):
    """A task that may come next: its id, and the namespace that it gives to its inside."""

    id: str
    namespace: str


def rename_in_channel(channel: str, nodes: Names) -> str:
    """The name of a channel after nodes were renamed."""
    if not nodes:
        return channel
    if channel.startswith(BRANCH):
        node = channel[len(BRANCH) :]
        return BRANCH + nodes.get(node, node)
    if channel.startswith(JOIN):
        starts, _, node = channel[len(JOIN) :].rpartition(":")
        parts = "+".join(nodes.get(start, start) for start in starts.split("+"))
        return f"{JOIN}{parts}:{nodes.get(node, node)}"
    return channel


def rename_in_join(value: Any, nodes: Names) -> Any:
    """The value of a join's channel (who has arrived), or a write to it (who arrives)."""
    if isinstance(value, str):
        return nodes.get(value, value)
    if isinstance(value, set | frozenset):
        return type(value)(nodes.get(node, node) for node in value)
    if isinstance(value, tuple) and value:  # (arrived, finished) of a deferred join
        return (rename_in_join(value[0], nodes), *value[1:])
    return value


def rename_in_send(packet: Any, nodes: Names, convert: Mapping[str, Callable[[Any], Any]]) -> Any:
    """A packet of Send, with its node renamed and its argument converted."""
    if not hasattr(packet, "node") or not hasattr(packet, "arg"):
        return packet
    node = nodes.get(packet.node, packet.node)
    arg = convert[node](packet.arg) if node in convert else packet.arg
    if node == packet.node and arg is packet.arg:
        return packet
    return type(packet)(node, arg, timeout=getattr(packet, "timeout", None))


def rename_in_seen(
    seen: Mapping[str, Mapping[str, Any]],
    nodes: Names,
    channel: Callable[[str], str],
    drop: Collection[str],
) -> dict[str, dict[str, Any]]:
    """versions_seen with nodes and channels by their new names."""

    def mark(key: str) -> str:  # node|channel or node:channel
        for sign in "|:":
            node, found, name = key.partition(sign)
            if found:
                return f"{nodes.get(node, node)}{sign}{channel(name)}"
        return key

    return {
        nodes.get(node, node): {
            mark(name) if node == BUMPS else channel(name): version
            for name, version in versions.items()
            if name not in drop
        }
        for node, versions in seen.items()
    }


# -- tasks -------------------------------------------------------------------------------------


def moved_writes(
    checkpoint: Mapping[str, Any],
    writes: Sequence[tuple[str, str, Any]],
    old: Sequence[int],
    *,
    step: int,
    before: str,
    after: str,
    back: Names,
) -> tuple[list[tuple[str, Any]], str | None]:
    """(task id, value) of each write, by the new names; and a task that cannot be told, or None.

    `checkpoint` has the new names already, `back` leads from them to the old ones. `before` and
    `after`: the namespace of the graph, by the old names and by the new. `old`: which writes may
    be by the old names. `step`: the super-step that the tasks are of.
    """
    moves: dict[str, tuple[Task, Task]] = {}
    here = {NOBODYS_TASK, *_made_up(checkpoint["id"], len(writes))}
    for was, now in _tasks(checkpoint, step, before, after, back):
        moves[was.id] = (was, now)
        here.add(now.id)
    concerned = any(was.id != now.id for was, now in moves.values())
    result: list[tuple[str, Any]] = []
    lost: str | None = None
    for n, (task_id, channel, value) in enumerate(writes):
        if n in old and task_id in moves:
            was, now = moves[task_id]
            moved = _interrupts(value, was, now) if channel == INTERRUPT else value
            result.append((now.id, moved))
            continue
        result.append((task_id, value))
        # The last two are ids under which a DeltaChannel's writes are filed in exit mode.
        known = task_id in here or task_id[:8].isdecimal() or task_id.startswith("ffffffff")
        if n in old and concerned and not known:
            lost = task_id
    return result, lost


def task_namespaces(
    checkpoint: Mapping[str, Any], step: int, *, before: str, after: str, back: Names
) -> dict[str, str]:
    """The namespaces that tasks give to their inside, by the old names, to those by the new."""
    tasks = _tasks(checkpoint, step, before, after, back)
    return {was.namespace: now.namespace for was, now in tasks}


def _tasks(
    checkpoint: Mapping[str, Any], step: int, before: str, after: str, back: Names
) -> Iterator[tuple[Task, Task]]:
    """Every task that may come next, by the old names and by the new.

    A node's triggers are its branch and all joins that lead to it, and a checkpoint knows only the
    joins that somebody has reached; so a node with joins gets a task for each choice of them.
    """
    raw = binascii.unhexlify(checkpoint["id"].replace("-", ""))
    joins: dict[str, list[str]] = {}
    for channel in checkpoint["channel_versions"]:
        if channel.startswith(JOIN):
            joins.setdefault(parts_of_join(channel)[1], []).append(channel)
    packets = checkpoint["channel_values"].get(SENDS) or ()
    pushed = {packet.node for packet in packets if hasattr(packet, "node")}
    for node in position_of(checkpoint["channel_values"]).waiting:
        old = back.get(node, node)
        for count in range(len(joins.get(node, ())) + 1):
            for chosen in combinations(joins.get(node, ()), count):
                triggers = [BRANCH + node, *chosen]
                olds = [rename_in_channel(channel, back) for channel in triggers]
                yield (
                    _task(raw, before, old, step, PULL, *sorted(olds)),
                    _task(raw, after, node, step, PULL, *sorted(triggers)),
                )
        if node in pushed:
            for place, packet in enumerate(packets):
                if packet.node == node:
                    yield (
                        _task(raw, before, old, step, PUSH, str(place)),
                        _task(raw, after, node, step, PUSH, str(place)),
                    )


def _task(raw: bytes, namespace: str, node: str, step: int, *parts: str) -> Task:
    """LangGraph's id of a task: a hash over the checkpoint and where in it the task stands."""
    inside = f"{namespace}|{node}" if namespace else node
    said = "".join((inside, str(step), node, *parts))
    digits = xxh3_128_hexdigest(raw + said.encode())
    task_id = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    return Task(task_id, f"{inside}:{task_id}")


def _interrupts(value: Any, was: Task, now: Task) -> Any:
    """Interrupts with the ids that they would get today, where they are of this very task."""
    if not isinstance(value, list | tuple):
        return value
    moved = []
    for one in value:
        for answered in range(100):
            end = f"|{answered}" if answered else ""
            if getattr(one, "id", None) == xxh3_128_hexdigest((was.namespace + end).encode()):
                one = _copy_with_id(one, xxh3_128_hexdigest((now.namespace + end).encode()))
                break
        moved.append(one)
    return type(value)(moved)


def _copy_with_id(interrupt: Any, new_id: str) -> Any:
    return type(interrupt)(
        interrupt.value, new_id, response_schema=getattr(interrupt, "response_schema", None)
    )


def _made_up(checkpoint_id: str, count: int) -> Iterator[str]:
    """The ids under which LangGraph files what no task wrote: an input, calls of update_state."""
    namespace = UUID(checkpoint_id)
    for name in ("__input__", INTERRUPT, *(f"{INTERRUPT}:{n}" for n in range(1, count))):
        yield str(uuid5(namespace, name))
