"""Records brought up to date in place: killed anywhere, run again, shown beforehand, undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from durable_kit import Database, DeltaSaver
from durable_kit.__main__ import main
from durable_kit.crash.child import Child
from durable_kit.crash_point import ANNOUNCEMENT
from durable_kit.storage.tx import Tx
from durable_kit.versions.drain import drain_report
from durable_kit.versions.migration import NewerState
from durable_kit.versions.rewrite import CRASH_POINTS, migrate, put_back
from tests.versions import migrate_worker
from tests.versions.flows import thread
from tests.versions.test_migration import YES, _code, code_1, stored_bytes

WORKER = "tests.versions.migrate_worker"
THREADS = ("one", "two", "three")


def open_new(url: str) -> DeltaSaver:
    return DeltaSaver.open(url, migrations=migrate_worker.migrations())


def code_3(saver: Any) -> Any:
    return _code(saver, "cents", lambda cents, add: cents + 100 * add, review="approve")


def populate(url: str) -> None:
    with DeltaSaver.open(url) as saver:
        for name in THREADS:
            code_1(saver).invoke({"total": "49.90"}, thread(name))


def seen(saver: DeltaSaver, *names: str) -> list[Any]:
    """All that a reader can see of some threads, history and pending writes included."""
    return [
        (found.config, found.checkpoint, found.metadata, found.parent_config, found.pending_writes)
        for name in names or THREADS
        for found in saver.list(thread(name))
    ]


def test_what_is_seen_does_not_change_and_is_stored_as_it_is_seen(database_url: str) -> None:
    populate(database_url)
    with open_new(database_url) as saver:
        before = seen(saver)
        report = migrate(saver, dry_run=False)
        assert seen(saver) == before
        assert [change.thread_id for change in report.changes] == sorted(THREADS)
        assert all(saver.verify(name).ok for name in THREADS)
        assert drain_report(saver).may_remove_step(3)
        assert code_3(saver).invoke(YES, thread("one"))["cents"] == 4990 + 1000 + 100


def test_a_dry_run_finds_what_the_run_does_and_writes_nothing(database_url: str) -> None:
    populate(database_url)
    with open_new(database_url) as saver:
        bytes_before = stored_bytes(saver.database)
        told = migrate(saver, dry_run=True)
        assert stored_bytes(saver.database) == bytes_before
        assert not drain_report(saver).may_remove_step(2)
        assert migrate(saver, dry_run=False) == told
        [change] = [change for change in told.changes if change.thread_id == "one"]
        assert (change.gone, change.new) == (
            ("branch:to:review", "total"),
            ("branch:to:approve", "cents"),
        )
        assert change.waits_at == (("review", "tax"), ("approve", "tax"))
        assert change.moved_writes >= 2


def test_migrating_again_changes_nothing(database_url: str) -> None:
    populate(database_url)
    with open_new(database_url) as saver:
        migrate(saver, dry_run=False)
        bytes_before = stored_bytes(saver.database)
        again = migrate(saver, dry_run=False)
        assert (again.changes, again.left, again.current) == ((), (), len(THREADS))
        assert stored_bytes(saver.database) == bytes_before


@pytest.mark.parametrize("crash_at", CRASH_POINTS)
def test_a_migration_that_is_killed_goes_on_where_it_was(tmp_path: Any, crash_at: str) -> None:
    url = f"sqlite:///{tmp_path / 'kit.db'}"
    populate(url)
    with open_new(url) as saver:
        before = seen(saver)
    with Child.start(WORKER, [url], crash_at=crash_at) as child:
        child.until(ANNOUNCEMENT + crash_at, timeout_s=60)
        assert child.kill().killed
    with open_new(url) as saver:
        assert seen(saver) == before
        assert all(saver.verify(name).ok for name in THREADS)
        left = 2 if crash_at == "migrate.after_thread" else 3
        assert len(migrate(saver, dry_run=False).changes) == left
        assert seen(saver) == before
        for name in THREADS:
            assert code_3(saver).invoke(YES, thread(name))["cents"] == 6090


def test_a_failure_at_any_statement_leaves_the_thread_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with DeltaSaver.open("sqlite:///:memory:") as saver:
        code_1(saver).invoke({"total": "49.90"}, thread("one"))
        new = DeltaSaver(saver.database, migrations=migrate_worker.migrations())
        before, bytes_before = seen(new), stored_bytes(saver.database)
        failures = 0
        while True:
            with monkeypatch.context() as patched:
                fail_at_write(patched, failures + 1)
                try:
                    migrate(new, dry_run=False)
                    break
                except RuntimeError:
                    failures += 1
            assert stored_bytes(saver.database) == bytes_before
            assert seen(new) == before
        assert failures >= 6, "writes, record, head and the original: each failed once"
        assert seen(new) == before


def fail_at_write(patched: pytest.MonkeyPatch, at: int) -> None:
    """Let the statement number `at` that writes raise, counted from now."""
    count = 0
    real: Callable[..., Any] = Tx.execute

    def failing(self: Any, sql: str, **params: Any) -> Any:
        nonlocal count
        if sql.split(maxsplit=1)[0] in ("INSERT", "UPDATE", "DELETE"):
            count += 1
            if count == at:
                raise RuntimeError("the database is gone")
        return real(self, sql, **params)

    patched.setattr(Tx, "execute", failing)


def test_old_code_refuses_what_was_migrated_and_takes_it_over_when_it_was_put_back(
    database_url: str,
) -> None:
    populate(database_url)
    with DeltaSaver.open(database_url) as old:
        before = seen(old)
    with open_new(database_url) as saver:
        migrate(saver, dry_run=False)
        code_3(saver).invoke(YES, thread("three"))
    with DeltaSaver.open(database_url) as old:
        with pytest.raises(NewerState):
            code_1(old).get_state(thread("one"))
        assert put_back(old) == 2
        assert put_back(old) == 0
        others = [one for one in before if one[0]["configurable"]["thread_id"] != "three"]
        assert seen(old, "one", "two") == others
        assert code_1(old).invoke(YES, thread("one"))["total"] == "60.90"
        with pytest.raises(NewerState):
            code_1(old).get_state(thread("three"))
    with Database.open(database_url) as database, database.read() as tx:
        assert tx.row("SELECT count(*) FROM checkpoint_originals") == (1,)


def test_a_deleted_thread_takes_its_original_with_it(database_url: str) -> None:
    populate(database_url)
    with open_new(database_url) as saver:
        migrate(saver, dry_run=False)
        for name in THREADS:
            saver.delete_thread(name)
        with saver.database.read() as tx:
            assert tx.row("SELECT count(*) FROM checkpoint_originals") == (0,)


def test_a_writer_that_was_quicker_is_not_overwritten(database_url: str) -> None:
    populate(database_url)
    with open_new(database_url) as saver, open_new(database_url) as other:
        graph = code_3(other)
        real = saver.migrations.upcast
        resumed = []

        def upcast(stored: Any) -> Any:
            if not resumed:
                resumed.append(graph.invoke(YES, thread("one")))
            return real(stored)

        saver.migrations.upcast = upcast  # type: ignore[method-assign]
        report = migrate(saver, dry_run=False)
        assert resumed
        assert code_3(saver).get_state(thread("one")).values["cents"] == 6090
        assert "one" in {change.thread_id for change in report.changes} or report.current


# -- the commands ------------------------------------------------------------------------------


def test_the_commands_show_the_dry_run_migrate_and_count(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'kit.db'}"
    populate(url)
    where = ["--migrations", f"{WORKER}:MIGRATIONS"]
    assert main(["migrate", url, *where, "--dry-run"]) == 0
    dry = capsys.readouterr().out
    assert "3 would change, 0 at version 3 already" in dry
    assert "-total +branch:to:approve +cents" in dry
    assert main(["migrate", url, *where]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == dry.splitlines()[:-1]
    assert main(["drain", url, "--flow-version", "1"]) == 1
    drained = capsys.readouterr().out
    assert "flow_version 1: 3 unfinished, 0 ended: its path must stay" in drained
    assert main(["drain", url, "--flow-version", "2"]) == 0


@pytest.mark.parametrize(
    ("where", "complaint"),
    [
        ("nowhere", "give MODULE:NAME"),
        ("no_such_module:M", "cannot be had"),
        (f"{WORKER}:NONE", "cannot be had"),
        (f"{WORKER}:cents", "is function, not Migrations"),
    ],
)
def test_migrations_that_are_not_there_are_a_question_that_cannot_be_asked(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], where: str, complaint: str
) -> None:
    url = f"sqlite:///{tmp_path / 'kit.db'}"
    populate(url)
    assert main(["migrate", url, "--migrations", where]) == 2
    assert complaint in capsys.readouterr().err
