"""One payment, one kill, told in full: who did what, every row of the receipt, and the verdict.

`effect_trials.py` counts hundreds of kills. This file tells one of them, for a picture:

    agent         begins ── gateway.after_intent ── provider.after_effect ── killed ── …resumes…
    our receipt              requested, started                                unknown, succeeded
    provider                                 charge-1

The agent, its provider and the points of death are those of the trials. The rows of the receipt are
noted by the database itself: a trigger copies every version of every row, so that nobody has to
look at the right moment, and the process that is killed knows nothing of it.

Nothing is simulated. If the kill did not happen, this raises instead of telling a story.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from durable_kit.crash.child import ChildFailed, Death
from durable_kit.crash.experiment import AtPoint, Attempt, Experiment
from durable_kit.crash.trial import Bench
from durable_kit.lab.effect_trials import (
    IN_DOUBT,
    LOST,
    ONCE,
    POINTS,
    STOPPED,
    TWICE,
    Ability,
    Outcome,
    PaymentAgent,
    Way,
    judged,
    start_provider,
)
from durable_kit.lab.grid_plot import Mark
from durable_kit.lab.provider_book import Entry
from durable_kit.lab.workloads import sqlite_url
from durable_kit.storage.database import Database

ORDER_ID = "order-1001"
MARKS: Mapping[str, Mark] = {
    ONCE: "good",
    TWICE: "bad",
    LOST: "bad",
    IN_DOUBT: "doubt",
    STOPPED: "bad",
}
"""How to take each verdict, for `grid_plot.verdicts`."""
LANES = ("agent", "our receipt", "provider")
_ABILITY = {"key": "key", "lookup": "look-up", "neither": "neither"}
STEPS = 3  # how often `on_progress` is told that something was done


@dataclass(frozen=True, slots=True)
class PaymentRequest:
    """Which agent, which provider, and where it dies."""

    way: Way
    ability: Ability
    point: str


@dataclass(frozen=True, slots=True)
class ReceiptVersion:
    """The row of `tool_call_receipts` as it was from `t_s` on, seconds after the run began."""

    t_s: float
    status: str
    attempt: int
    detail: str


@dataclass(frozen=True, slots=True)
class PaymentStory:
    """One kill and one resume. `moments` has the columns t_s, lane, event, for `plots.timeline`."""

    request: PaymentRequest
    death: Death
    receipt: tuple[ReceiptVersion, ...]
    charges: tuple[Entry, ...]
    verdict: str
    ended: str
    moments: pd.DataFrame

    def receipt_table(self) -> pd.DataFrame:
        """The receipt row by row; empty for an agent that keeps none.

        Without the detail of an attempt that has begun: what its row still says is of the one
        before, which is in doubt until the new one has an answer.
        """
        rows = [
            (round(v.t_s, 3), v.status, v.attempt, (v.status != "started" and v.detail) or "–")
            for v in self.receipt
        ]
        return pd.DataFrame(rows, columns=["t_s", "status", "attempt", "detail"])

    def ledger_table(self) -> pd.DataFrame:
        """What stands in the provider's book."""
        rows = [
            (f"{e.kind}-{e.no}", e.order_id, e.amount_cents, e.key or "–") for e in self.charges
        ]
        return pd.DataFrame(rows, columns=["id", "order_id", "amount_cents", "key"])


