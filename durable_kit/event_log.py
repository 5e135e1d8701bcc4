"""What happened, in the order in which it was written down.

A state says where a run is. It does not say how it came there, and a state that was overwritten
says nothing. An event log only ever adds: each row is a fact in the past tense, and the state is
what comes out when they are read from the first to the last (a *fold*):

    1 RunStarted      order-1001                     status running
    2 NodeStarted     charge                         node charge
    3 ToolRequested   charge:order-1001, 49.99       asked: charge:order-1001
      ✗ the process dies
      ─────────────────────────────────────────      fold: the charge was asked for, no answer

**Two writers.** Whoever appends says which version it has seen. Two workers that both read five
facts can each decide well, and only one of them may write the sixth:

    worker A   read: 5 facts ── decides "charge" ── append(expected 5): version 6
    worker B   read: 5 facts ── decides "cancel" ── append(expected 5): WrongVersion, found 6

B reads again and decides again. This guards the log, and not the world: what B did to the world
before it asked is done.

**What a log proves.** That these facts were written down in this order, by code that had seen all
the earlier ones, and that none of them was changed, taken out or put in since (each checksum
covers the one before).

**What it cannot.** That something happened, or did not:

    ToolRequested without an answer    the effect may have happened, or not: in doubt
    ToolSucceeded                      we have noted that an answer came; the other side's ledger
                                       is the truth
    no fact at all                     nothing was written; a crash between act and append is that

Nor what the facts meant: a fold is code, and newer code may read old facts otherwise. A log whose
last facts are missing looks like a shorter log. Whoever can write rows can compute checksums.
`recorded_at_us` is when somebody wrote, by their clock.

**Left out.** Snapshots of folds (a run has hundreds of facts, not millions), subscriptions, and
LangGraph: this log knows only what you append.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, assert_never, get_args

import ormsgpack

from durable_kit.clock import Clock, SystemClock
from durable_kit.errors import BrokenChain, DurableKitError, UnloadableValue
from durable_kit.storage.codec import Codec
from durable_kit.storage.database import Database, Tx
from durable_kit.storage.record import ZERO, escape_text

# -- facts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The first fact of a run, with the state that it began with."""

    thread_id: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """A node began. After a crash it begins once more, and that is a second fact."""

    node: str


@dataclass(frozen=True, slots=True)
class ModelCalled:
    """A model has answered."""

    node: str
    model: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class ToolRequested:
    """Written before anything is sent. Without it, a crash leaves no trace of the attempt."""

    request_id: str
    tool: str
    request: Any


@dataclass(frozen=True, slots=True)
class ToolSucceeded:
    """The answer of a tool has come, and is kept."""

    request_id: str
    response: Any


@dataclass(frozen=True, slots=True)
class ToolFailed:
    """The tool surely did nothing. A time-out is not this: it is no answer, and stays asked."""

    request_id: str
    error: str


@dataclass(frozen=True, slots=True)
class StatePatched:
    """Fields of the state have got new values."""

    patch: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HumanApproved:
    """A person has said yes."""

    by: str
    what: str


