"""A database (both kinds), a clock that moves when told to, and a bank that fails as told."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durable_kit import Database, FakeClock
from tests.effects.gateway_bench import Bank


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Without receipts: a new file of SQLite, or the one of PostgreSQL, emptied."""
    if request.param == "sqlite":
        with Database.open(f"sqlite:///{tmp_path / 'kit.db'}") as database:
            yield database
        return
    database = request.getfixturevalue("postgres_for_effects")
    with database.write() as tx:
        tx.execute("DELETE FROM tool_call_receipts")
    yield database


@pytest.fixture(scope="session")
def postgres_for_effects(postgres_server: Any) -> Iterator[Database]:
    import psycopg

    name = f"kit_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        with Database.open(postgres_server.get_uri(database=name, driver="psycopg")) as database:
            yield database
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def bank() -> Bank:
    return Bank()
