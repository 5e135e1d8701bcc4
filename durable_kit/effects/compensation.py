"""Undoing what happened, by doing something else.

Going back to an older checkpoint takes back what the agent *knows*. The customer still misses the
money. What undoes a charge is a refund: a new effect, in a direction of its own, which can fail, be
lost and be sent twice like any other:

    charge ─ receipt ─ …the order is cancelled… ─ refund ─ ✗ killed
    resumed                                       refund          the customer is paid twice

So the undo goes through the gateway as well, with a key that is made from the first one's: whoever
asks for it, from whatever branch of a thread, and however often, it happens once. The receipt of
the first effect stays as it is. It did happen, and its key stays used: a replay of the charge after
the refund finds the receipt and does not charge again.

What must not be undone is what may not have happened. A refund of a charge that nobody saw pays
money out for nothing, so an effect that is in doubt, or still being sent, is settled first.

Left out: undoing several effects in their reverse order, and an undo that can only be partial.
That is the business's to decide; here each undo is once.
"""

from __future__ import annotations

from typing import Any

from durable_kit.effects.gateway import IdempotentGateway
from durable_kit.effects.receipt import Receipt, Status
from durable_kit.effects.steps import Function
from durable_kit.errors import DurableKitError


class NothingToUndo(DurableKitError):
    """The effect has not succeeded (yet). Nothing was sent; settle it first."""


def compensate(
    gateway: IdempotentGateway,
    *,
    undoes: str,
    request: Any,
    effect: Function,
    lookup: Function | None = None,
    name: str = "undo",
    thread_id: str | None = None,
) -> Receipt:
    """Undo the effect with the key `undoes`, once, by the business action `effect`.

    `request`, `effect` and `lookup` are as for `IdempotentGateway.call`, and so are the errors.
    `name` tells one undo from another ("refund", "cancel the shipment").

    Raises `NothingToUndo` unless the receipt of the first effect says that it succeeded.
    """
    _check_it_happened(gateway, undoes)
    return gateway.call(
        idempotency_key=compensation_key(undoes, name),
        request=request,
        effect=effect,
        lookup=lookup,
        thread_id=thread_id,
    )


async def acompensate(
    gateway: IdempotentGateway,
    *,
    undoes: str,
    request: Any,
    effect: Function,
    lookup: Function | None = None,
    name: str = "undo",
    thread_id: str | None = None,
) -> Receipt:
    """`compensate` for coroutines."""
    _check_it_happened(gateway, undoes)
    return await gateway.acall(
        idempotency_key=compensation_key(undoes, name),
        request=request,
        effect=effect,
        lookup=lookup,
        thread_id=thread_id,
    )


def compensation_key(undoes: str, name: str = "undo") -> str:
    """The key of the undo called `name` of the effect with the key `undoes`."""
    return f"{name} of {undoes}"


def _check_it_happened(gateway: IdempotentGateway, undoes: str) -> None:
    first = gateway.receipt(undoes)
    if first is None or first.status is not Status.SUCCEEDED:
        status = "not known" if first is None else first.status.value
        act = "Settle it first: call it again, reconcile() or decide()."
        if status == Status.FAILED:
            act = "It had no effect: there is nothing to undo."
        raise NothingToUndo(f"key {undoes} is {status}. {act}")
