"""Values: what `put` was given is what every later read returns, in value and in type.

A store of deltas has more ways to be nearly right than one of whole states. It compares the new
value with the old one and stores the difference, so each of these is a trap:

    1 → True            equal to Python, another value to the user
    a list grown in     the same object as before: compared with itself, nothing has changed
      place
    an item edited      the list has the same length and the same items, by identity
      in place
    an edit in the      one wrong offset, and every later state is wrong
      middle

The clauses write such values step by step and read all steps back, not only the last.
"""

from __future__ import annotations

import copy
import random
import threading
from typing import Any

from .builders import Line, MakeSaver, assert_same, facts, id_of, refuses


def values_keep_value_and_type(make_saver: MakeSaver) -> None:
    """None is a value, False is not 0, a float is not an int, NUL and emoji are text."""
    values = {
        "none": None,
        "false": False,
        "zero": 0,
        "zero float": 0.0,
        "minus zero": -0.0,
        "one": 1,
        "true": True,
        "text": "1",
        "empty": "",
        "nul": "a\x00b",
        "bytes": b"\x00\xff",
        "big": 2**63 - 1,
        "small": -(2**63),
        "list": [1, [2, [None]]],
        "set": {1, 2, 3},
        "dict": {"a": {"b": [None, True]}, "": 1},
        "int keys": {1: "a", 2: "b"},
        "emoji": "\U0001f600",
        "infinity": float("inf"),
        "empty list": [],
        "empty dict": {},
    }
    line = Line(make_saver())
    at = line.put(values)
    assert_same(line.read(at).checkpoint["channel_values"], values, "after put")
    line.put({**values, "one": 2})
    assert_same(line.read().checkpoint["channel_values"], {**values, "one": 2}, "as a child")


def a_change_of_type_alone_is_a_change(make_saver: MakeSaver) -> None:
    """1 → True → 1.0 → "1", at the top, in a list and in a dict: equal by `==`, not the same."""
    _store_forms(make_saver, [1, True, 1.0, "1", 1, False, 0, 0.0, -0.0, None, [], {}, "", b""])


def tuples_and_large_integers_come_back_as_they_were(make_saver: MakeSaver) -> None:
    """LangGraph's msgpack makes lists of tuples and refuses 2**64; a strict codec does neither."""
    _store_forms(
        make_saver,
        [
            (),
            [],
            (1, ("x",)),
            [1, ["x"]],
            [1, ("x",)],
            2**64,
            -(2**70),
            float(2**64),
            {(1, 2): "pair"},
            {1: "int"},
            {"1": "text"},
            {True: "bool"},
            {(1, 2)},
            frozenset({1}),
            {1},
            (None,),
        ],
    )


def values_over_64_kb_come_back_whole(make_saver: MakeSaver) -> None:
    """Text, bytes, a long list and a pending write; then grown by one, as a run grows them."""
    text, raw = "wörter " * 20_000, bytes(range(256)) * 600
    rows = [{"i": i, "text": "x" * 80} for i in range(1_500)]
    line = Line(make_saver())
    first = line.put({"text": text, "raw": raw, "rows": rows, "small": 1})
    line.write(first, ("text", text), ("raw", raw), task="t")
    second = line.put(
        {"text": text + "!", "raw": raw + b"!", "rows": [*rows, {"i": -1}], "small": 1}
    )
    assert_same(
        line.read(first).checkpoint["channel_values"],
        {"text": text, "raw": raw, "rows": rows, "small": 1},
        "first",
    )
    assert_same(
        line.read(second).checkpoint["channel_values"],
        {"text": text + "!", "raw": raw + b"!", "rows": [*rows, {"i": -1}], "small": 1},
        "second",
    )
    assert line.read(first).pending_writes == [("t", "text", text), ("t", "raw", raw)]


def every_kind_of_edit_reads_back_at_every_step(make_saver: MakeSaver) -> None:
    """Append, edit in the middle, delete, insert, shrink, nest, empty, replace: all in one line."""
    states: list[dict[str, Any]] = [
        {"l": [], "d": {}, "t": ""},
        {"l": ["a"], "d": {"a": 1}, "t": "a"},
        {"l": ["a", "b", "c"], "d": {"a": 1, "b": {"c": [1]}}, "t": "a, b"},
        {"l": ["a", "B", "c"], "d": {"a": 1, "b": {"c": [1, 2]}}, "t": "a; b"},
        {"l": ["B", "c"], "d": {"b": {"c": [1, 2], "d": None}}, "t": "; b"},
        {"l": ["new", "B", "c", ["deep", {"x": 1}]], "d": {"b": {"d": None}}, "t": "; b and more"},
        {"l": ["new", "B", "c", ["deep", {"x": 1, "y": 2}]], "d": {"b": []}, "t": ""},
        {"l": [], "d": {}, "t": "again"},
        {"l": {"now": "a dict"}, "d": ["now a list"], "t": 7},
        {"l": ["back"], "d": {"back": True}, "t": "back"},
    ]
    line = Line(make_saver())
    stored = [line.put(state) for state in states]
    for at, state in zip(stored, states, strict=True):
        assert_same(line.read(at).checkpoint["channel_values"], state, f"step {state}")
    listed = [row.checkpoint["channel_values"] for row in line.rows()]
    assert_same(listed, states[::-1], "list")


