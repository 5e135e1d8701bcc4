"""The guard, guarded: errors of every kind that a notebook can swallow, planted one by one.

Most of them are green for a plain runner, and a test shows that. The guard has to find all of
them, and nothing in a healthy notebook.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from durable_kit.errors import BadInput
from durable_kit.lab.guard import Limits, Outcome, execute, limits_for_this_machine
from durable_kit.lab.guard_rules import check_rules
from durable_kit.lab.kernel_client import KernelManager

# name -> (source of a cell, the kinds of which at least one must be found, tags of the cell)
PLANTED: dict[str, tuple[str, set[str], list[str]]] = {
    "an error in a cell": ("1 / 0", {"cell error"}, []),
    "an error that a tag allows": ("1 / 0", {"cell error"}, ["raises-exception"]),
    "an assert inside an Output": (
        """
        import ipywidgets
        output = ipywidgets.Output()
        with output:
            assert 1 == 2, "swallowed"
        """,
        {"error in a widget", "traceback shown"},
        [],
    ),
    "an interact that raises": (
        """
        import ipywidgets
        def f(x):
            raise ValueError("swallowed")
        ipywidgets.interact(f, x=3)
        """,
        {"error in a widget", "traceback shown"},
        [],
    ),
    "a click that raises": (
        """
        import ipywidgets
        button = ipywidgets.Button()
        button.on_click(lambda _: 1 / 0)
        button.click()
        """,
        {"cell error", "traceback shown"},
        [],
    ),
    "a thread that raises": (
        """
        import threading
        threading.Thread(target=lambda: 1 / 0).start()
        """,
        {"thread raised"},
        [],
    ),
    "a thread that raises after the last cell": (
        """
        import threading, time
        threading.Thread(target=lambda: (time.sleep(0.4), 1 / 0)).start()
        """,
        {"thread raised"},
        [],
    ),
    "a child process that fails": (
        """
        import subprocess, sys
        done = subprocess.run([sys.executable, "-c", "raise SystemExit(3)"])
        """,
        {"child failed"},
        [],
    ),
    "a shell command that fails": ("!exit 4", {"child failed"}, []),
    "a child process that stays": (
        """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        """,
        {"child left running"},
        [],
    ),
    "an orphan of a child": (
        """
        import subprocess, sys
        code = '''
        import subprocess, sys
        sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
        subprocess.Popen(sleep, start_new_session=True, stdout=subprocess.DEVNULL)
        '''
        subprocess.run([sys.executable, "-c", code.replace(chr(10) + " " * 8, chr(10))], check=True)
        """,
        {"orphan"},
        [],
    ),
    "a task that nobody awaits": (
        """
        import asyncio
        async def fail():
            raise RuntimeError("never retrieved")
        task = asyncio.ensure_future(fail())
        await asyncio.sleep(0)
        del task
        """,
        {"task never awaited"},
        [],
    ),
    "an error in a callback of the kernel's loop": (
        """
        import asyncio
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        """,
        {"task never awaited", "error logged"},
        [],
    ),
    "an error that a library logs": (
        """
        import logging
        try:
            1 / 0
        except ZeroDivisionError:
            logging.getLogger("some.library").warning("went on", exc_info=True)
        """,
        {"error logged"},
        [],
    ),
    "a traceback that is only printed": (
        """
        import traceback
        try:
            1 / 0
        except ZeroDivisionError:
            traceback.print_exc()
        """,
        {"traceback on stderr"},
        [],
    ),
    "an error in a finalizer": (
        """
        class Resource:
            def __del__(self):
                raise RuntimeError("cannot close")
        Resource()
        None
        """,
        {"error in a finalizer"},
        [],
    ),
    "a panel that shows an error": (
        """
        import ipywidgets
        ipywidgets.HTML('<div data-kit-error="1">The disk is full.</div>')
        """,
        {"error in a widget"},
        [],
    ),
    "a cell that takes too long": ("import time\ntime.sleep(30)", {"over time"}, []),
    "a kernel that dies": ("import os\nos._exit(1)", {"kernel"}, []),
    "a picture that is not there": ("print('no picture')", {"no figure"}, ["figure"]),
    "files in the temporary directory": (
        "import tempfile\nfolder = tempfile.mkdtemp()",
        {"left behind"},
        [],
    ),
    "a file beside the notebook": ("open('stray.txt', 'w').close()", {"left behind"}, []),
    "a connection to another machine": (
        """
        import socket
        with socket.socket() as s:
            s.settimeout(0.05)
            try:
                s.connect(("192.0.2.1", 80))
            except OSError:
                pass
        """,
        {"network"},
        [],
    ),
}

# Everything a lesson may do, so that the guard does not cry wolf.
HEALTHY = """
import subprocess, sys, threading, asyncio, logging, multiprocessing
import ipywidgets
done = []
output = ipywidgets.Output()
with output:
    print("fine")
