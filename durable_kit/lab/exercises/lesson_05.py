"""Exercises of lesson 05: what a saver writes, when to snapshot, and an edit that deltas hate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from durable_kit.lab.exercises import Exercise
from durable_kit.lab.growth_model import GrowthRequest, simulate
from durable_kit.storage.codec import Codec
from durable_kit.storage.delta import diff
from durable_kit.storage.snapshot_policy import Chain

STEPS, MESSAGE_BYTES = 2_000, 300
MESSAGES = tuple(f"message {i:02d}: " + "." * 80 for i in range(40))
"""The forty messages of the adversarial exercise, all of one size."""


def _check_copies(answer: Any) -> str | None:
    """A function of N: how many messages a saver of whole states has written after N steps."""
    if not callable(answer):
        return f"{answer!r} is not a function of the number of steps."
    for steps, copies in ((1, 1), (2, 3), (10, 55), (1000, 500_500)):
        found = answer(steps)
        if found != copies:
            return f"for {steps} steps it says {found!r}; counted one by one it is {copies:,}."
    return None


@dataclass(frozen=True, slots=True)
class _Answer:
    """A learner's function in the clothes of a policy whose snapshots write everything out."""

    decide: Callable[[Chain], object]
    self_contained: bool = True

    def wants_snapshot(self, chain: Chain) -> bool:
        return bool(self.decide(chain))


def _check_policy(answer: Any) -> str | None:
    """A function of a Chain: bytes of all snapshots linear, depth at most half of the steps."""
    if not callable(answer):
        return f"{answer!r} is not a function of a chain."
    growth = simulate(GrowthRequest(STEPS, MESSAGE_BYTES, _Answer(answer)))
    snapshot_messages = sum(growth.snapshots)  # a snapshot at step s writes s messages
    if snapshot_messages > 2 * STEPS:
        return (
            f"{len(growth.snapshots)} snapshots wrote {snapshot_messages:,} messages for "
            f"{STEPS:,} steps; at most {2 * STEPS:,} were allowed."
        )
    for step, depth in enumerate(growth.depths, start=1):
        if depth > max(4, step / 2 + 1):
            return (
                f"at step {step:,} the state is {depth:,} deltas away; at most half were allowed."
            )
    return None


def _check_edit(answer: Any) -> str | None:
    """The forty messages with at most two of them changed, and a delta as large as the list."""
    if not isinstance(answer, list | tuple) or len(answer) != len(MESSAGES):
        return f"give all {len(MESSAGES)} messages, as a list."
    if not all(isinstance(message, str) for message in answer):
        return "every message must stay a text."
    changed = [i for i, (old, new) in enumerate(zip(MESSAGES, answer, strict=True)) if old != new]
    if len(changed) > 2:
        return f"{len(changed)} messages were changed; two are enough."
    if any(abs(len(answer[i]) - len(MESSAGES[i])) > 8 for i in changed):
        return "a changed message may be at most 8 characters longer or shorter."
    codec = Codec()
    before, after = codec.encode(list(MESSAGES)), codec.encode(list(answer))
    delta = diff(before, after)
    size = len(delta.new) if delta is not None else 0
    if size < 0.9 * len(after):
        kind = delta.op if delta is not None else "no change"
        return f"the delta ({kind}) takes {size:,} of {len(after):,} bytes; 90% were asked for."
    return None


EXERCISES = (
    Exercise(
        "05.warm-up",
        "A saver that stores the whole state writes every message again at every later step.",
        _check_copies,
        (
            "Step 1 writes one message, step 2 writes two. What has step 3 added?",
            "The bytes are a sum over the steps, and the last step alone writes N messages.",
            "For 4 steps: 1 + 2 + 3 + 4 = 10 = 4 · 5 / 2.",
        ),
        lambda steps: steps,
    ),
    Exercise(
        "05.build",
        "All snapshots together cost at most twice the data, and no state is further from its "
        "snapshot than half of the steps.",
        _check_policy,
        (
            "A fixed interval gets too dear later on. What should the interval grow with?",
            (
                "Let it grow with the state: take a snapshot when the deltas since the last one "
                "hold a fixed share of the state. Each snapshot is then larger than the one before "
                "by a fixed factor, and such a sum stays linear."
            ),
            (
                "Snapshots at the steps 1, 2, 4, 8, … 1024 write 2,047 messages together, and half "
                "of the state arrives between two of them. Compare chain.delta_bytes with half of "
                "chain.snapshot_bytes."
            ),
        ),
        lambda chain: chain.depth >= 100,
    ),
    Exercise(
        "05.adversarial",
        "A splice keeps one common start and one common end; it cannot skip what lies between two "
        "edits.",
        _check_edit,
        (
            "Change one message: the delta is small, wherever it is. Where must a second one be?",
            "The delta carries everything from the first changed byte to the last changed byte.",
            (
                "Change one letter in message 10 and one in message 20: the delta carries the ten "
                "messages between them. Now move the two further apart."
            ),
        ),
        [MESSAGES[0].upper(), *MESSAGES[1:]],
    ),
)