@dataclass(frozen=True, slots=True)
class RunFailed:
    """The run has ended without what it was begun for."""

    error: str


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run has ended."""


Fact = (
    RunStarted
    | NodeStarted
    | ModelCalled
    | ToolRequested
    | ToolSucceeded
    | ToolFailed
    | StatePatched
    | HumanApproved
    | RunFailed
    | RunFinished
)
"""Something that has happened in a run. The name of its class is stored; do not rename one."""

_KINDS: dict[str, type[Fact]] = {kind.__name__: kind for kind in get_args(Fact)}


@dataclass(frozen=True, slots=True)
class Event:
    """A fact with its place in the log: `version` is 1 for the first fact of a run."""

    version: int
    fact: Fact
    recorded_at_us: int


class WrongVersion(DurableKitError):
    """Somebody else has appended. Read the log again, and decide again on what it says now."""

    def __init__(self, *, run_id: str, expected: int, found: int) -> None:
        super().__init__(
            f"run {run_id!r}: the log was expected at version {expected} and is at {found}. "
            "Nothing was appended. Read it again and decide anew."
        )
        self.run_id = run_id
        self.expected = expected
        self.found = found


# -- the log -------------------------------------------------------------------------------------


class EventLog:
    """The facts of all runs of a database, one sequence a run. Safe to share between threads."""

    def __init__(self, *, codec: Codec | None = None, clock: Clock | None = None) -> None:
        self._codec = codec or Codec()
        self._clock = clock or SystemClock()

    def append(self, tx: Tx, run_id: str, *facts: Fact, expected_version: int) -> int:
        """Add facts in the caller's transaction, all or none; the version after them.

        `expected_version`: that of the last fact you have seen, 0 for a run without any. Raises
        `WrongVersion` when there is another; the caller's transaction should end with it.
        """
        name = escape_text(run_id)
        version, previous = _end_of(tx, name)
        if version != expected_version:
            raise WrongVersion(run_id=run_id, expected=expected_version, found=version)
        for fact in facts:
            kind = type(fact).__name__
            values = {f.name: getattr(fact, f.name) for f in fields(fact)}
            body = self._codec.encode(values, path=kind)
            version += 1
            now_us = self._clock.now_us()
            previous = _checksum(name, version, kind, body, now_us, previous)
            added = tx.execute(
                """
                INSERT INTO run_events (run_id, version, kind, body, recorded_at_us, checksum)
                VALUES (:run_id, :version, :kind, :body, :now_us, :checksum)
                ON CONFLICT (run_id, version) DO NOTHING
                """,
                run_id=name,
                version=version,
                kind=kind,
                body=body,
                now_us=now_us,
                checksum=previous,
            )
            # PostgreSQL lets two writers look at the same time, and the second one waits here
            # until the first has committed. On SQLite the second looks after that.
            if added.rowcount != 1:
                found, _ = _end_of(tx, name)
                raise WrongVersion(run_id=run_id, expected=expected_version, found=found)
        return version

    def read(self, database: Database, run_id: str) -> list[Event]:
        """Every fact of a run, checked, the first one first.

        Raises `BrokenChain` at the first row that does not follow from the rows before it, and
        `UnloadableValue` for a kind of fact that this code does not know.
        """
        name = escape_text(run_id)
        with database.read() as tx:
            rows = tx.rows(
                """
                SELECT version, kind, body, recorded_at_us, checksum
                  FROM run_events
                 WHERE run_id = :run_id
                 ORDER BY version
                """,
                run_id=name,
            )
        events: list[Event] = []
        previous = ZERO
        for place, (version, kind, body, at_us, checksum) in enumerate(rows, start=1):
            previous = _checksum(name, place, kind, bytes(body), at_us, previous)
            if version != place or previous != bytes(checksum):
                raise BrokenChain(
                    thread_id=run_id,
                    namespace="",
                    checkpoint_id=None,
                    sequence=place,
                    found="the event log was changed here, or a fact is missing",
                    remedy="Compare with a backup; the facts before it are sound.",
                )
            events.append(Event(version, self._fact(run_id, version, kind, bytes(body)), at_us))
        return events

    def _fact(self, run_id: str, version: int, kind: str, body: bytes) -> Fact:
        known = _KINDS.get(kind)
        try:
            if known is not None:
                return known(**self._codec.decode(body))
            reason = "this code does not know such a fact"
        except TypeError as error:
            reason = f"its fields are others ({error})"
        raise UnloadableValue(
            class_name=kind,
            reason=reason,
            remedy="Read the log with the code that wrote it, or newer code.",
            where=f"run {run_id}, version {version}",
        )


def _end_of(tx: Tx, name: str) -> tuple[int, bytes]:
    """Version and checksum of the last fact."""
    row = tx.row(
        """
        SELECT version, checksum
          FROM run_events
         WHERE run_id = :run_id
         ORDER BY version DESC
         LIMIT 1
        """,
        run_id=name,
    )
    return (0, ZERO) if row is None else (row[0], bytes(row[1]))


def _checksum(
    name: str, version: int, kind: str, body: bytes, at_us: int, previous: bytes
) -> bytes:
    """Over the row and the checksum before it; msgpack says where one field ends."""
    packed = ormsgpack.packb([name, version, kind, body, at_us, previous])
    return hashlib.sha256(packed).digest()


# -- the fold ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunState:
    """What the facts add up to.

    `asked` holds the requests without an answer, by request id: after a crash, those are in doubt.
    """

    version: int = 0
    status: str = "not started"
    node: str = ""
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    asked: Mapping[str, ToolRequested] = field(default_factory=lambda: MappingProxyType({}))
    answers: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    approvals: tuple[HumanApproved, ...] = ()
    tokens: int = 0
    error: str = ""


def fold(events: Iterable[Event], start: RunState | None = None) -> RunState:
    """The state after `events`. Pure: the same facts give the same state, as often as you like.

    It believes what it is told; nothing is sent, asked or checked.
    """
    state = start or RunState()
    for event in events:
        state = replace(_after(state, event.fact), version=event.version)
    return state


def _after(state: RunState, fact: Fact) -> RunState:
    match fact:
        case RunStarted(values=values):
            return replace(state, status="running", values=MappingProxyType(dict(values)))
        case NodeStarted(node=node):
            return replace(state, status="running", node=node)
        case ModelCalled(input_tokens=read, output_tokens=written):
            return replace(state, tokens=state.tokens + read + written)
        case ToolRequested(request_id=request_id):
            return replace(state, asked=MappingProxyType({**state.asked, request_id: fact}))
        case ToolSucceeded(request_id=request_id, response=response):
            answers = MappingProxyType({**state.answers, request_id: response})
            return replace(state, asked=_without(state.asked, request_id), answers=answers)
        case ToolFailed(request_id=request_id, error=error):
            return replace(state, asked=_without(state.asked, request_id), error=error)
        case StatePatched(patch=patch):
            return replace(state, values=MappingProxyType({**state.values, **patch}))
        case HumanApproved():
            return replace(state, approvals=(*state.approvals, fact))
        case RunFailed(error=error):
            return replace(state, status="failed", error=error)
        case RunFinished():
            return replace(state, status="finished")
    assert_never(fact)


def _without(asked: Mapping[str, ToolRequested], request_id: str) -> Mapping[str, ToolRequested]:
    return MappingProxyType({key: value for key, value in asked.items() if key != request_id})
