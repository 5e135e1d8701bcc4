"""What a durability measurement says: a table to read, JSON to keep, frames to draw, and the bars.

A median of lost steps hides the one kill that lost something; so the table has the range and the
kills are kept one by one. The *bars* are what the kit asks of its own saver: they compare
DeltaSaver with LangGraph's own saver on the same database, in the same run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean, median, quantiles
from typing import Any

from durable_kit.lab.storage_report import Bar, Environment
from durable_kit.lab.storage_worker import SAVERS

PEERS = {"delta": "sqlite", "delta-postgres": "postgres"}
"""DeltaSaver, by database -> LangGraph's own saver on the same one."""

JUDGED_FROM_KILLS = 30  # a comparison of fewer is chance; one broken promise is not
STEP_LIMIT = 1.15  # DeltaSaver's step may take so many times its peer's


@dataclass(frozen=True, slots=True)
class Case:
    """One cell of the table. `step_ms` is how long a node works."""

    saver: str
    durability: str
    step_ms: float

    @property
    def label(self) -> str:
        return SAVERS[self.saver].label

    @property
    def database(self) -> str:
        return {"sqlite": "SQLite", "postgresql": "PostgreSQL"}[SAVERS[self.saver].database]


@dataclass(frozen=True, slots=True)
class TimingRow:
    """One undisturbed run: the time of each step, and the window of each."""

    case: Case
    step_ms: tuple[float, ...]
    wall_per_step_ms: float
    flush_ms: float
    window_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class KillRow:
    """One kill. `repeated_count`: node runs that the resume did again; `resume_ms`: from `invoke`
    to its first node; `left_bytes`: SQLite's files just after the kill."""

    case: Case
    executed_steps: int
    recovered_steps: int
    lost_steps: int
    repeated_count: int
    resume_ms: float
    left_bytes: int | None
    ended: str


@dataclass(frozen=True)
class DurabilityReport:
    """All that one run measured; also the part of a run that was interrupted."""

    message_bytes: int
    environment: Environment
    timings: tuple[TimingRow, ...]
    kills: tuple[KillRow, ...]
    complete: bool
    took_s: float

    @classmethod
    def empty(cls, message_bytes: int, environment: Environment) -> DurabilityReport:
        return cls(message_bytes, environment, (), (), complete=True, took_s=0.0)

    def with_timing(self, row: TimingRow) -> DurabilityReport:
        return replace(self, timings=(*self.timings, row))

    def with_kill(self, row: KillRow) -> DurabilityReport:
        return replace(self, kills=(*self.kills, row))

    def interrupted(self) -> DurabilityReport:
        return replace(self, complete=False)

    def lasted(self, seconds: float) -> DurabilityReport:
        return replace(self, took_s=seconds)

    def note(self) -> str:
        """One line for a caption: how much was measured, and where."""
        here = self.environment
        part = "" if self.complete else "INCOMPLETE. "
        return (
            f"{part}Measured here: {len(self.kills)} kills, Python {here.python}, "
            f"SQLite {here.sqlite}, {here.cpu_count} CPUs, {here.platform}."
        )

    # -- for figures -----------------------------------------------------------------------------

    def kill_table(self) -> Any:
        """One row a kill, as a DataFrame."""
        return _frame({**_case(k.case), **_without_case(k)} for k in self.kills)

    def window_table(self) -> Any:
        """One row a step of the undisturbed runs: its `window_ms`, as a DataFrame."""
        return _frame(
            {**_case(t.case), "step": step, "window_ms": window}
            for t in self.timings
            for step, window in enumerate(t.window_ms, start=1)
        )

    def summary(self) -> Any:
        """The table of `to_text`, as a DataFrame with units in its names."""
        return _frame(self._cells())

    # -- for people and files --------------------------------------------------------------------

    def to_json(self) -> str:
        """The whole report, bars included. A missing measurement is null."""
        bars = [{**asdict(bar), "holds": bar.holds} for bar in self.bars()]
        return json.dumps(
            {"label": "measured here", **asdict(self), "cells": list(self._cells()), "bars": bars},
            indent=2,
        )

    def to_text(self) -> str:
        """The report as plain text: one table for each step time."""
        legend = (
            f"Measured here: one list channel, a message of {self.message_bytes} bytes a step, "
            f"{self.took_s:.0f} s in all.\n"
            "step, window: medians of undisturbed runs, in turns; window: from a node's return to "
            "the commit of its\ncheckpoint, its longest in brackets; flush: what the run waits for "
            "after its last node; lost: super-steps, median\n(lowest-highest) of real kills, each "
            "verified by its exit status; p90: nine kills of ten lost no more,\ninterpolated; "
            "again: node runs that the resume repeated; resume: from invoke to its first node."
        )
        parts = [legend]
        for step_ms in dict.fromkeys(cell["step_ms"] for cell in self._cells()):
            cells = [cell for cell in self._cells() if cell["step_ms"] == step_ms]
            said = f"a step works for {step_ms:g} ms" if step_ms else "a step does nothing"
            parts.append(f"{said}\n" + _table([_row(cell) for cell in cells]))
        widest = max((len(bar.verdict) for bar in self.bars()), default=0)
        bars = [
            f"{bar.verdict:<{widest}}  {bar.value:8.2f} <= {bar.limit:g}   {bar.what}"
            for bar in self.bars()
        ]
        if bars:
            parts.append("what is asked of DeltaSaver\n" + "\n".join(bars))
        here = self.environment
        load = here.load_average_1min
        parts.append(
            f"Python {here.python}, SQLite {here.sqlite}, {here.cpu_count} CPUs, "
            f"load {'unknown' if load is None else format(load, '.1f')} at the start, "
            f"{here.platform}, langgraph {here.packages['langgraph']}"
        )
        if not self.complete:
            parts.append("Interrupted: this is what was measured until then.")
        return "\n\n".join(parts)

    def bars(self) -> list[Bar]:
        """Step and loss of DeltaSaver against its peer, cell by cell, where both were measured."""
        cells = {(c["saver"], c["durability"], c["step_ms"]): c for c in self._cells()}
        found: list[Bar] = []
        for (saver, mode, step_ms), cell in cells.items():
            where = f"{mode}, step {step_ms:g} ms, {cell['database']}"
            too_few = "kills" if cell["kills"] < JUDGED_FROM_KILLS else ""
            if mode == "sync" and saver in PEERS and cell["kills"]:
                most = cell["lost_most_steps"]
                found.append(Bar(f"most steps lost, {where}", most, 1, "" if most > 1 else too_few))
            peer = cells.get((PEERS.get(saver, ""), mode, step_ms))
            if peer is None:
                continue
            if cell["step_p50_ms"] is not None and peer["step_p50_ms"]:
                ratio = cell["step_p50_ms"] / peer["step_p50_ms"]
                found.append(
                    Bar(f"step over {peer['label']}'s, {where}", ratio, STEP_LIMIT, too_few)
                )
            # With "exit" all that was executed is lost, and how much that was is chance. In the
            # other modes half a step is: the one in flight was met, or was not.
            if mode != "exit" and cell["kills"] and peer["kills"]:
                what = f"mean of steps lost, {where}; limit: {peer['label']}'s + ½"
                limit = peer["lost_mean_steps"] + 0.5
                found.append(Bar(what, cell["lost_mean_steps"], limit, too_few))
        return found

    def _cells(self) -> Iterator[dict[str, Any]]:
        cases = [run.case for run in self.timings] + [kill.case for kill in self.kills]
        for case in dict.fromkeys(cases):
            runs = [row for row in self.timings if row.case == case]
            steps_ms = [ms for run in runs for ms in run.step_ms]
            windows_ms = [ms for run in runs for ms in run.window_ms]
            kills = [kill for kill in self.kills if kill.case == case]
            lost = [kill.lost_steps for kill in kills]
            yield {
                **_case(case),
                "step_p50_ms": _of(median, steps_ms),
                "wall_per_step_ms": _of(median, [run.wall_per_step_ms for run in runs]),
                "flush_ms": _of(median, [run.flush_ms for run in runs]),
                "window_p50_ms": _of(median, windows_ms),
                "window_most_ms": _of(max, windows_ms),
                "steps": len(steps_ms),
                "kills": len(kills),
                "executed_steps": _of(median, [kill.executed_steps for kill in kills]),
                "lost_steps": _of(median, lost),
                "lost_mean_steps": _of(mean, lost),
                "lost_p90_steps": _of(_p90, lost),
                "lost_least_steps": _of(min, lost),
                "lost_most_steps": _of(max, lost),
                "repeated_count": _of(median, [kill.repeated_count for kill in kills]),
                "resume_ms": _of(median, [kill.resume_ms for kill in kills]),
            }


