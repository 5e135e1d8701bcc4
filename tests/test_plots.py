"""Figures that can be read, told apart, repeated to the byte, and read aloud."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from durable_kit.lab import durability_plots, figure_style, plots
from durable_kit.lab.measure import summarise

KILLS = pd.DataFrame(
    [
        (step_ms, mode, lost + 7, lost)
        for step_ms, modes in {
            0: {"sync": [0, 1, 0], "async": [904, 12, 1359], "exit": [200, 300, 400]},
            20: {"sync": [0, 0, 0], "async": [0, 1, 0], "exit": [4, 20, 11]},
        }.items()
        for mode, losses in modes.items()
        for lost in losses
    ],
    columns=["step_ms", "durability", "executed_steps", "lost_steps"],
)

WINDOWS = pd.DataFrame(
    [
        (20.0, mode, step, scale * (1 + step % 7))
        for mode, scale in {"sync": 0.5, "async": 300.0, "exit": 25.0}.items()
        for step in range(1, 61)
    ],
    columns=["step_ms", "durability", "step", "window_ms"],
)


def two_savers(table: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([table.assign(label="DeltaSaver"), table.assign(label="SqliteSaver")])


@pytest.fixture(scope="module")
def growth_summary() -> pd.DataFrame:
    rows = [
        {"saver": saver, "steps": steps, "disk_bytes": size * (1 + 0.01 * round_)}
        for saver, sizes in (
            ("SqliteSaver", {50: 5e5, 100: 2e6, 200: 8e6}),
            ("DeltaSaver", {50: 1e5, 100: 2e5, 200: 4e5}),
        )
        for steps, size in sizes.items()
        for round_ in range(3)
    ]
    return summarise(pd.DataFrame(rows), by=["saver", "steps"])


@pytest.fixture(scope="module")
def figures(growth_summary: pd.DataFrame) -> dict[str, Figure]:
    costs = pd.DataFrame(
        {
            "policy": ["a", "b"],
            "n": [5, 5],
            "replay_depth_deltas": [0, 50],
            "read_ms": [1.0, 9.0],
            "read_ms_low": [0.9, 7.0],
            "read_ms_high": [1.5, 12.0],
            "disk_bytes": [9e6, 4e5],
            "spread": "min to max",
        }
    )
    events = pd.DataFrame(
        [(0.1, "worker", "starts"), (0.2, "bank", "noted"), (0.3, "worker", "killed")],
        columns=["t_s", "lane", "event"],
    )
    return {
        "durability": durability_plots.losses(KILLS),
        "losses of two": durability_plots.losses(two_savers(KILLS)),
        "windows": durability_plots.windows(two_savers(WINDOWS)),
        "growth": plots.growth(growth_summary, title="Growth"),
        "replay": plots.replay_cost(costs),
        "replay by policy": plots.replay_cost(costs, series="policy"),
        "tradeoff": plots.tradeoff(
            costs, names="policy", values={"disk_bytes": "bytes on disk", "read_ms": "read (ms)"}
        ),
        "timeline": plots.timeline(
            events, lanes=["worker", "bank"], bad=["killed"], caption="One run.", title="A crash"
        ),
    }


NAMES = [
    "durability",
    "losses of two",
    "windows",
    "growth",
    "replay",
    "replay by policy",
    "tradeoff",
    "timeline",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_letter_has_nine_points_at_notebook_width(
    name: str, figures: dict[str, Figure]
) -> None:
    figure = figures[name]
    assert figure.get_size_inches()[0] == figure_style.WIDTH_IN == 7.5
    plots.png(figure)
    small = [
        (text.get_text(), text.get_fontsize())
        for text in figure.findobj(Text)
        if text.get_text() and text.get_visible() and text.get_fontsize() < 9
    ]
    assert small == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_cut_off_at_the_edges(name: str, figures: dict[str, Figure]) -> None:
    figure = figures[name]
    plots.png(figure)
    box, size = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) >= -0.01
    assert box.x1 <= size[0] + 0.01
    assert box.y1 <= size[1] + 0.01


@pytest.mark.parametrize("name", [n for n in NAMES if n != "timeline"])
def test_axes_say_what_they_show_and_captions_say_n(name: str, figures: dict[str, Figure]) -> None:
    figure = figures[name]
    assert all(axes.get_xlabel() for axes in figure.axes)
    assert "n = " in figure.get_supxlabel()
    assert figure.get_supxlabel().startswith("Measured here")


def test_counts_have_whole_numbers_on_their_axis() -> None:
    table = pd.DataFrame({"charge": ["naive", "careful"], "charges_count": [2, 1]})
    figure = plots.tradeoff(table, names="charge", values={"charges_count": "charges (count)"})
    ticks = figure.axes[0].get_xticks()
    assert len(ticks) >= 2
    assert all(float(tick).is_integer() for tick in ticks)


def test_lines_differ_in_colour_marker_and_dashes() -> None:
    styles = [figure_style.line_style(i) for i in range(5)]
    for key in ("color", "marker", "linestyle"):
        assert len({str(style[key]) for style in styles}) == 5, key


def test_every_kill_is_a_point_of_its_own_and_none_lies_upon_another(
    figures: dict[str, Figure],
) -> None:
    points = [
        [tuple(point) for line in axes.lines for point in line.get_xydata()]
        for axes in figures["durability"].axes
    ]
    assert [len(panel) for panel in points] == [9, 9]
    assert [len(set(panel)) for panel in points] == [9, 9]
    assert sorted(y for panel in points for _, y in panel) == sorted(KILLS["lost_steps"])
    for axes in figures["durability"].axes:
        low, high = axes.get_ylim()
        assert low < 0 < 1359 < high, "a point lies outside, or the panels cannot be compared"
        assert len({(line.get_marker(), line.get_color()) for line in axes.lines}) == 3
    ticks = [tick.get_text() for tick in figures["durability"].axes[0].get_xticklabels()]
    assert ticks == ["sync\nmedian 0", "async\nmedian 904", "exit\nmedian 300"]


def test_the_figure_of_the_kills_can_be_read_aloud() -> None:
    said = durability_plots.losses_alt(KILLS)
    assert "a step does next to nothing: sync 0 (0 to 1), async 904 (12 to 1,359)" in said
    assert "a step works for 20 ms: sync 0 (0 to 0), async 0 (0 to 1), exit 11 (4 to 20)" in said


def test_two_savers_differ_in_colour_and_marker_and_are_told_apart_in_words(
    figures: dict[str, Figure],
) -> None:
    for name in ("losses of two", "windows"):
        last = figures[name].axes[-1]
        assert [text.get_text() for text in last.get_legend().get_texts()] == [
            "DeltaSaver",
            "SqliteSaver",
        ]
        looks = {(line.get_marker(), line.get_color()) for line in last.lines}
        assert len(looks) == 2
        assert len({marker for marker, _ in looks}) == 2
    said = durability_plots.windows_alt(two_savers(WINDOWS))
    assert "a step works for 20 ms: DeltaSaver, sync 2 (0.5 to 3.5), SqliteSaver, sync 2" in said
    assert "SqliteSaver, async 904 (12 to 1,359)" in durability_plots.losses_alt(two_savers(KILLS))


def test_the_slope_of_a_growth_stands_in_its_legend(figures: dict[str, Figure]) -> None:
    legend = figures["growth"].axes[0].get_legend()
    assert legend is not None
    said = [text.get_text() for text in legend.get_texts()]
    assert said == ["SqliteSaver, slope 2.00", "DeltaSaver, slope 1.00"]


def test_the_same_table_gives_the_same_bytes(growth_summary: pd.DataFrame, tmp_path: Path) -> None:
    written = [
        plots.save(plots.growth(growth_summary), tmp_path / name / "growth") for name in ("a", "b")
    ]
    for first, second in zip(*written, strict=True):
        assert first.read_bytes() == second.read_bytes()
        assert first.stat().st_size > 5_000
    assert b"<dc:date>" not in written[0][0].read_bytes()


def test_a_figure_is_shown_with_its_words_and_its_data(growth_summary: pd.DataFrame) -> None:
    figure = plots.growth(growth_summary)
    html = plots.figure_html(figure, alt='Bytes "grow" & grow.', table=growth_summary)
    assert '<figure style="margin:0"><img alt="Bytes &quot;grow&quot; &amp; grow."' in html
    assert "<details>" in html
    assert "SqliteSaver" in html
    with pytest.raises(ValueError, match="alt is empty"):
        plots.figure_html(figure, alt=" ")


def test_show_leaves_named_figures_where_the_environment_says(
    growth_summary: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    monkeypatch.setenv(plots.FIGURES_VARIABLE, str(tmp_path / "figures"))
    figure = plots.growth(growth_summary)
    plots.show(figure, alt="Bytes grow.")
    assert not (tmp_path / "figures").exists()
    plots.show(figure, alt="Bytes grow.", name="growth-measured")
    names = sorted(file.name for file in (tmp_path / "figures").iterdir())
    assert names == ["growth-measured.png", "growth-measured.svg"]
    assert shown[0]["text/plain"] == "Bytes grow."
    with pytest.raises(ValueError, match="a-z"):
        plots.show(figure, alt="Bytes grow.", name="../etc")


def test_figures_never_touch_pyplot() -> None:
    code = (
        "import sys, durable_kit.lab.plots, durable_kit.lab.widgets.growth;"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_bytes_are_said_in_words() -> None:
    said = [figure_style.human_bytes(value) for value in (12, 1234, 248_000_000, 2_200_000_000)]
    assert said == ["12 B", "1.23 kB", "248 MB", "2.2 GB"]
