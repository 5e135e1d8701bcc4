"""Two processes on one thread, and maintenance while others write.

Two workers that resume the same thread both succeed in LangGraph: the thread forks. The store's
part is that both branches are told as they were written: a delta that was made for one state is
never applied to another, also when compaction rewrites that state in between.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from durable_kit import Database, DeltaSaver, EveryN
from durable_kit.errors import StorageBusy
from tests.anomalies.children import context
from tests.anomalies.open_worker import write_steps
from tests.contracts.builders import Line

from .graphs import thread
from .stories import small_packs


def fresh(url: str) -> DeltaSaver:
    """A saver with a memory of its own, as another process has."""
    return DeltaSaver(Database.open(url, synchronous="OFF"), policy=EveryN(4))


def test_two_writers_in_turn_see_each_other_although_each_remembers_its_own_last_step(
    database_url: str,
) -> None:
    with ExitStack() as opened, small_packs():
        savers = [fresh(database_url) for _ in range(2)]
        for saver in savers:
            opened.callback(saver.database.close)
        line = Line(savers[0], "t")
        messages: list[str] = []
        for step in range(30):
            line.saver = savers[step % 2]
            at = line.put({"messages": list(messages), "n": step})
            said = [f"message {step}, long enough to lie at an address"]
            line.saver = savers[(step + step // 3) % 2]  # the write may come from the other one
            line.write(at, ("messages", said), task=f"t{step}")
            messages += said
            if step % 7 == 6:
                savers[(step + 1) % 2].compact("t")
            if step % 11 == 10:
                savers[step % 2].prune(["t"], keep_last=4)
            for saver in savers:
                found = saver.get_tuple(line.config())
                assert found is not None
                assert found.checkpoint["channel_values"] == {"messages": messages[:-1], "n": step}
        assert savers[0].verify("t").ok


def test_two_writers_that_go_on_from_one_state_make_two_branches_and_mix_nothing(
    database_url: str,
) -> None:
    with ExitStack() as opened:
        savers = [fresh(database_url) for _ in range(2)]
        for saver in savers:
            opened.callback(saver.database.close)
        trunk = Line(savers[0], "t")
        base = trunk.put({"messages": ["trunk " * 10]})
        lines = [Line(saver, "t") for saver in savers]
        said: list[list[str]] = [["trunk " * 10], ["trunk " * 10]]
        parents = [base, base]
        for step in range(12):
            for branch in (0, 1):
                said[branch].append(f"branch {branch}, message {step}, long enough for an address")
                lines[branch]._versions = trunk._versions
                lines[branch]._values = trunk._values
                lines[branch]._counters = trunk._counters
                parents[branch] = lines[branch].put(
                    {"messages": list(said[branch])}, parent=parents[branch]
                )
        for branch in (0, 1):
            for reader in savers:
                found = reader.get_tuple(parents[branch])  # type: ignore[arg-type]
                assert found is not None
                assert found.checkpoint["channel_values"] == {"messages": said[branch]}
        assert savers[0].verify("t").ok


def test_a_writer_whose_thread_was_deleted_and_told_anew_writes_nothing_to_the_wrong_place(
    database_url: str,
) -> None:
    with ExitStack() as opened:
        first, second = fresh(database_url), fresh(database_url)
        opened.callback(first.database.close)
        opened.callback(second.database.close)
        old = Line(first, "t")
        old.put({"n": 0})
        at = old.put({"n": 1, "messages": ["of the old thread, long enough for an address"]})
        second.delete_thread("t")
        new = Line(second, "t")
        new.put({"n": 10})
        new.put({"n": 11, "messages": ["of the new thread, long enough for an address"]})
        # The first process still believes in its last step: its write waits for a checkpoint that
        # never comes, and its next step is a thread of its own.
        old.write(at, ("messages", "late"), task="late")
        assert all(not row.pending_writes for row in second.list(thread("t")))
        step = old.put({"n": 2, "messages": ["of the old thread, long enough for an address"]})
        found = second.get_tuple(step)  # type: ignore[arg-type]
        assert found is not None
        assert found.checkpoint["channel_values"]["n"] == 2
        assert [row.checkpoint["channel_values"]["n"] for row in new.rows()] == [2, 11, 10]
        assert second.verify("t").ok


def test_recovery_by_another_process_does_not_leave_stale_bytes_behind(database_url: str) -> None:
    with ExitStack() as opened:
        runner, operator = fresh(database_url), fresh(database_url)
        opened.callback(runner.database.close)
        opened.callback(operator.database.close)
        line = Line(runner, "t")
        at = line.put({"messages": ["the first message, long enough to lie at an address"]})
        line.write(at, ("messages", ["X" * 40 + " the first try " + "Y" * 40]), task="a task")
        with operator.database.write() as tx:
            tx.execute("UPDATE checkpoint_writes SET task_path = :x", x=b"tdamaged")
        assert operator.recover("t").lost_writes == 1
        # The task runs again and says something else, of which a part is the same.
        again = ["Y" * 40 + " the second try " + "X" * 40, "X" * 40]
        line.write(at, ("messages", again), task="a task")
        line.put({"messages": ["the first message, long enough to lie at an address", *again]})
        found = operator.get_tuple(line.config())
        assert found is not None
        assert found.checkpoint["channel_values"]["messages"][1:] == again
        assert operator.verify("t").ok


def test_compaction_and_pruning_while_another_process_writes_lose_nothing(
    database_url: str,
) -> None:
    steps = 150
    with ExitStack() as opened:
        saver = fresh(database_url)
        opened.callback(saver.database.close)
        begin = context.Event()
        worker = context.Process(target=write_steps, args=(database_url, "t", steps, begin))
        worker.start()
        opened.callback(worker.kill)
        begin.set()
        rounds = 0
        while worker.is_alive():
            saver.compact("t")
            saver.prune(["t"], keep_last=20)
            newest = saver.get_tuple(thread("t"))
            if newest is not None:
                values = newest.checkpoint["channel_values"]
                assert len(values["messages"]) == values["n"]
            rounds += 1
        assert worker.exitcode == 0
        assert rounds > 5
        expected = [f"t: message {n}, long enough to lie at an address" for n in range(steps)]
        rows = list(saver.list(thread("t")))
        assert len(rows) >= 20
        for row in rows:
            values = row.checkpoint["channel_values"]
            assert values["messages"] == expected[: values["n"]]
            written = [value for _, channel, value in row.pending_writes or [] if channel == "n"]
            assert written == [values["n"]], "a pending write was lost or moved"
        assert [row.checkpoint["channel_values"]["n"] for row in rows] == list(
            range(steps - 1, steps - 1 - len(rows), -1)
        )
        assert saver.verify("t").ok


def test_os_threads_that_write_to_one_thread_at_once_lose_no_write(database_url: str) -> None:
    # LangGraph hands the writes of parallel tasks, and the next checkpoint, to a pool of threads.
    with ExitStack() as opened, small_packs():
        saver = fresh(database_url)
        opened.callback(saver.database.close)
        line = Line(saver, "t")
        messages: list[str] = []
        for step in range(12):
            at = line.put({"messages": list(messages)})
            said = [f"step {step}, task {task}, long enough for an address" for task in range(6)]
            errors: list[BaseException] = []

            def write(task: int, at: Any = at, said: Any = said, errors: Any = errors) -> None:
                try:
                    line.write(at, ("messages", [said[task]]), task=f"t{task}", path=f"pull {task}")
                except BaseException as error:
                    errors.append(error)

            pool = [threading.Thread(target=write, args=(task,)) for task in range(6)]
            for one in pool:
                one.start()
            for one in pool:
                one.join(30)
            assert not errors, errors
            found = saver.get_tuple(at)  # type: ignore[arg-type]
            assert found is not None
            assert [value for _, _, [value] in found.pending_writes or []] == said
            messages += said
        assert line.read(line.put({"messages": list(messages)})).checkpoint["channel_values"] == {
            "messages": messages
        }
        assert saver.verify("t").ok


# --------------------------------------------------------------------------- waiting in turn


def test_a_process_that_reads_and_then_writes_in_one_transaction_never_meets_a_lock_error(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'kit.db'}"
    with ExitStack() as opened:
        database = opened.enter_context(Database.open(url, synchronous="OFF"))
        with database.write() as tx:
            tx.execute("CREATE TABLE counter (value INTEGER)")
            tx.execute("INSERT INTO counter VALUES (0)")
        begin = context.Event()
        workers = [
            context.Process(target=write_steps, args=(url, f"thread-{n}", 100, begin))
            for n in range(2)
        ]
        for worker in workers:
            worker.start()
            opened.callback(worker.kill)
        begin.set()
        turns = 0
        while any(worker.is_alive() for worker in workers) or turns < 20:
            with database.write() as tx:
                (value,) = tx.row("SELECT value FROM counter")  # reads first
                tx.row("SELECT count(*) FROM checkpoints")
                tx.execute("UPDATE counter SET value = :value", value=value + 1)
            turns += 1
        assert [worker.exitcode for worker in workers] == [0, 0]
        with database.read() as tx:
            assert tx.row("SELECT value FROM counter") == (turns,)
            assert tx.row("SELECT count(*) FROM checkpoints") == (200,)


def test_a_long_reader_delays_neither_writers_nor_the_giving_back_of_space(tmp_path: Path) -> None:
    with Database.open(f"sqlite:///{tmp_path / 'kit.db'}") as database:
        saver = DeltaSaver(database)
        line = Line(saver, "t")
        for step in range(20):
            line.put({"text": f"{step} " * 5000})
        with database.read() as reader:
            before = reader.row("SELECT count(*) FROM checkpoints")
            begun = time.monotonic()
            saver.prune(["t"], keep_last=1)
            line.put({"text": "more"})
            assert time.monotonic() - begun < 5, "it waited for the reader"
            assert reader.row("SELECT count(*) FROM checkpoints") == before


def test_a_reader_opens_at_once_while_another_process_holds_a_write_transaction(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'kit.db'}"
    with Database.open(url) as database:
        Line(DeltaSaver(database), "t").put({"n": 1})
        with database.write() as tx:
            tx.execute("UPDATE kit_schema SET version = version")
            begun = time.monotonic()
            with DeltaSaver.open(url) as other:  # a connection of its own, like another process
                found = other.get_tuple(thread("t"))
            assert time.monotonic() - begun < 5, "it waited for the writer"
            assert found is not None
        with database.write(), Database.open(url, busy_timeout_s=0.2) as impatient:
            with pytest.raises(StorageBusy, match=r"0\.2 s"):
                Line(DeltaSaver(impatient), "t").put({"n": 2})
