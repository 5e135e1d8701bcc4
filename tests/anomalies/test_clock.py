"""A clock that steps back: the newest checkpoint is the one written last.

Checkpoint ids are made from the time, so "the highest id" looks like a good answer to "which is
the newest". It is wrong as soon as a clock is set back, or two hosts with skewed clocks take turns:

    host A, half a second ahead    checkpoint 7   id …500
    host B                         checkpoint 8   id …100      the highest id is still 7
"""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import id as ids
from langgraph.checkpoint.sqlite import SqliteSaver

from durable_kit import Database, DeltaSaver
from durable_kit.clock import FakeClock
from tests.contracts.builders import Line

from .graphs import talking_graph, thread

HOUR_S = 3600.0


@pytest.fixture
def skewed(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock that LangGraph makes its ids from; each reading is a fresh host's."""
    clock = FakeClock()

    def now_ns() -> int:
        ids._last_v6_timestamp = None  # type: ignore[attr-defined]  # another process knows nothing of the last one
        return clock.now_us() * 1000

    monkeypatch.setattr(ids.time, "time_ns", now_ns)
    return clock


@pytest.mark.parametrize("back_s", [0.5, HOUR_S])
def test_a_run_goes_on_from_the_last_step_after_the_clock_went_back(
    skewed: FakeClock, database_url: str, tmp_path: Path, back_s: float
) -> None:
    def two_turns(saver: Any) -> list[int]:
        graph = talking_graph(saver)
        seen = []
        for _ in range(3):
            seen.append(graph.invoke({"messages": ["go"]}, thread("t"))["turn"])
            skewed.advance(-back_s)
        return seen

    with SqliteSaver.from_conn_string(str(tmp_path / "peer.db")) as peer:
        assert two_turns(peer) != [1, 2, 3], "the naive saver takes an old step for the newest"
    with DeltaSaver.open(database_url) as saver:
        assert two_turns(saver) == [1, 2, 3]
        history = list(talking_graph(saver).get_state_history(thread("t")))
        assert [state.metadata["step"] for state in history] == list(range(7, -2, -1))


def test_two_hosts_with_skewed_clocks_take_turns_on_one_thread(database_url: str) -> None:
    ahead, behind = FakeClock(), FakeClock()
    behind.advance(-HOUR_S)
    with Database.open(database_url) as one, Database.open(database_url) as other:
        hosts = [DeltaSaver(one, clock=ahead), DeltaSaver(other, clock=behind)]
        line = Line(hosts[0], "t")
        for step in range(8):
            line.saver = hosts[step % 2]
            clock = (ahead, behind)[step % 2]
            clock.advance(0.1)
            line.put(
                {"messages": list(range(step + 1))}, checkpoint_id=f"{clock.now_us():020d}-{step}"
            )
            for host in hosts:
                newest = host.get_tuple(line.config())
                assert newest is not None
                assert newest.checkpoint["channel_values"]["messages"] == list(range(step + 1))
        listed = [
            row.checkpoint["channel_values"]["messages"] for row in hosts[0].list(line.config())
        ]
        assert [len(messages) for messages in listed] == list(range(8, 0, -1))


def test_pruning_by_age_never_takes_the_newest_however_old_its_time_says_it_is(
    database_url: str,
) -> None:
    clock = FakeClock()
    with Database.open(database_url) as database:
        saver = DeltaSaver(database, clock=clock)
        line = Line(saver, "t")
        for step in range(5):
            line.put({"n": step})
            clock.advance(-HOUR_S)  # each step is written an hour *earlier*
        clock.advance(5 * HOUR_S)
        saver.prune(["t"], older_than=timedelta(hours=2))
        # Times: 0h, -1h, -2h, -3h, -4h. Older than two hours: the last two, of which one is newest.
        assert [row.checkpoint["channel_values"]["n"] for row in line.rows()] == [4, 2, 1, 0]


def test_a_clock_far_in_the_past_or_future_prunes_nothing_by_surprise(database_url: str) -> None:
    clock = FakeClock()
    with Database.open(database_url) as database:
        saver = DeltaSaver(database, clock=clock)
        line = Line(saver, "t")
        for step in range(4):
            line.put({"n": step})
        clock.advance(-365 * 24 * HOUR_S)
        saver.prune(["t"], older_than=1)
        assert len(line.rows()) == 4, "nothing is older than a second before last year"


def test_the_kit_reads_the_time_only_from_its_clock(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    with Database.open(database_url) as database:
        saver = DeltaSaver(database, clock=clock)
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: 1)
            Line(saver, "t").put({"n": 1})
        assert [record.created_at_us for record in saver.records("t")] == [clock.now_us()]
