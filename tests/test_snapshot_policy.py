"""When a full snapshot is worth writing: bad limits refused, and the bytes it comes to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_kit.errors import BadInput
from durable_kit.storage.snapshot_policy import Chain, EveryN, SizeRatio, SnapshotPolicy

STEPS = 10_000
NO_BOUND = 10**9  # a max_depth that never speaks


@dataclass(frozen=True, slots=True)
class Growth:
    """What a state that grew by one message a step has cost."""

    data_bytes: int
    snapshot_bytes: int
    snapshots: int
    deepest: int


def everything(messages: int, message_bytes: int) -> int:
    """The size of a snapshot that writes every message out."""
    return messages * message_bytes


def addresses(messages: int, message_bytes: int) -> int:
    """The size of a snapshot that lists where each message lies."""
    return messages * min(5, message_bytes)


def grow(
    policy: SnapshotPolicy,
    *,
    message_bytes: int,
    steps: int = STEPS,
    size_of: Callable[[int, int], int] = everything,
) -> Growth:
    """Ask `policy` at each step, as a log does, and add up what it decides."""
    snapshot_bytes, snapshots, depth, delta_bytes, deepest = 0, 0, 0, 0, 0
    for step in range(1, steps + 1):
        depth += 1
        delta_bytes += message_bytes
        size = size_of(step, message_bytes)
        if policy.wants_snapshot(Chain(depth, delta_bytes, size)):
            snapshot_bytes += size
            snapshots += 1
            depth = delta_bytes = 0
        deepest = max(deepest, depth)
    return Growth(steps * message_bytes, snapshot_bytes, snapshots, deepest)


# ------------------------------------------------------------------------ bytes


@pytest.mark.parametrize("message_bytes", [1, 40, 490, 5_000])
@pytest.mark.parametrize("ratio", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("size_of", [everything, addresses])
def test_size_ratio_keeps_all_snapshots_together_within_one_part_of_the_data(
    message_bytes: int, ratio: float, size_of: Callable[[int, int], int]
) -> None:
    policy = SizeRatio(ratio, max_depth=NO_BOUND)
    growth = grow(policy, message_bytes=message_bytes, size_of=size_of)
    assert growth.snapshot_bytes <= growth.data_bytes / ratio
    assert growth.snapshots > 0 or (ratio > 1 and size_of(1, message_bytes) == message_bytes)


@given(st.lists(st.integers(1, 50_000), max_size=200), st.floats(0.1, 50))
def test_the_bound_holds_for_messages_of_any_sizes(sizes: list[int], ratio: float) -> None:
    policy = SizeRatio(ratio, max_depth=NO_BOUND)
    total = snapshot_bytes = delta_bytes = 0
    for depth, size in enumerate(sizes, 1):
        total += size
        delta_bytes += size
        if policy.wants_snapshot(Chain(depth, delta_bytes, total)):
            snapshot_bytes += total
            delta_bytes = 0
    assert snapshot_bytes <= total / ratio + 1e-6


def test_every_n_is_quadratic_in_the_same_growth() -> None:
    short = grow(EveryN(100), message_bytes=490, steps=1_000)
    long = grow(EveryN(100), message_bytes=490, steps=10_000)
    exponent = math.log10(long.snapshot_bytes / short.snapshot_bytes)
    assert exponent > 1.9
    assert long.snapshot_bytes == 505_000 * 490  # the sum in the module's docstring
    assert long.snapshot_bytes > 50 * long.data_bytes


def test_size_ratio_is_linear_in_it() -> None:
    short = grow(SizeRatio(), message_bytes=490, steps=1_000, size_of=addresses)
    long = grow(SizeRatio(), message_bytes=490, steps=10_000, size_of=addresses)
    assert short.snapshot_bytes <= short.data_bytes / 8
    assert long.snapshot_bytes <= long.data_bytes / 8


def test_a_larger_interval_only_divides_the_constant() -> None:
    every_100 = grow(EveryN(100), message_bytes=490)
    every_1000 = grow(EveryN(1000), message_bytes=490)
    assert every_100.snapshot_bytes > 9 * every_1000.snapshot_bytes > every_1000.data_bytes


# ------------------------------------------------------------------------ depth


def test_every_n_writes_each_nth_checkpoint_as_a_snapshot() -> None:
    assert grow(EveryN(10), message_bytes=1, steps=1000).deepest == 9
    assert grow(EveryN(10), message_bytes=1, steps=1000).snapshots == 100
    assert grow(EveryN(1), message_bytes=1, steps=50).snapshots == 50


def test_max_depth_bounds_the_fold_where_deltas_are_tiny_beside_the_state() -> None:
    policy = SizeRatio(max_depth=300)
    deltas = [policy.wants_snapshot(Chain(depth, depth, 10**9)) for depth in range(1, 302)]
    assert deltas == [False] * 300 + [True]
    assert grow(SizeRatio(max_depth=300), message_bytes=10).deepest <= 300


def test_beyond_max_depth_size_ratio_costs_what_every_n_costs() -> None:
    bounded = grow(SizeRatio(max_depth=100), message_bytes=490)
    every_n = grow(EveryN(101), message_bytes=490)
    assert bounded.snapshot_bytes == pytest.approx(every_n.snapshot_bytes, rel=0.02)


def test_a_higher_ratio_writes_fewer_snapshots() -> None:
    rare = grow(SizeRatio(20.0), message_bytes=490, size_of=addresses)
    often = grow(SizeRatio(1.0), message_bytes=490, size_of=addresses)
    assert rare.snapshots <= often.snapshots
    assert rare.snapshot_bytes < often.snapshot_bytes


# ------------------------------------------------------------------------ bad limits


@pytest.mark.parametrize("n", [0, -1, True, False, None, 2.0, "10", math.nan, math.inf])
def test_every_n_refuses_what_is_no_count(n: Any) -> None:
    with pytest.raises(BadInput, match=r"EveryN: n is .*at least 1"):
        EveryN(n)


@pytest.mark.parametrize(
    "ratio", [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf, True, False, None, "8", 8j]
)
def test_size_ratio_refuses_what_is_no_ratio(ratio: Any) -> None:
    with pytest.raises(BadInput, match=r"SizeRatio: ratio is .*above 0"):
        SizeRatio(ratio)


@pytest.mark.parametrize("max_depth", [0, -1, True, None, 10.0, math.nan, "10"])
def test_size_ratio_refuses_what_is_no_depth(max_depth: Any) -> None:
    with pytest.raises(BadInput, match=r"SizeRatio: max_depth is .*at least 1"):
        SizeRatio(max_depth=max_depth)


def test_huge_limits_are_limits() -> None:
    assert not SizeRatio(10**400, max_depth=10**400).wants_snapshot(Chain(10**6, 10**9, 1))
    assert not EveryN(10**400).wants_snapshot(Chain(10**6, 1, 1))


def test_policies_are_values() -> None:
    assert SizeRatio() == SizeRatio(32.0, max_depth=1000, self_contained=False)
    assert EveryN(10) == EveryN(10) != EveryN(10, self_contained=True)
    with pytest.raises(AttributeError):
        EveryN(10).n = 0  # type: ignore[misc]
