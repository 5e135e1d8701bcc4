"""The mail agent of lesson 01: what is left after a kill, and who sends twice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durable_kit.event_log import ToolRequested, ToolSucceeded
from durable_kit.lab.four_kinds import (
    MOMENTS,
    facts_table,
    left_table,
    mail_trial,
    run_mail,
    sort_moments,
)
from durable_kit.lab.mail_agent import ANSWERED, ASKED, KEY, SENT
from durable_kit.lab.widgets.timeline import SortPanel

RIGHT = [moment.kind for moment in MOMENTS]


def test_a_kill_after_the_send_leaves_a_request_without_an_answer_and_a_resume_sends_again() -> (
    None
):
    story = run_mail(asks=False, kill_at=SENT)
    left = story.after_kill
    assert story.death.killed
    assert (left.snapshot.get("mailed"), left.next, len(left.emails)) == (None, ("mail",), 1)
    assert (list(left.folded.asked), left.folded.values) == ([KEY], left.snapshot)
    assert story.emails == 2
    assert "e-mail no. 2" in story.moments["event"].tolist()
    assert left_table(left)["what is left"].tolist()[3] == "e-mail no. 1"


def test_one_that_asks_settles_the_doubt_and_sends_once() -> None:
    story = run_mail(asks=True, kill_at=SENT)
    facts = [event.fact for event in story.after_resume.events]
    assert story.emails == 1
    assert [type(f) for f in facts if isinstance(f, ToolRequested | ToolSucceeded)] == [
        ToolRequested,
        ToolSucceeded,
    ]
    assert story.after_resume.folded.asked == {}
    assert facts_table(story.after_resume.events)["fact"].tolist()[-1] == "RunFinished"


@pytest.mark.parametrize(
    ("killed_at", "resume", "emails", "same_state"),
    [
        (ASKED, "sends again", 1, True),
        (ANSWERED, "sends again", 2, False),  # the log knew, and the resume began with the snapshot
        (ANSWERED, "asks first", 1, False),
    ],
)
def test_the_log_may_be_newer_than_the_snapshot(
    killed_at: str, resume: str, emails: int, same_state: bool
) -> None:
    found = mail_trial(killed_at, resume)
    assert found["killed_count"] == 1
    assert (found["emails_count"], found["same_state"]) == (emails, same_state)


# --------------------------------------------------------------------------- sorting


@pytest.mark.parametrize(
    ("killed_after", "resumes_at", "emails", "in_doubt"),
    [
        (0, "", 1, False),
        (1, "", 1, False),
        (2, "mail", 1, False),
        (3, "mail", 1, True),
        (4, "mail", 2, True),
        (5, "mail", 2, True),
        (6, "mail", 2, False),
        (7, "finish", 1, False),
    ],
)
def test_what_a_kill_leaves_follows_from_the_order_of_the_moments(
    killed_after: int, resumes_at: str, emails: int, in_doubt: bool
) -> None:
    found = sort_moments(RIGHT, killed_after=killed_after)
    assert (found.resumes_at, found.emails, found.in_doubt) == (resumes_at, emails, in_doubt)
    assert all(moment.kind != "state" for moment in found.left)


def test_a_sorting_is_judged_moment_by_moment() -> None:
    assert sort_moments(RIGHT, killed_after=5).right == 7
    assert sort_moments(["event"] * 7, killed_after=5).right == 2
    with pytest.raises(ValueError, match="6 places"):
        sort_moments(RIGHT[1:], killed_after=5)
    with pytest.raises(ValueError, match="killed after 8"):
        sort_moments(RIGHT, killed_after=8)


@pytest.fixture
def panel() -> Iterator[SortPanel]:
    made = SortPanel()
    yield made
    made.close()


def test_a_wrong_choice_gets_a_question_and_a_right_one_takes_it_away(panel: SortPanel) -> None:
    assert "<b>0 of 7</b>" in panel.area.value
    before = panel.area.value
    panel.kinds[3].value = "event"
    assert panel.wait()
    assert "4. e-mail no. 1 as event?" in panel.area.value
    assert panel.area.value != before
    panel.kinds[3].value = "effect"
    assert panel.wait()
    assert "as event?" not in panel.area.value
    assert panel.last_result is not None
    assert panel.last_result.right == 1
    for choice, kind in zip(panel.kinds, RIGHT, strict=True):
        choice.value = kind
    assert panel.wait()
    assert "<b>7 of 7</b>" in panel.area.value


def test_moving_the_kill_changes_what_is_left(panel: SortPanel) -> None:
    assert "<b>two e-mails</b>" in panel.area.value
    panel.killed_after.value = 7
    assert panel.wait()
    assert "one e-mail" in panel.area.value
    assert "begins with <code>finish</code>" in panel.area.value
    panel.reset_button.click()
    assert panel.wait()
    assert panel.killed_after.value == 5
    assert "<b>two e-mails</b>" in panel.area.value
