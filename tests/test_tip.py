"""What changed since the parent: found exactly, or by identity, with what that gives up."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from durable_kit.errors import UnstorableValue
from durable_kit.serde_codec import ChannelCodec, default_codec
from durable_kit.storage.checkpoint_log import CheckpointLog
from durable_kit.storage.database import Database
from durable_kit.storage.delta import Delta
from durable_kit.storage.image import CHUNK, Value
from durable_kit.storage.rows import LogRows
from durable_kit.storage.snapshot_policy import EveryN, SnapshotPolicy
from durable_kit.storage.tip import Plan, Tip, plan

CODEC = ChannelCodec(default_codec())


class CountingCodec:
    """Counts how many list items were encoded."""

    def __init__(self) -> None:
        self.items = 0

    def encode(self, name: str, value: Any) -> bytes:
        self.items += len(value) if isinstance(value, list) else 1
        return CODEC.encode(name, value)

    def decode(self, name: str, data: bytes) -> Any:
        return CODEC.decode(name, data)


class Thread:
    """One thread of a log: append states, read them back as a fresh process would."""

    def __init__(
        self, database: Database, *, trust: bool, policy: SnapshotPolicy, name: str = "t"
    ) -> None:
        self.database, self.policy, self.name = database, policy, name
        self.codec = CountingCodec()
        self.log = self._new_log(trust)
        self.steps = 0

    def _new_log(self, trust: bool) -> CheckpointLog:
        return CheckpointLog(self.database, self.codec, policy=self.policy, trust_identity=trust)

    def append(self, messages: Any, **more: Any) -> str:
        """Append the next state; returns the kind of its record."""
        parent = f"c{self.steps}" if self.steps else None
        record = self.log.append(
            thread_id=self.name,
            namespace="",
            checkpoint_id=f"c{self.steps + 1}",
            parent_id=parent,
            state={":messages": messages, **{f":{key}": value for key, value in more.items()}},
            metadata={},
        )
        self.steps += 1
        return record.kind

    def state(self, step: int) -> dict[str, Any]:
        entry = self._new_log(False).read(self.name, "", f"c{step}")
        assert entry is not None
        return entry.state(CODEC.decode)

    def messages(self, step: int) -> Any:
        return self.state(step)[":messages"]


@pytest.fixture
def database() -> Iterator[Database]:
    with Database.open("sqlite://") as opened:
        yield opened


def note(n: int) -> dict[str, Any]:
    return {"id": n, "text": f"message {n} " + "." * 40}


NEVER = EveryN(10**6)

# ------------------------------------------------------------------------ edits in place


def test_exactly_an_edit_in_place_is_seen_and_stored_at_once(database: Database) -> None:
    thread = Thread(database, trust=False, policy=NEVER)
    messages = [note(1), note(2)]
    thread.append(messages)
    messages[0]["text"] = "edited"
    messages.append(note(3))
    thread.append(messages)
    assert thread.messages(2) == [{"id": 1, "text": "edited"}, note(2), note(3)]
    assert thread.messages(1) == [note(1), note(2)]


def test_by_identity_an_edit_in_place_waits_for_the_next_snapshot(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    thread = Thread(database, trust=True, policy=EveryN(4))
    messages = [note(1)]
    kinds = [thread.append(messages)]
    messages[0]["text"] = "edited"
    for n in (2, 3, 4):
        messages.append(note(n))
        kinds.append(thread.append(messages))
        assert thread.messages(n) == [note(k) for k in range(1, n + 1)]  # the older item
    assert caplog.records == []
    messages.append(note(5))
    kinds.append(thread.append(messages))
    assert kinds == ["snapshot", "delta", "delta", "delta", "snapshot"]
    (warning,) = caplog.records
    assert "':messages'" in warning.message
    assert "edited in place" in warning.message
    assert thread.messages(4)[0] == note(1)
    assert thread.messages(5)[0] == {"id": 1, "text": "edited"}
    assert len(thread.messages(5)) == 5


def test_the_warning_is_said_once_and_later_deltas_build_on_the_truth(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    thread = Thread(database, trust=True, policy=EveryN(2))
    messages = [note(1)]
    thread.append(messages)
    messages[0]["text"] = "edited"
    for n in range(2, 8):
        messages.append(note(n))
        thread.append(messages)
    assert len(caplog.records) == 1
    assert thread.messages(7) == messages


def test_an_edit_in_place_is_noticed_at_a_snapshot_that_adds_nothing(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    thread = Thread(database, trust=True, policy=EveryN(1))
    messages = [note(1)]
    thread.append(messages)
    messages[0]["text"] = "edited"
    thread.append(messages)
    assert len(caplog.records) == 1
    assert thread.messages(2) == [{"id": 1, "text": "edited"}]


# ------------------------------------------------------------------------ what identity does see


@pytest.mark.parametrize(
    "change",
    [
        lambda m: [*m, note(9)],
        lambda m: m[:-1],
        lambda m: m[1:],
        lambda m: [],
        lambda m: [m[1], m[0], *m[2:]],
        lambda m: [note(9), *m[1:]],  # another object in its place, as add_messages does
        lambda m: [*m[:-1], copy.deepcopy(m[-1]) | {"text": "replaced"}],
        lambda m: [*m, *m],
        lambda m: tuple(m),
        lambda m: "a text",
        lambda m: None,
    ],
)
def test_anything_but_an_edit_in_place_is_seen_at_once(database: Database, change: Any) -> None:
    thread = Thread(database, trust=True, policy=NEVER)
    messages = [note(1), note(2), note(3)]
    thread.append(messages)
    after = change(messages)
    thread.append(after)
    assert thread.messages(2) == after
    thread.append([note(1)])  # and back
    assert thread.messages(3) == [note(1)]


def test_equal_is_not_the_same_object(database: Database) -> None:
    thread = Thread(database, trust=True, policy=NEVER)
    for first in (1, True, 1.0):
        thread.append([first, "x" * 40])
    assert [type(thread.messages(n)[0]) for n in (1, 2, 3)] == [int, bool, float]


def test_the_same_list_grown_in_place_is_seen(database: Database) -> None:
    thread = Thread(database, trust=True, policy=NEVER)
    messages: list[Any] = []
    for n in range(1, 6):
        messages.append(note(n))
        thread.append(messages)
    assert [len(thread.messages(n)) for n in range(1, 6)] == [1, 2, 3, 4, 5]


def test_values_that_are_no_lists_are_compared_exactly_anyway(database: Database) -> None:
    thread = Thread(database, trust=True, policy=NEVER)
    table = {"deep": {"n": 1}, "list": [note(1)]}
    thread.append([], table=table)
    table["deep"]["n"] = 2
    table["list"][0]["text"] = "edited"
    thread.append([], table=table)
    assert thread.state(2)[":table"] == table


def test_a_value_that_comes_and_goes_is_followed(database: Database) -> None:
    thread = Thread(database, trust=True, policy=NEVER)
    items = [note(1)]
    for more in ({"items": items}, {}, {"items": items}, {"items": [*items, note(2)]}):
        thread.append([], **more)
    assert [thread.state(n).get(":items") for n in (1, 2, 3, 4)] == [
        [note(1)], None, [note(1)], [note(1), note(2)],
    ]  # fmt: skip


acts = st.lists(st.sampled_from("grow grow2 same shrink replace clear".split()), max_size=15)


@given(acts, st.integers(1, 4), st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_without_edits_in_place_both_ways_store_the_same_and_no_warning_is_given(
    database: Database, caplog: pytest.LogCaptureFixture, acts: list[str], n: int, small: bool
) -> None:
    caplog.clear()
    new = (lambda k: k) if small else note
    trusting = Thread(database, trust=True, policy=EveryN(n), name=f"trusting {object()}")
    messages: list[Any] = []
    expected = []
    for k, act in enumerate(acts):
        if act.startswith("grow"):
            messages = messages + [new(k)] * (1 + act.endswith("2"))
        elif act == "shrink":
            messages = messages[:-1]
        elif act == "replace" and messages:
            messages = [new(k), *messages[1:]]
        elif act == "clear":
            messages = []
        trusting.append(messages)
        expected.append(messages)
    assert [trusting.messages(k + 1) for k in range(len(acts))] == expected
    assert caplog.records == []


# ------------------------------------------------------------------------ what a put costs


def items_encoded(database: Database, *, trust: bool, steps: int) -> list[int]:
    """How many items each step encoded, in a conversation of one message a step."""
    thread = Thread(database, trust=trust, policy=NEVER, name=f"{trust} {steps}")
    messages: list[Any] = []
    counts = []
    for n in range(steps):
        messages = [*messages, note(n)]
        before = thread.codec.items
        thread.append(messages)
        counts.append(thread.codec.items - before)
    return counts


def test_exactly_a_step_encodes_the_history_and_by_identity_what_is_new(
    database: Database,
) -> None:
    exactly = items_encoded(database, trust=False, steps=100)
    by_identity = items_encoded(database, trust=True, steps=100)
    assert exactly[-1] == 101  # all messages, and the metadata
    assert set(by_identity) == {2}  # one message, and the metadata: from the first step to the last


def test_a_fresh_process_compares_exactly_once_and_then_trusts(database: Database) -> None:
    thread = Thread(database, trust=True, policy=NEVER)
    messages = [note(n) for n in range(50)]
    thread.append(messages)
    thread.log = thread._new_log(True)
    counts = []
    for n in (50, 51, 52):
        messages = [*messages, note(n)]
        before = thread.codec.items
        thread.append(messages)
        counts.append(thread.codec.items - before)
    assert counts == [52, 2, 2]
    assert thread.messages(4) == messages


def test_an_unchanged_list_is_not_encoded_at_all(database: Database) -> None:
    thread = Thread(database, trust=True, policy=NEVER)
    messages = [note(n) for n in range(50)]
    thread.append(messages)
    before = thread.codec.items
    thread.append(messages)
    thread.append(list(messages))  # another list of the same objects
    assert thread.codec.items - before == 2  # the metadata of each


def test_what_is_kept_to_compare_with_does_not_change_with_the_callers_list() -> None:
    messages = [note(1)]
    planned = plan(None, {":messages": messages}, CODEC, trust_identity=True)
    messages.append(note(2))
    messages[0] = note(3)
    assert planned.objects == {":messages": [note(1)]}


# ------------------------------------------------------------------------ plans


def tip_of(state: dict[str, Any], objects: dict[str, list[Any]] | None = None) -> Tip:
    image = {name: Value.of(CODEC.encode(name, value)) for name, value in state.items()}
    return Tip(7, "c7", b"", 0, 0, image, objects=objects or {})


def test_without_a_parent_every_value_is_set() -> None:
    state = {":a": [1], ":b": "text"}
    planned = plan(None, state, CODEC, trust_identity=False)
    assert [(change.name, change.delta) for change in planned.changes] == [
        (":a", Delta("set", CODEC.encode(":a", [1]))),
        (":b", Delta("set", CODEC.encode(":b", "text"))),
    ]


def test_what_stayed_is_not_in_the_plan_and_what_went_is() -> None:
    tip = tip_of({":stays": [note(1)], ":goes": 1, ":grows": [note(1)]})
    state = {":grows": [note(1), note(2)], ":stays": [note(1)]}
    planned = plan(tip, state, CODEC, trust_identity=False)
    new = CODEC.encode(":grows", note(2))
    assert [(change.name, change.delta) for change in planned.changes] == [
        (":grows", Delta("append", new, items=1)),
        (":goes", None),
    ]
    assert planned.new_bytes == len(new) + 4


@pytest.mark.parametrize("trust", [False, True])
def test_items_appended_together_can_be_had_one_by_one(trust: bool) -> None:
    before = [note(1)]
    tip = tip_of({":m": before}, {":m": before})
    planned = plan(tip, {":m": [*before, note(2), "x", [note(3)]]}, CODEC, trust_identity=trust)
    (change,) = planned.changes
    assert change.delta is not None
    assert change.parts is not None
    assert change.parts() == [CODEC.encode(":m", item) for item in (note(2), "x", [note(3)])]
    assert b"".join(change.parts()) == change.delta.new


@pytest.mark.parametrize("trust", [False, True])
def test_what_cannot_be_stored_is_named_by_its_place_in_the_whole_list(trust: bool) -> None:
    before = [note(1), note(2)]
    tip = tip_of({":messages": before}, {":messages": before})
    state = {":messages": [*before, {"bad": object()}]}
    with pytest.raises(UnstorableValue) as caught:
        plan(tip, state, CODEC, trust_identity=trust)
    assert caught.value.path == "state['messages'][2]['bad']"


def test_new_bytes_of_an_empty_plan_are_none() -> None:
    assert Plan([], {}).new_bytes == 0


# ------------------------------------------------------------------------ rolled back


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("self_contained", [False, True])
@pytest.mark.parametrize("fails_at", range(2, 8))
def test_a_checkpoint_that_could_not_be_committed_is_stored_whole_by_the_next_try(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    trust: bool,
    self_contained: bool,
    fails_at: int,
) -> None:
    """Making a record moves what the values in memory know of their places in the log.

    The record that was rolled back held the bytes of `table`; the next one must not point there.
    """
    thread = Thread(database, trust=trust, policy=EveryN(3, self_contained=self_contained))
    messages: list[Any] = []
    states = []
    for n in range(1, 10):
        messages = [*messages, note(n)]
        states.append({":messages": messages, ":table": {"filler": "f" * 100, "n": n // 3}})
        if n == fails_at:
            with monkeypatch.context() as patched:
                patched.setattr(LogRows, "save_head", _no_power)
                with pytest.raises(OSError, match="no power"):
                    thread.append(messages, table=states[-1][":table"])
        thread.append(messages, table=states[-1][":table"])
    assert [thread.state(n) for n in range(1, 10)] == states


def _no_power(*_: object) -> None:
    raise OSError("no power")


# -- a history longer than a piece ---------------------------------------------------------------


def _long(count: int) -> list[Any]:
    return [{"role": "user", "content": f"{n:04d}" + "x" * 400} for n in range(count)]


def _edited(messages: list[Any], place: int) -> list[Any]:
    changed = copy.deepcopy(messages)
    changed[place]["content"] = "edited"
    return changed


LONG = _long(300)  # some 130 kB, in four pieces
ENDINGS: dict[str, list[Any]] = {
    "nothing new": LONG,
    "one more": [*LONG, {"role": "user", "content": "new"}],
    "many more": [*LONG, *_long(90)],
    "the first edited": _edited(LONG, 0),
    "one in the middle edited": [*_edited(LONG, 150), "new"],
    "the last edited": _edited(LONG, 299),
    "the same bytes cut elsewhere": [*LONG[:-2], [*LONG[-2:]]],
    "one less": LONG[:-1],
    "none left": [],
    "two exchanged": [LONG[1], LONG[0], *LONG[2:]],
    "slid": [*LONG[1:], "new"],
}


@pytest.mark.parametrize("how", ENDINGS)
@pytest.mark.parametrize("kept_as", ["parts", "view", "bytes"])
def test_a_long_list_looked_at_in_pieces_comes_to_what_its_whole_encoding_says(
    how: str, kept_as: str
) -> None:
    encoded = CODEC.encode("channel:m", LONG)
    before = Value.of(encoded)
    if kept_as != "bytes":  # as a read from the log leaves it
        body = memoryview(before.body())
        parts: list[Any] = [body] if kept_as == "view" else [body[:50_000], body[50_000:]]
        before = Value.from_parts("list", parts, 300, before.located())
    tip = Tip(1, "c1", b"", 0, 0, {"channel:m": before})
    planned = plan(tip, {"channel:m": ENDINGS[how]}, CODEC, trust_identity=False)
    whole = before.change_to(CODEC.encode("channel:m", ENDINGS[how]))
    assert [change.delta for change in planned.changes] == ([] if whole is None else [whole])


def test_what_cannot_be_stored_in_a_long_list_is_named_by_its_place_in_it() -> None:
    tip = Tip(1, "c1", b"", 0, 0, {"channel:m": Value.of(CODEC.encode("channel:m", LONG))})
    for place in (7, 299, 300):
        spoiled = [*LONG, "new"]
        spoiled[place] = object()
        with pytest.raises(UnstorableValue, match=rf"'m'\]\[{place}\]"):
            plan(tip, {"channel:m": spoiled}, CODEC, trust_identity=False)


def test_a_long_list_that_only_grows_is_never_encoded_in_one_piece() -> None:
    """New memory at each step, touched for the first time, cost more than the encoding."""
    largest: list[int] = []

    class Watching(CountingCodec):
        def encode(self, name: str, value: Any) -> bytes:
            encoded = super().encode(name, value)
            largest.append(len(encoded))
            return encoded

    tip = Tip(1, "c1", b"", 0, 0, {"channel:m": Value.of(CODEC.encode("channel:m", LONG))})
    plan(tip, {"channel:m": [*LONG, "new"]}, Watching(), trust_identity=False)
    assert max(largest) <= 2 * CHUNK
