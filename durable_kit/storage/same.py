"""`same(a, b)`: equal in value *and* in type, all the way down.

Python's `==` is too kind to judge a round trip, and once it is too strict:

    1 == True == 1.0        (1, 2) == Point(1, 2)        0.0 == -0.0
    [b"x"] == [bytearray(b"x")]        {1: "a"} == {True: "a"}
    datetime(…, fold=0) == datetime(…, fold=1)          nan != nan

Whoever proves that nothing was lost needs a judge who shares no code with the accused: nothing
here is used by the codec, and nothing of the codec is used here. The order of a plain dict does
not count; that of an OrderedDict does. Memory layout of an array counts where the array has one.
"""

from __future__ import annotations

import struct
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, time, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

Pairs = list[tuple[Any, Any]]


def same(a: Any, b: Any) -> bool:
    """Whether `b` is what `a` was: same type, same value, for every part of both."""
    pending: Pairs = [(a, b)]  # a list and not recursion: what is compared may be deep
    while pending:
        left, right = pending.pop()
        if left is not right and not (type(left) is type(right) and _alike(left, right, pending)):
            return False
    return True


def _alike(a: Any, b: Any, pending: Pairs) -> bool:
    """Whether two values of one type agree, once the pairs added to `pending` do."""
    kind = type(a)
    if kind is float:
        return struct.pack("d", a) == struct.pack("d", b)
    if kind is complex:
        return _add(pending, [a.real, a.imag], [b.real, b.imag])
    if kind in (slice, range):
        return _add(pending, [a.start, a.stop, a.step], [b.start, b.stop, b.step])
    if kind is deque and a.maxlen != b.maxlen:
        return False
    if issubclass(kind, tuple | list | deque):  # named tuples, too
        return _add(pending, a, b)
    if kind in (dict, Counter, OrderedDict, defaultdict):
        return _dicts(a, b, pending)
    if kind in (set, frozenset):
        return _members(a, b)
    if kind in (datetime, time):
        pending.append((a.tzinfo, b.tzinfo))
        return bool(a.fold == b.fold and a.replace(tzinfo=None) == b.replace(tzinfo=None))
    if kind in (timezone, ZoneInfo, Decimal):  # by their text: == ignores names, sNaN raises
        return repr(a) == repr(b)
    if kind is UUID:
        return bool(a == b) and a.is_safe is b.is_safe
    if issubclass(kind, Enum):  # members are single objects; combinations of flags are made anew
        return bool(a._value_ == b._value_) and a._name_ == b._name_
    if kind.__module__ == "numpy" and "numpy" in sys.modules:
        return _arrays(a, b)
    if kind.__module__.partition(".")[0] in sys.stdlib_module_names:
        return bool(a == b)  # int, str, bytes, date, a path: they show nothing beside
    pending.append((_held(a), _held(b)))
    return True


def _add(pending: Pairs, a: Iterable[Any], b: Iterable[Any]) -> bool:
    left, right = list(a), list(b)
    pending.extend(zip(left, right, strict=False))
    return len(left) == len(right)


def _held(value: Any) -> dict[str, Any]:
    """What an object of a class of one's own holds, in its `__dict__` and in its slots."""
    held: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType):
                with suppress(AttributeError):  # a slot may be empty
                    held[name] = slot.__get__(value)
    private = held.get("__pydantic_private__")
    if private:
        undefined = sys.modules["pydantic_core"].PydanticUndefined
        held["__pydantic_private__"] = {n: v for n, v in private.items() if v is not undefined}
    return held


def _dicts(a: Any, b: Any, pending: Pairs) -> bool:
    if getattr(a, "default_factory", None) is not getattr(b, "default_factory", None):
        return False
    pending.append((getattr(a, "__dict__", None), getattr(b, "__dict__", None)))
    if type(a) is OrderedDict:
        return _add(pending, a.items(), b.items())
    if {type(key) for key in a} | {type(key) for key in b} <= {str}:
        pending.extend((item, b[key]) for key, item in a.items() if key in b)
        return bool(a.keys() == b.keys())
    return _members(a.items(), b.items())


def _members(a: Iterable[Any], b: Iterable[Any]) -> bool:
    rest = list(b)
    for item in a:
        for at, other in enumerate(rest):
            if same(item, other):
                del rest[at]
                break
        else:
            return False
    return not rest


def _arrays(a: Any, b: Any) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape or a.dtype.hasobject:
        return False
    if type(a).__name__ == "ndarray":
        if a.flags.writeable != b.flags.writeable:
            return False
        if a.flags.c_contiguous > b.flags.c_contiguous:
            return False
        if a.flags.f_contiguous > b.flags.f_contiguous:
            return False
    elif a.dtype.kind in "SU":
        return bool(a == b)
    if a.dtype.names is not None:  # field by field: the bytes between them mean nothing
        return all(_values(a[name], b[name]) for name in a.dtype.names)
    return bool(a.tobytes() == b.tobytes())


def _values(a: Any, b: Any) -> bool:
    if a.dtype.names is not None:
        return all(_values(a[name], b[name]) for name in a.dtype.names)
    return bool(a.tobytes() == b.tobytes())
