"""Is this the same request as before?

An idempotency key says *which operation* is meant. It does not say that the caller still means the
same thing by it:

    run 1   key charge:order-1001   {"amount_cents": 500}   charged
    ── the order is edited, the graph runs again ──
    run 2   key charge:order-1001   {"amount_cents": 700}   "known key": the receipt over 500 comes
                                                            back, and 700 is believed to be paid

So the gateway keeps a fingerprint beside the key: sha256 over one canonical form of the request.
A fingerprint errs in two directions, and they do not cost the same. Two names for one request give
a conflict: loud, nothing is sent. One name for two requests loses an effect, and nobody hears of
it. Hence the rule: **alike is only what tells the provider the same thing; in doubt, different.**

    the same                                    why
    {"a": 1, "b": 2}  and  {"b": 2, "a": 1}     a mapping has no order
    1  and  1.0, 1000 and 1e3, 0.0 and -0.0     one number; JSON writers disagree on its spelling
    (1, 2)  and  [1, 2]                         both are sent as a list; so is a named tuple
    Color.RED  and  "red"                       a member is sent as its value
    Order(id=7)  and  {"id": 7}                 a model or dataclass is sent as its fields
    Decimal("1.0") and Decimal("1.00"), ("1E+3") and ("1000")    one amount
    NaN  and  NaN                               else a request would conflict with itself
    bytes  and  bytearray                       the same bytes
    10:00+01:00  and  10:00 Europe/Berlin in winter    one local time and one offset

    different                                   why
    {"a": None}  and  {}                        "no value" and "your default" are two wishes
    True  and  1  and  "1"                      a flag, a number, a text
    Decimal("1")  and  1                        exact money and a number travel differently
    2**53  and  2**53 + 1                       integers are exact, however large
    [1, 2]  and  [2, 1]                         a list has an order, always
    b"a"  and  "a"                              bytes are not text
    "é" as one code point, and as two (NFC, NFD)   two texts; normalise first if they are one to you
    10:00  and  10:00+00:00  and  "…T10:00:00"  no zone, a zone, a text
    10:00+01:00  and  09:00+00:00               one instant, two local times: an appointment differs
    02:30 fold=0  and  02:30 fold=1             an hour apart, also where no zone says so
    UUID("…")  and  "…"; a date and a datetime  two types

Text may hold NUL and lone surrogates. What has no stable form is refused with its path: sets (send
`sorted(...)`), keys that are not text, functions, open files, objects without fields.

The fingerprint begins with the version of these rules. When they change, a stored fingerprint of
the old rules is not compared with a new one; the stored request is hashed again.

Left out: secrecy. A fingerprint of a small request can be guessed by trying them all.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from durable_kit.errors import UnstorableValue

VERSION = "1"


def request_fingerprint(request: Any) -> str:
    """`"1:"` and 64 hex digits: equal for requests that tell a provider the same thing.

    Raises `UnstorableValue` with the path of the first part that has no stable form.
    """
    parts: list[bytes] = []
    try:
        _write(request, "request", parts)
    except RecursionError:
        raise _refused(
            "request", request, "it is nested too deep, or contains itself", "Flatten it."
        ) from None
    return f"{VERSION}:{hashlib.sha256(b''.join(parts)).hexdigest()}"


def difference_of(before: Any, after: Any) -> str:
    """What has changed between two requests, short enough for an error's text."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return f"{before!r:.60} → {after!r:.60}"
    changed = [
        f"{key} {before.get(key, 'missing')!r:.40} → {after.get(key, 'missing')!r:.40}"
        for key in [*before, *(key for key in after if key not in before)]
        if key not in before
        or key not in after
        or request_fingerprint(before[key]) != request_fingerprint(after[key])
    ]
    return ", ".join(changed[:3]) + (" …" if len(changed) > 3 else "")


def _write(value: Any, path: str, parts: list[bytes]) -> None:
    """Append the canonical form of `value`. Each part says its kind and its length.

    Without lengths, ["ab", "c"] and ["a", "bc"] would run together into one text.
    """
    cls = type(value)
    if cls is str:
        _write_sized(b"s", value.encode("utf-8", "surrogatepass"), parts)
    elif value is None:
        parts.append(b"n;")
    elif cls is bool:
        parts.append(b"t;" if value else b"f;")
    elif cls is int:
        parts.append(b"i%x;" % value if value >= 0 else b"i-%x;" % -value)
    elif cls is float:
        _write_float(value, path, parts)
    elif cls is dict:
        _write_mapping(value, path, parts)
    elif cls is list:
        _write_list(value, path, parts)
    else:
        _write_rarer(value, path, parts)


