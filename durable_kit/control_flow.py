"""Exceptions that are not failures.

LangGraph stops a node by raising: `interrupt()` raises GraphInterrupt to pause for a person, a
subgraph raises ParentCommand to steer its parent. Code that catches `Exception` around an agent's
work takes such a signal for a failure, and the damage is quiet:

    node ─ retry(3) ─ interrupt("may I?") ──▶ "failed, try again" ×3 ──▶ the person is never asked

So whoever in the kit catches exceptions asks here first, and lets a signal pass as it came: the
same object, no attempt counted, nothing noted as failed. Cancellation and Ctrl-C need no such care
as long as only `Exception` is caught; they derive from BaseException.

LangGraph is not imported for this: a process that has not loaded it cannot have raised its signals.
"""

from __future__ import annotations

import sys


def is_control_flow(error: BaseException) -> bool:
    """Whether `error` is LangGraph steering its graph (a pause, a parent command, a drain)."""
    errors = sys.modules.get("langgraph.errors")
    return errors is not None and isinstance(error, errors.GraphBubbleUp)
