"""Thousands of small disasters: callers, kills, lost replies and late effects, in any order.

A seed decides everything. Several callers of one key are driven step by step, by the acts that the
protocol yields; between two steps the clock jumps, a process dies (its database does not answer
any more), a reply is lost, or a request acts long after everybody has given it up. At the end the
world calms down, somebody calls until there is an answer, and the provider's book is counted.

    provider knows keys      once, whatever happens, however slow anybody is
    provider can be asked    once, as long as claims and the contract's times are kept
    it forgets keys          never twice; once, or in doubt when it may have forgotten
    neither                  never twice; in doubt if a request may be out

The same disasters without a gateway charge several times: see the last test.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from durable_kit import (
    Absent,
    Contract,
    Database,
    FakeClock,
    Found,
    IdempotentGateway,
    InDoubt,
    InProgress,
    NotSent,
    Receipt,
)
from durable_kit.effects import steps
from durable_kit.effects.receipt import Intent

KEY, REQUEST = "charge:order-1001", {"amount_cents": 4999}
CLAIM_S, SETTLES_S, TIMEOUT_S, KEYS_S, DAY_S = 60, 30, 20, 200, 86_400
CALLERS, TURNS = 4, 40


class Killed(BaseException):
    """The process is gone. Nothing of it is written any more."""


class ProcessDatabase:
    """The database as one process sees it, until that process dies."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.dead = False

    @contextmanager
    def write(self) -> Iterator[Any]:
        if self.dead:
            raise Killed
        with self._database.write() as tx:
            yield tx

    @contextmanager
    def read(self) -> Iterator[Any]:
        if self.dead:
            raise Killed
        with self._database.read() as tx:
            yield tx


class World:
    """One provider, its book, and requests that are still on their way."""

    def __init__(self, database: Database, ability: str, rng: random.Random) -> None:
        self.ability, self.rng, self.clock = ability, rng, FakeClock()
        self.database = database
        self.book: list[str] = []
        self.on_their_way_until_us: list[int] = []
        self.known_since_us: int | None = None

    def gateway(self, database: Any) -> IdempotentGateway:
        contract = Contract(
            keeps_keys_s={"key": DAY_S, "forgets": KEYS_S}.get(self.ability, 0),
            absence_settles_after_s=SETTLES_S if self.ability == "lookup" else None,
        )
        return IdempotentGateway(
            database,
            tool_name="payments",
            contract=contract,
            claim_life_s=CLAIM_S,
            wait_s=1,
            clock=self.clock,
        )

    def act(self) -> None:
        now_us = self.clock.now_us()
        window_us = {"key": math.inf, "forgets": (KEYS_S + SETTLES_S) * 1e6}.get(self.ability, 0)
        if self.known_since_us is None or now_us - self.known_since_us >= window_us:
            self.known_since_us = now_us
            self.book.append("charge")

    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)
        due = [at for at in self.on_their_way_until_us if at <= self.clock.now_us()]
        for at in due:
            self.on_their_way_until_us.remove(at)
            self.act()

    def send(self, intent: Intent) -> str:
        """What becomes of a request: done or not, now or later, and heard of or not."""
        assert intent.request == REQUEST
        fate = self.rng.choice("done done lost-reply lost-request late not-sent".split())
        if fate == "not-sent":
            raise NotSent("not reached")
        if fate in ("done", "lost-reply"):
            self.act()
        if fate == "late":
            seconds = self.rng.uniform(0, SETTLES_S * 0.99)
            self.on_their_way_until_us.append(self.clock.now_us() + round(seconds * 1e6))
        if fate == "done":
            return "charged"
        raise TimeoutError(fate)

    def look_up(self, intent: Intent) -> Any:
        return Found("charged") if self.book else Absent()


