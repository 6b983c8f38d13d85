"""How many threads BLAS has, whoever limits it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from isotropy.threads import one_blas_thread


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
