"""Claim, send, mark: one message at a time, and never twice by two healthy relays.

Between the send and the mark lies a window that nobody can close: the answer exists only in a
process that may die. Everything here is about what happens then.

    relay A   claim (until 10:00:30) ─ send ─ ✗ killed before the mark
    relay B   …………………………………… 10:00:30: due again ─ claim ─ send ─ mark
    receiver  ……………………… mail:1001 ……………………………………………… mail:1001     one id: taken once

A claim is a row that says "nobody touches this before 10:00:30", committed before the send. It
ends by itself, so a dead relay needs no undertaker. It covers one message, so its life must be
longer than one send and not longer than a batch of them. A relay that was only asleep is worse
than a dead one: it wakes up and believes in its claim.

    relay A   claim no. 1 ─ send … SIGSTOP ……………………………………………… SIGCONT ─ mark: refused
    relay B   ………………………………………… claim no. 2 ─ send ─ mark: delivered

So each claim has a number, and a mark names owner and number in its WHERE clause. What the
sleeper learned is not written over what the new owner wrote.

**What a failure means** is said by what `send` raises:

    Refused              the receiver will never take it: a dead letter at once
    NotSent, refused     nobody is there, or they ask for patience: wait; it does not count, since
    connections          an outage must not turn a whole outbox into dead letters
    anything else        it may have arrived, and the message may be at fault (poison): it is sent
                         again, since the receiver knows its id; counts, and is dead at the limit

An attempt counts from the moment of its claim. A message that kills its relay each time is never
marked at all, and still ends as a dead letter.

**Waiting grows with age**: a message that failed waits as long again as it has waited so far, at
least `first_wait_s`, at most `longest_wait_s`. That doubles, needs no counter, and messages of
different ages do not come back all at once.

**Left out.** Throughput: two commits a message. A look goes past everything that waits behind a
message of its key: behind twenty thousand such rows it took 20 ms on SQLite, 110 on PostgreSQL.
A send that outlives its claim goes on beside the next owner's (the receiver sees two attempts);
give `claim_life_s` room. Clocks of two machines may differ by less than that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from durable_kit import crash_point
from durable_kit.clock import Clock, SystemClock
from durable_kit.effects.outbox import Message, Outbox, check_name
from durable_kit.effects.outcomes import NotSent, Refused
from durable_kit.errors import BadInput
from durable_kit.storage.database import Database, Tx

AFTER_CLAIM, AFTER_SEND, AFTER_MARK = (
    "outbox.after_claim",
    "outbox.after_send",
    "outbox.after_mark",
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of one attempt. `error` is empty when it was delivered.

    `claim lost`: it took longer than its claim, another relay has the message, and nothing was
    marked. Whether this send has arrived is known to the receiver.
    """

    message_id: str
    outcome: Literal["delivered", "waits", "dead", "claim lost"]
    attempt: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Claim:
    message_id: str
    topic: str
    key: str
    body: bytes
    attempt: int
    number: int
    waiting_since_us: int


