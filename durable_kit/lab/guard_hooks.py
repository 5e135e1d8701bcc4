"""Inside the kernel: write down every failure that nobody would see.

A notebook runner looks at one thing, the reply to "execute this cell". These leave that reply
"ok":

    an assert inside `with output:`       Output.__exit__ shows the traceback and swallows the error
    a raising callback of a widget        shown, swallowed
    a raising OS thread                   printed to stderr, perhaps after the cell has ended
    a task that nobody awaits             logged when it is collected
    a child process that failed           its exit code is a number that nobody reads
    a child process that stays            nothing happens at all, until the machine is full

`install` puts a hook in each of these ways and appends what passes to a file of JSON lines. It runs
from an IPython startup file, before the first cell, so that nothing of it is in the notebook.
`finish` looks, after the last cell, at what is still there.

A process that is *meant* to fail says so: it is killed through its own `Popen` object, or has the
attribute `expected_exit_codes`.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import logging
import multiprocessing.process
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOG_VARIABLE = "DURABLE_KIT_GUARD_LOG"
LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")
HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "durable_kit.crash.fork_server",
)
"""Processes that serve more than one cell, and that end by themselves with the kernel."""

_note_lock = threading.Lock()
_popens: list[subprocess.Popen[Any]] = []
_processes: list[multiprocessing.process.BaseProcess] = []
_told_to_end: set[int] = set()


def note(kind: str, text: str) -> None:
    """Append one line to the guard's file."""
    path = os.environ.get(LOG_VARIABLE)
    if path is None:
        return
    line = json.dumps({"kind": kind, "text": text[-2000:]})
    with _note_lock, Path(path).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def install(shell: Any) -> None:
    """Put every hook in place. Call once, before the first cell."""
    _watch_tracebacks(shell)
    _watch_threads()
    _watch_logs()
    _watch_children(shell)
    sys.addaudithook(_watch_network)
    note("installed", "")


def _watch_tracebacks(shell: Any) -> None:
    """ipywidgets and IPython show errors through one method, swallowed ones too."""
    show = shell.showtraceback

    @functools.wraps(show)
    def shown(exc_tuple: Any = None, *args: Any, **kwargs: Any) -> Any:
        error = exc_tuple[1] if exc_tuple else sys.exc_info()[1]
        note("traceback shown", _last_line(error))
        return show(exc_tuple, *args, **kwargs)

    shell.showtraceback = shown


def _watch_threads() -> None:
    in_thread, unraisable = threading.excepthook, sys.unraisablehook

    def thread_hook(args: Any) -> None:
        if args.exc_type is not SystemExit:
            note("thread raised", _last_line(args.exc_value))
        in_thread(args)

    def unraisable_hook(args: Any) -> None:
        note("error in a finalizer", f"{_last_line(args.exc_value)} in {args.object!r}")
        unraisable(args)

    threading.excepthook = thread_hook
    sys.unraisablehook = unraisable_hook


def _watch_logs() -> None:
    """asyncio, tornado and ipykernel log what they caught; whatever the handlers do with it."""
    handle = logging.Logger.callHandlers

    def watched(self: logging.Logger, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno >= logging.ERROR or error is not None:
            kind = "task never awaited" if self.name == "asyncio" else "error logged"
            shown = f": {_last_line(error)}" if error is not None else ""
            note(kind, f"{self.name}: {record.getMessage().splitlines()[0]}{shown}")
        handle(self, record)

    logging.Logger.callHandlers = watched  # type: ignore[method-assign]


def _watch_children(shell: Any) -> None:
    _after(subprocess.Popen, "__init__", lambda child: _popens.append(child))
    for way in ("send_signal", "terminate", "kill"):
        _after(subprocess.Popen, way, lambda child: _told_to_end.add(child.pid))
        if way != "send_signal":
            _after(
                multiprocessing.process.BaseProcess, way, lambda child: _told_to_end.add(child.pid)
            )
    _after(multiprocessing.process.BaseProcess, "start", lambda child: _processes.append(child))
    system = os.system

    def watched_system(command: Any) -> int:
        code = system(command)
        if code != 0:
            note("child failed", f"os.system({command!r}) returned {code}")
        return code

    os.system = watched_system

    def after_cell(_result: Any) -> None:
        code = shell.user_ns.pop("_exit_code", 0)  # of a line that began with "!"
        if code:
            note("child failed", f"a shell command (!) exited with {code}")

    shell.events.register("post_run_cell", after_cell)


def _after(cls: Any, name: str, note_it: Callable[[Any], object]) -> None:
    """Let `note_it(self)` run before the method `name`, or after one that makes or starts it."""
    method = getattr(cls, name)

    @functools.wraps(method)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if name in ("__init__", "start"):
            result = method(self, *args, **kwargs)
            note_it(self)
            return result
        note_it(self)
        return method(self, *args, **kwargs)

    setattr(cls, name, watched)


def _watch_network(event: str, args: tuple[Any, ...]) -> None:
    if event == "socket.connect" and isinstance(args[1], tuple):
        host = str(args[1][0])
        if not host.startswith(LOOPBACK):
            note("network", f"a connection to {host}")


async def finish() -> None:
    """After the last cell: let what was started come to its end, then look at what is left."""
    deadline = time.monotonic() + 2.0
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            # In small bites, so that tasks of this loop go on meanwhile.
            while thread.is_alive() and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
    await asyncio.sleep(0.02)
    gc.collect()  # a failed task is reported when it is collected
    await asyncio.sleep(0.02)
    seen: set[int] = set()
    for child in _popens:
        _look_at(
            child.pid, child.poll(), str(child.args), getattr(child, "expected_exit_codes", (0,))
        )
        seen.add(child.pid)
    for process in _processes:
        if process.pid is not None:
            _look_at(process.pid, process.exitcode, process.name, (0,))
            seen.add(process.pid)
    _look_for_others(seen)


def _look_at(pid: int, code: int | None, what: str, expected: Any) -> None:
    if code is None:
        if not any(helper in what for helper in HELPERS):
            note("child left running", f"process {pid}: {what}")
    elif code not in expected and pid not in _told_to_end:
        note("child failed", f"exit code {code}: {what}")


def _look_for_others(seen: set[int]) -> None:
    import psutil

    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
            if child.pid in seen or child.status() == psutil.STATUS_ZOMBIE:
                continue
        except psutil.Error:
            continue  # it has just ended
        if not any(helper in command for helper in HELPERS):
            note("child left running", f"process {child.pid}: {command}")


def _last_line(error: BaseException | None) -> str:
    return "".join(traceback.format_exception_only(error)).strip() if error else "no exception"