def _case(case: Case) -> dict[str, Any]:
    return {
        "saver": case.saver,
        "label": case.label,
        "database": case.database,
        "durability": case.durability,
        "step_ms": case.step_ms,
    }


def _without_case(kill: KillRow) -> dict[str, Any]:
    return {name: value for name, value in asdict(kill).items() if name != "case"}


def _frame(rows: Any) -> Any:
    import pandas as pd

    return pd.DataFrame(list(rows))


def _of(what: Callable[[Sequence[float]], float], values: Sequence[float]) -> float | None:
    return what(values) if values else None


def _p90(values: Sequence[float]) -> float:
    # "inclusive": these are the kills themselves, and no quantile lies beyond the worst of them.
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]


_HEADER = [
    "saver", "durability", "step ms", "wall ms", "flush ms", "window ms", "kills", "steps", "lost",
    "p90", "again", "resume ms",
]  # fmt: skip


def _row(cell: dict[str, Any]) -> list[str]:
    lost = _number(cell["lost_steps"])
    if cell["kills"]:
        lost += f" ({cell['lost_least_steps']}-{cell['lost_most_steps']})"
    window = _number(cell["window_p50_ms"], 2)
    if cell["window_most_ms"] is not None:
        window += f" ({cell['window_most_ms']:.1f})"
    return [
        cell["label"],
        cell["durability"],
        _number(cell["step_p50_ms"], 2),
        _number(cell["wall_per_step_ms"], 2),
        _number(cell["flush_ms"], 1),
        window,
        str(cell["kills"]),
        _number(cell["executed_steps"]),
        lost,
        _number(cell["lost_p90_steps"]),
        _number(cell["repeated_count"]),
        _number(cell["resume_ms"], 1),
    ]


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _table(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in [_HEADER, *rows]) for i in range(len(_HEADER))]
    lines = []
    for row in [_HEADER, ["-" * width for width in widths], *rows]:
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
