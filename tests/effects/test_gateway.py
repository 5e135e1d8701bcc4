"""The gateway, one call at a time: every state a key can be in, and what a call does about it."""

from __future__ import annotations

import math
import pickle
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from durable_kit import (
    BadInput,
    Codec,
    Contract,
    Database,
    FakeClock,
    Found,
    IdempotencyConflict,
    InDoubt,
    InProgress,
    NotRecorded,
    NotSent,
    Refused,
    UnstorableValue,
)
from durable_kit.effects.receipt import Intent, Status
from tests.effects.gateway_bench import (
    DAY_S,
    KEY,
    REQUEST,
    Bank,
    gateway,
    graph_interrupt,
    left_by_a_dead_owner,
    raising,
)

# ---------------------------------------------------------------------- same key, same request


def test_the_second_call_gets_the_receipt_of_the_first(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock)
    first = pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    clock.advance(3 * DAY_S)
    second = pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    assert len(bank.seen) == 1
    assert first == second
    assert (first.replayed, second.replayed) == (False, True)
    assert first.response == {"id": "charge-1"}
    assert (first.status, first.attempt) == (Status.SUCCEEDED, 1)
    assert pickle.loads(pickle.dumps(first)) == first


@pytest.mark.parametrize("response", [None, 0, 0.0, "", False, [], {}], ids=repr)
def test_an_empty_response_is_a_response(
    database: Database, clock: FakeClock, response: Any
) -> None:
    calls = []
    for _ in range(2):
        receipt = gateway(database, clock).call(
            idempotency_key=KEY,
            request=None,
            effect=lambda intent: calls.append(intent) or response,  # type: ignore[func-returns-value]
        )
        assert receipt.response == response
        assert type(receipt.response) is type(response)
    assert len(calls) == 1


def test_the_intent_is_committed_before_anything_is_sent(
    database: Database, clock: FakeClock
) -> None:
    def effect(intent: Intent) -> str:
        with database.read() as tx:  # another connection: it sees what is committed
            [row] = tx.rows("SELECT status, request_hash, attempt FROM tool_call_receipts")
        assert row[0] == "started"
        assert row[1].startswith("1:")
        assert intent.request == REQUEST
        with database.write() as tx:  # no transaction is open while the provider is called
            tx.execute("UPDATE tool_call_receipts SET attempt = attempt")
        return "sent"

    assert gateway(database, clock).call(
        idempotency_key=KEY, request=REQUEST, effect=effect
    ).response == "sent"  # fmt: skip


def test_values_that_json_columns_choke_on_are_kept_as_they_are(
    database: Database, clock: FakeClock
) -> None:
    odd = {"nan": math.nan, "inf": -math.inf, "zero": -0.0, "nul": "a\0b", "bytes": b"\0\xff"}
    pay = gateway(database, clock, scope="t\0", tool_name="pay\0\\0")
    key = "key\0with\\0nul"
    first = pay.call(
        idempotency_key=key, request=odd, effect=lambda intent: [intent.request], thread_id="t\0"
    )
    again = pay.call(idempotency_key=key, request=odd, effect=Bank(), thread_id="t\0")
    assert repr(again.response) == repr([odd])
    assert repr(first.request) == repr(odd)
    assert (again.idempotency_key, again.scope, again.threads) == (key, "t\0", ("t\0",))
    with pytest.raises(NotSent):
        pay.call(idempotency_key="2", request=1, effect=raising(NotSent("why\0 \ud800")))
    failed = pay.receipt("2")
    assert failed is not None
    assert failed.detail == "NotSent: why\0 \ud800"


