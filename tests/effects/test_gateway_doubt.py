"""In doubt: what the gateway does when nobody knows whether it happened, and what it never does."""

from __future__ import annotations

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
    InDoubt,
    InProgress,
    NotSent,
    Receipt,
    Refused,
    UnloadableValue,
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
                lookup=raising(Refused("declined")),
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
    clock.advance(DAY_S - 61)  # an attempt may send at the end of its claim, 60 s later
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
    error = error or graph_interrupt()
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


@pytest.mark.parametrize("ends", ["success", "time-out"])
def test_an_attempt_that_was_called_absent_while_it_was_sent_is_not_sent_again(
    database: Database, clock: FakeClock, ends: str
) -> None:
    """The effect took longer than its claim, and somebody believed an absence meanwhile."""
    sent: list[Intent] = []
    contract = Contract(absence_settles_after_s=0)

    def slow_effect(intent: Intent) -> str:
        sent.append(intent)
        clock.advance(61)
        assert gateway(database, clock, contract=contract).reconcile(lambda i: Absent()) == ()
        if ends == "time-out":
            raise TimeoutError
        return "late, and true"

    pay = gateway(database, clock)
    if ends == "success":
        receipt = pay.call(idempotency_key=KEY, request=REQUEST, effect=slow_effect)
        assert receipt.response == "late, and true"
        assert pay.call(idempotency_key=KEY, request=REQUEST, effect=slow_effect) == receipt
    else:
        for _ in range(2):
            with pytest.raises(InDoubt):
                pay.call(idempotency_key=KEY, request=REQUEST, effect=slow_effect)
    assert len(sent) == 1


def test_a_success_is_a_fact_also_when_the_next_attempt_has_begun(
    database: Database, clock: FakeClock
) -> None:
    sent: list[str] = []

    def first(intent: Intent) -> str:
        sent.append("first")
        clock.advance(61)
        other = gateway(database, clock, contract=Contract(absence_settles_after_s=0))
        with pytest.raises(NotSent):
            other.call(
                idempotency_key=KEY,
                request=REQUEST,
                effect=raising(NotSent("not reached")),
                lookup=lambda intent: Absent(),
            )
        return "of the first"

    pay = gateway(database, clock)
    receipt = pay.call(idempotency_key=KEY, request=REQUEST, effect=first)
    assert receipt.response == "of the first"
    assert pay.call(idempotency_key=KEY, request=REQUEST, effect=first) == pay.receipt(KEY)
    assert sent == ["first"]


def test_a_claim_that_is_over_before_it_begins_sends_nothing_and_does_not_spin(
    database: Database, bank: Bank
) -> None:
    from durable_kit import IdempotentGateway

    class Hurried(FakeClock):
        """Every look at it comes a second later."""

        def now_us(self) -> int:
            self.advance(1)
            return super().now_us()

    pay = IdempotentGateway(database, tool_name="payments", claim_life_s=0.5, clock=Hurried())
    with pytest.raises(NotSent, match="stood still"):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    assert bank.seen == []
    left = pay.receipt(KEY)
    assert left is not None
    assert (left.status, left.attempt) == (Status.REQUESTED, 0)


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


def test_what_was_found_and_cannot_be_stored_stays_in_doubt_and_holds_nobody_up(
    database: Database, clock: FakeClock, bank: Bank
) -> None:
    pay = gateway(database, clock)
    bank.error = TimeoutError()

    def lookup(intent: Intent) -> Found:
        return Found({"socket": object()} if intent.idempotency_key == "a" else "no. 7")

    for key in ("a", "b"):
        with pytest.raises(InDoubt):
            pay.call(idempotency_key=key, request=REQUEST, effect=bank)
    with pytest.raises(InDoubt, match=r"response\['socket'\]"):
        pay.call(idempotency_key="a", request=REQUEST, effect=bank, lookup=lookup)
    [left] = pay.reconcile(lookup)
    assert (left.idempotency_key, left.status) == ("a", Status.UNKNOWN)
    assert "cannot be stored" in left.detail
    settled = pay.receipt("b")
    assert settled is not None
    assert settled.response == "no. 7", "b was not settled because of a"
    assert len(bank.seen) == 2


@pytest.mark.parametrize("verdict", [None, False, Found, Absent, CannotTell("?"), "found"])
def test_what_is_no_verdict_does_not_count_as_a_no(
    database: Database, clock: FakeClock, bank: Bank, verdict: Any
) -> None:
    """Taken for "surely not", the next call would send what may have happened."""
    pay = gateway(database, clock)
    bank.error = TimeoutError()
    with pytest.raises(InDoubt):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    with pytest.raises(BadInput, match=r"say Found\(response\) or Absent\(\)"):
        pay.decide(idempotency_key=KEY, verdict=verdict, by="ada")
    with pytest.raises(InDoubt):
        pay.call(idempotency_key=KEY, request=REQUEST, effect=bank)
    assert len(bank.seen) == 1


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
