"""Figures of kills: every kill is a point, every column has its saver, the words agree."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from durable_kit.lab import crash_plots, plots


def table(column: str, values: dict[str, list[float]]) -> pd.DataFrame:
    """`values` for "saver mode step_ms", one row a value."""
    rows: list[dict[str, Any]] = []
    for case, numbers in values.items():
        label, mode, step_ms = case.split()
        rows += [
            {"label": label, "durability": mode, "step_ms": float(step_ms), column: number}
            for number in numbers
        ]
    return pd.DataFrame(rows)


KILLS = {
    "Delta sync 0": [0, 1, 0],
    "Peer sync 0": [0, 0, 0],
    "Delta async 0": [90, 100, 110],
    "Peer async 0": [95, 96, 97],
    "Delta sync 20": [0, 0, 1],
    "Peer sync 20": [0, 0, 0],
}


@pytest.mark.parametrize(
    ("draw", "column"),
    [(crash_plots.lost_steps, "lost_steps"), (crash_plots.windows, "window_ms")],
)
def test_every_row_is_a_point_and_every_step_time_a_panel(draw: Any, column: str) -> None:
    kills = table(column, {case: [n + 0.5 for n in numbers] for case, numbers in KILLS.items()})
    figure = draw(kills)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "a step does nothing",
        "a step works for 20 ms",
    ]
    drawn = [y for axes in figure.axes for line in axes.get_lines() for y in line.get_ydata()]
    assert sorted(drawn) == sorted(kills[column])
    assert "n = 3" in figure._supxlabel.get_text()
    assert [t.get_text() for t in figure.axes[-1].get_legend().get_texts()] == ["Delta", "Peer"]
    assert plots.png(figure) == plots.png(draw(kills))


def test_zero_lost_steps_have_a_place_on_the_logarithmic_axis() -> None:
    figure = crash_plots.lost_steps(table("lost_steps", KILLS))
    low, high = figure.axes[0].get_ylim()
    assert low < 0
    assert high > 110


def test_the_words_have_the_median_and_the_range_of_every_column() -> None:
    said = crash_plots.by_saver_alt(table("lost_steps", KILLS), "lost_steps", "Steps lost")
    assert "Delta async, step 0 ms: 100 (90 to 110)" in said
    assert "Delta sync, step 20 ms: 0 (0 to 1)" in said
