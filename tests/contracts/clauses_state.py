"""Where a state belongs: its address, its parent, its metadata, and whose objects it is made of.

The faults that this page is after are quiet ones. A store that keeps the caller's list instead of
its content looks right until the run appends to that list:

    put(C1, messages)        the store keeps a reference
    messages.append("...")   the next step works on the same object
    get_tuple(C1)            history has changed

The same in the other direction: a reader that edits what it got must not edit the store. Then the
edges of a checkpoint: metadata, namespaces (the empty one is a name like any other), and "newest",
which means written last, because clocks step back.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver

from .builders import Config, Line, MakeSaver, address, assert_same, facts, id_of

AWKWARD_NAMES = [
    "",
    "|",
    ":",
    "a|b",
    "a:b",
    "child:1|grandchild:2",
    "%",
    "_",
    "'",
    '"',
    "\\",
    "größe",
    "名前",
    "\U0001f600",
    " ",
    "a ",
    "None",
    "x" * 300,
]


def put_returns_the_address_of_what_it_stored(make_saver: MakeSaver) -> None:
    """Thread, namespace and new id; reading by that address returns that checkpoint."""
    line = Line(make_saver(), ns="child:1")
    for step in range(3):
        stored = line.put({"n": step})
        assert address(stored) == (line.thread_id, "child:1", line.tip)
        assert address(line.read(stored).config) == address(stored)
        assert line.read(stored).checkpoint["channel_values"] == {"n": step}


def the_parent_is_the_checkpoint_the_put_continued_from(make_saver: MakeSaver) -> None:
    """A root has no parent; two children of one parent both name it."""
    line = Line(make_saver())
    root = line.put({"n": 0})
    left = line.put({"n": 1})
    right = line.put({"n": 2}, parent=root)
    assert line.read(root).parent_config is None
    assert address(line.read(left).parent_config) == address(root)
    assert address(line.read(right).parent_config) == address(root)


def unknown_addresses_read_as_none(make_saver: MakeSaver) -> None:
    """Unknown thread, namespace or checkpoint: None from get_tuple, nothing from list."""
    saver = make_saver()
    line = Line(saver)
    line.put({"n": 0})
    elsewhere = Line(saver)
    other_ns = Line(saver, line.thread_id, ns="nowhere")
    for config in (
        line.config("1f000000-0000-6000-8000-00000000dead"),
        elsewhere.config(),
        other_ns.config(),
        other_ns.config(line.tip),
        elsewhere.config(line.tip),
    ):
        assert saver.get_tuple(config) is None, config
        assert saver.get(config) is None, config
        assert list(saver.list(config)) == [], config


def the_rest_of_a_checkpoint_comes_back_too(make_saver: MakeSaver) -> None:
    """Format version, id, time, channel versions, versions seen, updated channels."""
    saver = make_saver()
    line = Line(saver)
    given = {
        "v": 4,
        "id": "1f000000-0000-6000-8000-000000000001",
        "ts": "2024-01-01T00:00:00+00:00",
        "channel_values": {"a": 1},
        "channel_versions": {"a": 3, "__start__": 2},
        "versions_seen": {"__input__": {}, "node|x": {"a": 2}, "other": {"__start__": 1}},
        "updated_channels": ["a"],
    }
    stored = saver.put(line.config(), copy.deepcopy(given), {}, {"a": 3, "__start__": 2})
    found = dict(line.read(stored).checkpoint)
    assert_same({key: found[key] for key in given}, given, "checkpoint")


def metadata_comes_back_as_langgraph_writes_it(make_saver: MakeSaver) -> None:
    """`parents`, `run_id` and custom keys, merged with the config as LangGraph's helper does."""
    metadata = {
        "source": "update",
        "step": -1,
        "run_id": "run-1",
        "parents": {"": "1f0-a", "child:1|x": "1f0-b"},
        "writes made": {"node": [1, None]},
        "none": None,
        "true": True,
        "float": 1.0,
        "nested": {"a": {"b": []}},
        "größe": "ü",
    }
    savers = make_saver(), InMemorySaver()
    found = []
    for saver in savers:
        line = Line(saver, "metadata thread")
        config = line.config()
        config["metadata"] = {"user": "ada", "attempt": 2, "step": 99, "skipped": [1]}
        config["configurable"]["tenant"] = "t1"
        config["configurable"]["__internal"] = "dropped"
        checkpoint = {
            "v": 4,
            "id": "1f000000-0000-6000-8000-000000000002",
            "ts": "",
            "channel_values": {},
            "channel_versions": {},
            "versions_seen": {},
            "updated_channels": None,
        }
        stored = saver.put(config, checkpoint, copy.deepcopy(metadata), {})  # type: ignore[arg-type]
        found.append(dict(line.read(stored).metadata))
        assert_same(dict(line.rows()[0].metadata), found[-1], "list")
    assert_same(found[0], found[1], "metadata")
    assert found[0]["parents"] == metadata["parents"]
    savers[0].delete_thread("metadata thread")


