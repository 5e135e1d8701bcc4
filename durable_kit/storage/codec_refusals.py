"""Why a value is refused, and what to do instead.

A refusal is read by someone whose agent has just stopped, so it must end with a way out:

    state['tools'][0].run (function) cannot be stored: code is not state; another process may run
    another version of it. Store a name, and look the function up where it is used.

The table below goes from the specific to the general; the first row that fits speaks.
"""

from __future__ import annotations

import io
import sys
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import date, datetime, time, timedelta, tzinfo

from durable_kit.storage.codec_classes import Reference
from durable_kit.storage.codec_types import STANDARD, Refusal

_CODE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.CodeType,
)
_ONCE = (Iterator, AsyncIterator, Coroutine, types.AsyncGeneratorType)
_OF_THIS_PROCESS = {"_thread", "threading", "_socket", "socket", "asyncio", "queue", "_queue"}
_BUILT_IN = (*STANDARD, list, bytes, float)

ADAPTER = "DeltaSaver(..., serde=Codec(adapters=[Adapter({name}, to_state, from_state)]))"


def not_allowed(reference: Reference) -> Refusal:
    return Refusal(
        f"{reference.dotted} is not on the codec's allow-list",
        f"Allow it: DeltaSaver(..., serde=Codec(allow=[{reference.qualname}])).",
    )


def not_found(reference: Reference) -> Refusal:
    if "<locals>" in reference.qualname:
        return Refusal(
            f"its class {reference.dotted} lives inside a function, where no loader can find it",
            "Move the class to the top level of a module.",
        )
    return Refusal(
        f"the name {reference.dotted} does not lead to its class (now)",
        "If the module or the cell has run again, make the object anew; else give the class a "
        "name of its own at the top level of its module.",
    )


def refusal_of(cls: type) -> Refusal:
    """The refusal of a class that has no `Kind`."""
    name = cls.__name__
    adapter = ADAPTER.format(name=name)
    for test, reason, remedy in _TABLE:
        if test(cls):
            return Refusal(reason.format(name=name), remedy.format(name=name, adapter=adapter))
    raise AssertionError("the last row fits everything")


def _is(*classes: type) -> Callable[[type], bool]:
    return lambda cls: issubclass(cls, classes)


def _from(*packages: str) -> Callable[[type], bool]:
    return lambda cls: cls.__module__.split(".")[0] in packages


def _pydantic_v1(cls: type) -> bool:
    old = getattr(sys.modules.get("pydantic.v1.main"), "BaseModel", None) or getattr(
        sys.modules.get("pydantic.main"), "BaseModel", None
    )
    return old is not None and issubclass(cls, old)


def _secret(cls: type) -> bool:
    return any(base.__name__ in {"SecretStr", "SecretBytes"} for base in cls.__mro__)


_TABLE: list[tuple[Callable[[type], bool], str, str]] = [
    (
        _is(memoryview),
        "a memoryview is a window on memory of this process",
        "Store bytes(value).",
    ),
    (
        _is(*_CODE),
        "code is not state; another process may run another version of it",
        "Store a name, and look the function up where it is used.",
    ),
    (_is(type), "a class is code, not state", "Store its name, and look it up where it is used."),
    (_is(types.ModuleType), "a module is code, not state", "Store its name, and import it."),
    (
        _is(io.IOBase),
        "an open file belongs to this process",
        "Store its path, and open it in the node.",
    ),
    (
        _is(*_ONCE),
        "it can be read only once, and reading it to store it would use it up",
        "Store list(value), or what is needed to begin again.",
    ),
    (
        _from(*_OF_THIS_PROCESS),
        "it belongs to the threads or connections of this process",
        "Make it in the node, or hand it in by the runtime context.",
    ),
    (
        _is(BaseException),
        "an exception holds frames and causes that cannot come back equal",
        "Store the facts: a dataclass, or str(error).",
    ),
    (
        _from("pandas"),
        "pandas objects carry indexes and caches that have no exact stored form",
        "Store frame.to_dict('list') or .to_numpy(), or .to_pydatetime() of a Timestamp.",
    ),
    (_secret, "a secret does not belong into a database", "Store a reference to it."),
    (
        _pydantic_v1,
        "it is a model of pydantic version 1",
        "Derive it from pydantic.BaseModel of version 2, or store value.dict().",
    ),
    (
        lambda cls: hasattr(cls, "__attrs_attrs__"),
        "attrs classes are not known to the codec",
        "Make it a dataclass, or: {adapter}.",
    ),
    (
        _is(datetime, date, time, timedelta),
        "a subclass of a date or time would come back as its base",
        "Store datetime.fromisoformat(value.isoformat()), or: {adapter}.",
    ),
    (
        _is(tzinfo),
        "only timezone and ZoneInfo can be found again by their name",
        'Use zoneinfo.ZoneInfo("Area/City") or datetime.timezone.',
    ),
    (
        _from("numpy"),
        "of numpy, only plain arrays and scalars have an exact stored form",
        "Use numpy.asarray(value), or .tolist().",
    ),
    (
        lambda cls: any(issubclass(cls, base) for base in _BUILT_IN),
        "{name} is a subclass of a built-in type and would come back as its base",
        "Convert it to the built-in type, or: {adapter}.",
    ),
    (
        lambda cls: True,
        "{name} is not a kind of object that the codec can take apart and put together",
        "Make it a dataclass, or: {adapter}.",
    ),
]


def too_deep() -> Refusal:
    return Refusal(
        "it is nested too deep",
        "Flatten it: keep the parts in one list or dict, and refer to them by key.",
        depth=True,
    )


def refers_to_itself() -> Refusal:
    return Refusal("it contains itself", "Refer to the other object by a key instead.")


def gave_an_error(error: Exception) -> Refusal:
    return Refusal(
        f"reading it raised {type(error).__name__}: {error}",
        "Make the object readable, or leave it out of the state.",
    )
