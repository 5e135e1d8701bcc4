"""One changed byte: noticed, named, recovered from, and the rest of the file untouched."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from durable_kit import BrokenChain, DeltaSaver
from durable_kit.lab import damage
from durable_kit.lab.conversations import generate
from durable_kit.lab.damage import flip_byte, look, make_specimen
from durable_kit.lab.storage_worker import open_saver
from durable_kit.lab.workloads import replay_conversation, sqlite_url


@pytest.fixture
def specimen(tmp_path: Path) -> Path:
    path = tmp_path / "specimen.db"
    stats = make_specimen(path, messages=20)
    assert stats.checkpoints == 22
    return path


@pytest.mark.parametrize("seed", range(5))
def test_a_flipped_bit_is_noticed_and_never_read_past(specimen: Path, seed: int) -> None:
    before = specimen.read_bytes()
    flip = flip_byte(specimen, Random(seed))
    after = specimen.read_bytes()
    assert [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == [
        flip.file_offset
    ]
    assert (flip.before ^ flip.after).bit_count() == 1
    seen = look(specimen, (flip,))
    assert seen.problems
    assert any(f"sequence {flip.sequence}" in problem for problem in seen.problems)
    if seen.error:
        assert seen.error.startswith("BrokenChain")
    else:  # the newest state does not lean on the damaged record
        assert seen.messages == 20


def test_recover_leaves_a_sound_and_shorter_thread(specimen: Path) -> None:
    flip_byte(specimen, Random(1), table="checkpoint_writes", sequence=12)
    with DeltaSaver.open(sqlite_url(specimen)) as saver, pytest.raises(BrokenChain):
        saver.get_tuple({"configurable": {"thread_id": damage.THREAD_ID}})
    recovery = damage.recover(specimen)
    assert recovery.lost_steps == 10
    seen = look(specimen)
    assert (seen.problems, seen.error, seen.messages) == ((), "", 10)


def test_compacting_first_lets_the_newest_state_outlive_an_old_message(specimen: Path) -> None:
    with DeltaSaver.open(sqlite_url(specimen)) as saver:
        assert saver.compact(damage.THREAD_ID) == 1
    flip_byte(specimen, Random(1), table="checkpoint_writes", sequence=12)
    seen = look(specimen)
    assert seen.problems
    assert (seen.messages, seen.error) == (20, "")


def test_a_deleted_record_is_noticed(specimen: Path) -> None:
    damage.delete_record(specimen, 12)
    assert "12" in "".join(look(specimen).problems)


def test_a_saver_of_whole_states_reads_a_flipped_bit_without_a_word(tmp_path: Path) -> None:
    path, said = tmp_path / "peer.db", generate(5, 6)
    with open_saver("sqlite", sqlite_url(path)) as saver:
        replay_conversation(saver, said, thread_id="t")
    damage.flip_in_whole_state(path, said[0]["content"])
    with open_saver("sqlite", sqlite_url(path)) as saver:
        read = saver.get_tuple({"configurable": {"thread_id": "t"}})
    messages = read.checkpoint["channel_values"]["messages"]
    assert messages[0] != said[0]
    assert messages[1:] == said[1:]


def test_the_same_seed_chooses_the_same_bit(tmp_path: Path) -> None:
    path = tmp_path / "specimen.db"
    make_specimen(path, messages=5)
    content = path.read_bytes()
    first = flip_byte(path, Random(3))
    path.write_bytes(content)
    assert flip_byte(path, Random(3)) == first


def test_an_open_database_and_an_empty_choice_are_refused(specimen: Path) -> None:
    with DeltaSaver.open(sqlite_url(specimen)) as saver:
        saver.get_tuple({"configurable": {"thread_id": damage.THREAD_ID}})
        with pytest.raises(ValueError, match="is open"):
            flip_byte(specimen, Random(1))
    with pytest.raises(ValueError, match="holds no body"):
        flip_byte(specimen, Random(1), sequence=999)
