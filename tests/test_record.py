"""One record: its ids and texts as columns, and a checksum that covers all it says."""

from __future__ import annotations

import os
import uuid
import zlib
from dataclasses import fields, replace
from typing import Any

import ormsgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from durable_kit.errors import BadInput
from durable_kit.storage.record import (
    ZERO,
    Head,
    PackRecord,
    Record,
    WriteRecord,
    blob_of,
    escape_text,
    header_of,
    pack_body,
    pack_id,
    run_key,
    thread_key,
    unescape_text,
    unpack_id,
    view_of_blob,
    xor,
)

any_text = st.text(st.characters(exclude_categories=()), max_size=40)  # lone surrogates included
UUID = "1ef4f797-8335-6428-8001-8a1503f9b875"

# ------------------------------------------------------------------------ ids


@given(any_text)
@example("")
@example(UUID)
@example(UUID.upper())
@example(UUID.replace("-", ""))
@example("1ef4f7978335-6428-8001-8a1503f9b875-")  # the right digits, the dashes elsewhere
@example(" 1ef4f79-8335-6428-8001-8a1503f9b875")
@example("u" + "x" * 16)
@example("\0")
@example("\ud800")
def test_an_id_comes_back_from_its_bytes(text: str) -> None:
    assert unpack_id(pack_id(text)) == text


@given(any_text, any_text)
def test_two_ids_never_have_the_same_bytes(one: str, other: str) -> None:
    assert (pack_id(one) == pack_id(other)) == (one == other)


@given(st.uuids())
def test_a_uuid_takes_seventeen_bytes(one: uuid.UUID) -> None:
    assert len(pack_id(str(one))) == 17
    assert unpack_id(pack_id(str(one))) == str(one)


@pytest.mark.parametrize("data", [b"", b"x", b"u", b"u" + b"1" * 15, b"u" + b"1" * 17, b"t\xff"])
def test_bytes_that_are_no_id_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - a UnicodeDecodeError is one
        unpack_id(data)


# ------------------------------------------------------------------------ texts


@given(st.text(max_size=40) | st.text("\\0\0a", max_size=12))
@example("\\0")
@example("\\\0")
@example("\0\\")
@example("\\\\0\0")
def test_a_text_comes_back_from_its_escaped_form(text: str) -> None:
    escaped = escape_text(text)
    assert "\0" not in escaped
    assert unescape_text(escaped) == text


@given(st.text("\\0\0a", max_size=6), st.text("\\0\0a", max_size=6))
def test_two_texts_never_have_the_same_escaped_form(one: str, other: str) -> None:
    assert (escape_text(one) == escape_text(other)) == (one == other)


def test_usual_texts_are_stored_as_they_are() -> None:
    assert escape_text("thread-1, ünï|code: 'x'") == "thread-1, ünï|code: 'x'"


def test_a_lone_surrogate_is_refused_where_a_text_must_fit_a_column() -> None:
    with pytest.raises(BadInput, match="lone surrogate at 3"):
        escape_text("abc\ud800")


# ------------------------------------------------------------------------ bodies

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)


@given(st.lists(plain, max_size=6), st.binary(max_size=100))
@settings(max_examples=40)
@example([["name", 0, 1, [1, -1, 0, n]] for n in range(300)], b"blob")
@example([], b"")
def test_header_and_blob_come_back_from_a_body(header: list[Any], blob: bytes) -> None:
    body = pack_body(header, blob)
    assert header_of(body) == header
    assert blob_of(body) == blob
    assert bytes(view_of_blob(body)) == blob


def test_a_long_header_is_deflated_and_a_short_one_is_not() -> None:
    short, long = [["messages", 1, 40]], [["messages", 1, [1, n, 0, 40]] for n in range(500)]
    assert len(pack_body(short, b"")) == 4 + len(ormsgpack.packb(short))
    assert len(pack_body(long, b"")) < len(ormsgpack.packb(long)) / 3


@pytest.mark.parametrize("keep", range(0, 60, 3))
def test_the_stump_of_a_body_has_no_header(keep: int) -> None:
    for header in ([["messages", 1, 40, "x" * 60]], [["x" * 20 + str(n)] for n in range(100)]):
        with pytest.raises((ValueError, zlib.error)):
            header_of(pack_body(header, b"")[:keep])


@pytest.mark.parametrize("body", [b"", b"\0\0\0\1\x07", b"\0\0\0\1\xa0", b"\xff" * 40])
def test_bytes_that_are_no_body_are_refused(body: bytes) -> None:
    with pytest.raises((ValueError, zlib.error)):
        header_of(body)


# ------------------------------------------------------------------------ checksums

PARENT = os.urandom(32)
RECORD = Record(
    thread_id="t",
    namespace="",
    checkpoint_id=UUID,
    parent_id="parent",
    sequence=8,
    parent_sequence=7,
    kind="delta",
    depth=3,
    state_version=1,
    created_at_us=1_700_000_000_000_000,
    run_key=5,
    writes_count=2,
    metadata=b"metadata",
    body=b"body",
    checksum=ZERO,
)
OTHER = {
    "kind": "awaited",
    "metadata": b"metadatb",
    "body": b"",
    "thread_id": "T",
    "namespace": "child",
    "checkpoint_id": UUID.replace("1", "2", 1),
    "parent_id": None,
}
# The rows of checkpoint_writes are counted, one by one, after the record was written: the count is
# held against the chain of their own checksums.
UNCOVERED = {"writes_count", "checksum"}


