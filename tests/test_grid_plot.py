"""Every word stands in its cell, and the worst one marks it."""

from __future__ import annotations

import pandas as pd
import pytest

from durable_kit.lab.grid_plot import verdicts

TABLE = pd.DataFrame(
    [
        ("after send", "none", "twice"),
        ("after send", "key", "once"),
        ("after reply", "none", "once"),
        ("after reply", "none", "lost"),
        ("after reply", "key", "in doubt"),
    ],
    columns=["killed_at", "remedy", "verdict"],
)
MARKS = {"once": "good", "twice": "bad", "lost": "bad", "in doubt": "doubt"}


def test_each_case_has_its_word_and_a_case_that_differs_has_both_and_the_worse_mark() -> None:
    figure = verdicts(
        TABLE, rows="killed_at", columns="remedy", verdict="verdict", marks=MARKS, caption="n = 1"
    )
    [axes] = figure.axes
    words = {text.get_position(): text.get_text() for text in axes.texts}
    assert words == {(0, 0): "twice", (1, 0): "once", (0, 1): "lost / once", (1, 1): "in doubt"}
    faces = dict(zip(words, [patch.get_facecolor() for patch in axes.patches], strict=True))
    assert faces[0, 0] == faces[0, 1] != faces[1, 0]
    assert len({faces[0, 0], faces[1, 0], faces[1, 1]}) == 3
    assert [label.get_text() for label in axes.get_yticklabels()] == ["after send", "after reply"]


def test_a_word_that_nobody_has_marked_is_an_error() -> None:
    with pytest.raises(KeyError, match="twice"):
        verdicts(
            TABLE, rows="killed_at", columns="remedy", verdict="verdict",
            marks={"once": "good"}, caption="",
        )  # fmt: skip
