"""Writes that come when the others of their checkpoint lie in a pack already."""

from __future__ import annotations

import pytest

from durable_kit.serde_codec import ChannelCodec, default_codec
from durable_kit.storage import composer, recovery, retention
from durable_kit.storage.checkpoint_log import CheckpointLog
from durable_kit.storage.database import Database
from durable_kit.storage.snapshot_policy import EveryN
from durable_kit.storage.writes_log import Write

CODEC = ChannelCodec(default_codec())


def test_late_writes_are_packed_beside_the_earlier_ones_of_their_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pack of the late ones held the earlier ones once more, and no read got past that."""
    monkeypatch.setattr(composer, "PACK_AT_LEAST", 3)
    with Database.open("sqlite://") as database:
        log = CheckpointLog(database, CODEC, policy=EveryN(4))
        messages: list[str] = []

        def write(step: int, task: str) -> None:
            log.append_writes(
                thread_id="t",
                namespace="",
                checkpoint_id=f"{step}",
                task_id=task,
                task_path="",
                writes=[Write(0, ":messages", [f"{step + 1} {task} " + "." * 40])],
            )

        for step in range(30):
            log.append(
                thread_id="t",
                namespace="",
                checkpoint_id=f"{step}",
                parent_id=f"{step - 1}" if step else None,
                state={":messages": messages},
                metadata={},
            )
            write(step, "a")
            messages = [*messages, f"{step + 1} a " + "." * 40]
            if step in (10, 20):
                write(3, f"late {step}")
        with database.read() as tx:
            assert len(log.rows(tx, "t", "").raw_packs()) > 2

        def stored(thread_id: str = "t") -> dict[str, object]:
            return {
                entry.record.checkpoint_id: (entry.state(CODEC.decode), entry.writes)
                for entry in log.history(thread_id, "")
            }

        everything = stored()
        assert everything["29"][0] == {":messages": messages[:-1]}  # type: ignore[index]
        late = everything["3"][1]  # type: ignore[index]
        assert [found.task_id for found in late] == ["a", "late 10", "late 20"]
        assert recovery.verify(log, "t").ok
        retention.copy_thread(log, "t", "u")
        assert stored("u") == everything
        retention.prune(log, ["t"], keep_last=28)
        assert stored() == {f"{n}": everything[f"{n}"] for n in range(2, 30)}
        assert recovery.verify(log, "t").ok
