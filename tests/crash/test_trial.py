"""A run is killed for real and resumed, and what is said of it is true."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from durable_kit import DeltaSaver
from durable_kit.crash import fork_server
from durable_kit.crash.child import ChildFailed
from durable_kit.crash.experiment import AfterSteps, AfterTime, AtPoint, Experiment, Kill
from durable_kit.crash.trial import Bench, Trial, run_trial, run_trials
from durable_kit.errors import BadInput
from durable_kit.lab.storage_worker import open_saver
from tests.crash import graphs

SAVER_POINTS = [
    f"saver.{call}.{where}"
    for call in ("put", "put_writes")
    for where in ("before", "before_commit", "after")
]
DONE = {"log": list(graphs.NODES)}


def order(**changes: Any) -> Experiment:
    about: dict[str, Any] = {"graph": graphs.three_nodes, "input": {"log": []}, "fsync": False}
    return Experiment(**{**about, "durability": "sync", **changes})


def names(trial: Trial) -> list[str]:
    return [run.node for run in trial.repeated_runs]


# -- where a kill comes, and what follows ------------------------------------------------------


def test_an_exception_saves_what_a_kill_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DURABLE_KIT_TEST_FILE", str(tmp_path / "the bank is open"))
    gentle = run_trial(order(graph=graphs.failing, durability="exit"))
    assert gentle.attempts[0].error is not None
    assert "ValueError: the bank is closed" in gentle.story
    assert gentle.final_state == {"log": ["prepare"]}  # LangGraph had the time to store it

    killed = run_trial(order(durability="exit"), AtPoint("node.charge.enter"))
    assert killed.crashed
    assert killed.after_kill.step is None
    assert killed.lost_steps == killed.executed_steps == 1
    assert names(killed) == ["prepare", "charge"]
    assert not killed.attempts[1].resumed  # there was nothing to resume
    assert killed.final_state == DONE


def test_a_kill_between_the_effect_and_the_checkpoint_repeats_the_node() -> None:
    trial = run_trial(order(), AtPoint("node.charge.exit"))
    assert trial.crashed
    assert trial.attempts[0].death.killed
    assert trial.points_passed[-1] == "node.charge.exit"
    assert (trial.executed_steps, trial.recovered_steps, trial.lost_steps) == (2, 1, 1)
    assert names(trial) == ["charge"]
    assert trial.attempts[1].resumed
    assert trial.final_state == DONE
    assert trial.bytes_left is not None
    assert trial.bytes_left > 4096
    assert trial.story == "process 1 was killed by SIGKILL, process 2 exited with code 0."


@pytest.mark.parametrize("point", SAVER_POINTS)
def test_at_every_point_of_the_saver_sync_loses_at_most_the_step_in_flight(
    database_url: str, point: str
) -> None:
    plans = [(order(url=database_url), [AtPoint(point, nth)]) for nth in (2, 3)]
    for trial in run_trials(plans):
        assert trial.crashed, trial.story
        assert trial.points_passed[-1] == point
        assert trial.lost_steps <= 1
        recovered = trial.after_kill.values["log"]
        assert recovered == DONE["log"][: len(recovered)]
        assert trial.final_state == DONE
        assert trial.problems == ()


@pytest.mark.parametrize("point", ["saver.compact.before_commit", "saver.prune.before_commit"])
def test_a_kill_in_compaction_or_prune_leaves_every_state_as_it_was(
    database_url: str, point: str
) -> None:
    trial = run_trial(order(graph=graphs.tidying, url=database_url), AtPoint(point))
    assert trial.crashed, trial.story
    assert trial.points_passed[-1] == point
    assert trial.after_kill.values["log"] == [f"work {i}" for i in range(5)]
    assert names(trial) == ["tidy"]
    assert trial.final_state["log"][-2:] == ["tidy", "end"]
    assert trial.problems == ()


def test_only_the_branch_that_was_not_done_runs_again() -> None:
    trial = run_trial(order(graph=graphs.parallel), AtPoint("discount.middle"))
    assert trial.crashed
    assert names(trial) == ["discount"]
    assert len(trial.after_kill.waiting_task_ids) == 1
    assert trial.lost_steps == 0  # `stock` ended and is stored; `discount` never ended
    assert sorted(trial.final_state["log"]) == ["discount", "stock", "sum"]


def test_a_crash_during_recovery_is_recovered_from() -> None:
    kills: list[Kill] = [AtPoint("node.charge.exit"), AtPoint("saver.put.before"), AfterTime(0)]
    trial = run_trial(order(), *kills)
    assert trial.crashed, trial.story
    assert len(trial.attempts) == 4
    assert names(trial)[:1] == ["charge"]
    assert trial.final_state == DONE


def test_a_kill_after_steps_meets_a_process_that_goes_on(tmp_path: Path) -> None:
    bench = Bench(order(graph=graphs.endless), tmp_path)
    attempt = bench.run(AfterSteps(1, then_ms=1))  # `hang` would be the second, and never ends
    assert attempt.death.killed
    assert [run.node for run in attempt.runs if run.ended_s is not None] == ["work"]
    assert attempt.left is None
    with pytest.raises(ChildFailed, match="there is no end"):
        _ = bench.trial().final


def test_a_run_that_nobody_kills_is_the_reference() -> None:
    trial = run_trial(order())
    assert trial.final_state == DONE
    assert trial.repeated_runs == ()
    assert [run.step for run in trial.attempts[0].runs] == [1, 2, 3]
    run = trial.attempts[0].runs[1]
    assert run.ended_s is not None
    first = trial.attempts[0]
    assert first.returned_s is not None
    assert first.began_s < run.began_s < run.ended_s < first.returned_s < first.ended_s


# -- honesty -----------------------------------------------------------------------------------


def test_a_process_that_ended_before_its_point_has_not_crashed() -> None:
    trial = run_trial(order(), AtPoint("node.charge.exit", 2))
    assert not trial.crashed
    assert trial.story.startswith("The crash did not happen as told: process 1 exited with code 0")
    assert len(trial.attempts) == 1
    assert trial.final_state == DONE


def test_what_a_node_prints_is_not_taken_for_what_its_process_says() -> None:
    trial = run_trial(order(graph=graphs.talkative), AtPoint("node.end.enter"))
    assert trial.crashed, trial.story
    assert trial.points_passed[-1] == "node.end.enter"
    assert trial.final_state == {"log": ["talk", "end"]}


def test_a_graph_that_cannot_be_built_is_told_with_its_last_words() -> None:
    with pytest.raises(ChildFailed, match="has no attribute 'no_such_graph'"):
        run_trial(order(graph="tests.crash.graphs:no_such_graph"))


def test_what_cannot_travel_is_refused_with_what_to_do() -> None:
    lock = threading.Lock()
    with pytest.raises(BadInput, match="Make connections, locks and clients inside"):
        run_trial(order(graph=lambda saver: (lock, graphs.three_nodes(saver))[1]))
    with pytest.raises(BadInput, match="LangGraph knows sync, async and exit"):
        order(durability="never")


def test_a_run_that_hangs_ends_at_its_deadline() -> None:
    with pytest.raises(ChildFailed, match=r"said nothing|before"):
        run_trial(order(graph=graphs.endless), deadline_s=0.5)
    assert _children() == []


def test_trials_that_are_cancelled_leave_no_process() -> None:
    cancelled = threading.Event()
    plans = [(order(graph=graphs.endless), [AtPoint("nowhere")])] * 3
    threading.Timer(1.0, cancelled.set).start()
    with pytest.raises(ChildFailed, match="cancelled"):
        list(run_trials(plans, cancelled=cancelled))
    assert _children() == []


# -- other savers, other ways to start ---------------------------------------------------------


def test_another_saver_gets_its_points_from_outside() -> None:
    trial = run_trial(order(saver=partial(open_saver, "sqlite")), AtPoint("saver.put.after", 3))
    assert trial.crashed
    assert trial.points_passed.count("saver.put.before") == 3
    assert trial.after_kill.values == {"log": ["prepare"]}
    assert trial.final_state == DONE


@pytest.mark.postgres
def test_postgres_saver_and_many_trials_share_one_database(postgres_database: Any) -> None:
    experiment = order(saver=partial(open_saver, "postgres"), url=postgres_database())
    run_trial(experiment)  # its setup() fails where two processes call it at the same moment
    plans = [(experiment, [AtPoint(f"node.{name}.exit")]) for name in graphs.NODES]
    for trial, name in zip(run_trials(plans), graphs.NODES, strict=True):
        assert trial.crashed, trial.story
        assert names(trial) == [name]
        assert trial.final_state == DONE
        assert trial.bytes_left is None


@pytest.mark.parametrize("asynchronous_saver", [True, False])
def test_an_async_run_is_killed_like_a_sync_one(asynchronous_saver: bool) -> None:
    saver: Any = graphs.async_sqlite if asynchronous_saver else DeltaSaver.open
    experiment = order(saver=saver, use_async=True)
    trial = run_trial(experiment, AtPoint("node.charge.exit"))
    assert trial.crashed, trial.story
    assert names(trial) == ["charge"]
    assert trial.final_state == DONE


def test_without_fork_every_process_starts_anew_and_tells_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fork_server, "AVAILABLE", False)
    trial = run_trial(order(), AtPoint("node.charge.exit"))
    assert trial.crashed, trial.story
    assert (trial.lost_steps, names(trial), trial.final_state) == (1, ["charge"], DONE)


@pytest.mark.skipif(not fork_server.AVAILABLE, reason="no fork on this platform")
def test_a_forked_process_is_ready_several_times_sooner_than_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forked = [run_trial(order()).attempts[0].started_s for _ in range(4)]
    monkeypatch.setattr(fork_server, "AVAILABLE", False)
    new = run_trial(order()).attempts[0].started_s
    assert min(forked) < new / 4


def test_a_graph_of_a_plain_script_goes_along_by_value(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["begun", "True ['double'] {'number': 14}"], done.stderr


SCRIPT = """
from typing import TypedDict
from langgraph.graph import END, START, StateGraph
from durable_kit.crash.trial import AtPoint, Experiment, run_trial

print("begun")  # a second time, if the child ran this file
FACTOR = 2

class State(TypedDict):
    number: int

def double(state: State) -> State:
    return {"number": FACTOR * state["number"]}

def build(saver):
    builder = StateGraph(State)
    builder.add_node(double)
    builder.add_edge(START, "double")
    builder.add_edge("double", END)
    return builder.compile(checkpointer=saver)

experiment = Experiment(graph=build, input={"number": 7}, durability="sync")
trial = run_trial(experiment, AtPoint("node.double.exit"))
print(trial.crashed, [run.node for run in trial.repeated_runs], trial.final_state)
"""


def _children() -> list[int]:
    """Processes that work for a trial: children of the fork server, or of ours."""
    give_up = time.monotonic() + 5
    while True:
        found = [
            child.pid
            for server in psutil.Process().children()
            if "durable_kit.crash.fork_server" in server.cmdline()
            for child in server.children()
        ]
        if not found or time.monotonic() > give_up:
            return found
        time.sleep(0.01)
