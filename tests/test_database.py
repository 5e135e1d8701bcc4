"""One door to two databases: what goes through it is all there or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa

from durable_kit.errors import (
    BadInput,
    SchemaMismatch,
    StorageBusy,
    StorageDamaged,
    StorageFull,
)
from durable_kit.storage.database import Database
from durable_kit.storage.schema import MIGRATIONS, migrate


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database of the kit with one more table, `notes`."""
    with Database.open(database_url) as opened:
        make_notes(opened)
        yield opened


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    with Database.open(f"sqlite:///{tmp_path / 'kit.db'}") as opened:
        make_notes(opened)
        yield opened


@pytest.fixture
def memory() -> Iterator[Database]:
    with Database.open("sqlite://") as opened:
        make_notes(opened)
        yield opened


def make_notes(database: Database) -> None:
    with database.write() as tx:
        tx.execute("CREATE TABLE notes (id INTEGER, text TEXT)")


def add(database: Database, number: int, text: str = "") -> None:
    with database.write() as tx:
        tx.execute("INSERT INTO notes (id, text) VALUES (:id, :text)", id=number, text=text)


def add_and_fail(database: Database, *numbers: int, error: BaseException) -> None:
    with database.write() as tx:
        for number in numbers:
            tx.execute("INSERT INTO notes (id) VALUES (:id)", id=number)
        raise error


def run_all(database: Database, *statements: str, **params: Any) -> None:
    """Run statements in one transaction."""
    with database.write() as tx:
        for statement in statements:
            tx.execute(statement, **params)


def notes(database: Database) -> list[int]:
    with database.read() as tx:
        return [row[0] for row in tx.rows("SELECT id FROM notes ORDER BY id")]


def run_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip


# ------------------------------------------------------------------------ URLs


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "not a database URL"),
        ("kit.db", "not a database URL"),
        ("postgresql://host:port/name", "not a database URL"),
        (None, "not a database URL"),
        (5, "not a database URL"),
        ("mysql://host/name", "'mysql' is not supported"),
        ("nonsense://x", "'nonsense' is not supported"),
        ("sqlite+aiosqlite:///kit.db", "driver 'sqlite\\+aiosqlite' is not supported"),
        ("postgresql+asyncpg://host/name", "driver 'postgresql\\+asyncpg' is not supported"),
        ("postgresql+nonsense://host/name", "is not supported"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_what_can(url: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        Database.open(url)
    assert "ostgre" in str(caught.value)  # each says what the kit can use


def test_a_missing_directory_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"missing does not exist; make it first"):
        Database.open(f"sqlite:///{tmp_path / 'missing' / 'kit.db'}")
    assert not (tmp_path / "missing").exists()


def test_a_directory_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is a directory; name a file in it"):
        Database.open(f"sqlite:///{tmp_path}")


def test_another_file_is_no_database_and_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Mr Li\n" * 500)
    with pytest.raises(StorageDamaged, match="file is not a database"):
        Database.open(f"sqlite:///{path}")
    assert path.read_text() == "Dear Mr Li\n" * 500


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan"), float("inf"), 1e9])
def test_a_waiting_time_that_makes_no_sense_is_refused(seconds: float, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="busy_timeout_s"):
        Database.open(f"sqlite:///{tmp_path / 'kit.db'}", busy_timeout_s=seconds)
    assert list(tmp_path.iterdir()) == []


def test_a_synchronous_setting_that_sqlite_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="FULL"):
        Database.open(f"sqlite:///{tmp_path / 'kit.db'}", synchronous="OFF; DROP TABLE x")


def test_a_url_object_will_do(tmp_path: Path) -> None:
    with Database.open(sa.make_url(f"sqlite:///{tmp_path / 'kit.db'}")) as database:
        assert database.is_sqlite


def test_every_connection_has_the_durable_settings(sqlite: Database) -> None:
    def settings(read: Callable[[str], Any]) -> list[Any]:
        names = "journal_mode synchronous busy_timeout auto_vacuum".split()
        return [read(f"PRAGMA {name}") for name in names]

    with sqlite.write() as tx:
        by_writer = settings(lambda sql: tx.execute(sql).fetchone()[0])
    with sqlite.read() as one, sqlite.read() as two:
        by_readers = [
            settings(lambda sql, tx=tx: tx.execute(sql).fetchone()[0]) for tx in (one, two)
        ]
    with sqlite.engine.connect() as connection:
        by_engine = settings(lambda sql: connection.exec_driver_sql(sql).scalar())
    assert [by_writer, *by_readers, by_engine] == [["wal", 2, 30_000, 2]] * 4


