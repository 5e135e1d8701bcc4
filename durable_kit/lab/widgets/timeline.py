"""Sort the timeline: seven moments of a run, four places where each could live.

The learner gives each moment a kind, and moves the kill. What is drawn is what was chosen; what is
wrong gets a cross and a question to think about. What a kill leaves, and how many e-mails a resume
without asking makes of it, follows from the order of the moments (`four_kinds.sort_moments`).
"""

from __future__ import annotations

import html

import ipywidgets
import pandas as pd

from durable_kit.lab import plots
from durable_kit.lab.four_kinds import KINDS, MOMENTS, Sorted, sort_moments
from durable_kit.lab.widgets.base import Job, Panel

UNSORTED = "not sorted"
_ASK = {
    "state": "When the process ends, and nothing was written: who could still read it?",
    "snapshot": "Does it say how things stand as a whole, or that one thing has happened?",
    "event": "Does it say that one thing has happened, or how things stand as a whole?",
    "effect": "If all our databases burnt down: would it be there?",
}


class SortPanel(Panel[Sorted, Sorted]):
    """A choice for each moment, a slider for the kill; the timeline follows."""

    def __init__(self) -> None:
        self.kinds = [
            ipywidgets.Dropdown(
                options=[("choose …", ""), *((kind, kind) for kind in KINDS)],
                value="",
                description=f"{number}. {moment.what}",
                style={"description_width": "190px"},
                layout=ipywidgets.Layout(width="330px"),
            )
            for number, moment in enumerate(MOMENTS, start=1)
        ]
        self.killed_after = ipywidgets.IntSlider(
            value=5,
            min=0,
            max=len(MOMENTS),
            description="killed after no.",
            continuous_update=False,
            style={"description_width": "190px"},
            layout=ipywidgets.Layout(width="480px"),
        )
        super().__init__(name="sort", live=[*self.kinds, self.killed_after], height_px=420)
        self._first = self.request()
        self.last_result = self._first
        self.area.value = sorted_html(self._first)

    def request(self) -> Sorted:
        return sort_moments(
            [kind.value for kind in self.kinds], killed_after=self.killed_after.value
        )

    def work(self, request: Sorted, job: Job) -> Sorted:
        return request

    def render(self, result: Sorted) -> str:
        return sorted_html(result)

    def static_default(self) -> str:
        return sorted_html(self._first)


def sorted_html(result: Sorted) -> str:
    """The timeline as it was sorted, and what the kill leaves of it."""
    rows, wrong = [], []
    for number, (moment, place) in enumerate(zip(MOMENTS, result.places, strict=True), start=1):
        said = f"{number}. {moment.what}"
        if number <= result.alive:
            rows.append((place or UNSORTED, said))
        if place not in ("", moment.kind):
            wrong.append((said, place))
    rows.append(("state", "killed"))
    figure = plots.timeline(
        pd.DataFrame(rows, columns=["lane", "event"]),
        lanes=[UNSORTED, *KINDS],
        bad=["killed", *(said for said, _ in wrong)],
        caption="Modelled: the moments of a run in their order, as you have sorted them.",
    )
    questions = "".join(
        f"<li>{html.escape(said)} as {place}? {_ASK[place]}</li>" for said, place in wrong
    )
    return (
        f"<p><b>{result.right} of {len(MOMENTS)}</b> are where they belong.</p>"
        f"{f'<ul>{questions}</ul>' if questions else ''}"
        f"{plots.figure_html(figure, alt=sorted_alt(result))}<p>{_what_is_left(result)}</p>"
    )


def sorted_alt(result: Sorted) -> str:
    """The figure in words."""
    places = ", ".join(
        f"{moment.what}: {place or UNSORTED}"
        for moment, place in zip(MOMENTS[: result.alive], result.places, strict=False)
    )
    return f"Timeline, killed after moment {result.alive}. {places or 'Nothing before the kill'}."


def _what_is_left(result: Sorted) -> str:
    left = "; ".join(moment.what for moment in result.left) or "nothing"
    resume = f"begins with <code>{result.resumes_at or 'prepare'}</code>"
    doubt = (
        " The events hold a request without an answer: <b>in doubt</b>." if result.in_doubt else ""
    )
    count = "one e-mail" if result.emails == 1 else "<b>two e-mails</b>"
    return (
        f"A kill after moment {result.alive} leaves: {html.escape(left)}. A resume {resume}, and "
        f"without asking there will be {count}.{doubt}"
    )
