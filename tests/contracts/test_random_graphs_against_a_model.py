"""Random graphs of checkpoints, against a model that cannot be wrong: deep copies in a dict.

Examples test what somebody thought of. Here hypothesis writes the story: it grows lists, edits an
item in place, patches dicts, empties channels, forks from any earlier checkpoint, prunes, deletes
runs, compacts, copies threads, and opens the store afresh, in any order. After each step some
checkpoints are read back and compared with the model in value and type, and `verify` must find
nothing; at the end, all of them are, twice: by the saver that wrote them, and by a new one.

When it fails, hypothesis shortens the story to the few steps that are needed.
"""

from __future__ import annotations

import copy
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from durable_kit.storage import snapshot_policy

from .builders import assert_same

NAMESPACES = ["", "child:1", "a|b:ü"]
CHANNELS = ["messages", "table", "draft", "raw", "plain"]
RUNS = ["run-a", "run-b", "run-c"]

# Which checkpoint a step starts from, newest first: mostly the newest, sometimes any.
picks = st.one_of(st.just(0), st.just(0), st.integers(0, 60))
runs = st.sampled_from(RUNS)
written_channels = st.sampled_from(["messages", "draft", ERROR, INTERRUPT, RESUME])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**66), 2**66),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.binary(max_size=40),
    st.sampled_from(["x" * 300, b"\x00" * 300]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=6), inner, max_size=4),
        st.tuples(inner, inner),
    ),
    max_leaves=8,
)


@dataclass
class Row:
    """What the model knows of one checkpoint."""

    sequence: int
    config: Any
    parent_id: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: dict[tuple[str, int], tuple[str, str, Any]] = field(default_factory=dict)

    def key(self) -> tuple[str, str, str]:
        found = self.config["configurable"]
        return found["thread_id"], found["checkpoint_ns"], found["checkpoint_id"]

    def pending_writes(self) -> list[tuple[str, str, Any]]:
        keys = sorted(self.writes, key=lambda key: writes_sort_key(self.writes[key][0], *key))
        return [(key[0], self.writes[key][1], self.writes[key][2]) for key in keys]


