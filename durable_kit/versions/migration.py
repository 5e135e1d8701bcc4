"""Let new code read old state: the technical version of a record.

A state outlives the code that wrote it. The next deploy renames a field and makes euros of cents,
and a thread that waited over the week-end is resumed by it:

    Friday   code 1   {"total": "49.90"}              ─▶ bytes, pending writes, a paused subgraph
    Monday   code 2   state["total_cents"]  ✗ KeyError    (or worse: None, and it goes on)

So each record says by which *state_version* it was written, and the code brings a `Step` for each
version since, a small pure function from one shape to the next. Reading chains them, *upcasts*:

    stored at 1 ── Step(to=2) ── Step(to=3) ──▶ what code 3 sees

What is promised. Every way of reading goes through here: the newest state, the history, pending
writes, subgraphs, forks. The stored bytes stay as they are, so the steps may be mended, and older
code can read its own records again after a rollback. A write carries a version of its own, since
code 2 may finish a super-step that code 1 began. A record without a version counts as
`UNVERSIONED_IS`. A record that is newer than the code is refused (`NewerState`): older code cannot
know what to do with it. A step that turns a value into None, or meets two values where it needs
one, is refused too (`MigrationFailed`).

Order is by number: 2, 3, 4 … without a gap, each registered once, for each graph. What is at the
newest version is left alone, so upcasting twice changes nothing.

Left out: the way back. A newer record is never made into an older one; after a rollback such
threads wait. And the shapes inside your own classes: the codec keeps those fields, see there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from durable_kit.errors import BadInput, DurableKitError
from durable_kit.versions.node_names import (
    moved_writes,
    rename_in_channel,
    rename_in_join,
    rename_in_seen,
    rename_in_send,
)
from durable_kit.versions.position import HELD_AFTER, INPUT, JOIN, SENDS

UNVERSIONED_IS = 1
"""The state_version, by definition, of what was stored before anybody counted versions."""

NO_WRITES = "__no_writes__"  # LangGraph's word for "this task has run and wrote nothing"
_SOURCE_OF_ERROR = "__error_source_node__"

Change = Callable[[Any], Any]


class NewerState(DurableKitError):
    """A record was written by newer code than this. Run the newer code; nothing was changed."""

    def __init__(self, *, place: str, found: int, current: int) -> None:
        super().__init__(
            f"{place}: it has state_version {found}, and this code knows versions up to {current}. "
            "Let the newer code read it, or bring its Migrations."
        )
        self.place = place
        self.found = found
        self.current = current


class MigrationFailed(DurableKitError):
    """A step cannot bring a record to its version. The stored bytes are as they were."""

    def __init__(self, *, place: str, step: Step, found: str, remedy: str) -> None:
        super().__init__(f"{place}: Step(to={step.to}), {step.says!r}: {found}. {remedy}")
        self.place = place
        self.step = step
        self.found = found


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How records of version `to - 1` become records of version `to`. All functions must be pure.

    `says`: what changes, in one sentence; reports and errors show it.
    `inside`: the graph it is for. "" is the graph that you compile, "review" the subgraph in its
    node `review`, "review|check" the one inside that; by today's names.
    `rename`: channels, old name to new. `convert`: by new name, the old value to the new one.
    `convert_updates`: the same for what a node returned and no checkpoint has yet, where a reducer
    makes that another shape than the kept value; without an entry `convert` is used.
    `add`: channels that the state lacks, each with a function of the (new) state to its value.
    `drop`: channels that go. `rename_nodes`: nodes, old name to new; where threads wait follows,
    also in the node that a `FlowRouter` has behind one of them.
    `convert_sends`: by new node name, the argument of a waiting `Send`.
    """

    to: int
    says: str
    inside: str = ""
    rename: Mapping[str, str] = field(default_factory=dict)
    convert: Mapping[str, Change] = field(default_factory=dict)
    convert_updates: Mapping[str, Change] = field(default_factory=dict)
    add: Mapping[str, Change] = field(default_factory=dict)
    drop: Collection[str] = ()
    rename_nodes: Mapping[str, str] = field(default_factory=dict)
    convert_sends: Mapping[str, Change] = field(default_factory=dict)

    def __post_init__(self) -> None:
        held = {
            HELD_AFTER + old: HELD_AFTER + new
            for old, new in self.rename_nodes.items()
            if not old.startswith(HELD_AFTER)
        }
        object.__setattr__(self, "rename_nodes", {**self.rename_nodes, **held})

    def channel(self, name: str) -> str:
        """The new name of a channel."""
        return self.rename.get(name) or rename_in_channel(name, self.rename_nodes)