def tell(
    request: PaymentRequest,
    *,
    on_progress: Callable[[int, str], None] | None = None,
    cancelled: threading.Event | None = None,
) -> PaymentStory:
    """Kill an agent that pays, resume it in another process, and tell what became of the payment.

    `on_progress(done, what_comes)` is called `STEPS` times. Raises `ChildFailed` for a kill that
    did not happen, or when `cancelled` was set; no process is left in any case.
    """
    progress = on_progress or (lambda done, what: None)
    progress(0, "a provider and an agent start")
    with (
        tempfile.TemporaryDirectory(prefix="kit-payment-") as temporary,
        start_provider(request.ability) as provider,
    ):
        url = sqlite_url(Path(temporary) / "agent.db")
        _keep_versions(url)
        bench = Bench(
            Experiment(
                graph=PaymentAgent(provider.url, request.ability, request.way),
                input={"order_id": ORDER_ID},
                durability="sync",
                url=url,
                fsync=False,
            ),
            Path(temporary),
            cancelled=cancelled,
        )
        wall_minus_perf_s = time.time() - time.perf_counter()
        first = bench.run(AtPoint(request.point))
        if not first.death.killed:
            raise ChildFailed(f"the crash did not happen: process 1 {first.death.how}")
        progress(1, "it was killed, another process resumes")
        second = bench.run(None)
        progress(2, "asking the provider")
        charges = tuple(provider.charges(ORDER_ID))
        verdict, ended = judged(bench.trial(), len(charges))
        began_wall_s = first.began_s + wall_minus_perf_s
        receipt = _versions(url, began_wall_s)
        moments = _moments(request, first, second, receipt, charges, began_wall_s)
        note = "a receipt" if request.way == "gateway" else "a note of its own"
        said = f"with {note}" if second.error is None else ended.splitlines()[0]
        return PaymentStory(request, first.death, receipt, charges, verdict, said, moments)


def verdict_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """The outcomes of `effect_trials.run`, one row a kill, with the agent's way as one name."""
    rows = [
        (
            "naive" if o.way == "naive" else f"gateway, {_ABILITY[o.ability]}",
            o.point,
            o.charges_count,
            o.verdict,
            o.ended,
        )
        for o in outcomes
    ]
    columns = ["agent", "killed_at", "charges_count", "verdict", "ended"]
    return pd.DataFrame(rows, columns=columns)


def verdicts_alt(table: pd.DataFrame) -> str:
    """The figure of a `verdict_table` in words."""
    said = [
        f"{verdict}: {', '.join(f'{agent} at {point}' for agent, point in cases)}"
        for verdict, part in table[table["verdict"] != ONCE].groupby("verdict", sort=False)
        for cases in [part[["agent", "killed_at"]].drop_duplicates().itertuples(index=False)]
    ]
    return f"{'. '.join(said) or 'No exception'}. Everything else was charged once."


def _keep_versions(url: str) -> None:
    """Let the database note each version of each receipt, and when (in milliseconds)."""
    note = """
        BEGIN
            INSERT INTO receipt_versions
            VALUES ((julianday('now') - 2440587.5) * 86400.0,
                    new.status, new.attempt, CAST(new.detail AS TEXT));
        END
    """
    with Database.open(url) as database, database.write() as tx:
        tx.execute("CREATE TABLE receipt_versions (at_s, status, attempt, detail)")
        for event in ("INSERT", "UPDATE"):
            tx.execute(f"CREATE TRIGGER note_{event} AFTER {event} ON tool_call_receipts {note}")


def _versions(url: str, began_s: float) -> tuple[ReceiptVersion, ...]:
    with Database.open(url) as database, database.read() as tx:
        rows = tx.rows("SELECT at_s, status, attempt, detail FROM receipt_versions ORDER BY rowid")
    versions: list[ReceiptVersion] = []
    for at_s, status, attempt, detail in rows:
        if not versions or (versions[-1].status, versions[-1].attempt) != (status, attempt):
            versions.append(ReceiptVersion(at_s - began_s, status, attempt, detail))
    return tuple(versions)


def _moments(
    request: PaymentRequest,
    first: Attempt,
    second: Attempt,
    receipt: tuple[ReceiptVersion, ...],
    charges: tuple[Entry, ...],
    began_wall_s: float,
) -> pd.DataFrame:
    began_s = first.began_s
    rows = [(0.0, "agent", "process 1 begins")]
    rows += [
        (at_s - began_s, "agent", point)
        for point, at_s in first.points
        if point in POINTS and point == request.point
    ]
    rows.append((first.ended_s - began_s, "agent", "killed"))
    rows.append((second.began_s - began_s, "agent", "process 2 resumes"))
    rows.append((second.ended_s - began_s, "agent", _ending(second)))
    rows += [(v.t_s, "our receipt", f"{v.status} (attempt {v.attempt})") for v in receipt]
    rows += [(e.at_us / 1e6 - began_wall_s, "provider", f"{e.kind}-{e.no}") for e in charges]
    return pd.DataFrame(sorted(rows), columns=["t_s", "lane", "event"])


def _ending(attempt: Attempt) -> str:
    return "finished" if attempt.error is None else attempt.error.partition(":")[0]
