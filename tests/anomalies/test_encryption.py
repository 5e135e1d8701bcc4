"""Encryption: nothing readable on the disk, small deltas all the same, and a wrong key says so.

A cipher draws a new nonce each time, so a store that compares ciphertexts finds everything changed
at every step. Here states are compared in memory and what goes to disk is sealed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from durable_kit import Database, DeltaSaver
from durable_kit.errors import BrokenChain, DurableKitError
from tests.contracts.builders import Line, facts

from .graphs import talking_graph, thread
from .stories import small_packs, tell

KEY, WRONG = b"sixteen byte key", b"another 16 bytes"
SECRET = "the patient's name is Li"


def encrypted(key: bytes = KEY) -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(key=key)


def kit_codec_encrypted(key: bytes = KEY) -> EncryptedSerializer:
    """The kit's own strict codec inside the cipher."""
    with Database.open("sqlite://") as database:
        codec: Any = DeltaSaver(database).serde
    return EncryptedSerializer.from_pycryptodome_aes(serde=codec, key=key)


@pytest.fixture(params=[encrypted, kit_codec_encrypted])
def serde(request: pytest.FixtureRequest) -> EncryptedSerializer:
    made: EncryptedSerializer = request.param()
    return made


def secrets(saver: DeltaSaver) -> Line:
    """A thread with the secret in every place that the cipher covers."""
    line = Line(saver, "t")
    messages: list[Any] = []
    for step in range(6):
        at = line.put(
            {
                "messages": list(messages),
                "notes": {f"{SECRET} {step}": SECRET},
                "draft": SECRET * step,
            },
            metadata={"about": SECRET, SECRET: step},
        )
        said = [HumanMessage(f"{SECRET} {step}", id=f"m{step}"), AIMessage(SECRET, id=f"a{step}")]
        line.write(at, ("messages", said), ("__error__", ValueError(SECRET)), task=f"t{step}")
        messages += said
    return line


def test_no_message_metadata_or_error_is_readable_on_the_disk(
    tmp_path: Path, serde: EncryptedSerializer
) -> None:
    for name, used in (("plain.db", None), ("sealed.db", serde)):
        folder = tmp_path / name
        folder.mkdir()
        with small_packs(), DeltaSaver.open(f"sqlite:///{folder / name}", serde=used) as saver:
            secrets(saver)
            saver.compact("t")
            content = b"".join(file.read_bytes() for file in folder.iterdir())
            with saver.database.read() as tx:  # the comments of the schema are no secret
                for (statement,) in tx.rows("SELECT sql FROM sqlite_master WHERE sql <> ''"):
                    content = content.replace(statement.encode(), b"")
        readable = SECRET.encode() in content
        assert readable == (used is None), name
        if used is not None:
            assert b"HumanMessage" not in content
            assert b"messages" not in content, "not even the names of the channels"


def test_what_was_sealed_comes_back_also_in_another_process_and_after_maintenance(
    database_url: str, serde: EncryptedSerializer
) -> None:
    with DeltaSaver.open(database_url, serde=serde) as saver, small_packs():
        line = secrets(saver)
        before = [facts(row) for row in line.rows()]
        saver.compact("t")
        saver.copy_thread("t", "copy")
        saver.prune(["copy"], keep_last=2)
    with DeltaSaver.open(database_url, serde=serde) as another:
        assert [facts(row) for row in another.list(thread("t"))] == before
        assert len(list(another.list(thread("copy")))) == 2
        found = list(another.list(thread("t"), filter={"about": SECRET, SECRET: 3}))
        assert [row.metadata[SECRET] for row in found] == [3]  # type: ignore[literal-required]
        assert another.verify("t").ok
        assert another.verify("copy").ok


