"""The one-minute crash: really killed, resumed, charged twice, and nobody left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Literal

import psutil
import pytest

from durable_kit import crash_point
from durable_kit.crash.child import (
    OVER_TIME,
    PARENT_IS_GONE,
    Child,
    ChildFailed,
    death_of,
)
from durable_kit.lab.crash_demo import (
    FINISHED,
    KILLED,
    LANES,
    RESUMES,
    STEPS,
    CrashStory,
    crash_trial,
    run_crash,
)
from durable_kit.lab.widgets.base import Job
from durable_kit.lab.widgets.crash import CrashPanel, story_alt, story_html, summary_html
from durable_kit.lab.workloads import LEDGER

SERVER = "durable_kit.lab.provider_server"
posix = pytest.mark.skipif(
    sys.platform == "win32", reason="a kill has its own exit status on POSIX only"
)


@pytest.fixture(scope="module")
def told(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[CrashStory, list[tuple[int, str]], Path]:
    folder = tmp_path_factory.mktemp("crash")
    progress: list[tuple[int, str]] = []
    story = run_crash(folder=folder, on_progress=lambda done, what: progress.append((done, what)))
    return story, progress, folder


# --------------------------------------------------------------------------- the story


def test_the_first_worker_is_killed_for_real(told: tuple[CrashStory, object, Path]) -> None:
    death = told[0].death
    assert death.killed
    if sys.platform != "win32":
        assert (death.exit_code, death.how) == (-9, "was killed by SIGKILL")


def test_the_state_knows_nothing_of_a_charge_that_the_bank_has_noted(
    told: tuple[CrashStory, object, Path],
) -> None:
    story = told[0]
    assert story.after_kill.values == {
        "order_id": "order-1001",
        "amount_cents": 4999,
        "prepared": True,
    }
    assert story.after_kill.next == ("charge",)
    assert len(story.ledger_after_kill) == 1


def test_the_resume_finishes_and_charges_a_second_time(
    told: tuple[CrashStory, object, Path],
) -> None:
    story = told[0]
    assert (story.resumed.killed, story.resumed.exit_code) == (False, 0)
    assert story.after_resume.next == ()
    assert story.after_resume.values["notified"]
    assert [entry["charge"] for entry in story.ledger] == ["order-1001", "order-1001"]
    assert len({entry["by"] for entry in story.ledger}) == 2, "two processes"
    assert story.charges == 2


def test_the_events_are_in_order_and_the_prepared_step_does_not_run_again(
    told: tuple[CrashStory, object, Path],
) -> None:
    events = told[0].timeline()
    assert events["t_s"].is_monotonic_increasing
    assert set(events["lane"]) == set(LANES)
    said = [
        event
        for lane, event in zip(events["lane"], events["event"], strict=True)
        if lane == "worker 2"
    ]
    assert "prepare" not in said
    assert said == [RESUMES, "charge", "notify", FINISHED]
    assert events[events["lane"] == "worker 1"]["event"].tolist()[-1] == KILLED
    assert events[events["lane"] == "bank"]["event"].tolist() == [
        "charge no. 1 noted",
        "charge no. 2 noted",
    ]


def test_progress_is_told_step_by_step(told: tuple[object, list[tuple[int, str]], Path]) -> None:
    assert [done for done, _ in told[1]] == list(range(STEPS + 1))


def test_the_summary_and_the_picture_say_the_same(told: tuple[CrashStory, object, Path]) -> None:
    story = told[0]
    assert story.summary().loc["charges in the bank's ledger"].tolist() == [1, 2]
    assert "2 charges for one order" in story_alt(story)
    html = story_html(story)
    assert f'alt="{story_alt(story)}"' in html
    assert "<b>2 charges</b>" in html


def test_careful_workers_ask_the_bank_and_charge_once() -> None:
    found = crash_trial("careful")
    assert (found["charges_count"], found["killed_count"]) == (1, 1)
    assert 0 < found["resume_ms"] < 60_000


def test_a_folder_that_holds_a_run_is_refused(told: tuple[object, object, Path]) -> None:
    folder = told[2]
    assert {file.name for file in folder.iterdir()} >= {"agent.db", LEDGER}
    with pytest.raises(ValueError, match="holds a run already"):
        run_crash(folder=folder)


def test_cancelling_leaves_no_process_and_tells_no_story(tmp_path: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(ChildFailed, match="cancelled"):
        run_crash(folder=tmp_path, cancelled=cancelled)
    assert _workers(tmp_path) == []


def test_the_crash_button_shows_a_new_crash(told: tuple[CrashStory, object, Path]) -> None:
    panel = CrashPanel(told[0])
    try:
        assert panel.static_default() == summary_html(told[0])
        panel.run_button.click()
        assert panel.run_button.disabled
        panel.run_button.click()
        assert panel.wait(60)
        assert panel.last_error is None
        assert panel.runs == 1
        assert panel.last_result is not None
        assert panel.last_result.charges == 2
        assert panel.last_result.events != told[0].events
        assert "<b>2 charges</b>" in panel.area.value
    finally:
        panel.close()


class WaitsInTheMiddle(CrashPanel):
    """The crash button, whose story stops before the second worker until it is told to go on."""

    def __init__(self, story: CrashStory) -> None:
        super().__init__(story)
        self.first_is_dead, self.go_on = threading.Event(), threading.Event()

    def work(self, request: Literal["crash"], job: Job) -> CrashStory:
        def progress(done: int, what: str) -> None:
            job.progress(done, STEPS, what)
            if done == 1:
                self.first_is_dead.set()
                assert self.go_on.wait(20)

        return run_crash(on_progress=progress, cancelled=job.cancelled)


def test_the_cancel_button_ends_the_worker(told: tuple[CrashStory, object, Path]) -> None:
    panel = WaitsInTheMiddle(told[0])
    try:
        panel.run_button.click()
        assert panel.first_is_dead.wait(20)
        panel.cancel_button.click()
        panel.go_on.set()
        assert panel.wait(20)
        assert (panel.last_error, panel.last_result) == (None, None)
        assert panel.status.value == "cancelled"
    finally:
        panel.close()


# --------------------------------------------------------------------------- the child


LINGER = """
import time
from durable_kit.crash.child import stay_no_longer_than_the_parent
stay_no_longer_than_the_parent()
time.sleep(60)
"""


def test_a_point_that_is_not_armed_costs_next_to_nothing() -> None:
    began = time.process_time()
    for _ in range(100_000):
        crash_point.reached("somewhere")
    assert time.process_time() - began < 0.2


def test_a_child_that_ends_before_its_crash_point_is_not_taken_for_killed(tmp_path: Path) -> None:
    with Child.start(SERVER, [str(tmp_path / "missing")], crash_at="nowhere") as child:
        with pytest.raises(ChildFailed, match="exited with code 1 before") as failed:
            child.until(crash_point.ANNOUNCEMENT, timeout_s=30)
        assert "unable to open database file" in str(failed.value)
        assert not child.kill().killed, (
            "it had ended by itself; a kill that comes later is no crash"
        )


@posix
def test_an_exit_status_is_read_for_what_it_is() -> None:
    assert death_of(-9).killed
    assert not death_of(-15).killed
    assert not death_of(0).killed
    assert death_of(3).how == "exited with code 3"
    assert death_of(-15).how == "was killed by SIGTERM"


def test_a_silent_child_is_given_up_and_ended() -> None:
    silent = [sys.executable, "-c", "import time; time.sleep(60)"]
    with Child(_popen(silent)) as child:
        with pytest.raises(ChildFailed, match=r"said nothing for 0\.3 s"):
            child.until("anything", timeout_s=0.3)
        with pytest.raises(ChildFailed, match="did not end"):
            child.wait(timeout_s=0.1)
        process = psutil.Process(child.pid)
    assert not process.is_running()


def test_a_child_goes_when_its_parent_goes() -> None:
    """The pipe ends with the parent, however the parent ended."""
    process = _popen([sys.executable, "-c", LINGER])
    assert process.stdin is not None
    time.sleep(0.2)
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(10) == PARENT_IS_GONE
    _close(process)


def test_a_child_goes_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DURABLE_KIT_CHILD_DEADLINE_S", "0.2")
    process = _popen([sys.executable, "-c", LINGER])
    assert process.wait(20) == OVER_TIME
    _close(process)


def test_an_announced_child_that_nobody_kills_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(crash_point.VARIABLE, "here")
    code = (
        "from durable_kit import crash_point as c; c.PATIENCE_S = 0.1; print('before');"
        " c.reached('elsewhere'); c.reached('here'); print('never')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert done.returncode == crash_point.NOBODY_CAME
    assert done.stdout.splitlines() == ["before", f"{crash_point.ANNOUNCEMENT}here"]


def _popen(command: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def _close(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _workers(folder: Path) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in (process.info["cmdline"] or [])
    ]
