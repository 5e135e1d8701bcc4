"""What LangGraph's durability modes cost while nothing happens, and what a kill takes.

LangGraph stores checkpoints in one of three ways, and says which work may be lost in each:

    sync     the checkpoint of a step is stored before the next step begins
    async    it is stored in the background, while the next steps run
    exit     it is stored once, when the run ends

What may be lost is a sentence; how much is lost is a number, and it depends on how fast the steps
are, and on how fast the saver is. Both are measured here, side by side, mode by mode:

- *undisturbed runs*, one at a time. A step's time is from the begin of its node to the begin of the
  next. The `window` of a step is from the moment its node has returned (the state has changed, in
  the memory of this process) to the moment its checkpoint is committed: what a kill in it takes is
  this step. The flush is what the run waits for after its last node.
- *kills*. A process is killed, for real, after a random number of steps, and resumed in another.

    process 1   step 1 ─ step 2 ─ … ─ step 112 ─ ✗ killed
    witness     112 lines                             executed_steps
    database    97 messages                           recovered_steps
    process 2   ……… invoke(None) ─ step 98 ─ …        lost_steps = 15, repeated_count = 15

What is recovered must be the beginning of what was executed, message for message, and the exit
status must say that the process was killed; otherwise `ChildFailed` is raised and there is no
number.

The witness does not wait for the disk here: that would slow each step to about the pace of the
database, and hide what is to be measured. Its lines survive a kill anyway.

What is left out: power loss (the page cache survives a kill), and what the lost steps did to the
outside world. That has happened.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from durable_kit.crash.child import ChildFailed
from durable_kit.crash.experiment import AfterSteps, Attempt, Experiment
from durable_kit.crash.trial import Bench, Trial, run_jobs
from durable_kit.lab.durability_graph import NEVER_ENDS, end_at, message, talk_graph
from durable_kit.lab.durability_report import Case, DurabilityReport, KillRow, TimingRow
from durable_kit.lab.embedded_postgres import ScratchDatabases, is_installed
from durable_kit.lab.storage_report import environment
from durable_kit.lab.storage_worker import SAVERS, open_saver

DURABILITIES = ("sync", "async", "exit")

TIMED_ROUNDS = 3  # undisturbed runs of each case, in turns with the other cases


def kill_between(step_ms: float) -> tuple[int, int]:
    """After how many steps a kill may come: for each step time a fraction of a second of work.

    Ten at least, where they fit: "it lost next to nothing" says nothing of a run of three.
    """
    most = max(3, min(30, round(600 / step_ms))) if step_ms else 60
    return (min(10, max(2, most // 3)), most)


def timed_steps(step_ms: float) -> int:
    """The length of an undisturbed run."""
    return max(8, min(60, round(300 / step_ms))) if step_ms else 60


COMMITTED = "saver.put.after"
Progress = Callable[[int, int, str], None]


def savers_here(postgres_url: str | None = None) -> list[str]:
    """DeltaSaver and LangGraph's own, on each database that can be had on this machine."""
    found = ["delta", "sqlite"]
    if postgres_url is not None or is_installed():
        found.append("delta-postgres")
        if find_spec("langgraph.checkpoint.postgres") is not None:
            found.append("postgres")
    return found


