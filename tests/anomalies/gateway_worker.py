"""One of several processes that charge the same order at the same moment."""

from __future__ import annotations

import threading
from typing import Any

from durable_kit.effects.gateway import IdempotentGateway
from durable_kit.lab.provider_client import ProviderClient
from durable_kit.storage.database import Database

KEY, ORDER, AMOUNT_CENTS = "charge:order-1001", "order-1001", 4999


def work(url: str, provider_url: str, how: str, os_threads: int, ready: Any, got: Any) -> None:
    """Wait for the other processes, charge in each OS thread, and tell what each of them got."""
    with Database.open(url) as database:
        ready.wait(60)
        got.put(charges(database, provider_url, how, os_threads))


def charges(database: Database, provider_url: str, how: str, os_threads: int) -> list[Any]:
    """What each OS thread got: a charge with its attempt and time, or an error's text."""
    client = ProviderClient(provider_url, timeout_s=30)
    gateway = IdempotentGateway(database, tool_name="payments", wait_s=30)
    got: list[Any] = [None] * os_threads
    together = threading.Barrier(os_threads)

    def through_the_gateway() -> Any:
        receipt = gateway.call(
            idempotency_key=KEY,
            request={"order_id": ORDER, "amount_cents": AMOUNT_CENTS},
            effect=lambda intent: client.charge(**intent.request).body["id"],
        )
        return receipt.response, receipt.attempt, receipt.owner, receipt.finished_at_us

    def naively() -> Any:
        with database.read() as tx:
            found = tx.row("SELECT charge_id FROM charged WHERE order_id = :o", o=ORDER)
        if found is not None:
            return found[0]
        reply = client.charge(ORDER, amount_cents=AMOUNT_CENTS)
        with database.write() as tx:
            tx.execute("INSERT INTO charged VALUES (:o, :id)", o=ORDER, id=reply.id)
        return reply.id

    def one(number: int) -> None:
        together.wait()
        try:
            got[number] = through_the_gateway() if how == "gateway" else naively()
        except Exception as error:
            got[number] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=one, args=(number,)) for number in range(os_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got