def changed(record: Record, name: str) -> Record:
    old = getattr(record, name)
    return replace(record, **{name: OTHER[name] if name in OTHER else (old or 0) + 1})


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, one.name)
        for kind in ("snapshot", "delta")
        for one in fields(Record)
        # The parent of a delta is covered by its checksum, see below.
        if one.name not in UNCOVERED and (kind, one.name) != ("delta", "parent_id")
    ],
)
def test_a_checksum_covers_every_field(kind: Any, name: str) -> None:
    record = replace(RECORD, kind=kind).signed(PARENT)
    assert changed(record, name).expected_checksum(PARENT) != record.checksum


def test_what_a_checksum_does_not_cover_is_named_here() -> None:
    record = RECORD.signed(PARENT)
    for name in UNCOVERED - {"checksum"}:
        assert changed(record, name).expected_checksum(PARENT) == record.checksum


def test_none_differs_from_every_number_and_text() -> None:
    for kind in ("snapshot", "delta"):
        record = replace(RECORD, kind=kind).signed(PARENT)
        for name in ("run_key", "parent_sequence"):
            for other in (None, 0):
                assert replace(record, **{name: other}).expected_checksum(PARENT) != record.checksum
    snapshot = replace(RECORD, kind="snapshot")
    for one, other in [(None, ""), (None, "None"), ("", "None")]:
        assert replace(snapshot, parent_id=one).expected_checksum(None) != replace(
            snapshot, parent_id=other
        ).expected_checksum(None)


def test_a_delta_rests_on_its_parents_checksum_and_a_snapshot_does_not() -> None:
    delta, snapshot = RECORD, replace(RECORD, kind="snapshot")
    assert delta.expected_checksum(PARENT) != delta.expected_checksum(ZERO)
    assert snapshot.expected_checksum(PARENT) == snapshot.expected_checksum(None)


def test_bytes_cannot_wander_between_metadata_and_body() -> None:
    one = replace(RECORD, metadata=b"ab", body=b"c")
    other = replace(RECORD, metadata=b"a", body=b"bc")
    assert one.expected_checksum(PARENT) != other.expected_checksum(PARENT)


def test_signing_changes_only_the_checksum() -> None:
    signed = RECORD.signed(PARENT)
    assert replace(signed, checksum=ZERO) == RECORD
    assert signed.checksum == RECORD.expected_checksum(PARENT)
    assert signed.signed(PARENT) == signed
    assert signed.stored_bytes == 12


WRITE = WriteRecord(7, 1, pack_id("task"), pack_id("path"), b"body", ZERO)


@pytest.mark.parametrize("name", WriteRecord._fields[:-1])
def test_the_checksum_of_writes_covers_every_field_the_log_and_the_writes_before(name: str) -> None:
    known = WRITE.expected_checksum(1, ZERO)
    old = getattr(WRITE, name)
    other = WRITE._replace(**{name: old + 1 if isinstance(old, int) else old + b"!"})
    assert other.expected_checksum(1, ZERO) != known
    assert WRITE.expected_checksum(2, ZERO) != known
    assert WRITE.expected_checksum(1, PARENT) != known


PACK = PackRecord(9, 1, 8, b"body", ZERO)


@pytest.mark.parametrize("name", PackRecord._fields[:-1])
def test_the_checksum_of_a_pack_covers_every_field_and_the_log(name: str) -> None:
    old = getattr(PACK, name)
    other = PACK._replace(**{name: old + 1 if isinstance(old, int) else old + b"!"})
    assert other.expected_checksum(1) != PACK.expected_checksum(1)
    assert PACK.expected_checksum(1) != PACK.expected_checksum(2)
    assert PACK.checksum_of(1, 0) != PACK.checksum_of(0, 1)


_SOME: dict[str, Any] = {"str": "t", "int": 5, "bytes": ZERO}


@pytest.mark.parametrize("name", [one.name for one in fields(Head)])
def test_the_checksum_of_a_head_covers_every_field(name: str) -> None:
    head = Head(**{one.name: _SOME[str(one.type)] for one in fields(Head)})
    old = getattr(head, name)
    other: Any = old + 1 if isinstance(old, int) else old + ("!" if isinstance(old, str) else b"!")
    assert replace(head, **{name: other}).checksum != head.checksum


def test_a_record_added_to_a_head_can_be_taken_back() -> None:
    head = Head(**{one.name: _SOME[str(one.type)] for one in fields(Head)})
    more = head.with_one_more(8, PARENT)
    assert (more.next_sequence, more.records, more.digest) == (9, 6, PARENT)
    assert replace(more.with_one_less(8, PARENT), next_sequence=5) == head


def test_a_digest_of_checksums_does_not_depend_on_order_and_can_be_taken_back() -> None:
    a, b, c = os.urandom(32), os.urandom(32), b"\0" * 31 + b"\1"
    assert xor(xor(xor(ZERO, a), b), c) == xor(xor(xor(ZERO, c), a), b)
    assert xor(xor(xor(a, b), c), b) == xor(a, c)
    assert len(xor(a, a)) == 32


# ------------------------------------------------------------------------ keys


@given(any_text, any_text)
def test_keys_are_signed_eight_byte_numbers_and_the_same_in_every_process(
    thread_id: str, namespace: str
) -> None:
    for key in (thread_key(thread_id, namespace), run_key(thread_id)):
        assert -(2**63) <= key < 2**63
    assert thread_key("thread", "child") == -1145813483251463941


def test_thread_and_namespace_do_not_run_into_each_other() -> None:
    keys = {thread_key("a", "b"), thread_key("ab", ""), thread_key("", "ab"), thread_key("b", "a")}
    assert len(keys | {run_key("a"), run_key("ab")}) == 6
