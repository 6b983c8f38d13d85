"""Passes over a source, on the engine that is in use."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.engines.base import Engine, PassCheckpoint, RowFunction
from isotropy.engines.checkpoint import Checkpoint
from isotropy.engines.local import Local
from isotropy.errors import InputError, brief
from isotropy.progress import ProgressBar
from isotropy.sources import Batch, Chunk, Room, Source, SourceView
from isotropy.stats import Statistic

S = TypeVar("S", bound=Statistic)
NAMES = ("local", "torch", "dask")


class PassProgress(Protocol):
    """Is told about every pass, and about the rows done in it."""

    def begin(self, n_rows: int, /) -> None:
        """A pass over `n_rows` rows begins."""

    def advance(self, n_rows: int, /) -> None:
        """`n_rows` more rows are done."""


@dataclass(frozen=True)
class EngineSettings:
    """How passes are run. Set by `using`; results never go here."""

    engine: Engine = field(default_factory=Local)
    progress: PassProgress = field(default_factory=lambda: ProgressBar("rows", shown=False))


_settings: ContextVar[EngineSettings] = ContextVar("isotropy-settings", default=EngineSettings())  # noqa: B039


def named(engine: str, **options: Any) -> Engine:
    """The engine of that name."""
    checks.choice(engine, "engine", NAMES)
    if engine == "local":
        return Local()
    if engine == "torch":
        from isotropy.engines.torch import Torch

        return Torch(**options)
    from isotropy.engines.dask import Dask

    return Dask(**options)


@contextlib.contextmanager
def using(
    engine: str | Engine | None = None, *, progress: PassProgress | None = None
) -> Iterator[Engine]:
    """Run the passes within on an engine; None keeps the one in use, which is local by default.

    An engine given by name is closed at the end.
    """
    if not (engine is None or isinstance(engine, (str, Engine))):
        words = ", ".join(map(repr, NAMES))
        raise InputError(f"engine must be one of {words} or an Engine, got {brief(engine)}.")
    outer = _settings.get()
    made = named(engine) if isinstance(engine, str) else engine or outer.engine
    token = _settings.set(EngineSettings(made, progress or outer.progress))
    try:
        yield made
    finally:
        _settings.reset(token)
        if isinstance(engine, str):
            made.close()


@dataclass(frozen=True)
class Reduced(Generic[S]):
    """What one pass found: the statistics of `n_samples` rows, `n_skipped` bad ones left out.

    `device` is where they were summed, and further work on them is done.
    """

    states: list[S]
    n_samples: int
    n_skipped: int
    device: str


def reduce(
    source: Source, statistics: Sequence[S], checkpoint: Checkpoint | None = None
) -> Reduced[S]:
    """The statistics, which must be empty, after one pass over the source.

    Anything that depends on the rows but must be the same for all of them, such as the shift of
    moments, is settled by the first rows before the pass begins. Chunks then add up to the same
    sum wherever they are read.
    """
    settings = _settings.get()
    engine, progress = settings.engine, settings.progress
    source = source.bare()
    joined = engine.joins_chunks and source.device == "cpu"
    if engine.in_process and not joined and any(statistic.threaded for statistic in statistics):
        source = source.coarse()
    given = source
    saved = PassCheckpoint()
    if checkpoint is not None:
        saved = checkpoint.next_pass(engine.name, source, statistics)
    progress.begin(source.n_samples)
    settled = saved.settled(statistics)
    if settled is None:
        peeked = Peeked(source)
        settled = peeked.settled(statistics)
        saved.settle(settled)
        source = peeked if engine.in_process else source
    try:
        done = engine.reduce(source, settled, saved, progress.advance)
    finally:
        linalg.leave_rooms()
    if done.n_skipped == source.n_samples:
        raise InputError("X must have good rows, got none.")
    states: list[Any] = [state.to_host() for state in done.states]
    again = {i: more for i, state in enumerate(states) if (more := state.once_more) is not None}
    if again:
        found = reduce(given, list(again.values()), checkpoint).states
        for i, state in zip(again, found, strict=True):
            states[i] = state
    n_samples = source.n_samples - done.n_skipped
    return Reduced(states, n_samples, done.n_skipped, engine.place(source))


class Peeked(SourceView):
    """A source whose first rows have been looked at, without having to read them a second time."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._rest: Iterator[Batch] | None = None
        self._seen: list[Batch] = []
        self.first: Array | None = None
        for self._chunk in source.chunks():
            self._rest, self._seen = source.read(self._chunk), []
            for batch in self._rest:
                self._seen.append(batch)
                rows, many = batch.rows, linalg.block_rows(source.n_features)
                if batch.weights is None or batch.weights.all():
                    first = rows[:many]
                else:  # a row of no weight is a row that is not there
                    first = rows[linalg.index(np.flatnonzero(batch.weights)[:many], rows)]
                if first.shape[0]:
                    self.first = first
                    return

    def settled(self, statistics: Sequence[Statistic]) -> list[Statistic]:
        """The statistics as the first rows settle them."""
        first = self.first
        if first is None:
            return list(statistics)
        return [statistic.settled(first, self.n_samples) for statistic in statistics]

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        if not self._has(chunk):
            return self.source.read(chunk)
        return itertools.chain(*self._taken())

    def raw(self, chunk: Chunk, room: Room | None = None) -> Iterator[Batch]:
        return self.read(chunk) if self._has(chunk) else self.source.raw(chunk, room)

    def checked(self, chunk: Chunk, batch: Batch) -> Batch:
        return self.source.checked(chunk, batch)

    def split(self, chunk: Chunk, n_bytes: int) -> list[Chunk]:
        parts = self.source.split(chunk, n_bytes)
        if self._has(chunk) and parts != [chunk]:
            self._taken()  # its parts are read again, so that they are joined as in any other pass
        return parts

    def identity(self) -> dict[str, Any] | None:
        return self.source.identity()

    def _has(self, chunk: Chunk) -> bool:
        return self._rest is not None and chunk == self._chunk

    def _taken(self) -> tuple[list[Batch], Iterator[Batch]]:
        """What was read of the first chunk, and the rest of it; nothing of it is kept here."""
        assert self._rest is not None
        seen, rest = self._seen, self._rest
        self._seen, self._rest, self.first = [], None, None
        return seen, rest


def map_rows(source: Source, function: RowFunction, sink: Any) -> int:
    """Write function(rows) to the sink, in order; returns the number of bad rows left out."""
    settings = _settings.get()
    settings.engine.check(sink)
    source = source if sink.carries else source.bare()
    settings.progress.begin(source.n_samples)
    return settings.engine.map(source, function, sink, settings.progress.advance)
