"""What was executed, told by someone else than the checkpointer.

After a crash the database says how far the run had come. It cannot be asked how far it *should*
have come: that is what a checkpointer may have lost. So every node run leaves two lines in a file
that belongs to no checkpointer, one when it begins and one when it has done its work:

    witness    begin charge 2 ─ end charge 2 ─ begin notify 3 ─ ✗ killed
    database   step 1                                    "charge" was executed, and is lost

A line that was written survives the kill of the process in any case: the page cache belongs to the
operating system. With `fsync` it is on the disk as well before the node goes on, at the price of
one disk write a line, about what a checkpoint costs. Leave that off where the pace is measured.

A node run that began and did not end is the one in flight: it may have had its effect or not.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One execution of one node, in super-step `step`. Times are of `time.perf_counter`.

    `path` names the node with those it is nested in ("research|search"), without LangGraph's ids:
    a step that runs again has new ids and the same path. `ended_s` is None if it did not end.
    """

    node: str
    step: int
    path: str
    task_id: str
    began_s: float
    ended_s: float | None

    @property
    def place(self) -> tuple[str, int]:
        """What it has in common with the run that repeats it."""
        return self.path, self.step


class Witness:
    """Writes the file; one for each process that executes nodes. Safe from any OS thread."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        self._file = os.open(path, flags, 0o644)
        self._fsync = fsync

    def begins(self, path: str, step: int, task_id: str) -> None:
        """Note that a node run begins. When this returns, a kill cannot take it back."""
        self._note(f"begin {time.perf_counter_ns()} {step} {task_id} {path}\n")

    def ended(self, path: str, step: int, task_id: str) -> None:
        """Note that it has done its work, whatever becomes of its result."""
        self._note(f"end {time.perf_counter_ns()} {step} {task_id} {path}\n")

    def _note(self, line: str) -> None:
        os.write(self._file, line.encode())
        if self._fsync:
            os.fsync(self._file)


def node_runs(path: Path) -> tuple[NodeRun, ...]:
    """What the file at `path` says, in the order in which the runs began."""
    runs: list[NodeRun] = []
    open_runs: dict[tuple[str, str, str], int] = {}
    if not path.exists():
        return ()
    for line in path.read_text("utf-8").split("\n")[:-1]:
        what, at_ns, step, task_id, name = line.split(" ", 4)  # a node's name may have spaces
        key = (name, step, task_id)
        if what == "begin":
            open_runs[key] = len(runs)
            node = name.rpartition("|")[2]
            runs.append(NodeRun(node, int(step), name, task_id, int(at_ns) / 1e9, None))
        elif key in open_runs:
            at = open_runs.pop(key)
            runs[at] = replace(runs[at], ended_s=int(at_ns) / 1e9)
    return tuple(runs)


def repeated(before: Iterable[NodeRun], again: Iterable[NodeRun]) -> tuple[NodeRun, ...]:
    """The runs in `again` that had begun before: whatever they do to the world, they do twice."""
    places = Counter(run.place for run in before)
    found = []
    for run in again:
        if places[run.place] > 0:
            places[run.place] -= 1
            found.append(run)
    return tuple(found)
