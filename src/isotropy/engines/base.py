"""The base class of every engine, and the work on one chunk that all engines share."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from isotropy.checks import Array
from isotropy.sources import Batch, Chunk, PartsSink, Sink, Source
from isotropy.stats import Statistic

RowFunction = Callable[[Array], Array]
Report = Callable[[int], None]

N_RUNS = 32  # of the chunks of a source, if there are as many
LONG_RUN = 4  # chunks, past which there are more runs
MOST_RUNS = 256
LONGEST_RUN = 16  # chunks, past which there are more runs than that
RUN_ROWS = 256  # per feature, at least, if there are more than N_RUNS runs: see `runs`


def runs(chunks: Sequence[Chunk], n_features: int) -> list[Sequence[Chunk]]:
    """The chunks of a source in consecutive runs, each of which is added up by itself.

    They depend on the chunks alone, and so do the sums: to the last digit they are the same with
    any number of threads and workers. Where there are more than N_RUNS, each has so many rows that
    its state, which a checkpoint keeps, takes less than 1 % of their size.
    """
    n_chunks, n_rows = len(chunks), sum(chunk.n_rows for chunk in chunks)
    few, many = max(1, min(n_chunks, N_RUNS)), min(n_chunks // LONG_RUN, MOST_RUNS)
    most = n_rows // (RUN_ROWS * n_features)
    n_runs = max(few, min(max(many, -(-n_chunks // LONGEST_RUN)), most))
    bounds = [n_chunks * i // n_runs for i in range(n_runs + 1)]
    return [chunks[start:stop] for start, stop in pairwise(bounds)]


@dataclass
class Partial:
    """Statistics of the chunks read so far, and how many bad rows were left out of them."""

    states: list[Statistic]
    n_chunks: int = 0
    n_skipped: int = 0

    def add(self, batches: Iterable[Batch], report: Report, n_chunks: int = 1) -> None:
        """Update every statistic with the batches of a chunk, or of several."""
        for batch in batches:
            if batch.rows.shape[0]:
                where = batch.first_row if batch.numbers is None else batch.numbers
                for state in self.states:
                    state.update(batch.rows, batch.weights, first_row=where)
            self.n_skipped += batch.n_skipped
            report(batch.rows.shape[0] + batch.n_skipped)
        self.n_chunks += n_chunks

    def merge(self, other: Partial) -> Partial:
        """Add what `other` has seen."""
        for mine, theirs in zip(self.states, other.states, strict=True):
            mine.merge(theirs)
        self.n_chunks += other.n_chunks
        self.n_skipped += other.n_skipped
        return self


class Tree:
    """Merges the partial states of runs two by two, then the results of that two by two, ...

    Which states are merged with which depends on the number of runs alone, so they may be added in
    any order, and by several threads: the one that brings the second of two merges them.
    """

    def __init__(self, n_runs: int) -> None:
        self.n_runs = n_runs
        self._total: Partial | None = None
        self._lock = threading.Lock()
        self._waiting: dict[tuple[int, int], Partial] = {}

    def add(self, run: int, partial: Partial) -> None:
        """Add what a run found."""
        n_left, level = self.n_runs, 0
        while n_left > 1:
            if run ^ 1 < n_left:
                with self._lock:
                    other = self._waiting.pop((level, run ^ 1), None)
                    if other is None:
                        self._waiting[level, run] = partial
                        return
                partial = other.merge(partial) if run & 1 else partial.merge(other)
            run, n_left, level = run // 2, -(-n_left // 2), level + 1
        self._total = partial

    @property
    def total(self) -> Partial:
        """What all runs found together."""
        assert self._total is not None
        return self._total


def fresh(statistics: Sequence[Statistic]) -> Partial:
    """Nothing seen yet."""
    return Partial([statistic.empty() for statistic in statistics])


def write(chunk: Chunk, batches: Iterable[Batch], sink: Sink | PartsSink, report: Report) -> int:
    """Write the batches of a chunk; returns the number of rows left out."""
    n_skipped = 0
    for batch in batches:
        sink.write_batch(batch)
        n_skipped += batch.n_skipped
        report(batch.rows.shape[0] + batch.n_skipped)
    sink.commit(chunk, n_skipped)
    return n_skipped


def remaining(source: Source, sink: Sink | PartsSink, report: Report) -> list[Chunk]:
    """The chunks of the source that an interrupted run did not write to the sink."""
    chunks = source.chunks()
    left = [chunk for chunk in chunks if chunk.first_row + chunk.n_rows > sink.n_done]
    report(sum(chunk.n_rows for chunk in chunks) - sum(chunk.n_rows for chunk in left))
    return left


class PassCheckpoint:
    """What one pass has finished, for a later run to resume from. This base class saves nothing.

    A pass is split into runs of consecutive chunks.
    """

    def settled(self, statistics: Sequence[Statistic]) -> list[Statistic] | None:
        """The statistics as the first rows settled them; None if they still have to."""
        needed = any(statistic.needs_rows for statistic in statistics)
        return None if needed else list(statistics)

    def settle(self, statistics: Sequence[Statistic]) -> None:
        """Save the statistics as the first rows settled them."""

    def begin(self, n_runs: int) -> None:
        """Begin or resume a pass of that many runs."""

    def load(self, run: int, chunks: Sequence[Chunk]) -> Partial | None:
        """What run number `run`, which has these chunks, had finished; None if nothing."""
        return None

    def save(self, run: int, partial: Partial, chunks: Sequence[Chunk]) -> None:
        """Save what run number `run`, which has these chunks, has finished."""


class Engine(ABC):
    """Runs work over a source, and is the only part of the package that knows where.

    Attributes
    ----------
    name : str
        Part of the key of a checkpoint: engines whose results differ in the last digits must have
        different names.
    in_process : bool
        Whether the rows are read in this process.
    joins_chunks : bool
        Whether chunks of rows on the CPU are joined before statistics are updated with them.
    """

    name: str
    in_process: bool = True
    joins_chunks: bool = False

    @abstractmethod
    def reduce(
        self, source: Source, statistics: Sequence[Statistic], saved: PassCheckpoint, report: Report
    ) -> Partial:
        """The statistics, which are empty, after one pass over the source."""

    @abstractmethod
    def map(self, source: Source, function: RowFunction, sink: Any, report: Report) -> int:
        """Write function(rows) of every chunk to the sink, in order; returns rows left out."""

    def place(self, source: Source) -> str:
        """The device that the rows of the source are summed on: "cpu" or a torch device."""
        return source.device

    def check(self, sink: Any) -> None:  # noqa: B027
        """Raise if the engine cannot write to the sink."""

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Within this block, a pass may keep the rows that it read for the passes after it.

        Use one block per call: later passes do not see what has changed since the first one.
        """
        yield

    def close(self) -> None:  # noqa: B027
        """Release what the engine has started."""
