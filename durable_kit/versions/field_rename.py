"""Rename a field while old and new code run beside each other.

A `Step` renames a field at once, and code of before cannot read what comes after. Where the old
code must keep running (a rolling deploy, many teams), a rename takes four deploys, and each may
only follow when the threads allow it:

    add         both fields in the state; code reads and writes the old one
    write both  code writes both, and reads the old one
    read new    code writes both, and reads the new one, the old one where that is missing
    drain       threads that have only the old one come to their end
    remove      the old field goes

The naive way skips one: code that reads the new field meets threads that have only the old one, and
None is a valid answer to `state.get("new")`.

`rename_survey` looks at every thread's newest state and says how far the rename may go. It works on
any saver, and reads all states: run it before a deploy, not in a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from langgraph.checkpoint.base import BaseCheckpointSaver

from durable_kit.versions.position import INPUT, position_of

Stage = Literal["write both", "read new", "remove"]
_MISSING = object()


@dataclass(frozen=True, slots=True)
class RenameSurvey:
    """How many unfinished threads have which of the two fields; and an example of each that stops
    the next stage."""

    only_old: int
    only_new: int
    both_equal: int
    both_different: int
    neither: int
    an_only_old: str | None
    a_different: str | None

    def objection(self, stage: Stage, *, graph: Any = None, old: str = "", new: str = "") -> str:
        """Why a deploy must not go to `stage` yet, with the next act; "" if it may.

        "write both" is asked of the graph that is deployed; the others of the threads.
        """
        if stage == "write both":
            missing = [name for name in (old, new) if name not in graph.channels]
            return (
                f"the deployed graph has no field {missing[0]!r}: add it first" if missing else ""
            )
        if self.both_different:
            return (
                f"{self.both_different} threads have different values in the two fields, for "
                f"example {self.a_different!r}: some code still writes only one of them"
            )
        if stage == "remove" and self.only_old:
            return (
                f"{self.only_old} threads have only the old field, for example "
                f"{self.an_only_old!r}: let them end, or migrate them"
            )
        return ""


def rename_survey(saver: BaseCheckpointSaver[Any], *, old: str, new: str) -> RenameSurvey:
    """Look at the newest state of every unfinished thread of a saver."""
    newest: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for found in saver.list(None):
        where = found.config["configurable"]
        thread_id, checkpoint_id = where["thread_id"], found.checkpoint["id"]
        if not where.get("checkpoint_ns") and checkpoint_id > newest.get(thread_id, ("",))[0]:
            newest[thread_id] = checkpoint_id, found.checkpoint["channel_values"]
    counts = dict.fromkeys(("only_old", "only_new", "both_equal", "both_different", "neither"), 0)
    examples: dict[str, str] = {}
    for thread_id, (_, values) in sorted(newest.items()):
        waiting = position_of(values).waiting
        if not waiting or waiting == (INPUT,):
            continue
        before, after = values.get(old, _MISSING), values.get(new, _MISSING)
        if before is not _MISSING and after is not _MISSING:
            found_here = "both_equal" if before == after else "both_different"
        elif before is not _MISSING:
            found_here = "only_old"
        else:
            found_here = "only_new" if after is not _MISSING else "neither"
        counts[found_here] += 1
        examples.setdefault(found_here, thread_id)
    return RenameSurvey(
        **counts,
        an_only_old=examples.get("only_old"),
        a_different=examples.get("both_different"),
    )


def read_new(state: Mapping[str, Any], *, old: str, new: str) -> Any:
    """The value during "read new": the new field, the old one where that was never written.

    Raises KeyError where neither is there; never answers None for a missing field.
    """
    return state[new] if state.get(new) is not None else state[old]
