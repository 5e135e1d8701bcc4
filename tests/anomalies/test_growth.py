"""Growth: what a step costs is what the step brought.

LangGraph's SqliteSaver writes every channel again at every super-step. A megabyte that never
changes costs a megabyte a step.
"""

from __future__ import annotations

from pathlib import Path

from langgraph.checkpoint.sqlite import SqliteSaver

from durable_kit import Database, DeltaSaver
from tests.contracts.builders import Line

MEGABYTE = "x" * 1_000_000


def written(line: Line, steps: int) -> None:
    """One small message a step, beside a megabyte that stays the same."""
    messages: list[str] = []
    for step in range(steps):
        at = line.put({"document": MEGABYTE, "messages": list(messages), "n": step})
        said = [f"message {step} " + "." * 80]
        line.write(at, ("messages", said), task=f"t{step}")
        messages += said


def disk_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_a_constant_field_is_stored_once_and_not_at_every_step(
    database_url: str, tmp_path: Path
) -> None:
    naive = tmp_path / "naive"
    naive.mkdir()
    with SqliteSaver.from_conn_string(str(naive / "peer.db")) as peer:
        written(Line(peer), 10)
        assert disk_bytes(naive) > 10 * len(MEGABYTE), "the naive saver copies it each time"

    with Database.open(database_url, synchronous="OFF") as database:
        saver = DeltaSaver(database)
        line = Line(saver)
        written(line, 100)
        half = saver.stats(line.thread_id)
        line = Line(saver)
        written(line, 200)
        whole = saver.stats(line.thread_id)
        assert len(MEGABYTE) < half.live_bytes < len(MEGABYTE) + 100 * 450
        assert whole.live_bytes - len(MEGABYTE) < 2.2 * (half.live_bytes - len(MEGABYTE))
        state = line.read().checkpoint["channel_values"]
        assert (len(state["messages"]), state["document"]) == (199, MEGABYTE)


def test_steps_that_change_only_the_bookkeeping_cost_next_to_nothing(database_url: str) -> None:
    with Database.open(database_url, synchronous="OFF") as database:
        saver = DeltaSaver(database)
        line = Line(saver)
        first = line.put({"document": MEGABYTE, "facts": {"name": "Li", "of": list(range(1000))}})
        values = line.read(first).checkpoint["channel_values"]
        before = saver.stats(line.thread_id).live_bytes
        for _ in range(200):
            line.put(values)
        grown = saver.stats(line.thread_id).live_bytes - before
        assert grown < 200 * 120, f"{grown / 200:.0f} bytes a step"


def test_a_field_that_is_edited_in_the_middle_costs_the_edit(database_url: str) -> None:
    with Database.open(database_url, synchronous="OFF") as database:
        saver = DeltaSaver(database)
        line = Line(saver)
        text = list("." * 100_000)
        facts = {f"key {n}": "value " * 10 for n in range(1000)}
        line.put({"text": "".join(text), "facts": dict(facts)})
        before = saver.stats(line.thread_id).live_bytes
        for step in range(50):
            text[(step * 7919) % len(text)] = "!"
            facts[f"key {step * 17 % 1000}"] = f"edited in step {step}"
            line.put({"text": "".join(text), "facts": dict(facts)})
        grown = saver.stats(line.thread_id).live_bytes - before
        assert grown < 50 * 400, f"{grown / 50:.0f} bytes a step"
        assert line.read().checkpoint["channel_values"] == {"text": "".join(text), "facts": facts}


def test_the_file_shrinks_after_a_prune_and_live_bytes_tell_it_from_free_ones(
    tmp_path: Path,
) -> None:
    file = tmp_path / "kit.db"
    with DeltaSaver.open(f"sqlite:///{file}") as saver:
        for n in range(4):
            line = Line(saver, f"t{n}")
            for step in range(10):
                line.put({"blob": f"{n}/{step} " * 10_000})
        full = saver.stats("t0")
        assert full.file_bytes >= 4 * full.live_bytes > 0
        assert full.file_bytes == disk_bytes(tmp_path), "with the write-ahead log beside the file"

        saver.prune([f"t{n}" for n in range(4)])
        pruned = saver.stats("t0")
        assert pruned.checkpoints == 1
        assert pruned.live_bytes < full.live_bytes / 5
        assert pruned.file_bytes < full.file_bytes / 4, "given back, not only marked as free"
        assert pruned.file_bytes == disk_bytes(tmp_path)
        assert pruned.free_bytes <= pruned.file_bytes / 4

        for n in range(4):
            saver.delete_thread(f"t{n}")
        empty = saver.stats("t0")
        assert (empty.checkpoints, empty.live_bytes) == (0, 0)
        assert empty.file_bytes < 300_000


def test_a_damaged_thread_can_still_be_counted(database_url: str) -> None:
    with Database.open(database_url, synchronous="OFF") as database:
        saver = DeltaSaver(database)
        written(Line(saver, "t"), 4)
        sound = saver.stats("t")
        with database.write() as tx:
            tx.execute("UPDATE checkpoint_heads SET latest_sequence = 77")
        damaged = saver.stats("t")
        assert (damaged.checkpoints, damaged.live_bytes) == (4, sound.live_bytes)
