"""The figures of durability: what each kill took, and how long each step was at risk.

A median of 0 would hide the one kill that lost something, so both figures show every measured
value as a point of its own: `losses` a point a kill, `windows` a point a step. They take the tables
of `DurabilityReport`, and run nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from durable_kit.lab.figure_style import (
    COLOURS,
    MARKERS,
    SMALL_PT,
    TITLE_PT,
    label_axes,
    new_figure,
)


def losses(
    kills: pd.DataFrame,
    *,
    title: str = "Steps lost when the process is killed",
    label: str = "measured here",
) -> Figure:
    """Every kill as a point: how many executed steps were not in the database afterwards.

    `kills` is `DurabilityReport.kill_table()`, of one saver or of several side by side.
    """
    return _strips(
        kills, "lost_steps", title=title, y="steps lost (log above 1)",
        x="durability (killed after {least:,} to {most:,} steps)", of="executed_steps",
        caption=f"{label[:1].upper()}{label[1:]}: {_n(kills)} kills a column, one point a kill; "
        "the bar is the median, which stands below.",
    )  # fmt: skip


def windows(
    steps: pd.DataFrame,
    *,
    title: str = "How long a finished step is in memory alone",
    label: str = "measured here",
) -> Figure:
    """Every step as a point: from its node's return to the commit of its checkpoint.

    `steps` is `DurabilityReport.window_table()`.
    """
    return _strips(
        steps, "window_ms", title=title, y="window (ms, log above 1)",
        x="durability (a run of {most:,} steps)", of="step",
        caption=f"{label[:1].upper()}{label[1:]}: {_n(steps)} steps a column, one point a step; a "
        "kill in it loses the step.\nThe bar is the median, which stands below.",
    )  # fmt: skip


def losses_alt(kills: pd.DataFrame) -> str:
    """The figure of `losses` in words, from the same table."""
    return (
        "Steps lost when the process is killed, by durability mode; median and range. "
        + _in_words(kills, "lost_steps")
    )


def windows_alt(steps: pd.DataFrame) -> str:
    """The figure of `windows` in words, from the same table."""
    return (
        "Milliseconds from a node's return to the commit of its checkpoint, by durability mode; "
        "median and range. " + _in_words(steps, "window_ms")
    )


def _strips(
    table: pd.DataFrame,
    column: str,
    *,
    title: str,
    x: str,
    y: str,
    of: str,
    caption: str,
) -> Figure:
    """A panel for each step time, a column of points for each mode and saver."""
    panels = list(table.groupby("step_ms"))
    figure, axes = new_figure(len(panels), height_in=4.0, caption=caption)
    top = max(10.0, float(table[column].max()) * 2)
    for one, (step_ms, panel) in zip(axes, panels, strict=True):
        several = len(_savers(panel)) > 1
        ticks: list[str] = []
        for at, (mode, groups) in enumerate(_groups(panel, column)):
            for i, (saver, values) in enumerate(groups):
                style = i if several else at
                width = 0.8 / len(groups)
                middle = at + (i - (len(groups) - 1) / 2) * width
                _points(one, values, middle, width, style, saver if several and not at else "")
            medians = " / ".join(f"{values.median():,.3g}" for _, values in groups)
            ticks.append(f"{mode}\n{'' if several else 'median '}{medians}")
        _log_above_1(one, top)
        one.set_xticks(range(len(ticks)), ticks)
        one.set_xlim(-0.55, len(ticks) - 0.45)
        one.grid(visible=False, axis="x")
        least, most = int(panel[of].min()), int(panel[of].max())
        label_axes(
            one, x=x.format(least=least, most=most), y=y if one is axes[0] else "",
            title=_step_said(step_ms),
        )  # fmt: skip
    if len(_savers(table)) > 1:
        axes[-1].legend(fontsize=SMALL_PT, frameon=True, framealpha=0.9, loc="upper left")
    if title:
        figure.suptitle(title, fontsize=TITLE_PT, x=0.01, ha="left", fontweight="bold")
    return figure


def _points(axes: Axes, values: Any, middle: float, width: float, style: int, label: str) -> None:
    # Side by side in the order of measuring: chance would put some upon others.
    places = [middle + 0.8 * width * ((k + 0.5) / len(values) - 0.5) for k in range(len(values))]
    axes.plot(
        places, values.tolist(), linestyle="none", marker=MARKERS[style % len(MARKERS)],
        color=COLOURS[style % len(COLOURS)], markersize=6 if len(values) < 50 else 3.5,
        markeredgecolor="white", markeredgewidth=0.5 if len(values) < 50 else 0.2, clip_on=False,
        zorder=3, label=label or None,
    )  # fmt: skip
    axes.hlines(
        values.median(), middle - width / 2, middle + width / 2, color="#202020", linewidth=1.4,
        zorder=2 if len(values) < 50 else 4,
    )  # fmt: skip


def _log_above_1(axes: Axes, top: float) -> None:
    """A logarithm has no place for 0; below 1 the axis is linear."""
    axes.set_yscale("symlog", linthresh=1, linscale=0.5)
    axes.set_ylim(-0.25, top)
    axes.set_yticks([0, *(10**k for k in range(len(str(int(top)))))])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _savers(table: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(table["label"])) if "label" in table else [""]


def _groups(panel: pd.DataFrame, column: str) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    for mode, part in panel.groupby("durability", sort=False):
        if "label" in part:
            found = [(str(name), g[column]) for name, g in part.groupby("label", sort=False)]
        else:
            found = [("", part[column])]
        yield str(mode), found


def _n(table: pd.DataFrame) -> str:
    keys = ["step_ms", "durability", *(["label"] if "label" in table else [])]
    sizes = table.groupby(keys).size()
    low, high = int(sizes.min()), int(sizes.max())
    return f"n = {low}" if low == high else f"n = {low} to {high}"


def _in_words(table: pd.DataFrame, column: str) -> str:
    parts = []
    for step_ms, panel in table.groupby("step_ms"):
        several = len(_savers(panel)) > 1
        said = [
            f"{f'{saver}, ' if several else ''}{mode} {values.median():,.3g} "
            f"({values.min():,.4g} to {values.max():,.4g})"
            for mode, groups in _groups(panel, column)
            for saver, values in groups
        ]
        parts.append(f"{_step_said(step_ms)}: {', '.join(said)}")
    return f"{'. '.join(parts)}."


def _step_said(step_ms: float) -> str:
    return f"a step works for {step_ms:g} ms" if step_ms else "a step does next to nothing"
