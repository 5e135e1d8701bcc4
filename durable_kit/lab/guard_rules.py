"""Rules that a notebook keeps lying still: what is in the file, and how long it is.

Outputs in git make every diff unreadable and every merge a conflict, and they go stale: a reader
then sees last month's numbers. Ids that change on every save do the same to a diff. And a cell of
sixty lines, or a page of prose, is where a learner stops reading. So the limits are counted.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

from durable_kit.lab.guard import Finding

CELLS = (25, 40)
CODE_LINES = 25
PROSE_WORDS = 110
FORBIDDEN_TAGS = ("raises-exception", "skip-execution")
READABLE = re.compile(r"[a-z]{3,}[a-z0-9]*(-[a-z0-9]+)*")


def check_rules(notebook: Any) -> list[Finding]:
    """Every rule that the notebook breaks, as sentences; none for one that keeps them."""
    return [
        Finding("rule", where, text)
        for where, text in (*_file(notebook), *_ids(notebook), *_cells(notebook))
    ]


def _file(notebook: Any) -> Iterator[tuple[str, str]]:
    version = (notebook.get("nbformat"), notebook.get("nbformat_minor"))
    if version != (4, 5):
        yield "the file", f"is nbformat {version[0]}.{version[1]}; 4.5 has cell ids"
    kernel = notebook["metadata"].get("kernelspec", {}).get("name")
    if kernel != "python3":
        yield "the file", f"asks for the kernel {kernel!r}; python3 is there on every machine"
    if "widgets" in notebook["metadata"]:
        yield "the file", "holds widget state; strip it"
    count = len(notebook["cells"])
    if not CELLS[0] <= count <= CELLS[1]:
        yield "the file", f"has {count} cells; a lesson has {CELLS[0]} to {CELLS[1]}"
    parameters = sum("parameters" in _tags(cell) for cell in notebook["cells"])
    if parameters != 1:
        yield "the file", f"{parameters} cells are tagged parameters; there must be one"


def _ids(notebook: Any) -> Iterator[tuple[str, str]]:
    ids = [str(cell.get("id")) for cell in notebook["cells"]]
    for one, times in Counter(ids).items():
        if times > 1:
            yield one, f"the id is used {times} times"
        if not READABLE.fullmatch(one) or len(one) > 64:
            yield one, f"{one!r} is not a readable id, like measure-growth"


def _cells(notebook: Any) -> Iterator[tuple[str, str]]:
    for cell in notebook["cells"]:
        where, source = str(cell.get("id")), _source(cell)
        for tag in FORBIDDEN_TAGS:
            if tag in _tags(cell):
                yield where, f"has the tag {tag}, which hides failures; observe the error instead"
        if cell["cell_type"] == "markdown":
            words = _words(source)
            if words > PROSE_WORDS:
                yield where, f"has {words} words; a cell of prose has at most {PROSE_WORDS}"
        elif cell["cell_type"] == "code":
            if cell.get("outputs"):
                yield where, "holds outputs; strip them"
            if cell.get("execution_count") is not None:
                yield where, "holds an execution count; strip it"
            lines = len(source.splitlines())
            if lines > CODE_LINES:
                yield where, f"has {lines} lines of code; a cell has at most {CODE_LINES}"
            if not _parses(source):
                yield where, "the code does not parse"


def _words(markdown: str) -> int:
    """Words of prose: neither the code nor the lines of a table or a drawing count."""
    prose = re.sub(r"```.*?```", " ", markdown, flags=re.DOTALL)
    lines = [line for line in prose.splitlines() if not line.startswith(("    ", "|"))]
    return len(re.findall(r"[\w'’]+(?:[-./][\w'’]+)*", " ".join(lines)))


def _parses(source: str) -> bool:
    transformer: Any = TransformerManager  # it is not annotated
    try:
        compile(
            transformer().transform_cell(source),
            "cell",
            "exec",
            flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        )
    except SyntaxError:
        return False
    return True


def _source(cell: Any) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _tags(cell: Any) -> list[str]:
    return list(cell.get("metadata", {}).get("tags", []))
