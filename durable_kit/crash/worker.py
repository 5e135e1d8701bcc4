"""The process that is killed, from its own side.

    open the saver ─ build the graph ─ what is stored? ─ "begins" ─ invoke(…) ─ what is left?
                                             │                         ✗ killed, most of the time
                                  nothing: invoke(input)
                                  a checkpoint: invoke(None)

The first process of a trial and the one that resumes are the same program: whether there is
something to resume is a question for the database, as it would be after a real crash.

What the graph prints goes to stderr; stdout belongs to the conversation with the parent.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from durable_kit import crash_point
from durable_kit.crash.child import stay_no_longer_than_the_parent
from durable_kit.crash.experiment import (
    AfterSteps,
    AtPoint,
    Experiment,
    Job,
    Stored,
    by_value,
    resolved,
)
from durable_kit.crash.points import graph_with_points, saver_with_points
from durable_kit.crash.witness import Witness

BEGINS, STEPS_DONE, FINISHED = "begins ", "steps executed: ", "finished "
RAISED = 3  # exit code: the graph raised an exception


def main(argv: list[str] | None = None) -> int:
    """Do the job that lies in the file named in `argv`, and say how it goes."""
    path, deadline_s = sys.argv[1:] if argv is None else argv
    stay_no_longer_than_the_parent(float(deadline_s))
    job: Job = pickle.loads(Path(path).read_bytes())
    say = _own_line_to_the_parent()
    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.working_directory)
    sys.path[:] = job.sys_path
    experiment: Experiment = pickle.loads(job.experiment)
    run = asyncio.run(_arun(job, experiment, say)) if experiment.use_async else None
    return run if run is not None else _run(job, experiment, say)


def _run(job: Job, experiment: Experiment, say: Callable[[str], None]) -> int:
    config = _config(job, experiment)
    with experiment.saver(job.url) as saver:
        graph = _watched_graph(job, experiment, saver, say)
        found = _stored(saver, saver.get_tuple(config), graph.get_state(config), job)
        _keep(found, job.found_path)
        error = None
        began_s = _begin(job, experiment, say)
        try:
            graph.invoke(_input(found, experiment), config, durability=experiment.durability)
        except Exception as raised:
            error = _told(raised)
        returned_s = time.perf_counter()
        crash_point.arm(None)
        left = _stored(saver, saver.get_tuple(config), graph.get_state(config), job)
    return _finish(job, left, error, began_s, returned_s, say)


async def _arun(job: Job, experiment: Experiment, say: Callable[[str], None]) -> int:
    config = _config(job, experiment)
    opened: Any = experiment.saver(job.url)
    if not hasattr(opened, "__aenter__"):
        opened = nullcontext(opened.__enter__())
    async with opened as saver:
        graph = _watched_graph(job, experiment, saver, say)
        found = _stored(saver, await saver.aget_tuple(config), await graph.aget_state(config), job)
        _keep(found, job.found_path)
        error = None
        began_s = _begin(job, experiment, say)
        try:
            await graph.ainvoke(_input(found, experiment), config, durability=experiment.durability)
        except Exception as raised:
            error = _told(raised)
        returned_s = time.perf_counter()
        crash_point.arm(None)
        left = _stored(saver, await saver.aget_tuple(config), await graph.aget_state(config), job)
    return _finish(job, left, error, began_s, returned_s, say)


def _config(job: Job, experiment: Experiment) -> Any:
    given = dict(experiment.config)
    configurable = {"thread_id": job.thread_id, **given.pop("configurable", {})}
    return {**given, "configurable": configurable}


def _watched_graph(job: Job, experiment: Experiment, saver: Any, say: Callable[[str], None]) -> Any:
    graph = resolved(experiment.graph)(saver_with_points(saver))
    witness = Witness(job.witness_path, fsync=experiment.fsync)
    if isinstance(job.kill, AfterSteps):
        _say_after(witness, job.kill.steps, say)
    return graph_with_points(graph, witness=witness)


def _say_after(witness: Witness, steps: int, say: Callable[[str], None]) -> None:
    """Let `witness` tell the parent, once, when so many node runs have ended."""
    count, note = itertools.count(1), witness.ended

    def ended(path: str, step: int, task_id: str) -> None:
        note(path, step, task_id)
        if next(count) == steps:
            say(f"{STEPS_DONE}{steps}")

    witness.ended = ended  # type: ignore[method-assign]


def _begin(job: Job, experiment: Experiment, say: Callable[[str], None]) -> float:
    """Arm the process, and tell the parent that the run begins. Looking was not part of it."""
    kill, noted = job.kill, experiment.record_points
    crash_point.arm(
        f"{kill.name}#{kill.occurrence}" if isinstance(kill, AtPoint) else None,
        record=job.points_path if noted else None,
        only=None if isinstance(noted, bool) else noted,
        announce=say,
        others_go_on=isinstance(kill, AtPoint) and kill.then_ms > 0,
    )
    began_s = time.perf_counter()
    say(f"{BEGINS}{began_s}")
    return began_s


def _input(found: Stored, experiment: Experiment) -> Any:
    return experiment.input if found.step is None else None


def _finish(
    job: Job,
    left: Stored,
    error: str | None,
    began_s: float,
    returned_s: float,
    say: Callable[[str], None],
) -> int:
    _keep((left, error, returned_s), job.left_path)
    say(FINISHED)
    return 0 if error is None else RAISED


def _told(raised: Exception) -> str:
    return f"{type(raised).__name__}: {raised}\n{''.join(traceback.format_exception(raised))}"


def _stored(saver: Any, newest: Any, snapshot: Any, job: Job) -> Stored:
    verify = getattr(saver, "verify", None)
    problems = verify(job.thread_id).problems if verify is not None and newest is not None else ()
    waiting = newest.pending_writes or [] if newest is not None else []
    return Stored(
        step=None if newest is None else newest.metadata.get("step"),
        values=dict(snapshot.values),
        next=tuple(snapshot.next),
        tasks=tuple(task.name for task in snapshot.tasks),
        waiting_task_ids=frozenset(
            task_id for task_id, channel, _ in waiting if not channel.startswith("__")
        ),
        problems=tuple(str(problem) for problem in problems),
    )


def _keep(thing: Any, path: Path) -> None:
    path.write_bytes(by_value(thing))


def _own_line_to_the_parent() -> Callable[[str], None]:
    """Keep stdout for us, and send to stderr what anybody else writes there."""
    sys.stdout.flush()
    line = os.dup(1)
    os.dup2(2, 1)

    def say(text: str) -> None:
        os.write(line, text.encode() + b"\n")

    return say


if __name__ == "__main__":
    sys.exit(main())
