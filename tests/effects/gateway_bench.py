"""What the tests of the gateway share: a bank that fails as told, and a gateway on a fake clock."""

from __future__ import annotations

from typing import Any

import pytest

from durable_kit import (
    Database,
    FakeClock,
    IdempotentGateway,
)
from durable_kit.effects.receipt import Intent

KEY = "charge:order-1001"
REQUEST = {"order_id": "order-1001", "amount_cents": 4999}
DAY_S = 86_400


class Bank:
    """An effect that can be told how to fail, and counts."""

    def __init__(self) -> None:
        self.seen: list[Intent] = []
        self.error: BaseException | None = None

    def __call__(self, intent: Intent) -> Any:
        self.seen.append(intent)
        if self.error is not None:
            raise self.error
        return {"id": f"charge-{len(self.seen)}"}


def gateway(database: Database, clock: FakeClock, **settings: Any) -> IdempotentGateway:
    given = {"tool_name": "payments", "wait_s": 0, **settings}
    return IdempotentGateway(database, clock=clock, **given)


def left_by_a_dead_owner(database: Database, clock: FakeClock, **call: Any) -> None:
    """A call whose process died while it was sending: `started`, and nobody will report."""

    class Died(BaseException):
        pass

    dying = gateway(database, clock, owner="dead")
    books: Any = dying._books
    books.doubt = lambda row, detail: (_ for _ in ()).throw(
        Died
    )  # the note is what a kill prevents

    def effect(intent: Intent) -> None:
        raise TimeoutError

    with pytest.raises(Died):
        dying.call(**{"idempotency_key": KEY, "request": REQUEST, "effect": effect, **call})


def raising(error: Exception) -> Any:
    def raises(intent: Intent) -> Any:
        raise error

    return raises


def graph_interrupt() -> Exception:
    from langgraph.errors import GraphInterrupt

    return GraphInterrupt()
