"""Random deploys, rollbacks, migrations, forks and resumes against a model that knows the rules.

What must hold whatever the order: a thread ends by the rules that it was pinned to, or it is
refused and waits; no value becomes None; no node that had finished runs again.

A larger campaign: `KIT_EXAMPLES=2000 python -m pytest tests/versions/test_random_deploys.py`.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from durable_kit import Database, DeltaSaver
from durable_kit.versions.drain import drain_report
from durable_kit.versions.flow_router import FlowRefused, FlowRouter, FlowVersion
from durable_kit.versions.migration import Migrations, NewerState, Step
from durable_kit.versions.resume import resume
from durable_kit.versions.rewrite import migrate, put_back
from tests.versions.flows import thread

NEWEST = 3
FEES = {1: 0, 2: 5, 3: 7}  # per cent, by flow_version
STEPS = (
    Step(
        to=2,
        says="cents instead of euros",
        rename={"total": "cents"},
        convert={"cents": lambda euros: round(Decimal(euros) * 100)},
    ),
    Step(
        to=3,
        says="a better word, and a currency",
        rename_nodes={"review": "approve"},
        add={"currency": lambda state: "EUR"},
    ),
)


@dataclass(frozen=True)
class Code:
    """One deploy: the newest rules it knows, the shape of its state, the paths it still has."""

    flow_version: int
    state_version: int
    paths: tuple[int, ...]

    @property
    def migrations(self) -> Migrations:
        return Migrations(*STEPS[: self.state_version - 1])

    def graph(self, database: Database, ran: Counter[str]) -> Any:
        saver = DeltaSaver(database, migrations=self.migrations)
        total = "total" if self.state_version == 1 else "cents"
        asks = "review" if self.state_version < NEWEST else "approve"
        state: Any = TypedDict(  # type: ignore[misc]
            "state",
            {
                "order": str,
                total: Any,
                "reserved": bool,
                "answer": str,
                "charged": Any,
                "flow_version": FlowVersion,
                "currency": str,
            },
            total=False,
        )

        def quote(values: Any) -> Any:
            ran[f"quote {values['order']}"] += 1
            return {total: "49.90" if self.state_version == 1 else 4990} | (
                {"currency": "EUR"} if self.state_version == NEWEST else {}
            )

        def reserve(values: Any) -> Any:
            ran[f"reserve {values['order']}"] += 1
            return {"reserved": True}

        def charge(version: int) -> Any:
            def run(values: Any) -> Any:
                cents = values[total]
                if self.state_version == 1:
                    cents = round(Decimal(cents) * 100)
                if self.state_version == NEWEST:
                    assert values["currency"] == "EUR"
                assert values["reserved"] is True
                return {"charged": cents * (100 + FEES[version]) // 100}

            return run

        builder: Any = StateGraph(state)
        router = FlowRouter(current=self.flow_version, match="exact", failure="raise")
        builder.add_node("pin", router.pin)
        builder.add_node("quote", quote)
        builder.add_node("reserve", reserve)
        builder.add_node(asks, lambda values: {"answer": interrupt("?")})
        builder.add_edge(START, "pin")
        builder.add_edge("pin", "quote")
        builder.add_edge("quote", "reserve")
        builder.add_edge("quote", asks)
        for version in self.paths:
            builder.add_node(f"charge_{version}", charge(version))
            builder.add_edge(f"charge_{version}", END)
        router.branch(builder, asks, {version: f"charge_{version}" for version in self.paths})
        return builder.compile(checkpointer=saver)


@dataclass
class Model:
    """What a thread must come to."""

    flow_version: int
    pause: Any = None  # the config of its pause, to fork from
    forks: int = 0  # LangGraph runs the finished tasks of the super-step again in each
    ended: bool = False
    charges: list[Any] = field(default_factory=list)


class Deploys(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.database = Database.open("sqlite:///:memory:")
        self.code = Code(1, 1, (1,))
        self.former: list[Code] = []
        self.threads: dict[str, Model] = {}
        self.ran: Counter[str] = Counter()

    def teardown(self) -> None:
        self.database.close()

    @property
    def graph(self) -> Any:
        return self.code.graph(self.database, self.ran)

    def deploy(self, code: Code) -> None:
        self.former.append(self.code)
        self.code = code

    @precondition(lambda self: self.code.flow_version < NEWEST)
    @rule()
    def new_rules(self) -> None:
        version = self.code.flow_version + 1
        self.deploy(Code(version, self.code.state_version, (*self.code.paths, version)))

    @precondition(lambda self: self.code.state_version < NEWEST)
    @rule()
    def new_shape(self) -> None:
        self.deploy(Code(self.code.flow_version, self.code.state_version + 1, self.code.paths))

    @precondition(lambda self: len(self.code.paths) > 1)
    @rule(careless=st.booleans())
    def delete_the_oldest_path(self, careless: bool) -> None:
        version = self.code.paths[0]
        try:
            saver = DeltaSaver(self.database, migrations=self.code.migrations)
            drained = drain_report(saver).may_go(version)
        except NewerState:
            return  # rolled back, and newer threads are there
        alive = [m for m in self.threads.values() if not m.ended and m.flow_version == version]
        assert drained == (not alive)
        if drained or careless:
            code = Code(self.code.flow_version, self.code.state_version, self.code.paths[1:])
            self.deploy(code)

    @precondition(lambda self: self.former)
    @rule()
    def roll_back(self) -> None:
        self.code = self.former.pop()

    @rule()
    def begin(self) -> None:
        name = f"order-{len(self.threads)}"
        self.graph.invoke({"order": name}, thread(name))
        self.threads[name] = Model(self.code.flow_version, self._newest(name))

    def _newest(self, name: str) -> Any:
        return self.graph.get_state(thread(name)).config

    def waiting(self, draw: Any) -> str | None:
        names = [name for name, model in self.threads.items() if not model.ended]
        return draw.draw(st.sampled_from(names)) if names else None

    @rule(draw=st.data())
    def resume_a_thread(self, draw: Any) -> None:
        name = self.waiting(draw)
        if name is not None:
            self._finish(name, thread(name))

    @rule(draw=st.data())
    def fork_a_thread_from_its_pause(self, draw: Any) -> None:
        ended = [name for name, model in self.threads.items() if model.ended]
        if ended:
            name = draw.draw(st.sampled_from(ended))
            self._finish(name, self.threads[name].pause)

    def _finish(self, name: str, config: Any) -> None:
        model = self.threads[name]
        may_run = model.flow_version in self.code.paths
        try:
            held = self.graph.get_state(config).next == ("held_after_review",)
            held |= self.graph.get_state(config).next == ("held_after_approve",)
            value = None if held else Command(resume="yes")
            if config is model.pause:
                model.forks += 1
                result = self.graph.invoke(value, config)
            else:
                result = resume(self.graph, config, value)
        except NewerState:
            return  # refused: the code was rolled back
        except FlowRefused:
            assert not may_run
            if config is model.pause:
                model.ended = False  # the fork is the newest line now, and waits
            return
        assert may_run, "a thread ended on code that has no path for it"
        model.ended = True
        expected = 4990 * (100 + FEES[model.flow_version]) // 100
        assert result["charged"] == expected

    @rule()
    def migrate_what_is_stored(self) -> None:
        saver = DeltaSaver(self.database, migrations=self.code.migrations)
        try:
            told = migrate(saver, dry_run=True)
        except NewerState:
            return
        assert migrate(saver, dry_run=False) == told
        assert not migrate(saver, dry_run=True).changes

    @rule()
    def put_back_what_was_migrated(self) -> None:
        put_back(DeltaSaver(self.database, migrations=self.code.migrations))

    @invariant()
    def nothing_ran_twice_and_nothing_is_none(self) -> None:
        for name in self.threads:
            assert self.ran[f"quote {name}"] == 1
            assert self.ran[f"reserve {name}"] <= 1 + self.threads[name].forks
            try:
                values = self.graph.get_state(thread(name)).values
            except NewerState:
                continue
            assert all(value is not None for value in values.values())
            assert values["flow_version"] == self.threads[name].flow_version


TestRandomDeploys = Deploys.TestCase
TestRandomDeploys.settings = settings(
    max_examples=int(os.environ.get("KIT_EXAMPLES", "12")),
    stateful_step_count=20,
    phases=[phase for phase in Phase if phase is not Phase.shrink],  # it takes minutes
    suppress_health_check=list(HealthCheck),
)