def _write_rarer(value: Any, path: str, parts: list[bytes]) -> None:
    """Everything but the types of JSON, which come first because they come most often."""
    if isinstance(value, Enum):  # before str and int: a StrEnum is both
        _write(value.value, path, parts)
    elif isinstance(value, str):
        _write(str.__str__(value), path, parts)
    elif isinstance(value, int):
        _write(int(value), path, parts)
    elif isinstance(value, float):
        _write(float(value), path, parts)
    elif isinstance(value, bytes | bytearray):
        _write_sized(b"b", bytes(value), parts)
    elif isinstance(value, tuple | list):
        _write_list(list(value), path, parts)
    elif isinstance(value, Decimal):
        _write_sized(b"d", _decimal(value), parts)
    elif isinstance(value, datetime):
        # The text of an aware time has its offset, which the fold has decided. A naive one has no
        # offset to show the fold in.
        fold = f" fold={value.fold}" if value.utcoffset() is None else ""
        _write_sized(b"D", f"{value.isoformat()}{fold}".encode(), parts)
    elif isinstance(value, date):
        _write_sized(b"A", value.isoformat().encode(), parts)
    elif isinstance(value, time):
        _write_sized(b"T", f"{value.isoformat()} fold={value.fold}".encode(), parts)
    elif isinstance(value, timedelta):
        _write_sized(b"E", str(value // timedelta(microseconds=1)).encode(), parts)
    elif isinstance(value, UUID):
        _write_sized(b"U", value.bytes, parts)
    elif isinstance(value, Mapping):
        _write_mapping(value, path, parts)
    elif is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        _write_mapping(named, path, parts, attribute=True)
    elif hasattr(type(value), "model_fields") and hasattr(value, "model_dump"):  # pydantic's
        _write_mapping(value.model_dump(), path, parts, attribute=True)
    else:
        raise _refused(path, value, *_why_not(value))


def _write_sized(kind: bytes, data: bytes, parts: list[bytes]) -> None:
    parts.append(b"%s%d:%s" % (kind, len(data), data))


def _write_list(items: list[Any], path: str, parts: list[bytes]) -> None:
    parts.append(b"l%d:" % len(items))
    for number, item in enumerate(items):
        _write(item, f"{path}[{number}]", parts)


def _write_mapping(
    value: Mapping[Any, Any], path: str, parts: list[bytes], *, attribute: bool = False
) -> None:
    parts.append(b"m%d:" % len(value))
    for key, name, item in sorted(_keyed(value, path)):
        _write_sized(b"s", key, parts)
        _write(value[item], f"{path}.{name}" if attribute else f"{path}[{name!r}]", parts)


def _keyed(value: Mapping[Any, Any], path: str) -> Iterator[tuple[bytes, str, Any]]:
    """(what to sort by, the key as text, the key) for each entry."""
    for key in value:
        if not isinstance(key, str):
            raise _refused(
                f"{path}[{key!r}]",
                key,
                "only text can be a key: JSON would turn 1 and '1' into the same one",
                "Write the key as text.",
            )
        text = key.value if isinstance(key, Enum) else key
        yield text.encode("utf-8", "surrogatepass"), str.__str__(text), key


def _write_float(value: float, path: str, parts: list[bytes]) -> None:
    if math.isnan(value):
        parts.append(b"rnan;")
    elif value.is_integer():  # 1.0 is 1, and -0.0 is 0
        _write(int(value), path, parts)
    else:
        _write_sized(b"r", value.hex().encode(), parts)


def _decimal(value: Decimal) -> bytes:
    """Sign, digits and exponent without trailing zeros.

    Not `Decimal.normalize()`: that rounds to the precision of the current context.
    """
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return b"nan" if value.is_nan() else str(value).encode()
    text = "".join(map(str, digits)).lstrip("0")
    stripped = text.rstrip("0")
    if not stripped:
        return b"0"
    return f"{'-' if sign else ''}{stripped}e{exponent + len(text) - len(stripped)}".encode()


def _why_not(value: Any) -> tuple[str, str]:
    if isinstance(value, set | frozenset):
        return "a set is sent in any order", "Send sorted(...) of it."
    if callable(value):
        return "code has no stable form", "Send a name."
    if type(value).__module__.partition(".")[0] == "numpy":
        return "an array or scalar of numpy has no form of its own", "Send .item() or .tolist()."
    return "it has no stable form", "Send plain data, a dataclass or a pydantic model."


def _refused(path: str, value: Any, reason: str, remedy: str) -> UnstorableValue:
    return UnstorableValue(path=path, type_name=type(value).__name__, reason=reason, remedy=remedy)
