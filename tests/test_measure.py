"""Trials become a table that says its units, n, spread and machine, and whether it is whole."""

from __future__ import annotations

import threading
from typing import Any

import pandas as pd
import pytest

from durable_kit.lab.measure import growth_exponent, run_trials, summarise


def test_trials_run_in_turns_so_that_a_noisy_minute_slows_all_candidates() -> None:
    order: list[str] = []

    def trial(saver: str) -> dict[str, Any]:
        order.append(saver)
        return {"step_ms": 1.0}

    measured = run_trials(trial, [{"saver": "a"}, {"saver": "b"}], repeats=3, progress=False)
    assert order == ["a", "b"] * 3
    assert list(measured.table.columns) == ["saver", "round", "step_ms"]
    assert measured.complete
    assert measured.table["round"].tolist() == [1, 1, 2, 2, 3, 3]


def test_a_number_without_a_unit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'duration' has no unit"):
        run_trials(lambda: {"duration": 3}, [{}], repeats=1, progress=False)


def test_text_and_truth_values_need_no_unit() -> None:
    measured = run_trials(lambda: {"engine": "sqlite", "ok": True}, [{}], repeats=1, progress=False)
    assert measured.table.iloc[0].to_dict() == {"round": 1, "engine": "sqlite", "ok": True}


def test_an_interrupt_keeps_what_was_measured_and_says_that_it_is_incomplete() -> None:
    calls = iter(range(100))

    def trial() -> dict[str, Any]:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return {"step_ms": 1.0}

    measured = run_trials(trial, [{}], repeats=10, progress=False)
    assert (len(measured.table), measured.done, measured.planned) == (3, 3, 10)
    assert not measured.complete
    assert "INCOMPLETE: 3 of 10" in measured.note()


def test_a_cancel_button_stops_it_between_two_trials() -> None:
    cancelled = threading.Event()

    def trial() -> dict[str, Any]:
        cancelled.set()
        return {"step_ms": 1.0}

    measured = run_trials(trial, [{}], repeats=10, cancelled=cancelled, progress=False)
    assert (measured.done, measured.complete) == (1, False)


def test_stopped_before_the_first_trial_there_is_an_empty_table_with_its_columns() -> None:
    cancelled = threading.Event()
    cancelled.set()
    measured = run_trials(
        lambda size: {"step_ms": 1.0}, [{"size": 1}], repeats=2, cancelled=cancelled, progress=False
    )
    assert list(measured.table.columns) == ["size", "round"]
    assert measured.done == 0
    assert summarise(measured.table, by="size").empty


def test_an_error_of_a_trial_is_not_taken_for_an_interrupt() -> None:
    def trial() -> dict[str, Any]:
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        run_trials(trial, [{}], repeats=2, progress=False)


def test_a_summary_gives_the_range_of_few_values_and_the_middle_half_of_many() -> None:
    few = pd.DataFrame({"saver": ["a"] * 3 + ["b"] * 3, "step_ms": [1.0, 9.0, 2.0, 4.0, 4.0, 5.0]})
    row = summarise(few, by="saver").iloc[0]
    assert (row["n"], row["step_ms"], row["step_ms_low"], row["step_ms_high"]) == (3, 2.0, 1.0, 9.0)
    assert row["spread"] == "min to max"
    many = pd.DataFrame({"saver": ["a"] * 9, "step_ms": [float(i) for i in range(9)]})
    row = summarise(many, by=["saver"]).iloc[0]
    assert (row["step_ms_low"], row["step_ms_high"], row["spread"]) == (2.0, 6.0, "p25 to p75")


def test_a_summary_by_a_column_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"\['saver'\].*step_ms"):
        summarise(pd.DataFrame({"step_ms": [1.0]}), by="saver")


def test_the_record_says_where_here_was() -> None:
    here = run_trials(lambda: {"n_count": 1}, [{}], repeats=1, progress=False).environment
    assert here.python
    assert here.sqlite
    assert here.cpu_count >= 1
    assert "langgraph" in here.packages


def test_a_growth_exponent_is_one_for_linear_and_two_for_quadratic() -> None:
    sizes = [100, 200, 400]
    assert growth_exponent(sizes, [3.0 * n for n in sizes]) == pytest.approx(1.0)
    assert growth_exponent(sizes, [0.5 * n * n for n in sizes]) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="two points above zero"):
        growth_exponent([10], [1.0])
