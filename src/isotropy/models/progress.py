"""A progress bar over texts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], object]


def nobody(n_texts: int) -> None:
    """Tells nobody."""


@contextmanager
def bar(n_texts: int, show: bool | None = None) -> Iterator[Advance]:
    """A bar on standard error, by default where that is a terminal; call it with texts done."""
    if not (sys.stderr.isatty() if show is None else show):
        yield nobody
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("texts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("texts", total=n_texts)
        yield lambda n: progress.advance(task, n)
