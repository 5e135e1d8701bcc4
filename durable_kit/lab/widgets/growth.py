"""Turn the knobs of a snapshot policy: what it writes, and what a read then has to fold.

The numbers come from `growth_model.simulate`, which asks the real policy at every step and writes
nothing; the panel only asks, and draws.
"""

from __future__ import annotations

import threading
from typing import Any

import ipywidgets
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from durable_kit.lab import figure_style as style
from durable_kit.lab.figure_style import human_bytes
from durable_kit.lab.growth_model import LANGGRAPH, Growth, GrowthRequest, policy_of, simulate
from durable_kit.lab.plots import figure_html
from durable_kit.lab.widgets.base import Job, Panel
from durable_kit.storage.snapshot_policy import EveryN, SizeRatio

KINDS = ("SizeRatio", "EveryN")


class GrowthDrawing:
    """Left: bytes against steps, both logarithmic. Right: deltas to fold at every step.

    Drawn once and then changed: making new axes and ticks takes most of the time of a figure, and
    a hand on a slider waits for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.figure, [self._left, self._right] = style.new_figure(
            2,
            height_in=3.3,
            ratios=(1.25, 1),
            margins={"left": 0.12, "right": 0.98, "bottom": 0.22, "top": 0.96, "wspace": 0.25},
        )
        self._caption = self.figure.text(
            0.01, 0.01, "", fontsize=style.SMALL_PT, color="#404040", va="bottom"
        )
        left, right = self._left, self._right
        names = ("whole state each step", "this policy", "the messages alone")
        self._lines = [
            left.plot([1], [1], label=name, **style.line_style(i))[0]
            for i, name in enumerate(names)
        ]
        style.log_axes(left)
        style.label_axes(left, x="super-steps (log)", y="bytes on disk (log)")
        left.legend(fontsize=style.SMALL_PT, frameon=False, handlelength=3.2, loc="upper left")
        (self._depths,) = right.plot(
            [1], [0], drawstyle="steps-mid", color=style.COLOURS[1], linewidth=1.2
        )
        self._area = right.fill_between([1], [0])
        style.plain_ticks(right.xaxis)
        for axis in (right.xaxis, right.yaxis):
            axis.set_major_locator(MaxNLocator(4, integer=True))  # each label costs 2 ms a drawing
        style.label_axes(right, x="super-step", y="replay depth (deltas)")

    def show(self, growth: Growth) -> Figure:
        """The figure with these numbers; it is the same object each time."""
        request = growth.request
        steps = list(range(1, request.steps + 1))
        marks = sorted({round(request.steps ** (i / 6)) - 1 for i in range(7)})  # even on a log
        sizes = (growth.whole_state_bytes, growth.log_bytes, growth.raw_bytes)
        for line, values in zip(self._lines, sizes, strict=True):
            line.set_data(steps, values)
            line.set_markevery(marks)
        self._depths.set_data(steps, growth.depths)
        self._depths.set_linewidth(tooth_line_pt(len(growth.snapshots)))
        self._area.remove()
        self._area = self._right.fill_between(
            steps, growth.depths, step="mid", alpha=0.2, color=style.COLOURS[1], linewidth=0
        )
        for axes in (self._left, self._right):
            axes.relim()
            axes.autoscale(enable=True)
        self._right.set_ylim(bottom=0)
        self._caption.set_text(f"Modelled, not measured: {_asked(request)}.")
        return self.figure

    def html(self, growth: Growth) -> str:
        """The figure, and its totals as text under it."""
        at_end = growth.log_bytes[-1] / growth.raw_bytes[-1]
        whole = growth.whole_state_bytes[-1] / growth.raw_bytes[-1]
        with self._lock:
            figure = figure_html(self.show(growth), alt=growth_alt(growth))
        return (
            f'{figure}<p style="line-height:1.4">{human_bytes(growth.log_bytes[-1])} on disk, '
            f"<b>{at_end:.1f} times</b> the messages ({whole:,.0f} times for a saver of whole "
            f"states); {len(growth.snapshots):,} snapshots; at most "
            f"<b>{growth.max_replay_depth:,} deltas</b> to fold, {growth.replay_depth:,} for the "
            "newest state.</p>"
        )


def tooth_line_pt(teeth: int) -> float:
    """The width of a line of so many teeth, so that there is white between them."""
    return min(1.2, max(0.25, 24 / teeth))


def growth_alt(growth: Growth) -> str:
    """The figure in words, for who does not see it."""
    return (
        f"Modelled: {_asked(growth.request)}. At the end {human_bytes(growth.log_bytes[-1])} on "
        f"disk, {human_bytes(growth.whole_state_bytes[-1])} for a saver of whole states; "
        f"{len(growth.snapshots)} snapshots, at most {growth.max_replay_depth} deltas to fold."
    )


class GrowthPanel(Panel[GrowthRequest, Growth]):
    """Sliders for steps, message size and the policy's knob; the figure follows."""

    def __init__(self, *, steps: int = 400, message_bytes: int = 380) -> None:
        self.steps = _slider(ipywidgets.IntSlider, "super-steps", steps, 10, 3000, 10)
        self.message_bytes = _slider(
            ipywidgets.IntSlider, "message, bytes", message_bytes, 20, 4000, 20
        )
        self.kind = ipywidgets.Dropdown(
            options=KINDS, value="SizeRatio", description="policy", style=_WIDE
        )
        self.ratio = _slider(
            ipywidgets.FloatSlider, "SizeRatio: ratio", SizeRatio().ratio, 0.1, 64.0, 0.1
        )
        self.every = _slider(ipywidgets.IntSlider, "EveryN: n", 50, 1, 500, 1)
        self.self_contained = ipywidgets.Checkbox(
            value=False,
            description="snapshots write everything out (self_contained)",
            indent=False,
            layout=ipywidgets.Layout(width="480px"),
        )
        super().__init__(
            name="growth",
            live=[
                self.steps,
                self.message_bytes,
                self.kind,
                self.ratio,
                self.every,
                self.self_contained,
            ],
            height_px=360,
        )
        self._drawing = GrowthDrawing()
        self._first = simulate(self.request())
        self.last_result = self._first
        self.area.value = self.render(self._first)

    def request(self) -> GrowthRequest:
        knob = self.every.value if self.kind.value == "EveryN" else self.ratio.value
        return GrowthRequest(
            self.steps.value,
            self.message_bytes.value,
            policy_of(self.kind.value, knob, self_contained=self.self_contained.value),
            bookkeeping=LANGGRAPH,
        )

    def work(self, request: GrowthRequest, job: Job) -> Growth:
        return simulate(request)

    def render(self, result: Growth) -> str:
        return self._drawing.html(result)

    def static_default(self) -> str:
        return GrowthDrawing().html(self._first)


_WIDE = {"description_width": "120px"}


def _slider(cls: Any, label: str, value: float, low: float, high: float, step: float) -> Any:
    return cls(
        value=value,
        min=low,
        max=high,
        step=step,
        description=label,
        continuous_update=False,  # a value when the hand lets go, not one for every pixel
        style=_WIDE,
        layout=ipywidgets.Layout(width="480px"),
    )


def _asked(request: GrowthRequest) -> str:
    policy = request.policy
    knob = f"EveryN({policy.n})" if isinstance(policy, EveryN) else ""
    knob = f"SizeRatio({policy.ratio:g})" if isinstance(policy, SizeRatio) else knob
    whole = ", snapshots self-contained" if policy.self_contained else ""
    return f"{request.steps:,} steps of {request.message_bytes:,} bytes, {knob}{whole}"
