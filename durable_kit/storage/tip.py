"""What changed since the parent.

A delta needs the parent's state. For a thread that is running, the parent is nearly always the
checkpoint stored a moment ago, so a log keeps that state in memory: the `Tip`. Nothing depends on
it being there; a tip that is missing or stale is read again from the chain.

Two ways to find the changes:

- *Exact*: encode the whole new state and compare it with the parent's bytes. Costs encoding the
  history at every step (natively, so 1,000 small dicts take a fraction of a millisecond), and sees
  everything, also an earlier item that a node edited in place.
- *Trusting identity*: items at the start of a list that are the same objects as last time are not
  looked into. Costs what is new. Blind to edits in place until the next snapshot, which compares
  exactly, logs a warning naming the value, and stores the truth.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from durable_kit.errors import UnstorableValue
from durable_kit.storage.delta import Delta, apply, array_header
from durable_kit.storage.fold import Change
from durable_kit.storage.image import CHUNK, Image, Value
from durable_kit.storage.record import ZERO, Head, Record
from durable_kit.storage.tx import Moment

logger = logging.getLogger(__name__)


class StateCodec(Protocol):
    """The named values of a state to bytes and back.

    A list must become a msgpack array of its items' own encodings, so that a longer list starts
    with the bytes of a shorter one. `encode` raises `UnstorableValue`, `decode` `UnloadableValue`.
    """

    def encode(self, name: str, value: Any) -> bytes: ...

    def decode(self, name: str, *parts: bytes | memoryview) -> Any: ...


@dataclass(slots=True)
class Tip:
    """The state of one checkpoint, kept to write the next delta against.

    `delta_bytes`: what the deltas since the last snapshot brought. `sources`: blobs of the
    checkpoint's pending writes, as (sequence, ordinal, blob): the next delta's new bytes are
    likely to lie there. `last_write`: the checksum of the newest of them. `objects`: the list
    items last seen, for trusting identity. `expected`: what a call of put_writes that is under way
    will add to `sources`, if nothing comes between. `head`: the log's head at the moment `left`,
    the end of the transaction that this tip comes from (see `Tx.moments`). `taken`: a call of put
    makes the next delta against it. Buffers grow in place, so two must not at the same time.
    """

    sequence: int
    checkpoint_id: str
    checksum: bytes
    depth: int
    delta_bytes: int
    image: Image
    sources: list[tuple[int, int, bytes]] = field(default_factory=list)
    last_write: bytes = ZERO
    objects: dict[str, list[Any]] = field(default_factory=dict)
    expected: tuple[int, int, bytes] | None = None
    head: Head | None = None
    left: Moment | None = None
    taken: bool = False

    @classmethod
    def of(
        cls,
        record: Record,
        delta_bytes: int,
        image: Image,
        *,
        objects: dict[str, list[Any]] | None = None,
    ) -> Tip:
        """The tip that a record leaves whose state is `image`."""
        return cls(
            record.sequence,
            record.checkpoint_id,
            record.checksum,
            record.depth,
            delta_bytes,
            image,
            objects=objects or {},
        )

    def withdraw(self, before: Tip) -> None:
        """Give back what this tip has added to the buffers of `before`: it is not to be."""
        for name, value in self.image.items():
            if name in before.image:
                value.withdraw(before.image[name])


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes that lead from a tip to a new state, and the list items seen on the way."""

    changes: list[Change]
    objects: dict[str, list[Any]]
    unchanged: Collection[str] = ()

    @property
    def new_bytes(self) -> int:
        return sum(len(change.delta.new) + 4 for change in self.changes if change.delta)


