"""The codec: what comes back is what was stored, or an error says where and what to do."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
import io
import ipaddress
import math
import pathlib
import pickle
import random
import re
import socket
import string
import struct
import subprocess
import sys
import threading
import types
import uuid
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Generic, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
import ormsgpack
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from durable_kit.errors import (
    BadInput,
    BrokenChain,
    DurableKitError,
    StorageFull,
    UnloadableValue,
    UnstorableValue,
)
from durable_kit.storage.codec import TAG, Adapter, Codec
from durable_kit.storage.same import same

# ------------------------------------------------------------------------- classes of a program


class Colour(enum.Enum):
    RED = "red"
    ALSO_RED = "red"  # noqa: PIE796, an alias
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Wrapped(enum.Enum):
    """An enum whose name and value say something else than its members."""

    A = 1

    @property
    def name(self) -> str:  # type: ignore[override]
        return "name"

    @property
    def value(self) -> str:
        return "value"


class Right(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Order:
    """A namespace: what is inside has a dotted qualname."""

    class State(enum.StrEnum):
        OPEN = "open"
        PAID = "paid"

    @dataclasses.dataclass
    class Line:
        sku: str
        count: int = 1

    class Place(NamedTuple):
        city: str
        zip_code: str = "?"


@dataclasses.dataclass
class Cart:
    lines: list[Any]
    total: int = dataclasses.field(init=False)
    note: str | None = None

    def __post_init__(self) -> None:
        self.total = 100 * len(self.lines)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: float
    tags: frozenset[str] = frozenset()


@dataclasses.dataclass(slots=True)
class Slotted:
    a: int
    b: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    name: str


@dataclasses.dataclass
class Node:
    child: Node | None = None


class WithExtras(Slotted):
    """A subclass of a slotted class has a __dict__ beside the slots."""


Point = namedtuple("Point", "x y", defaults=[0])


class Step(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(validate_assignment=False)
    name: str
    retries: int = 0
    state: Order.State = Order.State.OPEN
    _secret: str = pydantic.PrivateAttr(default="s")

    @cached_property
    def shout(self) -> str:
        return self.name.upper()


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int = 0


class Root(pydantic.RootModel[list[int]]):
    pass


class FrozenModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    when: dt.datetime


@pydantic.dataclasses.dataclass
class Checked:
    n: int = 0


T = TypeVar("T")


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


IntPage = Page[int]


class Plain:
    """A class that shows no fields; LangGraph's Send is one like it."""

    __slots__ = ("arg", "node")

    def __init__(self, node: str, arg: Any) -> None:
        self.node, self.arg = node, arg


class MyDict(dict):  # type: ignore[type-arg]
    pass


class MyDatetime(dt.datetime):
    pass


ALLOWED = [
    *(Colour, Level, Word, Wrapped, Right, Bits, Order.State, Order.Line, Order.Place),
    *(Cart, Frozen, Slotted, Key, Node, WithExtras, Point),
    *(Step, Open, Root, FrozenModel, Checked, IntPage, AIMessage, HumanMessage, ToolMessage),
]
ADAPTERS = [Adapter(Plain, lambda p: [p.node, p.arg], lambda state: Plain(*state))]
CODEC = Codec(allow=ALLOWED, adapters=ADAPTERS)

BERLIN = ZoneInfo("Europe/Berlin")
NAN_WITH_PAYLOAD = struct.unpack(">d", b"\x7f\xf8\0\0\0\0\0\x07")[0]


def round_trip(value: Any, codec: Codec = CODEC) -> Any:
    return codec.decode(codec.encode(value))


def repacked(data: bytes) -> bytes:
    """Unpacked and packed again by somebody who knows nothing of the codec's extensions."""
    raw = ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext)
    return ormsgpack.packb(raw)


# -------------------------------------------------------------------------------- what is exact

