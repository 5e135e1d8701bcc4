"""Measuring so that the number can be believed, and repeated.

A number without its n, its spread and its machine is an anecdote. Three habits turn trials into a
measurement, and this file makes them the easy way:

    in turns     round 1: A B C    round 2: A B C    …   a noisy minute slows all of one round, not
                                                         one candidate
    with units   {"step_ms": 1.8, "disk_bytes": 380928}  a column without a unit is refused
    with n       median, and how far the values lie apart: the whole range when n is small,
                 the middle half (p25 to p75) from 8 values on

    measured = run_trials(trial, [{"saver": "delta"}, {"saver": "sqlite"}], repeats=5)
    summarise(measured.table, by="saver")

A long measurement shows its progress and may be stopped at any moment (Interrupt, Ctrl-C, or an
Event that a Cancel button sets): what was measured is kept, and says that it is not complete.

What is left out: outliers are not removed, and nothing is estimated. A cold first round is part of
the truth; if it must not count, run a trial before.
"""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from durable_kit.lab.storage_report import Environment, environment

UNITS = (
    "_s _ms _us _bytes _kb _mb _mib _percent _ratio _count _steps _messages _deltas _records"
).split()
"""What the name of a measured number may end with. `_ratio` and `_count` are units, too."""

QUARTILES_FROM = 8  # below that many values a quartile is an invention; the range is not


@dataclass(frozen=True, slots=True)
class Measured:
    """A tidy table (one row a trial, one column a parameter or a measured number) and its record.

    `complete` is False when the measurement was stopped: `done` of `planned` trials are there.
    """

    table: pd.DataFrame
    complete: bool
    done: int
    planned: int
    environment: Environment

    def note(self) -> str:
        """One line for the caption: how much was measured, and where."""
        here = self.environment
        part = "" if self.complete else f"INCOMPLETE: {self.done} of {self.planned} trials. "
        return (
            f"{part}Measured here: Python {here.python}, SQLite {here.sqlite}, "
            f"{here.cpu_count} CPUs, {here.platform}."
        )


def run_trials(
    trial: Callable[..., Mapping[str, Any]],
    parameters: Iterable[Mapping[str, Any]],
    *,
    repeats: int,
    label: str = "measuring",
    cancelled: threading.Event | None = None,
    progress: bool = True,
) -> Measured:
    """Call `trial(**p)` for every `p` of `parameters`, in turns, `repeats` rounds.

    `trial` returns what it measured, by name; the name of a number ends with its unit (`UNITS`).
    Stops early, and returns what is there, on KeyboardInterrupt or once `cancelled` is set. The
    trial that was interrupted does not count. An exception of a trial is raised.
    """
    planned = [dict(p) for p in parameters]
    if repeats < 1 or not planned:
        raise ValueError(f"Nothing to measure: {len(planned)} cases, {repeats} rounds.")
    rows: list[dict[str, Any]] = []
    total = repeats * len(planned)
    with tqdm(total=total, desc=label, unit="trial", disable=not progress, leave=False) as bar:
        try:
            for round_ in range(1, repeats + 1):
                for chosen in planned:
                    if cancelled is not None and cancelled.is_set():
                        raise KeyboardInterrupt
                    gc.collect()  # garbage of the trial before must not be paid for by this one
                    found = dict(trial(**chosen))
                    _check_names(found, chosen)
                    rows.append({**chosen, "round": round_, **found})
                    bar.update(1)
        except KeyboardInterrupt:
            pass  # what was measured is in `rows`
    return Measured(
        pd.DataFrame(rows, columns=None if rows else [*planned[0], "round"]),
        complete=len(rows) == total,
        done=len(rows),
        planned=total,
        environment=environment({}, {}),
    )


def summarise(table: pd.DataFrame, by: str | Sequence[str]) -> pd.DataFrame:
    """n, median and spread of every measured number, one row a group.

    `x_ms` becomes `x_ms` (the median), `x_ms_low` and `x_ms_high`: the range, or from
    `QUARTILES_FROM` values in every group on the middle half. The column `spread` says which.
    """
    keys = [by] if isinstance(by, str) else list(by)
    unknown = [key for key in keys if key not in table.columns]
    if unknown:
        raise ValueError(f"No column {unknown}; there are {list(table.columns)}.")
    if "n" in keys:
        raise ValueError("A column named 'n' would hide the number of values. Rename it.")
    numbers = [c for c in table.columns if c not in keys and _has_unit(c) and _numeric(table[c])]
    groups = table.groupby(keys, sort=False, dropna=False)
    sizes = groups.size()
    low, high = (0.25, 0.75) if len(sizes) and sizes.min() >= QUARTILES_FROM else (0.0, 1.0)
    result = pd.DataFrame({"n": sizes})
    for column in numbers:
        result[column] = groups[column].median()
        result[f"{column}_low"] = groups[column].quantile(low)
        result[f"{column}_high"] = groups[column].quantile(high)
    result["spread"] = "min to max" if low == 0 else "p25 to p75"
    return result.reset_index()


def growth_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope between the first and the last point of a log-log plot: 1 linear, 2 quadratic."""
    if len(sizes) < 2 or min(*sizes, *values) <= 0 or sizes[0] == sizes[-1]:
        raise ValueError("A slope needs two points above zero at two sizes.")
    return math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0])


def _check_names(found: Mapping[str, Any], chosen: Mapping[str, Any]) -> None:
    for name, value in found.items():
        if name in chosen or name == "round":
            raise ValueError(f"The trial returned {name!r}, which is one of its parameters.")
        if isinstance(value, int | float) and not isinstance(value, bool) and not _has_unit(name):
            raise ValueError(
                f"The measured number {name!r} has no unit. End its name with one of "
                f"{', '.join(UNITS)}."
            )


def _has_unit(name: object) -> bool:
    return isinstance(name, str) and name.endswith(tuple(UNITS))


def _numeric(column: Any) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column)) and column.dtype != bool
