"""A node has another name now, and the threads that wait at it go on as if it had not."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from durable_kit import Database, DeltaSaver
from durable_kit.versions.drain import drain_report
from durable_kit.versions.flow_router import FlowRefused, FlowRouter
from durable_kit.versions.graph_fingerprint import check_resume
from durable_kit.versions.migration import MigrationFailed, Migrations, Step
from tests.versions.flows import pinned, thread, unpinned

YES = Command(resume="yes")
RENAMED = Migrations(
    Step(to=2, says="approve is the better word", rename_nodes={"review": "approve"})
)


class Steps(TypedDict):
    steps: Annotated[list[str], operator.add]


@pytest.fixture
def database() -> Iterator[Database]:
    with Database.open("sqlite:///:memory:") as opened:
        yield opened


def test_a_rename_in_code_alone_ends_the_thread_quietly(database: Database) -> None:
    unpinned(DeltaSaver(database), rules=1).invoke({}, thread("t"))
    renamed = unpinned(DeltaSaver(database), rules=1, review_node="approve")
    assert "charged" not in renamed.invoke(YES, thread("t"))


def test_a_thread_that_waits_at_a_renamed_node_goes_on_there(database: Database) -> None:
    unpinned(DeltaSaver(database), rules=1).invoke({}, thread("t"))
    saver = DeltaSaver(database, migrations=RENAMED)
    renamed = unpinned(saver, rules=1, review_node="approve")
    assert check_resume(renamed, thread("t")).ok
    state = renamed.get_state(thread("t"))
    assert "approve" in state.next
    [asked] = [task for task in state.tasks if task.interrupts]
    assert asked.interrupts[0].value == {"price": 100}
    assert {entry.node for entry in drain_report(saver).waiting} == {"reserve", "approve"}
    assert renamed.invoke(YES, thread("t"))["charged"] == 100


def test_an_answer_by_the_id_of_the_interrupt_reaches_the_renamed_node(database: Database) -> None:
    unpinned(DeltaSaver(database), rules=1).invoke({}, thread("t"))
    renamed = unpinned(DeltaSaver(database, migrations=RENAMED), rules=1, review_node="approve")
    [asked] = [task for task in renamed.get_state(thread("t")).tasks if task.interrupts]
    answer = Command(resume={asked.interrupts[0].id: "by id"})
    assert renamed.invoke(answer, thread("t"))["approved"] == "by id"


def fan(saver: Any, ran: list[str], *names: str, by_send: bool = False) -> Any:
    """Workers, of which the last one asks; then a join, which names all of them."""

    def work(node: str) -> Any:
        def run(state: Any) -> Any:
            ran.append(node)
            return {"steps": [interrupt("?") if node == names[-1] else "done"]}

        return run

    builder: Any = StateGraph(Steps)
    for node in names:
        builder.add_node(node, work(node))
    builder.add_node("end", lambda state: {"steps": ["end"]})
    if by_send:
        builder.add_conditional_edges(
            START, lambda state: [Send(node, {"steps": []}) for node in names], list(names)
        )
        for node in names:
            builder.add_edge(node, "end")
    else:
        for node in names:
            builder.add_edge(START, node)
        builder.add_edge(list(names), "end")
    builder.add_edge("end", END)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("by_send", [False, True])
def test_finished_tasks_of_renamed_nodes_do_not_run_again(
    database: Database, by_send: bool
) -> None:
    ran: list[str] = []
    fan(DeltaSaver(database), ran, "a", "b", "c", by_send=by_send).invoke(
        {"steps": []}, thread("t")
    )
    assert sorted(ran) == ["a", "b", "c"]
    step = Step(to=2, says="all of them", rename_nodes={"a": "x", "b": "y", "c": "z"})
    saver = DeltaSaver(database, migrations=Migrations(step))
    result = fan(saver, ran, "x", "y", "z", by_send=by_send).invoke(YES, thread("t"))
    assert sorted(ran) == ["a", "b", "c", "z"], "only the one that asked runs again"
    assert sorted(result["steps"]) == ["done", "done", "end", "yes"]


def test_a_join_that_some_have_reached_keeps_them(database: Database) -> None:
    def graph(saver: Any, a: str, b: str) -> Any:
        builder: Any = StateGraph(Steps)
        builder.add_node(a, lambda state: {"steps": ["a"]})
        builder.add_node("slow", lambda state: {"steps": ["slow"]})
        builder.add_node(b, lambda state: {"steps": [interrupt("?")]})
        builder.add_node("end", lambda state: {"steps": ["end"]})
        builder.add_edge(START, a)
        builder.add_edge(START, "slow")
        builder.add_edge("slow", b)
        builder.add_edge([a, b], "end")
        return builder.compile(checkpointer=saver)

    graph(DeltaSaver(database), "a", "b").invoke({"steps": []}, thread("t"))
    step = Step(to=2, says="other names", rename_nodes={"a": "first", "b": "second"})
    new = graph(DeltaSaver(database, migrations=Migrations(step)), "first", "second")
    assert check_resume(new, thread("t")).ok
    assert new.invoke(YES, thread("t"))["steps"][-2:] == ["yes", "end"]


def test_a_join_written_in_another_order_is_mended_by_renaming_its_channel(
    database: Database,
) -> None:
    from tests.versions.test_graph_fingerprint import with_join

    with_join(DeltaSaver(database), "a", "b").invoke({"steps": []}, thread("t"))
    step = Step(to=2, says="b+a", rename={"join:a+b:c": "join:b+a:c"})
    new = with_join(DeltaSaver(database, migrations=Migrations(step)), "b", "a")
    assert check_resume(new, thread("t")).ok
    assert new.invoke(YES, thread("t"))["steps"][-1] == "c"


def nested(saver: Any, ran: list[str], outer: str, middle: str, inner: str) -> Any:
    """Three graphs inside each other; the innermost works, and then asks."""

    def work(state: Any) -> Any:
        ran.append("work")
        return {"steps": ["work"]}

    innermost: Any = StateGraph(Steps)
    innermost.add_node("work", work)
    innermost.add_node(inner, lambda state: {"steps": [interrupt("?")]})
    innermost.add_edge(START, "work")
    innermost.add_edge("work", inner)
    between: Any = StateGraph(Steps)
    between.add_node(middle, innermost.compile())
    between.add_edge(START, middle)
    root: Any = StateGraph(Steps)
    root.add_node(outer, between.compile())
    root.add_edge(START, outer)
    return root.compile(checkpointer=saver)


def test_a_subgraph_that_paused_in_a_renamed_node_does_not_begin_again(database: Database) -> None:
    ran: list[str] = []
    for name in ("naive", "ours", "again"):
        nested(DeltaSaver(database), ran, "a", "b", "c").invoke({"steps": []}, thread(name))
    assert len(ran) == 3
    naive = nested(DeltaSaver(database), ran, "x", "b", "c").invoke(YES, thread("naive"))
    assert naive["steps"] == [], "LangGraph returns as if all were done"
    steps = [
        Step(to=2, says="x", rename_nodes={"a": "x"}),
        Step(to=2, says="y", inside="x", rename_nodes={"b": "y"}),
        Step(to=3, says="z", inside="x|y", rename_nodes={"c": "z"}),
    ]
    migrations = Migrations(*steps, Step(to=4, says="x2", rename_nodes={"x": "x2"}))
    moved = [step if step.inside == "" else _inside_x2(step) for step in migrations.steps]
    saver = DeltaSaver(database, migrations=Migrations(*moved))
    new = nested(saver, ran, "x2", "y", "z")
    assert check_resume(new, thread("ours")).ok
    assert sorted(new.invoke(YES, thread("ours"))["steps"]) == ["work", "yes"]
    assert len(ran) == 3, "the work that was done is not done again"
    asked = nested(saver, ran, "x2", "y", "z")
    state = asked.get_state(thread("again"), subgraphs=True)
    assert state.tasks[0].state.tasks[0].state.next == ("z",)
    inner = state.tasks[0].state.tasks[0].state.config
    assert [found.config["configurable"]["checkpoint_ns"] for found in saver.list(inner)] == [
        inner["configurable"]["checkpoint_ns"]
    ]


def _inside_x2(step: Step) -> Step:
    from dataclasses import replace

    return replace(step, inside=step.inside.replace("x", "x2", 1))


def test_a_thread_that_a_router_holds_behind_a_renamed_node_goes_on(database: Database) -> None:
    router = FlowRouter(current=2, match="exact", failure="raise")
    old = pinned(
        DeltaSaver(database), FlowRouter(current=1, match="exact", failure="raise"), paths=(1,)
    )
    old.invoke({}, thread("t"))
    with pytest.raises(FlowRefused):
        pinned(DeltaSaver(database), router, paths=(2,)).invoke(YES, thread("t"))
    renamed = pinned(DeltaSaver(database, migrations=RENAMED), router, review_node="approve")
    assert renamed.get_state(thread("t")).next == ("held_after_approve",)
    assert renamed.invoke(None, thread("t"))["charged"] == 100


def test_what_update_state_wrote_is_no_task_and_stops_nothing(database: Database) -> None:
    old = unpinned(DeltaSaver(database), rules=1)
    old.invoke({}, thread("t"))
    old.update_state(thread("t"), {"quoted": 70}, as_node="quote")
    old.invoke(None, thread("t"))
    saver = DeltaSaver(database, migrations=RENAMED)
    renamed = unpinned(saver, rules=1, review_node="approve")
    assert len(list(saver.list(thread("t")))) == len(list(DeltaSaver(database).list(thread("t"))))
    assert renamed.invoke(YES, thread("t"))["charged"] == 70


def test_a_task_that_cannot_be_told_stops_the_migration_instead_of_running_again(
    database: Database,
) -> None:
    saver = DeltaSaver(database)
    unpinned(saver, rules=1).invoke({}, thread("t"))
    found = saver.get_tuple(thread("t"))
    assert found is not None
    saver.put_writes(found.config, [("charged", 1)], "abcdefab-1111-1111-1111-111111111111")
    with pytest.raises(MigrationFailed, match="a node whose task cannot be told"):
        DeltaSaver(database, migrations=RENAMED).get_tuple(thread("t"))
