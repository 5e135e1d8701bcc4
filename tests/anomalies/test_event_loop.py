"""Sync methods inside a running event loop, and async ones that are cancelled.

A notebook cell runs inside an event loop. A store that answers a sync call by waiting for that
same loop waits for itself, for ever; so each call here has a watchdog. And a cancelled `await`
stops the waiting, not the commit: the step is there whole, or it never began.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

from durable_kit.delta_saver import DeltaSaver
from tests.contracts.builders import Line, facts

from .graphs import talking_graph, thread

WATCHDOG_S = 5.0


@pytest.fixture
def saver(database_url: str) -> Iterator[DeltaSaver]:
    with DeltaSaver.open(database_url) as opened:
        yield opened


def in_a_loop(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine in a loop of its own; fail if it is not done within the watchdog's time."""
    done: list[Any] = []

    def run() -> None:
        try:
            done.append((True, asyncio.run(work())))
        except BaseException as error:
            done.append((False, error))

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    runner.join(WATCHDOG_S)
    assert done, f"nothing after {WATCHDOG_S} s"
    succeeded, result = done[0]
    if not succeeded:
        raise result
    return result


def test_the_watchdog_barks_at_a_saver_that_waits_for_its_own_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "WATCHDOG_S", 0.2)
    free = threading.Event()

    async def wait_for_oneself() -> None:
        asyncio.get_running_loop().call_soon(free.set)
        free.wait(10)  # only the loop could set it, and the loop stands here

    try:
        with pytest.raises(AssertionError, match="nothing after"):
            in_a_loop(wait_for_oneself)
    finally:
        free.set()


def a_story(saver: DeltaSaver) -> tuple[Line, dict[str, Any], dict[str, Any]]:
    """Three steps on the thread "told", the second with a pending write."""
    line = Line(saver, "told")
    first = line.put({"messages": ["one"]}, metadata={"run_id": "first run"})
    second = line.put({"messages": ["one", "two"]})
    line.write(second, ("messages", "three"))
    line.put({"messages": ["one", "two", "three"]})
    return line, first, second


# Every method, with what it must have done. The steps run in this order.
CALLS: dict[str, Callable[[DeltaSaver], Any]] = {
    "put": lambda saver: a_story(saver) and count(saver, "told") == 3,
    "put_writes": lambda saver: saver.put_writes(newest(saver), [("note", 1)], "task"),
    "get": lambda saver: saver.get(thread("told"))["channel_values"]["messages"][-1] == "three",  # type: ignore[index]
    "get_tuple": lambda saver: (
        saver.get_tuple(thread("told")).pending_writes  # type: ignore[union-attr]
        == [("task", "note", 1)]
    ),
    "list": lambda saver: len(list(saver.list(thread("told"), limit=2))) == 2,
    "get_delta_channel_history": lambda saver: dict(
        saver.get_delta_channel_history(config=newest(saver), channels=["messages"])
    ),
    "threads": lambda saver: list(saver.threads()) == [("told", "")],
    "positions": lambda saver: [one.thread_id for one in saver.positions()] == ["told"],
    "records": lambda saver: len(list(saver.records("told"))) == 3,
    "stats": lambda saver: saver.stats("told"),
    "verify": lambda saver: saver.verify("told").ok,
    "compact": lambda saver: saver.compact("told") >= 0,
    "recover": lambda saver: saver.recover("told").lost_steps == 0,
    "copy_thread": lambda saver: saver.copy_thread("told", "copy") or count(saver, "copy") == 3,
    "delete_for_runs": lambda saver: (
        saver.delete_for_runs(["first run"]) or count(saver, "told") == 2
    ),
    "prune": lambda saver: saver.prune(["told"], keep_last=1) and count(saver, "told") == 1,
    "delete_thread": lambda saver: saver.delete_thread("copy") or count(saver, "copy") == 0,
    "get_next_version": lambda saver: saver.get_next_version(1, None) == 2,
    "with_allowlist": lambda saver: saver.with_allowlist([("shop", "Order")]).get(thread("told")),
    "close": lambda saver: saver.close() is None,
}
GIVES_NOTHING = {"put_writes"}


def newest(saver: DeltaSaver) -> Any:
    found = saver.get_tuple(thread("told"))
    assert found is not None
    return found.config


def count(saver: DeltaSaver, thread_id: str) -> int:
    return sum(1 for _ in saver.list(thread(thread_id)))


def test_every_sync_method_works_inside_a_running_loop(saver: DeltaSaver) -> None:
    for name, call in CALLS.items():

        async def inside(call: Callable[[DeltaSaver], Any] = call) -> Any:
            return call(saver)

        result = in_a_loop(inside)
        assert result or name in GIVES_NOTHING, f"{name} gave {result!r}"


def test_no_sync_method_is_left_out_of_the_calls() -> None:
    public = {
        name
        for name, member in inspect.getmembers(DeltaSaver)
        if not name.startswith("_")
        and inspect.isfunction(member)
        and not inspect.iscoroutinefunction(member)
        and not inspect.isasyncgenfunction(member)
    }
    assert public == set(CALLS)


