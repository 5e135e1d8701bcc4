"""Values that other stores drop, change, or keep in the clear.

A NUL character ends a text in PostgreSQL. NaN is not equal to itself and not in JSON. A lock cannot
be stored at all, and a class can be gone when its object is read. In each case there are two right
answers: the same value back on both databases, or a refusal before anything was written.
"""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from durable_kit.delta_saver import DeltaSaver
from durable_kit.errors import DurableKitError, UnstorableValue
from durable_kit.serde_codec import default_codec
from tests.contracts.builders import Line, assert_same, facts

from .graphs import Talk, talking_graph, thread


@pytest.fixture
def saver(database_url: str) -> Iterator[DeltaSaver]:
    with DeltaSaver.open(database_url) as opened:
        yield opened


TABLES = ("checkpoint_heads", "checkpoints", "checkpoint_writes", "checkpoint_packs")


def everything(saver: DeltaSaver) -> list[Any]:
    """All rows of the log's tables, as they are stored."""
    with saver.database.read() as tx:
        return [sorted(tx.rows(f"SELECT * FROM {name}"), key=repr) for name in TABLES]


# --------------------------------------------------------------------------- NUL

NUL_PLACES = ["a\x00b", "\x00", "ab\x00", "\x00\x00", "a\\x00b", "ab", "a\\b", "a\\0b", "a\ufffdb"]


def test_thread_ids_and_namespaces_with_a_nul_are_kept_and_kept_apart(saver: DeltaSaver) -> None:
    lines = [Line(saver, thread_id, ns) for thread_id in NUL_PLACES for ns in ("", *NUL_PLACES)]
    for number, line in enumerate(lines):
        line.put({"number": number})
    assert {(line.thread_id, line.ns) for line in lines} == set(saver.threads())
    for number, line in enumerate(lines):
        found = line.read()
        assert found.checkpoint["channel_values"] == {"number": number}
        assert found.config["configurable"]["thread_id"] == line.thread_id
        assert found.config["configurable"]["checkpoint_ns"] == line.ns
        assert len(line.rows()) == 1
    saver.copy_thread("a\x00b", "copy\x00")
    saver.delete_thread("a\x00b")
    assert {name for name, _ in saver.threads()} == {*NUL_PLACES[1:], "copy\x00"}
    assert all(saver.verify(name).ok for name in [*NUL_PLACES, "copy\x00"])


def test_a_nul_in_state_metadata_and_writes_comes_back_as_it_was(saver: DeltaSaver) -> None:
    line = Line(saver, "nul\x00thread", "nul\x00namespace")
    values = {"messages": ["before\x00after", "\x00"], "chan\x00nel": {"k\x00": "v\x00"}}
    metadata = {"key\x00": "value\x00", "plain": "v\x00", "nested": {"\x00": ["\x00"]}}
    at = line.put(values, metadata=metadata)
    writes = [("chan\x00nel", "written\x00"), ("__error__", "ValueError('text \x00')")]
    line.write(at, *writes, task="task\x00id", path="task\x00path")
    line.put({**values, "messages": [*values["messages"], "more\x00"]})
    found = line.read(at)
    assert_same(found.checkpoint["channel_values"], values)
    assert_same({key: found.metadata.get(key) for key in metadata}, metadata)
    stored = {(task, channel): value for task, channel, value in found.pending_writes or []}
    assert stored == {("task\x00id", channel): value for channel, value in writes}
    for key, value in metadata.items():
        assert line.ids(filter={key: value}) == [found.checkpoint["id"]]
    assert line.ids(filter={"plain": "v"}) == []
    assert line.ids(filter={"key": "value"}) == []
    assert saver.verify(line.thread_id).ok


def test_a_nul_in_a_node_name_and_its_error_goes_through_a_real_graph(saver: DeltaSaver) -> None:
    from langgraph.graph import START, StateGraph

    fails = [True]

    def node(state: Talk) -> dict[str, Any]:
        if fails:
            raise ValueError("no \x00 today")
        return {"messages": ["an\x00swer"], "turn": 1}

    graph = (
        StateGraph(Talk)
        .add_node("no\x00de", node)
        .add_edge(START, "no\x00de")
        .compile(checkpointer=saver)
    )
    with pytest.raises(ValueError, match="no \x00 today"):
        graph.invoke({"messages": ["hel\x00lo"]}, thread("nul\x00"))
    state = graph.get_state(thread("nul\x00"))
    assert state.next == ("no\x00de",)
    assert state.tasks[0].error == repr(ValueError("no \x00 today"))
    fails.clear()
    assert graph.invoke(None, thread("nul\x00"))["messages"] == ["hel\x00lo", "an\x00swer"]
    assert graph.get_state(thread("nul\x00")).values["messages"] == ["hel\x00lo", "an\x00swer"]


