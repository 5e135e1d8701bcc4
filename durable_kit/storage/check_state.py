"""`check_state(value)`: what a checkpoint would keep of a state, proven and not guessed.

The place to learn that a field cannot be stored is the notebook in which the state is designed,
not the ninth super-step of a run. `encode` stops at the first refusal, as it must; here every part
is looked at, and a whole table comes back:

    field                 type        verdict        why, and what to do
    state['messages']     list        stored exactly
    state['tools']        dict        refused        1 part cannot be stored
    state['tools']['run'] function    refused        code is not state; … Store a name, …

"Stored exactly" is no opinion. Each field is encoded, decoded and compared with `same`, which
shares no code with the codec; an adapter that forgets a field is found out here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import Any, Literal, overload

from durable_kit.errors import UnloadableValue, UnstorableValue
from durable_kit.storage.codec import Codec
from durable_kit.storage.codec_types import short
from durable_kit.storage.same import same

EXACT: Literal["stored exactly"] = "stored exactly"
REFUSED: Literal["refused"] = "refused"

_HEADINGS = ("field", "type", "verdict", "why, and what to do")
_WIDE = 44  # characters of the last column in a terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldVerdict:
    """What happens to one part of a state."""

    path: str
    type_name: str
    verdict: Literal["stored exactly", "refused"]
    reason: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.path, self.verdict, self._why)))

    @property
    def _why(self) -> str:
        return f"{self.reason}. {self.remedy}".strip() if self.reason else ""

    @property
    def row(self) -> tuple[str, str, str, str]:
        """The four columns of the table."""
        path = self.path if len(self.path) <= 44 else f"{self.path[:20]} … {self.path[-20:]}"
        return path, self.type_name, self.verdict, self._why


@dataclass(frozen=True, slots=True)
class StateVerdict(Sequence[FieldVerdict]):
    """The verdicts on a state: one for each field, and one for each part that is refused."""

    fields: tuple[FieldVerdict, ...]

    @property
    def ok(self) -> bool:
        """Whether all of the state is stored exactly."""
        return not self.refused

    @property
    def refused(self) -> tuple[FieldVerdict, ...]:
        return tuple(field for field in self.fields if field.verdict == REFUSED)

    @overload
    def __getitem__(self, index: int) -> FieldVerdict: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FieldVerdict]: ...
    def __getitem__(self, index: int | slice) -> FieldVerdict | Sequence[FieldVerdict]:
        return self.fields[index]

    def __len__(self) -> int:
        return len(self.fields)

    def __str__(self) -> str:
        rows = [_HEADINGS, *(field.row for field in self.fields)]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(line for row in rows for line in _lines(row, widths))

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in _HEADINGS)
        body = "".join(
            "<tr>" + "".join(_cell(text) for text in field.row) + "</tr>" for field in self.fields
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def check_state(value: Any, *, codec: Codec | None = None) -> StateVerdict:
    """Encode, decode and compare each field of a state; say what would be refused, and why.

    A dict is taken field by field, anything else as one field. `codec` is the one your saver
    uses; without it only built-in types are allowed. Raises nothing for a bad value: that is what
    the verdicts are for.
    """
    codec = Codec() if codec is None else codec
    if type(value) is not dict or not value:
        return StateVerdict(tuple(_verdicts(value, "state", codec)))
    found: list[FieldVerdict] = []
    for key, item in value.items():
        path = f"state[{short(key)}]"
        found.extend(_verdicts(item, path, codec))
        if type(key) is not str:
            found.extend(
                verdict
                for verdict in _verdicts(key, f"state key {short(key)}", codec)
                if verdict.verdict == REFUSED
            )
    return StateVerdict(tuple(found))


def _verdicts(value: Any, path: str, codec: Codec) -> Iterator[FieldVerdict]:
    refusals = list(codec.refusals(value, path=path))
    if refusals:
        parts = [refusal for refusal in refusals if refusal.path != path]
        if parts:
            count = "1 part" if len(parts) == 1 else f"{len(parts)} parts"
            yield _refused(path, value, f"{count} cannot be stored", "See below.")
        for refusal in refusals:
            yield FieldVerdict(
                path=refusal.path,
                type_name=refusal.type_name,
                verdict=REFUSED,
                reason=refusal.reason,
                remedy=refusal.remedy,
            )
        return
    problem = _difference(value, path, codec)
    if problem is None:
        yield FieldVerdict(path=path, type_name=type(value).__name__, verdict=EXACT)
    else:
        yield _refused(path, value, *problem)


def _difference(value: Any, path: str, codec: Codec) -> tuple[str, str] | None:
    """(reason, remedy) if a value that is accepted does not come back the same, else None."""
    try:
        loaded = codec.decode(codec.encode(value, path=path))
    except UnstorableValue as error:
        return error.reason, error.remedy
    except UnloadableValue as error:
        return f"it was stored, and then could not be loaded: {error.reason}", error.remedy
    if same(value, loaded):
        return None
    return (
        f"it comes back as something else: {short(loaded)}",
        "If it has an adapter, from_state(to_state(value)) must equal the value.",
    )


def _refused(path: str, value: Any, reason: str, remedy: str) -> FieldVerdict:
    return FieldVerdict(
        path=path, type_name=type(value).__name__, verdict=REFUSED, reason=reason, remedy=remedy
    )


def _lines(row: tuple[str, ...], widths: list[int]) -> Iterator[str]:
    *columns, why = row
    start = "  ".join(text.ljust(width) for text, width in zip(columns, widths, strict=True))
    for number, line in enumerate(wrap(why, _WIDE) or [""]):
        yield f"{start if number == 0 else ' ' * len(start)}  {line}".rstrip()


def _cell(text: str) -> str:
    return f"<td style='text-align:left'>{escape(text)}</td>"
