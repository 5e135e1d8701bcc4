"""LangGraph's checkpoint as a dict of values that deltas suit.

A checkpoint is more than its channels: which version each channel has, which versions each node
has seen, which channels changed, an id and a time. For a small message that bookkeeping is larger
than the message, and as nested dicts nearly all of it is names that never change:

    channel_versions  {"messages": 7, "branch:to:agent": 7}
    versions_seen     {"agent": {"branch:to:agent": 6}}

So names and numbers are kept apart: `names` changes about once, `clock` is a short list of
numbers.

`to_state` and `from_state` are each other's inverse. Channels are stored under ":" and their
name, the bookkeeping under names of its own. A pending write has the state_version of the code
that made it before the ":", if that is not the first: it may be another than its checkpoint's.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import EXCLUDED_METADATA_KEYS, Checkpoint, CheckpointMetadata

from durable_kit.errors import BadInput, UnloadableValue

FIRST_STATE_VERSION = 1
_KNOWN = frozenset("v ts id channel_values channel_versions versions_seen updated_channels".split())
_THE_NEWEST, _ABSENT = True, False  # what may stand in the clock in place of updated_channels
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_USUAL_METADATA = ("source", "step", "parents")


def path_of(name: str) -> str:
    """How an error names the stored value `name`: a channel as the graph's author knows it."""
    _, colon, channel = name.partition(":")
    return f"state[{channel!r}]" if colon else f"checkpoint[{name!r}]"


def write_mark(state_version: int) -> str:
    """What the name of a pending write begins with."""
    return ":" if state_version == FIRST_STATE_VERSION else f"{state_version}:"


def split_write_name(name: str) -> tuple[int, str]:
    """The state_version and the channel of a pending write."""
    version, _, channel = name.partition(":")
    return int(version) if version else FIRST_STATE_VERSION, channel


def to_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """The values to store for a checkpoint."""
    versions = checkpoint["channel_versions"]
    seen = checkpoint["versions_seen"]
    state: dict[str, Any] = {
        ":" + channel: value for channel, value in checkpoint["channel_values"].items()
    }
    state["names"] = [
        list(versions),
        [[node, list(channels)] for node, channels in seen.items()],
    ]
    state["clock"] = [
        checkpoint["v"],
        list(versions.values()),
        [version for channels in seen.values() for version in channels.values()],
        _packed_updated(checkpoint, versions),
        _packed_time(checkpoint["ts"]),
    ]
    rest = {key: value for key, value in checkpoint.items() if key not in _KNOWN}
    if rest:
        state["rest"] = rest
    return state


def from_state(checkpoint_id: str, state: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint that `to_state` was given."""
    try:
        channel_names, nodes = state["names"]
        v, numbers, seen_numbers, updated, ts = state["clock"]
        versions = dict(zip(channel_names, numbers, strict=True))
        seen_versions = iter(seen_numbers)
        seen = {
            node: {channel: next(seen_versions) for channel in channels} for node, channels in nodes
        }
        checkpoint = {
            "v": v,
            "id": checkpoint_id,
            "ts": _unpacked_time(ts),
            "channel_values": {
                name[1:]: value for name, value in state.items() if name.startswith(":")
            },
            "channel_versions": versions,
            "versions_seen": seen,
            "updated_channels": _newest(versions) if updated is _THE_NEWEST else updated,
            **state.get("rest", {}),
        }
        if updated is _ABSENT:
            del checkpoint["updated_channels"]
        if next(seen_versions, None) is not None:
            raise ValueError("more versions were seen than there are names")
    except (KeyError, TypeError, ValueError, OverflowError, StopIteration) as error:
        raise UnloadableValue(
            class_name="Checkpoint",
            reason=f"the stored values do not form one ({error!r})",
            remedy="Was it written by a log that is not DeltaSaver's?",
            where=f"checkpoint {checkpoint_id}",
        ) from error
    return cast(Checkpoint, checkpoint)


def merged_metadata(config: RunnableConfig, metadata: CheckpointMetadata) -> dict[str, Any]:
    """The metadata to store: what LangGraph passes, and the plain values of the run's config.

    The same rule as LangGraph's own savers follow, except that NUL characters are kept. A config
    may hold an enum that is also a str or an int; its plain value is kept, as they keep it.
    """
    merged: dict[str, Any] = dict(metadata)
    for source in (config.get("metadata"), config.get("configurable")):
        for key, value in (source or {}).items():
            if (
                key not in merged
                and key not in EXCLUDED_METADATA_KEYS
                and not key.startswith("__")
                and (plain := _plain(value)) is not None
            ):
                merged[key] = plain
    return merged


def pack_metadata(
    metadata: Mapping[str, Any], position: list[Any] | None = None
) -> list[Any] | dict[str, Any]:
    """Metadata without the three key names that all of it shares; with it, where the thread stands.

    Metadata of another form goes without a position: whoever wants it reads the state.
    """
    if tuple(metadata)[:3] != _USUAL_METADATA:
        return dict(metadata)
    rest = {key: value for key, value in metadata.items() if key not in _USUAL_METADATA}
    more = [rest, position] if position is not None else [rest] if rest else []
    return [*(metadata[key] for key in _USUAL_METADATA), *more]


def packed_position(packed: Any) -> list[Any] | None:
    """The position that `pack_metadata` was given."""
    return packed[4] if isinstance(packed, list) and len(packed) == 5 else None


def unpack_metadata(packed: list[Any] | dict[str, Any]) -> CheckpointMetadata:
    """The inverse of `pack_metadata`."""
    if isinstance(packed, dict):
        return cast(CheckpointMetadata, packed)
    if len(packed) < len(_USUAL_METADATA):
        raise ValueError("not the metadata of a checkpoint")
    rest = packed[3] if len(packed) > 3 else {}
    return cast(CheckpointMetadata, {**dict(zip(_USUAL_METADATA, packed, strict=False)), **rest})


def _plain(value: object) -> str | int | float | None:
    """A str, int, float or bool without the class it was dressed in; None for anything else."""
    if isinstance(value, str):
        return str.__str__(value)  # str() of an enum would be its name
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else None


def _newest(versions: Mapping[str, Any]) -> list[str] | None:
    """The channels with the highest version: nearly always those that the step updated."""
    numbers = list(versions.values())
    if not numbers or not all(type(number) is int for number in numbers):
        return None
    highest = max(numbers)
    return sorted(channel for channel, number in versions.items() if number == highest)


def _packed_updated(checkpoint: Checkpoint, versions: Mapping[str, Any]) -> Any:
    """`updated_channels`, in one byte where it is what `_newest` says or is not there at all."""
    updated = checkpoint.get("updated_channels", _ABSENT)
    return _THE_NEWEST if updated and updated == _newest(versions) else updated


def _packed_time(text: str) -> int | str:
    """Microseconds since the epoch, where the text can be made from them again."""
    try:
        micros = (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND
        return micros if _unpacked_time(micros) == text else text
    except (ValueError, TypeError, OverflowError):
        return text


def _unpacked_time(packed: int | str) -> str:
    if isinstance(packed, str):
        return packed
    return (_EPOCH + packed * _MICROSECOND).isoformat()


def log_of(config: RunnableConfig) -> tuple[str, str]:
    """(thread id, namespace) of a config."""
    configurable = config["configurable"]
    if "thread_id" not in configurable:
        raise BadInput('The config has no thread_id. Pass {"configurable": {"thread_id": "…"}}.')
    return str(configurable["thread_id"]), str(configurable.get("checkpoint_ns") or "")


def config_of(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint_id,
        }
    }
