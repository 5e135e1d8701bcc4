"""SIMULATED: what SQLite loses when the power fails, which a killed process never shows.

A process that is killed takes nothing with it. What it has written lies in the page cache, the page
cache belongs to the operating system, and the next process reads it as if nothing had happened:
fsync or not. When the power fails, the page cache goes, and what was not synced goes with it:

    write frame 1 ─ sync ─ write frame 2 ─ "committed" ─ ✗
    process death      frame 1, frame 2             nothing is lost
    power loss         frame 1                      a commit that was acknowledged is gone
    power loss, torn   frame 1, half of frame 2     some sectors arrived, in no order

So `kill -9` cannot teach `synchronous`; pulling the plug could, and this file simulates it. The
kit's own statements (a real LangGraph run on a real `DeltaSaver`, traced) are executed once more
through a virtual file system of apsw that notes every write and every sync. From these notes
follows what a disk would hold if the power failed at any moment: what was synced, and of the rest
nothing (`forgets`) or a random half of its sectors (`tears`). Those bytes are written to a folder,
and Python's own SQLite and `DeltaSaver` have to make sense of them.

    synchronous=OFF      never syncs
    synchronous=NORMAL   syncs before and after a WAL checkpoint: consistent, but commits may go
    synchronous=FULL     syncs at every commit: what the kit uses

What is simulated: that nothing unsynced survives, or half of it. A real disk keeps more, or lies
about its syncs. Taken as safe at once: that a file exists, or was deleted.
"""

from __future__ import annotations

import random
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pandas as pd

from durable_kit.delta_saver import DeltaSaver
from durable_kit.errors import DurableKitError
from durable_kit.lab.workloads import conversation_graph, sqlite_url

SETTINGS = ("OFF", "NORMAL", "FULL")
PROCESS_DEATH, FORGETS, TEARS = "process death", "power loss, forgets", "power loss, tears"
FATES = (PROCESS_DEATH, FORGETS, TEARS)
SOUND, DAMAGED, SILENT = "sound", "damaged, and said so", "damaged, silently"
SECTOR_BYTES = 512
DATABASE, THREAD_ID = "agent.db", "talk"


