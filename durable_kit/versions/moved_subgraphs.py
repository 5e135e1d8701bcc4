"""Find a subgraph that paused inside a node which has another name now.

A subgraph's checkpoints lie in a namespace made of its node's name and task id, and the id is a
hash over the name. After a rename LangGraph asks for a namespace that nothing was ever stored in,
takes that for a subgraph that has not begun, and begins it again, effects and all:

    stored     review:8f14…    paused, half done
    asked for  check:03ac…     nothing there  →  starts from its first node

So for a namespace that is not there, the thread's others are looked through: which of them would be
called this today? The checkpoint that the subgraph began from is known (its metadata names it), and
from it the ids of its tasks are made again, by both names. The log keeps the old name for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from durable_kit.storage.checkpoint_log import CheckpointLog
from durable_kit.storage.namespaces import logs_of
from durable_kit.versions.migration import Migrations
from durable_kit.versions.node_names import task_namespaces

if TYPE_CHECKING:
    from durable_kit.checkpoint_reading import CheckpointReading


def stored_namespace(
    log: CheckpointLog,
    reading: CheckpointReading,
    migrations: Migrations,
    thread_id: str,
    asked: str,
) -> str:
    """The name under which the namespace `asked` is stored; itself, if that is so or nothing is."""
    with log.database.read() as tx:
        if log.rows(tx, thread_id, asked).head() is not None:
            return asked
        others = [rows.namespace for rows, _ in logs_of(log, tx, thread_id) if rows.namespace]
    graph = migrations.today(asked)
    for stored in others:
        alike = migrations.today(stored) == graph
        if alike and _name_today(log, reading, migrations, thread_id, stored) == asked:
            return stored
    return asked


def _name_today(
    log: CheckpointLog,
    reading: CheckpointReading,
    migrations: Migrations,
    thread_id: str,
    stored: str,
) -> str | None:
    """What LangGraph calls a stored namespace under today's node names; None if nobody can tell."""
    inner = log.read(thread_id, stored)
    if inner is None:
        return None
    parents = reading.metadata_of(inner.record).get("parents", {})
    before = after = ""
    for segment in stored.split("|"):
        node, _, task = segment.partition(":")
        new = migrations.node_today(node, migrations.today(before))
        whole = _below(before, segment)
        if task:
            parent_id = parents.get(before) or parents.get(after)
            entry = log.read(thread_id, before, parent_id) if parent_id else None
            if entry is None:
                return None
            seen = reading.upcast(entry, namespace=after)
            moved = task_namespaces(
                seen.checkpoint, seen.step + 1, before=before, after=after, back={new: node}
            )
            if whole not in moved:
                return None
            after = moved[whole]
        else:
            after = _below(after, new)
        before = whole
    return after


def _below(namespace: str, segment: str) -> str:
    return f"{namespace}|{segment}" if namespace else segment
