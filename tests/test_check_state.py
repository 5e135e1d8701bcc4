"""check_state: each verdict is proven by a round trip, and reads well where learners read it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from durable_kit.storage.check_state import FieldVerdict, StateVerdict, check_state
from durable_kit.storage.codec import Adapter, Codec


@dataclasses.dataclass
class Job:
    name: str
    run: Any = None


class Account:
    def __init__(self, owner: str, balance: int) -> None:
        self.owner, self.balance = owner, balance


def rows(verdict: StateVerdict) -> list[tuple[str, str, str]]:
    return [(field.path, field.type_name, field.verdict) for field in verdict]


def test_a_good_state_is_stored_exactly_field_by_field() -> None:
    state = {
        "messages": [{"role": "user", "content": "hi"}],
        "seen": {(1, 2), (3, 4)},
        "when": dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        "scores": np.arange(4.0).reshape(2, 2).T,
        "best": math.nan,
        "job": Job("a"),
        1: None,
    }

    verdict = check_state(state, codec=Codec(allow=[Job]))

    assert verdict.ok
    assert [field.path for field in verdict] == [f"state[{key!r}]" for key in state]
    assert {field.verdict for field in verdict} == {"stored exactly"}


def test_every_refused_part_is_named_and_not_only_the_first() -> None:
    state = {
        "good": 1,
        "tools": [{"run": len, "name": "len"}, {"run": print, "name": "print"}],
        "job": Job("a", run=open),
        "lock": __import__("threading").Lock(),
    }

    verdict = check_state(state, codec=Codec(allow=[Job]))

    assert not verdict.ok
    assert rows(verdict) == [
        ("state['good']", "int", "stored exactly"),
        ("state['tools']", "list", "refused"),
        ("state['tools'][0]['run']", "builtin_function_or_method", "refused"),
        ("state['tools'][1]['run']", "builtin_function_or_method", "refused"),
        ("state['job']", "Job", "refused"),
        ("state['job'].run", "builtin_function_or_method", "refused"),
        ("state['lock']", "lock", "refused"),
    ]
    assert verdict[1].reason == "2 parts cannot be stored"
    assert all(field.reason and field.remedy for field in verdict.refused)
    assert len(verdict) == 7
    assert verdict[-1] is verdict.fields[-1]


def test_one_object_refused_in_two_places_is_named_twice() -> None:
    paths = [field.path for field in check_state({"a": [len, len], "b": len}).refused]
    assert paths == ["state['a']", "state['a'][0]", "state['a'][1]", "state['b']"]


def test_a_class_that_is_not_allowed_says_how_to_allow_it() -> None:
    verdict = check_state({"jobs": [Job("a"), Job("b")]})

    assert [field.path for field in verdict.refused][1:] == ["state['jobs'][0]", "state['jobs'][1]"]
    assert "serde=Codec(allow=[Job])" in verdict[1].remedy
    assert check_state({"jobs": [Job("a")]}, codec=Codec(allow=[Job])).ok


def test_the_verdict_is_proven_by_a_round_trip() -> None:
    """An adapter that forgets the balance is accepted by encode, and found out here."""
    forgetful = Adapter(Account, lambda a: a.owner, lambda owner: Account(owner, 0))
    faithful = Adapter(Account, lambda a: [a.owner, a.balance], lambda state: Account(*state))
    failing = Adapter(Account, lambda a: a.owner, lambda owner: Account())  # type: ignore[call-arg]
    state = {"account": Account("ada", 700)}

    for adapter, reason in [(forgetful, "something else"), (failing, "could not be loaded")]:
        codec = Codec(adapters=[adapter])
        assert codec.encode(state)
        (field,) = check_state(state, codec=codec)
        assert field.verdict == "refused"
        assert reason in field.reason
    assert check_state(state, codec=Codec(adapters=[faithful])).ok


def test_anything_is_judged_and_nothing_raises() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]

    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError("no")

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("no")

    hostile = {"loop": loop, "deep": deep, "hostile": Hostile(), Hostile: 1, "ok": 1}
    verdict = check_state(hostile)

    assert [field.path for field in verdict if field.verdict == "stored exactly"][
        -1
    ] == "state['ok']"
    by_path = {field.path: field for field in verdict.refused}
    assert by_path["state['loop'][0]"].reason == "it contains itself"
    assert any("too deep" in field.reason for field in verdict.refused)
    assert any("a class is code" in field.reason for field in verdict.refused)
    for value in (None, 3, [], {}, Job("a"), (1,), deep):
        for field in check_state(value):
            assert field.path.startswith("state")


def test_values_as_deep_as_the_codec_takes_are_compared_without_recursion() -> None:
    deep: Any = 1
    for _ in range(240):
        deep = {"a": deep}
    assert check_state({"deep": deep}).ok


def test_prints_as_a_table_in_a_plain_terminal() -> None:
    text = str(check_state({"n": 1, "run": len}))

    lines = text.splitlines()
    assert lines[0].split("  ")[0] == "field"
    assert lines[1].split() == ["state['n']", "int", "stored", "exactly"]
    start = lines[0].index("why")
    assert lines[2][start:].startswith("code is not state")
    assert lines[3][:start].strip() == ""
    assert max(map(len, lines)) <= 130
    long_path = "state" + "['a']" * 40
    field = FieldVerdict(path=long_path, type_name="int", verdict="stored exactly")
    assert len(field.row[0]) <= 44
    assert str(field) == f"{long_path}: stored exactly"


def test_shows_as_an_escaped_table_in_a_notebook() -> None:
    html = check_state({"<script>alert(1)</script>": len, "ok": "&"})._repr_html_()

    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert html.count("<tr>") == 3
    assert html.startswith("<table>")
    html.encode("utf-8")


@pytest.mark.parametrize("surrogate", ["\ud800", "a\udfff"])
def test_text_that_no_terminal_can_show_does_not_break_the_tables(surrogate: str) -> None:
    verdict = check_state({surrogate: {surrogate: len}})
    str(verdict).encode("utf-8")
    verdict._repr_html_().encode("utf-8")