@dataclass(frozen=True, slots=True)
class Write:
    """`data` was written to `file` at `offset`; until the next `Sync` it is in the page cache."""

    file: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """`file` was cut to `size` bytes; not certain before the next `Sync`."""

    file: str
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Everything that was done to `file` is on the disk now."""

    file: str


@dataclass(frozen=True, slots=True)
class Delete:
    """`file` was removed."""

    file: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """LangGraph was told that the checkpoint with `steps` messages is stored, and went on."""

    steps: int


Event = Write | Truncate | Sync | Delete | Acknowledged


@dataclass(frozen=True, slots=True)
class Found:
    """What the next process makes of the files. `recovered_steps` is 0 when nothing can be read."""

    verdict: str
    recovered_steps: int
    said: str


# -- recording ---------------------------------------------------------------------------------


def statements_of_a_run(messages: Sequence[Any]) -> list[str | Acknowledged]:
    """The SQL of a real run that says `messages`, one a super-step, in the order of execution."""
    traced: list[str | Acknowledged] = []

    class Telling(Sequence[Any]):
        """The messages; who asks for number n shows that the checkpoint with n is stored."""

        def __len__(self) -> int:
            return len(messages)

        def __getitem__(self, index: Any) -> Any:
            traced.append(Acknowledged(index))
            return messages[index]

    with _tracing(traced), tempfile.TemporaryDirectory(prefix="kit-power-") as folder:
        with DeltaSaver.open(sqlite_url(Path(folder) / DATABASE)) as saver:
            conversation_graph(saver, Telling()).invoke(
                {"messages": []},
                {"configurable": {"thread_id": THREAD_ID}, "recursion_limit": len(messages) + 10},
                durability="sync",
            )
            traced.append(Acknowledged(len(messages)))
    if not any(isinstance(event, str) and "INSERT" in event for event in traced):
        raise RuntimeError("No statement was traced: the kit no longer opens SQLite as it did.")
    return traced


@contextmanager
def _tracing(traced: list[str | Acknowledged]) -> Iterator[None]:
    """Meanwhile every new SQLite connection of this process tells what it writes.

    What a connection reads in a transaction of its own is left out: replayed on one connection, its
    COMMIT would end the transaction of somebody else.
    """
    connect = sqlite3.connect

    def traced_connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        reading = False

        def trace(statement: str) -> None:
            nonlocal reading
            reading = reading or statement == "BEGIN"
            if not reading:
                traced.append(statement)
            elif statement in ("COMMIT", "ROLLBACK"):
                reading = False

        connection.set_trace_callback(trace)
        return connection

    sqlite3.connect = traced_connect  # type: ignore[assignment]
    try:
        yield
    finally:
        sqlite3.connect = connect


def record(statements: Iterable[str | Acknowledged], *, synchronous: str) -> list[Event]:
    """Execute the statements through a file system that notes what it is asked to do.

    `synchronous` is one of `SETTINGS`, and takes the place of what the statements say about it.
    """
    if synchronous not in SETTINGS:
        raise ValueError(f"synchronous is one of {', '.join(SETTINGS)}, not {synchronous!r}.")
    events: list[Event] = []
    with tempfile.TemporaryDirectory(prefix="kit-power-") as folder:
        system = _NotingFileSystem(events)
        try:
            path = str(Path(folder) / DATABASE)
            connection = apsw.Connection(path, vfs=system.name)
            for statement in statements:
                if isinstance(statement, Acknowledged):
                    events.append(statement)
                elif "synchronous" in statement:
                    connection.execute(f"PRAGMA synchronous = {synchronous}")
                elif not statement.startswith("--"):  # what triggers do is done by them again
                    connection.execute(statement)
            connection.close()
        finally:
            system.unregister()
    # Closing tidies up: a WAL checkpoint, and syncs. Nobody tidies up when the power fails.
    last = max(i for i, event in enumerate(events) if isinstance(event, Acknowledged))
    return events[: last + 1]


class _NotingFileSystem(apsw.VFS):
    """The machine's file system, and a note of everything that changes a file."""

    def __init__(self, events: list[Event]) -> None:
        self.name = f"durable-kit-noting-{id(self)}"
        self.events = events
        super().__init__(self.name, base="")

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        return _NotingFile(name, flags, self.events)

    def xDelete(self, name: str, sync_directory: bool) -> None:
        super().xDelete(name, sync_directory)
        self.events.append(Delete(Path(name).name))


class _NotingFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], events: list[Event]) -> None:
        super().__init__("", name, flags)
        said = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._name = Path(said).name if said else "temporary"
        self._events = events

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._events.append(Write(self._name, offset, bytes(data)))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        self._events.append(Truncate(self._name, size))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._events.append(Sync(self._name))


# -- the power fails ---------------------------------------------------------------------------


def survivors(events: Sequence[Event], *, fate: str, rng: random.Random) -> dict[str, bytes]:
    """What the disk holds if it all ends after `events`: file name -> bytes. Pure.

    `fate` is one of `FATES`; `rng` decides which sectors of the unsynced writes arrived.
    """
    safe: dict[str, bytearray] = {}
    unsynced: dict[str, list[Write | Truncate]] = {}
    for event in events:
        if isinstance(event, Acknowledged):
            continue
        if isinstance(event, Delete):
            safe.pop(event.file, None)
            unsynced.pop(event.file, None)
            continue
        content = safe.setdefault(event.file, bytearray())
        waiting = unsynced.setdefault(event.file, [])
        if isinstance(event, Sync):
            for change in waiting:
                _apply(content, change)
            waiting.clear()
        else:
            waiting.append(event)
    for file, waiting in unsynced.items():
        for change in waiting:
            if fate == PROCESS_DEATH:
                _apply(safe[file], change)
            elif fate == TEARS:
                for part in _sectors(change):
                    if rng.random() < 0.5:
                        _apply(safe[file], part)
    return {file: bytes(content) for file, content in safe.items()}


