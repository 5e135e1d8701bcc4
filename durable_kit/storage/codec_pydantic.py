"""pydantic models, without asking pydantic.

A model is validated once, where it is made. To validate again while loading would change values
that the program had every right to hold, and it costs more than everything else together:

    step = Step.model_construct(retries=2.5)      # an int field, set on purpose without checks
    step.retries                                  2.5
    Step(**stored).retries                        ValidationError, or 2 under a lax config

So a model is stored as what it holds, four things, and put back the way unpickling does it: its
fields, its extra fields, its private attributes, and the names of those fields that were *given*
rather than defaulted. The last decide what `model_dump(exclude_unset=True)` says, so they count
as part of the value. They are stored as a bit mask over the fields in stored order: one byte for
a chat message where the names would take sixty.

Chat messages are what the hot path is about: a thousand of them are packed at each super-step.
Per message there is one lookup, two comparisons with the shape of the message before, and one
native call. pydantic itself is never imported from here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import compress
from typing import Any, NamedTuple

from durable_kit.storage.codec_classes import (
    PYDANTIC,
    Reference,
    attributes_of,
    missing_field,
    slots_of,
)
from durable_kit.storage.codec_types import Kind, Part, Refusal


def pydantic_base() -> Any:
    """`pydantic.BaseModel` (version 2) if anything has imported it, else None."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return base if hasattr(base, "__pydantic_fields_set__") else None


class _Shape(NamedTuple):
    """Which fields a model holds, which of them were given, and what that looks like stored.

    Messages of one kind mostly share one shape. Remembering the last one turns the bookkeeping
    into two comparisons; it is one tuple, replaced whole, so that threads may race for it.
    """

    names: list[str]
    given: set[str]
    mask: int | list[str]
    complete: bool


def pydantic_kind(cls: Any, reference: Reference) -> Kind | None:
    """The `Kind` of a pydantic model, else None."""
    base = pydantic_base()
    if base is None or not issubclass(cls, base):
        return None
    text = reference.text
    surplus = slots_of(cls).keys() - slots_of(base).keys()
    if surplus:
        raise Refusal(
            f"it keeps {', '.join(sorted(surplus))} in slots of its own",
            "Declare them as private attributes of the model instead.",
        )
    infos = cls.model_fields
    declared = infos.keys()
    undefined = sys.modules["pydantic_core"].PydanticUndefined
    set_fields = vars(base)["__dict__"].__set__
    set_given = vars(base)["__pydantic_fields_set__"].__set__
    set_extra = _setter(cls, "__pydantic_extra__")
    set_private = _setter(cls, "__pydantic_private__")
    last = _Shape([], set(), 0, not declared)

    def shape_written(fields: dict[str, Any], given: set[str]) -> _Shape:
        nonlocal last
        names = [*fields]
        mask: int | list[str] = sum(1 << at for at, name in enumerate(names) if name in given)
        if not given <= fields.keys():  # names of extra fields are counted as given, too
            mask = sorted(given)
        last = _Shape(names, set(given), mask, declared <= fields.keys())
        return last

    def to_state(value: Any) -> list[Any]:
        fields, given = value.__dict__, value.__pydantic_fields_set__
        names, seen, mask, complete = last
        if given != seen or [*fields] != names:
            names, seen, mask, complete = shape_written(fields, given)
        extra, private = value.__pydantic_extra__, value.__pydantic_private__
        if private is None and complete:
            return [text, mask, fields, extra]
        if private is not None:
            private = {name: item for name, item in private.items() if item is not undefined}
        return [text, mask, fields, extra, private, not complete]

    def shape_read(fields: dict[str, Any], mask: int | list[str]) -> _Shape:
        nonlocal last
        names = [*fields]
        if isinstance(mask, int):
            if not 0 <= mask < 1 << len(names):
                raise ValueError("more fields given than there are")
            given = set(compress(names, map(int, reversed(f"{mask:b}"))))
        else:
            given = set(mask)
        last = _Shape(names, given, mask, declared <= fields.keys())
        return last

    def from_state(state: list[Any]) -> Any:
        _, mask, fields, extra, *rest = state
        private, partial = rest or (None, False)
        names, given, seen, complete = last
        if mask != seen or [*fields] != names:
            names, given, seen, complete = shape_read(fields, mask)
        if not complete and not partial:
            for name in [name for name in declared if name not in fields]:
                if infos[name].is_required():
                    raise missing_field(reference, name)
                fields[name] = infos[name].get_default(call_default_factory=True)
        value = object.__new__(cls)
        set_fields(value, fields)
        set_given(value, given.copy())
        set_extra(value, extra)
        set_private(value, private)
        return value

    def parts(value: Any) -> Iterator[Part]:
        yield from attributes_of(value.__dict__.items())
        yield from attributes_of((value.__pydantic_extra__ or {}).items())
        yield from attributes_of((value.__pydantic_private__ or {}).items())

    return Kind(PYDANTIC, cls, list, to_state, from_state, parts)


def _setter(cls: type, slot: str) -> Callable[[Any, Any], None]:
    found = next(vars(base)[slot] for base in cls.__mro__ if slot in vars(base))
    if found is None:  # a RootModel has no extra fields: a constant hides the slot
        return lambda value, item: None
    setter: Callable[[Any, Any], None] = found.__set__
    return setter
