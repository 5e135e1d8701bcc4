"""The trials themselves: a verdict must be able to come out wrong, a cost must be a real one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from durable_kit.crash.child import ChildFailed
from durable_kit.lab import effect_bench, effect_trials
from durable_kit.lab.effect_trials import AMBIGUOUS, POINTS, Outcome


class Attempt:
    def __init__(self, error: str | None) -> None:
        self.error = error


class FakeTrial:
    """As much of a `Trial` as a verdict needs."""

    def __init__(
        self, *, crashed: bool = True, error: str | None = None, charge_id: str = ""
    ) -> None:
        self.crashed = crashed
        self.story = "the story"
        self.attempts = (Attempt(None), Attempt(error))
        self.final_state = {"charge_id": charge_id}


@pytest.mark.parametrize(
    ("charges", "trial", "verdict"),
    [
        (1, FakeTrial(charge_id="charge-1"), "once"),
        (2, FakeTrial(charge_id="charge-2"), "twice"),
        (2, FakeTrial(error="InDoubt: nobody knows"), "twice"),
        (0, FakeTrial(charge_id="charge-1"), "lost"),
        (0, FakeTrial(error="InDoubt: nobody knows\nTraceback"), "in doubt"),
        (1, FakeTrial(error="InDoubt: nobody knows"), "in doubt"),
        (1, FakeTrial(error="KeyError: 'x'"), "stopped"),
    ],
)
def test_the_book_of_the_provider_has_the_last_word(charges: int, trial: Any, verdict: str) -> None:
    assert effect_trials.judged(trial, charges)[0] == verdict


@pytest.mark.parametrize("trial", [FakeTrial(crashed=False), FakeTrial()])
def test_a_trial_that_did_not_happen_has_no_verdict(trial: Any) -> None:
    with pytest.raises(ChildFailed, match="the story"):
        effect_trials.judged(trial, 1)


def test_a_broken_promise_is_found_and_so_is_a_guess_where_nobody_can_be_asked() -> None:
    fine = [
        Outcome(
            "gateway",
            ability,
            point,
            1,
            "in doubt" if ability == "neither" and point in AMBIGUOUS else "once",
            "receipt",
        )
        for ability in effect_trials.ABILITIES
        for point in POINTS
    ]
    assert effect_trials.broken_promises(fine) == []
    for number, outcome in enumerate(fine):
        wrong = "once" if outcome.verdict == "in doubt" else "in doubt"
        for verdict in (wrong, "twice", "lost", "stopped"):
            bad = replace(outcome, verdict=verdict)
            assert effect_trials.broken_promises([*fine[:number], bad]) == [bad]
    naive = replace(fine[0], way="naive", verdict="twice")
    assert effect_trials.broken_promises([naive]) == []
    counted = effect_trials.table([*fine, *fine, naive])
    assert counted.loc[:, ["once", "twice", "in doubt"]].sum().tolist() == [34, 1, 8]


def test_the_cost_of_a_call_is_measured_beside_two_real_commits(database_url: str) -> None:
    measured = effect_bench.overhead(database_url, pairs=30)
    assert len(measured) == 30
    assert (measured[["bare_ms", "call_ms", "replay_ms"]] > 0).all().all()
    from durable_kit import Database

    with Database.open(database_url) as database, database.read() as tx:
        calls = 30 + effect_bench.WARM_UP
        for table in ("bare", "tool_call_receipts"):
            done = f"SELECT count(*) FROM {table} WHERE response IS NOT NULL"
            assert tx.row(done) == (calls,)
    # Three commits beside two, and the work of a call. Far above that, something is wrong; the
    # bar itself (2.5) is measured by the command, on a quiet machine and with the disk's own pace.
    assert effect_bench.ratio(measured) < 8
