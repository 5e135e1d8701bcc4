"""What can become of an effect, said by its three witnesses.

The code that sends knows the most, and usually throws it away: "it failed" is three different
facts, and each has another right next act.

    the effect raises   fact                                  what may be done with the same key
    NotSent             surely no effect                      call again: it is sent
    Refused             the business says no (card declined)  call again: the same refusal
    anything else       nobody knows                          ask the provider, never guess

A time-out is of the third kind. So is a connection that broke while the reply was awaited, and a
process that died: between the provider's success and our note of it there is a moment in which
only the provider knows.

The provider, asked by a `lookup`, answers in three ways as well: `Found(response)`, `Absent()`, or
`CannotTell(reason)`. An absence needs care: a request that was sent a second ago may still be on
its way. How long it can be is the provider's to promise, not ours to hope, so it belongs to the
`Contract`, beside the time for which the provider knows a key again.

The caller is told by exceptions what to do next:

    IdempotencyConflict  the key stands for another request: use a new key, or the first request
    InProgress           somebody is sending it right now: call again later
    InDoubt              it may have happened: ask the provider, or a person
    NotRecorded          a replay that may not act found no receipt
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from durable_kit.errors import BadInput, DurableKitError

# ------------------------------------------------------------------ what an effect may raise


class NotSent(DurableKitError):
    """Raise it in an effect when surely nothing has happened. The same key may be sent again."""


class Refused(DurableKitError):
    """Raise it in an effect (or a lookup) when the provider has said no, and means it.

    The refusal is kept, and the same key is answered with it from then on. `details` are for the
    program (a decline code); they must be storable.
    """

    def __init__(self, reason: str, *, details: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.details = details


# ------------------------------------------------------------------ what a lookup may return


@dataclass(frozen=True, slots=True)
class Found:
    """The provider has it. `response` is what it would have replied, or the best it still knows."""

    response: Any


@dataclass(frozen=True, slots=True)
class Absent:
    """The provider does not have it now. Whether it never will is for the `Contract` to say."""


@dataclass(frozen=True, slots=True)
class CannotTell:
    """The provider could not be asked, or its answer proves nothing."""

    reason: str


Verdict = Found | Absent | CannotTell


# ------------------------------------------------------------------ what a provider promises


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What is known of a provider. The defaults promise nothing, so that nothing is assumed.

    `keeps_keys_s`: for so long it answers a key it has seen with its first result, without acting
    again; 0 for one that does not know keys. Counted from the first time anything was sent; it must
    be longer than a claim lives, since an attempt may send at the end of its claim.
    `absence_settles_after_s`: a request that it does not have so long after the last moment at
    which it can have been sent, it will never have; 0 if its absence is final at once, None if
    absence proves nothing.
    `surely_no_effect`, `refusals`: errors of a client library that mean `NotSent` and `Refused`.
    """

    keeps_keys_s: float = 0
    absence_settles_after_s: float | None = None
    surely_no_effect: tuple[type[Exception], ...] = ()
    refusals: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        check_seconds("keeps_keys_s", self.keeps_keys_s)
        if self.absence_settles_after_s is not None:
            check_seconds("absence_settles_after_s", self.absence_settles_after_s)


def check_seconds(name: str, value: float) -> None:
    """Raises `BadInput` for what is no duration. 0 is one."""
    if not value >= 0:  # nor is NaN
        raise BadInput(f"{name} is {value}; it must be 0 or more.")


# ------------------------------------------------------------------ what the caller is told


class IdempotencyConflict(DurableKitError):
    """The key stands for another request. Nothing was sent."""

    def __init__(self, *, idempotency_key: str, status: str, difference: str) -> None:
        super().__init__(
            f"key {idempotency_key} was used with another request ({difference}); that one is "
            f"{status}. Nothing was sent. Use a new key, or send the first request again."
        )
        self.idempotency_key = idempotency_key
        self.status = status
        self.difference = difference


class InProgress(DurableKitError):
    """Somebody else is sending it right now, and did not finish within the wait."""

    def __init__(self, *, idempotency_key: str, owner: str, waited_s: float) -> None:
        super().__init__(
            f"key {idempotency_key} is being sent by {owner}; waited {waited_s:.3g} s. "
            "Call again later, with the same key and request."
        )
        self.idempotency_key = idempotency_key
        self.owner = owner
        self.waited_s = waited_s


class InDoubt(DurableKitError):
    """It may have happened. Calling again is safe, and will not guess either.

    `may_send_again` says whether the next call will send it again, because the provider knows the
    key and will not act twice.
    """

    def __init__(
        self, *, idempotency_key: str, attempt: int, detail: str, remedy: str, may_send_again: bool
    ) -> None:
        super().__init__(
            f"key {idempotency_key}: nobody knows whether attempt {attempt} took effect ({detail})."
            f" {remedy}"
        )
        self.idempotency_key = idempotency_key
        self.attempt = attempt
        self.detail = detail
        self.remedy = remedy
        self.may_send_again = may_send_again


class NotRecorded(DurableKitError):
    """A gateway in recorded mode has no receipt to answer from, and did not act."""

    def __init__(self, *, idempotency_key: str, status: str) -> None:
        super().__init__(
            f"key {idempotency_key} has no receipt ({status}), and this gateway only answers from "
            "receipts. Run it live, or replay only what has run."
        )
        self.idempotency_key = idempotency_key
        self.status = status
