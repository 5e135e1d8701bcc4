"""What changed between two states of one value.

A checkpointer that stores the whole value at every step stores message 1 a thousand times in a
thousand-step conversation: N steps cost N² bytes. Storing what changed costs what changed.

`diff` and `apply` work on encoded values (one complete msgpack value each, as `Codec.encode`
gives them), which makes them exact for free: bytes differ whenever anything differs, also when an
*earlier* item of a list was edited in place. Comparing the objects would miss that: `before` and
`after` hold the same object, and it equals itself.

    before   [m1, m2]           diff ->  append  1 item    m3
    after    [m1, m2, m3]

Five kinds of change, the cheapest that says everything wins:

    append   more items at the end of a list     (a conversation)
    text     more characters at the end of a str (a growing draft)
    patch    keys set and removed in a dict, and in dicts inside it
    splice   a common start and end, and new bytes between them: an item edited or taken out
             anywhere in a list, a word changed in a text
    set      the whole new value

Not every field suits a delta. An append-only list is ideal: its deltas are small, and each means
something by itself. A balance is the opposite: "set to 70" says nothing about what happened to
it, and folding such deltas can never notice that two writers both started from 100. That needs a
versioned write, which a checkpoint is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ormsgpack

Op = Literal["append", "text", "patch", "splice", "set"]


@dataclass(frozen=True, slots=True)
class Delta:
    """One change of one value.

    `new` are the bytes the change brings: the items of an append (without a list header), the
    UTF-8 of a text, an encoded patch, the middle of a splice, or a whole encoded value.
    `items` counts the items that an append adds, or that a spliced list has afterwards. `head`
    and `tail` are the lengths in bytes that a splice keeps from the start and the end of the
    body: what follows the header of a list or a str, all of any other value.
    """

    op: Op
    new: bytes
    items: int = 0
    head: int = 0
    tail: int = 0


class BrokenDelta(ValueError):
    """A delta that does not fit the value it is applied to."""


def diff(before: bytes, after: bytes) -> Delta | None:
    """The change from `before` to `after`, or None if they are the same.

    Both are complete encoded values. `apply(before, diff(before, after)) == after`, byte for byte.
    """
    if before == after:
        return None
    old_list, new_list = array_header(before), array_header(after)
    if old_list and new_list and new_list[0] > old_list[0]:
        tail = _added(before[old_list[1] :], after, new_list[1])
        if tail is not None:
            return Delta("append", tail, items=new_list[0] - old_list[0])
    old_text, new_text = text_header(before), text_header(after)
    if old_text and new_text:
        tail = _added(before[old_text[1] :], after, new_text[1])
        if tail is not None:
            return Delta("text", tail)
    candidates = [Delta("set", after)]
    if bool(old_list) == bool(new_list) and bool(old_text) == bool(new_text):
        candidates.append(_splice(before, after))
    if _is_map(before) and _is_map(after):
        patch = _patch(unpack_raw(before), unpack_raw(after))
        if patch is not None:
            candidates.insert(0, Delta("patch", pack_raw(patch)))
    return min(candidates, key=_cost)


def apply(before: bytes, delta: Delta) -> bytes:
    """The value after the change. Raises `BrokenDelta` if `delta` was not made for `before`."""
    match delta.op:
        case "set":
            return delta.new
        case "append":
            header = array_header(before)
            if header is None:
                raise BrokenDelta("an append was stored for a value that is not a list")
            return pack_array_header(header[0] + delta.items) + before[header[1] :] + delta.new
        case "text":
            header = text_header(before)
            if header is None:
                raise BrokenDelta("added text was stored for a value that is not a str")
            body = before[header[1] :] + delta.new
            return pack_text_header(len(body)) + body
        case "splice":
            return _spliced(before, delta)
        case "patch":
            if not _is_map(before):
                raise BrokenDelta("a patch was stored for a value that is not a dict")
            return pack_raw(_patched(unpack_raw(before), unpack_raw(delta.new)))
        case _:
            raise BrokenDelta(f"the unknown kind of change {delta.op!r}")


# -- dicts ------------------------------------------------------------------------------------


def _patch(before: dict[str, Any], after: dict[str, Any]) -> list[Any] | None:
    """`[removed keys, {key: change}]`, or None where the order of keys cannot be kept.

    A dict remembers the order of its keys, and so must a patch: keys that stay keep their place,
    new ones go to the end. Anything else (a key removed and added again) is left to the others.
    """
    removed = [key for key in before if key not in after]
    kept = [key for key in before if key in after]
    if list(after)[: len(kept)] != kept:
        return None
    changes: dict[str, list[Any]] = {}
    for key, value in after.items():
        new = pack_raw(value)
        if key not in before:
            changes[key] = ["set", value]
        elif (change := diff(pack_raw(before[key]), new)) is not None:
            changes[key] = _change_to_raw(change)
    return [removed, changes]


def _patched(before: dict[str, Any], patch: list[Any]) -> dict[str, Any]:
    removed, changes = set(patch[0]), patch[1]
    result = {key: value for key, value in before.items() if key not in removed}
    for key, change in changes.items():
        if change[0] == "set":
            result[key] = change[1]
        elif key in result:
            result[key] = unpack_raw(apply(pack_raw(result[key]), Delta(*change)))
        else:
            raise BrokenDelta(f"a patch changes the key {key!r}, which the dict does not have")
    return result


def _change_to_raw(delta: Delta) -> list[Any]:
    if delta.op == "set":
        return ["set", unpack_raw(delta.new)]
    return [delta.op, delta.new, delta.items, delta.head, delta.tail]


# -- bytes ------------------------------------------------------------------------------------


def _added(before_body: bytes, after: bytes, body_at: int) -> bytes | None:
    """What follows `before_body` in the body of `after`; None if it does not start with it.

    msgpack describes itself from left to right, so equal leading bytes are equal leading items.
    """
    if not after.startswith(before_body, body_at):
        return None
    return after[body_at + len(before_body) :]


def _splice(before: bytes, after: bytes) -> Delta:
    """Compares bodies: a list with one item less has another header and nearly the same body."""
    old, new = before[_body_at(before) :], after[_body_at(after) :]
    head = common_start(old, new)
    tail = common_end(old, new, min(len(old), len(new)) - head)
    items, _ = array_header(after) or (0, 0)
    return Delta("splice", new[head : len(new) - tail], items=items, head=head, tail=tail)


def _spliced(before: bytes, delta: Delta) -> bytes:
    body = before[_body_at(before) :]
    if delta.head + delta.tail > len(body):
        raise BrokenDelta("a splice keeps more bytes than the value has")
    body = body[: delta.head] + delta.new + body[len(body) - delta.tail :]
    if array_header(before):
        return pack_array_header(delta.items) + body
    if text_header(before):
        return pack_text_header(len(body)) + body
    return body


def common_start(a: bytes, b: bytes) -> int:
    """How many leading bytes two strings share; halving, so that C does the comparing."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_end(a: bytes, b: bytes, at_most: int) -> int:
    """How many trailing bytes two strings share, `at_most` at the most."""
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle - 1
    return low


