"""The gateway, one call at a time: every state a key can be in, and what a call does about it."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from durable_kit import (
    Absent,
    BadInput,
    CannotTell,
    Contract,
    Database,
    FakeClock,
    Found,
    IdempotencyConflict,
    IdempotentGateway,
    InDoubt,
    InProgress,
    NotRecorded,
    NotSent,
    Receipt,
    Refused,
    UnloadableValue,
    UnstorableValue,
)
from durable_kit.effects.receipt import Intent, Status

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


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with Database.open(database_url) as database:
        yield database


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def bank() -> Bank:
    return Bank()


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
        pay.call(idempotency_key="2", request=1, effect=_raising(NotSent("why\0 \ud800")))
    failed = pay.receipt("2")
    assert failed is not None
    assert failed.detail == "NotSent: why\0 \ud800"


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
    with pytest.raises(BadInput, match="empty"):
        pay.call(idempotency_key="", request=1, effect=bank)
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
            "requested": _graph_interrupt(),
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


# ---------------------------------------------------------------------- unknown, and asking


def test_a_lost_reply_is_found_by_asking_at_once(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    bank.error = TimeoutError()
    asked: list[Intent] = []

    def lookup(intent: Intent) -> Found:
        asked.append(intent)
        return Found({"id": "charge-1"})

    receipt = gateway(database, clock).call(
        idempotency_key=KEY, request=REQUEST, effect=bank, lookup=lookup
    )
    assert receipt.response == {"id": "charge-1"}
    assert receipt.detail == "found by lookup"
    assert asked == bank.seen


def test_a_dead_owner_is_waited_for_then_asked_about(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    left_by_a_dead_owner(database, clock)
    pay = gateway(database, clock)
    with pytest.raises(InProgress, match="dead"):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    clock.advance(60)
    with pytest.raises(InDoubt, match="did not report"):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    receipt = pay.call(
        idempotency_key=KEY, request=REQUEST, effect=bank, lookup=lambda intent: Found(7)
    )
    assert (receipt.response, bank.seen) == (7, [])


def test_absence_is_believed_only_when_the_contract_says_when(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    bank.error = TimeoutError()
    call: Any = {
        "idempotency_key": KEY,
        "request": REQUEST,
        "effect": bank,
        "lookup": lambda intent: Absent(),
    }
    for contract in (Contract(), Contract(absence_settles_after_s=30)):
        with pytest.raises(InDoubt, match="not there"):
            gateway(database, clock, contract=contract).call(**call)
    bank.error = None
    clock.advance(29.9)
    with pytest.raises(InDoubt):
        gateway(database, clock, contract=Contract(absence_settles_after_s=30)).call(**call)
    clock.advance(0.1)
    with pytest.raises(InDoubt):
        gateway(database, clock).call(**call)
    assert len(bank.seen) == 1
    sure = gateway(database, clock, contract=Contract(absence_settles_after_s=30)).call(**call)
    assert (sure.attempt, len(bank.seen)) == (2, 2)


def test_absence_counts_from_the_last_moment_at_which_a_dead_owner_can_have_sent(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    left_by_a_dead_owner(database, clock)  # its claim lasts for 60 s
    pay = gateway(database, clock, contract=Contract(absence_settles_after_s=30))
    call: Any = {
        "idempotency_key": KEY,
        "request": REQUEST,
        "effect": bank,
        "lookup": lambda intent: Absent(),
    }
    clock.advance(89)
    with pytest.raises(InDoubt):
        pay.call(**call)
    clock.advance(1)
    assert pay.call(**call).attempt == 2


def test_zero_seconds_until_absence_settles_is_a_value(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    left_by_a_dead_owner(database, clock)
    clock.advance(60)
    pay = gateway(database, clock, contract=Contract(absence_settles_after_s=0))
    receipt = pay.call(
        idempotency_key=KEY, request=REQUEST, effect=bank, lookup=lambda intent: Absent()
    )
    assert receipt.attempt == 2


@pytest.mark.parametrize("answer", [None, False, {}, CannotTell("502"), OSError("down")], ids=repr)
def test_an_answer_that_is_no_verdict_proves_nothing(
    database: Database, clock: FakeClock, bank: Bank, answer: Any
) -> None:
    bank.error = TimeoutError()
    pay = gateway(database, clock, contract=Contract(absence_settles_after_s=0))

    def lookup(intent: Intent) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    for _ in range(2):
        with pytest.raises(InDoubt, match="asked"):
            pay.call(idempotency_key=KEY, request=REQUEST, effect=bank, lookup=lookup)
    assert len(bank.seen) == 1


def test_a_lookup_may_find_a_refusal(database: Database, clock: FakeClock, bank: Bank) -> None:
    bank.error = TimeoutError()
    for _ in range(2):
        with pytest.raises(Refused, match="declined"):
            gateway(database, clock).call(
                idempotency_key=KEY,
                request=REQUEST,
                effect=bank,
                lookup=_raising(Refused("declined")),
            )
    assert len(bank.seen) == 1


def test_a_provider_that_knows_the_key_is_sent_it_again_until_it_may_have_forgotten(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock, contract=Contract(keeps_keys_s=DAY_S))
    bank.error = TimeoutError()
    with pytest.raises(InDoubt) as doubt:
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    assert doubt.value.may_send_again
    clock.advance(DAY_S - 1)
    with pytest.raises(InDoubt):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    assert [intent.attempt for intent in bank.seen] == [1, 2]
    assert len({(intent.idempotency_key, str(intent.request)) for intent in bank.seen}) == 1
    clock.advance(1)  # the window began with the first attempt, not with the last
    bank.error = None
    with pytest.raises(InDoubt, match="decide"):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    assert len(bank.seen) == 2


def test_a_clock_that_steps_back_does_not_make_a_forgotten_key_known(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock, contract=Contract(keeps_keys_s=3600))
    bank.error = TimeoutError()
    with pytest.raises(InDoubt):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    clock.advance(-2 * 3600)
    with pytest.raises(InDoubt):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    assert len(bank.seen) == 1


@pytest.mark.parametrize(
    "error", [NotSent("this time not reached"), None], ids=["not sent", "pause"]
)
def test_an_attempt_that_sent_nothing_does_not_clear_the_doubt_of_the_one_before(
    database: Database, clock: FakeClock, bank: Bank, error: Exception | None
) -> None:
    error = error or _graph_interrupt()
    knows_keys = gateway(database, clock, contract=Contract(keeps_keys_s=DAY_S))
    bank.error = TimeoutError("the first reply was lost")
    with pytest.raises(InDoubt):
        knows_keys.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    bank.error = error
    with pytest.raises(type(error)):
        knows_keys.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    bank.error = None
    clock.advance(2 * DAY_S)
    with pytest.raises(InDoubt):
        knows_keys.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    assert len(bank.seen) == 2


def test_what_was_not_sent_does_not_open_the_window_of_the_key(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock, contract=Contract(keeps_keys_s=3600))
    bank.error = NotSent("not reached")
    with pytest.raises(NotSent):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    clock.advance(2 * 3600)
    bank.error = TimeoutError()
    with pytest.raises(InDoubt):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    bank.error = None
    assert pay.call(idempotency_key=KEY, request=REQUEST, effect=bank).attempt == 3


def test_the_stored_request_is_the_one_that_is_sent_again(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock, contract=Contract(keeps_keys_s=DAY_S))
    bank.error = TimeoutError()
    with pytest.raises(InDoubt):
        pay.call(idempotency_key=KEY, request={"amount": 1.0, "b": [1]}, effect=bank)
    bank.error = None
    receipt = pay.call(idempotency_key=KEY, request={"b": (1,), "amount": 1}, effect=bank)
    assert repr(bank.seen[1].request) == repr({"amount": 1.0, "b": [1]})
    assert receipt.request == bank.seen[0].request


def test_a_damaged_request_is_never_sent(database: Database, clock: FakeClock, bank: Bank) -> None:
    pay = gateway(database, clock, contract=Contract(keeps_keys_s=DAY_S))
    bank.error = TimeoutError()
    with pytest.raises(InDoubt):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    other = gateway(database, clock, scope="other").call(
        idempotency_key=KEY, request={**REQUEST, "amount_cents": 4998}, effect=Bank()
    )
    assert other.status is Status.SUCCEEDED
    with database.write() as tx:
        tx.execute(
            """
            UPDATE tool_call_receipts
               SET request = (SELECT request FROM tool_call_receipts WHERE scope = 'other')
             WHERE scope = ''
            """
        )
    bank.error = None
    with pytest.raises(UnloadableValue, match="do not fit their fingerprint"):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    assert len(bank.seen) == 1


def test_an_owner_that_stood_still_past_its_claim_does_not_send(
    database: Database, clock: FakeClock, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor has called the attempt unknown and found out; only then it wakes up."""
    slow = gateway(database, clock, owner="slow")
    woken: list[Receipt] = []

    def stands_still(name: str) -> None:
        if name == "gateway.before_send" and not woken:
            clock.advance(61)
            woken.append(
                gateway(database, clock).call(
                    idempotency_key=KEY,
                    request=REQUEST,
                    effect=bank,
                    lookup=lambda intent: Found("by the other"),
                )
            )

    monkeypatch.setattr("durable_kit.crash_point.reached", stands_still)
    receipt = slow.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    assert receipt == woken[0]
    assert bank.seen == []


