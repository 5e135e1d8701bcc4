"""Pending writes: the half of a checkpoint that is written while its step still runs.

A super-step with three tasks, one of which dies:

    put(P)                 step begins
    put_writes(P, task a)  a finished: its result is safe
    put_writes(P, task b)  b finished
                           c raises, the process ends
    get_tuple(P)           resume: a and b are taken from the writes, only c runs again

Three promises make that work. Order: `get_tuple` returns the writes in `writes_sort_key` order
(task path, task id, index), the order in which a live run applies them, so that a reducer that
is not commutative rebuilds the state the run had. First success: a second `put_writes` of the
same task does not change what the first one stored, because the run may already have acted on
it. One current row per special write: error, interrupt, resume and scheduled markers live beside
the regular writes, and a later one replaces the earlier one of its kind.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from langgraph.checkpoint.base import writes_sort_key
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, SCHEDULED

from .builders import Line, MakeSaver, address, assert_same, facts, id_of


def writes_come_back_in_the_order_a_run_applies_them(make_saver: MakeSaver) -> None:
    """By task path first: task ids are hashes, and ordering by them shuffles parallel tasks."""
    line = Line(make_saver())
    at = line.put({"log": []})
    tasks = [
        ("zz", "~__pregel_pull, a"),
        ("aa", "~__pregel_pull, b"),
        ("mm", ""),
        ("bb", ""),
        ("kk", "~__pregel_push, 00000000000000000010"),
        ("cc", "~__pregel_push, 00000000000000000002"),
        ("dd", "~__pregel_pull, a"),
        ("ee", "~~0000000003~__pregel_pull, a"),
    ]
    expected = []
    for task, path in tasks:
        line.write(at, ("log", f"{task}-0"), ("log", f"{task}-1"), task=task, path=path)
        expected += [
            (writes_sort_key(path, task, i), (task, "log", f"{task}-{i}")) for i in range(2)
        ]
    in_order = [write for _, write in sorted(expected)]
    assert line.read(at).pending_writes == in_order
    assert line.rows()[0].pending_writes == in_order


def more_than_ten_writes_of_one_task_stay_in_order(make_saver: MakeSaver) -> None:
    """The index is a number: as text, 10 would sort before 2."""
    line = Line(make_saver())
    at = line.put({"log": []})
    line.write(at, *[("log", number) for number in range(120)], task="t", path="p")
    assert [value for _, _, value in line.read(at).pending_writes or []] == list(range(120))


def text_orders_by_code_point_and_not_by_a_language(make_saver: MakeSaver) -> None:
    """A database collation would put 'a' before 'B' and 'é' before 'z'; a run does not."""
    line = Line(make_saver())
    at = line.put({"log": []})
    paths = ["b", "B", "a", "A", "~a", "_a", "é", "z", "Z", "a b", "a-b", "ab", "a_b", "\U0001f600"]
    for path in paths:
        line.write(at, ("log", path), task="t" + path, path=path)
    assert [value for _, _, value in line.read(at).pending_writes or []] == sorted(paths)
    other = line.put({"log": [1]})
    for task in paths:
        line.write(other, ("log", task), task=task)
    assert [value for _, _, value in line.read(other).pending_writes or []] == sorted(paths)


def regular_writes_stay_as_the_first_success_left_them(make_saver: MakeSaver) -> None:
    """A task that ran twice keeps its first result; a longer second call adds only its tail."""
    line = Line(make_saver())
    at = line.put({"log": []})
    line.write(at, ("log", "first"), ("count", 1), task="t", path="p")
    line.write(at, ("log", "second"), ("count", 2), ("extra", 3), task="t", path="p")
    assert line.read(at).pending_writes == [
        ("t", "log", "first"),
        ("t", "count", 1),
        ("t", "extra", 3),
    ]


def special_writes_are_replaced_one_by_one(make_saver: MakeSaver) -> None:
    """One current row per kind, and replacing one kind leaves the other kinds alone."""
    line = Line(make_saver())
    at = line.put({"log": []})
    kinds = [ERROR, SCHEDULED, INTERRUPT, RESUME]
    line.write(at, *[(kind, f"{kind} old") for kind in kinds], task="t", path="p")
    line.write(at, (INTERRUPT, "new"), task="t", path="p")
    current = {kind: f"{kind} old" for kind in kinds} | {INTERRUPT: "new"}
    assert {c: v for _, c, v in line.read(at).pending_writes or []} == current
    line.write(at, (RESUME, ["a"]), (ERROR, "new error"), task="t", path="p")
    current |= {RESUME: ["a"], ERROR: "new error"}
    found = line.read(at).pending_writes or []
    assert {c: v for _, c, v in found} == current
    assert len(found) == len(kinds)


def a_special_write_twice_in_one_call_keeps_the_last(make_saver: MakeSaver) -> None:
    """Also where the last equals what was stored before, so that only the first is a change."""
    line = Line(make_saver())
    at = line.put({"log": []})
    line.write(at, (ERROR, "one"), (ERROR, "two"), task="t")
    assert line.read(at).pending_writes == [("t", ERROR, "two")]
    line.write(at, (ERROR, "three"), (ERROR, "two"), task="t")
    assert line.read(at).pending_writes == [("t", ERROR, "two")]
    line.write(at, (ERROR, "three"), (INTERRUPT, "ask"), (ERROR, "four"), task="t")
    assert line.read(at).pending_writes == [("t", INTERRUPT, "ask"), ("t", ERROR, "four")]


def a_special_write_takes_its_path_along(make_saver: MakeSaver) -> None:
    """The path decides the order, so the same value under another path is another write."""
    line = Line(make_saver())
    at = line.put({"log": []})
    line.write(at, (ERROR, "e"), task="t1", path="a")
    line.write(at, ("log", "x"), task="t2", path="b")
    line.write(at, (ERROR, "e"), task="t1", path="c")
    assert line.read(at).pending_writes == [("t2", "log", "x"), ("t1", ERROR, "e")]


def special_writes_never_push_out_regular_ones(make_saver: MakeSaver) -> None:
    """Two results, then the interrupt marker, then the resume marker, then all in one call."""
    line = Line(make_saver())
    at = line.put({"log": []})
    line.write(at, ("a", 1), ("b", 2), task="t")
    line.write(at, (INTERRUPT, "ask"), task="t")
    line.write(at, (RESUME, "yes"), task="t")
    line.write(at, ("a", 9), (INTERRUPT, "ask again"), ("b", 9), (ERROR, "e"), task="t")
    # In the mixed call "b" stood at index 2, where nothing was stored yet: it is a new row.
    assert line.read(at).pending_writes == [
        ("t", RESUME, "yes"),
        ("t", INTERRUPT, "ask again"),
        ("t", ERROR, "e"),
        ("t", "a", 1),
        ("t", "b", 2),
        ("t", "b", 9),
    ]


def each_task_keeps_its_own_special_writes(make_saver: MakeSaver) -> None:
    """Two tasks that pause in the same step are two questions."""
    line = Line(make_saver())
    at = line.put({"log": []})
    line.write(at, (INTERRUPT, "one?"), task="t1", path="p1")
    line.write(at, (INTERRUPT, "two?"), task="t2", path="p2")
    line.write(at, (INTERRUPT, "one again?"), task="t1", path="p1")
    assert line.read(at).pending_writes == [
        ("t1", INTERRUPT, "one again?"),
        ("t2", INTERRUPT, "two?"),
    ]


def writes_may_arrive_before_their_checkpoint(make_saver: MakeSaver) -> None:
    """With asynchronous durability nothing makes `put` land first; no order loses a write."""
    line = Line(make_saver())
    root = line.put({"log": []})
    early = line.config("1f000000-0000-6000-8000-0000000000aa")
    line.write(early, ("log", "early"), task="t", path="p")
    line.write(early, (INTERRUPT, "ask"), task="t", path="p")
    line.put({"log": ["x"]}, checkpoint_id=id_of(early))
    assert line.read(early).pending_writes == [("t", INTERRUPT, "ask"), ("t", "log", "early")]
    assert address(line.read(early).parent_config) == address(root)


def orphan_writes_neither_appear_nor_disturb(make_saver: MakeSaver) -> None:
    """Writes whose checkpoint never came: `list` and `get_tuple` go on as if they were not."""
    saver = make_saver()
    line = Line(saver)
    orphan = line.config("1f000000-0000-6000-8000-0000000000bb")
    line.write(orphan, ("log", "lost"), task="t")
    assert line.rows() == []
    assert saver.get_tuple(line.config()) is None
    assert saver.get_tuple(orphan) is None
    kept = line.put({"log": []})
    assert line.ids() == [id_of(kept)]
    assert line.read().pending_writes == []


def a_checkpoint_put_again_changes_nothing(make_saver: MakeSaver) -> None:
    """put, put_writes, the same put again: the writes stay, the newest stays the newest."""
    saver = make_saver()
    line = Line(saver)
    first = line.put({"log": ["a"]})
    line.write(first, ("log", "b"), task="t", path="p")
    second = line.put({"log": ["a", "b"]})
    before = [facts(row) for row in line.rows()]
    row = line.read(first)
    again = saver.put(
        line.config(), row.checkpoint, row.metadata, dict(row.checkpoint["channel_versions"])
    )
    assert address(again) == address(first)
    assert_same([facts(row) for row in line.rows()], before, "after the second put")
    assert line.read().checkpoint["id"] == id_of(second)


def a_new_checkpoint_starts_without_writes(make_saver: MakeSaver) -> None:
    """Writes belong to the checkpoint they are stored at; its child begins with none."""
    line = Line(make_saver())
    first = line.put({"log": []})
    line.write(first, ("log", "a"), task="t")
    line.put({"log": ["a"]})
    assert line.read().pending_writes == []
    assert line.read(first).pending_writes == [("t", "log", "a")]


def writes_and_the_next_checkpoint_may_be_stored_at_once(make_saver: MakeSaver) -> None:
    """A run stores a step's writes and its outcome from several OS threads; nobody waits."""
    saver = make_saver()
    line = Line(saver)
    stored, log = [line.put({"log": []})], []
    with ThreadPoolExecutor(4) as pool:
        for step in range(25):
            log.append({"step": step})
            at = stored[-1]
            done = [
                pool.submit(line.write, at, ("log", [step, n]), task=f"t{n}", path=f"~{n}")
                for n in range(3)
            ]
            stored.append(line.put({"log": log}))
            for future in done:
                future.result()
    for step, at in enumerate(stored):
        row = line.read(at)
        assert row.checkpoint["channel_values"] == {"log": [{"step": n} for n in range(step)]}
        expected = [(f"t{n}", "log", [step, n]) for n in range(3)] if step < 25 else []
        assert row.pending_writes == expected, f"step {step}"