def _cost(delta: Delta) -> int:
    return len(delta.new) + (10 if delta.op == "splice" else 0)


# -- msgpack headers --------------------------------------------------------------------------


def array_header(data: bytes | bytearray) -> tuple[int, int] | None:
    """(number of items, length of the header) of an encoded list; None for anything else."""
    if not data:
        return None
    first = data[0]
    if 0x90 <= first <= 0x9F:
        return first & 0x0F, 1
    if first == 0xDC:
        return int.from_bytes(data[1:3], "big"), 3
    if first == 0xDD:
        return int.from_bytes(data[1:5], "big"), 5
    return None


def pack_array_header(items: int) -> bytes:
    if items < 16:
        return bytes([0x90 | items])
    if items < 1 << 16:
        return b"\xdc" + items.to_bytes(2, "big")
    return b"\xdd" + items.to_bytes(4, "big")


def text_header(data: bytes | bytearray) -> tuple[int, int] | None:
    """(number of bytes, length of the header) of an encoded str; None for anything else."""
    if not data:
        return None
    first = data[0]
    if 0xA0 <= first <= 0xBF:
        return first & 0x1F, 1
    if first == 0xD9:
        return data[1], 2
    if first == 0xDA:
        return int.from_bytes(data[1:3], "big"), 3
    if first == 0xDB:
        return int.from_bytes(data[1:5], "big"), 5
    return None


def pack_text_header(size: int) -> bytes:
    if size < 32:
        return bytes([0xA0 | size])
    if size < 1 << 8:
        return b"\xd9" + size.to_bytes(1, "big")
    if size < 1 << 16:
        return b"\xda" + size.to_bytes(2, "big")
    return b"\xdb" + size.to_bytes(4, "big")


def _body_at(data: bytes) -> int:
    """Where the body of a value starts: behind the header of a list or a str, else at 0."""
    header = array_header(data) or text_header(data)
    return header[1] if header else 0


def _is_map(data: bytes) -> bool:
    return bool(data) and (0x80 <= data[0] <= 0x8F or data[0] in (0xDE, 0xDF))


def unpack_raw(data: bytes) -> Any:
    """Decode msgpack and leave every extension as it is: the structure, not the objects."""
    return ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext)


def pack_raw(value: Any) -> bytes:
    """The inverse of `unpack_raw`, to the same bytes."""
    return ormsgpack.packb(value)
