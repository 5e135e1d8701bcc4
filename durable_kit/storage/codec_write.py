"""The writing half of the codec: one native call if it can be, a careful traversal if it must be.

    state ──▶ native call ──▶ bytes                       nearly always
                  │ └─▶ hook(object) ──▶ native call …    one Python call per object
                  ▼
              traversal in Python ──▶ the same bytes      odd keys, lone surrogates, bytearrays
                  ▼
              search for the path ──▶ UnstorableValue     only after a refusal

Native code is fast because it knows nothing of paths, and blind in four places that this file
covers: a key that is not exact `str`, text that UTF-8 cannot hold, integers beyond 64 bits (these
three it reports), and `bytearray`, which it takes for `bytes` without a word.

Each object inside an object is a native call inside a native call, and native stacks are small:
250 lists in a tuple, eight times, take two megabytes. Below three objects the traversal goes on in
Python, which counts its levels, so that deep values end in a refusal and not in a crash.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

import orjson
import ormsgpack

from durable_kit.errors import UnstorableValue
from durable_kit.storage.codec_refusals import gave_an_error, refers_to_itself, too_deep
from durable_kit.storage.codec_types import Kind, Refusal, entries, indexed

packb = ormsgpack.packb
Ext = ormsgpack.Ext

KindOf = Callable[[type], Kind]
Way = tuple[int, Callable[[Any], Any], bool]  # of a Kind, what writing needs
Hook = Callable[[Any], ormsgpack.Ext]

# Everything that is not exactly None, bool, int, float, str, bytes, list or dict goes to Python.
# Keys other than exact str make packb raise, since OPT_NON_STR_KEYS is absent.
_OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_JSON_OPTIONS = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)

_NATIVE_DEPTH = 3
_MAX_LEVELS = 250  # ormsgpack packs 255 levels


class Writer:
    """Packs values, natively where that can be done. One for each codec, without state of a call.

    ormsgpack answers a hook that fails with a TypeError of its own, and the hook's reason is gone.
    So nothing is kept of it: the traversal meets the same trouble again, and there it can be
    raised. `kinds` is emptied at each call, which checks every class once per call.
    """

    def __init__(self, kind_to_write: KindOf) -> None:
        self.kind_to_write = kind_to_write
        self.kinds: dict[type, Way] = {}
        self.hook: Hook | None = None
        for _ in range(_NATIVE_DEPTH + 1):
            self.hook = self._hook_around(self.hook)

    def write(self, value: Any) -> bytes:
        """The bytes of a whole value. Raises `Refusal` without a path, or RecursionError."""
        self.kinds.clear()
        return self.pack(value, self.hook)

    def pack(self, value: Any, hook: Hook | None) -> bytes:
        """By one native call, which leaves objects to `hook`, or by a traversal."""
        try:
            data = packb(value, hook, _OPTIONS)
        except TypeError:
            raise_interrupt()
            return self.walk(value, 0)
        if (0xC4 in data or 0xC5 in data or 0xC6 in data) and _hides_buffer(value):
            return self.walk(value, 0)
        return data

    def _hook_around(self, inner: Hook | None) -> Hook:
        """A hook for objects, whose own content meets `inner`."""
        kinds, pack, walk = self.kinds, self.pack, self.walk

        def hook(value: Any) -> ormsgpack.Ext:
            try:
                tag, to_state, unordered = kinds.get(type(value)) or self._kind_of(value)
                if unordered:
                    return Ext(tag, _sorted([pack(item, inner) for item in to_state(value)]))
                state = to_state(value)
                # What follows is pack(), written out: a thousand messages pass here at each step.
                try:
                    data = packb(state, inner, _OPTIONS)
                except TypeError:
                    raise_interrupt()
                    return Ext(tag, walk(state, 0))
                if (0xC4 in data or 0xC5 in data or 0xC6 in data) and _hides_buffer(state):
                    data = walk(state, 0)
                return Ext(tag, data)
            except BaseException as error:
                note_interrupt(error)
                raise

        return hook

    def walk(self, value: Any, level: int) -> bytes:
        """The same bytes, by a traversal in Python: for values that native code cannot take."""
        plain = self._plain(value, level)
        if plain is not None:
            return plain
        if level >= _MAX_LEVELS:
            raise too_deep()
        below = level + 1
        if type(value) is list:
            items = [self.walk(item, below) for item in value]
            return b"".join((_array_header(len(items)), *items))
        if type(value) is dict and (keys := _text_keys(value)) is not None:
            parts = [_map_header(len(keys))]
            for key, item in zip(keys, value.values(), strict=True):
                parts += (key, self.walk(item, below))
            return b"".join(parts)
        tag, to_state, unordered = self.kinds.get(type(value)) or self._kind_of(value)
        try:
            state = to_state(value)
        except (Refusal, RecursionError, MemoryError):
            raise
        except Exception as error:
            raise gave_an_error(error) from error
        if unordered:
            data = _sorted([self.walk(item, below) for item in state])
        else:
            data = self.walk(state, below)
        return packb(Ext(tag, data))

    def _plain(self, value: Any, level: int) -> bytes | None:
        """The bytes of a value without objects in it, else None."""
        wrapped = value
        for _ in range(level):  # so that native code counts the levels above, too
            wrapped = [wrapped]
        try:
            data = packb(wrapped, None, _OPTIONS)[level:]
        except TypeError:
            return None
        if (0xC4 in data or 0xC5 in data or 0xC6 in data) and _hides_buffer(value):
            return None
        return data

    def _kind_of(self, value: Any) -> Way:
        try:
            kind = self.kind_to_write(type(value))
        except (Refusal, RecursionError):
            raise
        except Exception as error:  # a class that does not even let itself be looked at
            raise gave_an_error(error) from error
        way = self.kinds[type(value)] = (kind.tag, kind.to_state, kind.unordered)
        return way


class Search:
    """Finds what is refused, and the way to it, after `encode` has failed."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.level = 0
        self.opened: dict[int, Any] = {}  # keeps the objects, so that no id is used twice

    def below(self, value: Any, path: str) -> Iterator[UnstorableValue]:
        """A refusal for each innermost part of `value` that cannot be stored."""
        try:
            self.writer.write(value)
            return
        except RecursionError:
            reason = too_deep()
        except Refusal as error:
            reason = error
        if reason.depth:
            loops = list(self._loops(value, path))
            if loops or self.level > 3:
                yield from loops or [refused(path, value, reason)]
                return
        self.opened[id(value)] = value
        self.level += 1
        blamed = False
        for suffix, part in self._parts(value):
            if id(part) in self.opened:  # its parts have been named once
                blamed = True
                continue
            for refusal in self.below(part, path + suffix):
                blamed = True
                yield refusal
        self.level -= 1
        if not blamed:
            del self.opened[id(value)]
            yield refused(path, value, reason)

    def _loops(self, value: Any, path: str) -> Iterator[UnstorableValue]:
        """A refusal for each place where something contains itself; without recursion."""
        seen: dict[int, Any] = {id(value): value}
        above = {id(value)}
        way = [("", value, self._parts(value))]
        while way:
            suffix, part = next(way[-1][2], (None, None))
            if suffix is None:
                above.discard(id(way.pop()[1]))
            elif id(part) in above:
                steps = "".join(step for step, _, _ in way)
                yield refused(path + steps + suffix, part, refers_to_itself())
            elif id(part) not in seen and len(way) < 1000:
                seen[id(part)] = part
                above.add(id(part))
                way.append((suffix, part, self._parts(part)))

    def _parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        try:
            if type(value) is list:
                yield from indexed(value)
            elif type(value) is dict:
                yield from entries(value)
            else:
                yield from self.writer.kind_to_write(type(value)).parts(value)
        except Exception:  # the value does not let itself be taken apart: it is refused whole
            return


