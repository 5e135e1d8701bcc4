"""What a gateway costs: a call whose effect is free, beside two bare commits of the same database.

Two commits are the least that anybody can do with: the intent before, the receipt after. The
gateway makes three (the claim, so that of many callers one sends) and has to fingerprint, encode
and decode. So the number to look at is the ratio, from pairs that were measured in turns: a noisy
second slows both.

    bare    BEGIN, INSERT, COMMIT; BEGIN, UPDATE, COMMIT      by the driver itself, no library
    call    IdempotentGateway.call, a new key each time, the effect returns at once
    replay  the same key again: the receipt is read

    python -m durable_kit.lab.effect_bench
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from durable_kit.effects.gateway import IdempotentGateway
from durable_kit.lab.embedded_postgres import embedded_postgres, is_installed
from durable_kit.lab.workloads import sqlite_url
from durable_kit.storage.database import Database

REQUEST = {"order_id": "order-1001", "amount_cents": 4999, "currency": "EUR"}
RESPONSE = {"id": "charge-1", "state": "done"}
WARM_UP = 20


def overhead(url: str, *, pairs: int) -> pd.DataFrame:
    """One row a pair: bare_ms, call_ms, replay_ms and their CPU time in this process.

    `url` is an empty database; both kinds of commit go to it, with the kit's own settings.
    """
    with Database.open(url) as database:
        gateway = IdempotentGateway(database, tool_name="free")
        bare = _two_bare_commits(database)

        def call(number: int) -> None:
            gateway.call(
                idempotency_key=f"key-{number}", request=REQUEST, effect=lambda intent: RESPONSE
            )

        rows = []
        for number in range(-WARM_UP, pairs):
            bare_ms, bare_cpu_ms = _timed(bare, number)
            call_ms, call_cpu_ms = _timed(call, number)
            replay_ms, _ = _timed(call, number)
            rows.append((bare_ms, call_ms, replay_ms, bare_cpu_ms, call_cpu_ms))
    columns = ["bare_ms", "call_ms", "replay_ms", "bare_cpu_ms", "call_cpu_ms"]
    return pd.DataFrame(rows[WARM_UP:], columns=columns)


def ratio(table: pd.DataFrame) -> float:
    """How many times two bare commits a call costs: the median call over the median bare pair."""
    return float(table["call_ms"].median() / table["bare_ms"].median())


def _two_bare_commits(database: Database) -> Callable[[int], None]:
    """The least there is, as one would write it with the driver alone."""
    with database.write() as tx:
        blob = "BLOB" if tx.is_sqlite else "BYTEA"
        tx.execute(f"CREATE TABLE bare (key TEXT PRIMARY KEY, request {blob}, response {blob})")
    connection: Any = database.engine.raw_connection().driver_connection
    begin = "BEGIN IMMEDIATE" if database.is_sqlite else "BEGIN"
    insert = "INSERT INTO bare (key, request) VALUES (?, ?)"
    update = "UPDATE bare SET response = ? WHERE key = ?"
    if not database.is_sqlite:
        connection.autocommit = True  # else psycopg says BEGIN itself
        insert, update = insert.replace("?", "%s"), update.replace("?", "%s")
    cursor = connection.cursor()

    def bare(number: int) -> None:
        cursor.execute(begin)
        cursor.execute(insert, (f"key-{number}", b"x" * 60))
        cursor.execute("COMMIT")
        cursor.execute(begin)
        cursor.execute(update, (b"x" * 30, f"key-{number}"))
        cursor.execute("COMMIT")

    return bare


def _timed(function: Callable[[int], None], number: int) -> tuple[float, float]:
    began, cpu = time.perf_counter(), time.process_time()
    function(number)
    return (time.perf_counter() - began) * 1000, (time.process_time() - cpu) * 1000


def main(argv: list[str] | None = None) -> int:
    """Measure on SQLite, and on PostgreSQL if it is installed; print medians and quartiles."""
    parser = argparse.ArgumentParser(prog="python -m durable_kit.lab.effect_bench")
    parser.add_argument("--pairs", type=int, default=300)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="kit-bench-") as folder:
        _report("SQLite", overhead(sqlite_url(Path(folder) / "kit.db"), pairs=arguments.pairs))
    if is_installed():
        with embedded_postgres() as url:
            _report("PostgreSQL", overhead(url, pairs=arguments.pairs))
    return 0


def _report(name: str, table: pd.DataFrame) -> None:
    print(f"{name}: a call costs {ratio(table):.2f} times two bare commits, n = {len(table)}")
    print(table.quantile([0.25, 0.5, 0.75]).round(3).to_string())


if __name__ == "__main__":
    sys.exit(main())
