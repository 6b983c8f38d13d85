"""This machine's cores: chunks over threads, one BLAS thread each."""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from isotropy.engines.base import Partial, Pass, Report, Rows, fresh
from isotropy.linalg import one_blas_thread
from isotropy.sources import Batch, Chunk, PartsSink, Sink, Source
from isotropy.stats import Statistic

T = TypeVar("T")
R = TypeVar("R")

_inside = threading.local()


def n_threads() -> int:
    """Cores that this process may use, and no more than OMP_NUM_THREADS says."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(cores or 1, int(asked)) if asked.isdecimal() and int(asked) else cores or 1


def over_threads(
    work: Callable[[T], R], items: Sequence[T], stop: Callable[[], object] = bool
) -> list[R]:
    """[work(item) for item in items], with threads that do not fight over cores with BLAS.

    Within such a thread it is a plain loop: the cores are taken. When one fails, or on Ctrl-C,
    `stop` is called to tell the others.
    """
    if len(items) < 2 or n_threads() < 2 or getattr(_inside, "thread", False):
        return [work(item) for item in items]
    with one_blas_thread(), pool(len(items)) as threads:
        try:
            return list(threads.map(work, items))
        except BaseException:
            stop()
            raise


def pool(n_items: int) -> ThreadPoolExecutor:
    """Threads for at most n_items at a time that know they are such threads."""

    def enter() -> None:
        _inside.thread = True

    return ThreadPoolExecutor(min(n_items, n_threads()), initializer=enter)


class Local:
    """Threads of this process.

    In `reduce` each thread takes one run of consecutive chunks, and the runs are merged in
    their order: the result does not depend on which thread was first.
    """

    name = "local"
    in_process = True

    def reduce(
        self, source: Source, statistics: Sequence[Statistic], kept: Pass, report: Report
    ) -> Partial:
        chunks = source.chunks()
        n_runs = kept.n_runs(min(len(chunks), n_threads() if source.device == "cpu" else 1))
        bounds = [len(chunks) * i // n_runs for i in range(n_runs + 1)]
        stopped = threading.Event()

        def follow(run: int) -> Partial:
            mine = chunks[bounds[run] : bounds[run + 1]]
            partial = kept.load(run, mine) or fresh(statistics)
            report(sum(chunk.n_rows for chunk in mine[: partial.n_chunks]))
            for chunk in mine[partial.n_chunks :]:
                if stopped.is_set():
                    break
                partial.add(source, chunk, report)
                kept.save(run, partial, mine)
            return partial

        merged, *others = over_threads(follow, range(n_runs), stopped.set)
        for partial in others:
            merged.merge(partial)
        return merged

    def map(self, source: Source, function: Rows, sink: Sink | PartsSink, report: Report) -> int:
        """Chunks are read and mapped by threads, a few ahead of the one that is written."""

        def work(chunk: Chunk) -> list[Batch]:
            return [
                Batch(b.first_row, function(b.rows), None, b.carried, b.n_skipped)
                for b in source.read(chunk)
            ]

        n_skipped = 0
        chunks = iter(source.chunks())
        n_ahead = n_threads()
        with one_blas_thread(), pool(n_ahead) as threads, sink:
            waiting: deque[Future[list[Batch]]] = deque(
                threads.submit(work, chunk) for chunk in itertools.islice(chunks, n_ahead)
            )
            try:
                while waiting:
                    batches = waiting.popleft().result()
                    waiting.extend(
                        threads.submit(work, chunk) for chunk in itertools.islice(chunks, 1)
                    )
                    for batch in batches:
                        sink.write(batch.rows, batch.carried)
                        n_skipped += batch.n_skipped
                        report(batch.rows.shape[0] + batch.n_skipped)
            except BaseException:
                for future in waiting:
                    future.cancel()
                raise
        return n_skipped

    def check(self, sink: Any) -> None:
        pass

    def close(self) -> None:
        pass


def write_part(source: Source, function: Rows, sink: Any, number: int, chunk: Chunk) -> int:
    """Write one chunk as a part of a folder; returns rows left out."""
    n_skipped = 0
    with sink.part(number) as part:
        for batch in source.read(chunk):
            part.write(function(batch.rows), batch.carried)
            n_skipped += batch.n_skipped
    return n_skipped
