"""One crash, from beginning to end: run, kill, look, resume, count.

    experiment = Experiment(graph=build, input={"order_id": "order-1001"}, durability="async")
    trial = run_trial(experiment, AtPoint("node.charge.exit"))
    trial.lost_steps, trial.repeated_runs, trial.final_state

    process 1   invoke(input) ─ prepare ─ charge ─ "crash point reached" ─ ✗ SIGKILL
    process 2   what is stored? ─ invoke(None) ─ charge ─ notify ─ what is left?
                                                 └ repeated_runs: it had run already

Each process is a real one, killed by the operating system, and `Death.killed` is read from its exit
status. What was executed is told by the witness, a file that no checkpointer touches; what was
stored is asked of the database by a process that did not write it. `lost_steps` is the difference:
super-steps that were executed, of which a resume knows nothing.

A process that ends before its kill has not crashed: then `crashed` is False, `story` says so, and
nothing was resumed. With several kills the resumes are killed as well, in turn: crashes during
recovery.

Where the system can fork, processes come from a fork server (`fork_server.py`) in some
milliseconds; elsewhere each starts Python anew, and is the same otherwise. All of them end with
this process, and at a deadline.
"""

from __future__ import annotations

import itertools
import os
import pickle
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from durable_kit import crash_point
from durable_kit.crash import fork_server
from durable_kit.crash.child import Child, ChildFailed
from durable_kit.crash.experiment import (
    AfterSteps,
    AfterTime,
    AtPoint,
    Attempt,
    Experiment,
    Job,
    Kill,
    Stored,
    by_value,
)
from durable_kit.crash.witness import NodeRun, node_runs, repeated
from durable_kit.crash.worker import BEGINS, FINISHED, STEPS_DONE

DEADLINE_S = 60.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trial:
    """What happened to one experiment: an `Attempt` for each process, and what follows from them.

    All numbers are of the first crash, `lost_steps` in super-steps that had been executed.
    """

    experiment: Experiment
    attempts: tuple[Attempt, ...]

    @property
    def crashed(self) -> bool:
        """Every process that was to be killed was killed, says its exit status."""
        return all(one.death.killed for one in self.attempts if one.kill is not None)

    @property
    def story(self) -> str:
        """How the processes ended, in a sentence."""
        ends = [f"process {i} {a.death.how}" for i, a in enumerate(self.attempts, start=1)]
        said = ", ".join(ends) + "."
        if not self.crashed:
            said = f"The crash did not happen as told: {said}"
        errors = [a.error.splitlines()[0] for a in self.attempts if a.error]
        return " ".join([said, *errors])

    @property
    def points_passed(self) -> tuple[str, ...]:
        """The crash points that the first process passed; the last is where it died, if at one
        (with `then_ms` other OS threads may have passed more)."""
        return tuple(name for name, _ in self.attempts[0].points)

    @property
    def after_kill(self) -> Stored:
        """What the database said after the first process had ended."""
        first = self.attempts[0]
        if len(self.attempts) > 1:
            return self.attempts[1].found
        if first.left is None:
            raise ChildFailed(f"nobody looked at what was stored: {self.story}")
        return first.left

    @property
    def executed_steps(self) -> int:
        """Super-steps in which a node did its work in the first process."""
        return len(_executed(self.attempts[0].runs))

    @property
    def recovered_steps(self) -> int:
        """Those of them that a resume does not execute again."""
        steps = _executed(self.attempts[0].runs)
        return sum(_is_stored(step, runs, self.after_kill) for step, runs in steps.items())

    @property
    def lost_steps(self) -> int:
        return self.executed_steps - self.recovered_steps

    @property
    def repeated_runs(self) -> tuple[NodeRun, ...]:
        """Node runs of the later processes that an earlier one had begun already."""
        found: list[NodeRun] = []
        before = list(self.attempts[0].runs)
        for attempt in self.attempts[1:]:
            found += repeated(before, attempt.runs)
            before += attempt.runs
        return tuple(found)

    @property
    def final(self) -> Stored:
        """What the database said at the end. Raises `ChildFailed` if the last process died."""
        left = self.attempts[-1].left
        if left is None:
            raise ChildFailed(f"there is no end: {self.story}")
        return left

    @property
    def final_state(self) -> dict[str, Any]:
        return self.final.values

    @property
    def bytes_left(self) -> int | None:
        """The SQLite files after the first process had ended; None for another database."""
        return self.attempts[0].stored_bytes

    @property
    def problems(self) -> tuple[str, ...]:
        """All that `verify` found in any look at the database; none is what it should be."""
        looks = [stored for a in self.attempts for stored in (a.found, a.left) if stored]
        return tuple(itertools.chain.from_iterable(stored.problems for stored in looks))

    @property
    def resume_ms(self) -> float:
        """From the request for a process that resumes to its `invoke`: start, open, look."""
        return self.attempts[1].started_s * 1000


