"""One button: kill a worker that has just charged a card, and let another one go on.

Each press starts two processes and a database of their own, kills the first for real, and leaves
nothing behind. See `crash_demo.py` for what happens, and for what is proven about the kill.
"""

from __future__ import annotations

from typing import Literal

from durable_kit.lab import plots
from durable_kit.lab.crash_demo import LANES, STEPS, CrashStory, run_crash
from durable_kit.lab.widgets.base import Job, Panel


def story_alt(story: CrashStory) -> str:
    """The timeline in words, for who does not see it."""
    return (
        f"Timeline of one crash. Worker 1 charges the card and {story.death.how}; the database "
        f"says next: {', '.join(story.after_kill.next) or 'none'}. Worker 2 resumes and charges "
        f"again. The bank has noted {story.charges} charges for one order."
    )


def story_html(story: CrashStory) -> str:
    """How it ended, the timeline, and its events as a table."""
    events = story.timeline()
    charges = [e for e in events["event"] if str(e).startswith("charge no. ")]
    figure = plots.timeline(
        events,
        lanes=LANES,
        bad=["killed", *charges[1:]],
        caption="Measured here: one run (n = 1), two real processes, one real kill.",
    )
    return summary_html(story) + plots.figure_html(figure, alt=story_alt(story), table=events)


def summary_html(story: CrashStory) -> str:
    """How it ended, in a sentence and a table."""
    table: str = story.summary().to_html(border=0)
    table = table.replace("<td>", '<td style="padding:2px 12px;text-align:left">')
    return (
        f"<p>Worker 1 <b>{story.death.how}</b> after the charge and before its checkpoint. "
        f"The bank has noted <b>{story.charges} charges</b> for one order.</p>{table}"
    )


class CrashPanel(Panel[Literal["crash"], CrashStory]):
    """The crash button of lesson 00."""

    def __init__(self, story: CrashStory) -> None:
        """`story`: a crash that was made before; how it ended is shown beside the button."""
        super().__init__(name="crash", run_label="Crash it", height_px=120)
        self._story = story

    def request(self) -> Literal["crash"]:
        return "crash"

    def work(self, request: Literal["crash"], job: Job) -> CrashStory:
        return run_crash(
            on_progress=lambda done, what: job.progress(done, STEPS, what),
            cancelled=job.cancelled,
        )

    def render(self, result: CrashStory) -> str:
        return story_html(result)

    def static_default(self) -> str:
        return summary_html(self._story)
