"""A real JupyterLab in a real browser: run all, press the button, move the slider, look.

Executing a notebook proves that its cells work. It does not prove that a learner can use it: a
panel that no frontend renders, a button whose callback never arrives, a figure that stays the same,
a page that asks the network for a font. So this opens lessons that have panels as a learner does,
in headless Chromium through Playwright, and leaves screenshots in build/screenshots.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
RUN_ALL_S = (
    300  # generous: this machine may be shared, and how long a lesson takes is tested elsewhere
)


@dataclass
class Seen:
    """What the browser has done that nobody looks at: its console, and whom it has asked."""

    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab that serves a copy of the notebooks, without user settings."""
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", home / "notebooks")
    shutil.copytree(ROOT / "data", home / "data")
    # A user who has said "no news": the question would cover a corner of the screenshots.
    news = home / "CONFIG" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    news.mkdir(parents=True)
    (news / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": str(home / "ipython"),
        "DURABLE_KIT_STATE_DIR": str(home / "state"),
        **{f"JUPYTER_{name}_DIR": str(home / name) for name in ("CONFIG", "DATA", "RUNTIME")},
    }
    arguments = [
        "--no-browser",
        "--allow-root",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--IdentityProvider.token=",
        "--PasswordIdentityProvider.hashed_password=",
        f"--ServerApp.root_dir={home}",
        "--LabApp.news_url=None",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    with (home / "lab.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *arguments],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_for(f"http://127.0.0.1:{port}/api", server, home / "lab.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            _end(server)


@pytest.fixture
def page(lab: str, tmp_path: Path) -> Iterator[Any]:
    """A page of a browser that has never been used; its console and its requests are noted."""
    playwright_api = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed"
    )
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    with playwright_api.sync_playwright() as playwright:
        if program is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip(
                "no Chromium: install Debian's chromium, or run: playwright install chromium"
            )
        context = playwright.chromium.launch_persistent_context(
            tmp_path / "profile",
            executable_path=program,
            headless=True,
            args=CHROMIUM_ARGUMENTS,
            viewport={"width": 1280, "height": 1000},
        )
        page = context.new_page()
        seen = Seen()
        page.on("console", lambda message: _note_console(seen, message))
        page.on("pageerror", lambda error: seen.errors.append(f"pageerror: {error}"))
        page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).hostname or ""))
        page.seen = seen
        yield page
        context.close()


def test_a_learner_runs_00_and_crashes_a_worker_by_a_button(page: Any, lab: str) -> None:
    _open_and_run_all(page, lab, "00_start_here")
    assert _errors_shown(page) == []
    button = page.locator("button.jupyter-button", has_text="Crash it")
    panel = page.locator(".widget-vbox", has=button).last
    button.scroll_into_view_if_needed()
    assert panel.locator("figure img").count() == 0, "nothing was pressed yet"
    button.click()
    page.wait_for_function(
        "() => [...document.querySelectorAll('button.jupyter-button')]"
        ".some(b => b.textContent.includes('Crash it') && b.disabled)"
    )
    panel.locator("figure img").wait_for(timeout=60_000)
    said = panel.inner_text()
    assert "2 charges" in said
    if sys.platform != "win32":
        assert "was killed by SIGKILL" in said
    alt = panel.locator("figure img").get_attribute("alt") or ""
    assert "Worker 2 resumes and charges again" in alt
    assert not button.is_disabled()
    _screenshot(page, panel, "00-crash")
    _nothing_else_happened(page)


def test_a_learner_sorts_the_timeline_in_01(page: Any, lab: str) -> None:
    _open_and_run_all(page, lab, "01_state_snapshot_event_effect")
    assert _errors_shown(page) == []
    killed_after = page.get_by_text("killed after no.", exact=True)
    panel = page.locator(".widget-vbox", has=killed_after).last
    panel.scroll_into_view_if_needed()
    picture = panel.locator("figure img")
    picture.wait_for(timeout=20_000)
    assert "0 of 7 are where they belong" in panel.inner_text()
    for place, kind in enumerate(("state", "snapshot", "snapshot", "effect")):
        before = picture.get_attribute("src")
        choice = panel.locator("select").nth(place)
        _until_changed(page, picture, before, partial(choice.select_option, kind))
    assert "3 of 7 are where they belong" in panel.inner_text()
    assert "3. e-mail asked for as snapshot?" in panel.inner_text()
    before = picture.get_attribute("src")
    handle = panel.locator(".noUi-handle").first
    handle.focus()
    _until_changed(page, picture, before, lambda: handle.press("ArrowLeft"))
    assert "A kill after moment 4 leaves" in panel.inner_text()
    _screenshot(page, panel, "01-sort")
    _nothing_else_happened(page)


