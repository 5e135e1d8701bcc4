"""What the durability modes lose in a real kill: the number is counted, and its proof is asked."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import replace
from typing import Any

import pytest

from durable_kit.__main__ import main
from durable_kit.crash.child import ChildFailed
from durable_kit.crash.experiment import Attempt
from durable_kit.crash.trial import Bench
from durable_kit.lab import durability_trials
from durable_kit.lab.durability_graph import message
from durable_kit.lab.durability_report import Case, DurabilityReport, KillRow, TimingRow
from durable_kit.lab.durability_trials import killed_run, measure_durability, timed_run
from durable_kit.lab.storage_report import environment

MODES = ["sync", "async", "exit"]


@pytest.fixture(scope="module")
def measured() -> DurabilityReport:
    return measure_durability(kills=2, seed=7, kill_between={0: (20, 60)}, savers=["delta"])


def test_every_kill_is_real_and_comes_when_the_witness_says(measured: DurabilityReport) -> None:
    assert measured.complete
    table = measured.kill_table()
    assert table["durability"].tolist() == MODES * 2
    assert (table["executed_steps"] >= 20).all()
    assert table["ended"].str.contains("killed").all()
    assert (table["resume_ms"] > 0).all()
    assert (table["left_bytes"] > 0).all()


def test_sync_loses_at_most_the_step_in_flight_and_exit_loses_all(
    measured: DurabilityReport,
) -> None:
    for kill in measured.kills:
        assert kill.recovered_steps + kill.lost_steps == kill.executed_steps
        # What was lost is done again; and one more node may have begun when the kill came.
        assert kill.lost_steps <= kill.repeated_count <= kill.lost_steps + 1
        if kill.case.durability == "sync":
            assert 0 <= kill.lost_steps <= 1
        if kill.case.durability == "exit":
            assert kill.lost_steps == kill.executed_steps


def test_the_window_of_a_step_ends_before_the_next_step_only_in_sync(
    measured: DurabilityReport,
) -> None:
    """In sync the next node begins after the commit; in exit nothing is safe until the end."""
    runs = {run.case.durability: run for run in measured.timings}
    assert list(runs) == MODES
    assert {len(run.window_ms) for run in runs.values()} == {durability_trials.timed_steps(0)}
    sync, exit_ = runs["sync"], runs["exit"]
    assert all(0 < w < step for w, step in zip(sync.window_ms, sync.step_ms, strict=False))
    assert list(exit_.window_ms) == sorted(exit_.window_ms, reverse=True)  # one commit for all
    assert exit_.window_ms[0] > sum(exit_.step_ms[1:])


def test_the_table_has_a_line_for_each_case_and_its_bars(measured: DurabilityReport) -> None:
    text = measured.to_text()
    assert "a step does nothing" in text
    for mode in MODES:
        assert f"DeltaSaver  {mode}" in text
    cells = json.loads(measured.to_json())["cells"]
    assert [(c["saver"], c["durability"], c["kills"]) for c in cells] == [
        ("delta", mode, 2) for mode in MODES
    ]
    assert cells[0]["step_p50_ms"] > 0
    assert [bar.what for bar in measured.bars()] == ["most steps lost, sync, step 0 ms, SQLite"]


def test_damage_is_not_counted_as_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A saver that gives back another message has lost nothing, and is no number."""
    case = Case("delta", "sync", 0)
    kill: dict[str, Any] = {"url": None, "after_steps": 5, "then_ms": 0.0}
    assert killed_run(case, 450, **kill).recovered_steps >= 4
    monkeypatch.setattr(
        durability_trials, "message", lambda step, **size: {**message(step, **size), "step": 0}
    )
    with pytest.raises(ChildFailed, match=r"what came back .* is not what was executed.*damage"):
        killed_run(case, 450, **kill)


def test_a_run_that_ended_by_itself_gives_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Bench.run

    def undisturbed(self: Bench, kill: Any) -> Attempt:
        durability_trials.end_at(self.folder, 3)
        return run(self, kill)

    monkeypatch.setattr(Bench, "run", undisturbed)
    with pytest.raises(ChildFailed, match=r"the kill did not happen as told: The crash did not"):
        killed_run(Case("delta", "sync", 0), 450, url=None, after_steps=10, then_ms=0)


def test_a_measurement_that_is_stopped_keeps_what_was_measured() -> None:
    stop = threading.Event()

    def after_two_kills(done: int, total: int, what: str) -> None:
        assert done <= total == 20
        if done == 2:
            stop.set()

    found = measure_durability(
        kills=10,
        seed=1,
        savers=["delta"],
        durabilities=["sync", "exit"],
        kill_between={0: (2, 4)},
        timed=False,
        on_progress=after_two_kills,
        cancelled=stop,
    )
    assert not found.complete
    assert 2 <= len(found.kills) < 20
    assert "Interrupted" in found.to_text()


