"""Write checkpoints the way a LangGraph run writes them, and compare what comes back.

A saver is never handed loose values. A run hands it a checkpoint whose `channel_versions` name
every channel that was ever written, and `new_versions` with the channels this step changed. A
store that keeps values by (channel, version) and a store that keeps the whole state both look
right until the two lists disagree, so the contract builds its checkpoints in one place, here:

    line = Line(saver)
    first = line.put({"messages": ["hello"]})
    second = line.put({"messages": ["hello", "world"]})        # child of first
    fork = line.put({"messages": ["hello", "moon"]}, parent=first)

Versions come from `saver.get_next_version`, as in a run. A saver with integer versions therefore
gives `second` and `fork` the same version of `messages`; each must still read back its own value.

`differences(a, b)` compares value **and** type: `1 == True == 1.0` in Python, and a store that
turns one into the other has lost something that `==` does not see.
"""

from __future__ import annotations

import copy
import dataclasses
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6

Config = dict[str, Any]
MakeSaver = Callable[[], BaseCheckpointSaver[Any]]


class Line:
    """One thread and namespace under construction; every `put` continues from the last one."""

    def __init__(
        self, saver: BaseCheckpointSaver[Any], thread_id: str | None = None, ns: str = ""
    ) -> None:
        self.saver = saver
        self.thread_id = thread_id if thread_id is not None else f"thread-{uuid.uuid4()}"
        self.ns = ns
        self.tip: str | None = None
        self.steps = 0
        self._versions: dict[str | None, dict[str, Any]] = {None: {}}
        self._values: dict[str | None, dict[str, Any]] = {None: {}}
        self._counters: dict[str | None, dict[str, list[int]]] = {None: {}}

    def config(self, checkpoint_id: str | None = None) -> Config:
        """A config that addresses this line: its newest checkpoint, or the one named."""
        configurable = {"thread_id": self.thread_id, "checkpoint_ns": self.ns}
        if checkpoint_id is not None:
            configurable["checkpoint_id"] = checkpoint_id
        return {"configurable": configurable}

    def put(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        parent: Config | str | None = "tip",
        unsaved: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
        checkpoint_id: str | None = None,
    ) -> Config:
        """Store one checkpoint and return what the saver returned.

        `parent` is a config, None for a root, or "tip". `unsaved` names channels that change in
        this step without a value in the checkpoint: LangGraph's `DeltaChannel` between two of its
        snapshots, or a channel that was emptied.
        """
        values = dict(values or {})
        parent_id = self._parent_id(parent)
        changed = self._changed(parent_id, values, unsaved)
        before = self._versions[parent_id]
        top = max(before.values(), default=None)
        bumped = self.saver.get_next_version(top, None)
        new_versions = dict.fromkeys(changed, bumped)
        checkpoint: dict[str, Any] = {
            "v": 4,
            "id": checkpoint_id or str(uuid6(clock_seq=self.steps)),
            "ts": f"2024-05-06T07:08:{self.steps % 60:02d}.000000+00:00",
            "channel_values": values,
            "channel_versions": {**before, **new_versions},
            "versions_seen": {"__input__": {}, "node": dict(before)},
            "updated_channels": sorted(changed),
        }
        counters = self._counted(parent_id, values, unsaved)
        about = {
            "source": "loop",
            "step": self.steps,
            "parents": {},
            **({"counters_since_delta_snapshot": counters} if counters else {}),
            **(metadata or {}),
        }
        stored = self.saver.put(self.config(parent_id), checkpoint, about, new_versions)
        self._counters[checkpoint["id"]] = counters
        self._remember(checkpoint)
        return stored

    def write(
        self, at: Config, *writes: tuple[str, Any], task: str = "task", path: str = ""
    ) -> None:
        """Store pending writes of one task at the checkpoint `at`."""
        self.saver.put_writes(at, list(writes), task, path)

    def read(self, at: Config | None = None) -> CheckpointTuple:
        """The checkpoint at `at`, or the newest; it must be there."""
        found = self.saver.get_tuple(at or self.config())
        assert found is not None, f"no checkpoint at {at or self.config()}"
        return found

    def rows(self, **arguments: Any) -> list[CheckpointTuple]:
        """`list` of this thread and namespace, newest first."""
        return list(self.saver.list(self.config(), **arguments))

    def ids(self, **arguments: Any) -> list[str]:
        """The ids that `list` yields, in its order."""
        return [row.checkpoint["id"] for row in self.rows(**arguments)]

    def _parent_id(self, parent: Config | str | None) -> str | None:
        if parent == "tip":
            return self.tip
        return None if parent is None else id_of(parent)

    def _changed(
        self, parent_id: str | None, values: Mapping[str, Any], unsaved: Collection[str]
    ) -> list[str]:
        """Channels whose version moves on: a new value, a value gone, or one kept elsewhere."""
        before = self._values[parent_id]
        changed = [
            name
            for name in values
            if name not in before or differences(values[name], before[name], key_order=True)
        ]
        gone = [name for name in before if name not in values]
        return list(dict.fromkeys([*changed, *gone, *sorted(unsaved)]))

    def _counted(
        self, parent_id: str | None, values: Mapping[str, Any], unsaved: Collection[str]
    ) -> dict[str, list[int]]:
        """LangGraph's (updates, super-steps) of each delta channel since its value was stored."""
        before = self._counters[parent_id]
        counters = {}
        for name in sorted({*before, *unsaved} - values.keys()):
            updates, supersteps = before.get(name, [0, 0])
            counters[name] = [updates + (name in unsaved), supersteps + 1]
        return counters

    def _remember(self, checkpoint: Mapping[str, Any]) -> None:
        identity = checkpoint["id"]
        self._versions[identity] = dict(checkpoint["channel_versions"])
        self._values[identity] = copy.deepcopy(checkpoint["channel_values"])
        self.tip = identity
        self.steps += 1


