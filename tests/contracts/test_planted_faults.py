"""LangGraph's conformance package misses seven faults; our contract notices each of them."""

from __future__ import annotations

import pytest

from .conformance import assert_full, conformance
from .planted_faults import (
    MORE,
    THE_SEVEN,
    ConstantVersion,
    DroppedParents,
    DroppedTaskPath,
    EmptyDeltaHistory,
    LostLargeValues,
    OverwrittenWrites,
    WritesLeftBehind,
)
from .reference_saver import ReferenceSaver
from .saver_contract import CONTRACT, ThroughAsync, broken_clauses

NOTICED_BY = {
    DroppedTaskPath: {
        "writes_come_back_in_the_order_a_run_applies_them",
        "parallel_writers_replay_in_the_order_of_the_run",
        "history_equals_the_default_walk_and_the_oracle",
    },
    OverwrittenWrites: {
        "regular_writes_stay_as_the_first_success_left_them",
        "special_writes_never_push_out_regular_ones",
        "prune_keeps_the_writes_of_an_unfinished_step",
    },
    ConstantVersion: {"versions_of_a_channel_only_grow"},
    WritesLeftBehind: {"delete_thread_removes_the_pending_writes_too"},
    DroppedParents: {"metadata_comes_back_as_langgraph_writes_it"},
    LostLargeValues: {"values_over_64_kb_come_back_whole"},
    EmptyDeltaHistory: {
        "history_equals_the_default_walk_and_the_oracle",
        "a_fork_replays_only_the_writes_on_its_own_path",
        "parallel_writers_replay_in_the_order_of_the_run",
    },
}
"""For each fault, clauses that must be among those that fail: the reason, and not just an error."""


def test_the_reference_saver_passes_the_conformance_package() -> None:
    assert_full(conformance("reference", ReferenceSaver))


def test_the_reference_saver_keeps_every_clause_of_the_contract() -> None:
    assert broken_clauses(ReferenceSaver) == {}


def test_the_reference_saver_keeps_every_clause_through_its_async_methods() -> None:
    assert broken_clauses(lambda: ThroughAsync(ReferenceSaver())) == {}


def test_one_store_can_serve_every_clause() -> None:
    """So that the contract can run on a database that takes a second to set up."""
    shared = ReferenceSaver()
    assert broken_clauses(lambda: shared) == {}


@pytest.mark.parametrize("mutant", THE_SEVEN)
def test_the_conformance_package_lets_the_fault_through(mutant: type[ReferenceSaver]) -> None:
    """As observed with the installed release. If a newer one fails here, it has learned to see
    the fault: good news, and a line to change."""
    assert_full(conformance(mutant.__name__, mutant))


@pytest.mark.parametrize("mutant", THE_SEVEN)
def test_the_contract_notices_the_fault(mutant: type[ReferenceSaver]) -> None:
    broken = broken_clauses(mutant)
    assert set(broken) >= NOTICED_BY[mutant], broken
    assert all("AssertionError" in complaint for complaint in broken.values()), broken


@pytest.mark.parametrize("mutant", MORE)
def test_the_contract_notices_other_faults_of_such_stores(mutant: type[ReferenceSaver]) -> None:
    assert broken_clauses(mutant)


def test_the_contract_has_no_clause_twice() -> None:
    names = [clause.__name__ for clause in CONTRACT]
    assert sorted(set(names)) == sorted(names)
