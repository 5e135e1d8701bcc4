"""DeltaSaver keeps every clause of our contract, in each of its variants and on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from .saver_contract import (
    CONTRACT,
    EXACT_ONLY,
    OWN_CODEC_ONLY,
    Clause,
    ThroughAsync,
    broken_clauses,
    within,
)

if TYPE_CHECKING:
    from durable_kit.delta_saver import DeltaSaver

KEY = b"sixteen byte key"
VARIANTS: dict[str, tuple[Callable[[], dict[str, Any]], list[Clause]]] = {
    "trusting identity": (lambda: {"trust_identity": True}, EXACT_ONLY),
    "a snapshot at every step": (lambda: {"policy": _every(1)}, []),
    "a snapshot every third step": (lambda: {"policy": _every(3)}, []),
    "LangGraph's own serde": (lambda: {"serde": JsonPlusSerializer()}, OWN_CODEC_ONLY),
    "encrypted": (
        lambda: {"serde": EncryptedSerializer.from_pycryptodome_aes(key=KEY)},
        OWN_CODEC_ONLY,
    ),
}
"""Settings of the saver, and the clauses that this setting gives up."""


@pytest.fixture(params=CONTRACT, ids=lambda clause: clause.__name__)
def clause(request: pytest.FixtureRequest) -> Clause:
    return request.param


@pytest.fixture
def saver(database_url: str) -> Iterator[DeltaSaver]:
    from durable_kit.delta_saver import DeltaSaver

    with DeltaSaver.open(database_url) as opened:
        yield opened


def test_delta_saver_keeps_the_clause(saver: DeltaSaver, clause: Clause) -> None:
    within(60.0, lambda: clause(lambda: saver))


@pytest.mark.parametrize("variant", VARIANTS)
def test_delta_saver_keeps_the_contract_in_each_variant(tmp_path: Path, variant: str) -> None:
    from durable_kit.delta_saver import DeltaSaver

    settings, given_up = VARIANTS[variant]
    kept = [clause for clause in CONTRACT if clause not in given_up]
    with DeltaSaver.open(f"sqlite:///{tmp_path / 'kit.db'}", **settings()) as saver:
        assert broken_clauses(lambda: saver, kept) == {}


def test_delta_saver_keeps_the_contract_through_its_async_methods(saver: DeltaSaver) -> None:
    assert broken_clauses(lambda: ThroughAsync(saver)) == {}


def test_two_savers_that_take_turns_keep_the_contract(database_url: str) -> None:
    """What one has in memory must not hide what the other has written since."""
    from durable_kit.delta_saver import DeltaSaver

    with DeltaSaver.open(database_url) as first, DeltaSaver.open(database_url) as second:
        assert broken_clauses(lambda: _Alternating(first, second)) == {}


def test_a_new_saver_for_every_call_keeps_the_contract(tmp_path: Path) -> None:
    """No call needs what an earlier one left in memory."""
    from durable_kit.delta_saver import DeltaSaver

    with DeltaSaver.open(f"sqlite:///{tmp_path / 'kit.db'}") as saver:
        assert broken_clauses(lambda: _Forgetful(saver)) == {}


class _Alternating:
    """Each call goes to the other of two savers."""

    def __init__(self, *savers: Any) -> None:
        self.savers = list(savers)

    def __getattr__(self, name: str) -> Any:
        self.savers.reverse()
        return getattr(self.savers[0], name)


class _Forgetful:
    """Each call goes to a saver made for it."""

    def __init__(self, saver: DeltaSaver) -> None:
        self.saver = saver

    def __getattr__(self, name: str) -> Any:
        return getattr(type(self.saver)(self.saver.database), name)


def _every(steps: int) -> Any:
    from durable_kit.storage.snapshot_policy import EveryN

    return EveryN(steps)
