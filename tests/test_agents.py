"""The two agents that the lessons break: what they do undisturbed, and what a real kill does."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from durable_kit.crash.experiment import AtPoint, Experiment
from durable_kit.crash.trial import run_trial
from durable_kit.lab.order_agent import AFTER_CHARGE, AFTER_EMAIL, NODES, OrderAgent, order
from durable_kit.lab.provider import Provider
from durable_kit.lab.research_agent import QUESTIONS, ResearchAgent
from durable_kit.lab.scripted_model import ScriptedModel

THREAD: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider.start() as started:
        yield started


def test_the_order_agent_charges_the_discounted_amount_once_and_writes_once(
    provider: Provider,
) -> None:
    final = OrderAgent(provider.url)(InMemorySaver()).invoke(order("order-1"), THREAD)
    assert [(e.kind, e.amount_cents) for e in provider.entries("order-1")] == [
        ("charge", 4500),
        ("email", None),
    ]
    assert (final["in_stock"], final["discount_cents"]) == (True, 500)
    assert final["charge_id"] == f"charge-{provider.charges('order-1')[0].no}"
    assert len(final["notes"]) == len(NODES)


def test_stock_and_discount_are_one_super_step(provider: Provider) -> None:
    graph = OrderAgent(provider.url)(InMemorySaver())
    steps = list(graph.stream(order("order-2"), THREAD, stream_mode="tasks"))
    by_name = {s["name"]: i for i, s in enumerate(steps) if "triggers" in s}
    history = list(graph.get_state_history(THREAD))
    assert [sorted(h.next) for h in reversed(history)][2] == ["discount", "stock"]
    assert by_name["charge"] > max(by_name["stock"], by_name["discount"])


@pytest.mark.parametrize(
    ("key", "charges"), [("none", 2), ("fresh", 2), ("order", 1)], ids=["none", "fresh", "order"]
)
def test_a_kill_after_the_charge_charges_again_unless_the_key_is_the_orders(
    provider: Provider, key: Literal["none", "fresh", "order"], charges: int
) -> None:
    order_id = f"killed-{key}"
    trial = run_trial(
        Experiment(
            graph=OrderAgent(provider.url, key=key), input=order(order_id), durability="sync"
        ),
        AtPoint(AFTER_CHARGE),
    )
    assert trial.crashed
    assert [run.node for run in trial.repeated_runs] == ["charge"]
    assert len(provider.charges(order_id)) == charges
    assert len(provider.emails(order_id)) == 1
    assert trial.final_state["charge_id"] == f"charge-{provider.charges(order_id)[-1].no}"


def test_a_kill_after_the_email_sends_it_again(provider: Provider) -> None:
    trial = run_trial(
        Experiment(graph=OrderAgent(provider.url), input=order("mailed"), durability="sync"),
        AtPoint(AFTER_EMAIL),
    )
    assert trial.crashed
    assert [e.kind for e in provider.entries("mailed")] == ["charge", "email", "email"]


def test_the_research_agent_keeps_its_findings_in_the_order_of_the_questions(
    provider: Provider,
) -> None:
    graph = ResearchAgent(provider.url)(InMemorySaver())
    final = graph.invoke({"topic": "tents"}, THREAD)
    assert [f.partition(":")[2].split(":")[0].strip() for f in final["findings"]] == list(QUESTIONS)
    [email] = provider.emails("tents")
    assert email.request["text"] == final["summary"]


def test_one_failed_search_runs_again_alone(provider: Provider) -> None:
    asked: list[str] = []
    others_are_stored = threading.Semaphore(0)

    class Telling(InMemorySaver):
        def put_writes(self, config: Any, writes: Any, *about: Any) -> None:
            super().put_writes(config, writes, *about)
            if any(channel == "findings" for channel, _ in writes):
                others_are_stored.release()

    def model(prompt: str) -> str:
        asked.append(prompt)
        return prompt

    def model_with_a_bad_day(prompt: str) -> str:
        if prompt.endswith("reviews"):
            assert others_are_stored.acquire(timeout=10)
            assert others_are_stored.acquire(timeout=10)
            raise TimeoutError("the search engine does not answer")
        return model(prompt)

    saver = Telling()
    broken = ResearchAgent(provider.url, model=model_with_a_bad_day)(saver)
    with pytest.raises(TimeoutError):
        broken.invoke({"topic": "boats"}, THREAD, durability="sync")
    assert provider.emails("boats") == []
    assert sorted(asked) == ["boats: laws", "boats: prices", "plan boats"]
    asked.clear()
    mended = ResearchAgent(provider.url, model=model)(saver)
    mended.invoke(None, THREAD, durability="sync")
    assert asked == ["boats: reviews", "3 findings on boats"]
    assert len(mended.get_state(THREAD).values["findings"]) == len(QUESTIONS)
    assert len(provider.emails("boats")) == 1


@pytest.mark.parametrize("agent", [OrderAgent("http://x"), ResearchAgent("http://x")])
def test_an_agent_travels_to_another_process_as_a_value(agent: Any) -> None:
    assert pickle.loads(pickle.dumps(agent)) == agent


@pytest.mark.parametrize("size", [1, 20, 450, 16_384])
def test_the_scripted_model_says_the_same_and_as_much_as_asked(size: int) -> None:
    model = ScriptedModel(answer_bytes=size)
    assert model("a prompt") == ScriptedModel(answer_bytes=size)("a prompt")
    assert len(model("a prompt").encode()) == size
    assert ScriptedModel()("one") != ScriptedModel()("two")


def test_the_scripted_model_takes_its_time() -> None:
    began = time.perf_counter()
    ScriptedModel(step_ms=30)("a prompt")
    assert time.perf_counter() - began >= 0.03
