"""Did the payment happen? Pick where the agent dies, what its provider can do, and the gateway.

Each press starts a provider and an agent, kills the agent for real at the point you chose, lets
another process resume, and shows the timeline, every row that the receipt had, the provider's book,
and the verdict. `payment_story.py` runs the experiment; this only asks, and draws.
"""

from __future__ import annotations

import html

import ipywidgets

from durable_kit.lab import plots
from durable_kit.lab.effect_trials import IN_DOUBT, LOST, ONCE, POINTS, TWICE, Way
from durable_kit.lab.payment_story import LANES, STEPS, PaymentRequest, PaymentStory, tell
from durable_kit.lab.tables import words_html
from durable_kit.lab.widgets.base import Job, Panel

ABILITIES = (
    ("knows idempotency keys", "key"),
    ("can be asked, knows no keys", "lookup"),
    ("knows no keys and cannot be asked", "neither"),
)
_SAID = {
    ONCE: "Charged <b>once</b>, and the agent knows it.",
    TWICE: "Charged <b>twice</b>.",
    LOST: "<b>Lost</b>: the agent believes in a charge that is not there.",
    IN_DOUBT: "<b>In doubt</b>: nobody guessed, a person decides.",
}
_LAYOUT = {
    "style": {"description_width": "120px"},
    "layout": ipywidgets.Layout(width="440px"),
}


def story_alt(story: PaymentStory) -> str:
    """The timeline in words."""
    receipt = ", ".join(version.status for version in story.receipt) or "none"
    charges = f"{len(story.charges)} charge{'s' * (len(story.charges) != 1)}"
    return (
        f"Timeline of one payment, killed at {story.request.point}. Receipt: {receipt}. The "
        f"provider has {charges}. Verdict: {story.verdict}."
    )


def story_html(story: PaymentStory) -> str:
    """The verdict, the timeline, the receipt row by row, and the provider's book."""
    request = story.request
    with_gateway = "through the gateway" if request.way == "gateway" else "without the gateway"
    ability = next(said for said, ability in ABILITIES if ability == request.ability)
    extra = [f"{entry.kind}-{entry.no}" for entry in story.charges[1:]]
    figure = plots.timeline(
        story.moments,
        lanes=LANES,
        bad=["killed", *extra],
        caption="Measured here: one payment (n = 1), real processes, one real kill.",
    )
    receipt = story.receipt_table()
    return (
        f"<p>Killed at <code>{request.point}</code>, {with_gateway}. The provider {ability}. "
        f"{_SAID.get(story.verdict, html.escape(story.verdict))}</p>"
        f"{plots.figure_html(figure, alt=story_alt(story), table=story.moments)}"
        '<div style="display:flex;flex-wrap:wrap;gap:32px"><div><p>The receipt, row by row</p>'
        f"{words_html(receipt) if len(receipt) else '<p>The naive agent keeps none.</p>'}</div>"
        f"<div><p>The provider's book</p>{words_html(story.ledger_table())}</div></div>"
        f"<p>How the agent ended: {html.escape(story.ended)}</p>"
    )


class PaymentPanel(Panel[PaymentRequest, PaymentStory]):
    """The point of death, the provider's ability, the gateway on or off; and a button."""

    def __init__(self, story: PaymentStory) -> None:
        """`story`: one that was told before; it is shown until the button is pressed."""
        request = story.request
        self.point = ipywidgets.Dropdown(
            options=POINTS, value=request.point, description="dies at", **_LAYOUT
        )
        self.ability = ipywidgets.Dropdown(
            options=ABILITIES, value=request.ability, description="the provider", **_LAYOUT
        )
        self.gateway = ipywidgets.Checkbox(
            value=request.way == "gateway",
            description="through the gateway",
            indent=True,
            **_LAYOUT,
        )
        super().__init__(
            name="payment",
            controls=[self.point, self.ability, self.gateway],
            run_label="Kill it there",
            height_px=120,
        )
        self._first = story

    def request(self) -> PaymentRequest:
        way: Way = "gateway" if self.gateway.value else "naive"
        return PaymentRequest(way, self.ability.value, self.point.value)

    def work(self, request: PaymentRequest, job: Job) -> PaymentStory:
        return tell(
            request,
            on_progress=lambda done, what: job.progress(done, STEPS, what),
            cancelled=job.cancelled,
        )

    def render(self, result: PaymentStory) -> str:
        return story_html(result)

    def static_default(self) -> str:
        return story_html(self._first)
