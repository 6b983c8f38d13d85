"""How many threads BLAS and LAPACK may use."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator

from threadpoolctl import ThreadpoolController

_limiting = threading.Lock()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limits BLAS to one thread, which is global: who limits first also lifts the limit."""
    if not _limiting.acquire(blocking=False):
        yield
        return
    try:
        with _controller(len(sys.modules)).limit(limits=1, user_api="blas"):
            yield
    finally:
        _limiting.release()


@functools.lru_cache(maxsize=1)
def _controller(n_modules: int) -> ThreadpoolController:
    """What controls the libraries that are loaded; looked for again after new imports."""
    return ThreadpoolController()
