"""The history of a `DeltaChannel`: LangGraph's own channel that stores no value between snapshots.

Between two snapshots a checkpoint says only "the channel moved on"; the value is rebuilt by
walking the parents and replaying the pending writes stored at each of them:

    C1  value: snapshot ["a"]     writes at C1: "b"
    C2  (no value)                writes at C2: "c", "d"
    C3  (no value)                → ["a"] + "b" + "c" + "d"

So pending writes are part of the state, and every act of retention must keep those that a
survivor stands on: a store that drops them gives a shorter list and no error. The expected answer
is computed twice, by LangGraph's default implementation over this saver's own `get_tuple`, and by
the in-memory saver over the same checkpoints.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from .builders import Config, Line, MakeSaver, assert_same, facts, id_of, refuses

CHANNELS = ["log", "other", "plain", "never"]


def history(saver: BaseCheckpointSaver[Any], config: Config) -> dict[str, Any]:
    """What the saver answers, as plain dicts."""
    answer = saver.get_delta_channel_history(config=config, channels=CHANNELS)
    return {channel: dict(entry) for channel, entry in answer.items()}


def by_default_walk(saver: BaseCheckpointSaver[Any], config: Config) -> dict[str, Any]:
    """The same question answered by LangGraph's default, from get_tuple and parent_config."""
    answer = BaseCheckpointSaver.get_delta_channel_history(saver, config=config, channels=CHANNELS)
    return {channel: dict(entry) for channel, entry in answer.items()}


def history_equals_the_default_walk_and_the_oracle(make_saver: MakeSaver) -> None:
    """Snapshots, a plain value from before the channel was a delta, forks, parallel writers."""
    saver, oracle, thread_id = make_saver(), InMemorySaver(), f"history-{uuid.uuid4()}"
    targets = [_tree(Line(store, thread_id, ns="child:1")) for store in (saver, oracle)]
    newest = Line(saver, thread_id, ns="child:1").config()
    replayed = 0
    for target in [*targets[0], newest]:
        found = history(saver, target)
        assert_same(found, by_default_walk(saver, target), f"default walk at {target}")
        assert_same(found, history(oracle, target), f"oracle at {target}")
        replayed += sum(len(entry["writes"]) for entry in found.values())
    assert replayed > 50, "the tree has histories to tell"


def history_of_nothing_is_empty(make_saver: MakeSaver) -> None:
    """No channels: an empty answer. A root, an unknown checkpoint: no writes and no seed."""
    saver = make_saver()
    line = Line(saver)
    root = line.put({"other": 1}, unsaved={"log"})
    line.write(root, ("log", "pending for the next step"), task="t")
    assert dict(saver.get_delta_channel_history(config=root, channels=[])) == {}
    empty = {channel: {"writes": []} for channel in CHANNELS}
    assert history(saver, root) == empty
    assert history(saver, line.config("1f000000-0000-6000-8000-00000000dead")) == empty
    assert history(saver, Line(saver).config()) == empty


def a_fork_replays_only_the_writes_on_its_own_path(make_saver: MakeSaver) -> None:
    """The branch that was left, and what was written on it, is not part of the new one."""
    saver = make_saver()
    line = Line(saver)
    base = line.put({"log": _DeltaSnapshot(["base"])})
    line.write(base, ("log", "step 1"), task="t0")
    turn = line.put(unsaved={"log"})
    abandoned = line.put({"log": _DeltaSnapshot(["base", "step 1", "old"])}, parent=turn)
    line.write(abandoned, ("log", "old, deeper"), task="t1")
    old_tip = line.put(unsaved={"log"})
    fork = line.put({"log": _DeltaSnapshot(["base", "step 1", "new"])}, parent=turn)
    line.write(fork, ("log", "new, deeper"), task="t1")
    new_tip = line.put(unsaved={"log"})
    assert history(saver, old_tip)["log"] == {
        "seed": _DeltaSnapshot(["base", "step 1", "old"]),
        "writes": [("t1", "log", "old, deeper")],
    }
    assert history(saver, new_tip)["log"] == {
        "seed": _DeltaSnapshot(["base", "step 1", "new"]),
        "writes": [("t1", "log", "new, deeper")],
    }
    assert history(saver, turn)["log"] == {
        "seed": _DeltaSnapshot(["base"]),
        "writes": [("t0", "log", "step 1")],
    }


def parallel_writers_replay_in_the_order_of_the_run(make_saver: MakeSaver) -> None:
    """Twelve tasks that finish in any order, over many random names: path order decides."""
    saver, chance = make_saver(), random.Random(7)
    for _ in range(5):
        line = Line(saver)
        at = line.put({"log": _DeltaSnapshot([])})
        names = [
            uuid.UUID(int=chance.getrandbits(128)).hex[: chance.randint(1, 8)] for _ in range(12)
        ]
        tasks = [
            (f"~__pregel_pull, {name}", uuid.UUID(int=chance.getrandbits(128)).hex, name)
            for name in set(names)
        ]
        for path, task, name in chance.sample(tasks, len(tasks)):
            line.write(at, ("other", "noise"), ("log", name), task=task, path=path)
        tip = line.put(unsaved={"log"})
        found = [value for _, _, value in history(saver, tip)["log"]["writes"]]
        assert found == [name for _, _, name in sorted(tasks)]


def a_stored_snapshot_keeps_its_type(make_saver: MakeSaver) -> None:
    """A snapshot that comes back as a bare tuple would be taken for the value itself."""
    line = Line(make_saver())
    values = {"log": _DeltaSnapshot(["a", {"b": [1]}]), "empty": _DeltaSnapshot([])}
    at = line.put(values)
    assert_same(line.read(at).checkpoint["channel_values"], values, "a snapshot")
    grown = {**values, "log": _DeltaSnapshot(["a", {"b": [1]}, "c"])}
    assert_same(line.read(line.put(grown)).checkpoint["channel_values"], grown, "its successor")