ipywidgets.interact(lambda x: x, x=3)
button = ipywidgets.Button()
button.on_click(lambda _: done.append(1))
button.click()
thread = threading.Thread(target=lambda: done.append(2))
thread.start(); thread.join()
subprocess.run([sys.executable, "-c", "pass"], check=True)
killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
killed.kill(); killed.wait()
refused = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
refused.expected_exit_codes = (3,)
refused.wait()
logging.getLogger("kit").warning("a warning is not an error")
await asyncio.gather(asyncio.sleep(0), return_exceptions=True)
try:
    1 / 0
except ZeroDivisionError as error:
    print("observed:", error)
"""


def notebook_of(*sources: str, tags: list[str] | None = None) -> Any:
    cells = [
        nbformat.v4.new_code_cell(
            dedent(source).strip(), id=f"cell-{n}", metadata={"tags": tags or []}
        )
        for n, source in enumerate(sources)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Every planted notebook, executed once; several at a time, since a kernel mostly starts."""

    def run(name: str) -> Outcome:
        source, _, tags = PLANTED[name]
        limits = Limits(cell_s=3.0) if "too long" in name else Limits()
        folder = tmp_path_factory.mktemp("planted")
        return execute(notebook_of(source, tags=tags), folder=folder, limits=limits)

    with ThreadPoolExecutor(3) as pool:
        return dict(zip(PLANTED, pool.map(run, PLANTED), strict=True))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_found(name: str, outcomes: dict[str, Outcome]) -> None:
    _, kinds, _ = PLANTED[name]
    assert {finding.kind for finding in outcomes[name].findings} & kinds, [
        str(finding) for finding in outcomes[name].findings
    ]


def test_a_finding_says_what_happened_and_where(outcomes: dict[str, Outcome]) -> None:
    [finding] = [f for f in outcomes["an error in a cell"].findings if f.kind == "cell error"]
    assert (finding.where, finding.text) == (
        "cell 1, cell-0",
        "ZeroDivisionError: division by zero",
    )
    orphans = [f for f in outcomes["an orphan of a child"].findings if f.kind == "orphan"]
    assert "time.sleep(60)" in orphans[0].text


def test_a_healthy_notebook_has_no_findings(tmp_path: Path) -> None:
    outcome = execute(notebook_of(HEALTHY), folder=tmp_path)
    assert [str(finding) for finding in outcome.findings] == []
    assert outcome.cell_seconds.keys() == {"cell-0"}


def test_a_plain_runner_passes_what_the_guard_finds(tmp_path: Path) -> None:
    """The naive version: nbclient alone, on all planted cells that do not end the kernel."""
    swallowed = [
        source
        for name, (source, _, tags) in PLANTED.items()
        if name not in ("an error in a cell", "a cell that takes too long", "a kernel that dies")
        and "raises-exception" not in tags
        and "stays" not in name
        and "orphan" not in name
        and "beside" not in name
    ]
    assert len(swallowed) >= 12
    notebook = notebook_of(*swallowed)
    try:
        NotebookClient(
            notebook,
            resources={"metadata": {"path": str(tmp_path)}},
            kernel_manager_class=KernelManager,  # with its own it sometimes waits for ever
        ).execute()
    except CellExecutionError as error:  # pragma: no cover
        pytest.fail(f"nbclient has learned to see this: {error}")


def test_the_notebook_that_was_given_is_not_changed(outcomes: dict[str, Outcome]) -> None:
    notebook = notebook_of("print(1)")
    before = nbformat.writes(notebook)
    execute(notebook, folder=Path(__file__).parent)
    assert nbformat.writes(notebook) == before


async def test_the_guard_can_be_called_where_a_loop_is_running(tmp_path: Path) -> None:
    """As in a cell of a notebook."""
    assert execute(notebook_of("print(1)"), folder=tmp_path).findings == ()


def test_limits_grow_with_an_overbooked_machine_and_never_shrink(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (6.0, 0.0, 0.0), raising=False)
    limits = Limits(cell_s=10, notebook_s=60, first_figure_s=10)
    assert limits_for_this_machine(limits) == Limits(30, 180, 30)
    monkeypatch.setattr("os.getloadavg", lambda: (0.1, 0.0, 0.0), raising=False)
    assert limits_for_this_machine(limits) == limits


