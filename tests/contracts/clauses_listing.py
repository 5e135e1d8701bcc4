"""Listing: which checkpoints `list` yields, judged by LangGraph's own InMemorySaver.

`list` is where a store that pushes work into SQL comes apart from the Python that everybody tests
with. Python says `1 == True` and SQL does not; `metadata.get("gone") == None` holds for a missing
key and `json_extract` needs telling; `LIMIT -1` means "everything" to SQLite and is an error to
PostgreSQL; a key with a dot is one key to a dict and a path to JSON. The oracle here is the
in-memory saver, run on the same checkpoints: a filter that a saver cannot push down must be
answered in Python or refused, never ignored.

Two things that the oracle leaves open are fixed here. A negative limit asks for no rows or is
refused; it never means "all". And a listing over several namespaces, where the oracle goes
namespace by namespace, is newest first within each, and `limit` cuts that same listing short.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from .builders import Line, MakeSaver, address, assert_same, facts, refuses

METADATA: list[dict[str, Any]] = [
    {"source": "input", "step": -1, "k": None},
    {"source": "loop", "step": 0, "k": 1},
    {"source": "loop", "step": 1, "k": True},
    {"source": "loop", "step": 2, "k": 1.0},
    {"source": "loop", "step": 3, "k": "1"},
    {"source": "loop", "step": 4, "k": 0},
    {"source": "loop", "step": 5, "k": False},
    {"source": "loop", "step": 6, "k": ""},
    {"source": "update", "step": 7, "k": {"a": 1, "b": {"c": [1, 2]}}},
    {"source": "update", "step": 8, "k": {"a": 1}},
    {"source": "update", "step": 9, "k": [1, 2]},
    {"source": "fork", "step": 10, "k": [2, 1]},
    {"source": "fork", "step": 11, "k": []},
    {"source": "fork", "step": 12, "k": {}},
    {"source": "loop", "step": 13, "a.b": "dotted", "a": {"b": "nested"}},
    {"source": "loop", "step": 14, "a": {"b": "dotted"}},
    {"source": "loop", "step": 15, 'say "hi"': 1, "it's": 2, "$": 3, "a[0]": 4, "": 5, "*": 6},
    {"source": "loop", "step": 16, "größe": "ü", "k": "größe"},
    {"source": "loop", "step": 17, "k": 2**60},
    {"source": "loop", "step": 18, "k": "x' OR '1'='1"},
    {"source": "loop", "step": 19, "k": "None"},
    {"source": "loop", "step": 20, "k": 1.5, "run_id": "r1"},
    {"source": "loop", "step": 21, "k": "a%b_c", "run_id": "r1"},
    {"source": "loop", "step": 22, "k": "null"},
    {"source": "loop", "step": 23, "k": "true"},
    {"source": "loop", "step": 24, "k": -0.0},
]

FILTERS: list[dict[str, Any]] = [
    {},
    {"source": "loop"},
    {"source": "none of them"},
    {"step": 3},
    {"step": "3"},
    {"step": -1},
    {"source": "update", "step": 8},
    {"source": "update", "step": 99},
    {"k": None},
    {"missing": None},
    {"missing": 1},
    {"missing": ""},
    {"missing": False},
    {"k": 1},
    {"k": True},
    {"k": 1.0},
    {"k": "1"},
    {"k": 0},
    {"k": False},
    {"k": "0"},
    {"k": ""},
    {"k": {"a": 1, "b": {"c": [1, 2]}}},
    {"k": {"b": {"c": [1, 2]}, "a": 1}},
    {"k": {"a": 1}},
    {"k": {"b": {"c": [1, 2]}}},
    {"k": {"a": True}},
    {"k": {"a": "1"}},
    {"k": {}},
    {"k": [1, 2]},
    {"k": [2, 1]},
    {"k": [1]},
    {"k": [True, 2]},
    {"k": []},
    {"k": "[1, 2]"},
    {"a.b": "dotted"},
    {"a.b": "nested"},
    {"a": {"b": "nested"}},
    {"a": {"b": "dotted"}},
    {'say "hi"': 1},
    {'say "hi"': 2},
    {"it's": 2},
    {"$": 3},
    {"a[0]": 4},
    {"": 5},
    {"*": 6},
    {"größe": "ü"},
    {"k": "größe"},
    {"k": 2**60},
    {"k": 2**60 + 1},
    {"k": float(2**60)},
    {"k": "x' OR '1'='1"},
    {"k": "None"},
    {"k": 1.5},
    {"k": "1.5"},
    {"k": "a%b_c"},
    {"k": "a%"},
    {"k": "null"},
    {"k": "true"},
    {"run_id": "r1"},
    {"run_id": "r1", "k": 1.5},
    {"run_id": None},
    {"k": -0.0},
    {"parents": {}},
    {"parents": None},
    {"k": float("nan")},
    {"k": 10**30},
    {"k": "\x00"},
    {"\x00": 1},
]


def filters_select_what_the_oracle_selects(make_saver: MakeSaver) -> None:
    """Custom and missing keys, None, nested dicts, lists, 1 and True and '1', dots and quotes."""
    saver, oracle, thread_id = make_saver(), InMemorySaver(), f"filters-{uuid.uuid4()}"
    for store in (saver, oracle):
        line = Line(store, thread_id)
        for number, metadata in enumerate(METADATA):
            line.put({}, metadata=metadata, checkpoint_id=_id(number))
    config = Line(saver, thread_id).config()
    wrong = []
    for wanted in FILTERS:
        expected = [row.metadata["step"] for row in oracle.list(config, filter=wanted)]
        found = [row.metadata["step"] for row in saver.list(config, filter=wanted)]
        if found != expected:
            wrong.append(f"{wanted}: steps {found}, the oracle says {expected}")
    assert not wrong, "\n".join(wrong)


def filters_combine_with_limit_and_before(make_saver: MakeSaver) -> None:
    """`limit` counts matching rows, not rows looked at."""
    saver, oracle, thread_id = make_saver(), InMemorySaver(), f"combined-{uuid.uuid4()}"
    for store in (saver, oracle):
        line = Line(store, thread_id)
        for number in range(12):
            line.put(
                {},
                checkpoint_id=_id(number),
                metadata={"k": "even" if number % 2 == 0 else "odd", "only": number // 9},
            )
    here = Line(saver, thread_id)
    for wanted in ({"k": "even"}, {"k": "odd", "only": 1}, {"k": "none"}):
        for limit in (None, 0, 1, 2, 100):
            for before in (None, here.config(_id(0)), here.config(_id(7))):
                arguments: dict[str, Any] = {"filter": wanted, "limit": limit, "before": before}
                expected = _ids(oracle, here.config(), **arguments)
                assert _ids(saver, here.config(), **arguments) == expected, arguments


def limit_and_before_cut_where_the_oracle_cuts(make_saver: MakeSaver) -> None:
    """Every checkpoint as `before`, every limit, and a config that names one checkpoint."""
    saver, oracle, thread_id = make_saver(), InMemorySaver(), f"limits-{uuid.uuid4()}"
    for store in (saver, oracle):
        _three_namespaces(store, thread_id)
    for ns in ("", "child:1", "a|b:c", "nowhere"):
        here = Line(saver, thread_id, ns)
        for before in [None, *(row.config for row in oracle.list(here.config()))]:
            for limit in (None, 0, 1, 2, 4, 5, 1_000_000):
                arguments: dict[str, Any] = {"before": before, "limit": limit}
                expected = _ids(oracle, here.config(), **arguments)
                assert _ids(saver, here.config(), **arguments) == expected, (ns, arguments)
        for number in range(15):
            only = here.config(_id(number))
            assert _ids(saver, only) == _ids(oracle, only)
            assert _ids(saver, only, limit=0) == []


def an_unknown_before_never_widens_the_listing(make_saver: MakeSaver) -> None:
    """A cursor whose checkpoint is gone: rows below its id as the oracle has it, none, or no."""
    saver, oracle, thread_id = make_saver(), InMemorySaver(), f"cursors-{uuid.uuid4()}"
    for store in (saver, oracle):
        line = Line(store, thread_id)
        for number in (1, 3, 5):
            line.put({"n": number}, checkpoint_id=_id(number))
    here = Line(saver, thread_id)
    for number in (0, 2, 4):
        before = here.config(_id(number))
        expected = _ids(oracle, here.config(), before=before)
        if not refuses(lambda before=before: _ids(saver, here.config(), before=before)):
            assert _ids(saver, here.config(), before=before) in ([], expected), number


def a_negative_limit_never_means_everything(make_saver: MakeSaver) -> None:
    """SQLite reads LIMIT -1 as no limit. No rows, or a refusal; nothing else."""
    line = Line(make_saver())
    for number in range(3):
        line.put({"n": number})
    for limit in (-1, -(2**40)):
        assert refuses(lambda limit=limit: line.ids(limit=limit)) or line.ids(limit=limit) == []
    assert line.ids(limit=0) == []


def a_listing_without_namespace_covers_all_of_the_thread(make_saver: MakeSaver) -> None:
    """No namespace in the config is not the empty namespace."""
    saver, oracle, thread_id = make_saver(), InMemorySaver(), f"spaces-{uuid.uuid4()}"
    for store in (saver, oracle):
        _three_namespaces(store, thread_id)
    config = {"configurable": {"thread_id": thread_id}}
    found, expected = _by_namespace(saver, config), _by_namespace(oracle, config)
    assert found == expected
    whole = [address(row.config) for row in saver.list(config)]
    for limit in range(len(whole) + 2):
        assert [address(row.config) for row in saver.list(config, limit=limit)] == whole[:limit]


def a_listing_without_config_covers_all_threads(make_saver: MakeSaver) -> None:
    """Each thread newest first; a filter works across threads."""
    saver, token = make_saver(), f"token-{uuid.uuid4()}"
    lines = [Line(saver) for _ in range(3)]
    for step in range(2):
        for line in lines:
            line.put({"n": step}, metadata={"token": token, "step": step})
    Line(saver).put({"n": 0}, metadata={"token": "another"})
    found = list(saver.list(None, filter={"token": token}))
    assert len(found) == 6
    for line in lines:
        own = [
            row.metadata["step"]
            for row in found
            if row.config["configurable"]["thread_id"] == line.thread_id
        ]
        assert own == [1, 0]
    assert len(list(saver.list(None, filter={"token": token}, limit=4))) == 4


def a_listed_checkpoint_is_the_checkpoint_that_get_tuple_returns(make_saver: MakeSaver) -> None:
    """Values, metadata, parent and pending writes, row by row, forks included."""
    line = Line(make_saver(), ns="child:1")
    root = line.put({"log": ["r"], "d": {"a": 1}})
    for number in range(5):
        at = line.put({"log": ["r", *range(number)], "d": {"a": number}})
        line.write(at, ("log", number), task="t2", path="b")
        line.write(at, ("log", -number), task="t1", path="c")
    line.put({"log": ["r", "fork"], "d": {}}, parent=root)
    rows = line.rows()
    assert len(rows) == 7
    for row in rows:
        assert_same(facts(row), facts(line.read(row.config)), "list and get_tuple")


def a_listing_survives_writes_made_while_it_is_read(make_saver: MakeSaver) -> None:
    """A reader in the middle of `list` neither blocks a put nor fails because of it."""
    line = Line(make_saver())
    expected = []
    for number in range(8):
        line.put({"log": list(range(number))})
        expected.insert(0, list(range(number)))
    found = []
    for row in line.saver.list(line.config()):
        found.append(row.checkpoint["channel_values"]["log"])
        if len(found) in (1, 4):
            line.put({"log": ["while reading", len(found)]})
    assert found == expected
    assert len(line.rows()) == 10


def _three_namespaces(store: BaseCheckpointSaver[Any], thread_id: str) -> None:
    lines = [Line(store, thread_id, ns) for ns in ("", "child:1", "a|b:c")]
    for number in range(15):
        lines[number % 3].put({"n": number}, checkpoint_id=_id(number))


def _by_namespace(store: BaseCheckpointSaver[Any], config: Any) -> dict[str, list[str]]:
    found = defaultdict(list)
    for row in store.list(config):
        found[row.config["configurable"]["checkpoint_ns"]].append(row.checkpoint["id"])
    return dict(found)


def _ids(store: BaseCheckpointSaver[Any], config: Any, **arguments: Any) -> list[str]:
    return [row.checkpoint["id"] for row in store.list(config, **arguments)]


def _id(number: int) -> str:
    """Ids that grow with their number, so that the oracle's order is the order of writing."""
    return f"1f0000{number:02d}-0000-6000-8000-000000000000"


CLAUSES = [
    filters_select_what_the_oracle_selects,
    filters_combine_with_limit_and_before,
    limit_and_before_cut_where_the_oracle_cuts,
    an_unknown_before_never_widens_the_listing,
    a_negative_limit_never_means_everything,
    a_listing_without_namespace_covers_all_of_the_thread,
    a_listing_without_config_covers_all_threads,
    a_listed_checkpoint_is_the_checkpoint_that_get_tuple_returns,
    a_listing_survives_writes_made_while_it_is_read,
]
