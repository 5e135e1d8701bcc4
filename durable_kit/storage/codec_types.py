"""The types the codec knows by itself, each a pair of functions.

MessagePack has nine kinds of value: nil, bool, integers of 64 bits, float, text, bytes, array, map
and "extension", a number with some bytes. Python has more, and the difference is where state gets
lost quietly:

    stored                                   loaded by a serializer that makes do
    {(1, 2), (3, 4)}                         None, or a set of lists that raises
    {1: "a"}                                 {"1": "a"}
    datetime(…, 2:30, fold=1, Berlin)        2:30 with a fixed offset, one hour early
    defaultdict(list, …)                     dict, and the next append is a KeyError

So each type that msgpack lacks gets an extension number and a `Kind`: `to_state` takes a value
apart into simpler storable values, `from_state` puts it together again. Nothing here packs bytes;
the codec packs the state, whatever it is made of, and that is how a set of tuples of dates works
without a line about sets of tuples of dates.

A number in `STANDARD` is for ever: stored threads mention it. A new type takes a new number, and
the state of an old one never changes its shape.

Promised: what comes back equals what went in, in value and in type, to the bit for a float, with
fold and zone for an instant, with the key's own type for a dict. Left out: two names for one
object become two objects (equal, no longer identical), and `timezone.utc` aside, so do zones.
"""

from __future__ import annotations

import ipaddress
import pathlib
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from reprlib import Repr
from typing import Any
from uuid import UUID, SafeUUID
from zoneinfo import ZoneInfo

Part = tuple[str, Any]


