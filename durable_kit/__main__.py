"""``python -m durable_kit``: look at a database, check a machine, measure.

The commands live in ``durable_kit.cli``, a module each; this file only chooses one.
"""

from __future__ import annotations

import argparse
import sys

from durable_kit.cli import doctor, measure, threads, versions
from durable_kit.cli.terminal import CANNOT_ASK, INTERRUPTED, CannotAskError

_EPILOG = """\
Every command explains itself:  python -m durable_kit COMMAND --help
Begin with:                     python -m durable_kit doctor

exit codes: 0 good answer, 1 bad answer, 2 the question could not be asked, 130 interrupted
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code. Expected failures print one sentence on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m durable_kit",
        description="Durable agents: what is stored, whether it is sound, and what it costs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (doctor, threads, versions, measure):
        module.add_parsers(commands)
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as stop:  # argparse leaves like that, also after --help
        return stop.code if isinstance(stop.code, int) else CANNOT_ASK
    try:
        return int(arguments.run(arguments))
    except CannotAskError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `| head` has read enough
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    raise SystemExit(main())
