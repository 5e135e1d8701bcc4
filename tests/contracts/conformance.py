"""LangGraph's conformance package, run and summed up.

The package writes to a registry and reports to callbacks; the tests here want one value to look
at. Each of its eight suites gets a saver of its own from `make_saver`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.report import CapabilityReport

CAPABILITIES = {
    "put",
    "put_writes",
    "get_tuple",
    "list",
    "delete_thread",
    "delete_for_runs",
    "copy_thread",
    "prune",
}


def conformance(name: str, make_saver: Callable[[], BaseCheckpointSaver[Any]]) -> CapabilityReport:
    """The report of one run over all capabilities that the saver has."""

    @checkpointer_test(name=name)
    async def factory() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        yield make_saver()

    return asyncio.run(validate(factory))


def failures(report: CapabilityReport) -> list[str]:
    """Every failed test of a report, as "capability: test: error"."""
    return [
        f"{capability}: {failure}"
        for capability, result in report.results.items()
        for failure in result.failures
    ]


def assert_full(report: CapabilityReport) -> None:
    """All eight capabilities detected, run and passed; a suite that ran no test does not count."""
    assert failures(report) == []
    assert {name for name, result in report.results.items() if result.detected} == CAPABILITIES
    for name, result in report.results.items():
        assert result.passed is True, name
        assert result.tests_passed > 0, name
        assert result.tests_failed == 0, name
    assert report.conformance_level() == "FULL"
