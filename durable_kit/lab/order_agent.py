"""The order agent: the smallest agent that can hurt somebody.

                 ┌─▶ stock ────┐
    prepare ─────┤             ├──▶ charge ──▶ notify
                 └─▶ discount ─┘       │          │
                                       ▼          ▼
                                    provider: money, e-mail

Four super-steps; the second has two parallel branches, a quick one and a slow one. `charge` and
`notify` act on a provider in another process (`provider.py`), and there lie the two windows that
the course is about:

    charge ── provider has the money ── ✗ ── return ── checkpoint "charged"
                                        └ AFTER_CHARGE: the agent's database knows nothing

Whether a resumed run charges again is up to how it asks:

    key="none"    no idempotency key                  charges again
    key="order"   charge:<order id>                   the provider recognises it
    key="fresh"   a new key for each attempt          charges again, although it has a key

The agent is a value: it travels to another process as it is, and there `agent(saver)` builds the
graph. That is what `crash.trial` asks for.
"""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from langgraph.graph import END, START, StateGraph

from durable_kit import crash_point
from durable_kit.lab.provider_client import ProviderClient
from durable_kit.lab.scripted_model import ScriptedModel

AFTER_CHARGE, AFTER_EMAIL = "charge.after_effect", "notify.after_effect"
"""Crash points between an effect and the return of its node."""

NODES = ("prepare", "stock", "discount", "charge", "notify")
DISCOUNT_PERCENT = 10


class OrderState(TypedDict, total=False):
    """What the agent knows of its order. `notes` grows by one text a node."""

    order_id: str
    amount_cents: int
    in_stock: bool
    discount_cents: int
    charge_id: str
    email_id: str
    notes: Annotated[list[str], operator.add]


def order(order_id: str = "order-1001", *, amount_cents: int = 5000) -> OrderState:
    """The input of a run."""
    return {"order_id": order_id, "amount_cents": amount_cents, "notes": []}


@dataclass(frozen=True, slots=True)
class OrderAgent:
    """`agent(saver)` is the compiled graph. `model` sets the time of a step and its bytes."""

    provider_url: str
    key: Literal["none", "order", "fresh"] = "none"
    model: Callable[[str], str] = field(default_factory=ScriptedModel)
    timeout_s: float = 10.0

    def __call__(self, saver: Any) -> Any:
        builder: Any = StateGraph(OrderState)
        for name in NODES:
            builder.add_node(name, getattr(self, f"_{name}"))
        builder.add_edge(START, "prepare")
        for branch in ("stock", "discount"):
            builder.add_edge("prepare", branch)
        builder.add_edge(["stock", "discount"], "charge")
        builder.add_edge("charge", "notify")
        builder.add_edge("notify", END)
        return builder.compile(checkpointer=saver)

    def _prepare(self, state: OrderState) -> OrderState:
        return {"notes": [self.model(f"prepare {state['order_id']}")]}

    def _stock(self, state: OrderState) -> OrderState:
        return {"in_stock": True, "notes": ["on the shelf"]}  # no model is asked: quick

    def _discount(self, state: OrderState) -> OrderState:
        off_cents = state["amount_cents"] * DISCOUNT_PERCENT // 100
        return {"discount_cents": off_cents, "notes": [self.model(f"{off_cents} cents off")]}

    def _charge(self, state: OrderState) -> OrderState:
        note = self.model(f"charge {state['order_id']}")
        reply = self._client().charge(
            state["order_id"],
            amount_cents=state["amount_cents"] - state["discount_cents"],
            key=self._key("charge", state),
        )
        # A crash here has taken the money, and no checkpoint says so.
        crash_point.reached(AFTER_CHARGE)
        return {"charge_id": reply.id, "notes": [note]}

    def _notify(self, state: OrderState) -> OrderState:
        text = self.model(f"thank for {state['order_id']}")
        reply = self._client().send_email(
            state["order_id"], to="ada@example.org", text=text, key=self._key("email", state)
        )
        # A crash here has sent the e-mail, and no checkpoint says so.
        crash_point.reached(AFTER_EMAIL)
        return {"email_id": reply.id, "notes": [text]}

    def _key(self, effect: str, state: OrderState) -> str | None:
        if self.key == "none":
            return None
        return f"{effect}:{state['order_id'] if self.key == 'order' else uuid.uuid4()}"

    def _client(self) -> ProviderClient:
        return ProviderClient(self.provider_url, timeout_s=self.timeout_s)
