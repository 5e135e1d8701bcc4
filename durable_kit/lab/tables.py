"""Tables that are read, not computed with: text on the left, whole, without a row number.

pandas shows numbers well: right-aligned, cut to fifty characters. A sentence shown so cannot be
read.
"""

from __future__ import annotations

from typing import Any

import pandas as pd


def words(table: pd.DataFrame) -> Any:
    """The table for the end of a cell."""
    left = {"text-align": "left"}
    headings = [{"selector": "th", "props": list(left.items())}]
    return table.style.hide(axis="index").set_properties(**left).set_table_styles(headings)


def words_html(table: pd.DataFrame) -> str:
    """The table as HTML, for a panel."""
    text: str = table.to_html(border=0, index=False)
    for cell in ("td", "th"):
        text = text.replace(f"<{cell}>", f'<{cell} style="padding:2px 10px;text-align:left">')
    return text.replace('<tr style="text-align: right;">', "<tr>")
