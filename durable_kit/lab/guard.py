"""A guard that is hard to fool: run a notebook, then look where failures hide.

A green notebook proves little. The usual runners ask one question, whether each cell's reply said
"ok", and pass a notebook whose every assertion failed inside an Output widget. This guard
executes the notebook in a fresh kernel and then looks in eight places:

    cell outputs              an error, also under a tag that allows it; a traceback on stderr
    widget states             an error kept by an Output widget; an error that a panel shows
    the hooks in the kernel   swallowed tracebacks, threads, tasks, logs, children (guard_hooks.py)
    the kernel's own stderr   what it logs before or after a cell
    processes                 anything that carries this run's mark and outlives the kernel
    files                     anything left in the temporary directory or beside the notebook
    the clock                 a cell over time, a notebook over time, a first figure that is late
    promises                  a cell tagged `figure` without a picture

    outcome = execute(notebook, folder=Path("notebooks"))
    assert not outcome.findings

It looks at what happened and does not know what should have. A wrong number is found by the
notebook's own assertions; this only makes sure that they are heard.
"""

from __future__ import annotations

import ast
import asyncio
import json
import math
import os
import re
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import psutil
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from durable_kit.errors import BadInput
from durable_kit.lab import guard_hooks, learn, plots
from durable_kit.lab.kernel_client import KernelManager

MARK_VARIABLE = "DURABLE_KIT_GUARD_RUN"
FIGURE_TAG = "figure"
PARAMETERS_TAG = "parameters"
ERROR_MARK = "data-kit-error"
"""An attribute in the HTML of a panel's error area (see `widgets/base.py`)."""

_STARTUP = """\
from durable_kit.lab import guard_hooks as _guard_hooks
_guard_hooks.install(get_ipython())
del _guard_hooks
"""
_FINISH = "from durable_kit.lab import guard_hooks as _g\nawait _g.finish()\ndel _g"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: which of the guard's looks found it, where, and what."""

    kind: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} [{self.where}]: {self.text}"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long it may take, in seconds. `first_figure_s` None: the notebook shows no figure."""

    cell_s: float = 30.0
    notebook_s: float = 60.0
    first_figure_s: float | None = None


def limits_for_this_machine(limits: Limits) -> Limits:
    """The limits, as long as there is a free processor; longer by as much as it is overbooked.

    They are meant for two cores with nothing else to do. On a machine that is shared, a limit
    that does not know of the others measures the others.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    factor = max(1.0, load / (os.cpu_count() or 1))
    first = limits.first_figure_s
    return Limits(
        limits.cell_s * factor,
        limits.notebook_s * factor,
        None if first is None else first * factor,
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out of one execution. `notebook` holds the outputs and the widgets' states."""

    notebook: Any
    findings: tuple[Finding, ...]
    seconds: float
    first_figure_s: float | None
    cell_seconds: Mapping[str, float]


