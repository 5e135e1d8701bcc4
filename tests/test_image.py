"""Views of one growing buffer: none ever changes, and each knows where its bytes lie in the log."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_kit.storage.codec import Codec
from durable_kit.storage.delta import BrokenDelta, Delta
from durable_kit.storage.image import SMALL, Part, Value, full_size, snapshot_size
from durable_kit.storage.runs import BODY, LOST, Address, Runs

CODEC = Codec()


def value_of(value: Any) -> Value:
    return Value.of(CODEC.encode(value))


def decoded(value: Value) -> Any:
    return value.decode(CODEC.decode)


def resolve(value: Value, blobs: dict[tuple[int, int], bytes]) -> int:
    """Look up every place that the value names; returns how many bytes are known to lie there."""
    at = found = 0
    body = value.body()
    for run in value.located():
        if run.ordinal != LOST:
            blob = blobs[run.sequence, run.ordinal]
            there = blob[run.start : run.start + run.length]
            assert there == body[at : at + run.length]
            found += run.length
        at += run.length
    assert at == value.located().length <= value.length
    return found


# ------------------------------------------------------------------------ a view never changes

items = st.one_of(
    st.integers(0, 300), st.text(max_size=20), st.sampled_from(["m" * 40, {"k": "v" * 30}, []])
)
plain = st.one_of(
    st.lists(items, max_size=8),
    st.text(alphabet="abü€", max_size=60),
    st.dictionaries(st.text(max_size=3), items, max_size=6),
    items,
)


@dataclass
class Log:
    """A log in a dict, and every view made so far beside the plain value it must stay."""

    blobs: dict[tuple[int, int], bytes] = field(default_factory=dict)
    views: list[tuple[Value, Any]] = field(default_factory=list)
    sequence: int = 0

    def place(self, data: bytes, *, ordinal: int = BODY) -> Runs:
        """Write `data` into a blob of its own, a little way in, and say where it lies."""
        self.sequence += 1
        self.blobs[self.sequence, ordinal] = b"<<" + data + b">>"
        return Runs([Address(self.sequence, ordinal, 2, len(data))])

    def placed(self, data: bytes) -> Runs:
        """The same in two halves, each in a blob of its own."""
        half = len(data) // 2
        runs = self.place(data[:half], ordinal=0)
        runs.extend(self.place(data[half:], ordinal=1))
        return runs

    def check(self) -> None:
        for view, value in self.views:
            assert view.encoded() == CODEC.encode(value)
            assert decoded(view) == value
            resolve(view, self.blobs)


@given(st.data())
@settings(max_examples=80)
def test_views_never_change_and_name_only_places_that_hold_their_bytes(data: st.DataObject) -> None:
    log = Log()
    log.views.append((value_of([]), []))
    for _ in range(data.draw(st.integers(1, 14))):
        view, value = data.draw(st.sampled_from(log.views))
        act = data.draw(st.sampled_from("new grow grow change change relocate lose share".split()))
        if act == "new":
            value = data.draw(plain)
            encoded = CODEC.encode(value)
            runs = data.draw(st.sampled_from([None, log.place(encoded), log.placed(encoded)]))
            log.views.append((Value.set_to(encoded, runs), value))
        elif act in ("grow", "change"):
            after = data.draw(_grown(value) if act == "grow" else _changed(value))
            delta = view.change_to(CODEC.encode(after))
            if delta is None:
                assert CODEC.encode(after) == CODEC.encode(value)
                continue
            # Stored at one place, at two, or at none that is known (as a record that only finds).
            runs = data.draw(st.sampled_from([Runs(), log.place(delta.new), log.placed(delta.new)]))
            log.views.append((view.after(delta, runs), after))
        elif act == "relocate":
            view.relocate(log.place(view.body()))
        elif act == "lose":
            gone = set(data.draw(st.lists(st.sampled_from(sorted(log.blobs) or [(0, 0)]))))
            for one, _ in log.views:
                one.lose(lambda run, gone=gone: (run.sequence, run.ordinal) in gone)
            for place in gone:
                log.blobs.pop(place, None)
        else:
            # As a snapshot is read: bytes of its own, and the state before it in memory already.
            after = data.draw(st.one_of(_grown(value), _changed(value), st.just(value)))
            encoded = CODEC.encode(after)
            runs = log.place(encoded)
            known = data.draw(st.integers(0, len(encoded)))
            alone = Value.set_to(encoded, runs.first(known))
            log.views.append((alone.sharing(view), after))
        log.check()


def _grown(value: Any) -> st.SearchStrategy[Any]:
    if isinstance(value, list):
        return st.lists(items, min_size=1, max_size=3).map(lambda new: [*value, *new])
    if isinstance(value, str):
        return st.text(alphabet="abü€", min_size=1, max_size=30).map(lambda new: value + new)
    return _changed(value)


@st.composite
def _changed(draw: st.DrawFn, value: Any) -> Any:
    if isinstance(value, list | str) and value:
        at, end = sorted(draw(st.tuples(*[st.integers(0, len(value))] * 2)))
        new = draw(st.lists(items, max_size=2)) if isinstance(value, list) else "€" * (at % 3)
        return value[:at] + new + value[end:]
    if isinstance(value, dict):
        return value | draw(st.dictionaries(st.text(max_size=3), items, max_size=2))
    return draw(plain)


# ------------------------------------------------------------------------ one buffer, many lengths


def test_growing_a_list_copies_nothing_and_leaves_the_shorter_view_as_it_was() -> None:
    first = value_of(["m1"])
    states = [first]
    for n in range(2, 200):
        states.append(states[-1].after(Delta("append", CODEC.encode(f"m{n}"), items=1), Runs()))
    assert len({id(state._buffer) for state in states}) == 1
    for n, state in enumerate(states, 1):
        assert decoded(state) == [f"m{k}" for k in range(1, n + 1)]


LONG = [{"id": n, "text": "x" * 900} for n in range(200)]


def in_parts(counts: list[int]) -> Value:
    """LONG in four parts of fifty items, as a snapshot gives it back."""
    parts: list[Part] = [CODEC.encode(LONG[at : at + 50])[3:] for at in range(0, 200, 50)]
    return Value.from_parts("list", parts, 200, Runs(), counts)


@pytest.mark.parametrize(("counts", "pieces"), [([50] * 4, 4), ([], 1)])
def test_a_long_list_is_decoded_in_pieces_where_it_is_known_to_be_cut(
    counts: list[int], pieces: int
) -> None:
    calls: list[int] = []

    def decode(*parts: Any) -> Any:
        calls.append(sum(map(len, parts)))
        return CODEC.decode(*parts)

    value = in_parts(counts).after(Delta("append", CODEC.encode("last"), items=1), Runs())
    assert value.decode(decode) == [*LONG, "last"]
    assert len(calls) in (pieces, pieces + 1)
    assert value.encoded() == CODEC.encode([*LONG, "last"])


def test_counts_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match="199 items"):
        in_parts([50, 50, 50, 49])


def test_the_items_of_each_run_are_known_until_a_change_in_the_middle() -> None:
    value = value_of([])
    for n, item in enumerate(LONG):
        new = CODEC.encode(item)
        runs = Runs.at(Address(n, 0, 0, len(new)))
        value = value.after(Delta("append", new, items=1), runs)
    assert value.counts() == [1] * 200
    edited = [*LONG[:100], {"id": 100}, *LONG[101:]]
    delta = value.change_to(CODEC.encode(edited))
    assert delta is not None
    assert delta.op == "splice"
    spliced = value.after(delta, Runs.at(Address(200, BODY, 0, len(delta.new))))
    assert spliced.counts() == []
    assert decoded(spliced) == edited


def test_growth_that_was_withdrawn_leaves_the_buffer_to_the_next() -> None:
    base = value_of(["m1"]).after(Delta("append", CODEC.encode("m2"), items=1), Runs())
    early = base.after(Delta("append", CODEC.encode("early"), items=1), Runs())
    early.withdraw(base)
    late = base.after(Delta("append", CODEC.encode("late"), items=1), Runs())
    assert late._buffer is base._buffer
    assert [decoded(view) for view in (base, late)] == [["m1", "m2"], ["m1", "m2", "late"]]


def test_growth_that_somebody_has_built_on_is_not_withdrawn() -> None:
    base = value_of(["m1"])
    early = base.after(Delta("append", CODEC.encode("m2"), items=1), Runs())
    later = early.after(Delta("append", CODEC.encode("m3"), items=1), Runs())
    early.withdraw(base)
    assert decoded(later) == ["m1", "m2", "m3"]


def test_a_second_branch_gets_a_buffer_of_its_own() -> None:
    base = value_of(["m1"])
    left = base.after(Delta("append", CODEC.encode("left"), items=1), Runs())
    right = base.after(Delta("append", CODEC.encode("right"), items=1), Runs())
    assert [decoded(view) for view in (base, left, right)] == [
        ["m1"], ["m1", "left"], ["m1", "right"],
    ]  # fmt: skip
    assert left._buffer is base._buffer
    assert right._buffer is not base._buffer


def test_states_of_one_history_share_the_objects_they_have_in_common() -> None:
    short = value_of([{"id": 1}, {"id": 2}])
    long = short.after(Delta("append", CODEC.encode({"id": 3}), items=1), Runs())
    of_long, of_short = decoded(long), decoded(short)
    assert of_long[:2] == of_short
    assert all(a is b for a, b in zip(of_short, of_long, strict=False))
    of_short.append("mine")  # the lists are not shared, only what is in them
    assert decoded(long) == of_long


def test_a_branch_shares_only_the_objects_from_before_it_left() -> None:
    base = value_of([{"id": 1}])
    long = base.after(Delta("append", CODEC.encode({"id": "long"}), items=1), Runs())
    assert decoded(long) == [{"id": 1}, {"id": "long"}]
    branch = base.after(Delta("append", CODEC.encode({"id": "branch"}), items=1), Runs())
    assert decoded(branch) == [{"id": 1}, {"id": "branch"}]


def test_a_state_read_from_a_snapshot_becomes_a_view_of_the_state_before_it() -> None:
    before = value_of(["m" * 40] * 50)
    after = value_of(["m" * 40] * 51)
    shared = after.sharing(before)
    assert shared._buffer is before._buffer
    assert decoded(shared) == ["m" * 40] * 51
    assert len(decoded(before)) == 50
    assert value_of(["m" * 40] * 50).sharing(before) is before


@pytest.mark.parametrize(
    ("value", "before"),
    [
        (["a"], ["a", "b"]),
        (["b", "a"], ["a"]),
        ("text", ["text"]),
        ("a", "ab"),
        (["x"], "x"),
        ({"a": 1}, {"a": 2}),
    ],
)
def test_what_does_not_start_with_the_state_before_shares_nothing(value: Any, before: Any) -> None:
    alone, old = value_of(value), value_of(before)
    assert alone.sharing(old) is alone
    assert (decoded(alone), decoded(old)) == (value, before)


# ------------------------------------------------------------------------ bytes


@given(plain)
@settings(max_examples=50)
def test_a_value_is_the_bytes_it_was_made_of(value: Any) -> None:
    encoded = CODEC.encode(value)
    view = Value.of(encoded)
    assert view.encoded() == encoded
    assert view.change_to(encoded) is None
    assert view.digest({}) == hashlib.sha256(view.body()).digest()


def test_digests_of_longer_and_longer_views_hash_each_byte_once() -> None:
    views = [value_of(["m1"])]
    for n in range(2, 30):
        views.append(views[-1].after(Delta("append", CODEC.encode(f"m{n}"), items=1), Runs()))
    running: dict[int, tuple[int, Any]] = {}
    for view in [*views, views[3], views[10]]:  # back to a shorter one as well
        assert view.digest(running) == hashlib.sha256(view.body()).digest()


@pytest.mark.parametrize(
    ("value", "delta"),
    [
        ("text", Delta("append", b"\x01", items=1)),
        ([1], Delta("text", b"x")),
        ({"a": 1}, Delta("text", b"x")),
        (["a", "b"], Delta("splice", b"", items=1, head=4, tail=4)),
        ([1], Delta("patch", CODEC.encode([[], {}]))),
    ],
)
def test_a_delta_for_another_value_is_refused(value: Any, delta: Delta) -> None:
    view = value_of(value)
    with pytest.raises(BrokenDelta):
        view.after(delta, Runs())
    assert decoded(view) == value


# ------------------------------------------------------------------------ places


def test_a_splice_keeps_the_places_of_what_it_keeps() -> None:
    log = Log()
    before = ["m" * 40, "old", "n" * 40]
    encoded = CODEC.encode(before)
    view = Value.set_to(encoded, log.place(encoded))
    delta = view.change_to(CODEC.encode(["m" * 40, "new and longer", "n" * 40, "o" * 40]))
    assert delta is not None
    assert delta.op == "splice"
    after = view.after(delta, log.place(delta.new))
    assert resolve(after, log.blobs) == after.length
    assert {run.sequence for run in after.located()} == {1, 2}


def test_lost_places_are_named_in_every_view_that_used_them() -> None:
    log = Log()
    encoded = CODEC.encode(["m" * 40])
    short = Value.set_to(encoded, log.place(encoded))
    item = CODEC.encode("n" * 40)
    long = short.after(Delta("append", item, items=1), log.place(item))
    short.lose(lambda run: run.sequence == 1)
    assert [run.ordinal for run in short.located()] == [LOST]
    assert [run.ordinal for run in long.located()] == [LOST, BODY]
    assert resolve(long, log.blobs) == len(item)


def test_moving_the_places_of_a_shorter_view_keeps_those_of_the_longer_one() -> None:
    log = Log()
    encoded = CODEC.encode(["m" * 40])
    short = Value.set_to(encoded, log.place(encoded))
    item = CODEC.encode("n" * 40)
    long = short.after(Delta("append", item, items=1), log.place(item))
    short.relocate(log.place(short.body()))
    assert [run.sequence for run in long.located()] == [3, 2]
    assert resolve(long, log.blobs) == long.length


def test_places_are_told_only_as_far_as_all_of_them_are_known() -> None:
    log = Log()
    view = value_of(["m" * 40])  # nobody knows where it lies
    item = CODEC.encode("n" * 40)
    long = view.after(Delta("append", item, items=1), log.place(item))
    assert long.located().length == 0


def test_sizes_count_addresses_where_the_places_are_known_and_bytes_where_not() -> None:
    log = Log()
    encoded = CODEC.encode(["m" * 1000] * 5)
    image = {"known": Value.set_to(encoded, log.place(encoded)), "unknown": value_of("n" * 1000)}
    assert full_size(image) > 6000
    assert 1000 < snapshot_size(image) < 1100


def test_small_values_are_set_rather_than_searched_for_a_change() -> None:
    assert value_of([1]).change_to(CODEC.encode([1, 2])) == Delta("set", CODEC.encode([1, 2]))
    big = ["x" * SMALL]
    delta = value_of(big).change_to(CODEC.encode([*big, 2]))
    assert delta == Delta("append", CODEC.encode(2), items=1)
