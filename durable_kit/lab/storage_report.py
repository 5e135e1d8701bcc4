"""What a storage measurement says: frozen results, a table to read, JSON to keep, and the bars.

A report never contains a bare number. A :class:`Spread` carries its n and range, a
:class:`Case` has the unit in the name of every field, and the :class:`Environment` says on which
Python, packages, SQLite, PostgreSQL and processor count it was measured. A value that was not
measured is None and prints as "-"; it is never estimated.

The *bars* are what the kit asks of its own saver. They are ratios, because absolute times belong
to one machine.
"""

from __future__ import annotations

import json
import os
import platform
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

JUDGED_FROM_STEPS = 1000
"""In a shorter run the fixed costs (an empty database, the first pages) hide what is asked."""

PACKAGES = (
    "durable-kit",
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "langchain-core",
    "sqlalchemy",
    "ormsgpack",
    "psycopg",
)


@dataclass(frozen=True)
class Spread:
    """The median of n measured values and their range."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """The spread of these values, or None when there are none."""
        ordered = sorted(values)
        if not ordered:
            return None
        return cls(median(ordered), ordered[0], ordered[-1], len(ordered))


@dataclass(frozen=True)
class Case:
    """One saver at one number of steps. The ratios are over SqliteSaver in the same round."""

    saver: str
    label: str
    steps: int
    raw_bytes: int | None
    disk_bytes: int | None
    bytes_times_raw: float | None
    marginal_times_raw: float | None
    growth_exponent: float | None
    step_at_10_ms: Spread | None
    step_at_end_ms: Spread | None
    step_at_10_cpu_ms: Spread | None
    step_at_end_cpu_ms: Spread | None
    step_at_10_ratio: Spread | None
    step_at_end_ratio: Spread | None
    import_ms: Spread | None
    open_get_state_ms: Spread | None
    open_get_state_ratio: Spread | None
    history_s: float | None
    history_ratio: float | None
    history_peak_mib: float | None
    history_peak_ratio: float | None


@dataclass(frozen=True)
class Failure:
    """A saver that could not be measured further, and why."""

    label: str
    during: str
    reason: str


@dataclass(frozen=True)
class Environment:
    """Where "measured here" was. ``pragmas`` are those in force on each saver's connection."""

    python: str
    platform: str
    cpu_count: int
    load_average_1min: float | None
    sqlite: str
    packages: dict[str, str]
    pragmas: dict[str, dict[str, str]]
    postgresql: dict[str, str]


@dataclass(frozen=True)
class Bar:
    """One thing that the kit asks of its saver: the measured value must not exceed the limit.

    `too_few`: of what there was too little to judge, "steps" or "kills"; "" if there was enough.
    """

    what: str
    value: float
    limit: float
    too_few: str = ""

    @property
    def holds(self) -> bool | None:
        """None where there was too little to judge."""
        return None if self.too_few else self.value <= self.limit

    @property
    def verdict(self) -> str:
        if self.too_few:
            return f"too few {self.too_few} to judge"
        return "ok" if self.holds else "MISSED"


@dataclass(frozen=True)
class Report:
    """All that one run measured; also the part of a run that was interrupted."""

    environment: Environment
    messages: str
    payload_bytes: int
    cases: tuple[Case, ...]
    failures: tuple[Failure, ...]
    interrupted: bool

    def to_json(self) -> str:
        """The whole report, bars included. A missing measurement is null."""
        bars = [{**asdict(bar), "holds": bar.holds} for bar in self.bars()]
        return json.dumps({"label": "measured here", **asdict(self), "bars": bars}, indent=2)

    def bars(self) -> list[Bar]:
        """The kit's bars, as far as this run measured what they need."""
        bars: dict[str, Bar] = {}  # the step at 10 is the same for every number of steps
        for case in self.cases:
            if case.saver == "delta":
                bars |= {bar.what: bar for bar in _bars_of(case, self.messages)}
        return list(bars.values())

    def to_text(self) -> str:
        """The report as plain text: tables of at most 110 characters a line."""
        parts = [_headline(self)]
        for steps in dict.fromkeys(case.steps for case in self.cases):
            at_steps = [case for case in self.cases if case.steps == steps]
            parts.append(f"{steps} steps\n" + _table(_HEADER, [_row(case) for case in at_steps]))
        bars = self.bars()
        if bars:
            rows = [
                [bar.what, f"{bar.value:.2f}", f"<= {bar.limit:g}", bar.verdict] for bar in bars
            ]
            parts.append(_table(["what is asked of DeltaSaver", "measured", "bar", ""], rows))
        parts += [f"{f.label}: not measured ({f.during}): {f.reason}" for f in self.failures]
        parts.append(_footnote(self.environment))
        if self.interrupted:
            parts.append("Interrupted: this is what was measured until then.")
        return "\n\n".join(parts)