EXACT: dict[str, Any] = {
    "none": None,
    "bools": [True, False],
    "small ints": [0, 1, -1, 127, 128, -32, -33, 255, 256, 65535, 65536],
    "wide ints": [2**63 - 1, 2**63, 2**64 - 1, -(2**63)],
    "ints beyond 64 bits": [2**64, -(2**63) - 1, 10**500, -(10**500)],
    "floats": [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, NAN_WITH_PAYLOAD],
    "text": ["", "a", "\0", "ä€😀", "x" * 70_000],
    "lone surrogates": ["\ud800", "a\udfffb", {"\ud800": 1}, ["\ud83d", "\ude00"]],
    "bytes": [b"", b"\0\xff", b"\xc4" * 300, b"x" * 70_000],
    "bytearrays": [bytearray(b""), {"a": bytearray(b"\xc4x")}, (bytearray(b"y"), b"y")],
    "a bytearray alone": bytearray(b"abc"),
    "lists": [[], [[]], list(range(20)), [None] * 70_000],
    "tuples": [(), (1,), (1, (2, (3,))), [(1, 2)]],
    "dicts": [{}, {"b": 1, "a": {"c": []}}, {str(i): i for i in range(70_000)}],
    "dict keys": {1: "a", 2.5: "b", (1, (2,)): "c", None: "d", b"x": "e", frozenset([1]): "f"},
    "a key that is an enum": {Colour.RED: 1, Word.YES: 2, Level.LOW: 3},
    "a key that is True": {True: "a"},
    "a key that is 1.0": {1.0: "a"},
    "a key that is nan": {math.nan: 1},
    "keys that are objects": {Key("a"): 1, dt.date(2026, 1, 1): 2, uuid.UUID(int=3): 3},
    "sets": [set(), {1, "a", (1, 2), None}, frozenset(), {frozenset({frozenset()})}],
    "deques": [deque(), deque([1, 2], maxlen=2), deque([1], maxlen=5)],
    "ordered dicts": [OrderedDict(), OrderedDict([("b", 1), (2, "a")])],
    "default dicts": [defaultdict(list, {"a": [1]}), defaultdict(None, {1: 2}), defaultdict(int)],
    "counters": [Counter(), Counter({"a": 2, (1,): -1})],
    "ranges": [range(0), range(1, 10, 3), range(10**30)],
    "slices": [slice(None), slice(1, None, -1), slice("a", (1,), None)],
    "complex": [0j, complex(-0.0, math.nan), complex(1, -0.0)],
    "decimals": [Decimal(x) for x in "0 -0 1.10 1E+5 0E-10 NaN sNaN -sNaN12 Infinity".split()],
    "long decimals": [Decimal("0." + "1" * 5000), Decimal("1E-999999")],
    "fractions": [Fraction(1, 3), Fraction(-(10**40), 7)],
    "dates": [dt.date.min, dt.date.max, dt.date(2024, 2, 29)],
    "naive datetimes": [
        dt.datetime.fromisoformat(x) for x in ("0001-01-01", "2026-01-02T03:04:05.6")
    ],
    "aware datetimes": [
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
        dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(0), "Z")),
        dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=1, microseconds=1))),
        dt.datetime(2026, 1, 1, tzinfo=BERLIN),
    ],
    "times": [dt.time.min, dt.time(1, 2, 3, 4, fold=1), dt.time(1, tzinfo=dt.UTC)],
    "timedeltas": [dt.timedelta.min, dt.timedelta.max, dt.timedelta(microseconds=-1)],
    "zones": [dt.UTC, dt.timezone(-dt.timedelta(hours=3)), BERLIN],
    "uuids": [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1), uuid.uuid1(), uuid.uuid4()],
    "pure paths": [pathlib.PurePosixPath("/a/../b"), pathlib.PureWindowsPath(r"C:\a\b")],
    "local paths": [pathlib.Path(), pathlib.Path("a/\udcff")],
    "addresses": [
        ipaddress.ip_address("10.0.0.1"),
        ipaddress.ip_interface("10.0.0.1/24"),
        ipaddress.ip_network("10.0.0.0/8"),
        ipaddress.ip_address("fe80::1%eth0"),
        ipaddress.ip_interface("fe80::1%eth0/64"),
        ipaddress.ip_network("fe80::/10"),
    ],
    "patterns": [re.compile("a+(?i:b)", re.VERBOSE | re.ASCII), re.compile(rb"\x00", re.DOTALL)],
    "enums": [Colour.RED, Colour.ALSO_RED, Level.HIGH, Word.YES, Order.State.PAID, Wrapped.A],
    "flags": [Right.READ, Right.READ | Right.WRITE, Right(0), Bits.A | Bits.B, Bits(8)],
    "named tuples": [Point(1), Point((1,), [2]), Order.Place("Ulm"), [Point(Point(1), None)]],
    "dataclasses": [Cart(["a"]), Frozen(0.5, frozenset("ab")), Slotted(1, [2]), Order.Line("s")],
    "nested dataclasses": {"n": Node(Node(Node())), "k": {Key("a"): Key("b")}},
    "pydantic dataclass": Checked(3),
    "pydantic": [Step(name="a"), Step(name="b", retries=2, state=Order.State.PAID)],
    "pydantic extra": [Open(), Open(a=1, b={"c": (1,)}), Open(z=1)],
    "pydantic root": Root([1, 2]),
    "pydantic frozen": FrozenModel(when=dt.datetime(2026, 1, 1, tzinfo=BERLIN)),
    "pydantic generic": IntPage(items=[1]),
    "messages": [
        HumanMessage("hi", id="1"),
        AIMessage("", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "t"}]),
        ToolMessage("ok", tool_call_id="t", artifact={"a": (1,)}),
    ],
    "adapted": [Plain("node", {"x": (1, 2)}), Plain("n", Plain("m", None))],
}


@pytest.mark.parametrize("value", EXACT.values(), ids=EXACT)
def test_comes_back_equal_in_value_and_type(value: Any) -> None:
    data = CODEC.encode(value)

    assert same(value, CODEC.decode(data))
    assert CODEC.encode(CODEC.decode(data)) == data
    assert repacked(data) == data
    assert CODEC._writer.walk(value, 0) == data  # the slow way writes the same bytes


def test_same_tells_apart_what_equality_does_not() -> None:
    one_zone = dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    pairs: list[tuple[Any, Any]] = [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ((1, 0), Point(1)),
        ([b"x"], [bytearray(b"x")]),
        ({1: "a"}, {True: "a"}),
        ({1}, {True}),
        (one_zone, one_zone.replace(fold=1)),
        (deque([1]), deque([1], maxlen=1)),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
        (defaultdict(int), defaultdict(list)),
        (Decimal("1.0"), Decimal("1.00")),
        (range(0), range(1, 1)),
        (Colour.RED, "red"),
        (Word.YES, "yes"),
        (np.float64(1), 1.0),
        (np.zeros(2), np.zeros(2, dtype=">f8")),
        (Step(name="a", retries=0), Step(name="a")),
        (Slotted(1), WithExtras(1)),
    ]
    for a, b in pairs:
        assert not same(a, b)
        assert not same([a], [b])
        assert same(a, a)
    assert same({"a": 1, "b": math.nan}, {"b": math.nan, "a": 1})


# ------------------------------------------------------------------- the contract with the deltas


def test_a_list_is_the_concatenation_of_its_items() -> None:
    items = [{"a": 1}, (1, 2), "text", {1: 2}, AIMessage("x"), bytearray(b"b"), {3}, 2**70]
    whole = CODEC.encode(items)

    assert whole == b"\x98" + b"".join(map(CODEC.encode, items))
    longer = CODEC.encode([*items, "new"])
    assert longer == b"\x99" + whole[1:] + CODEC.encode("new")


def test_a_dict_of_text_is_a_map_in_its_own_order() -> None:
    value = {"b": (1,), "a": {2: 3}}

    parts = [CODEC.encode(part) for pair in value.items() for part in pair]
    assert CODEC.encode(value) == b"\x82" + b"".join(parts)
    assert CODEC.encode("ab") == b"\xa2ab"


