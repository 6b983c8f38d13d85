"""Change of a space against kernels and neighbours written out."""

import math

import numpy as np
import pytest

from isotropy.errors import InputError
from isotropy.evidence.change import linear_cka, neighbour_overlap


def spaces(n, width, other, seed=0):
    random = np.random.default_rng(seed)
    common = random.standard_normal((n, 5))
    return (
        common @ random.standard_normal((5, d)) + random.standard_normal((n, d)) + 3
        for d in (width, other)
    )


def cka_of_kernels(X, Y):
    """HSIC(K, L)/sqrt(HSIC(K, K) HSIC(L, L)) with the centring matrix written out."""
    H = np.eye(len(X)) - 1 / len(X)
    K, L = H @ X @ X.T @ H, H @ Y @ Y.T @ H
    return np.trace(K @ L) / math.sqrt(np.trace(K @ K) * np.trace(L @ L))


@pytest.mark.parametrize("shape", [(200, 12, 30), (40, 100, 60), (30, 5, 200), (2, 3, 3)])
def test_cka_is_that_of_centred_kernels(shape):
    X, Y = spaces(*shape)
    assert linear_cka(X, Y) == pytest.approx(cka_of_kernels(X, Y), abs=1e-10)
    assert linear_cka(Y, X) == pytest.approx(linear_cka(X, Y), abs=1e-12)
    narrow = linear_cka(X.astype(np.float32), Y.astype(np.float32))
    assert narrow == pytest.approx(linear_cka(X, Y), abs=1e-5)


def test_cka_in_blocks_is_cka(monkeypatch):
    X, Y = spaces(3000, 12, 30)
    whole = linear_cka(X, Y)
    monkeypatch.setattr("isotropy.linalg.BLOCK_ELEMENTS", 1000)
    assert linear_cka(X, Y) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("n", [20, 300])
def test_cka_ignores_moves_rotations_and_scale_but_not_stretching(n):
    X, _ = spaces(n, 40, 1)
    turn, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((40, 40)))
    assert linear_cka(X, 1e-3 * X @ turn + 7) == pytest.approx(1, abs=1e-9)
    assert linear_cka(X, X * np.r_[100.0, np.ones(39)]) < 0.9


def test_cka_of_any_size_of_numbers():
    X, Y = spaces(50, 8, 9)
    assert linear_cka(1e150 * X, 1e-150 * Y) == pytest.approx(linear_cka(X, Y), abs=1e-12)


@pytest.mark.parametrize("n", [1, 3, 50])
def test_cka_of_equal_rows_is_undefined(n):
    X, Y = spaces(n, 8, 9)
    assert math.isnan(linear_cka(np.full((n, 8), 0.1), Y))
    assert math.isnan(linear_cka(X, np.zeros((n, 9))))


def overlap_by_sorting(X, Y, k, rows):
    shares = []
    for i in rows:
        found = []
        for space in (X, Y):
            units = space / np.linalg.norm(space, axis=1, keepdims=True)
            cosines = units @ units[i]
            cosines[i] = -2
            found.append(set(np.argsort(-cosines)[:k]))
        shares.append(len(found[0] & found[1]) / k)
    return np.mean(shares)


@pytest.mark.parametrize("k", [1, 10])
def test_overlap_is_that_of_sorted_cosines(k, monkeypatch):
    X, Y = spaces(120, 10, 20)
    wanted = overlap_by_sorting(X, Y, k, range(120))
    assert neighbour_overlap(X, Y, k=k) == pytest.approx(wanted, abs=1e-12)
    monkeypatch.setattr("isotropy.evidence.change.BLOCK_ELEMENTS", 500)
    assert neighbour_overlap(X, Y, k=k) == pytest.approx(wanted, abs=1e-12)


def test_overlap_of_a_sample_is_near_that_of_all_rows():
    X, Y = spaces(600, 10, 20)
    whole = neighbour_overlap(X, Y)
    part = neighbour_overlap(X, Y, sample=300, seed=3)
    assert part == pytest.approx(whole, abs=0.05)
    assert part == neighbour_overlap(X, Y, sample=300, seed=3)
    assert part != neighbour_overlap(X, Y, sample=300, seed=4)


def test_overlap_ignores_norms_and_is_one_with_itself():
    X, _ = spaces(100, 10, 1)
    scales = np.random.default_rng(0).random((100, 1)) + 0.5
    assert neighbour_overlap(X, scales * X) == 1
    assert neighbour_overlap(X, X, k=99) == 1


def test_overlap_of_unrelated_spaces_is_that_of_chance():
    random = np.random.default_rng(0)
    X, Y = random.standard_normal((2, 400, 30))
    assert neighbour_overlap(X, Y, k=20) == pytest.approx(20 / 399, abs=0.015)


@pytest.mark.parametrize("function", [linear_cka, neighbour_overlap])
def test_bad_input_gets_one_line(function):
    X = np.ones((20, 3))
    name = function.__name__
    with pytest.raises(InputError, match=f"{name}: Y must have as many rows as X, got 19 and 20"):
        function(X, X[1:])
    with pytest.raises(InputError, match=f"{name}: X must be finite"):
        function(X, X * np.nan)
    with pytest.raises(InputError, match=f"{name}: X must be two-dimensional"):
        function(X, X[0])


def test_more_neighbours_than_rows_get_one_line():
    X = np.eye(5)
    with pytest.raises(InputError, match=r"neighbour_overlap: k must be an integer in \[1, 4\]"):
        neighbour_overlap(X, X, k=5)