def execute(
    notebook: Any,
    *,
    folder: Path,
    limits: Limits | None = None,
    solutions: bool = False,
    figures: Path | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> Outcome:
    """Run a copy of the notebook in a fresh kernel whose working directory is `folder`.

    `solutions`: checks that do not pass raise (see `learn.py`). `figures`: where named figures are
    saved. `parameters`: values for names that the cell tagged `parameters` sets, instead of its
    own. Stops at the first cell that fails. No process that the notebook started is left.

    Raises `BadInput` for a parameter that the notebook does not have.
    """
    if parameters:
        notebook = _with_parameters(notebook, parameters)
    with tempfile.TemporaryDirectory(prefix="kit-guard-", ignore_cleanup_errors=True) as home:
        run = _Run(notebook, folder, Path(home), limits or Limits())
        run.environment[learn.STRICT_VARIABLE] = "1" if solutions else "0"
        if figures is not None:
            run.environment[plots.FIGURES_VARIABLE] = str(figures.absolute())
        return run.outcome()


@dataclass
class _Run:
    original: Any
    folder: Path
    home: Path
    limits: Limits
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    findings: list[Finding] = field(default_factory=list)
    cell_seconds: dict[str, float] = field(default_factory=dict)
    first_figure_s: float | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        startup = self.home / "ipython" / "profile_default" / "startup"
        startup.mkdir(parents=True)
        (startup / "00-guard.py").write_text(_STARTUP, "utf-8")
        (self.home / "tmp").mkdir()
        import matplotlib as mpl

        nowhere = "http://127.0.0.1:9"
        self.environment = {
            **os.environ,
            "HOME": str(self.home),
            "IPYTHONDIR": str(self.home / "ipython"),
            "MPLCONFIGDIR": mpl.get_configdir(),  # the font list takes seconds to make
            "TMPDIR": str(self.home / "tmp"),
            "TEMP": str(self.home / "tmp"),
            "TMP": str(self.home / "tmp"),
            "HTTP_PROXY": nowhere,
            "HTTPS_PROXY": nowhere,
            "http_proxy": nowhere,
            "https_proxy": nowhere,
            learn.STATE_VARIABLE: str(self.home / "state"),
            guard_hooks.LOG_VARIABLE: str(self.home / "hooks.jsonl"),
            MARK_VARIABLE: self.mark,
        }

    def outcome(self) -> Outcome:
        notebook = nbformat.from_dict(json.loads(json.dumps(self.original)))  # type: ignore[no-untyped-call]
        before = _files(self.folder)
        began = time.perf_counter()
        with (self.home / "kernel.log").open("w", encoding="utf-8") as kernel_log:
            try:
                # A thread and a loop of our own, so that this works inside a running loop, too (a
                # notebook has one), and that nothing is left; nbclient's own wrappers leave loops.
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(asyncio.run, self._execute(notebook, kernel_log)).result()
            except (DeadKernelError, RuntimeError) as error:
                self._found("kernel", "the kernel", str(error))
        seconds = time.perf_counter() - began
        self._look_at_processes()
        for n, cell in enumerate(notebook.cells):
            self._look_at_cell(n, cell)
        self._look_at_widgets(notebook)
        self._look_at_hooks()
        self._look_at_kernel_log()
        self._look_at_files(before)
        self._look_at_clock(seconds)
        return Outcome(
            notebook, tuple(self.findings), seconds, self.first_figure_s, self.cell_seconds
        )

    async def _execute(self, notebook: Any, kernel_log: Any) -> None:
        client = NotebookClient(
            notebook,
            timeout=math.ceil(self.limits.cell_s),
            resources={"metadata": {"path": str(self.folder)}},
            store_widget_state=True,
            kernel_manager_class=KernelManager,
        )
        where = {"env": self.environment, "stderr": kernel_log, "cwd": str(self.folder)}
        async with client.async_setup_kernel(**where):
            began = time.perf_counter()
            for n, cell in enumerate(notebook.cells):
                cell_began = time.perf_counter()
                try:
                    await client.async_execute_cell(cell, n)
                except CellTimeoutError:
                    self._found("over time", _name(n, cell), f"more than {self.limits.cell_s:g} s")
                    kernel: Any = client.km
                    await kernel.shutdown_kernel(now=True)
                    return
                except CellExecutionError:
                    break  # the error stands in the cell's outputs
                self.cell_seconds[cell.get("id", str(n))] = time.perf_counter() - cell_began
                if self.first_figure_s is None and _has_picture(cell):
                    self.first_figure_s = time.perf_counter() - began
            last = nbformat.v4.new_code_cell(_FINISH)  # type: ignore[no-untyped-call]
            notebook.cells.append(last)
            await client.async_execute_cell(last, len(notebook.cells) - 1)
            notebook.cells.pop()
            client.set_widgets_metadata()

    def _found(self, kind: str, where: str, text: str) -> None:
        self.findings.append(Finding(kind, where, " ".join(text.split())[:600]))

    def _look_at_cell(self, n: int, cell: Any) -> None:
        for output in cell.get("outputs", []):
            self._look_at_output(output, _name(n, cell))
        if FIGURE_TAG in _tags(cell) and not _has_picture(cell):
            self._found(
                "no figure", _name(n, cell), "the cell is tagged as one that shows a figure"
            )

    def _look_at_output(self, output: Any, where: str) -> None:
        if output.get("output_type") == "error":
            self._found("cell error", where, f"{output.get('ename')}: {output.get('evalue')}")
        text = output.get("text", "")
        if "Traceback (most recent call last)" in text:
            self._found("traceback on stderr", where, text.strip().splitlines()[-1])

    def _look_at_widgets(self, notebook: Any) -> None:
        for mime in notebook.metadata.get("widgets", {}).values():
            for model in mime.get("state", {}).values():
                state = model.get("state", {})
                where = f"widget {model.get('model_name')}"
                for output in state.get("outputs") or []:
                    if output.get("output_type") == "error":
                        said = f"{output.get('ename')}: {output.get('evalue')}"
                        self._found("error in a widget", where, said)
                    elif "Traceback (most recent call last)" in output.get("text", ""):
                        self._found("error in a widget", where, output["text"])
                if ERROR_MARK in str(state.get("value", "")):
                    said = re.sub(r"<[^>]+>", " ", str(state["value"]))
                    self._found("error in a widget", where, said)

    def _look_at_hooks(self) -> None:
        log = self.home / "hooks.jsonl"
        lines = log.read_text("utf-8").splitlines() if log.exists() else []
        notes = [json.loads(line) for line in lines]
        if not any(one["kind"] == "installed" for one in notes):
            self._found("guard", "the kernel", "the hooks were not installed: nothing was watched")
        for one in notes:
            if one["kind"] != "installed":
                self._found(one["kind"], "the kernel", one["text"])

    def _look_at_kernel_log(self) -> None:
        text = (self.home / "kernel.log").read_text("utf-8", errors="replace")
        if "Traceback (most recent call last)" in text:
            self._found("kernel log", "the kernel", text[text.index("Traceback") :])

    def _look_at_processes(self) -> None:
        """What carries our mark and is still there some seconds after the kernel has ended."""
        deadline = time.monotonic() + 5.0
        left = list(_marked(self.mark))
        while left and time.monotonic() < deadline:
            time.sleep(0.1)
            left = list(_marked(self.mark))
        for process in left:
            try:
                command = " ".join(process.cmdline())
                process.kill()
            except psutil.Error:
                continue
            self._found("orphan", f"process {process.pid}", f"outlives the kernel: {command}")

    def _look_at_files(self, before: set[str]) -> None:
        for path in (self.home / "tmp").iterdir():
            self._found("left behind", "temporary directory", path.name)
        for name in sorted(_files(self.folder) - before):
            self._found("left behind", "beside the notebook", name)

    def _look_at_clock(self, seconds: float) -> None:
        if seconds > self.limits.notebook_s:
            self._found(
                "over time", "the notebook", f"{seconds:.1f} s of {self.limits.notebook_s:g}"
            )
        limit = self.limits.first_figure_s
        if limit is not None and (self.first_figure_s is None or self.first_figure_s > limit):
            when = "never" if self.first_figure_s is None else f"after {self.first_figure_s:.1f} s"
            self._found("over time", "the first figure", f"{when}; {limit:g} s are allowed")


def _with_parameters(notebook: Any, parameters: Mapping[str, Any]) -> Any:
    """A copy that sets `parameters` after its own, in the same cell; what that cell has computed
    from them stays as it was."""
    changed = nbformat.from_dict(json.loads(json.dumps(notebook)))  # type: ignore[no-untyped-call]
    cells = [cell for cell in changed.cells if PARAMETERS_TAG in _tags(cell)]
    own = cells[0].source if cells else ""
    setting = r"^{}\s*(:[^=\n]*)?=(?!=)"
    unknown = [
        name
        for name in parameters
        if not re.search(setting.format(re.escape(name)), own, re.MULTILINE)
    ]
    if unknown:
        raise BadInput(f"The notebook has no parameters {unknown}; its cell says: {own!r}")
    for name, value in parameters.items():
        try:
            same = ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError):
            same = False
        if not same:
            raise BadInput(f"The parameter {name} is {value!r}; it must be a Python literal.")
    cells[0].source = "\n".join([own, *(f"{name} = {v!r}" for name, v in parameters.items())])
    return changed


def _marked(mark: str) -> Iterator[psutil.Process]:
    me = os.getpid()
    for process in psutil.process_iter():
        try:
            ours = process.pid != me and process.environ().get(MARK_VARIABLE) == mark
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.Error, OSError):
            continue  # not ours to look at, or gone


def _has_picture(cell: Any) -> bool:
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if any(mime.startswith("image/") for mime in data) or "<img" in data.get("text/html", ""):
            return True
    return False


def _files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != ".ipynb_checkpoints"}


def _tags(cell: Any) -> list[str]:
    return list(cell.get("metadata", {}).get("tags", []))


def _name(n: int, cell: Any) -> str:
    return f"cell {n + 1}, {cell.get('id', 'no id')}"
