"""The learner's side: predict, compare, check, hint.

Whoever reads a number nods. Whoever had to guess it first is surprised, and remembers. So a lesson
asks for a prediction before it measures, and holds it against the measurement after:

    predict("05.growth", 12, unit="MB")          before; kept in a small local file
    …the measurement…
    compare("05.growth", 29.4, unit="MB")        predicted 12 MB, measured 29.4 MB, 2.5 times

and asks for an answer that a program can test:

    answer = ...                                 not solved yet: says so, the notebook runs on
    check("05.build", answer)                    ✗ names the broken invariant, and what was found

Nothing here stops "Run All": no prediction, a prediction that makes no sense, a wrong answer, a
state file that cannot be written all show a message and go on. One exception is deliberate: where
the solutions are tested, `DURABLE_KIT_SOLUTIONS=1` makes an answer that does not pass raise. A
solution notebook that solves nothing cannot be green.

Predictions stay on this machine, in the user's state directory or where `DURABLE_KIT_STATE_DIR`
says; `forget_predictions` removes them.
"""

from __future__ import annotations

import html
import json
import math
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_state_path

from durable_kit.lab import exercises

STATE_VARIABLE = "DURABLE_KIT_STATE_DIR"
STRICT_VARIABLE = "DURABLE_KIT_SOLUTIONS"

_lock = threading.Lock()
_hints_shown: dict[str, int] = {}


class CheckFailed(AssertionError):
    """Raised instead of shown where solutions are tested: an answer that does not pass."""


class _Shown:
    """A result that has been displayed: as the last value of a cell it says nothing again."""

    def _ipython_display_(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Comparison(_Shown):
    """A prediction beside what was measured. `ratio` is measured over predicted, where both are."""

    id: str
    predicted: float | None
    measured: float
    unit: str
    ratio: float | None

    def __str__(self) -> str:
        measured = f"measured {_number(self.measured)} {self.unit}"
        if self.predicted is None:
            return f"{self.id}: {measured}; no prediction was made"
        text = f"{self.id}: predicted {_number(self.predicted)} {self.unit}, {measured}"
        if self.ratio is None:
            return text
        if 0.8 <= self.ratio <= 1.25:
            return f"{text}: within a quarter of it"
        how = f"{self.ratio:.3g} times" if self.ratio > 1 else f"1/{1 / self.ratio:.3g} of"
        return f"{text}: {how} what you said"


@dataclass(frozen=True, slots=True)
class CheckResult(_Shown):
    """What `check` found. `passed` is True only for an answer that holds."""

    id: str
    state: Literal["passed", "failed", "unsolved"]
    invariant: str
    found: str

    @property
    def passed(self) -> bool:
        return self.state == "passed"

    def __str__(self) -> str:
        if self.state == "passed":
            return f"✓ {self.id}: {self.invariant}"
        if self.state == "unsolved":
            return f'○ {self.id}: not solved yet. Stuck? Run hint("{self.id}") in a new cell.'
        return f"✗ {self.id}: broken: {self.invariant} Found: {self.found}"


# -- predictions -------------------------------------------------------------------------------


def predict(id: str, value: Any, *, unit: str, path: Path | None = None) -> None:
    """Note a prediction before the measurement. `...` or None is no prediction, and is fine.

    `path`: another file than the usual one. Never raises.
    """
    if value is None or value is ...:
        _say(
            f"{id}: no prediction yet. Replace the dots by a number (in {unit}) and run this again."
        )
        return
    number = _as_number(value)
    if number is None:
        _say(f"{id}: {value!r} is not a number; a prediction is a number of {unit}.", bad=True)
        return
    with _lock:
        file = path or _predictions_file()
        known = _read(file)
        known[id] = {"value": number, "unit": unit}
        kept = _write(file, known)
    said = f"{id}: you say {_number(number)} {unit}."
    _say(said if kept is None else f"{said} It could not be kept ({kept}).", bad=kept is not None)


def compare(id: str, measured: float, *, unit: str = "", path: Path | None = None) -> Comparison:
    """Show a prediction beside what was measured. Without one it shows the measurement alone.

    A prediction that was made in another unit is not compared. Never raises.
    """
    with _lock:
        entry = _read(path or _predictions_file()).get(id)
    predicted: float | None = None
    if isinstance(entry, dict):
        same_unit = unit in ("", entry.get("unit"))
        predicted = _as_number(entry.get("value")) if same_unit else None
        unit = unit or str(entry.get("unit", ""))
    ratio = measured / predicted if predicted and math.isfinite(measured / predicted) else None
    comparison = Comparison(id, predicted, float(measured), unit, ratio)
    _say(str(comparison))
    return comparison


def forget_predictions(*, path: Path | None = None) -> None:
    """Remove every prediction that was kept."""
    (path or _predictions_file()).unlink(missing_ok=True)


def _predictions_file() -> Path:
    folder = os.environ.get(STATE_VARIABLE)
    return (Path(folder) if folder else user_state_path("durable_kit")) / "predictions.json"


def _read(file: Path) -> dict[str, Any]:
    try:
        known = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}  # a file that cannot be read holds no predictions; the next one replaces it
    return known if isinstance(known, dict) else {}


