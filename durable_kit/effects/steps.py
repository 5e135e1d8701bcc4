"""One protocol, two ways to run it.

A gateway is called from plain code and from coroutines. Written twice, the two drift apart, and
the second one is where the money is lost. So the protocol (`gateway.py`) is written once, as a
generator that keeps the books and *yields* whatever takes time:

    protocol    intent ─ claim ─ yield Run ┐        ┌ receipt
    driver                                 └ effect ┘

`run` performs the acts here and now. `run_async` performs them on the event loop: it awaits an
effect that is a coroutine, runs a plain one in a thread, and keeps the books in a thread too, so
that the loop never waits for a disk. Neither holds a transaction while an act is performed: the
generator opens and closes its own between two yields.

**Cancelling the await does not cancel the effect.** A request that is out cannot be called back.
Once it is being sent, it is sent to its end and its receipt is written, also when nobody waits for
it any more (`asyncio.wait_for` gives up waiting, not the payment). Before that, a cancelled call
withdraws and sends nothing. Only the end of the event loop itself can cut an effect off: it is
then unknown, like any other effect whose reply was lost.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from durable_kit.effects.outcomes import NotSent
from durable_kit.effects.receipt import Intent

Function = Callable[[Intent], Any] | Callable[[Intent], Awaitable[Any]]


class Withdrawn(BaseException):
    """The caller was cancelled before anything was sent. Like a cancellation, no `Exception`."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Let somebody else go on for a moment."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """Call the provider, by the effect or the lookup that came with the call."""

    function: Function
    intent: Intent


Act = Wait | Run
T = TypeVar("T")
Steps = Generator[Act, Any, T]


def run(steps: Steps[T]) -> T:
    """Run the protocol in this OS thread."""
    move: Callable[[Any], Act] = steps.send
    value: Any = None
    while True:
        try:
            act = move(value)
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            value, move = _perform(act), steps.send
        except BaseException as error:
            value, move = error, steps.throw


def _perform(act: Act) -> Any:
    if isinstance(act, Wait):
        time.sleep(act.seconds)
        return None
    if inspect.iscoroutinefunction(act.function):
        raise NotSent("the effect or lookup is a coroutine function, and was not run. Use acall().")
    result = act.function(act.intent)
    if inspect.iscoroutine(result):
        result.close()  # it has not begun
        raise NotSent("the effect or lookup returned a coroutine, which was not run. Use acall().")
    return result


async def run_async(steps: Steps[T]) -> T:
    """Run the protocol on the event loop, to its end even if this call is cancelled."""
    course = _Course()
    task = asyncio.ensure_future(_follow(steps, course))
    _RUNNING.add(task)
    task.add_done_callback(_let_go)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        course.withdrawn = True
        raise


@dataclass(slots=True)
class _Course:
    withdrawn: bool = field(default=False)


_RUNNING: set[asyncio.Future[Any]] = set()  # the loop itself keeps only weak references


def _let_go(task: asyncio.Future[Any]) -> None:
    _RUNNING.discard(task)
    if not task.cancelled():
        task.exception()  # if the caller is gone nobody asks for it, and asyncio would complain


async def _follow(steps: Steps[T], course: _Course) -> T:
    move: Callable[[Any], Act] = steps.send
    value: Any = None
    while True:
        act = await asyncio.to_thread(_next, move, value)
        if isinstance(act, _End):
            result: T = act.value
            return result
        if course.withdrawn:
            value, move = Withdrawn(), steps.throw
            continue
        try:
            value, move = await _perform_async(act), steps.send
        except BaseException as error:
            value, move = error, steps.throw


@dataclass(frozen=True, slots=True)
class _End:
    value: Any


def _next(move: Callable[[Any], Act], value: Any) -> Act | _End:
    """The next act, or the end: a future cannot carry StopIteration."""
    try:
        return move(value)
    except StopIteration as end:
        return _End(end.value)


async def _perform_async(act: Act) -> Any:
    if isinstance(act, Wait):
        await asyncio.sleep(act.seconds)
        return None
    if inspect.iscoroutinefunction(act.function):
        return await act.function(act.intent)
    result = await asyncio.to_thread(act.function, act.intent)
    return await result if inspect.isawaitable(result) else result
