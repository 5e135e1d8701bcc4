"""The relay of lesson 04, killed between send and mark, and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from durable_kit.crash.experiment import AtPoint, Experiment
from durable_kit.crash.trial import Bench
from durable_kit.effects.outbox import Outbox
from durable_kit.effects.relay import AFTER_SEND
from durable_kit.lab.provider import Provider
from durable_kit.lab.relay_agent import RelayAgent, waiting
from durable_kit.lab.workloads import sqlite_url
from durable_kit.storage.database import Database


@pytest.mark.parametrize(("honours_keys", "emails"), [(True, 1), (False, 2)])
def test_a_provider_that_knows_message_ids_takes_a_message_once(
    tmp_path: Path, honours_keys: bool, emails: int
) -> None:
    url = sqlite_url(tmp_path / "outbox.db")
    with Provider.start(honours_keys=honours_keys) as provider:
        with Database.open(url) as database, database.write() as tx:
            body = {"to": "ada@example.org", "text": "Thank you."}
            Outbox().enqueue(tx, message_id="mail:1", topic="mail", key="order-1", body=body)
        bench = Bench(
            Experiment(graph=RelayAgent(provider.url), input={}, durability="sync", url=url),
            tmp_path,
        )
        assert bench.run(AtPoint(AFTER_SEND)).death.killed
        with Database.open(url) as database:
            assert waiting(database) == 1
        assert bench.run(None).error is None
        with Database.open(url) as database:
            assert waiting(database) == 0
        assert [request["key"] for request in provider.requests()] == ["mail:1", "mail:1"]
        assert len(provider.emails("order-1")) == emails
