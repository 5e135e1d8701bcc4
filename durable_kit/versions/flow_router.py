"""Finish by the rules you began with: the business version of a thread.

LangGraph resumes a thread on whatever code is deployed now. Nothing fails, and that is the trouble:

    Monday     order-1001   quoted at 100, approved           … waits for the customer
    Tuesday    deploy: a fee of 5 % from now on
    Wednesday  order-1001   resumes ── charge(105) ──▶ the customer had agreed to 100

So a thread is *pinned*: the flow_version of the code that began it is written into its state before
the first branch that depends on it, and each such branch asks the state, not the code:

    pin ──▶ quote ──▶ review ──┬─ flow_version 1 ──▶ charge_v1
                               └─ flow_version 2 ──▶ charge_v2

What is promised: a pin never changes (`FlowVersion` is a channel that keeps its first value); a
thread without one that has begun counts as `UNPINNED_IS`; a thread pinned by newer code than this
is refused, whatever the match; and a refused thread *waits*, it does not end.

The last one takes care. A conditional edge that raises has already stored what its node wrote, and
LangGraph takes the thread for finished: the next resume returns normally and skips the rest of the
graph. So the edge here never raises. It leads to a node that does, `held_after_…`: a task that
failed is run again on the next resume, asks again, and goes on once the code fits.

Left out: two versions of *one* node's inner rules without a branch (give them a branch), and what
happens to a refused thread in the end. Somebody must deploy the path again or decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.types import interrupt

from durable_kit.errors import BadInput, DurableKitError
from durable_kit.versions.position import (
    FLOW_VERSION,
    HELD_AFTER,
    UNPINNED_IS,
    flow_version_in,
)

Match = Literal["exact", "newest_not_above"]
Failure = Literal["raise", "park"]


class FlowRefused(DurableKitError):
    """This code has no path for a thread. The thread waits; deploy a code that has one."""

    def __init__(self, *, flow_version: Any, current: int, paths: tuple[int, ...]) -> None:
        known = ", ".join(map(str, paths))
        if not _is_version(flow_version):
            found, act = "which is no flow_version", "Set it with update_state, then resume."
        elif flow_version > current:
            found = f"and this code is flow_version {current}"
            act = "Deploy the newer code, then resume."
        else:
            found = f"and this branch has paths for {known}"
            act = f"Deploy the path of flow_version {flow_version} again, then resume."
        super().__init__(
            f"The thread is pinned to flow_version {flow_version!r}, {found}. It waits here. {act}"
        )
        self.flow_version = flow_version
        self.current = current
        self.paths = paths


class FlowVersionChanged(BadInput):
    """Something wrote another flow_version into a pinned thread. Nothing was stored."""


def keep_pinned(old: int, new: int) -> int:
    """The reducer of a pin: the first version stays; writing another one raises.

    0 is what LangGraph puts where nothing was written.
    """
    if old in (0, None, new):
        return new
    raise FlowVersionChanged(
        f"The thread is pinned to flow_version {old}; a step wrote {new}. Begin a new thread for "
        "the new rules, or compensate what the old ones did."
    )


FlowVersion = Annotated[int, keep_pinned]
"""The type of the state's channel `flow_version`."""


class FlowRouter:
    """Pins threads to `current`, and routes each by its own pin.

    `current`: the flow_version of this code; raise it with each change of rules.
    `match`: which path fits a thread. "exact" takes its own version's only. "newest_not_above"
    takes the newest path that is not newer than the thread, for rules that only some versions
    changed.
    `failure`: what a thread without a path does. "raise" ends the run with `FlowRefused`, and
    every resume asks again. "park" pauses in an interrupt, for a person to look at.
    """

    def __init__(self, *, current: int, match: Match, failure: Failure) -> None:
        if not _is_version(current):
            raise BadInput(f"current is {current!r}; flow versions are the numbers 1, 2, 3 …")
        if match not in ("exact", "newest_not_above") or failure not in ("raise", "park"):
            raise BadInput(
                f"match {match!r}, failure {failure!r}: match is 'exact' or 'newest_not_above', "
                "failure is 'raise' or 'park'."
            )
        self.current = current
        self.match = match
        self.failure = failure

    def pin(self, state: Any, config: RunnableConfig) -> dict[str, int]:
        """A node: the pin of a thread that has none. Put it right after START.

        A thread in its first super-step begins here, with the current version. One that is further
        on began before anybody pinned threads, and counts as `UNPINNED_IS`. Hazard: `update_state`
        before the first run takes that super-step; give such a thread its flow_version there.
        """
        if flow_version_in(_values(state)) is not None:
            return {}
        begins = config.get("metadata", {}).get("langgraph_step") == 1
        return {FLOW_VERSION: self.current if begins else UNPINNED_IS}

    def branch(self, builder: Any, source: str, paths: Mapping[int, str]) -> None:
        """Branch after the node `source` of a StateGraph: a node to go on at for each version.

        Adds a conditional edge, and the node `held_after_<source>` in which refused threads wait.
        Raises `BadInput` if threads that begin today would have no path.
        """
        wrong = [version for version in paths if not _is_version(version)]
        if wrong or self.path_of(self.current, paths) is None or max(paths) > self.current:
            raise BadInput(
                f"The paths after {source!r} are for {list(paths)}; they must be for versions up "
                f"to {self.current}, and one must fit {self.current}, which new threads get."
            )
        held = HELD_AFTER + source
        known = tuple(sorted(paths))

        def by_flow_version(state: Any) -> str:
            return self.path_of(_pin_of(state), paths) or held

        def hold(state: Any) -> dict[str, Any]:
            version = _pin_of(state)
            while self.path_of(version, paths) is None:
                refused = FlowRefused(flow_version=version, current=self.current, paths=known)
                if self.failure == "raise":
                    raise refused
                interrupt({"refused": str(refused), FLOW_VERSION: version})
            return {}

        targets = list(dict.fromkeys(paths.values()))
        builder.add_conditional_edges(source, by_flow_version, [*targets, held])
        builder.add_node(held, hold)
        builder.add_conditional_edges(held, by_flow_version, [*targets, held])

    def path_of(self, version: Any, paths: Mapping[int, str]) -> str | None:
        """The path for a thread pinned to `version`; None if this code must not run it."""
        if not _is_version(version) or version > self.current:
            return None
        if self.match == "exact":
            return paths.get(version)
        fitting = [known for known in paths if known <= version]
        return paths[max(fitting)] if fitting else None


def _pin_of(state: Any) -> Any:
    pinned = flow_version_in(_values(state))
    return UNPINNED_IS if pinned is None else pinned


def _is_version(value: Any) -> bool:
    return type(value) is int and value >= 1


def _values(state: Any) -> Mapping[str, Any]:
    if isinstance(state, Mapping):
        return state
    return {FLOW_VERSION: getattr(state, FLOW_VERSION, None)}
