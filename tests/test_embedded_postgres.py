"""The PostgreSQL from a wheel: starts, gives URLs, and leaves nothing behind."""

from pathlib import Path

import pytest
import sqlalchemy

from durable_kit.lab import embedded_postgres as module
from durable_kit.lab.embedded_postgres import (
    EmbeddedPostgres,
    EmbeddedPostgresError,
    ScratchDatabases,
)


def test_a_missing_package_is_said_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKAGE", "no_such_package_anywhere")
    with pytest.raises(EmbeddedPostgresError, match=r"pip install 'durable_kit\[postgres\]'"):
        EmbeddedPostgres().start()


def test_root_may_not_open_a_private_folder_to_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    monkeypatch.setattr(module, "_is_root", lambda: True)
    with pytest.raises(EmbeddedPostgresError, match="may not enter"):
        EmbeddedPostgres(private / "data").start()
    assert private.stat().st_mode & 0o077 == 0


def test_a_server_that_does_not_run_has_no_url() -> None:
    with pytest.raises(EmbeddedPostgresError, match="not running"):
        _ = EmbeddedPostgres().url


@pytest.mark.postgres
def test_scratch_databases_are_fresh_measured_and_gone_at_the_end() -> None:
    with ScratchDatabases() as databases:
        engine = sqlalchemy.create_engine(databases.url_of("scratch_a"))
        empty = databases.table_bytes("scratch_a")
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("CREATE TABLE t (x TEXT)"))
            connection.execute(sqlalchemy.text("INSERT INTO t SELECT repeat('x', 100)"))
        assert databases.table_bytes("scratch_a") > empty == 0
        databases.drop("scratch_a")  # while the engine is still connected
        engine.dispose()
        again = sqlalchemy.create_engine(databases.url_of("scratch_a"))
        assert not sqlalchemy.inspect(again).has_table("t")
        again.dispose()
        assert databases.settings()["fsync"] == "on"
        folder = Path(databases._admin_url.query["host"]).parent
        assert folder.exists()
    assert not folder.exists()