class Written(NamedTuple):
    """One pending write, with the version of the code that made it."""

    task_id: str
    channel: str
    value: Any
    state_version: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint as read, with its pending writes. `step` is the one of its metadata.

    `namespace`: the one that its task ids were made from, in today's names `asked_namespace`.
    """

    place: str
    checkpoint: Mapping[str, Any]
    step: int
    namespace: str
    asked_namespace: str
    state_version: int
    writes: Sequence[Written]

    @property
    def newest_version(self) -> int:
        return max([self.state_version, *(write.state_version for write in self.writes)])

    @property
    def oldest_version(self) -> int:
        return min([self.state_version, *(write.state_version for write in self.writes)])


class Migrations:
    """The steps from version 1 to that of this code.

        migrations = Migrations(
            Step(to=2, says="totals in cents", rename={"total": "total_cents"},
                 convert={"total_cents": lambda euros: round(Decimal(euros) * 100)}),
        )
        saver = DeltaSaver.open(url, migrations=migrations)

    Raises `BadInput` for a gap, for a version that is registered twice for one graph, and for a
    node name that comes back after it was renamed: a stored position could mean either.
    """

    def __init__(self, *steps: Step) -> None:
        self.steps = tuple(sorted(steps, key=lambda step: step.to))
        self.current = max([UNVERSIONED_IS, *(step.to for step in steps)])
        known = [(step.to, step.inside) for step in self.steps]
        twice = [entry for entry in known if known.count(entry) > 1]
        if twice:
            raise BadInput(
                f"There are two steps to state_version {twice[0][0]} for the graph "
                f"{twice[0][1]!r}. Make one of them, or give the later one the next number."
            )
        versions = {to for to, _ in known}
        missing = set(range(UNVERSIONED_IS + 1, self.current + 1)) - versions
        wrong = [to for to in versions if type(to) is not int or to <= UNVERSIONED_IS]
        if missing or wrong:
            raise BadInput(
                f"The steps lead to {sorted(versions)}. They must be numbered "
                f"{UNVERSIONED_IS + 1}, {UNVERSIONED_IS + 2}, … without a gap."
            )
        for step in self.steps:
            self._check_nodes(step)
        self.renamed_nodes = any(step.rename_nodes for step in self.steps)

    def upcast(self, stored: Stored) -> Stored:
        """What this code sees of a stored checkpoint. Changes nothing that it is given.

        Raises `NewerState` and `MigrationFailed`.
        """
        if stored.newest_version > self.current:
            raise NewerState(place=stored.place, found=stored.newest_version, current=self.current)
        if stored.oldest_version < self.current:
            graph = self.today(stored.asked_namespace)
            for step in self.steps:
                if step.inside == graph and stored.oldest_version < step.to:
                    stored = _apply(step, stored)
        if stored.namespace != stored.asked_namespace:
            stored = _rehomed(stored)
        return replace(
            stored,
            state_version=self.current,
            writes=[write._replace(state_version=self.current) for write in stored.writes],
        )

    def today(self, namespace: str) -> str:
        """The graph that a namespace belongs to: its nodes by today's names, without task ids."""
        path: list[str] = []
        for segment in namespace.split("|") if namespace else ():
            path.append(self.node_today(segment.partition(":")[0], "|".join(path)))
        return "|".join(path)

    def node_today(self, node: str, graph: str) -> str:
        """The name that a node of a graph has today."""
        for step in self.steps:
            if step.inside == graph:
                node = step.rename_nodes.get(node, node)
        return node

    def _check_nodes(self, step: Step) -> None:
        news = list(step.rename_nodes.values())
        before = {
            old
            for other in self.steps
            if other.inside == step.inside and other.to <= step.to
            for old in other.rename_nodes
        }
        again = [new for new in news if new in before or news.count(new) > 1]
        if again:
            raise BadInput(
                f"Step(to={step.to}) gives a node the name {again[0]!r}, which was the name of "
                "another node before, or is given twice. Choose a name that was never used."
            )


# -- one step ----------------------------------------------------------------------------------


def _apply(step: Step, stored: Stored) -> Stored:
    checkpoint = stored.checkpoint
    if stored.state_version < step.to:
        checkpoint = _checkpoint(step, stored)
    writes = [_write(step, stored, w) if w.state_version < step.to else w for w in stored.writes]
    stored = replace(stored, checkpoint=checkpoint, writes=writes)
    if not step.rename_nodes:
        return stored
    back = {new: old for old, new in step.rename_nodes.items()}
    old = [n for n, write in enumerate(stored.writes) if write.state_version < step.to]
    return _with_tasks(step, stored, stored.namespace, back, old)


def _rehomed(stored: Stored) -> Stored:
    """The same with the task ids of the namespace that was asked for."""
    step = Step(to=0, says="a subgraph whose node was renamed")
    there = replace(stored, namespace=stored.asked_namespace)
    return _with_tasks(step, there, stored.namespace, {}, list(range(len(stored.writes))))


