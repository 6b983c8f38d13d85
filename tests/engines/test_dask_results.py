"""What becomes of the errors that waiting for a task raises."""

import asyncio
import concurrent.futures
from types import SimpleNamespace

import pytest

pytest.importorskip("distributed")

from isotropy.engines import dask

PENDING = SimpleNamespace(status="pending")


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (concurrent.futures.CancelledError(), dask.Lost),
        (asyncio.CancelledError(), dask.Lost),
        (ConnectionResetError("gone"), dask.Lost),
        (ZeroDivisionError("a mistake of ours"), ZeroDivisionError),
        (AttributeError("another"), AttributeError),
    ],
)
def test_only_what_is_cancelled_or_cut_off_is_lost(error, seen):
    fetching = concurrent.futures.Future()
    fetching.set_exception(error)
    with pytest.raises(seen):
        object.__new__(dask.Dask)._result(PENDING, fetching)
