"""A Dask cluster: statistics are sent, rows are not."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import signal
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from isotropy import checks
from isotropy.engines.base import (
    Engine,
    Partial,
    PassCheckpoint,
    Report,
    RowFunction,
    Tree,
    fresh,
    runs,
    write,
)
from isotropy.engines.packed import Packed, packed, unpacked
from isotropy.errors import ClusterError, InputError, MissingExtraError
from isotropy.linalg import leave_rooms
from isotropy.sources import Chunk, PartsSink, Source
from isotropy.stats import Statistic
from isotropy.threads import n_threads, one_blas_thread

GROUP = 16  # runs that workers merge before the result is sent here: a power of TOGETHER
TOGETHER = 4  # states that a task merges, which are in memory together: a power of two
FETCHED_AHEAD = 4  # results that are on their way here at the same time
KEEP_MEMORY = {  # workers keep the few MB of each block instead of returning them to the system
    "MALLOC_TRIM_THRESHOLD_": 1 << 28,
    "MALLOC_MMAP_THRESHOLD_": 1 << 25,
    "OMP_NUM_THREADS": 1,
    "OPENBLAS_NUM_THREADS": 1,
    "MKL_NUM_THREADS": 1,
}

# By default a cluster closes the nanny of a worker 15 s after the worker was lost, even if the
# nanny is about to restart it on a busy machine. Without a nanny, the work waits forever.
LOST_WORKERS_COME_BACK = {"distributed.deploy.lost-worker-timeout": "1 day"}

SILENT = logging.CRITICAL + 1  # our errors say what matters in the cluster's log

WORKER_TIMEOUT = 300.0  # seconds without a worker before the work is given up
SAID_AFTER = 10.0  # seconds without a worker before a warning
CONNECTING = 30.0  # seconds to reach a scheduler, at first and when the connection is lost
STOPPING = 10.0  # seconds without a worker before stopped work is no longer waited for
SPREADING = 5.0  # seconds for copies of what tasks share, without which they are slower to start
CLOSING = 60.0  # seconds before a cluster that does not close is left to end with this process
CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError, OSError)
TICK = 0.5  # seconds between two looks at the cluster
ATTEMPTS = 3  # times that the same part may be lost, each time after killing 4 workers

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Dask(Engine):
    """Workers of a Dask cluster, by default a cluster of this machine's processes.

    Chunks are read where they are computed. In `reduce`, each task is a run of consecutive chunks,
    as the chunks alone decide. Workers merge each group of 16 consecutive runs, and the groups are
    merged here, in an order that the number of runs alone decides. So the result depends neither on
    the number of workers nor on which of them finishes first. The chunks of a lost worker are read
    again.

    If there is no worker left, the work waits for one and says so once. It ends with a
    `ClusterError` after `worker_timeout` seconds, if the scheduler is lost, or if the same chunks
    have been lost three times, as happens if no worker has enough memory for them.

    Parameters
    ----------
    scheduler : str, optional
        Address of a running scheduler, such as "tcp://10.0.0.1:8786", whose workers see the same
        files.
    n_workers : int, optional
        Processes of the local cluster if no scheduler is given; None is one per core.
    worker_timeout : float
        Seconds to wait while there is no worker.
    """

    name = "dask"
    in_process = False

    def __init__(
        self,
        scheduler: str | None = None,
        n_workers: int | None = None,
        worker_timeout: float = WORKER_TIMEOUT,
    ) -> None:
        try:
            from distributed import Client
            from distributed.utils import silence_logging_cmgr
        except ImportError as error:
            raise MissingExtraError(
                "engine 'dask' needs dask, which is not installed. "
                'Run: pip install "isotropy[dask]".'
            ) from error
        self.worker_timeout = checks.real(worker_timeout, "worker_timeout", low=0)
        self.cluster: Any = None
        self._missing_since: float | None = None
        self._said = False
        self._question: concurrent.futures.Future[int] | None = None
        with contextlib.ExitStack() as opened:
            opened.enter_context(silence_logging_cmgr(SILENT))
            if scheduler is None:
                self.cluster = opened.enter_context(local_cluster(n_workers or n_threads()))
            try:
                self.client = connected(Client, self.cluster or scheduler, self.cluster is not None)
            except (Exception, asyncio.CancelledError) as error:  # of many kinds, by address, load
                raise InputError(
                    f"engine 'dask': scheduler {scheduler!r} must be reachable "
                    f"({first_line(error)})."
                ) from error
            opened.callback(closed, self.client)
            self._address = scheduler or self.cluster.scheduler_address
            self._opened = opened.pop_all()

    def reduce(
        self, source: Source, statistics: Sequence[Statistic], saved: PassCheckpoint, report: Report
    ) -> Partial:
        cut = runs(source.chunks(), source.n_features)
        groups = [cut[i : i + GROUP] for i in range(0, len(cut), GROUP)]
        chunks = [list(itertools.chain.from_iterable(group)) for group in groups]
        saved.begin(len(groups))
        done = [finished(saved, i, mine) is not None for i, mine in enumerate(chunks)]

        def submit(i: int, shared: Any) -> list[Any]:
            return self._merging(shared, groups[i], priority=-i)

        merged = Tree(len(groups))
        todo = [i for i, is_done in enumerate(done) if not is_done]
        with self._results(todo, submit, source, list(statistics)) as results:
            for i, mine in enumerate(chunks):
                partial = saved.load(i, mine) if done[i] else unpacked(next(results), statistics)
                assert partial is not None
                if not done[i]:
                    saved.save(i, partial, mine)
                report(sum(chunk.n_rows for chunk in mine))
                merged.add(i, partial)
        return merged.total

    def _merging(self, shared: Any, group: list[Sequence[Chunk]], priority: int) -> list[Any]:
        """The tasks that merge the runs of a group, with the result last."""
        options = {"pure": False, "priority": priority}
        states = self.client.map(run_state, [shared] * len(group), group, **options)
        tasks = [*states]
        while len(states) > 1:
            some = [states[i : i + TOGETHER] for i in range(0, len(states), TOGETHER)]
            states = [
                self.client.submit(merged_states, shared, *each, **options)
                if len(each) > 1
                else each[0]
                for each in some
            ]
            tasks += states
        return tasks

    def map(self, source: Source, function: RowFunction, sink: Any, report: Report) -> int:
        """Every chunk becomes a Parquet part, written by the worker that made it."""
        chunks = source.chunks()

        def submit(i: int, shared: Any) -> list[Any]:
            return [self.client.submit(part_written, shared, i, chunks[i], pure=False)]

        n_skipped = 0
        numbers = range(len(chunks))
        with sink, self._results(numbers, submit, source, function, sink) as results:
            for chunk, found in zip(chunks, results, strict=True):
                n_skipped += found
                report(chunk.n_rows)
        return n_skipped

    def check(self, sink: Any) -> None:
        if not isinstance(sink, PartsSink):
            raise InputError(
                "engine 'dask': out must be a folder, which gets Parquet parts, got a file. "
                "Give it a name without suffix."
            )

    def close(self) -> None:
        self._opened.close()

    @contextlib.contextmanager
    def _results(
        self, parts: Sequence[int], submit: Callable[[int, Any], list[Any]], *shared: Any
    ) -> Iterator[Iterator[Any]]:
        """The results of all parts in order; afterwards, no work is left running.

        `submit` makes the tasks of a part from its number and what all tasks share; the last of
        them has its result.
        """
        futures: dict[int, Any] = {}
        keys: set[str] = set()  # of all tasks: what is only needed for others is not held here
        fetching: dict[int, concurrent.futures.Future[Any]] = {}
        common = None

        def begin(part: int) -> None:
            nonlocal common
            try:
                if common is None or common.status not in ("pending", "finished"):
                    common = self._shared(shared)
                *others, futures[part] = submit(part, common)
                keys.update(task.key for task in (*others, futures[part]))
                fetching.pop(part, None)
            except ClusterError:
                raise
            except Exception:
                self._expect_scheduler()  # a closed client takes no tasks
                raise

        def result(i: int) -> Any:
            for part in parts[i : i + FETCHED_AHEAD]:
                if part not in fetching:
                    fetching[part] = self._begun(fetched(self.client, futures[part]))
            return self._result(futures[parts[i]], fetching[parts[i]])

        def results() -> Iterator[Any]:
            for i, part in enumerate(parts):
                for attempt in range(1, ATTEMPTS + 1):
                    try:
                        found = result(i)
                        break
                    except Lost as lost:
                        if attempt == ATTEMPTS:
                            raise ClusterError(f"engine 'dask': {lost}") from None
                        self._settle()
                        begin(part)
                        for later in parts[i + 1 :]:  # if the scheduler was lost, all of them are
                            if futures[later].status in ("cancelled", "lost"):
                                begin(later)
                del futures[part], fetching[part]
                yield found

        self._expect_scheduler()
        try:
            for part in parts:
                begin(part)
            yield results()
        except BaseException:
            self._stop(list(futures.values()), keys)
            raise

    def _shared(self, parts: tuple[Any, ...]) -> Any:
        """What all tasks share, on every worker.

        Tasks go where it is: were it on one worker, they would all wait for that one.
        """
        with warnings.catch_warnings():  # a task of its own can be repeated if lost
            warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
            common = self.client.submit(together, *parts, pure=False)
        self._waited_for(self._begun(spread(self.client, common)))
        return common

    def _result(self, future: Any, fetching: concurrent.futures.Future[Any]) -> Any:
        from distributed.scheduler import KilledWorker

        try:
            found = self._waited_for(fetching)
        except (ClusterError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if future.status != "error" and isinstance(error, CANCELLED):  # cancelled, or lost
                raise Lost(
                    f"the cluster lost the same chunks {ATTEMPTS} times "
                    f"({first_line(error)}). Check the network and the scheduler's log."
                ) from error
            if isinstance(error, KilledWorker):
                raise Lost(
                    f"{ATTEMPTS * (error.allowed_failures + 1)} workers died while they worked on "
                    "the same chunks, which may need more memory than a worker has. Give workers "
                    "more of it, or make chunks smaller (chunk_rows, --chunk-rows)."
                ) from error
            if isinstance(error, MemoryError):
                raise ClusterError(
                    "engine 'dask': a worker has too little memory for a chunk. Give workers more "
                    "of it, or make chunks smaller (chunk_rows, --chunk-rows)."
                ) from error
            if type(error).__module__ == KilledWorker.__module__:  # the scheduler's own
                raise ClusterError(f"engine 'dask': {first_line(error)}") from error
            raise
        self._missing_since = None
        return found

    def _waited_for(self, task: concurrent.futures.Future[T], stopping: bool = False) -> T:
        """The result of what was begun on the client's loop, unless the cluster is lost first.

        It is not cancelled, because distributed would log what that leaves behind; it ends with
        its task or with the client.
        """
        while not concurrent.futures.wait([task], TICK).done:
            self._expect_workers(stopping)
        return task.result()

    def _begun(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.client.loop.asyncio_loop)

    def _expect_scheduler(self) -> None:
        """Raise if the client has given up on the scheduler."""
        if self.client.status in ("closing", "closed"):
            raise self._lost_scheduler()

    def _lost_scheduler(self) -> ClusterError:
        return ClusterError(
            f"engine 'dask': the scheduler {self._address!r} was lost and did not come back. "
            "Start it again and repeat this; a checkpoint keeps what is done."
        )

    def _expect_workers(self, stopping: bool) -> None:
        """Raise if there has been no worker for too long."""
        self._expect_scheduler()
        n_workers = self._n_workers()
        lost = self.client.status == "connecting"
        if n_workers and not lost:
            self._missing_since = None
            return
        now = time.monotonic()
        if self._missing_since is None:
            self._missing_since = now
        missing = now - self._missing_since
        silent = n_workers is None and not lost  # it may have a lot to do
        why = "has not answered" if silent else "has had no workers"
        patience = min(STOPPING, self.worker_timeout) if stopping else self.worker_timeout
        if missing >= (max(patience, CONNECTING) if silent else patience):
            if lost:
                raise self._lost_scheduler()
            raise ClusterError(
                f"engine 'dask': the scheduler {self._address!r} {why} for "
                f"{self.worker_timeout:g} s. Start workers (dask worker {self._address}), or "
                "wait longer (--worker-timeout)."
            )
        if missing >= min(SAID_AFTER, self.worker_timeout / 2) and not (self._said or stopping):
            self._said = True
            why = "does not answer" if silent else "has no workers that take tasks"
            why = "was lost" if lost else why
            _log.warning(
                "engine 'dask': the scheduler %r %s: waiting for up to %g s.",
                *(self._address, why, self.worker_timeout),
            )

    def _n_workers(self) -> int | None:
        """The number of workers that accept or run tasks; None if the scheduler does not say."""
        if self._question is None:
            self._question = self._begun(n_working(self.client))
        if not concurrent.futures.wait([self._question], TICK).done:
            return None
        question, self._question = self._question, None
        lost = question.cancelled() or question.exception() is not None
        return None if lost else question.result()

    def _settle(self) -> None:
        """Wait until every worker that the scheduler knows has answered or been forgotten.

        If several died at once, a task submitted before that may be lost with each of them.
        """
        with contextlib.suppress(OSError, concurrent.futures.CancelledError):
            self._waited_for(self._begun(executing(self.client)))

    def _stop(self, futures: list[Any], keys: set[str]) -> None:
        """Cancel the results, and wait until no task of these keys is running.

        A part that is being written must not outlive its folder.
        """
        if self.client.status in ("closing", "closed"):
            return
        with contextlib.suppress(ClusterError, OSError, concurrent.futures.CancelledError):
            self.client.cancel(futures)
            while keys & self._waited_for(self._begun(executing(self.client)), stopping=True):
                time.sleep(TICK / 10)


class Lost(Exception):
    """A task was lost through no fault of its own and can be submitted again."""


@contextlib.contextmanager
def local_cluster(n_workers: int) -> Iterator[Any]:
    """Processes of this machine that ignore Ctrl-C, so that this process can end them in order.

    A terminal sends SIGINT to all of them. They are started by the thread of the loop and inherit
    its blocked signals. The resource tracker is started first, because starting it unblocks them.
    """
    import dask
    from distributed import LocalCluster
    from distributed.utils import LoopRunner

    with contextlib.ExitStack() as opened:
        loop = LoopRunner()
        if hasattr(signal, "pthread_sigmask"):
            resource_tracker.ensure_running()
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                loop.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        else:  # on Windows, which has no such tracker either
            loop.start()
        opened.callback(loop.stop)
        opened.enter_context(dask.config.set(LOST_WORKERS_COME_BACK))
        try:
            with dask.config.set({"distributed.nanny.pre-spawn-environ": KEEP_MEMORY}):
                cluster = LocalCluster(
                    n_workers=n_workers,
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=":0",
                    silence_logs=SILENT,
                    loop=loop.loop,
                )
        except (RuntimeError, OSError) as error:
            raise ClusterError(
                f"engine 'dask': {n_workers} processes could not be started "
                f"({first_line(error)}). Use fewer, or another engine."
            ) from error
        opened.callback(closed, cluster)
        yield cluster


def connected(kind: Any, address: Any, direct: bool) -> Any:
    """A client of the scheduler or cluster; raises if it can't be reached.

    A `direct` one fetches results from the workers, others through the scheduler.

    A client that failed must be closed: if the garbage collector does it, inside the start of
    another one, both wait for each other for good.
    """
    client = kind.__new__(kind)
    try:
        client.__init__(address, timeout=CONNECTING, direct_to_workers=direct or None)
    except BaseException:
        closed(client)
        raise
    return client


def closed(opened: Any) -> None:
    """Close a client or cluster, even a broken one: its processes end with this one anyway."""
    with contextlib.suppress(
        OSError, RuntimeError, AssertionError, AttributeError, concurrent.futures.CancelledError
    ):
        opened.close(timeout=CLOSING)


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


async def fetched(client: Any, future: Any) -> Any:
    """The result of a task."""
    return await client.gather(future)


async def spread(client: Any, future: Any) -> None:
    """Copy a result to the workers that take it soon. Its tasks tell if it cannot be made."""
    copying = asyncio.ensure_future(client.replicate([future]))
    copying.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([copying], timeout=SPREADING)


async def n_working(client: Any) -> int:
    """The number of workers that accept tasks, or run one while paused for lack of memory."""
    workers = (await client.scheduler.identity())["workers"].values()
    return sum(
        worker["status"] == "running"
        or worker.get("metrics", {}).get("task_counts", {}).get("executing", 0) > 0
        for worker in workers
    )


async def executing(client: Any) -> set[str]:
    """The tasks that are running."""
    found = await client.run(executed_here, on_error="ignore")
    return set().union(*found.values())


def executed_here(dask_worker: Any) -> list[str]:
    """On a worker: the tasks that it is running."""
    return [task.key for task in dask_worker.state.executing]


def finished(saved: PassCheckpoint, run: int, group: list[Chunk]) -> Partial | None:
    """The saved state of a group that was read to its end; None if there is none."""
    found = saved.load(run, group)
    return found if found is not None and found.n_chunks == len(group) else None


def together(*parts: Any) -> tuple[Any, ...]:
    """On a worker: what its tasks share."""
    return parts


def run_state(shared: Any, run: Sequence[Chunk]) -> Packed:
    """On a worker: the statistics of a run."""
    source, statistics = shared
    partial = fresh(statistics)
    try:
        with one_blas_thread():
            for chunk in run:
                partial.add(source.read(chunk), lambda n_rows: None)
    finally:
        leave_rooms()
    return packed(partial, statistics)


def merged_states(shared: Any, *states: Packed) -> Packed:
    """On a worker: consecutive states together, a part of the tree of all of them."""
    _, statistics = shared
    merged = Tree(len(states))
    for i, state in enumerate(states):
        merged.add(i, unpacked(state, statistics))
    return packed(merged.total, statistics)


def part_written(shared: Any, number: int, chunk: Chunk) -> int:
    """On a worker: one part of the output."""
    source, function, sink = shared
    mapped = (replace(batch, rows=function(batch.rows)) for batch in source.read(chunk))
    with one_blas_thread(), sink.part(number) as part:
        return write(chunk, mapped, part, lambda n_rows: None)