def write_values_keep_value_and_type(make_saver: MakeSaver) -> None:
    """Also None, False, zero and empty: a write of nothing is a write."""
    line = Line(make_saver())
    at = line.put({"log": []})
    values = [
        None,
        False,
        0,
        0.0,
        -0.0,
        "",
        b"",
        [],
        {},
        1,
        True,
        "1",
        2**63 - 1,
        {"a": [None]},
        b"\x00\xff",
        "nul \x00 inside",
        "\U0001f600",
        {1, 2},
    ]
    line.write(at, *[("log", value) for value in values], task="t")
    found = [value for _, _, value in line.read(at).pending_writes or []]
    assert_same(found, values, "pending writes")


CLAUSES = [
    writes_come_back_in_the_order_a_run_applies_them,
    more_than_ten_writes_of_one_task_stay_in_order,
    text_orders_by_code_point_and_not_by_a_language,
    regular_writes_stay_as_the_first_success_left_them,
    special_writes_are_replaced_one_by_one,
    a_special_write_twice_in_one_call_keeps_the_last,
    a_special_write_takes_its_path_along,
    special_writes_never_push_out_regular_ones,
    each_task_keeps_its_own_special_writes,
    writes_may_arrive_before_their_checkpoint,
    orphan_writes_neither_appear_nor_disturb,
    a_checkpoint_put_again_changes_nothing,
    a_new_checkpoint_starts_without_writes,
    writes_and_the_next_checkpoint_may_be_stored_at_once,
    write_values_keep_value_and_type,
]