def versions_of_a_channel_only_grow(make_saver: MakeSaver) -> None:
    """A version that stands still makes every node look as if it had seen its input."""
    saver = make_saver()
    versions = [saver.get_next_version(None, None)]
    for _ in range(120):
        versions.append(saver.get_next_version(versions[-1], None))
    assert all(earlier < later for earlier, later in pairwise(versions))
    assert len({type(version) for version in versions}) == 1


def the_newest_is_the_one_written_last(make_saver: MakeSaver) -> None:
    """Ids and times that go backwards, as after a clock step or from a second host."""
    line = Line(make_saver())
    ids = [f"1f{digit}00000-0000-6000-8000-000000000000" for digit in "95a13"]
    for number, identity in enumerate(ids):
        line.put({"n": number}, checkpoint_id=identity)
        assert line.read().checkpoint["id"] == identity
        assert line.read().checkpoint["channel_values"] == {"n": number}
    assert line.ids() == ids[::-1]
    assert line.ids(limit=2) == ids[:-3:-1]
    assert line.ids(before=line.config(ids[2])) == [ids[1], ids[0]]
    first = line.config(ids[0])
    line.put({"n": "fork"}, parent=first, checkpoint_id="1f000000-0000-6000-8000-00000000000f")
    assert line.read().checkpoint["channel_values"] == {"n": "fork"}


def namespaces_do_not_see_each_other(make_saver: MakeSaver) -> None:
    """The empty name, separators, wildcards, quotes, other scripts: each its own line."""
    saver = make_saver()
    root = Line(saver)
    lines = [Line(saver, root.thread_id, ns=name) for name in AWKWARD_NAMES]
    for number, line in enumerate(lines):
        at = line.put({"n": number}, checkpoint_id="1f000000-0000-6000-8000-000000000000")
        line.write(at, ("n", number), task="t")
        line.put({"n": number + 100})
    for number, line in enumerate(lines):
        assert line.read().checkpoint["channel_values"] == {"n": number + 100}
        assert [row.config["configurable"]["checkpoint_ns"] for row in line.rows()] == [line.ns] * 2
        first = line.rows()[-1]
        assert first.checkpoint["channel_values"] == {"n": number}
        assert first.pending_writes == [("t", "n", number)]
    everything = list(saver.list({"configurable": {"thread_id": root.thread_id}}))
    assert len(everything) == 2 * len(AWKWARD_NAMES)


def threads_do_not_see_each_other(make_saver: MakeSaver) -> None:
    """Deleting 'a%' leaves 'ab' alone; a thread id may hold anything a namespace may."""
    saver = make_saver()
    prefix = Line(saver).thread_id
    names = [prefix + name for name in AWKWARD_NAMES]
    lines = [Line(saver, name) for name in names]
    for number, line in enumerate(lines):
        line.write(line.put({"n": number}), ("n", number), task="t")
    for number, line in enumerate(lines):
        assert line.read().checkpoint["channel_values"] == {"n": number}
        saver.delete_thread(line.thread_id)
        assert saver.get_tuple(line.config()) is None
        assert all(saver.get_tuple(other.config()) for other in lines[number + 1 :]), line.thread_id