class StoreAndModel(RuleBasedStateMachine):
    """A thread in three namespaces, and the copies that were made of it.

    In every rule `at` is a number that picks one of the checkpoints still there, newest first.
    """

    url = ""
    settings_of_saver: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.name = uuid.uuid4().hex
        self.model: dict[tuple[str, str], dict[str, Row]] = {}
        self.sequence = 0
        self.chance = random.Random(0)
        self.live: dict[tuple[str, str, str], Any] = {}
        self.saver = self._open()

    def teardown(self) -> None:
        try:
            self._compare_everything()
            self.reopen()
            self._compare_everything()
        finally:
            self.saver.close()

    # -- growing ---------------------------------------------------------------------------------

    @initialize(ns=st.sampled_from(NAMESPACES), value=values)
    def begin(self, ns: str, value: Any) -> None:
        """Every story starts with a root."""
        first = {"messages": [], "table": {}, "draft": "", "raw": b"", "plain": value}
        self._put((self.name, ns), None, first, RUNS[0])

    @rule(ns=st.sampled_from(NAMESPACES), value=values, run=runs)
    def another_root(self, ns: str, value: Any, run: str) -> None:
        self._put((self.name, ns), None, {"plain": value, "messages": [value]}, run)

    @rule(at=picks, items=st.lists(values, min_size=1, max_size=3), run=runs)
    def append_to_the_list(self, at: int, items: list[Any], run: str) -> None:
        """Three steps at a time, so that chains grow long enough for snapshots."""

        def grow(state: Any) -> None:
            state.setdefault("messages", []).extend(items)

        row = self._pick(at)
        for _ in range(3):
            row = self._child(row, run, grow)

    @rule(at=picks, value=values, where=st.integers(0, 99), run=runs)
    def edit_an_item_in_place(self, at: int, value: Any, where: int, run: str) -> None:
        def edit(state: Any) -> None:
            items = state.get("messages") or [None]
            place = where % len(items)
            if self.settings_of_saver.get("trust_identity"):
                items[place] = copy.deepcopy(items[place])  # what this setting asks of a node
            if isinstance(items[place], dict):
                items[place]["edited"] = value
            elif isinstance(items[place], list):
                items[place].append(value)
            else:
                items[place] = {"was": items[place]}
            state["messages"] = items

        self._child(self._pick(at), run, edit)

    @rule(at=picks, where=st.integers(0, 99), run=runs)
    def delete_or_move_items(self, at: int, where: int, run: str) -> None:
        def edit(state: Any) -> None:
            items = state.setdefault("messages", [])
            if items and where % 2:
                del items[where % len(items)]
            else:
                items.reverse()

        self._child(self._pick(at), run, edit)

    @rule(at=picks, key=st.text(max_size=3), value=values, run=runs)
    def patch_the_dict(self, at: int, key: str, value: Any, run: str) -> None:
        def edit(state: Any) -> None:
            table = state.setdefault("table", {})
            if key in table and value is None:
                del table[key]
            elif isinstance(table.get(key), dict):
                table[key][key] = value
            else:
                table[key] = value

        self._child(self._pick(at), run, edit)

    @rule(
        at=picks,
        text=st.text(max_size=60),
        raw=st.binary(max_size=60),
        where=st.integers(0, 200),
        run=runs,
    )
    def grow_and_splice_text(self, at: int, text: str, raw: bytes, where: int, run: str) -> None:
        def edit(state: Any) -> None:
            draft, old = state.get("draft", ""), state.get("raw", b"")
            state["draft"] = draft[:where] + text + draft[where:]
            state["raw"] = old[:where] + raw + old[where + 1 :]

        self._child(self._pick(at), run, edit)

    @rule(at=picks, channel=st.sampled_from(CHANNELS), value=values, run=runs)
    def set_a_channel(self, at: int, channel: str, value: Any, run: str) -> None:
        fitting = {"messages": [value], "table": {"k": value}, "draft": repr(value), "raw": b"new"}
        self._child(
            self._pick(at), run, lambda state: state.update({channel: fitting.get(channel, value)})
        )

    @rule(at=picks, channel=st.sampled_from(CHANNELS), run=runs)
    def remove_a_channel(self, at: int, channel: str, run: str) -> None:
        self._child(self._pick(at), run, lambda state: state.pop(channel, None))

    @rule(at=picks, run=runs)
    def change_nothing(self, at: int, run: str) -> None:
        self._child(self._pick(at), run, lambda state: None)

    # -- pending writes --------------------------------------------------------------------------

    @rule(
        at=picks,
        task=st.sampled_from(["t1", "t2", "t3"]),
        path=st.sampled_from(["", "~a", "~b"]),
        written=st.lists(st.tuples(written_channels, values), min_size=1, max_size=4),
    )
    def write(self, at: int, task: str, path: str, written: list[tuple[str, Any]]) -> None:
        self._write(self._pick(at), written, task, path)

    @rule(at=picks, run=runs, value=values)
    def write_what_the_next_step_then_stores(self, at: int, run: str, value: Any) -> None:
        """As a run does: the new items lie in the pending writes and in the child's list."""
        row, items = self._pick(at), [value, "x" * 50]
        self._write(row, [("messages", items)], "t1", "~a")
        self._child(row, run, lambda state: state.setdefault("messages", []).extend(items))

    @rule(at=picks, run=runs, value=values)
    def write_before_the_checkpoint_arrives(self, at: int, run: str, value: Any) -> None:
        row = self._pick(at)
        if row is None:
            return
        early, written = copy.deepcopy(row.config), [("messages", value), (INTERRUPT, "ask")]
        early["configurable"]["checkpoint_id"] = identity = self._new_id()
        self.saver.put_writes(early, copy.deepcopy(written), "t1", "~a")
        stored = self._child(row, run, lambda state: None, identity=identity)
        self._note_writes(stored, written, "t1", "~a")

    # -- doing it again, removing, copying -------------------------------------------------------

    @rule(at=picks)
    def put_again(self, at: int) -> None:
        row = self._pick(at)
        if row is not None:
            self._store(row)

    @rule(which=st.integers(0, 5), keep=st.one_of(st.none(), st.integers(1, 9)))
    def prune(self, which: int, keep: int | None) -> None:
        name = self._name(which)
        self.saver.prune([name], strategy="keep_latest", keep_last=keep)
        for line, stored in self.model.items():
            if line[0] == name:
                newest = sorted(stored, key=lambda i: -stored[i].sequence)[: keep or 1]
                self.model[line] = {i: stored[i] for i in newest}

    @rule(run=runs)
    def delete_a_run(self, run: str) -> None:
        gone = f"{self.name}-{run}"
        self.saver.delete_for_runs([gone])
        for line, stored in self.model.items():
            self.model[line] = {
                i: row for i, row in stored.items() if row.metadata["run_id"] != gone
            }

    @rule(which=st.integers(0, 5))
    def compact(self, which: int) -> None:
        self.saver.compact(self._name(which))

    @rule(which=st.integers(0, 5), delete_source=st.booleans())
    def copy_a_thread(self, which: int, delete_source: bool) -> None:
        """Both go on; or the source is deleted, and only the copy does."""
        source, copied = self._name(which), uuid.uuid4().hex
        lines = [line for line in self.model if line[0] == source and self.model[line]]
        if not lines or len(self.model) > 9:
            return
        self.saver.copy_thread(source, copied)
        for line in lines:
            moved = copy.deepcopy(self.model[line])
            for row in moved.values():
                row.config["configurable"]["thread_id"] = copied
            self.model[copied, line[1]] = moved
        if delete_source:
            self.saver.delete_thread(source)
            for line in lines:
                self.model[line] = {}

    @rule()
    def reopen(self) -> None:
        self.saver.close()
        self.saver = self._open()

    # -- comparing -------------------------------------------------------------------------------

    @invariant()
    def some_checkpoints_read_as_the_model_says(self) -> None:
        for line, stored in self.model.items():
            newest = max(stored.values(), key=lambda row: row.sequence, default=None)
            self._compare_newest(line, newest)
            for identity in self.chance.sample(sorted(stored), min(2, len(stored))):
                self._compare(stored[identity], self.saver.get_tuple(stored[identity].config))

    @invariant()
    def verify_finds_nothing(self) -> None:
        for name in {name for name, _ in self.model}:
            verification = self.saver.verify(name)
            assert verification.ok, verification

    def _compare_everything(self) -> None:
        for (name, ns), stored in self.model.items():
            config = {"configurable": {"thread_id": name, "checkpoint_ns": ns}}
            listed = list(self.saver.list(config))
            expected = sorted(stored.values(), key=lambda row: -row.sequence)
            assert [row.checkpoint["id"] for row in listed] == [
                row.checkpoint["id"] for row in expected
            ]
            for row, found in zip(expected, listed, strict=True):
                self._compare(row, found)
                self._compare(row, self.saver.get_tuple(row.config))

    def _compare_newest(self, line: tuple[str, str], newest: Row | None) -> None:
        config = {"configurable": {"thread_id": line[0], "checkpoint_ns": line[1]}}
        found = self.saver.get_tuple(config)
        if newest is None:
            assert found is None
        else:
            self._compare(newest, found)

    def _compare(self, row: Row, found: Any) -> None:
        assert found is not None, f"checkpoint {row.checkpoint['id']} is gone"
        about = f"checkpoint {row.checkpoint['id']}"
        assert_same(dict(found.checkpoint), row.checkpoint, about)
        assert_same(dict(found.metadata), row.metadata, f"{about}, metadata")
        assert_same(found.pending_writes, row.pending_writes(), f"{about}, writes")

    # -- helpers ---------------------------------------------------------------------------------

    def _open(self) -> Any:
        from durable_kit.delta_saver import DeltaSaver

        return DeltaSaver.open(self.url, **self.settings_of_saver)

    def _pick(self, at: int) -> Row | None:
        """One of the checkpoints that are still there, newest first."""
        rows = [row for stored in self.model.values() for row in stored.values()]
        rows.sort(key=lambda row: (-row.sequence, row.config["configurable"]["thread_id"]))
        return rows[at % len(rows)] if rows else None

    def _name(self, which: int) -> str:
        names = list(dict.fromkeys(name for name, _ in self.model))
        return names[which % len(names)]

    def _child(
        self,
        parent: Row | None,
        run: str,
        edit: Callable[[Any], Any],
        *,
        identity: str | None = None,
    ) -> Any:
        """A step from `parent`. Its own objects are edited in place, as a node would, the first
        time; a fork starts from a copy."""
        if parent is None:
            return None
        state = self.live.pop(parent.key(), None)
        if state is None:
            state = copy.deepcopy(parent.checkpoint["channel_values"])
        edit(state)
        configurable = parent.config["configurable"]
        line = configurable["thread_id"], configurable["checkpoint_ns"]
        return self._put(line, parent, state, run, identity=identity)

    def _put(
        self,
        line: tuple[str, str],
        parent: Row | None,
        state: dict[str, Any],
        run: str,
        *,
        identity: str | None = None,
    ) -> Row:
        before = parent.checkpoint if parent else {"channel_versions": {}, "channel_values": {}}
        version = max(before["channel_versions"].values(), default=0) + 1
        changed = [
            c
            for c in {**before["channel_values"], **state}
            if c not in state
            or c not in before["channel_values"]
            or repr(state[c]) != repr(before["channel_values"][c])
        ]
        identity = identity or self._new_id()
        checkpoint = {
            "v": 4,
            "id": identity,
            "ts": "2024-01-02T03:04:05.678901+00:00",
            "channel_values": state,
            "channel_versions": {**before["channel_versions"], **dict.fromkeys(changed, version)},
            "versions_seen": {"node": dict(before["channel_versions"])},
            "updated_channels": sorted(changed),
        }
        metadata = {
            "source": "loop",
            "step": version,
            "parents": {},
            "run_id": f"{self.name}-{run}",
        }
        self.sequence += 1
        config = {
            "configurable": {
                "thread_id": line[0],
                "checkpoint_ns": line[1],
                "checkpoint_id": identity,
            }
        }
        row = Row(
            self.sequence,
            config,
            parent.checkpoint["id"] if parent else None,
            copy.deepcopy(checkpoint),
            metadata,
        )
        self._store(row, checkpoint)
        self.model.setdefault(line, {})[identity] = row
        self.live[row.key()] = state
        return row

    def _store(self, row: Row, checkpoint: dict[str, Any] | None = None) -> None:
        config = copy.deepcopy(row.config)
        config["configurable"].pop("checkpoint_id")
        if row.parent_id is not None:
            config["configurable"]["checkpoint_id"] = row.parent_id
        given = checkpoint if checkpoint is not None else copy.deepcopy(row.checkpoint)
        stored = self.saver.put(
            config, given, copy.deepcopy(row.metadata), dict(row.checkpoint["channel_versions"])
        )
        assert stored["configurable"] == row.config["configurable"]

    def _write(self, row: Row | None, written: list[tuple[str, Any]], task: str, path: str) -> None:
        if row is not None:
            self.saver.put_writes(row.config, copy.deepcopy(written), task, path)
            self._note_writes(row, written, task, path)

    def _note_writes(self, row: Row, written: list[tuple[str, Any]], task: str, path: str) -> None:
        for index, (channel, value) in enumerate(written):
            key = (task, WRITES_IDX_MAP.get(channel, index))
            if key[1] < 0 or key not in row.writes:
                row.writes[key] = (path, channel, copy.deepcopy(value))

    def _new_id(self) -> str:
        """Ids in no order: the newest is the one written last."""
        return str(uuid.UUID(int=self.chance.getrandbits(128)))


def run_stories(url: str, *, stories: int, steps: int, **settings_of_saver: Any) -> None:
    machine = type("Story", (StoreAndModel,), {"url": url, "settings_of_saver": settings_of_saver})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=stories,
            stateful_step_count=steps,
            phases=[phase for phase in Phase if phase is not Phase.shrink],  # it takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_stories_read_as_the_model_says(database_url: str) -> None:
    """Many on a SQLite file, a few on PostgreSQL."""
    small = not database_url.startswith("sqlite")
    run_stories(database_url, stories=4 if small else 15, steps=15 if small else 30)


SETTINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "every checkpoint a snapshot": lambda: {"policy": snapshot_policy.EveryN(1)},
    "every fourth a snapshot that stands alone": lambda: {
        "policy": snapshot_policy.EveryN(4, self_contained=True)
    },
    "a snapshot when it pays early": lambda: {"policy": snapshot_policy.SizeRatio(0.3)},
    "trusting identity": lambda: {
        "trust_identity": True,
        "policy": snapshot_policy.EveryN(5),
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_random_stories_under_other_settings(tmp_path: Path, name: str) -> None:
    run_stories(f"sqlite:///{tmp_path / 'kit.db'}", stories=6, steps=20, **SETTINGS[name]())
