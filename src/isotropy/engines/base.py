"""What an engine promises, and the work on one chunk that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from isotropy.checks import Array
from isotropy.sources import Chunk, Source
from isotropy.stats import Statistic

Rows = Callable[[Array], Array]
Report = Callable[[int], None]


@dataclass
class Partial:
    """Statistics of the chunks read so far, and how many bad rows were left out of them."""

    states: list[Statistic]
    n_chunks: int = 0
    n_skipped: int = 0

    def add(self, source: Source, chunk: Chunk, report: Report) -> None:
        """Read a chunk and update every statistic with it."""
        for batch in source.read(chunk):
            if batch.rows.shape[0]:
                where = batch.first_row if batch.numbers is None else batch.numbers
                for state in self.states:
                    state.update(batch.rows, batch.weights, first_row=where)
            self.n_skipped += batch.n_skipped
            report(batch.rows.shape[0] + batch.n_skipped)
        self.n_chunks += 1

    def merge(self, other: Partial) -> Partial:
        """Add what `other` has seen."""
        for mine, theirs in zip(self.states, other.states, strict=True):
            mine.merge(theirs)
        self.n_chunks += other.n_chunks
        self.n_skipped += other.n_skipped
        return self


def fresh(statistics: Sequence[Statistic]) -> Partial:
    """Nothing seen yet."""
    return Partial([statistic.empty() for statistic in statistics])


class Pass(Protocol):
    """Where one pass keeps what is done, so that a later run can go on from it."""

    def settled(self, statistics: Sequence[Statistic]) -> list[Statistic] | None:
        """The statistics as the first rows had settled them, None where that is to be done."""
        ...

    def settle(self, statistics: Sequence[Statistic]) -> None:
        """Keep what the first rows have settled."""
        ...

    def n_runs(self, proposed: int) -> int:
        """In how many parts the pass was begun, `proposed` where it was not."""
        ...

    def load(self, run: int, chunks: Sequence[Chunk]) -> Partial | None:
        """What part `run`, which has these chunks, had done; None where that is nothing."""
        ...

    def save(self, run: int, partial: Partial, chunks: Sequence[Chunk]) -> None:
        """Keep what part `run`, which has these chunks, has done."""
        ...


class Forgetful:
    """A pass that keeps nothing."""

    def settled(self, statistics: Sequence[Statistic]) -> list[Statistic] | None:
        settled = not any(statistic.needs_rows for statistic in statistics)
        return list(statistics) if settled else None

    def settle(self, statistics: Sequence[Statistic]) -> None:
        pass

    def n_runs(self, proposed: int) -> int:
        return proposed

    def load(self, run: int, chunks: Sequence[Chunk]) -> Partial | None:
        return None

    def save(self, run: int, partial: Partial, chunks: Sequence[Chunk]) -> None:
        pass


class Engine(Protocol):
    """Runs work over a source; the only place that knows where."""

    in_process: bool

    @property
    def name(self) -> str: ...

    def reduce(
        self, source: Source, statistics: Sequence[Statistic], kept: Pass, report: Report
    ) -> Partial:
        """The statistics, which are empty, after one pass over the source."""
        ...

    def map(self, source: Source, function: Rows, sink: Any, report: Report) -> int:
        """Write function(rows) of every chunk to the sink, in order; returns rows left out."""
        ...

    def check(self, sink: Any) -> None:
        """Raise where the engine cannot write to the sink."""
        ...

    def close(self) -> None:
        """Let go of what the engine has started."""
        ...
