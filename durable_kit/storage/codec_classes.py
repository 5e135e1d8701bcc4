"""Classes with a name: enums, dataclasses, named tuples (and pydantic models, next door).

An object is two things: a reference to its class, and what it holds. Serializers that rebuild the
object by *calling* the class lose on both sides:

    @dataclass
    class Order:
        lines: list[str]
        total: int = field(init=False)          # set by __post_init__, then changed by a refund

    stored    Order(lines=["a"]), total = 0
    loaded    Order(lines=["a"])  →  __post_init__ runs again  →  total = 700

So the codec never calls `__init__` and never validates: it takes the fields out of the object as
they are, and puts them back into a bare instance of the same class. A float in an `int` field of
a pydantic model comes back as that float; a field that was never set comes back not set.

**The reference** is `module:qualname`, so that an enum inside a class is found again. A class is
stored only if that reference leads back to the class itself; a class from inside a function has
none, and after a notebook cell has run twice the older class has lost its own.

**When the class has changed** since: a field with a default that the stored object lacks gets the
default, like any object made today. A field without one stops the load with its name, as does an
enum member that is gone. What the class no longer declares stays on the object, so that the next
save does not lose it. All other change of shape belongs to an upcaster, which sees versions.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from durable_kit.errors import UnloadableValue
from durable_kit.storage.codec_types import Kind, Part, Refusal

ENUM, FLAG, DATACLASS, NAMED_TUPLE, PYDANTIC, ADAPTED = range(64, 70)
FIRST_NAMED = ENUM  # from here on, the state begins with the name of a class

FORMS = {
    ENUM: "an enum member",
    FLAG: "a flag",
    DATACLASS: "a dataclass",
    NAMED_TUPLE: "a named tuple",
    PYDANTIC: "a pydantic model",
    ADAPTED: "an object with an adapter",
}


class Reference(NamedTuple):
    """Where a class is found: the module, and the dotted name inside it."""

    module: str
    qualname: str

    @classmethod
    def of(cls, target: type) -> Reference:
        return cls(target.__module__, target.__qualname__)

    @classmethod
    def parse(cls, text: str) -> Reference:
        module, colon, qualname = text.partition(":")
        if not colon:
            raise ValueError(f"{text!r} does not name a class")
        return cls(module, qualname)

    @property
    def text(self) -> str:
        return f"{self.module}:{self.qualname}"

    @property
    def dotted(self) -> str:
        return f"{self.module}.{self.qualname}"

    def find(self) -> object:
        """What the name stands for now, or None. Looks only at modules already imported."""
        found: object = sys.modules.get(self.module)
        names = getattr(found, "__dict__", {})
        if self.qualname in names:  # also Page[Order], whose brackets may hold dots
            whole: object = names[self.qualname]
            return whole
        for name in self.qualname.split("."):
            found = getattr(found, name, None)
        return found


def class_kind(cls: type, reference: Reference) -> Kind | None:
    """The `Kind` of an enum, a dataclass or a named tuple, else None."""
    if issubclass(cls, enum.Enum):
        return (
            _flag_kind(cls, reference) if issubclass(cls, enum.Flag) else _enum_kind(cls, reference)
        )
    if dataclasses.is_dataclass(cls):
        return _dataclass_kind(cls, reference)
    if issubclass(cls, tuple) and hasattr(cls, "_fields") and hasattr(cls, "_field_defaults"):
        return _named_tuple_kind(cls, reference)
    return None


# --------------------------------------------------------------------------------------- enums


def _enum_kind(cls: type[enum.Enum], reference: Reference) -> Kind:
    text = reference.text

    def to_state(value: enum.Enum) -> list[Any]:
        name = value._name_  # .name and .value may be properties of the enum's own
        if cls.__members__.get(name) is not value:
            raise Refusal("it is not one of the members of its enum", "Store its value instead.")
        return [text, name]

    def from_state(state: list[Any]) -> enum.Enum:
        name = state[1]
        if name not in cls.__members__:
            raise UnloadableValue(
                class_name=reference.dotted,
                reason=f"it has no member {name!r} any more",
                remedy="Bring the member back; as an alias of another one it may share a value.",
            )
        return cls.__members__[name]

    return Kind(ENUM, cls, list, to_state, from_state)


def _flag_kind(cls: type[enum.Flag], reference: Reference) -> Kind:
    text = reference.text

    def from_state(state: list[Any]) -> enum.Flag:
        value = cls(state[1])
        if value._value_ != state[1]:
            raise UnloadableValue(
                class_name=reference.dotted,
                reason=f"it no longer keeps all bits of {state[1]}",
                remedy="Bring the missing member back.",
            )
        return value

    return Kind(FLAG, cls, list, lambda value: [text, value._value_], from_state)


# -------------------------------------------------------------------------------- plain fields


def slots_of(cls: type) -> dict[str, types.MemberDescriptorType]:
    return {
        name: slot
        for base in reversed(cls.__mro__)
        for name, slot in vars(base).items()
        if isinstance(slot, types.MemberDescriptorType)
    }


def _check_layout(cls: type) -> None:
    """Refuse a class that keeps data where neither `__dict__` nor a slot shows it."""
    slots = sum(
        isinstance(x, types.MemberDescriptorType) for c in cls.__mro__ for x in vars(c).values()
    )
    shown = object.__basicsize__ + (slots + 2) * struct.calcsize("P")  # 2: __dict__, __weakref__
    native = [base for base in cls.__mro__[:-1] if not base.__flags__ & (1 << 9)]  # no heap type
    if native or cls.__basicsize__ > shown or cls.__itemsize__:
        base = next((b for b in cls.__mro__ if b.__module__ in sys.stdlib_module_names), cls)
        raise Refusal(
            f"it is built on {base.__name__}, whose own content is not among its fields",
            f"Keep the {base.__name__} in a field, or give the codec an Adapter for the class.",
        )


def missing_field(reference: Reference, name: str) -> UnloadableValue:
    return UnloadableValue(
        class_name=reference.dotted,
        reason=f"it has a field {name!r} without a default, which the stored object lacks",
        remedy="Give the field a default, or upcast the stored state.",
    )


def attributes_of(values: Iterable[tuple[Any, Any]]) -> Iterator[Part]:
    return ((f".{name}", value) for name, value in values)


def _dataclass_kind(cls: type, reference: Reference) -> Kind:
    _check_layout(cls)
    text, slots = reference.text, slots_of(cls)
    declared = {field.name: field for field in dataclasses.fields(cls) if field.init}
    names = declared.keys()

    def attributes(value: Any) -> dict[str, Any]:
        if not slots:
            whole: dict[str, Any] = value.__dict__
            return whole
        held = dict(getattr(value, "__dict__", {}))
        for name, slot in slots.items():
            with suppress(AttributeError):  # a slot may be empty
                held[name] = slot.__get__(value)
        return held

    def to_state(value: Any) -> list[Any]:
        held = attributes(value)
        # True: a declared field was already missing here, so do not fill it in on load.
        return [text, held] if names <= held.keys() else [text, held, True]

    def from_state(state: list[Any]) -> Any:
        held = state[1]
        if len(state) == 2 and not names <= held.keys():
            for name in [name for name in names if name not in held]:
                field = declared[name]
                if field.default is not dataclasses.MISSING:
                    held[name] = field.default
                elif field.default_factory is not dataclasses.MISSING:
                    held[name] = field.default_factory()
                else:
                    raise missing_field(reference, name)
        value: Any = object.__new__(cls)
        if not slots:
            object.__setattr__(value, "__dict__", held)
            return value
        for name, item in held.items():
            if name in slots:
                slots[name].__set__(value, item)
            else:
                vars(value)[name] = item
        return value

    return Kind(
        DATACLASS, cls, list, to_state, from_state, lambda v: attributes_of(attributes(v).items())
    )


def _named_tuple_kind(cls: Any, reference: Reference) -> Kind:
    text = reference.text
    fields: tuple[str, ...] = cls._fields
    defaults: Mapping[str, Any] = cls._field_defaults

    def to_state(value: Any) -> list[Any]:
        if getattr(value, "__dict__", None):
            raise Refusal(
                f"it carries attributes beside its fields ({', '.join(vars(value))})",
                "Make them fields, or use a dataclass.",
            )
        return [text, dict(zip(fields, value, strict=True))]

    def from_state(state: list[Any]) -> Any:
        held = defaults | state[1]
        for name in fields:
            if name not in held:
                raise missing_field(reference, name)
        for name in held:
            if name not in fields:
                raise UnloadableValue(
                    class_name=reference.dotted,
                    reason=f"it has no field {name!r} any more",
                    remedy="Bring the field back, or upcast the stored state.",
                )
        return tuple.__new__(cls, [held[name] for name in fields])

    return Kind(
        NAMED_TUPLE,
        cls,
        list,
        to_state,
        from_state,
        lambda v: attributes_of(zip(fields, v, strict=False)),
    )


# ----------------------------------------------------------------------------------- adapters


@dataclasses.dataclass(frozen=True, slots=True)
class Adapter:
    """Two functions that teach the codec a class it cannot take apart by itself.

    `to_state(value)` returns anything storable; `from_state(state)` must build an equal object of
    exactly that class. For classes of others; in your own, prefer a dataclass.
    """

    cls: type
    to_state: Callable[[Any], Any]
    from_state: Callable[[Any], Any]


def adapted_kind(adapter: Adapter, reference: Reference) -> Kind:
    text = reference.text

    def from_state(state: list[Any]) -> Any:
        value = adapter.from_state(state[1])
        if type(value) is not adapter.cls:
            raise TypeError(f"its adapter's from_state returned a {type(value).__name__}")
        return value

    return Kind(
        ADAPTED,
        adapter.cls,
        list,
        lambda value: [text, adapter.to_state(value)],
        from_state,
        lambda value: [("", adapter.to_state(value))],
    )
