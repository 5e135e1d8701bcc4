"""Values that a store likes to change on the way: NUL, NaN, classes that are gone.

PostgreSQL's TEXT has no NUL and JSON has no NaN, so a store that keeps text in text columns and
metadata in JSON behaves one way here and another way there. The kit keeps values as bytes and
behaves alike on both databases: what goes in comes back, or is refused before anything is written.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from durable_kit import DeltaSaver
from durable_kit.errors import BadInput, UnstorableValue
from durable_kit.storage.database import Database
from tests.contracts.builders import Line, assert_same, facts

from .graphs import talking_graph, thread

ROOT = Path(__file__).parents[2]
TABLES = ("checkpoint_heads", "checkpoints", "checkpoint_writes", "checkpoint_packs")


@pytest.fixture
def saver(database_url: str) -> Iterator[DeltaSaver]:
    with DeltaSaver.open(database_url) as opened:
        yield opened


def stored_rows(database: Database) -> dict[str, list[Any]]:
    with database.read() as tx:
        return {table: tx.rows(f"SELECT * FROM {table}") for table in TABLES}


# --------------------------------------------------------------------------- NUL


NUL = "before\0after"


def test_a_nul_comes_back_from_wherever_it_was_put(saver: DeltaSaver, database_url: str) -> None:
    line = Line(saver, f"thread {NUL} \\0 \\\\", f"child|{NUL}")
    at = line.put(
        {f"channel {NUL}": [NUL, {NUL: NUL}]},
        metadata={f"key {NUL}": f"value {NUL}", "writes": {NUL: None}},
    )
    line.write(at, (f"channel {NUL}", NUL), task=f"task {NUL}", path=f"~pull, node {NUL}")
    line.write(at, ("__error__", ValueError(NUL)), task=f"failed {NUL}", path="x")
    line.write(line.config(f"unknown {NUL}"), ("messages", "early"), task="t")
    with DeltaSaver.open(database_url) as another:
        found = another.get_tuple(at)
        assert found is not None
        assert_same(facts(found), facts(line.read(at)))
        assert found.checkpoint["channel_values"] == {f"channel {NUL}": [NUL, {NUL: NUL}]}
        assert found.metadata[f"key {NUL}"] == f"value {NUL}"  # type: ignore[literal-required]
        writes = [(task, channel, value) for task, channel, value in found.pending_writes or []]
        assert (f"task {NUL}", f"channel {NUL}", NUL) in writes
        assert (f"failed {NUL}", "__error__", repr(ValueError(NUL))) in writes
        assert list(another.threads()) == [(line.thread_id, line.ns)]
        assert another.verify(line.thread_id).ok
        listed = list(another.list(line.config(), filter={f"key {NUL}": f"value {NUL}"}))
        assert [row.checkpoint["id"] for row in listed] == [found.checkpoint["id"]]
        assert not list(another.list(line.config(), filter={f"key {NUL}": "value before"}))


def test_threads_whose_names_differ_only_in_escapes_are_different_threads(
    saver: DeltaSaver,
) -> None:
    names = ["a\0b", "a\\0b", "a\\\0b", "a\\\\0b", "a0b", "ab", "a\0", "\0a", "", "\\"]
    for number, name in enumerate(names):
        Line(saver, name).put({"n": number})
    assert sorted(name for name, _ in saver.threads()) == sorted(names)
    for number, name in enumerate(names):
        found = saver.get_tuple(thread(name))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"n": number}
        assert len(list(saver.list(thread(name)))) == 1
    saver.delete_thread("a\0b")
    assert sorted(name for name, _ in saver.threads()) == sorted(names[1:])


def test_a_nul_that_a_node_says_goes_through_a_graph(saver: DeltaSaver) -> None:
    graph = talking_graph(saver)
    said = graph.invoke({"messages": [NUL]}, thread(NUL))
    assert said["messages"][0] == NUL
    assert graph.get_state(thread(NUL)).values == said
    assert graph.invoke({"messages": [NUL]}, thread(NUL))["turn"] == 2


def test_half_a_surrogate_pair_is_refused_as_a_name_and_nothing_is_stored(
    saver: DeltaSaver,
) -> None:
    for name, namespace in (("t\udcff", ""), ("t", "child\ud800")):
        with pytest.raises(BadInput, match="surrogate"):
            Line(saver, name, namespace).put({"n": 1})
        with pytest.raises(BadInput, match="surrogate"):
            line = Line(saver, name, namespace)
            line.write(line.config("x"), ("n", 1))
    assert not any(stored_rows(saver.database).values())


# --------------------------------------------------------------------------- NaN and its kin


FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "-0.0": -0.0}


def test_floats_that_json_lacks_come_back_in_state_writes_and_metadata(
    saver: DeltaSaver, database_url: str
) -> None:
    line = Line(saver, "t")
    at = line.put({"floats": FLOATS, "list": list(FLOATS.values())}, metadata={"score": FLOATS})
    line.write(at, ("floats", FLOATS))
    # The same NaN again is no change: it differs from itself, and its bytes do not.
    before = saver.stats("t").live_bytes
    line.put({"floats": FLOATS, "list": list(FLOATS.values())})
    assert saver.stats("t").live_bytes - before < 200
    with DeltaSaver.open(database_url) as another:
        found = another.get_tuple(at)
        assert found is not None
        values = found.checkpoint["channel_values"]
        assert repr(values) == repr({"floats": FLOATS, "list": list(FLOATS.values())})
        assert repr(found.metadata["score"]) == repr(FLOATS)  # type: ignore[typeddict-item]
        assert repr((found.pending_writes or [])[0][2]) == repr(FLOATS)


@pytest.mark.parametrize(
    "wanted", [math.nan, math.inf, -math.inf, -0.0, 0, 0.0, False, "nan"], ids=repr
)
def test_a_filter_on_such_a_float_answers_as_python_does(saver: DeltaSaver, wanted: Any) -> None:
    answers = []
    for one in (saver, InMemorySaver()):
        line = Line(one, "t")
        for name, value in {**FLOATS, "zero": 0, "text": "nan"}.items():
            line.put({"name": name}, metadata={"score": value})
        rows = line.rows(filter={"score": wanted})
        answers.append([row.checkpoint["channel_values"]["name"] for row in rows])
    # A NaN that was stored is another object than the one asked for, so it never equals it.
    oracle = [name for name in answers[1] if name != "nan"]
    assert answers[0] == oracle


# --------------------------------------------------------------------------- refused up front


class Stranger:
    """A class that nobody allowed."""


@pytest.mark.parametrize(
    "values",
    [
        {"messages": ["fine", {"deep": [Stranger()]}]},
        {"messages": ["fine"], "lambda": lambda: 1},
        {"messages": ["fine"], "lock": object()},
    ],
    ids=["nested", "function", "object"],
)
def test_an_unstorable_value_is_refused_with_its_path_and_nothing_is_half_written(
    saver: DeltaSaver, values: dict[str, Any]
) -> None:
    line = Line(saver, "t")
    at = line.put({"messages": ["before"]})
    line.write(at, ("messages", ["fine"]), task="first")
    before = stored_rows(saver.database)
    name = list(values)[-1]
    with pytest.raises(UnstorableValue) as refused:
        line.saver.put(
            at,  # type: ignore[arg-type]
            {
                **line.read().checkpoint,
                "id": "1f000000-0000-6000-8000-000000000000",
                "channel_values": values,
            },
            {},
            {},
        )
    assert refused.value.path.startswith(f"state[{name!r}]")
    with pytest.raises(UnstorableValue):
        line.write(at, ("messages", ["fine"]), (name, values[name]), task="second")
    with pytest.raises(UnstorableValue):
        line.saver.put(at, line.read().checkpoint, {"source": Stranger()}, {})  # type: ignore[arg-type,typeddict-item]
    after = stored_rows(saver.database)
    assert after == before
    assert [facts(row)["writes"] for row in line.rows()] == [[("first", "messages", ["fine"])]]


def test_a_graph_whose_node_returns_an_unstorable_value_keeps_its_last_good_state(
    saver: DeltaSaver,
) -> None:
    graph = talking_graph(saver)
    good = graph.invoke({"messages": ["go"]}, thread("t"))
    with pytest.raises(UnstorableValue, match="messages"):
        graph.invoke({"messages": [Stranger()]}, thread("t"))
    assert graph.get_state(thread("t")).values == good
    assert graph.invoke({"messages": ["go"]}, thread("t"))["turn"] == good["turn"] + 1
    assert saver.verify("t").ok


# --------------------------------------------------------------------------- two processes


SHOP = """
import enum
from dataclasses import dataclass

