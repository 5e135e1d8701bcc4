"""Will this machine do? The checks of `python -m durable_kit doctor`, as a table with a button.

The checks are the doctor's own (`durable_kit.cli.doctor`): a second list would soon say something
else. A `warn` is something optional, and what to do about it stands beside it.
"""

from __future__ import annotations

import html
import tempfile
from pathlib import Path

from durable_kit.cli.doctor import Check, run_checks
from durable_kit.lab.widgets.base import Job, Panel

MARKS = {"ok": ("✓", "#1b6e3c"), "warn": ("!", "#8a5a00"), "FAIL": ("✗", "#b00020")}
_HEAD = '<th style="text-align:left">{}</th>'
Checks = tuple[Check, ...]


def check_machine(path: Path, job: Job | None = None) -> Checks:
    """Every check, one after the other; the disk that holds `path` is the one measured."""
    found: list[Check] = []
    for check in run_checks(path=path):
        found.append(check)
        if job is not None:
            job.progress(len(found), max(20, len(found)), check.name)
    return tuple(found)


def checks_html(checks: Checks) -> str:
    """The table, worst first, and the verdict above it."""
    order = list(MARKS)[::-1]
    worst = min((order.index(check.status) for check in checks), default=2)
    verdict = {
        "FAIL": "Something is missing that the lessons need. What to do stands in the table.",
        "warn": "The lessons will run. Something optional is missing, or unusual.",
        "ok": "Everything is there.",
    }[order[worst]]
    rows = "".join(_row(check) for check in sorted(checks, key=lambda c: order.index(c.status)))
    return (
        f"<p><b>{verdict}</b></p><table><thead><tr><th></th>{_HEAD.format('what')}{_HEAD.format('found')}</tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _row(check: Check) -> str:
    mark, colour = MARKS[check.status]
    act = f"<br><i>→ {html.escape(check.next_act)}</i>" if check.next_act else ""
    left = 'style="text-align:left"'
    return (
        f'<tr><td style="color:{colour};white-space:nowrap"><b>{mark} {check.status}</b></td>'
        f"<td {left}>{html.escape(check.name)}</td>"
        f"<td {left}>{html.escape(check.found)}{act}</td></tr>"
    )


class EnvironmentPanel(Panel[Path, Checks]):
    """The table of checks, and a button that makes them again."""

    def __init__(self, checks: Checks, *, path: Path | None = None) -> None:
        """`checks`: what the cell before has found; shown until the button is pressed."""
        super().__init__(name="environment", run_label="Check again", height_px=60)
        self._checks = checks
        self._path = path or Path(tempfile.gettempdir())

    def request(self) -> Path:
        return self._path

    def work(self, request: Path, job: Job) -> Checks:
        return check_machine(request, job)

    def render(self, result: Checks) -> str:
        return checks_html(result)

    def static_default(self) -> str:
        return checks_html(self._checks)
