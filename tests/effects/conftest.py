"""A fresh database (both kinds), a clock that moves when told to, and a bank that fails as told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from durable_kit import Database, FakeClock
from tests.effects.gateway_bench import Bank


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    with Database.open(database_url) as database:
        yield database


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def bank() -> Bank:
    return Bank()