# ------------------------------------------------------------------------ statements


def test_parameters_go_by_name_in_any_order_and_more_than_once(database: Database) -> None:
    with database.write() as tx:
        sql = "SELECT :b || :a || :b || '-' || :c"
        assert tx.row(sql, a="x", b="y", c="z")[0] == "yxy-z"
        assert tx.row(sql, c="z", b="b", a="a")[0] == "bab-z"


TRICKY = ["50%", "100 %s", "%(id)s", "a:b", ":id", "::text", "it's", 'a "name"', "?", "\\", "ü€"]


def test_values_are_never_read_as_sql(database: Database) -> None:
    with database.write() as tx:
        for text in TRICKY:
            tx.execute("INSERT INTO notes (text) VALUES (:text)", text=text)
        for text in TRICKY:
            assert tx.rows("SELECT text FROM notes WHERE text = :text", text=text) == [(text,)]


def test_percent_signs_and_colons_in_a_statement_mean_themselves(database: Database) -> None:
    add(database, 1, "50% at 12:30")
    add(database, 2, "60%")
    with database.read() as tx:
        assert tx.rows("SELECT id FROM notes WHERE text LIKE '50%'") == [(1,)]
        assert tx.rows("SELECT id FROM notes WHERE text LIKE '%%' ORDER BY id") == [(1,), (2,)]
        assert tx.rows("SELECT id FROM notes WHERE text LIKE '50%' AND id = :id", id=1) == [(1,)]
        assert tx.rows("SELECT id FROM notes WHERE text LIKE '%12:30' AND id = :id", id=1) == [(1,)]
        assert tx.rows("SELECT id % 2 FROM notes WHERE id = :id", id=2) == [(0,)]
        assert tx.row("SELECT 'a:b', '::', :x || ''", x="y") == ("a:b", "::", "y")
        assert tx.row("SELECT CAST(:n AS TEXT) || '%s' || '%(n)s'", n="5")[0] == "5%s%(n)s"


def test_values_come_back_as_they_went_in(database: Database) -> None:
    blob = bytes(range(256))
    kind = "BLOB" if database.is_sqlite else "BYTEA"
    with database.write() as tx:
        tx.execute(f"CREATE TABLE kinds (a BIGINT, b {kind}, c TEXT, d BIGINT)")
        tx.execute(
            "INSERT INTO kinds (a, b, c, d) VALUES (:a, :b, :c, :d)",
            a=-(2**63),
            b=blob,
            c="",
            d=None,
        )
        a, b, c, d = tx.row("SELECT a, b, c, d FROM kinds")
    assert (a, bytes(b), c, d) == (-(2**63), blob, "", None)


def test_a_missing_parameter_is_an_error_and_undoes_the_transaction(database: Database) -> None:
    statement = "INSERT INTO notes (id, text) VALUES (:id, :text)"
    with pytest.raises(Exception, match="text"):
        run_all(database, "INSERT INTO notes (id) VALUES (:id)", statement, id=1)
    assert notes(database) == []


def test_among_finds_the_rows_of_many_numbers(database: Database) -> None:
    with database.write() as tx:
        for number in (1, 2, 3, 4):
            tx.execute("INSERT INTO notes (id) VALUES (:id)", id=number)
        sql = f"SELECT id FROM notes WHERE {tx.among('id', 'wanted')} ORDER BY id"
        for numbers in ([], [1], [3, 1, 7], list(range(0, 4000, 2)), [-(2**63)]):
            found = [row[0] for row in tx.rows(sql, wanted=tx.many(numbers))]
            assert found == sorted({1, 2, 3, 4} & set(numbers))


# ------------------------------------------------------------------------ transactions


def test_a_block_that_raises_leaves_nothing_behind(database: Database) -> None:
    add(database, 1)
    for error in (ValueError("no"), KeyboardInterrupt(), GeneratorExit()):
        with pytest.raises(type(error)):
            add_and_fail(database, 2, 3, error=error)
    with pytest.raises(Exception, match="nowhere"):
        run_all(database, "INSERT INTO notes (id) VALUES (4)", "INSERT INTO nowhere VALUES (5)")
    assert notes(database) == [1]
    add(database, 6)
    assert notes(database) == [1, 6]


