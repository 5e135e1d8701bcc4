"""Records and states: what a record says is what was written, and each byte is written once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_kit.storage.codec import Codec
from durable_kit.storage.delta import BrokenDelta, Delta
from durable_kit.storage.fold import (
    Change,
    Header,
    Writer,
    addresses,
    brought,
    read_delta,
    read_snapshot,
    write_delta,
    write_snapshot,
)
from durable_kit.storage.image import Image
from durable_kit.storage.record import blob_of, header_of, pack_body
from durable_kit.storage.runs import BODY, LOST
from durable_kit.storage.tip import Tip, plan

CODEC = Codec()
LONG = "m" * 40


class NamedCodec:
    """The codec as a log wants it."""

    def encode(self, name: str, value: Any) -> bytes:
        return CODEC.encode(value)

    def decode(self, name: str, data: bytes) -> Any:
        return CODEC.decode(data)


def changes(image: Image, state: dict[str, Any]) -> list[Change]:
    tip = Tip(0, "", b"", 0, 0, image)
    return plan(tip, state, NamedCodec(), trust_identity=False).changes


def state_of(image: Image) -> dict[str, Any]:
    return {name: CODEC.decode(value.encoded()) for name, value in image.items()}


def stored(header: Header, blob: bytes | bytearray) -> tuple[Header, bytes]:
    """Header and blob as they come back from a row."""
    body = pack_body(header, bytes(blob))
    return header_of(body), blob_of(body)


class Log:
    """Records in a dict: writes them as the log does, and reads them back from bytes alone."""

    def __init__(self) -> None:
        self.image: Image = {}
        self.bodies: dict[int, tuple[str, Header, bytes]] = {}
        self.blobs: dict[tuple[int, int], bytes] = {}
        self.sources: list[tuple[int, int, bytes]] = []

    def pending(self, *values: Any) -> None:
        """Pending writes of the newest record: the next state's new bytes are likely in here."""
        sequence = len(self.bodies)
        for value in values:
            ordinal = len(self.sources)
            blob = CODEC.encode("before it") + CODEC.encode(value) + CODEC.encode("after it")
            self.blobs[sequence, ordinal] = blob
            self.sources.append((sequence, ordinal, blob))

    def delta(self, state: dict[str, Any]) -> Header:
        writer = Writer(len(self.bodies) + 1, self.sources)
        header, self.image = write_delta(self.image, changes(self.image, state), writer)
        return self._keep("delta", header, writer)

    def snapshot(self, state: dict[str, Any], *, self_contained: bool = False) -> Header:
        sequence = len(self.bodies) + 1
        finder = Writer(sequence, self.sources, finds_only=True)
        _, self.image = write_delta(self.image, changes(self.image, state), finder)
        assert not finder.blob
        writer = Writer(sequence)
        header = write_snapshot(self.image, writer, self_contained=self_contained)
        return self._keep("snapshot", header, writer)

    def _keep(self, kind: str, header: Header, writer: Writer) -> Header:
        header, blob = stored(header, writer.blob)
        self.bodies[writer.sequence] = (kind, header, blob)
        self.blobs[writer.sequence, BODY] = blob
        self.sources = []
        return header

    def read(self, upto: int | None = None) -> Image:
        image: Image = {}
        for sequence, (kind, header, blob) in self.bodies.items():
            if sequence > (upto or sequence):
                break
            needed = addresses(header, kind, sequence)
            blobs = {place: self.blobs[place] for place in needed}  # exactly what it says it needs
            if kind == "snapshot":
                image = read_snapshot(header, blob, sequence, blobs)
            else:
                image = read_delta(image, header, blob, sequence, blobs)
        return image

    def blob_bytes(self) -> int:
        return sum(len(blob) for _, _, blob in self.bodies.values())


# ------------------------------------------------------------------------ round trips

items = st.one_of(st.integers(0, 9), st.sampled_from([LONG, "n" * 50, "o" * 60, {"k": LONG}]))
states = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(items, max_size=8),
        "draft": st.sampled_from(["", LONG, LONG + "x", "ü" * 30]),
        "table": st.dictionaries(st.sampled_from("abc"), items, max_size=3),
        "number": st.integers(0, 3),
    },
)


@given(st.data())
@settings(max_examples=80)
def test_a_log_of_any_records_gives_back_every_state(data: st.DataObject) -> None:
    log = Log()
    expected: dict[int, dict[str, Any]] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        state = data.draw(states)
        before = data.draw(st.sampled_from(sorted(expected) or [0]))
        if before and data.draw(st.booleans()):  # grow an earlier state: the usual step
            state = expected[before] | {"messages": [*expected[before].get("messages", []), LONG]}
        log.pending(*data.draw(st.lists(items, max_size=2)))
        if not expected or data.draw(st.integers(0, 3)) == 0:
            log.snapshot(state, self_contained=data.draw(st.booleans()))
        else:
            log.delta(state)
        expected[len(log.bodies)] = state
    for sequence, state in expected.items():
        assert state_of(log.read(sequence)) == state
    assert list(log.read()) == list(log.image)  # the order of names too: headers count on it


