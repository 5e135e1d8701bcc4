"""A child process that can be killed at a named point, and cannot be left behind.

An exception is not a crash: `finally` runs, buffers are flushed, connections say goodbye. To see
what survives, a process has to stop between two instructions. Three things go wrong with that in
practice, and each has an answer here:

    the kill comes too early or too late   the child announces its crash point, then it is killed
    the child had ended by itself before   `Death.killed` comes from the exit status, not from hope
    the parent dies first                  the child reads a pipe that ends with the parent, and
                                           goes; it has a deadline as well

    parent                                        child (its own session: Ctrl-C does not reach it)
      Child.start(module, crash_at=…)  ────────▶  stay_no_longer_than_the_parent()
      until(ANNOUNCEMENT)              ◀────────  "crash point reached: …", waits
      kill()                           ──✗
      Death(killed=True, "killed by SIGKILL")

Children are started as `python -m module`: a function that was defined in a notebook cell does not
exist in another process.

What is left out: power loss. The page cache belongs to the operating system and outlives the
process, so a kill loses nothing that was written, fsync or not. That is another experiment.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from durable_kit import crash_point
from durable_kit.errors import DurableKitError

DEADLINE_VARIABLE = "DURABLE_KIT_CHILD_DEADLINE_S"
PARENT_IS_GONE, OVER_TIME = 98, 99  # exit codes of a child that ended itself
_WINDOWS = os.name == "nt"


class ChildFailed(DurableKitError):
    """The child did not do what the experiment needs. The text has its exit and its last words."""


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended. `killed` is True only if the exit status says that it was."""

    killed: bool
    exit_code: int
    how: str


class Process(Protocol):
    """A running process, as `subprocess.Popen` has it; a forked one is another."""

    stdin: IO[str] | None
    stdout: IO[str] | None
    stderr: IO[str] | None
    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class Child:
    """One child process with its output read line by line. Use it in a `with`: it never stays."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._last_words: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_stdout, daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @classmethod
    def start(
        cls,
        module: str,
        arguments: Sequence[str] = (),
        *,
        crash_at: str | None = None,
        deadline_s: float = 60.0,
    ) -> Child:
        """Start `python -m module arguments…`, armed to stop at the crash point `crash_at`.

        The module must call `stay_no_longer_than_the_parent` first.
        """
        environment = {key: v for key, v in os.environ.items() if key != crash_point.VARIABLE}
        environment[DEADLINE_VARIABLE] = str(deadline_s)
        environment["PYTHONIOENCODING"] = "utf-8"
        if crash_at is not None:
            environment[crash_point.VARIABLE] = crash_at
        return cls(
            subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,  # its end tells the child that we are gone
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=environment,
                start_new_session=not _WINDOWS,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def until(
        self,
        beginning: str | tuple[str, ...],
        *,
        timeout_s: float,
        on_line: Callable[[str], None] | None = None,
        cancelled: threading.Event | None = None,
    ) -> str:
        """Read lines until one begins with `beginning`, or one of several, and return it.

        `on_line` is given each line read. Raises `ChildFailed` if the child ends first, stays
        silent for `timeout_s`, or `cancelled` is set.
        """
        waited_s = 0.0
        while True:
            if cancelled is not None and cancelled.is_set():
                raise ChildFailed("cancelled")
            try:
                line = self._lines.get(timeout=0.1)
            except queue.Empty:
                self._process.poll()  # a forked one raises here if its server is gone
                waited_s += 0.1
                if waited_s < timeout_s:
                    continue
                raise ChildFailed(
                    f"the child said nothing for {timeout_s:g} s while {beginning!r} was awaited"
                ) from None
            if line is None:
                death = self.wait(timeout_s=10)
                raise ChildFailed(
                    f"the child {death.how} before {beginning!r}. {self.last_words()}"
                )
            waited_s = 0.0
            if on_line is not None:
                on_line(line)
            if line.startswith(beginning):
                return line

    def go(self) -> None:
        """Let a child go on that waits in `stand_by`. One that has ended already does not mind."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except OSError:
            pass  # whoever reads its lines next is told how it ended

    def kill(self) -> Death:
        """Kill the process, wait for it, and say how it ended. It may have ended before."""
        self._process.kill()
        return self.wait(timeout_s=10)

    def wait(self, *, timeout_s: float) -> Death:
        """Wait for the end. Raises `ChildFailed` if it does not come in time."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"the child did not end within {timeout_s:g} s") from None
        return death_of(code)

    def close(self) -> None:
        """Leave nothing: no process, no pipe, no reader. Closing twice is harmless."""
        try:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
        except ChildFailed:
            pass  # nobody is there to wait for it; it ends with its stdin, which is closed now
        self._close(self._process.stdin)
        for reader in self._readers:
            reader.join(timeout=5)
        self._close(self._process.stdout)
        self._close(self._process.stderr)

    @staticmethod
    def _close(pipe: IO[str] | None) -> None:
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                pass  # what was still to be sent has nobody to go to

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_stdout(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last_words.append(line.rstrip("\n"))
            del self._last_words[:-20]

    def last_words(self) -> str:
        """The end of what it wrote to stderr. Waits for that, so ask when it has ended."""
        self._readers[1].join(timeout=5)
        return " ".join(" ".join(self._last_words).split()[-60:])


def death_of(exit_code: int) -> Death:
    """Read an exit status. On Windows a kill cannot be told from `exit(1)`; it is taken as one."""
    if _WINDOWS:
        killed = exit_code == 1
        return Death(killed, exit_code, "was killed" if killed else f"exited with {exit_code}")
    if exit_code >= 0:
        return Death(False, exit_code, f"exited with code {exit_code}")
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return Death(name == "SIGKILL", exit_code, f"was killed by {name}")


def stay_no_longer_than_the_parent(deadline_s: float | None = None) -> None:
    """For the child: end at once when the parent is gone, and in any case after the deadline.

    Without `deadline_s` it is the one that `Child.start` gave.
    """
    if deadline_s is None:
        deadline_s = float(os.environ.get(DEADLINE_VARIABLE, "60"))
    threading.Thread(target=_end_with_the_pipe, daemon=True).start()
    timer = threading.Timer(deadline_s, os._exit, (OVER_TIME,))
    timer.daemon = True
    timer.start()


def stand_by(words: str) -> None:
    """For the child: say `words`, and wait until the parent calls `go`."""
    sys.stdout.write(words + "\n")
    sys.stdout.flush()
    _told_to_go.wait()


_told_to_go = threading.Event()


def _end_with_the_pipe() -> None:
    # Not sys.stdin.read(): a reader that holds its lock while Python shuts down is a fatal error.
    while os.read(sys.stdin.fileno(), 1):
        _told_to_go.set()
    os._exit(PARENT_IS_GONE)
