"""Two systems cannot commit together. So write the message where the state is.

An order is stored, and a mail must go out. Whichever comes first, a crash between the two leaves
half of it:

    commit the order ──✗                     no mail, and nobody knows that one is missing
    send the mail ──✗                        a mail about an order that was never stored

An outbox makes one of the two. The message becomes a row, written in the transaction of what it
tells about; a `Relay` (relay.py) reads the rows and sends them, later, until it has an answer:

    with database.write() as tx:                             commit: order and message, or neither
        store(tx, order)                                       │
        outbox.enqueue(tx, message_id="mail:order-1001", …)    ▼
                                                  relay: claim ─ send ─ mark
                                                                     ✗ killed: sent, and not marked
                                                  relay: claim ─ send ─ mark      the same id again

**Promised.** A message whose transaction commits is sent at least once, or ends as a dead letter
that a person can read and `redrive`. Every attempt carries the same `message_id`, so a receiver
that remembers ids takes it once (`inbox.py`, or the receiver's own idempotency key): attempts at
least once, the effect effectively once. Messages with the same `key` are sent in the order of
their commits. A node that is replayed and enqueues the same id again adds nothing.

**How rows that commit late are found.** Numbers are given out when a row is written, not when it
is committed. A relay that remembers "I have read up to 2" never sees a row 1 that commits after:

    A   insert 1 ──────────────────────── commit
    B             insert 2 ── commit
    relay                          reads 2, remembers "2"         reads what is above 2: nothing

So no relay remembers a number. Whether a row is to be sent is a column of the row itself, and
every look begins at nothing. Within one key order needs more: `enqueue` lets a second
transaction of the same key wait for the end of the first, so that numbers follow commits.

**What it costs.** One row and one later update per message, and transactions that write messages
of one key queue behind each other; keep them short. Two transactions that write two keys in
opposite order can deadlock on PostgreSQL: one gets `StorageBusy`, try again.

**Left out.** No order between keys. A dead letter is a gap in its key: the messages behind it go
on, and when it is redriven it comes late. `forget_delivered` forgets ids too: an id that is
enqueued after that is a new message.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from durable_kit.clock import Clock, SystemClock
from durable_kit.effects.outcomes import IdempotencyConflict
from durable_kit.errors import BadInput, UnloadableValue
from durable_kit.storage.codec import Codec
from durable_kit.storage.database import Database, Tx


@dataclass(frozen=True, slots=True)
class Message:
    """What a relay hands to `send`. `attempt` is 1 for the first one; the id never changes."""

    message_id: str
    topic: str
    key: str
    body: Any
    attempt: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that nobody tries any more, and why. `Outbox.redrive` gives it another chance.

    `message.body` is the `UnloadableValue` itself where the body cannot be loaded: one bad letter
    must not hide the others.
    """

    message: Message
    error: str
    died_at_us: int


