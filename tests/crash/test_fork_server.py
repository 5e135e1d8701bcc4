"""No process outlives the one that wanted it, however that one ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from durable_kit.crash import fork_server

pytestmark = pytest.mark.skipif(not fork_server.AVAILABLE, reason="no fork on this platform")

PARENT = """
import os, sys, threading, time
from durable_kit.crash.trial import AtPoint, Experiment, run_trial

os.environ["DURABLE_KIT_TEST_PID"] = sys.argv[1]
experiment = Experiment(graph="tests.crash.test_fork_server:says_its_pid", input={"log": []},
                        durability="sync")
try:
    run_trial(experiment, AtPoint("nowhere"))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def says_its_pid(saver: object) -> object:
    """A graph whose node writes the number of its process into a file, and then hangs."""
    from tests.crash import graphs

    def hang(state: graphs.Order) -> dict[str, object]:
        unfinished = Path(os.environ["DURABLE_KIT_TEST_PID"] + ".part")
        unfinished.write_text(str(os.getpid()))
        unfinished.rename(os.environ["DURABLE_KIT_TEST_PID"])
        time.sleep(600)
        return {}

    return graphs.chain(saver, ("hang", hang))


def test_when_the_parent_is_killed_its_server_and_their_children_go(tmp_path: Path) -> None:
    with _parent(tmp_path) as parent:
        server, child = _its_processes(parent, tmp_path)
        parent.kill()
        parent.wait(timeout=30)
        _all_gone(server, child)


def test_when_the_server_is_killed_its_children_go_and_the_parent_is_told(tmp_path: Path) -> None:
    with _parent(tmp_path) as parent:
        server, child = _its_processes(parent, tmp_path)
        server.kill()
        _, said = parent.communicate(timeout=30)
        assert "ChildFailed: the fork server died" in said
        assert parent.returncode == 1
        _all_gone(server, child)


def test_an_interrupt_of_the_parents_group_does_not_reach_a_trial(tmp_path: Path) -> None:
    with _parent(tmp_path) as parent:
        server, child = _its_processes(parent, tmp_path)
        assert os.getpgid(child.pid) == os.getpgid(server.pid) != os.getpgid(parent.pid)
        os.killpg(parent.pid, signal.SIGINT)
        said, _ = parent.communicate(timeout=30)
        # The trial was ended by its parent, in order: "killed", not "interrupted".
        assert said == "interrupted\n"
        _all_gone(server, child)


def test_a_child_has_nothing_of_its_siblings(tmp_path: Path) -> None:
    """A sibling that held another's pipe open would keep it from seeing its parent go."""
    with _parent(tmp_path) as parent:
        _, child = _its_processes(parent, tmp_path)
        assert child.net_connections("unix") == []  # neither a leash nor the way to the server
        parent.kill()


def _parent(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder / "pid")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _its_processes(
    parent: subprocess.Popen[str], folder: Path
) -> tuple[psutil.Process, psutil.Process]:
    """The server and the child that runs a node, once it does."""
    give_up = time.monotonic() + 60
    while not (folder / "pid").exists():
        assert parent.poll() is None, parent.communicate()[1]
        assert time.monotonic() < give_up, "the node does not run"
        time.sleep(0.01)
    child = psutil.Process(int((folder / "pid").read_text()))
    server = child.parent()
    assert server is not None
    assert "durable_kit.crash.fork_server" in server.cmdline()
    return server, child


def _all_gone(*processes: psutil.Process) -> None:
    _, alive = psutil.wait_procs(list(processes), timeout=10)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
