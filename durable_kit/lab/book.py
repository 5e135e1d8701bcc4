"""Every notebook executed, as pages to read and figures to show: `python -m durable_kit.lab.book`.

    build/book/00_start_here.html …    the lessons with their outputs, and index.html
    build/figures/growth.svg, .png …   every named figure, in both forms
    docs/figures/…                     with --figures: only the figures that the README shows

What is built is made by the guard's own execution, so a book with a swallowed error in it does not
come out as a success: the findings are printed, and the exit code is 1.

One figure of the README belongs to no lesson: what a kill loses in each durability mode. It is
measured here, by killing some processes, which takes a minute or two; its alt text is printed.

    python -m durable_kit.lab.book                  everything
    python -m durable_kit.lab.book 05               the lessons whose names begin with 05
    python -m durable_kit.lab.book --figures        run what the README needs, refresh docs/figures
"""

from __future__ import annotations

import argparse
import html
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter
from tqdm import tqdm

from durable_kit.crash.child import ChildFailed
from durable_kit.lab import durability_plots, plots
from durable_kit.lab.durability_trials import measure_durability
from durable_kit.lab.guard import Limits, Outcome, execute, limits_for_this_machine

README_FIGURES = {"05_snapshot_delta_compaction": ["growth", "replay-cost"]}
"""Lesson -> the figures of it that the README shows."""

DURABILITY_KILLS = 10
"""Kills for each durability mode and step time in the README's figure of them."""

_Exporter: Any = HTMLExporter  # nbconvert is not annotated
LIMITS = Limits(cell_s=120, notebook_s=240)  # a book may take its time; the tests are stricter


def main(argv: list[str] | None = None) -> int:
    """Build the book, or refresh the README's figures. 0: no findings, 1: some, 2: no notebook."""
    parser = argparse.ArgumentParser(
        prog="python -m durable_kit.lab.book", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("lessons", nargs="*", help="only lessons whose names begin like this")
    parser.add_argument(
        "--figures", action="store_true", help="refresh docs/figures for the README"
    )
    parser.add_argument(
        "--root", type=Path, default=Path.cwd(), help="the repository (default: here)"
    )
    arguments = parser.parse_args(argv)
    root: Path = arguments.root
    if arguments.figures:
        return _readme_figures(root)
    chosen = _notebooks(root, arguments.lessons)
    if not chosen:
        print(f"No notebook in {root / 'notebooks'} matches. Run this in the repository.")
        return 2
    figures, book = root / "build" / "figures", root / "build" / "book"
    book.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, Outcome] = {}
    for path in tqdm(chosen, desc="executing", unit="notebook", file=sys.stderr):
        outcome = _execute(path, figures)
        name = _name(path)
        (book / f"{name}.html").write_text(page(outcome.notebook, title=name), "utf-8")
        outcomes[name] = outcome
    (book / "index.html").write_text(_index(outcomes), "utf-8")
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome.seconds:.1f} s, {len(outcome.findings)} findings")
        for finding in outcome.findings:
            print(f"  {finding}")
    print(f"Open {book / 'index.html'}; {len(list(figures.glob('*.svg')))} figures in {figures}.")
    return 1 if any(outcome.findings for outcome in outcomes.values()) else 0


def page(notebook: Any, *, title: str) -> str:
    """One executed notebook as a page that needs no server and no kernel."""
    # Nothing is fetched when the page is opened: there are no formulas and no live widgets in it.
    exporter: Any = _Exporter(template_name="lab", mathjax_url="", require_js_url="")
    # A widget without a kernel cannot do anything; its static default stands before it.
    for cell in notebook.cells:
        cell["outputs"] = [o for o in cell.get("outputs", []) if not _is_widget(o)]
    notebook.metadata.pop("widgets", None)
    text, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": title}})
    return str(text)


def _readme_figures(root: Path) -> int:
    target = root / "docs" / "figures"
    findings = 0
    for lesson in README_FIGURES:
        if not (root / "notebooks" / f"{lesson}.ipynb").exists():
            print(f"There is no notebook {lesson} in {root}. Run this in the repository.")
            return 2
    for lesson, names in README_FIGURES.items():
        path = root / "notebooks" / f"{lesson}.ipynb"
        with tempfile.TemporaryDirectory(prefix="kit-figures-") as folder:
            outcome = _execute(path, Path(folder))
            findings += len(outcome.findings)
            for finding in outcome.findings:
                print(f"{lesson}: {finding}")
            if outcome.findings:
                continue  # the figures that are there are better than those of a failed run
            target.mkdir(parents=True, exist_ok=True)
            for name in names:
                for suffix in (".svg", ".png"):
                    shutil.copy(Path(folder) / f"{name}{suffix}", target / f"{name}{suffix}")
                    print(target / f"{name}{suffix}")
    findings += not _durability_figure(target)
    return 1 if findings else 0


def _durability_figure(target: Path) -> bool:
    """Measure what is lost in each durability mode, and draw it. False if it could not be done."""
    try:
        measured = measure_durability(
            kills=DURABILITY_KILLS,
            seed=1,
            savers=["delta"],
            kill_between={0: (100, 500), 20: (4, 20)},
            timed=False,
        )
    except ChildFailed as failed:
        print(f"durability: {failed}")
        return False
    print(measured.note())
    if not measured.complete:
        return False  # as above: the figure that is there is better than half a one
    table = measured.kill_table()
    print(durability_plots.losses_alt(table))
    for path in plots.save(durability_plots.losses(table), target / "durability"):
        print(path)
    return True


def _execute(path: Path, figures: Path) -> Outcome:
    return execute(
        nbformat.read(path, as_version=4),  # type: ignore[no-untyped-call]
        folder=path.parent,
        limits=limits_for_this_machine(LIMITS),
        solutions=path.parent.name == "solutions",
        figures=figures,
    )


def _notebooks(root: Path, beginnings: Sequence[str]) -> list[Path]:
    folder = root / "notebooks"
    found = [*sorted(folder.glob("*.ipynb")), *sorted((folder / "solutions").glob("*.ipynb"))]
    return [p for p in found if not beginnings or p.name.startswith(tuple(beginnings))]


def _name(path: Path) -> str:
    return f"solution-{path.stem}" if path.parent.name == "solutions" else path.stem


def _is_widget(output: Any) -> bool:
    return "application/vnd.jupyter.widget-view+json" in output.get("data", {})


def _index(outcomes: dict[str, Outcome]) -> str:
    items = "".join(
        f'<li><a href="{html.escape(name)}.html">{html.escape(name)}</a> '
        f"({outcome.seconds:.0f} s, {len(outcome.findings)} findings)</li>"
        for name, outcome in outcomes.items()
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>durable_kit, the book</title>'
        f"<h1>durable_kit, the book</h1><ul>{items}</ul></html>"
    )


if __name__ == "__main__":
    sys.exit(main())
