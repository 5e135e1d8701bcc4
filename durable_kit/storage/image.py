"""A state as the log sees it: named values, each a run of encoded bytes.

Reading checkpoint 3,000 of a conversation must not copy the first 2,999 messages 3,000 times, and
reading the whole history must not hold 4.5 million messages. Both come from one idea: a list that
only grows is one buffer, and a state is a *length* in it.

    buffer   m1 m2 m3 m4 m5
    step 3   ────────┤              (buffer, 3 items)
    step 5   ──────────────┤        (buffer, 5 items)

`Value` is such a view. `after` extends the buffer in place when the view ends where the buffer
ends, and copies when another branch has been there first, so a view never changes once made.

Beside its bytes a buffer knows where they already lie in the log (`runs`), which lets a snapshot
list addresses instead of writing everything again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

from durable_kit.storage.delta import (
    Delta,
    apply,
    array_header,
    diff,
    pack_array_header,
    pack_text_header,
    text_header,
)
from durable_kit.storage.runs import Address, Runs

CHUNK = 32_768  # bytes that are decoded at a time, where a list is known to be cut there
SMALL = 32  # bytes; below this, neither a smaller change nor an address is worth its own size
Shape = Literal["list", "text", "whole"]


Part = bytes | bytearray | memoryview


@dataclass(slots=True)
class _Buffer:
    """Bytes that grow at their end. Read from the log they come in parts, and are joined only
    for who needs them whole: decoding a long conversation does not."""

    parts: list[Part]  # one, or several that are never changed
    length: int
    runs: Runs  # where the bytes lie in the log, from their start; it may not cover all of them
    marks: dict[int, int] = field(default_factory=dict)  # offsets between items -> items before
    objects: list[Any] = field(default_factory=list)  # items decoded so far (see `decode`)
    objects_bytes: int = 0

    @property
    def body(self) -> Part:
        if len(self.parts) != 1:
            self.parts = [bytearray().join(self.parts)]
        return self.parts[0]

    def grow(self, new: bytes) -> None:
        if len(self.parts) != 1:
            self.parts.append(new)
        else:
            body = self.parts[0]
            if not isinstance(body, bytearray):  # it grows for the first time
                body = self.parts[0] = bytearray(body)
            body += new
        self.length += len(new)

    def undecoded(self, end: int, items: int) -> list[tuple[int, list[Part]]]:
        """What lies between the objects and `end`, as (number of items, parts) of about a CHUNK.

        Memory that is touched for the first time is dear, and a long conversation in one piece is
        a lot of it. The parts must be let go before the buffer grows.
        """
        chunks: list[tuple[int, list[Part]]] = []
        before, at, size = len(self.objects), 0, 0
        parts: list[Part] = []
        for part in self.parts:
            start, at = at, at + len(part)
            if start < end and at > self.objects_bytes:
                parts.append(memoryview(part)[max(self.objects_bytes - start, 0) : end - start])
                size += len(parts[-1])
                if size >= CHUNK and at < end and at in self.marks:
                    chunks.append((self.marks[at] - before, parts))
                    before, parts, size = self.marks[at], [], 0
        return [*chunks, (items - before, parts)]


_NOWHERE = Runs()  # of all buffers whose place is not known; never added to


class Value:
    """One named value of a state: `length` bytes of a buffer.

    `list` and `text` keep their body without the msgpack header, so that growing is appending;
    anything else is `whole`. `items` counts the items of a list.
    """

    __slots__ = ("_buffer", "items", "length", "shape")

    def __init__(self, shape: Shape, buffer: _Buffer, length: int, items: int) -> None:
        self.shape = shape
        self._buffer = buffer
        self.length = length
        self.items = items

    @classmethod
    def of(cls, encoded: bytes, runs: Runs | None = None) -> Value:
        """A value of its own from complete encoded bytes. `runs` locate its *body*."""
        if header := array_header(encoded):
            return cls.from_body("list", encoded[header[1] :], header[0], runs)
        if header := text_header(encoded):
            return cls.from_body("text", encoded[header[1] :], 0, runs)
        return cls.from_body("whole", encoded, 0, runs)

    @classmethod
    def set_to(cls, encoded: bytes, runs: Runs | None) -> Value:
        """Like `of`, where `runs` locate the complete `encoded`, header included."""
        header = array_header(encoded) or text_header(encoded)
        return cls.of(encoded, runs.rest(header[1]) if runs and header else runs)

    @classmethod
    def from_body(cls, shape: Shape, body: bytes, items: int, runs: Runs | None = None) -> Value:
        buffer = _Buffer([body], len(body), runs or _NOWHERE, {len(body): items})
        return cls(shape, buffer, len(body), items)

    @classmethod
    def from_parts(
        cls, shape: Shape, parts: list[Part], items: int, runs: Runs, counts: Sequence[int] = ()
    ) -> Value:
        """A value of its own from the parts of its body, which must not change.

        `counts`: the items in each part of a list, if no item is cut. Raises ValueError if they
        are not `items` in all.
        """
        marks: dict[int, int] = {}
        at = before = 0
        for part, count in zip(parts, counts, strict=bool(counts)):
            at, before = at + len(part), before + count
            marks[at] = before
        if counts and before != items:
            raise ValueError(f"its parts have {before} items, and it {items}")
        length = sum(map(len, parts))
        return cls(shape, _Buffer(parts or [b""], length, runs, marks), length, items)

    # -- bytes ---------------------------------------------------------------------------------

    def body(self) -> bytes:
        return bytes(self._buffer.body[: self.length])  # no copy of what is bytes already

    def has(self, piece: bytes, at: int) -> bool:
        """Whether `piece` stands in the body, `at` bytes from its start. Nothing is copied."""
        end, body = at + len(piece), self._buffer.body
        if end > self.length:
            return False
        if isinstance(body, memoryview):
            return body[at:end] == piece
        return body.startswith(piece, at)

    def digest(self, running: dict[int, tuple[int, Any]]) -> bytes:
        """sha256 of the body. `running` lets longer views of a buffer go on where a shorter one
        ended; it is filled here and belongs to one round of digests."""
        at, state = running.get(id(self._buffer), (0, None))
        if state is None or at > self.length:
            at, state = 0, hashlib.sha256()
        state.update(bytes(self._buffer.body[at : self.length]))
        running[id(self._buffer)] = (self.length, state)
        return bytes(state.copy().digest())

    def encoded(self) -> bytes:
        """The complete encoded value."""
        if self.shape == "list":
            return pack_array_header(self.items) + self.body()
        if self.shape == "text":
            return pack_text_header(self.length) + self.body()
        return self.body()

    def change_to(self, after: bytes) -> Delta | None:
        """The change from this value to the encoded `after`; None if they are the same."""
        if len(after) < SMALL and self.length < SMALL:  # not worth looking for less
            return None if after == self.encoded() else Delta("set", after)
        if self.shape == "whole":
            body = self._buffer.body
            return diff(body if isinstance(body, bytes) else bytes(body), after)
        header = array_header(after) if self.shape == "list" else text_header(after)
        if header is not None:
            size, body_at = header
            # startswith compares in place: no copy of the history for a step that only adds.
            known: Part = self._buffer.body
            known = known if len(known) == self.length else known[: self.length]
            if after.startswith(known, body_at):
                new = after[body_at + self.length :]
                if self.shape == "text":
                    return Delta("text", new) if new else None
                if size == self.items:
                    return None
                return Delta("append", new, items=size - self.items)
        return diff(self.encoded(), after)

    def after(self, delta: Delta, runs: Runs | None) -> Value:
        """The value that `delta` makes of this one. `runs` locate the bytes it brings.

        Raises `BrokenDelta` if the delta does not fit.
        """
        if delta.op == "append" and self.shape == "list":
            return self._grown(delta.new, delta.items, runs)
        if delta.op == "text" and self.shape == "text":
            return self._grown(delta.new, 0, runs)
        if delta.op == "set":
            return Value.set_to(delta.new, runs)
        result = Value.of(apply(self.encoded(), delta))
        known = self.located()
        if delta.op == "splice" and known.length == self.length and (runs or not delta.new):
            moved = Runs(known.first(delta.head))
            moved.extend(runs or ())
            moved.extend(known.rest(self.length - delta.tail))
            result.relocate(moved)
        return result

    def _grown(self, new: bytes, items: int, runs: Runs | None) -> Value:
        buffer = self._buffer
        if buffer.length != self.length:  # another branch grew it first
            runs_so_far = Runs(buffer.runs.first(self.length))
            marks = {at: n for at, n in buffer.marks.items() if at <= self.length}
            buffer = _Buffer([bytearray(self.body())], self.length, runs_so_far, marks)
            if self.shape == "list" and self._buffer.objects_bytes <= self.length:
                buffer.objects = list(self._buffer.objects)
                buffer.objects_bytes = self._buffer.objects_bytes
        if runs and buffer.runs.length == self.length:
            if buffer.runs is _NOWHERE:
                buffer.runs = Runs()
            buffer.runs.extend(runs)
        buffer.grow(new)
        buffer.marks[buffer.length] = self.items + items
        return Value(self.shape, buffer, buffer.length, self.items + items)

    def withdraw(self, before: Value) -> None:
        """Take back the growth that made this value of `before`, where nobody has built on it.

        Hazard: this value is of no use any more.
        """
        buffer = self._buffer
        if buffer is not before._buffer or not buffer.length == self.length > before.length:
            return
        body = buffer.parts[-1]
        if len(buffer.parts) == 1 and isinstance(body, bytearray):
            del body[before.length :]
            del buffer.marks[buffer.length]
            buffer.runs = Runs(buffer.runs.first(before.length))
            buffer.length = before.length

    # -- places --------------------------------------------------------------------------------

    def located(self) -> Runs:
        """Where the body lies in the log, from its start; `length` of it says how much is known."""
        return self._buffer.runs.first(self.length)

    def counts(self) -> list[int]:
        """The items of a list in each of its runs; nothing where a run may end inside an item."""
        marks, found, at, before = self._buffer.marks, list[int](), 0, 0
        for run in self.located() if self.shape == "list" and self.length > CHUNK else ():
            at += run.length
            if at not in marks:
                return []
            found.append(marks[at] - before)
            before = marks[at]
        return found if at == self.length else []

    def relocate(self, runs: Runs) -> None:
        """Say where the body lies now (it was written out again)."""
        beyond = self._buffer.runs.rest(self.length)
        self._buffer.runs = Runs(runs)
        self._buffer.runs.extend(beyond)

    def move(self, move: Callable[[Address], Address | None]) -> None:
        """The bytes of some records were moved; `move` gives the new place of an old address."""
        self._buffer.runs = self._buffer.runs.moved(move)

    def lose(self, gone: Callable[[Address], bool]) -> None:
        """Forget the places that are about to go; `located` then names them as LOST."""
        self._buffer.runs = self._buffer.runs.without(gone)

    def sharing(self, before: Value) -> Value:
        """This value as a view of the buffer of `before`, if it starts with it; else itself."""
        if self.shape == "whole":
            return before if before.shape == "whole" and before.body() == self.body() else self
        if self.shape != before.shape or self.length < before.length or self.items < before.items:
            return self
        old, new = before.body(), self.body()
        if not new.startswith(old):
            return self
        if len(new) == len(old):
            return before
        runs = self.located()
        tail = runs.rest(len(old)) if runs.length == self.length else None
        return before._grown(new[len(old) :], self.items - before.items, tail)

    # -- objects -------------------------------------------------------------------------------

    def decode(self, decode: Callable[..., Any]) -> Any:
        """The Python value. Views of one buffer share the objects of the items they share."""
        if self.shape != "list":
            return decode(self.encoded())
        buffer = self._buffer
        if buffer.objects_bytes < self.length:
            chunks = buffer.undecoded(self.length, self.items)
            new = [decode(pack_array_header(count), *parts) for count, parts in chunks]
            del chunks
            buffer.objects.extend(chain.from_iterable(new))
            buffer.objects_bytes = self.length
        return buffer.objects[: self.items]


Image = dict[str, Value]
"""A whole state: values by name, in the order in which the names first appeared."""


def snapshot_size(image: Image) -> int:
    """About what a snapshot of `image` would take if it lists addresses, in bytes."""
    total = 0
    for name, value in image.items():
        runs = value.located()
        total += len(name) + 8 + min(value.length, 5 * len(runs) + value.length - runs.length)
    return total


def full_size(image: Image) -> int:
    """What a self-contained snapshot of `image` would take, in bytes."""
    return sum(len(name) + 8 + value.length for name, value in image.items())
