"""One of several processes that work in the same database.

It writes checkpoints with a pending write each; every tenth one is read back at once.
"""

from __future__ import annotations

from typing import Any

from durable_kit.delta_saver import DeltaSaver
from tests.contracts.builders import Line


def state_of(step: int) -> dict[str, Any]:
    return {"messages": [f"message {number}" for number in range(step + 1)], "step": step}


def work(gate: Any, url: str, thread_id: str, steps: int) -> None:
    gate.wait(60)  # until all are there
    with DeltaSaver.open(url) as saver:
        line = Line(saver, thread_id)
        for step in range(steps):
            at = line.put(state_of(step))
            line.write(at, ("step", step))
            if step % 10 == 0:
                assert line.read().checkpoint["channel_values"] == state_of(step)
