"""Chunks are cut and merged in the same way whatever the number of threads."""

import os

import numpy as np
import pytest

import isotropy
from isotropy import linalg, threads
from isotropy.engines import Checkpoint, reduce
from isotropy.engines.base import LONGEST_RUN, N_RUNS, Partial, Tree, runs
from isotropy.engines.passes import Peeked
from isotropy.errors import InputError
from isotropy.sources import ArraySource, Chunk, MappedSource, PickedRows
from isotropy.sources.base import (
    LEAST_ELEMENTS,
    MOST_COARSE,
    balanced_rows,
    default_rows,
    even_chunks,
)
from isotropy.stats import Directions, Moments, Sample, Statistic
from isotropy.stats.moments import exact_products
from isotropy.stats.sample import MOST_PIECES, NO_LIMIT, hashed


@pytest.fixture
def X():
    random = np.random.default_rng(0)
    return (random.standard_normal((9000, 24)) + 0.7).astype(np.float32)


@pytest.mark.parametrize("n_chunks", [1, 2, 31, 32, 33, 200, 4096, 4097, 400_000])
def test_runs_hold_every_chunk_once_and_are_bounded(n_chunks):
    chunks = [Chunk(20_000 * i, 20_000) for i in range(n_chunks)]
    found = runs(chunks, 768)
    assert [chunk for run in found for chunk in run] == chunks
    sizes = [len(run) for run in found]
    assert max(sizes) <= LONGEST_RUN
    assert max(sizes) - min(sizes) <= 1
    assert len(found) >= min(n_chunks, N_RUNS)


def test_many_wide_rows_have_states_of_a_hundredth_of_their_size():
    n, d = 10**8, 4096
    chunks = even_chunks(n, balanced_rows(n, d))
    found = runs(chunks, d)
    assert N_RUNS < len(found) < len(chunks) / LONGEST_RUN
    assert len(found) * d**2 * 8 < 0.01 * n * d * 4
    assert [chunk for run in found for chunk in run] == chunks


def test_no_rows_are_one_run():
    assert runs([], 3) == [[]]
    nothing = PickedRows(np.ones((5, 3)), np.array([], dtype=np.int64))
    with pytest.raises(InputError, match="X must have good rows, got none"):
        reduce(nothing, [Moments()])


