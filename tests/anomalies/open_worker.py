"""Children that use a database: at the same moment, without rights, or to die half way."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from durable_kit import Database, DeltaSaver, EveryN
from durable_kit.errors import DurableKitError
from durable_kit.storage.database import Tx
from tests.contracts.builders import Line, facts

from .graphs import thread
from .stories import small_packs

NOBODY = 65534


def open_and_write(url: str, thread_id: str, everyone: Any) -> None:
    """Wait for the others, open, and write one step."""
    everyone.wait(30)
    with DeltaSaver.open(url) as saver:
        Line(saver, thread_id).put({"n": 1})


def open_and_die(url: str, statement: int, everyone: Any) -> None:
    """Wait for the others, open, and be killed at a statement of the migration."""
    die_at(statement)
    everyone.wait(30)
    with DeltaSaver.open(url):
        pass


def recover_and_die(url: str, thread_id: str, statement: int) -> None:
    """Recover a thread, and be killed at a statement of that."""
    with DeltaSaver.open(url) as saver:
        die_at(statement)
        saver.recover(thread_id)


def die_at(statement: int) -> None:
    """Let this process be killed instead of its n-th statement."""
    execute, left = Tx.execute, statement

    def counting(tx: Tx, sql: str, **params: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        return execute(tx, sql, **params)

    Tx.execute = counting  # type: ignore[method-assign]


def write_steps(url: str, thread_id: str, steps: int, begin: Any) -> None:
    """Wait for the word, and write a conversation."""
    with Database.open(url, synchronous="OFF") as database, small_packs():
        line = Line(DeltaSaver(database, policy=EveryN(10)), thread_id)
        begin.wait(30)
        messages: list[str] = []
        for step in range(steps):
            at = line.put({"messages": list(messages), "n": step})
            said = [f"{thread_id}: message {step}, long enough to lie at an address"]
            line.write(at, ("messages", said), ("n", step), task=f"t{step}", path="pull")
            messages += said


def use_without_rights(url: str, out: Path) -> None:
    """As a user who owns nothing: what opening, reading and writing come to, a line each."""
    with out.open("w") as said:
        if os.getuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)

        def attempt(what: str, call: Any) -> Any:
            try:
                result = call()
            except DurableKitError as error:
                print(f"{what}: {type(error).__name__}: {error}", file=said)
            except BaseException as error:
                print(f"{what}: let {type(error).__name__} out: {error}", file=said)
            else:
                print(f"{what}: ok", file=said)
                return result

        saver = attempt("open", lambda: DeltaSaver.open(url))
        if saver is not None:
            line = Line(saver, "t")
            attempt("read", lambda: facts(line.read()))
            attempt("list", line.rows)
            attempt("verify", lambda: saver.verify("t"))
            attempt("put", lambda: line.put({"n": 2}, parent=None))
            attempt("write", lambda: line.write(thread("t", checkpoint_id="x"), ("n", 1)))
            attempt("prune", lambda: saver.prune(["t"]))
            attempt("read again", lambda: facts(line.read()))
            saver.close()
