"""The process that is killed in lesson 00: one worker that runs the order agent once.

    python -m durable_kit.lab.crash_worker start  FOLDER --worker "worker 1"
    python -m durable_kit.lab.crash_worker resume FOLDER --worker "worker 2"

`start` begins a new run at once. `resume` stands by, with everything imported, until it is told to
go, and then goes on where the last checkpoint says. It is the same code: to a LangGraph graph the
difference is only whether it is given an input or None. FOLDER holds the agent's database and,
beside it, the bank's ledger. When the run is over the worker says `FINISHED`; until then, whatever
stops it is a crash.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from durable_kit.crash.child import stand_by, stay_no_longer_than_the_parent

DATABASE, LEDGER = "agent.db", "bank.jsonl"
FINISHED, STANDS_BY = "finished", "stands by"
THREAD: dict[str, Any] = {"configurable": {"thread_id": "order-1001"}}
ORDER = {"order_id": "order-1001", "amount_cents": 4999}


def main(argv: list[str] | None = None) -> int:
    """Run the order agent in this process, from the start or from its last checkpoint."""
    parser = argparse.ArgumentParser(prog="python -m durable_kit.lab.crash_worker")
    parser.add_argument("what", choices=["start", "resume"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--worker", default="worker")
    parser.add_argument("--careful", action="store_true", help="ask the bank before charging")
    arguments = parser.parse_args(argv)
    stay_no_longer_than_the_parent()
    # Imported after that: imports take a second, and the parent may die in it.
    from durable_kit.delta_saver import DeltaSaver
    from durable_kit.lab.workloads import Ledger, order_graph, sqlite_url

    if arguments.what == "resume":
        stand_by(STANDS_BY)
    bank = Ledger(arguments.folder / LEDGER)
    with DeltaSaver.open(sqlite_url(arguments.folder / DATABASE)) as saver:
        graph = order_graph(saver, bank, worker=arguments.worker, careful=arguments.careful)
        graph.invoke(ORDER if arguments.what == "start" else None, THREAD, durability="sync")
    print(FINISHED, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