@pytest.mark.parametrize("n_features", [3, 256, 768, 1536])
@pytest.mark.parametrize("n_samples", [1, 10_000, 200_000, 2_000_000, 10**9])
def test_chunks_are_even_and_their_size_is_bounded(n_samples, n_features):
    rows = balanced_rows(n_samples, n_features)
    n_chunks = -(-n_samples // rows)
    assert rows <= default_rows(n_features)
    if rows > LEAST_ELEMENTS // n_features:
        assert n_chunks % N_RUNS == 0 or n_chunks * rows - n_samples < n_chunks


def measured(X, n_threads, monkeypatch):
    monkeypatch.setattr(threads, "n_threads", lambda: n_threads)
    monkeypatch.setattr("isotropy.engines.local.n_threads", lambda: n_threads)
    found = isotropy.measure(ArraySource(X, chunk_rows=70)).to_dict()
    return {name: value for name, value in found.items() if value == value}


def test_any_number_of_threads_gives_the_same_digits(X, monkeypatch):
    one, three, eight = (measured(X, n, monkeypatch) for n in (1, 3, 8))
    assert one == three == eight


class Order(Statistic):
    """The numbers of the runs it was merged from, bracketed as they were merged."""

    fields = {}

    def __init__(self, seen):
        self.seen = seen

    def _update(self, X, w, first_row):
        raise AssertionError

    @property
    def n_features(self):
        return 1

    def _merge(self, other):
        self.seen = f"({self.seen} {other.seen})"


@pytest.mark.parametrize("n_runs", [1, 2, 5, 16, 17, 40])
def test_states_are_merged_in_the_same_order_whenever_they_come(n_runs):
    def folded(parts):
        while len(parts) > 1:
            pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
            parts = [f"({' '.join(pair)})" if len(pair) == 2 else pair[0] for pair in pairs]
        return parts[0]

    expected = folded([str(i) for i in range(n_runs)])
    shuffled = np.random.default_rng(0).permutation(n_runs).tolist()
    for order in (range(n_runs), reversed(range(n_runs)), shuffled):
        done = Tree(n_runs)
        for run in order:
            done.add(run, Partial([Order(str(run))]))
        assert done.total.states[0].seen == expected


def test_precision_depends_on_all_rows_and_not_on_chunks(X, monkeypatch):
    monkeypatch.setattr("isotropy.stats.moments.EXACT_PRODUCTS", X.shape[0] * X.shape[1] ** 2)
    coarse = np.finfo(np.float32).eps
    (moments,) = reduce(ArraySource(X, chunk_rows=10), [Moments()]).states
    assert moments.resolution == coarse
    (moments,) = reduce(ArraySource(X[1:], chunk_rows=10), [Moments()]).states
    assert moments.resolution == np.finfo(np.float64).eps
    monkeypatch.setattr("isotropy.stats.directions.EXACT_ELEMENTS", X.size - 1)
    (directions,) = reduce(ArraySource(X, chunk_rows=10), [Directions()]).states
    assert directions.resolution == coarse


def test_a_sample_of_many_rows_takes_few_of_them(X):
    found = reduce(ArraySource(X, chunk_rows=100), [Sample(50, 3)]).states[0]
    order = np.argsort(hashed(np.arange(len(X)), 3))[:50]
    np.testing.assert_array_equal(found.numbers, order)
    np.testing.assert_array_equal(found.rows, X[order])
    below = int((hashed(np.arange(len(X)), 3) <= found.limit).sum())
    assert 50 <= below < 250


@pytest.mark.parametrize("why", ["bad", "no weight"])
def test_a_sample_of_mostly_bad_rows_is_drawn_in_another_pass(X, why, tmp_path):
    good = np.arange(len(X)) % 10 == 0
    if why == "bad":
        X = np.where(good[:, None], X, np.nan).astype(np.float32)
        source = ArraySource(X, chunk_rows=100, skip_bad_rows=True)
    else:
        source = ArraySource(X, good.astype(float), chunk_rows=100)
    found = reduce(source, [Sample(50, 3)], Checkpoint(tmp_path / "kept")).states[0]
    numbers = np.flatnonzero(good)
    expected = numbers[np.argsort(hashed(numbers, 3))[:50]]
    np.testing.assert_array_equal(found.numbers, expected)
    assert found.limit == NO_LIMIT


def test_a_sample_of_many_small_updates_keeps_few_pieces():
    sample = Sample(1000)
    rows = np.arange(600.0).reshape(300, 2)
    for i in range(300):
        sample.update(rows[i : i + 1], first_row=i)
        assert len(sample._pieces) <= MOST_PIECES + 1
    np.testing.assert_array_equal(sample.rows, Sample(1000).update(rows).rows)


def test_larger_chunks_are_those_of_rows_that_are_not_copied(X):
    large = ArraySource(X).coarse()
    assert len(large.chunks()) == 1
    weights = np.ones(len(X))
    assert len(ArraySource(X, weights).coarse().chunks()) == 1
    weights[5] = 0  # a row that is left out
    for source in (
        ArraySource(X.astype(np.float16)),
        ArraySource(X, skip_bad_rows=True),
        ArraySource(X, weights),
        MappedSource(ArraySource(X), np.negative, X.shape[1]),
    ):
        assert source.coarse() is source


def test_larger_chunks_of_narrow_rows_have_exact_products_as_small_ones_do():
    assert all(exact_products(MOST_COARSE, n_features) for n_features in range(1, 16))
    narrow = ArraySource(np.broadcast_to(np.float32(1), (3 * MOST_COARSE, 8))).coarse()
    assert max(chunk.n_rows for chunk in narrow.chunks()) == MOST_COARSE
    uneven = ArraySource(np.broadcast_to(np.float32(1), (2 * MOST_COARSE + 1, 8))).coarse()
    sizes = [chunk.n_rows for chunk in uneven.chunks()]
    assert len(sizes) == 3
    assert max(sizes) - min(sizes) <= 2


def test_what_a_pass_has_looked_at_first_is_one_block(X, monkeypatch):
    monkeypatch.setattr(linalg, "BLOCK_ELEMENTS", 300 * X.shape[1])
    weights = np.ones(len(X))
    assert np.shares_memory(Peeked(ArraySource(X, weights)).first, X)
    weights[::2] = 0
    np.testing.assert_array_equal(Peeked(ArraySource(X, weights)).first, X[1:600:2])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_has_memory_of_its_own():
    X = np.random.default_rng(0).standard_normal((2000, 400)).astype(np.float32)
    moments = Moments().update(X)  # whose matrix is mapped, and leaves a room behind
    before = moments.within.copy()
    child = os.fork()
    if child == 0:
        moments.within[:] = -1.0
        Moments().update(X + 1)
        os._exit(0)
    os.waitpid(child, 0)
    np.testing.assert_array_equal(moments.within, before)
