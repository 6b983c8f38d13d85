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

from threadpoolctl import ThreadpoolController

from isotropy.checks import Array, is_tensor

T = TypeVar("T")
R = TypeVar("R")

_in_pool = ContextVar("isotropy-in-pool", default=False)
_limiting = threading.Lock()
_lifts: list[Callable[[], None]] = []  # what lifts the limit, once for each block that holds it


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread. The limit is the process's: the last to leave lifts it.

    OpenBLAS on OpenMP counts in each thread apart, so that one is limited in this thread alone.
    """
    shared, own = _blas(len(sys.modules))
    with own.limit(limits=1):
        with _limiting:
            _lifts.append(_lifts[0] if _lifts else _limited(shared))
        try:
            yield
        finally:
            with _limiting:
                lift = _lifts.pop()
                if not _lifts:
                    lift()


def _limited(libraries: ThreadpoolController) -> Callable[[], None]:
    """Limit the libraries to one thread; returns what lifts the limit, in whichever thread."""
    _let_any_thread_limit(libraries)
    limit = libraries.limit(limits=1)

    def lift() -> None:
        _let_any_thread_limit(libraries)
        limit.restore_original_limits()
        _let_any_thread_limit(libraries)

    return lift


def _let_any_thread_limit(libraries: ThreadpoolController) -> None:
    """The first thread to limit OpenBLAS is the only one that can, until that is cleared.

    threadpoolctl ignores the others without a word.
    """
    for library in libraries.lib_controllers:
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)


@functools.lru_cache(maxsize=1)
def _blas(n_modules: int) -> tuple[ThreadpoolController, ThreadpoolController]:
    """BLAS libraries with one limit for the process, and with one for each thread.

    They are looked for again after new imports.
    """
    found = ThreadpoolController().select(user_api="blas")
    own = found.select(internal_api="openblas").select(threading_layer="openmp")
    rest = [lib.filepath for lib in found.lib_controllers if lib not in own.lib_controllers]
    return found.select(filepath=rest), own


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
    """Threads that run work with the caller's settings, and know that they are in a pool."""

    def __init__(self, n_items: int) -> None:
        super().__init__(min(n_items, n_threads()))

    def submit(self, work: Callable[..., R], /, *args: Any, **options: Any) -> Future[R]:
        def run() -> R:
            _in_pool.set(True)
            return work(*args, **options)

        return super().submit(contextvars.copy_context().run, run)
