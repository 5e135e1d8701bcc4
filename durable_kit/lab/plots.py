"""From a table to a figure, and nothing else.

A plotting function that also runs the experiment cannot be checked, repeated or trusted: change a
label, and the numbers change. Here every function takes a table that exists and returns a
matplotlib `Figure`; what was measured stays measured.

What each figure owes its reader:

    axes with units, n and spread          in the caption, under the axes
    three ways to tell two lines apart     colour (a palette for colour-blind eyes), marker, dashes
    the numbers                            as a table beside the picture
    the picture in words                   alt text, asked for by `show` every time
    letters of 9 points                    at 7.5 inches, the width of a notebook

Figures are objects (`Figure` and `FigureCanvasAgg`). `pyplot` keeps one global "current figure";
a widget's callback may run in another OS thread, and the two would draw into each other. For the
same reason one lock is held while a figure is drawn, and styles (`figure_style.py`) are passed as
arguments and never set globally.
"""

from __future__ import annotations

import base64
import html
import io
import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from durable_kit.lab.figure_style import (
    COLOURS,
    HATCHES,
    MARKERS,
    SMALL_PT,
    TEXT_PT,
    TITLE_PT,
    WIDTH_IN,
    byte_ticks,
    human_bytes,
    label_axes,
    line_style,
    log_axes,
    new_figure,
    plain_ticks,
)
from durable_kit.lab.measure import growth_exponent

FIGURES_VARIABLE = "DURABLE_KIT_FIGURES"
"""Names a directory in which `show` also leaves each named figure as SVG and PNG."""

_drawing = threading.RLock()


# -- figures -----------------------------------------------------------------------------------


def growth(
    summary: pd.DataFrame,
    *,
    x: str = "steps",
    y: str = "disk_bytes",
    series: str = "saver",
    title: str = "",
    label: str = "measured here",
) -> Figure:
    """Bytes against steps, both axes logarithmic: the slope is the exponent of the growth.

    `summary` comes from `measure.summarise(table, by=[series, x])`.
    """
    figure, [axes] = new_figure(caption=_caption(summary, label))
    for i, (name, part) in enumerate(summary.groupby(series, sort=False)):
        part = part.sort_values(x)
        values = part[y].tolist()
        said = str(name)
        if len(part) > 1:
            said += f", slope {growth_exponent(part[x].tolist(), values):.2f}"
        axes.errorbar(
            part[x].tolist(), values, yerr=_spread(part, y), capsize=3, label=said, **line_style(i)
        )
    log_axes(axes)
    axes.set_xticks(sorted(summary[x].unique().tolist()))
    label_axes(axes, x="super-steps (log)", y="bytes on disk (log)", title=title)
    axes.legend(fontsize=SMALL_PT, frameon=False)
    return figure


def lines(
    summary: pd.DataFrame,
    *,
    x: str,
    y: str,
    x_label: str,
    y_label: str,
    series: str | None = None,
    title: str = "",
    label: str = "measured here",
) -> Figure:
    """One line for each value of `series`, on linear axes, with the spread where it is known."""
    figure, [axes] = new_figure(caption=_caption(summary, label))
    parts: list[tuple[Any, pd.DataFrame]] = (
        [("", summary)] if series is None else list(summary.groupby(series, sort=False))
    )
    for i, (name, part) in enumerate(parts):
        part = part.sort_values(x)
        style = line_style(i)
        if len(part) > 40:  # a marker every so often; on each point they would be a stripe
            style["markevery"] = len(part) // 12
        axes.errorbar(
            part[x].tolist(), part[y].tolist(), yerr=_spread(part, y), capsize=3, label=str(name),
            **style,
        )  # fmt: skip
    axes.set_ylim(bottom=0)
    plain_ticks(axes.xaxis)
    if y.endswith("_bytes"):
        byte_ticks(axes.yaxis)
    label_axes(axes, x=x_label, y=y_label, title=title)
    if series is not None:
        axes.legend(fontsize=SMALL_PT, frameon=False)
    return figure


def replay_cost(
    summary: pd.DataFrame,
    *,
    x: str = "replay_depth_deltas",
    y: str = "read_ms",
    series: str | None = None,
    title: str = "",
    label: str = "measured here",
) -> Figure:
    """How long reading takes against how many deltas are folded for it."""
    return lines(
        summary, x=x, y=y, series=series, title=title, label=label,
        x_label="replay depth (deltas to fold)", y_label="time to read the state (ms)",
    )  # fmt: skip