def measure_durability(
    *,
    kills: int,
    seed: int,
    savers: Sequence[str] = ("delta", "sqlite"),
    durabilities: Sequence[str] = DURABILITIES,
    kill_between: Mapping[float, tuple[int, int]] = {0: kill_between(0), 20: kill_between(20)},
    message_bytes: int = 450,
    postgres_url: str | None = None,
    at_once: int = 2,
    timed: bool = True,
    on_progress: Progress | None = None,
    cancelled: threading.Event | None = None,
) -> DurabilityReport:
    """Time some runs, and kill `kills` more, for each saver, step time and durability, in turns.

    `kill_between`: step_ms -> between how many steps the kill comes.
    `savers` are names of `SAVERS`; those of PostgreSQL use the server at `postgres_url`, in
    databases of their own, or an embedded one. `seed` decides after how many steps each kill comes;
    how many more steps are executed until it arrives is the machine's affair. `at_once`: how many
    kills are under way at the same time; runs that mostly sleep are three times as many.

    Stops early on KeyboardInterrupt or once `cancelled` is set, and returns what is there. Raises
    `ChildFailed` if a kill did not happen as told; no process is left in any case.
    """
    unknown = [name for name in savers if name not in SAVERS or name == "none"]
    if unknown or kills < 0:
        raise ValueError(f"Unknown savers {unknown}, or no sense in {kills} kills.")
    cases = [
        Case(saver, mode, ms) for ms in kill_between for mode in durabilities for saver in savers
    ]
    began_s = time.perf_counter()
    report = DurabilityReport.empty(message_bytes, environment({}, {}))
    rounds = TIMED_ROUNDS if timed else 0
    tell = _Teller(on_progress, (rounds + kills) * len(cases))
    with ExitStack() as stack:
        urls = _urls(savers, postgres_url, stack)
        try:
            for case in cases * rounds:
                tell(f"{case.saver} {case.durability}, undisturbed")
                if cancelled is not None and cancelled.is_set():
                    raise KeyboardInterrupt
                report = report.with_timing(timed_run(case, message_bytes, url=urls[case.saver]))
            for ms in kill_between:
                rng = random.Random(f"{seed} {ms}")
                jobs = _kill_jobs(cases, ms, kills, kill_between[ms], message_bytes, urls, rng)
                found = run_jobs(jobs, at_once=at_once * (3 if ms else 1), cancelled=cancelled)
                with closing(found):  # type: ignore[type-var]
                    for row in found:
                        report = report.with_kill(row)
                        tell(f"{row.case.saver} {row.case.durability}, killed")
        except KeyboardInterrupt:
            report = report.interrupted()
        except ChildFailed:
            if cancelled is None or not cancelled.is_set():
                raise
            report = report.interrupted()
    return report.lasted(time.perf_counter() - began_s)


def timed_run(case: Case, message_bytes: int, *, url: str | None) -> TimingRow:
    """One run that nobody kills: its steps, its flush, and its windows."""
    steps = timed_steps(case.step_ms)
    with tempfile.TemporaryDirectory(prefix="kit-durability-") as name:
        folder = Path(name)
        end_at(folder, steps)
        experiment = _experiment(case, message_bytes, folder, url, timed=True)
        attempt = Bench(experiment, folder).run(None)
    runs = attempt.runs
    if len(runs) != steps or attempt.error is not None or attempt.returned_s is None:
        raise ChildFailed(f"{case}: {len(runs)} of {steps} steps were executed. {attempt.error}")
    last_s = runs[-1].ended_s or attempt.returned_s
    return TimingRow(
        case=case,
        step_ms=tuple((b.began_s - a.began_s) * 1000 for a, b in pairwise(runs)),
        wall_per_step_ms=(attempt.returned_s - attempt.began_s) * 1000 / steps,
        flush_ms=(attempt.returned_s - last_s) * 1000,
        window_ms=tuple(windows_ms(attempt)),
    )


def windows_ms(attempt: Attempt) -> Iterator[float]:
    """For each step: from the moment its node had returned until its checkpoint was committed.

    Checkpoints are put in order: that of the input (step -1), that of the start (0), then one a
    step. With "exit" there is one for the whole run: no step is safe before it.
    """
    committed_s = [at_s for point, at_s in attempt.points if point == COMMITTED]
    of_steps = committed_s[2:] if len(committed_s) > 2 else committed_s[-1:] * len(attempt.runs)
    for run, at_s in zip(attempt.runs, of_steps, strict=False):
        if run.ended_s is not None:
            yield (at_s - run.ended_s) * 1000


