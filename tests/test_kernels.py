"""Fused sums against float64: in torch anywhere, in Triton on a device or in its interpreter."""

import importlib.util
import logging

import numpy as np
import pytest

from isotropy import kernels, linalg

torch = pytest.importorskip("torch", reason="torch is not installed")
EPS = float(np.finfo(np.float32).eps)
ON_DEVICE = torch.cuda.is_available()
SHAPES = [(1, 1), (1, 50), (5, 17), (257, 50), (130, 300), (300, 384), (129, 1000)]
WIDE = [(700, 576), (600, 768), (140, 1536), (131, 4096)]
slow_here = [] if ON_DEVICE else [pytest.mark.slow]
shapes = pytest.mark.parametrize(
    "shape", [*SHAPES, *(pytest.param(shape, marks=slow_here) for shape in WIDE)], ids=str
)


@pytest.fixture(params=["plain", "fused"])
def form(request, monkeypatch):
    """form(name) is the function of that name; the fused one runs on a device if there is one."""
    if request.param == "plain":
        yield lambda name: getattr(linalg, name)
        return
    if not importlib.util.find_spec("triton"):
        pytest.skip("no CUDA device, and triton is not installed")
    if not ON_DEVICE:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    kernels._compiled.cache_clear()
    yield lambda name: getattr(kernels, f"_fused_{name}")
    kernels._compiled.cache_clear()


def moved(array):
    return torch.from_numpy(array).to("cuda" if ON_DEVICE else "cpu")


def close(found, expected, size):
    """Right to 1e-6 of the sum of the absolute terms."""
    found = found.cpu().numpy()
    assert found.shape == expected.shape
    assert (np.abs(found - expected) <= 1e-6 * size).all()


def rows_of(shape):
    random = np.random.default_rng(shape[1])
    rows = random.standard_normal(shape) * random.uniform(0.1, 3, (shape[0], 1)) + 0.7
    if shape[0] > 3:
        rows[2] = 0
    return rows.astype(np.float32)


@shapes
def test_shifted_sums_are_those_of_float64(form, shape):
    rows = rows_of(shape)
    origin = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    Y, radius, total, third = form("shifted_sums")(moved(rows), moved(origin))
    exact = rows.astype(np.float64) - origin
    squares = (exact * exact).sum(axis=1)
    close(Y, exact, np.abs(exact))
    close(radius, squares, squares)
    close(total, exact.sum(axis=0), np.abs(exact).sum(axis=0))
    close(third, squares @ exact, squares @ np.abs(exact))
    assert total.dtype == third.dtype == torch.float64


@shapes
def test_unit_sums_are_those_of_float64(form, shape):
    rows = rows_of(shape)
    fused = form("unit_sums")
    norms, unit_sum, unit_square_sum = fused(moved(rows))
    norms = norms if fused is linalg.unit_sums else norms.sqrt()
    X = rows.astype(np.float64)
    lengths = np.sqrt((X * X).sum(axis=1))
    U = X / np.where(lengths > 0, lengths, 1)[:, None]
    close(norms, lengths, lengths)
    close(unit_sum, U.sum(axis=0), np.abs(U).sum(axis=0))
    close(unit_square_sum, (U * U).sum(axis=0), (U * U).sum(axis=0))
    assert unit_sum.dtype == unit_square_sum.dtype == torch.float64


def test_sums_take_weights():
    rows = rows_of((300, 20))
    w = np.random.default_rng(0).uniform(0.1, 2, 300).astype(np.float32)
    origin = rows.mean(axis=0)
    _, _, total, third = linalg.shifted_sums(moved(rows), moved(origin), moved(w))
    _, unit_sum, unit_square_sum = linalg.unit_sums(moved(rows), moved(w))
    X, w = rows.astype(np.float64), w.astype(np.float64)
    Y, norms = X - origin, (X * X).sum(axis=1)
    radius = (Y * Y).sum(axis=1)
    U = X / np.sqrt(np.where(norms > 0, norms, 1))[:, None]
    close(total, w @ Y, w @ np.abs(Y))
    close(third, (w * radius) @ Y, (w * radius) @ np.abs(Y))
    close(unit_sum, w @ U, w @ np.abs(U))
    close(unit_square_sum, w**2 @ (U * U), w**2 @ (U * U))


