"""The deploys of lesson 06, and the panel over them: what is told is what happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_kit import DeltaSaver, drain_report
from durable_kit.lab.deploy_trials import VERDICTS, deploy_over, drain_trial, store_threads
from durable_kit.lab.order_versions import (
    AT_CHARGE,
    AT_REVIEW,
    DEPLOYS,
    ENDED,
    PRICES,
    cents_of,
    find_threads,
    main,
    order_flow,
    thread,
)
from durable_kit.lab.widgets.deploys import DeployPanel, trial_html
from durable_kit.lab.workloads import sqlite_url

EXPECTED = {  # as agreed, by other rules, not charged, an error, refused; two had ended
    "version 1, as it was": (8, 0, 0, 0, 0),
    "new rules": (0, 8, 0, 0, 0),
    "new rules, with a router": (8, 0, 0, 0, 0),
    "and cents, without a step": (0, 0, 0, 8, 0),
    "and cents, with a step": (8, 0, 0, 0, 0),
    "and review renamed, in code only": (2, 0, 6, 0, 0),
    "and review renamed, with a step": (8, 0, 0, 0, 0),
    "and path 1 deleted": (0, 0, 0, 0, 8),
}


def test_each_deploy_does_to_the_threads_what_the_lesson_says() -> None:
    for deploy in DEPLOYS:
        trial = deploy_over(find_threads(), deploy)
        counts = tuple(trial.count(verdict) for verdict in VERDICTS)
        assert counts == (*EXPECTED[deploy.name], 2), deploy.name
        assert trial.before.unfinished == {1: 8}
        assert trial.after.may_go(1) == (sum(counts[3:5]) == 0)
        assert (trial.problems > 0) == (counts[2] + counts[3] > 0)


def positions(path: Path) -> dict[str, Any]:
    with DeltaSaver.open(sqlite_url(path)) as saver:
        graph = order_flow(saver, DEPLOYS[0])
        return {
            told.thread_id: (
                told.position,
                told.state_version,
                graph.get_state(thread(told.thread_id)).values,
            )
            for told in saver.positions()
        }


def test_the_file_of_threads_is_what_its_command_writes(tmp_path: Path) -> None:
    made = tmp_path / "made.db"
    assert main(["--out", str(made)]) == 0
    kept = tmp_path / "kept.db"
    kept.write_bytes(find_threads().read_bytes())
    assert positions(kept) == positions(made)
    assert set(positions(kept)) == {*AT_REVIEW, *AT_CHARGE, *ENDED} == set(PRICES)
    with DeltaSaver.open(sqlite_url(kept)) as saver:
        assert all(saver.verify(name).ok for name in PRICES)
        assert drain_report(saver).ended == {1: 2}


def test_a_price_in_cents_is_exact() -> None:
    assert [cents_of(text) for text in ("0.29", "1.15", "19.99")] == [29, 115, 1999]


@pytest.mark.parametrize("saver", ["delta", "sqlite"])
def test_a_drain_report_is_timed_over_threads_that_are_there(saver: str, tmp_path: Path) -> None:
    store_threads(saver, 1, tmp_path)
    found = drain_trial(saver, 1, tmp_path)
    assert found["drain_ms"] > 0


@pytest.fixture
def panel() -> Iterator[DeployPanel]:
    panel = DeployPanel(find_threads())
    yield panel
    panel.close()


def test_the_slider_deploys_and_reset_goes_back(panel: DeployPanel) -> None:
    assert "8 as agreed" in panel.static_default()
    first = panel.area.value
    panel.deploy.value = DEPLOYS[1]
    assert panel.wait(60)
    assert panel.last_error is None
    assert panel.last_result is not None
    assert panel.last_result.count("by other rules") == 8
    assert "8 by other rules" in panel.area.value
    assert panel.area.value != first
    panel.deploy.value = DEPLOYS[-1]
    assert panel.wait(60)
    assert "must stay" in panel.area.value
    assert "Deploy the path of flow_version 1 again" in panel.area.value
    panel.reset()
    assert panel.wait(60)
    assert panel.deploy.value is DEPLOYS[0]
    assert panel.last_result.count("as agreed") == 8


def test_the_panel_says_that_a_check_had_objected() -> None:
    trial = deploy_over(find_threads(), DEPLOYS[5])
    assert "had objected to 6 threads" in trial_html(trial)
