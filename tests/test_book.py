"""The book: pages and figures from one command, and no success with a failure in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from durable_kit.crash.child import ChildFailed
from durable_kit.lab import book
from durable_kit.lab.durability_report import Case, DurabilityReport, KillRow
from durable_kit.lab.storage_report import environment

FIGURE = """
from durable_kit.lab import figure_style, plots
figure, [axes] = figure_style.new_figure(caption="Drawn here.")
axes.plot([1, 2], [3, 4])
plots.show(figure, alt="A line that climbs.", name="growth")
"""


def write(root: Path, name: str, *sources: str) -> None:
    cells = [nbformat.v4.new_code_cell(source, id=f"cell-{n}") for n, source in enumerate(sources)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    path = root / "notebooks" / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def test_a_book_has_a_page_a_lesson_and_each_figure_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slider = "import ipywidgets\nipywidgets.IntSlider(value=41)"
    write(tmp_path, "00_tiny", FIGURE, "print('said by the cell')", slider)
    write(tmp_path, "01_other", "1")
    assert book.main(["00", "--root", str(tmp_path)]) == 0
    built = sorted(str(p.relative_to(tmp_path)) for p in (tmp_path / "build").rglob("*.*"))
    assert built == [
        "build/book/00_tiny.html",
        "build/book/index.html",
        "build/figures/growth.png",
        "build/figures/growth.svg",
    ]
    page = (tmp_path / "build" / "book" / "00_tiny.html").read_text("utf-8")
    assert 'alt="A line that climbs."' in page
    assert "said by the cell" in page
    assert "IntSlider(" not in page.partition("ipywidgets.IntSlider")[2], "a dead widget is shown"
    assert re.findall(r'(?:src|href)="https?:[^"]*"', page) == [], "the page asks the network"
    assert "00_tiny.html" in (tmp_path / "build" / "book" / "index.html").read_text("utf-8")
    assert "00_tiny: " in capsys.readouterr().out


def test_a_swallowed_error_makes_the_book_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "00_tiny", "import ipywidgets\nwith ipywidgets.Output():\n    assert False")
    assert book.main(["--root", str(tmp_path)]) == 1
    assert "error in a widget" in capsys.readouterr().out


def test_the_readmes_figures_are_refreshed_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(book, "README_FIGURES", {"00_tiny": ["growth"]})
    monkeypatch.setattr(book, "measure_durability", measured_before)
    assert book.main(["--figures", "--root", str(tmp_path)]) == 2
    write(tmp_path, "00_tiny", FIGURE)
    assert book.main(["--figures", "--root", str(tmp_path)]) == 0
    names = sorted(path.name for path in (tmp_path / "docs" / "figures").iterdir())
    assert names == ["durability.png", "durability.svg", "growth.png", "growth.svg"]
    assert "sync 0 (0 to 1)" in capsys.readouterr().out, "the alt text is not printed"
    assert not (tmp_path / "build").exists()
    before = (tmp_path / "docs" / "figures" / "growth.png").read_bytes()
    write(tmp_path, "00_tiny", FIGURE.replace("[3, 4]", "[3, 9]"), "1 / 0")
    assert book.main(["--figures", "--root", str(tmp_path)]) == 1
    assert (tmp_path / "docs" / "figures" / "growth.png").read_bytes() == before


def test_a_durability_figure_is_kept_when_the_new_one_fails_or_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(**_: Any) -> DurabilityReport:
        raise ChildFailed("the kill did not happen as told")

    def stopped(**asked: Any) -> DurabilityReport:
        return measured_before(**asked).interrupted()

    monkeypatch.setattr(book, "README_FIGURES", {})
    for measure in (fails, stopped):
        monkeypatch.setattr(book, "measure_durability", measure)
        assert book.main(["--figures", "--root", str(tmp_path)]) == 1
        assert list(tmp_path.rglob("durability.*")) == []


def measured_before(**_: Any) -> DurabilityReport:
    """What the real measurement returns, without its minute."""
    report = DurabilityReport.empty(450, environment({}, {}))
    for mode, lost in [("sync", 0), ("exit", 90), ("sync", 1), ("exit", 120), ("sync", 0)]:
        case = Case("delta", mode, 0)
        report = report.with_kill(KillRow(case, 200, 200 - lost, lost, lost, 1.0, 1, "was killed"))
    return report


def test_nothing_to_build_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert book.main(["99", "--root", str(tmp_path)]) == 2
    assert "No notebook" in capsys.readouterr().out
