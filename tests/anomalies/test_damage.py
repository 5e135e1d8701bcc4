"""Damage: a byte that flipped, a row that went, two rows that changed places.

A checkpoint that comes back with one byte changed looks like a checkpoint. LangGraph's own saver
gives it back; the agent goes on from a state that never was. The kit answers with the truth or
with an error, whatever was damaged and whatever is asked.

Each trial damages a fresh copy of a database in one place, opens it afresh, and asks every
question. The damage is one of three:

    noticed     a read raised a DurableKitError, or verify() names a problem
    harmless    every read gives exactly the undamaged answer
    silent      a read gave something else. There must be none.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from durable_kit import Database, DeltaSaver
from durable_kit.errors import BrokenChain, DurableKitError
from durable_kit.storage.record import thread_key
from durable_kit.storage.schema import migrate
from tests.contracts.builders import Line

from .stories import (
    POLICIES,
    Question,
    answers,
    questions_of,
    small_packs,
    sqlite_template,
    tell,
)

TABLES = (
    "checkpoint_heads",
    "checkpoints",
    "checkpoint_writes",
    "checkpoint_packs",
    "kit_schema",
)
SEED = 20_240_611
N = int(os.environ.get("DURABLE_KIT_DAMAGES", "100"))  # row damages for each policy
FILE_FLIPS = 40


@dataclass
class Trials:
    """Asks one database again and again, and counts what became of the damages."""

    database: Database
    questions: dict[str, Question]
    truth: dict[str, Any]
    counts: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, database: Database) -> Trials:
        saver = DeltaSaver(database)
        questions = questions_of(saver)
        trials = cls(database, questions, answers(saver, questions))
        assert not trials.reported(saver), "the story itself must be sound"
        return trials

    def run(self, damage: Damage, *, in_file: bool = False) -> None:
        """Open the damaged database with a fresh saver and ask all that it may have touched."""
        try:
            migrate(self.database)
        except DurableKitError:
            self.counts["noticed on opening"] += 1
            return
        saver = DeltaSaver(self.database)
        raised, wrong, missing = [], [], []
        turn = sum(self.counts.values())
        for name, question in self.questions.items():
            if question.thread_id is None and turn % 4 and "list" in name:
                continue  # all of everything takes its time
            if question.thread_id is not None and question.thread_id not in damage.threads:
                continue
            try:
                if question.ask(saver) != self.truth[name]:
                    (missing if in_file and "list" in name else wrong).append(name)
            except DurableKitError:
                raised.append(name)
            except sqlite3.OperationalError as error:  # the schema's own text: no such column
                (raised if in_file and "no such" in str(error) else wrong).append(
                    f"{name}: {error}"
                )
            except Exception as error:
                wrong.append(f"{name!r} let {type(error).__name__} out: {error}")
        try:
            reported = self.reported(saver, damage.threads)
        except Exception as error:
            reported = False
            wrong.append(f"verify() let {type(error).__name__} out: {error}")
        if missing and not reported:
            wrong += missing
        if wrong:
            self.counts["silent"] += 1
            self.bad.append(
                f"{damage.what}: {len(wrong)} wrong ({len(raised)} raised), {wrong[:3]}"
            )
            return
        self.counts["noticed" if raised or reported else "harmless"] += 1
        if raised and not reported and not in_file:
            self.bad.append(f"{damage.what}: {raised[:3]} raised, verify() saw nothing")

    def reported(self, saver: DeltaSaver, threads: set[str] | None = None) -> bool:
        """Whether verify() reports a problem in the threads, or in any that was ever there."""
        everyone = {thread_id for thread_id, _ in self.truth["threads()"]}
        return any(not saver.verify(thread_id).ok for thread_id in threads or everyone)

    def check(self) -> None:
        print(f"\n{sum(self.counts.values())} damages: {dict(self.counts)}")
        assert not self.bad, "\n".join([f"{len(self.bad)} bad:", *self.bad[:60]])


class Damage(NamedTuple):
    """What was done, and to which threads."""

    what: str
    threads: set[str]


@dataclass
class Damager:
    """Draws damages and does them with plain SQL, behind the kit's back.

    `execute(sql, *params)` runs a statement with `?` placeholders; `row_id` names a row.
    """

    rng: random.Random
    execute: Callable[..., list[Any]]
    row_id: str
    columns: dict[str, list[str]]
    owners: dict[int, str]
    touched: set[Any] = field(default_factory=set)

    def damage(self) -> Damage | None:
        """Do one damage; None where there was nothing to change."""
        kind = self.rng.choices(
            ("flip", "delete", "newest", "swap column", "swap row", "truncate", "other type"),
            (8, 2, 1, 4, 2, 2, 2),
        )[0]
        table = self.rng.choices(TABLES, (3, 8, 4, 2, 0.2))[0]
        rows = [row[0] for row in self.execute(f"SELECT {self.row_id} FROM {table} ORDER BY 1")]
        if not rows:
            return None
        row = self.rng.choice(rows)
        column = self.rng.choice(self.columns[table])
        self.touched = set()
        if kind == "delete":
            what = self._delete(table, row)
        elif kind == "newest":
            what = self._delete_newest()
        elif kind == "swap column":
            what = self._swap(table, rows, [column])
        elif kind == "swap row":
            what = self._swap(table, rows, self.columns[table])
        else:
            what = self._change(kind, table, column, row)
        if what is None:
            return None
        return Damage(what, {self.owners[key] for key in self.touched if key in self.owners})

    def _delete(self, table: str, row: Any) -> str:
        self._row(table, row)
        self.execute(f"DELETE FROM {table} WHERE {self.row_id} = ?", row)
        return f"row {row} of {table} deleted"

    def _delete_newest(self) -> str:
        logs = "SELECT thread_key, max(sequence) FROM checkpoints GROUP BY thread_key ORDER BY 1"
        key, newest = self.rng.choice(self.execute(logs))
        self.touched.add(key)
        with_writes = self.rng.random() < 0.5
        for table in ("checkpoints", "checkpoint_writes") if with_writes else ("checkpoints",):
            self.execute(f"DELETE FROM {table} WHERE thread_key = ? AND sequence = ?", key, newest)
        return f"the newest record, {newest} of log {key}, deleted ({with_writes=})"

    def _swap(self, table: str, rows: list[Any], columns: list[str]) -> str | None:
        if len(rows) < 2:
            return None
        one, other = self.rng.sample(rows, 2)
        values = {row: self._row(table, row) for row in (one, other)}
        if all(values[one][column] == values[other][column] for column in columns):
            return None
        for column in columns:
            values[one][column], values[other][column] = values[other][column], values[one][column]
        for row in (one, other):
            self.execute(f"DELETE FROM {table} WHERE {self.row_id} = ?", row)
        for row in (one, other):
            names, marks = ", ".join(values[row]), ", ".join("?" for _ in values[row])
            self.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", *values[row].values())
        what = "all" if len(columns) > 1 else columns[0]
        return f"{what} of rows {one} and {other} of {table} swapped"

    def _change(self, kind: str, table: str, column: str, row: Any) -> str | None:
        value = self._row(table, row).get(column)
        if kind == "truncate":
            changed = value[: self.rng.randrange(len(value))] if _sized(value) else value
        elif kind == "flip":
            changed = self._flipped(value)
        else:
            changed = self.rng.choice((None, "text", b"bytes", 7, -1, 2.5, 2**62, "", b""))
        mark = "?"
        if isinstance(changed, _Text):  # text whose bytes may no longer be UTF-8
            mark, changed = "CAST(? AS TEXT)", bytes(changed)
        after = self.execute(
            f"UPDATE {table} SET {column} = {mark} WHERE {self.row_id} = ? RETURNING {column}",
            changed,
            row,
        )
        if after[0][0] == value and type(after[0][0]) is type(value):
            return None
        return f"{kind} of {table}.{column}, row {row}: {_short(value)} -> {_short(changed)}"

    def _flipped(self, value: Any) -> Any:
        bit = 1 << self.rng.randrange(8)
        if isinstance(value, int):
            changed = (value ^ (bit << (8 * self.rng.randrange(8)))) % 2**64
            return changed - 2**64 if changed >= 2**63 else changed
        if not _sized(value):
            return value
        raw = bytearray(value.encode() if isinstance(value, str) else value)
        raw[self.rng.randrange(len(raw))] ^= bit
        return _Text(bytes(raw)) if isinstance(value, str) else bytes(raw)

    def _row(self, table: str, row: Any) -> dict[str, Any]:
        names = self.columns[table]
        sql = f"SELECT {', '.join(names)} FROM {table} WHERE {self.row_id} = ?"
        found = dict(zip(names, self.execute(sql, row)[0], strict=True))
        self.touched.add(found.get("thread_key"))
        return found


class _Text(bytes):
    """The bytes of a damaged text."""


def _sized(value: Any) -> bool:
    return isinstance(value, str | bytes) and len(value) > 0


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 50 else text[:50] + "…"


def sqlite_damage(path: Path, rng: random.Random, owners: dict[int, str]) -> Damage:
    """One damage to a SQLite file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA synchronous = OFF")
        raw.text_factory = lambda data: data.decode(errors="surrogateescape")

        def execute(sql: str, *params: Any) -> list[Any]:
            return raw.execute(sql, params).fetchall()

        columns = {
            table: [row[1] for row in raw.execute(f"PRAGMA table_info({table})")]
            for table in TABLES
        }
        while True:
            raw.execute("BEGIN")
            try:
                done = Damager(rng, execute, "rowid", columns, owners).damage()
            except sqlite3.IntegrityError:  # two rows with one key: the database refuses that
                done = None
            raw.execute("ROLLBACK" if done is None else "COMMIT")
            if done is not None:
                return done


