"""Resume a thread, and notice when that changes nothing.

    while graph.get_state(thread).next:
        graph.invoke(None, thread)          # pauses, at the same node, for ever

A worker that resumes what is unfinished is right to do so, and a thread that pauses again is
nothing unusual. But one that pauses again *without having moved* will do so the next time, too: a
key was dropped from the state's schema, or the answer is missing that an `interrupt()` asked for.

`resume` looks before (is this still the thread's graph?), runs, and looks again after: a resume
that stored no checkpoint and no write has made no progress, and says so.

Left out: graphs that can only run asynchronously. `check_resume` works for them, too; await the run
yourself.
"""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from durable_kit.errors import DurableKitError
from durable_kit.versions.graph_fingerprint import check_resume
from durable_kit.versions.position import position_of


class GraphChanged(DurableKitError):
    """The graph lacks what the thread stands on. Nothing was run."""

    def __init__(self, thread_id: str, problems: tuple[str, ...]) -> None:
        super().__init__(f"thread {thread_id!r} was not resumed: " + " ".join(problems))
        self.problems = problems


class NoProgress(DurableKitError):
    """A resume came back to the place where it began, and stored nothing. Do not repeat it."""


def resume(graph: Any, config: RunnableConfig, value: Any = None, **options: Any) -> Any:
    """`graph.invoke(value, config, **options)` for a thread that was begun before.

    `value`: None to go on, or a `Command` with the answer to an interrupt. Raises `GraphChanged`
    before anything runs, and `NoProgress` after a run that changed nothing.
    """
    thread_id = str(config["configurable"]["thread_id"])
    checked = check_resume(graph, config)
    if checked.problems:
        raise GraphChanged(thread_id, checked.problems)
    saver = graph.checkpointer
    before = _standing(saver, config)
    result = graph.invoke(value, config, **options)
    if before == _standing(saver, config) and before[1]:
        changed = " ".join(f"Since it stopped, {said}." for said in checked.differences[:3])
        raise NoProgress(
            f"thread {thread_id!r} was resumed, waits at {', '.join(before[1])} as before, and has "
            "stored nothing. If it asked for an answer, resume with Command(resume=…); if the "
            f"node pauses by itself, look at what changed. {changed}".rstrip()
        )
    return result


def _standing(
    saver: BaseCheckpointSaver[Any], config: RunnableConfig
) -> tuple[str, tuple[str, ...], frozenset[tuple[str, str]]]:
    found = saver.get_tuple(config)
    if found is None:
        return "", (), frozenset()
    writes = frozenset((task, channel) for task, channel, _ in found.pending_writes or ())
    waiting = position_of(found.checkpoint["channel_values"]).waiting
    return found.checkpoint["id"], waiting, writes