def test_a_class_that_is_not_allowed_is_refused_with_the_way_to_allow_it(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    @dataclass
    class Local:
        id: int

    pay = gateway(database, clock)
    with pytest.raises(UnstorableValue, match=r"request\['color'\]") as refused:
        pay.call(idempotency_key=KEY, request={"color": Status.FAILED}, effect=bank)
    assert "IdempotentGateway(..., codec=Codec(allow=[Status]))" in str(refused.value)
    with pytest.raises(UnstorableValue, match="inside a function"):
        pay.call(idempotency_key=KEY, request=Local(1), effect=bank)
    allowed = gateway(database, clock, codec=Codec(allow=[Status]))
    receipt = allowed.call(idempotency_key=KEY, request={"color": Status.FAILED}, effect=bank)
    assert receipt.request["color"] is Status.FAILED
    again = allowed.call(idempotency_key=KEY, request={"color": "failed"}, effect=bank)
    assert again == receipt


@pytest.mark.parametrize(
    "request_", [{1, 2}, {"f": print}, object()], ids=["set", "code", "object"]
)
def test_a_request_that_cannot_be_stored_is_refused_before_anything_happens(
    database: Database, clock: FakeClock, bank: Bank, request_: Any
) -> None:
    pay = gateway(database, clock)
    with pytest.raises(UnstorableValue, match="request"):
        pay.call(idempotency_key=KEY, request=request_, effect=bank)
    with pytest.raises(BadInput, match="lone surrogate"):
        pay.call(idempotency_key="\ud800", request=1, effect=bank)
    for key in ("", "x" * 1001, "\0" * 501, 7, None):
        with pytest.raises(BadInput, match="idempotency_key"):
            pay.call(idempotency_key=key, request=1, effect=bank)  # type: ignore[arg-type]
    longest = "\N{GRINNING FACE}" * 250
    assert gateway(database, clock, scope=longest).call(
        idempotency_key=longest, request=1, effect=Bank()
    ).idempotency_key == longest  # fmt: skip
    assert bank.seen == []
    assert pay.receipt(KEY) is None


def test_a_call_inside_a_write_transaction_sends_nothing(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    with database.write(), pytest.raises(BadInput, match="transaction"):
        gateway(database, clock).call(idempotency_key=KEY, request=REQUEST, effect=bank)
    assert bank.seen == []


def test_scopes_do_not_share_keys_and_tools_do(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    for scope in ("", "tenant-1", "tenant-2"):
        gateway(database, clock, scope=scope).call(
            idempotency_key=KEY, request=REQUEST, effect=bank
        )
    assert len(bank.seen) == 3
    with pytest.raises(IdempotencyConflict, match="to payments, now to e-mail"):
        gateway(database, clock, tool_name="e-mail").call(
            idempotency_key=KEY, request=REQUEST, effect=bank
        )


# ---------------------------------------------------------------------- same key, other request


STATES = ["requested", "started", "succeeded", "refused", "not sent", "unknown"]


@pytest.mark.parametrize("status", STATES)
def test_another_request_is_a_conflict_in_every_state(
    database: Database, clock: FakeClock, bank: Bank, status: str
) -> None:
    pay = gateway(database, clock)
    if status == "started":
        left_by_a_dead_owner(database, clock)
    else:
        bank.error = {
            "requested": graph_interrupt(),
            "refused": Refused("no"),
            "not sent": NotSent("not reached"),
            "unknown": TimeoutError(),
        }.get(status)
        with suppress(Exception):
            pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    before = pay.receipt(KEY)
    assert before is not None
    assert status in (before.status, before.failure)
    bank.error = None
    sent = len(bank.seen)
    with pytest.raises(IdempotencyConflict, match="amount_cents 4999 → 700") as conflict:
        pay.call(idempotency_key=KEY, request={**REQUEST, "amount_cents": 700}, effect=bank)
    assert conflict.value.idempotency_key == KEY
    assert len(bank.seen) == sent
    assert pay.receipt(KEY) == before


def test_a_request_that_only_looks_different_is_the_same(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock)
    first = pay.call(idempotency_key=KEY, request={"a": 1, "b": (2,)}, effect=bank)
    assert pay.call(idempotency_key=KEY, request={"b": [2], "a": 1.0}, effect=bank) == first


def test_a_fingerprint_of_older_rules_is_not_taken_for_another_request(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock)
    pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    with database.write() as tx:
        tx.execute("UPDATE tool_call_receipts SET request_hash = '0:by-the-rules-of-old'")
    assert pay.call(idempotency_key=KEY, request=REQUEST, effect=bank).replayed
    with pytest.raises(IdempotencyConflict):
        pay.call(idempotency_key=KEY, request={}, effect=bank)
    assert len(bank.seen) == 1


# ---------------------------------------------------------------------- three kinds of failure


def test_what_was_surely_not_sent_may_be_sent_again(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock)
    bank.error = NotSent("the provider was not reached")
    with pytest.raises(NotSent) as raised:
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    assert raised.value is bank.error
    failed = pay.receipt(KEY)
    assert failed is not None
    assert (failed.status, failed.failure) == (Status.FAILED, "not sent")
    bank.error = None
    assert pay.call(idempotency_key=KEY, request=REQUEST, effect=bank).attempt == 2


def test_a_refusal_stays_a_refusal_until_there_is_a_new_key(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock)
    bank.error = Refused("the card was declined", details={"code": 51})
    for _ in range(2):
        with pytest.raises(Refused, match="the card was declined") as refused:
            pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
        assert refused.value.details == {"code": 51}
    assert len(bank.seen) == 1
    bank.error = None
    assert pay.call(idempotency_key=f"{KEY}:2", request=REQUEST, effect=bank).attempt == 1


def test_errors_of_a_client_library_are_sorted_by_the_contract(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    contract = Contract(surely_no_effect=(ConnectionRefusedError,), refusals=(PermissionError,))
    pay = gateway(database, clock, contract=contract)
    for key, error, raised in [
        ("a", ConnectionRefusedError("down"), ConnectionRefusedError),
        ("b", PermissionError("declined"), Refused),
        ("c", ConnectionResetError("?"), InDoubt),
    ]:
        bank.error = error
        with pytest.raises(raised):
            pay.call(idempotency_key=key, request=1, effect=bank)
    found = [pay.receipt(key) for key in "abc"]
    assert [r and (r.status.value, r.failure) for r in found] == [
        ("failed", "not sent"),
        ("failed", "refused"),
        ("unknown", None),
    ]


@pytest.mark.parametrize(
    "error", [TimeoutError("no reply"), ValueError(), StopIteration()], ids=repr
)
def test_any_other_error_is_in_doubt_and_is_never_sent_again(
    database: Database, clock: FakeClock, bank: Bank, error: Exception
) -> None:
    pay = gateway(database, clock)
    bank.error = error
    with pytest.raises(InDoubt) as first:
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    assert first.value.__cause__ is error
    bank.error = None
    clock.advance(10 * DAY_S)
    with pytest.raises(InDoubt, match="decide") as later:
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    assert not later.value.may_send_again
    assert len(bank.seen) == 1


def test_the_naive_gateway_pays_again_after_a_lost_reply(bank: Bank) -> None:
    """What the tests above are about: check, act, store."""
    stored: dict[str, Any] = {}

    def naive(key: str) -> None:
        if key not in stored:
            stored[key] = bank(Intent(key, REQUEST, 1, ""))

    bank.error = TimeoutError("the reply was lost, the money was not")
    with pytest.raises(TimeoutError):
        naive(KEY)
    bank.error = None
    naive(KEY)
    assert len(bank.seen) == 2


def test_a_response_that_cannot_be_stored_is_in_doubt_and_not_sent_again(
    database: Database, clock: FakeClock
) -> None:
    sent = []

    def effect(intent: Intent) -> Any:
        sent.append(intent)
        return {"socket": print}

    pay = gateway(database, clock)
    with pytest.raises(InDoubt, match=r"it took effect, but response\['socket'\]"):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=effect)
    with pytest.raises(InDoubt):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=effect)
    assert len(sent) == 1
    found = pay.call(
        idempotency_key=KEY, request=REQUEST, effect=effect, lookup=lambda intent: Found("ok")
    )
    assert found.response == "ok"


# ---------------------------------------------------------------------- recorded, clean-up


def test_a_recorded_gateway_answers_from_receipts_and_refuses_to_act(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock)
    done = pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    bank.error = Refused("declined")
    with pytest.raises(Refused):
        pay.call(idempotency_key="refused", request=1, effect=bank)
    bank.error = TimeoutError()
    with pytest.raises(InDoubt):
        pay.call(idempotency_key="doubt", request=1, effect=bank)
    bank.error = None
    replay = pay.answering_from_receipts()
    assert replay.call(idempotency_key=KEY, request=REQUEST, effect=bank) == done
    with pytest.raises(Refused, match="declined"):
        replay.call(idempotency_key="refused", request=1, effect=bank)
    with pytest.raises(NotRecorded, match="unknown"):
        replay.call(idempotency_key="doubt", request=1, effect=bank, lookup=lambda i: Found(1))
    with pytest.raises(NotRecorded, match="never requested"):
        replay.call(idempotency_key="new", request=1, effect=bank)
    with pytest.raises(IdempotencyConflict):
        replay.call(idempotency_key=KEY, request=1, effect=bank)
    assert len(bank.seen) == 3
    assert pay.receipt("new") is None, "not even an intent is left behind"
    assert not pay.recorded


def test_receipts_of_open_threads_outlive_the_clean_up(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock, receipt_life_s=7 * DAY_S)
    for thread in ("open", "closed"):
        pay.call(idempotency_key=thread, request=1, effect=bank, thread_id=thread)
    pay.call(idempotency_key="shared", request=1, effect=bank, thread_id="closed")
    pay.call(idempotency_key="shared", request=1, effect=bank, thread_id="open")
    pay.call(idempotency_key="nobody's", request=1, effect=bank)
    bank.error = TimeoutError()
    with pytest.raises(InDoubt):
        pay.call(idempotency_key="doubt", request=1, effect=bank, thread_id="closed")
    bank.error = None
    sent = len(bank.seen)

    def is_open(thread: str) -> bool:
        return thread == "open"

    clock.advance(7 * DAY_S - 1)
    assert pay.clean_up(is_open=is_open) == 0
    clock.advance(DAY_S)
    assert pay.clean_up(is_open=is_open) == 2
    assert pay.clean_up(is_open=is_open) == 0
    kept = [k for k in ("open", "closed", "shared", "nobody's", "doubt") if pay.receipt(k)]
    assert kept == ["open", "shared", "doubt"]
    pay.call(idempotency_key="open", request=1, effect=bank, thread_id="open")
    pay.call(idempotency_key="shared", request=1, effect=bank, thread_id="open")
    assert len(bank.seen) == sent


def test_eight_days_between_effect_and_receipt_do_not_end_in_a_guess(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    """The provider has forgotten its keys by then, and the clean-up has run in between."""
    left_by_a_dead_owner(database, clock, thread_id="open")
    pay = gateway(database, clock, contract=Contract(keeps_keys_s=DAY_S), receipt_life_s=0)
    clock.advance(8 * DAY_S)
    assert pay.clean_up(is_open=lambda thread: False) == 0
    with pytest.raises(InDoubt):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    asked = pay.call(
        idempotency_key=KEY, request=REQUEST, effect=bank, lookup=lambda intent: Found("8 days")
    )
    assert (asked.response, bank.seen) == ("8 days", [])


def test_a_claim_is_short_and_a_receipt_is_long(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock, claim_life_s=5, receipt_life_s=365 * DAY_S)
    pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    clock.advance(364 * DAY_S)
    assert pay.call(idempotency_key=KEY, request=REQUEST, effect=bank).replayed


def test_a_receipt_life_of_zero_removes_at_once_what_no_open_thread_needs(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock, receipt_life_s=0)
    pay.call(idempotency_key=KEY, request=REQUEST, effect=bank, thread_id="")
    assert pay.clean_up(is_open=lambda thread: thread == "") == 0
    assert pay.clean_up(is_open=lambda thread: False) == 1


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "settings",
    [
        {"wait_s": -1},
        {"wait_s": math.nan},
        {"claim_life_s": 0},
        {"claim_life_s": -0.1},
        {"claim_life_s": math.inf},
        {"claim_life_s": 1e300},
        {"scope": None},
        {"tool_name": ""},
        {"claim_life_s": math.nan},
        {"receipt_life_s": -1},
        {"receipt_life_s": math.nan},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(
    database: Database, clock: FakeClock, settings: Any
) -> None:
    with pytest.raises(BadInput, match=next(iter(settings))):
        gateway(database, clock, **settings)


@pytest.mark.parametrize(
    "contract", [{"keeps_keys_s": -1}, {"absence_settles_after_s": math.nan}], ids=str
)
def test_impossible_contracts_are_refused(contract: Any) -> None:
    with pytest.raises(BadInput, match=next(iter(contract))):
        Contract(**contract)


def test_an_infinite_receipt_life_and_key_window_are_values(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    contract = Contract(keeps_keys_s=math.inf)
    pay = gateway(database, clock, contract=contract, receipt_life_s=math.inf)
    pay.call(idempotency_key="a", request=1, effect=bank)
    bank.error = TimeoutError()
    with pytest.raises(InDoubt):
        pay.call(idempotency_key=KEY, request=1, effect=bank)
    bank.error = None
    clock.advance(1000 * DAY_S)
    assert pay.clean_up(is_open=lambda thread: False) == 0
    assert pay.call(idempotency_key=KEY, request=1, effect=bank).attempt == 2


@pytest.mark.parametrize(
    "error",
    [
        IdempotencyConflict(idempotency_key="k", status="started", difference="a 1 → 2"),
        InProgress(idempotency_key="k", owner="o", waited_s=0.0),
        InDoubt(idempotency_key="k", attempt=1, detail="d", remedy="r", may_send_again=False),
        NotRecorded(idempotency_key="k", status="unknown"),
        Refused("no", details={"code": 1}),
        NotSent("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_errors_cross_a_process_boundary_with_their_facts(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert vars(again) == vars(error)
