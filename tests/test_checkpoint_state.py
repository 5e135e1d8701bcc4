"""LangGraph's checkpoint to values and back: nothing added, nothing lost, and little said twice."""

from __future__ import annotations

import enum
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langgraph.checkpoint.base import empty_checkpoint, get_checkpoint_metadata

from durable_kit.checkpoint_state import (
    from_state,
    merged_metadata,
    pack_metadata,
    path_of,
    to_state,
    unpack_metadata,
)
from durable_kit.errors import UnloadableValue
from durable_kit.storage.codec import Codec
from durable_kit.storage.delta import diff
from durable_kit.storage.same import same

CODEC = Codec()


def through_storage(checkpoint: dict[str, Any]) -> Any:
    """The checkpoint as it is read: its values encoded one by one, and decoded again."""
    state = to_state(checkpoint)  # type: ignore[arg-type]
    stored = {name: CODEC.encode(value) for name, value in state.items()}
    decoded = {name: CODEC.decode(data) for name, data in stored.items()}
    return from_state(checkpoint["id"], decoded)


def checkpoint_with(**fields: Any) -> dict[str, Any]:
    usual = {
        "v": 4,
        "ts": "2026-11-29T18:30:00.123456+00:00",
        "id": "1ef4f797-8335-6428-8001-8a1503f9b875",
        "channel_values": {"messages": ["hello"], "n": 1},
        "channel_versions": {"__start__": 2, "messages": 3, "n": 3, "branch:to:agent": 3},
        "versions_seen": {"__input__": {}, "agent": {"branch:to:agent": 2}},
        "updated_channels": ["branch:to:agent", "messages", "n"],
    }
    return usual | fields


# ------------------------------------------------------------------------ there and back

names = st.one_of(st.text(max_size=5), st.sampled_from(["messages", "rest", "clock", "names", ":"]))
versions = st.one_of(
    st.integers(0, 5),
    st.integers(-(2**70), 2**70),
    st.text(max_size=4),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
)
values = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.integers()))
moments = st.datetimes(timezones=st.just(UTC))
odd_times = [
    "2026-11-29T18:30:00+00:00",
    "2026-11-29T18:30:00.5+00:00",
    "2026-11-29T18:30:00.123456Z",
    "2026-11-29T18:30:00.123456+02:00",
    "2026-11-29T18:30:00.123456",
    "2026-11-29 18:30:00.123456+00:00",
    "2026-11-29",
    "1969-12-31T23:59:59.999999+00:00",
    "0001-01-01T00:00:00+00:00",
    "9999-12-31T23:59:59.999999+00:00",
    "0001-01-01T00:00:00+23:59",
    "20261129T183000Z",
    "yesterday",
    "",
]
times = st.one_of(
    moments.map(datetime.isoformat),
    st.datetimes(timezones=st.just(timezone(timedelta(hours=-9.5)))).map(datetime.isoformat),
    st.sampled_from(odd_times),
    st.text(max_size=10),
)
checkpoints = st.fixed_dictionaries(
    {
        "v": st.one_of(st.integers(1, 4), st.none(), st.text(max_size=2)),
        "ts": times,
        "id": st.text(max_size=8),
        "channel_values": st.dictionaries(names, values, max_size=4),
        "channel_versions": st.dictionaries(names, versions, max_size=4),
        "versions_seen": st.dictionaries(
            names, st.dictionaries(names, versions, max_size=3), max_size=3
        ),
    },
    optional={
        "updated_channels": st.one_of(st.none(), st.lists(names, max_size=4)),
        "pending_sends": st.lists(values, max_size=2),
        "rest": values,
        "of a later release": values,
    },
)


