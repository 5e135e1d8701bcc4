"""Choose how state is stored and where the process dies; see what ran, what was kept, what it cost.

Each press makes a real run: a provider, a process that is killed, a process that resumes. Nothing
is modelled and nothing is left behind. See `run_story.py` for what is told of it.
"""

from __future__ import annotations

import html

import ipywidgets

from durable_kit.lab import crash_plots, plots
from durable_kit.lab.run_story import POINTS, STEPS, RunRequest, RunStory, tell
from durable_kit.lab.widgets.base import Job, Panel

KEYS = {
    "no idempotency key": "none",
    "a key for each attempt": "fresh",
    "a key for the order": "order",
}
STEP_MS = (0, 20, 100)


def run_html(story: RunStory) -> str:
    """A sentence, the timeline, and beside it the provider's book."""
    figure = plots.figure_html(
        crash_plots.run_timeline(story),
        alt=crash_plots.run_timeline_alt(story),
        table=story.runs_table().round(1),
    )
    twice = story.charges > 1
    colour = "#b00020" if twice else "#1b6e3c"
    verdict = f"{story.charges} charges for one order" if twice else f"charges: {story.charges}"
    book = story.book_table().to_html(index=False, border=0, na_rep="–")
    book = book.replace("<td>", '<td style="padding:2px 8px;text-align:left">')
    return (
        f'<p style="line-height:1.4">{html.escape(story.sentence())}</p>'
        '<div style="display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start">'
        f'<div style="flex:3 1 480px">{figure}</div>'
        f'<div style="flex:1 1 200px"><b>The provider\'s book</b>'
        f'<div style="color:{colour}"><b>{verdict}</b></div>{book}</div></div>'
    )


class RunPanel(Panel[RunRequest, RunStory]):
    """Durability, place to die, time of a model call, key; Run kills a real process."""

    def __init__(self, story: RunStory) -> None:
        """`story`: a run that was made before. It is shown first, and the controls stand on it."""
        asked = story.request
        style, wide = {"description_width": "120px"}, ipywidgets.Layout(width="480px")
        self.durability = ipywidgets.ToggleButtons(
            options=["sync", "async", "exit"],
            value=asked.durability,
            description="durability",
            style={**style, "button_width": "80px"},
        )
        self.point = ipywidgets.Dropdown(
            options=list(POINTS),
            value=asked.point,
            description="it dies where",
            style=style,
            layout=wide,
        )
        self.step_ms = ipywidgets.SelectionSlider(
            options=sorted({*STEP_MS, asked.step_ms}),
            value=asked.step_ms,
            description="model call, ms",
            continuous_update=False,
            style=style,
            layout=wide,
        )
        self.key = ipywidgets.Dropdown(
            options=list(KEYS.items()),
            value=asked.key,
            description="the charge has",
            style=style,
            layout=wide,
        )
        super().__init__(
            name="run",
            controls=[self.durability, self.point, self.step_ms, self.key],
            run_label="Run and kill",
            height_px=120,
        )
        self._story = story

    def request(self) -> RunRequest:
        return RunRequest(
            durability=self.durability.value,
            point=self.point.value,
            step_ms=float(self.step_ms.value),
            key=self.key.value,
        )

    def work(self, request: RunRequest, job: Job) -> RunStory:
        return tell(
            request,
            on_progress=lambda done, what: job.progress(done, STEPS, what),
            cancelled=job.cancelled,
        )

    def render(self, result: RunStory) -> str:
        return run_html(result)

    def static_default(self) -> str:
        return run_html(self._story)