def tradeoff(
    summary: pd.DataFrame,
    *,
    names: str,
    values: Mapping[str, str],
    title: str = "",
    label: str = "measured here",
) -> Figure:
    """One row a choice, one column of bars a cost: what a choice saves here, it pays there.

    `values`: column of the table -> what its axis says, with the unit.
    """
    rows = summary[names].astype(str).tolist()
    places = list(range(len(rows)))[::-1]
    figure, axes = new_figure(
        len(values), height_in=1.3 + 0.42 * len(rows), caption=_caption(summary, label)
    )
    for i, (one, (column, said)) in enumerate(zip(axes, values.items(), strict=True)):
        numbers = [float(v) for v in summary[column]]
        one.barh(
            places,
            numbers,
            height=0.62,
            color=COLOURS[i % len(COLOURS)],
            hatch=HATCHES[i % len(HATCHES)],
            edgecolor="white",
            xerr=_spread(summary, column),
            error_kw={"capsize": 3, "elinewidth": 1, "ecolor": "#404040"},
        )
        as_bytes = column.endswith("_bytes")
        high = f"{column}_high"
        ends = [float(v) for v in summary[high]] if high in summary else numbers
        for place, number, end in zip(places, numbers, ends, strict=True):
            text = human_bytes(number) if as_bytes else f"{number:,.3g}"
            one.annotate(
                text, (max(end, number), place), xytext=(5, 0), textcoords="offset points",
                va="center", fontsize=SMALL_PT,
            )  # fmt: skip
        one.set_xlim(0, max([*ends, *numbers, 1e-9]) * 1.3)
        if as_bytes:
            byte_ticks(one.xaxis)
        one.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=column.endswith("_count")))
        one.set_yticks(places, rows if i == 0 else [""] * len(rows))
        one.grid(visible=False, axis="y")
        one.set_xlabel(said, fontsize=TEXT_PT)
    if title:
        figure.suptitle(title, fontsize=TITLE_PT, x=0.01, ha="left")
    return figure


def shares(
    table: pd.DataFrame,
    *,
    names: str,
    parts: Mapping[str, str],
    x_label: str,
    title: str = "",
    caption: str = "",
) -> Figure:
    """One bar a row, made of whole numbers of things of a kind; each kind has its letter in it.

    `parts`: column of the table -> the letter; at most six. Kinds that nothing is of are left out.
    """
    colours = (*COLOURS, "#b8b8b8")
    rows = table[names].astype(str).tolist()
    shown = [column for column in parts if table[column].sum()]
    figure, [axes] = new_figure(height_in=1.5 + 0.4 * len(rows), caption=caption)
    left = [0.0] * len(rows)
    places = list(range(len(rows)))[::-1]
    for column in shown:
        i = list(parts).index(column)
        numbers = [float(n) for n in table[column]]
        axes.barh(
            places,
            numbers,
            left=left,
            height=0.66,
            color=colours[i],
            hatch=HATCHES[i % len(HATCHES)],
            edgecolor="white",
            label=f"{parts[column]} = {column}",
        )
        for place, number, start in zip(places, numbers, left, strict=True):
            if number:
                axes.text(
                    start + number / 2,
                    place,
                    f"{parts[column]} {number:.0f}",
                    ha="center",
                    va="center",
                    fontsize=SMALL_PT,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
                )
        left = [start + number for start, number in zip(left, numbers, strict=True)]
    axes.set_yticks(places, rows, fontsize=SMALL_PT)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=False, axis="y")
    label_axes(axes, x=x_label, y="", title=title)
    figure.legend(
        loc="outside upper right", ncols=3, fontsize=SMALL_PT, frameon=False, handlelength=2
    )
    return figure