# --------------------------------------------------------------------------- NaN and infinity

ODD_FLOATS = [math.nan, math.inf, -math.inf, -0.0, 0.0, 0, None, "nan", [math.nan], {"k": math.inf}]


def test_filters_on_odd_floats_find_what_they_find_in_memory(saver: DeltaSaver) -> None:
    found: list[list[list[Any]]] = []
    for store in (saver, InMemorySaver()):
        line = Line(store, "odd")
        for step, value in enumerate(ODD_FLOATS):
            line.put({"step": step}, metadata={"k": value})
        filters = [{"k": value} for value in ODD_FLOATS]
        filters += [{"missing": value} for value in ODD_FLOATS]
        found.append(
            [
                [row.checkpoint["channel_values"]["step"] for row in line.rows(filter=wanted)]
                for wanted in filters
            ]
        )
    assert found[0] == found[1]
    assert found[0][0] == []  # NaN equals nothing
    assert found[0][3] == [5, 4, 3]  # -0.0 equals 0.0 and 0


def test_odd_floats_in_state_and_metadata_come_back_to_the_sign(saver: DeltaSaver) -> None:
    line = Line(saver, "odd")
    values = {"floats": ODD_FLOATS, "nan": math.nan, "minus": -0.0}
    at = line.put(values, metadata={"floats": ODD_FLOATS, "minus": -0.0})
    line.put({**values, "minus": 0.0})
    line.write(at, ("floats", ODD_FLOATS))
    found = line.read(at)
    assert_same(found.checkpoint["channel_values"], values)
    assert_same(found.metadata["floats"], ODD_FLOATS)  # type: ignore[typeddict-item]
    assert_same(found.pending_writes, [("task", "floats", ODD_FLOATS)])
    assert repr(line.read().checkpoint["channel_values"]["minus"]) == "0.0"


def test_a_nan_that_did_not_change_costs_no_more_than_a_number_that_did_not(
    saver: DeltaSaver,
) -> None:
    sizes = []
    for name, value in (("nan", math.nan), ("number", 1.5)):
        line = Line(saver, name)
        for step in range(3):
            line.put({"floats": [value] * 500, "step": step})
        sizes.append([len(record.body) for record in saver.records(name)][1:])
    assert sizes[0] == sizes[1]
    assert max(sizes[0]) < 200


# --------------------------------------------------------------------------- what cannot be stored


def local_object() -> Any:
    class Local:
        pass

    return Local()


@pytest.mark.parametrize("kind", ["lock", "file", "local class"])
def test_a_value_that_cannot_be_stored_is_refused_by_its_path_and_leaves_nothing(
    saver: DeltaSaver, tmp_path: Path, kind: str
) -> None:
    with (tmp_path / "open").open("w") as file:
        value = {"lock": threading.Lock(), "file": file, "local class": local_object()}[kind]
        line = Line(saver, "refused")
        at = line.put({"messages": ["good"]})
        before = everything(saver)
        with pytest.raises(UnstorableValue) as caught:
            line.put({"other": 1, "messages": ["good", {"meta": [value]}]})
        assert caught.value.path == "state['messages'][1]['meta'][0]"
        with pytest.raises(UnstorableValue) as caught:
            line.write(at, ("other", 1), ("messages", [value]))
        assert caught.value.path == "state['messages'][0]"
        with pytest.raises(UnstorableValue) as caught:
            line.put({"messages": ["good", "better"]}, metadata={"who": value})
        assert "who" in caught.value.path
    assert everything(saver) == before
    assert saver.verify("refused").ok
    line.put({"messages": ["good", "better"]})
    assert line.read().checkpoint["channel_values"] == {"messages": ["good", "better"]}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_node_that_returns_a_lock_leaves_its_thread_at_the_last_good_step(
    saver: DeltaSaver, durability: Any
) -> None:
    from langgraph.graph import START, StateGraph

    answers: list[Any] = [threading.Lock()]

    def answer(state: Talk) -> dict[str, Any]:
        return {"messages": [answers[-1]], "turn": 1}

    graph = (
        StateGraph(Talk)
        .add_node("answer", answer)
        .add_edge(START, "answer")
        .compile(checkpointer=saver)
    )
    with pytest.raises(UnstorableValue, match=r"state\['messages'\]\[\d\] \(lock\)"):
        graph.invoke({"messages": ["hello"]}, thread("lock"), durability=durability)
    assert saver.verify("lock").ok
    answers.append("an answer")
    start = None if graph.get_state(thread("lock")).next else {"messages": ["hello"]}
    assert (start is not None) == (durability == "exit")  # which stores only at the end
    said = graph.invoke(start, thread("lock"), durability=durability)["messages"]
    assert said == ["hello", "an answer"]