def owners_of(truth: dict[str, Any]) -> dict[int, str]:
    """The threads by the key of their rows."""
    logs = {(name, namespace) for name, stored in truth["threads()"] for namespace in (stored, "")}
    return {thread_key(name, namespace): name for name, namespace in logs}


@pytest.mark.parametrize("policy", POLICIES)
def test_damage_to_any_row_is_noticed_or_harmless_and_never_silent(
    policy: str, tmp_path: Path
) -> None:
    file = tmp_path / "story.db"
    template = sqlite_template(file, POLICIES[policy])
    rng = random.Random(f"{SEED} {policy}")
    with Database.open(f"sqlite:///{file}", synchronous="OFF") as database:
        trials = Trials.of(database)
        owners = owners_of(trials.truth)
        for _ in range(N):
            database.close()
            for leftover in tmp_path.glob("story.db-*"):
                leftover.unlink()
            file.write_bytes(template)
            trials.run(sqlite_damage(file, rng, owners))
    trials.check()


def test_a_flipped_byte_anywhere_in_the_file_is_noticed_or_harmless(tmp_path: Path) -> None:
    file = tmp_path / "story.db"
    template = sqlite_template(file, POLICIES["SizeRatio()"])
    rng = random.Random(f"{SEED} file")
    with Database.open(f"sqlite:///{file}", synchronous="OFF") as database:
        trials = Trials.of(database)
        everyone = set(owners_of(trials.truth).values())
        for _ in range(FILE_FLIPS):
            database.close()
            for leftover in tmp_path.glob("story.db-*"):
                leftover.unlink()
            damaged = bytearray(template)
            at, bit = rng.randrange(len(damaged)), 1 << rng.randrange(8)
            damaged[at] ^= bit
            file.write_bytes(damaged)
            # A damaged index may hide rows from a listing, which verify() must see then; a
            # state that is given is right all the same.
            damage = Damage(f"byte {at} of the file, bit {bit}", everyone)
            trials.run(damage, in_file=True)
    trials.check()


