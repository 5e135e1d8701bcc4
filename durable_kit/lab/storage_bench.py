"""Savers side by side: bytes, step time, reopening, history, all in one run on one machine.

A time measured yesterday, on another machine, in another process, says nothing about a saver.
What can be compared is what was measured *in turns*::

    round 1   SqliteSaver   DeltaSaver    PostgresSaver      each cell a fresh process
    round 2   DeltaSaver    PostgresSaver SqliteSaver        (storage_worker), one at a time
    round 3   PostgresSaver SqliteSaver   DeltaSaver
                  '---- a noisy neighbour here slows all of one round

so a ratio is taken within a round, and the median of those ratios is reported with its range. All
times are medians with n and spread; every figure is *measured here*, and the report carries the
record of where "here" was.

What is counted:

- **bytes on disk** after the saver was closed: for SQLite the database file with its ``-wal`` and
  ``-shm``; for PostgreSQL the sum of ``pg_total_relation_size`` (rows, indexes and TOAST) over all
  tables, without a VACUUM. "× raw" divides by the messages alone, each serialized once.
- **growth exponent**: the slope between 200 steps and N in a log-log plot. 1 is linear, 2 is
  quadratic. Fixed bytes of an empty database lower it a little, so the marginal cost is there too:
  (bytes at N - bytes at 200) / (raw at N - raw at 200).
- **step**: the time from one entry of the node to the next, commits included: steps 6 to 15 of
  short threads ("at 10"), and the last 50 of N ("at N"). The CPU time beside it leaves the waiting
  out, for the disk and for other programs: where the two tell different stories, the machine was
  not quiet.
- **open**: the saver opened in a fresh process plus one ``get_state``, imports apart.
- **history**: ``list(graph.get_state_history(...))``, its time, and what it adds to peak memory.

Interrupting a run (Ctrl-C, or a KeyboardInterrupt in a notebook) ends the running process and
returns the report of what was measured so far.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from durable_kit.lab.storage_report import Case, Failure, Report, Spread, environment
from durable_kit.lab.storage_worker import SAVERS, Task, What, WorkerError, run_in_child

DEFAULT_SAVERS = ("delta", "sqlite", "channel1000")
SHORT_STEPS, SHORT_THREADS = 20, 12  # the first two threads of each process only warm it up
BASE_STEPS = 200  # the growth exponent starts here

Progress = Callable[[int, int, str], None]
"""Called with (processes done, processes planned, what comes next)."""


def measure_storage(
    *,
    savers: Sequence[str] = DEFAULT_SAVERS,
    steps: Sequence[int] = (1000,),
    messages: Literal["dict", "ai"] = "dict",
    payload_bytes: int = 490,
    repeats: int = 3,
    opens: int = 5,
    history: bool = True,
    postgres_url: str | None = None,
    directory: str | Path | None = None,
    timeout_s: float = 1800.0,
    on_progress: Progress | None = None,
) -> Report:
    """Measure these savers in turns and return the report; see the module for what is counted.

    ``savers`` are names of ``SAVERS``. A PostgreSQL saver uses the server at ``postgres_url``, in
    databases of its own that are dropped again, or else an embedded server. ``directory`` is where
    the databases live while they are measured (default: the temporary directory); nothing is left.

    A saver that fails, because its package is missing or because it read back something else, is
    reported under ``failures`` and measured no further; the others go on. Raises ValueError for a
    request that makes no sense, or when the disk is too small for it.
    """
    plan = _Plan(tuple(savers), tuple(steps), messages, payload_bytes, repeats, opens, history)
    plan.check(Path(directory) if directory is not None else Path(tempfile.gettempdir()))
    with ExitStack() as stack:
        workspace = Path(tempfile.mkdtemp(prefix="storage-bench-", dir=directory))
        stack.callback(shutil.rmtree, workspace, ignore_errors=True)
        run = _Run(plan, workspace, postgres_url, timeout_s, on_progress or (lambda *_: None))
        interrupted = False
        try:
            run.start_postgres(stack)
            run.measure()
        except KeyboardInterrupt:
            interrupted = True
        return run.report(interrupted=interrupted)


@dataclass(frozen=True)
class _Plan:
    savers: tuple[str, ...]
    steps: tuple[int, ...]
    messages: Literal["dict", "ai"]
    payload_bytes: int
    repeats: int
    opens: int
    history: bool

    def check(self, directory: Path) -> None:
        """Refuse what cannot be measured, before an hour was spent on it."""
        unknown = [name for name in self.savers if name not in SAVERS]
        if unknown or not self.savers:
            raise ValueError(f"Unknown savers {unknown}. Choose from: {', '.join(SAVERS)}.")
        if len(set(self.savers)) < len(self.savers):
            raise ValueError("Each saver can be named once.")
        if not self.steps or min(self.steps) < 50:
            raise ValueError(f"steps must be 50 or more, not {', '.join(map(str, self.steps))}.")
        if not directory.is_dir():
            raise ValueError(f"There is no directory {directory} to measure in.")
        if self.messages not in ("dict", "ai"):
            raise ValueError(f"messages must be 'dict' or 'ai', not {self.messages!r}.")
        if self.repeats < 1 or self.opens < 1:
            raise ValueError("repeats and opens must be 1 or more.")
        if self.payload_bytes < 64:
            raise ValueError(f"payload_bytes must be 64 or more, not {self.payload_bytes}.")
        quadratic = sum(name in ("sqlite", "postgres") for name in self.savers)
        need = int(quadratic * max(self.steps) ** 2 / 2 * self.payload_bytes * 1.4) + 2**28
        free = shutil.disk_usage(directory).free
        if need > free:
            raise ValueError(
                f"{max(self.steps)} steps need about {need / 1e9:.1f} GB in {directory}, and "
                f"{free / 1e9:.1f} GB are free. Use fewer steps, or give another directory."
            )

    def tasks(self) -> Iterator[_Planned]:
        for turn in range(self.repeats):
            for saver in self._in_turn(turn):
                yield self._planned(saver, "write", SHORT_STEPS, turn, threads=SHORT_THREADS)
        for steps in dict.fromkeys((BASE_STEPS, *self.steps)):
            repeats = self.repeats if steps in self.steps else 1
            for turn in range(repeats):
                for saver in self._in_turn(turn):
                    keep = turn == repeats - 1 and steps in self.steps
                    yield self._planned(saver, "write", steps, turn, keep=keep)
            if steps not in self.steps:
                continue
            stored = [name for name in self.savers if SAVERS[name].database != "none"]
            last = repeats - 1
            for turn in range(self.opens):
                for saver in self._in_turn(turn, stored):
                    yield self._planned(saver, "open", steps, last, keep=True)
            if self.history:
                for saver in stored:
                    yield self._planned(saver, "history", steps, last, keep=True)
            for saver in self.savers:
                yield self._planned(saver, "drop", steps, last)

    def _in_turn(self, turn: int, names: Sequence[str] | None = None) -> Sequence[str]:
        names = self.savers if names is None else names
        shift = turn % len(names) if names else 0
        return [*names[shift:], *names[:shift]]

    def _planned(
        self,
        saver: str,
        what: What | Literal["drop"],
        steps: int,
        turn: int,
        *,
        threads: int = 1,
        keep: bool = False,
    ) -> _Planned:
        return _Planned(what, saver, steps, turn, threads, keep)


@dataclass(frozen=True)
class _Planned:
    what: What | Literal["drop"]
    saver: str
    steps: int
    turn: int
    threads: int
    keep: bool  # the database serves later tasks

    @property
    def database(self) -> str:
        short = "short" if self.threads > 1 else str(self.steps)
        return f"bench_{self.saver.replace('-', '_')}_{short}_{self.turn}"


@dataclass
class _Measured:
    """What is known of one saver at one number of steps; lists have one item a process."""

    raw_bytes: int = 0
    disk_bytes: list[int] = field(default_factory=list)
    step_ms: dict[int, float] = field(default_factory=dict)  # by turn
    step_cpu_ms: dict[int, float] = field(default_factory=dict)
    open_ms: list[float] = field(default_factory=list)
    import_ms: list[float] = field(default_factory=list)
    history_s: float | None = None
    history_peak_mib: float | None = None


class _Run:
    """The state of a measurement that may be interrupted at any point."""

    def __init__(
        self,
        plan: _Plan,
        workspace: Path,
        postgres_url: str | None,
        timeout_s: float,
        on_progress: Progress,
    ) -> None:
        self._plan = plan
        self._workspace = workspace
        self._postgres_url = postgres_url
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._measured: dict[tuple[str, int], _Measured] = {}
        self._failures: dict[str, Failure] = {}
        self._pragmas: dict[str, dict[str, str]] = {}
        self._postgres: Any = None

    def start_postgres(self, stack: ExitStack) -> None:
        names = [name for name in self._plan.savers if SAVERS[name].database == "postgresql"]
        if not names:
            return
        from durable_kit.lab.embedded_postgres import ScratchDatabases

        try:
            self._postgres = stack.enter_context(ScratchDatabases(self._postgres_url))
        except Exception as error:
            for name in names:
                self._fail(name, "start", str(error))

    def measure(self) -> None:
        tasks = list(self._plan.tasks())
        total = sum(task.what != "drop" for task in tasks)
        done = 0
        for task in tasks:
            label = SAVERS[task.saver].label
            if task.what != "drop":
                self._on_progress(done, total, f"{label}, {task.what} {task.steps} steps")
                done += 1
            if task.saver not in self._failures:
                try:
                    self._measure_one(task)
                except WorkerError as error:
                    self._fail(task.saver, f"{task.what} {task.steps} steps", str(error))
        self._on_progress(total, total, "done")

    def _measure_one(self, planned: _Planned) -> None:
        if planned.what == "drop":
            self._drop(planned)
            return
        url = self._url(planned)
        task = Task(
            what=planned.what,
            saver=planned.saver,
            url=url,
            messages=self._plan.messages,
            payload_bytes=self._plan.payload_bytes,
            steps=planned.steps,
            threads=planned.threads,
        )
        result = run_in_child(task, timeout_s=self._timeout_s)
        at = 10 if planned.threads > 1 else planned.steps
        case = self._measured.setdefault((planned.saver, at), _Measured())
        if planned.what == "open":
            case.open_ms.append(result["open_ms"] + result["get_state_ms"])
            case.import_ms.append(result["import_ms"])
        elif planned.what == "history":
            case.history_s = result["history_s"]
            case.history_peak_mib = result["history_peak_mib"]
        else:
            case.raw_bytes = result["raw_bytes"]
            if SAVERS[planned.saver].database != "none":
                case.disk_bytes.append(self._disk_bytes(planned))
            case.step_ms[planned.turn] = _typical(result["step_ms"], planned.threads)
            case.step_cpu_ms[planned.turn] = _typical(result["step_cpu_ms"], planned.threads)
            self._pragmas[planned.saver] = result["settings"]
            if not planned.keep:
                self._drop(planned)

    def _url(self, planned: _Planned) -> str:
        if SAVERS[planned.saver].database == "postgresql":
            return str(self._postgres.url_of(planned.database))
        return f"sqlite:///{(self._workspace / planned.database).as_posix()}.db"

    def _files(self, planned: _Planned) -> list[Path]:
        return [
            self._workspace / f"{planned.database}.db{suffix}" for suffix in ("", "-wal", "-shm")
        ]

    def _disk_bytes(self, planned: _Planned) -> int:
        if SAVERS[planned.saver].database == "postgresql":
            return int(self._postgres.table_bytes(planned.database))
        return sum(path.stat().st_size for path in self._files(planned) if path.exists())

    def _drop(self, planned: _Planned) -> None:
        if SAVERS[planned.saver].database == "postgresql":
            self._postgres.drop(planned.database)
        for path in self._files(planned):
            path.unlink(missing_ok=True)

    def _fail(self, saver: str, during: str, reason: str) -> None:
        self._failures[saver] = Failure(SAVERS[saver].label, during, reason)

    # --- from measurements to the report --------------------------------------------------

    def report(self, *, interrupted: bool) -> Report:
        cases = [
            self._case(saver, steps) for steps in self._plan.steps for saver in self._plan.savers
        ]
        server = self._postgres.settings() if self._postgres is not None else {}
        return Report(
            environment=environment(self._pragmas, server),
            messages=self._plan.messages,
            payload_bytes=self._plan.payload_bytes,
            cases=tuple(case for case in cases if case is not None),
            failures=tuple(self._failures.values()),
            interrupted=interrupted,
        )

    def _case(self, saver: str, steps: int) -> Case | None:
        here = self._measured.get((saver, steps), _Measured())
        early = self._measured.get((saver, 10), _Measured())
        base = self._measured.get((saver, BASE_STEPS), _Measured())
        peer = self._measured.get(("sqlite", steps), _Measured())
        peer_early = self._measured.get(("sqlite", 10), _Measured())
        if not here.step_ms and not early.step_ms:
            return None
        disk = int(median(here.disk_bytes)) if here.disk_bytes else None
        exponent = marginal = None
        if disk is not None and base.disk_bytes and steps > BASE_STEPS:
            smaller = base.disk_bytes[0]
            exponent = math.log(disk / smaller) / math.log(steps / BASE_STEPS)
            marginal = (disk - smaller) / (here.raw_bytes - base.raw_bytes)
        return Case(
            saver=saver,
            label=SAVERS[saver].label,
            steps=steps,
            raw_bytes=here.raw_bytes or None,
            disk_bytes=disk,
            bytes_times_raw=disk / here.raw_bytes if disk is not None else None,
            marginal_times_raw=marginal,
            growth_exponent=exponent,
            step_at_10_ms=Spread.of(early.step_ms.values()),
            step_at_end_ms=Spread.of(here.step_ms.values()),
            step_at_10_cpu_ms=Spread.of(early.step_cpu_ms.values()),
            step_at_end_cpu_ms=Spread.of(here.step_cpu_ms.values()),
            step_at_10_ratio=Spread.of(_paired(early.step_ms, peer_early.step_ms)),
            step_at_end_ratio=Spread.of(_paired(here.step_ms, peer.step_ms)),
            import_ms=Spread.of(here.import_ms),
            open_get_state_ms=Spread.of(here.open_ms),
            open_get_state_ratio=Spread.of(
                a / b for a, b in zip(here.open_ms, peer.open_ms, strict=False)
            ),
            history_s=here.history_s,
            history_ratio=_over(here.history_s, peer.history_s),
            history_peak_mib=here.history_peak_mib,
            history_peak_ratio=_over(here.history_peak_mib, peer.history_peak_mib),
        )


def _typical(step_ms: list[list[float]], threads: int) -> float:
    if threads > 1:
        return median(value for thread in step_ms[2:] for value in thread[5:15])
    return median(step_ms[0][-50:])


def _paired(mine: dict[int, float], theirs: dict[int, float]) -> Iterable[float]:
    return [mine[turn] / theirs[turn] for turn in mine if turn in theirs]


def _over(mine: float | None, theirs: float | None) -> float | None:
    return mine / theirs if mine is not None and theirs else None
