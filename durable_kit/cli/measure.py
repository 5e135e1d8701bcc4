"""``measure storage``: savers side by side on this machine."""

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