@pytest.mark.postgres
def test_damage_is_noticed_on_postgresql_as_well(postgres_database: Callable[[], str]) -> None:
    rng = random.Random(f"{SEED} postgresql")
    with Database.open(postgres_database()) as database:
        with small_packs():
            tell(DeltaSaver(database, policy=POLICIES["SizeRatio(0.5)"]))
        trials = Trials.of(database)
        owners = owners_of(trials.truth)
        for name in list(trials.questions)[5::2]:  # half of them; a question takes longer here
            del trials.questions[name]
        with database.engine.begin() as connection:
            for table in TABLES:
                connection.exec_driver_sql(f"CREATE TABLE sound_{table} AS TABLE {table}")
        for _ in range(100):
            with database.engine.begin() as connection:
                for table in TABLES:
                    connection.exec_driver_sql(f"DELETE FROM {table}")
                    connection.exec_driver_sql(f"INSERT INTO {table} TABLE sound_{table}")
            trials.run(postgres_damage(database, rng, owners))
    trials.check()


def postgres_damage(database: Database, rng: random.Random, owners: dict[int, str]) -> Damage:
    """One damage to a PostgreSQL database."""
    import psycopg

    while True:
        connection = database.engine.raw_connection()
        cursor = connection.cursor()

        def execute(sql: str, *params: Any, cursor: Any = cursor) -> list[Any]:
            cursor.execute(sql.replace("?", "%s"), params)
            return list(cursor.fetchall()) if cursor.description else []

        columns: dict[str, list[str]] = {}
        for table in TABLES:
            cursor.execute(f"SELECT * FROM {table} LIMIT 0")
            columns[table] = [column.name for column in cursor.description]
        try:
            done = Damager(rng, execute, "ctid", columns, owners).damage()
            connection.commit()
        except psycopg.Error:  # a column keeps its type here, and a key stays a key
            done = None
        finally:
            connection.close()
        if done is not None:
            return done


