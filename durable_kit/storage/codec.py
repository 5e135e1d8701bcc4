"""Values to bytes and back, exactly or not at all.

Between two super-steps an agent exists only as bytes. A serializer that makes do ("no such class?
then None", "a tuple is nearly a list") does its damage there, where nobody looks:

    step 7   {"route": Route.EXPRESS, "legs": {("A", "B")}}   put ──▶ bytes
             ── the process dies ──
    step 8   {"route": None, "legs": None}                    ◀── get
             put ──▶ the good bytes of step 7 are history

This codec is strict at both ends. `encode` refuses what would not come back equal in value and
type, names the place as you would type it (`state['legs'][3].meta['when']`) and says a way out.
`decode` gives back the value that was stored or raises `UnloadableValue`; it never improvises,
never unpickles, and never imports a module that is not on the allow-list.

**The bytes** are MessagePack, with extension numbers for what it lacks (see `codec_types`), and
three promises on which deltas stand:

(a) One value is one complete msgpack value, and equal values of equal type have equal bytes, in
    every process: sets are sorted by the bytes of their items, dicts keep their order.
(b) An exact `list` is a msgpack array of its items' encodings, one after the other; so a list that
    grew is a longer header, the same bytes, and new ones. An exact `dict` whose keys are exact
    `str` is a msgpack map in its own order, an exact `str` is a msgpack str. (Only text with a
    lone surrogate, which UTF-8 cannot hold, is an extension.)
(c) Unpacking with extensions kept as `ormsgpack.Ext` and packing again gives the same bytes.

**Speed.** A checkpointer encodes the whole conversation at every step, so the usual state (dicts,
lists, text, numbers, messages) is packed by one native call that comes back to Python only for
objects, without keeping track of paths. What native code cannot take makes a second, slower
traversal; a refusal makes a third one, to find the path. The bytes do not depend on the way.

**Left out.** The codec has no checksum: a flipped bit inside a text is another text. Whoever
stores the bytes guards them, before they come here. Objects that appear twice become two equal
objects. Objects may be nested in objects about 70 deep, lists and dicts about 250.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

from durable_kit.errors import BadInput, UnloadableValue, UnstorableValue
from durable_kit.storage.codec_classes import (
    FIRST_NAMED,
    FORMS,
    Adapter,
    Reference,
    adapted_kind,
    class_kind,
)
from durable_kit.storage.codec_numpy import numpy_kind
from durable_kit.storage.codec_pydantic import pydantic_kind
from durable_kit.storage.codec_read import Reader
from durable_kit.storage.codec_refusals import not_allowed, not_found, refusal_of, too_deep
from durable_kit.storage.codec_types import STANDARD, Kind, Refusal
from durable_kit.storage.codec_write import Search, Writer, refused

__all__ = ["TAG", "Adapter", "Codec"]

TAG = "durable_kit.1"
"""What `dumps_typed` calls these bytes. The number changes if their meaning ever does."""

ClassName = tuple[str, str]


class Codec:
    """Exact values to bytes and back; safe to share between threads.

    `allow` lists the classes that may be stored and loaded beside the built-in types: classes, or
    (module, qualname) pairs, which are imported only when bytes ask for them. `adapters` teach it
    classes that it cannot take apart by itself. `aliases` are for reading only: they lead the old
    name of a class, as stored, to the class as it is today. `write_as` has a class that moved
    written under its old name, as long as code that knows no other still runs beside this one.

        codec = Codec(allow=[Order], aliases={("shop.models", "Order"): Order})
        codec.decode(codec.encode({"order": order})) == {"order": order}
    """

    def __init__(
        self,
        *,
        allow: Iterable[type | ClassName] = (),
        adapters: Iterable[Adapter] = (),
        aliases: Mapping[tuple[str, str], type] | None = None,
        write_as: Mapping[type, ClassName] | None = None,
    ) -> None:
        self._adapters = {adapter.cls: adapter for adapter in adapters}
        self._aliases: dict[ClassName, type] = {
            Reference(*name): cls for name, cls in (aliases or {}).items()
        }
        self._write_as = {cls: Reference(*name) for cls, name in (write_as or {}).items()}
        for cls, name in self._write_as.items():
            if self._aliases.get(name) is not cls:
                raise BadInput(
                    f"{cls.__name__} is written as {name.dotted}, and nothing reads that. Add "
                    f"aliases={{({name.module!r}, {name.qualname!r}): {cls.__name__}}}."
                )
        self._allowed = frozenset(_reference(entry) for entry in allow)
        self._adapted = {Reference.of(cls): adapter for cls, adapter in self._adapters.items()}
        known = [cls for cls in self._adapters if cls in STANDARD or cls in (list, float, bytes)]
        if known:
            raise BadInput(f"{known[0].__name__} is stored exactly as it is. Drop its adapter.")
        # Filled as classes are met. A class that was replaced since is found out once per call.
        self._writing: dict[type, Kind] = {}
        self._reading: dict[tuple[int, str], Kind] = {}
        self._writer = Writer(self.kind_to_write)
        self._reader = Reader(self.kind_to_read)

    def __repr__(self) -> str:
        return f"Codec({len(self._allowed)} classes allowed, {len(self._adapters)} adapters)"

    def allowing(
        self, extra: Iterable[type | ClassName] = (), *, adapters: Iterable[Adapter] = ()
    ) -> Codec:
        """A copy that allows more."""
        return Codec(
            allow=[*self._allowed, *extra],
            adapters=[*self._adapters.values(), *adapters],
            aliases=self._aliases,
            write_as=self._write_as,
        )

    def encode(self, value: Any, *, path: str = "state") -> bytes:
        """The bytes of `value`. Raises `UnstorableValue` with the key path, counted from `path`."""
        try:
            return self._writer.write(value)
        except (Refusal, RecursionError) as error:
            for found in self.refusals(value, path=path):
                raise found from None
            refusal = error if isinstance(error, Refusal) else too_deep()
            raise refused(path, value, refusal) from error

    def decode(self, *parts: bytes | bytearray | memoryview) -> Any:
        """The value of bytes made by `encode`. Raises `UnloadableValue`, or returns it exactly.

        Large bytes may come in parts, so that nobody needs to join them first.

        Bytes from outside `encode` are safe to try, but check a checksum first: a flipped bit in a
        number is another number.
        """
        for data in parts:
            _check_bytes(data)
        return self._reader.read(*parts)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """`encode` in the shape of LangGraph's SerializerProtocol."""
        return TAG, self.encode(obj, path="value")

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """`decode` in the shape of LangGraph's SerializerProtocol."""
        tag, payload = data
        if tag != TAG:
            raise UnloadableValue(
                class_name="a value",
                reason=f"it was written by another serializer, as {tag!r} and not {TAG!r}",
                remedy="Read it with the serializer that wrote it.",
            )
        return self.decode(payload)

    def refusals(self, value: Any, *, path: str = "state") -> Iterator[UnstorableValue]:
        """Every innermost part of `value` that cannot be stored, with its path. Slow and lazy."""
        return Search(self._writer).below(value, path)

    # ------------------------------------------------------------------------ finding kinds

    def kind_to_write(self, cls: type) -> Kind:
        """How to store objects of `cls`. Raises `Refusal`."""
        kind = STANDARD.get(cls) or self._writing.get(cls)
        if kind is not None and kind.tag < FIRST_NAMED:
            return kind
        reference = Reference.of(cls)
        if kind is None:
            kind = self._new_kind(cls, reference)
        if kind.tag >= FIRST_NAMED and reference.find() is not cls:
            raise not_found(reference)
        self._writing[cls] = kind
        return kind

    def _new_kind(self, cls: type, reference: Reference) -> Kind:
        written = self._write_as.get(cls, reference)
        if cls in self._adapters:
            return adapted_kind(self._adapters[cls], written)
        kind = numpy_kind(cls)
        if kind is None:
            kind = pydantic_kind(cls, written) or class_kind(cls, written)
            if kind is None:
                raise refusal_of(cls)
            if reference.find() is not cls:
                raise not_found(reference)
            if reference not in self._allowed:
                raise not_allowed(reference)
        return kind

    def kind_to_read(self, tag: int, name: str) -> Kind:
        """How to build an object that says it is of class `name`. Raises `UnloadableValue`."""
        kind = self._reading.get((tag, name))
        reference = Reference.parse(name)
        if kind is None or (reference not in self._aliases and reference.find() is not kind.cls):
            kind = self._reading[tag, name] = self._found_kind(tag, reference)
        return kind

    def _found_kind(self, tag: int, reference: Reference) -> Kind:
        if reference in self._aliases:
            cls: Any = self._aliases[reference]
        elif reference in self._adapted:
            cls = self._adapted[reference].cls
        elif reference in self._allowed:
            try:
                import_module(reference.module)
            except Exception as error:
                raise _gone(
                    reference, f"its module does not import ({type(error).__name__}: {error})"
                ) from error
            cls = reference.find()
            if not isinstance(cls, type):
                raise _gone(reference, f"{reference.module} has no class of this name")
        else:
            raise UnloadableValue(
                class_name=reference.dotted,
                reason="it is not on the allow-list, and its module was not imported",
                remedy="If these bytes are yours, allow it: "
                f"DeltaSaver(..., serde=Codec(allow=[{reference.qualname}])).",
            )
        if cls in self._adapters:
            kind: Kind | None = adapted_kind(self._adapters[cls], reference)
        else:
            kind = pydantic_kind(cls, reference) or class_kind(cls, reference)
        if kind is None or kind.tag != tag:
            now = FORMS[kind.tag] if kind is not None else "a class the codec cannot build"
            raise _gone(reference, f"it was stored as {FORMS[tag]} and is now {now}")
        return kind


def _reference(entry: object) -> Reference:
    if isinstance(entry, type):
        return Reference.of(entry)
    if isinstance(entry, tuple) and len(entry) == 2 and all(isinstance(x, str) for x in entry):
        return Reference(*entry)
    raise BadInput(
        f"allow holds {entry!r}. Give classes, or pairs of texts: ('package.module', 'Name')."
    )


def _gone(reference: Reference, reason: str) -> UnloadableValue:
    return UnloadableValue(
        class_name=reference.dotted,
        reason=reason,
        remedy="Bring the class back, or name its new place: "
        f"Codec(aliases={{({reference.module!r}, {reference.qualname!r}): NewClass}}).",
    )


def _check_bytes(data: object) -> None:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise BadInput(f"decode takes the bytes that encode made, not {type(data).__name__}.")
