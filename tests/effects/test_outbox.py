"""The outbox: what a commit promises, in which order, and what a failure means."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from durable_kit.clock import FakeClock
from durable_kit.effects.inbox import take_once
from durable_kit.effects.outbox import Message, Outbox
from durable_kit.effects.outcomes import IdempotencyConflict, NotSent, Refused
from durable_kit.effects.relay import Attempt, Relay
from durable_kit.errors import BadInput, UnloadableValue, UnstorableValue
from durable_kit.storage.codec import Codec
from durable_kit.storage.database import Database

CLAIM_LIFE_S = 30.0


@dataclass(frozen=True)
class Parcel:
    weight_g: int


class Office:
    """An outbox with a clock that is moved by hand, and everything that was sent."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = FakeClock()
        self.outbox = Outbox(clock=self.clock)
        self.sent: list[Message] = []
        self.fail: Callable[[Message], None] = lambda message: None

    def put(self, message_id: str, *, key: str = "", body: Any = None) -> bool:
        with self.database.write() as tx:
            return self.outbox.enqueue(
                tx, message_id=message_id, topic="mail", key=key or message_id, body=body
            )

    def relay(self, owner: str = "relay 1", **options: Any) -> Relay:
        options.setdefault("claim_life_s", CLAIM_LIFE_S)
        return Relay(
            options.pop("outbox", self.outbox),
            self.database,
            send=self._send,
            owner=owner,
            clock=self.clock,
            **options,
        )

    def ids(self) -> list[str]:
        return [message.message_id for message in self.sent]

    def _send(self, message: Message) -> None:
        self.sent.append(message)
        self.fail(message)


@pytest.fixture
def office(database_url: str) -> Iterator[Office]:
    with Database.open(database_url) as database:
        yield Office(database)


def drain(relay: Relay) -> list[Attempt]:
    attempts = []
    while (attempt := relay.run_once()) is not None:
        attempts.append(attempt)
    return attempts


# --------------------------------------------------------------------------- enqueue


def test_a_message_is_sent_only_if_the_transaction_it_was_written_in_commits(
    office: Office,
) -> None:
    with pytest.raises(ZeroDivisionError), office.database.write() as tx:
        office.outbox.enqueue(tx, message_id="m", topic="mail", key="k", body="rolled back")
        _ = 1 / 0
    assert drain(office.relay()) == []
    assert office.put("m", body={"to": "ada", "lines": [1, 2]})
    assert drain(office.relay()) == [Attempt("m", "delivered", 1)]
    assert office.sent == [Message("m", "mail", "m", {"to": "ada", "lines": [1, 2]}, 1)]
    assert drain(office.relay()) == [], "a delivered message was sent again"


def test_a_replayed_node_that_enqueues_again_adds_nothing(office: Office) -> None:
    assert office.put("mail:order-1", body=["hello"])
    assert not office.put("mail:order-1", body=["hello"])
    drain(office.relay())
    assert not office.put("mail:order-1", body=["hello"]), "it was delivered, and is known"
    drain(office.relay())
    assert office.ids() == ["mail:order-1"]


@pytest.mark.parametrize("other", [{"body": ["goodbye"]}, {"key": "another"}], ids=["body", "key"])
def test_an_id_that_was_used_for_another_message_is_refused(
    office: Office, other: dict[str, Any]
) -> None:
    [different] = other
    office.put("m", key="k", body=["hello"])
    with pytest.raises(IdempotencyConflict, match=rf"another request \({different}\).* waiting"):
        office.put("m", **{"key": "k", "body": ["hello"], **other})
    drain(office.relay())
    assert [message.body for message in office.sent] == [["hello"]]


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800"])
def test_a_name_that_one_of_the_databases_could_not_hold_is_refused(
    office: Office, name: str
) -> None:
    with pytest.raises(BadInput, match="message_id is"):
        office.put(name, key="k")
    with pytest.raises(BadInput, match="owner is"):
        office.relay(name)


def test_a_body_that_would_not_come_back_is_refused_with_its_path(office: Office) -> None:
    with pytest.raises(UnstorableValue, match=r"body\['lock'\]"):
        office.put("m", body={"lock": threading.Lock()})


@pytest.mark.parametrize(
    "options",
    [
        {"claim_life_s": 0},
        {"claim_life_s": -1.0},
        {"claim_life_s": 1, "attempts_limit": 0},
        {"claim_life_s": 1, "first_wait_s": 0},
        {"claim_life_s": 1, "first_wait_s": 5, "longest_wait_s": 1},
    ],
)
def test_zero_is_a_value_and_a_relay_that_could_never_send_is_refused(
    office: Office, options: dict[str, Any]
) -> None:
    with pytest.raises(BadInput, match="a claim must live"):
        office.relay(**options)


# --------------------------------------------------------------------------- order


