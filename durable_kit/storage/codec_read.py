"""The reading half of the codec: bytes become the value they were, or `UnloadableValue`.

Reading meets what nobody planned for: bytes of an older release, of another machine, of a disk
that lies. One rule covers them all: whatever goes wrong below, the caller sees one kind of error
with the innermost reason, and never a value that is not there in the bytes.

    extension 66  ["shop:Order", {"total": 700}]
        │ unpack the state, natively
        ▼
    is shop:Order on the allow-list?  no ──▶ UnloadableValue, nothing was imported
        ▼ yes
    is it still a dataclass?          no ──▶ UnloadableValue: "is now a pydantic model"
        ▼ yes
    a bare Order, its fields put back

Like writing, reading leaves native code below three objects, so that bytes made to be deep end in
an error and not in a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ormsgpack

from durable_kit.errors import UnloadableValue
from durable_kit.storage.codec_classes import FIRST_NAMED, FORMS
from durable_kit.storage.codec_numpy import ARRAY, ARRAY_KIND, SCALAR, SCALAR_KIND
from durable_kit.storage.codec_types import STANDARD, Kind
from durable_kit.storage.codec_write import note_interrupt, raise_interrupt

unpackb = ormsgpack.unpackb

KindOf = Callable[[int, str], Kind]
Hook = Callable[[int, bytes], Any]

_BY_TAG: dict[int, Kind] = {kind.tag: kind for kind in STANDARD.values()}
_BY_TAG |= {ARRAY: ARRAY_KIND, SCALAR: SCALAR_KIND}
_NATIVE_DEPTH = 3
_HOLDERS = frozenset((tuple, list, dict))

# unpackb stops after the first value and ignores the rest. Reading a pair of the value and this
# mark, a value that ends too early or too late leaves something else in the second place.
_PAIR = b"\x92"
_MARK = "end of value"
_MARK_BYTES = ormsgpack.packb(_MARK)


class Reader:
    """Builds values, natively where that can be done. One for each codec, without state of a call.

    As in `Writer`, native code swallows the reason of a failure, so whatever fails is read again
    by a traversal in Python, and there it is raised.
    """

    def __init__(self, kind_to_read: KindOf) -> None:
        self.kind_to_read = kind_to_read
        self.kinds: dict[str, Kind] = {}
        self.hook: Hook | None = None
        for _ in range(_NATIVE_DEPTH + 1):
            self.hook = self._hook_around(self.hook)

    def read(self, *parts: bytes | bytearray | memoryview) -> Any:
        """The value of whole bytes, given in parts. Raises `UnloadableValue`."""
        self.kinds.clear()
        framed = b"".join((_PAIR, *parts, _MARK_BYTES))
        try:
            pair = unpackb(framed, ext_hook=self.hook)
        except ValueError:
            raise_interrupt()
            try:
                pair = self.resolved(unpackb(framed, ext_hook=_raw))
            except Exception as error:
                raise _unloadable(error) from error
        if pair[1] != _MARK:
            raise _unloadable(ValueError("they do not hold one whole value"))
        return pair[0]

    def _hook_around(self, inner: Hook | None) -> Hook:
        """A hook for extensions, whose own content meets `inner`."""
        kinds = self.kinds

        def hook(tag: int, data: bytes) -> Any:
            try:
                if inner is None:
                    return self.built(tag, data)
                state = unpackb(data, ext_hook=inner)
                if tag < FIRST_NAMED:
                    kind = _BY_TAG[tag]
                else:
                    kind = kinds.get(state[0]) or self._kind_of(tag, state[0])
                if type(state) is not kind.state or tag != kind.tag:
                    raise TypeError
                return kind.from_state(state)
            except BaseException as error:
                note_interrupt(error)
                raise

        return hook

    def built(self, tag: int, data: bytes) -> Any:
        """The object of an extension, without native calls inside native calls."""
        name = f"extension {tag}"
        try:
            if tag not in _BY_TAG and tag not in FORMS:
                raise ValueError("it is not known to this release of the kit")
            state = self.resolved(unpackb(data, ext_hook=_raw))
            if tag < FIRST_NAMED:
                kind = _BY_TAG[tag]
                name = f"{kind.cls.__module__}.{kind.cls.__qualname__}"
            else:
                name = state[0]
                kind = self._kind_of(tag, name)
            if type(state) is not kind.state:
                raise TypeError(f"a {type(state).__name__} cannot be made into it")
            return kind.from_state(state)
        except Exception as error:
            raise _unloadable(error, name) from error

    def resolved(self, value: Any) -> Any:
        """The value with its raw extensions, which are tuples, replaced by their objects."""
        if type(value) is tuple:
            return self.built(*value)
        if type(value) is list:
            for index, item in enumerate(value):
                if type(item) in _HOLDERS:
                    value[index] = self.resolved(item)
        elif type(value) is dict:
            for key, item in value.items():
                if type(item) in _HOLDERS:
                    value[key] = self.resolved(item)
        return value

    def _kind_of(self, tag: int, name: str) -> Kind:
        kind = self.kinds[name] = self.kind_to_read(tag, name)
        return kind


def _raw(tag: int, data: bytes) -> tuple[int, bytes]:
    return tag, data


def _unloadable(error: Exception, name: str = "a value") -> Exception:
    """What `decode` raises for an error below it."""
    if isinstance(error, UnloadableValue | MemoryError):
        return error
    if isinstance(error, RecursionError):
        error = ValueError("they are nested too deep")
    return UnloadableValue(
        class_name=str(name).replace(":", "."),
        reason=f"its bytes are damaged, or this system lacks something they need ({error})",
        remedy="Check the checksum of the record, and this system's packages against the writer's.",
    )
