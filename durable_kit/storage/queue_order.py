"""Writes let their checkpoint go first.

In async mode LangGraph hands over the checkpoint of a step and the writes of the next one at nearly
the same time, to different OS threads, and checkpoints wait for each other:

    put(7) ~~ disk ~~                      put(8) ~~ disk ~~
    put_writes(on 8): 8 is not there       stored under a row that awaits 8, and moved when it comes

The writes are of no use before their checkpoint: a crash in between leaves the state of 7. Stored
early they only make the queue longer, twice. So they wait, as long as checkpoints of their thread
keep coming in this process: `grace_s` after the last one, and after `at_most_s` in any case, they
are stored without. Writes in a thread of which no checkpoint came here do not wait at all.

Left out: an order between processes. There the row that awaits the checkpoint is the answer.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager

_THREADS, _RECENT = 64, 32


class _Lane:
    """The checkpoints of one thread that came lately."""

    __slots__ = ("going", "last_s", "recent")

    def __init__(self) -> None:
        self.going = 0
        self.last_s = float("-inf")
        self.recent: deque[str] = deque(maxlen=_RECENT)


class QueueOrder:
    """Who goes first, thread by thread. Safe from any OS thread.

    `grace_s`: what LangGraph takes between the end of one checkpoint and the begin of the next.
    `at_most_s`: how long writes wait in any case.
    """

    def __init__(self, *, grace_s: float = 0.01, at_most_s: float = 0.25) -> None:
        self.grace_s = grace_s
        self.at_most_s = at_most_s
        self._changed = threading.Condition()
        self._lanes: OrderedDict[int, _Lane] = OrderedDict()

    @contextmanager
    def checkpoint(self, key: int, checkpoint_id: str) -> Iterator[None]:
        """Around the storing of a checkpoint."""
        with self._changed:
            lane = self._lanes.setdefault(key, _Lane())
            self._lanes.move_to_end(key)
            if len(self._lanes) > _THREADS:
                self._lanes.popitem(last=False)
            lane.going += 1
        try:
            yield
        finally:
            with self._changed:
                lane.going -= 1
                lane.last_s = time.perf_counter()
                lane.recent.append(checkpoint_id)
                self._changed.notify_all()

    def wait_for(self, key: int, checkpoint_id: str) -> None:
        """Let the checkpoint go first, if it seems to be on its way."""
        lane = self._lanes.get(key)
        if lane is None or checkpoint_id in lane.recent:
            return
        give_up_s = time.perf_counter() + self.at_most_s
        with self._changed:
            while checkpoint_id not in lane.recent:
                now_s = time.perf_counter()
                until_s = give_up_s if lane.going else min(give_up_s, lane.last_s + self.grace_s)
                if now_s >= until_s:
                    return
                self._changed.wait(until_s - now_s)