def test_messages_of_a_key_keep_their_order_and_other_keys_do_not_wait(office: Office) -> None:
    for message_id, key in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        office.put(message_id, key=key)

    def fail(message: Message) -> None:
        if message.message_id == "a1" and message.attempt == 1:
            raise OSError("no answer")

    office.fail = fail
    relay = office.relay()
    drain(relay)
    assert office.ids() == ["a1", "b1"], "a2 must not overtake a1"
    office.clock.advance(1)
    drain(relay)
    assert office.ids() == ["a1", "b1", "a1", "a2"]


def test_a_message_behind_a_claimed_one_of_its_key_is_not_taken_by_a_second_relay(
    office: Office,
) -> None:
    office.put("a1", key="a")
    office.put("a2", key="a")
    inside: list[Attempt | None] = []
    second = office.relay("relay 2")
    office.fail = lambda message: inside.append(second.run_once()) if not inside else None
    office.relay().run_once()
    assert inside == [None]
    assert office.ids() == ["a1"]


def test_four_healthy_relays_send_each_message_once_and_keep_the_order_of_every_key(
    office: Office,
) -> None:
    for number in range(60):
        office.put(f"m{number:02d}", key=f"key {number % 7}")
    office.clock = FakeClock()  # nobody moves it: no claim ends while they work
    errors: list[BaseException] = []

    def work(owner: str) -> None:
        try:
            relay = office.relay(owner)
            idle = 0
            while idle < 3:
                idle = 0 if relay.run_once() else idle + 1
        except BaseException as error:
            errors.append(error)

    relays = [threading.Thread(target=work, args=(f"relay {n}",)) for n in range(4)]
    for thread in relays:
        thread.start()
    for thread in relays:
        thread.join()
    drain(office.relay("the last one"))
    assert errors == []
    assert sorted(office.ids()) == [f"m{number:02d}" for number in range(60)]
    for key in range(7):
        mine = [message.message_id for message in office.sent if message.key == f"key {key}"]
        assert mine == sorted(mine)


# --------------------------------------------------------------------------- failures


def test_a_message_that_kept_failing_waits_longer_and_longer_and_then_is_a_dead_letter(
    office: Office,
) -> None:
    office.put("poison", body=["?"])

    def fail(message: Message) -> None:
        raise ValueError("cannot read\0this \udc80")

    office.fail = fail
    relay = office.relay(attempts_limit=5, longest_wait_s=6)
    waits, outcomes = [], []
    while not outcomes or outcomes[-1] == "waits":
        attempt = relay.run_once()
        assert attempt is not None
        outcomes.append(attempt.outcome)
        waited = 0
        while attempt.outcome == "waits" and _due_in_us(office, "poison") > 0:
            assert relay.run_once() is None, "it was sent before its time"
            office.clock.advance(0.5)
            waited += 1
        waits.append(waited / 2)
    assert waits == [1, 1, 2, 4, 0]
    assert outcomes == ["waits"] * 4 + ["dead"]
    [letter] = office.outbox.dead_letters(office.database)
    assert (letter.message.message_id, letter.message.body, letter.message.attempt) == (
        "poison",
        ["?"],
        5,
    )
    assert letter.error == "ValueError: cannot read?this ?"
    office.clock.advance(100_000)
    assert relay.run_once() is None


def test_what_has_been_due_longest_goes_first_whatever_its_number(office: Office) -> None:
    office.put("failed once")
    office.fail = _always(OSError("no answer"))
    relay = office.relay()
    relay.run_once()
    office.clock.advance(0.5)
    office.put("younger")
    office.clock.advance(10)
    office.fail = lambda message: None
    drain(relay)
    assert office.ids() == ["failed once", "younger", "failed once"]


def test_no_wait_is_longer_than_the_longest(office: Office) -> None:
    office.put("old")
    office.clock.advance(86_400)
    office.fail = _always(OSError("no answer"))
    office.relay(longest_wait_s=600).run_once()
    assert _due_in_us(office, "old") == 600_000_000


def test_what_the_receiver_will_never_take_is_dead_at_once(office: Office) -> None:
    office.put("m")
    office.fail = _always(Refused("there is no such address"))
    assert drain(office.relay()) == [Attempt("m", "dead", 1, "Refused: there is no such address")]


@pytest.mark.parametrize("error", [NotSent("maintenance"), ConnectionRefusedError("nobody")])
def test_an_outage_turns_nothing_into_dead_letters(office: Office, error: Exception) -> None:
    office.put("m")
    office.fail = _always(error)
    relay = office.relay(attempts_limit=2, longest_wait_s=1)
    for _ in range(10):
        attempt = relay.run_once()
        assert attempt is not None
        assert (attempt.outcome, attempt.attempt) == ("waits", 1)
        office.clock.advance(1)
    office.fail = lambda message: None
    assert drain(relay) == [Attempt("m", "delivered", 1)]


def test_a_connection_that_breaks_counts_since_the_message_may_have_broken_it(
    office: Office,
) -> None:
    office.put("m")
    office.fail = _always(ConnectionResetError("peer is gone"))
    relay = office.relay(attempts_limit=2)
    relay.run_once()
    office.clock.advance(1)
    attempt = relay.run_once()
    assert attempt is not None
    assert attempt.outcome == "dead"