@given(checkpoints)
@example(checkpoint_with())
@example(checkpoint_with(channel_versions={}, updated_channels=[]))
@example(checkpoint_with(channel_versions={"a": 1, "b": True}, updated_channels=["a", "b"]))
@example(checkpoint_with(channel_versions={"a": 1.0, "b": 1}, updated_channels=["b"]))
@example(checkpoint_with(channel_versions={"b": 1, "a": 1}, updated_channels=["a", "b"]))
@example(checkpoint_with(channel_versions={"b": 1, "a": 1}, updated_channels=["b", "a"]))
def test_a_checkpoint_comes_back_as_it_was(checkpoint: dict[str, Any]) -> None:
    loaded = through_storage(checkpoint)
    assert set(loaded) == set(checkpoint)
    for key, value in checkpoint.items():
        assert same(loaded[key], value), key
        assert CODEC.encode(loaded[key]) == CODEC.encode(value), key  # the order of keys as well


@given(checkpoints)
def test_making_the_state_of_a_checkpoint_leaves_it_alone(checkpoint: dict[str, Any]) -> None:
    before = CODEC.encode(checkpoint)
    to_state(checkpoint)  # type: ignore[arg-type]
    assert CODEC.encode(checkpoint) == before


@pytest.mark.parametrize("ts", odd_times)
def test_every_timestamp_comes_back_to_the_letter(ts: str) -> None:
    assert through_storage(checkpoint_with(ts=ts))["ts"] == ts


def test_a_checkpoint_of_langgraph_itself_comes_back() -> None:
    checkpoint: Any = empty_checkpoint()
    assert "pending_sends" in checkpoint
    assert through_storage(checkpoint) == checkpoint


def test_updated_channels_that_are_missing_none_and_empty_are_three_things() -> None:
    missing = checkpoint_with()
    del missing["updated_channels"]
    assert "updated_channels" not in through_storage(missing)
    assert through_storage(checkpoint_with(updated_channels=None))["updated_channels"] is None
    assert through_storage(checkpoint_with(updated_channels=[]))["updated_channels"] == []


def test_a_channel_may_have_the_name_of_the_bookkeeping() -> None:
    values = {"names": 1, "clock": 2, "rest": 3, ":x": 4, "": 5}
    assert through_storage(checkpoint_with(channel_values=values))["channel_values"] == values


# ------------------------------------------------------------------------ what a step costs


def test_the_bookkeeping_of_a_usual_step_is_some_thirty_bytes() -> None:
    before = to_state(checkpoint_with())  # type: ignore[arg-type]
    after = to_state(
        checkpoint_with(  # type: ignore[arg-type]
            ts="2026-11-29T18:30:01.654321+00:00",
            channel_versions={"__start__": 2, "messages": 4, "n": 3, "branch:to:agent": 4},
            versions_seen={"__input__": {}, "agent": {"branch:to:agent": 3}},
            updated_channels=["branch:to:agent", "messages"],
        )
    )
    changed = 0
    for name in ("names", "clock"):
        delta = diff(CODEC.encode(before[name]), CODEC.encode(after[name]))
        changed += 0 if delta is None else len(delta.new)
    assert 0 < changed < 30


def test_usual_timestamps_and_updated_channels_are_numbers() -> None:
    *_, updated, ts = to_state(checkpoint_with())["clock"]  # type: ignore[arg-type]
    assert updated is True
    assert ts == 1_795_977_000_123_456


# ------------------------------------------------------------------------ what is not a checkpoint


@pytest.mark.parametrize(
    "damage",
    [
        {"clock": None},
        {"names": None},
        {"clock": [4, [2], [], None, ""]},  # fewer versions than channels
        {"clock": [4, [2, 3, 3, 3, 3], [2], None, ""]},
        {"clock": [4, [2, 3, 3, 3], [], None, ""]},  # fewer versions seen than names
        {"clock": [4, [2, 3, 3, 3], [2, 2], None, ""]},
        {"clock": [4, [2, 3, 3, 3], [2], None]},
        {"clock": [4, [2, 3, 3, 3], [2], None, None]},
        {"clock": [4, [2, 3, 3, 3], [2], None, 10**30]},
        {"names": [["a", "b", "c", "d"], [["node"]]]},
        {"rest": 5},
    ],
)
def test_values_that_form_no_checkpoint_are_refused(damage: dict[str, Any]) -> None:
    state = to_state(checkpoint_with()) | damage  # type: ignore[arg-type]
    with pytest.raises(UnloadableValue, match="checkpoint c-1: Checkpoint cannot be loaded"):
        from_state("c-1", state)


