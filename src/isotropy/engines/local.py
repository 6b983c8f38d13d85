"""The cores of this machine: chunks are spread over threads, with one BLAS thread each."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from isotropy.engines.base import (
    Engine,
    Partial,
    PassCheckpoint,
    Report,
    RowFunction,
    Tree,
    fresh,
    remaining,
    runs,
    write,
)
from isotropy.sources import Batch, Chunk, PartsSink, Sink, Source
from isotropy.stats import Statistic
from isotropy.threads import ahead, n_threads, one_blas_thread, over_threads


class Local(Engine):
    """Threads of this process.

    In `reduce`, each thread takes the next run of consecutive chunks, and what they find is
    merged in a fixed order: the result depends neither on the number of threads nor on which of
    them finishes first.
    """

    name = "local"

    def reduce(
        self, source: Source, statistics: Sequence[Statistic], saved: PassCheckpoint, report: Report
    ) -> Partial:
        chunks = source.chunks()
        together = source.device != "cpu" or any(s.threaded for s in statistics)
        parts = [chunks] if together else runs(chunks, source.n_features)
        saved.begin(len(parts))
        done, stopped = Tree(len(parts)), threading.Event()

        def follow(run: int) -> None:
            mine = parts[run]
            partial = saved.load(run, mine) or fresh(statistics)
            report(sum(chunk.n_rows for chunk in mine[: partial.n_chunks]))
            for chunk in mine[partial.n_chunks :]:
                if stopped.is_set():
                    return
                partial.add(source.read(chunk), report)
                saved.save(run, partial, mine)
            done.add(run, partial)

        with one_blas_thread():  # also for a single run: the same digits for any number of threads
            over_threads(follow, range(len(parts)), stopped.set)
        return done.total

    def map(
        self, source: Source, function: RowFunction, sink: Sink | PartsSink, report: Report
    ) -> int:
        """Threads read and map a few chunks ahead of the one being written.

        A single chunk, such as a packed file, is written batch by batch: it may be large.
        """

        def mapped(chunk: Chunk) -> Iterator[Batch]:
            for batch in source.read(chunk):
                yield replace(batch, rows=function(batch.rows))

        def work(chunk: Chunk) -> tuple[Chunk, list[Batch]]:
            return chunk, list(mapped(chunk))

        with one_blas_thread(), sink:
            n_skipped = sink.n_skipped
            left = remaining(source, sink, report)
            if len(left) == 1 and sink.apart:
                return n_skipped + write(left[0], mapped(left[0]), sink, report)
            with closing(ahead(work, left, n_threads())) as done:
                for chunk, batches in done:
                    n_skipped += write(chunk, batches, sink, report)
        return n_skipped
