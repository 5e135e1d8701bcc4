"""``python -m durable_kit``: the answers, the exit codes, and one sentence when it cannot."""

import json
import operator
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

from durable_kit.__main__ import main
from durable_kit.cli import doctor, measure
from durable_kit.cli.terminal import Progress
from durable_kit.delta_saver import DeltaSaver
from durable_kit.storage.snapshot_policy import EveryN


def run_agent(url: str, *threads: str, steps: int = 12) -> None:
    state: Any = TypedDict("State", {"messages": Annotated[list, operator.add]})
    builder: Any = StateGraph(state)
    builder.add_node("step", lambda state: {"messages": [f"message {len(state['messages'])}"]})
    builder.add_edge(START, "step")
    builder.add_conditional_edges(
        "step", lambda state: "step" if len(state["messages"]) < steps else END, ["step", END]
    )
    with DeltaSaver.open(url, policy=EveryN(50)) as saver:
        graph = builder.compile(checkpointer=saver)
        for thread in threads:
            graph.invoke({"messages": []}, {"configurable": {"thread_id": thread}})


@pytest.fixture
def kit_url(database_url: str) -> str:
    run_agent(database_url, "order-1001", "order-1002")
    return database_url


@pytest.fixture
def kit_file(tmp_path: Path) -> Path:
    run_agent(f"sqlite:///{tmp_path / 'kit.db'}", "order-1001", "order-1002")
    return tmp_path / "kit.db"