def run_trial(
    experiment: Experiment,
    *kills: Kill,
    folder: Path | None = None,
    deadline_s: float = DEADLINE_S,
    cancelled: threading.Event | None = None,
) -> Trial:
    """Run `experiment` in a process, kill it, resume it in another; one process more than kills.

    Without a kill it runs to its end, undisturbed. `folder` keeps the files (default: a temporary
    one that is removed). Raises `ChildFailed` if a process does something else than to run, to
    raise an exception of the graph, or to be killed: it hangs, or cannot start. No process is left.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="kit-trial-") as temporary:
            return run_trial(
                experiment,
                *kills,
                folder=Path(temporary),
                deadline_s=deadline_s,
                cancelled=cancelled,
            )
    bench = Bench(experiment, folder, deadline_s=deadline_s, cancelled=cancelled)
    for kill in kills:
        if not bench.run(kill).death.killed:
            return bench.trial()
    bench.run(None)
    return bench.trial()


def run_trials(
    plans: Iterable[tuple[Experiment, Sequence[Kill]]],
    *,
    at_once: int = 2,
    deadline_s: float = DEADLINE_S,
    on_progress: Callable[[int], None] | None = None,
    cancelled: threading.Event | None = None,
) -> Iterator[Trial]:
    """The trials of all `plans`, in their order, `at_once` of them at the same time.

    `on_progress` is told how many are done. If a trial raises, or the caller stops iterating, the
    others end and no process is left.
    """

    def job(experiment: Experiment, kills: Sequence[Kill]) -> Callable[[threading.Event], Trial]:
        return lambda stop: run_trial(experiment, *kills, deadline_s=deadline_s, cancelled=stop)

    yield from run_jobs(
        (job(*plan) for plan in plans),
        at_once=at_once,
        on_progress=on_progress,
        cancelled=cancelled,
    )


def run_jobs(
    jobs: Iterable[Callable[[threading.Event], T]],
    *,
    at_once: int,
    on_progress: Callable[[int], None] | None = None,
    cancelled: threading.Event | None = None,
) -> Iterator[T]:
    """What the `jobs` return, in their order. Each is given an event that tells it to stop."""
    stop = threading.Event()
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="trial")
    waiting = iter(jobs)
    running: list[Future[T]] = []  # in the order of the jobs
    reported = finished = 0
    try:
        while True:
            while sum(not f.done() for f in running) < at_once:
                job = next(waiting, None)
                if job is None:
                    break
                running.append(pool.submit(job, stop))
            if not running:
                return
            wait([f for f in running if not f.done()], timeout=0.1, return_when=FIRST_COMPLETED)
            if cancelled is not None and cancelled.is_set():
                raise ChildFailed("cancelled")
            done = finished + sum(f.done() for f in running)
            if on_progress is not None and done != reported:
                on_progress(done)
            reported = done
            while running and running[0].done():
                finished += 1
                yield running.pop(0).result()
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


class Bench:
    """One experiment on one database, a process at a time: what `run_trial` is made of."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        *,
        deadline_s: float = DEADLINE_S,
        cancelled: threading.Event | None = None,
    ) -> None:
        self.folder = folder
        self._experiment = experiment
        self._pickled = by_value(experiment)
        self._deadline_s = deadline_s
        self._cancelled = cancelled
        self._attempts: list[Attempt] = []
        self._database = folder / "agent.db"
        given = experiment.config.get("configurable", {}).get("thread_id")
        self._thread_id = uuid.uuid4().hex if given is None else str(given)

    def trial(self) -> Trial:
        """What has happened so far."""
        return Trial(self._experiment, tuple(self._attempts))

    def run(self, kill: Kill | None) -> Attempt:
        """Start one more process, kill it as told or let it end, and say what it did."""
        job = Job(
            folder=self.folder,
            number=len(self._attempts) + 1,
            experiment=self._pickled,
            url=self._experiment.url or f"sqlite:///{self._database.as_posix()}",
            thread_id=self._thread_id,
            kill=kill,
            sys_path=tuple(sys.path),
            working_directory=str(Path.cwd()),
            environment=dict(os.environ),
        )
        asked_s = time.perf_counter()
        with _started(job, self._deadline_s) as child:
            begins = self._until(child, (BEGINS,))
            began_s = float(begins.removeprefix(BEGINS))
            death = self._killed(child, kill)
            ended_s = time.perf_counter()
            if death is None:
                death = child.wait(timeout_s=self._deadline_s)
                ended_s = time.perf_counter()
        left, error, returned_s = None, None, None
        if not death.killed and job.left_path.exists():
            left, error, returned_s = pickle.loads(job.left_path.read_bytes())
        elif not death.killed:
            raise ChildFailed(f"process {job.number} {death.how}. {child.last_words()}")
        found: Stored = pickle.loads(job.found_path.read_bytes())
        attempt = Attempt(
            kill=kill,
            death=death,
            resumed=found.step is not None,
            found=found,
            left=left,
            error=error,
            runs=node_runs(job.witness_path),
            points=tuple(crash_point.passed(job.points_path)),
            stored_bytes=None if self._experiment.url else _file_bytes(self._database),
            started_s=began_s - asked_s,
            began_s=began_s,
            returned_s=returned_s,
            ended_s=ended_s,
        )
        self._attempts.append(attempt)
        return attempt

    def _killed(self, child: Child, kill: Kill | None) -> Any:
        """Kill the child where it is to be killed; None if it is to end by itself, or has."""
        if isinstance(kill, AfterTime):
            time.sleep(kill.seconds)
            return child.kill()
        awaited = {AtPoint: crash_point.ANNOUNCEMENT, AfterSteps: STEPS_DONE}.get(type(kill))
        line = self._until(child, (FINISHED,) if awaited is None else (FINISHED, awaited))
        if line == FINISHED:
            return None
        if isinstance(kill, AtPoint | AfterSteps):
            time.sleep(kill.then_ms / 1000)
        return child.kill()

    def _until(self, child: Child, beginnings: tuple[str, ...]) -> str:
        return child.until(beginnings, timeout_s=self._deadline_s, cancelled=self._cancelled)


def _started(job: Job, deadline_s: float) -> Child:
    path = job.folder / f"job-{job.number}.pickle"
    path.write_bytes(pickle.dumps(job))
    arguments = [str(path), str(deadline_s)]
    if fork_server.AVAILABLE:
        return Child(fork_server.fork(arguments))
    return Child.start("durable_kit.crash.worker", arguments, deadline_s=deadline_s)


def _executed(runs: Iterable[NodeRun]) -> dict[int, list[NodeRun]]:
    """Super-step -> its node runs that ended."""
    steps: dict[int, list[NodeRun]] = {}
    for run in runs:
        if run.ended_s is not None:
            steps.setdefault(run.step, []).append(run)
    return steps


def _is_stored(step: int, runs: Sequence[NodeRun], stored: Stored) -> bool:
    """Whether all that these runs of a super-step did is in a checkpoint, or waits beside it."""
    if stored.step is None:
        return False
    return step <= stored.step or all(run.task_id in stored.waiting_task_ids for run in runs)


def _file_bytes(database: Path) -> int:
    files = [database.with_name(database.name + end) for end in ("", "-wal", "-shm")]
    return sum(file.stat().st_size for file in files if file.exists())
