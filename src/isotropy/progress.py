"""The progress bar of the package, on standard error and only if that is a terminal."""

from __future__ import annotations

import sys
from typing import Any


class ProgressBar:
    """Bars that show how much is done, the speed and the time left, of what has this unit.

    Use it in a `with` statement; it appears with the first thing it has to show.
    """

    def __init__(self, unit: str, shown: bool | None = None) -> None:
        self.unit = unit
        self.shown = sys.stderr.isatty() if shown is None else shown
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}
        self._n_passes = 0
        self._current = ""

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, n_all: int, name: str = "") -> None:
        """Start a pass, whose bar replaces that of the last one; the default name is "pass 1"."""
        self._n_passes += 1
        self._current = name or f"pass {self._n_passes}"
        for task in self._tasks.values():
            self._bar.remove_task(task)
        self._tasks.clear()
        self.update(self._current, 0, n_all)

    def advance(self, n_done: int) -> None:
        """Count n_done more in this pass."""
        if self._bar is not None:
            self._bar.advance(self._tasks[self._current], n_done)

    def update(self, name: str, n_done: int, n_all: int) -> None:
        """Show how much is done of what has this name; every name has a bar of its own."""
        if not self.shown:
            return
        if self._bar is None:
            self._bar = _rich_bar(self.unit)
            self._bar.start()
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=n_all)
        self._bar.update(self._tasks[name], completed=n_done)


def _rich_bar(unit: str) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: Any) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f} {unit}/s" if speed >= 1 else "")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(
        *columns,
        TextColumn(unit),
        Speed(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
