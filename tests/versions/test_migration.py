"""Old records as new code sees them: on every way of reading, with the stored bytes untouched."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any

import pytest
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, Send, interrupt
from typing_extensions import TypedDict

from durable_kit import BadInput, Database, DeltaSaver
from durable_kit.versions.migration import MigrationFailed, Migrations, NewerState, Step
from tests.versions.flows import thread

YES = Command(resume="yes")
STATE_VERSION_2 = Migrations(
    Step(
        to=2,
        says="totals in cents",
        rename={"total": "cents"},
        convert={"cents": lambda euros: round(Decimal(euros) * 100)},
    )
)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with Database.open(database_url) as opened:
        yield opened


def code_1(saver: Any) -> Any:
    """A state with euros as text; `tax` is done while `review` waits, both in one super-step."""
    return _code(saver, "total", lambda euros, add: str(Decimal(euros) + add))


def code_2(saver: Any) -> Any:
    """The same with cents as a number."""
    return _code(saver, "cents", lambda cents, add: cents + 100 * add)


def _code(saver: Any, field: str, plus: Any, review: str = "review") -> Any:
    kind = str if field == "total" else int
    state: Any = TypedDict("state", {field: kind, "answer": str, "paid": bool})  # type: ignore[misc]

    def pay(values: Any) -> Any:
        return {"paid": values[field] is not None, field: plus(values[field], 1)}

    builder: Any = StateGraph(state)
    builder.add_node("tax", lambda values: {field: plus(values[field], 10)})
    builder.add_node(review, lambda values: {"answer": interrupt("?")})
    builder.add_node("pay", pay)
    builder.add_edge(START, "tax")
    builder.add_edge(START, review)
    builder.add_edge(review, "pay")
    builder.add_edge("pay", END)
    return builder.compile(checkpointer=saver)


def stored_bytes(database: Database) -> list[Any]:
    with database.read() as tx:
        return [
            [tuple(row) for row in tx.rows(f"SELECT * FROM {table} ORDER BY 1, 2, 3")]
            for table in ("checkpoints", "checkpoint_writes", "checkpoint_packs")
        ]


def test_without_a_step_a_renamed_field_is_lost_half_way(database: Database) -> None:
    saver = DeltaSaver(database)
    code_1(saver).invoke({"total": "49.90"}, thread("t"))
    with pytest.raises((KeyError, TypeError)):
        code_2(saver).invoke(YES, thread("t"))


def test_new_code_finishes_a_super_step_that_old_code_began(database: Database) -> None:
    code_1(DeltaSaver(database)).invoke({"total": "49.90"}, thread("t"))
    before = stored_bytes(database)
    new = code_2(DeltaSaver(database, migrations=STATE_VERSION_2))
    state = new.get_state(thread("t"))
    assert state.values["cents"] == 5990
    assert stored_bytes(database) == before, "reading writes nothing"
    # tax had finished under code 1: 10 euros of it are a pending write, and it must not run again.
    assert new.invoke(YES, thread("t"))["cents"] == 4990 + 1000 + 100


def test_every_entry_of_the_history_is_seen_in_the_new_shape(database: Database) -> None:
    old = code_1(DeltaSaver(database))
    old.invoke({"total": "49.90"}, thread("t"))
    old.invoke(YES, thread("t"))
    saver = DeltaSaver(database, migrations=STATE_VERSION_2)
    seen = [state.values.get("cents") for state in code_2(saver).get_state_history(thread("t"))]
    assert seen == [6090, 5990, 4990, None]
    for found in saver.list(thread("t")):
        assert "total" not in found.checkpoint["channel_values"]
        assert "total" not in found.checkpoint["channel_versions"]
        assert all(channel != "total" for _, channel, _ in found.pending_writes or ())


def test_a_fork_from_an_old_checkpoint_goes_on_in_the_new_shape(database: Database) -> None:
    old = code_1(DeltaSaver(database))
    old.invoke({"total": "49.90"}, thread("t"))
    old.invoke(YES, thread("t"))
    new = code_2(DeltaSaver(database, migrations=STATE_VERSION_2))
    paused = next(s for s in new.get_state_history(thread("t")) if "review" in s.next)
    assert new.invoke(YES, paused.config)["cents"] == 6090
    fork = new.update_state(paused.config, {"cents": 100}, as_node="review")
    assert new.invoke(None, fork)["cents"] == 200


def test_the_first_input_of_a_run_is_migrated_as_well(database: Database) -> None:
    """A worker that dies after the input was stored has a checkpoint with nothing but the input."""
    saver = DeltaSaver(database)
    code_1(saver).invoke({"total": "49.90"}, thread("t"))
    first = list(saver.list(thread("t")))[-1]
    new = code_2(DeltaSaver(database, migrations=STATE_VERSION_2))
    new.invoke(None, first.config)
    assert new.get_state(thread("t")).values["cents"] == 5990


def test_rolled_back_code_reads_its_own_records_and_refuses_newer_ones(database: Database) -> None:
    old = code_1(DeltaSaver(database))
    new = code_2(DeltaSaver(database, migrations=STATE_VERSION_2))
    for name in ("untouched", "moved on", "half done"):
        old.invoke({"total": "49.90"}, thread(name))
    new.invoke(YES, thread("moved on"))
    saver = DeltaSaver(database, migrations=STATE_VERSION_2)
    waiting = saver.get_tuple(thread("half done"))
    assert waiting is not None
    saver.put_writes(waiting.config, [("answer", "new")], "11111111-1111-1111-1111-111111111111")
    rolled_back = code_1(DeltaSaver(database))
    assert rolled_back.invoke(YES, thread("untouched"))["total"] == "60.90"
    for name in ("moved on", "half done"):
        with pytest.raises(NewerState, match=f"'{name}'.* has state_version 2, .* up to 1"):
            rolled_back.invoke(YES, thread(name))
        with pytest.raises(NewerState):
            list(rolled_back.get_state_history(thread(name)))


def test_writes_of_two_versions_in_one_super_step_are_told_apart(database: Database) -> None:
    old, new = DeltaSaver(database), DeltaSaver(database, migrations=STATE_VERSION_2)
    code_1(old).invoke({"total": "49.90"}, thread("t"))
    found = new.get_tuple(thread("t"))
    assert found is not None
    task = "11111111-1111-1111-1111-111111111111"
    new.put_writes(found.config, [("cents", 77)], task)
    again = new.get_tuple(thread("t"))
    assert again is not None
    cents = [value for _, channel, value in again.pending_writes or () if channel == "cents"]
    assert sorted(cents) == [77, 5990]


def test_compaction_and_copies_keep_each_records_version(database: Database) -> None:
    code_1(DeltaSaver(database)).invoke({"total": "49.90"}, thread("t"))
    saver = DeltaSaver(database, migrations=STATE_VERSION_2)
    saver.compact("t")
    saver.copy_thread("t", "copy")
    for name in ("t", "copy"):
        new = code_2(DeltaSaver(database, migrations=STATE_VERSION_2))
        assert new.invoke(YES, thread(name))["cents"] == 6090


def test_steps_run_in_order_of_their_numbers_and_only_those_that_are_missing() -> None:
    added = Migrations(
        Step(to=3, says="a currency", add={"currency": lambda state: "EUR"}),
        *STATE_VERSION_2.steps,
        Step(to=4, says="shouted", convert={"currency": str.lower}, drop=["answer"]),
    )
    with DeltaSaver.open("sqlite:///:memory:") as saver:
        code_1(saver).invoke({"total": "49.90"}, thread("t"))
        new = DeltaSaver(saver.database, migrations=added)
        found = new.get_tuple(thread("t"))
        assert found is not None
        values = found.checkpoint["channel_values"]
        assert (values["cents"], values["currency"]) == (4990, "eur")
        assert "currency" in found.checkpoint["channel_versions"], "or the next step drops it"
        stored = new.put(found.config, {**found.checkpoint, "id": "2" * 32}, found.metadata, {})
        again = new.get_tuple(stored)
        assert again is not None
        assert again.checkpoint["channel_values"] == values, "upcasting again changes nothing"


def test_an_added_field_outlives_the_next_step(database: Database) -> None:
    add = Migrations(Step(to=2, says="a currency", add={"currency": lambda state: "EUR"}))
    code_1(DeltaSaver(database)).invoke({"total": "49.90"}, thread("t"))

    class State(TypedDict, total=False):
        total: str
        answer: str
        paid: bool
        currency: str

    def graph(saver: DeltaSaver) -> Any:
        builder: Any = StateGraph(State)
        builder.add_node("tax", lambda values: {})
        builder.add_node("review", lambda values: {"answer": interrupt("?")})
        builder.add_node("pay", lambda values: {"total": values["total"] + values["currency"]})
        builder.add_edge(START, "tax")
        builder.add_edge(START, "review")
        builder.add_edge("review", "pay")
        return builder.compile(checkpointer=saver)

    with pytest.raises(KeyError, match="currency"):
        graph(DeltaSaver(database)).invoke(YES, thread("t"))
    result = graph(DeltaSaver(database, migrations=add)).invoke(None, thread("t"))
    assert (result["total"], result["currency"]) == ("59.90EUR", "EUR")


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        ([3], "without a gap"),
        ([2, 4], "without a gap"),
        ([1, 2], "without a gap"),
        ([2, 2], "two steps to state_version 2"),
    ],
)
def test_gaps_and_double_registration_are_refused(steps: list[int], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        Migrations(*(Step(to=to, says="") for to in steps))


def test_a_node_name_that_comes_back_is_refused() -> None:
    with pytest.raises(BadInput, match="'a', which was the name of another node"):
        Migrations(
            Step(to=2, says="", rename_nodes={"a": "b"}),
            Step(to=3, says="", rename_nodes={"c": "a"}),
        )


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        (Step(to=2, says="x", convert={"total": lambda value: None}), "made None of a value"),
        (Step(to=2, says="x", convert={"total": int}), "raised ValueError"),
        (Step(to=2, says="x", rename={"total": "answer"}), "both there, with different values"),
    ],
)
def test_a_step_that_would_lose_a_value_is_refused_with_the_place(
    step: Step, complaint: str
) -> None:
    with DeltaSaver.open("sqlite:///:memory:") as saver:
        code_1(saver).invoke({"total": "49.90", "answer": "no"}, thread("t"))
        broken = DeltaSaver(saver.database, migrations=Migrations(step))
        with pytest.raises(MigrationFailed, match=f"thread 't'.*Step.to=2.*{complaint}"):
            broken.get_tuple(thread("t"))
        assert code_1(saver).get_state(thread("t")).values["total"] == "59.90"


def test_a_paused_subgraph_is_migrated_by_the_step_for_its_graph(database: Database) -> None:
    def graph(saver: Any, field: str) -> Any:
        state: Any = TypedDict("state", {field: int, "kept": int})  # type: ignore[misc]
        inner: Any = StateGraph(state)
        inner.add_node("count", lambda values: {field: values[field] + 1})
        inner.add_node("ask", lambda values: {field: values[field] + int(interrupt("?"))})
        inner.add_edge(START, "count")
        inner.add_edge("count", "ask")
        outer: Any = StateGraph(state)
        outer.add_node("work", inner.compile())
        outer.add_edge(START, "work")
        return outer.compile(checkpointer=saver)

    graph(DeltaSaver(database), "before").invoke({"before": 10}, thread("t"))
    only_outside = Step(to=2, says="a better name", rename={"before": "after"})
    half = DeltaSaver(database, migrations=Migrations(only_outside))
    with pytest.raises((KeyError, TypeError)):
        graph(half, "after").invoke(Command(resume="5"), thread("t"))
    both = Migrations(
        only_outside, Step(to=2, says="inside", inside="work", rename={"before": "after"})
    )
    new = graph(DeltaSaver(database, migrations=both), "after")
    [task] = new.get_state(thread("t"), subgraphs=True).tasks
    assert task.state.values["after"] == 11
    assert new.invoke(Command(resume="5"), thread("t"))["after"] == 16


def test_reducers_updates_sends_and_overwrites_are_migrated(database: Database) -> None:
    """What waits under a reducer is an update, not a value; each has its own conversion."""

    def graph(saver: Any, field: str, node: str, update: Any) -> Any:
        state: Any = TypedDict("state", {field: Annotated[list, operator.add], "n": int})  # type: ignore[misc]
        builder: Any = StateGraph(state)
        builder.add_node("plan", lambda values: {field: update})
        builder.add_node("ask", lambda values: {"n": interrupt("?")})
        builder.add_node(node, lambda values: {field: [values["item"]]})
        builder.add_edge(START, "plan")
        builder.add_edge(START, "ask")
        builder.add_conditional_edges(
            "ask", lambda values: [Send(node, {"item": i}) for i in ("x", "y")], [node]
        )
        return builder.compile(checkpointer=saver, interrupt_before=[node])

    old = graph(DeltaSaver(database), "items", "do", ["b"])
    old.invoke({"items": ["a"]}, thread("update"))
    old.invoke({"items": ["a"]}, thread("sends"))
    old.invoke(Command(resume=1), thread("sends"))
    overwriting = graph(DeltaSaver(database), "items", "do", Overwrite(["z"]))
    overwriting.invoke({"items": ["a"]}, thread("overwrite"))
    shout = Step(
        to=2,
        says="in capitals, under another name, by another node",
        rename={"items": "lines"},
        convert={"lines": lambda items: [item.upper() for item in items]},
        rename_nodes={"do": "write"},
        convert_sends={"write": lambda arg: {"item": arg["item"].upper()}},
    )
    new = graph(DeltaSaver(database, migrations=Migrations(shout)), "lines", "write", ["b"])
    assert new.invoke(Command(resume=1), thread("update"))["lines"] == ["A", "B"]
    assert new.invoke(Command(resume=1), thread("overwrite"))["lines"] == ["Z"]
    assert new.invoke(None, thread("sends"))["lines"] == ["A", "B", "X", "Y"]


def test_a_delta_channel_is_rebuilt_from_writes_in_the_new_shape(database: Database) -> None:
    def graph(saver: Any, field: str, item: Any) -> Any:
        def extend(items: list[Any], updates: Any) -> list[Any]:
            return [*items, *(one for update in updates for one in update)]

        channel = DeltaChannel(extend, snapshot_frequency=3)
        state: Any = TypedDict("state", {field: Annotated[list, channel]})  # type: ignore[misc]
        builder: Any = StateGraph(state)
        builder.add_node("say", lambda values: {field: [item(len(values[field]))]})
        builder.add_edge(START, "say")
        builder.add_conditional_edges(
            "say", lambda values: END if len(values[field]) % 4 == 0 else "say", ["say", END]
        )
        return builder.compile(checkpointer=saver)

    graph(DeltaSaver(database), "texts", str).invoke({"texts": []}, thread("t"))
    number = Step(
        to=2,
        says="numbers instead of texts",
        rename={"texts": "numbers"},
        convert={"numbers": lambda texts: [int(text) for text in texts]},
    )
    new = graph(DeltaSaver(database, migrations=Migrations(number)), "numbers", int)
    assert new.get_state(thread("t")).values["numbers"] == [0, 1, 2, 3]
    assert new.invoke({"numbers": [4]}, thread("t"))["numbers"] == list(range(8))
