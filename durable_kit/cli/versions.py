"""``drain`` and ``migrate``: which threads still need old code, and bring their records up to date.

The steps of a migration are functions, so ``migrate`` is told where your code keeps them:
``--migrations shop.versions:MIGRATIONS`` imports the module ``shop.versions``, from the working
directory too, and takes the name ``MIGRATIONS`` in it.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durable_kit.cli.terminal import BAD_ANSWER, OK, CannotAskError, add_command, print_table

if TYPE_CHECKING:
    from durable_kit.versions.migration import Migrations

_URL = "sqlite:///file.db, sqlite:////absolute/file.db or postgresql+psycopg://user@host/name"


def add_parsers(commands: Any) -> None:
    """Describe the two commands."""
    drain = add_command(
        commands,
        "drain",
        tells="Count the threads that wait, by flow_version and node. Says since when, and which "
        "flow_versions have none left, so that their paths may go. States are not read and "
        "nothing is changed.\n\n"
        "Ended threads keep their flow_version. Should one get another turn, it needs its path.",
        example="python -m durable_kit drain sqlite:///kit.db\n"
        "python -m durable_kit drain sqlite:///kit.db --flow-version 1",
        exit_codes="0 answered; with --flow-version: its path may go\n"
        "1 threads still wait in the path of --flow-version, or a record is damaged\n"
        "2 no such database or file",
    )
    drain.add_argument("url", help=_URL)
    drain.add_argument("--flow-version", type=int, help="ask whether this path may go")
    drain.set_defaults(run=_drain)

    migrate = add_command(
        commands,
        "migrate",
        tells="Bring the newest checkpoint of every thread to today's state_version. Reading does "
        "so anyway; this is for deleting a step one day. What was there is kept in the table "
        "checkpoint_originals. A kill at any point leaves each thread at one version or the "
        "other; run it again for the rest.\n\n"
        "Stop code of older versions first: it refuses what was migrated. States with classes of "
        "your own need your codec; call durable_kit.versions.rewrite.migrate with your saver.",
        example="python -m durable_kit migrate sqlite:///kit.db "
        "--migrations shop.versions:MIGRATIONS --dry-run",
        exit_codes="0 every thread is at today's version, or would be\n"
        "1 something is left, or a record cannot be migrated\n"
        "2 no such database, file or migrations",
    )
    migrate.add_argument("url", help=_URL)
    migrate.add_argument(
        "--migrations", required=True, metavar="MODULE:NAME", help="where your Migrations are"
    )
    migrate.add_argument("--dry-run", action="store_true", help="show the changes, make none")
    migrate.set_defaults(run=_migrate)


def _drain(arguments: argparse.Namespace) -> int:
    from durable_kit.cli.existing_database import existing_saver
    from durable_kit.versions.drain import drain_report

    with existing_saver(arguments.url) as saver:
        report = drain_report(saver)
    now_us = time.time_ns() // 1000
    rows = [
        [e.flow_version, e.node, e.threads, _age(now_us - e.since_us), e.oldest_thread_id]
        for e in report.waiting
    ]
    if rows:
        print_table(["flow_version", "waits at", "threads", "waiting", "oldest thread"], rows)
        if sum(e.threads for e in report.waiting) > sum(report.unfinished.values()):
            print("A node that has finished is listed until those beside it have finished too.")
    versions = sorted({*report.unfinished, *report.ended})
    for version in versions:
        waiting, ended = report.unfinished.get(version, 0), report.ended.get(version, 0)
        verdict = "may go" if report.may_go(version) else "must stay"
        print(f"flow_version {version}: {waiting} unfinished, {ended} ended: its path {verdict}")
    print(f"{report.threads:,} threads")
    asked = arguments.flow_version
    return BAD_ANSWER if asked is not None and not report.may_go(asked) else OK


def _migrate(arguments: argparse.Namespace) -> int:
    from durable_kit.cli.existing_database import existing_saver
    from durable_kit.versions.migration import MigrationFailed, NewerState
    from durable_kit.versions.rewrite import migrate

    migrations = _migrations(arguments.migrations)
    dry_run = arguments.dry_run
    with existing_saver(arguments.url, writable=not dry_run, migrations=migrations) as saver:
        try:
            report = migrate(saver, dry_run=dry_run)
        except (MigrationFailed, NewerState) as error:
            print(error, file=sys.stderr)
            return BAD_ANSWER
    rows = [
        [
            change.thread_id,
            change.namespace or "(root)",
            f"{change.from_version} -> {change.to_version}",
            " ".join(
                [
                    *(f"-{name}" for name in change.gone),
                    *(f"+{name}" for name in change.new),
                    *(f"~{name}" for name in change.changed),
                ]
            )
            or "(same values)",
            change.moved_writes,
        ]
        for change in report.changes
    ]
    if rows:
        print_table(["thread", "namespace", "version", "channels", "writes moved"], rows)
    for thread_id, namespace in report.left:
        print(f"left: thread {thread_id}, {namespace}: paused inside a node that was renamed")
    verb = "would change" if dry_run else "changed"
    print(f"{len(rows):,} {verb}, {report.current:,} at version {migrations.current} already")
    return BAD_ANSWER if report.left else OK


def _migrations(where: str) -> Migrations:
    """Import what ``MODULE:NAME`` names. Raises CannotAskError in one sentence."""
    from durable_kit.errors import BadInput
    from durable_kit.versions.migration import Migrations

    module_name, colon, name = where.partition(":")
    if not colon or not module_name or not name:
        raise CannotAskError(f"--migrations is {where!r}; give MODULE:NAME.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(import_module(module_name), name)
    except (ImportError, AttributeError, BadInput) as error:
        raise CannotAskError(f"{where} cannot be had: {error}") from error
    if not isinstance(found, Migrations):
        raise CannotAskError(f"{where} is {type(found).__name__}, not Migrations.")
    return found


def _age(micros: int) -> str:
    for name, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if micros >= size * 2_000_000:
            return f"{micros // (size * 1_000_000)} {name}"
    return f"{max(0, micros) // 1_000_000} seconds"