def refused(path: str, value: Any, refusal: Refusal) -> UnstorableValue:
    return UnstorableValue(
        path=path,
        type_name=type(value).__name__,
        reason=refusal.reason,
        remedy=refusal.remedy,
    )


def _hides_buffer(value: Any) -> bool:
    """Whether a bytearray or memoryview may be inside the lists and dicts of `value`.

    ormsgpack packs both as it packs bytes, with no option against it, and bytes is what they would
    come back as. All it leaves is a header byte, C4 to C6, that may as well be part of a length.
    orjson knows none of the three and asks about each, at native speed.
    """
    if type(value) is list:
        kinds = set(map(type, value))
    elif type(value) is dict:
        kinds = set(map(type, value.values()))
    else:
        kinds = {type(value)}
    if kinds.isdisjoint((bytearray, memoryview, list, dict)):
        return False
    try:
        orjson.dumps(value, _unless_buffer, _JSON_OPTIONS)
    except TypeError:  # also for what only JSON cannot hold; then `walk` looks item by item
        return True
    return False


def _unless_buffer(value: Any) -> None:
    if type(value) is bytearray or type(value) is memoryview:
        raise TypeError


def _sorted(packed: list[bytes]) -> bytes:
    return b"".join((_array_header(len(packed)), *sorted(packed)))


def _text_keys(value: dict[Any, Any]) -> list[bytes] | None:
    if any(type(key) is not str for key in value):
        return None
    try:
        return [packb(key) for key in value]
    except TypeError:  # a lone surrogate
        return None


def _array_header(length: int) -> bytes:
    if length < 16:
        return bytes((0x90 | length,))
    return struct.pack(">BH", 0xDC, length) if length < 65536 else struct.pack(">BI", 0xDD, length)


def _map_header(length: int) -> bytes:
    if length < 16:
        return bytes((0x80 | length,))
    return struct.pack(">BH", 0xDE, length) if length < 65536 else struct.pack(">BI", 0xDF, length)


# Native code also swallows what is no error of the value: a Ctrl-C that arrives inside a hook.
_interrupts: dict[int, BaseException] = {}


def note_interrupt(error: BaseException) -> None:
    """Keep an exception that native code is about to swallow, if it is none of the value's own."""
    if not isinstance(error, Exception):
        _interrupts[get_ident()] = error


def raise_interrupt() -> None:
    """Raise what `note_interrupt` has kept for this thread of the operating system, if anything."""
    error = _interrupts.pop(get_ident(), None)
    if error is not None:
        raise error