def edits_in_the_middle_survive_every_snapshot(make_saver: MakeSaver) -> None:
    """Thirty small edits at changing places: whatever a store makes of them, it must add up."""
    saver, chance = make_saver(), random.Random(3)
    line = Line(saver, ns="child:1")
    state: dict[str, Any] = {
        "text": "lorem ipsum " * 20,
        "raw": bytes(range(256)),
        "numbers": list(range(40)),
        "rows": [{"id": i, "note": f"note {i}", "tags": ["a", "b"]} for i in range(12)],
        "table": {f"k{i}": {"n": i, "words": ["x"] * i} for i in range(12)},
    }
    stored = [(line.put(state), state)]
    for step in range(30):
        state = copy.deepcopy(state)
        text, raw = state["text"], state["raw"]
        at = chance.randrange(len(text))
        state["text"] = text[:at] + chance.choice(["", "é", "xyz"]) + text[at + 1 :]
        at = chance.randrange(len(raw))
        state["raw"] = raw[:at] + bytes([chance.randrange(256)] * chance.randrange(3)) + raw[at:]
        state["numbers"][chance.randrange(40)] = chance.choice([step, float(step), str(step)])
        row = chance.choice(state["rows"])
        row["note"] = row["note"][: chance.randrange(len(row["note"]) + 1)] + f"{step}"
        row["tags"] = chance.sample(["a", "b", "c", "d"], chance.randrange(4))
        state["table"].pop(f"k{chance.randrange(12)}", None)
        state["table"][f"k{chance.randrange(12)}"] = {"n": step, "words": ["y"] * (step % 5)}
        stored.append((line.put(state), state))
        assert_same(line.read().checkpoint["channel_values"], state, f"step {step}")
    for at, expected in stored[::3]:
        assert_same(line.read(at).checkpoint["channel_values"], expected, f"{id_of(at)} at the end")
    assert_same(
        [row.checkpoint["channel_values"] for row in line.rows()],
        [expected for _, expected in reversed(stored)],
        "list",
    )


def a_dict_keeps_the_order_of_its_keys(make_saver: MakeSaver) -> None:
    """A prompt built from a dict changes when its keys move; a key set again goes to the end."""
    states = [
        {"d": {"a": 1, "b": 2, "c": 3}},
        {"d": {"b": 2, "c": 3, "a": 1}},
        {"d": {"c": 3, "a": 1, "z": 0, "b": 2}},
        {"d": {"c": 3, "b": {"y": 1, "x": 2}}},
        {"d": {"c": 3, "b": {"x": 2, "y": 1}}},
    ]
    line = Line(make_saver())
    stored = [line.put(state) for state in states]
    for at, state in zip(stored, states, strict=True):
        found = line.read(at).checkpoint["channel_values"]["d"]
        assert list(found) == list(state["d"]), f"{found} for {state['d']}"
    assert list(line.read().checkpoint["channel_values"]["d"]["b"]) == ["x", "y"]


def a_channel_that_went_away_stays_away(make_saver: MakeSaver) -> None:
    """Emptied (its version moves on) and removed (no version any more) both read as absent."""
    saver = make_saver()
    line = Line(saver)
    line.put({"a": [1], "b": [2]})
    emptied = line.put({"a": [1]})
    assert line.read(emptied).checkpoint["channel_values"] == {"a": [1]}
    assert set(line.read(emptied).checkpoint["channel_versions"]) == {"a", "b"}
    refilled = line.put({"a": [1], "b": [3]})
    assert line.read(refilled).checkpoint["channel_values"] == {"a": [1], "b": [3]}
    gone = copy.deepcopy(line.read(refilled).checkpoint)
    gone["id"] = "1fffffff-0000-6000-8000-000000000000"
    del gone["channel_values"]["b"], gone["channel_versions"]["b"]
    stored = saver.put(refilled, gone, {"source": "loop", "step": 9, "parents": {}}, {})
    found = line.read(stored).checkpoint
    assert found["channel_values"] == {"a": [1]}
    assert set(found["channel_versions"]) == {"a"}