def test_an_owner_that_reports_late_does_not_overwrite_what_was_found_out(
    database: Database, clock: FakeClock
) -> None:
    def slow_effect(intent: Intent) -> str:
        clock.advance(61)
        gateway(database, clock).reconcile(lambda intent: Found("from the provider's book"))
        return "from the late reply"

    receipt = gateway(database, clock).call(
        idempotency_key=KEY, request=REQUEST, effect=slow_effect
    )
    assert receipt.response == "from the provider's book"


def test_a_late_success_settles_a_doubt_that_nobody_else_has(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    def slow_effect(intent: Intent) -> str:
        clock.advance(61)
        [left] = gateway(database, clock).reconcile()
        assert left.status is Status.UNKNOWN
        return "late, and true"

    receipt = gateway(database, clock).call(
        idempotency_key=KEY, request=REQUEST, effect=slow_effect
    )
    assert (receipt.response, receipt.attempt) == ("late, and true", 1)


# ---------------------------------------------------------------------- reconcile, decide


def test_reconcile_settles_what_it_can_and_lists_the_rest(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock, contract=Contract(absence_settles_after_s=30))
    bank.error = TimeoutError()
    for key in ("found", "absent", "refused", "unclear", "down"):
        with pytest.raises(InDoubt):
            pay.call(idempotency_key=key, request=key, effect=bank)
    left_by_a_dead_owner(database, clock)
    gateway(database, clock, tool_name="other tool").call(
        idempotency_key="other", request=1, effect=Bank()
    )

    def lookup(intent: Intent) -> Any:
        if intent.request == "refused":
            raise Refused("declined")
        if intent.request == "down":
            raise OSError("down")
        return {"found": Found("f"), "absent": Absent()}.get(intent.request, CannotTell("?"))

    too_early = pay.reconcile(lookup)
    assert [r.idempotency_key for r in too_early] == ["absent", "down", "unclear"]
    clock.advance(60)
    left = pay.reconcile(lookup)
    assert [r.idempotency_key for r in left] == [KEY, "down", "unclear"]
    assert left[1].detail.endswith("asked: OSError: down")
    assert left[1].detail.count("asked") == 1
    assert len(bank.seen) == 5, "reconcile sends nothing"
    status = {key: getattr(pay.receipt(key), "status", None) for key in ("found", "absent")}
    assert status == {"found": Status.SUCCEEDED, "absent": Status.REQUESTED}
    bank.error = None
    assert pay.call(idempotency_key="absent", request="absent", effect=bank).attempt == 2


def test_a_person_decides_what_nobody_else_knows(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock)
    bank.error = TimeoutError()
    for key in ("it happened", "it did not"):
        with pytest.raises(InDoubt):
            pay.call(idempotency_key=key, request=REQUEST, effect=bank)
    bank.error = None
    decided = pay.decide(idempotency_key="it happened", verdict=Found("no. 7"), by="ada")
    assert (decided.response, decided.detail) == ("no. 7", "decided by ada")
    assert pay.call(idempotency_key="it happened", request=REQUEST, effect=bank) == decided
    pay.decide(idempotency_key="it did not", verdict=Absent(), by="ada")
    assert len(bank.seen) == 2
    assert pay.call(idempotency_key="it did not", request=REQUEST, effect=bank).attempt == 2
    assert pay.reconcile() == ()
    for key in ("it happened", "never heard of"):
        with pytest.raises(BadInput, match="nothing to decide"):
            pay.decide(idempotency_key=key, verdict=Absent(), by="ada")


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


def _raising(error: Exception) -> Any:
    def raises(intent: Intent) -> Any:
        raise error

    return raises


def _graph_interrupt() -> Exception:
    from langgraph.errors import GraphInterrupt

    return GraphInterrupt()