# --------------------------------------------------------------------------- a class that is gone

SHOP = "from dataclasses import dataclass\n\n@dataclass\nclass Order:\n    amount: int\n"
WITH_SHOP = """
import sys
from durable_kit.delta_saver import DeltaSaver
from durable_kit.errors import UnloadableValue
from durable_kit.storage.codec import Codec
from tests.contracts.builders import Line

url, act = sys.argv[1:]
with DeltaSaver.open(url, serde=Codec(allow=[("shop_of_orders", "Order")])) as saver:
    line = Line(saver, "order-1001")
    if act == "write":
        from shop_of_orders import Order
        line.put({"order": Order(amount=500)})
    try:
        print(line.read().checkpoint["channel_values"])
    except UnloadableValue as error:
        print("gone:", error.class_name, "|", error)
"""


def test_a_class_that_is_gone_is_named_with_its_thread_and_the_bytes_stay(
    database_url: str, tmp_path: Path
) -> None:
    shop = tmp_path / "shop_of_orders.py"

    def run(act: str) -> str:
        script = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{WITH_SHOP}"
        ran = subprocess.run(
            [sys.executable, "-B", "-c", script, database_url, act],
            cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    shop.write_text(SHOP)
    assert run("write") == "{'order': Order(amount=500)}\n"
    with DeltaSaver.open(database_url) as saver:
        before = everything(saver)
    shop.unlink()
    said = run("read")
    assert said.startswith("gone: shop_of_orders.Order |")
    assert "order-1001" in said
    with DeltaSaver.open(database_url) as saver:
        assert everything(saver) == before
    shop.write_text(SHOP)
    assert run("read") == "{'order': Order(amount=500)}\n"


# --------------------------------------------------------------------------- encryption


def encrypted(key: bytes = b"0123456789abcdef") -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(default_codec(), key=key)


def bytes_per_step(saver: DeltaSaver) -> float:
    """Of the later half of 40 steps of a growing conversation."""
    line = Line(saver, "grows")
    for step in range(40):
        messages = [f"message {number} SECRET-WORD " + "x" * 300 for number in range(step)]
        line.put({"messages": messages}, metadata={"customer": "SECRET-NAME"})
    sizes = [record.stored_bytes for record in saver.records("grows") if record.kind == "delta"]
    return sum(sizes[-20:]) / 20


def test_encrypted_deltas_stay_small_and_nothing_of_the_text_is_in_the_file(
    tmp_path: Path,
) -> None:
    per_step = {}
    found = {}
    for name, serde in (("plain", None), ("sealed", encrypted())):
        with DeltaSaver.open(f"sqlite:///{tmp_path / name}.db", serde=serde) as saver:
            per_step[name] = bytes_per_step(saver)
            line = Line(saver, "grows")
            line.write(line.read().config, ("messages", "SECRET-WRITE"))
            beside = [path.read_bytes() for path in tmp_path.glob(f"{name}.db*")]  # with the WAL
            found[name] = [
                word
                for word in (b"SECRET-WORD", b"SECRET-NAME", b"SECRET-WRITE", b"customer")
                if any(word in content for content in beside)
            ]
    assert len(found["plain"]) == 4, "the search finds nothing, not even where it is"
    assert found["sealed"] == []
    assert per_step["sealed"] < 2 * per_step["plain"]


def test_an_encrypted_thread_tells_its_history_and_goes_on_and_a_wrong_key_is_refused(
    database_url: str,
) -> None:
    with DeltaSaver.open(database_url, serde=encrypted()) as saver:
        talking_graph(saver).invoke({"messages": ["hello"]}, thread("sealed"))
        before = everything(saver)
    with DeltaSaver.open(database_url, serde=encrypted(b"another key 1234")) as wrong:
        graph = talking_graph(wrong)
        for read in (wrong.get_tuple, lambda config: list(wrong.list(config)), graph.get_state):
            with pytest.raises(DurableKitError):
                read(thread("sealed"))
        with pytest.raises(DurableKitError):
            graph.invoke({"messages": ["and"]}, thread("sealed"))
        assert everything(wrong) == before
    with DeltaSaver.open(database_url, serde=encrypted()) as saver:
        graph = talking_graph(saver)
        graph.invoke({"messages": ["and"]}, thread("sealed"))
        history = list(graph.get_state_history(thread("sealed")))
        assert history[0].values["messages"] == ["hello", "answer 1", "and", "answer 2"]
        assert len(history) == 6
        assert saver.verify("sealed").ok
        for row in history:
            assert facts(saver.get_tuple(row.config))["at"]  # type: ignore[arg-type]