def test_every_async_method_works_from_a_coroutine(saver: DeltaSaver) -> None:
    sync_only = {"threads", "positions", "records", "stats", "verify", "compact", "recover"}
    sync_only |= {"get_next_version", "with_allowlist", "close"}
    told: set[str] = set()

    async def story() -> None:
        line, _first, _second = await asyncio.to_thread(a_story, saver)
        last = await saver.aget_tuple(line.config())  # type: ignore[arg-type]
        assert last is not None
        following: Any = {**last.checkpoint, "id": "1fffffff-0000-6000-8000-000000000000"}
        stored = await saver.aput(last.config, following, {"step": 4}, {})
        await saver.aput_writes(stored, [("note", 1)], "task")
        found = await saver.aget_tuple(thread("told"))
        assert found is not None
        assert found.pending_writes == [("task", "note", 1)]
        assert await saver.aget(thread("told")) == found.checkpoint
        rows = [facts(row) async for row in saver.alist(thread("told"))]
        assert rows == [facts(row) for row in saver.list(thread("told"))]
        assert len(rows) == 4
        histories = await saver.aget_delta_channel_history(config=stored, channels=["messages"])
        assert set(histories) == {"messages"}
        await saver.acopy_thread("told", "copy")
        assert count(saver, "copy") == 4
        await saver.adelete_for_runs(["first run"])  # in both threads
        await saver.aprune(["told"], keep_last=1)
        assert (count(saver, "copy"), count(saver, "told")) == (3, 1)
        await saver.adelete_thread("copy")
        assert count(saver, "copy") == 0
        told.update("put put_writes get get_tuple list get_delta_channel_history".split())
        told.update("copy_thread delete_for_runs prune delete_thread".split())

    in_a_loop(story)
    assert told | sync_only == set(CALLS)
    public = {name for name in dir(BaseCheckpointSaver) if name[:1] == "a" and name[1:] in CALLS}
    assert {"a" + name for name in told} == public


def test_a_graph_runs_inside_a_loop_by_its_sync_and_by_its_async_entry(
    saver: DeltaSaver,
) -> None:
    graph = talking_graph(saver)

    async def both() -> list[Any]:
        by_sync = graph.invoke({"messages": ["hello"]}, thread("talk"))
        by_async = await graph.ainvoke({"messages": ["and"]}, thread("talk"))
        return [by_sync["messages"], by_async["messages"]]

    first = ["hello", "answer 1"]
    assert in_a_loop(both) == [first, [*first, "and", "answer 2"]]


def test_a_cancelled_await_does_not_cancel_the_commit(
    saver: DeltaSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(saver, "cancelled")
    parent = line.put({"messages": ["one"]})
    begun, go_on = threading.Event(), threading.Event()
    append = saver._log.append

    def slow_append(**arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(WATCHDOG_S)
        return append(**arguments)

    monkeypatch.setattr(saver._log, "append", slow_append)

    async def cancel_in_the_middle() -> None:
        task = asyncio.create_task(put_next(saver, parent, 2))
        assert await asyncio.to_thread(begun.wait, WATCHDOG_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert count(saver, "cancelled") == 1  # the await is over, the commit is not
        go_on.set()

    in_a_loop(cancel_in_the_middle)  # the loop waits for its worker threads before it ends
    assert line.read().checkpoint["channel_values"] == values_of(2)
    assert saver.verify("cancelled").ok


def test_a_step_cancelled_at_any_moment_is_there_whole_or_not_at_all(saver: DeltaSaver) -> None:
    line = Line(saver, "cancelled")
    parent = line.put(values_of(1))
    cancelled: list[int] = []

    async def cancel_many() -> None:
        at = parent
        for step in range(2, 22):
            task = asyncio.create_task(put_next(saver, at, step))
            await asyncio.sleep((step % 7) * 0.0005)
            task.cancel()
            try:
                at = await task
            except asyncio.CancelledError:
                cancelled.append(step)

    in_a_loop(cancel_many)
    assert cancelled, "nothing was cancelled in time"
    assert saver.verify("cancelled").ok
    found = {row.checkpoint["channel_values"]["step"]: row for row in line.rows()}
    for step, row in found.items():
        assert row.checkpoint["channel_values"] == values_of(step)
    assert set(range(1, 22)) - set(cancelled) <= set(found)


def values_of(step: int) -> dict[str, Any]:
    return {"messages": [f"message {number}" for number in range(step)], "step": step}


async def put_next(saver: DeltaSaver, parent: Any, step: int) -> Any:
    versions: dict[str, Any] = {"messages": step, "step": step}
    checkpoint: Any = {
        "v": 4,
        "id": f"1ef00000-0000-6000-8000-{step:012d}",
        "ts": "2024-05-06T07:08:09.000000+00:00",
        "channel_values": values_of(step),
        "channel_versions": versions,
        "versions_seen": {},
        "updated_channels": ["messages", "step"],
    }
    return await saver.aput(parent, checkpoint, {"source": "loop", "step": step}, versions)
