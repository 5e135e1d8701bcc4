"""One payment told in full: each row of the receipt, the book, and a verdict that they bear out."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pandas as pd
import pytest

from durable_kit.crash.child import ChildFailed
from durable_kit.lab.effect_trials import Outcome
from durable_kit.lab.payment_story import (
    PaymentRequest,
    PaymentStory,
    tell,
    verdict_table,
    verdicts_alt,
)
from durable_kit.lab.widgets.payment import PaymentPanel, story_alt, story_html

AFTER_EFFECT = "provider.after_effect"


@pytest.fixture(scope="module")
def known_key() -> PaymentStory:
    return tell(PaymentRequest("gateway", "key", AFTER_EFFECT))


def test_a_payment_is_told_row_by_row(known_key: PaymentStory) -> None:
    assert known_key.death.killed
    rows = [row.status for row in known_key.receipt]
    assert rows[:3] == ["requested", "started", "unknown"]
    assert rows[-2:] == ["started", "succeeded"], "a busy machine may have begun more than once"
    assert known_key.receipt[-1].attempt >= 2
    assert (known_key.verdict, len(known_key.charges), known_key.ended) == (
        "once",
        1,
        "with a receipt",
    )
    moments = known_key.moments
    assert moments["t_s"].is_monotonic_increasing
    order = moments["event"].tolist()
    assert order.index("started (attempt 1)") < order.index("charge-1") < order.index("killed")
    assert order.index("killed") < order.index("unknown (attempt 1)")
    assert known_key.ledger_table()["key"].tolist() == ["charge:order-1001"]
    assert "The provider has 1 charge. " in story_alt(known_key)


def test_a_started_attempt_is_not_shown_with_the_detail_of_the_one_before(
    known_key: PaymentStory,
) -> None:
    assert "did not report" in known_key.receipt[-2].detail, "the row still says why it is in doubt"
    shown = known_key.receipt_table()
    assert set(shown.loc[shown["status"] == "started", "detail"]) == {"–"}
    assert "did not report" in shown.loc[shown["status"] == "unknown", "detail"].iloc[0]


def test_the_naive_agent_keeps_no_receipt_and_charges_twice() -> None:
    story = tell(PaymentRequest("naive", "key", AFTER_EFFECT))
    assert (story.verdict, len(story.charges), story.receipt) == ("twice", 2, ())
    assert "The provider has 2 charges. " in story_alt(story)
    page = story_html(story)
    assert "Charged <b>twice</b>" in page
    assert "The naive agent keeps none" in page
    assert "charge-2" in page


def test_progress_is_told_and_a_cancelled_story_leaves_nothing() -> None:
    cancelled = threading.Event()
    told: list[tuple[int, str]] = []

    def progress(done: int, what: str) -> None:
        told.append((done, what))
        cancelled.set()

    with pytest.raises(ChildFailed, match="cancelled"):
        tell(
            PaymentRequest("gateway", "key", AFTER_EFFECT),
            on_progress=progress,
            cancelled=cancelled,
        )
    assert told == [(0, "a provider and an agent start")]


def test_outcomes_become_a_table_and_a_sentence() -> None:
    table = verdict_table(
        [
            Outcome("naive", "key", "p1", 2, "twice", ""),
            Outcome("naive", "key", "p2", 1, "once", ""),
            Outcome("gateway", "lookup", "p1", 1, "once", ""),
            Outcome("gateway", "neither", "p1", 1, "in doubt", ""),
        ]
    )
    assert table["agent"].unique().tolist() == ["naive", "gateway, look-up", "gateway, neither"]
    assert verdicts_alt(table) == (
        "twice: naive at p1. in doubt: gateway, neither at p1. Everything else was charged once."
    )
    only_good: pd.DataFrame = table[table["verdict"] == "once"]
    assert verdicts_alt(only_good) == "No exception. Everything else was charged once."


# --------------------------------------------------------------------------- the panel


@pytest.fixture
def panel(known_key: PaymentStory) -> Iterator[PaymentPanel]:
    made = PaymentPanel(known_key)
    yield made
    made.close()


def test_the_panel_kills_where_it_was_told_and_shows_that_payment(panel: PaymentPanel) -> None:
    assert "Charged <b>once</b>" in panel.static_default()
    panel.ability.value = "neither"
    panel.run_button.click()
    assert panel.run_button.disabled
    assert panel.wait(120)
    assert panel.last_error is None
    assert panel.last_result is not None
    assert panel.last_result.request == PaymentRequest("gateway", "neither", AFTER_EFFECT)
    assert panel.last_result.verdict == "in doubt"
    assert "<b>In doubt</b>" in panel.area.value
    assert "InDoubt" in panel.area.value
    assert [row.status for row in panel.last_result.receipt][-1] == "unknown"
    first = panel.area.value
    panel.gateway.value = False
    panel.point.value = "gateway.after_receipt"
    panel.run_button.click()
    assert panel.wait(120)
    assert panel.last_result.request.way == "naive"
    assert panel.last_result.verdict == "once"
    assert panel.area.value != first


def test_cancel_ends_the_run_and_keeps_what_was_shown(panel: PaymentPanel) -> None:
    panel.run_button.click()
    panel.cancel_button.click()
    assert panel.wait(120)
    assert (panel.last_result, panel.last_error) == (None, None)
    assert panel.status.value == "cancelled"