def killed_run(
    case: Case,
    message_bytes: int,
    *,
    url: str | None,
    after_steps: int,
    then_ms: float,
    stop: threading.Event | None = None,
) -> KillRow:
    """One kill and its resume. Raises `ChildFailed` if it did not happen, or if damage is found."""
    with tempfile.TemporaryDirectory(prefix="kit-durability-") as name:
        folder = Path(name)
        experiment = _experiment(case, message_bytes, folder, url, timed=False)
        bench = Bench(experiment, folder, cancelled=stop)
        first = bench.run(AfterSteps(after_steps, then_ms=then_ms))
        executed = sum(run.ended_s is not None for run in first.runs)
        if not first.death.killed or executed < after_steps:
            raise ChildFailed(f"the kill did not happen as told: {bench.trial().story}")
        end_at(folder, executed + 1)
        bench.run(None)
        trial = bench.trial()
    problem = _problem(trial, executed, message_bytes)
    if problem is not None:
        raise ChildFailed(f"{case}: {problem} This is damage, not loss. {trial.story}")
    second = trial.attempts[1]
    return KillRow(
        case=case,
        executed_steps=trial.executed_steps,
        recovered_steps=trial.recovered_steps,
        lost_steps=trial.lost_steps,
        repeated_count=len(trial.repeated_runs),
        resume_ms=(second.runs[0].began_s - second.began_s) * 1000,
        left_bytes=trial.bytes_left,
        ended=trial.attempts[0].death.how,
    )


def _problem(trial: Trial, executed: int, message_bytes: int) -> str | None:
    """What came back must be the beginning of what was executed, and the resume must end it."""
    wanted = [message(step, message_bytes=message_bytes) for step in range(1, executed + 2)]
    found = trial.after_kill.values.get("messages", [])
    if found != wanted[: len(found)]:
        return f"what came back after {executed} steps is not what was executed: {len(found)}."
    if len(found) != trial.recovered_steps:
        return f"{trial.recovered_steps} steps are stored, and {len(found)} messages are there."
    if trial.final_state.get("messages") != wanted:
        return "the resumed run did not end in the state of an undisturbed one."
    return f"verify found {trial.problems}." if trial.problems else None


def _experiment(
    case: Case, message_bytes: int, folder: Path, url: str | None, *, timed: bool
) -> Experiment:
    return Experiment(
        graph=partial(talk_graph, folder=folder, step_ms=case.step_ms, message_bytes=message_bytes),
        input={"messages": []},
        config={"recursion_limit": NEVER_ENDS},
        durability=case.durability,  # type: ignore[arg-type]
        saver=partial(open_saver, case.saver),
        url=url,
        fsync=False,
        record_points=[COMMITTED] if timed else False,
    )


def _kill_jobs(
    cases: Sequence[Case],
    ms: float,
    kills: int,
    between: tuple[int, int],
    message_bytes: int,
    urls: Mapping[str, str | None],
    rng: random.Random,
) -> Iterator[Callable[[threading.Event], KillRow]]:
    for _ in range(kills):
        # The same for all: what is compared must not differ by luck.
        after_steps = rng.randint(*between)
        # Somewhere in a step: a kill right after a node would always meet one window.
        then_ms = rng.uniform(0, ms or 1)
        for case in cases:
            if case.step_ms == ms:
                plan = partial(
                    killed_run,
                    case,
                    message_bytes,
                    url=urls[case.saver],
                    after_steps=after_steps,
                    then_ms=then_ms,
                )
                yield lambda stop, plan=plan: plan(stop=stop)  # type: ignore[misc]


def _urls(
    savers: Sequence[str], postgres_url: str | None, stack: ExitStack
) -> dict[str, str | None]:
    """A database for each saver of PostgreSQL; None, a file a trial, for the others."""
    on_server = [name for name in savers if SAVERS[name].database == "postgresql"]
    if not on_server:
        return dict.fromkeys(savers)
    databases = stack.enter_context(ScratchDatabases(postgres_url))
    return {
        name: databases.url_of(f"kit_{name.replace('-', '_')}") if name in on_server else None
        for name in savers
    }


class _Teller:
    """Counts what is done, for a progress bar."""

    def __init__(self, on_progress: Progress | None, total: int) -> None:
        self._on_progress = on_progress
        self._done, self._total = 0, total

    def __call__(self, what: str) -> None:
        self._done += 1
        if self._on_progress is not None:
            self._on_progress(self._done, self._total, what)