def test_deltas_stay_small_under_a_cipher(database_url: str, serde: EncryptedSerializer) -> None:
    with DeltaSaver.open(database_url, serde=serde) as saver:
        line = Line(saver, "t")
        messages = [HumanMessage("x" * 300, id=f"m{n}") for n in range(200)]
        line.put({"messages": list(messages)})
        first = saver.stats("t").live_bytes
        for n in range(30):
            messages.append(HumanMessage("y" * 300, id=f"n{n}"))
            line.put({"messages": list(messages)})
        grown = saver.stats("t").live_bytes - first
        assert grown < 30 * 1500 < first, f"{grown / 30:.0f} bytes a step"


def test_a_cipher_over_every_message_alone_would_find_everything_changed() -> None:
    seal = encrypted()
    message = HumanMessage(SECRET, id="m")
    assert seal.dumps_typed(message) != seal.dumps_typed(message)


READS = {
    "get_tuple": lambda saver: saver.get_tuple(thread("main")),
    "list": lambda saver: list(saver.list(thread("main"))),
    "list by metadata": lambda saver: list(saver.list(thread("main"), filter={"step": 1})),
    "list of all": lambda saver: list(saver.list(None, limit=3)),
    "delta history": lambda saver: saver.get_delta_channel_history(
        config=thread("delta channel"), channels=["log"]
    ),
    "compact": lambda saver: saver.compact("main"),
    "prune": lambda saver: saver.prune(["main"], keep_last=2),
    "a graph": lambda saver: talking_graph(saver).get_state(thread("main")),
    "a put": lambda saver: saver.put(
        next(DeltaSaver(saver.database, serde=encrypted()).list(thread("main"), limit=1)).config,
        Line(saver, "main").saver and _a_checkpoint(),
        {},
        {},
    ),
}


def _a_checkpoint() -> Any:
    return {
        "v": 4,
        "id": "1fffffff-0000-6000-8000-000000000000",
        "ts": "2024-05-06T07:08:09+00:00",
        "channel_values": {"n": 1},
        "channel_versions": {"n": 1},
        "versions_seen": {},
        "updated_channels": ["n"],
    }


@pytest.fixture
def sealed(database_url: str) -> Iterator[Database]:
    with Database.open(database_url) as database:
        with small_packs():
            tell(DeltaSaver(database, serde=encrypted()))
        yield database


@pytest.mark.parametrize("how", ["wrong key", "no key", "plain serde"])
def test_reading_without_the_right_key_is_an_error_that_says_so(sealed: Database, how: str) -> None:
    serde = {"wrong key": encrypted(WRONG), "no key": None, "plain serde": JsonPlusSerializer()}[
        how
    ]
    before = _rows(sealed)
    for name, read in READS.items():
        with pytest.raises(DurableKitError) as error:
            read(DeltaSaver(sealed, serde=serde))
        assert isinstance(error.value, BrokenChain), f"{name}: {error.value!r}"
        if how == "wrong key":
            assert "another key" in str(error.value), f"{name}: {error.value}"
        assert SECRET not in str(error.value)
    saver = DeltaSaver(sealed, serde=serde)
    assert not saver.verify("main").ok, "the records cannot be opened"
    assert _rows(sealed) == before, "and nothing was changed by trying"
    assert DeltaSaver(sealed, serde=encrypted()).verify("main").ok


def test_a_plain_thread_read_with_a_key_is_an_error_that_says_so(database_url: str) -> None:
    with Database.open(database_url) as database:
        with small_packs():
            tell(DeltaSaver(database))
        for name, read in READS.items():
            if name == "a put":
                continue
            with pytest.raises(DurableKitError) as error:
                read(DeltaSaver(database, serde=encrypted()))
            assert isinstance(error.value, BrokenChain), f"{name}: {error.value!r}"


def _rows(database: Database) -> list[Any]:
    with database.read() as tx:
        return [
            tx.rows(f"SELECT * FROM {table} ORDER BY 1, 2")
            for table in (
                "checkpoint_heads",
                "checkpoints",
                "checkpoint_writes",
                "checkpoint_packs",
            )
        ]
