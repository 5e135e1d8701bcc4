"""One measurement in one fresh process: append to a thread, open it, or read its history.

A saver measured in a process that has already run another saver inherits its imports, its warm
caches, its garbage and its peak memory. So :mod:`durable_kit.lab.storage_bench` starts this
module anew for every single measurement, hands it a :class:`Task` as a line of JSON on stdin, and
reads the result as a line of JSON from stdout. Three tasks:

``write``    a graph with one list channel appends one message per super-step, ``steps`` times, in
             one ``invoke`` with ``durability="sync"``. A time stamp taken at the entry of the node
             gives the time of each step, the saver's commits included.
``open``     import everything first, and then time ``open the saver`` + ``get_state``.
``history``  time ``list(graph.get_state_history(...))`` and what it adds to the peak memory.

Every task also checks what it reads: a saver that is fast because it lost something is reported
as an error and not as a time.

**Peak memory** needs care. ``ru_maxrss`` on Linux is inherited through fork and exec, so a child
of a big parent starts with a peak that hides its own; ``VmHWM`` starts from zero with the program.
"""

from __future__ import annotations

import itertools
import json
import operator
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

What = Literal["write", "open", "history"]


@dataclass(frozen=True)
class Task:
    """What one worker process has to do, over ``threads`` LangGraph threads one after another."""

    what: What
    saver: str
    url: str
    messages: Literal["dict", "ai"]
    payload_bytes: int
    steps: int
    threads: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Stamp(NamedTuple):
    """The time at the entry of a node; ``cpu_s`` counts all OS threads of this process."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Stamp:
        return cls(time.perf_counter(), time.process_time())


@dataclass(frozen=True)
class SaverKind:
    """A way to store checkpoints. ``delta_every`` is the snapshot interval of a DeltaChannel."""

    label: str
    database: Literal["none", "sqlite", "postgresql"]
    delta_every: int | None = None


SAVERS: dict[str, SaverKind] = {
    "delta": SaverKind("DeltaSaver", "sqlite"),
    "delta-trust": SaverKind("DeltaSaver(trust_identity)", "sqlite"),
    "sqlite": SaverKind("SqliteSaver", "sqlite"),
    "channel100": SaverKind("DeltaChannel(100) on SqliteSaver", "sqlite", 100),
    "channel1000": SaverKind("DeltaChannel(1000) on SqliteSaver", "sqlite", 1000),
    "postgres": SaverKind("PostgresSaver", "postgresql"),
    "delta-postgres": SaverKind("DeltaSaver on PostgreSQL", "postgresql"),
    "none": SaverKind("no checkpointer", "none"),
}
"""The savers that can be measured, by the name that the command line uses."""


def run(task: Task) -> dict[str, Any]:
    """Do one task in this process and return what was measured, ready for JSON."""
    return {"write": _write, "open": _open, "history": _history}[task.what](task)


# --- the three tasks --------------------------------------------------------------------------


def _write(task: Task) -> dict[str, Any]:
    messages, raw_bytes = make_messages(task.messages, task.payload_bytes, task.steps)
    step_ms: list[list[float]] = []
    step_cpu_ms: list[list[float]] = []
    with open_saver(task.saver, task.url) as saver:
        for thread in range(task.threads):
            stamps: list[Stamp] = []
            graph = build_graph(task, saver, messages, stamps)
            state = graph.invoke(
                {"messages": []},
                {"configurable": {"thread_id": str(thread)}, "recursion_limit": task.steps + 10},
                durability="sync" if saver is not None else None,
            )
            stamps.append(Stamp.now())
            _check(state["messages"], messages)
            pairs = list(itertools.pairwise(stamps))
            step_ms.append([round((b.wall_s - a.wall_s) * 1000, 4) for a, b in pairs])
            step_cpu_ms.append([round((b.cpu_s - a.cpu_s) * 1000, 4) for a, b in pairs])
        settings = _settings(saver)
    return {
        "raw_bytes": raw_bytes * task.threads,
        "step_ms": step_ms,
        "step_cpu_ms": step_cpu_ms,
        "settings": settings,
    }


def _open(task: Task) -> dict[str, Any]:
    import langgraph.graph  # noqa: F401  (not part of what is timed)

    start = time.perf_counter()
    _import_saver(task.saver)
    imported = time.perf_counter()
    messages, _ = make_messages(task.messages, task.payload_bytes, task.steps)
    begin = time.perf_counter()
    with open_saver(task.saver, task.url) as saver:
        opened = time.perf_counter()
        graph = build_graph(task, saver, messages, [])
        compiled = time.perf_counter()
        state = graph.get_state({"configurable": {"thread_id": "0"}})
        done = time.perf_counter()
        _check(state.values["messages"], messages)
    return {
        "import_ms": (imported - start) * 1000,
        "open_ms": (opened - begin) * 1000,
        "get_state_ms": (done - compiled) * 1000,
    }


def _history(task: Task) -> dict[str, Any]:
    messages, _ = make_messages(task.messages, task.payload_bytes, task.steps)
    with open_saver(task.saver, task.url) as saver:
        graph = build_graph(task, saver, messages, [])
        peak_before = peak_memory_mib()
        start = time.perf_counter()
        history = list(graph.get_state_history({"configurable": {"thread_id": "0"}}))
        seconds = time.perf_counter() - start
        peak_after = peak_memory_mib()
        # The input, the start, and one checkpoint a step; the newest comes first.
        lengths = [len(snapshot.values.get("messages", [])) for snapshot in history]
        if lengths != [*range(task.steps, -1, -1), 0]:
            raise AssertionError(f"the history has the lengths {lengths[:3]}...{lengths[-3:]}")
        middle = task.steps // 2
        _check(history[task.steps - middle].values["messages"], messages[:middle])
    grown = None if peak_before is None or peak_after is None else peak_after - peak_before
    return {"history_s": seconds, "history_peak_mib": grown}


# --- the graph and its messages ---------------------------------------------------------------


def make_messages(kind: str, payload_bytes: int, count: int) -> tuple[list[Any], int]:
    """Return ``count`` messages and their size in bytes, as LangGraph's serializer writes them.

    The text is pseudo-random, so that no compressor is flattered, and its length varies by up to a
    tenth, so that no saver is judged by the luck of one length. The same arguments give the same
    messages. Two dict messages together take exactly twice ``payload_bytes``; an AIMessage carries
    the same text and its class costs about 150 bytes more.
    """
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    rng = random.Random(payload_bytes)
    measure = JsonPlusSerializer().dumps_typed
    alphabet = "abcdefghijklmnopqrstuvwxyz     ABCDEFGHIJKLMNOPQRSTUVWXYZ.,0123456789"
    messages: list[Any] = []
    variation = 0
    for i in range(count):
        variation = int(rng.random() * payload_bytes / 10) if i % 2 == 0 else -variation
        size = payload_bytes + variation
        # Not the key "role": a DeltaChannel turns dicts that look like messages into messages.
        message = {"from": "assistant", "id": f"m{i:06d}", "content": ""}
        length = size - len(measure(message)[1])
        while length > 0 and len(measure({**message, "content": "x" * length})[1]) > size:
            length -= 1  # a longer text needs a longer length prefix
        messages.append({**message, "content": "".join(rng.choices(alphabet, k=length))})
    if kind == "ai":
        from langchain_core.messages import AIMessage

        messages = [AIMessage(content=m["content"], id=m["id"]) for m in messages]
    return messages, sum(len(measure(message)[1]) for message in messages)


def build_graph(task: Task, saver: Any, messages: list[Any], stamps: list[Stamp]) -> Any:
    """Compile the measured graph: one channel, one node that appends one message, one loop."""
    from langgraph.graph import END, START, StateGraph

    annotation: Any = Annotated[list, _reducer(task)]
    state_type: Any = TypedDict("state_type", {"messages": annotation})

    def step(state: Any) -> Any:
        stamps.append(Stamp.now())
        return {"messages": [messages[len(state["messages"])]]}

    def proceed(state: Any) -> str:
        return "step" if len(state["messages"]) < task.steps else END

    builder: Any = StateGraph(state_type)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", proceed, ["step", END])
    return builder.compile(checkpointer=saver)


def _reducer(task: Task) -> Any:
    from langgraph.graph.message import add_messages

    append: Any = add_messages if task.messages == "ai" else operator.add
    every = SAVERS[task.saver].delta_every
    if every is None:
        return append
    from langgraph.channels import DeltaChannel

    def fold(before: Any, batches: Any) -> Any:
        return append(before, [message for batch in batches for message in batch])

    return DeltaChannel(fold, snapshot_frequency=every)


def _check(found: list[Any], expected: list[Any]) -> None:
    if found != expected:
        raise AssertionError(f"stored {len(expected)} messages, read {len(found)} or others")


# --- savers -----------------------------------------------------------------------------------


@contextmanager
def open_saver(name: str, url: str) -> Iterator[Any]:
    """Open one of :data:`SAVERS` on a SQLAlchemy URL, with its own defaults, and close it."""
    if name == "none":
        yield None
    elif name in ("delta", "delta-trust", "delta-postgres"):
        from durable_kit.delta_saver import DeltaSaver

        saver = DeltaSaver.open(url, trust_identity=name == "delta-trust")
        try:
            yield saver
        finally:
            saver.close()
    elif name == "postgres":
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(url.replace("+psycopg", "", 1)) as postgres:
            postgres.setup()
            yield postgres
    else:
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(url.removeprefix("sqlite:///")) as sqlite:
            sqlite.setup()
            yield sqlite


def _import_saver(name: str) -> None:
    if name.startswith("delta"):
        import durable_kit.delta_saver  # noqa: F401
    elif name == "postgres":
        import langgraph.checkpoint.postgres
    elif name != "none":
        import langgraph.checkpoint.sqlite  # noqa: F401


def _settings(saver: Any) -> dict[str, str]:
    """The pragmas in force on a SqliteSaver's connection; others are asked elsewhere."""
    connection: Any = getattr(saver, "conn", None)
    if type(connection).__module__ != "sqlite3":
        return {}
    names = ("journal_mode", "synchronous", "auto_vacuum", "page_size")
    return {n: str(connection.execute(f"PRAGMA {n}").fetchone()[0]) for n in names}


