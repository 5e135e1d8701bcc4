"""DeltaSaver passes LangGraph's conformance package in full, on both databases."""

from __future__ import annotations

from typing import Any

from .conformance import assert_full, conformance


def test_delta_saver_has_all_eight_capabilities_and_passes_them(database_url: str) -> None:
    from durable_kit.delta_saver import DeltaSaver

    with DeltaSaver.open(database_url) as saver:
        assert_full(conformance(f"DeltaSaver on {saver.database}", lambda: saver))


def test_it_passes_with_trusted_identity_and_with_every_snapshot_policy(database_url: str) -> None:
    from durable_kit.delta_saver import DeltaSaver
    from durable_kit.storage.snapshot_policy import EveryN

    variants: list[dict[str, Any]] = [{"trust_identity": True}, {"policy": EveryN(1)}]
    for variant in variants:
        with DeltaSaver.open(database_url, **variant) as saver:
            assert_full(conformance(f"DeltaSaver with {variant}", lambda saver=saver: saver))
