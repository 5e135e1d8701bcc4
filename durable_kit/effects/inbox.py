"""The receiver's half of an outbox: take a message once.

A relay that dies between sending and marking sends again. It cannot know better: the answer is lost
with it. Whoever receives can know, if it remembers the id in the same transaction as what it does:

    relay      send mail:1001 ──✗ killed                 send mail:1001 again ── mark
    consumer   take_once: True, stock - 1, commit        take_once: False, nothing to do

Remembering in a transaction of its own is the old mistake again, one house further: a crash
between "seen" and "done" loses the message.

Left out: a receiver that has no database to join (a mail server) needs a key of its own, or gets
the message twice. The memory is never cleaned up here; delete rows older than the longest time
after which a relay may still send (`redrive` has no limit).
"""

from __future__ import annotations

from durable_kit.clock import Clock, SystemClock
from durable_kit.effects.outbox import check_name
from durable_kit.storage.database import Tx


def take_once(tx: Tx, *, consumer: str, message_id: str, clock: Clock | None = None) -> bool:
    """True the first time that `consumer` takes this message, if the transaction commits.

    Two transactions that take one message at the same time: the second waits for the first, and
    is told False only if that one has committed.
    """
    check_name("consumer", consumer)
    check_name("message_id", message_id)
    added = tx.execute(
        """
        INSERT INTO inbox (consumer, message_id, taken_at_us)
        VALUES (:consumer, :message_id, :now_us)
        ON CONFLICT (consumer, message_id) DO NOTHING
        """,
        consumer=consumer,
        message_id=message_id,
        now_us=(clock or SystemClock()).now_us(),
    )
    return bool(added.rowcount == 1)
