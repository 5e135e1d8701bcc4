"""Was it paid once? Real kills at every point of a call, on a real provider, counted in its book.

    point of death          what is known then, and by whom
    gateway.before_intent   nothing has happened, nobody knows of the call
    gateway.after_intent    we know what is wanted; surely nothing was sent
    provider.after_send     the request is out; it may or may not be done
    provider.after_effect   the provider knows; the reply lies in our socket, unread
    gateway.after_reply     our process knows, in memory
    gateway.before_receipt  the same, a moment before the commit
    gateway.after_receipt   our database knows as well

A trial is one order. An agent of one node charges it and is killed at the point, by the operating
system. Then another process resumes the thread, as after any crash, and is left alone. The verdict
comes from the provider's book and from how that process ended, not from what we have written:

    once        one charge, and the agent has a receipt
    twice       more than one charge
    lost        no charge, although the agent believes in one
    in doubt    the agent stopped and says that nobody knows

and from nothing else: "in doubt" is right where the provider has neither key nor look-up, and
wrong everywhere else. The *naive* agent does what most code does: it looks into its own table,
charges, and notes the charge.

    python -m durable_kit.lab.effect_trials --repeats 20

The resumed process waits for the dead one's claim to run out (`CLAIM_LIFE_S`), and where the
provider can only be asked, until "not there" means "never" (`SETTLES_S`): the price of not
guessing, and the reason why a claim's life is a setting of its own.
"""

from __future__ import annotations

import argparse
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import pandas as pd

from durable_kit import crash_point
from durable_kit.crash.child import ChildFailed
from durable_kit.crash.experiment import AtPoint, Experiment
from durable_kit.crash.trial import Trial, run_trials
from durable_kit.effects.gateway import IdempotentGateway
from durable_kit.effects.outcomes import Absent, CannotTell, Contract, Found, NotSent, Verdict
from durable_kit.effects.receipt import Intent
from durable_kit.lab.embedded_postgres import embedded_postgres
from durable_kit.lab.provider import Provider
from durable_kit.lab.provider_client import (
    AFTER_EFFECT,
    AFTER_SEND,
    NoEffect,
    OutcomeUnknown,
    ProviderClient,
    Refused,
)
from durable_kit.storage.database import Database

POINTS = (
    "gateway.before_intent",
    "gateway.after_intent",
    AFTER_SEND,
    AFTER_EFFECT,
    "gateway.after_reply",
    "gateway.before_receipt",
    "gateway.after_receipt",
)
AMBIGUOUS = POINTS[2:6]
"""Those at which our database cannot tell whether it happened."""

Ability = Literal["key", "lookup", "neither"]
Way = Literal["gateway", "naive"]
ABILITIES: tuple[Ability, ...] = ("key", "lookup", "neither")
WAYS: tuple[Way, ...] = ("naive", "gateway")

NAIVE_TABLE = "CREATE TABLE IF NOT EXISTS charged (order_id TEXT, charge_id TEXT)"
CLAIM_LIFE_S, SETTLES_S = 0.3, 0.3
ONCE, TWICE, LOST, IN_DOUBT, STOPPED = "once", "twice", "lost", "in doubt", "stopped"
AMOUNT_CENTS = 4999


class PaymentState(TypedDict, total=False):
    """The state of the agent of these trials."""

    order_id: str
    charge_id: str


@dataclass(frozen=True, slots=True)
class PaymentAgent:
    """`agent(saver)` is a graph of one node that charges an order, in its `way`."""

    provider_url: str
    ability: Ability
    way: Way

    def __call__(self, saver: Any) -> Any:
        from langgraph.graph import END, START, StateGraph

        charge = self._through_gateway if self.way == "gateway" else self._naively

        def node(state: PaymentState) -> PaymentState:
            return {"charge_id": charge(saver.database, state["order_id"])}

        builder: Any = StateGraph(PaymentState)
        builder.add_node("charge", node)
        builder.add_edge(START, "charge")
        builder.add_edge("charge", END)
        return builder.compile(checkpointer=saver)

    def _through_gateway(self, database: Database, order_id: str) -> str:
        gateway = IdempotentGateway(
            database,
            tool_name="payments",
            contract=contract_of(self.ability),
            wait_s=10.0,
            claim_life_s=CLAIM_LIFE_S,
        )
        while True:
            try:
                receipt = gateway.call(
                    idempotency_key=f"charge:{order_id}",
                    request={"order_id": order_id, "amount_cents": AMOUNT_CENTS},
                    effect=self._charge,
                    lookup=self._look_up if self.ability == "lookup" else None,
                )
                break
            except NotSent:
                continue  # a busy machine held this process up beyond its short claim; call again
        return str(receipt.response["id"])

    def _charge(self, intent: Intent) -> dict[str, Any]:
        client = ProviderClient(self.provider_url)
        return client.charge(**intent.request, key=intent.idempotency_key).body

    def _look_up(self, intent: Intent) -> Verdict:
        return look_up(ProviderClient(self.provider_url), intent)

    def _naively(self, database: Database, order_id: str) -> str:
        """Check, act, store: right as long as nothing dies and nobody else is there."""
        crash_point.reached("gateway.before_intent")
        with database.write() as tx:
            if tx.is_sqlite:
                tx.execute(NAIVE_TABLE)
            found = tx.row(
                "SELECT charge_id FROM charged WHERE order_id = :order_id", order_id=order_id
            )
        crash_point.reached("gateway.after_intent")
        if found is not None:
            return str(found[0])
        reply = ProviderClient(self.provider_url).charge(order_id, amount_cents=AMOUNT_CENTS)
        crash_point.reached("gateway.after_reply")
        crash_point.reached("gateway.before_receipt")
        with database.write() as tx:
            tx.execute(
                "INSERT INTO charged VALUES (:order_id, :id)", order_id=order_id, id=reply.id
            )
        crash_point.reached("gateway.after_receipt")
        return reply.id


