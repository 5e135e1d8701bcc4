"""Recovery: an explicit fall back to what checks out, with nothing deleted.

`recover` is for the person who has to get a damaged thread going again. Whatever was damaged:
afterwards verify() has nothing to say, every state that is still told is the undamaged one, what
is lost is counted, the bad rows lie in quarantine as they were found, and the thread goes on.
"""

from __future__ import annotations

import operator
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import ormsgpack
import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from durable_kit import Database, DeltaSaver, EveryN
from durable_kit.errors import BrokenChain
from tests.anomalies.children import context
from tests.anomalies.open_worker import recover_and_die
from tests.contracts.builders import Line, facts

from .graphs import talking_graph, thread
from .stories import POLICIES, small_packs, sqlite_template, tell
from .test_damage import SEED, owners_of, sqlite_damage

LOGS = ("checkpoint_heads", "checkpoints", "checkpoint_writes", "checkpoint_packs")


def checkpoints_of(saver: DeltaSaver, thread_id: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Every checkpoint of a thread by namespace and id, the one written last first."""
    return {
        (row.config["configurable"]["checkpoint_ns"], row.checkpoint["id"]): facts(row)
        for row in saver.list(thread(thread_id))
    }


def rows_of(database: Database, *tables: str) -> dict[str, list[Any]]:
    with database.read() as tx:
        return {table: sorted(map(repr, tx.rows(f"SELECT * FROM {table}"))) for table in tables}


def sql(database: Database, statement: str, **params: Any) -> int:
    """Change rows behind the kit's back; returns how many."""
    with database.write() as tx:
        return int(tx.execute(statement, **params).rowcount)


def quarantined(database: Database) -> list[tuple[str, dict[str, Any]]]:
    with database.read() as tx:
        return [
            (source, ormsgpack.unpackb(columns))
            for source, columns in tx.rows("SELECT source, columns FROM quarantine")
        ]


@pytest.mark.parametrize("policy", ["SizeRatio(0.5)", "EveryN(5)"])
def test_after_any_damage_recovery_leaves_a_sound_thread_and_tells_what_is_lost(
    policy: str, tmp_path: Path
) -> None:
    file = tmp_path / "story.db"
    template = sqlite_template(file, POLICIES[policy])
    rng = random.Random(f"{SEED} recovery {policy}")
    with Database.open(f"sqlite:///{file}", synchronous="OFF") as database:
        saver = DeltaSaver(database)
        names = {name for name, _ in saver.threads()}
        truth = {name: checkpoints_of(saver, name) for name in names}
        owners = owners_of({"threads()": list(saver.threads())})
        for _ in range(100):
            database.close()
            for leftover in tmp_path.glob("story.db-*"):
                leftover.unlink()
            file.write_bytes(template)
            damage = sqlite_damage(file, rng, owners)
            if "kit_schema" in damage.what or not damage.threads:
                continue
            before = rows_of(database, *LOGS)
            saver = DeltaSaver(database)
            left = {
                name: recovered_as_promised(saver, name, truth[name], damage.what)
                for name in sorted(damage.threads)
            }
            after = rows_of(database, *LOGS)
            moved = [source for source, _ in quarantined(database)]
            for table in LOGS[1:]:
                kept = len(after[table]) + moved.count(table)
                assert kept == len(before[table]), f"{damage.what}: rows of {table} went missing"
            gone = len(before["checkpoint_heads"]) - moved.count("checkpoint_heads")
            assert len(after["checkpoint_heads"]) >= gone, damage.what
            for name, checkpoints in left.items():
                goes_on(saver, name, {namespace for namespace, _ in checkpoints}, damage.what)


def recovered_as_promised(
    saver: DeltaSaver, name: str, truth: dict[tuple[str, str], dict[str, Any]], damage: str
) -> dict[tuple[str, str], dict[str, Any]]:
    """Recover one thread, hold it against the truth, and return what is left."""
    sound_before = saver.verify(name).ok
    done = saver.recover(name)
    assert (not done.problems) == sound_before, damage
    again = saver.verify(name)
    assert again.ok, f"{damage}: still {[str(problem) for problem in again.problems]}"
    left = checkpoints_of(saver, name)
    for place, found in left.items():
        whole = truth[place]
        # Lost are the last writes; a special one that replaced another gives way to it again.
        kept = [write for write in found["writes"] if not write[1].startswith("__")]
        assert kept == [write for write in whole["writes"] if write in kept], damage
        assert {**found, "writes": 0} == {**whole, "writes": 0}, damage
    assert list(left) == [place for place in truth if place in left], f"{damage}: another order"
    # A record that is gone without a trace counts as a step, though it may only have awaited one.
    awaited = name in ("early", "a copy")
    assert len(truth) - len(left) <= done.lost_steps <= len(truth) - len(left) + awaited, damage
    roots = [checkpoint_id for namespace, checkpoint_id in left if not namespace]
    assert done.kept_checkpoint_id == (roots[0] if roots else None), damage
    assert saver.recover(name).problems == [], f"{damage}: recovering again found something"
    return left


def goes_on(saver: DeltaSaver, name: str, namespaces: set[str], damage: str) -> None:
    """One more step on the newest checkpoint of every namespace that is left."""
    for namespace in namespaces:
        newest = saver.get_tuple(thread(name, checkpoint_ns=namespace))
        assert newest is not None, damage
        values = {"messages": ["and on it goes"]}
        child = {**newest.checkpoint, "id": "1fffffff-0000-6000-8000-000000000000"}
        stored = saver.put(newest.config, {**child, "channel_values": values}, {}, {})
        found_again = saver.get_tuple(stored)
        assert found_again is not None, damage
        assert found_again.checkpoint["channel_values"] == values, damage
    assert saver.verify(name).ok, damage
    assert {
        namespace for thread_id, namespace in saver.threads() if thread_id == name
    } >= namespaces


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with Database.open(database_url, synchronous="OFF") as opened:
        yield opened


def a_conversation(saver: DeltaSaver, steps: int = 9) -> Line:
    """One line of steps; every fifth record is a snapshot that stands on its own."""
    line = Line(saver, "t")
    messages: list[str] = []
    for step in range(steps):
        at = line.put({"messages": list(messages), "n": step})
        said = [f"message {step}, which is long enough to lie at an address"]
        line.write(at, ("messages", said), task=f"t{step}")
        messages += said
    return line


def n_of(saver: DeltaSaver) -> int:
    found = saver.get_tuple(thread("t"))
    assert found is not None
    return int(found.checkpoint["channel_values"]["n"])


@pytest.fixture
def saver(database: Database) -> DeltaSaver:
    return DeltaSaver(database, policy=EveryN(5, self_contained=True))


def test_recovering_a_sound_thread_changes_no_byte(database: Database) -> None:
    with small_packs():
        tell(DeltaSaver(database))
    tables = (*LOGS, "kit_schema", "quarantine")
    before = rows_of(database, *tables)
    for name in sorted({name for name, _ in DeltaSaver(database).threads()}):
        done = DeltaSaver(database).recover(name)
        assert (done.problems, done.lost_steps, done.lost_writes, done.lost_bytes) == ([], 0, 0, 0)
    assert DeltaSaver(database).recover("nobody").kept_checkpoint_id is None
    assert rows_of(database, *tables) == before


def test_a_bad_record_takes_the_deltas_on_it_and_no_more(
    database: Database, saver: DeltaSaver
) -> None:
    a_conversation(saver)  # snapshots at sequence 1 and 6
    with database.read() as tx:
        bad = tx.rows("SELECT body FROM checkpoints WHERE sequence >= 7 ORDER BY sequence")
    sql(database, "UPDATE checkpoints SET created_at_us = 5 WHERE sequence = 7")
    saver = DeltaSaver(database)
    with pytest.raises(BrokenChain, match="sequence 7"):
        saver.get_tuple(thread("t"))

    done = saver.recover("t")
    assert n_of(saver) == 5
    newest = next(saver.list(thread("t"), limit=1))
    assert done.kept_checkpoint_id == newest.checkpoint["id"]
    assert (done.lost_steps, done.lost_writes) == (3, 0)
    assert [problem.sequence for problem in done.problems] == [7]
    records = [row for source, row in quarantined(database) if source == "checkpoints"]
    assert [row["body"] for row in records] == [bytes(row[0]) for row in bad]
    assert [row["created_at_us"] == 5 for row in records] == [True, False, False], "as found"
    assert [source for source, _ in quarantined(database)].count("checkpoint_writes") == 3
    held = sum(len(row["body"]) for _, row in quarantined(database))
    assert held < done.lost_bytes < held + 6 * 400


def test_a_snapshot_further_on_needs_nothing_of_what_was_lost(
    database: Database, saver: DeltaSaver
) -> None:
    a_conversation(saver)
    sql(database, "DELETE FROM checkpoints WHERE sequence = 2")
    done = DeltaSaver(database).recover("t")
    assert done.lost_steps == 4, "the deltas 2 to 5; the snapshot at 6 stands on its own"
    assert n_of(DeltaSaver(database)) == 8
    left = [row.checkpoint["channel_values"]["n"] for row in saver.list(thread("t"))]
    assert left == [8, 7, 6, 5, 0]


def test_a_state_keeps_its_bytes_when_only_the_checkpoint_that_owned_them_is_bad(
    database: Database,
) -> None:
    saver = DeltaSaver(database, policy=EveryN(5))  # a snapshot lists where its bytes lie
    line = a_conversation(saver)
    sql(database, "UPDATE checkpoints SET created_at_us = 1 WHERE sequence = 3")
    done = DeltaSaver(database).recover("t")
    # The deltas 3, 4, 5 are lost. The snapshot at 6 has bytes in the writes of 3, 4, 5, which are
    # sound; it gets bytes of its own before those go to quarantine with their checkpoints.
    assert done.lost_steps == 3
    assert [row.checkpoint["channel_values"]["n"] for row in line.rows()] == [8, 7, 6, 5, 1, 0]
    assert len(line.read().checkpoint["channel_values"]["messages"]) == 8
    assert [source for source, _ in quarantined(database)].count("checkpoint_writes") == 3
    assert DeltaSaver(database).verify("t").ok


def test_a_record_that_strayed_to_another_key_is_brought_back_without_loss(
    database: Database, saver: DeltaSaver
) -> None:
    line = a_conversation(saver)
    before = [facts(row) for row in line.rows()]
    sql(database, "UPDATE checkpoints SET thread_key = 42 WHERE sequence = 3")
    saver = DeltaSaver(database)
    with pytest.raises(BrokenChain, match="42"):
        list(saver.threads())
    done = saver.recover("t")
    assert (done.lost_steps, done.lost_bytes) == (0, 0)
    assert done.problems
    assert [facts(row) for row in saver.list(thread("t"))] == before
    assert list(saver.threads()) == [("t", "")]


@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_a_lost_head_is_made_again_from_the_records(
    database: Database, saver: DeltaSaver, how: str
) -> None:
    line = a_conversation(saver)
    before = [facts(row) for row in line.rows()]
    sql(
        database,
        "DELETE FROM checkpoint_heads"
        if how == "deleted"
        else "UPDATE checkpoint_heads SET latest_sequence = 4",
    )
    saver = DeltaSaver(database)
    with pytest.raises(BrokenChain, match="head"):
        saver.get_tuple(thread("t"))
    done = saver.recover("t")
    assert (done.lost_steps, done.lost_writes) == (0, 0)
    assert [facts(row) for row in saver.list(thread("t"))] == before
    heads = [row for source, row in quarantined(database) if source == "checkpoint_heads"]
    assert [row["latest_sequence"] for row in heads] == ([] if how == "deleted" else [4])


def test_a_subgraph_that_lost_its_head_lost_its_name_and_the_rest_of_the_thread_goes_on(
    database: Database, saver: DeltaSaver
) -> None:
    a_conversation(saver, steps=3)
    child = Line(saver, "t", "child:1")
    for n in range(4):
        child.put({"n": n})
    sql(database, "DELETE FROM checkpoint_heads WHERE namespace = 'child:1'")
    saver = DeltaSaver(database)
    with pytest.raises(BrokenChain, match="namespace"):
        list(saver.list(thread("t")))
    assert n_of(saver) == 2, "asked for by name, the root is sound"
    done = saver.recover("t")
    assert done.lost_steps == 4
    moved = [row for source, row in quarantined(database) if source == "checkpoints"]
    assert [row["sequence"] for row in moved] == [1, 2, 3, 4]
    assert list(saver.threads()) == [("t", "")]
    assert len(list(saver.list(thread("t")))) == 3


def test_a_task_whose_pending_write_was_lost_runs_again(database_url: str) -> None:
    ran: list[str] = []
    with DeltaSaver.open(database_url) as saver:
        graph = paused_graph(saver, ran)
        graph.invoke({"done": []}, thread("t"))
        assert ran == ["quick"], "one task is done, the other is paused"
        first = "sequence = (SELECT max(sequence) FROM checkpoint_writes) AND ordinal = 0"
        sql(saver.database, f"UPDATE checkpoint_writes SET body = :x WHERE {first}", x=b"?")
    with DeltaSaver.open(database_url) as saver:
        with pytest.raises(BrokenChain):
            saver.get_tuple(thread("t"))
        done = saver.recover("t")
        assert done.lost_steps == 0
        assert done.lost_writes >= 1
        graph = paused_graph(saver, ran)
        graph.invoke(None, thread("t"))  # asks again
        result = graph.invoke(Command(resume="go"), thread("t"))
    assert sorted(result["done"]) == ["quick", "slow: go"]
    assert ran == ["quick", "quick"], "an effect there has to be safe to repeat"


def paused_graph(saver: Any, ran: list[str]) -> Any:
    """Two tasks of one super-step: one writes, one asks first."""

    class State(TypedDict):
        done: Annotated[list[str], operator.add]

    def quick(state: State) -> State:
        ran.append("quick")
        return {"done": ["quick"]}

    def slow(state: State) -> State:
        return {"done": [f"slow: {interrupt('go?')}"]}

    builder = StateGraph(State)
    builder.add_node("quick", quick)
    builder.add_node("slow", slow)
    builder.add_edge(START, "quick")
    builder.add_edge(START, "slow")
    return builder.compile(checkpointer=saver)


def test_a_real_graph_goes_on_from_the_newest_state_that_checks_out(database_url: str) -> None:
    with DeltaSaver.open(database_url) as saver:
        graph = talking_graph(saver)
        for _ in range(4):
            graph.invoke({"messages": ["go on"]}, thread("t"))
        whole = graph.get_state(thread("t")).values
        with saver.database.write() as tx:
            tx.execute(
                "DELETE FROM checkpoints WHERE sequence = (SELECT max(sequence) FROM checkpoints)"
            )
    with DeltaSaver.open(database_url) as saver:
        graph = talking_graph(saver)
        with pytest.raises(BrokenChain):
            graph.invoke({"messages": ["go on"]}, thread("t"))
        assert saver.recover("t").lost_steps == 1
        # The step that was lost is done again, from its pending writes.
        graph.invoke(None, thread("t"))
        assert graph.get_state(thread("t")).values == whole
        assert graph.invoke({"messages": ["go on"]}, thread("t"))["turn"] == 5
        assert saver.verify("t").ok


def test_a_damaged_index_is_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "kit.db"
    with DeltaSaver.open(f"sqlite:///{file}") as saver:
        line = a_conversation(saver)
        before = [facts(row) for row in line.rows()]
        middle = line.rows()[4].config
        saver.prune([])  # gives back the write-ahead log
        with saver.database.read() as tx:
            page = tx.row("SELECT rootpage FROM sqlite_master WHERE name = 'checkpoints_by_id'")
            size = tx.row("PRAGMA page_size")
    checkpoint_id = bytes.fromhex(middle["configurable"]["checkpoint_id"].replace("-", ""))
    content = bytearray(file.read_bytes())
    at = content.index(checkpoint_id, (page[0] - 1) * size[0])
    content[at + 9] ^= 64
    file.write_bytes(content)
    with DeltaSaver.open(f"sqlite:///{file}") as saver:
        with pytest.raises(BrokenChain, match="the index does not lead to it"):
            saver.get_tuple(middle)
        done = saver.recover("t")
        assert (done.lost_steps, done.lost_bytes) == (0, 0)
        assert done.problems
        assert [facts(row) for row in saver.list(thread("t"))] == before
        found = saver.get_tuple(middle)
        assert found is not None
        assert facts(found) == before[4]
        assert saver.verify("t").ok


def test_a_kill_at_any_statement_of_recover_leaves_the_thread_as_damaged_as_it_was(
    database_url: str,
) -> None:
    with Database.open(database_url) as database:
        saver = DeltaSaver(database, policy=EveryN(5))
        a_conversation(saver)
        sql(database, "UPDATE checkpoints SET depth = 9 WHERE sequence = 4")
        damaged = rows_of(database, *LOGS, "quarantine")
    killed = -(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)
    for statement in (6, 20, 34):
        child = context.Process(target=recover_and_die, args=(database_url, "t", statement))
        child.start()
        child.join(60)
        assert child.exitcode == killed, f"recover ended before statement {statement}"
        with Database.open(database_url) as database:
            assert rows_of(database, *LOGS, "quarantine") == damaged
    with DeltaSaver.open(database_url) as saver:
        assert saver.recover("t").lost_steps == 2
        assert saver.verify("t").ok
        assert n_of(saver) == 8
