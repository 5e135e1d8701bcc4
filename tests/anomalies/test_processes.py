"""Several processes, one database.

What goes wrong elsewhere: "database is locked" reaches the user, two processes make the tables at
the same moment, a forked child closes its parent's handle and with it the parent's locks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from durable_kit.delta_saver import DeltaSaver
from durable_kit.storage.database import Database
from durable_kit.storage.schema import MIGRATIONS
from tests.anomalies.children import context
from tests.anomalies.graphs import thread
from tests.anomalies.process_worker import state_of, work

ROOT = Path(__file__).parents[2]


def test_four_processes_and_a_long_reader_lose_no_row_and_see_no_error(database_url: str) -> None:
    steps = 200 if database_url.startswith("sqlite") else 50
    names = [f"thread-{number}" for number in range(4)]
    with DeltaSaver.open(database_url) as saver:
        with saver.database.read() as reader:
            assert reader.row("SELECT count(*) FROM checkpoints") == (0,)
            run_together(database_url, names, steps)
            # It was open all the time, and it still reads the moment at which it began.
            in_the_same_moment = reader.row("SELECT count(*) FROM checkpoints")
        for name in names:
            rows = list(saver.list(thread(name)))
            found = [row.checkpoint["channel_values"] for row in reversed(rows)]
            assert found == [state_of(step) for step in range(steps)]
            writes = [[write[2] for write in row.pending_writes or []] for row in reversed(rows)]
            assert writes == [[step] for step in range(steps)]
            assert saver.verify(name).ok
    if database_url.startswith("sqlite"):
        assert in_the_same_moment == (0,)


def test_eight_processes_that_open_an_empty_database_at_once_all_succeed(
    database_url: str,
) -> None:
    names = [f"thread-{number}" for number in range(8)]
    run_together(database_url, names, steps=1)
    with DeltaSaver.open(database_url) as saver:
        assert sorted({name for name, _ in saver.threads()}) == names
        assert all(saver.verify(name).ok for name in names)
    with Database.open(database_url) as database, database.read() as tx:
        assert tx.rows("SELECT version FROM kit_schema") == [(len(MIGRATIONS),)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_saver_carried_over_a_fork_serves_both_processes(database_url: str) -> None:
    # In a process of its own: pytest has OS threads, and those do not survive a fork.
    parent = subprocess.run(
        [sys.executable, "-c", FORKING, database_url],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert parent.returncode == 0, parent.stderr
    assert parent.stdout == "child read 0\nchild wrote 1\nparent read 1 and wrote 2\nintact\n"


FORKING = """
import gc, os, sys
from durable_kit.delta_saver import DeltaSaver
from tests.contracts.builders import Line

saver = DeltaSaver.open(sys.argv[1])
line = Line(saver, "carried")
line.put({"step": 0})
mine = saver.database._sqlite if saver.database.is_sqlite else saver.database._engine
pid = os.fork()
if pid == 0:
    print("child read", line.read().checkpoint["channel_values"]["step"], flush=True)
    line.put({"step": 1})
    print("child wrote", line.read().checkpoint["channel_values"]["step"], flush=True)
    now = saver.database._sqlite if saver.database.is_sqlite else saver.database._engine
    assert now is not mine, "the child used its parent's connections"
    saver.close()
    del saver, line, mine
    gc.collect()
    sys.exit(0)  # everything in memory is taken down
assert os.waitpid(pid, 0)[1] == 0
found = line.read()
line.tip = found.checkpoint["id"]
line._versions[line.tip] = dict(found.checkpoint["channel_versions"])
line._values[line.tip] = dict(found.checkpoint["channel_values"])
line._counters[line.tip] = {}
line.put({"step": 2})
now = line.read().checkpoint["channel_values"]["step"]
print("parent read", found.checkpoint["channel_values"]["step"], "and wrote", now)
assert saver.verify("carried").ok
assert [row.checkpoint["channel_values"]["step"] for row in line.rows()] == [2, 1, 0]
if saver.database.is_sqlite:
    with saver.database.read() as tx:
        assert tx.row("PRAGMA integrity_check") == ("ok",)
saver.close()
print("intact")
"""


def run_together(url: str, names: Sequence[str], steps: int) -> None:
    """One process for each name, let go at the same moment; none may fail."""
    gate = context.Barrier(len(names))
    workers = [
        context.Process(target=work, args=(gate, url, name, steps), daemon=True) for name in names
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    ends = [worker.exitcode for worker in workers]
    for worker in workers:
        worker.kill()
    assert ends == [0] * len(names)