def test_a_missing_value_is_refused() -> None:
    for name in ("names", "clock"):
        state = to_state(checkpoint_with())  # type: ignore[arg-type]
        del state[name]
        with pytest.raises(UnloadableValue):
            from_state("c-1", state)


def test_paths_name_channels_as_the_author_of_the_graph_knows_them() -> None:
    assert path_of(":messages") == "state['messages']"
    assert path_of("rest") == "checkpoint['rest']"


# ------------------------------------------------------------------------ metadata

metadata = st.one_of(
    st.dictionaries(st.text(max_size=5), values, max_size=5),
    st.fixed_dictionaries(
        {"source": st.sampled_from(["input", "loop", "update", "fork"]), "step": st.integers()},
        optional={"parents": st.dictionaries(names, names, max_size=2), "run_id": st.text()},
    ),
)


@given(metadata)
@example({})
@example({"source": "loop", "step": 1, "parents": {}})
@example({"source": "loop", "step": 1, "parents": {}, "run_id": "r", "a": None})
@example({"source": "loop", "step": 1})
@example({"step": 1, "source": "loop", "parents": {}})
@example({"x": 0, "source": "loop", "step": 1, "parents": {}})
@example({"source": None, "step": None, "parents": None, "rest": []})
def test_metadata_comes_back_as_it_was(value: dict[str, Any]) -> None:
    packed = CODEC.decode(CODEC.encode(pack_metadata(value)))
    assert same(unpack_metadata(packed), value)
    assert list(unpack_metadata(packed)) == list(value)


def test_usual_metadata_is_stored_without_its_names() -> None:
    assert pack_metadata({"source": "loop", "step": 1, "parents": {}}) == ["loop", 1, {}]


class Mode(enum.StrEnum):
    FAST = "fast"


class Level(enum.IntEnum):
    HIGH = 3


class Sort(str, enum.Enum):  # noqa: UP042 - str() of one is "Sort.SWIFT"
    SWIFT = "swift"


def test_metadata_is_merged_as_langgraphs_own_savers_do() -> None:
    config: Any = {
        "metadata": {"user": "u", "step": 99, "nested": {"a": 1}, "nothing": None, "__x": 1},
        "configurable": {
            "thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "c", "__pregel_x": 1,
            "user": "other", "temperature": 0.5, "dry_run": True, "tools": ["a"],
        },
    }  # fmt: skip
    given_metadata: Any = {"source": "loop", "step": 1, "parents": {}, "run_id": "r"}
    merged = merged_metadata(config, given_metadata)
    assert merged == get_checkpoint_metadata(config, given_metadata)
    assert list(merged) == [
        "source", "step", "parents", "run_id", "user", "temperature", "dry_run",
    ]  # fmt: skip
    assert given_metadata == {"source": "loop", "step": 1, "parents": {}, "run_id": "r"}
    assert merged_metadata({}, given_metadata) == given_metadata


def test_an_enum_in_a_config_is_stored_as_its_plain_value() -> None:
    config: Any = {"configurable": {"mode": Mode.FAST, "level": Level.HIGH, "sort": Sort.SWIFT}}
    merged = merged_metadata(config, {})
    assert merged == {"mode": "fast", "level": 3, "sort": "swift"}
    assert [type(value) for value in merged.values()] == [str, int, str]


def test_nul_characters_in_metadata_are_kept() -> None:
    merged = merged_metadata({"metadata": {"text": "a\0b"}}, {"source": "in\0put"})  # type: ignore[typeddict-item]
    assert merged == {"source": "in\0put", "text": "a\0b"}