def test_a_redriven_letter_is_sent_with_its_old_id_and_all_its_attempts(office: Office) -> None:
    office.put("m", key="k", body="first")
    office.put("n", key="k", body="second")
    office.fail = _always(Refused("wrong address"))
    relay = office.relay()
    relay.run_once()
    office.fail = lambda message: None
    drain(relay)
    assert office.ids() == ["m", "n"], "the key goes on behind its dead letter"
    assert not office.outbox.redrive(office.database, "n"), "that one is no dead letter"
    assert office.outbox.redrive(office.database, "m")
    assert not office.outbox.redrive(office.database, "m")
    assert drain(relay) == [Attempt("m", "delivered", 1)]
    assert office.sent[-1].body == "first"
    assert office.outbox.dead_letters(office.database) == []


def test_a_letter_whose_class_is_gone_is_listed_and_goes_out_when_the_class_is_back(
    office: Office,
) -> None:
    knowing = Outbox(codec=Codec(allow=[Parcel]), clock=office.clock)
    with office.database.write() as tx:
        knowing.enqueue(tx, message_id="m", topic="mail", key="m", body=Parcel(5))
    assert [a.outcome for a in drain(office.relay(attempts_limit=1))] == ["dead"]
    assert office.sent == []
    [letter] = office.outbox.dead_letters(office.database)
    assert isinstance(letter.message.body, UnloadableValue)
    assert "Parcel" in letter.error
    knowing.redrive(office.database, "m")
    drain(office.relay(outbox=knowing))
    assert [message.body for message in office.sent] == [Parcel(5)]


def test_an_interrupted_send_leaves_its_claim_to_end_by_itself(office: Office) -> None:
    office.put("m")

    def interrupted(message: Message) -> None:
        raise KeyboardInterrupt

    office.fail = interrupted
    with pytest.raises(KeyboardInterrupt):
        office.relay().run_once()
    office.fail = lambda message: None
    assert office.relay("relay 2").run_once() is None, "nobody knows what was sent"
    office.clock.advance(CLAIM_LIFE_S)
    assert office.relay("relay 2").run_once() == Attempt("m", "delivered", 2)


def test_a_message_that_kills_its_relay_each_time_ends_as_a_dead_letter(office: Office) -> None:
    office.put("killer")
    office.put("innocent", key="killer")

    def killed(message: Message) -> None:
        if message.message_id == "killer":
            raise SystemExit  # leaves as a kill does: claimed, and never marked

    office.fail = killed
    for attempt in range(3):
        with pytest.raises(SystemExit):
            office.relay(f"relay {attempt}", attempts_limit=3).run_once()
        office.clock.advance(CLAIM_LIFE_S)
    assert drain(office.relay("relay 4", attempts_limit=3)) == [Attempt("innocent", "delivered", 1)]
    [letter] = office.outbox.dead_letters(office.database)
    assert letter.error == "attempt 3 had no end: its relay died, or slept too long"


# --------------------------------------------------------------------------- house-keeping, inbox


def test_only_what_was_delivered_long_ago_is_forgotten(office: Office) -> None:
    office.put("old")
    office.put("dead")
    office.fail = lambda message: _raise(Refused("no")) if message.key == "dead" else None
    drain(office.relay())
    office.clock.advance(100)
    office.put("waiting")
    office.put("new")
    office.fail = lambda message: _raise(OSError("no")) if message.key == "waiting" else None
    drain(office.relay())
    assert office.outbox.forget_delivered(office.database, older_than_s=50) == 1
    with office.database.read() as tx:
        left = tx.rows("SELECT message_id FROM outbox ORDER BY message_id")
    assert [row[0] for row in left] == ["dead", "new", "waiting"]


def test_run_sends_until_it_is_stopped(office: Office) -> None:
    office.put("m1")
    office.put("m2")
    stop = threading.Event()
    office.fail = lambda message: stop.set() if message.message_id == "m2" else None
    office.relay().run(stop=stop, poll_s=0.01)
    assert office.ids() == ["m1", "m2"]


def test_a_consumer_takes_a_message_once_and_another_consumer_takes_it_too(office: Office) -> None:
    def take(consumer: str) -> bool:
        with office.database.write() as tx:
            return take_once(tx, consumer=consumer, message_id="m", clock=office.clock)

    with pytest.raises(ZeroDivisionError), office.database.write() as tx:
        assert take_once(tx, consumer="stock", message_id="m")
        _ = 1 / 0
    assert [take("stock"), take("stock"), take("books")] == [True, False, True]


def _always(error: Exception) -> Callable[[Message], None]:
    return lambda message: _raise(error)


def _raise(error: Exception) -> None:
    raise error


def _due_in_us(office: Office, message_id: str) -> int:
    with office.database.read() as tx:
        row = tx.row("SELECT due_at_us FROM outbox WHERE message_id = :id", id=message_id)
    assert row is not None
    return int(row[0]) - office.clock.now_us()
