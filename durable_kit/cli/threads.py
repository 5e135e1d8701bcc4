"""``inspect``, ``verify``, ``compact`` and ``stats``: look at what is stored, and tidy it up."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from durable_kit.cli.terminal import BAD_ANSWER, OK, add_command, print_table

_URL = "sqlite:///file.db, sqlite:////absolute/file.db or postgresql+psycopg://user@host/name"
_ASKED = "0 answered\n2 no such database, file or thread"


def add_parsers(commands: Any) -> None:
    """Describe the four commands."""
    inspect = add_command(
        commands,
        "inspect",
        tells="List the threads of a database, or the records of one thread. Shows which records "
        "are snapshots and which are deltas, what each one hangs on, and the bytes it takes. "
        "Values are not shown and nothing is changed.",
        example="python -m durable_kit inspect sqlite:///kit.db\n"
        "python -m durable_kit inspect sqlite:///kit.db --thread order-1001",
        exit_codes="0 answered\n1 the thread is damaged; verify says where\n"
        "2 no such database, file or thread",
    )
    inspect.add_argument("url", help=_URL)
    inspect.add_argument("--thread", help="show the records of this thread")
    inspect.set_defaults(run=_inspect)

    verify = add_command(
        commands,
        "verify",
        tells="Check every record: order, parents, checksums, versions. Prints each bad record "
        "with what was found in it; nothing is changed. DeltaSaver.recover(thread_id) is the act "
        "that falls back to the newest state that checks out.",
        example="python -m durable_kit verify sqlite:///kit.db",
        exit_codes="0 every record is good\n1 there are bad records\n"
        "2 no such database, file or thread",
    )
    verify.add_argument("url", help=_URL)
    verify.add_argument("--thread", help="check this thread only")
    verify.set_defaults(run=_verify)

    compact = add_command(
        commands,
        "compact",
        tells="Rewrite a thread's chain into a fresh snapshot and its tail. Reading gets faster; "
        "every state stays what it was. Writers may go on meanwhile, and a kill at any point "
        "leaves the thread whole.",
        example="python -m durable_kit compact sqlite:///kit.db --thread order-1001",
        exit_codes=_ASKED,
    )
    compact.add_argument("url", help=_URL)
    compact.add_argument("--thread", required=True, help="the thread to compact")
    compact.set_defaults(run=_compact)

    stats = add_command(
        commands,
        "stats",
        tells="Count the records, snapshots and bytes of a thread. Also how many deltas a read "
        "has to apply at worst.",
        example="python -m durable_kit stats sqlite:///kit.db --thread order-1001",
        exit_codes=_ASKED,
    )
    stats.add_argument("url", help=_URL)
    stats.add_argument("--thread", required=True)
    stats.set_defaults(run=_stats)


def _inspect(arguments: argparse.Namespace) -> int:
    from durable_kit.cli.existing_database import existing_saver, require_thread

    with existing_saver(arguments.url) as saver:
        if arguments.thread is None:
            threads = list(saver.threads())
            print_table(["thread", "namespace"], [[t, ns or "(root)"] for t, ns in threads])
            return OK
        require_thread(saver, arguments.thread)
        rows = [
            [
                record.sequence,
                record.kind,
                record.checkpoint_id,
                record.parent_id or "-",
                record.stored_bytes,
                record.depth,
                _utc(record.created_at_us),
                record.namespace or "(root)",
            ]
            for record in saver.records(arguments.thread)
        ]
    header = ["sequence", "kind", "checkpoint", "parent", "bytes", "depth", "written", "namespace"]
    print_table(header, rows)
    return OK


def _verify(arguments: argparse.Namespace) -> int:
    from durable_kit.cli.existing_database import existing_saver, require_thread

    bad: list[list[object]] = []
    records = 0
    with existing_saver(arguments.url) as saver:
        threads = list(dict.fromkeys(thread for thread, _ in saver.threads()))
        if arguments.thread is not None:
            threads = [arguments.thread]
        for thread in threads:
            verdict = saver.verify(thread)
            if arguments.thread is not None and verdict.ok and not verdict.records:
                require_thread(saver, thread)
            records += verdict.records
            bad += [
                [
                    thread,
                    p.namespace or "(root)",
                    p.sequence or "-",
                    p.checkpoint_id or "-",
                    p.found,
                ]
                for p in verdict.problems
            ]
    if bad:
        print_table(["thread", "namespace", "sequence", "checkpoint", "found"], bad)
        print(f"{len(bad)} problems in {len({row[0] for row in bad})} of {len(threads)} threads")
        return BAD_ANSWER
    print(f"{len(threads)} threads, {records:,} records: every record is good")
    return OK


def _compact(arguments: argparse.Namespace) -> int:
    from durable_kit.cli.existing_database import existing_saver, require_thread

    with existing_saver(arguments.url, writable=True) as saver:
        require_thread(saver, arguments.thread)
        before = asdict(saver.stats(arguments.thread))
        rewritten = saver.compact(arguments.thread)
        after = asdict(saver.stats(arguments.thread))
    print(f"{arguments.thread}: {rewritten} checkpoints rewritten as snapshots")
    changed = [[name, before[name], after[name]] for name in before if before[name] != after[name]]
    if changed:
        print_table(["", "before", "after"], changed)
    return OK


def _stats(arguments: argparse.Namespace) -> int:
    from durable_kit.cli.existing_database import existing_saver, require_thread

    with existing_saver(arguments.url) as saver:
        require_thread(saver, arguments.thread)
        print_table(["", "now"], list(asdict(saver.stats(arguments.thread)).items()))
    return OK


def _utc(instant_us: int) -> str:
    return f"{datetime.fromtimestamp(instant_us / 1e6, tz=UTC):%Y-%m-%d %H:%M:%S}Z"
