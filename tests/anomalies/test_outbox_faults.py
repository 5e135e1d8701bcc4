"""What is known to go wrong with outboxes, each beside the naive relay that gets it wrong."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from durable_kit.clock import FakeClock
from durable_kit.crash.child import Child
from durable_kit.crash_point import ANNOUNCEMENT
from durable_kit.effects.outbox import Message, Outbox
from durable_kit.effects.relay import AFTER_CLAIM, AFTER_MARK, AFTER_SEND, Attempt, Relay
from durable_kit.storage.database import Database
from tests.anomalies.relay_worker import ANSWERED, IN_SEND, receive

WORKER = "tests.anomalies.relay_worker"


@pytest.fixture(autouse=True)
def _workers_find_their_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def put(database: Database, message_id: str, *, key: str = "") -> None:
    with database.write() as tx:
        Outbox().enqueue(tx, message_id=message_id, topic="mail", key=key or message_id, body=None)


def drain(relay: Relay) -> list[str]:
    """The ids of what was attempted until nothing was due."""
    ids = []
    while (attempt := relay.run_once()) is not None:
        ids.append(attempt.message_id)
    return ids


# --------------------------------------------------------------------------- rows that commit late


class HighWaterMark:
    """The naive relay: it remembers the highest number that it has sent."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._mark = 0

    def drain(self) -> list[str]:
        with self._database.read() as tx:
            rows = tx.rows(
                "SELECT position, message_id FROM outbox WHERE position > :mark ORDER BY position",
                mark=self._mark,
            )
        self._mark = max([self._mark, *(row[0] for row in rows)])
        return [row[1] for row in rows]


@pytest.mark.postgres
def test_a_row_that_commits_after_a_later_one_is_sent(
    postgres_database: Callable[[], str],
) -> None:
    with Database.open(postgres_database()) as database:
        relay = Relay(Outbox(), database, send=lambda m: None, owner="relay", claim_life_s=30)
        naive = HighWaterMark(database)
        with OpenTransaction(database, "late") as a, OpenTransaction(database, "gone") as gone:
            put(database, "early")
            gone.roll_back()  # leaves a gap in the numbers for ever
            assert (naive.drain(), drain(relay)) == (["early"], ["early"])
            a.commit()
        put(database, "last")
        assert naive.drain() == ["last"], "the naive relay has lost a message"
        assert drain(relay) == ["late", "last"]
        with database.read() as tx:
            numbers = dict(tx.rows("SELECT message_id, position FROM outbox"))
        assert numbers["late"] < numbers["early"], "it was written first and committed last"


@pytest.mark.postgres
def test_within_a_key_a_second_transaction_waits_so_that_numbers_follow_commits(
    postgres_database: Callable[[], str],
) -> None:
    with Database.open(postgres_database()) as database:
        relay = Relay(Outbox(), database, send=lambda m: None, owner="relay", claim_life_s=30)
        with OpenTransaction(database, "first", key="order-1") as a:
            second = threading.Thread(
                target=put, args=(database, "second"), kwargs={"key": "order-1"}
            )
            second.start()
            _until(lambda: _waiting_for_an_advisory_lock(database) == 1)
            put(database, "of another key", key="order-2")
            assert drain(relay) == ["of another key"]
            a.commit()
            second.join()
        assert drain(relay) == ["first", "second"]


class OpenTransaction:
    """A transaction in an OS thread of its own that has enqueued, and has not ended yet."""

    def __init__(self, database: Database, message_id: str, *, key: str = "") -> None:
        self._written, self._end, self._keep = threading.Event(), threading.Event(), True
        self._thread = threading.Thread(target=self._run, args=(database, message_id, key))

    def _run(self, database: Database, message_id: str, key: str) -> None:
        try:
            with database.write() as tx:
                Outbox().enqueue(
                    tx, message_id=message_id, topic="mail", key=key or message_id, body=None
                )
                self._written.set()
                assert self._end.wait(60)
                if not self._keep:
                    raise InterruptedError
        except InterruptedError:
            pass

    def commit(self) -> None:
        self._end.set()
        self._thread.join()

    def roll_back(self) -> None:
        self._keep = False
        self.commit()

    def __enter__(self) -> OpenTransaction:
        self._thread.start()
        assert self._written.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.commit()


# --------------------------------------------------------------------------- poison


