"""Figures of crashes: what each ending of a run leaves behind.

Like all figures of the kit: a table goes in, a matplotlib `Figure` comes out, and nothing is run
(`plots.py` tells why). One point is one crash. A median alone would hide the one crash in thirty
that lost everything, and that one is what a user remembers.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from durable_kit.lab.figure_style import (
    COLOURS,
    MARKERS,
    SMALL_PT,
    TEXT_PT,
    TITLE_PT,
    label_axes,
    new_figure,
)
from durable_kit.lab.order_agent import NODES
from durable_kit.lab.run_story import AGAIN, FIRST, IN_FLIGHT, LOST, STORED, Bar, RunStory

BAD = "#b00020"


def power_loss(table: pd.DataFrame) -> Figure:
    """Every simulated end of a run: how many acknowledged steps were gone.

    `table` is that of `power_loss.measure_power_loss`. A crossed point is a file that could not be
    read any more, or a proof that failed.
    """
    panels = list(table.groupby("fate", sort=False))
    figure, axes = new_figure(
        len(panels),
        caption=f"SIMULATED, {_n(table, ['synchronous', 'fate'])} ends a column, one point an end; "
        "the bar is the median; a red cross is a damaged database.",
    )
    top = max(1.0, float(table["acknowledged_steps"].max()))
    for one, (fate, panel) in zip(axes, panels, strict=True):
        settings = list(panel.groupby("synchronous", sort=False))
        for i, (_, ends) in enumerate(settings):
            _strip(one, i, ends["lost_steps"], series=i, bad=ends["verdict"] != "sound")
        one.set_ylim(-0.03 * top, 1.06 * top)
        _columns(one, [str(name) for name, _ in settings])
        y = "acknowledged steps lost" if one is axes[0] else ""
        label_axes(one, x="synchronous", y=y, title=str(fate))
    _heading(figure, "Process death is not power loss")
    return figure


def power_loss_alt(table: pd.DataFrame) -> str:
    """The figure of `power_loss` in words, from the same table."""
    parts = []
    for fate, panel in table.groupby("fate", sort=False):
        settings = ", ".join(
            f"{name} {ends['lost_steps'].median():.0f} (worst {ends['lost_steps'].max()}, damaged "
            f"{int((ends['verdict'] != 'sound').sum())} of {len(ends)})"
            for name, ends in panel.groupby("synchronous", sort=False)
        )
        parts.append(f"{fate}: {settings}")
    return f"Simulated: acknowledged steps lost, by synchronous; median. {'. '.join(parts)}."


def _strip(
    axes: Axes,
    place: float,
    values: pd.Series,
    *,
    series: int,
    width: float = 0.64,
    bad: pd.Series | None = None,
) -> None:
    """Points side by side in their order (chance would put some upon others), and their median."""
    numbers = values.tolist()
    wrong = [False] * len(numbers) if bad is None else bad.tolist()
    places = [place + width * ((k + 0.5) / len(numbers) - 0.5) for k in range(len(numbers))]
    size = 6 if len(numbers) <= 40 else 3
    for crossed in (False, True):
        chosen = [k for k, is_wrong in enumerate(wrong) if is_wrong == crossed]
        if not chosen:
            continue
        axes.plot(
            [places[k] for k in chosen], [numbers[k] for k in chosen], linestyle="none",
            marker="X" if crossed else MARKERS[series % len(MARKERS)],
            color=BAD if crossed else COLOURS[series % len(COLOURS)],
            markersize=8 if crossed else size, markeredgecolor="white",
            markeredgewidth=0.5 if size > 3 else 0, clip_on=False, zorder=3,
        )  # fmt: skip
    half = width * 0.6
    axes.hlines(values.median(), place - half, place + half, color="#202020", linewidth=1.4)


def _columns(axes: Axes, names: list[str]) -> None:
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.55, len(names) - 0.45)
    axes.grid(visible=False, axis="x")


def _heading(figure: Figure, text: str) -> None:
    figure.suptitle(text, fontsize=TITLE_PT, x=0.01, ha="left", fontweight="bold")


def _n(table: pd.DataFrame, keys: list[str]) -> str:
    sizes = table.groupby(keys).size()
    low, high = int(sizes.min()), int(sizes.max())
    return f"n = {low}" if low == high else f"n = {low} to {high}"


def run_timeline(story: RunStory) -> Figure:
    """Two processes, one agent: what each executed, what became durable, where it ended.

    One lane a node, two for the database (a task's writes, and a checkpoint, may be stored at the
    same moment), one for the provider's book; time runs to the right and begins anew with the
    second process.
    """
    ends = [max(end, 1.0) for end in story.ends_ms]
    longest = max(ends)
    figure, axes = new_figure(
        len(ends),
        height_in=3.8,
        ratios=[max(end, longest / 2.5) for end in ends],
        caption=f"Measured here: one run, n = 1; durability={story.request.durability!r}, a model "
        f"call takes {story.request.step_ms:g} ms.",
        margins={"left": 0.135, "right": 0.985, "bottom": 0.2, "top": 0.83, "wspace": 0.06},
    )
    lanes = {name: i for i, name in enumerate((*NODES, *_BELOW))}
    for number, (one, end) in enumerate(zip(axes, ends, strict=True), start=1):
        killed = story.crashed and number == 1
        for bar in (b for b in story.bars if b.process == number):
            _draw_bar(one, bar, lanes[bar.node], longest)
        for mark in (m for m in story.marks if m.process == number):
            lane, marker, colour = _MARKS[mark.what]
            one.plot(
                [mark.at_ms], [lanes[lane]], linestyle="none", marker=marker, color=colour,
                markersize=9 if marker == "|" else 7, markeredgewidth=1.6 if marker == "|" else 0.5,
                zorder=4, clip_on=False,
            )  # fmt: skip
        if killed:
            one.axvline(end, color=BAD, linewidth=2, zorder=5)
            one.plot([end], [-0.75], marker="X", color=BAD, markersize=10, clip_on=False, zorder=6)
        how = "killed" if killed else "finished"
        one.set_title(
            f"process {number}: {how}", fontsize=TEXT_PT, loc="left", color=BAD if killed else "k"
        )
        one.set_xlim(0, end * (1.0 if killed else 1.04))
        one.set_ylim(len(lanes) - 0.4, -0.75)
        one.set_yticks(range(len(lanes)), list(lanes) if number == 1 else [""] * len(lanes))
        one.axhline(len(NODES) - 0.5, color="#808080", linewidth=0.8)
        one.xaxis.set_major_locator(MaxNLocator(nbins=4 if end > longest / 2 else 2))
        label_axes(one, x="ms since invoke", y="")
    _fate_legend(figure, {bar.fate for bar in story.bars})
    return figure


def run_timeline_alt(story: RunStory) -> str:
    """The figure of `run_timeline` in words."""
    parts = []
    for number in range(1, len(story.ends_ms) + 1):
        runs = ", ".join(f"{b.node} ({b.fate})" for b in story.bars if b.process == number)
        parts.append(f"Process {number} executed {runs or 'nothing'}.")
    return f"Timeline of one run. {' '.join(parts)} {story.sentence()}"


_BELOW = ("writes", "checkpoints", "provider")  # the lanes under those of the nodes
_MARKS = {
    "writes": ("writes", "|", "#202020"),
    "checkpoint": ("checkpoints", "s", "#202020"),
    "charge": ("provider", "D", BAD),
    "email": ("provider", "o", COLOURS[0]),
}
_FATES: dict[str, dict[str, Any]] = {
    STORED: {"facecolor": COLOURS[0], "hatch": ""},
    FIRST: {"facecolor": COLOURS[0], "hatch": "", "alpha": 0.55},
    LOST: {"facecolor": COLOURS[1], "hatch": "///"},
    IN_FLIGHT: {"facecolor": "white", "hatch": "xxx"},
    AGAIN: {"facecolor": COLOURS[1], "hatch": "..."},
}


def _draw_bar(axes: Axes, bar: Bar, lane: int, longest_ms: float) -> None:
    width = max(bar.ended_ms - bar.began_ms, longest_ms / 120)  # a quick one must be seen, too
    edge = BAD if bar.fate in (IN_FLIGHT, LOST, AGAIN) else "white"
    axes.barh(
        lane, width, left=bar.began_ms, height=0.62, edgecolor=edge, zorder=3, **_FATES[bar.fate]
    )


def _fate_legend(figure: Figure, fates: set[str]) -> None:
    handles: list[Any] = [
        Patch(label=fate, edgecolor=BAD if fate in (IN_FLIGHT, LOST, AGAIN) else "white", **style)
        for fate, style in _FATES.items()
        if fate in fates
    ]
    said = {"writes": "writes", "checkpoint": "checkpoint", "charge": "charge", "email": "e-mail"}
    handles += [
        Line2D([], [], linestyle="none", marker=marker, color=colour, label=said[what])
        for what, (_, marker, colour) in _MARKS.items()
    ]
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.005, 1.0), ncols=len(handles),
        fontsize=SMALL_PT - 1, frameon=False, handletextpad=0.4, columnspacing=0.9,
    )  # fmt: skip
