"""Panels without a browser: press, move, and look at what has changed.

A test that a click raised nothing would pass for a button that does nothing. So every test here
asks for the effect: another result, another picture, a file with another byte.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import ipywidgets
import pytest

from durable_kit.cli.doctor import Check
from durable_kit.lab.damage import Flip
from durable_kit.lab.growth_model import LANGGRAPH, GrowthRequest, simulate
from durable_kit.lab.widgets.base import Cancelled, Job, Panel
from durable_kit.lab.widgets.damage import DamagePanel
from durable_kit.lab.widgets.environment import EnvironmentPanel, checks_html
from durable_kit.lab.widgets.growth import GrowthDrawing, GrowthPanel
from durable_kit.storage.snapshot_policy import EveryN


class Slow(Panel[int, int]):
    """A panel whose work waits until it is let go on, and that counts what it has been asked."""

    def __init__(self, *, live: bool = False, name: str = "slow") -> None:
        self.slider = ipywidgets.IntSlider(value=1, min=0, max=1000)
        self.asked: list[int] = []
        self.go_on = threading.Event()
        self.released_count = 0
        super().__init__(
            name=name,
            live=[self.slider] if live else [],
            controls=[] if live else [self.slider],
        )

    def request(self) -> int:
        return int(self.slider.value)

    def work(self, request: int, job: Job) -> int:
        self.asked.append(request)
        while not self.go_on.wait(0.005):
            if request == 14 and job.cancelled.is_set():
                raise RuntimeError("the process that it waited for was ended")
            if request != 14:
                job.progress(1, 2, "waiting")
        if request == 13:
            raise ValueError("thirteen is not allowed\nand a second line")
        return request

    def render(self, result: int) -> str:
        return f"<b>{result}</b>"

    def static_default(self) -> str:
        return "<b>1</b>"

    def released(self) -> None:
        self.released_count += 1


@pytest.fixture
def slow() -> Iterator[Slow]:
    panel = Slow()
    yield panel
    panel.close()


@pytest.fixture
def live() -> Iterator[Slow]:
    panel = Slow(live=True)
    yield panel
    panel.close()


# --------------------------------------------------------------------------- the base


def test_run_shows_its_result_and_is_busy_meanwhile(slow: Slow) -> None:
    slow.slider.value = 7
    slow.run_button.click()
    assert slow.run_button.disabled
    assert not slow.cancel_button.disabled
    _until(lambda: "waiting" in slow.status.value)
    assert slow.bar.value == 0.5
    slow.go_on.set()
    assert slow.wait()
    assert (slow.last_result, slow.area.value, slow.runs) == (7, "<b>7</b>", 1)
    assert not slow.run_button.disabled
    assert slow.cancel_button.disabled


def test_a_second_press_while_it_runs_is_ignored(slow: Slow) -> None:
    slow.run_button.click()
    slow.run_button.click()
    slow.run_button.click()
    slow.go_on.set()
    assert slow.wait()
    assert (slow.asked, slow.runs) == ([1], 1)


def test_dragging_over_twenty_values_runs_for_the_last_and_drops_those_between(live: Slow) -> None:
    for value in range(20, 40):
        live.slider.value = value
    live.go_on.set()
    assert live.wait()
    assert live.asked[-1] == live.last_result == 39
    assert len(live.asked) <= 2, "values in between were measured although nobody waits for them"
    assert live.runs == 1, "the result of an older value was shown"


def test_cancel_keeps_the_last_good_result(slow: Slow) -> None:
    slow.go_on.set()
    slow.run_button.click()
    slow.wait()
    slow.go_on.clear()
    slow.slider.value = 9
    slow.run_button.click()
    slow.cancel_button.click()
    assert slow.wait()
    assert (slow.last_result, slow.area.value, slow.status.value) == (1, "<b>1</b>", "cancelled")
    assert slow.last_error is None


def test_what_a_cancelled_work_stumbles_over_is_no_failure(slow: Slow) -> None:
    slow.slider.value = 14
    slow.run_button.click()
    slow.cancel_button.click()
    assert slow.wait()
    assert (slow.status.value, slow.last_error, slow.error.value) == ("cancelled", None, "")


def test_an_error_is_one_sentence_with_its_traceback_folded_and_the_last_result_stays(
    slow: Slow,
) -> None:
    slow.go_on.set()
    slow.run_button.click()
    slow.wait()
    slow.slider.value = 13
    slow.run_button.click()
    assert slow.wait()
    assert isinstance(slow.last_error, ValueError)
    visible, _, folded = slow.error.value.partition("<details>")
    assert "thirteen is not allowed" in visible
    assert "second line" not in visible
    assert "Traceback" in folded
    assert slow.area.value == "<b>1</b>"
    slow.slider.value = 14
    slow.run_button.click()
    assert slow.wait()
    assert (slow.error.value, slow.last_error, slow.last_result) == ("", None, 14)


def test_reset_restores_the_controls_and_throws_away_what_was_running(slow: Slow) -> None:
    slow.slider.value = 50
    slow.run_button.click()
    slow.reset_button.click()
    slow.go_on.set()
    assert slow.wait()
    assert (slow.slider.value, slow.last_result, slow.area.value, slow.runs) == (1, None, "", 0)


def test_closing_twice_is_harmless_and_leaves_no_live_handler(live: Slow) -> None:
    live.close()
    live.close()
    live.slider.value = 99
    live.run_button.click()
    live.start()
    assert live.asked == []
    assert live.released_count == 1


def test_closing_while_it_runs_ends_the_run(slow: Slow) -> None:
    slow.run_button.click()
    slow.close()
    assert slow.wait(1)
    assert slow.last_result is None


def test_running_the_cell_three_times_leaves_one_live_handler() -> None:
    panels = [Slow(live=True, name="again") for _ in range(3)]
    for panel in panels:
        panel.go_on.set()
    try:
        for panel in panels:  # three sliders stand on the page, two of them belong to the past
            panel.slider.value = 5
            panel.run_button.click()
        assert all(panel.wait() for panel in panels)
        assert [len(panel.asked) > 0 for panel in panels] == [False, False, True]
        assert [panel.released_count for panel in panels] == [1, 1, 0]
    finally:
        panels[-1].close()


def test_callbacks_from_other_threads_while_a_run_is_active(live: Slow) -> None:
    """JupyterLab delivers them off the main thread while a cell is running."""
    live.go_on.set()
    errors: list[BaseException] = []

    def turn(base: int) -> None:
        try:
            for i in range(25):
                live.slider.value = base + i
                live.refresh()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=turn, args=(n * 100,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert live.wait()
    assert errors == []
    assert live.last_result == live.slider.value == live.asked[-1]


def test_a_panel_is_shown_after_its_static_default(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", lambda *objects: shown.extend(objects))
    slow._ipython_display_()
    assert [getattr(shown[0], "data", None), shown[1]] == ["<b>1</b>", slow.view]


def test_a_child_that_forgets_its_part_says_so() -> None:
    panel: Panel[int, int] = Panel(name="empty")
    try:
        for missing in (panel.request, panel.static_default):
            with pytest.raises(NotImplementedError):
                missing()
        with pytest.raises(NotImplementedError):
            panel.render(1)
    finally:
        panel.close()


def test_a_job_that_was_cancelled_raises_at_its_next_progress() -> None:
    job = Job(lambda *_: None)
    job.progress(0, 1, "x")
    job.cancelled.set()
    with pytest.raises(Cancelled):
        job.progress(1, 1, "x")


# --------------------------------------------------------------------------- the environment


def test_check_again_runs_the_doctors_checks() -> None:
    panel = EnvironmentPanel(())
    try:
        panel.run_button.click()
        assert panel.wait(60)
        assert panel.last_error is None
        assert panel.last_result is not None
        names = {check.name for check in panel.last_result}
        assert {"Python", "SQLite", "fsync"} <= names
        assert "<table>" in panel.area.value
    finally:
        panel.close()


def test_the_worst_check_comes_first_with_what_to_do() -> None:
    text = checks_html(
        (
            Check("ok", "Python", "3.12"),
            Check("FAIL", "SQLite", "<old>", "Use a local disk."),
            Check("warn", "browser", "none"),
        )
    )
    assert text.index("FAIL") < text.index("warn") < text.index("3.12")
    assert "Something is missing" in text
    assert "→ Use a local disk." in text
    assert "&lt;old&gt;" in text


# --------------------------------------------------------------------------- growth


@pytest.fixture
def growth() -> Iterator[GrowthPanel]:
    panel = GrowthPanel(steps=200)
    yield panel
    panel.close()


def test_the_default_is_there_before_anybody_touches_a_slider(growth: GrowthPanel) -> None:
    assert growth.area.value == growth.static_default()
    assert 'alt="Modelled: 200 steps of 380 bytes, SizeRatio(32)' in growth.area.value


def test_a_moved_slider_gives_another_figure(growth: GrowthPanel) -> None:
    for slider in (growth.steps, growth.message_bytes, growth.every, growth.ratio):
        assert slider.continuous_update is False
    before = growth.area.value
    growth.kind.value = "EveryN"
    assert growth.wait()
    every = growth.area.value
    growth.every.value = 7
    assert growth.wait()
    assert growth.last_result is not None
    assert growth.last_result.max_replay_depth == 6
    assert len({_picture(html) for html in (before, every, growth.area.value)}) == 3
    growth.reset_button.click()
    assert growth.wait()
    assert _picture(growth.area.value) == _picture(before)


def test_a_hundred_teeth_are_drawn_thinner_than_ten() -> None:
    drawing = GrowthDrawing()
    widths = []
    for n in (300, 30):  # 10 and 100 snapshots in 3,000 steps
        figure = drawing.show(simulate(GrowthRequest(3000, 380, EveryN(n), bookkeeping=LANGGRAPH)))
        [line], [area] = figure.axes[1].lines, figure.axes[1].collections
        widths.append(line.get_linewidth())
        assert list(area.get_linewidth()) == [0], "an edge of its own fills what lies between"
    assert widths == [1.2, 0.25]


def test_a_new_figure_takes_less_than_a_third_of_a_second(growth: GrowthPanel) -> None:
    growth.steps.value = 3000
    growth.wait()
    times = []
    drawing = GrowthDrawing()
    for n in (20, 30, 40, 50, 60):
        began = time.process_time()  # other work on this machine is not the panel's
        drawing.html(simulate(growth.request()))
        times.append(time.process_time() - began)
        growth.every.value = n
        growth.wait()
    assert sorted(times)[2] < 0.3


# --------------------------------------------------------------------------- damage


@pytest.fixture
def damaged() -> Iterator[DamagePanel]:
    panel = DamagePanel(messages=16)
    yield panel
    panel.close()


def test_damage_changes_one_byte_of_the_file_and_recover_says_what_was_lost(
    damaged: DamagePanel,
) -> None:
    damaged.recover_button.click()  # makes the specimen; there is nothing to recover yet
    assert damaged.wait(60)
    assert "nothing was damaged" in damaged.area.value
    path = damaged.request().path
    sound = path.read_bytes()
    damaged.run_button.click()
    assert damaged.wait(60)
    assert damaged.last_error is None
    now = path.read_bytes()
    assert sum(a != b for a, b in zip(sound, now, strict=True)) == 1
    assert damaged.last_result is not None
    [flip] = damaged.last_result.seen.flips
    assert isinstance(flip, Flip)
    assert (sound[flip.file_offset], now[flip.file_offset]) == (flip.before, flip.after)
    assert "BrokenChain" in damaged.area.value
    damaged.recover_button.click()
    assert damaged.wait(60)
    assert damaged.last_result.recovery is not None
    assert damaged.last_result.recovery.lost_steps >= 1
    assert damaged.last_result.seen.problems == ()
    assert damaged.last_result.seen.messages is not None
    assert damaged.last_result.seen.messages < 16


def test_reset_gives_a_sound_database_and_close_removes_it(damaged: DamagePanel) -> None:
    damaged.run_button.click()
    assert damaged.wait(60)
    first = damaged.request().path
    damaged.reset_button.click()
    damaged.recover_button.click()
    assert damaged.wait(60)
    second = damaged.request().path
    assert second != first
    assert "16 of 16 messages" in damaged.area.value
    damaged.close()
    assert not first.parent.exists()


def test_a_forgotten_damage_panel_removes_its_files_when_it_is_collected() -> None:
    panel = DamagePanel(messages=3)
    folder = panel.request().path.parent
    assert folder.exists()
    panel.close()
    del panel
    gc.collect()
    assert not folder.exists()


def _picture(text: str) -> str:
    return text.partition("base64,")[2].partition('"')[0]


def _until(holds: Any, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_this_file_leaves_no_panel_thread_behind() -> None:
    gc.collect()
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"slow", "again", "growth", "damage", "environment", "crash"}