# --- the process, seen from outside and from inside -------------------------------------------


def peak_memory_mib() -> float | None:
    """The highest resident memory of this process so far, or None where nothing can tell."""
    try:
        with Path("/proc/self/status").open(encoding="ascii", errors="replace") as status:
            return next(int(x.split()[1]) / 1024 for x in status if x.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    if sys.platform == "win32":
        try:
            import psutil
        except ImportError:
            return None
        return float(psutil.Process().memory_info().peak_wset) / 2**20
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024  # bytes there, KiB elsewhere


class WorkerError(RuntimeError):
    """A worker process measured nothing; the text says why."""


def run_in_child(task: Task, *, timeout_s: float) -> dict[str, Any]:
    """Run one task in a fresh process and return what :func:`run` returned there.

    The child has its own session, so that Ctrl-C reaches only the parent, which then kills it; and
    it watches its stdin, so that it does not outlive a parent that was killed. Raises WorkerError.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words:
        child = subprocess.Popen(
            [sys.executable, "-m", "durable_kit.lab.storage_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
            start_new_session=True,
        )
        stdin, stdout = child.stdin, child.stdout
        assert stdin is not None
        assert stdout is not None
        watchdog = threading.Timer(timeout_s, child.kill)
        try:
            watchdog.start()
            with suppress(OSError):  # a child that has died already: its last words say more
                stdin.write(task.to_json() + "\n")
                stdin.flush()  # and left open: it is the line that tells the child we are alive
            line = stdout.readline()
            code = child.wait()
        finally:
            timed_out = not watchdog.is_alive()
            watchdog.cancel()
            child.kill()  # does nothing to a child that has ended
            child.wait()
            for pipe in (stdin, stdout):
                with suppress(OSError):
                    pipe.close()
        words.seek(0)
        said = words.read()
    if line:
        result: dict[str, Any] = json.loads(line)
        if "error" in result:
            raise WorkerError(result["error"])
        return result
    if timed_out:
        raise WorkerError(f"stopped after the limit of {timeout_s:g} s")
    last_words = " ".join(said.split()[-40:])
    raise WorkerError(f"the process ended with code {code} and no result. {last_words}".strip())


def _exit_with_parent() -> None:
    sys.stdin.read()  # the parent never writes again: an end of file means that it is gone
    os._exit(3)


def main() -> int:
    """Read one task from stdin, print one result to stdout; a failure is a result as well."""
    task = Task(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        result = run(task)
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    except MemoryError:
        result = {"error": "MemoryError: the machine has too little memory for this case"}
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
