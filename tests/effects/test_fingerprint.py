"""Which requests are one, and which are two: every verdict of the fingerprint as a test."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_kit import UnstorableValue, request_fingerprint

BERLIN = ZoneInfo("Europe/Berlin")
Point = namedtuple("Point", "x y")


class Color(Enum):
    RED = "red"


class Size(StrEnum):
    SMALL = "small"


class Level(IntEnum):
    HIGH = 3


@dataclass
class Order:
    id: int
    note: str | None = None


class Model(pydantic.BaseModel):
    id: int
    note: str | None = None


SAME: dict[str, tuple[Any, Any]] = {
    "key order": ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
    "1 and 1.0": (1, 1.0),
    "1000 and 1e3": (1000, 1e3),
    "0.0 and -0.0": (0.0, -0.0),
    "NaN and NaN": (float("nan"), -float("nan")),
    "infinity and itself": (float("inf"), float("inf")),
    "a float of numpy": (0.5, np.float64(0.5)),
    "Decimal zeros": (Decimal("1.0"), Decimal("1.00")),
    "Decimal exponents": (Decimal("1E+3"), Decimal(1000)),
    "Decimal zero with signs and exponents": (Decimal("-0.00"), Decimal("0E+7")),
    "Decimal NaNs": (Decimal("NaN"), Decimal("NaN")),
    "tuple and list": ((1, (2,)), [1, [2]]),
    "named tuple and list": (Point(1, 2), [1, 2]),
    "Enum and its value": (Color.RED, "red"),
    "StrEnum and its value": (Size.SMALL, "small"),
    "IntEnum and its value": (Level.HIGH, 3),
    "an Enum as a key": ({Size.SMALL: 1}, {"small": 1}),
    "dataclass and dict": (Order(7), {"id": 7, "note": None}),
    "pydantic model and dict": (Model(id=7), {"id": 7, "note": None}),
    "pydantic model and dataclass": (Model(id=7, note="x"), Order(7, "x")),
    "an ordered dict": (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
    "bytes and bytearray": (b"ab", bytearray(b"ab")),
    "one local time and offset, two names of the zone": (
        datetime(2026, 1, 5, 10, tzinfo=BERLIN),
        datetime(2026, 1, 5, 10, tzinfo=timezone(timedelta(hours=1))),
    ),
    "a fold that changes nothing": (
        datetime(2026, 1, 5, 10, tzinfo=BERLIN),
        datetime(2026, 1, 5, 10, tzinfo=BERLIN, fold=1),
    ),
}

DIFFERENT: dict[str, tuple[Any, ...]] = {
    "missing, null, empty, false, zero": ({}, {"a": None}, {"a": ""}, {"a": False}, {"a": 0}),
    "True, 1, '1' and b'1'": (True, 1, "1", b"1", Decimal(1)),
    "False, 0, None, '' and []": (False, 0, None, "", [], {}, b""),
    "1.5 and '1.5' and Decimal": (1.5, "1.5", Decimal("1.5")),
    "0.1 and its neighbour": (0.1, 0.1 + 2**-56),
    "integers over 2**53": (2**53, 2**53 + 1, 2**53 + 2, -(2**53)),
    "an integer and the float beside it": (2**53 + 1, float(2**53)),
    "integers over 64 bits": (2**70, 2**70 + 1),
    "NaN, infinities and texts": (float("nan"), float("inf"), -float("inf"), "nan", "inf", None),
    "Decimals beyond 28 digits": (Decimal("1." + "0" * 40 + "1"), Decimal("1." + "0" * 40 + "2")),
    "Decimal infinities": (Decimal("Infinity"), Decimal("-Infinity"), Decimal("NaN")),
    "Decimal signs": (Decimal(1), Decimal(-1), Decimal(10)),
    "list order": ([1, 2], [2, 1]),
    "where one text ends": (["ab", "c"], ["a", "bc"], ["abc"], "abc"),
    "nesting": ([[1], 2], [[1, 2]], [1, 2], {"a": [1, 2]}),
    "bytes and text": (b"a", "a"),
    "NFC and NFD": ("\u00e9", "e\u0301"),
    "NUL and its lookalikes": ("a\0", "a", "a\\0", "\0a"),
    "lone surrogates": ("\ud800", "\udc00", "?", "\ufffd"),
    "naive, aware, text, date": (
        datetime(2026, 1, 5, 10),  # noqa: DTZ001 - naive is one of the cases
        datetime(2026, 1, 5, 10, tzinfo=UTC),
        "2026-01-05T10:00:00",
        date(2026, 1, 5),
    ),
    "one instant, two local times": (
        datetime(2026, 1, 5, 10, tzinfo=timezone(timedelta(hours=1))),
        datetime(2026, 1, 5, 9, tzinfo=UTC),
    ),
    "aware, folded": (
        datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
        datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
    ),
    "naive, folded": (
        datetime(2026, 10, 25, 2, 30),  # noqa: DTZ001
        datetime(2026, 10, 25, 2, 30, fold=1),  # noqa: DTZ001
    ),
    "microseconds": (
        datetime(2026, 1, 5, tzinfo=UTC),
        datetime(2026, 1, 5, microsecond=1, tzinfo=UTC),
    ),
    "times": (time(2, 30), time(2, 30, fold=1), time(2, 30, tzinfo=UTC), "02:30:00"),
    "durations": (timedelta(seconds=1), timedelta(microseconds=1), 1),
    "UUID and its text": (UUID(int=1), str(UUID(int=1)), UUID(int=1).bytes),
    "model fields": (Model(id=7), Model(id=8), Model(id=7, note="")),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_these_tell_a_provider_the_same_thing(pair: tuple[Any, Any]) -> None:
    first, second = pair
    assert request_fingerprint(first) == request_fingerprint(second)
    assert request_fingerprint({"in": [first]}) == request_fingerprint({"in": [second]})
    assert request_fingerprint([first]) != request_fingerprint([first, first])


@pytest.mark.parametrize("values", DIFFERENT.values(), ids=DIFFERENT)
def test_each_of_these_is_another_request(values: tuple[Any, ...]) -> None:
    assert len({request_fingerprint(value) for value in values}) == len(values)
    assert len({request_fingerprint({"in": [value]}) for value in values}) == len(values)


class Opaque:
    pass


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("request_", "path", "says"),
    [
        ({"a": [1, {"tags": {"x"}}]}, "request['a'][1]['tags']", "sorted"),
        ({"a": {1: "x"}}, "request['a'][1]", "only text can be a key"),
        (Order(7, note=Opaque()), "request.note", "no stable form"),  # type: ignore[arg-type]
        ([print], "request[0]", "code has no stable form"),
        ([np.int64(1)], "request[0]", ".item()"),
        ([np.zeros(2)], "request[0]", ".tolist()"),
        ((x for x in "a"), "request", "no stable form"),
        ({"z": 1j}, "request['z']", "complex"),
        (LOOP, "request", "nested too deep"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_stable_form_is_refused_with_its_path(
    request_: Any, path: str, says: str
) -> None:
    with pytest.raises(UnstorableValue) as refused:
        request_fingerprint(request_)
    assert refused.value.path == path
    assert says in str(refused.value)


def test_the_naive_fingerprint_refuses_or_confuses_what_ours_tells_apart() -> None:
    """json.dumps(sort_keys=True) is what one writes first."""

    def naive(value: Any) -> str:
        return json.dumps(value, sort_keys=True, default=str)

    assert naive({1: "a"}) == naive({"1": "a"})
    assert naive(UUID(int=1)) == naive(str(UUID(int=1)))
    assert naive(b"a") == naive("b'a'")
    assert naive(Decimal("1.0")) != naive(Decimal("1.00"))
    first, second = Opaque(), Opaque()
    assert naive(first) != naive(second), "an address in memory is part of its fingerprint"


def test_a_fingerprint_is_the_same_in_another_process_with_another_hash_seed() -> None:
    code = (
        "from durable_kit import request_fingerprint as f\n"
        "print(f({'b': [1, None, 'é', {'y': 2.5, 'x': b'1'}], 'a': True}))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    # The value is part of the promise: databases hold it. A change of rules needs a new version.
    assert seen == {GOLDEN}


# Written out by hand: each part with its kind and its length, keys in the order of their bytes.
CANONICAL = (
    b"m2:" + b"s1:a" + b"t;" + b"s1:b" + b"l4:" + b"i1;" + b"n;" + "s2:é".encode()
    + b"m2:" + b"s1:x" + b"b1:1" + b"s1:y" + b"r20:0x1.4000000000000p+1"
)  # fmt: skip
GOLDEN = f"1:{hashlib.sha256(CANONICAL).hexdigest()}"


def test_the_decimal_context_of_the_caller_changes_nothing() -> None:
    value = Decimal("12345678901234567890.123456789")
    with localcontext() as context:
        context.prec = 3
        low = request_fingerprint(value)
    assert low == request_fingerprint(value)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=12,
)


@given(JSON_VALUES, JSON_VALUES)
def test_requests_of_json_have_one_fingerprint_exactly_if_they_are_equal(
    first: Any, second: Any
) -> None:
    same = request_fingerprint(first) == request_fingerprint(second)
    assert same == (_told_apart(first) == _told_apart(second))


@given(st.dictionaries(st.text(), JSON_VALUES), st.randoms())
def test_the_order_of_keys_never_matters(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert request_fingerprint(dict(items)) == request_fingerprint(value)


def _told_apart(value: Any) -> Any:
    """Python's equality, except that True is not 1."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, list):
        return [_told_apart(item) for item in value]
    if isinstance(value, dict):
        return {key: _told_apart(item) for key, item in value.items()}
    return value
