"""What is one operation? Keys that a replay finds again, and a second wish does not.

A business name is the best key: `charge:order-1001` means the same in every process, on every
branch of a thread, after any crash. Where there is no such name (a poll, a notice, two equal orders
on purpose), it is made from where in the run the call stands:

    thread    node     turn    action      n
    t-7       ask      2       notice      0      the first notice of the node's run in turn 2
    t-7       ask      2       notice      1      a second one, wanted: another key
    t-7       ask      2       notice      0      after a crash or a pause, the node runs again from
                                                  its beginning, counts again, and finds its key

What is not a name: the model's id of a tool call (asked again, the model gives another one), a
random number, the time, and LangGraph's ids of tasks and checkpoints, which a replay or a fork
makes anew. Nor is LangGraph's step: replaying a checkpoint puts a fork before it, and every step
after that has another number. So **the turn comes from the state**, which is the same whenever the
node runs from it: how many answers there are so far, which item of the order.

Hazard: a node must make its calls in the same order each time it runs from the same state. Calls
from several OS threads at once have no order; name them by their items.
"""

from __future__ import annotations

from collections import Counter
from urllib.parse import quote

from durable_kit.errors import BadInput


class CallKeys:
    """The keys of one run of one node. Make it anew at the node's beginning, every time."""

    def __init__(self, *, thread_id: str, node: str, turn: int | str) -> None:
        if isinstance(turn, bool) or not isinstance(turn, int | str):
            raise BadInput(f"turn is {turn!r}; give a number or a text that the state knows.")
        self.thread_id = thread_id
        self.node = node
        self.turn = turn
        self._count: Counter[str] = Counter()

    def next(self, action: str) -> str:
        """The key of the next call of this `action`: the first, the second, …"""
        number = self._count[action]
        self._count[action] += 1
        # Quoted, so that no two different places write the same key.
        where = "/".join(quote(part, safe="") for part in (self.thread_id, self.node))
        kind = "" if isinstance(self.turn, int) else "="
        return f"{quote(action, safe='')}:{where}/{kind}{quote(str(self.turn), safe='')}/{number}"