@pytest.mark.parametrize("length", [0, 15, 16, 65535, 65536])
def test_headers_of_the_slow_way_are_the_native_ones(length: int) -> None:
    items = [None] * length
    assert CODEC.encode([*items, {1: 2}])[:-4] == ormsgpack.packb([*items, None])[:-1] + b""[
        :0
    ] or CODEC.encode([*items, {1: 2}]).startswith(ormsgpack.packb([*items, None])[:-1])
    pairs = {str(i): None for i in range(length)}
    native = ormsgpack.packb({**pairs, "z": None})
    assert CODEC.encode({**pairs, "z": {1: 2}}).startswith(native[:-1])


def test_plain_state_is_packed_by_native_code_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Codec()
    state = [{"role": "user", "content": "x" * 196, "n": i, "é": [b"\xc4", 0.1]} for i in range(50)]

    def never(*args: Any) -> Any:
        raise AssertionError("Python was asked")

    monkeypatch.setattr(codec._writer, "walk", never)
    monkeypatch.setattr(codec._writer, "_kind_of", never)
    assert codec.encode(state) == ormsgpack.packb(state)


def test_equal_values_have_equal_bytes_in_every_process() -> None:
    program = """
import datetime, hashlib
from durable_kit.storage.codec import Codec
value = {
    "set": {"a", "b", ("c", 1), frozenset({"d", "e"}), None, 3, datetime.date(2026, 1, 1)},
    "map": {("k", "l"): {"m", "n"}},
    "letters": set("abcdefghijklmnopqrstuvwxyz"),
}
print(hashlib.sha256(Codec().encode(value)).hexdigest())
"""
    digests = {run(program, PYTHONHASHSEED=seed) for seed in ("1", "2", "77")}
    assert len(digests) == 1


def run(program: str, *, path: pathlib.Path | None = None, **env: str) -> str:
    home = pathlib.Path(__file__).parent.parent
    paths = [str(home), *([str(path)] if path else [])]
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(paths), "PATH": "", **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


# ------------------------------------------------------------------------------------- refusals


def generator() -> Any:
    yield 1


async def coroutine() -> None: ...


@dataclasses.dataclass
class Error(Exception):
    code: int = 1


@dataclasses.dataclass
class Batch(deque[int]):
    name: str = ""


def local_class() -> Any:
    @dataclasses.dataclass
    class Local:
        x: int = 1

    return Local


class V1(pydantic.v1.BaseModel if sys.version_info < (3, 14) else object):  # type: ignore[misc]
    x: int = 1


REFUSED: dict[str, tuple[Any, str]] = {
    "function": (lambda: None, "code is not state"),
    "builtin": (len, "code is not state"),
    "method": ([].append, "code is not state"),
    "partial": (partial(len), "partial is not a kind of object"),
    "class": (Cart, "a class is code"),
    "module": (math, "a module is code"),
    "generator": (generator(), "only once"),
    "iterator": (iter([1]), "only once"),
    "file": (io.StringIO(), "open file"),
    "lock": (threading.Lock(), "this process"),
    "event": (threading.Event(), "this process"),
    "queue": (asyncio.Queue(), "this process"),
    "exception": (ValueError("x"), "exception holds frames"),
    "exception dataclass": (Error(), "built on Exception"),
    "deque dataclass": (Batch(), "built on deque"),
    "memoryview": (memoryview(b"x"), "window on memory"),
    "plain object": (UserDict(), "not a kind of object"),
    "object()": (object(), "not a kind of object"),
    "chain map": (ChainMap(), "not a kind of object"),
    "dict subclass": (MyDict(a=1), "subclass of a built-in"),
    "str subclass": (type("S", (str,), {})("x"), "subclass of a built-in"),
    "int subclass": (type("I", (int,), {})(1), "subclass of a built-in"),
    "datetime subclass": (MyDatetime(2026, 1, 1), "subclass of a date"),
    "mapping proxy": (types.MappingProxyType({}), "not a kind of object"),
    "factory that is code": (defaultdict(lambda: 1), "default_factory"),
    "counter with attributes": (type_with_attribute := Counter("a"), "attributes of its own"),
    "pattern that prints": (re.compile("a", re.DEBUG), "re.DEBUG"),
    "foreign zone": (dt.datetime(2026, 1, 1, tzinfo=type("Z", (dt.tzinfo,), {})()), "ZoneInfo"),
    "secret": (pydantic.SecretStr("x"), "a secret"),
    "local class": (local_class()(), "inside a function"),
    "object array": (np.array([object()]), "memory addresses"),
    "longdouble": (np.longdouble(1), "longdouble differs"),
    "masked array": (np.ma.array([1]), "plain arrays and scalars"),
    "enum not allowed": (enum.Enum("Gone", "A").A, "does not lead to its class"),
}
type_with_attribute.note = "x"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("value", "reason"), REFUSED.values(), ids=REFUSED)
def test_refuses_with_the_key_path_and_a_way_out(value: Any, reason: str) -> None:
    state = {"messages": [1, (Frozen(0.0), {"when": Slotted(1, [value])})]}

    with pytest.raises(UnstorableValue, match=re.escape(reason)) as caught:
        CODEC.encode(state)

    error = caught.value
    assert error.path.startswith("state['messages'][1][1]['when'].b[0]")
    assert error.path in str(error)
    assert len(error.remedy) > 10
    assert error.remedy in str(error)
    with pytest.raises(UnstorableValue, match=r"^value"):
        CODEC.encode(value, path="value")


def test_pandas_objects_are_refused_with_a_remedy() -> None:
    pandas = pytest.importorskip("pandas")
    for value in (pandas.DataFrame({"a": [1]}), pandas.Timestamp(0), pandas.NaT):
        with pytest.raises(UnstorableValue, match="pandas") as caught:
            CODEC.encode([value])
        assert "to_pydatetime" in caught.value.remedy


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="pydantic.v1 ends with Python 3.13")
def test_pydantic_v1_is_refused_with_a_remedy() -> None:
    with pytest.raises(UnstorableValue, match="version 1") as caught:
        CODEC.encode(V1())
    assert "version 2" in caught.value.remedy


def test_attrs_is_refused_with_a_remedy() -> None:
    attrs = pytest.importorskip("attrs")
    cls = attrs.make_class("Attrs", ["x"])
    with pytest.raises(UnstorableValue, match="attrs") as caught:
        CODEC.encode(cls(1))
    assert "Adapter(Attrs" in caught.value.remedy


