"""Retention: what may be thrown away, and that nothing else changes by it.

In a chain of deltas every checkpoint stands on its ancestors, so deletion is where such a store
can do harm long after the fact:

    C1 snapshot ← C2 delta ← C3 delta ← C4 delta (newest)
    prune to the newest: C1..C3 go, C4 must still read as before, in every channel

The promise is the same for `prune`, `delete_for_runs` and for deleting the source of a copy: a
checkpoint either is gone or reads exactly as it did. And a limit that makes no sense (0, -1, NaN)
is refused before a row is touched, because "delete all but the newest -1" has deleted everything
by the time somebody reads the log.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.checkpoint.serde.types import INTERRUPT

from .builders import Config, Line, MakeSaver, assert_same, facts, refuses


def delete_thread_removes_the_pending_writes_too(make_saver: MakeSaver) -> None:
    """Shown by building the same checkpoint again: no write of its former life may come back."""
    saver = make_saver()
    first, second = Line(saver), Line(saver, ns="child:1")
    second.thread_id = first.thread_id
    identity = "1f000000-0000-6000-8000-0000000000cc"
    for line in (first, second):
        at = line.put({"log": ["a"]}, checkpoint_id=identity)
        line.write(at, ("log", "old"), (INTERRUPT, "old"), task="t", path="p")
        line.write(line.config("1f000000-0000-6000-8000-0000000000dd"), ("log", "orphan"), task="t")
    saver.delete_thread(first.thread_id)
    assert list(saver.list({"configurable": {"thread_id": first.thread_id}})) == []
    for line in (Line(saver, first.thread_id), Line(saver, first.thread_id, ns="child:1")):
        assert saver.get_tuple(line.config(identity)) is None
        at = line.put({"log": ["b"]}, checkpoint_id=identity)
        orphan = line.put({"log": ["c"]}, checkpoint_id="1f000000-0000-6000-8000-0000000000dd")
        assert line.read(at).pending_writes == []
        assert line.read(orphan).pending_writes == []
        assert line.read(at).parent_config is None
        assert line.read(at).checkpoint["channel_values"] == {"log": ["b"]}


def deleting_a_run_in_the_middle_leaves_the_others_unchanged(make_saver: MakeSaver) -> None:
    """Its checkpoints and writes go; every other one reads as before, and the thread goes on."""
    saver, token = make_saver(), str(uuid.uuid4())
    line, bystander = Line(saver), Line(saver)
    stored = _grow(line, 12, run_of=lambda step: f"{token}-{step // 4}")
    _grow(bystander, 3, run_of=lambda step: f"{token}-other")
    before = _survivors(line, lambda row: row.metadata["run_id"] != f"{token}-1")
    untouched = [facts(row) for row in bystander.rows()]
    saver.delete_for_runs([f"{token}-1", f"{token}-never-there"])
    assert_same([facts(row, with_parent=False) for row in line.rows()], before, "the survivors")
    assert_same([facts(row) for row in bystander.rows()], untouched, "the other thread")
    assert all(saver.get_tuple(at) is None for at in stored[4:8])
    _grow(line, 2, run_of=lambda step: f"{token}-2")
    assert_same([facts(row, with_parent=False) for row in line.rows()][2:], before, "later")


def deleting_the_first_or_the_last_run_works_too(make_saver: MakeSaver) -> None:
    """The root has children and the tip has writes; neither is special."""
    saver, token = make_saver(), str(uuid.uuid4())
    for gone in (0, 2):
        line = Line(saver)
        _grow(line, 9, run_of=lambda step, gone=gone: f"{token}-{gone}-{step // 3}")
        before = _survivors(
            line, lambda row, gone=gone: row.metadata["run_id"] != f"{token}-{gone}-{gone}"
        )
        saver.delete_for_runs([f"{token}-{gone}-{gone}"])
        assert_same([facts(row, with_parent=False) for row in line.rows()], before, f"run {gone}")
        assert_same(facts(line.read(), with_parent=False), before[0], "the newest")


def deleting_a_run_reaches_every_thread_and_namespace(make_saver: MakeSaver) -> None:
    """One run of a parent and its subgraphs; a second run shares a fork with it."""
    saver, run = make_saver(), f"run-{uuid.uuid4()}"
    lines = [Line(saver), Line(saver, ns="child:1"), Line(saver)]
    lines[1].thread_id = lines[0].thread_id
    for line in lines:
        base = line.put({"log": ["base"]}, metadata={"run_id": f"{run} before"})
        line.put({"log": ["base", "gone"]}, metadata={"run_id": run})
        line.put({"log": ["base", "kept"]}, parent=base, metadata={"run_id": f"{run} after"})
    saver.delete_for_runs([run])
    for line in lines:
        assert [row.checkpoint["channel_values"]["log"] for row in line.rows()] == [
            ["base", "kept"],
            ["base"],
        ]


def a_copy_is_complete_and_lives_alone(make_saver: MakeSaver) -> None:
    """All namespaces, forks, writes and the order; then the source is deleted, or goes on."""
    saver = make_saver()
    for fate in ("deleted", "goes on"):
        root = Line(saver)
        lines = [root, Line(saver, root.thread_id, ns="child:1")]
        for line in lines:
            stored = _grow(line, 6)
            line.put({"log": ["fork"], "d": {}}, parent=stored[2])
        copied_id = f"copy-{uuid.uuid4()}"
        before = [_moved(facts(row), copied_id) for line in lines for row in line.rows()]
        saver.copy_thread(root.thread_id, copied_id)
        if fate == "deleted":
            saver.delete_thread(root.thread_id)
        else:
            _grow(lines[0], 3)
            saver.prune([root.thread_id], strategy="keep_latest")
        copies = [Line(saver, copied_id, ns=line.ns) for line in lines]
        found = [facts(row) for line in copies for row in line.rows()]
        assert_same(found, before, f"the copy after the source is {fate}")
        assert_same(facts(copies[0].read()), before[0], "its newest")


def prune_keeps_the_newest_of_each_namespace(make_saver: MakeSaver) -> None:
    """Newest means written last, also on a fork from an early checkpoint; other threads stay."""
    saver = make_saver()
    root = Line(saver)
    lines = [root, Line(saver, root.thread_id, ns="child:1"), Line(saver, root.thread_id, ns="|")]
    bystander = Line(saver)
    _grow(bystander, 3)
    for line in lines:
        stored = _grow(line, 7)
        fork = line.put(
            {"log": ["fork"], "d": {"x": 1}},
            parent=stored[1],
            checkpoint_id="1e000000-0000-6000-8000-000000000000",
        )
        line.write(fork, ("log", "pending"), task="t")
    before = [facts(line.read(), with_parent=False) for line in lines]
    untouched = [facts(row) for row in bystander.rows()]
    saver.prune([root.thread_id, "thread that never was"], strategy="keep_latest")
    for line, expected in zip(lines, before, strict=True):
        assert_same([facts(row, with_parent=False) for row in line.rows()], [expected], line.ns)
        assert_same(facts(line.read(), with_parent=False), expected, line.ns)
        line.put({"log": ["fork", "goes on"], "d": {"x": 1}})
        assert line.read().checkpoint["channel_values"]["log"] == ["fork", "goes on"]
    assert_same([facts(row) for row in bystander.rows()], untouched, "the other thread")


def prune_keeps_the_writes_of_an_unfinished_step(make_saver: MakeSaver) -> None:
    """Three tools, two done and one paused: without the writes a resume repeats the two."""
    saver = make_saver()
    line = Line(saver)
    _grow(line, 5)
    tip = line.put({"log": ["call three tools"], "d": {}})
    line.write(tip, ("log", "tool a done"), task="a", path="~1")
    line.write(tip, (INTERRUPT, "may I?"), task="c", path="~3")
    line.write(tip, ("log", "tool b done"), task="b", path="~2")
    before = line.read(tip).pending_writes
    assert before is not None
    assert len(before) == 3
    saver.prune([line.thread_id], strategy="keep_latest")
    assert line.read().pending_writes == before
    line.write(tip, ("log", "tool a again"), task="a", path="~1")
    assert line.read().pending_writes == before, "the first success still stands"


def prune_strategy_delete_removes_the_thread(make_saver: MakeSaver) -> None:
    """Like delete_thread, for many at once."""
    saver = make_saver()
    lines = [Line(saver) for _ in range(3)]
    for line in lines:
        _grow(line, 3)
    kept = [facts(row) for row in lines[2].rows()]
    saver.prune([line.thread_id for line in lines[:2]], strategy="delete")
    assert [line.rows() for line in lines[:2]] == [[], []]
    assert_same([facts(row) for row in lines[2].rows()], kept, "the thread not named")


def prune_of_nothing_does_nothing(make_saver: MakeSaver) -> None:
    """No threads, unknown threads, and a name where a list of names belongs."""
    saver = make_saver()
    prefix = uuid.uuid4().hex
    line = Line(saver, prefix[0])
    _grow(line, 3)
    before = [facts(row) for row in line.rows()]
    saver.prune([], strategy="delete")
    saver.prune([prefix], strategy="delete")
    # A string is a sequence of one-letter thread ids; the wrong letter must not cost a thread.
    refuses(lambda: saver.prune(prefix, strategy="delete"))
    assert_same([facts(row) for row in line.rows()], before, "nothing was named")
    saver.delete_thread(line.thread_id)


def keep_last_keeps_that_many_by_order_of_writing(make_saver: MakeSaver) -> None:
    """Per namespace; more than there are keeps all; each survivor reads as before."""
    saver = make_saver()
    for keep in (1, 3, 7, 10**9):
        root = Line(saver)
        lines = [root, Line(saver, root.thread_id, ns="child:1")]
        for line in lines:
            stored = _grow(line, 5)
            line.put(
                {"log": ["fork"], "d": {}},
                parent=stored[0],
                checkpoint_id="1e000000-0000-6000-8000-000000000000",
            )
            line.put({"log": ["back on the first branch"], "d": {}}, parent=stored[4])
        before = [_survivors(line, lambda row: True)[:keep] for line in lines]
        saver.prune([root.thread_id], strategy="keep_latest", keep_last=keep)  # type: ignore[call-arg]
        for line, expected in zip(lines, before, strict=True):
            assert_same(
                [facts(row, with_parent=False) for row in line.rows()],
                expected,
                f"keep_last={keep}",
            )


def older_than_spares_what_is_younger(make_saver: MakeSaver) -> None:
    """An age, not a date. Nothing is a day old; with age 0 all are old, and the newest stays."""
    saver = make_saver()
    line = Line(saver)
    _grow(line, 5)
    before = _survivors(line, lambda row: True)
    prune: Callable[..., Any] = saver.prune
    prune([line.thread_id], strategy="keep_latest", older_than=timedelta(days=1))
    assert_same(_survivors(line, lambda row: True), before, "all are younger than a day")
    prune([line.thread_id], strategy="keep_latest", older_than=3600)
    assert_same(_survivors(line, lambda row: True), before, "all are younger than an hour")
    prune([line.thread_id], strategy="keep_latest", older_than=timedelta(days=999_999_999))
    assert_same(_survivors(line, lambda row: True), before, "all are younger than time itself")
    _wait_for_the_clock()
    prune([line.thread_id], strategy="keep_latest", keep_last=3, older_than=0)
    assert_same(_survivors(line, lambda row: True), before[:3], "the newest three")
    prune([line.thread_id], strategy="keep_latest", older_than=timedelta(0))
    assert_same(_survivors(line, lambda row: True), before[:1], "the newest")


def limits_without_sense_are_refused_before_anything_happens(make_saver: MakeSaver) -> None:
    """0, -1, NaN, infinity, True, text, an unknown strategy: no row is read or removed."""
    saver = make_saver()
    line = Line(saver)
    _grow(line, 4)
    prune: Callable[..., None] = saver.prune
    prune([line.thread_id], strategy="keep_latest", keep_last=4)
    before = [facts(row) for row in line.rows()]
    assert len(before) == 4
    bad: list[dict[str, Any]] = [
        {"keep_last": value}
        for value in (0, -1, -(2**70), math.nan, math.inf, -math.inf, 1.5, True, False, "2", [1])
    ]
    bad += [
        {"older_than": value}
        for value in (
            math.nan,
            -1,
            -0.5,
            math.inf,
            -math.inf,
            timedelta(days=-1),
            "yesterday",
            True,
            [1],
        )
    ]
    bad += [{"strategy": value} for value in ("keep_all", "", None, "DELETE", 0)]
    accepted = []
    for arguments in bad:
        if not refuses(
            lambda arguments=arguments: prune(
                [line.thread_id], **{"strategy": "keep_latest", **arguments}
            )
        ):
            accepted.append(arguments)
        assert_same([facts(row) for row in line.rows()], before, f"after {arguments}")
    assert not accepted, f"accepted without complaint: {accepted}"


def the_store_works_on_after_each_act_of_retention(make_saver: MakeSaver) -> None:
    """Prune, delete a run, copy, delete, one after the other, on a thread that keeps growing."""
    saver, token = make_saver(), str(uuid.uuid4())
    line = Line(saver)
    for round_number in range(4):
        _grow(line, 5, run_of=lambda step: f"{token}-{step % 3}")
        before = facts(line.read(), with_parent=False)
        saver.prune([line.thread_id], strategy="keep_latest")
        assert_same(facts(line.read(), with_parent=False), before, f"round {round_number}, prune")
        _grow(line, 3, run_of=lambda step, n=round_number: f"{token}-round-{n}")
        before = facts(line.rows()[-1], with_parent=False)
        saver.delete_for_runs([f"{token}-round-{round_number}"])
        assert_same([facts(row, with_parent=False) for row in line.rows()], [before], "one is left")
        line.tip = before["at"][2]
        copied = f"copy-{uuid.uuid4()}"
        saver.copy_thread(line.thread_id, copied)
        assert_same(
            facts(Line(saver, copied).read(), with_parent=False), _moved(before, copied), "copy"
        )
        saver.delete_thread(copied)


def _grow(line: Line, steps: int, *, run_of: Callable[[int], str] | None = None) -> list[Config]:
    """Steps of an agent: a list that grows, a dict that is patched, a large constant, writes."""
    stored = []
    values: dict[str, Any] = {"log": [], "d": {}}
    if line.tip is not None:
        values = dict(line.read(line.config(line.tip)).checkpoint["channel_values"])
    for _ in range(steps):
        number = line.steps
        values = {
            "log": [*values["log"], {"n": number, "text": f"message {number} " * 3}],
            "d": {**values["d"], f"k{number % 3}": [number]},
            "constant": "c" * 500,
        }
        at = line.put(values, metadata={"run_id": run_of(number)} if run_of else None)
        line.write(at, ("log", f"{number} b"), task=f"a-{number}", path="~b")
        line.write(at, ("log", f"{number} a"), task=f"b-{number}", path="~a")
        stored.append(at)
    return stored


def _wait_for_the_clock() -> None:
    """Until a moment that no stored row has."""
    start = datetime.now(UTC)
    while datetime.now(UTC) - start < timedelta(milliseconds=5):
        pass


def _survivors(line: Line, keep: Callable[[Any], bool]) -> list[dict[str, Any]]:
    return [facts(row, with_parent=False) for row in line.rows() if keep(row)]


def _moved(row: dict[str, Any], thread_id: str) -> dict[str, Any]:
    """The same facts under another thread id."""
    moved = {**row, "at": (thread_id, *row["at"][1:])}
    if row.get("parent"):
        moved["parent"] = (thread_id, *row["parent"][1:])
    return moved


CLAUSES = [
    delete_thread_removes_the_pending_writes_too,
    deleting_a_run_in_the_middle_leaves_the_others_unchanged,
    deleting_the_first_or_the_last_run_works_too,
    deleting_a_run_reaches_every_thread_and_namespace,
    a_copy_is_complete_and_lives_alone,
    prune_keeps_the_newest_of_each_namespace,
    prune_keeps_the_writes_of_an_unfinished_step,
    prune_strategy_delete_removes_the_thread,
    prune_of_nothing_does_nothing,
    keep_last_keeps_that_many_by_order_of_writing,
    older_than_spares_what_is_younger,
    limits_without_sense_are_refused_before_anything_happens,
    the_store_works_on_after_each_act_of_retention,
]