def plan(
    tip: Tip | None,
    state: Mapping[str, Any],
    codec: StateCodec,
    *,
    trust_identity: bool,
    unchanged: Collection[str] = (),
) -> Plan:
    """The changes from `tip` (or from nothing) to `state`.

    `unchanged`: names whose value the caller knows to be the tip's; they are not looked at.

    Raises `UnstorableValue` with the path of what could not come back equal.
    """
    image = tip.image if tip is not None else {}
    changes: list[Change] = []
    objects: dict[str, list[Any]] = {}
    for name, value in state.items():
        if name in unchanged and name in image:
            continue
        if trust_identity and type(value) is list:
            objects[name] = value[:]
            seen = tip.objects.get(name) if tip is not None and name in image else None
            if seen is not None and _starts_with(value, seen):
                if len(value) > len(seen):
                    changes.append(_appended(name, value, len(seen), codec))
                continue
        before = image.get(name)
        if type(value) is list and before is not None and before.length > CHUNK:
            items = value[:]  # the run may go on with the list itself
            if _begins_with(name, items, before, codec):
                if len(items) > before.items:
                    changes.append(_appended(name, items, before.items, codec))
                continue
        encoded = codec.encode(name, value)
        delta = Delta("set", encoded) if before is None else before.change_to(encoded)
        if delta is not None:
            parts = None
            if delta.op == "append" and delta.items > 1:
                parts = _parts(name, value[-delta.items :], codec)
            changes.append(Change(name, delta, parts))
    changes.extend(Change(name, None) for name in image if name not in state)
    return Plan(changes, objects, unchanged)


def plan_snapshot(
    tip: Tip | None, trusting: Plan, state: Mapping[str, Any], codec: StateCodec
) -> Plan:
    """The exact changes, where `trusting` was found by identity; says what identity had missed."""
    exact = plan(tip, state, codec, trust_identity=False, unchanged=trusting.unchanged)
    believed = {change.name: change.delta for change in trusting.changes}
    for change in exact.changes:
        if change.name in trusting.objects and not _same(tip, change, believed.get(change.name)):
            logger.warning(
                "value %r: an item was edited in place since the last snapshot, which "
                "trust_identity=True did not notice. This snapshot stores the value as it is now; "
                "checkpoints since the last one hold the older item.",
                change.name,
            )
    return Plan(exact.changes, trusting.objects)


def _same(tip: Tip | None, change: Change, believed: Delta | None) -> bool:
    """Do both deltas lead to the same value? A small list has more than one way to say it."""
    before = tip.image.get(change.name) if tip is not None else None
    if before is None or change.delta is None or believed is None:
        return change.delta == believed
    encoded = before.encoded()
    return apply(encoded, change.delta) == apply(encoded, believed)


def _starts_with(value: list[Any], seen: list[Any]) -> bool:
    return len(value) >= len(seen) and not any(map(operator.is_not, seen, value))


def _begins_with(name: str, items: list[Any], before: Value, codec: StateCodec) -> bool:
    """Whether `items` begin with all items of `before`, looked at piece by piece.

    Encoding a long history in one piece means new memory at each step, and touching it for the
    first time costs more than the encoding. A False is no verdict: the whole value decides.
    """
    if before.shape != "list" or len(items) < before.items:
        return False
    at, step = 0, max(1, before.items * CHUNK // before.length)
    for start in range(0, before.items, step):
        try:
            encoded = codec.encode(name, items[start : min(start + step, before.items)])
        except UnstorableValue:
            return False
        header = array_header(encoded)
        if header is None or not before.has(encoded[header[1] :], at):
            return False
        at += len(encoded) - header[1]
    return at == before.length


def _appended(name: str, value: list[Any], at: int, codec: StateCodec) -> Change:
    new = value[at:]
    try:
        encoded = codec.encode(name, new)
    except UnstorableValue:
        codec.encode(name, value)  # raises again, with the item's place in the list
        raise
    header = array_header(encoded)
    assert header is not None
    delta = Delta("append", encoded[header[1] :], items=len(new))
    return Change(name, delta, _parts(name, new, codec) if len(new) > 1 else None)


def _parts(name: str, items: list[Any], codec: StateCodec) -> Callable[[], list[bytes]]:
    def parts() -> list[bytes]:
        encoded = [codec.encode(name, [item]) for item in items]
        return [one[1:] for one in encoded]  # without the header of a list of one

    return parts
