"""From records to states.

A record's body is a list of changes. Folding puts them back on top of each other:

    7 snapshot   messages = m1 m2 m3                     draft = "Dear"
    8 delta      messages + m4   (at: writes of 7, 0)
    9 delta      messages + m5   (at: writes of 8, 0)    draft + " Mr Li"
    ───────────────────────────────────────────────────────────────────
    state at 9   messages = m1 m2 m3 m4 m5               draft = "Dear Mr Li"

New bytes are written once. Where a message already lies in the pending writes of the parent, the
change holds its address; otherwise the bytes stand in the record's own blob. `Writer` finds them
when a record is written; when it is read, a mapping of blobs gives them back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from durable_kit.storage.delta import BrokenDelta, Delta, Op
from durable_kit.storage.image import SMALL, Image, Part, Shape, Value
from durable_kit.storage.runs import BODY, LOST, Address, Runs

_OPS: tuple[Op, ...] = ("set", "append", "text", "patch", "splice")
_SHAPES: tuple[Shape, ...] = ("list", "text", "whole")
_SET, _REMOVED = 0, -1  # a set is the first of _OPS; a removal has no delta

Header = list[Any]
Blobs = Mapping[tuple[int, int], bytes | memoryview]
"""The blobs that a body's addresses point into, by (sequence, ordinal)."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a state: `delta` for the value `name`, or its removal where it is None.

    `parts` gives the encodings of the single items that an append brings, so that items from
    several tasks can be found one by one.
    """

    name: str
    delta: Delta | None
    parts: Callable[[], list[bytes]] | None = None


@dataclass(slots=True)
class Writer:
    """Collects the blob of one record and finds bytes that need not go into it.

    `sources`: blobs already in the log, by address; `sequence`: the record's own number.
    `finds_only`: put nothing into the blob; bytes that lie nowhere yet get no address.
    """

    sequence: int
    sources: Sequence[tuple[int, int, bytes]] = ()
    finds_only: bool = False
    blob: bytearray = field(default_factory=bytearray)

    def place(self, new: bytes, parts: Callable[[], list[bytes]] | None = None) -> Runs:
        """Say where `new` lies, putting into the blob what lies nowhere yet.

        Nothing if it lies nowhere and this writer only finds.
        """
        if len(new) >= SMALL:
            found = self._find(new)
            if found is not None:
                return Runs.at(found)
            if parts is not None and not self.finds_only:
                pieces = parts()
                if b"".join(pieces) == new:
                    return Runs(self._find(piece) or self._inline(piece) for piece in pieces)
        return Runs() if self.finds_only else Runs.at(self._inline(new))

    def put(self, new: bytes) -> int:
        """Put small bytes into the blob without looking for them. Returns how many."""
        if not self.finds_only:
            self.blob += new
        return len(new)

    def _find(self, new: bytes) -> Address | None:
        if len(new) >= SMALL:
            for sequence, ordinal, blob in self.sources:
                at = blob.find(new)
                if at >= 0:
                    return Address(sequence, ordinal, at, len(new))
        return None

    def _inline(self, new: bytes) -> Address:
        at = len(self.blob)
        self.blob += new
        return Address(self.sequence, BODY, at, len(new))


def write_delta(image: Image, changes: Sequence[Change], writer: Writer) -> tuple[Header, Image]:
    """The header of a delta on `image`, and the state after it."""
    places = {name: place for place, name in enumerate(image)}
    header: Header = []
    result = dict(image)
    for change in changes:
        key = places.get(change.name, change.name)
        if change.delta is None:
            header.append([key, _REMOVED])
            del result[change.name]
            continue
        delta = change.delta
        if delta.op == "set" and len(delta.new) < SMALL:  # never worth an address
            header.append([key, _SET, writer.put(delta.new)])
            result[change.name] = Value.of(delta.new)
            continue
        runs = writer.place(delta.new, change.parts)
        header.append([key, _OPS.index(delta.op), runs.pack(writer.sequence), *_numbers(delta)])
        before = result.get(change.name)
        result[change.name] = (
            Value.set_to(delta.new, runs) if before is None else before.after(delta, runs)
        )
    return header, result


def write_snapshot(image: Image, writer: Writer, *, self_contained: bool) -> Header:
    """The header of a snapshot of `image`."""
    header: Header = []
    for name, value in image.items():
        known = Runs() if self_contained else value.located()
        if known.length < SMALL or known.length < 8 * len(known):
            known = Runs()
        runs = Runs()
        body = value.body()
        for run in known:
            if run.ordinal == LOST:
                runs.extend(writer.place(body[runs.length : runs.length + run.length]))
            else:
                runs.add(run)
        if runs.length < value.length:
            runs.extend(writer.place(body[runs.length :]))
        value.relocate(runs)
        counts = value.counts()
        header.append(
            [
                name,
                _SHAPES.index(value.shape),
                value.items,
                runs.pack(writer.sequence),
                *([counts] if len(counts) > 1 else []),
            ]
        )
    return header


def read_snapshot(header: Header, blob: bytes, sequence: int, blobs: Blobs) -> Image:
    """The state that a snapshot says. Raises `BrokenDelta`."""
    reader = _Reader(blob, sequence, blobs)
    image: Image = {}
    for name, shape, items, pieces, *counts in header:
        parts, runs = reader.parts_at(pieces)
        image[name] = Value.from_parts(_SHAPES[shape], parts, items, runs, *counts)
    return image


def read_delta(image: Image, header: Header, blob: bytes, sequence: int, blobs: Blobs) -> Image:
    """The state after a delta on `image`. Raises `BrokenDelta`."""
    reader = _Reader(blob, sequence, blobs)
    names = list(image)
    result = dict(image)
    try:
        for key, op, *rest in header:
            name = names[key] if isinstance(key, int) else key
            if op == _REMOVED:
                del result[name]
                continue
            parts, runs = reader.parts_at(rest[0])
            new = b"".join(parts)
            if op == _SET:
                result[name] = Value.set_to(new, runs)
            else:
                result[name] = result[name].after(Delta(_OPS[op], new, *rest[1:]), runs)
    except LookupError as error:
        raise BrokenDelta("it changes a value that the state before it does not have") from error
    return result


def brought(header: Header) -> int:
    """The bytes of data that a delta brought, wherever they lie."""
    return sum(
        4 + (entry[2] if isinstance(entry[2], int) else sum(entry[2][3::4]))
        for entry in header
        if len(entry) > 2
    )


def addresses(header: Header, kind: str, sequence: int) -> set[tuple[int, int]]:
    """The (sequence, ordinal) of every blob outside the record that its header points into."""
    place = 3 if kind == "snapshot" else 2
    found: set[tuple[int, int]] = set()
    for entry in header:
        if len(entry) > place and not isinstance(entry[place], int):
            found |= Runs.unpack(entry[place], sequence, 0).places()
    found.discard((sequence, BODY))
    return found


@dataclass(slots=True)
class _Reader:
    blob: bytes
    sequence: int
    blobs: Blobs
    at: int = 0

    def parts_at(self, packed: int | list[int]) -> tuple[list[Part], Runs]:
        """The bytes that a header says, in parts, and where they lie."""
        runs = Runs.unpack(packed, self.sequence, self.at)
        if isinstance(packed, int):
            self.at += packed
            return self._checked([self.blob[self.at - packed : self.at]], runs)
        parts: list[Part] = []
        for sequence, ordinal, start, length in runs:
            if sequence == self.sequence and ordinal == BODY:
                parts.append(self.blob[start : start + length])
                self.at = start + length
                continue
            source = self.blobs.get((sequence, ordinal))
            if source is None:
                where = f"record {sequence}" + (f", write {ordinal}" if ordinal != BODY else "")
                raise BrokenDelta(f"its bytes should lie in {where}, which is missing")
            parts.append(source[start : start + length])
        return self._checked(parts, runs)

    def _checked(self, parts: list[Part], runs: Runs) -> tuple[list[Part], Runs]:
        found = sum(map(len, parts))
        if found != runs.length:
            raise BrokenDelta(f"{runs.length} bytes were to be found, {found} were")
        return parts, runs


def _numbers(delta: Delta) -> list[int]:
    """The numbers of a delta that its header holds, in the order of `Delta`'s fields."""
    if delta.op == "append":
        return [delta.items]
    if delta.op == "splice":
        return [delta.items, delta.head, delta.tail]
    return []
