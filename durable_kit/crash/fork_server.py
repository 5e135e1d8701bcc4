"""Processes that begin at once, with LangGraph imported.

Importing LangGraph takes longer than most experiments. So one process imports it, and does nothing
else than to fork: each child starts with everything in place, some milliseconds after it was asked
for, and shares no connection, no lock and no OS thread with anybody.

    parent          ──── "fork", with four ends of pipes ────▶ fork server ── fork ─▶ child
                    ◀─── "4711" ──────────────────────────────    │               stdin, stdout,
                    ◀═══════ talks with the child itself ═════════╪══════════════▶ stderr: ours
       kill()       ──── one byte on the leash ──────────────▶ SIGKILL ─▶ ✗
                    ◀─── "-9", what waitpid said ─────────────

The *leash* is a socket between us and the server for each child. A byte on it kills the child, and
so does its end: when the parent dies, by whatever death, all leashes end, the server kills what it
has forked, and goes. When the server dies, the leash ends on our side, and with it the child's
stdin, which the child watches. Only the server kills, and only what it has not yet reaped: a
number that the system has given to another process in the meantime is never hit.

There is one server per process that asks, started when it is first needed, in a session of its own
(Kernel Interrupt does not reach it). Where there is no `fork`, there is no server: see `trial.py`.

What the server imported, the children have, in the version of then; it imports the kit and its
savers, never the code of an experiment.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any, NoReturn

from durable_kit.crash.child import ChildFailed

PRELOAD = (
    "durable_kit.crash.worker",
    "langgraph.graph",
    "langgraph.checkpoint.sqlite",
    "langgraph.checkpoint.postgres",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "cloudpickle",
)
AVAILABLE = hasattr(os, "fork") and hasattr(socket, "send_fds")

_lock = threading.Lock()
_server: ForkServer | None = None


def fork(arguments: Sequence[str]) -> ForkedProcess:
    """A child that runs `worker.main(arguments)`, from this process's server."""
    global _server
    with _lock:
        if _server is None or not _server.is_ours_and_alive():
            _server = ForkServer()
        return _server.fork(arguments)