def id_of(config: Config) -> str:
    """The checkpoint id in a config."""
    return str(config["configurable"]["checkpoint_id"])


def address(config: Mapping[str, Any] | None) -> tuple[str, str, str] | None:
    """Thread, namespace and checkpoint of a config: the part of it that every saver returns."""
    if config is None:
        return None
    found = config["configurable"]
    return found["thread_id"], found.get("checkpoint_ns", ""), found["checkpoint_id"]


def facts(row: CheckpointTuple, *, with_parent: bool = True) -> dict[str, Any]:
    """A checkpoint tuple as one comparable value.

    `with_parent=False` leaves the parent out: after a prune the parent of the oldest survivor is
    gone, and a saver may say so by pointing at nothing.
    """
    seen: dict[str, Any] = {
        "at": address(row.config),
        "checkpoint": dict(row.checkpoint),
        "metadata": dict(row.metadata),
        "writes": list(row.pending_writes or []),
    }
    if with_parent:
        seen["parent"] = address(row.parent_config)
    return seen


def differences(left: Any, right: Any, path: str = "$", *, key_order: bool = False) -> list[str]:
    """Where two values differ in value or type; empty when they are the same thing twice."""
    if type(left) is not type(right):
        kinds = type(left).__name__, type(right).__name__
        return [f"{path}: {kinds[0]} {left!r:.80} is not {kinds[1]} {right!r:.80}"]
    if isinstance(left, dict):
        return _dict_differences(left, right, path, key_order)
    if isinstance(left, (list, tuple)):
        return _sequence_differences(left, right, path, key_order)
    if isinstance(left, float):
        return [] if repr(left) == repr(right) else [f"{path}: {left!r} is not {right!r}"]
    if dataclasses.is_dataclass(left) and not isinstance(left, type):
        return differences(vars(left), vars(right), path, key_order=key_order)
    return [] if left == right else [f"{path}: {left!r:.80} is not {right!r:.80}"]


def assert_same(left: Any, right: Any, about: str = "") -> None:
    """Fail, naming the paths, unless both are equal in value and type."""
    found = differences(left, right)
    assert not found, f"{about}: " + "; ".join(found[:5])


def refuses(call: Callable[[], Any]) -> bool:
    """Whether the call says no, by any error that is not a slip of the implementation."""
    try:
        call()
    except (AttributeError, NameError, NotImplementedError):
        raise
    except Exception:
        return True
    return False


def _dict_differences(left: Any, right: Any, path: str, key_order: bool) -> list[str]:
    found = [f"{path}: key {key!r} only on the left" for key in left if key not in right]
    found += [f"{path}: key {key!r} only on the right" for key in right if key not in left]
    kinds = [sorted(f"{type(key).__name__} {key!r}" for key in side) for side in (left, right)]
    if not found and kinds[0] != kinds[1]:
        found.append(f"{path}: keys {kinds[0]} and {kinds[1]}")
    if key_order and not found and list(left) != list(right):
        found.append(f"{path}: keys in the order {list(left)} and {list(right)}")
    for key in left:
        if key in right:
            found += differences(left[key], right[key], f"{path}[{key!r}]", key_order=key_order)
    return found


def _sequence_differences(left: Any, right: Any, path: str, key_order: bool) -> list[str]:
    if len(left) != len(right):
        return [f"{path}: {len(left)} items {left!r:.90} and {len(right)} items {right!r:.90}"]
    found = []
    for index, (one, other) in enumerate(zip(left, right, strict=True)):
        found += differences(one, other, f"{path}[{index}]", key_order=key_order)
    return found
