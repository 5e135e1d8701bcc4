"""Which logs there are: the namespaces of a thread, and all threads.

A log is found by its key, a hash of thread and namespace: reading one namespace needs nothing
else. But "which namespaces has this thread" and "which threads are there" are answered from the
heads, and a head that has gone leaves no hole to stumble over:

    thread t    ''  head ✓       child:7  head ✗       child:8  head ✓
    list(t)     the checkpoints of '' and child:8, and nobody misses the others

So the head of the root namespace keeps the XOR of the keys of all others. One lost head makes it
come out wrong, and even says whose key is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING, Any, NoReturn

from durable_kit.errors import BrokenChain
from durable_kit.storage.database import Tx
from durable_kit.storage.record import Head, escape_text, thread_key, unescape_text
from durable_kit.storage.rows import LogRows, head_from_row
from durable_kit.storage.write_rows import REMEDY

if TYPE_CHECKING:
    from durable_kit.storage.checkpoint_log import CheckpointLog


def logs_of(log: CheckpointLog, tx: Tx, thread_id: str) -> list[tuple[LogRows, Head]]:
    """The logs of one thread that hold anything, the root namespace first.

    Raises `BrokenChain` if a head is damaged or missing.
    """
    root = log.rows(tx, thread_id, "")
    root_head = root.head()
    result = [(root, root_head)] if root_head is not None else []
    keys: list[int] = []
    for (namespace,) in tx.rows(
        """
        SELECT namespace
          FROM checkpoint_heads
         WHERE thread_id = :thread_id AND thread_key <> :root
         ORDER BY namespace
        """,
        thread_id=escape_text(thread_id),
        root=root.key,
    ):
        rows = log.rows(tx, thread_id, _text(namespace))
        head = rows.head()
        if head is None:
            root.broken(f"the head of a namespace says {namespace!r}, which is not its name")
        keys.append(rows.key)
        result.append((rows, head))
    if _sum(keys) != (root_head.namespaces if root_head is not None else 0):
        root.broken("the head of one of the thread's namespaces is missing")
    return [(rows, head) for rows, head in result if head.records]


def hold_back(tx: Tx, thread_id: str) -> None:
    """Let nobody else write to the logs of a thread until `tx` ends, whatever state they are in.

    Every writer begins with this. On SQLite a write transaction is alone anyway. On PostgreSQL
    each statement sees what is committed when it starts: a count read first and the rows read
    after it would contradict each other if another writer could commit in between.
    """
    if not tx.is_sqlite:
        tx.execute("SELECT pg_advisory_xact_lock(:key)", key=thread_key(thread_id, ""))


def all_logs(tx: Tx) -> list[tuple[str, str]]:
    """(thread id, namespace) of every log that holds anything, in order of name.

    Raises `BrokenChain` if one may be missing, or has another name than it says.
    """
    heads: dict[int, Head] = {}
    for key, *row in tx.rows(
        """
        SELECT thread_key, thread_id, namespace, next_sequence, latest_sequence, records,
               sequence_sum, namespaces, digest, checksum
          FROM checkpoint_heads
        """
    ):
        try:
            head = head_from_row(row)
            if head.checksum != row[-1] or thread_key(head.thread_id, head.namespace) != key:
                raise ValueError("it does not match its checksum")
        except (TypeError, ValueError) as error:
            _broken(str(row[0]), f"the head of a log cannot be trusted ({error})")
        heads[key] = head
    threads: dict[str, list[int]] = {}
    for key, head in heads.items():
        threads.setdefault(head.thread_id, []).extend([key] if head.namespace else [])
    for thread_id, keys in threads.items():
        root = heads.get(thread_key(thread_id, ""))
        if _sum(keys) != (root.namespaces if root is not None else 0):
            _broken(thread_id, "the head of one of the thread's namespaces is missing")
    for key in orphaned_keys(tx):
        _broken("unknown", f"the head of log {key} is gone, its records are there")
    return sorted((head.thread_id, head.namespace) for head in heads.values() if head.records)


def orphaned_keys(tx: Tx) -> list[int]:
    """The keys that have records and no head."""
    heads = {row[0] for row in tx.rows("SELECT thread_key FROM checkpoint_heads")}
    return [key for (key,) in tx.rows(_EVERY_KEY) if key not in heads]


# One probe of the index for each log, instead of one look at each record.
_EVERY_KEY = """
    WITH RECURSIVE logs (thread_key) AS (
        SELECT min(thread_key) FROM checkpoints
        UNION ALL
        SELECT (SELECT min(c.thread_key) FROM checkpoints c WHERE c.thread_key > logs.thread_key)
          FROM logs
         WHERE logs.thread_key IS NOT NULL
    )
    SELECT thread_key FROM logs WHERE thread_key IS NOT NULL
"""


@dataclass(slots=True)
class Namespaces:
    """What is known of the logs of one thread, in whatever state its heads are.

    `logs`: those whose name is known, the root first. `strays`: keys of heads that name this
    thread and stand where they do not belong. `lost`: the key of a log whose head is gone, and
    with it its name; 0 if there is none.
    """

    logs: list[LogRows] = field(default_factory=list)
    strays: list[Any] = field(default_factory=list)
    lost: int = 0
    problems: list[str] = field(default_factory=list)


def look(log: CheckpointLog, tx: Tx, thread_id: str) -> Namespaces:
    """Find the logs of a thread, also where heads are damaged. Raises nothing for damage."""
    found = Namespaces()
    root = log.rows(tx, thread_id, "")
    heads = tx.rows(
        """
        SELECT thread_key, namespace
          FROM checkpoint_heads
         WHERE thread_id = :thread_id OR thread_key = :root
        """,
        thread_id=escape_text(thread_id),
        root=root.key,
    )
    # Whatever the heads say is a name to be tried: a log is under the key that its name gives.
    names = {thread_key(thread_id, name): name for name in {"", *(_text(row[1]) for row in heads)}}
    logs = {name for name in names.values() if log.rows(tx, thread_id, name).any_record()}
    for key, namespace in heads:
        if key in names:
            logs.add(names[key])
        else:
            found.strays.append(key)
        if names.get(key) != _text(namespace):
            found.problems.append(f"a head that says namespace {namespace!r} is not in its place")
    if logs:
        found.logs = [log.rows(tx, thread_id, name) for name in sorted({*logs, ""})]
    try:
        root_head = root.head()
    except BrokenChain:
        return found  # reported by whoever looks at the log itself
    keys = _sum(rows.key for rows in found.logs if rows.namespace)
    if root_head is None:
        if keys:
            found.problems.append("the head of the root namespace is missing")
    elif keys != root_head.namespaces:
        found.lost = keys ^ root_head.namespaces
        found.problems.append("the head of one of the thread's namespaces is missing")
    return found


def _sum(keys: Iterable[int]) -> int:
    return reduce(xor, keys, 0)


def _text(column: Any) -> str:
    """A text column, also where it holds something else: no namespace is called that."""
    return unescape_text(column) if isinstance(column, str) else f"\0{column!r}"


def _broken(thread_id: str, found: str) -> NoReturn:
    raise BrokenChain(
        thread_id=thread_id,
        namespace="",
        checkpoint_id=None,
        sequence=None,
        found=found,
        remedy=REMEDY,
    )
