"""A Dask cluster: statistics travel, rows do not."""

from __future__ import annotations

import asyncio
import copy
import time
import warnings
from collections.abc import Sequence
from typing import Any

from isotropy.engines.base import Partial, Pass, Report, Rows, fresh
from isotropy.engines.local import n_threads, write_part
from isotropy.errors import InputError, MissingExtraError
from isotropy.sources import Chunk, PartsSink, Source
from isotropy.threads import one_blas_thread

GROUP = 16  # chunks that workers merge before the result is sent here
RUN = 2  # chunks of a task: states are large, and the fewer are sent about the better
KEEP_MEMORY = {  # workers give each block's few MB back to themselves, not to the system
    "MALLOC_TRIM_THRESHOLD_": 1 << 28,
    "MALLOC_MMAP_THRESHOLD_": 1 << 25,
    "OMP_NUM_THREADS": 1,
    "OPENBLAS_NUM_THREADS": 1,
    "MKL_NUM_THREADS": 1,
}

# A cluster closes the nanny of a worker that is not there 15 s after it was lost, even where that
# nanny is about to start it again on a busy machine, or did so and it was lost once more; with no
# nanny left the work waits for ever.
LOST_WORKERS_COME_BACK = {"distributed.deploy.lost-worker-timeout": "1 day"}


class Dask:
    """Workers of a Dask cluster, by default a cluster of this machine's processes.

    Chunks are read where they are computed, two to a task until the last group. In `reduce`,
    the tasks of each group of 16 consecutive chunks are merged pairwise in chunk order by the
    workers, and the groups in their order here: the result does not depend on who finished
    first, and a lost worker's chunks are read again.

    Parameters
    ----------
    scheduler : str, optional
        Address of a running scheduler, such as "tcp://10.0.0.1:8786". Its workers must see the
        same files.
    n_workers : int, optional
        Processes of the local cluster where no scheduler is given; None is one a core.
    """

    name = "dask"
    in_process = False

    def __init__(self, scheduler: str | None = None, n_workers: int | None = None) -> None:
        try:
            import dask
            from distributed import Client, LocalCluster
        except ImportError:
            raise MissingExtraError(
                "engine 'dask' needs dask, which is not installed. "
                'Run: pip install "isotropy[dask]".'
            ) from None
        self.cluster = None
        self._patience: Any = None
        if scheduler is None:
            self._patience = dask.config.set(LOST_WORKERS_COME_BACK)
            with dask.config.set({"distributed.nanny.pre-spawn-environ": KEEP_MEMORY}):
                self.cluster = LocalCluster(
                    n_workers=n_workers or n_threads(),
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=":0",
                )
        try:
            self.client = Client(self.cluster or scheduler, timeout="10s")
        except (Exception, asyncio.CancelledError) as error:  # of many kinds, by address and load
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"engine 'dask': scheduler {scheduler!r} must be reachable ({why})."
            ) from None

    def reduce(
        self, source: Source, statistics: Sequence[Any], kept: Pass, report: Report
    ) -> Partial:
        chunks = source.chunks()
        n_groups = -(-len(chunks) // GROUP)
        kept.n_runs(n_groups)
        groups = [chunks[GROUP * i : GROUP * (i + 1)] for i in range(n_groups)]
        shared = self._shared(source, list(statistics))
        futures = [
            None
            if finished(kept, i, group)
            else self._tree(shared, group, RUN if i + 1 < n_groups else 1)
            for i, group in enumerate(groups)
        ]
        merged = fresh(statistics)
        for i, group in enumerate(groups):
            future, futures[i] = futures[i], None
            partial = finished(kept, i, group) if future is None else future.result()
            assert partial is not None
            if future is not None:
                kept.save(i, partial, group)
            report(sum(chunk.n_rows for chunk in group))
            merged.merge(partial)
        return merged

    def _shared(self, *parts: Any) -> Any:
        """What tasks share, as a task of its own: one that is lost can be made again."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
            return self.client.submit(together, *parts, pure=False)

    def _tree(self, shared: Any, group: list[Chunk], n_together: int) -> Any:
        level = [
            self.client.submit(run_state, shared, group[i : i + n_together], pure=False)
            for i in range(0, len(group), n_together)
        ]
        while len(level) > 1:
            level = [
                self.client.submit(merged_pair, *level[i : i + 2], pure=False)
                if i + 1 < len(level)
                else level[i]
                for i in range(0, len(level), 2)
            ]
        return level[0]

    def map(self, source: Source, function: Rows, sink: Any, report: Report) -> int:
        """Every chunk becomes a Parquet part, written by the worker that made it."""
        chunks = source.chunks()
        shared = self._shared(source, function, sink)
        n_skipped = 0
        with sink:
            futures = [
                self.client.submit(part_written, shared, i, chunk, pure=False)
                for i, chunk in enumerate(chunks)
            ]
            try:
                for chunk, future in zip(chunks, futures, strict=True):
                    n_skipped += future.result()
                    report(chunk.n_rows)
            except BaseException:
                self.client.cancel(futures)
                self._wait_until_idle()
                raise
        return n_skipped

    def check(self, sink: Any) -> None:
        if not isinstance(sink, PartsSink):
            raise InputError(
                "engine 'dask': out must be a folder, which gets Parquet parts, got a file. "
                "Give it a name without suffix."
            )

    def _wait_until_idle(self) -> None:
        """A part that is being written cannot be stopped, and must not outlive its folder."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            busy = self.client.run(lambda dask_worker: dask_worker.state.executing_count)
            if not any(busy.values()):
                return
            time.sleep(0.02)

    def close(self) -> None:
        self.client.close()
        if self.cluster is not None:
            self.cluster.close()
            self._patience.__exit__(None, None, None)


def finished(kept: Pass, run: int, group: list[Chunk]) -> Partial | None:
    """What is kept of a group that was read to its end, None where there is nothing such."""
    found = kept.load(run, group)
    return found if found is not None and found.n_chunks == len(group) else None


def together(*parts: Any) -> tuple[Any, ...]:
    """On a worker: what its tasks share."""
    return parts


def run_state(shared: Any, run: list[Chunk]) -> Partial:
    """On a worker: the statistics of a few consecutive chunks."""
    source, statistics = shared
    partial = fresh(statistics)
    with one_blas_thread():
        for chunk in run:
            partial.add(source, chunk, lambda n_rows: None)
    return partial


def merged_pair(left: Partial, right: Partial) -> Partial:
    """On a worker: both together, neither of them changed."""
    states = [copy.copy(state) for state in left.states]
    return Partial(states, left.n_chunks, left.n_skipped).merge(right)


def part_written(shared: Any, number: int, chunk: Chunk) -> int:
    """On a worker: one part of the output."""
    source, function, sink = shared
    with one_blas_thread():
        return write_part(source, function, sink, number, chunk)
