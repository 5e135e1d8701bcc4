"""Which threads need which path: counted right, on any saver, and quickly on ours."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from durable_kit import BrokenChain, Database, DeltaSaver
from durable_kit.__main__ import main
from durable_kit.clock import FakeClock
from durable_kit.versions.drain import DrainReport, drain_report
from durable_kit.versions.flow_router import FlowRouter
from durable_kit.versions.position import (
    Position,
    pack_position,
    unpack_position,
)
from tests.versions.flows import YES, pinned, thread, unpinned


def populate(saver: Any) -> None:
    """Two threads of version 1 that wait, one that ended; one of version 2 that waits."""
    for name in ("old-1", "old-2", "old-3"):
        unpinned(saver, rules=1).invoke({}, thread(name))
    new_code = pinned(saver, FlowRouter(current=2, match="exact", failure="raise"))
    new_code.invoke(YES, thread("old-3"))
    new_code.invoke({}, thread("new"))


def counts(report: DrainReport) -> dict[tuple[int, str], int]:
    return {(entry.flow_version, entry.node): entry.threads for entry in report.waiting}


EXPECTED = {(1, "reserve"): 2, (1, "review"): 2, (2, "reserve"): 1, (2, "review"): 1}


def test_threads_are_counted_by_version_and_node(database_url: str) -> None:
    with DeltaSaver.open(database_url) as saver:
        populate(saver)
        report = drain_report(saver)
    assert counts(report) == EXPECTED
    assert (report.unfinished, report.ended, report.threads) == ({1: 2, 2: 1}, {1: 1}, 4)
    assert not report.may_go(1)
    assert not report.may_remove_node("review")
    assert report.may_remove_node("charge_1")


def test_another_saver_gives_the_same_counts() -> None:
    saver = InMemorySaver()
    populate(saver)
    report = drain_report(saver)
    assert counts(report) == EXPECTED
    assert (report.unfinished, report.ended, report.threads) == ({1: 2, 2: 1}, {1: 1}, 4)


def test_a_path_may_go_when_its_last_thread_has_ended() -> None:
    with DeltaSaver.open("sqlite:///:memory:") as saver:
        populate(saver)
        code = pinned(saver, FlowRouter(current=2, match="exact", failure="raise"))
        code.invoke(YES, thread("old-1"))
        assert not drain_report(saver).may_go(1)
        assert code.invoke(YES, thread("old-2"))["charged"] == 100
        report = drain_report(saver)
    assert report.may_go(1)
    assert not report.may_go(2)
    assert report.ended == {1: 3}


def test_since_when_is_the_time_of_the_newest_checkpoint() -> None:
    clock = FakeClock()
    with DeltaSaver.open("sqlite:///:memory:", clock=clock) as saver:
        for name in ("first", "second"):
            clock.advance(3600)
            unpinned(saver, rules=1).invoke({}, thread(name))
        review = next(e for e in drain_report(saver).waiting if e.node == "review")
    assert review.oldest_thread_id == "first"
    assert review.since_us == FakeClock().now_us() + 3_600_000_000


def test_the_table_of_drain_has_honest_headers_and_says_why_a_finished_node_is_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`reserve` has finished, and its result is not in a checkpoint yet."""
    url = f"sqlite:///{tmp_path / 'kit.db'}"
    with DeltaSaver.open(url) as saver:
        populate(saver)
    assert main(["drain", url]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", header) == [
        "flow_version", "waits at", "threads", "waiting", "oldest thread"
    ]  # fmt: skip
    assert [line.split()[1] for line in lines[:4]] == ["reserve", "review"] * 2
    assert lines[4] == "A node that has finished is listed until those beside it have finished too."


def test_ten_thousand_threads_are_counted_in_under_two_seconds() -> None:
    """No state is read: all bodies have been made unreadable."""
    threads = 10_000
    with DeltaSaver.open("sqlite:///:memory:") as saver:
        unpinned(saver, rules=1).invoke({}, thread("t"))
        found = saver.get_tuple(thread("t"))
        assert found is not None
        for n in range(1, threads):
            where = {"configurable": {"thread_id": f"t-{n}", "checkpoint_ns": ""}}
            saver.put(where, found.checkpoint, found.metadata, {})
        with saver.database.write() as tx:
            tx.execute("UPDATE checkpoints SET body = randomblob(4000)")
        began_s = time.process_time()
        report = drain_report(saver)
        cpu_s = time.process_time() - began_s
    assert report.unfinished == {1: threads}
    assert cpu_s < 2.0


def test_a_damaged_position_is_noticed_and_the_thread_is_read_instead(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'kit.db'}"
    with DeltaSaver.open(url) as saver:
        populate(saver)
    with Database.open(url) as database:
        with database.write() as tx:
            rows = tx.rows("SELECT thread_key, sequence, metadata FROM checkpoints")
            for key, sequence, metadata in rows:
                at = bytes(metadata).rfind(b"review")
                if at >= 0:
                    broken = metadata[: at + 1] + b"E" + metadata[at + 2 :]
                    tx.execute(
                        "UPDATE checkpoints SET metadata = :broken "
                        "WHERE thread_key = :key AND sequence = :sequence",
                        broken=broken,
                        key=key,
                        sequence=sequence,
                    )
    with DeltaSaver.open(url) as saver, pytest.raises(BrokenChain, match="checksum"):
        drain_report(saver)


def test_a_position_belongs_to_its_checkpoint() -> None:
    packed = pack_position("id-1", Position(2, ("review",)))
    assert unpack_position("id-1", packed) == Position(2, ("review",))
    assert unpack_position("id-2", packed) is None
    assert unpack_position("id-1", [1, *packed[1:]]) is None
    assert unpack_position("id-1", "something else") is None


class Fan(TypedDict, total=False):
    done: bool


@pytest.mark.parametrize("shape", ["send", "join", "deferred", "nothing"])
def test_a_position_says_what_langgraph_says_comes_next(shape: str) -> None:
    builder: Any = StateGraph(Fan)
    for node in ("a", "b", "c"):
        builder.add_node(node, lambda state: {}, defer=shape == "deferred" and node == "c")
    builder.add_edge(START, "a")
    if shape == "send":
        builder.add_conditional_edges("a", lambda state: [Send("b", {}), Send("c", {})], ["b", "c"])
    elif shape == "join":
        builder.add_edge(START, "b")
        builder.add_edge(["a", "b"], "c")
    else:
        builder.add_edge("a", "b")
        if shape == "deferred":
            builder.add_edge("a", "c")
    with DeltaSaver.open("sqlite:///:memory:") as saver:
        graph = builder.compile(checkpointer=saver, interrupt_before="*")
        graph.invoke({"done": False}, thread("t"))
        seen = []
        while graph.get_state(thread("t")).next:
            [told] = saver.positions()
            assert told.position.waiting == tuple(sorted(set(graph.get_state(thread("t")).next)))
            seen.append(told.position.waiting)
            graph.invoke(None, thread("t"))
        [told] = saver.positions()
        assert told.position.waiting == ()
    assert seen