def environment(
    pragmas: Mapping[str, Mapping[str, str]], postgresql: Mapping[str, str]
) -> Environment:
    """Record this machine, this Python and the versions of all that takes part."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        cpu_count=os.cpu_count() or 1,
        load_average_1min=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        sqlite=sqlite3.sqlite_version,
        packages=found,
        pragmas={saver: dict(names) for saver, names in pragmas.items() if names},
        postgresql=dict(postgresql),
    )


def _bars_of(case: Case, messages: str) -> list[Bar]:
    kind = "dicts" if messages == "dict" else "AIMessages"
    at = f"at {case.steps} {kind}"
    step_limit = 0.5 if messages == "ai" and case.steps >= 3000 else 0.6
    asked: list[tuple[str, float | Spread | None, float]] = [
        (f"bytes on disk {at}, times raw", case.bytes_times_raw, 2.5),
        (f"growth exponent of bytes, 200 to {case.steps}", case.growth_exponent, 1.03),
        (f"step at 10 {kind}, over SqliteSaver", case.step_at_10_ratio, 1.15),
        (f"step {at}, over SqliteSaver", case.step_at_end_ratio, step_limit),
        (f"open + get_state {at}, over SqliteSaver", case.open_get_state_ratio, 1.2),
        (f"history {at}, time over SqliteSaver", case.history_ratio, 0.3),
        (f"history {at}, peak memory over SqliteSaver", case.history_peak_ratio, 0.1),
    ]
    too_few = "steps" if case.steps < JUDGED_FROM_STEPS else ""
    return [
        Bar(what, value.median if isinstance(value, Spread) else value, limit, too_few)
        for what, value, limit in asked
        if value is not None
    ]


# --- text -------------------------------------------------------------------------------------

_HEADER = [
    "saver", "MB", "x raw", "marg.", "exp.", "step@10 ms", "step@N ms", "CPU ms", "x Sqlite",
    "open ms", "x Sqlite", "hist. s", "MiB",
]  # fmt: skip


def _row(case: Case) -> list[str]:
    return [
        case.label,
        _number(None if case.disk_bytes is None else case.disk_bytes / 1e6),
        _number(case.bytes_times_raw),
        _number(case.marginal_times_raw),
        _number(case.growth_exponent),
        _with_range(case.step_at_10_ms),
        _with_range(case.step_at_end_ms),
        _number(case.step_at_end_cpu_ms),
        _number(case.step_at_end_ratio),
        _number(case.open_get_state_ms),
        _number(case.open_get_state_ratio),
        _number(case.history_s),
        _number(case.history_peak_mib),
    ]


def _number(value: float | Spread | None) -> str:
    if value is None:
        return "-"
    value = value.median if isinstance(value, Spread) else value
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"


def _with_range(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        numbers = zip(row[1:], widths[1:], strict=True)
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in numbers)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _headline(report: Report) -> str:
    kind = "plain dicts" if report.messages == "dict" else "AIMessages"
    counts = {case.step_at_end_ms.n for case in report.cases if case.step_at_end_ms}
    n = f"n = {max(counts)} processes" if counts else "nothing complete"
    return (
        f"Measured here: one list channel of {kind}, one message a step, durability=sync; each "
        f"has {report.payload_bytes} bytes on average as a dict.\n"
        f"Medians ({n}; lowest-highest in brackets), every process fresh, savers in turns.\n"
        "x raw: bytes on disk over the messages' own bytes; marg.: the same from 200 steps on; "
        "exp.: growth exponent;\n"
        "open: open + get_state; hist.: full get_state_history, with its peak memory; "
        "x Sqlite: ratio within a round."
    )


def _footnote(here: Environment) -> str:
    load = "unknown" if here.load_average_1min is None else f"{here.load_average_1min:.1f}"
    machine = f"{here.cpu_count} CPUs, load {load}, {here.platform}"
    lines = [
        f"Python {here.python}, SQLite {here.sqlite}, {machine}",
        ", ".join(f"{name} {found}" for name, found in here.packages.items()),
    ]
    for saver, pragmas in here.pragmas.items():
        lines.append(f"pragmas of {saver}: " + _pairs(pragmas))
    if here.postgresql:
        lines.append("PostgreSQL: " + _pairs(here.postgresql) + "; sizes without a VACUUM")
    return "\n".join(lines)


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
