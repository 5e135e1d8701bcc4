"""Facts: only added, in one order, by writers who have seen all the earlier ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from durable_kit.clock import FakeClock
from durable_kit.errors import BrokenChain, UnloadableValue, UnstorableValue
from durable_kit.event_log import (
    Event,
    EventLog,
    Fact,
    HumanApproved,
    ModelCalled,
    NodeStarted,
    RunFailed,
    RunFinished,
    RunStarted,
    RunState,
    StatePatched,
    ToolFailed,
    ToolRequested,
    ToolSucceeded,
    WrongVersion,
    fold,
)
from durable_kit.storage.database import Database

KEY = "charge:order-1001"
ORDER = RunStarted("order-1001", {"order_id": "order-1001", "charged": False})
CHARGE = ToolRequested(KEY, "charge", {"amount_cents": 4999})
STORY: list[Fact] = [
    ORDER,
    NodeStarted("charge"),
    ModelCalled("charge", "a model", 120, 30),
    HumanApproved("ada", "charge 49.99"),
    CHARGE,
    ToolSucceeded(KEY, {"charge_id": "ch_1"}),
    StatePatched({"charged": True}),
    RunFinished(),
]


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with Database.open(database_url) as opened:
        yield opened


def add(
    database: Database, *facts: Fact, expected: int, run_id: str = "run", **options: Any
) -> int:
    with database.write() as tx:
        return EventLog(**options).append(tx, run_id, *facts, expected_version=expected)


def events_of(*facts: Fact) -> list[Event]:
    return [Event(version, fact, 0) for version, fact in enumerate(facts, start=1)]


# --------------------------------------------------------------------------- appending and reading


def test_what_is_read_is_what_was_appended_in_its_order_with_its_time(database: Database) -> None:
    clock = FakeClock(start_us=5)
    assert add(database, *STORY[:3], expected=0, clock=clock) == 3
    clock.advance(-1)  # a clock that steps back changes no order
    assert add(database, *STORY[3:], expected=3, clock=clock) == 8
    events = EventLog().read(database, "run")
    assert [event.fact for event in events] == STORY
    assert [event.version for event in events] == list(range(1, 9))
    assert [event.recorded_at_us for event in events] == [5] * 3 + [5 - 1_000_000] * 5
    assert EventLog().read(database, "another run") == []


def test_a_run_may_have_any_name(database: Database) -> None:
    for name in ("a\0b", "a\\0b"):
        add(database, NodeStarted(name), expected=0, run_id=name)
    assert [EventLog().read(database, name)[0].fact for name in ("a\0b", "a\\0b")] == [
        NodeStarted("a\0b"),
        NodeStarted("a\\0b"),
    ]


def test_facts_belong_to_the_transaction_they_were_appended_in(database: Database) -> None:
    with pytest.raises(ZeroDivisionError), database.write() as tx:
        EventLog().append(tx, "run", *STORY, expected_version=0)
        _ = 1 / 0
    assert EventLog().read(database, "run") == []


def test_a_fact_that_would_not_come_back_is_refused_with_its_path(database: Database) -> None:
    with pytest.raises(UnstorableValue, match=r"StatePatched\['patch'\]\['lock'\]"):
        add(database, ORDER, StatePatched({"lock": threading.Lock()}), expected=0)
    assert EventLog().read(database, "run") == [], "the fact before it belongs to the same append"


# --------------------------------------------------------------------------- two writers


@pytest.mark.parametrize("expected", [0, 1, 3, -1])
def test_who_has_not_seen_the_last_fact_or_dreams_of_later_ones_is_refused(
    database: Database, expected: int
) -> None:
    add(database, *STORY[:2], expected=0)
    with pytest.raises(WrongVersion, match=f"expected at version {expected} and is at 2") as caught:
        add(database, RunFinished(), expected=expected)
    assert (caught.value.expected, caught.value.found) == (expected, 2)
    assert len(EventLog().read(database, "run")) == 2


def test_of_eight_writers_who_have_seen_the_same_facts_one_may_write_the_next(
    database: Database,
) -> None:
    add(database, ORDER, expected=0)
    at_once = threading.Barrier(8)
    outcomes: list[str] = []

    def write(number: int) -> None:
        try:
            with database.write() as tx:
                if not database.is_sqlite:
                    at_once.wait(60)  # eight open transactions at the same time
                EventLog().append(tx, "run", NodeStarted(f"{number}"), expected_version=1)
            outcomes.append("appended")
        except WrongVersion as error:
            outcomes.append(f"refused, found {error.found}")

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    events = EventLog().read(database, "run")
    assert len(events) == 2
    assert sorted(outcomes) == ["appended", *["refused, found 2"] * 7]


def test_a_log_without_expected_versions_lets_both_decide_on_the_same_facts() -> None:
    """The naive log: whoever comes second is appended behind what it has not seen."""
    naive: list[Fact] = [ORDER]
    seen_by_a, seen_by_b = fold(events_of(*naive)), fold(events_of(*naive))
    if not seen_by_a.asked:
        naive.append(CHARGE)
    if not seen_by_b.asked:
        naive.append(CHARGE)
    assert naive.count(CHARGE) == 2


# --------------------------------------------------------------------------- what it proves


@pytest.mark.parametrize(
    ("damage", "first_bad"),
    [
        ("UPDATE run_events SET kind = 'ToolFailed' WHERE version = 6", 6),
        ("UPDATE run_events SET recorded_at_us = recorded_at_us + 1 WHERE version = 2", 2),
        ("UPDATE run_events SET body = checksum WHERE version = 7", 7),
        ("DELETE FROM run_events WHERE version = 5", 5),
        ("DELETE FROM run_events WHERE version = 1", 1),
        ("UPDATE run_events SET run_id = 'other'", 1),
    ],
)  # fmt: skip
def test_a_fact_that_was_changed_moved_or_taken_out_is_noticed(
    database: Database, damage: str, first_bad: int
) -> None:
    add(database, *STORY, expected=0)
    with database.write() as tx:
        tx.execute(damage)
    with pytest.raises(BrokenChain, match="changed here, or a fact is missing") as caught:
        EventLog().read(database, "other" if "other" in damage else "run")
    assert caught.value.sequence == first_bad


def test_a_log_that_has_lost_its_last_facts_looks_like_a_shorter_one(database: Database) -> None:
    """It is what the docstring says a log cannot prove."""
    add(database, *STORY, expected=0)
    with database.write() as tx:
        tx.execute("DELETE FROM run_events WHERE version > 5")
    assert [event.fact for event in EventLog().read(database, "run")] == STORY[:5]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("OrderShipped", "does not know such a fact"), ("RunFailed", "its fields are others")],
)
def test_a_fact_of_newer_code_is_not_passed_over(
    database: Database, kind: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("durable_kit.event_log._KINDS", {"NodeStarted": NodeStarted})
    newer = type(kind, (), {"__dataclass_fields__": NodeStarted.__dataclass_fields__, "node": "x"})
    add(database, newer(), expected=0)
    monkeypatch.undo()
    with pytest.raises(UnloadableValue, match=f"run run, version 1: {kind} .*{reason}"):
        EventLog().read(database, "run")


# --------------------------------------------------------------------------- the fold


def test_the_fold_adds_the_facts_up() -> None:
    state = fold(events_of(*STORY))
    assert state == RunState(
        version=8,
        status="finished",
        node="charge",
        values={"order_id": "order-1001", "charged": True},
        asked={},
        answers={KEY: {"charge_id": "ch_1"}},
        approvals=(HumanApproved("ada", "charge 49.99"),),
        tokens=150,
    )


def test_every_prefix_folds_and_going_on_from_a_state_gives_the_same() -> None:
    events = events_of(*STORY)
    whole = fold(events)
    for cut in range(len(events) + 1):
        assert fold(events[cut:], fold(events[:cut])) == whole


def test_a_request_without_an_answer_stays_asked_and_a_sure_failure_closes_it() -> None:
    asked = fold(events_of(ORDER, NodeStarted("charge"), CHARGE))
    assert (dict(asked.asked), asked.status) == ({KEY: CHARGE}, "running")
    crashed = fold(events_of(ORDER, CHARGE, RunFailed("killed")))
    assert (dict(crashed.asked), crashed.status) == ({KEY: CHARGE}, "failed")
    refused = fold(events_of(ORDER, CHARGE, ToolFailed(KEY, "card declined")))
    assert (dict(refused.asked), dict(refused.answers), refused.error) == ({}, {}, "card declined")


def test_every_kind_of_fact_changes_the_state() -> None:
    before = fold(events_of(ORDER, CHARGE))
    after: dict[str, Fact] = {
        "RunStarted": RunStarted("t", {}),
        "NodeStarted": NodeStarted("n"),
        "ModelCalled": ModelCalled("n", "m", 1, 1),
        "ToolRequested": ToolRequested("another", "t", None),
        "ToolSucceeded": ToolSucceeded(KEY, None),
        "ToolFailed": ToolFailed(KEY, "e"),
        "StatePatched": StatePatched({"x": 1}),
        "HumanApproved": HumanApproved("b", "w"),
        "RunFailed": RunFailed("e"),
        "RunFinished": RunFinished(),
    }
    assert set(after) == {kind.__name__ for kind in get_args(Fact)}
    for name, fact in after.items():
        assert fold([Event(2, fact, 0)], before) != before, name


def test_a_folded_state_cannot_be_changed_behind_the_log() -> None:
    state = fold(events_of(*STORY))
    with pytest.raises(TypeError):
        state.values["charged"] = False  # type: ignore[index]