class Caller:
    """One process that calls, an act at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.database = ProcessDatabase(world.database)
        gateway = world.gateway(self.database)
        self.steps = gateway._protocol(
            KEY, REQUEST, world.send, world.look_up if world.ability == "lookup" else None, None
        )
        self.act: Any = None
        self.ended: Any = None

    @property
    def is_sending(self) -> bool:
        return isinstance(self.act, steps.Run) and self.act.function == self.world.send

    def move(self) -> None:
        """Perform the act that was yielded, and go on to the next."""
        try:
            if self.act is None:
                self.act = next(self.steps)
                return
            try:
                value = self.act.function(self.act.intent) if hasattr(self.act, "intent") else None
            except BaseException as error:
                self.act = self.steps.throw(error)
            else:
                if isinstance(self.act, steps.Wait):
                    self.world.let_time_pass(self.act.seconds)
                self.act = self.steps.send(value)
        except StopIteration as end:
            self.ended = end.value
        except Exception as error:
            self.ended = error

    def die(self) -> None:
        """In the middle of whatever it does; a request that it was sending may be out."""
        if self.is_sending and self.world.rng.random() < 0.6:
            try:
                self.world.send(self.act.intent)
            except (TimeoutError, NotSent):
                pass
        self.database.dead = True
        with pytest.raises(Killed):  # also out of whatever it still tries to write
            self.steps.throw(Killed())
        self.ended = Killed()


def story(database: Database, ability: str, seed: int) -> tuple[World, Any]:
    """One run of disasters, and how the last caller ended, who was left in peace."""
    rng = random.Random(f"{ability} {seed}")
    world = World(database, ability, rng)
    callers = [Caller(world) for _ in range(CALLERS)]
    for _ in range(TURNS):
        alive = [caller for caller in callers if caller.ended is None]
        if not alive:
            break
        caller, what = rng.choice(alive), rng.random()
        if what < 0.12 and caller.act is not None:
            caller.die()
        elif what < 0.25:
            for other in alive:  # who asks and sends has a time-out shorter than a claim
                if ability in ("lookup", "forgets") and isinstance(other.act, steps.Run):
                    other.move()
            world.let_time_pass(rng.choice([0.5, TIMEOUT_S, CLAIM_S, CLAIM_S + SETTLES_S]))
        else:
            caller.move()
    for caller in callers:
        while caller.ended is None:
            caller.move()
    world.rng = random.Random(0)
    world.send = lambda intent: world.act() or "charged"  # type: ignore[method-assign, func-returns-value]
    last: Any = None
    for _ in range(8):
        world.let_time_pass(CLAIM_S + SETTLES_S)
        caller = Caller(world)
        while caller.ended is None:
            caller.move()
        last = caller.ended
        if isinstance(last, Receipt):
            break
        assert isinstance(last, InDoubt | InProgress | NotSent)
    return world, last


SEEDS = range(300)


@pytest.fixture
def memory() -> Iterator[Database]:
    with Database.open("sqlite://") as database:
        yield database


def forget(database: Database) -> None:
    with database.write() as tx:
        tx.execute("DELETE FROM tool_call_receipts")


@pytest.mark.parametrize("ability", ["key", "lookup"])
def test_whatever_happens_it_happens_once(memory: Database, ability: str) -> None:
    for seed in SEEDS:
        forget(memory)
        world, last = story(memory, ability, seed)
        assert world.book == ["charge"], f"seed {seed}"
        assert isinstance(last, Receipt), f"seed {seed}: {last}"
        assert last.response == "charged"


@pytest.mark.parametrize("ability", ["neither", "forgets"])
def test_where_nobody_can_be_asked_it_happens_at_most_once_and_is_never_guessed(
    memory: Database, ability: str
) -> None:
    ends: list[str] = []
    for seed in SEEDS:
        forget(memory)
        world, last = story(memory, ability, seed)
        assert len(world.book) <= 1, f"seed {seed}"
        if isinstance(last, Receipt):
            assert world.book == ["charge"], f"seed {seed}: a receipt for nothing"
        else:
            assert isinstance(last, InDoubt), f"seed {seed}: {last}"
        ends.append(type(last).__name__)
    assert {"Receipt", "InDoubt"} == set(ends), "both ends must have been seen"


def test_the_same_disasters_without_a_gateway_charge_twice(memory: Database) -> None:
    twice = 0
    for seed in SEEDS:
        world = World(memory, "lookup", random.Random(f"lookup {seed}"))
        stored = None
        while stored is None:  # check, act, store; again until it works
            try:
                stored = world.send(Intent(KEY, REQUEST, 1, ""))
            except (TimeoutError, NotSent):
                world.let_time_pass(CLAIM_S + SETTLES_S)
        twice += len(world.book) > 1
    assert twice > len(SEEDS) / 10
