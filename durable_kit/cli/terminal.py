"""What the commands share: errors that are one sentence, progress on stderr, a table on stdout.

Answers go to stdout and everything else to stderr, so that a pipe gets the answer only.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from types import TracebackType
from typing import Any

OK, BAD_ANSWER, CANNOT_ASK, INTERRUPTED = 0, 1, 2, 130


class CannotAskError(Exception):
    """The command cannot be carried out; its text is one sentence that says what to change."""

    exit_code = CANNOT_ASK


class DamagedError(CannotAskError):
    """The command met damaged records where it needed good ones; the text says what and where."""

    exit_code = BAD_ANSWER


def add_command(
    commands: Any, name: str, *, tells: str, example: str, exit_codes: str
) -> argparse.ArgumentParser:
    """Add a command whose ``--help`` says what it tells, an example, and its exit codes.

    The first sentence of ``tells`` is its line in the list of commands.
    """
    paragraphs = [" ".join(paragraph.split()) for paragraph in tells.split("\n\n")]
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=paragraphs[0].split(". ")[0].rstrip("."),
        description="\n\n".join(textwrap.fill(paragraph, 79) for paragraph in paragraphs),
        epilog=f"example:\n{_indented(example)}\n\nexit codes:\n{_indented(exit_codes)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print columns to stdout; numbers stand to the right."""
    table = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [header, *table]) for i in range(len(header))]
    numeric = [bool(rows) and all(isinstance(r[i], int) for r in rows) for i in range(len(header))]
    for line in [header, *table]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        print("  ".join(cells).rstrip())


class Progress:
    """A progress bar on stderr, by tqdm where it is installed, by dots where it is not."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._last = 0

    def __enter__(self) -> Progress:
        return self

    def show(self, done: int, total: int, label: str) -> None:
        """Say that ``done`` of ``total`` are done and what comes next."""
        if self._bar is None:
            self._bar = _new_bar(total)
        self._bar.set_postfix_str(label, refresh=False)
        self._bar.update(done - self._last)
        self._bar.refresh()
        self._last = done

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()


class _Dots:
    """As much of tqdm as :class:`Progress` uses."""

    def set_postfix_str(self, label: str, *, refresh: bool) -> None:
        pass

    def update(self, count: int) -> None:
        sys.stderr.write("." * count)

    def refresh(self) -> None:
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\n")


def _new_bar(total: int) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return _Dots()
    return tqdm(total=total, file=sys.stderr, unit="process", dynamic_ncols=True, leave=False)


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.splitlines())
