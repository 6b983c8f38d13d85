"""Threads of this process that don't compete with BLAS for cores."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

from threadpoolctl import OpenBLASController, ThreadpoolController

from isotropy import errors
from isotropy.checks import Array, is_tensor

T = TypeVar("T")
R = TypeVar("R")

_in_pool = ContextVar("isotropy-in-pool", default=False)


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread: in this thread, and in threads of a `ThreadPool`.

    Where BLAS has one limit for the process, the last block to end lifts it, in any thread.
    """
    shared, own = _blas(len(sys.modules))
    with _own_limit.held(own), _limit.held(shared):
        yield


class Limit:
    """One thread for some libraries, as long as a block asks for it.

    threadpoolctl lets only the first thread that asks change the limit of a process, and ignores
    other threads silently until that thread's claim is cleared.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[object, int] = {}  # that ask for it, with their threads
        self._before: Any = None  # what knows the limits from before

    @contextlib.contextmanager
    def held(self, libraries: ThreadpoolController) -> Iterator[None]:
        block = object()
        try:
            with self._lock:
                self._blocks[block] = threading.get_ident()
                if self._before is None:
                    OpenBLASController.clear_controlling_thread(force=True)
                    self._before = libraries.limit(limits=None)
                    libraries.limit(limits=1)
            yield
        finally:
            with self._lock:
                self._blocks.pop(block, None)
                self._lift()

    def forked(self) -> None:
        """In a new process, which has no thread but this one."""
        self._lock = threading.Lock()
        here = threading.get_ident()
        self._blocks = {block: thread for block, thread in self._blocks.items() if thread == here}
        self._lift()

    def _lift(self) -> None:
        if self._blocks or self._before is None:
            return
        OpenBLASController.clear_controlling_thread(force=True)
        self._before.restore_original_limits()
        OpenBLASController.clear_controlling_thread(force=True)
        self._before = None


class ThreadLimit(threading.local, Limit):
    """A limit for each thread."""


_limit, _own_limit = Limit(), ThreadLimit()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_limit.forked)


@functools.lru_cache(maxsize=1)
def _blas(n_modules: int) -> tuple[ThreadpoolController, ThreadpoolController]:
    """BLAS libraries with one limit for the process, and those with one for each thread.

    They are looked for again after new imports.
    """
    found = ThreadpoolController().select(user_api="blas")
    on_openmp = found.select(internal_api="openblas").select(threading_layer="openmp")
    own = [*on_openmp.lib_controllers, *found.select(internal_api="mkl").lib_controllers]
    paths = [library.filepath for library in own]
    rest = [lib.filepath for lib in found.lib_controllers if lib.filepath not in paths]
    return found.select(filepath=rest), found.select(filepath=paths)


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
    with shared_threads(len(items)) as over:
        try:
            return over(work, items)
        except BaseException:
            stop()
            raise


@contextlib.contextmanager
def shared_threads(n_items: int) -> Iterator[Callable[[Callable[[T], R], Sequence[T]], list[R]]]:
    """`over_threads` for many calls of up to `n_items` items, which share their threads.

    Starting 16 threads takes about as long as a product of a few thousand rows.
    """
    if n_items < 2 or n_threads() < 2 or _in_pool.get():
        yield lambda work, items: [work(item) for item in items]
        return
    with one_blas_thread(), ThreadPool(n_items) as threads:
        yield (
            lambda work, items: (
                list(threads.map(work, items)) if len(items) > 1 else [work(item) for item in items]
            )
        )


def over_blocks(work: Callable[[T], R], items: Sequence[T], X: Array) -> list[R]:
    """`over_threads` for work on rows of X, but a plain loop if a device does it."""
    return [work(item) for item in items] if is_tensor(X) else over_threads(work, items)


def ahead(
    work: Callable[[T], R], items: Iterable[T], n_ahead: int, most: int | None = None
) -> Generator[R]:
    """work(item) for every item, in order; threads, `most` of them, work on the next `n_ahead`.

    What an item raises is raised in its turn. Close the iterator to stop the threads.
    """
    rest = iter(items)
    with ThreadPool(n_ahead if most is None else min(n_ahead, most)) as threads:
        waiting = deque(threads.submit(work, item) for item in itertools.islice(rest, n_ahead))
        try:
            while waiting:
                waiting[0].result()
                waiting.extend(threads.submit(work, item) for item in itertools.islice(rest, 1))
                yield waiting.popleft().result()  # the caller's alone from here on
        finally:
            for future in waiting:
                future.cancel()


class ThreadPool(ThreadPoolExecutor):
    """Threads that run work with the caller's settings, and know that they are in a pool.

    Warnings in them are at the user's line that made the pool.
    """

    def __init__(self, n_items: int) -> None:
        super().__init__(min(n_items, n_threads()), initializer=_limit_own)
        self._line = errors.user_line()

    def submit(self, work: Callable[..., R], /, *args: Any, **options: Any) -> Future[R]:
        def run() -> R:
            _in_pool.set(True)
            errors.led_here.set(self._line)
            return work(*args, **options)

        return super().submit(contextvars.copy_context().run, run)


def _limit_own() -> None:
    """In a thread of a pool, which ends with it: one thread for BLAS that counts by thread."""
    _, own = _blas(len(sys.modules))
    own.limit(limits=1)
