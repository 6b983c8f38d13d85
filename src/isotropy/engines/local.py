"""The cores of this machine: chunks are spread over threads, with one BLAS thread each."""

from __future__ import annotations

import contextvars
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeVar

from isotropy.engines.base import (
    Engine,
    Partial,
    PassCheckpoint,
    Report,
    RowFunction,
    fresh,
    remaining,
    write,
)
from isotropy.linalg import one_blas_thread
from isotropy.sources import Batch, Chunk, PartsSink, Sink, Source
from isotropy.stats import Statistic

T = TypeVar("T")
R = TypeVar("R")

_in_pool = ContextVar("isotropy-in-pool", default=False)


def n_threads() -> int:
    """The number of cores that this process may use, at most OMP_NUM_THREADS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(cores or 1, int(asked)) if asked.isdecimal() and int(asked) else cores or 1


def over_threads(
    work: Callable[[T], R], items: Sequence[T], stop: Callable[[], object] = bool
) -> list[R]:
    """[work(item) for item in items], in threads that don't compete with BLAS for cores.

    In such a thread it is a plain loop, since the cores are taken. If an item fails, or on Ctrl-C,
    `stop` is called to tell the others.
    """
    if len(items) < 2 or n_threads() < 2 or _in_pool.get():
        return [work(item) for item in items]
    with one_blas_thread(), ThreadPool(len(items)) as threads:
        try:
            return list(threads.map(work, items))
        except BaseException:
            stop()
            raise


class ThreadPool(ThreadPoolExecutor):
    """Threads that run work with the caller's settings, and know that they are in a pool."""

    def __init__(self, n_items: int) -> None:
        super().__init__(min(n_items, n_threads()))

    def submit(self, work: Callable[..., R], /, *args: Any, **options: Any) -> Future[R]:
        def run() -> R:
            _in_pool.set(True)
            return work(*args, **options)

        return super().submit(contextvars.copy_context().run, run)


class Local(Engine):
    """Threads of this process.

    In `reduce`, each thread takes one run of consecutive chunks, and the runs are merged in order:
    the result does not depend on which thread finishes first.
    """

    name = "local"

    def reduce(
        self, source: Source, statistics: Sequence[Statistic], saved: PassCheckpoint, report: Report
    ) -> Partial:
        chunks = source.chunks()
        n_runs = saved.n_runs(min(len(chunks), n_threads() if source.device == "cpu" else 1))
        bounds = [len(chunks) * i // n_runs for i in range(n_runs + 1)]
        stopped = threading.Event()

        def follow(run: int) -> Partial:
            mine = chunks[bounds[run] : bounds[run + 1]]
            partial = saved.load(run, mine) or fresh(statistics)
            report(sum(chunk.n_rows for chunk in mine[: partial.n_chunks]))
            for chunk in mine[partial.n_chunks :]:
                if stopped.is_set():
                    break
                partial.add(source.read(chunk), report)
                saved.save(run, partial, mine)
            return partial

        merged, *others = over_threads(follow, range(n_runs), stopped.set)
        for partial in others:
            merged.merge(partial)
        return merged

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

        n_ahead = n_threads()
        with one_blas_thread(), ThreadPool(n_ahead) as threads, sink:
            n_skipped = sink.n_skipped
            left = remaining(source, sink, report)
            if len(left) == 1 and sink.apart:
                return n_skipped + write(left[0], mapped(left[0]), sink, report)
            chunks = iter(left)
            waiting: deque[Future[tuple[Chunk, list[Batch]]]] = deque(
                threads.submit(work, chunk) for chunk in itertools.islice(chunks, n_ahead)
            )
            try:
                while waiting:
                    chunk, batches = waiting.popleft().result()
                    waiting.extend(
                        threads.submit(work, chunk) for chunk in itertools.islice(chunks, 1)
                    )
                    n_skipped += write(chunk, batches, sink, report)
            except BaseException:
                for future in waiting:
                    future.cancel()
                raise
        return n_skipped
