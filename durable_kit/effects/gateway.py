"""Did the payment happen?

A checkpoint brings the agent's state back. It does not bring the money back:

    agent      charge ──▶ bank: 49.99 noted ──▶ reply ─ ✗ killed
    resumed    charge ──▶ bank: 49.99 noted             (the state said: not charged yet)

Looking first does not help, as long as looking and acting are two steps and the note is a third:

    seen? no ─ charge ─ ✗                  a crash between act and note: charged again
    seen? no ─ note ─ ✗ ─ charge           a crash between note and act: never charged
    seen? no ………… seen? no ─ charge ─ charge    two at once

No order of these closes the gap between a success at the provider and its note here. What can be
done is to *know that one is in the gap*, and not to guess in it. `IdempotentGateway.call` goes

    ① intent     key, fingerprint and the request itself, committed before anything is sent
    ② claim      one caller gets the attempt, committed as well
    ③ effect     the stored request is sent; no transaction is open meanwhile
    ④ receipt    the response, committed; from now on this is the answer to the key

    a crash      what the next call finds       what it does
    before ①     nothing                        sends
    ① – ②        requested                      sends
    ② – ④        started, its claim runs out    unknown: see below
    after ④      succeeded                      returns the receipt, sends nothing

**Unknown** is settled by the provider alone. If there is a `lookup` it is asked: found → the
receipt is written; surely not there → it is sent again; cannot tell → if the provider still knows
the key it is sent again with it, else the call raises `InDoubt`, and `reconcile` lists it for a
person (`decide` takes the answer). What counts as "surely" and "still" is in the `Contract`.

    same key, same request         the same receipt, from every caller, as long as it is kept
    same key, another request      IdempotencyConflict, whatever the state; nothing is sent
    being sent by somebody else    waits up to `wait_s`, then InProgress

**Promised:** one `call` sends at most once. Where the provider knows keys, or can be asked and
keeps to its contract, a logical operation takes effect once, through any number of calls, crashes
and processes. Where it does neither, what is ambiguous stays in doubt.

**Left out:** an owner whose whole machine stands still between its last look at the clock and the
send, for longer than its claim, can send after its claim has run out; only a provider that knows
keys stops that. The same goes for clocks that differ by more than `claim_life_s`, and for an
effect that takes longer than it: give the effect a time-out that is shorter. A damaged row is
noticed only where its request no longer fits its fingerprint. Requests and responses are stored as
they are, not encrypted: send a token of the card, not its number.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from copy import copy
from typing import Any
from uuid import uuid4

from durable_kit import crash_point
from durable_kit.clock import Clock, SystemClock
from durable_kit.control_flow import is_control_flow
from durable_kit.effects import steps, upkeep
from durable_kit.effects.books import Books
from durable_kit.effects.fingerprint import difference_of
from durable_kit.effects.outcomes import (
    Absent,
    CannotTell,
    Contract,
    Found,
    IdempotencyConflict,
    InDoubt,
    InProgress,
    NotRecorded,
    NotSent,
    Refused,
    Verdict,
    check_seconds,
)
from durable_kit.effects.receipt import REFUSED, Receipt, Row, Status
from durable_kit.effects.steps import Function, Steps
from durable_kit.errors import BadInput, UnstorableValue
from durable_kit.storage.codec import Codec
from durable_kit.storage.database import Database
from durable_kit.storage.record import escape_text

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.05
_LONGEST_CLAIM_S = 366 * 86_400


class IdempotentGateway:
    """Effects on one provider, each of them once. Safe to share between threads and coroutines.

    `tool_name`: what the effects go to. `scope`: whose keys they are; a key is unique in its scope.
    `contract`: what the provider promises; by default nothing.
    `wait_s`: how long a call waits for another one of the same key; 0 for not at all.
    `claim_life_s`: how long an owner is taken to be alive. It must be longer than an effect takes,
    time-outs included. `receipt_life_s`: how old receipts become before `clean_up` removes them.
    `codec`: what requests and responses may be made of.
    `recorded`: answer from receipts, and never act (for replay and time travel).

    Hazard: a receipt that was removed protects nothing any more. Keep it longer than anybody may
    come back with its key.
    """

    def __init__(
        self,
        database: Database,
        *,
        tool_name: str,
        contract: Contract = Contract(),  # noqa: B008 - frozen
        scope: str = "",
        wait_s: float = 3.0,
        claim_life_s: float = 60.0,
        receipt_life_s: float = 30 * 86_400,
        recorded: bool = False,
        codec: Codec | None = None,
        clock: Clock | None = None,
        owner: str | None = None,
    ) -> None:
        check_seconds("wait_s", wait_s)
        check_seconds("receipt_life_s", receipt_life_s)
        if not 0 < claim_life_s <= _LONGEST_CLAIM_S:
            raise BadInput(
                f"claim_life_s is {claim_life_s}; an owner needs more than 0 s to send anything, "
                f"and one that dies must be given up some day (at most {_LONGEST_CLAIM_S:,} s)."
            )
        self.tool_name = tool_name
        self.contract = contract
        self.recorded = recorded
        self._wait_s = wait_s
        self._claim_life_s = claim_life_s
        self._receipt_life_s = receipt_life_s
        self._books = Books(
            database,
            tool_name=tool_name,
            scope=scope,
            owner=owner or f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}",
            claim_life_s=claim_life_s,
            codec=codec or Codec(),
            clock=clock or SystemClock(),
        )

    def answering_from_receipts(self) -> IdempotentGateway:
        """The same gateway in recorded mode."""
        twin = copy(self)
        twin.recorded = True
        return twin

    # ------------------------------------------------------------------------ calling

    def call(
        self,
        *,
        idempotency_key: str,
        request: Any,
        effect: Function,
        lookup: Function | None = None,
        thread_id: str | None = None,
    ) -> Receipt:
        """Send `request` unless it has been sent, and return its receipt.

        `effect(intent)` sends `intent.request`, with `intent.idempotency_key` if the provider knows
        keys, and returns the response, which must be storable. `lookup(intent)` asks the provider
        and returns `Found`, `Absent` or `CannotTell`. `thread_id`: the thread that relies on the
        receipt; it is not cleaned up while that thread is open.

        Raises `UnstorableValue`, `IdempotencyConflict` or `InProgress` when nothing was sent;
        `NotSent` and `Refused` as the effect raised them; `InDoubt` when nobody knows. The pauses,
        commands and cancellations of LangGraph pass through.

        Hazard: an effect that sends something and then pauses (`interrupt`) is run again as a
        whole after the pause. Ask first, send then.
        """
        return steps.run(self._protocol(idempotency_key, request, effect, lookup, thread_id))

    async def acall(
        self,
        *,
        idempotency_key: str,
        request: Any,
        effect: Function,
        lookup: Function | None = None,
        thread_id: str | None = None,
    ) -> Receipt:
        """`call` for coroutines; `effect` and `lookup` may be coroutine functions.

        Cancelling the await does not cancel an effect that is being sent (see `steps.py`).
        """
        self._check_nothing_open()
        return await steps.run_async(
            self._protocol(idempotency_key, request, effect, lookup, thread_id)
        )

    # ------------------------------------------------------------------------ looking after

    def receipt(self, idempotency_key: str) -> Receipt | None:
        """What is known of a key, in whatever state; None if it was never used."""
        row = self._books.read(escape_text(idempotency_key))
        return None if row is None else self._books.receipt_of(row)

    def reconcile(self, lookup: Function | None = None) -> tuple[Receipt, ...]:
        """Settle what the provider can settle, and return what is left for a person.

        Goes through all calls of this tool and scope that are unknown or whose claim has run out,
        and sends nothing. What is surely not there becomes `requested` again: the next call with
        the key sends it.
        """
        return steps.run(upkeep.reconcile(self._books, self.contract, lookup))

    async def areconcile(self, lookup: Function | None = None) -> tuple[Receipt, ...]:
        """`reconcile` for coroutines; `lookup` may be a coroutine function."""
        self._check_nothing_open()
        return await steps.run_async(upkeep.reconcile(self._books, self.contract, lookup))

    def decide(self, *, idempotency_key: str, verdict: Found | Absent, by: str) -> Receipt:
        """A person's answer to a call in doubt: it happened (`Found`), or surely not (`Absent`).

        Raises `BadInput` if the call is not in doubt (any more).
        """
        return upkeep.decide(self._books, idempotency_key, verdict, by)

    def clean_up(self, *, is_open: Callable[[str], bool]) -> int:
        """Remove receipts older than `receipt_life_s`; returns how many.

        Kept, however old: what is unsettled, and every receipt that a thread relies on for which
        `is_open(thread_id)` is true. Calls without a thread are judged by their age alone.
        """
        return upkeep.clean_up(self._books, self._receipt_life_s, is_open)

    # ------------------------------------------------------------------------ the protocol

    def _protocol(
        self,
        idempotency_key: str,
        request: Any,
        effect: Function,
        lookup: Function | None,
        thread_id: str | None,
    ) -> Steps[Receipt]:
        """One call, from its intent to its receipt; see `steps.py` for who performs the acts."""
        books = self._books
        wanted = books.wanted(idempotency_key, request, thread_id)
        row = books.read(wanted.request_id) if self.recorded else books.record(wanted)
        waited_s = 0.0
        while True:
            if row is None:  # recorded mode; or cleaned up while we waited
                if self.recorded:
                    raise NotRecorded(idempotency_key=idempotency_key, status="never requested")
                row = books.record(wanted)
            if not books.same(row, wanted):
                raise self._conflict(row, wanted, request)
            if row.status is Status.SUCCEEDED or row.failure == REFUSED:
                if row.threads != wanted.threads and not self.recorded:
                    row = books.join(row, wanted.threads)
                return self._answer(row)
            if self.recorded:
                raise NotRecorded(idempotency_key=idempotency_key, status=row.status.value)

            free: Row | None = None  # from here the next attempt may be taken
            pause_s = 0.0
            if row.status in (Status.REQUESTED, Status.FAILED):
                free = row
            elif row.status is Status.UNKNOWN:
                verdict = yield from upkeep.ask(books, row, lookup)
                if isinstance(verdict, Found | Refused):
                    self._settle(row, verdict, "found by lookup")
                elif isinstance(verdict, Absent) and self._absence_is_final(row):
                    free = row._replace(first_sent_at_us=None)  # no doubt left: the key is new
                elif self._key_is_known(row):
                    free = row
                else:
                    pause_s = self._until_absence_is_final(row)
                    if not isinstance(verdict, Absent) or pause_s > self._wait_s - waited_s:
                        raise self._in_doubt(row, verdict)
            elif books.claim_is_over(row):
                books.give_up(row)
            elif waited_s < self._wait_s:  # each pause as long as all before, so they double
                pause_s = min(max(waited_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            else:
                raise InProgress(
                    idempotency_key=idempotency_key, owner=row.owner, waited_s=waited_s
                )

            if pause_s:
                yield steps.Wait(pause_s)
                waited_s += pause_s
            if free is not None:
                receipt = yield from self._send(free, wanted, effect, lookup)
                if receipt is not None:
                    return receipt
            row = books.read(wanted.request_id)

    def _send(
        self, free: Row, wanted: Row, effect: Function, lookup: Function | None
    ) -> Steps[Receipt | None]:
        """Take the next attempt from the state `free`, and send it. None if another was quicker."""
        books = self._books
        intent = books.intent(free, attempt=free.attempt + 1, written=wanted)
        row = books.start(free)
        if row is None:
            return None
        row = books.join(row, wanted.threads)
        # An attempt before this one may have taken effect. Then it proves nothing that this one
        # did not, and the call stays unknown.
        earlier = free.first_sent_at_us is not None
        crash_point.reached("gateway.before_send")
        if books.claim_is_over(row):
            self._sent_nothing(row, earlier)
            late = NotSent("This process stood still for longer than its claim. Call again.")
            return self._settled_by_another(row, late)
        # A crash from here to the receipt leaves `started`: when the claim has run out, the
        # provider is asked.
        try:
            response = yield steps.Run(effect, intent)
        except BaseException as error:
            if isinstance(error, steps.Withdrawn) or is_control_flow(error):
                self._sent_nothing(row, earlier)
                raise
            if isinstance(error, (NotSent, *self.contract.surely_no_effect)):
                self._sent_nothing(row, earlier, failure=upkeep.said(error))
                raise
            if isinstance(error, (Refused, *self.contract.refusals)):
                refusal = error if isinstance(error, Refused) else Refused(upkeep.said(error))
                books.refuse(row, refusal)
                raise refusal from error.__cause__ if refusal is error else error
            unknown = books.doubt(row, upkeep.said(error))
            if not isinstance(error, Exception):  # cancelled, Ctrl-C: it may be out all the same
                raise
            row = unknown or row
            verdict = yield from upkeep.ask(books, row, lookup)
            if isinstance(verdict, Found | Refused):
                self._settle(row, verdict, "found by lookup")
                doubt = self._in_doubt(row, None)
            else:
                doubt = self._in_doubt(row, verdict)
            doubt.__cause__ = error
            return self._settled_by_another(row, doubt)
        crash_point.reached("gateway.after_reply")
        return self._receive(row, response)

    def _sent_nothing(self, row: Row, earlier: bool, *, failure: str = "") -> None:
        """Take back an attempt, or note its failure, unless an earlier one is still in doubt."""
        if earlier:
            self._books.doubt(row, row.said)
        elif failure:
            self._books.not_sent(row, failure)
        else:
            self._books.release(row)

    def _receive(self, row: Row, response: Any) -> Receipt:
        """Write the receipt of a response that has just come."""
        books = self._books
        try:
            encoded = books.encoded(response, path="response")
        except UnstorableValue as error:
            unknown = books.doubt(row, f"it took effect, but {error}")
            raise self._in_doubt(unknown or row, None) from error
        crash_point.reached("gateway.before_receipt")
        done = books.succeed(row, encoded, "")
        crash_point.reached("gateway.after_receipt")
        if done is None:
            return self._settled_by_another(row, self._in_doubt(row, None))
        return books.receipt_of(done, replayed=False)

    def _settled_by_another(self, row: Row, otherwise: Exception) -> Receipt:
        """What has been written down for our attempt, or else raise `otherwise`.

        A call that has sent something does not go back to where it might send again.
        """
        now = self._books.read(row.request_id)
        if now is not None and (now.status is Status.SUCCEEDED or now.failure == REFUSED):
            return self._answer(now)
        raise otherwise

    # ------------------------------------------------------------------------ unknown

    def _settle(self, row: Row, verdict: Found | Refused, detail: str) -> None:
        if isinstance(verdict, Found):
            response = self._books.encoded(verdict.response, path="response")
            self._books.succeed(row, response, detail)
        else:
            self._books.refuse(row, verdict)

    def _absence_is_final(self, row: Row) -> bool:
        return self._until_absence_is_final(row) <= 0

    def _until_absence_is_final(self, row: Row) -> float:
        """Seconds until "not there" will mean "never"; infinite if it never will."""
        return upkeep.until_absence_is_final(self.contract, row, self._books.clock.now_us())

    def _key_is_known(self, row: Row) -> bool:
        """Whether the provider surely still knows the key, as long as an attempt may take.

        A clock that has stepped back tells nothing of how much time has passed, so the distance
        counts in both directions.
        """
        first_us = row.first_sent_at_us
        if first_us is None:
            return False
        gone_s = abs(self._books.clock.now_us() - first_us) / 1e6
        return gone_s + self._claim_life_s < self.contract.keeps_keys_s

    # ------------------------------------------------------------------------ answers

    def _check_nothing_open(self) -> None:
        if self._books.database.writing:
            raise BadInput(
                "This OS thread has a write transaction open, which the books would wait for, and "
                "it for them. End it before you await."
            )

    def _answer(self, row: Row) -> Receipt:
        """The receipt, or the refusal that stands in its place."""
        receipt = self._books.receipt_of(row)
        if row.failure == REFUSED:
            raise Refused(receipt.detail, details=receipt.response)
        return receipt

    def _in_doubt(self, row: Row, verdict: Verdict | None) -> InDoubt:
        again = self._key_is_known(row)
        if again:
            remedy = "Call again with the same key: the provider knows it and will not act twice."
        elif isinstance(verdict, Absent) and self._until_absence_is_final(row) < math.inf:
            left_s = max(self._until_absence_is_final(row), 0)
            remedy = f"It may still be on its way; call again in {left_s:.3g} s."
        else:
            remedy = "Look into the provider's books, and tell the gateway with decide()."
        detail = row.said
        if isinstance(verdict, Absent):
            detail += "; asked: not there, which proves nothing yet"
        elif isinstance(verdict, CannotTell):
            detail += f"; asked: {verdict.reason}"
        return InDoubt(
            idempotency_key=self._books.receipt_of(row).idempotency_key,
            attempt=row.attempt,
            detail=detail,
            remedy=remedy,
            may_send_again=again,
        )

    def _conflict(self, row: Row, wanted: Row, request: Any) -> IdempotencyConflict:
        receipt = self._books.receipt_of(row)
        if row.tool_name != wanted.tool_name:
            difference = f"to {receipt.tool_name}, now to {self.tool_name}"
        else:
            difference = difference_of(receipt.request, request)
        return IdempotencyConflict(
            idempotency_key=receipt.idempotency_key,
            status=row.status.value,
            difference=difference,
        )
