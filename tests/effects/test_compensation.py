"""A refund is an effect of its own: it can be lost and repeated like a charge, and must not be."""

from __future__ import annotations

from typing import Any

import pytest

from durable_kit import (
    Database,
    FakeClock,
    Found,
    IdempotencyConflict,
    IdempotentGateway,
    InDoubt,
    Refused,
)
from durable_kit.effects.compensation import NothingToUndo, compensate, compensation_key
from durable_kit.effects.receipt import Status
from durable_kit.lab.provider import Provider

KEY = "charge:order-1001"
REQUEST = {"order_id": "order-1001", "amount_cents": 4999}


@pytest.fixture
def pay(database: Database, clock: FakeClock) -> IdempotentGateway:
    return IdempotentGateway(database, tool_name="payments", wait_s=0, clock=clock)


def test_an_effect_is_undone_once_from_wherever_it_is_asked(pay: IdempotentGateway) -> None:
    refunds = []
    first = pay.call(idempotency_key=KEY, request=REQUEST, effect=lambda intent: "charge-1")

    def refund() -> Any:
        return compensate(
            pay,
            undoes=KEY,
            request={**REQUEST, "charge": first.response},
            effect=lambda intent: refunds.append(intent) or "refund-1",  # type: ignore[func-returns-value]
            name="refund",
        )

    assert refund() == refund()
    assert [intent.request["charge"] for intent in refunds] == ["charge-1"]
    assert pay.receipt(KEY) == first, "it did happen: the receipt of the charge stays"
    assert pay.call(idempotency_key=KEY, request=REQUEST, effect=refund).replayed
    with pytest.raises(IdempotencyConflict):
        compensate(pay, undoes=KEY, request={}, effect=lambda intent: 1, name="refund")


def test_a_lost_reply_of_a_refund_is_not_refunded_again(pay: IdempotentGateway) -> None:
    """With a real provider, which has the last word."""
    with Provider.start(honours_keys=False, lookup=True) as provider:
        client = provider.client()
        pay.call(
            idempotency_key=KEY,
            request=REQUEST,
            effect=lambda intent: client.charge(**intent.request).id,
        )
        half = {**REQUEST, "amount_cents": 1000}

        def naive() -> None:
            client.refund(**half)

        def once(**more: Any) -> Any:
            return compensate(
                pay,
                undoes=KEY,
                request=half,
                effect=lambda intent: client.refund(**intent.request, key=KEY).id,
                **more,
            )

        provider.fail_next("lost_reply", of="refund")
        with pytest.raises(InDoubt):
            once()
        with pytest.raises(InDoubt):
            once()
        assert len(provider.refunds()) == 1
        found = once(lookup=lambda intent: Found(client.find(key=KEY)[-1].id))
        assert found.response == "refund-2"
        assert len(provider.refunds()) == 1
        provider.fail_next("lost_reply", of="refund")
        for _ in range(2):
            try:
                naive()
            except Exception as error:
                assert type(error).__name__ == "OutcomeUnknown"  # noqa: PT017
        assert len(provider.refunds()) == 3, "retried without a gateway, it is paid twice"


def test_what_has_not_happened_for_sure_is_not_undone(pay: IdempotentGateway) -> None:
    refunds: list[Any] = []

    def lost(intent: Any) -> None:
        raise TimeoutError

    def refused(intent: Any) -> None:
        raise Refused("declined")

    for key, effect, says in [
        ("lost", lost, "Settle it first"),
        ("no", refused, "nothing to undo"),
    ]:
        with pytest.raises((InDoubt, Refused)):
            pay.call(idempotency_key=key, request=1, effect=effect)
        with pytest.raises(NothingToUndo, match=says):
            compensate(pay, undoes=key, request=1, effect=refunds.append)
        assert pay.receipt(compensation_key(key)) is None
    with pytest.raises(NothingToUndo, match="not known"):
        compensate(pay, undoes="never", request=1, effect=refunds.append)
    assert refunds == []
    pay.decide(idempotency_key="lost", verdict=Found("it happened"), by="ada")
    assert compensate(pay, undoes="lost", request=1, effect=refunds.append).status is (
        Status.SUCCEEDED
    )
    assert len(refunds) == 1
