"""Arrows point downward: who may import whom, read from the source.

A lease that can be used without LangGraph, an import that is quick and needs no Jupyter: both are
lost by one careless line, and nobody notices for a month. So the rule is a test. It reads every
import of every module with `ast`, the ones inside functions and under TYPE_CHECKING too: knowing a
name is knowing a room, whenever it is looked up.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KIT = "durable_kit"

# Names below durable_kit. "room.*" is a package with all that is in it, "codec_*" all names that
# begin so; the longest that fits wins. In storage/ every file is named: what is pure and what
# touches the log is decided file by file.
LAYERS: dict[int, list[str]] = {
    # what everything may use
    0: ["errors", "clock", "control_flow", "crash_point"],
    # pure: values in, values out
    1: [
        "storage.delta",
        "storage.packs",
        "storage.runs",
        "storage.same",
        "storage.seal",
        "storage.snapshot_policy",
        "effects.fingerprint",
        "retry",
    ],
    # one value, one record, one state, one connection
    2: [
        "storage.check_state",
        "storage.codec",
        "storage.codec_*",
        "storage.database",
        "storage.database_url",
        "storage.group_commit",
        "storage.sqlite_connections",
        "storage.tx",
        "storage.fold",
        "storage.image",
        "storage.record",
        "storage.schema",
        "storage.tip",
    ],
    # the mechanisms
    3: [
        "storage",
        "storage.checkpoint_log",
        "storage.composer",
        "storage.listing",
        "storage.log_reader",
        "storage.materialize",
        "storage.namespaces",
        "storage.newest",
        "storage.queue_order",
        "storage.recovery",
        "storage.retention",
        "storage.rows",
        "storage.write_rows",
        "storage.writes_log",
        "storage.statistics",
        "storage.survey",
        "effects.*",
        "coordination.*",
        "versions.*",
        "event_log",
    ],
    # these know LangGraph; and the table of contents, durable_kit itself
    4: [
        "checkpoint_state",
        "delta_channels",
        "graph_effects",
        "checkpoint_reading",
        "serde_codec",
        "delta_saver",
        "trace",
        "crash.*",
        "versions.drain",
        "versions.field_rename",
        "versions.flow_router",
        "versions.graph_fingerprint",
        "versions.resume",
        "versions.rewrite",
        "versions.moved_subgraphs",
        "",
    ],
    # for people: nothing below imports these
    5: ["lab.*", "cli.*", "__main__"],
}

LANGGRAPH_FROM_LAYER = 4
LANGGRAPH = ("langgraph", "langchain")

# A top-level package, by its beginning -> the rooms that may import it.
ONLY_IN = {
    "jupyter": ("lab",),
    "IPython": ("lab",),
    "ipykernel": ("lab",),
    "ipywidgets": ("lab",),
    "anywidget": ("lab",),
    "nbclient": ("lab",),
    "nbconvert": ("lab",),
    "nbformat": ("lab",),
    "pandas": ("lab",),
    "matplotlib": ("lab",),
    "tqdm": ("lab", "cli", "__main__"),
}


def layer_of(name: str) -> int | None:
    """The layer of a module by its name below durable_kit; None when nobody gave it one."""
    fitting = {
        entry: layer
        for layer, entries in LAYERS.items()
        for entry in entries
        if name == entry.removesuffix(".*")
        or (entry.endswith("*") and name.startswith(entry.removesuffix("*")))
    }
    return fitting[max(fitting, key=len)] if fitting else None


def violations(root: Path) -> list[str]:
    """One sentence for each import that breaks the rule in the package below `root`."""
    modules = dict(_modules(root))
    sentences = []
    for name, path in modules.items():
        layer = layer_of(name)
        if layer is None:
            sentences.append(
                f"{_spoken(name)} has no layer. Give it one in LAYERS (tests/test_layers.py): the "
                f"lowest that its imports allow."
            )
            continue
        for imported, line in _imports(name, path, modules):
            where = f"{path.relative_to(root)}:{line}: {_spoken(name)} (layer {layer})"
            if imported == KIT or imported.startswith(f"{KIT}."):
                below = imported.removeprefix(KIT).removeprefix(".")
                target = layer_of(below)
                if target is not None and target > layer:
                    sentences.append(
                        f"{where} imports {_spoken(below)} (layer {target}); arrows point down."
                    )
                continue
            top = imported.partition(".")[0]
            if top.startswith(LANGGRAPH) and layer < LANGGRAPH_FROM_LAYER:
                sentences.append(f"{where} imports {imported}; only layer 4 and up know LangGraph.")
            for package, rooms in ONLY_IN.items():
                if top.startswith(package) and name.partition(".")[0] not in rooms:
                    sentences.append(
                        f"{where} imports {imported}, which belongs to {', '.join(rooms)}."
                    )
    return sentences


def _modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Every module of the package, by its name below durable_kit ("" for durable_kit itself)."""
    for path in sorted((root / KIT).rglob("*.py")):
        parts = path.relative_to(root / KIT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _imports(name: str, path: Path, modules: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """(what is imported, its line); `from durable_kit import clock` counts as the module clock."""
    package = [KIT, *name.split(".")] if name else [KIT]
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                is_module = whole.removeprefix(f"{KIT}.") in modules and whole.startswith(KIT)
                yield (whole if is_module else source), node.lineno


def _spoken(name: str) -> str:
    return f"{KIT}.{name}" if name else KIT


def test_every_module_has_a_layer_and_every_arrow_points_down() -> None:
    assert len(dict(_modules(ROOT))) > 1, "no modules found: the test would pass on nothing"
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("gossip.py", "", "durable_kit.gossip has no layer. Give it one"),
        ("storage/attic.py", "", "durable_kit.storage.attic has no layer. Give it one"),
        ("clock.py", "import durable_kit.trace", "(layer 0) imports durable_kit.trace (layer 4)"),
        ("retry.py", "from durable_kit.storage.database import Tx", "(layer 1) imports"),
        ("retry.py", "from durable_kit import lab", "imports durable_kit.lab (layer 5)"),
        ("__init__.py", "from .lab import plots", "imports durable_kit.lab.plots (layer 5)"),
        ("effects/fingerprint.py", "from ..storage import schema", "durable_kit.storage.schema"),
        ("storage/codec.py", "def f():\n    import langgraph.types", "know LangGraph"),
        ("event_log.py", "from langchain_core.messages import AIMessage", "know LangGraph"),
        ("trace.py", "import pandas as pd", "imports pandas, which belongs to lab."),
        ("crash/trial.py", "from jupyter_client import x", "belongs to lab."),
        ("delta_saver.py", "from tqdm.auto import tqdm", "belongs to lab, cli, __main__."),
        (
            "errors.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import durable_kit.retry",
            "errors.py:3: durable_kit.errors (layer 0) imports durable_kit.retry (layer 1)",
        ),
    ],
)
def test_a_planted_violation_is_found(
    small_kit: Path, module: str, source: str, complaint: str
) -> None:
    planted = small_kit / KIT / module
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(source, "utf-8")
    [sentence] = violations(small_kit)
    assert complaint in sentence