class Refusal(Exception):
    """Why a value cannot be stored, raised where it is found; the codec adds the key path."""

    def __init__(self, reason: str, remedy: str, *, depth: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.depth = depth  # it is about nesting: no part of the value is at fault by itself


def no_parts(value: Any) -> Iterable[Part]:
    return ()


@dataclass(frozen=True, slots=True)
class Kind:
    """How one class is stored: an extension number and two functions.

    `to_state(value)` returns something simpler that the codec can store; `from_state(state)`
    builds the value again and may raise anything on a state it does not understand. `parts(value)`
    names the values inside, for the key path of an error. `unordered` asks the codec to sort the
    items of the state by their bytes, so that equal sets have equal encodings in every process.
    `state` is the type that `to_state` always returns: damaged bytes can unpack to anything, and
    `bytearray(10**12)` is not the answer to a flipped bit.
    """

    tag: int
    cls: type
    state: type
    to_state: Callable[[Any], Any]
    from_state: Callable[[Any], Any]
    parts: Callable[[Any], Iterable[Part]] = no_parts
    unordered: bool = field(default=False, kw_only=True)


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 40


def short(value: object) -> str:
    """A repr that fits into a key path, also of a value whose own repr fails."""
    try:
        return _SHORT.repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def indexed(value: Iterable[Any]) -> Iterator[Part]:
    return ((f"[{index}]", item) for index, item in enumerate(value))


def members(value: Iterable[Any]) -> Iterator[Part]:
    return ((f"{{{short(item)}}}", item) for item in value)


def entries(value: dict[Any, Any]) -> Iterator[Part]:
    for key, item in value.items():
        yield f" key {short(key)}", key
        yield f"[{short(key)}]", item


# ------------------------------------------------------------------ dicts, whatever their keys


def _flat(value: dict[Any, Any]) -> list[Any]:
    return [part for pair in value.items() for part in pair]


def _dict(state: list[Any]) -> dict[Any, Any]:
    result = dict(zip(state[::2], state[1::2], strict=True))
    if 2 * len(result) != len(state):
        raise ValueError("two keys of a dict are equal")
    return result


def _flat_alone(value: Any) -> list[Any]:
    # OrderedDict and Counter objects take attributes (counts.note = "x"); pairs would drop them.
    if vars(value):
        raise Refusal(
            f"it carries attributes of its own ({', '.join(map(str, vars(value)))})",
            "Keep them as keys of a dict instead.",
        )
    return _flat(value)


_FACTORIES: dict[str, type] = {
    factory.__name__: factory
    for factory in (
        *(bool, bytearray, bytes, complex, dict, float, frozenset, int, list, set, str, tuple),
    )
}


def _defaultdict_state(value: defaultdict[Any, Any]) -> list[Any]:
    factory: Any = value.default_factory
    if factory is None:
        return [None, *_flat(value)]
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise Refusal(
            f"its default_factory {short(factory)} is code, not one of {', '.join(_FACTORIES)}",
            "Use one of these as the factory, or store dict(value).",
        )
    return [name, *_flat(value)]


def _defaultdict(state: list[Any]) -> defaultdict[Any, Any]:
    factory = None if state[0] is None else _FACTORIES[state[0]]
    return defaultdict(factory, _dict(state[1:]))


# ------------------------------------------------------------------------- instants and zones


def _datetime_state(value: datetime) -> list[Any]:
    day = [value.year, value.month, value.day]
    return [*day, *_time_state(value)]


def _datetime(state: list[Any]) -> datetime:
    *fields, fold = state
    return datetime(*fields, fold=fold)  # noqa: DTZ001, the zone is the last of the fields


def _time_state(value: datetime | time) -> list[Any]:
    clock = [value.hour, value.minute, value.second, value.microsecond]
    return [*clock, value.tzinfo, value.fold]


def _time(state: list[Any]) -> time:
    *fields, fold = state
    return time(*fields, fold=fold)


def _zone_part(value: datetime | time) -> Iterator[Part]:
    yield ".tzinfo", value.tzinfo


def _timezone_state(value: timezone) -> list[Any]:
    # What pickle uses, too: the offset, and the name where one was given.
    return list(value.__getinitargs__())  # type: ignore[attr-defined]


def _zoneinfo_key(value: ZoneInfo) -> str:
    if value.key is None:
        raise Refusal("this ZoneInfo came from a file and has no key", 'Use ZoneInfo("Area/City").')
    return value.key


# ------------------------------------------------------------------------------ single values


def _int_bytes(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True)


def _int(state: bytes) -> int:
    return int.from_bytes(state, "big", signed=True)


def _surrogate_bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _surrogate_text(state: bytes) -> str:
    return state.decode("utf-8", "surrogatepass")


def _local_path(cls: type[pathlib.PurePath]) -> Callable[[str], pathlib.PurePath]:
    def path(state: str) -> pathlib.PurePath:
        try:
            return cls(state)
        except NotImplementedError as error:  # UnsupportedOperation since Python 3.13
            raise ValueError(
                f"a {cls.__name__} cannot exist on this system; store a Pure{cls.__name__} "
                "if a thread has to move between systems"
            ) from error

    return path


def _deque_state(value: deque[Any]) -> list[Any]:
    return [value.maxlen, *value]


def _deque(state: list[Any]) -> deque[Any]:
    maxlen, *items = state
    result = deque(items, maxlen)
    if len(result) != len(items):
        raise ValueError("more items than the deque's maxlen")
    return result


def _spread(cls: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    return lambda state: cls(*state)


def _bounds(value: range | slice) -> list[Any]:
    return [value.start, value.stop, value.step]


def _slice_parts(value: slice) -> Iterator[Part]:
    return zip((".start", ".stop", ".step"), _bounds(value), strict=True)


def _complex_state(value: complex) -> list[Any]:
    return [value.real, value.imag]


def _fraction_state(value: Fraction) -> list[Any]:
    return [value.numerator, value.denominator]


def _date_state(value: date) -> list[Any]:
    return [value.year, value.month, value.day]


def _timedelta_state(value: timedelta) -> list[Any]:
    return [value.days, value.seconds, value.microseconds]


def _uuid_state(value: UUID) -> list[Any]:
    return [value.bytes, value.is_safe.value]


def _uuid(state: list[Any]) -> UUID:
    return UUID(bytes=state[0], is_safe=SafeUUID(state[1]))


def _pattern_state(value: re.Pattern[Any]) -> list[Any]:
    if value.flags & re.DEBUG:
        raise Refusal("a pattern with re.DEBUG prints when it is loaded", "Compile it without.")
    return [value.pattern, value.flags]


def _pattern(state: list[Any]) -> re.Pattern[Any]:
    pattern, flags = state
    return re.compile(pattern, flags & ~re.DEBUG)


_KINDS = [
    # What msgpack has, in a form it lacks: ints beyond 64 bits, text with a lone surrogate,
    # bytes that can change, dicts with keys other than plain text.
    Kind(1, int, bytes, _int_bytes, _int),
    Kind(2, str, bytes, _surrogate_bytes, _surrogate_text),
    Kind(3, bytearray, bytes, bytes, bytearray),
    Kind(4, dict, list, _flat, _dict, entries),
    # Containers.
    Kind(5, tuple, list, list, tuple, indexed),
    Kind(6, set, list, list, set, members, unordered=True),
    Kind(7, frozenset, list, list, frozenset, members, unordered=True),
    Kind(8, deque, list, _deque_state, _deque, indexed),
    Kind(9, OrderedDict, list, _flat_alone, lambda state: OrderedDict(_dict(state)), entries),
    Kind(10, Counter, list, _flat_alone, lambda state: Counter(_dict(state)), entries),
    Kind(11, defaultdict, list, _defaultdict_state, _defaultdict, entries),
    # Numbers and ranges.
    Kind(12, complex, list, _complex_state, _spread(complex)),
    Kind(13, Decimal, str, str, Decimal),
    Kind(14, Fraction, list, _fraction_state, _spread(Fraction)),
    Kind(15, range, list, _bounds, _spread(range)),
    Kind(16, slice, list, _bounds, _spread(slice), _slice_parts),
    # Time.
    Kind(17, datetime, list, _datetime_state, _datetime, _zone_part),
    Kind(18, date, list, _date_state, _spread(date)),
    Kind(19, time, list, _time_state, _time, _zone_part),
    Kind(20, timedelta, list, _timedelta_state, _spread(timedelta)),
    Kind(21, timezone, list, _timezone_state, _spread(timezone)),
    Kind(22, ZoneInfo, str, _zoneinfo_key, ZoneInfo),
    # Names and places.
    Kind(23, UUID, list, _uuid_state, _uuid),
    Kind(24, re.Pattern, list, _pattern_state, _pattern),
    Kind(25, pathlib.PurePosixPath, str, str, pathlib.PurePosixPath),
    Kind(26, pathlib.PureWindowsPath, str, str, pathlib.PureWindowsPath),
    Kind(27, pathlib.PosixPath, str, str, _local_path(pathlib.PosixPath)),
    Kind(28, pathlib.WindowsPath, str, str, _local_path(pathlib.WindowsPath)),
    Kind(29, ipaddress.IPv4Address, str, str, ipaddress.IPv4Address),
    Kind(30, ipaddress.IPv4Interface, str, str, ipaddress.IPv4Interface),
    Kind(31, ipaddress.IPv4Network, str, str, ipaddress.IPv4Network),
    Kind(32, ipaddress.IPv6Address, str, str, ipaddress.IPv6Address),
    Kind(33, ipaddress.IPv6Interface, str, str, ipaddress.IPv6Interface),
    Kind(34, ipaddress.IPv6Network, str, str, ipaddress.IPv6Network),
]

STANDARD: dict[type, Kind] = {kind.cls: kind for kind in _KINDS}
"""Extension numbers 1 to 34. 40 and 41 are numpy's, 64 to 69 belong to classes with a name."""
