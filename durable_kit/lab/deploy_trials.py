"""Deploy a code over threads that older code left behind, resume them, and see who pays what.

Nothing is modelled: each trial copies the file of threads, opens the copy as a worker of the new
deploy would, and resumes every thread that is not at its end, once. What a thread comes to:

    as agreed         it ended, and was charged what its customer had agreed to
    by other rules    it ended, and was charged something else
    not charged       it returned as if all were well, and nothing was charged
    an error          the new code failed on the old state
    refused           it waits, and says for what
    had ended         it was at its end before
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from langgraph.types import Command

from durable_kit.delta_saver import DeltaSaver
from durable_kit.lab.order_versions import (
    AT_CHARGE,
    AT_REVIEW,
    DEPLOYS,
    PRICES,
    Deploy,
    cents_of,
    order_flow,
    thread,
)
from durable_kit.lab.storage_worker import open_saver
from durable_kit.lab.workloads import sqlite_url
from durable_kit.versions.drain import DrainReport, drain_report
from durable_kit.versions.flow_router import FlowRefused
from durable_kit.versions.graph_fingerprint import check_resume

VERDICTS = (
    "as agreed",
    "by other rules",
    "not charged",
    "an error",
    "refused",
    "had ended",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one thread came to. Prices in cents; `charged_cents` is None where nothing was."""

    order_id: str
    waited_at: str
    agreed_cents: int
    charged_cents: int | None
    verdict: str
    said: str


@dataclass(frozen=True, slots=True)
class Trial:
    """One deploy over all threads. `before`: who waited when it came; `after`: who still waits.
    `problems`: threads for which `check_resume` had objected beforehand."""

    deploy: Deploy
    outcomes: tuple[Outcome, ...]
    before: DrainReport
    after: DrainReport
    problems: int

    def count(self, verdict: str) -> int:
        return sum(outcome.verdict == verdict for outcome in self.outcomes)

    def table(self) -> pd.DataFrame:
        """One row a thread."""
        rows = [
            (o.order_id, o.waited_at, o.agreed_cents / 100, _euros(o.charged_cents), o.verdict)
            for o in self.outcomes
        ]
        columns = ["thread", "waited at", "agreed, EUR", "charged, EUR", "came to"]
        return pd.DataFrame(rows, columns=columns)


def deploy_over(
    threads: Path, deploy: Deploy, on_progress: Callable[[int, int, str], None] | None = None
) -> Trial:
    """Copy the file `threads`, deploy over the copy, resume everything in it once."""
    with tempfile.TemporaryDirectory(prefix="kit-deploy-") as folder:
        copy = Path(shutil.copy(threads, folder))
        with DeltaSaver.open(sqlite_url(copy), migrations=deploy.migrations) as saver:
            graph = order_flow(saver, deploy)
            before = drain_report(saver)
            waiting = [*AT_REVIEW, *AT_CHARGE]
            problems = sum(not check_resume(graph, thread(name)).ok for name in waiting)
            outcomes = []
            for done, order_id in enumerate(PRICES):
                if on_progress is not None:
                    on_progress(done, len(PRICES), f"resuming {order_id}")
                outcomes.append(_resume(graph, order_id))
            return Trial(deploy, tuple(outcomes), before, drain_report(saver), problems)


def verdicts(trials: Sequence[Trial]) -> pd.DataFrame:
    """How many threads came to what, one row a deploy: what `plots.shares` takes."""
    rows = [{"deploy": t.deploy.name} | {v: t.count(v) for v in VERDICTS} for t in trials]
    return pd.DataFrame(rows, columns=["deploy", *VERDICTS])


def _resume(graph: Any, order_id: str) -> Outcome:
    where = "(its end)"
    if order_id in AT_REVIEW:
        where = "review"
    elif order_id in AT_CHARGE:
        where = "charge"
    agreed = cents_of(PRICES[order_id])
    said = ""
    verdict = ""
    charged: int | None = None
    try:
        if where == "(its end)":
            verdict = "had ended"
            charged = graph.get_state(thread(order_id)).values.get("charged_cents")
        else:
            value: Any = Command(resume="yes") if where == "review" else None
            result = graph.invoke(value, thread(order_id), durability="sync")
            charged = result.get("charged_cents") if isinstance(result, dict) else None
            verdict = "as agreed" if charged == agreed else "by other rules"
            if charged is None:
                verdict = "not charged"
    except FlowRefused as error:
        verdict, said = "refused", str(error)
    except Exception as error:  # what the new code makes of an old state is the experiment
        verdict, said = "an error", f"{type(error).__name__}: {error}"
    return Outcome(order_id, where, agreed, charged, verdict, said.split("\n")[0])


def _euros(cents: int | None) -> float | None:
    return None if cents is None else cents / 100


THREADS = 40  # how many threads a drain report is timed over


def store_threads(saver: str, state_kb: int, folder: Path) -> None:
    """Run version 1 for `THREADS` orders up to its review, in a database of their own.

    Each has a note of `state_kb` kilobytes in its state, and one checkpoint (`durability="exit"`):
    the least that a saver can have to read.
    """
    with open_saver(saver, sqlite_url(_population(saver, state_kb, folder))) as opened:
        graph = order_flow(opened, DEPLOYS[0])
        for n in range(THREADS):
            order = {"order_id": f"order-{n}", "note": "." * (1000 * state_kb)}
            graph.invoke(order, thread(f"order-{n}"), durability="exit")


def drain_trial(saver: str, state_kb: int, folder: Path) -> dict[str, Any]:
    """Time one drain report over what `store_threads` has stored."""
    with open_saver(saver, sqlite_url(_population(saver, state_kb, folder))) as opened:
        began_s = time.perf_counter()
        report = drain_report(opened)
        took_ms = (time.perf_counter() - began_s) * 1000
    assert report.unfinished == {1: THREADS}
    label = {"sqlite": "SqliteSaver", "delta": "DeltaSaver"}[saver]
    return {"label": label, "drain_ms": took_ms}


def _population(saver: str, state_kb: int, folder: Path) -> Path:
    return folder / f"{saver}-{state_kb}.db"