class Outbox:
    """The rows. Safe to share between OS threads; a relay needs one with the same codec."""

    def __init__(self, *, codec: Codec | None = None, clock: Clock | None = None) -> None:
        self._codec = codec or Codec()
        self._clock = clock or SystemClock()

    def enqueue(self, tx: Tx, *, message_id: str, topic: str, key: str, body: Any) -> bool:
        """Write a message in the caller's transaction. False if this very message is there.

        `message_id` names the logical message, not the attempt: derive it from what happened
        ("mail:order-1001"), so that a node that runs again writes nothing new. `key` is what order
        is kept within ("order-1001"). `body` comes back equal or is refused here.

        Raises `IdempotencyConflict` when the id was used for another message, `UnstorableValue`
        for a body that would not come back. Other transactions that write messages of this key wait
        until the caller's has ended.
        """
        for name, text in (("message_id", message_id), ("topic", topic), ("key", key)):
            check_name(name, text)
        encoded = self._codec.encode(body, path="body")
        if not tx.is_sqlite:
            # Numbers must follow commits within a key. SQLite has one writer at a time anyway.
            tx.execute("SELECT pg_advisory_xact_lock(:lock)", lock=_lock_of(key))
        now_us = self._clock.now_us()
        added = tx.execute(
            """
            INSERT INTO outbox (message_id, topic, ordering_key, body, status,
                                waiting_since_us, due_at_us, claims, attempts)
            VALUES (:message_id, :topic, :key, :body, 'waiting', :now_us, :now_us, 0, 0)
            ON CONFLICT (message_id) DO NOTHING
            """,
            message_id=message_id,
            topic=topic,
            key=key,
            body=encoded,
            now_us=now_us,
        )
        if added.rowcount == 1:
            return True
        known = tx.row(
            "SELECT topic, ordering_key, body, status FROM outbox WHERE message_id = :message_id",
            message_id=message_id,
        )
        wanted = {"topic": topic, "key": key, "body": encoded}
        found = (
            {} if known is None else dict(zip(wanted, (*known[:2], bytes(known[2])), strict=True))
        )
        if found != wanted:
            raise IdempotencyConflict(
                idempotency_key=message_id,
                status=known[3] if known is not None else "gone",
                difference=", ".join(name for name in wanted if found.get(name) != wanted[name]),
            )
        return False

    def dead_letters(self, database: Database) -> list[DeadLetter]:
        """Every dead letter, the oldest death first."""
        with database.read() as tx:
            found = tx.rows(
                """
                SELECT message_id, topic, ordering_key, body, attempts, last_error, ended_at_us
                  FROM outbox
                 WHERE status = 'dead'
                 ORDER BY ended_at_us, position
                """
            )
        letters = []
        for message_id, topic, key, body, attempts, error, died_at_us in found:
            try:
                value = self.decode(body)
            except UnloadableValue as unloadable:
                value = unloadable
            message = Message(message_id, topic, key, value, attempts)
            letters.append(DeadLetter(message, error, died_at_us))
        return letters

    def redrive(self, database: Database, message_id: str) -> bool:
        """Let a dead letter wait again, with all its attempts and its old id. False if it is none.

        It is due at once, before whatever waits in its key, and after what has overtaken it.
        """
        with database.write() as tx:
            revived = tx.execute(
                """
                UPDATE outbox
                   SET status = 'waiting', attempts = 0, ended_at_us = NULL,
                       waiting_since_us = :now_us, due_at_us = :now_us
                 WHERE message_id = :message_id AND status = 'dead'
                """,
                message_id=message_id,
                now_us=self._clock.now_us(),
            )
            return bool(revived.rowcount == 1)

    def forget_delivered(self, database: Database, *, older_than_s: float) -> int:
        """Delete messages that were delivered longer ago than that; how many there were.

        Keep them longer than any thread may sleep: a node that is replayed after that enqueues
        its message once more, and then only the receiver's memory is left.
        """
        with database.write() as tx:
            forgotten = tx.execute(
                "DELETE FROM outbox WHERE status = 'delivered' AND ended_at_us < :before_us",
                before_us=self._clock.now_us() - round(older_than_s * 1_000_000),
            )
            return int(forgotten.rowcount)

    def decode(self, body: bytes) -> Any:
        """The body of a row. Raises `UnloadableValue` when its class is gone."""
        return self._codec.decode(bytes(body))


def check_name(name: str, text: str) -> None:
    """Raise `BadInput` for what is no name in both databases: empty text, NUL, a lone surrogate."""
    if not text or "\0" in text:
        raise BadInput(f"{name} is {text!r}; give a text that is not empty and has no NUL.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{name} is {text!r}; it holds a lone surrogate.") from None


def _lock_of(key: str) -> int:
    """An advisory lock's number for a key. Two keys with one number only wait for each other."""
    digest = hashlib.sha256(b"durable_kit.outbox\0" + key.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
