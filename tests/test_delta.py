"""What changed: told exactly, told cheaply, and never applied to the wrong value."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from durable_kit.serde_codec import default_codec
from durable_kit.storage.delta import (
    BrokenDelta,
    Delta,
    apply,
    array_header,
    common_end,
    common_start,
    diff,
    pack_array_header,
    pack_text_header,
    text_header,
)
from durable_kit.storage.same import same

CODEC = default_codec()


def change(before: Any, after: Any) -> Delta | None:
    """The change between two values, proved to lead from the one to the other."""
    old, new = CODEC.encode(before), CODEC.encode(after)
    delta = diff(old, new)
    if delta is None:
        assert old == new
    else:
        result = apply(old, delta)
        assert result == new
        assert same(CODEC.decode(result), after)
    return delta


def op(before: Any, after: Any) -> str:
    delta = change(before, after)
    assert delta is not None
    return delta.op


def cost(before: Any, after: Any) -> int:
    """Bytes that the change from one value to the other brings."""
    delta = change(before, after)
    return 0 if delta is None else len(delta.new)


def note(n: int) -> dict[str, Any]:
    return {"id": n, "role": "user", "text": f"message {n} " + "." * 40}


# ------------------------------------------------------------------------ there and back

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False),
    st.sampled_from([0, 1, True, False, 1.0, 0.0, -0.0]), st.text(max_size=50),
    st.binary(max_size=40), st.dates(), st.sampled_from(["a" * 33, "ü" * 200, "\ud800", b"\xc1"]),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=18),
        st.dictionaries(st.text(max_size=4), inner, max_size=18),
        st.dictionaries(st.integers(0, 3), inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(AIMessage, content=st.text(max_size=40)),
    ),
    max_leaves=12,
)


@st.composite
def edited(draw: st.DrawFn, value: Any) -> Any:
    """`value` after some of the small edits that a node makes."""
    for _ in range(draw(st.integers(1, 3))):
        value = draw(_edited_once(value))
    return value


@st.composite
def _edited_once(draw: st.DrawFn, value: Any) -> Any:
    if isinstance(value, list) and value:
        at = draw(st.integers(0, len(value) - 1))
        kind = draw(st.sampled_from("append edit insert remove replace".split()))
        if kind == "append":
            return [*value, *draw(st.lists(values, min_size=1, max_size=3))]
        if kind == "edit":
            return [*value[:at], draw(_edited_once(value[at])), *value[at + 1 :]]
        middle = [] if kind == "remove" else [draw(values)]
        return [*value[:at], *middle, *value[at + (kind != "insert") :]]
    if isinstance(value, dict) and value:
        key = draw(st.sampled_from(list(value)))
        kind = draw(st.sampled_from("set edit remove move".split()))
        if kind == "set":
            return value | {draw(st.text(max_size=4)): draw(values)}
        if kind == "edit":
            return value | {key: draw(_edited_once(value[key]))}
        rest = {k: v for k, v in value.items() if k != key}
        return rest if kind == "remove" else rest | {key: value[key]}
    if isinstance(value, str) and value:
        at = draw(st.integers(0, len(value)))
        return value[:at] + draw(st.text(max_size=5)) + value[at + draw(st.integers(0, 2)) :]
    return draw(values)


@given(values.flatmap(lambda value: st.tuples(st.just(value), edited(value))))
@settings(max_examples=100)
def test_applying_the_change_to_the_old_value_gives_the_new_one(pair: tuple[Any, Any]) -> None:
    change(*pair)


@given(values, values)
@settings(max_examples=60)
@example([], [[]])
@example("", [])
@example([], "")
@example({}, [])
@example({"a": 1}, {})
@example({}, {"a": {}})
@example(["x" * 99], "x" * 99)  # nearly the same bytes, and another kind of value
@example("x" * 99, ["x" * 99])
@example({"k": "x" * 99}, ["x" * 99])
@example(["k", "x" * 99], {"k": "x" * 99})
@example(["x"] * 15, ["x"] * 16)  # the header of a list grows from one byte to three
@example(["x"] * 65_535, ["x"] * 65_536)
@example("x" * 31, "x" * 32)
@example("x" * 255, "x" * 256)
@example("x" * 65_535, "x" * 65_536)
@example({str(n): n for n in range(15)}, {str(n): n for n in range(16)})
def test_any_value_may_follow_any_other(before: Any, after: Any) -> None:
    change(before, after)


@given(values)
@settings(max_examples=40)
def test_an_equal_value_is_no_change(value: Any) -> None:
    assert diff(CODEC.encode(value), CODEC.encode(copy.deepcopy(value))) is None


def test_dicts_nested_as_deep_as_the_codec_goes_are_patched() -> None:
    before: Any = {"leaf": 1, "other": "o" * 100}
    after: Any = {"leaf": 2, "other": "o" * 100}
    for depth in range(200):
        before = {"inner": before, "other": "o" * (depth % 50)}
        after = {"inner": after, "other": "o" * (depth % 50)}
    assert change(before, after) is not None


# ------------------------------------------------------------------------ the right kind of change


def test_items_at_the_end_of_a_list_are_appended() -> None:
    delta = change([note(1)], [note(1), note(2), note(3)])
    assert delta is not None
    assert (delta.op, delta.items) == ("append", 2)
    assert delta.new == CODEC.encode(note(2)) + CODEC.encode(note(3))


def test_an_empty_list_that_gets_items_is_an_append() -> None:
    assert op([], [note(1)]) == "append"


def test_characters_at_the_end_of_a_text_are_added() -> None:
    assert change("Dear", "Dear Mr Li") == Delta("text", b" Mr Li")
    assert change("grü", "grün") == Delta("text", b"n")


def test_keys_of_a_dict_are_patched() -> None:
    filler = {f"key {n}": "f" * 30 for n in range(10)}
    assert op(filler, filler | {"new": 1}) == "patch"
    assert op(filler | {"gone": 1}, filler) == "patch"
    assert op(filler | {"a": 1}, filler | {"a": 2, "b": 3}) in ("patch", "splice")
    assert op({"a": "f" * 50, **filler, "z": 1}, {"a": 2, **filler, "z": 3}) == "patch"


def test_an_item_edited_in_place_is_a_splice() -> None:
    before = [note(n) for n in range(20)]
    after = copy.deepcopy(before)
    after[3]["role"] = "agent"
    assert op(before, after) == "splice"


def test_another_value_is_set() -> None:
    assert change(70, 120) == Delta("set", CODEC.encode(120))
    assert op([1, 2], "text") == "set"
    assert op({"a": 1}, [1]) == "set"
    assert op("text", None) == "set"


@given(values, values)
@settings(max_examples=50)
def test_a_change_never_brings_more_than_the_value_itself(before: Any, after: Any) -> None:
    assert cost(before, after) <= len(CODEC.encode(after))


# ------------------------------------------------------------------------ what must not be missed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, True),
        (1, 1.0),
        (True, 1.0),
        (0, False),
        (0.0, -0.0),
        ("a", b"a"),
        ([1], (1,)),
        (None, ""),
        ({1}, frozenset({1})),
    ],
)
def test_a_change_of_type_alone_is_a_change(before: Any, after: Any) -> None:
    for wrap in (lambda x: x, lambda x: [x], lambda x: {"k": x}, lambda x: {"k": {"deep": [x]}}):
        assert change(wrap(before), wrap(after)) is not None


def test_an_earlier_item_edited_in_place_is_seen_although_the_objects_are_equal() -> None:
    messages = [note(1), note(2)]
    before = CODEC.encode(messages)
    kept = list(messages)  # what comparing objects would compare with: the very same objects
    messages[0]["text"] = "edited in place"
    messages.append(note(3))
    assert kept == messages[:2]
    delta = diff(before, CODEC.encode(messages))
    assert delta is not None
    assert delta.op != "append"
    assert CODEC.decode(apply(before, delta)) == messages


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("abc", "cab"),
        ("abc", "bca"),
        ("abcd", "abdc"),
        ("abc", "xabc"),
        ("abc", "axbc"),
        ("abc", "bc"),
        ("abc", "ac"),
        ("abc", "abcd"),
        ("abc", "acbd"),
    ],
)
def test_the_order_of_keys_is_kept(before: str, after: str) -> None:
    big = "v" * 60
    for nest in (lambda x: x, lambda x: {"outer": x, "more": big}):
        old = nest(dict.fromkeys(before, big))
        new = nest(dict.fromkeys(after, big))
        assert change(old, new) is not None  # which proved it by the bytes


# ------------------------------------------------------------------------ what it costs

MANY = [note(n) for n in range(1000)]
ONE = len(CODEC.encode(note(1000)))
BIG = {f"key {n}": note(n) for n in range(1000)}


def test_an_item_appended_to_a_thousand_costs_that_item() -> None:
    assert cost(MANY, [*MANY, note(1000)]) == ONE


def test_an_edit_in_the_middle_of_a_thousand_items_costs_the_edit() -> None:
    after = copy.deepcopy(MANY)
    after[500]["role"] = "agent"
    assert cost(MANY, after) <= len("agent") + 2
    after[500]["text"] = "shorter"  # so is all that follows, in bytes from the start
    assert cost(MANY, after) <= ONE


@pytest.mark.parametrize("at", [0, 1, 500, 998, 999])
def test_an_item_taken_out_of_a_thousand_costs_next_to_nothing(at: int) -> None:
    # The header of the list counts the items, so it changes too; the rest is where it was.
    assert cost(MANY, MANY[:at] + MANY[at + 1 :]) <= 8


@pytest.mark.parametrize("at", [0, 1, 500, 999])
def test_an_item_put_between_a_thousand_costs_that_item(at: int) -> None:
    assert cost(MANY, [*MANY[:at], note(5000), *MANY[at:]]) <= ONE + 8


def test_two_edits_far_apart_cost_what_lies_between_them() -> None:
    # The price of one middle: a window that drops its first item and gets a new last one.
    assert cost(MANY, MANY[10:]) <= 8
    assert cost(MANY, [*MANY[10:], note(1000)]) > len(CODEC.encode(MANY)) // 2


def test_a_word_changed_in_a_long_text_costs_that_word() -> None:
    draft = "word " * 2000
    assert cost(draft, draft[:5000] + "another word " + draft[5000:]) <= 13
    assert cost(draft, draft[:5000] + draft[5005:]) == 0


def test_one_nested_key_changed_in_a_big_dict_costs_little() -> None:
    after = copy.deepcopy(BIG)
    after["key 500"]["role"] = "agent"
    assert cost(BIG, after) <= 60
    after["key 500"]["tags"] = ["new"]
    after["key 7"]["text"] += "!"
    del after["key 900"]
    assert op(BIG, after) == "patch"
    assert cost(BIG, after) <= 250


def test_a_list_inside_a_big_dict_that_grows_costs_the_item() -> None:
    before = BIG | {"log": MANY}
    assert cost(before, before | {"log": [*MANY, note(1000)]}) <= ONE + 40


# ------------------------------------------------------------------------ misfits


@pytest.mark.parametrize(
    ("value", "delta"),
    [
        ("a text", Delta("append", b"\x01", items=1)),
        ({"a": 1}, Delta("append", b"\x01", items=1)),
        (7, Delta("append", b"\x01", items=1)),
        ([1], Delta("text", b"x")),
        (None, Delta("text", b"x")),
        ([1], Delta("patch", CODEC.encode([[], {}]))),
        ("a text", Delta("patch", CODEC.encode([[], {}]))),
        ([1, 2], Delta("splice", b"", items=1, head=2, tail=1)),
        ("ab", Delta("splice", b"", head=3)),
        (7, Delta("splice", b"", head=1, tail=1)),
        ({"a": 1}, Delta("patch", CODEC.encode([[], {"b": ["text", b"x", 0, 0, 0]}]))),
        ({"a": 1}, Delta("patch", CODEC.encode([[], {"a": ["text", b"x", 0, 0, 0]}]))),
        ({"a": 1}, Delta("patch", CODEC.encode([[], {"a": ["melt", b"x", 0, 0, 0]}]))),
        ([1], Delta("melt", b"")),  # type: ignore[arg-type]
    ],
)
def test_a_change_made_for_another_value_is_refused(value: Any, delta: Delta) -> None:
    with pytest.raises(BrokenDelta):
        apply(CODEC.encode(value), delta)


def test_an_empty_value_fits_nothing_but_a_set() -> None:
    for delta in (Delta("append", b"\x01", items=1), Delta("text", b"x"), Delta("patch", b"\x90")):
        with pytest.raises(BrokenDelta):
            apply(b"", delta)
    assert apply(b"", Delta("set", b"\x01")) == b"\x01"


# ------------------------------------------------------------------------ helpers


@given(st.binary(max_size=30), st.binary(max_size=30), st.binary(max_size=30), st.integers(0, 99))
@settings(max_examples=100)
def test_common_starts_and_ends_are_as_long_as_they_can_be(
    a: bytes, b: bytes, shared: bytes, at_most: int
) -> None:
    start = common_start(shared + a, shared + b)
    naive = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    assert start == len(shared) + (min(len(a), len(b)) if naive is None else naive)
    at_most = min(at_most, len(a + shared), len(b + shared))
    end = common_end(a + shared, b + shared, at_most)
    x, y = (a + shared)[::-1], (b + shared)[::-1]
    assert x[:end] == y[:end]
    assert end == at_most or x[end] != y[end]


@pytest.mark.parametrize("size", [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536])
def test_headers_are_those_of_msgpack(size: int) -> None:
    items = CODEC.encode([None] * size)
    assert array_header(items) == (size, len(pack_array_header(size)))
    assert items.startswith(pack_array_header(size))
    assert text_header(items) is None
    text = CODEC.encode("x" * size)
    assert text_header(text) == (size, len(pack_text_header(size)))
    assert text.startswith(pack_text_header(size))
    assert array_header(text) is None