def contract_of(ability: Ability) -> Contract:
    """What a provider of this ability promises."""
    return Contract(
        keeps_keys_s=86_400 if ability == "key" else 0,
        absence_settles_after_s=SETTLES_S if ability == "lookup" else None,
        surely_no_effect=(NoEffect,),
        refusals=(Refused,),
    )


def look_up(client: ProviderClient, intent: Intent) -> Verdict:
    """Ask the provider of the lessons what it knows of a key."""
    try:
        found = client.find(key=intent.idempotency_key)
    except (OutcomeUnknown, NoEffect) as error:
        return CannotTell(str(error))
    return Found(found[0].body) if found else Absent()


def start_provider(ability: Ability) -> Provider:
    """A provider that can do so much and no more."""
    return Provider.start(honours_keys=ability == "key", lookup=ability == "lookup")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One trial: where it died, how often the provider has charged, and how the agent ended."""

    way: Way
    ability: Ability
    point: str
    charges_count: int
    verdict: str
    ended: str


def run(
    cases: Sequence[tuple[Way, Ability, str]],
    *,
    repeats: int,
    url: str | None = None,
    on_progress: Callable[[int], None] | None = None,
    cancelled: threading.Event | None = None,
) -> Iterator[Outcome]:
    """Kill an agent `repeats` times for each case, in turns.

    `url`: the database of all agents (default: a SQLite file for each). Raises `ChildFailed` for a
    kill that did not happen; no process is left in any case.
    """
    if url is not None:
        with Database.open(url) as database, database.write() as tx:
            tx.execute(NAIVE_TABLE)
    with ExitStack() as stack:
        abilities = dict.fromkeys(ability for _, ability, _ in cases)
        providers = {a: stack.enter_context(start_provider(a)) for a in abilities}
        turns = [case for _ in range(repeats) for case in cases]
        orders = [f"order-{uuid.uuid4().hex[:12]}" for _ in turns]
        plans = [
            (
                Experiment(
                    graph=PaymentAgent(providers[ability].url, ability, way),
                    input={"order_id": order_id},
                    durability="sync",
                    url=url,
                    fsync=False,
                    record_points=False,
                ),
                (AtPoint(point),),
            )
            for (way, ability, point), order_id in zip(turns, orders, strict=True)
        ]
        trials = run_trials(plans, on_progress=on_progress, cancelled=cancelled)
        for (way, ability, point), order_id, trial in zip(turns, orders, trials, strict=True):
            charges = len(providers[ability].charges(order_id))
            verdict, ended = judged(trial, charges)
            yield Outcome(way, ability, point, charges, verdict, ended)


def judged(trial: Trial, charges_count: int) -> tuple[str, str]:
    """The verdict on one trial, and how its last process ended."""
    if not trial.crashed:
        raise ChildFailed(trial.story)
    error = trial.attempts[-1].error
    if charges_count > 1:
        return TWICE, error or "receipt"
    if error is not None:
        return IN_DOUBT if error.startswith("InDoubt") else STOPPED, error.splitlines()[0]
    if not trial.final_state.get("charge_id"):
        raise ChildFailed(f"the agent ended without a receipt: {trial.story}")
    return ONCE if charges_count == 1 else LOST, "receipt"


def table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """How often each verdict was reached: one row for each way, ability and point."""
    frame = pd.DataFrame(
        [(o.way, o.ability, o.point, o.verdict) for o in outcomes],
        columns=["way", "ability", "point", "verdict"],
    )
    counts = frame.groupby(["way", "ability", "point", "verdict"], sort=False).size()
    wide = counts.unstack(fill_value=0)
    order = [v for v in (ONCE, TWICE, LOST, IN_DOUBT, STOPPED) if v in wide.columns]
    return wide[order].reset_index().rename_axis(columns=None)


def broken_promises(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The trials of the gateway that did not end as it promises."""
    return [o for o in outcomes if o.way == "gateway" and o.verdict != promised(o)]


def promised(outcome: Outcome) -> str:
    """Once; only where nobody can be asked, an ambiguous one stays in doubt."""
    ambiguous = outcome.point in AMBIGUOUS and outcome.ability == "neither"
    return IN_DOUBT if ambiguous else ONCE


def main(argv: list[str] | None = None) -> int:
    """Run all cases and print the table; 1 if the gateway broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m durable_kit.lab.effect_trials")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--postgres", action="store_true", help="on an embedded PostgreSQL")
    arguments = parser.parse_args(argv)
    ways: Sequence[Way] = arguments.way or WAYS
    cases = [(w, a, p) for w in ways for a in ABILITIES for p in POINTS]
    from tqdm import tqdm

    with tqdm(total=len(cases) * arguments.repeats, unit="kill", mininterval=5) as bar:
        outcomes = []
        with embedded_postgres() if arguments.postgres else nullcontext() as url:
            for outcome in run(cases, repeats=arguments.repeats, url=url):
                outcomes.append(outcome)
                bar.update(1)
    print(table(outcomes).to_string(index=False))
    broken = broken_promises(outcomes)
    for outcome in broken:
        print(f"not as promised ({promised(outcome)}): {outcome}")
    if "gateway" in ways:
        print(f"{len(broken)} broken promises of the gateway in {len(outcomes)} trials")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
