"""A relay in the clothes of an agent, so that the crash lab can kill it at a named point.

    shop     one transaction: the order, and the message about it
    relay    claim ─ send ─ ✗ killed        claim ─ send again, the same id ─ mark
    provider          e-mail, id noted               the id is known: nothing new

One node sends whatever is in the outbox of the saver's database until nothing waits any more. A
resumed relay therefore waits for the dead one's claim to run out (`CLAIM_LIFE_S`), as any relay
does. The message's id is the provider's idempotency key.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, TypedDict

from langgraph.graph import START, StateGraph

from durable_kit.effects.outbox import Message, Outbox
from durable_kit.effects.relay import Relay
from durable_kit.lab.provider_client import ProviderClient
from durable_kit.storage.database import Database

CLAIM_LIFE_S = 0.3
_POLL_S = 0.02


class Nothing(TypedDict, total=False):
    """The state of a relay: it lives in the outbox."""

    unused: str


@dataclass(frozen=True, slots=True)
class RelayAgent:
    """`agent(saver)` is a graph of one node that drains the outbox."""

    provider_url: str

    def __call__(self, saver: Any) -> Any:
        def drain(state: Nothing) -> Nothing:
            relay = Relay(
                Outbox(), saver.database, send=self._send, owner="relay", claim_life_s=CLAIM_LIFE_S
            )
            while waiting(saver.database):
                if relay.run_once() is None:
                    threading.Event().wait(_POLL_S)  # somebody's claim has to run out first
            return {}

        builder: Any = StateGraph(Nothing)
        builder.add_node("drain", drain)
        builder.add_edge(START, "drain")
        return builder.compile(checkpointer=saver)

    def _send(self, message: Message) -> None:
        client = ProviderClient(self.provider_url)
        client.send_email(message.key, **message.body, key=message.message_id)


def waiting(database: Database) -> int:
    """How many messages of the outbox have not come to an end."""
    with database.read() as tx:
        row = tx.row("SELECT count(*) FROM outbox WHERE status = 'waiting'")
    assert row is not None
    return int(row[0])