def test_a_batch_of_poison_does_not_keep_the_good_message_from_going_out(
    database_url: str,
) -> None:
    batch, clock = 6, FakeClock()
    sent: list[str] = []

    def send(message: Message) -> None:
        sent.append(message.message_id)
        if message.message_id.startswith("poison"):
            raise ValueError("cannot be read")

    with Database.open(database_url) as database:
        for number in range(batch):
            put(database, f"poison {number}")
        put(database, "good")
        assert "good" not in naive_batches(database, send, batch=batch, runs=10)
        sent.clear()
        outbox = Outbox(clock=clock)
        relay = Relay(
            outbox, database, send=send, owner="r", claim_life_s=30, attempts_limit=3, clock=clock
        )
        _make_due(database, clock)
        drain(relay)
        assert sent.count("good") == 1, "it had to go out in the first run"
        for _ in range(10):
            clock.advance(60)
            drain(relay)
        assert Counter(sent) == {"good": 1, **{f"poison {n}": 3 for n in range(batch)}}
        letters = outbox.dead_letters(database)
        assert {letter.message.message_id for letter in letters} == {
            f"poison {n}" for n in range(batch)
        }


def naive_batches(
    database: Database, send: Callable[[Message], None], *, batch: int, runs: int
) -> set[str]:
    """Take the first `batch` rows that are not delivered, in order; what failed stays in place."""
    attempted = set()
    for _ in range(runs):
        with database.read() as tx:
            rows = tx.rows(
                """
                SELECT message_id FROM outbox WHERE status = 'waiting'
                 ORDER BY position LIMIT :batch
                """,
                batch=batch,
            )
        for (message_id,) in rows:
            attempted.add(message_id)
            try:
                send(Message(message_id, "mail", "", None, 1))
            except ValueError:
                pass
    return attempted


# --------------------------------------------------------------------------- kills


@pytest.mark.parametrize(
    ("point", "receiver", "arrived", "shipments"),
    [
        (AFTER_SEND, "careless", ["m 1", "m 2"], 2),  # what happens without the receiver's half
        (AFTER_CLAIM, "careful", ["m 2"], 1),
        (AFTER_SEND, "careful", ["m 1", "m 2"], 1),
        (AFTER_MARK, "careful", ["m 1"], 1),
    ],
)
def test_after_a_kill_the_message_arrives_again_with_its_id_and_is_taken_once(
    database_url: str,
    tmp_path: Path,
    point: str,
    receiver: str,
    arrived: list[str],
    shipments: int,
) -> None:
    book = tmp_path / "arrived"
    book.touch()
    with Database.open(database_url) as database:
        _make_shipments(database)
        put(database, "m")
        arguments = [database_url, "A", "0.2", str(book), receiver]
        with Child.start(WORKER, arguments, crash_at=point) as child:
            child.until(ANNOUNCEMENT + point, timeout_s=60)
            assert child.kill().killed

        def send(message: Message) -> None:
            receive(database, book, message, careful=receiver == "careful")

        relay = Relay(Outbox(), database, send=send, owner="B", claim_life_s=30)
        _until(lambda: relay.run_once() is not None or _status(database) == "delivered")
        assert book.read_text().splitlines() == arrived
        assert _status(database) == "delivered"
        assert _shipments(database) == shipments


def test_through_kills_at_any_moment_nothing_is_lost_taken_twice_or_out_of_order(
    database_url: str, tmp_path: Path
) -> None:
    """Two relays at a time; one of them is killed some moments after its n-th attempt."""
    messages, keys, dice = 60, 7, random.Random(5)
    book = tmp_path / "arrived"
    book.touch()
    arguments = [database_url, "one name for all", "0.3", str(book), "careful-for-ever"]
    with Database.open(database_url) as database:
        _make_shipments(database)
        for number in range(messages):
            put(database, f"{number:02d}", key=f"key {number % keys}")
        kills = 0
        with ExitStack() as stack:
            relays = [stack.enter_context(Child.start(WORKER, arguments)) for _ in range(2)]
            while _left(database):
                victim = relays.pop(0)
                for _ in range(dice.randint(1, 12)):
                    victim.until(ANSWERED, timeout_s=60)
                time.sleep(dice.uniform(0, 0.004))  # so that it dies anywhere in an attempt
                kills += victim.kill().killed
                relays.append(stack.enter_context(Child.start(WORKER, arguments)))
        arrived = [line.split()[0] for line in book.read_text().splitlines()]
        first_arrivals = list(dict.fromkeys(arrived))
        assert kills >= 4
        assert sorted(first_arrivals) == [f"{number:02d}" for number in range(messages)]
        assert _shipments(database) == messages, "each was taken once"
        for key in range(keys):
            mine = [one for one in first_arrivals if int(one) % keys == key]
            assert mine == sorted(mine)


