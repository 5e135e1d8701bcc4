"""A disk that fills up at the worst moment, and a gateway that is carried over a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from durable_kit import Database, FakeClock, Found, IdempotentGateway, InDoubt, InProgress
from durable_kit.effects.receipt import Intent
from durable_kit.errors import StorageFull
from tests.anomalies.test_full_disk import full_disk

ROOT = Path(__file__).parents[2]
KEY = "charge:order-1001"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'kit.db'}", synchronous="OFF") as opened:
        yield opened


def test_nothing_is_sent_when_there_is_no_room_for_the_intent(database: Database) -> None:
    pay = IdempotentGateway(database, tool_name="payments")
    sent: list[Intent] = []
    with full_disk(database, pages_left=2), pytest.raises(StorageFull):
        pay.call(idempotency_key=KEY, request="x" * 200_000, effect=sent.append)
    assert sent == []
    assert pay.receipt(KEY) is None
    assert pay.call(idempotency_key=KEY, request="x" * 200_000, effect=sent.append).attempt == 1
    assert len(sent) == 1


def test_an_effect_whose_receipt_finds_no_room_is_in_doubt_and_not_sent_again(
    database: Database,
) -> None:
    clock = FakeClock()
    pay = IdempotentGateway(database, tool_name="payments", wait_s=0, clock=clock)
    sent: list[Intent] = []

    def effect(intent: Intent) -> str:
        sent.append(intent)
        return "y" * 200_000

    with full_disk(database, pages_left=8), pytest.raises(StorageFull):
        pay.call(idempotency_key=KEY, request=1, effect=effect)
    with pytest.raises(InProgress):
        pay.call(idempotency_key=KEY, request=1, effect=effect)
    clock.advance(60)
    with pytest.raises(InDoubt):
        pay.call(idempotency_key=KEY, request=1, effect=effect)
    found = pay.call(
        idempotency_key=KEY, request=1, effect=effect, lookup=lambda intent: Found("there")
    )
    assert (found.response, len(sent)) == ("there", 1)


FORKING = """
import os, sys
from durable_kit import Database, IdempotentGateway

pay = IdempotentGateway(Database.open(sys.argv[1]), tool_name="payments", wait_s=20)
book = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
pay.call(idempotency_key="before", request=1, effect=lambda intent: "before")

def effect(intent):
    os.write(book, b"%d\\n" % os.getpid())
    return os.getpid()

pids = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        got = pay.call(idempotency_key="together", request=1, effect=effect)
        again = pay.call(idempotency_key="before", request=1, effect=effect)
        os.write(1, f"{got.response} {again.response}\\n".encode())  # a line is never torn
        os._exit(0)
    pids.append(pid)
got = pay.call(idempotency_key="together", request=1, effect=effect)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
os.write(1, f"{got.response} before\\n".encode())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_gateway_carried_over_forks_has_one_effect_in_all_of_them(
    database_url: str, tmp_path: Path
) -> None:
    book = tmp_path / "book.txt"
    run = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            FORKING,
            database_url,
            str(book),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 4
    assert len(set(lines)) == 1
    assert book.read_text().splitlines() == [lines[0].split()[0]]
