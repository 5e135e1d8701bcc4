"""Super-steps under real kills: what is repeated, and what LangGraph says of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_kit import DeltaSaver
from durable_kit.crash.experiment import Durability
from durable_kit.lab.exercises import lesson_02
from durable_kit.lab.order_agent import OrderAgent
from durable_kit.lab.pending_writes import kill_before_the_checkpoint, measure_node_size
from durable_kit.lab.provider import Provider


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider.start() as started:
        yield started


def test_a_kill_repeats_the_calls_of_the_node_it_falls_into_and_no_others() -> None:
    told: list[int] = []
    table = measure_node_size(
        calls=4, calls_per_node=(1, 2, 4), call_ms=0, repeats=1, on_progress=told.append
    )
    killed = table[table["killed_after_call"] > 0]
    found = {
        size: rows.sort_values("killed_after_call")["repeated_calls_count"].tolist()
        for size, rows in killed.groupby("calls_per_node")
    }
    assert found == {1: [1, 1, 1, 1], 2: [1, 2, 1, 2], 4: [1, 2, 3, 4]}
    undisturbed = table[table["killed_after_call"] == 0]
    assert undisturbed["repeated_calls_count"].tolist() == [0, 0, 0]
    assert (undisturbed["run_ms"] > 0).all()
    assert told[-1] == len(table) == 15


def test_langgraph_empties_next_before_the_run_is_over() -> None:
    """Pins what the installed version does. If this fails, lesson 02 teaches something untrue."""
    snapshots = lesson_02.snapshots()
    trapped, _ = snapshots["a result waits beside the checkpoint"]
    assert trapped.next == ()
    assert [task.name for task in trapped.tasks] == ["second"]
    finished, _ = snapshots["finished"]
    assert (finished.next, finished.tasks) == ((), ())
    nothing, _ = snapshots["nothing is stored"]
    assert (nothing.next, nothing.tasks, nothing.created_at) == ((), (), None)


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_real_kill_leaves_a_run_that_looks_finished_and_none_resumes_it(
    provider: Provider, tmp_path: Path, durability: Durability
) -> None:
    agent = OrderAgent(provider.url)
    for n in range(2):
        run = kill_before_the_checkpoint(
            agent, f"trap-{durability}-{n}", durability=durability, folder=tmp_path
        )
        assert (run.next, run.tasks) == ((), ("charge",))
        assert run.looks_finished
    order_id = run.config["configurable"]["thread_id"]
    before = [entry.kind for entry in provider.entries(order_id)]
    assert before.count("charge") == 1
    with DeltaSaver.open(run.url) as saver:
        graph = agent(saver)
        graph.invoke(None, run.config, durability=durability)
        assert graph.get_state(run.config).tasks == ()
    after = [entry.kind for entry in provider.entries(order_id)]
    assert after.count("charge") == 1
    if durability == "sync":  # with async the next node had run already, and nobody knew
        assert (before, after) == (["charge"], ["charge", "email"])