def branches_with_equal_versions_keep_their_own_values(make_saver: MakeSaver) -> None:
    """Two children of one parent may carry the same version number; the values differ."""
    line = Line(make_saver())
    root = line.put({"log": ["r"], "same": "s"})
    left = line.put({"log": ["r", "left"], "same": "s"})
    right = line.put({"log": ["r", "right"], "same": "s"}, parent=root)
    deep = line.put({"log": ["r", "left", "deep"], "same": "s"}, parent=left)
    for at, log in (
        (root, ["r"]),
        (left, ["r", "left"]),
        (right, ["r", "right"]),
        (deep, ["r", "left", "deep"]),
    ):
        assert line.read(at).checkpoint["channel_values"] == {"log": log, "same": "s"}


def a_list_that_grows_in_place_is_stored_at_each_length(make_saver: MakeSaver) -> None:
    """The same list object in every put, one item longer: no put may compare it with itself."""
    line = Line(make_saver())
    log: list[Any] = []
    stored = []
    for number in range(6):
        log.append({"n": number})
        stored.append(line.put({"log": log}))
    for number, at in enumerate(stored):
        expected = [{"n": i} for i in range(number + 1)]
        assert line.read(at).checkpoint["channel_values"] == {"log": expected}


def an_item_edited_in_place_is_stored(make_saver: MakeSaver) -> None:
    """Exact mode: the same list and the same item, with another content, deep inside."""
    line = Line(make_saver())
    item: dict[str, Any] = {"text": "draft", "meta": {"seen": []}}
    state = {"log": ["a", item, "z"], "d": {"item": item}}
    first = line.put(state)
    item["meta"]["seen"].append("ada")
    second = line.put(state)
    item["text"] = "final"
    third = line.put(state)
    for at, text, seen in (
        (first, "draft", []),
        (second, "draft", ["ada"]),
        (third, "final", ["ada"]),
    ):
        expected = {"text": text, "meta": {"seen": seen}}
        assert_same(
            line.read(at).checkpoint["channel_values"],
            {"log": ["a", expected, "z"], "d": {"item": expected}},
            text,
        )


def a_value_that_cannot_be_stored_leaves_nothing_behind(make_saver: MakeSaver) -> None:
    """Refused with an error at put, never stored as None; the thread is as it was."""
    saver = make_saver()
    line = Line(saver)
    at = line.put({"log": ["a"]})
    line.write(at, ("log", "b"), task="t")
    before = [facts(row) for row in line.rows()]
    tip, steps = line.tip, line.steps
    assert refuses(lambda: line.put({"log": ["a"], "bad": threading.Lock()}))
    line.tip, line.steps = tip, steps
    assert refuses(lambda: line.write(at, ("x", 1), ("bad", threading.Lock()), task="t2"))
    assert_same([facts(row) for row in line.rows()], before, "after the refusals")
    line.put({"log": ["a", "b"]})
    assert line.read().checkpoint["channel_values"] == {"log": ["a", "b"]}


def _store_forms(make_saver: MakeSaver, forms: list[Any]) -> None:
    line = Line(make_saver())
    states = [
        {"plain": form, "list": ["x", form, "y"], "dict": {"k": form, "z": 0}} for form in forms
    ]
    stored = [line.put(state) for state in states]
    for at, state in zip(stored, states, strict=True):
        assert_same(line.read(at).checkpoint["channel_values"], state, f"form {state['plain']!r}")
    writes = [("w", form) for form in forms]
    line.write(stored[0], *writes, task="t")
    assert_same([value for _, _, value in line.read(stored[0]).pending_writes or []], forms)


EXACT_ONLY = [an_item_edited_in_place_is_stored]
"""Clauses that `trust_identity=True` gives up on purpose."""

OWN_CODEC_ONLY = [tuples_and_large_integers_come_back_as_they_were]
"""Clauses that a saver cannot keep when the user gives it LangGraph's JsonPlusSerializer."""

CLAUSES = [
    values_keep_value_and_type,
    a_change_of_type_alone_is_a_change,
    tuples_and_large_integers_come_back_as_they_were,
    values_over_64_kb_come_back_whole,
    every_kind_of_edit_reads_back_at_every_step,
    edits_in_the_middle_survive_every_snapshot,
    a_dict_keeps_the_order_of_its_keys,
    a_channel_that_went_away_stays_away,
    branches_with_equal_versions_keep_their_own_values,
    a_list_that_grows_in_place_is_stored_at_each_length,
    an_item_edited_in_place_is_stored,
    a_value_that_cannot_be_stored_leaves_nothing_behind,
]