def test_a_class_off_the_allow_list_is_refused_and_the_remedy_works() -> None:
    with pytest.raises(UnstorableValue, match="allow-list") as caught:
        Codec().encode({"order": Order.Line("s")})
    assert "DeltaSaver(..., serde=Codec(allow=[Order.Line]))" in caught.value.remedy
    assert caught.value.path == "state['order']"

    assert same(Order.Line("s"), round_trip(Order.Line("s"), Codec(allow=[Order.Line])))
    by_name = Codec(allow=[(Order.Line.__module__, "Order.Line")])
    assert same(Order.Line("s"), round_trip(Order.Line("s"), by_name))
    assert same(Order.Line("s"), round_trip(Order.Line("s"), Codec().allowing([Order.Line])))


def test_refused_dict_keys_and_set_members_have_a_path() -> None:
    marker = object()
    for value, path in [
        ({"a": {marker: 1}}, "state['a'] key <object object"),
        ({"a": {(1, marker): 1}}, "state['a'] key (1, <object object"),
        ([{1, marker}], "state[0]{<object object"),
        (OrderedDict(a=marker), "state['a']"),
        (Step.model_construct(name=marker), "state.name"),
        (Open(z=marker), "state.z"),
        (Point(1, marker), "state.y"),
        (Plain("n", marker), "state[1]"),
    ]:
        with pytest.raises(UnstorableValue) as caught:
            CODEC.encode(value)
        assert caught.value.path.startswith(path)


def test_what_contains_itself_is_refused_with_its_path() -> None:
    loop: list[Any] = [1]
    loop.append({"back": loop})
    node = Node()
    node.child = Node(node)
    for value, path in [(loop, "state[1]['back']"), (node, "state.child.child")]:
        with pytest.raises(UnstorableValue, match="contains itself") as caught:
            CODEC.encode(value)
        assert caught.value.path == path


