"""A field is renamed in four deploys, and none may come too early."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from durable_kit import DeltaSaver
from durable_kit.versions.field_rename import read_new, rename_survey
from tests.versions.flows import thread

YES = Command(resume="yes")


def deploy(saver: Any, fields: list[str], writes: list[str], reads: Any) -> Any:
    """Sets the total, asks, and tells it."""
    state: Any = TypedDict(  # type: ignore[misc]
        "state", dict.fromkeys([*fields, "answer", "told"], Any), total=False
    )
    builder: Any = StateGraph(state)
    builder.add_node("set", lambda values: dict.fromkeys(writes, 7))
    builder.add_node("ask", lambda values: {"answer": interrupt("?")})
    builder.add_node("tell", lambda values: {"told": reads(values)})
    builder.add_edge(START, "set")
    builder.add_edge("set", "ask")
    builder.add_edge("ask", "tell")
    return builder.compile(checkpointer=saver)


def read_both(values: Any) -> Any:
    return read_new(values, old="sum", new="total")


@pytest.mark.parametrize("saver", [InMemorySaver, lambda: DeltaSaver.open("sqlite:///:memory:")])
def test_each_stage_waits_until_the_threads_allow_it(saver: Any) -> None:
    store = saver()
    before = deploy(store, ["sum"], ["sum"], lambda values: values["sum"])
    before.invoke({}, thread("old"))
    naive = deploy(store, ["total"], ["total"], lambda values: values.get("total"))
    assert naive.invoke(YES, thread("old"))["told"] is None, "the naive rename lost the 7"

    before.invoke({}, thread("waits"))
    survey = rename_survey(store, old="sum", new="total")
    assert "has no field 'total'" in survey.objection(
        "write both", graph=before, old="sum", new="total"
    )
    added = deploy(store, ["sum", "total"], ["sum"], lambda values: values["sum"])
    assert not survey.objection("write both", graph=added, old="sum", new="total")

    writes_both = deploy(store, ["sum", "total"], ["sum", "total"], lambda values: values["sum"])
    writes_both.invoke({}, thread("both"))
    added.update_state(thread("both"), {"sum": 8}, as_node="set")  # old code, still running
    survey = rename_survey(store, old="sum", new="total")
    assert "'both': some code still writes only one" in survey.objection("read new")
    writes_both.update_state(thread("both"), {"sum": 8, "total": 8}, as_node="set")
    survey = rename_survey(store, old="sum", new="total")
    assert not survey.objection("read new")

    reads_new = deploy(store, ["sum", "total"], ["sum", "total"], read_both)
    assert "'waits': let them end" in survey.objection("remove")
    assert reads_new.invoke(YES, thread("waits"))["told"] == 7
    assert not rename_survey(store, old="sum", new="total").objection("remove")

    removed = deploy(store, ["total"], ["total"], lambda values: values["total"])
    assert removed.invoke(YES, thread("both"))["told"] == 8


def test_a_field_that_was_never_written_is_an_error_and_not_none() -> None:
    assert read_new({"sum": 7, "total": None}, old="sum", new="total") == 7
    assert read_new({"total": 0, "sum": 1}, old="sum", new="total") == 0
    with pytest.raises(KeyError):
        read_new({}, old="sum", new="total")
