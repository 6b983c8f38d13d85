"""The run at hand: which engine, which checkpoint, whom to tell of progress."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.engines.base import Engine, Forgetful, Pass, Rows
from isotropy.engines.checkpoint import Checkpoint
from isotropy.engines.local import Local
from isotropy.errors import InputError, brief
from isotropy.sources import Batch, Chunk, Source
from isotropy.stats import Statistic

S = TypeVar("S", bound=Statistic)
NAMES = ("local", "torch", "dask")


class Progress(Protocol):
    """Is told of every pass and of the rows done in it."""

    def begin(self, n_rows: int) -> None: ...

    def advance(self, n_rows: int) -> None: ...


class Silent:
    """Tells nobody."""

    def begin(self, n_rows: int) -> None:
        pass

    def advance(self, n_rows: int) -> None:
        pass


@dataclass
class Run:
    """How the passes of one job are run; `n_skipped` bad rows were left out of the latest."""

    engine: Engine = field(default_factory=Local)
    checkpoint: Checkpoint | None = None
    progress: Progress = field(default_factory=Silent)
    n_skipped: int = 0


_run: ContextVar[Run | None] = ContextVar("isotropy-run", default=None)


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
    engine: str | Engine | None = None, *, checkpoint: Any = None, progress: Progress | None = None
) -> Iterator[Run]:
    """Run the passes within on an engine; None goes on with the run at hand, or is local."""
    current = _run.get()
    if engine is None and checkpoint is None and progress is None and current is not None:
        yield current
        return
    kept = None
    if checkpoint is not None:
        kept = Checkpoint(checks.path(checkpoint, "checkpoint"))
    if not (engine is None or isinstance(engine, str) or hasattr(engine, "reduce")):
        words = ", ".join(map(repr, NAMES))
        raise InputError(f"engine must be one of {words} or an Engine, got {brief(engine)}.")
    made = named(engine) if isinstance(engine, str) else engine
    outer = current or Run()
    run = Run(made or outer.engine, kept, progress or outer.progress)
    token = _run.set(run)
    try:
        yield run
    finally:
        _run.reset(token)
        if isinstance(engine, str):
            run.engine.close()


def reduce(source: Source, statistics: Sequence[S]) -> list[S]:
    """The statistics, which must be empty, after one pass over the source.

    What depends on the rows but must be the same for all of them, such as the shift of moments,
    is settled by the first rows before the pass begins: chunks then add up the same wherever
    they are read.
    """
    run = _run.get() or Run()
    source = getattr(source, "bare", lambda: source)()
    kept: Pass = Forgetful()
    if run.checkpoint is not None:
        kept = run.checkpoint.next_pass(run.engine.name, source, statistics)
    run.progress.begin(source.n_samples)
    settled = kept.settled(statistics)
    if settled is None:
        peeked = Peeked(source)
        settled = list(statistics)
        if peeked.first is not None:
            settled = [statistic.settled(peeked.first) for statistic in statistics]
        kept.settle(settled)
        source = peeked if run.engine.in_process else source
    done = run.engine.reduce(source, settled, kept, run.progress.advance)
    run.n_skipped = done.n_skipped
    if done.n_skipped == source.n_samples:
        raise InputError("X must have good rows, got none.")
    found: Any = [state.to_host() for state in done.states]
    result: list[S] = found
    return result


class Peeked:
    """A source whose first rows were looked at, and are not read again for that."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.n_features, self.n_samples = source.n_features, source.n_samples
        self.device = source.device
        self._chunks = source.chunks()
        self._rest: Iterator[Batch] | None = source.read(self._chunks[0])
        self._seen: list[Batch] = []
        self.first: Array | None = None
        for batch in self._rest:
            self._seen.append(batch)
            self.first = weighty(batch)
            if self.first is not None:
                break

    def chunks(self) -> list[Chunk]:
        return self._chunks

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        if self._rest is None or chunk != self._chunks[0]:
            return self.source.read(chunk)
        rest, self._rest = self._rest, None
        return itertools.chain(self._seen, rest)


def weighty(batch: Batch) -> Array | None:
    """The rows that have a weight, None where there are none."""
    if batch.weights is None:
        return batch.rows if batch.rows.shape[0] else None
    kept = np.flatnonzero(batch.weights)
    return batch.rows[linalg.index(kept, batch.rows)] if len(kept) else None


def map_rows(source: Source, function: Rows, sink: Any) -> int:
    """Write function(rows) to the sink, in order; returns the bad rows left out."""
    run = _run.get() or Run()
    run.engine.check(sink)
    run.progress.begin(source.n_samples)
    run.n_skipped = run.engine.map(source, function, sink, run.progress.advance)
    return run.n_skipped