class ForkServer:
    """The server, seen from the process that asks."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._control, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "durable_kit.crash.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**environment, "PYTHONIOENCODING": "utf-8"},
                start_new_session=True,
            )
        atexit.register(self.close)

    def is_ours_and_alive(self) -> bool:
        return self._pid == os.getpid() and self._process.poll() is None

    def fork(self, arguments: Sequence[str]) -> ForkedProcess:
        (in_r, in_w), (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe(), os.pipe()
        leash, their_leash = socket.socketpair()
        with their_leash:
            theirs = [in_r, out_w, err_w, their_leash.fileno()]
            try:
                socket.send_fds(self._control, [b"f"], theirs)
            except OSError as error:
                raise ChildFailed(f"the fork server is gone ({error})") from error
            finally:
                for fd in theirs[:3]:
                    os.close(fd)
        return ForkedProcess(leash, in_w, out_r, err_r, arguments)

    def close(self) -> None:
        """End the server and, through it, every child that is left."""
        if self._pid == os.getpid():
            self._control.close()
            self._process.wait()


class ForkedProcess:
    """A forked child, with as much of `subprocess.Popen` as `Child` uses."""

    def __init__(
        self, leash: socket.socket, stdin: int, stdout: int, stderr: int, arguments: Sequence[str]
    ) -> None:
        self.stdin: IO[str] | None = open(stdin, "w", encoding="utf-8")  # noqa: SIM115
        self.stdout: IO[str] | None = open(stdout, encoding="utf-8", errors="replace")  # noqa: SIM115
        self.stderr: IO[str] | None = open(stderr, encoding="utf-8", errors="replace")  # noqa: SIM115
        self._leash = leash
        self._told = b""
        self._returncode: int | None = None
        with suppress(OSError):  # a child that is gone already: wait() tells
            print(*arguments, sep="\t", file=self.stdin, flush=True)
        pid = self._next_line(60.0)
        if pid is None:
            raise ChildFailed("the fork server did not answer within 60 s")
        self.pid = int(pid)

    def poll(self) -> int | None:
        """The exit status as `Popen` has it: negative for a signal; None while it runs."""
        if self._returncode is None:
            line = self._next_line(0.0)
            if line is not None:
                self._returncode = int(line)
                self._leash.close()
        return self._returncode

    def wait(self, timeout: float | None = None) -> int:
        if self._returncode is None:
            line = self._next_line(timeout)
            if line is None:
                raise subprocess.TimeoutExpired("fork", timeout or 0.0)
            self._returncode = int(line)
            self._leash.close()
        return self._returncode

    def kill(self) -> None:
        if self._returncode is None:
            with suppress(OSError):
                self._leash.send(b"k")

    def _next_line(self, timeout_s: float | None) -> bytes | None:
        while b"\n" not in self._told:
            self._leash.settimeout(timeout_s)
            try:
                said = self._leash.recv(64)
            except (TimeoutError, BlockingIOError):
                return None
            except OSError:
                said = b""
            if not said:
                self._leash.close()
                raise ChildFailed("the fork server died, and its children with it")
            self._told += said
        line, _, self._told = self._told.partition(b"\n")
        return line


# -- in the server -----------------------------------------------------------------------------


def serve(control: socket.socket) -> None:
    """Fork whenever asked, kill whenever told, and end when the parent does."""
    for module in PRELOAD:
        with suppress(ImportError):
            importlib.import_module(module)
    _warm_up()
    gc.collect()
    gc.freeze()  # a collection in a child would write to, and so copy, every page of ours
    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(wake, selectors.EVENT_READ)
    children: dict[int, socket.socket] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is control:
                fds = _received(control)
                if fds is None:
                    for pid in children:
                        os.kill(pid, signal.SIGKILL)
                    return
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    for end in (control, wake, woken, *children.values()):
                        end.close()
                    _live(fds)
                for fd in fds[:3]:
                    os.close(fd)
                leash = socket.socket(fileno=fds[3])
                children[pid] = leash
                selector.register(leash, selectors.EVENT_READ, pid)
                _tell(leash, pid)
            elif key.fileobj is wake:
                with suppress(BlockingIOError):
                    wake.recv(4096)
            else:  # a byte, or the end, of a leash
                selector.unregister(key.fileobj)
                os.kill(key.data, signal.SIGKILL)
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            leash = children.pop(pid)
            with suppress(KeyError):
                selector.unregister(leash)
            _tell(leash, os.waitstatus_to_exitcode(status))
            leash.close()


def _warm_up() -> None:
    """Run a graph once: half of what LangGraph imports, it imports when it is first used.

    The saver keeps its state in memory, and the OS threads of the run end with it: there is
    nothing that a child could inherit.
    """
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import START, StateGraph

    from durable_kit.crash.points import graph_with_points, saver_with_points

    builder: Any = StateGraph(dict)
    builder.add_node("warm up", lambda state: state)
    builder.add_edge(START, "warm up")
    graph = graph_with_points(builder.compile(checkpointer=saver_with_points(InMemorySaver())))
    config: Any = {"configurable": {"thread_id": "warm up"}}
    graph.invoke({"warm": True}, config, durability="sync")
    graph.get_state(config)


def _received(control: socket.socket) -> list[int] | None:
    """Stdin, stdout, stderr and leash of a child to be; None when the parent is gone."""
    try:
        data, fds, _, _ = socket.recv_fds(control, 1, 4)
    except OSError:
        return None
    return list(fds) if data else None


def _live(fds: Sequence[int]) -> NoReturn:
    """In the child: do the job as a process of its own, and leave the server's clean-up alone."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for target, fd in enumerate(fds[:3]):
            os.dup2(fd, target)
        for fd in fds:
            os.close(fd)
        from durable_kit.crash import worker

        code = worker.main(_first_line().split("\t"))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _first_line() -> str:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            os._exit(1)
        line += byte
    return line[:-1].decode()


def _tell(leash: socket.socket, number: int) -> None:
    with suppress(OSError):  # a parent that is gone need not be told
        leash.send(b"%d\n" % number)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
