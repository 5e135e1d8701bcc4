"""The small agents that the lessons run, and the outside world that they act on.

Three graphs, each the smallest that shows its point:

    order          prepare ─▶ charge ─▶ notify      an effect in the middle: something to lose
    conversation   say ─▶ say ─▶ say ─▶ …           a list that grows: something to store
    balance        a number that two sides set      something that must not be kept like this

The bank of the order agent is a file that the agent appends to. It is the *outside world*: it is
not in the agent's database, the agent's rollback does not reach it, and it believes what it is
told. A line is written through to the disk before `charge` returns, as a bank answers only when
it has noted the transfer:

    {"charge": "order-1001", "amount_cents": 4999, "by": "process 4711"}

What it leaves out on purpose: a real bank is asked over a network, and its answer can be lost. For
that there is a provider, and an order agent that works against it (`order_agent.py`).
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from durable_kit import crash_point

AFTER_CHARGE, CHARGED_BEFORE = "charge.after_effect", "charge.noted_before"
"""Crash points: between the charge and the checkpoint that would have noted it; and where a careful
worker has found its order in the bank's book, and does not charge."""

BANK_NOTED, BANK_KNOWS = "the bank has noted it", "the bank knows this order"
"""What `charge` tells at these two places."""


LEDGER = "bank.jsonl"


class Ledger:
    """The bank's book: one JSON object a line, only ever added to, safe on disk when it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, entry: dict[str, Any]) -> None:
        """Note one entry. When this returns, the entry is on the disk."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def entries(self) -> list[dict[str, Any]]:
        """All entries, oldest first; none if nobody has written yet."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text("utf-8").splitlines()]


class Order(TypedDict, total=False):
    """The state of the order agent."""

    order_id: str
    amount_cents: int
    prepared: bool
    charged: bool
    notified: bool


def order_graph(
    saver: Any,
    bank: Ledger,
    *,
    careful: bool = False,
    tell: Callable[[str], None] = lambda what: None,
) -> Any:
    """The order agent, compiled: prepare, charge the card, tell the customer.

    Each node tells when it begins. `charge` does what agents usually do: it acts, and then returns,
    and the checkpoint that remembers the act is written after that. A `careful` one asks the bank
    first; that is enough while there is one worker at a time, and not beyond.
    """

    def prepare(state: Order) -> Order:
        tell("prepare")
        return {"prepared": True}

    def charge(state: Order) -> Order:
        tell("charge")
        order_id = state["order_id"]
        if careful and any(entry["charge"] == order_id for entry in bank.entries()):
            tell(BANK_KNOWS)
            crash_point.reached(CHARGED_BEFORE)
            return {"charged": True}
        by = f"process {os.getpid()}"
        bank.append({"charge": order_id, "amount_cents": state["amount_cents"], "by": by})
        tell(BANK_NOTED)
        # A crash here has taken the money, and no checkpoint says so.
        crash_point.reached(AFTER_CHARGE)
        return {"charged": True}

    def notify(state: Order) -> Order:
        tell("notify")
        return {"notified": True}

    builder: Any = StateGraph(Order)
    for node in (prepare, charge, notify):
        builder.add_node(node)
    builder.add_edge(START, "prepare")
    builder.add_edge("prepare", "charge")
    builder.add_edge("charge", "notify")
    builder.add_edge("notify", END)
    return builder.compile(checkpointer=saver)


@dataclass(frozen=True, slots=True)
class OrderWorker:
    """The order agent with its bank in `folder`, as a value that travels to another process."""

    folder: Path
    careful: bool

    def __call__(self, saver: Any) -> Any:
        return order_graph(saver, Ledger(self.folder / LEDGER), careful=self.careful)


class Account(TypedDict):
    """A state that should not be one: see `balance_graph`."""

    balance: int


def balance_graph(saver: Any) -> Any:
    """A graph whose state is a balance. It does nothing; lesson 05 writes to it from two sides."""
    builder: Any = StateGraph(Account)
    builder.add_node("wait", lambda state: {})
    builder.add_edge(START, "wait")
    return builder.compile(checkpointer=saver)


class Conversation(TypedDict):
    """The state of the conversation agent: messages, only ever added to."""

    messages: Annotated[list[Any], operator.add]


def conversation_graph(saver: Any, messages: Sequence[Any]) -> Any:
    """A graph that says the recorded `messages` again, one in each super-step."""

    def say(state: Conversation) -> dict[str, Any]:
        return {"messages": [messages[len(state["messages"])]]}

    def proceed(state: Conversation) -> str:
        return "say" if len(state["messages"]) < len(messages) else END

    builder: Any = StateGraph(Conversation)
    builder.add_node("say", say)
    builder.add_edge(START, "say")
    builder.add_conditional_edges("say", proceed, ["say", END])
    return builder.compile(checkpointer=saver)


def sqlite_url(path: Path) -> str:
    """The SQLAlchemy URL of a SQLite file; relative or absolute, on Windows too."""
    return f"sqlite:///{path.as_posix()}"


def find_conversation(path: str | Path = "") -> Path:
    """The recorded file to replay: `path`, or without one the generated conversation of the kit.

    That one lies in the repository's `data/`, looked for above the working directory and beside
    the package. Raises FileNotFoundError with what to do.
    """
    if path:
        chosen = Path(path).expanduser()
        if not chosen.is_file():
            raise FileNotFoundError(f"There is no file {chosen}. Give the path of a .jsonl file.")
        return chosen
    made_by = "python -m durable_kit.lab.conversations --seed 1 --out data/conversation.jsonl"
    return find_data("conversation.jsonl", made_by)


def find_data(name: str, made_by: str) -> Path:
    """A file in the repository's `data/`, looked for above the working directory and beside the
    package. Raises FileNotFoundError with the command that makes it."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).parents[2]):
        if (folder / "data" / name).is_file():
            return folder / "data" / name
    raise FileNotFoundError(
        f"data/{name} was not found. Start Jupyter in the repository, or make the file: {made_by}"
    )


def replay_conversation(saver: Any, messages: Sequence[Any], *, thread_id: str) -> None:
    """Say all `messages` in one run with `durability="sync"`: a checkpoint on disk a message."""
    conversation_graph(saver, messages).invoke(
        {"messages": []},
        {"configurable": {"thread_id": thread_id}, "recursion_limit": len(messages) + 10},
        durability="sync",
    )
