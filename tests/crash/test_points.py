"""Points around a graph and a saver that have none: each is passed once, and in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from durable_kit import DeltaSaver, crash_point
from durable_kit.crash.points import graph_with_points, saver_with_points
from durable_kit.crash.witness import Witness, node_runs, repeated
from tests.crash import graphs

CONFIG: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Path]:
    crash_point.arm(None, record=tmp_path / "points")
    yield tmp_path / "points"
    crash_point.arm(None)


def passed(record: Path) -> list[str]:
    return [name for name, _ in crash_point.passed(record)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_write_of_a_saver_and_each_node_run_is_told_once(
    record: Path, asynchronous: bool
) -> None:
    saver = saver_with_points(InMemorySaver())  # its async methods call the sync ones
    graph = graph_with_points(graphs.three_nodes(saver))
    if asynchronous:
        asyncio.run(graph.ainvoke({"log": []}, CONFIG, durability="sync"))
    else:
        graph.invoke({"log": []}, CONFIG, durability="sync")
    names = passed(record)
    assert names.count("saver.put.before") == names.count("saver.put.after") == 5
    checkpoints = len(list(saver.list(CONFIG)))
    assert checkpoints == 5
    of_nodes = [name for name in names if name.startswith("node.")]
    assert of_nodes == [f"node.{n}.{w}" for n in graphs.NODES for w in ("enter", "exit")]
    assert names.index("node.prepare.exit") < names.index("node.charge.enter")


def test_the_saver_and_the_graph_that_were_given_stay_as_they_are(record: Path) -> None:
    saver = InMemorySaver()
    graph = graphs.three_nodes(saver)
    watched = saver_with_points(saver)
    graph_with_points(graph)
    assert isinstance(watched, InMemorySaver)
    graph.invoke({"log": []}, CONFIG, durability="sync")
    assert passed(record) == []
    assert watched.get_tuple(CONFIG) is not None  # one storage


def test_a_delta_saver_is_not_wrapped_since_it_has_its_points(record: Path) -> None:
    with DeltaSaver.open("sqlite://") as saver:
        assert saver_with_points(saver) is saver
        graphs.three_nodes(saver).invoke({"log": []}, CONFIG, durability="sync")
        saver.compact("t")
        saver.prune(["t"], keep_last=1)
    names = passed(record)
    for call in ("put", "put_writes"):
        counts = {names.count(f"saver.{call}.{w}") for w in ("before", "before_commit", "after")}
        assert len(counts) == 1
        assert counts != {0}
    assert names[-2:] == ["saver.compact.before_commit", "saver.prune.before_commit"]


def test_a_write_that_raises_does_not_pass_its_second_point(record: Path) -> None:
    class Full(InMemorySaver):
        def put(self, *_: Any) -> Any:
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        saver_with_points(Full()).put(CONFIG, {}, {}, {})
    assert passed(record) == ["saver.put.before"]


def test_the_witness_tells_what_ran_and_what_was_in_flight(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "w", fsync=True)
    witness.begins("a", 1, "id-1")
    witness.begins("b", 1, "id-2")
    witness.ended("b", 1, "id-2")
    with (tmp_path / "w").open("ab") as torn:
        torn.write(b"end 17")
    first, second = node_runs(tmp_path / "w")
    assert (first.node, first.ended_s) == ("a", None)
    assert second.ended_s is not None
    assert node_runs(tmp_path / "nobody wrote this") == ()

    again = Witness(tmp_path / "again", fsync=False)
    for name, step, task_id in [("b", 1, "new-id"), ("b", 1, "another"), ("b", 2, "x")]:
        again.begins(name, step, task_id)
    found = repeated([first, second], node_runs(tmp_path / "again"))
    assert [run.task_id for run in found] == ["new-id"]  # b had run once, and runs twice again


def test_nested_nodes_are_told_with_their_parents(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "w", fsync=False)
    inner = graph_with_points(graphs.chain(None, ("search", None)), witness=witness)
    outer = graphs.chain(InMemorySaver(), ("research", inner))
    graph_with_points(outer, witness=witness).invoke({"log": []}, CONFIG)
    assert [run.path for run in node_runs(tmp_path / "w")] == ["research", "research|search"]