def test_a_learner_runs_04_and_takes_the_gateway_away(page: Any, lab: str) -> None:
    _open_and_run_all(page, lab, "04_idempotent_gateway")
    assert _errors_shown(page) == []
    button = page.locator("button.jupyter-button", has_text="Kill it there")
    panel = page.locator(".widget-vbox", has=button).last
    button.scroll_into_view_if_needed()
    assert panel.locator("figure img").count() == 0, "nothing was pressed yet"
    panel.locator("select").nth(1).select_option("knows no keys and cannot be asked")
    button.click()
    picture = panel.locator("figure img")
    picture.wait_for(timeout=60_000)
    assert "In doubt: nobody guessed" in panel.inner_text()
    _screenshot(page, panel, "04-in-doubt")
    panel.locator("input[type=checkbox]").uncheck()
    _until_changed(page, picture, picture.get_attribute("src"), button.click)
    assert "Charged twice" in panel.inner_text()
    assert "charge-2" in panel.inner_text()
    _screenshot(page, panel, "04-naive")
    _nothing_else_happened(page)


def test_a_learner_runs_02_and_sees_what_exit_loses(page: Any, lab: str) -> None:
    _open_and_run_all(page, lab, "02_supersteps_pending_writes")
    assert _errors_shown(page) == []
    button = page.locator("button.jupyter-button", has_text="Run and kill")
    panel = page.locator(".widget-vbox", has=button).last
    button.scroll_into_view_if_needed()
    assert panel.locator("figure img").count() == 0, "nothing was pressed yet"
    panel.locator("select").first.select_option("the money is taken, the node not over")
    button.click()
    picture = panel.locator("figure img")
    picture.wait_for(timeout=60_000)
    assert "2 charges for one order" in panel.inner_text()
    _screenshot(page, panel, "02-run-sync")
    panel.locator(".widget-toggle-button", has_text="exit").click()
    before = picture.get_attribute("src")
    _until_changed(page, picture, before, button.click)
    assert "prepare (done, not stored)" in (picture.get_attribute("alt") or "")
    assert "charge again" in panel.inner_text()
    _screenshot(page, panel, "02-run-exit")
    _nothing_else_happened(page)


def test_a_learner_moves_a_slider_in_05_and_damages_a_byte(page: Any, lab: str) -> None:
    _open_and_run_all(page, lab, "05_snapshot_delta_compaction")
    assert _errors_shown(page) == []
    panel = page.locator(".widget-vbox", has=page.get_by_text("super-steps", exact=True)).last
    picture = panel.locator("figure img")
    panel.scroll_into_view_if_needed()
    picture.wait_for(timeout=20_000)
    before, words = picture.get_attribute("src"), picture.get_attribute("alt")
    handle = panel.locator(".noUi-handle").first
    handle.focus()
    took_s = _until_changed(page, picture, before, lambda: handle.press("ArrowRight"))
    assert picture.get_attribute("alt") != words
    # The bar is 0.3 s on two free cores; here a browser, a server and other tests share them.
    assert took_s < 3.0
    print(f"slider to new figure: {took_s:.2f} s")
    _screenshot(page, panel, "05-growth")

    damage = page.locator("button.jupyter-button", has_text="Damage a byte")
    specimen = page.locator(".widget-vbox", has=damage).last
    damage.scroll_into_view_if_needed()
    damage.click()
    specimen.get_by_text("BrokenChain").wait_for(timeout=60_000)
    assert "problems" in specimen.inner_text()
    _screenshot(page, specimen, "05-damage")
    specimen.locator("button.jupyter-button", has_text="Recover").click()
    specimen.get_by_text("fell back to the newest state").wait_for(timeout=60_000)
    assert "Lost:" in specimen.inner_text()
    _screenshot(page, specimen, "05-recover")
    _nothing_else_happened(page)


