"""A relay in a process of its own, to be killed or stopped.

    python -m tests.anomalies.relay_worker URL OWNER CLAIM_LIFE_S BOOK RECEIVER

RECEIVER is careful, careless, wait-in-send, or careful-for-ever, which sends until it is killed.
It keeps two books. BOOK is a file with a line for each attempt that has arrived, safe on
the disk. The table `shipments` is what the receiver did: one row for each message that it took
for the first time, by `take_once` in the same transaction. A careless one does not ask.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from durable_kit.crash.child import stand_by, stay_no_longer_than_the_parent
from durable_kit.effects.inbox import take_once
from durable_kit.effects.outbox import Message, Outbox
from durable_kit.effects.relay import Relay
from durable_kit.storage.database import Database

IN_SEND, ANSWERED = "in the middle of a send", "the attempt ended: "
NOTHING = "nothing was due"


def receive(database: Database, book: Path, message: Message, *, careful: bool = True) -> None:
    """Note the attempt, and do what the message asks for; a `careful` receiver does it once."""
    with book.open("a") as file:
        file.write(f"{message.message_id} {message.attempt}\n")
        file.flush()
        os.fsync(file.fileno())
    with database.write() as tx:
        if not careful or take_once(tx, consumer="shop", message_id=message.message_id):
            tx.execute("INSERT INTO shipments (message_id) VALUES (:id)", id=message.message_id)


def main() -> None:
    url, owner, claim_life_s, book, receiver = sys.argv[1:]
    stay_no_longer_than_the_parent()

    def send(message: Message) -> None:
        if receiver == "wait-in-send":
            stand_by(IN_SEND)
            raise TimeoutError("no answer in time")
        receive(database, Path(book), message, careful=receiver != "careless")

    with Database.open(url) as database:
        relay = Relay(Outbox(), database, send=send, owner=owner, claim_life_s=float(claim_life_s))
        while True:
            attempt = relay.run_once()
            print(f"{ANSWERED}{attempt.outcome if attempt else NOTHING}", flush=True)
            if receiver != "careful-for-ever":
                break
            if attempt is None:
                time.sleep(0.02)


if __name__ == "__main__":
    main()
