"""The mail agent: four ways to remember that an e-mail was sent, and one that counts.

    prepare ──▶ mail ──▶ finish
                 │
                 ▼
             provider        (a mail server: it knows no keys, and it can be asked what it has sent)

While it runs it leaves traces of four kinds, and each lives somewhere else:

    state      the values in the worker's memory           ends with the process
    snapshot   a checkpoint in the agent's database        as old as the last super-step
    event      a row in the event log: asked, answered     as old as the last append
    effect     a line in the provider's book               there for good, and not ours

The log is in the agent's own database, and written with care: `ToolRequested` is committed before
anything is sent, `ToolSucceeded` when the answer has come. Whoever folds it after a crash gets the
state back, and finds a request without an answer. What `mail` does then is the lesson:

    asks=False   it sends. The state was right, and the customer has two e-mails.
    asks=True    it asks the provider first, notes what that says, and goes on.

The agent is a value that travels to another process, where `agent(saver)` builds the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

from durable_kit import crash_point
from durable_kit.event_log import (
    Event,
    EventLog,
    Fact,
    NodeStarted,
    RunFinished,
    RunStarted,
    StatePatched,
    ToolRequested,
    ToolSucceeded,
    fold,
)
from durable_kit.lab.provider_client import ProviderClient
from durable_kit.storage.database import Database

ORDER_ID = "order-1001"
KEY = f"mail:{ORDER_ID}"
THREAD: dict[str, Any] = {"configurable": {"thread_id": ORDER_ID}}

POINTS = KNOWN, PREPARED, ASKED, SENT, ANSWERED, MAILED = (
    "prepare.exit",  # the address is in the memory of this process
    "mail.enter",  # the checkpoint of `prepare` is there
    "mail.asked",  # ToolRequested is committed, nothing was sent
    "mail.sent",  # the provider has sent it; its reply is in the memory of this process
    "mail.answered",  # ToolSucceeded is committed
    "finish.enter",  # the checkpoint of `mail` is there
)
"""The crash points of the agent, in the order in which it passes them."""


class MailState(TypedDict, total=False):
    """What the agent knows."""

    order_id: str
    to: str
    mailed: bool
    finished: bool


def order() -> MailState:
    """The input of a run."""
    return {"order_id": ORDER_ID}


@dataclass(frozen=True, slots=True)
class MailAgent:
    """`agent(saver)` is the compiled graph; the event log lies in the saver's database."""

    provider_url: str
    asks: bool

    def __call__(self, saver: Any) -> Any:
        nodes = _Nodes(saver.database, ProviderClient(self.provider_url), self.asks)
        builder: Any = StateGraph(MailState)
        for name in ("prepare", "mail", "finish"):
            builder.add_node(name, getattr(nodes, name))
        builder.add_edge(START, "prepare")
        builder.add_edge("prepare", "mail")
        builder.add_edge("mail", "finish")
        builder.add_edge("finish", END)
        return builder.compile(checkpointer=saver)


@dataclass(frozen=True, slots=True)
class _Nodes:
    database: Database
    provider: ProviderClient
    asks: bool

    def prepare(self, state: MailState) -> MailState:
        patch: MailState = {"to": "ada@example.org"}
        self._note(RunStarted(ORDER_ID, dict(state)), NodeStarted("prepare"), _patch(patch))
        crash_point.reached(KNOWN)
        return patch

    def mail(self, state: MailState) -> MailState:
        crash_point.reached(PREPARED)
        if not (self.asks and self._it_was_sent()):
            request = {"to": state["to"], "text": "Your order is on its way."}
            self._note(NodeStarted("mail"), ToolRequested(KEY, "email", request))
            crash_point.reached(ASKED)
            reply = self.provider.send_email(ORDER_ID, key=KEY, **request)
            # A crash here has sent the e-mail. The log says "asked", which is true before, too.
            crash_point.reached(SENT)
            self._note(ToolSucceeded(KEY, reply.id), _patch({"mailed": True}))
            crash_point.reached(ANSWERED)
        return {"mailed": True}

    def finish(self, state: MailState) -> MailState:
        crash_point.reached(MAILED)
        self._note(NodeStarted("finish"), _patch({"finished": True}), RunFinished())
        return {"finished": True}

    def _it_was_sent(self) -> bool:
        known = fold(facts(self.database))
        if KEY in known.answers:
            return True
        if KEY not in known.asked:
            return False
        found = self.provider.find(key=KEY)  # in doubt: only the other side can know
        if found:
            self._note(ToolSucceeded(KEY, found[0].id), _patch({"mailed": True}))
            crash_point.reached(ANSWERED)
        return bool(found)

    def _note(self, *new: Fact) -> None:
        """Append, having seen everything that is there."""
        version = len(facts(self.database))
        with self.database.write() as tx:
            EventLog().append(tx, ORDER_ID, *new, expected_version=version)


def facts(database: Database) -> list[Event]:
    """The event log of the run."""
    return EventLog().read(database, ORDER_ID)


def _patch(patch: MailState) -> StatePatched:
    return StatePatched(dict(patch))
