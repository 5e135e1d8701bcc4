"""The measurement itself: what it counts, what it refuses, and that it can be interrupted."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from durable_kit.lab import storage_bench
from durable_kit.lab.storage_bench import measure_storage
from durable_kit.lab.storage_report import Case, Report, Spread, environment
from durable_kit.lab.storage_worker import (
    Task,
    WorkerError,
    make_messages,
    peak_memory_mib,
    run_in_child,
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    workspace = tmp_path_factory.mktemp("bench")
    found = measure_storage(
        savers=("delta", "sqlite"), steps=(300,), repeats=2, opens=1, directory=workspace
    )
    assert list(workspace.iterdir()) == [], "the measurement left files behind"
    return found


def case_of(report: Report, saver: str) -> Case:
    return next(case for case in report.cases if case.saver == saver)


def test_a_report_has_every_figure_with_its_n(report: Report) -> None:
    assert report.failures == ()
    assert not report.interrupted
    for saver in ("delta", "sqlite"):
        case = case_of(report, saver)
        missing = [name for name, value in dataclasses.asdict(case).items() if value is None]
        assert missing == []
        assert case.raw_bytes == 300 * 490  # on average
        timed = {case.step_at_10_ms: 2, case.step_at_end_ms: 2, case.open_get_state_ms: 1}
        for spread, n in timed.items():
            assert spread is not None
            assert spread.n == n
            assert 0 < spread.low <= spread.median <= spread.high


def test_the_quadratic_saver_is_seen_as_quadratic_and_ours_as_linear(report: Report) -> None:
    theirs, ours = case_of(report, "sqlite"), case_of(report, "delta")
    assert theirs.growth_exponent is not None
    assert theirs.growth_exponent > 1.8
    assert ours.growth_exponent is not None
    assert ours.growth_exponent < 1.2
    assert theirs.disk_bytes is not None
    assert ours.disk_bytes is not None
    assert ours.disk_bytes < theirs.disk_bytes / 20


def test_the_peer_is_its_own_measure(report: Report) -> None:
    theirs = case_of(report, "sqlite")
    assert theirs.step_at_end_ratio == Spread(1.0, 1.0, 1.0, 2)
    assert theirs.history_ratio == 1.0


def test_the_text_labels_its_figures_and_the_json_is_whole(report: Report) -> None:
    text = report.to_text()
    assert text.startswith("Measured here")
    assert "synchronous=2" in text
    assert "DeltaSaver" in text
    loaded = json.loads(report.to_json())
    assert loaded["label"] == "measured here"
    assert loaded["environment"]["pragmas"]["sqlite"]["journal_mode"] == "wal"
    assert len(loaded["cases"]) == 2
    assert {bar["what"].split(" at ")[0] for bar in loaded["bars"]} >= {"bytes on disk"}


def test_an_interrupted_run_keeps_what_it_measured(tmp_path: Path) -> None:
    def interrupt(done: int, total: int, label: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    found = measure_storage(
        savers=("sqlite", "none"), steps=(300,), on_progress=interrupt, directory=tmp_path
    )
    assert found.interrupted
    assert [case.saver for case in found.cases] == ["sqlite", "none"]
    assert found.cases[0].step_at_10_ms is not None
    assert found.cases[0].step_at_end_ms is None
    assert "Interrupted" in found.to_text()
    assert list(tmp_path.iterdir()) == []


def test_a_saver_that_fails_is_named_and_the_others_are_measured() -> None:
    found = measure_storage(
        savers=("postgres", "none"),
        steps=(60,),
        repeats=1,
        opens=1,
        postgres_url="postgresql+psycopg://nobody@127.0.0.1:1/nothing",
    )
    assert [failure.label for failure in found.failures] == ["PostgresSaver"]
    assert "PostgresSaver: not measured (start)" in found.to_text()
    nothing = case_of(found, "none")
    assert nothing.step_at_end_ms is not None
    assert nothing.disk_bytes is None
    assert nothing.open_get_state_ms is None


def test_a_saver_that_reads_back_something_else_is_an_error_and_not_a_time(tmp_path: Path) -> None:
    url = f"sqlite:///{(tmp_path / 'a.db').as_posix()}"
    task = Task("write", "sqlite", url, "dict", 490, steps=20)
    run_in_child(task, timeout_s=60)
    for what in ("open", "history"):
        asked = dataclasses.replace(task, what=what, steps=21)
        with pytest.raises(WorkerError, match="AssertionError"):
            run_in_child(asked, timeout_s=60)


def test_a_worker_that_takes_too_long_is_stopped() -> None:
    endless = Task("write", "none", "", "dict", 490, steps=30_000)
    with pytest.raises(WorkerError, match=r"limit of 0\.5 s"):
        run_in_child(endless, timeout_s=0.5)


def test_a_worker_does_not_outlive_its_parent() -> None:
    endless = Task("write", "none", "", "dict", 490, steps=30_000)
    worker = subprocess.Popen(
        [sys.executable, "-m", "durable_kit.lab.storage_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    worker.stdin.write(endless.to_json() + "\n")
    worker.stdin.close()  # what the death of a parent looks like from inside
    assert worker.wait(timeout=60) == 3
    assert worker.stdout is not None
    worker.stdout.close()


@pytest.mark.parametrize("payload_bytes", [64, 250, 260, 490, 5000])
def test_dict_messages_have_the_asked_size_on_average(payload_bytes: int) -> None:
    messages, raw_bytes = make_messages("dict", payload_bytes, 40)
    assert abs(raw_bytes - 40 * payload_bytes) <= 5  # some lengths cannot be met to the byte
    assert messages[:10] == make_messages("dict", payload_bytes, 10)[0]
    assert len({len(message["content"]) for message in messages}) > 5


def test_ai_messages_carry_the_same_text() -> None:
    dicts, small = make_messages("dict", 490, 3)
    ai, large = make_messages("ai", 490, 3)
    assert [message.content for message in ai] == [message["content"] for message in dicts]
    assert large > small


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        ({"savers": ("sqlite", "nonsense")}, "nonsense"),
        ({"savers": ()}, "Choose from"),
        ({"savers": ("sqlite", "sqlite")}, "once"),
        ({"steps": (10,)}, "steps must be 50 or more, not 10"),
        ({"steps": (10**8,)}, "GB are free"),
        ({"messages": "text"}, "'dict' or 'ai'"),
        ({"payload_bytes": 3}, "64 or more"),
        ({"repeats": 0}, "1 or more"),
        ({"directory": "/no/such/place"}, "no directory"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_at_once(
    request_: dict[str, object], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_bench, "run_in_child", lambda *_, **__: pytest.fail("it started"))
    with pytest.raises(ValueError, match=complaint):
        measure_storage(**request_)  # type: ignore[arg-type]


def test_a_bar_is_missed_by_a_value_above_it(report: Report) -> None:
    spoiled = dataclasses.replace(
        case_of(report, "delta"), bytes_times_raw=2.51, history_ratio=0.3, steps=3000
    )
    spoiled_report = dataclasses.replace(report, cases=(spoiled,), messages="ai")
    held = {bar.what.split(" at ")[0]: bar for bar in spoiled_report.bars()}
    assert not held["bytes on disk"].holds
    assert held["history"].holds or held["history"].what.endswith("memory over SqliteSaver")
    assert next(b for b in spoiled_report.bars() if b.what.startswith("step at 3000")).limit == 0.5
    assert "MISSED" in spoiled_report.to_text()


def test_bars_are_not_judged_in_a_run_that_is_too_short_for_them(report: Report) -> None:
    spoiled = dataclasses.replace(case_of(report, "delta"), bytes_times_raw=99.0, steps=999)
    short = dataclasses.replace(report, cases=(spoiled,))
    assert {bar.holds for bar in short.bars()} == {None}
    assert "too few steps to judge" in short.to_text()
    assert "MISSED" not in short.to_text()
    long = dataclasses.replace(report, cases=(dataclasses.replace(spoiled, steps=1000),))
    assert "too few" not in long.to_text()
    assert "MISSED" in long.to_text()


def test_a_spread_of_nothing_is_nothing() -> None:
    assert Spread.of([]) is None
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)


def test_peak_memory_sees_what_was_allocated_and_freed() -> None:
    script = (
        "from durable_kit.lab.storage_worker import peak_memory_mib as peak\n"
        "before = peak(); block = bytearray(200 << 20); del block; print(peak() - before)"
    )
    grown = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout
    assert peak_memory_mib() is not None
    assert float(grown) > 150


def test_the_environment_says_where_it_was_measured() -> None:
    here = environment({"sqlite": {"synchronous": "2"}, "none": {}}, {})
    assert here.packages["langgraph"] != "not installed"
    assert here.cpu_count >= 1
    assert here.pragmas == {"sqlite": {"synchronous": "2"}}
