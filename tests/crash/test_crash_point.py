"""A named place to die at: free when nobody asked for it, exact when somebody did."""

from __future__ import annotations

import subprocess
import sys
import timeit
from pathlib import Path

import pytest

from durable_kit import crash_point


def test_a_point_that_nobody_armed_costs_less_than_100_ns() -> None:
    calls = 2_000  # in a fraction of the time that a busy machine leaves us at once
    names = {"reached": crash_point.reached}
    runs_s = timeit.repeat("reached('saver.put.before')", globals=names, number=calls, repeat=500)
    # The least of many: everything above it is other programs' time.
    assert min(runs_s) / calls * 1e9 < 100


@pytest.mark.parametrize(
    ("point", "name", "occurrence"),
    [
        ("saver.put.before", "saver.put.before", 1),
        ("saver.put.before#3", "saver.put.before", 3),
        ("node.a#b.enter", "node.a#b.enter", 1),
        ("node.a#1.enter#12", "node.a#1.enter", 12),
    ],
)
def test_a_point_is_named_with_its_occurrence(point: str, name: str, occurrence: int) -> None:
    assert crash_point.parsed(point) == (name, occurrence)


def test_an_armed_process_stops_at_the_occurrence_that_was_asked_for(tmp_path: Path) -> None:
    record = tmp_path / "points"
    program = (
        "import sys; from pathlib import Path; from durable_kit import crash_point as c\n"
        "c.PATIENCE_S = 0.1\n"
        "c.arm('here#3', record=Path(sys.argv[1]))\n"
        "for i in range(9): c.reached('elsewhere'); c.reached('here')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(record)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == crash_point.NOBODY_CAME
    assert done.stdout.splitlines() == [crash_point.ANNOUNCEMENT + "here"]
    assert [name for name, _ in crash_point.passed(record)] == ["elsewhere", "here"] * 3
    times = [at_s for _, at_s in crash_point.passed(record)]
    assert times == sorted(times)


@pytest.mark.parametrize("others_go_on", [False, True])
def test_the_other_os_threads_stand_still_at_their_next_point_or_go_on(
    tmp_path: Path, others_go_on: bool
) -> None:
    record = tmp_path / "points"
    program = (
        "import sys, threading; from pathlib import Path\n"
        "from durable_kit import crash_point as c\n"
        "c.PATIENCE_S = 1.0\n"
        "def announced(line): threading.Thread(target=c.reached, args=('other',)).start()\n"
        "c.arm('here', record=Path(sys.argv[1]), announce=announced,\n"
        f"      others_go_on={others_go_on})\n"
        "c.reached('here')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(record)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == crash_point.NOBODY_CAME
    passed = [name for name, _ in crash_point.passed(record)]
    assert passed == (["here", "other"] if others_go_on else ["here"])


def test_a_record_whose_last_line_is_torn_is_read_up_to_it(tmp_path: Path) -> None:
    record = tmp_path / "points"
    record.write_bytes(b"1000000000 a\n2000000000 b\n30000")
    assert crash_point.passed(record) == [("a", 1.0), ("b", 2.0)]
    assert crash_point.passed(tmp_path / "nobody wrote this") == []


def test_a_process_can_be_disarmed(tmp_path: Path) -> None:
    try:
        crash_point.arm(None, record=tmp_path / "points")
        crash_point.reached("a")
        crash_point.arm(None)
        crash_point.reached("b")
    finally:
        crash_point.arm(None)
    assert [name for name, _ in crash_point.passed(tmp_path / "points")] == ["a"]