class TestHelp:
    def test_it_names_every_command_and_the_exit_codes(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["--help"]) == 0
        text = capsys.readouterr().out
        for command in ("doctor", "inspect", "verify", "compact", "stats", "measure"):
            assert command in text
        assert "130 interrupted" in text

    @pytest.mark.parametrize(
        "command", ["doctor", "inspect", "verify", "compact", "stats", "measure storage"]
    )
    def test_each_command_teaches_an_example_and_its_exit_codes(
        self, command: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*command.split(), "--help"]) == 0
        text = capsys.readouterr().out
        assert f"example:\n  python -m durable_kit {command}" in text
        assert "exit codes:\n  0 " in text
        assert max(map(len, text.splitlines())) <= 110

    def test_it_loads_nothing_heavy(self) -> None:
        script = (
            "import sys; from durable_kit.__main__ import main; main(['measure', '--help'])\n"
            "heavy = {'sqlalchemy', 'langgraph', 'pandas', 'tqdm'} & set(sys.modules)\n"
            "sys.exit(f'loaded {heavy}' if heavy else 0)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def test_a_wrong_command_is_exit_2(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["nonsense"]) == 2
        assert "invalid choice" in capsys.readouterr().err


class TestStoredThreads:
    def test_inspect_lists_the_threads(
        self, kit_url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["inspect", kit_url]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["thread", "namespace"]
        assert sorted(line.split()[0] for line in lines[1:]) == ["order-1001", "order-1002"]

    def test_inspect_shows_the_records_of_a_thread_in_order(
        self, kit_url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["inspect", kit_url, "--thread", "order-1001"]) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines[0][:5] == ["sequence", "kind", "checkpoint", "parent", "bytes"]
        with DeltaSaver.open(kit_url) as saver:
            records = list(saver.records("order-1001"))
        assert [line[0] for line in lines[1:]] == [str(record.sequence) for record in records]
        assert [line[2] for line in lines[1:]] == [record.checkpoint_id for record in records]
        assert {line[1] for line in lines[1:]} == {"snapshot", "delta"}

    def test_verify_says_that_good_records_are_good(
        self, kit_url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["verify", kit_url]) == 0
        assert "every record is good" in capsys.readouterr().out
        assert main(["verify", kit_url, "--thread", "order-1002"]) == 0

    def test_compact_makes_a_snapshot_and_stats_count_it(
        self, kit_url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with DeltaSaver.open(kit_url) as saver:
            before = saver.stats("order-1001")
        assert before.replay_depth > 0
        assert main(["compact", kit_url, "--thread", "order-1001"]) == 0
        assert "order-1001: 1 checkpoints rewritten" in capsys.readouterr().out
        assert main(["stats", kit_url, "--thread", "order-1001"]) == 0
        rows = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:])
        assert rows["replay_depth"] == "0"
        assert rows["snapshots"] == str(before.snapshots + 1)

    @pytest.mark.parametrize("command", ["inspect", "verify", "compact", "stats"])
    def test_an_unknown_thread_is_exit_2_and_names_those_that_exist(
        self, command: str, kit_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([command, f"sqlite:///{kit_file}", "--thread", "order-1"]) == 2
        error = capsys.readouterr().err
        assert "no thread 'order-1'" in error
        assert "order-1001, order-1002" in error


class TestDamage:
    @pytest.fixture
    def damaged(self, kit_file: Path) -> str:
        with closing(sqlite3.connect(kit_file)) as connection:
            key, sequence, body = connection.execute(
                "SELECT thread_key, sequence, body FROM checkpoints WHERE kind = 'delta' LIMIT 1"
            ).fetchone()
            flipped = bytes([*body[:-1], body[-1] ^ 1])
            connection.execute(
                "UPDATE checkpoints SET body = ? WHERE thread_key = ? AND sequence = ?",
                [flipped, key, sequence],
            )
            connection.commit()
        return f"sqlite:///{kit_file}"

    def test_verify_is_exit_1_and_prints_each_bad_record(
        self, damaged: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["verify", damaged]) == 1
        text = capsys.readouterr().out
        with DeltaSaver.open(damaged) as saver:
            problems = [p for t in ("order-1001", "order-1002") for p in saver.verify(t).problems]
        assert problems
        for problem in problems:
            assert problem.found in text
        assert "of 2 threads" in text

    def test_inspect_of_a_damaged_thread_says_so_without_a_traceback(
        self, damaged: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        codes = {main(["inspect", damaged, "--thread", t]) for t in ("order-1001", "order-1002")}
        assert codes == {0, 1}
        error = capsys.readouterr().err
        assert "order-100" in error
        assert "Traceback" not in error


class TestCannotAsk:
    @pytest.fixture(autouse=True)
    def _in_tmp(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "folder").mkdir()
        (tmp_path / "text.db").write_text("this is a long enough text, but it is no database " * 9)
        (tmp_path / "empty.db").touch()
        with closing(sqlite3.connect("other.db")) as connection:
            connection.execute("CREATE TABLE t (x)")
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        yield
        after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        assert after == before, "looking changed something"

    @pytest.mark.parametrize(
        ("url", "complaint"),
        [
            ("kit.db", "not a database URL"),
            ("text.db", "Did you mean sqlite:///text.db?"),
            ("sqlite:///missing.db", "no file missing.db"),
            ("sqlite:///folder", "is a directory"),
            ("sqlite:///folder/missing.db", "no file"),
            ("sqlite:///text.db", "not a SQLite database"),
            ("sqlite:///empty.db", "no database of durable_kit"),
            ("sqlite:///other.db", "no database of durable_kit"),
            ("sqlite://", "in memory"),
            ("mysql://host/name", "only sqlite and postgresql"),
            ("postgresql://127.0.0.1:1/nothing", "does not answer"),
            ("postgresql://me:secret@127.0.0.1:1/nothing", "me:***@"),
        ],
    )
    @pytest.mark.parametrize("command", ["inspect", "verify", "stats --thread t"])
    def test_it_is_one_sentence_on_stderr_and_exit_2(
        self, command: str, url: str, complaint: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        name, *rest = command.split()
        assert main([name, url, *rest]) == 2
        printed = capsys.readouterr()
        assert complaint in printed.err
        assert printed.err.count("\n") == 1
        assert printed.out == ""

    def test_compact_refuses_what_it_may_not_write(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "access", lambda _, mode: mode == os.R_OK)  # root may do anything
        assert main(["compact", "sqlite:///other.db", "--thread", "t"]) == 2
        assert "may not be written" in capsys.readouterr().err


@pytest.mark.postgres
def test_a_postgresql_database_without_the_kit_is_left_without_it(
    postgres_database: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    url = postgres_database()
    assert main(["inspect", url]) == 2
    assert main(["inspect", url]) == 2
    assert "no database of durable_kit" in capsys.readouterr().err


class TestDoctor:
    def test_a_good_machine_is_exit_0_and_has_a_line_for_everything(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["doctor", "--path", str(tmp_path)]) == 0
        text = capsys.readouterr().out
        for name in ("Python", "langgraph", "SQLite", "fsync", "PostgreSQL", "browser"):
            assert f"  {name}: " in text
        assert "journal_mode=wal, synchronous=2" in text
        assert list(tmp_path.iterdir()) == []

    def test_every_warning_and_failure_says_what_to_do(self) -> None:
        for check in doctor.run_checks():
            assert check.next_act or check.status == "ok"

    def test_a_missing_package_fails_with_the_command_that_brings_it(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        real = metadata.version

        def version(name: str) -> str:
            if name == "tenacity":
                raise metadata.PackageNotFoundError(name)
            return "0.0.1" if name == "sqlalchemy" else real(name)

        monkeypatch.setattr(metadata, "version", version)
        assert main(["doctor"]) == 1
        text = capsys.readouterr().out
        assert "FAIL  tenacity: not installed" in text
        assert "-> pip install 'tenacity" in text
        assert "FAIL  sqlalchemy: 0.0.1 (needs" in text

    def test_a_check_that_breaks_is_a_failure_and_not_a_traceback(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(_: Path) -> None:
            raise RuntimeError("no luck")

        monkeypatch.setattr(doctor, "_check_fsync", broken)
        found = {check.name: check for check in doctor.run_checks()}
        assert found["fsync"].status == "FAIL"
        assert found["fsync"].found == "RuntimeError: no luck"
        assert "browser" in found, "the checks after it were made"

    def test_storage_that_answers_too_fast_is_not_a_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "fsync", lambda _: None)
        monkeypatch.setattr(doctor, "FSYNC_TOO_FAST_US", 1e6)
        fsync = next(c for c in doctor.run_checks(path=tmp_path) if c.name == "fsync")
        assert fsync.status == "warn"
        assert "not a disk" in fsync.next_act

    def test_a_server_that_does_not_answer_fails(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", "--url", "postgresql://me:secret@127.0.0.1:1/x"]) == 1
        text = capsys.readouterr().out
        assert "FAIL  PostgreSQL" in text
        assert "secret" not in text

    @pytest.mark.postgres
    def test_a_server_without_fsync_is_a_warning(
        self, postgres_database: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["doctor", "--url", postgres_database()]) == 0
        assert "warn  PostgreSQL: version" in capsys.readouterr().out  # the tests' server has none

    def test_no_browser_and_no_postgresql_are_warnings_only(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(doctor, "find_spec", lambda _: None)
        monkeypatch.setattr(shutil, "which", lambda _: None)
        assert main(["doctor"]) == 0
        text = capsys.readouterr().out
        assert "warn  PostgreSQL" in text
        assert "warn  browser" in text

    def test_a_path_that_does_not_exist_is_exit_2(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", "--path", "/no/such/place"]) == 2
        assert "/no/such/place" in capsys.readouterr().err


class TestMeasure:
    ONE = ("measure", "storage", "--savers", "none", "--steps", "50", "--repeats", "1")

    def test_json_goes_to_stdout_and_progress_to_stderr(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*self.ONE, "--json"]) == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out)["cases"][0]["label"] == "no checkpointer"
        assert printed.err

    def test_without_tqdm_there_are_dots(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "tqdm", None)
        with Progress() as progress:
            progress.show(0, 3, "first")
            progress.show(2, 3, "third")
            progress.show(3, 3, "done")
        assert capsys.readouterr().err == "...\n"

    def test_a_saver_that_cannot_be_measured_is_exit_1(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        server = ["--postgres-url", "postgresql://127.0.0.1:1/nothing"]
        assert main([*self.ONE, *server, "--savers", "none", "postgres"]) == 1
        assert "PostgresSaver: not measured" in capsys.readouterr().out

    @pytest.mark.parametrize(
        "request_", [["--steps", "3"], ["--savers", "nonsense"], ["--directory", "/no/such/place"]]
    )
    def test_a_request_without_sense_is_exit_2(
        self, request_: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*self.ONE, *request_]) == 2
        assert capsys.readouterr().err.count("\n") == 1

    def test_all_means_every_saver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: dict[str, Any] = {}

        def refuse(**request: Any) -> None:
            asked.update(request)
            raise ValueError("enough")

        monkeypatch.setattr("durable_kit.lab.storage_bench.measure_storage", refuse)
        assert main(["measure", "storage", "--savers", "all", "--payload", "700"]) == 2
        assert "delta-postgres" in asked["savers"]
        assert asked["payload_bytes"] == 700

    @pytest.mark.skipif(sys.platform == "win32", reason="SIGINT cannot be sent to one process")
    def test_ctrl_c_prints_what_was_measured_and_is_exit_130(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "durable_kit", "measure", "storage"]
        command += ["--savers", "none", "sqlite", "--steps", "400", "--directory", str(tmp_path)]
        running = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert running.stdout is not None
        assert running.stderr is not None
        seen = b""
        while b" 2/" not in seen and b".." not in seen:  # two processes are done
            character = running.stderr.read(1)
            assert character, "it ended before two processes were done: " + seen.decode()
            seen += character
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
        assert running.returncode == 130, (seen + err).decode()
        assert out.startswith(b"Measured here")
        assert b"no checkpointer" in out
        assert b"Interrupted" in out
        assert list(tmp_path.iterdir()) == []


def test_an_interrupt_anywhere_is_exit_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "_storage", interrupt)
    assert main(["measure", "storage"]) == 130
    assert capsys.readouterr().err == "Interrupted.\n"