def _apply(content: bytearray, change: Write | Truncate) -> None:
    if isinstance(change, Truncate):
        del content[change.size :]
        return
    end = change.offset + len(change.data)
    content.extend(bytes(max(0, end - len(content))))  # a hole reads as zeros
    content[change.offset : end] = change.data


def _sectors(change: Write | Truncate) -> list[Write | Truncate]:
    """The parts of a change that arrive or not, each for itself: a disk writes whole sectors."""
    if isinstance(change, Truncate):
        return [change]
    parts: list[Write | Truncate] = []
    start = 0
    while start < len(change.data):
        room = SECTOR_BYTES - (change.offset + start) % SECTOR_BYTES
        data = change.data[start : start + room]
        parts.append(Write(change.file, change.offset + start, data))
        start += len(data)
    return parts


# -- the next process --------------------------------------------------------------------------


def look(files: dict[str, bytes], *, messages: Sequence[Any]) -> Found:
    """Open what survived as the next process would, and ask for the state and for its proof.

    `DAMAGED` is an error that somebody sees. `SILENT` would be a state that never was.
    """
    with tempfile.TemporaryDirectory(prefix="kit-power-", ignore_cleanup_errors=True) as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        try:
            with DeltaSaver.open(sqlite_url(Path(folder) / DATABASE)) as saver:
                verified = saver.verify(THREAD_ID)
                found = saver.get_tuple({"configurable": {"thread_id": THREAD_ID}})
                said: list[Any] = (
                    found.checkpoint["channel_values"].get("messages", []) if found else []
                )
                with saver.database.read() as tx:
                    [checked] = tx.rows("PRAGMA integrity_check(1)")
        except DurableKitError as error:
            text = f"{type(error).__name__}: {error}"
            return Found(DAMAGED, 0, text.replace(Path(folder).as_posix(), "…"))
    if said != list(messages[: len(said)]):
        return Found(SILENT, 0, f"{len(said)} messages that nobody said")
    if verified.problems or checked[0] != "ok":
        return Found(DAMAGED, len(said), str([*verified.problems, checked[0]][0]))
    return Found(SOUND, len(said), "")


def measure_power_loss(
    *,
    messages: Sequence[Any],
    repeats: int,
    seed: int,
    settings: Sequence[str] = SETTINGS,
    statements: Sequence[str | Acknowledged] | None = None,
) -> pd.DataFrame:
    """Let the power fail `repeats` times for each setting and fate, at a random moment of the run.

    The table has one row an end: synchronous, fate, acknowledged_steps, recovered_steps,
    lost_steps, verdict, said. `messages` are what the agent says. SIMULATED. The seed decides the
    moments and the torn sectors. Every run has checkpoint ids of its own; the `statements` of an
    earlier one (`statements_of_a_run`) and the same seed give the same table again.
    """
    if statements is None:
        statements = statements_of_a_run(messages)
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for setting in settings:
        events = record(statements, synchronous=setting)
        begun = next(i for i, e in enumerate(events) if isinstance(e, Acknowledged) and e.steps)
        for fate in FATES:
            for _ in range(repeats):
                until = events[: rng.randint(begun + 1, len(events))]
                acknowledged = max(e.steps for e in until if isinstance(e, Acknowledged))
                found = look(survivors(until, fate=fate, rng=rng), messages=messages)
                rows.append(
                    {
                        "synchronous": setting,
                        "fate": fate,
                        "acknowledged_steps": acknowledged,
                        "recovered_steps": found.recovered_steps,
                        # What was under way may have arrived without being acknowledged.
                        "lost_steps": max(0, acknowledged - found.recovered_steps),
                        "verdict": found.verdict,
                        "said": found.said,
                    }
                )
    return pd.DataFrame(rows)
