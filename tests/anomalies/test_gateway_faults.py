"""The gateway against real kills, real processes, and a real provider, which has the last word."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from durable_kit import InDoubt, Refused
from durable_kit.effects.gateway import IdempotentGateway
from durable_kit.effects.receipt import Intent
from durable_kit.lab import effect_trials
from durable_kit.lab.effect_trials import ABILITIES, AMBIGUOUS, POINTS
from durable_kit.lab.provider import Provider
from durable_kit.lab.provider_client import ProviderClient
from durable_kit.storage.database import Database
from tests.anomalies import gateway_worker
from tests.anomalies.children import context
from tests.anomalies.gateway_worker import AMOUNT_CENTS, KEY, ORDER, charges


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Provider]:
    """A provider that knows no keys: whatever is sent to it happens."""
    with Provider.start(honours_keys=False, lookup=True) as provider:
        yield provider


@pytest.fixture
def order(forgetful: Provider) -> int:
    """How many charges there were before this test."""
    return len(forgetful.charges())


# ------------------------------------------------------------------------------------ kills


def test_a_kill_at_any_point_ends_as_promised_with_any_provider() -> None:
    cases = [("gateway", ability, point) for ability in ABILITIES for point in POINTS]
    outcomes = list(effect_trials.run(cases, repeats=1))  # type: ignore[arg-type]
    assert len(outcomes) == len(POINTS) * len(ABILITIES)
    assert effect_trials.broken_promises(outcomes) == []
    doubts = [o.point for o in outcomes if o.verdict == "in doubt"]
    assert doubts == list(AMBIGUOUS), "only where there is neither key nor look-up"


def test_the_naive_agent_pays_twice_wherever_the_crash_is_ambiguous() -> None:
    outcomes = list(effect_trials.run([("naive", "neither", p) for p in AMBIGUOUS], repeats=1))
    assert [o.verdict for o in outcomes] == ["twice"] * len(AMBIGUOUS)


# ------------------------------------------------------------------------- many at the same time


def make_naive_table(database: Database) -> None:
    with database.write() as tx:
        tx.execute("CREATE TABLE charged (order_id TEXT, charge_id TEXT)")


def test_32_os_threads_with_one_key_have_one_effect_and_one_receipt(
    database_url: str, forgetful: Provider, order: int
) -> None:
    with Database.open(database_url) as database:
        got = charges(database, forgetful.url, "gateway", 32)
        assert len(set(got)) == 1, got
        assert got[0][1] == 1
        with database.read() as tx:
            assert tx.rows("SELECT request_id, status FROM tool_call_receipts") == [
                (KEY, "succeeded")
            ]
    assert len(forgetful.charges()) == order + 1


def test_32_naive_os_threads_charge_many_times(
    database_url: str, forgetful: Provider, order: int
) -> None:
    with Database.open(database_url) as database:
        make_naive_table(database)
        charges(database, forgetful.url, "naive", 32)
    assert len(forgetful.charges()) > order + 1


@pytest.mark.parametrize("how", ["naive", "gateway"])
def test_4_processes_with_one_key(
    database_url: str, forgetful: Provider, order: int, how: str
) -> None:
    with Database.open(database_url) as database:
        make_naive_table(database)
    ready, answers = context.Barrier(4), context.Queue()
    processes = [
        context.Process(
            target=gateway_worker.work,
            args=(database_url, forgetful.url, how, 8, ready, answers),
            daemon=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        process.start()
    got = [answer for _ in processes for answer in answers.get(timeout=60)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(got) == 32
    charged = len(forgetful.charges()) - order
    if how == "naive":
        assert charged > 1
    else:
        assert charged == 1
        assert len(set(got)) == 1, got


# -------------------------------------------------------------------------- the provider's faults


@pytest.mark.parametrize("fault", ["lost_reply", "error_after", "lost_request", "error_before"])
def test_a_fault_on_the_way_is_settled_by_asking(
    database_url: str, forgetful: Provider, order: int, fault: str
) -> None:
    """From outside these four look alike; two of them have acted, says the provider's book."""
    client = forgetful.client()

    def charge(intent: Intent) -> Any:
        return client.charge(**intent.request, key=intent.idempotency_key).body

    with Database.open(database_url) as database:
        pay = IdempotentGateway(
            database, tool_name="payments", contract=effect_trials.contract_of("lookup")
        )
        call: Any = {
            "idempotency_key": f"charge:{uuid.uuid4()}",
            "request": {"order_id": ORDER, "amount_cents": AMOUNT_CENTS},
            "effect": charge,
            "lookup": lambda intent: effect_trials.look_up(client, intent),
        }
        forgetful.fail_next(fault, of="charge")
        acts = fault in ("lost_reply", "error_after")
        if acts:
            assert pay.call(**call).detail == "found by lookup"
        else:
            with pytest.raises(InDoubt, match="not there"):
                pay.call(**call)
        assert len(forgetful.charges()) == order + acts
        again = pay.call(**call)  # waits until "not there" means "never", and sends
        assert again.attempt == (1 if acts else 2)
    assert len(forgetful.charges()) == order + 1


def test_a_refusal_by_the_provider_is_kept(database_url: str, forgetful: Provider) -> None:
    client: ProviderClient = forgetful.client()
    with Database.open(database_url) as database:
        pay = IdempotentGateway(
            database, tool_name="payments", contract=effect_trials.contract_of("neither")
        )
        forgetful.fail_next("refuse", of="charge")
        for _ in range(2):
            with pytest.raises(Refused, match="card_declined"):
                pay.call(
                    idempotency_key="refused",
                    request={"order_id": ORDER, "amount_cents": AMOUNT_CENTS},
                    effect=lambda intent: client.charge(**intent.request).body,
                )
