"""What is to be run and killed, and what is known of it afterwards.

An `Experiment` is a graph, a saver and an input, told so that another process can make them: a
saver belongs to the process that opened it, and a function of a notebook cell does not exist in
another process. So there are no objects here but the ways to make them:

    Experiment(
        graph=build,                        saver -> compiled graph; or "my_agent.graphs:build"
        input={"order_id": "order-1001"},
        durability="sync",                  LangGraph's word for when a checkpoint is stored
        saver=DeltaSaver.open,              URL -> saver, as a context manager
    )

Functions of importable modules travel by name, those of a notebook or a script by value, with all
that they refer to (`cloudpickle`). What cannot travel at all (an open connection, a lock, a
client) is made inside `graph`.

A kill comes at a place or at a time:

    AtPoint("saver.put.before", 3)       there, exactly, on every machine
    AfterSteps(40, then_ms=0.3)          once 40 node runs have ended, wherever it is 0.3 ms later
    AfterTime(0.05)                      50 ms after the run began
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from durable_kit.crash.child import Death
from durable_kit.crash.witness import NodeRun
from durable_kit.delta_saver import DeltaSaver
from durable_kit.errors import BadInput

Durability = Literal["sync", "async", "exit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A run of a graph that other processes can begin, and go on with.

    `graph`: a function from a saver to a compiled graph, or "module:function".
    `saver`: a function from a URL to a saver in a `with`; any LangGraph saver, wrapped if need be.
    `url`: the database; None gives every trial a SQLite file of its own.
    `config`: as for `invoke`. Without a `thread_id` in it every trial takes a new one, so that
    many trials may share one database.
    `fsync`: whether the witness waits for the disk; see `witness.py`.
    `record_points`: whether crash points that are passed are noted, or only those of some names;
    about 2 µs a point.
    `use_async`: run with `ainvoke`; `saver` may then be an async context manager.
    """

    graph: Callable[[Any], Any] | str
    input: Any
    durability: Durability
    saver: Callable[[str], AbstractContextManager[Any]] = DeltaSaver.open
    url: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    fsync: bool = True
    record_points: bool | Collection[str] = True
    use_async: bool = False

    def __post_init__(self) -> None:
        if self.durability not in ("sync", "async", "exit"):
            raise BadInput(
                f"durability is {self.durability!r}; LangGraph knows sync, async and exit."
            )


@dataclass(frozen=True, slots=True)
class AtPoint:
    """Kill at the `occurrence`-th time that the crash point `name` is reached, exactly there.

    Then the process stands still. With `then_ms` only the OS thread that has reached the point
    does, and the others go on for that time: what they have begun can end.
    """

    name: str
    occurrence: int = 1
    then_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class AfterSteps:
    """Kill once `steps` node runs have ended in this process, and then `then_ms` later.

    The process goes on meanwhile: the kill meets it anywhere, as a kill does.
    """

    steps: int
    then_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class AfterTime:
    """Kill `seconds` after the run has begun (imports and the opening of the saver are over)."""

    seconds: float


Kill = AtPoint | AfterSteps | AfterTime


@dataclass(frozen=True, slots=True)
class Stored:
    """What the database says of a run, asked by a process that did not write it.

    `step` is the super-step of the newest checkpoint (-1: the input), None if there is none.
    `next` is what `get_state().next` says and may be empty although the run is not finished; the
    names in `tasks` are what is to be done. `waiting_task_ids`: tasks whose results are stored as
    pending writes, so that they need not run again. `problems`: what `verify` of the saver found,
    if it has one.
    """

    step: int | None
    values: dict[str, Any]
    next: tuple[str, ...]
    tasks: tuple[str, ...]
    waiting_task_ids: frozenset[str]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process: what it found, what it executed, how it ended, and what it left.

    `resumed`: it was given None as input, since it found a checkpoint. `left` is None if it was
    killed: then the next process tells. `error` is the exception that the graph raised, its first
    line what it was, then the traceback.
    `stored_bytes`: the SQLite files just after its end, before anybody opened them; else None.
    Times are in seconds: `started_s` from the request to a process that is ready; `began_s` and
    `returned_s`, the call of `invoke`, and `ended_s`, when the exit status came, are instants of
    `time.perf_counter`, which all processes of a machine share.
    """

    kill: Kill | None
    death: Death
    resumed: bool
    found: Stored
    left: Stored | None
    error: str | None
    runs: tuple[NodeRun, ...]
    points: tuple[tuple[str, float], ...]
    stored_bytes: int | None
    started_s: float
    began_s: float
    returned_s: float | None
    ended_s: float


@dataclass(frozen=True, slots=True)
class Job:
    """What the parent tells a process: everything that it would know had it been started by us."""

    folder: Path
    number: int
    experiment: bytes
    url: str
    thread_id: str
    kill: Kill | None
    sys_path: tuple[str, ...]
    working_directory: str
    environment: Mapping[str, str]

    @property
    def witness_path(self) -> Path:
        return self.folder / f"witness-{self.number}.txt"

    @property
    def points_path(self) -> Path:
        return self.folder / f"points-{self.number}.txt"

    @property
    def found_path(self) -> Path:
        return self.folder / f"found-{self.number}.pickle"

    @property
    def left_path(self) -> Path:
        return self.folder / f"left-{self.number}.pickle"


def by_value(thing: Any) -> bytes:
    """Pickle `thing`; functions and classes of a notebook or a script go along by value."""
    buffer = io.BytesIO()
    try:
        try:
            import cloudpickle

            cloudpickle.dump(thing, buffer)
        except ImportError:
            pickle.dump(thing, buffer)
    except Exception as error:
        raise BadInput(
            f"This cannot be sent to another process: {error} ({type(error).__name__}). Make "
            "connections, locks and clients inside the function `graph`; code of a notebook or a "
            "script needs the package cloudpickle."
        ) from error
    return buffer.getvalue()


def resolved(function: Any) -> Any:
    """`"module:function"` as the function; anything else is returned as it is."""
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    if not name:
        raise BadInput(f"{function!r} names no function. Write it as 'module:function'.")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
