"""A class moves to another module while old and new code run beside each other."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from durable_kit import BadInput, Codec, Database, DeltaSaver, UnloadableValue
from tests.versions.flows import thread

OLD, NEW = ("shop_old_models", "Order"), ("shop_new_models", "Order")


@pytest.fixture
def module() -> Iterator[Callable[[str], type]]:
    """Makes a module with a class `Order`, as a deploy does; they are gone after the test."""

    def make(name: str) -> type:
        made = types.ModuleType(name)
        sys.modules[name] = made
        cls = dataclass(type("Order", (), {"__annotations__": {"id": str}, "__module__": name}))
        made.Order = cls  # type: ignore[attr-defined]
        return cls

    yield make
    for name in (OLD[0], NEW[0]):
        sys.modules.pop(name, None)


class State(TypedDict, total=False):
    order: Any
    answer: str


def graph(saver: Any) -> Any:
    builder: Any = StateGraph(State)
    builder.add_node("ask", lambda state: {"answer": interrupt("?")})
    builder.add_edge(START, "ask")
    return builder.compile(checkpointer=saver)


def test_a_class_that_is_gone_raises_and_its_bytes_outlive_the_next_attempt(
    module: Callable[[str], type], database_url: str, recwarn: pytest.WarningsRecorder
) -> None:
    old_class = module(OLD[0])
    naive = InMemorySaver()
    graph(naive).invoke({"order": old_class("o-1")}, thread("t"))
    with DeltaSaver.open(database_url, serde=Codec(allow=[old_class])) as saver:
        graph(saver).invoke({"order": old_class("o-1")}, thread("t"))
    del sys.modules[OLD[0]]
    graph(naive).invoke(Command(resume="yes"), thread("t"))
    lost = graph(naive).get_state(thread("t")).values["order"]
    assert not hasattr(lost, "id"), "LangGraph's saver gives something else, and stores that"
    with DeltaSaver.open(database_url, serde=Codec(allow=[OLD])) as saver:
        for attempt in (
            lambda: graph(saver).invoke(Command(resume="yes"), thread("t")),
            lambda: graph(saver).update_state(thread("t"), {"answer": "yes"}),
        ):
            with pytest.raises(UnloadableValue, match=r"thread 't'.*shop_old_models\.Order"):
                attempt()
    back = module(OLD[0])
    with DeltaSaver.open(database_url, serde=Codec(allow=[back])) as saver:
        assert graph(saver).invoke(Command(resume="yes"), thread("t"))["order"] == back("o-1")


def test_old_and_new_code_read_each_other_until_the_switch(
    module: Callable[[str], type], database_url: str
) -> None:
    old_class, new_class = module(OLD[0]), module(NEW[0])
    aliases = {OLD: new_class}
    old = Codec(allow=[old_class])
    new = Codec(allow=[new_class], aliases=aliases, write_as={new_class: OLD})
    switched = Codec(allow=[new_class], aliases=aliases)

    def order(codec: Codec) -> Any:
        with DeltaSaver.open(database_url, serde=codec) as saver:
            return graph(saver).get_state(thread("t")).values["order"]

    def put(codec: Codec, value: Any) -> None:
        with DeltaSaver.open(database_url, serde=codec) as saver:
            graph(saver).update_state(thread("t"), {"order": value}, as_node="ask")

    put(old, old_class("written by old code"))
    assert order(new) == new_class("written by old code")
    put(new, new_class("written by new code"))
    assert order(old) == old_class("written by new code")
    put(switched, new_class("after the switch"))
    with pytest.raises(UnloadableValue, match="shop_new_models"):
        order(old)
    assert order(new) == new_class("after the switch")


def test_without_write_as_old_code_cannot_read_the_first_new_record(
    module: Callable[[str], type],
) -> None:
    old_class, new_class = module(OLD[0]), module(NEW[0])
    with Database.open("sqlite:///:memory:") as database:
        naive = DeltaSaver(database, serde=Codec(allow=[new_class], aliases={OLD: new_class}))
        graph(naive).invoke({"order": new_class("o-1")}, thread("t"))
        with pytest.raises(UnloadableValue, match="shop_new_models"):
            graph(DeltaSaver(database, serde=Codec(allow=[old_class]))).get_state(thread("t"))


def test_a_name_that_nothing_reads_is_refused(module: Callable[[str], type]) -> None:
    new_class = module(NEW[0])
    with pytest.raises(BadInput, match="nothing reads that"):
        Codec(allow=[new_class], write_as={new_class: OLD})


def test_write_as_survives_allowing_more(module: Callable[[str], type]) -> None:
    new_class = module(NEW[0])
    codec = Codec(allow=[new_class], aliases={OLD: new_class}, write_as={new_class: OLD})
    assert codec.allowing([]).encode(new_class("x")) == codec.encode(new_class("x"))
    assert OLD[0].encode() in codec.encode(new_class("x"))