def test_nothing_is_seen_by_others_before_the_block_ends(database: Database) -> None:
    with database.write() as tx:
        tx.execute("INSERT INTO notes (id) VALUES (1)")
        assert notes(database) == []  # a read inside sees what was committed before
    assert notes(database) == [1]


def test_a_read_belongs_to_one_moment(database: Database) -> None:
    add(database, 1)
    with database.read() as tx:
        before = tx.rows("SELECT id FROM notes")
        thread = threading.Thread(target=add, args=(database, 2))
        thread.start()
        thread.join()
        assert tx.rows("SELECT id FROM notes") == before == [(1,)]
    assert notes(database) == [1, 2]


def test_a_write_inside_a_write_is_refused_instead_of_waiting_for_itself(
    database: Database,
) -> None:
    with database.write() as tx:
        tx.execute("INSERT INTO notes (id) VALUES (1)")
        with pytest.raises(BadInput, match="Pass its tx on"), database.write():
            pytest.fail("never entered")
        tx.execute("INSERT INTO notes (id) VALUES (2)")  # the outer one is unharmed
    assert notes(database) == [1, 2]
    add(database, 3)
    assert notes(database) == [1, 2, 3]


def test_a_write_inside_a_read_is_a_transaction_of_its_own(database: Database) -> None:
    with database.read() as outer:
        outer.rows("SELECT id FROM notes")
        add(database, 1)
        assert outer.rows("SELECT id FROM notes") == []
    assert notes(database) == [1]


def test_writers_in_many_threads_take_turns(database: Database) -> None:
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for number in range(first, first + 10):
                with database.write() as tx:
                    count = tx.row("SELECT count(*) FROM notes")[0]
                    tx.execute("INSERT INTO notes VALUES (:id, :n)", id=number, n=str(count))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n * 10,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert notes(database) == list(range(40))


# ------------------------------------------------------------------------ SQLAlchemy and pandas


def test_a_sqlalchemy_connection_writes_in_the_same_transaction(database: Database) -> None:
    table = sa.table("notes", sa.column("id"), sa.column("text"))
    with database.write() as tx:
        tx.execute("INSERT INTO notes (id) VALUES (1)")
        tx.connection.execute(sa.insert(table).values(id=2, text="core"))
        assert tx.connection.execute(sa.select(sa.func.count()).select_from(table)).scalar() == 2
    assert notes(database) == [1, 2]


def test_what_a_sqlalchemy_connection_wrote_is_undone_as_well(database: Database) -> None:
    def write_and_fail() -> None:
        with database.write() as tx:
            tx.connection.execute(sa.insert(sa.table("notes", sa.column("id"))).values(id=1))
            tx.execute("INSERT INTO notes (id) VALUES (2)")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write_and_fail()
    assert notes(database) == []
    add(database, 3)  # and the connection is good for more
    assert notes(database) == [3]


def test_pandas_reads_the_same_engine(database: Database) -> None:
    add(database, 1, "one")
    add(database, 2, "two")
    frame = pd.read_sql("SELECT id, text FROM notes ORDER BY id", database.engine)
    assert frame.to_dict("list") == {"id": [1, 2], "text": ["one", "two"]}
    query = sa.text("SELECT text FROM notes WHERE id = :id")
    assert pd.read_sql(query, database.engine, params={"id": 2}).text.to_list() == ["two"]
    add(database, 3)  # a reader that pandas forgot would be in the way


# ------------------------------------------------------------------------ in memory


def test_a_database_in_memory_keeps_what_is_written(memory: Database) -> None:
    add(memory, 1)
    with pytest.raises(ValueError, match="no"):
        add_and_fail(memory, 2, error=ValueError("no"))
    assert notes(memory) == [1]
    assert pd.read_sql("SELECT id FROM notes", memory.engine).id.to_list() == [1]
    memory.give_back()
    thread = threading.Thread(target=add, args=(memory, 3))
    thread.start()
    thread.join()
    assert notes(memory) == [1, 3]