def pruning_keeps_what_the_survivors_replay(make_saver: MakeSaver) -> None:
    """keep_latest goes back to the stored value and no further; what it shows is unchanged."""
    saver = make_saver()
    line = Line(saver)
    _chain(line, steps=19, snapshot_every=10)
    rows = [facts(row, with_parent=False) for row in line.rows()]
    before = history(saver, line.config())
    assert len(before["log"]["writes"]) == 16
    saver.prune([line.thread_id], strategy="keep_latest")
    left = [facts(row, with_parent=False) for row in line.rows()]
    assert 1 <= len(left) <= 9, "nothing before the snapshot is needed"
    assert_same(left, rows[: len(left)], "what is still to be seen")
    assert_same(history(saver, line.config()), before, "the history of the newest")
    line.write(line.read().config, ("log", "after"), task="t", path="~z")
    line.put(unsaved={"log"})
    assert history(saver, line.config())["log"]["writes"] == [
        *before["log"]["writes"],
        ("t0-18", "log", "18 by t0"),
        ("t1-18", "log", "18 by t1"),
        ("t", "log", "after"),
    ]


def deleting_a_run_keeps_what_the_survivors_replay(make_saver: MakeSaver) -> None:
    """A run in the middle goes and later ones rebuild as before; or it is refused, all intact."""
    saver, token = make_saver(), str(uuid.uuid4())
    line = Line(saver)
    stored = _chain(line, steps=9, snapshot_every=20, run_of=lambda step: f"{token}-{step // 3}")
    kept = stored[:3] + stored[6:]
    before, rows = [history(saver, at) for at in kept], [facts(row) for row in line.rows()]
    if refuses(lambda: saver.delete_for_runs([f"{token}-1"])):
        assert_same([facts(row) for row in line.rows()], rows, "a refusal removes nothing")
    else:
        assert line.ids() == [id_of(at) for at in reversed(kept)]
    for at, expected in zip(kept, before, strict=True):
        assert_same(history(saver, at), expected, f"history at {id_of(at)}")


def deleting_a_run_behind_a_snapshot_needs_no_refusal(make_saver: MakeSaver) -> None:
    """The stored value stands between: nothing of the old run is replayed any more."""
    saver, token = make_saver(), str(uuid.uuid4())
    line = Line(saver)
    stored = _chain(line, steps=9, snapshot_every=3, run_of=lambda step: f"{token}-{step // 3}")
    before = [history(saver, at) for at in stored[6:]]
    saver.delete_for_runs([f"{token}-0", f"{token}-1"])
    assert line.ids() == [id_of(at) for at in reversed(stored[6:])]
    for at, expected in zip(stored[7:], before[1:], strict=True):
        assert_same(history(saver, at), expected, f"history at {id_of(at)}")


def a_copied_thread_stands_on_its_own(make_saver: MakeSaver) -> None:
    """Copy, then delete the source: the copy rebuilds every checkpoint."""
    saver = make_saver()
    line, copied = Line(saver), Line(saver)
    stored = _chain(line, steps=7, snapshot_every=3)
    before = [history(saver, at) for at in stored]
    saver.copy_thread(line.thread_id, copied.thread_id)
    saver.delete_thread(line.thread_id)
    for at, expected in zip(stored, before, strict=True):
        assert_same(history(saver, copied.config(id_of(at))), expected, "history in the copy")


def _chain(line: Line, *, steps: int, snapshot_every: int, run_of: Any = None) -> list[Config]:
    stored = []
    for step in range(steps):
        metadata = {"run_id": run_of(step)} if run_of else {}
        if step % snapshot_every == 0:
            at = line.put(
                {"log": _DeltaSnapshot([f"all until {step}"]), "other": step}, metadata=metadata
            )
        else:
            at = line.put({"other": step}, unsaved={"log"}, metadata=metadata)
        for task in ("t1", "t0"):
            line.write(at, ("log", f"{step} by {task}"), task=f"{task}-{step}", path=task)
        stored.append(at)
    return stored


def _tree(line: Line) -> list[Config]:
    """A thread with a plain seed, snapshots, two forks and parallel writers; ids are fixed."""
    chance = random.Random(11)
    stored: list[Config] = []
    parents = [None, 0, 1, 2, 3, 4, 2, 6, 7, 5, 9, 7, 11]
    for number, parent in enumerate(parents):
        values: dict[str, Any] = {"plain": ["since ever"]}
        if number == 1:
            values["log"] = ["a plain value from before"]
        if number in (7, 10):
            values["log"] = _DeltaSnapshot([f"snapshot {number}"])
        at = line.put(
            values,
            parent=None if parent is None else stored[parent],
            unsaved={"log", "other"} if number else set(),
            checkpoint_id=f"1f0000{number:02d}-0000-6000-8000-000000000000",
        )
        for task in chance.sample(range(4), 3):
            line.write(
                at,
                ("log", f"{number}/{task}"),
                ("noise", 0),
                ("other", {"n": number}),
                task=f"{9 - task}-{number}",
                path=f"~{task}",
            )
        stored.append(at)
    return stored


CLAUSES = [
    history_equals_the_default_walk_and_the_oracle,
    history_of_nothing_is_empty,
    a_fork_replays_only_the_writes_on_its_own_path,
    parallel_writers_replay_in_the_order_of_the_run,
    a_stored_snapshot_keeps_its_type,
    pruning_keeps_what_the_survivors_replay,
    deleting_a_run_keeps_what_the_survivors_replay,
    deleting_a_run_behind_a_snapshot_needs_no_refusal,
    a_copied_thread_stands_on_its_own,
]
