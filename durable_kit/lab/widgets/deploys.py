"""A slider over deploys: where ten waiting threads go, what breaks, what may be deleted.

Each position copies the file of threads and resumes all of them under that code, for real; see
`deploy_trials`. What is shown is what happened.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

import ipywidgets

from durable_kit.lab import plots
from durable_kit.lab.deploy_trials import VERDICTS, Trial, deploy_over, verdicts
from durable_kit.lab.order_versions import DEPLOYS, Deploy
from durable_kit.lab.widgets.base import Job, Panel
from durable_kit.versions.drain import DrainReport

LETTERS = dict(zip(VERDICTS, "AONXWE", strict=True))
"""As agreed, by Other rules, Not charged, an error (X), refused and Waits, had Ended"""


@dataclass(frozen=True, slots=True)
class DeployRequest:
    """Which code to deploy over which file of threads."""

    deploy: Deploy
    threads: Path


def try_deploy(request: DeployRequest, job: Job) -> Trial:
    """Deploy over a copy and resume everything."""
    return deploy_over(request.threads, request.deploy, job.progress)


def trial_alt(trial: Trial) -> str:
    """The figure in words, for who does not see it."""
    counts = [f"{trial.count(v)} {v}" for v in VERDICTS if trial.count(v)]
    return f"Deploying '{trial.deploy.name}' over ten threads: {', '.join(counts)}."


def trial_html(trial: Trial) -> str:
    """A bar, what it means for the path of version 1, and one row a thread."""
    figure = plots.shares(
        verdicts([trial]),
        names="deploy",
        parts=LETTERS,
        x_label="threads (count)",
        caption="Measured here: every thread resumed once (n = 1).",
    )
    lines = [_about_path(trial.before, "Before"), _about_path(trial.after, "After")]
    if trial.problems:
        lines.append(
            f"<b>check_resume</b> had objected to {trial.problems} threads before anything ran."
        )
    said = sorted({outcome.said for outcome in trial.outcomes if outcome.said})
    lines += [html.escape(one) for one in said]
    text = "".join(f'<div style="margin:4px 0;line-height:1.4">{line}</div>' for line in lines)
    return plots.figure_html(figure, alt=trial_alt(trial), table=trial.table()) + text


def _about_path(report: DrainReport, when: str) -> str:
    verdict = "may go" if report.may_go(1) else "must stay"
    unfinished = report.unfinished.get(1, 0)
    return (
        f"{when}: {unfinished} threads of flow_version 1 are unfinished; its path <b>{verdict}</b>."
    )


class DeployPanel(Panel[DeployRequest, Trial]):
    """One slider: the deploy. Reset goes back to the first."""

    def __init__(self, threads: Path) -> None:
        self.deploy = ipywidgets.SelectionSlider(
            options=[(deploy.name, deploy) for deploy in DEPLOYS],
            value=DEPLOYS[0],
            description="deploy",
            continuous_update=False,
            layout=ipywidgets.Layout(width="620px"),
        )
        super().__init__(name="deploys", live=[self.deploy], height_px=330)
        self._threads = threads
        self._first = deploy_over(threads, DEPLOYS[0])
        self.last_result = self._first
        self.area.value = trial_html(self._first)

    def request(self) -> DeployRequest:
        return DeployRequest(self.deploy.value, self._threads)

    def work(self, request: DeployRequest, job: Job) -> Trial:
        return try_deploy(request, job)

    def render(self, result: Trial) -> str:
        return trial_html(result)

    def static_default(self) -> str:
        return trial_html(self._first)