@pytest.mark.postgres
def test_savers_of_postgresql_are_measured_beside_each_other(postgres_server: Any) -> None:
    found = measure_durability(
        kills=1,
        seed=1,
        savers=["delta-postgres", "postgres"],
        durabilities=["sync"],
        kill_between={0: (5, 9)},
        postgres_url=postgres_server.get_uri(driver="psycopg"),
    )
    assert [kill.lost_steps <= 1 for kill in found.kills] == [True, True]
    assert {kill.left_bytes for kill in found.kills} == {None}
    assert {kill.case.database for kill in found.kills} == {"PostgreSQL"}


def kill_that_lost(lost: int, case: Case) -> KillRow:
    return KillRow(case, 90, 90 - lost, lost, lost, 1.0, 1, "was killed")


def test_bars_compare_with_the_peer_in_the_same_cell() -> None:
    report = DurabilityReport.empty(450, environment({}, {}))
    for saver, step, lost in [("delta", 1.2, 3), ("sqlite", 1.0, 2)]:
        case = Case(saver, "async", 0)
        report = report.with_timing(TimingRow(case, (step,) * 3, step, 1.0, (step,) * 3))
        report = replace(report, kills=report.kills + (kill_that_lost(lost, case),) * 30)
    assert [(bar.value, bar.limit, bar.holds) for bar in report.bars()] == [
        (1.2, 1.15, False),
        (3, 2.5, False),
    ]
    # What only one of them measured is not compared.
    assert replace(report, kills=report.kills[:30], timings=()).bars() == []


def test_too_few_kills_compare_nothing_and_still_break_a_promise() -> None:
    report = DurabilityReport.empty(450, environment({}, {}))
    for saver in ("delta", "sqlite"):
        report = report.with_kill(kill_that_lost(1, Case(saver, "sync", 0)))
    assert {bar.verdict for bar in report.bars()} == {"too few kills to judge"}
    assert json.loads(report.to_json())["bars"][0]["holds"] is None
    report = report.with_kill(kill_that_lost(2, Case("delta", "sync", 0)))
    assert [bar.verdict for bar in report.bars()] == ["MISSED", "too few kills to judge"]
    assert "MISSED                      2.00 <= 1" in report.to_text()


def test_the_ninetieth_percentile_lies_within_what_was_measured() -> None:
    """`statistics.quantiles` alone guesses beyond the worst kill: 46 for these three."""
    report = DurabilityReport.empty(450, environment({}, {}))
    for lost in (14, 30, 40):
        report = report.with_kill(kill_that_lost(lost, Case("delta", "async", 0)))
    [row] = report.summary().to_dict("records")
    assert row["lost_p90_steps"] == pytest.approx(38)
    assert row["lost_most_steps"] == 40


def test_a_kill_comes_late_enough_to_lose_something() -> None:
    assert {ms: durability_trials.kill_between(ms) for ms in (0, 2, 20, 100, 1000)} == {
        0: (10, 60),
        2: (10, 30),
        20: (10, 30),
        100: (2, 6),
        1000: (2, 3),
    }


def test_the_command_prints_the_same_table(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["measure", "durability", "--kills", "1", "--savers", "delta", "--step-ms", "2"]
    assert main([*ask, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [cell["durability"] for cell in found["cells"]] == MODES
    assert main([*ask[:4], "--savers", "nobody"]) == 2
    assert "Unknown savers ['nobody']" in capsys.readouterr().err


def test_a_run_that_is_timed_executes_what_it_says() -> None:
    found = timed_run(Case("sqlite", "async", 0), 450, url=None)
    steps = durability_trials.timed_steps(0)
    assert (len(found.step_ms), len(found.window_ms)) == (steps - 1, steps)
    assert found.flush_ms > 0
    assert found.wall_per_step_ms * steps > sum(found.step_ms)


def test_sync_loses_at_most_the_step_in_flight_in_each_of_some_kills(database_url: str) -> None:
    """A seeded sample of `measure durability --kills 200 --durability sync --step-ms 0`."""
    saver = "delta" if database_url.startswith("sqlite") else "delta-postgres"
    rng = random.Random(200)
    case = Case(saver, "sync", 0)
    for _ in range(6):
        # Raises if it was no kill, if what came back is no prefix, or if `verify` finds a fault.
        kill = killed_run(
            case,
            450,
            url=database_url,
            after_steps=rng.randint(1, 30),
            then_ms=rng.uniform(0, 2),
        )
        assert kill.lost_steps <= 1, kill
