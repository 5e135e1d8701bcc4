"""The learner's side never stops a notebook, never hides a wrong answer, and can be made strict."""

from __future__ import annotations

import json
import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from durable_kit.lab import exercises, learn
from durable_kit.lab.exercises import Exercise
from durable_kit.lab.learn import CheckFailed, check, compare, hint, predict
from durable_kit.lab.workloads import Ledger

LESSONS = {
    found.name.removeprefix("lesson_"): import_module(f"{exercises.__name__}.{found.name}")
    for found in pkgutil.iter_modules(exercises.__path__)
}
ALL: list[Exercise] = [one for lesson in LESSONS.values() for one in lesson.EXERCISES]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(learn.STATE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(learn.STRICT_VARIABLE, raising=False)
    return tmp_path / "predictions.json"


# --------------------------------------------------------------------------- predictions


def test_a_prediction_is_held_against_the_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    predict("05.growth", 12, unit="MB")
    comparison = compare("05.growth", 30.0, unit="MB")
    assert (comparison.predicted, comparison.measured, comparison.ratio) == (12.0, 30.0, 2.5)
    assert "predicted 12 MB, measured 30 MB: 2.5 times what you said" in capsys.readouterr().out


@pytest.mark.parametrize("none", [..., None])
def test_no_prediction_is_fine_and_leaves_no_file(none: Any, state: Path) -> None:
    predict("05.growth", none, unit="MB")
    comparison = compare("05.growth", 30.0, unit="MB")
    assert (comparison.predicted, comparison.ratio) == (None, None)
    assert "no prediction was made" in str(comparison)
    assert not state.exists()


@pytest.mark.parametrize("nonsense", ["many", float("nan"), [1], True])
def test_a_prediction_that_is_no_number_is_said_and_not_kept(
    nonsense: Any, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predict("05.growth", nonsense, unit="MB")
    assert "is not a number" in capsys.readouterr().out
    assert not state.exists()


def test_predictions_survive_the_kernel_and_are_found_by_their_ids(state: Path) -> None:
    predict("a", 1, unit="ms")
    predict("b", 2, unit="ms")
    predict("a", 3, unit="ms")
    assert json.loads(state.read_text()) == {
        "a": {"unit": "ms", "value": 3.0},
        "b": {"unit": "ms", "value": 2.0},
    }
    assert [file.name for file in state.parent.iterdir()] == ["predictions.json"]
    learn.forget_predictions()
    assert not state.exists()


def test_a_damaged_or_unwritable_state_file_does_not_stop_the_notebook(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state.write_text("{ half a fi")
    assert compare("a", 1.0, unit="ms").predicted is None
    predict("a", 4, unit="ms")
    assert compare("a", 4.0).ratio == 1.0
    blocked = tmp_path / "a-file" / "predictions.json"
    blocked.parent.write_text("not a directory")
    predict("a", 4, unit="ms", path=blocked)
    assert "could not be kept" in capsys.readouterr().out


def test_numbers_of_two_units_are_not_compared() -> None:
    predict("a", 4, unit="ms")
    assert compare("a", 4.0, unit="s").predicted is None


def test_a_prediction_of_zero_has_no_ratio() -> None:
    predict("a", 0, unit="ms")
    assert compare("a", 4.0).ratio is None


# --------------------------------------------------------------------------- checks and hints


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_the_deliberately_wrong_answer_fails_and_the_broken_invariant_is_named(
    exercise: Exercise, capsys: pytest.CaptureFixture[str]
) -> None:
    result = check(exercise.id, exercise.wrong)
    assert not result.passed
    assert result.found
    said = capsys.readouterr().out
    assert "✗" in said
    assert exercise.invariant in said
    assert result.found in said


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
@pytest.mark.parametrize("open_", [..., None])
def test_an_unsolved_exercise_is_neither_passed_nor_an_error(
    exercise: Exercise, open_: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    result = check(exercise.id, open_)
    assert (result.passed, result.state) == (False, "unsolved")
    assert "not solved yet" in capsys.readouterr().out


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
@pytest.mark.parametrize("odd", [0, "text", [], {}, lambda *_: 1 / 0, object()])
def test_an_answer_of_the_wrong_kind_fails_and_does_not_raise(exercise: Exercise, odd: Any) -> None:
    assert not check(exercise.id, odd).passed


@pytest.mark.parametrize(("ask_too", "said"), [(False, "order-3"), (True, "another, empty ledger")])
def test_a_charge_that_remembers_order_ids_in_the_process_is_wrong(
    ask_too: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A set of order ids outlives a new `Ledger`, and does not outlive a process."""
    seen: set[str] = set()

    def charge(ledger: Ledger, order_id: str, amount_cents: int) -> None:
        stored = ask_too and any(entry["charge"] == order_id for entry in ledger.entries())
        if order_id not in seen and not stored:
            ledger.append({"charge": order_id, "amount_cents": amount_cents})
        seen.add(order_id)

    assert not check("00.build", charge).passed
    assert said in capsys.readouterr().out


def test_a_charge_that_asks_the_ledger_is_right() -> None:
    def charge(ledger: Ledger, order_id: str, amount_cents: int) -> None:
        if not any(entry["charge"] == order_id for entry in ledger.entries()):
            ledger.append({"charge": order_id, "amount_cents": amount_cents})

    assert check("00.build", charge).passed


def test_where_solutions_are_tested_a_check_that_does_not_pass_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(learn.STRICT_VARIABLE, "1")
    with pytest.raises(CheckFailed, match="not solved yet"):
        check("05.warm-up", ...)
    with pytest.raises(CheckFailed, match="A saver that stores the whole state"):
        check("05.warm-up", lambda n: n)
    assert check("05.warm-up", lambda n: n * (n + 1) // 2).passed


def test_hints_come_in_steps_and_the_last_one_stays(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(4):
        hint("05.build")
    first, second, third, fourth = capsys.readouterr().out.splitlines()
    assert "hint 1 of 3 (nudge)" in first
    assert "hint 2 of 3 (invariant)" in second
    assert "hint 3 of 3 (worked case)" in third == fourth
    hint("05.build", step=1)
    assert "hint 1 of 3" in capsys.readouterr().out


def test_an_unknown_exercise_names_those_that_there_are() -> None:
    with pytest.raises(LookupError, match=r"05\.warm-up"):
        exercises.find("05.cool-down")
    with pytest.raises(LookupError, match="no lesson '77'"):
        exercises.find("77.warm-up")


def test_ids_say_their_lesson() -> None:
    assert {"00", "05"} <= set(LESSONS)
    for lesson, module in LESSONS.items():
        assert len(module.EXERCISES) >= 3
        assert all(exercise.id.startswith(f"{lesson}.") for exercise in module.EXERCISES)
