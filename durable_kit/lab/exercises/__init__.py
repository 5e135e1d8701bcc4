"""What an exercise is, and where to find one.

An exercise is a promise that the answer must keep, and a way to find out whether it does. The
promise (`invariant`) is what a learner reads when the answer fails, so it says what must hold and
not what the program expected. `wrong` is an answer that looks right: tests give it to the check,
since a check that cannot fail teaches that everything is fine.

The id says where it lives: "05.build" is in `lesson_05.EXERCISES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Exercise:
    """`check` returns None for an answer that holds, or a sentence with what it found instead.

    `hints`: a nudge, the invariant in the words of this exercise, and a worked case.
    """

    id: str
    invariant: str
    check: Callable[[Any], str | None]
    hints: tuple[str, str, str]
    wrong: Any


def find(id: str) -> Exercise:
    """The exercise with this id. Raises LookupError with the ids that there are."""
    lesson = id.partition(".")[0]
    try:
        module = import_module(f"{__name__}.lesson_{lesson}")
    except ModuleNotFoundError:
        raise LookupError(f"There is no exercise {id!r}: no lesson {lesson!r} has any.") from None
    known: dict[str, Exercise] = {exercise.id: exercise for exercise in module.EXERCISES}
    if id not in known:
        raise LookupError(f"There is no exercise {id!r}; lesson {lesson} has {', '.join(known)}.")
    return known[id]