def test_in_memory_a_read_inside_a_write_sees_the_open_transaction(memory: Database) -> None:
    with memory.write() as tx:
        tx.execute("INSERT INTO notes (id) VALUES (1)")
        assert notes(memory) == [1]
        with memory.read() as inner:
            assert inner is tx
        tx.execute("INSERT INTO notes (id) VALUES (2)")
    assert notes(memory) == [1, 2]


def test_two_databases_in_memory_are_two() -> None:
    with Database.open("sqlite://") as one, Database.open("sqlite:///:memory:") as two:
        make_notes(one)
        add(one, 1)
        make_notes(two)
        assert notes(two) == []


# ------------------------------------------------------------------------ closing


def test_closing_twice_is_harmless(database_url: str) -> None:
    database = Database.open(database_url)
    database.close()
    database.close()


def test_a_database_that_was_closed_opens_again_by_itself(database: Database) -> None:
    add(database, 1)
    database.close()
    add(database, 2)
    assert notes(database) == [1, 2]


def test_a_closed_file_leaves_no_wal_behind(tmp_path: Path) -> None:
    with Database.open(f"sqlite:///{tmp_path / 'kit.db'}") as database:
        make_notes(database)
        add(database, 1)
        notes(database)
        assert (tmp_path / "kit.db-wal").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["kit.db"]


def test_space_is_given_back(sqlite: Database, tmp_path: Path) -> None:
    with sqlite.write() as tx:
        for number in range(500):
            tx.execute("INSERT INTO notes VALUES (:id, :text)", id=number, text="x" * 2000)
    sqlite.give_back()
    full = (tmp_path / "kit.db").stat().st_size
    with sqlite.write() as tx:
        tx.execute("DELETE FROM notes")
    sqlite.give_back()
    assert (tmp_path / "kit.db").stat().st_size < full / 5


# ------------------------------------------------------------------------ other processes


@contextmanager
def write_lock_held(path: Path) -> Iterator[None]:
    """Another process holds the write lock for the length of the block."""
    other = run_python(
        """
        import sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        print("held", flush=True)
        sys.stdin.read()
        """,
        str(path),
    )
    assert other.stdout is not None
    with other:
        assert other.stdout.readline() == "held\n"
        yield
        other.communicate()


def test_a_write_lock_that_is_not_to_be_had_in_time_is_storage_busy(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'kit.db'}"
    with Database.open(url, busy_timeout_s=0.1) as database:
        make_notes(database)
        with write_lock_held(tmp_path / "kit.db"):
            began = time.monotonic()
            with pytest.raises(StorageBusy, match=r"for more than 0.1 s"), database.write():
                pytest.fail("never entered")
            assert time.monotonic() - began < 5
            assert notes(database) == []  # readers go on
            with Database.open(url, busy_timeout_s=0.1) as second:  # and so does opening
                assert notes(second) == []
        add(database, 1)  # the same call later
        assert notes(database) == [1]


def test_a_writer_waits_for_another_process_that_ends_in_time(sqlite: Database) -> None:
    path = Path(str(sqlite.url.database))
    with write_lock_held(path):
        writer = threading.Thread(target=add, args=(sqlite, 1))
        writer.start()
        writer.join(0.3)
        assert writer.is_alive()
    writer.join(20)
    assert notes(sqlite) == [1]


def test_a_full_disk_is_storage_full_and_nothing_was_stored(sqlite: Database) -> None:
    add(sqlite, 1)
    with sqlite.read() as tx:
        pages = tx.row("PRAGMA page_count")[0]
    insert = "INSERT INTO notes VALUES (2, :text)"
    with pytest.raises(StorageFull, match="Make room"):
        run_all(sqlite, f"PRAGMA max_page_count = {pages}", *[insert] * 50, text="x" * 4000)
    assert notes(sqlite) == [1]


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


@needs_fork
def test_a_child_made_by_fork_gets_connections_of_its_own(tmp_path: Path) -> None:
    parent = run_python(
        """
        import os, sys
        from durable_kit.storage.database import Database

        database = Database.open(sys.argv[1], busy_timeout_s=10)
        with database.write() as tx:
            tx.execute("CREATE TABLE notes (id INTEGER)")
            tx.execute("INSERT INTO notes (id) VALUES (1)")
        pid = os.fork()
        if pid == 0:
            with database.write() as tx:
                tx.execute("INSERT INTO notes (id) VALUES (2)")
            sys.exit(0)  # everything in memory is taken down
        assert os.waitpid(pid, 0)[1] == 0
        with database.write() as tx:
            tx.execute("INSERT INTO notes (id) VALUES (3)")
            print(tx.rows("SELECT id FROM notes"), tx.row("PRAGMA integrity_check"))
        database.close()
        """,
        f"sqlite:///{tmp_path / 'kit.db'}",
    )
    out, _ = parent.communicate(timeout=60)
    assert out == "[(1,), (2,), (3,)] ('ok',)\n"