@pytest.mark.parametrize("shifted", [False, True])
@shapes
def test_exponentials_are_summed_as_in_float64(form, shape, shifted):
    random = np.random.default_rng(0)
    scores = (random.standard_normal(shape) * 15).clip(-60, 60).astype(np.float32)
    high = ((scores.max(axis=0) + scores.min(axis=0)) / 2).astype(np.float32) if shifted else None
    sums_of = form("exp_sums")
    found = sums_of(moved(scores.copy()), None if high is None else moved(high))
    exact = scores.astype(np.float64) - (0 if high is None else high)
    # where the difference is rounded to float32, exp of it is off by as much
    rounded = shifted and sums_of is linalg.exp_sums
    slack = EPS / 2 * np.abs(exact).max() if rounded else 0
    for sums, sign in zip(found, (1, -1), strict=True):
        expected = np.exp(sign * exact).sum(axis=0)
        assert sums.dtype == torch.float64
        assert np.allclose(sums.cpu().numpy(), expected, rtol=1e-6 + slack, atol=0)


def test_exponentials_at_the_ends_of_the_range(form):
    scores = np.array([[-200.0, 88.0, 200.0, -87.0, 0.0]], dtype=np.float32)
    plus, minus = (part.cpu().numpy() for part in form("exp_sums")(moved(scores.copy()), None))
    exact = scores[0].astype(np.float64)
    assert plus[2] == minus[0] == np.inf
    assert plus[0] == pytest.approx(0, abs=1e-37)
    assert minus[2] == pytest.approx(0, abs=1e-37)
    assert np.allclose(plus[[1, 3, 4]], np.exp(exact[[1, 3, 4]]), rtol=1e-6, atol=1e-37)
    assert np.allclose(minus[[1, 3, 4]], np.exp(-exact[[1, 3, 4]]), rtol=1e-6, atol=1e-37)


@shapes
def test_a_symmetric_product_is_that_of_float64_and_symmetric(shape):
    rows = rows_of(shape)
    found = kernels.symmetric_product(moved(rows)).cpu().numpy()
    X = rows.astype(np.float64)
    size = np.abs(X).T @ np.abs(X)
    assert (np.abs(found - X.T @ X) <= np.sqrt(shape[0]) * EPS * size).all()
    assert np.array_equal(found, found.T) or shape[1] <= kernels.PANEL


def test_a_symmetric_product_makes_each_product_once():
    from torch.utils.flop_counter import FlopCounterMode

    Y = torch.ones(10, 768)
    with FlopCounterMode(display=False) as counted:
        kernels.symmetric_product(Y)
    assert counted.get_total_flops() == 2 * 10 * 768**2 * 21 // 36


def test_rows_that_no_kernel_reads_are_left_to_the_plain_form():
    X = torch.ones(4, 3)
    assert not kernels.fits(X.double())
    assert not kernels.fits(X.T)
    assert kernels.fits(X) is X.is_cuda


def test_a_kernel_that_fails_is_reported_once_and_left_to_the_plain_form(monkeypatch, caplog):
    def broken(name):
        raise RuntimeError("no compiler")

    kernels._unusable.clear()
    monkeypatch.setattr(kernels, "_compiled", broken)
    monkeypatch.setattr(kernels, "fits", lambda X: True)
    scores = torch.zeros(3, 2)
    try:
        with caplog.at_level(logging.WARNING, kernels.__name__):
            for _ in range(2):
                plus, minus = linalg.exp_sums(scores.clone())
        assert plus.tolist() == minus.tolist() == [3.0, 3.0]
        assert len(caplog.records) == 1
        assert "no compiler" in caplog.text
    finally:
        kernels._unusable.clear()
