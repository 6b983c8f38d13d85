"""How many threads BLAS has, whoever limits it, and where threads warn."""

import inspect
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from isotropy import threads
from isotropy.errors import IsotropyWarning, warn
from isotropy.threads import one_blas_thread, over_threads, shared_threads


def n_blas():
    """The numbers of threads of the BLAS libraries, as seen from this thread."""
    return {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def three_threads():
    """Three BLAS threads, on a machine of any size."""
    with threadpool_limits(3, user_api="blas"):
        assert n_blas() == {3}
        yield


@pytest.fixture
def other():
    """other(function) calls it in a thread that stays alive."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def entered():
    block = one_blas_thread()
    block.__enter__()
    return block


def left(block):
    block.__exit__(None, None, None)


def test_blas_has_one_thread_until_the_last_block_is_left():
    first, second = entered(), entered()
    left(second)
    assert n_blas() == {1}
    left(first)
    assert n_blas() == {3}
    first, second = entered(), entered()
    left(first)
    left(second)
    assert n_blas() == {3}


def test_any_thread_can_be_the_last_to_leave(other):
    mine, theirs = entered(), other(entered)
    left(mine)
    assert 1 in n_blas()
    other(left, theirs)
    assert n_blas() == {3}
    theirs, mine = other(entered), entered()
    other(left, theirs)
    assert n_blas() == {1}
    left(mine)
    assert n_blas() == {3}


def test_any_thread_can_limit_blas_after_another_has(other):
    for call in (lambda function, *given: function(*given), other) * 2:
        block = call(entered)
        assert call(n_blas) == {1}
        call(left, block)
        assert n_blas() == {3}


def test_openmp_is_limited_in_the_thread_that_asks(other):
    pytest.importorskip("faiss")
    if not any(p.get("threading_layer") == "openmp" for p in threadpool_info()):
        pytest.skip("no BLAS on OpenMP")
    with threadpool_limits(3, user_api="blas"):  # which has found faiss's BLAS
        theirs = other(entered)
        assert other(n_blas) == {1}
        assert n_blas() == {1, 3}
        other(left, theirs)
        assert n_blas() == {3}


def test_overlapping_blocks_of_many_threads_leave_nothing_behind():
    def enter_and_leave(_):
        with one_blas_thread():
            return n_blas()

    with ThreadPoolExecutor(8) as pool:
        assert all(found == {1} for found in pool.map(enter_and_leave, range(200)))
    assert n_blas() == {3}


class PerThread:
    """A library like MKL, whose limit is that of the thread which sets it."""

    user_api, internal_api, threading_layer = "blas", "mkl", "intel"
    prefix, filepath = "libmkl_rt", "/lib/libmkl_rt.so"

    def __init__(self):
        self.local = threading.local()

    @property
    def num_threads(self):
        return getattr(self.local, "n", 8)

    def set_num_threads(self, n):
        self.local.n = n

    def info(self, **options):
        return {"num_threads": self.num_threads, "user_api": "blas"}


@pytest.fixture
def mkl(monkeypatch):
    """Such a library, as the only one; as an attribute it has the threads of who asks."""
    library = PerThread()
    found = ThreadpoolController._from_controllers([library])
    monkeypatch.setattr(threads, "ThreadpoolController", lambda: found)
    threads._blas.cache_clear()
    yield library
    threads._blas.cache_clear()


def test_libraries_that_count_by_thread_are_limited_in_every_thread(mkl, other, monkeypatch):
    monkeypatch.setattr(threads, "n_threads", lambda: 3)
    mine, theirs = entered(), other(entered)
    assert (mkl.num_threads, other(lambda: mkl.num_threads)) == (1, 1)
    left(mine)
    assert (mkl.num_threads, other(lambda: mkl.num_threads)) == (8, 1)
    other(left, theirs)
    assert (mkl.num_threads, other(lambda: mkl.num_threads)) == (8, 8)
    assert over_threads(lambda _: mkl.num_threads, range(9)) == [1] * 9
    assert mkl.num_threads == 8


def test_an_interrupt_at_any_moment_leaves_no_limit_behind(monkeypatch):
    class Interrupted:
        """A lock at whose release Ctrl-C arrives."""

        def __enter__(self):
            pass

        def __exit__(self, *_):
            monkeypatch.setattr(threads._limit, "_lock", threading.Lock())
            raise KeyboardInterrupt

    monkeypatch.setattr(threads._limit, "_lock", Interrupted())
    with pytest.raises(KeyboardInterrupt), one_blas_thread():
        pass
    assert n_blas() == {3}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_has_the_limits_of_its_own_blocks(other):
    theirs = other(entered)

    def in_child(check):
        child = os.fork()
        if child == 0:
            os._exit(0 if check() else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert in_child(lambda: 1 not in n_blas() and not threads._limit._blocks)
    with one_blas_thread():
        assert in_child(lambda: n_blas() == {1})
        with threads._limit._lock:  # as if another thread were about to enter
            assert in_child(lambda: n_blas() == {1} and left(entered()) is None)
    other(left, theirs)
    assert n_blas() == {3}


def test_threads_warn_at_the_line_that_led_to_their_work(monkeypatch):
    monkeypatch.setattr(threads, "n_threads", lambda: 3)
    monkeypatch.setattr("isotropy.errors.BETWEEN", {"isotropy", "concurrent", "contextlib"})
    line = inspect.currentframe().f_lineno + 2
    with pytest.warns(IsotropyWarning) as caught:
        over_threads(lambda _: warn("a remark"), range(3))
    assert {(warning.filename, warning.lineno) for warning in caught} == {(__file__, line)}


def test_calls_that_share_threads_run_in_the_same_ones(monkeypatch):
    monkeypatch.setattr("isotropy.threads.n_threads", lambda: 3)
    seen = set()

    def work(item):
        seen.add(threading.current_thread())  # whose number may be used again
        return 2 * item

    with shared_threads(5) as over:
        for _ in range(20):
            assert over(work, range(5)) == [0, 2, 4, 6, 8]
    assert len(seen) <= 3
    assert threading.current_thread() not in seen


def test_in_a_thread_of_a_pool_shared_threads_are_a_plain_loop(monkeypatch):
    monkeypatch.setattr("isotropy.threads.n_threads", lambda: 3)

    def threads_within(_):
        with shared_threads(4) as over:
            return {threading.get_ident(), *over(lambda _: threading.get_ident(), range(4))}

    assert [len(found) for found in over_threads(threads_within, range(3))] == [1, 1, 1]