class Relay:
    """Sends what an outbox holds. Run as many as you like; each needs an `owner` of its own."""

    def __init__(
        self,
        outbox: Outbox,
        database: Database,
        *,
        send: Callable[[Message], object],
        owner: str,
        claim_life_s: float,
        attempts_limit: int = 8,
        first_wait_s: float = 1.0,
        longest_wait_s: float = 600.0,
        clock: Clock | None = None,
    ) -> None:
        """`send` returns when the receiver has acknowledged; it is called outside a transaction.

        `claim_life_s` has no default: longer than the longest send, time-out included.
        """
        check_name("owner", owner)
        if claim_life_s <= 0 or attempts_limit < 1 or not 0 < first_wait_s <= longest_wait_s:
            raise BadInput(
                f"claim_life_s={claim_life_s}, attempts_limit={attempts_limit}, first_wait_s="
                f"{first_wait_s}, longest_wait_s={longest_wait_s}: a claim must live, a message "
                "needs an attempt, and waits go from short to long."
            )
        self._outbox = outbox
        self._database = database
        self._send = send
        self._owner = owner
        self._claim_life_us = round(claim_life_s * 1_000_000)
        self._attempts_limit = attempts_limit
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        self._clock = clock or SystemClock()

    def run_once(self) -> Attempt | None:
        """Claim the message that has been due longest, send it, mark it. None if none is due.

        What `send` raises is noted and not raised, apart from KeyboardInterrupt and its like:
        those leave the claim to end by itself, since nobody knows what was sent.
        """
        claim = self._claim()
        if claim is None:
            return None
        crash_point.reached(AFTER_CLAIM)
        try:
            body = self._outbox.decode(claim.body)
            self._send(
                Message(claim.message_id, claim.topic, claim.key, body, attempt=claim.attempt)
            )
        except Exception as error:
            return self._mark_failed(claim, error)
        # A crash here has sent the message, and nobody knows: it is sent again with the same id.
        crash_point.reached(AFTER_SEND)
        return self._mark(claim, "delivered", ended_at_us=self._clock.now_us())

    def run(self, *, stop: threading.Event, poll_s: float = 1.0) -> None:
        """Send until `stop` is set; look every `poll_s` seconds while there is nothing to do."""
        while not stop.is_set():
            if self.run_once() is None:
                stop.wait(poll_s)

    # -- claiming ----------------------------------------------------------------------------

    def _claim(self) -> _Claim | None:
        with self._database.write() as tx:
            while (row := self._next_due(tx)) is not None:
                message_id, topic, key, body, waiting_since_us, claims, attempts = row
                if attempts < self._attempts_limit:
                    tx.execute(
                        """
                        UPDATE outbox
                           SET owner = :owner, due_at_us = :until_us,
                               claims = claims + 1, attempts = attempts + 1
                         WHERE message_id = :message_id
                        """,
                        owner=self._owner,
                        until_us=self._clock.now_us() + self._claim_life_us,
                        message_id=message_id,
                    )
                    return _Claim(
                        message_id, topic, key, body, attempts + 1, claims + 1, waiting_since_us
                    )
                # Its last attempt was claimed and never marked.
                tx.execute(
                    """
                    UPDATE outbox
                       SET status = 'dead', ended_at_us = :now_us, last_error = :error
                     WHERE message_id = :message_id
                    """,
                    now_us=self._clock.now_us(),
                    error=f"attempt {attempts} had no end: its relay died, or slept too long",
                    message_id=message_id,
                )
        return None

    def _next_due(self, tx: Tx) -> Any | None:
        """The row that has been due longest among the first of their keys.

        SQLite's write lock makes relays take turns. On PostgreSQL they look at the same time: FOR
        UPDATE keeps a second one from the row until this transaction ends, and SKIP LOCKED lets it
        take the next one instead of waiting. A row that was claimed between its look and its lock
        is checked against the WHERE clause again, and is due no longer.
        """
        return tx.row(
            f"""
            SELECT message_id, topic, ordering_key, body, waiting_since_us, claims, attempts
              FROM outbox AS mine
             WHERE status = 'waiting'
               AND due_at_us <= :now_us
               AND NOT EXISTS (SELECT 1
                                 FROM outbox AS earlier
                                WHERE earlier.ordering_key = mine.ordering_key
                                  AND earlier.status = 'waiting'
                                  AND earlier.position < mine.position)
             ORDER BY due_at_us, position
             LIMIT 1
             {"" if tx.is_sqlite else "FOR UPDATE SKIP LOCKED"}
            """,
            now_us=self._clock.now_us(),
        )

    # -- marking -----------------------------------------------------------------------------

    def _mark_failed(self, claim: _Claim, error: Exception) -> Attempt:
        now_us = self._clock.now_us()
        reason = f"{type(error).__name__}: {error}".replace("\0", "?")
        reason = reason.encode(errors="replace").decode()  # PostgreSQL takes any text but these
        blameless = isinstance(error, NotSent | ConnectionRefusedError)
        if isinstance(error, Refused) or (claim.attempt >= self._attempts_limit and not blameless):
            return self._mark(claim, "dead", ended_at_us=now_us, error=reason)
        age_s = (now_us - claim.waiting_since_us) / 1_000_000
        wait_s = min(max(age_s, self._first_wait_s), self._longest_wait_s)
        return self._mark(
            claim,
            "waiting",
            due_at_us=now_us + round(wait_s * 1_000_000),
            attempts=claim.attempt - int(blameless),
            error=reason,
        )

    def _mark(
        self,
        claim: _Claim,
        status: Literal["delivered", "waiting", "dead"],
        *,
        ended_at_us: int | None = None,
        due_at_us: int | None = None,
        attempts: int | None = None,
        error: str = "",
    ) -> Attempt:
        with self._database.write() as tx:
            marked = tx.execute(
                """
                UPDATE outbox
                   SET status = :status, ended_at_us = :ended_at_us, last_error = :error,
                       due_at_us = COALESCE(:due_at_us, due_at_us),
                       attempts = COALESCE(:attempts, attempts)
                 WHERE message_id = :message_id
                   AND status = 'waiting'
                   AND owner = :owner
                   AND claims = :number
                """,
                status=status,
                ended_at_us=ended_at_us,
                error=error or None,
                due_at_us=due_at_us,
                attempts=attempts,
                message_id=claim.message_id,
                owner=self._owner,
                number=claim.number,
            )
        if marked.rowcount != 1:
            return Attempt(claim.message_id, "claim lost", claim.attempt, error)
        crash_point.reached(AFTER_MARK)
        outcome: Literal["delivered", "waits", "dead"] = "waits" if status == "waiting" else status
        return Attempt(claim.message_id, outcome, claim.attempt, error)
