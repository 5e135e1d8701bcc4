"""The trials of lesson 05 measure what they say, on files that they take away again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from durable_kit import DeltaSaver, EveryN
from durable_kit.lab import storage_trials
from durable_kit.lab.conversations import generate
from durable_kit.lab.workloads import (
    balance_graph,
    find_conversation,
    replay_conversation,
    sqlite_url,
)

MESSAGES = generate(5, 40)


def test_a_saver_of_whole_states_takes_more_than_the_log_and_the_messages_least(
    tmp_path: Path,
) -> None:
    sizes = {
        saver: storage_trials.growth_trial(saver, 40, messages=MESSAGES, folder=tmp_path)
        for saver in ("raw", "delta", "sqlite")
    }
    assert sizes["raw"]["disk_bytes"] < sizes["delta"]["disk_bytes"] < sizes["sqlite"]["disk_bytes"]
    assert sizes["delta"]["step_ms"] > 0
    assert sizes["sqlite"]["label"] == "SqliteSaver"
    assert list(tmp_path.iterdir()) == [], "a trial left its database"


def test_every_step_of_a_saver_of_whole_states_adds_more_than_the_one_before(
    tmp_path: Path,
) -> None:
    table = storage_trials.bytes_per_step(MESSAGES[:20], folder=tmp_path)
    assert table.groupby("saver").size().to_dict() == {"DeltaSaver": 20, "SqliteSaver": 20}
    whole = table[table["saver"] == "SqliteSaver"]["added_bytes"]
    log = table[table["saver"] == "DeltaSaver"]["added_bytes"]
    assert whole.iloc[-1] > 2 * whole.iloc[0]
    assert log.sum() < whole.sum() / 2
    assert log.sum() > storage_trials.raw_bytes(MESSAGES[:20]), "the messages must be in there"
    assert list(tmp_path.iterdir()) == []


def test_the_policies_of_the_lesson_reach_depths_from_nothing_to_everything(tmp_path: Path) -> None:
    stored = storage_trials.store_under(
        storage_trials.policies_by_depth(len(MESSAGES)), MESSAGES, folder=tmp_path
    )
    depths = [one.replay_depth for one in stored.values()]
    assert depths[0] == 0
    assert depths[-1] == len(MESSAGES) + 1
    assert depths[2:] == sorted(set(depths[2:]))
    read = storage_trials.read_trial("no snapshot after the first", stored=stored, reads=2)
    assert read["replay_depth_deltas"] == len(MESSAGES) + 1
    assert read["read_ms"] > 0


def test_fields_that_grow_have_small_deltas_and_rewritten_ones_have_none() -> None:
    table = storage_trials.field_changes(steps=30).set_index("field")
    assert table["stored as"].to_dict() == {
        "messages": "append",
        "draft": "text",
        "calls per tool": "splice",
        "plan": "set",
        "summary": table.loc["summary", "stored as"],
        "balance": "set",
    }
    ratios = table["delta_over_value_ratio"]
    assert ratios[["messages", "draft", "calls per tool"]].max() < 0.1
    assert ratios[["plan", "summary"]].min() > 0.9
    assert table.loc["balance", "delta_bytes"] < 10


def test_the_same_seed_gives_the_same_fields() -> None:
    first, second = (storage_trials.field_changes(steps=10, seed=1) for _ in range(2))
    assert first.equals(second)


def test_a_replayed_conversation_is_stored_message_by_message(tmp_path: Path) -> None:
    with DeltaSaver.open(sqlite_url(tmp_path / "kit.db"), policy=EveryN(5)) as saver:
        replay_conversation(saver, MESSAGES[:7], thread_id="t")
        config: Any = {"configurable": {"thread_id": "t"}}
        lengths = [
            len(found.checkpoint["channel_values"].get("messages", []))
            for found in saver.list(config)
        ]
    assert lengths == [7, 6, 5, 4, 3, 2, 1, 0, 0]


def test_two_writers_of_a_balance_lose_a_withdrawal(tmp_path: Path) -> None:
    config: Any = {"configurable": {"thread_id": "account"}}
    with DeltaSaver.open(sqlite_url(tmp_path / "kit.db")) as saver:
        graph = balance_graph(saver)
        seen = graph.update_state(config, {"balance": 100})
        graph.update_state(seen, {"balance": 70})
        graph.update_state(seen, {"balance": 80})
        assert graph.get_state(config).values == {"balance": 80}


def test_the_conversation_is_found_from_a_folder_below_and_a_path_of_ones_own_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "notebooks" / "solutions"
    below.mkdir(parents=True)
    (tmp_path / "data").mkdir()
    mine = tmp_path / "data" / "conversation.jsonl"
    mine.write_text("{}")
    monkeypatch.chdir(below)
    assert find_conversation() == mine
    own = tmp_path / "own.jsonl"
    own.write_text("{}")
    assert find_conversation(own) == own
    with pytest.raises(FileNotFoundError, match="no file"):
        find_conversation(tmp_path / "missing.jsonl")
