"""The thread pool keeps to OMP_NUM_THREADS, as BLAS does."""

import pytest

from isotropy.threads import ThreadPool, n_threads


@pytest.fixture
def cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, 8),
        ("3", 3),
        ("1", 1),
        ("64", 8),
        ("4,2", 4),
        ("0", 8),
        ("", 8),
        ("many", 8),
        ("-2", 8),
    ],
)
def test_threads_are_no_more_than_asked(cores, monkeypatch, asked, found):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert n_threads() == found
    with ThreadPool(100) as threads:
        assert threads._max_workers == found