def test_a_name_removed_and_set_again_stands_at_the_end_when_written_and_when_read() -> None:
    log = Log()
    log.snapshot({"a": 1, "b": 2, "c": 3})
    log.delta({"b": 2, "c": 3})
    log.delta({"b": 2, "c": 3, "a": 4})
    log.delta({"b": 2, "c": 5, "a": 6})
    assert list(log.image) == list(log.read()) == ["b", "c", "a"]
    assert state_of(log.read()) == {"b": 2, "c": 5, "a": 6}


def test_writing_a_delta_leaves_the_state_before_it_alone() -> None:
    log = Log()
    log.snapshot({"messages": [LONG], "gone": 1})
    before = log.image
    log.delta({"messages": [LONG, "n" * 50], "new": 2})
    assert state_of(before) == {"messages": [LONG], "gone": 1}


# ------------------------------------------------------------------------ each byte is written once


def test_a_message_that_lies_in_a_pending_write_is_not_written_again() -> None:
    log = Log()
    log.snapshot({"messages": []})
    log.pending("not this one, " + LONG, LONG)
    header = log.delta({"messages": [LONG]})
    assert log.bodies[2][2] == b""
    assert addresses(header, "delta", 2) == {(1, 1)}
    assert state_of(log.read()) == {"messages": [LONG]}


def test_messages_of_several_tasks_are_found_one_by_one() -> None:
    log = Log()
    log.snapshot({"messages": []})
    log.pending("n" * 50, "o" * 60)  # in this order they arrived, in another they were applied
    header = log.delta({"messages": ["o" * 60, 7, LONG, "n" * 50]})
    assert log.bodies[2][2] == CODEC.encode(7) + CODEC.encode(LONG)
    assert addresses(header, "delta", 2) == {(1, 0), (1, 1)}
    assert state_of(log.read()) == {"messages": ["o" * 60, 7, LONG, "n" * 50]}


def test_what_is_small_is_written_rather_than_looked_for() -> None:
    log = Log()
    log.snapshot({"messages": []})
    log.pending("short")
    header = log.delta({"messages": ["short"]})
    assert addresses(header, "delta", 2) == set()


def test_single_items_are_encoded_only_when_they_could_not_be_found_together() -> None:
    asked: list[int] = []

    def parts() -> list[bytes]:
        asked.append(1)
        return [CODEC.encode(LONG), CODEC.encode("n" * 50)]

    both = CODEC.encode(LONG) + CODEC.encode("n" * 50)
    found = Writer(2, [(1, 0, b"<" + both + b">")]).place(both, parts)
    assert (list(found), asked) == ([(1, 0, 1, len(both))], [])
    apart = Writer(2, [(1, 0, both[:42] + b"|" + both[42:])]).place(both, parts)
    assert (len(apart), asked) == (2, [1])


def test_parts_that_do_not_add_up_to_the_whole_are_not_used() -> None:
    writer = Writer(2, [(1, 0, CODEC.encode("n" * 50))])
    new = CODEC.encode(LONG) + CODEC.encode("n" * 50)
    runs = writer.place(new, lambda: [CODEC.encode("n" * 50), CODEC.encode(LONG)])
    assert list(runs) == [(2, BODY, 0, len(new))]
    assert bytes(writer.blob) == new


def test_a_writer_that_only_finds_writes_nothing() -> None:
    writer = Writer(2, [(1, 0, CODEC.encode(LONG))], finds_only=True)
    assert list(writer.place(CODEC.encode(LONG))) == [(1, 0, 0, 42)]
    assert list(writer.place(CODEC.encode("n" * 50))) == []
    assert list(writer.place(b"short")) == []
    assert not writer.blob


def test_a_snapshot_lists_addresses_instead_of_writing_everything_again() -> None:
    log = Log()
    log.snapshot({"messages": [], "table": {}})
    for n in range(1, 31):
        message = f"message {n} " + LONG * 10
        log.pending(message)
        log.delta({"messages": [*state_of(log.image)["messages"], message], "table": {}})
    written = log.blob_bytes()
    state = state_of(log.image)
    header = log.snapshot(state)
    assert log.blob_bytes() - written < 32  # the empty dict
    assert len(addresses(header, "snapshot", 32)) == 30
    assert state_of(log.read()) == state


def test_a_self_contained_snapshot_needs_no_other_record() -> None:
    log = Log()
    log.snapshot({"messages": [LONG]})
    log.pending("n" * 50)
    log.delta({"messages": [LONG, "n" * 50]})
    header = log.snapshot({"messages": [LONG, "n" * 50]}, self_contained=True)
    assert addresses(header, "snapshot", 3) == set()
    _, header, blob = log.bodies[3]
    assert state_of(read_snapshot(header, blob, 3, {})) == {"messages": [LONG, "n" * 50]}


