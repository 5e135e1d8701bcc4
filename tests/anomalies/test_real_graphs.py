"""Real LangGraph graphs on DeltaSaver: the same states and the same history as in memory.

The in-memory saver keeps whole states and cannot lose a delta, so it says what is right. Every
scenario runs on both, by `invoke` and by `ainvoke`; then the stories are compared: what the user
saw, every state in the history, every row with its pending writes in order. One test reads them
all again in a process that has nothing in memory.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from . import real_graphs
from .scenarios import SCENARIOS, Driver
from .telling import as_text, story, told

if TYPE_CHECKING:
    from durable_kit.delta_saver import DeltaSaver

ROOT = Path(__file__).parents[2]
ENTRIES = {"by invoke": False, "by ainvoke": True}


@pytest.fixture
def saver(database_url: str) -> Iterator[DeltaSaver]:
    from durable_kit.delta_saver import DeltaSaver

    with DeltaSaver.open(database_url) as opened:
        yield opened


def reopened(url: str) -> DeltaSaver:
    from durable_kit.delta_saver import DeltaSaver

    return DeltaSaver.open(url)


def both(name: str, saver: Any, **how: Any) -> tuple[Any, Any]:
    """Run a scenario on `saver` and in memory: (seen and told) of each."""
    graph, scenario = SCENARIOS[name]
    found = []
    for one in (saver, InMemorySaver()):
        drive = Driver(graph, one, "thread", **how)
        found.append({"seen": told(scenario(drive)), "told": story(drive.graph, one, "thread")})
    return found[0], found[1]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_graph_tells_the_same_story_as_in_memory(
    saver: DeltaSaver, name: str, entry: str
) -> None:
    found, expected = both(name, saver, use_async=ENTRIES[entry])
    assert as_text(found) == as_text(expected)
    assert saver.verify("thread").ok


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_every_durability_tells_the_same_story_as_in_memory(
    tmp_path: Path, durability: str, entry: str
) -> None:
    for name in (
        "lists_grow",
        "branches_run_in_parallel",
        "a_turn_is_left_for_another",
        "questions_repeat_until_answered",
        "subgraphs_count_for_themselves",
    ):
        with reopened(f"sqlite:///{tmp_path / name}.db") as saver:
            found, expected = both(name, saver, use_async=ENTRIES[entry], durability=durability)
            assert as_text(found) == as_text(expected), name


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_stream_shows_the_same_parts_as_in_memory(
    saver: DeltaSaver, durability: str, entry: str
) -> None:
    given = {"count": 0}, {"plain": ["in"], "delta": ["in"]}
    for name, first in zip(("appending", "fan_out:2"), given, strict=True):
        shown: list[dict[str, list[str]]] = []
        for one in (saver, InMemorySaver()):
            drive = Driver(name, one, name, use_async=ENTRIES[entry], durability=durability)
            parts: dict[str, list[str]] = {"values": [], "updates": []}
            for mode, part in drive.stream(first):
                parts[mode].append(as_text(told(part)))
            # Parallel tasks report as they finish, in any order; values come step by step.
            shown.append({"values": parts["values"], "updates": sorted(parts["updates"])})
        assert shown[0] == shown[1]
        assert len(shown[0]["values"]) > 2


def test_a_new_process_tells_all_the_stories(database_url: str) -> None:
    """Forks, subgraphs, delta channels, edits of the past: nothing of it lives in memory only."""
    expected, pairs = {}, []
    with reopened(database_url) as saver:
        for name, (graph, scenario) in SCENARIOS.items():
            oracle = InMemorySaver()
            for one in (saver, oracle):
                scenario(Driver(graph, one, name))
            expected[name] = story(real_graphs.build(graph, oracle), oracle, name)
            pairs.append(f"{graph}={name}")
    found = in_a_new_process(database_url, pairs)
    assert set(found) == set(expected)
    for name, one in expected.items():
        assert as_text(found[name]) == as_text(one), name


def test_parallel_branches_rebuild_in_the_order_the_run_applied(database_url: str) -> None:
    """Over random node names: the value that invoke returned is the value that is read later."""
    returned, pairs = {}, []
    with reopened(database_url) as saver:
        for seed in range(8):
            drive = Driver(f"fan_out:{seed}", saver, f"seed {seed}")
            returned[drive.thread_id] = drive.run({"plain": ["in"], "delta": ["in"]})
            assert returned[drive.thread_id]["plain"] == returned[drive.thread_id]["delta"]
            assert drive.values() == returned[drive.thread_id]
            pairs.append(f"{drive.name}={drive.thread_id}")
    found = in_a_new_process(database_url, pairs)
    for thread_id, values in returned.items():
        assert found[thread_id]["states"][-1]["values"] == told(values)
        orders = {tuple(values["plain"]) for values in returned.values()}
        assert len(orders) == 8, "eight different orders"


def test_a_fork_of_a_delta_channel_has_nothing_of_the_branch_it_left(database_url: str) -> None:
    with reopened(database_url) as saver:
        drive = Driver("delta_turns", saver, "t")
        drive.run({"said": "1", "log": ["in 1"]})
        base = drive.history()[-1].config
        drive.run({"said": "2", "log": ["in 2"]})
        old_tip = drive.history()[-1].config
        drive.run({"said": "2b", "log": ["in 2b"]}, at=base)
        new_tip = drive.history()[-1].config
    first = ["in 1", "heard 1", "reply 2"]
    for _ in range(2):
        with reopened(database_url) as saver:
            drive = Driver("delta_turns", saver, "t")
            assert drive.values(base)["log"] == first
            assert drive.values(old_tip)["log"] == [*first, "in 2", "heard 2", "reply 5"]
            assert drive.values(new_tip)["log"] == [*first, "in 2b", "heard 2b", "reply 5"]
            assert drive.values(old_tip)["rare"] == ["1", "2"]
            assert drive.values(new_tip)["rare"] == ["1", "2b"]
            assert drive.values() == drive.values(new_tip)
            saver.compact("t")


def test_nested_counters_reach_three_and_namespaces_list_their_own_rows(saver: DeltaSaver) -> None:
    drive = Driver("nested", saver, "t")
    for _ in range(3):
        drive.run({"count": 0, "trace": []})
    counts = {}
    for namespace in ("", "kind", "kind|größe"):
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": namespace}}
        listed = list(saver.list(config))
        assert {row.config["configurable"]["checkpoint_ns"] for row in listed} == {namespace}
        newest = saver.get_tuple(config)
        assert newest is not None
        assert newest.checkpoint["id"] == listed[0].checkpoint["id"]
        counts[namespace] = newest.checkpoint["channel_values"]["count"]
    assert counts == {"": 3, "kind": 3, "kind|größe": 3}
    nothing: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "kin"}}
    assert list(saver.list(nothing)) == []


def test_both_tips_survive_an_edit_of_the_past(database_url: str) -> None:
    with reopened(database_url) as saver:
        drive = Driver("appending", saver, "t")
        drive.run({"count": 0})
        history = drive.history()
        tip, past = history[-1].config, history[2].config
        fork = drive.update(past, {"items": ["edited"]}, as_node="step")
        drive.run(None, at=fork)
        new_tip = drive.history()[-1].config
        expected = [drive.values(at) for at in (tip, past, new_tip)]
    assert expected[0]["items"] == [f"item {n}" for n in range(1, 6)]
    assert expected[2]["items"] == ["item 1", "edited", "item 2", "item 3", "item 4", "item 5"]
    with reopened(database_url) as saver:
        drive = Driver("appending", saver, "t")
        assert [drive.values(at) for at in (tip, past, new_tip)] == expected
        assert drive.values() == expected[2]


@pytest.mark.parametrize("entry", ENTRIES)
def test_tools_run_once_when_a_paused_step_is_pruned_compacted_and_resumed_elsewhere(
    database_url: str, entry: str
) -> None:
    real_graphs.RUNS.clear()
    with reopened(database_url) as saver:
        drive = Driver("three_tools", saver, "t", use_async=ENTRIES[entry])
        drive.run({"done": ["start"]})
        assert sorted(real_graphs.RUNS) == ["a", "c"]
        saver.prune(["t"], strategy="keep_latest")
        saver.compact("t")
    with reopened(database_url) as saver:
        drive = Driver("three_tools", saver, "t", use_async=ENTRIES[entry])
        found = drive.run(Command(resume="you may"))
        assert found["done"] == ["start", "a True", "b you may", "c True", "end"]
        assert sorted(real_graphs.RUNS) == ["a", "b", "c"]
        assert saver.verify("t").ok


def test_a_delta_channel_outlives_pruning_copying_and_compaction(database_url: str) -> None:
    with reopened(database_url) as saver:
        drive = Driver("delta_turns", saver, "t")
        for turn in range(7):
            drive.run({"said": f"turn {turn}", "log": [f"in {turn}"]}, run_id=f"run {turn}")
        expected = drive.values()
        assert len(expected["log"]) == 21
        saver.prune(["t"], strategy="keep_latest")
        assert drive.values() == expected
        saver.compact("t")
        assert drive.values() == expected
        saver.copy_thread("t", "copy")
        saver.delete_thread("t")
    with reopened(database_url) as saver:
        drive = Driver("delta_turns", saver, "copy")
        assert drive.values() == expected
        further = drive.run({"said": "on", "log": ["on"]})
        assert further["log"] == [*expected["log"], "on", "heard on", "reply 23"]
        assert saver.verify("copy").ok


def test_deleting_a_run_in_the_middle_changes_no_state_of_another(saver: DeltaSaver) -> None:
    drive = Driver("appending", saver, "t")
    for run in ("first", "second", "third"):
        drive.run({"count": 0, "items": [run]}, run_id=run)
    before = {
        state.config["configurable"]["checkpoint_id"]: state.values
        for state in drive.history()
        if state.metadata["run_id"] != "second"
    }
    assert {state.metadata["run_id"] for state in drive.history()} == {"first", "second", "third"}
    saver.delete_for_runs(["second"])
    after = {
        state.config["configurable"]["checkpoint_id"]: state.values for state in drive.history()
    }
    assert after == before
    assert drive.run({"count": 0, "items": ["fourth"]})["items"][-6] == "fourth"


def slow(kind: type[Any]) -> type[Any]:
    """The same saver on a slow disk: it is always a few steps behind an asynchronous run."""

    class Slow(kind):  # type: ignore[misc]
        def put(self, *arguments: Any) -> Any:
            time.sleep(0.01)
            return super().put(*arguments)

        async def aput(self, *arguments: Any) -> Any:
            await asyncio.sleep(0.01)
            return await super().aput(*arguments)

    return Slow


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_slow_saver_stores_each_step_as_it_was(tmp_path: Path, entry: str) -> None:
    """With async durability the run is ahead of the store; nothing later may slip into a step.

    The join of parallel branches is the hard part: the runtime hands out the very set that it
    fills in the next step, in a checkpoint that says (by its version) that the join is unchanged.
    """
    from durable_kit.delta_saver import DeltaSaver

    for name in ("lists_grow", "branches_run_in_parallel", "questions_repeat_until_answered"):
        expected, _ = both(name, InMemorySaver())
        with slow(DeltaSaver).open(f"sqlite:///{tmp_path / name}.db") as saver:
            found, _ = both(name, saver, use_async=ENTRIES[entry], durability="async")
            assert as_text(found) == as_text(expected), name


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_accumulating_topic_is_stored_late_by_the_runtime_itself(
    tmp_path: Path, entry: str
) -> None:
    """Pinned: with async durability LangGraph hands out the live list of a `Topic` that
    accumulates, and a saver that starts late, its own in-memory one too, sees the end of the run
    in every step. No saver can undo that. With sync durability each step is as it was."""
    from durable_kit.delta_saver import DeltaSaver

    def lengths(saver: Any, durability: str) -> list[int]:
        drive = Driver("topics", saver, "t", use_async=ENTRIES[entry], durability=durability)
        drive.run({"count": 0})
        assert drive.values()["topic"] == [f"x{n}" for n in range(5)]
        return [len(state.values.get("topic", [])) for state in drive.history()]

    for number, kind in enumerate((InMemorySaver, DeltaSaver)):
        found = {}
        for durability in ("sync", "async"):
            url = f"sqlite:///{tmp_path / durability}{number}.db"
            saver = slow(kind).open(url) if kind is DeltaSaver else slow(kind)()
            with saver:
                found[durability] = lengths(saver, durability)
        assert found["sync"] == [0, 0, 1, 2, 3, 4, 5]
        assert found["async"] == [0, 0, 5, 5, 5, 5, 5], "fixed upstream? Then expect the line above"


def in_a_new_process(url: str, pairs: list[str]) -> dict[str, Any]:
    """The stories as another process tells them: thread id → story."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.anomalies.read_in_new_process", url, *pairs],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)