def what_is_changed_after_put_is_not_changed_in_the_store(make_saver: MakeSaver) -> None:
    """The run goes on working on the very objects it handed over."""
    saver = make_saver()
    line = Line(saver)
    values = {"log": ["a", {"deep": [1]}], "d": {"k": {"n": 1}}}
    metadata = {"source": "loop", "step": 0, "parents": {"": "p"}, "tags": ["x"]}
    write = {"result": [1]}
    at = line.put(values, metadata=metadata)
    line.write(at, ("log", write), task="t")
    before = facts(copy.deepcopy(line.read(at)))
    values["log"][1]["deep"].append(2)  # type: ignore[index]
    values["log"].append("late")  # type: ignore[union-attr]
    values["d"]["k"]["n"] = 2  # type: ignore[index,call-overload]
    metadata["parents"][""] = "q"  # type: ignore[index]
    metadata["tags"].append("y")  # type: ignore[attr-defined]
    write["result"].append(2)
    assert_same(facts(line.read(at)), before, "after the caller's edit")
    assert before["checkpoint"]["channel_values"]["log"] == ["a", {"deep": [1]}]


def what_a_reader_changes_is_not_changed_in_the_store(make_saver: MakeSaver) -> None:
    """Neither in the next read, nor in `list`, nor in a checkpoint that continues from it."""
    saver = make_saver()
    line = Line(saver)
    first = line.put({"log": ["a", {"deep": [1]}], "d": {"k": [1]}}, metadata={"tags": ["x"]})
    line.write(first, ("log", {"w": [1]}), task="t")
    second = line.put({"log": ["a", {"deep": [1]}, "b"], "d": {"k": [1]}})
    before = [facts(copy.deepcopy(row)) for row in line.rows()]
    reads: list[Callable[[], Any]] = [
        lambda: line.read(copy.deepcopy(first)),
        lambda: line.read(copy.deepcopy(second)),
        lambda: line.read(),
        lambda: line.rows()[0],
        lambda: line.rows()[1],
    ]
    for read in reads:
        _deface(read())
        assert_same([facts(row) for row in line.rows()], before, "list")
        assert_same(facts(line.read(second)), before[0], "get_tuple of the newest")
        assert_same(facts(line.read(first)), before[1], "get_tuple of the oldest")
    third = line.put({"log": ["a", {"deep": [1]}, "b", "c"], "d": {"k": [1]}})
    assert line.read(third).checkpoint["channel_values"] == {
        "log": ["a", {"deep": [1]}, "b", "c"],
        "d": {"k": [1]},
    }


def _deface(row: Any) -> None:
    row.checkpoint["channel_values"]["log"].append("defaced")
    row.checkpoint["channel_values"]["log"][1]["deep"].append("defaced")
    row.checkpoint["channel_values"]["d"]["k"].clear()
    row.checkpoint["channel_values"]["extra"] = 1
    row.checkpoint["channel_versions"].clear()
    row.checkpoint["versions_seen"].setdefault("node", {})["defaced"] = 1
    row.metadata["step"] = "defaced"
    row.metadata.setdefault("tags", []).append("defaced")
    for _, _, value in row.pending_writes:
        value["w"].append("defaced")
    row.pending_writes.append(("defaced", "log", 1))
    address_of: Config = row.config
    address_of["configurable"]["checkpoint_id"] = "defaced"
    assert id_of(address_of) == "defaced"


CLAUSES = [
    put_returns_the_address_of_what_it_stored,
    the_parent_is_the_checkpoint_the_put_continued_from,
    unknown_addresses_read_as_none,
    the_rest_of_a_checkpoint_comes_back_too,
    metadata_comes_back_as_langgraph_writes_it,
    versions_of_a_channel_only_grow,
    the_newest_is_the_one_written_last,
    namespaces_do_not_see_each_other,
    threads_do_not_see_each_other,
    what_is_changed_after_put_is_not_changed_in_the_store,
    what_a_reader_changes_is_not_changed_in_the_store,
]
