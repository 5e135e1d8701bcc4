"""The model on paper beside the real log: the same snapshots, the same depths, about the bytes."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from durable_kit import Codec, Database, DeltaSaver, EveryN, SizeRatio
from durable_kit.lab.growth_model import LANGGRAPH, GrowthRequest, policy_of, simulate
from durable_kit.lab.workloads import replay_conversation
from durable_kit.storage.checkpoint_log import CheckpointLog
from durable_kit.storage.writes_log import Write

STEPS, ITEM_BYTES = 220, 60
POLICIES = [
    EveryN(1),
    EveryN(7),
    EveryN(50),
    SizeRatio(),
    SizeRatio(1.5),
    SizeRatio(max_depth=30),
    EveryN(20, self_contained=True),
    SizeRatio(0.5, self_contained=True),
]


class PlainCodec:
    """The codec without the names of channels."""

    def __init__(self) -> None:
        self._codec = Codec()

    def encode(self, name: str, value: Any) -> bytes:
        return self._codec.encode(value)

    def decode(self, name: str, data: bytes) -> Any:
        return self._codec.decode(data)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_the_model_takes_the_snapshots_that_the_real_log_takes(policy: Any, tmp_path: Path) -> None:
    item = "x" * (ITEM_BYTES - 2)
    depths: list[int] = []
    with Database.open(f"sqlite:///{tmp_path / 'log.db'}", synchronous="OFF") as database:
        log = CheckpointLog(database, PlainCodec(), policy=policy)
        for n in range(STEPS):
            parent = f"{n - 1:06d}" if n else None
            if parent is not None:
                log.append_writes(
                    thread_id="t",
                    namespace="",
                    checkpoint_id=parent,
                    task_id="task",
                    task_path="",
                    writes=[Write(0, "messages", item)],
                )
            record = log.append(
                thread_id="t",
                namespace="",
                checkpoint_id=f"{n:06d}",
                parent_id=parent,
                state={"messages": [item] * (n + 1)},
                metadata={},
            )
            depths.append(record.depth)
    model = simulate(GrowthRequest(STEPS, ITEM_BYTES, policy))
    assert list(model.depths) == depths
    assert list(model.snapshots) == [n for n, depth in enumerate(depths, start=1) if depth == 0]


class WritesFirst(DeltaSaver):
    """A put waits for the writes on its parent, which LangGraph hands over in another OS thread.

    One that overtakes them stores the message itself, which makes the next snapshot larger than the
    model says. That is the race of two threads, not the policy.
    """

    written: ClassVar[set[str]] = set()

    def put_writes(self, config: Any, *arguments: Any, **more: Any) -> None:
        super().put_writes(config, *arguments, **more)
        self.written.add(config["configurable"]["checkpoint_id"])

    def put(self, config: Any, *arguments: Any, **more: Any) -> Any:
        deadline = time.monotonic() + 2.0
        parent = config["configurable"].get("checkpoint_id")
        while parent and parent not in self.written and time.monotonic() < deadline:
            time.sleep(0.0002)
        return super().put(config, *arguments, **more)


@pytest.mark.parametrize(
    ("policy", "tolerance"),
    [
        (SizeRatio(), 0.1),
        (SizeRatio(8), 0.1),
        (EveryN(50), 0.0),
        (EveryN(7), 0.0),
        (SizeRatio(0.5, self_contained=True), 0.2),  # each interval multiplies the error before
    ],
    ids=repr,
)
def test_the_model_takes_about_the_snapshots_of_a_langgraph_run(
    policy: Any, tolerance: float, tmp_path: Path
) -> None:
    """400 messages, the panel's default. EveryN is exact, SizeRatio is within the tolerance."""
    messages = [{"role": "user", "content": f"{n:04d}" + "x" * 350} for n in range(400)]
    with WritesFirst.open(f"sqlite:///{tmp_path / 'kit.db'}", policy=policy) as saver:
        replay_conversation(saver, messages, thread_id="t")
        depths = [record.depth for record in saver.records("t")]
    size = len(Codec().encode(messages[0]))
    model = simulate(GrowthRequest(400, size, policy, bookkeeping=LANGGRAPH))
    assert len(depths) == 400 + LANGGRAPH.opening_records
    assert len(model.snapshots) == pytest.approx(depths.count(0), rel=tolerance)
    assert model.max_replay_depth == pytest.approx(max(depths), rel=tolerance)


@pytest.mark.parametrize(
    "policy", [SizeRatio(), EveryN(50), EveryN(25, self_contained=True)], ids=repr
)
def test_the_modelled_bytes_are_near_a_real_database(policy: Any, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": f"{n:04d}" + "x" * 300} for n in range(300)]
    file = tmp_path / "kit.db"
    with DeltaSaver.open(f"sqlite:///{file}", policy=policy) as saver:
        replay_conversation(saver, messages, thread_id="t")
    size = len(Codec().encode(messages[0]))
    model = simulate(GrowthRequest(300, size, policy, bookkeeping=LANGGRAPH))
    assert model.log_bytes[-1] == pytest.approx(file.stat().st_size, rel=0.15)


def test_a_saver_of_whole_states_writes_the_sum_of_all_states() -> None:
    model = simulate(GrowthRequest(3000, 490, SizeRatio()))
    assert model.whole_state_bytes[-1] == pytest.approx(3000 * 3001 / 2 * 490, rel=0.01)
    assert all(a <= b for a, b in pairwise(model.log_bytes))


def test_the_two_controls_make_a_policy() -> None:
    assert policy_of("EveryN", 49.6, self_contained=False) == EveryN(50)
    assert policy_of("SizeRatio", 0.5, self_contained=True) == SizeRatio(0.5, self_contained=True)


@pytest.mark.parametrize(("steps", "size"), [(0, 10), (10, 0)])
def test_nothing_to_model_is_refused(steps: int, size: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        GrowthRequest(steps, size, SizeRatio())
