"""A partial arrives as it was sent, and less is sent than it holds."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest

from isotropy.engines.base import Partial, fresh
from isotropy.engines.packed import Triangle, packed, symmetric, unpacked
from isotropy.stats import LogPartition, Moments
from isotropy.testing.statistics import rows

from ..contracts.test_statistics import each_kind
from ..contracts.test_statistics import fresh as empty_of


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8)


def sent(partial, statistics):
    """The partial after it was packed, pickled and unpacked with statistics of another process."""
    there = pickle.loads(pickle.dumps(statistics))
    return unpacked(pickle.loads(pickle.dumps(packed(partial, statistics), 5)), there)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 64, 65, 127, 128, 130])
def test_a_triangle_brings_back_every_bit_with_half_the_numbers(n):
    matrix = np.random.default_rng(n).standard_normal((n, n))
    matrix = matrix + matrix.T
    matrix[0, -1] = matrix[-1, 0] = -0.0
    half = Triangle.of(matrix)
    assert half.half.size == n * (n + 1) // 2
    np.testing.assert_array_equal(bits(half.matrix()), bits(matrix))


def test_only_matrices_that_are_symmetric_to_the_last_bit_are_halved():
    matrix = np.ones((130, 130))
    assert symmetric(matrix)
    assert not symmetric(matrix.astype(np.float32))
    assert not symmetric(matrix[0])
    assert not symmetric(matrix[:5])
    assert not symmetric(np.ones((260, 260))[::2, ::2])
    for place in ((0, 129), (129, 0), (64, 3), (100, 101)):
        other = matrix.copy()
        other[place] = np.nextafter(1.0, 2.0)
        assert not symmetric(other)
    matrix[3, 4], matrix[4, 3] = 0.0, -0.0
    assert not symmetric(matrix)


@each_kind
@pytest.mark.parametrize("n_rows", [0, 3, 120])
def test_every_statistic_arrives_as_it_was_sent(kind, n_rows):
    X = rows()
    statistics = [empty_of(kind).settled(X, len(X))]
    partial = fresh(statistics)
    if n_rows:
        partial.states[0].update(X[:n_rows])
    partial.n_chunks, partial.n_skipped = 4, 2
    found = sent(partial, statistics)
    assert (found.n_chunks, found.n_skipped) == (4, 2)
    expected, state = partial.states[0].state(), found.states[0].state()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert state[name].dtype == value.dtype
        np.testing.assert_array_equal(bits(state[name]), bits(value), err_msg=name)


@each_kind
def test_what_arrives_merges_and_leaves_what_was_sent(kind):
    X = rows()
    statistics = [empty_of(kind).settled(X, len(X))]
    parts = [fresh(statistics) for _ in range(3)]
    for i, part in enumerate(parts):
        part.states[0].update(X[40 * i : 40 * (i + 1)], first_row=40 * i)
    kept = [packed(part, statistics) for part in parts]
    before = pickle.dumps(kept)
    first, *others = (unpacked(part, statistics) for part in kept)
    for other in others:
        first.merge(other)
    assert pickle.dumps(kept) == before
    merged, *others = parts
    for other in others:
        merged.merge(other)
    for name, value in merged.states[0].state().items():
        np.testing.assert_array_equal(bits(first.states[0].state()[name]), bits(value))


def test_settings_are_not_sent_and_symmetric_matrices_are_halved():
    d = 100
    X = np.random.default_rng(0).standard_normal((50, d))
    partition = pickle.loads(pickle.dumps([LogPartition(np.eye(d))]))
    done = Partial([partition[0].empty().update(X)])
    assert len(pickle.dumps(packed(done, partition))) < 5 * d * 8
    moments = [Moments().settled(X, len(X))]
    done = Partial([moments[0].empty().update(X)])
    state = done.states[0]
    state.within = np.tril(state.within) + np.tril(state.within, -1).T
    found = packed(done, moments)
    assert len(pickle.dumps(found)) < (d * d / 2 + 10 * d) * 8
    assert d * d / 2 * 8 < sys.getsizeof(found) < (d * d / 2 + 10 * d) * 8


def test_lists_that_grow_are_sent_whole():
    statistic = Moments()
    statistic.seen = []
    partial = Partial([Moments()])
    partial.states[0].seen = [np.eye(3), Moments().update(np.eye(3))]
    found = unpacked(packed(partial, [statistic]), [statistic]).states[0]
    np.testing.assert_array_equal(found.seen[0], np.eye(3))
    assert found.seen[1].n_rows == 3
