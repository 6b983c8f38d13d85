"""Tables and paragraphs of results as HTML, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> str:
    """A table with every text escaped."""
    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    names = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    return f"<table>{caption}<thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def paragraph(text: str) -> str:
    """A paragraph with the text escaped."""
    return f"<p>{html.escape(text)}</p>"


def _cells(row: Sequence[str]) -> str:
    return "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
