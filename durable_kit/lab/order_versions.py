"""One order agent, deploy after deploy, and the threads that its first version left behind.

    version 1    quote ─┬▶ reserve
                        └▶ review ──▶ charge          charge what was quoted
                           (waits for a yes)

    new rules    charge 5 % more than was quoted
    new shape    the total in cents (a number) instead of euros (a text)
    new name     the node `review` is called `approve`

`data/version_1_threads.sqlite3` holds ten threads that version 1 has really run: six wait for a yes
(and `reserve` has finished, in the same super-step), two stopped before `charge`, two have ended.
Each `Deploy` is a code that a team could have deployed over them, the careless ones too.

The quoted price of a thread is what its customer agreed to; `charged_cents` is what the agent took.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from durable_kit.delta_saver import DeltaSaver
from durable_kit.lab.workloads import find_data, sqlite_url
from durable_kit.versions.flow_router import FlowRouter, FlowVersion
from durable_kit.versions.migration import Migrations, Step

FILE = "version_1_threads.sqlite3"
MADE_BY = f"python -m durable_kit.lab.order_versions --out data/{FILE}"
FEE_PERCENT = {1: 0, 2: 5}
PRICES = {f"order-{1001 + n}": f"{19 + 10 * n}.90" for n in range(10)}
"""The quoted price of each thread in the file, in euros."""
AT_REVIEW, AT_CHARGE, ENDED = list(PRICES)[:6], list(PRICES)[6:8], list(PRICES)[8:]


def cents_of(euros: str) -> int:
    """The text 49.90 is 4990; exact, which a float is not."""
    return int(Decimal(euros) * 100)


IN_CENTS = Step(
    to=2,
    says="the total in cents",
    rename={"total": "total_cents"},
    convert={"total_cents": cents_of},
)
RENAMED = Step(to=3, says="review is called approve", rename_nodes={"review": "approve"})


@dataclass(frozen=True, slots=True)
class Deploy:
    """A code that may be running. `paths`: the flow versions whose rules it still has; without a
    router there is one path, the newest."""

    name: str
    paths: tuple[int, ...] = (1,)
    router: bool = False
    cents: bool = False
    review: str = "review"
    migrations: Migrations = Migrations()  # noqa: RUF009 - it never changes


DEPLOYS = (
    Deploy("version 1, as it was"),
    Deploy("new rules", (2,)),
    Deploy("new rules, with a router", (1, 2), router=True),
    Deploy("and cents, without a step", (1, 2), router=True, cents=True),
    Deploy("and cents, with a step", (1, 2), True, True, migrations=Migrations(IN_CENTS)),
    Deploy("and review renamed, in code only", (1, 2), True, True, "approve", Migrations(IN_CENTS)),
    Deploy(
        "and review renamed, with a step",
        (1, 2),
        True,
        True,
        "approve",
        Migrations(IN_CENTS, RENAMED),
    ),
    Deploy("and path 1 deleted", (2,), True, True, "approve", Migrations(IN_CENTS, RENAMED)),
)


class Order(TypedDict, total=False):
    """The state of version 1."""

    order_id: str
    note: str
    total: str
    reserved: bool
    answer: str
    charged_cents: int


class PinnedOrder(Order, total=False):
    """The state since threads are pinned."""

    flow_version: FlowVersion


class OrderInCents(TypedDict, total=False):
    """The state since the total is in cents."""

    order_id: str
    note: str
    total_cents: int
    reserved: bool
    answer: str
    charged_cents: int
    flow_version: FlowVersion


def order_flow(saver: Any, deploy: Deploy, *, interrupt_before: list[str] | None = None) -> Any:
    """The order agent as `deploy` has it, compiled."""
    total = "total_cents" if deploy.cents else "total"

    def quote(state: Any) -> dict[str, Any]:
        price = PRICES.get(state["order_id"], "100.00")
        return {total: cents_of(price) if deploy.cents else price}

    def reserve(state: Any) -> dict[str, Any]:
        return {"reserved": True}

    def review(state: Any) -> dict[str, Any]:
        return {"answer": interrupt({"do you agree to": state[total]})}

    def charge_by(version: int) -> Any:
        def charge(state: Any) -> dict[str, Any]:
            cents = state[total] if deploy.cents else cents_of(state[total])
            return {"charged_cents": cents * (100 + FEE_PERCENT[version]) // 100}

        return charge

    schema = OrderInCents if deploy.cents else PinnedOrder if deploy.router else Order
    builder: Any = StateGraph(schema)
    builder.add_node("quote", quote)
    builder.add_node("reserve", reserve)
    builder.add_node(deploy.review, review)
    builder.add_edge("quote", "reserve")
    builder.add_edge("quote", deploy.review)
    # The name of version 1 leads on to the paths: threads wait at it.
    builder.add_node("charge", charge_by(deploy.paths[-1]) if not deploy.router else _passes_by)
    builder.add_edge(deploy.review, "charge")
    if not deploy.router:
        builder.add_edge(START, "quote")
        builder.add_edge("charge", END)
    else:
        router = FlowRouter(current=2, match="exact", failure="raise")
        builder.add_node("pin", router.pin)
        builder.add_edge(START, "pin")
        builder.add_edge("pin", "quote")
        for version in deploy.paths:
            builder.add_node(f"charge_v{version}", charge_by(version))
            builder.add_edge(f"charge_v{version}", END)
        router.branch(builder, "charge", {v: f"charge_v{v}" for v in deploy.paths})
    return builder.compile(checkpointer=saver, interrupt_before=interrupt_before)


def thread(order_id: str) -> RunnableConfig:
    """The config of an order's thread."""
    return {"configurable": {"thread_id": order_id}}


def find_threads() -> Path:
    """The file of threads that version 1 wrote. Raises FileNotFoundError with what to do."""
    return find_data(FILE, MADE_BY)


def write_threads(path: Path) -> None:
    """Run version 1 for every order, and stop as the module's docstring says."""
    from langgraph.types import Command

    with DeltaSaver.open(sqlite_url(path)) as saver:
        version_1 = order_flow(saver, DEPLOYS[0])
        stopping = order_flow(saver, DEPLOYS[0], interrupt_before=["charge"])
        for order_id in PRICES:
            version_1.invoke({"order_id": order_id}, thread(order_id), durability="sync")
            if order_id in AT_CHARGE:
                stopping.invoke(Command(resume="yes"), thread(order_id), durability="sync")
            elif order_id in ENDED:
                version_1.invoke(Command(resume="yes"), thread(order_id), durability="sync")


def _passes_by(state: Any) -> dict[str, Any]:
    return {}


def main(argv: list[str] | None = None) -> int:
    """Write the file anew."""
    parser = argparse.ArgumentParser(prog="python -m durable_kit.lab.order_versions")
    parser.add_argument("--out", type=Path, required=True)
    path = parser.parse_args(argv).out
    path.unlink(missing_ok=True)
    write_threads(path)
    print(f"{len(PRICES)} threads of version 1 in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
