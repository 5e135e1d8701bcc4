"""Threads to be damaged, killed or grown: small, and with one of everything.

A story is written once into a database. Between them the stories hold every kind of row that the
kit stores: deltas and snapshots of each policy, snapshots that list addresses and snapshots that
stand on their own, forks, a subgraph's namespace, a thread that has only a namespace, pending
writes (ordinary, interrupt, resume, error, of parallel tasks), writes that came before their
checkpoint and writes whose checkpoint never came, a copied, a compacted and a pruned thread, and
a `DeltaChannel`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langgraph.types import Interrupt

from durable_kit import Database, DeltaSaver, EveryN, SizeRatio
from durable_kit.storage import composer
from durable_kit.storage.snapshot_policy import SnapshotPolicy
from tests.contracts.builders import Line, facts


class Question(NamedTuple):
    """One question to a saver; about one thread, or about all of them."""

    thread_id: str | None
    ask: Callable[[DeltaSaver], Any]


POLICIES: dict[str, SnapshotPolicy] = {
    "SizeRatio()": SizeRatio(),
    "SizeRatio(0.5)": SizeRatio(0.5),  # snapshots that list addresses, every few steps
    "EveryN(5)": EveryN(5),
    "EveryN(7, self_contained)": EveryN(7, self_contained=True),
}


def tell(saver: DeltaSaver, *, steps: int = 6) -> None:
    """Write the threads of one story."""
    main = Line(saver, "main")
    message = conversation(main, steps, draft=True)
    trunk = main.tip
    fork = main.put({"messages": ["hello", "another way"]}, parent=_third(main))
    main.write(fork, ("messages", "from the fork"), task="t-fork", path="~__pregel_pull, fork")
    main.put({"messages": ["hello", "another way", "from the fork"]}, parent=fork)
    main.put(
        {"messages": [*message, "the last word"], "draft": "Dear Mr Li"}, parent=_at(main, trunk)
    )
    parallel_tasks(main)

    conversation(Line(saver, "main", "child:7"), 3)
    conversation(Line(saver, "only-a-child", "child|ü"), 2)
    early_writes(Line(saver, "early"))
    delta_channel(Line(saver, "delta channel"))
    saver.copy_thread("early", "a copy")
    if steps > 4:
        compacted = Line(saver, "compacted")
        said = conversation(compacted, 5)
        saver.compact("compacted")
        compacted.put({"messages": said})
        conversation(Line(saver, "pruned"), 6)
        saver.prune(["pruned"], keep_last=3)


def conversation(line: Line, steps: int, *, draft: bool = False) -> list[str]:
    """A growing list whose items come from pending writes; returns the list."""
    messages: list[str] = []
    for step in range(steps):
        values: dict[str, Any] = {"messages": list(messages), "step": step}
        if draft:
            values["draft"] = "Dear " + "x" * step
            values["facts"] = {"name": "Li", f"key {step % 3}": [step, {"deep": step}]}
        at = line.put(values, metadata={"source": "loop" if step else "input"})
        said = f"{line.thread_id}/{line.ns}: message number {step}, long enough for an address"
        line.write(
            at, ("messages", [said]), ("route", None), task=f"t{step}", path=f"pull, n{step}"
        )
        messages.append(said)
    return messages


def parallel_tasks(line: Line) -> None:
    """Pending writes of every kind on the newest checkpoint."""
    at = line.config(line.tip)
    line.write(at, ("messages", ["from b"]), ("n", 1), task="b", path="~__pregel_pull, b")
    line.write(at, ("messages", ["from a"]), ("n", 2), task="a", path="~__pregel_pull, a")
    line.write(at, ("__interrupt__", [Interrupt(value="sure?", id="i1")]), task="c")
    line.write(at, ("__resume__", ["yes"]), task="c")
    line.write(at, ("__error__", ValueError("no")), task="d")
    line.write(at, ("__error__", ValueError("no again")), task="d")


def early_writes(line: Line) -> None:
    """Writes before their checkpoint, and writes whose checkpoint never comes."""
    first = line.put({"messages": ["hello"]})
    early = "1ef4f797-8335-6428-8001-8a1503f9b875"
    line.write(line.config(early), ("messages", ["came before its checkpoint"]), task="early")
    line.put({"messages": ["hello", "you"]}, parent=first, checkpoint_id=early)
    line.put({"messages": ["hello", "you", "came before its checkpoint"]})
    never = "1ef4f797-8335-6428-8002-8a1503f9b875"
    line.write(line.config(never), ("messages", ["its checkpoint never came"]), task="never")


def delta_channel(line: Line) -> None:
    """A thread as LangGraph's DeltaChannel writes it: most steps store only their writes."""
    at = line.put({"log": ["zero"], "n": 0})
    for step in range(1, 5):
        line.write(at, ("log", [f"entry {step} of the delta channel"]), task=f"t{step}")
        at = line.put({"n": step}, unsaved=["log"])


