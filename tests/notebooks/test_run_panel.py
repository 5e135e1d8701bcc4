"""The run panel: pressed for real, and asked what has changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from durable_kit.lab import crash_plots, plots
from durable_kit.lab.run_story import (
    AGAIN,
    IN_FLIGHT,
    LOST,
    POINTS,
    STORED,
    Mark,
    RunRequest,
    RunStory,
    tell,
)
from durable_kit.lab.widgets.run import RunPanel, run_html

ONE_BRANCH = "one branch stored, the other at work"
BOTH_BRANCHES = "both branches done, their checkpoint not committed"
MONEY_TAKEN = "the money is taken, the node not over"


def fates(story: RunStory, process: int) -> dict[str, str]:
    return {bar.node: bar.fate for bar in story.bars if bar.process == process}


@pytest.fixture(scope="module")
def twice_charged() -> RunStory:
    return tell(RunRequest(point=MONEY_TAKEN))


@pytest.fixture
def panel(twice_charged: RunStory) -> Iterator[RunPanel]:
    made = RunPanel(twice_charged)
    yield made
    made.close()


# --------------------------------------------------------------------------- the result


def test_a_kill_after_the_money_is_taken_charges_twice(twice_charged: RunStory) -> None:
    story = twice_charged
    assert story.crashed
    assert (story.charges, len(story.book)) == (2, 3)
    assert (story.executed_steps, story.lost_steps, story.stored_step) == (2, 0, 2)
    assert (story.next, story.repeated) == (("charge",), ("charge",))
    assert fates(story, 1)["charge"] == IN_FLIGHT
    assert fates(story, 2)["charge"] == AGAIN
    assert [m.process for m in story.marks if m.what == "charge"] == [1, 2]
    assert "2 charges and 1 e-mail" in story.sentence()


def test_of_two_branches_only_the_one_that_was_not_stored_runs_again() -> None:
    story = tell(RunRequest(point=ONE_BRANCH, step_ms=100))
    assert fates(story, 1) == {"prepare": STORED, "stock": STORED, "discount": IN_FLIGHT}
    assert (story.next, set(story.tasks)) == (("discount",), {"stock", "discount"})
    assert story.repeated == ("discount",)
    assert "stock" not in fates(story, 2)
    # A super-step in flight is not called executed.
    assert story.sentence().startswith(
        "Nodes had worked in 2 super-steps before the kill; in 0 of them nothing was stored."
    )


def test_a_branch_whose_writes_are_stored_does_not_run_again_although_the_checkpoint_is_lost() -> (
    None
):
    """The last writes and the checkpoint are stored by two OS threads; either may be first."""
    story = tell(RunRequest(point=BOTH_BRANCHES))
    assert story.stored_step == 1
    assert set(story.tasks) == {"stock", "discount"}
    assert set(story.repeated) == set(story.next)
    assert set(fates(story, 2)) == {"charge", "notify", *story.next}
    assert story.charges == 1


def test_exit_stores_nothing_before_the_end_and_everything_runs_again() -> None:
    story = tell(RunRequest(durability="exit", point=MONEY_TAKEN, step_ms=0))
    assert story.stored_step is None
    assert fates(story, 1)["prepare"] == LOST
    assert story.lost_steps == story.executed_steps == 2
    assert story.charges == 2


def test_a_key_of_the_order_makes_one_charge_of_two_attempts() -> None:
    story = tell(RunRequest(point=MONEY_TAKEN, key="order", step_ms=0))
    assert story.repeated == ("charge",)
    assert story.charges == 1
    assert "1 charge and 1 e-mail" in story.sentence()


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (RunRequest(durability="exit", point=BOTH_BRANCHES, step_ms=0), "was never reached"),
        (RunRequest(point="nowhere: no crash", step_ms=0), "No crash: one process"),
    ],
)
def test_where_nothing_crashed_that_is_said(request_: RunRequest, said: str) -> None:
    story = tell(request_)
    assert not story.crashed
    assert said in story.sentence()
    assert len(story.ends_ms) == 1
    assert (story.charges, story.lost_steps) == (1, 0)
    assert "process 1: finished" in _titles(story)


def test_every_point_of_the_menu_is_reached_in_sync() -> None:
    for said, point in POINTS.items():
        assert tell(RunRequest(point=said, step_ms=0)).crashed == bool(point), said


# --------------------------------------------------------------------------- the picture


def _titles(story: RunStory) -> str:
    return " ".join(a.get_title(loc="left") for a in crash_plots.run_timeline(story).axes)


def test_the_picture_shows_both_processes_and_is_the_same_for_the_same_story(
    twice_charged: RunStory,
) -> None:
    assert "process 1: killed process 2: finished" in _titles(twice_charged)
    shown = run_html(twice_charged)
    assert shown == run_html(twice_charged)
    assert "2 charges for one order" in shown
    assert 'alt="Timeline of one run. Process 1 executed prepare (stored)' in shown
    assert shown.count("<td") > 20, "the runs and the book are there as tables"


def test_writes_and_checkpoints_of_the_same_moment_do_not_hide_each_other(
    twice_charged: RunStory,
) -> None:
    """Stored by two OS threads, often within a millisecond: each kind has a lane of its own."""
    marks = tuple(Mark(1, 5.0, what) for what in ("writes", "checkpoint", "charge"))
    figure = crash_plots.run_timeline(replace(twice_charged, bars=(), marks=marks))
    lanes = {
        line.get_marker(): line.get_ydata()[0]
        for line in figure.axes[0].lines
        if len(line.get_xdata()) == 1 and line.get_xdata()[0] == 5.0
    }
    assert len(set(lanes.values())) == len(lanes) == 3


def test_every_fate_has_its_own_look(twice_charged: RunStory) -> None:
    looks = set()
    for fate, bar in zip((STORED, LOST, IN_FLIGHT, AGAIN), twice_charged.bars, strict=False):
        story = replace(twice_charged, bars=(replace(bar, fate=fate, process=1),), marks=())
        looks.add(plots.png(crash_plots.run_timeline(story)))
    assert len(looks) == 4


# --------------------------------------------------------------------------- the panel


def test_pressing_run_kills_a_process_and_shows_another_story(panel: RunPanel) -> None:
    assert "2 charges for one order" in panel.static_default()
    panel.key.value = "order"
    panel.step_ms.value = 0
    panel.run_button.click()
    assert panel.wait(60)
    assert panel.last_error is None
    assert panel.last_result is not None
    assert panel.last_result.request == RunRequest(point=MONEY_TAKEN, key="order", step_ms=0.0)
    assert panel.last_result.charges == 1
    assert "charges: 1" in panel.area.value
    picture = re.search(r"base64,[^\"]+", panel.area.value)
    panel.durability.value = "exit"
    panel.run_button.click()
    assert panel.wait(60)
    assert panel.last_result.stored_step is None
    assert re.search(r"base64,[^\"]+", panel.area.value) != picture
    assert panel.runs == 2


def test_cancel_leaves_no_process_and_no_result(panel: RunPanel) -> None:
    before = {p.pid for p in psutil.Process().children()}
    reached: list[Any] = []
    panel.step_ms.value = 100
    panel.bar.observe(lambda change: reached.append(panel.cancel_button.click()), names="value")
    panel.run_button.click()
    assert panel.wait(60)
    assert reached
    assert (panel.status.value, panel.last_result, panel.last_error) == ("cancelled", None, None)
    left = [p for p in psutil.Process().children() if p.pid not in before]
    assert [p for p in left if "provider_server" in " ".join(p.cmdline())] == []


def test_reset_puts_the_controls_back(panel: RunPanel) -> None:
    panel.durability.value, panel.point.value = "exit", ONE_BRANCH
    panel.reset_button.click()
    assert (panel.durability.value, panel.point.value) == ("sync", MONEY_TAKEN)
