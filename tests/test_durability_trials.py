"""What the durability modes lose in a real kill: the number is counted, and its proof is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from durable_kit import DeltaSaver
from durable_kit.crash.child import ChildFailed
from durable_kit.lab import durability_trials
from durable_kit.lab.durability_trials import Worker, measure_durability, recovered_steps
from durable_kit.lab.durability_worker import DATABASE, THREAD, WITNESS, Witness, talk_graph
from durable_kit.lab.measure import Measured
from durable_kit.lab.workloads import sqlite_url


@pytest.fixture(scope="module")
def measured() -> Measured:
    return measure_durability(repeats=1, seed=7, kill_between={0: (40, 80)}, progress=False)


def test_every_kill_is_real_and_comes_when_the_witness_says(measured: Measured) -> None:
    assert measured.complete
    assert measured.table["durability"].tolist() == ["sync", "async", "exit"]
    assert (measured.table["executed_steps"] >= 40).all()
    assert measured.table["ended"].str.contains("killed").all()


def test_sync_loses_at_most_the_step_in_flight_and_exit_loses_all(measured: Measured) -> None:
    lost = measured.table.set_index("durability")["lost_steps"]
    executed = measured.table.set_index("durability")["executed_steps"]
    assert 0 <= lost["sync"] <= 1
    assert 0 <= lost["async"] <= executed["async"]
    assert lost["exit"] == executed["exit"]
    sums = measured.table["recovered_steps"] + measured.table["lost_steps"]
    assert sums.equals(measured.table["executed_steps"])


def test_no_worker_and_no_folder_stays_behind(measured: Measured) -> None:
    assert measured.done == 3
    assert _workers() == []


def test_what_is_recovered_is_the_beginning_of_what_was_executed(tmp_path: Path) -> None:
    worker = Worker.start("sync", 5, folder=tmp_path)
    with worker.child:
        found = worker.killed(after_steps=5, and_ms=2)
    steps = Witness(tmp_path / WITNESS).steps()
    assert steps == list(range(1, found["executed_steps"] + 1))
    with DeltaSaver.open(sqlite_url(tmp_path / DATABASE)) as saver:
        graph = talk_graph(saver, Witness(tmp_path / "unused"), step_ms=0)
        messages: list[Any] = graph.get_state(THREAD).values["messages"]
    assert [m["step"] for m in messages] == steps[: found["recovered_steps"]]
    assert recovered_steps(tmp_path) == len(messages) >= 4

    (tmp_path / WITNESS).write_bytes(b"%08d\n" % 2 + b"%08d\n" % 1)
    with pytest.raises(ChildFailed, match="not what was executed"):
        recovered_steps(tmp_path)


def test_a_worker_that_ended_by_itself_gives_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability_trials, "TIMEOUT_S", 0.0)  # it is over before it has begun
    worker = Worker.start("sync", 0, folder=tmp_path)
    with worker.child:
        worker.child.wait(timeout_s=30)
        with pytest.raises(ChildFailed, match="the kill did not happen as told: after 0 of 10"):
            worker.killed(after_steps=10)


def test_a_measurement_that_is_stopped_ends_the_workers_that_stand_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stood_by: list[int] = []

    def stopped(self: Worker, **_: float) -> dict[str, Any]:
        stood_by.extend(_workers())
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "killed", stopped)
    found = measure_durability(
        repeats=1, seed=1, durabilities=["sync", "exit"], kill_between={0: (1, 2)}, progress=False
    )
    assert (found.done, found.complete) == (0, False)
    assert len(stood_by) == 2
    assert _workers() == []


def _workers() -> list[int]:
    me = psutil.Process()
    return [p.pid for p in me.children(recursive=True) if durability_trials.WORKER in p.cmdline()]
