"""Figures of crashes: what each ending of a run leaves behind.

Like all figures of the kit: a table goes in, a matplotlib `Figure` comes out, and nothing is run
(`plots.py` tells why). One point is one crash. A median alone would hide the one crash in thirty
that lost everything, and that one is what a user remembers.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from durable_kit.lab.figure_style import COLOURS, MARKERS, TITLE_PT, label_axes, new_figure

BAD = "#b00020"


def power_loss(table: pd.DataFrame) -> Figure:
    """Every simulated end of a run: how many acknowledged steps were gone.

    `table` is that of `power_loss.measure_power_loss`. A crossed point is a file that could not be
    read any more, or a proof that failed.
    """
    sizes = table.groupby(["synchronous", "fate"]).size()
    panels = list(table.groupby("fate", sort=False))
    figure, axes = new_figure(
        len(panels),
        caption=f"SIMULATED, n = {int(sizes.min())} ends a column, one point an end; the bar is "
        "the median; a red cross is a damaged database.",
    )
    top = max(1.0, float(table["acknowledged_steps"].max()))
    for one, (fate, panel) in zip(axes, panels, strict=True):
        settings = list(panel.groupby("synchronous", sort=False))
        for i, (_, ends) in enumerate(settings):
            lost, sound = ends["lost_steps"].tolist(), (ends["verdict"] == "sound").tolist()
            for k, (steps, whole) in enumerate(zip(lost, sound, strict=True)):
                one.plot(
                    [i + 0.64 * ((k + 0.5) / len(lost) - 0.5)], [steps], linestyle="none",
                    marker=MARKERS[i % len(MARKERS)] if whole else "X",
                    color=COLOURS[i % len(COLOURS)] if whole else BAD,
                    markersize=6 if whole else 8, markeredgecolor="white", markeredgewidth=0.5,
                    clip_on=False, zorder=3,
                )  # fmt: skip
            median = ends["lost_steps"].median()
            one.hlines(median, i - 0.4, i + 0.4, color="#202020", linewidth=1.4, zorder=2)
        one.set_ylim(-0.03 * top, 1.06 * top)
        one.set_xticks(range(len(settings)), [str(name) for name, _ in settings])
        one.set_xlim(-0.55, len(settings) - 0.45)
        one.grid(visible=False, axis="x")
        first = one is axes[0]
        label_axes(
            one, x="synchronous", title=str(fate),
            y="acknowledged steps lost" if first else "",
        )  # fmt: skip
    figure.suptitle(
        "Process death is not power loss", fontsize=TITLE_PT, x=0.01, ha="left", fontweight="bold"
    )
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
