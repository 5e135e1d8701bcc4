"""The research agent: many branches at once, one effect at the end.

              ┌─▶ search "prices" ──┐
    plan ─────┼─▶ search "reviews" ─┼──▶ summarise ──▶ notify ──▶ provider: e-mail
              └─▶ search "laws" ────┘

The branches are one super-step, made with `Send`, and each is paid for: a search costs a model
call. If one fails or the process dies among them, the results of those that are done wait in the
database as pending writes, and only the others run again:

    search "prices"    done     pending write    not repeated
    search "reviews"   ✗                         runs again
    search "laws"      done     pending write    not repeated

What waits is what was done *and stored* when the step ended: a branch that fails at once takes
along those that have not begun yet.

A `model` that raises breaks a branch; an agent built anew with another model repairs it, as a
deploy would.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from durable_kit.lab.provider_client import ProviderClient
from durable_kit.lab.scripted_model import ScriptedModel

QUESTIONS = ("prices", "reviews", "laws")


class ResearchState(TypedDict, total=False):
    """What the agent has found. `findings` are in the order of the questions, whoever was first."""

    topic: str
    questions: list[str]
    findings: Annotated[list[str], operator.add]
    summary: str
    email_id: str


@dataclass(frozen=True, slots=True)
class ResearchAgent:
    """`agent(saver)` is the compiled graph. `model` sets the time of a step and its bytes."""

    provider_url: str
    questions: tuple[str, ...] = QUESTIONS
    model: Callable[[str], str] = field(default_factory=ScriptedModel)
    timeout_s: float = 10.0

    def __call__(self, saver: Any) -> Any:
        builder: Any = StateGraph(ResearchState)
        builder.add_node("plan", self._plan)
        builder.add_node("search", self._search)
        builder.add_node("summarise", self._summarise)
        builder.add_node("notify", self._notify)
        builder.add_edge(START, "plan")
        builder.add_conditional_edges("plan", _one_search_a_question, ["search"])
        builder.add_edge("search", "summarise")
        builder.add_edge("summarise", "notify")
        builder.add_edge("notify", END)
        return builder.compile(checkpointer=saver)

    def _plan(self, state: ResearchState) -> ResearchState:
        self.model(f"plan {state['topic']}")
        return {"questions": list(self.questions)}

    def _search(self, asked: dict[str, str]) -> ResearchState:
        return {"findings": [self.model(f"{asked['topic']}: {asked['question']}")]}

    def _summarise(self, state: ResearchState) -> ResearchState:
        return {"summary": self.model(f"{len(state['findings'])} findings on {state['topic']}")}

    def _notify(self, state: ResearchState) -> ResearchState:
        reply = ProviderClient(self.provider_url, timeout_s=self.timeout_s).send_email(
            state["topic"],
            to="ada@example.org",
            text=state["summary"],
            key=f"email:{state['topic']}",
        )
        return {"email_id": reply.id}


def _one_search_a_question(state: ResearchState) -> list[Send]:
    return [Send("search", {"topic": state["topic"], "question": q}) for q in state["questions"]]
