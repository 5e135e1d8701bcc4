"""``measure storage`` and ``measure durability``: savers side by side on this machine."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from durable_kit.cli.terminal import (
    BAD_ANSWER,
    INTERRUPTED,
    OK,
    CannotAskError,
    Progress,
    add_command,
)


def add_parsers(commands: Any) -> None:
    """Describe ``measure`` and what can be measured."""
    measure = add_command(
        commands,
        "measure",
        tells="Measure on this machine, side by side. See: measure storage --help.",
        example="python -m durable_kit measure storage --steps 1000",
        exit_codes="those of the measurement",
    )
    measured = measure.add_subparsers(dest="measured", required=True, metavar="WHAT")
    storage = add_command(
        measured,
        "storage",
        tells="Compare how savers store a growing conversation. Bytes on disk over the messages "
        "themselves, growth, step time, reopening, history and its memory; every measurement in "
        "a fresh process, savers in turns, medians with their range. Nothing is left on disk.\n\n"
        "SqliteSaver grows with the square of the steps: 1,000 steps take about a quarter of a GB "
        "and a minute in all, 3,000 about 2.5 GB, several minutes, and up to 9 GB of memory for "
        "the history (leave it out with --no-history).",
        example="python -m durable_kit measure storage --steps 1000\n"
        "python -m durable_kit measure storage --steps 1000 3000 --messages ai "
        "--savers delta sqlite postgres\n"
        "python -m durable_kit measure storage --json > here.json",
        exit_codes="0 measured\n1 some saver could not be measured (the others are printed)\n"
        "2 the request makes no sense\n130 interrupted; what was measured until then is printed",
    )
    storage.add_argument("--steps", type=int, nargs="+", default=[1000], metavar="N")
    storage.add_argument(
        "--payload", type=int, default=490, metavar="BYTES", help="size of a message (490)"
    )
    storage.add_argument(
        "--messages",
        choices=("dict", "ai"),
        default="dict",
        help="plain dicts, or AIMessages joined by add_messages",
    )
    storage.add_argument(
        "--savers",
        nargs="+",
        default=["delta", "sqlite", "channel1000"],
        metavar="SAVER",
        help="some of: delta, delta-trust (trust_identity), sqlite, channel100, channel1000 "
        "(DeltaChannel on SqliteSaver), postgres, delta-postgres, none; or all",
    )
    storage.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds (3)")
    storage.add_argument("--no-history", action="store_true", help="leave get_state_history out")
    storage.add_argument("--postgres-url", metavar="URL", help="a server, instead of the embedded")
    storage.add_argument("--directory", metavar="DIR", help="the disk to measure on")
    storage.add_argument("--json", action="store_true", help="print JSON instead of tables")
    storage.set_defaults(run=_storage)
    durability = add_command(
        measured,
        "durability",
        tells="Compare what the durability modes cost, and what a kill takes. For sync, async and "
        "exit, for each saver and step time: one undisturbed run (step, flush, and how long a "
        "finished step is in memory alone), then real kills at random moments, each resumed in "
        "another process and held against a witness. Nothing is left on disk.\n\n"
        "This is process death. It says nothing about power loss.",
        example="python -m durable_kit measure durability\n"
        "python -m durable_kit measure durability --kills 10 --savers delta sqlite\n"
        "python -m durable_kit measure durability --kills 200 --durability sync --step-ms 0",
        exit_codes="0 measured\n1 a kill did not happen, or what came back was damaged\n"
        "2 the request makes no sense\n130 interrupted; what was measured until then is printed",
    )
    durability.add_argument(
        "--kills", type=int, default=30, metavar="N", help="for each cell of the table (30)"
    )
    durability.add_argument(
        "--savers",
        nargs="+",
        metavar="SAVER",
        help="some of those of measure storage (delta, sqlite, and where there is PostgreSQL "
        "delta-postgres, postgres)",
    )
    durability.add_argument(
        "--durability",
        nargs="+",
        choices=("sync", "async", "exit"),
        default=["sync", "async", "exit"],
        metavar="MODE",
        help="some of: sync, async, exit (all)",
    )
    durability.add_argument(
        "--step-ms", type=float, nargs="+", default=[0, 20], metavar="MS", help="(0 20)"
    )
    durability.add_argument(
        "--message-bytes", type=int, default=450, metavar="BYTES", help="size of a message (450)"
    )
    durability.add_argument("--seed", type=int, default=1, help="when the kills come (1)")
    durability.add_argument("--postgres-url", metavar="URL", help="a server, not the embedded")
    durability.add_argument("--json", action="store_true", help="print JSON instead of tables")
    durability.set_defaults(run=_durability)


def _storage(arguments: argparse.Namespace) -> int:
    from durable_kit.lab.storage_bench import measure_storage
    from durable_kit.lab.storage_worker import SAVERS

    savers = list(SAVERS) if arguments.savers == ["all"] else arguments.savers
    try:
        with Progress() as progress:
            report = measure_storage(
                savers=savers,
                steps=arguments.steps,
                messages=arguments.messages,
                payload_bytes=arguments.payload,
                repeats=arguments.repeats,
                history=not arguments.no_history,
                postgres_url=arguments.postgres_url,
                directory=arguments.directory,
                on_progress=progress.show,
            )
    except (ValueError, OSError) as error:
        raise CannotAskError(str(error)) from error
    print(report.to_json() if arguments.json else report.to_text())
    if report.interrupted:
        sys.stderr.write("Interrupted.\n")
        return INTERRUPTED
    return BAD_ANSWER if report.failures else OK


def _durability(arguments: argparse.Namespace) -> int:
    from durable_kit.crash.child import ChildFailed
    from durable_kit.lab.durability_trials import kill_between, measure_durability, savers_here

    try:
        with Progress() as progress:
            report = measure_durability(
                kills=arguments.kills,
                seed=arguments.seed,
                savers=arguments.savers or savers_here(arguments.postgres_url),
                durabilities=arguments.durability,
                kill_between={ms: kill_between(ms) for ms in arguments.step_ms},
                message_bytes=arguments.message_bytes,
                postgres_url=arguments.postgres_url,
                on_progress=progress.show,
            )
    except (ValueError, OSError) as error:
        raise CannotAskError(str(error)) from error
    except ChildFailed as error:
        sys.stderr.write(f"{error}\n")
        return BAD_ANSWER
    print(report.to_json() if arguments.json else report.to_text())
    if not report.complete:
        sys.stderr.write("Interrupted.\n")
        return INTERRUPTED
    return OK