def test_the_naive_saver_gives_back_a_state_that_never_was(tmp_path: Path) -> None:
    naive, kit = tmp_path / "naive.db", tmp_path / "kit.db"
    with SqliteSaver.from_conn_string(str(naive)) as peer:
        Line(peer, "t").put({"balance": "amount: 500 EUR"})
    with DeltaSaver.open(f"sqlite:///{kit}") as saver:
        Line(saver, "t").put({"balance": "amount: 500 EUR"})
    for file in (naive, kit):
        _drain_wal(file)
        content = file.read_bytes()
        assert content.count(b"amount: 500") == 1
        file.write_bytes(content.replace(b"amount: 500", b"amount: 900"))  # two bits

    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with SqliteSaver.from_conn_string(str(naive)) as peer:
        found = peer.get_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"balance": "amount: 900 EUR"}, "a lie"
    with DeltaSaver.open(f"sqlite:///{kit}") as saver:
        with pytest.raises(BrokenChain, match="does not match its checksum"):
            saver.get_tuple(config)


def test_the_naive_saver_loses_the_newest_step_without_a_word(tmp_path: Path) -> None:
    naive, kit = tmp_path / "naive.db", tmp_path / "kit.db"
    with SqliteSaver.from_conn_string(str(naive)) as peer:
        line = Line(peer, "t")
        line.put({"n": 1})
        line.put({"n": 2})
    with DeltaSaver.open(f"sqlite:///{kit}") as saver:
        line = Line(saver, "t")
        line.put({"n": 1})
        line.put({"n": 2})
    for file in (naive, kit):
        with closing(sqlite3.connect(file)) as raw, raw:
            newest = "SELECT max(rowid) FROM checkpoints"
            raw.execute(f"DELETE FROM checkpoints WHERE rowid = ({newest})")

    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    with SqliteSaver.from_conn_string(str(naive)) as peer:
        found = peer.get_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"n": 1}, "the step before, as if nothing were"
    with DeltaSaver.open(f"sqlite:///{kit}") as saver:
        for read in (saver.get_tuple, lambda c: list(saver.list(c, limit=1))):
            with pytest.raises(BrokenChain, match="missing"):
                read(config)


