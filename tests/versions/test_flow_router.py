"""Threads finish by the rules that they began with, or wait; none ends quietly on others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from durable_kit import BadInput, DeltaSaver
from durable_kit.versions.flow_router import (
    FlowRefused,
    FlowRouter,
    FlowVersionChanged,
)
from tests.versions.flows import YES, Order, pinned, thread, unpinned


@pytest.fixture(params=["ours", "langgraph's"])
def saver(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "langgraph's":
        yield InMemorySaver()
        return
    with DeltaSaver.open("sqlite:///:memory:") as ours:
        yield ours


def router(current: int, **choices: Any) -> FlowRouter:
    return FlowRouter(current=current, **{"match": "exact", "failure": "raise"} | choices)


def test_without_a_pin_an_old_order_pays_the_new_price(saver: Any) -> None:
    unpinned(saver, rules=1).invoke({}, thread("t"))
    assert unpinned(saver, rules=2).invoke(YES, thread("t"))["charged"] == 105


def test_a_thread_ends_on_the_rules_that_it_began_with(saver: Any) -> None:
    pinned(saver, router(1), paths=(1,)).invoke({}, thread("old"))
    new_code = pinned(saver, router(2))
    new_code.invoke({}, thread("new"))
    assert new_code.invoke(YES, thread("old"))["charged"] == 100
    assert new_code.invoke(YES, thread("new"))["charged"] == 105


def test_a_thread_from_before_pins_counts_as_version_1(saver: Any) -> None:
    unpinned(saver, rules=1).invoke({}, thread("t"))
    assert pinned(saver, router(2)).invoke(YES, thread("t"))["charged"] == 100


def test_the_second_turn_of_a_thread_from_before_pins_is_version_1_too(saver: Any) -> None:
    unpinned(saver, rules=1).invoke({}, thread("t"))
    unpinned(saver, rules=1).invoke(YES, thread("t"))
    new_code = pinned(saver, router(2))
    new_code.invoke({"quoted": 0}, thread("t"))
    result = new_code.invoke(YES, thread("t"))
    assert (result["flow_version"], result["charged"]) == (1, 100)


def test_a_fork_keeps_the_pin_of_its_thread(saver: Any) -> None:
    old_code = pinned(saver, router(1), paths=(1,))
    old_code.invoke({}, thread("t"))
    old_code.invoke(YES, thread("t"))
    paused = next(s for s in old_code.get_state_history(thread("t")) if "review" in s.next)
    new_code = pinned(saver, router(2))
    fork = new_code.update_state(paused.config, {"quoted": 200}, as_node="quote")
    new_code.invoke(None, fork)
    assert new_code.invoke(YES, thread("t"))["charged"] == 200


def test_a_raising_edge_ends_the_thread_quietly_and_our_branch_does_not(saver: Any) -> None:
    asked = []

    def naive(state: Order) -> str:
        asked.append(state)
        if len(asked) == 1:
            raise RuntimeError("no path for this version")
        return "charge"

    builder: Any = StateGraph(Order)
    builder.add_node("review", lambda state: {"approved": "yes"})
    builder.add_node("charge", lambda state: {"charged": 100})
    builder.add_edge(START, "review")
    builder.add_conditional_edges("review", naive, ["charge"])
    builder.add_edge("charge", END)
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(RuntimeError, match="no path"):
        graph.invoke({}, thread("naive"))
    assert "charged" not in graph.invoke(None, thread("naive")), "LangGraph skips the rest"

    pinned(saver, router(1), paths=(1,)).invoke({}, thread("ours"))
    without_path = pinned(saver, router(2), paths=(2,))
    for _ in range(2):  # every resume asks again, and none ends it
        with pytest.raises(FlowRefused, match="Deploy the path of flow_version 1 again"):
            without_path.invoke(YES, thread("ours"))
        assert without_path.get_state(thread("ours")).next == ("held_after_review",)
    assert pinned(saver, router(2)).invoke(None, thread("ours"))["charged"] == 100


@pytest.mark.parametrize("match", ["exact", "newest_not_above"])
def test_a_thread_newer_than_the_code_is_refused_and_goes_on_when_the_code_is_back(
    saver: Any, match: str
) -> None:
    pinned(saver, router(2, match=match)).invoke({}, thread("t"))
    rolled_back = pinned(saver, router(1, match=match), paths=(1,))
    with pytest.raises(FlowRefused, match="this code is flow_version 1"):
        rolled_back.invoke(YES, thread("t"))
    assert pinned(saver, router(2, match=match)).invoke(None, thread("t"))["charged"] == 105


def test_the_newest_path_that_is_not_above_takes_versions_without_a_path_of_their_own(
    saver: Any,
) -> None:
    choice = router(5, match="newest_not_above")
    paths = {1: "charge_1", 4: "charge_4"}
    assert [choice.path_of(v, paths) for v in (1, 3, 4, 5)] == [
        "charge_1",
        "charge_1",
        "charge_4",
        "charge_4",
    ]
    assert choice.path_of(6, paths) is None
    assert router(5).path_of(3, paths) is None


def test_a_parked_thread_pauses_and_can_be_looked_at(saver: Any) -> None:
    pinned(saver, router(1), paths=(1,)).invoke({}, thread("t"))
    without_path = pinned(saver, router(2, failure="park"), paths=(2,))
    without_path.invoke(YES, thread("t"))
    [task] = without_path.get_state(thread("t")).tasks
    assert task.interrupts[0].value["flow_version"] == 1
    again = without_path.invoke(Command(resume="look again"), thread("t"))
    assert "__interrupt__" in again
    assert "charged" not in again
    assert pinned(saver, router(2, failure="park")).invoke(None, thread("t"))["charged"] == 100


def test_a_step_that_writes_another_version_is_stopped(saver: Any) -> None:
    code = pinned(saver, router(2))
    code.invoke({}, thread("t"))
    with pytest.raises(FlowVersionChanged, match="pinned to flow_version 2; a step wrote 1"):
        code.update_state(thread("t"), {"flow_version": 1}, as_node="quote")
    assert code.invoke(YES, thread("t"))["charged"] == 105


def test_a_version_that_is_no_version_waits_instead_of_guessing(saver: Any) -> None:
    code = pinned(saver, router(2))
    code.invoke({"flow_version": -1}, thread("t"))
    with pytest.raises(FlowRefused, match="which is no flow_version"):
        code.invoke(YES, thread("t"))


def test_a_branch_without_a_path_for_new_threads_is_refused_at_once() -> None:
    builder: Any = StateGraph(Order)
    with pytest.raises(BadInput, match="one must fit 2, which new threads get"):
        router(2).branch(builder, "review", {1: "charge_1"})
    with pytest.raises(BadInput, match="match is 'exact' or"):
        FlowRouter(current=1, match="strict", failure="raise")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="numbers 1, 2, 3"):
        router(0)
