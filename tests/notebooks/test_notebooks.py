"""Every lesson and every solution, executed under the guard, and read for the rules they keep."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from durable_kit.lab.guard import Limits, Outcome, execute, limits_for_this_machine
from durable_kit.lab.guard_rules import check_rules

FOLDER = Path(__file__).parents[2] / "notebooks"
LESSONS = sorted(FOLDER.glob("*.ipynb"))
SOLUTIONS = sorted((FOLDER / "solutions").glob("*.ipynb"))
ALL = [*LESSONS, *SOLUTIONS]
LIMITS = Limits(cell_s=30, notebook_s=60, first_figure_s=10)

# A solution is its lesson, but for the exercises, and the lesson is run as it stands. So the
# solutions measure less.
SMALLER: dict[str, dict[str, Any]] = {
    "00_start_here": {"KILLS": 1},
    "01_state_snapshot_event_effect": {"RESUMES": ("sends again",)},
    "02_supersteps_pending_writes": {"KILLS": 2, "CALLS": 4},
    "03_durability_modes": {"KILLS": 1, "POWER_LOSSES": 3, "MESSAGES": 120},
    "04_idempotent_gateway": {"POINTS": ("gateway.after_intent", "provider.after_effect")},
    "05_snapshot_delta_compaction": {"STEPS": (50, 100), "REPEATS": 1, "READ_MESSAGES": 120},
    "06_versions_and_flow_version": {"STATE_KB": (1, 200), "REPEATS": 1},
}


def _read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def _id(path: Path) -> str:
    return path.relative_to(FOLDER).with_suffix("").as_posix()


def test_there_are_notebooks_and_each_lesson_has_its_solution() -> None:
    """An empty glob would make every test below pass on nothing."""
    assert "00_start_here.ipynb" in [path.name for path in LESSONS]
    assert [path.name for path in SOLUTIONS] == [path.name for path in LESSONS]


@pytest.mark.parametrize("path", ALL, ids=_id)
def test_a_notebook_keeps_the_rules_of_its_file(path: Path) -> None:
    assert [str(finding) for finding in check_rules(_read(path))] == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", ALL, ids=_id)
def test_a_notebook_runs_and_the_guard_finds_nothing(path: Path) -> None:
    outcome: Outcome = execute(
        _read(path),
        folder=path.parent,
        limits=limits_for_this_machine(LIMITS),
        solutions=path in SOLUTIONS,
        parameters=SMALLER[path.stem] if path in SOLUTIONS else None,
    )
    slowest = sorted(outcome.cell_seconds.items(), key=lambda item: -item[1])[:3]
    print(f"{_id(path)}: {outcome.seconds:.1f} s, first figure after {outcome.first_figure_s} s")
    print("slowest cells:", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest))
    assert [str(finding) for finding in outcome.findings] == []


@pytest.mark.parametrize("solution", SOLUTIONS, ids=_id)
def test_a_solution_differs_from_its_lesson_in_the_exercises_only(solution: Path) -> None:
    lesson = _read(FOLDER / solution.name)
    pairs = list(zip(lesson.cells, _read(solution).cells, strict=True))
    differing = [
        a for a, b in pairs if (a.id, a.cell_type, a.source) != (b.id, b.cell_type, b.source)
    ]
    exercises = [cell for cell in lesson.cells if "exercise" in cell.metadata.get("tags", [])]
    assert [cell.id for cell in differing] == [cell.id for cell in exercises]
    assert len(exercises) >= 3


def test_a_solution_that_leaves_an_exercise_open_does_not_pass() -> None:
    """The lesson itself, run as if it were the solution: its dots must fail there."""
    lesson = _read(FOLDER / "00_start_here.ipynb")
    [setup] = [cell for cell in lesson.cells if cell.id == "setup"]
    [exercise] = [cell for cell in lesson.cells if cell.id == "exercise-warm-up"]
    lesson.cells = [setup, exercise]
    outcome = execute(
        lesson, folder=FOLDER, solutions=True, limits=Limits(cell_s=120, notebook_s=180)
    )
    assert any("CheckFailed" in finding.text for finding in outcome.findings)


def test_the_button_check_again_works_after_the_lesson_has_cleaned_up() -> None:
    """Run All ends with the lesson's folder gone, and the button is pressed after that."""
    lesson = _read(FOLDER / "00_start_here.ipynb")
    cells = {cell.id: cell for cell in lesson.cells}
    press = nbformat.v4.new_code_cell(PRESS_CHECK_AGAIN, id="press-check-again")
    lesson.cells = [*(cells[i] for i in ("setup", "check-the-machine", "clean-up")), press]
    outcome = execute(lesson, folder=FOLDER, limits=Limits(cell_s=120, notebook_s=180))
    assert [str(finding) for finding in outcome.findings] == []


PRESS_CHECK_AGAIN = """
import gc

[panel] = [one for one in gc.get_objects() if isinstance(one, EnvironmentPanel)]
panel.run_button.click()
assert panel.wait(100)
assert panel.last_error is None, panel.last_error
assert panel.last_result
assert "FileNotFoundError" not in panel.area.value, panel.area.value
"""


@pytest.mark.parametrize("lesson", LESSONS, ids=_id)
def test_the_lines_to_take_home_run_in_a_plain_script(lesson: Path, tmp_path: Path) -> None:
    [cell] = [cell for cell in _read(lesson).cells if cell.id == "use-it-in-your-project"]
    [code] = re.findall(r"```python\n(.*?)```", cell.source, flags=re.DOTALL)
    assert len(code.splitlines()) <= 14
    script = tmp_path / "script.py"
    script.write_text(code, "utf-8")
    for _ in range(2):  # the second time there is something stored already
        done = subprocess.run(
            [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", ALL, ids=_id)
def test_no_way_leads_to_a_lesson_that_is_not_there(path: Path) -> None:
    text = "\n".join(cell.source for cell in _read(path).cells)
    text = re.sub(r"\d\d \(to come\)", "", text)
    named = set(re.findall(r"lesson (\d\d)", text))
    for way in re.findall(r"(?:Before|After): ([^.]*)\.", text):
        named |= set(re.findall(r"\d\d", way))
    named |= set(re.findall(r"\| (\d\d) \|", text))  # the map of the course
    assert named
    assert named <= {lesson.name[:2] for lesson in LESSONS}


@pytest.mark.parametrize("path", ALL, ids=_id)
def test_a_notebook_has_the_parts_that_a_lesson_needs(path: Path) -> None:
    ids = [cell.id for cell in _read(path).cells]
    for part in (
        "title",
        "you-will-be-able-to",
        "setup",
        "parameters",
        "invariants",
        "smallest-example",
        "predict-first",
        "explore-it",
        "exercises",
        "what-this-does-not-show",
        "use-it-in-your-project",
        "clean-up",
    ):
        assert part in ids, part
    assert ids[-1] == "clean-up"
    assert any("figure" in cell.metadata.get("tags", []) for cell in _read(path).cells)