# --------------------------------------------------------------------------- static rules

PROSE = "word " * 40


def lesson(**changes: Any) -> Any:
    """A notebook that keeps every rule, with `changes` applied to its cells or metadata."""
    cells = [nbformat.v4.new_markdown_cell(PROSE, id=f"prose-{n:02d}") for n in range(15)]
    cells += [nbformat.v4.new_code_cell("x = 1", id=f"step-{n:02d}") for n in range(15)]
    cells[15].metadata["tags"] = ["parameters"]
    notebook = notebook_of()
    notebook.cells = cells
    notebook.update(changes)
    return notebook


def test_a_lesson_that_keeps_the_rules_has_no_findings() -> None:
    assert check_rules(lesson()) == []


def _with_outputs(notebook: Any) -> None:
    notebook.cells[20]["outputs"] = [nbformat.v4.new_output("stream", text="x")]


def _with_count(notebook: Any) -> None:
    notebook.cells[20]["execution_count"] = 3


def _with_widget_state(notebook: Any) -> None:
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {}}


def _with_random_id(notebook: Any) -> None:
    notebook.cells[3]["id"] = "a1b2c3d4"


def _with_same_ids(notebook: Any) -> None:
    notebook.cells[3]["id"] = notebook.cells[4]["id"]


def _with_old_format(notebook: Any) -> None:
    notebook["nbformat_minor"] = 4


def _with_other_kernel(notebook: Any) -> None:
    notebook.metadata["kernelspec"]["name"] = "my-venv"


def _with_a_long_cell(notebook: Any) -> None:
    notebook.cells[20]["source"] = "x = 1\n" * 26


def _with_a_speech(notebook: Any) -> None:
    notebook.cells[3]["source"] = "word " * 130


def _too_short(notebook: Any) -> None:
    del notebook.cells[18:]


def _without_parameters(notebook: Any) -> None:
    notebook.cells[15].metadata["tags"] = []


def _with_an_allowed_error(notebook: Any) -> None:
    notebook.cells[20].metadata["tags"] = ["raises-exception"]


def _with_broken_code(notebook: Any) -> None:
    notebook.cells[20]["source"] = "x ="


@pytest.mark.parametrize(
    ("plant", "complaint"),
    [
        (_with_outputs, "holds outputs"),
        (_with_count, "holds an execution count"),
        (_with_widget_state, "widget state"),
        (_with_random_id, "'a1b2c3d4' is not a readable id"),
        (_with_same_ids, "is used 2 times"),
        (_with_old_format, "nbformat 4.4"),
        (_with_other_kernel, "'my-venv'"),
        (_with_a_long_cell, "26 lines of code"),
        (_with_a_speech, "130 words"),
        (_too_short, "18 cells"),
        (_without_parameters, "0 cells are tagged parameters"),
        (_with_an_allowed_error, "raises-exception"),
        (_with_broken_code, "does not parse"),
    ],
)
def test_a_planted_breach_of_a_rule_is_found(plant: Any, complaint: str) -> None:
    notebook = lesson()
    plant(notebook)
    findings = check_rules(notebook)
    assert any(complaint in str(finding) for finding in findings), findings


async def test_a_reply_whose_notice_was_lost_is_read_all_the_same() -> None:
    """A send may swallow the notice that something has arrived. jupyter_client's own channel then
    waits for ever; ours looks again."""
    kernel = KernelManager()
    await kernel.start_kernel()
    client: Any = kernel.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=60)
        waiting = asyncio.ensure_future(client.shell_channel.get_msg())
        await asyncio.sleep(0)
        silent = client.shell_channel.socket
        silent._handle_events = lambda *_: None  # as if the FD never said anything again
        asked = client.kernel_info()
        reply = await asyncio.wait_for(waiting, 20)
        assert reply["parent_header"]["msg_id"] == asked
    finally:
        client.stop_channels()
        await kernel.shutdown_kernel(now=True)


def test_parameters_replace_the_notebooks_own_and_must_be_there(tmp_path: Path) -> None:
    notebook = notebook_of("N = 1\nM = 2", "print(N, M)")
    notebook.cells[0].metadata["tags"] = ["parameters"]
    outcome = execute(notebook, folder=tmp_path, parameters={"N": (3,)})
    assert outcome.notebook.cells[1].outputs[0].text == "(3,) 2\n"
    assert notebook.cells[0].source == "N = 1\nM = 2"
    with pytest.raises(BadInput, match=r"no parameters \['O'\]"):
        execute(notebook, folder=tmp_path, parameters={"N": 1, "O": 1})
