"""This machine's cores: chunks over threads, one BLAS thread each."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from threadpoolctl import threadpool_limits

from isotropy.sources import Chunk, Source
from isotropy.stats import Statistic

S = TypeVar("S", bound=Statistic)
T = TypeVar("T")
R = TypeVar("R")


def n_threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def over_threads(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """[work(item) for item in items], with threads that do not fight over cores with BLAS."""
    if len(items) < 2 or n_threads() < 2:
        return [work(item) for item in items]
    with (
        threadpool_limits(1, user_api="blas"),
        ThreadPoolExecutor(min(len(items), n_threads())) as pool,
    ):
        return list(pool.map(work, items))


def reduce(source: Source, statistics: Sequence[S]) -> list[S]:
    """The statistics, which must be empty, after one pass over the source.

    Each thread takes one run of consecutive chunks; the runs are merged in their order, so the
    result does not depend on which thread was first.
    """

    def follow(run: list[Chunk]) -> list[S]:
        states = [statistic.empty() for statistic in statistics]
        for chunk in run:
            for batch in source.read(chunk):
                for state in states:
                    state.update(batch.rows, batch.weights, first_row=batch.first_row)
        return states

    chunks = source.chunks()
    n_runs = min(len(chunks), n_threads()) if source.device == "cpu" else 1
    bounds = [len(chunks) * i // n_runs for i in range(n_runs + 1)]
    runs = [chunks[a:b] for a, b in itertools.pairwise(bounds)]
    merged, *others = over_threads(follow, runs)
    for states in others:
        for mine, theirs in zip(merged, states, strict=True):
            mine.merge(theirs)
    return merged
