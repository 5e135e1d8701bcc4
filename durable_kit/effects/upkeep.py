"""Looking after what is left: in doubt, decided by a person, too old.

A call in doubt does not go away by itself. Somebody calls with its key again and the provider can
be asked by then; or nobody does, and the row waits. `reconcile` goes through all of them, asks the
provider, and returns what it cannot settle: that list is for a person, who looks into the
provider's own books and gives the answer with `decide`. Nothing here sends anything.

Receipts grow old as well. A receipt is a promise not to act again, so removing one too early is a
second payment that waits for its replay:

    day 0   charge ─ receipt ─ interrupt("ship it?")
    day 7   clean-up: "older than a week"           the receipt is gone
    day 8   the person answers, the node runs again from its beginning: charge

`clean_up` therefore asks of each thread that relies on a receipt whether it is still open.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from durable_kit.control_flow import is_control_flow
from durable_kit.effects.books import Books
from durable_kit.effects.outcomes import Absent, CannotTell, Contract, Found, Refused, Verdict
from durable_kit.effects.receipt import Receipt, Row, Status, threads_of
from durable_kit.effects.steps import Function, Run, Steps
from durable_kit.errors import BadInput
from durable_kit.storage.record import escape_text


def until_absence_is_final(contract: Contract, row: Row, now_us: int) -> float:
    """Seconds until "not there" means "never": long enough after it can last have been sent."""
    if contract.absence_settles_after_s is None:
        return math.inf
    return contract.absence_settles_after_s - (now_us - row.claim_until_us) / 1e6


def checked(answer: object) -> Verdict:
    """A lookup's answer. Anything but a verdict proves nothing: None is not "absent"."""
    if isinstance(answer, Found | Absent | CannotTell):
        return answer
    return CannotTell(f"the lookup returned {answer!r:.100}, not Found, Absent or CannotTell")


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def reconcile(
    books: Books, contract: Contract, lookup: Function | None
) -> Steps[tuple[Receipt, ...]]:
    """Settle what the provider can settle; return the rest. See `IdempotentGateway.reconcile`."""
    left = []
    for seen in books.unsettled():
        row: Row | None = seen
        if seen.status is Status.STARTED:
            row = books.give_up(seen) if books.claim_is_over(seen) else None
        if row is None:
            continue  # somebody is at work on it, or has settled it
        verdict = yield from ask(books, row, lookup)
        if isinstance(verdict, Found):
            response = books.encoded(verdict.response, path="response")
            books.succeed(row, response, "found by reconcile")
        elif isinstance(verdict, Refused):
            books.refuse(row, verdict)
        elif isinstance(verdict, Absent) and _is_final(contract, row, books):
            books.absent(row, "the provider does not have it")
        else:
            answer = "not there yet" if isinstance(verdict, Absent) else verdict.reason
            why = row.said.partition("; asked: ")[0]
            unknown = books.still_in_doubt(row, f"{why}; asked: {answer}")
            if unknown is not None:
                left.append(books.receipt_of(unknown))
    return tuple(left)


def _is_final(contract: Contract, row: Row, books: Books) -> bool:
    return until_absence_is_final(contract, row, books.clock.now_us()) <= 0


def ask(books: Books, row: Row, lookup: Function | None) -> Steps[Verdict | Refused]:
    """The provider's word on an unknown call.

    What was found and cannot be stored cannot be told to anybody: nor does it hold up the others.
    """
    if lookup is None:
        return CannotTell("there is no lookup")
    try:
        answer = checked((yield Run(lookup, books.intent(row, attempt=row.attempt))))
        if isinstance(answer, Found):
            books.encoded(answer.response, path="response")
    except Refused as refusal:
        return refusal
    except Exception as error:
        if is_control_flow(error):
            raise
        return CannotTell(said(error))
    return answer


def decide(books: Books, idempotency_key: str, verdict: Found | Absent, by: str) -> Receipt:
    """Write down a person's answer. See `IdempotentGateway.decide`."""
    if not isinstance(verdict, Found | Absent):  # the class, None: taken for "no", it would be sent
        raise BadInput(f"the verdict is {verdict!r:.100}; say Found(response) or Absent().")
    row = books.read(escape_text(idempotency_key))
    if row is not None and row.status is Status.STARTED and books.claim_is_over(row):
        row = books.give_up(row)
    if row is not None and row.status is Status.UNKNOWN:
        if isinstance(verdict, Found):
            response = books.encoded(verdict.response, path="response")
            done = books.succeed(row, response, f"decided by {by}") is not None
        else:
            done = books.absent(row, f"decided by {by}")
        row = books.read(row.request_id)
        if done and row is not None:
            return books.receipt_of(row)
    status = "not known" if row is None else row.status.value
    raise BadInput(f"key {idempotency_key} is {status}, not in doubt: there is nothing to decide.")


def clean_up(books: Books, receipt_life_s: float, is_open: Callable[[str], bool]) -> int:
    """Remove old receipts that no open thread relies on. See `IdempotentGateway.clean_up`."""
    cutoff_us = books.clock.now_us() - round(min(receipt_life_s, 1e11) * 1e6)
    removed = 0
    for request_id, threads in books.finished_before(cutoff_us):
        if not any(is_open(thread) for thread in threads_of(threads)):
            removed += books.remove(request_id, threads, cutoff_us)
    return removed
