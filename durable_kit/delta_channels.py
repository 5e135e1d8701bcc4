"""LangGraph's own DeltaChannel on our log.

LangGraph has an answer of its own to states that grow: a `DeltaChannel` is left out of the
checkpoint, and its value is rebuilt from the writes that led there.

    checkpoint 1   messages = snapshot        writes of 1: m4
    checkpoint 2   (no value)                 writes of 2: m5
    checkpoint 3   (no value)                 value at 3 = snapshot + m4 + m5

That makes the *pending writes* of older checkpoints part of the state of newer ones, which no row
says. Two things follow for a saver: it must hand those writes out in the order in which the run
applied them (`history`), and it must not prune a checkpoint whose writes are still needed
(`needed_ancestors`): the channel would silently come back shorter.

A graph on `DeltaSaver` does not need DeltaChannels, the log stores deltas for every channel. One
that has them works all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import CheckpointMetadata, DeltaChannelHistory, PendingWrite

from durable_kit.checkpoint_reading import CheckpointReading
from durable_kit.storage.checkpoint_log import CheckpointLog
from durable_kit.storage.materialize import Entry
from durable_kit.storage.record import Record


def history(
    log: CheckpointLog,
    reading: CheckpointReading,
    thread_id: str,
    namespace: str,
    checkpoint_id: str | None,
    channels: Sequence[str],
) -> Mapping[str, DeltaChannelHistory]:
    """For each channel: its last stored value on the way to a checkpoint (`seed`, if there is
    one), and the writes since, oldest first. The newest checkpoint if `checkpoint_id` is None.

    The checkpoint's own writes belong to the next super-step and are left out.
    """
    writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
    seeds: dict[str, Any] = {}
    remaining = set(channels)
    for entry in _ancestors(log, thread_id, namespace, checkpoint_id) if remaining else ():
        written, values = reading.channels_of(entry, remaining)
        for task_id, channel, value in reversed(written):
            writes[channel].append((task_id, channel, value))
        seeds.update(values)
        remaining -= set(values)
        if not remaining:
            break
    result: dict[str, DeltaChannelHistory] = {}
    for channel in channels:
        result[channel] = {"writes": writes[channel][::-1]}
        if channel in seeds:
            result[channel]["seed"] = seeds[channel]
    return result


def needed_ancestors(
    log: CheckpointLog, kept: Sequence[Entry], metadata_of: Callable[[Record], CheckpointMetadata]
) -> set[str]:
    """Ids of the ancestors that the DeltaChannels of `kept` are rebuilt from.

    The metadata counts, for each such channel, the super-steps since its value was stored.
    """
    needed: set[str] = set()
    for entry in kept:
        record = entry.record
        counters = metadata_of(record).get("counters_since_delta_snapshot") or {}
        missing = {channel for channel, (_, steps) in counters.items() if steps}
        ancestors = _ancestors(log, record.thread_id, record.namespace, record.checkpoint_id)
        while missing and (ancestor := next(ancestors, None)) is not None:
            needed.add(ancestor.record.checkpoint_id)
            missing = {channel for channel in missing if ":" + channel not in ancestor.image}
    return needed


def _ancestors(
    log: CheckpointLog, thread_id: str, namespace: str, checkpoint_id: str | None
) -> Iterator[Entry]:
    """The ancestors of a checkpoint, the nearest first, without itself."""
    if checkpoint_id is None:
        latest = log.read(thread_id, namespace)
        if latest is None:
            return
        checkpoint_id = latest.record.checkpoint_id
    lineage = log.ancestors(thread_id, namespace, checkpoint_id)
    next(lineage, None)
    yield from lineage