def timeline(
    events: pd.DataFrame,
    *,
    lanes: Sequence[str],
    caption: str = "",
    title: str = "",
    bad: Sequence[str] = (),
) -> Figure:
    """Who did what, downward in order of time, one column a lane.

    `events` has the columns t_s, lane, event. Rows are evenly spaced; the time stands at the left.
    Without t_s only the order is shown. Events whose text is in `bad` are marked with a cross.
    """
    figure, [axes] = new_figure(height_in=1.2 + 0.29 * len(events), caption=caption)
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    for i, lane in enumerate(lanes):
        axes.axvline(i, linewidth=1.2, zorder=1, color="#c0c0c0")
        mine = [
            (row, str(event))
            for row, (at, event) in enumerate(zip(events["lane"], events["event"], strict=True))
            if at == lane
        ]
        for row, event in mine:
            wrong = event in bad
            axes.plot(
                [i], [row],
                marker="X" if wrong else MARKERS[i % len(MARKERS)],
                color="#b00020" if wrong else COLOURS[i % len(COLOURS)],
                markersize=10 if wrong else 7, zorder=3,
            )  # fmt: skip
            axes.annotate(
                event, (i, row), xytext=(9, 0), textcoords="offset points", va="center",
                fontsize=SMALL_PT, fontweight="bold" if wrong else "normal",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
            )  # fmt: skip
    axes.set_xlim(-0.15, len(lanes) - 0.15)
    axes.set_ylim(len(events) - 0.5, -0.5)
    axes.set_xticks(range(len(lanes)), list(lanes), fontsize=TEXT_PT, fontweight="bold")
    axes.xaxis.tick_top()
    if "t_s" in events:
        digits = 2 if events["t_s"].max() >= 1 else 3
        times = [f"{t:.{digits}f}" for t in events["t_s"]]
        axes.set_yticks(range(len(events)), times, fontsize=SMALL_PT)
        axes.set_ylabel("time since the start (s)", fontsize=TEXT_PT)
    else:
        axes.set_yticks([])
        axes.set_ylabel("order", fontsize=TEXT_PT)
    axes.tick_params(length=0)
    if title:
        figure.suptitle(title, fontsize=TITLE_PT, x=0.01, ha="left")
    return figure


# -- showing and saving ------------------------------------------------------------------------


def png(figure: Figure) -> bytes:
    """The figure as PNG. The same figure gives the same bytes; safe from any OS thread."""
    buffer = io.BytesIO()
    canvas: Any = FigureCanvasAgg(figure)
    with _drawing:  # straight to the canvas: savefig would draw everything twice
        # Lightly packed: a slider's figure is looked at, not kept.
        canvas.print_png(buffer, metadata={"Software": None}, pil_kwargs={"compress_level": 1})
    return buffer.getvalue()


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write `stem`.svg and `stem`.png. The same figure gives the same bytes; no date is in them."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    svg, bitmap = stem.with_name(f"{stem.name}.svg"), stem.with_name(f"{stem.name}.png")
    with _drawing, mpl.rc_context({"svg.hashsalt": "durable_kit"}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    bitmap.write_bytes(png(figure))
    return svg, bitmap


def figure_html(figure: Figure, *, alt: str, table: pd.DataFrame | None = None) -> str:
    """`<figure>` with its alt text, and under it the data, folded."""
    if not alt.strip():
        raise ValueError("alt is empty. Say in a sentence what the figure shows.")
    picture = base64.b64encode(png(figure)).decode("ascii")
    data = ""
    if table is not None:
        shown = table.to_html(index=False, border=0, na_rep="–", float_format=_plain)
        data = f"<details><summary>The data of this figure</summary>{shown}</details>"
    return (
        f'<figure style="margin:0"><img alt="{html.escape(alt, quote=True)}" '
        f'style="width:100%;max-width:{int(WIDTH_IN * 100)}px" '
        f'src="data:image/png;base64,{picture}"></figure>{data}'
    )


def show(figure: Figure, *, alt: str, table: pd.DataFrame | None = None, name: str = "") -> None:
    """Display the figure in a notebook with its alt text and its data.

    With `name`, and where `DURABLE_KIT_FIGURES` names a directory, it is saved there as well.
    """
    from IPython import display as ipython

    shown: Any = ipython.display
    shown({"text/html": figure_html(figure, alt=alt, table=table), "text/plain": alt}, raw=True)
    folder = os.environ.get(FIGURES_VARIABLE)
    if folder and name:
        if not re.fullmatch(r"[a-z0-9-]+", name):
            raise ValueError(f"{name!r}: a figure's name is made of a-z, 0-9 and hyphens.")
        save(figure, Path(folder) / name)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.3g}"


def _spread(part: pd.DataFrame, column: str) -> list[list[float]] | None:
    """Error bars from the columns that `summarise` adds; None where there are none."""
    if f"{column}_low" not in part:
        return None
    middle = part[column]
    return [
        (middle - part[f"{column}_low"]).clip(lower=0).tolist(),
        (part[f"{column}_high"] - middle).clip(lower=0).tolist(),
    ]


def _caption(summary: pd.DataFrame, label: str) -> str:
    if "n" not in summary or summary.empty:
        return label[:1].upper() + label[1:] + "."
    low, high = int(summary["n"].min()), int(summary["n"].max())
    n = f"n = {low}" if low == high else f"n = {low} to {high}"
    said = f"{label[:1].upper()}{label[1:]}: {n} a point"
    if high > 1 and "spread" in summary:
        said += f", median, bars from {summary['spread'].iloc[0]}"
    return said + "."