def test_a_snapshot_writes_out_only_what_was_lost() -> None:
    log = Log()
    log.snapshot({"messages": [LONG]}, self_contained=True)
    for message in ("n" * 50, "o" * 60, "p" * 70):
        log.pending(message)
        log.delta({"messages": [*state_of(log.image)["messages"], message]})
    state = state_of(log.image)
    for value in log.image.values():
        value.lose(lambda run: run.sequence == 2)  # where "o" lies
        assert LOST in [run.ordinal for run in value.located()]
    header = log.snapshot(state)
    assert log.bodies[5][2] == CODEC.encode("o" * 60)
    assert addresses(header, "snapshot", 5) == {(1, BODY), (1, 0), (3, 0)}
    assert state_of(log.read()) == state


def test_after_a_snapshot_the_next_ones_point_into_it() -> None:
    log = Log()
    log.snapshot({"table": {"k": LONG}, "text": "t" * 100})
    log.snapshot({"table": {"k": LONG}, "text": "t" * 100}, self_contained=True)
    header = log.snapshot({"table": {"k": LONG}, "text": "t" * 100})
    assert log.bodies[3][2] == b""
    assert addresses(header, "snapshot", 3) == {(2, BODY)}


def test_taking_items_out_leaves_no_address_in_the_record_that_did_it() -> None:
    log = Log()
    log.snapshot({"messages": [LONG, "n" * 50, "o" * 60]}, self_contained=True)
    log.delta({"messages": [LONG, "o" * 60]})
    assert log.bodies[2][2] == b""
    header = log.snapshot({"messages": [LONG, "o" * 60]})
    assert addresses(header, "snapshot", 3) == {(1, BODY)}
    assert state_of(log.read()) == {"messages": [LONG, "o" * 60]}


# ------------------------------------------------------------------------ headers


def test_a_value_that_was_there_is_named_by_its_place_and_a_new_one_by_its_name() -> None:
    log = Log()
    log.snapshot({"messages": [LONG], "n": 1})
    header = log.delta({"messages": [LONG], "n": 2, "new": 3})
    assert [entry[0] for entry in header] == [1, "new"]


def test_a_delta_says_how_much_data_it_brought_wherever_that_lies() -> None:
    log = Log()
    log.snapshot({"messages": [], "gone": 1})
    log.pending(LONG)
    header = log.delta({"messages": [LONG, "n" * 50]})
    size = len(CODEC.encode(LONG)) + len(CODEC.encode("n" * 50))
    assert size <= brought(header) <= size + 8
    assert brought([[0, -1]]) == 0


def test_empty_values_take_no_bytes_and_come_back() -> None:
    log = Log()
    log.snapshot({"messages": [], "text": ""})
    assert log.bodies[1][2] == b""
    log.delta({"messages": [], "text": "", "more": []})
    assert state_of(log.read()) == {"messages": [], "text": "", "more": []}


# ------------------------------------------------------------------------ records that do not fit


def written() -> tuple[Image, Header, bytes, dict[tuple[int, int], bytes]]:
    log = Log()
    log.snapshot({"messages": ["first"], "draft": "Dear"})
    before = log.read()
    log.pending(LONG)
    log.delta({"messages": ["first", LONG], "draft": "Dear Mr Li" * 5})
    _, header, blob = log.bodies[2]
    return before, header, blob, log.blobs


def test_a_blob_that_is_missing_is_named() -> None:
    before, header, blob, blobs = written()
    assert state_of(read_delta(before, header, blob, 2, blobs))["messages"] == ["first", LONG]
    with pytest.raises(BrokenDelta, match="record 1, write 0, which is missing"):
        read_delta(before, header, blob, 2, {})


@pytest.mark.parametrize("keep", [0, 1, 30, 40])
def test_a_blob_that_is_too_short_is_noticed(keep: int) -> None:
    before, header, blob, blobs = written()
    with pytest.raises(BrokenDelta):
        read_delta(before, header, blob, 2, {(1, 0): blobs[1, 0][:keep]})
    with pytest.raises(BrokenDelta):
        read_delta(before, header, blob[:keep], 2, blobs)


def test_a_snapshot_whose_blob_is_too_short_is_noticed() -> None:
    log = Log()
    log.snapshot({"messages": [LONG], "draft": LONG})
    _, header, blob = log.bodies[1]
    with pytest.raises(BrokenDelta):
        read_snapshot(header, blob[:-1], 1, {})


def test_a_delta_read_on_top_of_another_state_is_refused() -> None:
    _, header, blob, blobs = written()
    for state in ({}, {"draft": "Dear"}, {"messages": "a text", "draft": "Dear"}):
        log = Log()
        log.snapshot(state)
        with pytest.raises(BrokenDelta):
            read_delta(log.read(), header, blob, 2, blobs)


def test_a_removal_of_what_is_not_there_is_refused() -> None:
    with pytest.raises(BrokenDelta):
        read_delta({}, [[0, -1]], b"", 2, {})
    with pytest.raises(BrokenDelta):
        read_delta({}, [["gone", -1]], b"", 2, {})


def test_a_change_other_than_set_needs_a_value_to_change() -> None:
    header, blob = stored([["new", 1, 1, 1]], b"\x01")  # appends one item to nothing
    with pytest.raises(BrokenDelta):
        read_delta({}, header, blob, 2, {})
    assert Delta("append", b"\x01", items=1)  # what the header says
