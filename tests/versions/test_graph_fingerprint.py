"""A graph that changed under a waiting thread is noticed before it runs."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from durable_kit import DeltaSaver
from durable_kit.versions.graph_fingerprint import (
    check_resume,
    fingerprinted,
    graph_fingerprint,
    shape_of,
)
from durable_kit.versions.resume import GraphChanged, NoProgress, resume
from tests.versions.flows import thread, unpinned


@pytest.fixture(params=["ours", "langgraph's"])
def saver(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "langgraph's":
        yield InMemorySaver()
        return
    with DeltaSaver.open("sqlite:///:memory:") as ours:
        yield ours


def with_keys(saver: Any, *keys: str) -> Any:
    """a, then b with a pause before it; a state of these keys."""
    state = TypedDict("state", dict.fromkeys(keys, int))  # type: ignore[misc]
    builder: Any = StateGraph(state)
    builder.add_node("a", lambda state: {"total": state["total"] + 1})
    builder.add_node("b", lambda state: {"total": state["total"] + 10})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", END)
    return fingerprinted(builder.compile(checkpointer=saver, interrupt_before=["b"]))


class Steps(TypedDict):
    steps: Annotated[list[str], operator.add]


def with_join(saver: Any, *starts: str) -> Any:
    """a at once, b a step later and after an answer; c when both have come."""
    builder: Any = StateGraph(Steps)
    for node in ("a", "slow", "c"):
        builder.add_node(node, lambda state, node=node: {"steps": [node]})
    builder.add_node("b", lambda state: {"steps": [interrupt("?")]})
    builder.add_edge(START, "a")
    builder.add_edge(START, "slow")
    builder.add_edge("slow", "b")
    builder.add_edge(list(starts), "c")
    builder.add_edge("c", END)
    return fingerprinted(builder.compile(checkpointer=saver))


def test_a_dropped_key_makes_a_pause_endless_and_is_reported_before_it_runs(saver: Any) -> None:
    with_keys(saver, "total", "note").invoke({"total": 1, "note": 2}, thread("t"))
    graph = with_keys(saver, "total")
    for _ in range(3):
        graph.invoke(None, thread("t"))
        assert graph.get_state(thread("t")).next == ("b",), "LangGraph pauses again and again"
    check = check_resume(graph, thread("t"))
    assert "'note', which the graph does not have" in check.problems[0]
    assert check.differences == ("the channel note (LastValue) is gone",)
    with pytest.raises(GraphChanged, match="pause here for ever"):
        resume(graph, thread("t"))


def test_a_join_whose_nodes_are_written_in_another_order_is_reported_before_it_runs(
    saver: Any,
) -> None:
    for name in ("naive", "ours"):
        with_join(saver, "a", "b").invoke({"steps": []}, thread(name))
    graph = with_join(saver, "b", "a")
    ended = graph.invoke(Command(resume="b"), thread("naive"))
    assert graph.get_state(thread("naive")).next == ()
    assert "c" not in ended["steps"], "LangGraph ends without the join, and says nothing"
    with pytest.raises(GraphChanged, match=r"nodes \['a'\] have arrived.*'join:b\+a:c'"):
        resume(graph, thread("ours"), Command(resume="b"))
    assert check_resume(graph, thread("ours")).differences == (
        "the join a+b → c is gone",
        "the join b+a → c is new",
    )
    result = resume(with_join(saver, "a", "b"), thread("ours"), Command(resume="b"))
    assert result["steps"][-1] == "c"


def test_a_removed_node_strands_its_threads_and_is_reported_before_it_runs(saver: Any) -> None:
    fingerprinted(unpinned(saver, rules=1)).invoke({}, thread("t"))
    graph = fingerprinted(unpinned(saver, rules=1, review_node="approve"))
    assert "charged" not in graph.invoke(None, thread("t")), "returns as if all were done"
    fingerprinted(unpinned(saver, rules=1)).invoke({}, thread("u"))
    with pytest.raises(GraphChanged, match="waits at node 'review'"):
        resume(graph, thread("u"), Command(resume="yes"))
    assert "the node review is gone" in check_resume(graph, thread("u")).differences


def test_a_finished_task_that_wrote_a_dropped_key_is_reported(saver: Any) -> None:
    def graph(*keys: str) -> Any:
        builder: Any = StateGraph(TypedDict("state", dict.fromkeys(keys, int)))  # type: ignore[misc]
        builder.add_node("ask", lambda state: {"answer": interrupt("?")})
        builder.add_node("work", lambda state: {keys[1]: 7})
        builder.add_edge(START, "ask")
        builder.add_edge(START, "work")
        return builder.compile(checkpointer=saver)

    graph("answer", "worked").invoke({"answer": 0}, thread("t"))
    problems = check_resume(graph("answer", "done"), thread("t")).problems
    assert any("wrote 'worked', which the graph does not have" in p for p in problems)


def test_a_problem_inside_a_subgraph_is_reported(saver: Any) -> None:
    def graph(inner_node: str) -> Any:
        inner: Any = StateGraph(Steps)
        inner.add_node(inner_node, lambda state: {"steps": [interrupt("?")]})
        inner.add_edge(START, inner_node)
        outer: Any = StateGraph(Steps)
        outer.add_node("check", inner.compile())
        outer.add_edge(START, "check")
        return fingerprinted(outer.compile(checkpointer=saver))

    graph("look").invoke({"steps": []}, thread("t"))
    assert check_resume(graph("look"), thread("t")).ok
    check = check_resume(graph("see"), thread("t"))
    assert "in the subgraph 'check': the thread waits at node 'look'" in check.problems[0]
    assert "the node check/look is gone" in check.differences


def test_an_unchanged_graph_and_an_unknown_thread_have_nothing_to_report(saver: Any) -> None:
    graph = with_keys(saver, "total")
    assert check_resume(graph, thread("t")).ok
    graph.invoke({"total": 1}, thread("t"))
    check = check_resume(with_keys(saver, "total"), thread("t"))
    assert (check.problems, check.differences) == ((), ())
    assert resume(graph, thread("t"))["total"] == 12


def test_a_resume_without_the_answer_makes_no_progress_and_says_so(saver: Any) -> None:
    graph = unpinned(saver, rules=1)
    graph.invoke({}, thread("t"))
    with pytest.raises(NoProgress, match="waits at reserve, review as before"):
        resume(graph, thread("t"))
    assert resume(graph, thread("t"), Command(resume="yes"))["charged"] == 100


def test_differences_that_a_thread_does_not_notice_are_told_and_stop_nothing(saver: Any) -> None:
    with_keys(saver, "total").invoke({"total": 1}, thread("t"))
    graph = with_keys(saver, "total", "tip")
    check = check_resume(graph, thread("t"))
    assert check.ok
    assert check.differences == ("the channel tip (LastValue) is new",)
    assert resume(graph, thread("t"))["total"] == 12


def test_a_reducer_is_part_of_the_shape() -> None:
    def graph(reducer: Any) -> Any:
        builder: Any = StateGraph(TypedDict("state", {"steps": Annotated[list, reducer]}))  # type: ignore[misc]
        builder.add_node("a", lambda state: {})
        builder.add_edge(START, "a")
        return builder.compile()

    before, now = shape_of(graph(operator.add)), shape_of(graph(operator.iadd))
    assert before.differences(now) == (
        "the channel steps (BinaryOperatorAggregate, _operator.add) is gone",
        "the channel steps (BinaryOperatorAggregate, _operator.iadd) is new",
    )


def test_the_fingerprint_does_not_depend_on_hash_randomisation_but_a_join_from_a_set_does() -> None:
    script = (
        "from tests.versions.test_graph_fingerprint import *\n"
        "for nodes in (['a', 'b'], [*{'a', 'b', 'slow'}]):\n"
        "    print(graph_fingerprint(with_join(InMemorySaver(), *nodes)))"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2, 3)
    ]
    told = [child.communicate(timeout=120)[0].split() for child in children]
    assert len({in_order for in_order, _ in told}) == 1
    assert len({from_a_set for _, from_a_set in told}) > 1
    assert len(graph_fingerprint(with_join(InMemorySaver(), "a", "b"))) == 12