def _third(line: Line) -> dict[str, Any]:
    return line.config(line.rows()[-3].checkpoint["id"])


def _at(line: Line, checkpoint_id: str | None) -> dict[str, Any]:
    return line.config(checkpoint_id)


def questions_of(saver: DeltaSaver) -> dict[str, Question]:
    """Every question that a program may ask of this database, by name."""
    found: dict[str, Question] = {
        "threads()": Question(None, lambda s: sorted(s.threads())),
        "list(None)": Question(None, lambda s: _seen(s.list(None))),
        "list(None, limit=2)": Question(None, lambda s: _seen(s.list(None, limit=2))),
        "an unknown thread": Question(None, lambda s: _one(s, _config("nobody", ""))),
    }
    for thread_id in sorted({name for name, _ in saver.threads()}):
        for name, ask in _about_thread(thread_id):
            found[f"{thread_id}: {name}"] = Question(thread_id, ask)
    for thread_id, namespace in sorted(saver.threads()):
        ids = [row.checkpoint["id"] for row in saver.list(_config(thread_id, namespace))]
        for name, ask in _about_log(thread_id, namespace, ids):
            found[f"{thread_id}/{namespace}: {name}"] = Question(thread_id, ask)
    return found


def answers(saver: DeltaSaver, questions: dict[str, Question]) -> dict[str, Any]:
    """What an undamaged database answers."""
    return {name: question.ask(saver) for name, question in questions.items()}


def _about_thread(thread_id: str) -> Iterator[tuple[str, Callable[[DeltaSaver], Any]]]:
    whole: Any = {"configurable": {"thread_id": thread_id}}
    yield "list", lambda s: _seen(s.list(whole))
    yield "list, limit 1", lambda s: _seen(s.list(whole, limit=1))
    yield "stats", lambda s: s.stats(thread_id).thread_id  # counts what is there, as it is
    yield "records", lambda s: [(r.checkpoint_id, r.sequence, r.kind) for r in s.records(thread_id)]


def _about_log(
    thread_id: str, namespace: str, ids: list[str]
) -> Iterator[tuple[str, Callable[[DeltaSaver], Any]]]:
    log = _config(thread_id, namespace)
    unknown = _config(thread_id, namespace, "1ef4f797-8335-6428-8001-000000000000")
    elsewhere = _config("x", "", "1ef4f797-8335-6428-8001-8a1503f9b875")
    yield "latest", lambda s: _one(s, log)
    yield "list", lambda s: _seen(s.list(log))
    yield "an unknown id", lambda s: _one(s, unknown)
    yield "list of an unknown id", lambda s: _seen(s.list(unknown))
    yield "list by source", lambda s: _seen(s.list(log, filter={"source": "loop"}))
    yield "list by step, limit 1", lambda s: _seen(s.list(log, filter={"step": 1}, limit=1))
    yield "list before an id from elsewhere", lambda s: _seen(s.list(log, before=elsewhere))
    for limit in (1, 3):
        yield f"list, limit {limit}", lambda s, n=limit: _seen(s.list(log, limit=n))
    for n, checkpoint_id in enumerate(ids):
        at = _config(thread_id, namespace, checkpoint_id)
        yield f"get {checkpoint_id}", lambda s, c=at: _one(s, c)
        if n % 3 == 0:
            yield f"list of {checkpoint_id}", lambda s, c=at: _seen(s.list(c))
        elif n % 3 == 1:
            yield (
                f"list, 2 before {checkpoint_id}",
                lambda s, b=at: _seen(s.list(log, before=b, limit=2)),
            )
            yield f"list, all before {checkpoint_id}", lambda s, b=at: _seen(s.list(log, before=b))
        else:
            yield (
                f"delta history of {checkpoint_id}",
                lambda s, c=at: repr(
                    s.get_delta_channel_history(config=c, channels=["log", "messages"])
                ),
            )


def _config(thread_id: str, namespace: str, checkpoint_id: str | None = None) -> dict[str, Any]:
    configurable = {"thread_id": thread_id, "checkpoint_ns": namespace}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


def _one(saver: DeltaSaver, config: Any) -> str | None:
    found = saver.get_tuple(config)
    return None if found is None else repr(facts(found))


def _seen(rows: Iterator[Any]) -> list[str]:
    return [repr(facts(row)) for row in rows]


@contextmanager
def small_packs() -> Iterator[None]:
    """Write records are packed from four on, so that small stories have packs as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(composer, "PACK_AT_LEAST", 4)
        yield


def sqlite_template(path: Path, policy: SnapshotPolicy, **options: Any) -> bytes:
    """A story as the bytes of a SQLite file that lets any column be NULL."""
    with small_packs(), Database.open(f"sqlite:///{path}", synchronous="OFF") as database:
        tell(DeltaSaver(database, policy=policy), **options)
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute(
            "UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE type = 'table'"
        )
        raw.execute("PRAGMA journal_mode = DELETE")
    return path.read_bytes()