def test_imports_that_the_rule_allows_are_not_reported(small_kit: Path) -> None:
    assert violations(small_kit) == []


@pytest.fixture
def small_kit(tmp_path: Path) -> Path:
    """A package with an allowed import of every sort."""
    for module, source in {
        "__init__.py": "from durable_kit.clock import Clock",
        "clock.py": "import time",
        "retry.py": "from durable_kit import clock\nimport tenacity",
        "storage/__init__.py": "",
        "storage/database.py": "import sqlalchemy\nfrom durable_kit.storage.schema import migrate",
        "storage/schema.py": "from .database import Tx",
        "delta_saver.py": "import langgraph\nfrom durable_kit.storage import schema",
        "lab/__init__.py": "",
        "lab/plots.py": "import pandas\nfrom tqdm import tqdm\nimport durable_kit.clock",
        "__main__.py": "from tqdm import tqdm\nfrom durable_kit.lab import plots",
    }.items():
        path = tmp_path / KIT / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        pytest.param("", {"langgraph", "sqlalchemy"}, id="import alone"),
        pytest.param("[getattr(kit, name) for name in kit.__all__]", set(), id="every public name"),
    ],
)
def test_the_kit_loads_no_jupyter_no_tables_no_driver(code: str, unwanted: set[str]) -> None:
    unwanted |= {"IPython", "ipywidgets", "jupyterlab", "matplotlib", "pandas", "psycopg", "tqdm"}
    script = (
        f"import durable_kit as kit, sys\n{code}\nprint(*sorted({unwanted} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.split() == []