def _with_tasks(
    step: Step, stored: Stored, namespace: str, back: Mapping[str, str], old: Sequence[int]
) -> Stored:
    moved, lost = moved_writes(
        stored.checkpoint,
        [(write.task_id, write.channel, write.value) for write in stored.writes],
        old,
        step=stored.step + 1,
        before=namespace,
        after=stored.namespace,
        back=back,
    )
    if lost is not None:
        raise MigrationFailed(
            place=stored.place,
            step=step,
            found=f"the pending writes of task {lost} belong to a node whose task cannot be told",
            remedy="Let code that knows the old names finish this super-step, then migrate.",
        )
    return replace(
        stored,
        writes=[
            w._replace(task_id=t, value=v) for w, (t, v) in zip(stored.writes, moved, strict=True)
        ],
    )


def _checkpoint(step: Step, stored: Stored) -> dict[str, Any]:
    """The checkpoint after one step: its values, and the bookkeeping that names them."""
    before = stored.checkpoint
    values = before["channel_values"]
    after = _fields(step, stored, values, step.convert)
    begins = set(values) == {INPUT}
    if isinstance(values.get(INPUT), Mapping):
        change = {**step.convert, **step.convert_updates}
        given = _fields(step, stored, values[INPUT], change)
        after[INPUT] = _with_additions(step, stored, given) if begins else given
    if after and not begins:
        after = _with_additions(step, stored, after)
    versions = {
        step.channel(name): version
        for name, version in before["channel_versions"].items()
        if name not in step.drop
    }
    if versions:
        # Lower than any trigger has seen: a value that was added wakes no node, and is kept.
        lowest = min(versions.values())
        versions.update({name: lowest for name in after if name not in versions})
    seen = rename_in_seen(before["versions_seen"], step.rename_nodes, step.channel, step.drop)
    result = {
        **before,
        "channel_values": after,
        "channel_versions": versions,
        "versions_seen": seen,
    }
    if before.get("updated_channels"):
        result["updated_channels"] = sorted(
            step.channel(name) for name in before["updated_channels"] if name not in step.drop
        )
    return result


def _fields(
    step: Step, stored: Stored, values: Mapping[str, Any], convert: Mapping[str, Change]
) -> dict[str, Any]:
    after: dict[str, Any] = {}
    for name, value in values.items():
        if name in step.drop:
            continue
        new = step.channel(name)
        if new != name and new in values:
            if values[new] != value and new not in step.convert:
                raise MigrationFailed(
                    place=stored.place,
                    step=step,
                    found=f"{name!r} and {new!r} are both there, with different values",
                    remedy="Say in update_state which one is right.",
                )
            continue
        after[new] = _converted(step, stored, new, value, convert)
    return after


def _converted(
    step: Step, stored: Stored, name: str, value: Any, convert: Mapping[str, Change]
) -> Any:
    """One value of the state, or one update of it, after a step."""
    if name.startswith(JOIN):
        return rename_in_join(value, step.rename_nodes)
    if name == SENDS:
        packets = value if isinstance(value, list | tuple) else [value]
        moved = [rename_in_send(one, step.rename_nodes, step.convert_sends) for one in packets]
        return type(value)(moved) if isinstance(value, list | tuple) else moved[0]
    if name not in convert:
        return value
    if type(value).__name__ in ("_DeltaSnapshot", "Overwrite") and hasattr(value, "value"):
        return type(value)(_converted(step, stored, name, value.value, convert))
    try:
        new = convert[name](copy.deepcopy(value))  # a history shares its objects
    except Exception as error:
        raise MigrationFailed(
            place=stored.place,
            step=step,
            found=f"converting {name!r} raised {type(error).__name__}: {error}",
            remedy="Mend the step; the stored value is as it was.",
        ) from error
    if new is None and value is not None:
        raise MigrationFailed(
            place=stored.place,
            step=step,
            found=f"converting {name!r} made None of a value",
            remedy="Let the step return a value; to remove a channel, use drop.",
        )
    return new


def _with_additions(step: Step, stored: Stored, values: dict[str, Any]) -> dict[str, Any]:
    for name, make in step.add.items():
        if name not in values:
            values[name] = _converted(step, stored, name, values, {name: make})
    return values


def _write(step: Step, stored: Stored, write: Written) -> Written:
    """One pending write after a step, its task still by the old name."""
    channel = step.channel(write.channel)
    both = channel != write.channel and any(
        (other.task_id, other.channel) == (write.task_id, channel) for other in stored.writes
    )
    if write.channel in step.drop or both:
        # Not left out: a task without writes would run again.
        return write._replace(channel=NO_WRITES, value=None)
    if channel == _SOURCE_OF_ERROR:
        return write._replace(value=step.rename_nodes.get(write.value, write.value))
    change = {**step.convert, **step.convert_updates}
    return write._replace(
        channel=channel, value=_converted(step, stored, channel, write.value, change)
    )