def nested(depth: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


WRAPS: dict[str, Any] = {
    "list": lambda x: [x],
    "dict": lambda x: {"a": x},
    "dict with odd keys": lambda x: {1: x},
    "tuple": lambda x: (x,),
    "set": lambda x: frozenset([x]),
    "dataclass": Node,
    "pydantic": lambda x: Open(a=1, b=x),
    "mixed": lambda x: [(x, {"a": [x]})] if x == 1 else [({"a": [x]},)],
    "adapter": lambda x: Plain("n", x),
    "bytearray beside": lambda x: [bytearray(b"x"), x],
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_what_is_accepted_is_loaded_and_what_is_too_deep_is_refused(wrap: Any) -> None:
    """Around the limit, and far beyond it: never a RecursionError, never a crash."""
    deepest = 0
    for depth in [1, 3, 4, 5, 6, 20, 45, 62, 84, 124, 127, 200, 249, 254, 255, 256, 400, 20_000]:
        value = nested(depth, wrap)
        try:
            data = CODEC.encode(value)
        except UnstorableValue as error:
            assert "too deep" in str(error)  # noqa: PT017, only one of two ways to end
        else:
            deepest = depth
            assert CODEC.encode(CODEC.decode(data)) == data
            assert repacked(data) == data
    assert 40 < deepest < 300


def test_deep_values_fit_a_small_native_stack() -> None:
    """The worst mix of lists and objects, in a thread with the stack that Windows gives."""
    program = """
import threading
from durable_kit.storage.codec import Codec
from durable_kit.errors import UnstorableValue
codec, accepted = Codec(), 0
def deep():
    global accepted
    for lists in (1, 20, 60, 240):
        value = 1
        for objects in range(40):
            for _ in range(lists):
                value = [value]
            value = (value,)
            if objects not in (1, 2, 3, 4, 5, 9, 39):
                continue
            try:
                codec.decode(codec.encode(value))
                accepted += 1
            except UnstorableValue:
                pass
threading.stack_size(2 * 1024 * 1024)
thread = threading.Thread(target=deep)
thread.start()
thread.join()
print(accepted > 12)
"""
    assert run(program) == "True"


def test_ctrl_c_inside_native_code_is_not_swallowed() -> None:
    class Interrupting:
        def __init__(self, error: type[BaseException]) -> None:
            self.error = error

    def interrupt(value: Any) -> Any:
        raise KeyboardInterrupt

    module = sys.modules[__name__]
    module.Interrupting = Interrupting  # type: ignore[attr-defined]
    Interrupting.__qualname__ = "Interrupting"
    codec = Codec(adapters=[Adapter(Interrupting, interrupt, interrupt)])
    with pytest.raises(KeyboardInterrupt):
        codec.encode([Interrupting(ValueError)])
    writing = Codec(adapters=[Adapter(Interrupting, lambda value: 1, interrupt)])
    data = writing.encode([Interrupting(ValueError)])
    with pytest.raises(KeyboardInterrupt):
        writing.decode(data)


def test_an_adapter_that_fails_is_named() -> None:
    def fail(value: Any) -> Any:
        raise RuntimeError("no socket")

    with pytest.raises(UnstorableValue, match="RuntimeError: no socket"):
        Codec(adapters=[Adapter(Plain, fail, fail)]).encode([Plain("n", 1)])
    data = Codec(adapters=ADAPTERS).encode(Plain("n", 1))
    with pytest.raises(UnloadableValue, match="no socket") as caught:
        Codec(adapters=[Adapter(Plain, fail, fail)]).decode(data)
    assert caught.value.class_name == f"{__name__}.Plain"
    wrong = Codec(adapters=[Adapter(Plain, fail, lambda state: state)])
    with pytest.raises(UnloadableValue, match="returned a list"):
        wrong.decode(data)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(BadInput, match="pairs of texts"):
        Codec(allow=["Order"])  # type: ignore[list-item]
    with pytest.raises(BadInput, match="stored exactly as it is"):
        Codec(adapters=[Adapter(dict, list, dict)])
    with pytest.raises(BadInput, match="bytes"):
        CODEC.decode("text")  # type: ignore[arg-type]


# ---------------------------------------------------------------- objects are not made anew


def test_fields_come_back_as_they_are_and_not_as_init_would_make_them() -> None:
    cart = Cart(["a"])
    cart.total = 0  # __post_init__ would say 100
    cart.colour = "red"  # type: ignore[attr-defined]
    loaded = round_trip(cart)
    assert vars(loaded) == {"lines": ["a"], "total": 0, "note": None, "colour": "red"}

    bare = Cart.__new__(Cart)  # neither field is set
    assert vars(round_trip(bare)) == {}

    slotted = WithExtras(1)
    slotted.extra = 2  # type: ignore[attr-defined]
    del slotted.b
    loaded = round_trip(slotted)
    assert (loaded.a, loaded.extra, hasattr(loaded, "b")) == (1, 2, False)


def test_pydantic_models_come_back_without_validation_or_coercion() -> None:
    step = Step.model_construct(retries=2.5)
    step._secret = "changed"
    loaded = round_trip(step)
    assert same(step, loaded)
    assert loaded.retries == 2.5
    assert not hasattr(loaded, "name")
    assert loaded._secret == "changed"

    step = Step(name="a")
    assert step.shout == "A"  # now cached in its __dict__
    assert round_trip(step).model_dump(exclude_unset=True) == {"name": "a"}
    assert same(step, round_trip(step))

    message = AIMessage("x")
    message.content = ["changed"]
    assert same(message, round_trip(message))


def test_models_of_several_shapes_in_one_list_do_not_mix() -> None:
    steps = [
        *(Step(name="a"), Step(name="b", retries=1), Step(name="c")),
        *(Open(a=1), Open(), Open(b=1), Open(c=1, a=2), Open.model_construct(q=1)),
    ]
    reordered = Step(name="x")
    name = reordered.__dict__.pop("name")
    reordered.__dict__["name"] = name  # same fields, another order, same given ones
    steps.insert(1, reordered)

    loaded = round_trip(steps)
    assert same(steps, loaded)
    assert [*loaded[1].__dict__] == ["retries", "state", "name"]
    loaded[0].__pydantic_fields_set__.add("retries")
    assert round_trip(steps)[0].model_fields_set == {"name"}


def test_enum_members_come_back_as_the_members_they_are() -> None:
    assert round_trip(Colour.ALSO_RED) is Colour.RED
    assert type(round_trip(Level.LOW)) is Level
    ghost = object.__new__(Colour)
    ghost._name_, ghost._value_ = "GHOST", 1
    with pytest.raises(UnstorableValue, match="not one of the members"):
        CODEC.encode(ghost)


def test_an_old_object_of_a_class_that_was_defined_anew_is_refused() -> None:
    """Run a notebook cell twice, and objects from the first run have lost their class."""
    module = types.ModuleType("cell")
    sys.modules["cell"] = module
    source = "import dataclasses\n@dataclasses.dataclass\nclass Job:\n    n: int = 1\n"
    try:
        exec(source, vars(module))
        first = module.Job()
        codec = Codec(allow=[("cell", "Job")])
        data = codec.encode(first)

        exec(source, vars(module))
        with pytest.raises(UnstorableValue, match="does not lead to its class"):
            codec.encode(first)
        assert type(codec.decode(data)) is module.Job
        assert codec.encode(module.Job()) == data
    finally:
        del sys.modules["cell"]


# ------------------------------------------------------------------------ classes that changed


def program_module(path: pathlib.Path, name: str, body: str) -> None:
    header = "import dataclasses, enum, typing, pydantic\n"
    (path / f"{name}.py").write_text(header + body)


def stored(path: pathlib.Path, module: str, expression: str) -> str:
    return run(
        f"import {module}; from {module} import *; from durable_kit.storage.codec import Codec\n"
        f"value = {expression}\n"
        f"print(Codec(allow=[type(value)]).encode(value).hex())",
        path=path,
    )


def loaded(path: pathlib.Path, module: str, name: str, data: str, more: str = "") -> str:
    return run(
        "from durable_kit.storage.codec import Codec\n"
        "from durable_kit.errors import UnloadableValue\n"
        f"codec = Codec(allow=[({module!r}, {name!r})] {more})\n"
        "try:\n"
        f"    print(repr(codec.decode(bytes.fromhex({data!r}))))\n"
        "except UnloadableValue as error:\n"
        "    print('UNLOADABLE', error.class_name, error)",
        path=path,
    )


CHANGES: dict[str, tuple[str, str, str, str]] = {
    "field with a default": (
        "@dataclasses.dataclass\nclass C:\n    a: int = 1",
        "C(7)",
        "@dataclasses.dataclass\nclass C:\n    a: int\n    b: int = 3",
        "C(a=7, b=3)",
    ),
    "field without a default": (
        "@dataclasses.dataclass\nclass C:\n    a: int = 1",
        "C(7)",
        "@dataclasses.dataclass\nclass C:\n    b: int\n    a: int = 1",
        "UNLOADABLE changing.C changing.C cannot be loaded: it has a field 'b' without a default",
    ),
    "model field with a default": (
        "class C(pydantic.BaseModel):\n    a: int = 1",
        "C(a=7)",
        "class C(pydantic.BaseModel):\n    a: int = 1\n    b: list[int] = [1]",
        "C(a=7, b=[1])",
    ),
    "model field without a default": (
        "class C(pydantic.BaseModel):\n    a: int = 1",
        "C(a=7)",
        "class C(pydantic.BaseModel):\n    b: int\n    a: int = 1",
        "UNLOADABLE changing.C changing.C cannot be loaded: it has a field 'b' without a default",
    ),
    "named tuple with one more": (
        "class C(typing.NamedTuple):\n    a: int",
        "C(7)",
        "class C(typing.NamedTuple):\n    a: int\n    b: int = 2",
        "C(a=7, b=2)",
    ),
    "named tuple with one less": (
        "class C(typing.NamedTuple):\n    a: int\n    b: int = 2",
        "C(7)",
        "class C(typing.NamedTuple):\n    a: int",
        "UNLOADABLE changing.C changing.C cannot be loaded: it has no field 'b' any more",
    ),
    "enum member gone": (
        "class C(enum.Enum):\n    A = 1\n    B = 2",
        "C.B",
        "class C(enum.Enum):\n    A = 1",
        "UNLOADABLE changing.C changing.C cannot be loaded: it has no member 'B' any more",
    ),
    "enum reordered": (
        "class C(enum.Enum):\n    A = 1\n    B = 2",
        "C.B",
        "class C(enum.Enum):\n    B = 1\n    A = 2",
        "<C.B: 1>",
    ),
    "flag bits gone": (
        "class C(enum.Flag):\n    A = 1\n    B = 2",
        "C.A | C.B",
        "class C(enum.Flag, boundary=enum.CONFORM):\n    A = 1",
        "UNLOADABLE changing.C changing.C cannot be loaded: it no longer keeps all bits",
    ),
    "another kind of class": (
        "@dataclasses.dataclass\nclass C:\n    a: int = 1",
        "C(7)",
        "class C(pydantic.BaseModel):\n    a: int = 1",
        "UNLOADABLE changing.C changing.C cannot be loaded: it was stored as a dataclass and is",
    ),
    "no class any more": (
        "@dataclasses.dataclass\nclass C:\n    a: int = 1",
        "C(7)",
        "C = print",
        "UNLOADABLE changing.C changing.C cannot be loaded: changing has no class of this name",
    ),
    "module that fails": (
        "@dataclasses.dataclass\nclass C:\n    a: int = 1",
        "C(7)",
        "raise RuntimeError('half deployed')",
        "UNLOADABLE changing.C changing.C cannot be loaded: its module does not import (Runtime",
    ),
}


@pytest.mark.parametrize(("before", "value", "after", "expected"), CHANGES.values(), ids=CHANGES)
def test_a_class_that_changed_between_processes(
    tmp_path: pathlib.Path, before: str, value: str, after: str, expected: str
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    program_module(old, "changing", before)
    program_module(new, "changing", after)

    data = stored(old, "changing", value)
    assert loaded(new, "changing", "C", data).startswith(expected)


def test_a_class_that_moved_is_found_by_its_alias(tmp_path: pathlib.Path) -> None:
    """K04: the old name stays readable; what is written names the new place."""
    program_module(tmp_path, "old_place", "@dataclasses.dataclass\nclass Old:\n    a: int = 1")
    data = stored(tmp_path, "old_place", "Old(7)")
    (tmp_path / "old_place.py").unlink()
    program_module(tmp_path, "new_place", "@dataclasses.dataclass\nclass New:\n    a: int = 1")

    gone = loaded(tmp_path, "old_place", "Old", data)
    assert "UNLOADABLE old_place.Old" in gone
    assert "Codec(aliases={('old_place', 'Old'): NewClass})" in gone

    more = ", aliases={('old_place', 'Old'): __import__('new_place').New}"
    assert loaded(tmp_path, "new_place", "New", data, more) == "New(a=7)"


# ---------------------------------------------------------------------------- cases by name


def test_d01_an_enum_inside_a_class_is_no_none_in_a_new_process() -> None:
    value = {
        "model": Step(name="a", state=Order.State.PAID),
        "inner": [Order.State.OPEN, Order.Line("s"), Order.Place("Ulm")],
    }
    assert same(value, round_trip(value))
    reference = CODEC.encode(Order.State.PAID)
    assert b":Order.State" in reference


def test_d03_sets_of_tuples_and_tuple_keys_come_back() -> None:
    value = [
        {(1, 2)},
        frozenset({frozenset({1}), frozenset({frozenset()})}),
        {(1, (2, 3)): "x"},
        [(1, [(2,)])],
        {"deep": ({(1, "a"): {(2,)}},)},
    ]
    assert same(value, round_trip(value))


def test_d04_a_class_that_is_gone_raises_with_its_name_and_is_never_none(
    tmp_path: pathlib.Path,
) -> None:
    program_module(tmp_path, "shop", "@dataclasses.dataclass\nclass Order:\n    total: int = 700")
    data = stored(tmp_path, "shop", "Order()")
    (tmp_path / "shop.py").unlink()

    answer = loaded(tmp_path, "shop", "Order", data)

    assert answer.startswith("UNLOADABLE shop.Order shop.Order cannot be loaded")
    assert "No module named 'shop'" in answer


def test_d07_zone_and_fold_survive_both_changes_of_the_clock() -> None:
    for month, day, hour in [(3, 29, 2), (10, 25, 2)]:
        for fold in (0, 1):
            when = dt.datetime(2026, month, day, hour, 30, fold=fold, tzinfo=BERLIN)
            loaded = round_trip(when)
            assert same(when, loaded)
            assert loaded.tzinfo is BERLIN
            assert loaded.utcoffset() == when.utcoffset()
            tomorrow = dt.timedelta(days=1)
            assert (loaded + tomorrow).isoformat() == (when + tomorrow).isoformat()
            assert same(when.timetz(), round_trip(when.timetz()))
    first, second = (dt.datetime(2026, 10, 25, 2, 30, fold=f, tzinfo=BERLIN) for f in (0, 1))
    assert CODEC.encode(first) != CODEC.encode(second)


ARRAYS: dict[str, Any] = {
    "bool": np.array([True, False]),
    "int8": np.array([-1, 2], dtype="i1"),
    "uint64": np.array([2**64 - 1], dtype="u8"),
    "float16": np.array([1.5, np.nan, -0.0], dtype="f2"),
    "complex": np.array([1 + 2j]),
    "datetime64": np.array(["2026-01-01", "NaT"], dtype="M8[D]"),
    "datetime64 of 25 s": np.array([1, 2], dtype="M8[25s]"),
    "timedelta64": np.array([1, 2], dtype="m8[ns]"),
    "bytes": np.array([b"ab", b"c\0"], dtype="S3"),
    "text": np.array(["ä", "bcd"]),
    "empty text": np.zeros(3, dtype="U0"),
    "structured": np.array([(1, 2.0, "a")], dtype=[("a", "i4"), ("b", "f8"), ("c", "U2")]),
    "structured in structured": np.zeros(2, dtype=[("a", [("b", "i1"), ("c", "f8", (2, 2))])]),
    "structured with gaps": np.zeros(
        2, dtype={"names": ["a", "b"], "formats": ["i1", "i4"], "offsets": [0, 8], "itemsize": 16}
    ),
    "void": np.zeros(2, dtype="V3"),
    "0-d": np.array(3.5),
    "empty": np.empty((0, 3)),
    "Fortran order": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "transposed": np.arange(24).reshape(2, 3, 4).T,
    "gaps": np.arange(24).reshape(4, 6)[::2, ::3],
    "backwards": np.arange(5)[::-1],
    "broadcast": np.broadcast_to(np.arange(3), (2, 3)),
    "big-endian": np.arange(3, dtype=">i4"),
    "matrix of C order": np.arange(6.0).reshape(2, 3),
}
SCALARS: dict[str, Any] = {
    "from an array": np.arange(3)[0],
    "mean": np.arange(3).mean(),
    "bool": np.bool_(True),
    "float16": np.float16(-0.0),
    "float64 nan": np.float64("nan"),
    "uint8": np.uint8(255),
    "complex64": np.complex64(1j),
    "str": np.str_("a\0b\0"),
    "bytes": np.bytes_(b"a\0"),
    "datetime64": np.datetime64("2026-01-01T00:00", "25m"),
    "NaT": np.timedelta64("NaT"),
    "void": ARRAYS["structured"][0],
    "raw void": np.void(b"abc"),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_d08_arrays_come_back_with_dtype_shape_order_and_writability(array: Any) -> None:
    for writable in {True, array.flags.writeable}:
        original = array.copy("K") if writable and not array.flags.writeable else array
        loaded = round_trip({"a": [original]})["a"][0]
        assert same(original, loaded)
        assert loaded.dtype.str == original.dtype.str
        assert loaded.flags.writeable == original.flags.writeable
        if loaded.size and loaded.flags.writeable:
            loaded.flat[0] = loaded.flat[-1]  # into memory of its own
    frozen = array.copy()
    frozen.flags.writeable = False
    assert not round_trip(frozen).flags.writeable


@pytest.mark.parametrize("scalar", SCALARS.values(), ids=SCALARS)
def test_d08_numpy_scalars_keep_their_type(scalar: Any) -> None:
    loaded = round_trip([scalar])[0]
    assert same(scalar, loaded)
    assert loaded.dtype == scalar.dtype
    assert CODEC.encode(loaded) == CODEC.encode(scalar)


def test_d08_object_arrays_are_never_memory() -> None:
    for dtype in ("O", [("a", "O")]):
        with pytest.raises(UnstorableValue, match="memory addresses"):
            CODEC.encode(np.zeros(2, dtype=dtype))
    planted = CODEC.encode(np.zeros(1, dtype="u8")).replace(b"<u8", b"|O8")
    with pytest.raises(UnloadableValue, match="objects"):
        CODEC.decode(planted)


def test_d08_equal_structured_arrays_have_equal_bytes_between_their_fields() -> None:
    dtype = np.dtype({"names": ["a"], "formats": ["i1"], "offsets": [4], "itemsize": 8})
    one = np.frombuffer(b"\x01" * 8, dtype)
    two = np.frombuffer(b"\x02\x02\x02\x02\x01\x02\x02\x02", dtype)
    assert CODEC.encode(one) == CODEC.encode(two)


def test_d16_a_planted_class_is_never_imported(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sentinel.py").write_text(
        "import pathlib, dataclasses\n"
        "pathlib.Path(__file__).with_name('imported').touch()\n"
        "@dataclasses.dataclass\nclass Evil:\n    a: int = 1\n"
    )
    planted = [
        ormsgpack.packb([ormsgpack.Ext(tag, ormsgpack.packb([name, {"a": 1}]))])
        for tag in range(64, 70)
        for name in ("sentinel:Evil", "sentinel:", "os:system", ":x", "nothing", None)
    ]
    program = f"""
import sys
from durable_kit.storage.codec import Codec
from durable_kit.errors import UnloadableValue
unloadable = 0
for data in {planted}:
    try:
        Codec(allow=[("another", "Class")]).decode(data)
    except UnloadableValue:
        unloadable += 1
print(unloadable, "sentinel" in sys.modules)
"""
    assert run(program, path=tmp_path) == "36 False"
    assert not (tmp_path / "imported").exists()
    run("import sentinel", path=tmp_path)
    assert (tmp_path / "imported").exists()  # it would have shown


def test_d16_an_allowed_name_that_is_no_class_of_its_kind_is_not_called() -> None:
    codec = Codec(allow=[("os", "system"), ("builtins", "eval"), ("subprocess", "Popen")])
    for name in ("os:system", "builtins:eval", "subprocess:Popen"):
        for tag in range(64, 70):
            data = ormsgpack.packb(ormsgpack.Ext(tag, ormsgpack.packb([name, "1"])))
            with pytest.raises(UnloadableValue, match=name.replace(":", ".")):
                codec.decode(data)


def test_d16_pickles_are_not_read() -> None:
    with pytest.raises(UnloadableValue):
        CODEC.decode(pickle.dumps({"a": 1}))


# ---------------------------------------------------------------------------- damaged bytes


def damaged(data: bytes, chance: random.Random) -> bytes:
    bad = bytearray(data)
    match chance.randrange(4):
        case 0:
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        case 1:
            del bad[chance.randrange(len(bad)) :]
        case 2:
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        case _:
            bad += chance.randbytes(3)
    return bytes(bad)


@pytest.mark.filterwarnings("ignore")
def test_damaged_bytes_give_a_value_or_unloadable_value() -> None:
    chance = random.Random(7)
    originals = [CODEC.encode(value) for name, value in EXACT.items() if name not in LONG]
    originals += [CODEC.encode(value) for value in (*ARRAYS.values(), *SCALARS.values())]
    originals.append(CODEC.encode(nested(20, lambda x: Node([(x,)]))))
    refused = 0
    for data in originals:
        for _ in range(80):
            try:
                value = CODEC.decode(damaged(data, chance))
            except UnloadableValue:
                refused += 1
            else:
                assert value is not None or data == b"\xc0" or len(data) < 3
    assert refused > 1000


LONG = {"text", "bytes", "lists", "dicts", "long decimals", "ints beyond 64 bits"}


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_unloadable_value(data: bytes) -> None:
    try:
        CODEC.decode(data)
    except UnloadableValue as error:
        assert error.reason  # noqa: PT017, both outcomes are right


@pytest.mark.parametrize("data", [b"", b"\xc0\xc0", b"\x91", b"\x93\x01\x02", b"\xc1"])
def test_too_few_or_too_many_bytes_are_noticed(data: bytes) -> None:
    with pytest.raises(UnloadableValue):
        CODEC.decode(data)


def test_a_shorter_list_is_noticed() -> None:
    data = bytearray(CODEC.encode([1, 2, 3]))
    data[0] = 0x92
    with pytest.raises(UnloadableValue, match="one whole value"):
        CODEC.decode(bytes(data))


def test_bytes_made_to_be_deep_end_in_an_error() -> None:
    data = b"\xc0"
    for _ in range(2000):
        data = ormsgpack.packb(ormsgpack.Ext(5, b"\x91" + data))
    for deep in (data, b"\x91" * 100_000 + b"\xc0"):
        with pytest.raises(UnloadableValue):
            CODEC.decode(deep)


# ------------------------------------------------------------------------------ hypothesis

everything = st.characters(exclude_categories=())
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**62, max_value=2**66),
    st.floats(),
    st.text(everything, max_size=8),
    st.binary(max_size=8),
    st.complex_numbers(),
    st.decimals(),
    st.fractions(),
    st.dates(),
    st.datetimes(timezones=st.none() | st.timezones(), allow_imaginary=True),
    st.times(),
    st.timedeltas(),
    st.uuids(),
    st.ip_addresses(),
    st.sampled_from([*Colour, *Level, *Word, *Order.State]),
)
hashable = st.recursive(
    scalars.filter(lambda value: not (isinstance(value, Decimal) and value.is_snan())),
    lambda inner: st.one_of(
        st.tuples(inner, inner),
        st.frozensets(inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Key, inner),
    ),
    max_leaves=4,
)
values = st.recursive(
    scalars | st.builds(bytearray, st.binary(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=4),
        st.dictionaries(hashable, inner, max_size=3),
        st.dictionaries(st.text(max_size=5), inner, max_size=3).map(OrderedDict),
        st.sets(hashable, max_size=4),
        st.lists(inner, max_size=3).map(lambda items: deque(items, 5)),
        st.builds(Slotted, inner, st.lists(inner, max_size=2)),
        st.builds(lambda a, b: Open(a=1, b=a, c=b), inner, inner),
        st.builds(Plain, st.text(max_size=3), inner),
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(values)
def test_any_storable_value_comes_back(value: Any) -> None:
    data = CODEC.encode(value)
    assert same(value, CODEC.decode(data))
    assert repacked(data) == data
    assert CODEC._writer.walk(value, 0) == data
    assert CODEC.encode([value, value]) == b"\x92" + data + data


# ------------------------------------------------------------------------- serde and threads


def test_has_the_shape_of_a_langgraph_serializer() -> None:
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    assert isinstance(CODEC, SerializerProtocol)
    tag, data = CODEC.dumps_typed({"a": (1,)})
    assert (tag, data) == (TAG, CODEC.encode({"a": (1,)}))
    assert CODEC.loads_typed((tag, data)) == {"a": (1,)}
    with pytest.raises(UnloadableValue, match="msgpack"):
        CODEC.loads_typed(("msgpack", data))

    encrypted = EncryptedSerializer.from_pycryptodome_aes(CODEC, key=b"k" * 16)
    assert same({"a": {(1,)}}, encrypted.loads_typed(encrypted.dumps_typed({"a": {(1,)}})))


def test_one_codec_serves_many_threads() -> None:
    messages = [AIMessage("x" * n, id=str(n)) for n in range(50)]
    value = [Step(name="a"), (1, {2: messages}), {3, "b"}, Cart([1])]
    expected = CODEC.encode(value)
    codec = Codec(allow=ALLOWED)
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(60):
            data = codec.encode(value)
            if data != expected or not same(value, codec.decode(data)):
                wrong.append(data)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_importing_the_codec_needs_neither_langgraph_nor_numpy_nor_pydantic() -> None:
    program = """
import sys
from durable_kit.storage.codec import Codec
assert Codec().decode(Codec().encode({"a": {1}})) == {"a": {1}}
print([name for name in ("langgraph", "numpy", "pydantic") if name in sys.modules])
"""
    assert run(program) == "[]"


def test_errors_survive_pickling_with_their_facts() -> None:
    errors: list[DurableKitError] = [
        UnstorableValue(path="state['a']", type_name="T", reason="r", remedy="m."),
        UnloadableValue(class_name="m.C", reason="r", remedy="m.").at("thread t-1"),
        BrokenChain(
            thread_id="t",
            namespace="",
            checkpoint_id=None,
            sequence=3,
            found="a gap",
            remedy="Recover it.",
        ),
        StorageFull("no room"),
    ]
    for error in errors:
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error)
        assert vars(copy) == vars(error)
    assert str(errors[1]).startswith("thread t-1: m.C cannot be loaded: r.")
    for fact in ("'t'", "sequence 3", "a gap", "Recover it."):
        assert fact in str(errors[2])


def test_a_socket_is_refused_and_left_open() -> None:
    with socket.socket() as connection:
        with pytest.raises(UnstorableValue, match="this process"):
            CODEC.encode({"c": connection})
        assert connection.fileno() >= 0


def test_random_chat_histories_grow_by_their_new_messages() -> None:
    chance = random.Random(3)
    history: list[Any] = []
    before = CODEC.encode(history)
    for turn in range(40):
        words = "".join(chance.choices(string.printable, k=chance.randrange(400)))
        history.append(AIMessage(words, id=str(turn)) if turn % 2 else {"role": "u", "text": words})
        after = CODEC.encode(history)
        header = 1 if turn < 15 else 3
        old = 1 if turn < 16 else 3
        assert after[header:].startswith(before[old:])
        before = after