@needs_fork
def test_a_child_forked_in_the_midst_of_a_transaction_does_not_touch_it(tmp_path: Path) -> None:
    parent = run_python(
        """
        import gc, os, sys
        from durable_kit.errors import BadInput
        from durable_kit.storage.database import Database

        database = Database.open(sys.argv[1], busy_timeout_s=10)
        with database.write() as tx:
            tx.execute("CREATE TABLE notes (id INTEGER)")
            pid = os.fork()
            if pid == 0:
                try:
                    with database.read():
                        os._exit(1)
                except BadInput as error:
                    assert "spawn" in str(error)
                database.close()
                gc.collect()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            tx.execute("INSERT INTO notes (id) VALUES (1)")
        with database.write() as tx:
            print(tx.rows("SELECT id FROM notes"), tx.row("PRAGMA integrity_check"))
        """,
        f"sqlite:///{tmp_path / 'kit.db'}",
    )
    out, _ = parent.communicate(timeout=60)
    assert out == "[(1,)] ('ok',)\n"


# ------------------------------------------------------------------------ migrations


def tables(database: Database) -> set[str]:
    return set(sa.inspect(database.engine).get_table_names())


def test_migrating_again_changes_nothing(database: Database) -> None:
    before = tables(database)
    add(database, 1)
    for _ in range(2):
        migrate(database)
        Database.open(database.url).close()
    assert tables(database) == before
    assert notes(database) == [1]
    with database.read() as tx:
        assert tx.rows("SELECT version FROM kit_schema") == [(len(MIGRATIONS),)]


def test_a_database_of_newer_code_is_refused(database: Database) -> None:
    with database.write() as tx:
        tx.execute("UPDATE kit_schema SET version = 99")
    with pytest.raises(SchemaMismatch, match=r"version 99; this code knows .*Update durable_kit"):
        Database.open(database.url)


def test_a_schema_version_that_was_lost_or_changed_by_hand_is_refused(database: Database) -> None:
    before = tables(database)
    for damage in (
        "UPDATE kit_schema SET version = 0",
        "UPDATE kit_schema SET version = -1",
        "INSERT INTO kit_schema (version) VALUES (1)",
        "DELETE FROM kit_schema",
    ):
        with database.write() as tx:
            tx.execute(damage)
        with pytest.raises(SchemaMismatch, match="one row with the schema version"):
            Database.open(database.url)
        assert tables(database) == before


def test_tables_without_a_schema_version_are_refused_and_left_alone(database: Database) -> None:
    add(database, 1)
    with database.write() as tx:
        tx.execute("DROP TABLE kit_schema")
    before = tables(database)
    with pytest.raises(SchemaMismatch, match="kit_schema does not say so"):
        Database.open(database.url)
    assert tables(database) == before
    assert notes(database) == [1]


def test_a_migration_that_dies_half_way_leaves_nothing(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = (*MIGRATIONS[0][:-1], "CREATE TABLE nonsense (")
    monkeypatch.setattr("durable_kit.storage.schema.MIGRATIONS", (broken,))
    with pytest.raises(Exception, match=r"syntax|incomplete"):
        Database.open(database_url)
    monkeypatch.undo()
    with closing(Database.open(database_url)) as database:
        assert "nonsense" not in tables(database)
        assert "checkpoints" in tables(database)


def test_many_that_start_at_once_make_one_set_of_tables(database_url: str) -> None:
    opened: list[Database] = []
    failures: list[BaseException] = []
    together = threading.Barrier(6)

    def start() -> None:
        together.wait()
        try:
            opened.append(Database.open(database_url))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with opened[0].read() as tx:
        assert tx.rows("SELECT version FROM kit_schema") == [(len(MIGRATIONS),)]
    for database in opened:
        database.close()
