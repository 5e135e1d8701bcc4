"""The simulated power loss: what SQLite promises for each setting, and what breaks it."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from durable_kit.lab import crash_plots, plots
from durable_kit.lab.power_loss import (
    DAMAGED,
    FATES,
    FORGETS,
    PROCESS_DEATH,
    SILENT,
    SOUND,
    TEARS,
    Acknowledged,
    Delete,
    Event,
    Sync,
    Truncate,
    Write,
    look,
    measure_power_loss,
    record,
    statements_of_a_run,
    survivors,
)

MESSAGES: list[Any] = [{"role": "assistant", "step": i, "content": "x" * 400} for i in range(200)]


@pytest.fixture(scope="module")
def statements() -> list[str | Acknowledged]:
    return statements_of_a_run(MESSAGES)


@pytest.fixture(scope="module")
def table(statements: list[str | Acknowledged]) -> pd.DataFrame:
    return measure_power_loss(messages=MESSAGES, repeats=4, seed=4, statements=statements)


def ends(table: pd.DataFrame, synchronous: str, fate: str) -> pd.DataFrame:
    return table[(table["synchronous"] == synchronous) & (table["fate"] == fate)]


def test_full_loses_no_acknowledged_step_however_the_run_ends(table: pd.DataFrame) -> None:
    full = table[table["synchronous"] == "FULL"]
    assert len(full) == 12
    assert full["lost_steps"].tolist() == [0] * 12
    assert set(full["verdict"]) == {SOUND}


def test_normal_loses_acknowledged_steps_and_is_never_damaged(table: pd.DataFrame) -> None:
    """The naive belief, "it was committed, so it is safe", fails here first."""
    for fate in (FORGETS, TEARS):
        normal = ends(table, "NORMAL", fate)
        assert normal["lost_steps"].median() > 0  # 0 is possible: just after a WAL checkpoint
        assert set(normal["verdict"]) == {SOUND}


def test_off_loses_everything_and_torn_sectors_damage_it(
    table: pd.DataFrame, statements: list[str | Acknowledged]
) -> None:
    off = ends(table, "OFF", FORGETS)
    assert (off["lost_steps"] == off["acknowledged_steps"]).all()
    events = record(statements, synchronous="OFF")  # to its end: a WAL checkpoint was under way
    found = [
        look(survivors(events, fate=TEARS, rng=random.Random(seed)), messages=MESSAGES)
        for seed in range(10)
    ]
    assert DAMAGED in [end.verdict for end in found]
    assert SILENT not in [end.verdict for end in found]
    assert all("…/agent.db" in end.said for end in found if end.verdict == DAMAGED)


def test_a_killed_process_shows_none_of_this(table: pd.DataFrame) -> None:
    killed = table[table["fate"] == PROCESS_DEATH]
    assert set(killed["synchronous"]) == {"OFF", "NORMAL", "FULL"}
    assert killed["lost_steps"].sum() == 0
    assert set(killed["verdict"]) == {SOUND}


def test_the_same_statements_and_seed_give_the_same_table(
    statements: list[str | Acknowledged],
) -> None:
    first, second = (
        measure_power_loss(
            messages=MESSAGES, repeats=3, seed=9, settings=["OFF"], statements=statements
        )
        for _ in range(2)
    )
    pd.testing.assert_frame_equal(first, second)


def test_every_step_of_the_run_is_acknowledged_once(statements: list[str | Acknowledged]) -> None:
    told = [s.steps for s in statements if isinstance(s, Acknowledged)]
    assert told == list(range(len(MESSAGES) + 1))


def test_full_syncs_at_every_commit_normal_only_around_a_wal_checkpoint_and_off_never(
    statements: list[str | Acknowledged],
) -> None:
    syncs = {}
    for setting in ("OFF", "NORMAL", "FULL"):
        events = record(statements, synchronous=setting)
        begun = events.index(Acknowledged(0))  # before that, the tables are made
        syncs[setting] = sum(isinstance(event, Sync) for event in events[begun:])
    assert syncs["OFF"] == 0
    assert 0 < syncs["NORMAL"] < 10
    assert syncs["FULL"] >= len(MESSAGES)  # a step's writes and its checkpoint may share one


def test_a_setting_that_does_not_exist_is_refused(statements: list[str | Acknowledged]) -> None:
    with pytest.raises(ValueError, match="OFF, NORMAL, FULL"):
        record(statements, synchronous="SOMETIMES")


# --------------------------------------------------------------------------- the model of a disk


def test_what_was_synced_survives_and_what_was_not_is_forgotten() -> None:
    events: list[Event] = [
        Write("a", 0, b"safe"),
        Sync("a"),
        Write("a", 4, b"lost"),
        Write("b", 0, b"another file's sync does not help"),
        Acknowledged(1),
    ]
    rng = random.Random(0)
    assert survivors(events, fate=FORGETS, rng=rng) == {"a": b"safe", "b": b""}
    assert survivors(events, fate=PROCESS_DEATH, rng=rng)["a"] == b"safelost"


def test_a_sync_ends_what_was_cut_and_a_deleted_file_is_gone() -> None:
    events: list[Event] = [
        Write("a", 0, b"0123456789"),
        Truncate("a", 4),
        Sync("a"),
        Truncate("a", 1),
        Write("b", 0, b"x"),
        Sync("b"),
        Delete("b"),
    ]
    assert survivors(events, fate=FORGETS, rng=random.Random(0)) == {"a": b"0123"}
    assert survivors(events, fate=PROCESS_DEATH, rng=random.Random(0)) == {"a": b"0"}


def test_a_torn_write_arrives_in_whole_sectors_and_a_hole_reads_as_zeros() -> None:
    data = bytes(range(1, 5)) * 512  # 2,048 bytes, no zero among them
    events: list[Event] = [Write("a", 100, data)]
    seen = set()
    for seed in range(40):
        content = survivors(events, fate=TEARS, rng=random.Random(seed))["a"].ljust(2148, b"\0")
        assert content[:100] == bytes(100)
        # The first sector has room for 412 bytes after offset 100, then whole ones follow.
        edges = [100, 512, 1024, 1536, 2048, 2148]
        for start, end in pairwise(edges):
            part = content[start:end]
            assert part in (data[start - 100 : end - 100], bytes(end - start))
        seen.add(content)
    assert len(seen) > 10, "one and the same tear every time tests nothing"


def test_a_state_that_never_was_is_called_silent_damage(
    statements: list[str | Acknowledged],
) -> None:
    """The verdict must be able to say the worst."""
    files = survivors(
        record(statements, synchronous="FULL"), fate=PROCESS_DEATH, rng=random.Random(0)
    )
    assert look(files, messages=MESSAGES).verdict == SOUND
    assert look(files, messages=[*MESSAGES[:-1], "another end"]).verdict == SILENT


def test_the_figure_marks_damage_and_its_words_count_it(
    table: pd.DataFrame, tmp_path: Path
) -> None:
    damaged = table.copy()
    damaged.loc[0, "verdict"] = DAMAGED
    figure = crash_plots.power_loss(damaged)
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(FATES)
    crosses = [
        len(line.get_xdata())
        for axes in figure.axes
        for line in axes.get_lines()
        if line.get_marker() == "X"
    ]
    assert sum(crosses) == (damaged["verdict"] != SOUND).sum() >= 1
    assert "SIMULATED, n = 4" in figure._supxlabel.get_text()
    assert "damaged 1 of 4" in crash_plots.power_loss_alt(damaged)
    assert plots.png(figure)[:4] == b"\x89PNG"
