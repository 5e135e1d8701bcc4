"""The gateway on an event loop: no hang, no second effect, and a cancelled await loses nothing."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from durable_kit import (
    BadInput,
    Contract,
    Database,
    Found,
    IdempotentGateway,
    InDoubt,
    InProgress,
    NotSent,
    Receipt,
)
from durable_kit.effects.compensation import acompensate, compensate
from durable_kit.effects.receipt import Intent, Status
from tests.anomalies.test_event_loop import in_a_loop

KEY = "charge:order-1001"


@pytest.fixture
def pay(database: Database) -> IdempotentGateway:
    return IdempotentGateway(database, tool_name="payments", wait_s=2)


def test_20_coroutines_with_one_key_have_one_effect(pay: IdempotentGateway) -> None:
    sent = []

    async def effect(intent: Intent) -> str:
        sent.append(intent)
        await asyncio.sleep(0.02)
        return "paid"

    async def all_at_once() -> list[Receipt]:
        calls = [pay.acall(idempotency_key=KEY, request=1, effect=effect) for _ in range(20)]
        return list(await asyncio.gather(*calls))

    got = in_a_loop(all_at_once)
    assert len(sent) == 1
    assert len(set(map(repr, got))) == 2, "one has sent it, the others were answered"
    assert sum(not receipt.replayed for receipt in got) == 1
    assert all(receipt == got[0] for receipt in got)


def test_an_async_call_takes_plain_functions_and_coroutines(pay: IdempotentGateway) -> None:
    where = contextvars.ContextVar("where", default="nowhere")
    seen: dict[str, Any] = {}

    def plain(intent: Intent) -> str:
        seen["plain"] = (where.get(), threading.current_thread() is threading.main_thread())
        return "plain"

    async def coroutine(intent: Intent) -> str:
        seen["coroutine"] = (where.get(), asyncio.current_task() is not None)
        return "coroutine"

    async def work() -> None:
        where.set("here")
        for name, effect in {
            "plain": plain,
            "coroutine": coroutine,
            "returns one": lambda intent: coroutine(intent),
        }.items():
            receipt = await pay.acall(idempotency_key=name, request=1, effect=effect)
            assert receipt.response in ("plain", "coroutine")

    in_a_loop(work)
    assert seen == {"plain": ("here", False), "coroutine": ("here", True)}


def test_an_async_lookup_is_awaited(pay: IdempotentGateway) -> None:
    async def effect(intent: Intent) -> None:
        raise TimeoutError

    async def lookup(intent: Intent) -> Found:
        await asyncio.sleep(0)
        return Found("found")

    async def work() -> None:
        call: Any = {"request": 1, "effect": effect}
        found = await pay.acall(idempotency_key=KEY, **call, lookup=lookup)
        assert found.response == "found"
        with pytest.raises(InDoubt):
            await pay.acall(idempotency_key="2", **call)
        [left] = await pay.areconcile()
        assert left.idempotency_key == "2"
        assert await pay.areconcile(lookup) == ()

    in_a_loop(work)
    found = pay.receipt("2")
    assert found is not None
    assert found.response == "found"


def test_a_coroutine_given_to_the_sync_call_is_not_run_and_not_in_doubt(
    pay: IdempotentGateway,
) -> None:
    ran = []

    async def effect(intent: Intent) -> None:
        ran.append(intent)

    for function in (effect, lambda intent: effect(intent)):
        with pytest.raises(NotSent, match=r"acall\(\)"):
            pay.call(idempotency_key=KEY, request=1, effect=function)
    assert ran == []
    assert pay.call(idempotency_key=KEY, request=1, effect=lambda intent: 1).response == 1


def test_giving_up_the_wait_does_not_give_up_the_effect(pay: IdempotentGateway) -> None:
    sent = []

    async def work() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def effect(intent: Intent) -> str:
            sent.append(intent)
            begun.set()
            await go_on.wait()
            return "paid"

        call = asyncio.ensure_future(pay.acall(idempotency_key=KEY, request=1, effect=effect))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        during = pay.receipt(KEY)
        assert during is not None
        assert (during.status, during.failure) == (Status.STARTED, None)
        go_on.set()
        receipt = await pay.acall(idempotency_key=KEY, request=1, effect=effect)
        assert (receipt.response, receipt.attempt) == ("paid", 1)

    in_a_loop(work)
    assert len(sent) == 1


def test_a_call_that_is_cancelled_while_it_waits_never_sends(pay: IdempotentGateway) -> None:
    """The one it waits for turns out not to have been sent; the cancelled one must not step in."""
    sent = []

    async def work() -> None:
        begun, fail = asyncio.Event(), asyncio.Event()

        async def not_sent(intent: Intent) -> None:
            begun.set()
            await fail.wait()
            raise NotSent("the provider was not reached")

        async def effect(intent: Intent) -> None:
            sent.append(intent)

        first = asyncio.ensure_future(pay.acall(idempotency_key=KEY, request=1, effect=not_sent))
        await begun.wait()
        waiting = asyncio.ensure_future(pay.acall(idempotency_key=KEY, request=1, effect=effect))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        fail.set()
        with pytest.raises(NotSent):
            await first
        from durable_kit.effects import steps

        while steps._RUNNING:
            await asyncio.sleep(0.01)

    in_a_loop(work)
    assert sent == []
    found = pay.receipt(KEY)
    assert found is not None
    # It may have taken the next attempt before it heard that it was cancelled, and gave it back.
    assert found.status in (Status.FAILED, Status.REQUESTED)
    assert found.attempt == 1


def test_the_end_of_the_loop_leaves_an_effect_in_doubt_and_not_unnoticed(
    pay: IdempotentGateway,
) -> None:
    sent = []

    async def effect(intent: Intent) -> None:
        sent.append(intent)
        await asyncio.Event().wait()

    async def work() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pay.acall(idempotency_key=KEY, request=1, effect=effect), 0.3)

    in_a_loop(work)
    found = pay.receipt(KEY)
    assert found is not None
    assert found.status is Status.UNKNOWN
    assert "CancelledError" in found.detail
    with pytest.raises(InDoubt):
        pay.call(idempotency_key=KEY, request=1, effect=lambda intent: sent.append(intent))
    assert len(sent) == 1


def test_ctrl_c_in_an_effect_passes_through_and_is_in_doubt(pay: IdempotentGateway) -> None:
    def effect(intent: Intent) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pay.call(idempotency_key=KEY, request=1, effect=effect)
    with pytest.raises(InDoubt, match="KeyboardInterrupt"):
        pay.call(idempotency_key=KEY, request=1, effect=effect)


def test_an_await_inside_a_write_transaction_is_refused_instead_of_waiting_for_itself(
    pay: IdempotentGateway, database: Database
) -> None:
    async def work() -> None:
        with database.write(), pytest.raises(BadInput, match="transaction"):
            await pay.acall(idempotency_key=KEY, request=1, effect=lambda intent: 1)

    in_a_loop(work)
    assert pay.receipt(KEY) is None


def test_every_sync_method_works_inside_a_running_loop(database: Database) -> None:
    pay = IdempotentGateway(
        database, tool_name="payments", wait_s=0.1, contract=Contract(keeps_keys_s=60)
    )

    async def work() -> None:
        holds, let_go = asyncio.Event(), asyncio.Event()

        async def slow(intent: Intent) -> str:
            holds.set()
            await let_go.wait()
            return "slow"

        sending = asyncio.ensure_future(pay.acall(idempotency_key="slow", request=1, effect=slow))
        await holds.wait()
        # It can only be finished by this very loop: a call that waited for it would hang.
        with pytest.raises(InProgress):
            pay.call(idempotency_key="slow", request=1, effect=lambda intent: 1)
        assert pay.call(idempotency_key=KEY, request=1, effect=lambda intent: 1).response == 1
        assert pay.receipt(KEY) is not None
        assert pay.reconcile(lambda intent: Found(1)) == ()
        with pytest.raises(BadInput):
            pay.decide(idempotency_key=KEY, verdict=Found(1), by="ada")
        compensate(pay, undoes=KEY, request=1, effect=lambda intent: 2)
        again = await acompensate(pay, undoes=KEY, request=1, effect=lambda intent: 3)
        assert again.response == 2
        assert pay.clean_up(is_open=lambda thread: True) == 0
        let_go.set()
        assert (await sending).response == "slow"

    in_a_loop(work)
