"""Results as people and programs read them: text tables, HTML tables, one line of JSON."""

from __future__ import annotations

import html
import io
import json
import math
from collections.abc import Container, Iterable, Sequence
from typing import Any

WIDEST = 10_000  # characters of a line that is not to be wrapped


def text_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Container[int] = (),
    width: int | None = None,
) -> str:
    """A table with aligned columns, those with numbers in `right` to the right.

    Cells are wrapped so that no line is longer than `width`, if it is given.

    Examples
    --------
    >>> print(text_table(("layer", "IsoScore"), [("0", "0.2"), ("12", "0.05")], right={0, 1}))
    layer  IsoScore
        0       0.2
       12      0.05
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i in right else "left")
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    width = width or WIDEST
    Console(file=text, width=width, color_system=None, markup=False, emoji=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> str:
    """A table for notebooks, with every text escaped."""
    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    names = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table>{caption}<thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def paragraph(text: str) -> str:
    """A paragraph with the text escaped."""
    return f"<p>{html.escape(text)}</p>"


def json_line(value: Any) -> str:
    """One line of JSON, with null for numbers that are not finite."""
    return json.dumps(finite(value), allow_nan=False)


def finite(value: Any) -> Any:
    """The value with None for every float in it that is not finite, as JSON has no NaN."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