def test_a_learner_deploys_by_a_slider_in_06(page: Any, lab: str) -> None:
    _open_and_run_all(page, lab, "06_versions_and_flow_version")
    assert _errors_shown(page) == []
    panel = page.locator(".widget-vbox", has=page.get_by_text("deploy", exact=True)).last
    picture = panel.locator("figure img")
    panel.scroll_into_view_if_needed()
    picture.wait_for(timeout=20_000)
    before = picture.get_attribute("src")
    handle = panel.locator(".noUi-handle").first
    handle.focus()
    took_s = _until_changed(page, picture, before, lambda: handle.press("ArrowRight"))
    assert "8 by other rules" in (picture.get_attribute("alt") or "")
    assert "its path may go" in panel.inner_text()
    print(f"slider to ten resumed threads: {took_s:.2f} s")
    _screenshot(page, panel, "06-deploys")
    _nothing_else_happened(page)


# --- the learner's hands ----------------------------------------------------------------------


def _open_and_run_all(page: Any, lab: str, name: str) -> None:
    page.goto(f"{lab}/lab/tree/notebooks/{name}.ipynb?reset", timeout=60_000)
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=60_000)
    # Run All before the kernel is there is forgotten without a word.
    page.wait_for_function(_KERNEL_IS_IDLE, timeout=60_000, polling=100)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(_ALL_HAVE_RUN, timeout=RUN_ALL_S * 1000, polling=500)


_KERNEL_IS_IDLE = """() => {
  const panel = window.jupyterapp && window.jupyterapp.shell.currentWidget;
  const session = panel && panel.sessionContext && panel.sessionContext.session;
  return Boolean(session && session.kernel && session.kernel.status === 'idle');
}"""

# Asked of JupyterLab's own model: cells out of sight need not be in the document.
_ALL_HAVE_RUN = """() => {
  const panel = window.jupyterapp && window.jupyterapp.shell.currentWidget;
  const cells = panel && panel.content && panel.content.model && panel.content.model.cells;
  if (!cells) return false;
  const code = [...cells].filter(cell => cell.type === 'code');
  return code.length > 10 && (code.every(cell => cell.executionCount) ||
    code.some(cell => cell.outputs.toJSON().some(o => o.output_type === 'error')));
}"""

_ERRORS = """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
  .filter(cell => cell.type === 'code')
  .flatMap(cell => cell.outputs.toJSON())
  .filter(o => o.output_type === 'error' || (o.name === 'stderr'))
  .map(o => o.ename ? o.ename + ': ' + o.evalue : String(o.text))"""


def _errors_shown(page: Any) -> list[str]:
    return list(page.evaluate(_ERRORS))


def _until_changed(page: Any, picture: Any, before: str | None, act: Any) -> float:
    began = time.monotonic()
    act()
    while picture.get_attribute("src") == before:
        assert time.monotonic() - began < 20, "the slider was moved and the figure stayed the same"
        page.wait_for_timeout(10)
    return time.monotonic() - began


def _screenshot(page: Any, panel: Any, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    panel.scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    path = SCREENSHOTS / f"{name}.png"
    page.screenshot(path=path)
    assert path.stat().st_size > 20_000


def _nothing_else_happened(page: Any) -> None:
    assert page.seen.errors == []
    assert page.seen.hosts - LOOPBACK - {""} == set(), "a lesson needs no network"


def _note_console(seen: Seen, message: Any) -> None:
    if message.type == "error":
        seen.errors.append(f"{message.text} ({message.location.get('url', '')})")


# --- the server -------------------------------------------------------------------------------


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    pytest.fail(f"JupyterLab did not answer within 60 s: {log.read_text()}")


def _end(server: subprocess.Popen[bytes]) -> None:
    """Stop the server, and the kernels that it has started."""
    kernels = psutil.Process(server.pid).children(recursive=True)
    server.terminate()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    for process in psutil.wait_procs(kernels, timeout=5)[1]:
        process.kill()