# --------------------------------------------------------------------------- a relay that slept


def test_a_relay_that_was_stopped_beyond_its_claim_marks_nothing(
    database_url: str, tmp_path: Path
) -> None:
    book = tmp_path / "arrived"
    book.touch()
    with Database.open(database_url) as database:
        _make_shipments(database)
        put(database, "m")
        with Child.start(WORKER, [database_url, "A", "0.2", str(book), "wait-in-send"]) as a:
            a.until(IN_SEND, timeout_s=60)
            psutil.Process(a.pid).suspend()  # SIGSTOP where there are signals
            b = Relay(
                Outbox(),
                database,
                send=lambda m: receive(database, book, m),
                owner="B",
                claim_life_s=30,
            )
            attempts: list[Attempt] = []
            _until(lambda: (one := b.run_once()) is not None and not attempts.append(one))
            assert attempts == [Attempt("m", "delivered", 2)]
            a.go()
            psutil.Process(a.pid).resume()
            # It believes that its send has failed and wants to write "waiting" over "delivered".
            assert a.until(ANSWERED, timeout_s=60) == f"{ANSWERED}claim lost"
            assert a.wait(timeout_s=30).exit_code == 0
        assert _status(database) == "delivered"
        assert b.run_once() is None
        assert (book.read_text().splitlines(), _shipments(database)) == (["m 2"], 1)


def test_without_a_token_in_its_where_clause_the_sleeper_undoes_what_the_new_owner_wrote(
    database_url: str,
) -> None:
    """The naive half of it: the same two marks, with the message's id alone."""
    with Database.open(database_url) as database:
        put(database, "m")
        relay = Relay(Outbox(), database, send=lambda m: None, owner="B", claim_life_s=30)
        assert drain(relay) == ["m"]
        with database.write() as tx:
            tx.execute("UPDATE outbox SET status = 'waiting', due_at_us = 0 WHERE message_id = 'm'")
        assert drain(relay) == ["m"], "a delivered message went out once more"


@pytest.mark.parametrize("second_owner", ["B", "A"])
@pytest.mark.parametrize("learned", ["delivered", "failed"])
def test_what_a_sleeper_learned_is_not_written_over_a_newer_claim(
    database_url: str, second_owner: str, learned: str
) -> None:
    """Also under its own name: a relay that was restarted has it again, and the number decides."""
    clock = FakeClock()
    newer: list[Attempt | None] = []
    with Database.open(database_url) as database:
        put(database, "m")
        _make_due(database, clock)

        def relay(owner: str, send: Callable[[Message], object]) -> Relay:
            return Relay(Outbox(), database, send=send, owner=owner, claim_life_s=30, clock=clock)

        def busy(message: Message) -> None:
            raise TimeoutError("the second try")

        def sleeps(message: Message) -> None:
            clock.advance(30)
            newer.append(relay(second_owner, busy).run_once())
            if learned == "failed":
                raise TimeoutError("the first try")

        attempt = relay("A", sleeps).run_once()
        assert newer == [Attempt("m", "waits", 2, "TimeoutError: the second try")]
        assert attempt is not None
        assert attempt.outcome == "claim lost"
        with database.read() as tx:
            row = tx.row("SELECT status, owner, attempts, last_error FROM outbox")
        assert row == ("waiting", second_owner, 2, "TimeoutError: the second try")


# --------------------------------------------------------------------------- helpers


def _make_shipments(database: Database) -> None:
    with database.write() as tx:
        tx.execute("CREATE TABLE shipments (message_id TEXT NOT NULL)")


def _make_due(database: Database, clock: FakeClock) -> None:
    """Rows were written by the machine's clock; this test goes by one of its own."""
    with database.write() as tx:
        tx.execute(
            "UPDATE outbox SET waiting_since_us = :now, due_at_us = :now", now=clock.now_us()
        )


def _shipments(database: Database) -> int:
    with database.read() as tx:
        row = tx.row("SELECT count(*) FROM shipments")
    assert row is not None
    return int(row[0])


def _left(database: Database) -> int:
    with database.read() as tx:
        row = tx.row("SELECT count(*) FROM outbox WHERE status <> 'delivered'")
    assert row is not None
    return int(row[0])


def _status(database: Database) -> str:
    with database.read() as tx:
        row = tx.row("SELECT status FROM outbox WHERE message_id = 'm'")
    assert row is not None
    return str(row[0])


def _waiting_for_an_advisory_lock(database: Database) -> int:
    with database.read() as tx:
        row = tx.row("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    assert row is not None
    return int(row[0])


def _until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
