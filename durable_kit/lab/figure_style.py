"""How a figure looks, decided once: sizes, a palette for colour-blind eyes, ticks in plain words.

Two lines differ in colour, in marker and in dashes, so that one of the three may be missing: on a
grey printout, for the eyes of one man in twelve, on a beamer. Nothing is set globally (matplotlib's
`rcParams` are shared by all OS threads); whoever draws asks for a style and passes it on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

WIDTH_IN = 7.5
SMALL_PT, TEXT_PT, TITLE_PT = 9, 10, 11
DPI = 120

COLOURS: tuple[str, ...] = tuple(
    matplotlib.style.library["tableau-colorblind10"]["axes.prop_cycle"].by_key()["color"][i]
    for i in (0, 1, 3, 4, 5)  # the greys of the palette are too near each other
)
MARKERS = ("o", "s", "^", "D", "v")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (8, 3)))
HATCHES = ("", "///", "...", "xxx", "\\\\\\")
GRID: Mapping[str, Any] = {"color": "#d0d0d0", "linewidth": 0.6}


def new_figure(
    columns: int = 1,
    *,
    height_in: float = 3.6,
    caption: str = "",
    ratios: Sequence[float] = (),
    margins: Mapping[str, float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """An empty figure at notebook width with `columns` axes side by side.

    Room for labels is measured, which draws them an extra time. With fixed `margins` (of
    `subplots_adjust`) that is saved: for panels, which redraw while a hand is on the slider.
    """
    layout: Any = "none" if margins else "constrained"
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout=layout)
    if margins:
        figure.subplots_adjust(**margins)
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(1, columns, width_ratios=list(ratios) or None)
    axes = [figure.add_subplot(grid[0, i]) for i in range(columns)]
    for one in axes:
        one.tick_params(labelsize=SMALL_PT)
        one.grid(visible=True, **GRID)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
    if caption:
        at = {"y": 0.01} if margins else {}  # a given y would take it out of the measured layout
        figure.supxlabel(caption, fontsize=SMALL_PT, x=0.01, ha="left", color="#404040", **at)
    return figure, axes


def line_style(i: int) -> dict[str, Any]:
    """Colour, marker and dashes of the i-th line: each alone is enough to tell it."""
    return {
        "color": COLOURS[i % len(COLOURS)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": DASHES[i % len(DASHES)],
        "markersize": 6,
        "linewidth": 1.8,
    }


def label_axes(axes: Axes, *, x: str, y: str, title: str = "") -> None:
    axes.set_xlabel(x, fontsize=TEXT_PT)
    axes.set_ylabel(y, fontsize=TEXT_PT)
    if title:
        axes.set_title(title, fontsize=TITLE_PT, loc="left")


def log_axes(axes: Axes) -> None:
    """Both axes logarithmic, with ticks in plain words: 1,000 steps, 1 MB."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    plain_ticks(axes.xaxis)
    byte_ticks(axes.yaxis)


def byte_ticks(axis: Axis) -> None:
    """Ticks as 1 kB, 10 kB, 1 MB."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: human_bytes(value)))


def plain_ticks(axis: Axis) -> None:
    """Ticks as 3,000."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def human_bytes(value: float) -> str:
    """1234567 -> "1.23 MB"; decimal units, as disks are sold."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"