def _write(file: Path, known: dict[str, Any]) -> str | None:
    """Replace the file in one step; why that was impossible, or None."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=file.parent, suffix=".tmp", delete=False, encoding="utf-8"
        ) as temporary:
            json.dump(known, temporary, indent=1, sort_keys=True)
        Path(temporary.name).replace(file)
    except OSError as error:
        return str(error)
    return None


# -- exercises ---------------------------------------------------------------------------------


def check(id: str, answer: Any) -> CheckResult:
    """Test an answer and show the verdict. Never raises for an answer, however wrong it is.

    `...` and None are "not solved yet". With `DURABLE_KIT_SOLUTIONS=1` whatever does not pass
    raises `CheckFailed`. Raises LookupError for an exercise that does not exist.
    """
    exercise = exercises.find(id)
    if answer is None or answer is ...:
        result = CheckResult(id, "unsolved", exercise.invariant, "")
    else:
        try:
            found = exercise.check(answer)
        except Exception as error:
            found = f"the answer raised {type(error).__name__}: {error}"
        state: Literal["passed", "failed"] = "passed" if found is None else "failed"
        result = CheckResult(id, state, exercise.invariant, found or "")
    if not result.passed and os.environ.get(STRICT_VARIABLE) == "1":
        raise CheckFailed(str(result))
    _say(str(result), bad=result.state == "failed", good=result.passed)
    return result


def hint(id: str, step: int | None = None) -> None:
    """Show the next hint: first a nudge, then the invariant, then a worked case.

    `step` (1, 2 or 3) shows that one again.
    """
    hints = exercises.find(id).hints
    with _lock:
        if step is None:
            step = min(_hints_shown.get(id, 0) + 1, len(hints))
            _hints_shown[id] = step
    if not 1 <= step <= len(hints):
        raise ValueError(f"{id} has the hints 1 to {len(hints)}, not {step}.")
    kind = ("nudge", "invariant", "worked case")[step - 1]
    more = "" if step == len(hints) else " Call hint again for more."
    _say(f"{id}, hint {step} of {len(hints)} ({kind}): {hints[step - 1]}{more}")


# -- saying it ---------------------------------------------------------------------------------


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _say(text: str, *, bad: bool = False, good: bool = False) -> None:
    """As a coloured line in a notebook, as plain text elsewhere."""
    import IPython

    if IPython.get_ipython() is None:
        print(text)
        return
    display: Any = IPython.display.display
    colour = "#b00020" if bad else "#1b6e3c" if good else "#555555"
    style = f"border-left:4px solid {colour};padding:4px 10px;white-space:pre-wrap"
    display(
        {"text/html": f'<div style="{style}">{html.escape(text)}</div>', "text/plain": text},
        raw=True,
    )
