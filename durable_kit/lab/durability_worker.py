"""The process that is killed for the durability figure: one message a step, until it is killed.

    python -m durable_kit.lab.durability_worker FOLDER --durability async --step-ms 20

It stands by with everything imported, begins when it is told to go, and never finishes. FOLDER
holds the agent's database and, beside it, the *witness*: a file that belongs to no checkpointer,
to which each step appends one line as the last thing it does.

    step 3    work (step_ms) ─ witness: "00000003\\n" ─ return the message ─ (its checkpoint)

The lines go straight to the operating system (`os.write`, no buffer of Python's), and without an
fsync. That is enough here: the page cache outlives a process that is killed, so every line that was
written is found afterwards. Against power loss it would not be enough. An fsync a step would also
slow each step down to about the pace of the database, and hide what is to be measured.
"""

from __future__ import annotations

import argparse
import operator
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from durable_kit.crash.child import stand_by, stay_no_longer_than_the_parent

DATABASE, WITNESS = "agent.db", "witness.txt"
STANDS_BY = "stands by"
THREAD: dict[str, Any] = {"configurable": {"thread_id": "talk"}}
DURABILITIES = ("sync", "async", "exit")
NEVER_ENDS = 10**9  # steps: LangGraph's recursion_limit must not be what ends the run


class Talk(TypedDict):
    """The state: messages, only ever added to."""

    messages: Annotated[list[Any], operator.add]


class Witness:
    """How many steps were executed, told by someone else than the checkpointer.

    Every line has the same length, so the size of the file is the number of steps.
    """

    LINE_BYTES = 9

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def note(self, step: int) -> None:
        """Append one line. When this returns, a kill of this process cannot take it back."""
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._file = os.open(self.path, flags, 0o644)
        os.write(self._file, b"%08d\n" % step)

    def executed_steps(self) -> int:
        """How many lines there are by now; 0 before the first."""
        try:
            return self.path.stat().st_size // self.LINE_BYTES
        except FileNotFoundError:
            return 0

    def steps(self) -> list[int]:
        """The numbers of the executed steps, in the order of their execution."""
        return [int(line) for line in self.path.read_bytes().splitlines()]


def message(step: int) -> dict[str, Any]:
    """What step number `step` says; it can be told from every other."""
    return {"role": "assistant", "step": step, "content": f"This is what I have to say, no. {step}"}


def talk_graph(saver: Any, witness: Witness, *, step_ms: float) -> Any:
    """A graph of one node that works for `step_ms`, and goes on for ever."""

    def say(state: Talk) -> dict[str, Any]:
        step = len(state["messages"]) + 1
        if step_ms:
            time.sleep(step_ms / 1000)
        witness.note(step)
        # A crash here has executed the step, and no checkpoint knows it: in every mode.
        return {"messages": [message(step)]}

    from langgraph.graph import START, StateGraph

    builder: Any = StateGraph(Talk)
    builder.add_node("say", say)
    builder.add_edge(START, "say")
    builder.add_conditional_edges("say", lambda state: "say", ["say"])
    return builder.compile(checkpointer=saver)


def main(argv: list[str] | None = None) -> int:
    """Say one message after another in this process, until somebody kills it."""
    parser = argparse.ArgumentParser(prog="python -m durable_kit.lab.durability_worker")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--durability", choices=DURABILITIES, required=True)
    parser.add_argument("--step-ms", type=float, required=True)
    arguments = parser.parse_args(argv)
    stay_no_longer_than_the_parent()
    # Imported after that: imports take a second, and the parent may die in it.
    from durable_kit.delta_saver import DeltaSaver
    from durable_kit.lab.workloads import sqlite_url

    with DeltaSaver.open(sqlite_url(arguments.folder / DATABASE)) as saver:
        witness = Witness(arguments.folder / WITNESS)
        graph = talk_graph(saver, witness, step_ms=arguments.step_ms)
        stand_by(STANDS_BY)
        graph.invoke(
            {"messages": []},
            {**THREAD, "recursion_limit": NEVER_ENDS},
            durability=arguments.durability,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
