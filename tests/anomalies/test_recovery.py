"""Recovery: an explicit fall back to what checks out, with nothing deleted.

`recover` is for the person who has to get a damaged thread going again. Whatever was damaged:
afterwards verify() has nothing to say, every state that is still told is the undamaged one, what
is lost is counted, the bad rows lie in quarantine as they were found, and the thread goes on.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

from durable_kit import Database, DeltaSaver, EveryN
from durable_kit.errors import BrokenChain
from durable_kit.storage.record import thread_key
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
        return {
            table: sorted(map(repr, tx.rows(f"SELECT * FROM {table}")))  # noqa: S608
            for table in tables
        }


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
        for _ in range(120):
            database.close()
            for leftover in tmp_path.glob("story.db-*"):
                leftover.unlink()
            file.write_bytes(template)
            damage = sqlite_damage(file, rng, owners)
            if "kit_schema" in damage.what or not damage.threads:
                continue
            before = rows_of(database, *LOGS)
            saver = DeltaSaver(database)
            for name in sorted(damage.threads):
                recovered_as_promised(saver, name, truth[name], damage.what)
            after = rows_of(database, *LOGS)
            moved = [source for source, _ in quarantined(database)]
            for table in LOGS[1:]:
                kept = len(after[table]) + moved.count(table)
                assert kept == len(before[table]), f"{damage.what}: rows of {table} went missing"
            gone = len(before["checkpoint_heads"]) - moved.count("checkpoint_heads")
            assert len(after["checkpoint_heads"]) >= gone, damage.what


def recovered_as_promised(
    saver: DeltaSaver, name: str, truth: dict[tuple[str, str], dict[str, Any]], damage: str
) -> None:
    sound_before = saver.verify(name).ok
    done = saver.recover(name)
    assert (not done.problems) == sound_before, damage
    again = saver.verify(name)
    assert again.ok, f"{damage}: still {[str(problem) for problem in again.problems]}"
    left = checkpoints_of(saver, name)
    for place, found in left.items():
        whole = truth[place]
        lost = [write for write in whole["writes"] if write not in found["writes"]]
        assert found["writes"] == [write for write in whole["writes"] if write not in lost], damage
        assert {**found, "writes": 0} == {**whole, "writes": 0}, damage
    assert list(left) == [place for place in truth if place in left], f"{damage}: another order"
    assert done.lost_steps == len(truth) - len(left), damage
    roots = [checkpoint_id for namespace, checkpoint_id in left if not namespace]
    assert done.kept_checkpoint_id == (roots[0] if roots else None), damage
    assert saver.recover(name).problems == [], f"{damage}: recovering again found something"
    # It goes on: a step on the newest checkpoint, of every namespace that is left.
    for namespace in {namespace for namespace, _ in left}:
        newest = saver.get_tuple(thread(name, checkpoint_ns=namespace))
        assert newest is not None, damage
        values = {"messages": ["and on it goes"]}
        child = {**newest.checkpoint, "id": "1fffffff-0000-6000-8000-000000000000"}
        stored = saver.put(newest.config, {**child, "channel_values": values}, {}, {})
        found_again = saver.get_tuple(stored)
        assert found_again is not None, damage
        assert found_again.checkpoint["channel_values"] == values, damage
    assert saver.verify(name).ok, damage
    assert dict(saver.threads()).get(name) is not None or not left, damage