def test_writing_on_a_damaged_thread_is_refused_or_gives_a_state_that_reads_back(
    tmp_path: Path,
) -> None:
    file = tmp_path / "story.db"
    template = sqlite_template(file, POLICIES["EveryN(5)"])
    rng = random.Random(f"{SEED} writing")
    outcomes: Counter[str] = Counter()
    with Database.open(f"sqlite:///{file}", synchronous="OFF") as database:
        owners = owners_of(Trials.of(database).truth)
        for _ in range(100):
            database.close()
            for leftover in tmp_path.glob("story.db-*"):
                leftover.unlink()
            file.write_bytes(template)
            sound = DeltaSaver(database).get_tuple(_MAIN)
            assert sound is not None
            DeltaSaver(database).database.close()
            damage = sqlite_damage(file, rng, owners)
            outcomes[_go_on(DeltaSaver(database), sound, damage.what)] += 1
    print(f"\n{dict(outcomes)}")
    assert outcomes["refused"] > 10
    assert outcomes["stored"] > 10


def test_maintenance_of_a_damaged_thread_is_refused_or_changes_no_state(tmp_path: Path) -> None:
    file = tmp_path / "story.db"
    template = sqlite_template(file, POLICIES["SizeRatio(0.5)"])
    rng = random.Random(f"{SEED} maintenance")
    outcomes: Counter[str] = Counter()
    with small_packs(), Database.open(f"sqlite:///{file}", synchronous="OFF") as database:
        trials = Trials.of(database)
        owners = owners_of(trials.truth)
        names = sorted(set(owners.values()))
        truth = {name: states_of(DeltaSaver(database), name) for name in names}
        for _ in range(100):
            database.close()
            for leftover in tmp_path.glob("story.db-*"):
                leftover.unlink()
            file.write_bytes(template)
            damage = sqlite_damage(file, rng, owners)
            for name in damage.threads:
                what, work = rng.choice(MAINTENANCE)
                saver = DeltaSaver(database)
                sound = saver.verify(name).ok
                try:
                    work(saver, name)
                except DurableKitError:
                    assert not sound, damage.what
                    outcomes["refused"] += 1
                    continue
                outcomes["done"] += 1
                about = f"{damage.what}, then {what} of {name}"
                if what == "delete":
                    assert states_of(saver, name) == {}, about
                    continue
                try:
                    left = states_of(saver, f"new {name}" if what == "copy" else name)
                except DurableKitError:
                    assert what != "copy", f"{about}: the damage was copied"
                    continue  # as it did before
                assert left.items() <= truth[name].items(), about
                assert what == "prune" or len(left) == len(truth[name]), about
    print(f"\n{dict(outcomes)}")
    assert min(outcomes["refused"], outcomes["done"]) > 20


MAINTENANCE: list[tuple[str, Callable[[DeltaSaver, str], Any]]] = [
    ("compaction", lambda saver, name: saver.compact(name)),
    ("prune", lambda saver, name: saver.prune([name], keep_last=2)),
    ("copy", lambda saver, name: saver.copy_thread(name, f"new {name}")),
    ("delete", lambda saver, name: saver.delete_thread(name)),
]


def states_of(saver: DeltaSaver, name: str) -> dict[tuple[str, str], str]:
    """Every state of a thread with its writes, by namespace and id."""
    config: Any = {"configurable": {"thread_id": name}}
    return {
        (row.config["configurable"]["checkpoint_ns"], row.checkpoint["id"]): repr(
            (row.checkpoint, row.metadata, row.pending_writes)
        )
        for row in saver.list(config)
    }


_MAIN: Any = {"configurable": {"thread_id": "main", "checkpoint_ns": ""}}


def _go_on(saver: DeltaSaver, parent: Any, damage: str) -> str:
    """Put a child of `parent` and a write on it, and read them back."""
    values = {"messages": [*parent.checkpoint["channel_values"]["messages"], "after the damage"]}
    child = {
        **parent.checkpoint,
        "id": "1fffffff-8335-6428-8002-8a1503f9b875",
        "channel_values": values,
    }
    try:
        stored = saver.put(parent.config, child, {"source": "loop", "step": 99}, {})
        saver.put_writes(stored, [("messages", ["more"])], "a task", "a path")
    except DurableKitError:
        return "refused"
    try:
        found = saver.get_tuple(stored)
    except DurableKitError:
        return "stored, and its chain is reported as broken"
    assert found is not None, damage
    assert found.checkpoint["channel_values"] == values, damage
    assert found.pending_writes == [("a task", "messages", ["more"])], damage
    return "stored"


def _drain_wal(file: Path) -> None:
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
