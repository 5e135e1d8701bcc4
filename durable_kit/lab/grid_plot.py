"""A grid of verdicts: what happened in each case, one word a cell.

Bars compare amounts. "Killed here, with that remedy: charged twice" is no amount but a word, and
twenty of them are read best where they stand beside each other. Each word is printed in its cell;
colour and hatching only repeat it, so that the figure may lose both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from durable_kit.lab.figure_style import SMALL_PT, TEXT_PT, TITLE_PT, new_figure

Mark = Literal["good", "bad", "doubt"]
_STYLE: Mapping[Mark, tuple[str, str, str]] = {  # face, edge, hatch
    "good": ("#e3eef7", "#4f81a8", ""),
    "bad": ("#fbe3e6", "#b00020", "////"),
    "doubt": ("#fff1d6", "#b06a00", "...."),
}


def verdicts(
    table: pd.DataFrame,
    *,
    rows: str,
    columns: str,
    verdict: str,
    marks: Mapping[str, Mark],
    caption: str,
    title: str = "",
) -> Figure:
    """One cell for each pair of `rows` and `columns`, with the word in the column `verdict`.

    `marks` says of each word how to take it. Where repeats of a case differ, all its words are
    printed and it is marked by the worst of them.
    """
    across, down = table[columns].unique().tolist(), table[rows].unique().tolist()
    figure, [axes] = new_figure(height_in=1.1 + 0.42 * len(down), caption=caption)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    for (row, column), case in table.groupby([rows, columns], sort=False):
        words = sorted(case[verdict].unique().tolist())
        worst = max((marks[word] for word in words), key=["good", "doubt", "bad"].index)
        face, edge, hatch = _STYLE[worst]
        x, y = across.index(column), down.index(row)
        axes.add_patch(
            Rectangle(
                (x - 0.47, y - 0.42), 0.94, 0.84, facecolor=face, edgecolor=edge, hatch=hatch,
                linewidth=0.6,
            )
        )  # fmt: skip
        axes.text(
            x, y, " / ".join(words), ha="center", va="center", fontsize=SMALL_PT,
            fontweight="bold" if worst != "good" else "normal",
            bbox={"facecolor": face, "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip
    axes.set_xlim(-0.55, len(across) - 0.45)
    axes.set_ylim(len(down) - 0.5, -0.5)
    axes.set_xticks(range(len(across)), [str(name) for name in across], fontsize=SMALL_PT)
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(down)), [str(name) for name in down], fontsize=SMALL_PT)
    axes.tick_params(length=0)
    axes.set_ylabel(rows.replace("_", " "), fontsize=TEXT_PT)
    if title:
        figure.suptitle(title, fontsize=TITLE_PT, x=0.01, ha="left")
    return figure
