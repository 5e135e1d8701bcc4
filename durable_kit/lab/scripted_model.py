"""A model that says the same thing every time, as slowly and as long as you like.

What a durability experiment needs of a model is its time and its bytes: how long a super-step
takes, and how much it leaves in the state. What it must not have is a mind of its own, or a resumed
run could not be compared with an undisturbed one.

    model = ScriptedModel(step_ms=20, answer_bytes=450)
    model("Thank the customer for order-1001")     20 ms later, 450 bytes, the same on every machine

The waiting is `sleep`, as the waiting for a model is: the CPU is free meanwhile.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

_WORDS = (
    "the parcel leaves the house this evening and the carrier brings it to your door before noon "
    "we have looked at every shelf twice and found what you asked for thank you for your patience"
).split()


@dataclass(frozen=True, slots=True)
class ScriptedModel:
    """`step_ms`: how long an answer takes. `answer_bytes`: how long it is; 0 for a short one."""

    step_ms: float = 0.0
    answer_bytes: int = 0

    def __call__(self, prompt: str) -> str:
        """The answer to `prompt`: a pure function of it, but for the time that it takes."""
        if self.step_ms:
            time.sleep(self.step_ms / 1000)
        at = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4], "big")
        text = f"{prompt}:"
        while len(text) < max(self.answer_bytes, len(prompt) + 20):
            text += " " + _WORDS[at % len(_WORDS)]
            at += 1
        return text[: self.answer_bytes] if self.answer_bytes else text