class Order:
    class Status(enum.StrEnum):
        OPEN = "open"
        PAID = "paid"

@dataclass
class Item:
    status: Order.Status
    amounts: tuple
"""

GRAPH = """
import operator, sys
from typing import Annotated, Any, TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from durable_kit import Codec, DeltaSaver

class State(TypedDict, total=False):
    order: Any
    answers: Annotated[list, operator.add]

def ask(state):
    answer = interrupt("paid?")
    item = state["order"]["item"]
    assert (type(item).__name__, type(item.status).__qualname__) == ("Item", "Order.Status")
    return {"answers": [f"{answer}: {item.status!r} {item.amounts!r}"]}

serde = DeltaSaver.open("sqlite://").serde.allowing([("shop", "Item"), ("shop", "Order.Status")])
saver = DeltaSaver.open(sys.argv[1], serde=serde)
graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=saver)
config = {"configurable": {"thread_id": "t-7"}}
"""

PAUSE = """
from shop import Item, Order
graph.invoke({"order": {"item": Item(Order.Status.PAID, (1, (2,)))}}, config)
"""

RESUME = """
print(graph.invoke(Command(resume="yes"), config)["answers"])
"""


def in_a_new_process(code: str, url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", GRAPH + code, url],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_nested_enum_in_a_paused_graph_is_what_it_was_in_the_process_that_resumes(
    tmp_path: Path,
) -> None:
    database_url = f"sqlite:///{tmp_path / 'kit.db'}"
    (tmp_path / "shop.py").write_text(SHOP)
    paused = in_a_new_process(PAUSE, database_url, tmp_path)
    assert paused.returncode == 0, paused.stderr

    # A deploy lost the class. The naive loader gives None here, and writes it over the order.
    (tmp_path / "shop.py").rename(tmp_path / "moved.py")
    lost = in_a_new_process(RESUME, database_url, tmp_path)
    assert lost.returncode == 1
    assert "UnloadableValue" in lost.stderr
    assert "shop.Order.Status" in lost.stderr
    assert "t-7" in lost.stderr

    # The code is brought back, and nothing was overwritten meanwhile.
    (tmp_path / "moved.py").rename(tmp_path / "shop.py")
    resumed = in_a_new_process(RESUME, database_url, tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == "[\"yes: <Status.PAID: 'paid'> (1, (2,))\"]\n"
