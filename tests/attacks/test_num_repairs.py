"""Repairs at the ends of each dtype's range: right, or one clear line; never NaN in silence."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

import isotropy
from isotropy import (
    AllButTheTop,
    Center,
    Chain,
    ClusterRemoval,
    Rotate,
    ScaledCenter,
    Standardize,
    Whiten,
)
from isotropy.errors import InputError
from isotropy.stats import Moments

REPAIRS = {
    "center": Center(),
    "scaled-center": ScaledCenter(),
    "standardize": Standardize(),
    "all-but-the-top": AllButTheTop(1),
    "cluster-removal": ClusterRemoval(2, 1),
    "whiten": Whiten(),
    "whiten by pca": Whiten("pca", n_components=3),
    "normalised": Center(normalize=True),
    "rotate": Rotate(),
    "center, rotate": Chain([Center(), Rotate("hadamard")]),
}
EQUIVARIANT = {"center", "scaled-center", "all-but-the-top", "cluster-removal"}
EQUIVARIANT |= {"rotate", "center, rotate"}
SCALES = [
    *(("float32", k) for k in (-120, -80, -40, 60, 100, 124)),
    *(("float64", k) for k in (-1000, -600, -300, 300, 600, 1000)),
]


def rows(dtype, n_samples=80):
    random = np.random.default_rng(0)
    X = random.standard_normal((n_samples, 6)) * np.linspace(1.5, 0.5, 6) + 0.3
    X[: n_samples // 2, 0] += 6
    return X.astype(dtype)


@pytest.mark.parametrize("name", REPAIRS)
@pytest.mark.parametrize(("dtype", "power"), SCALES)
def test_a_repair_of_rows_times_a_power_of_two_is_the_same_repair(name, dtype, power):
    X, repair = rows(dtype), REPAIRS[name]
    large = np.ldexp(X, power)
    found, expected = repair.fit_transform(large), repair.fit_transform(X)
    if name in EQUIVARIANT:
        found = np.ldexp(found, -power)
    assert np.isfinite(found).all()
    close = 64 * float(np.finfo(dtype).eps) * np.abs(expected).max()
    if name.startswith("whiten"):
        close *= 16
    np.testing.assert_allclose(found, expected, rtol=0, atol=close)


@pytest.mark.parametrize(
    "name", ["center", "scaled-center", "standardize", "whiten", "center, rotate"]
)
@pytest.mark.parametrize(("dtype", "power"), SCALES)
def test_the_way_back_is_right_too(name, dtype, power):
    X = np.ldexp(rows(dtype), power)
    repair = REPAIRS[name].fit(X)
    back = repair.inverse_transform(repair.transform(X))
    close = 256 * float(np.finfo(dtype).eps) * float(np.abs(X).max())
    np.testing.assert_allclose(back, X, rtol=0, atol=close)


@pytest.mark.parametrize("power", [-100, 100])
def test_shift_does_not_depend_on_scale(power):
    X, Y = rows("float32"), 2 * rows("float32", 60)
    expected = Center().fit(X).shift(Y)
    found = Center().fit(np.ldexp(X, power)).shift(np.ldexp(Y, power))
    for name in ("mean_shift", "frechet", "outside", "chance"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("power", [-600, 600])
def test_shift_between_scales_far_apart(power):
    X = rows("float64")
    small, large = sorted([X, np.ldexp(X, power)], key=np.ptp)
    found = Center().fit(small).shift(large)
    assert found.frechet == found.mean_shift == np.inf
    assert found.outside > 0.9
    expected = Center().fit(X).shift(np.zeros_like(X)).frechet
    assert Center().fit(large).shift(small).frechet == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_shift_of_one_row(scale):
    X = rows("float64")
    found, expected = Center().fit(X * scale).shift(X[:1] * scale), Center().fit(X).shift(X[:1])
    assert found.n_samples == 1
    assert found.frechet == pytest.approx(expected.frechet, rel=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_that_no_longer_fit_are_refused(dtype, raises):
    top = float(np.finfo(dtype).max)
    X = np.array([[top, 1.0], [-top, 2.0], [-top, 3.0]]).astype(dtype)
    says = f"Center: the rows must fit {dtype}, got "
    raises(Center().fit(X).transform, X, says=says, error=InputError)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_rows_of_float16_whose_sum_is_none_are_repaired_in_silence(kind, monkeypatch):
    rows = np.full((40, 64), 6e4, np.float16)
    if kind == "torch":
        rows = pytest.importorskip("torch", reason="makes tensors").from_numpy(rows)
    monkeypatch.setattr("isotropy.checks._host", None)  # what looks at every row
    found = Center().fit(np.zeros((2, 64))).transform(rows)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(rows))


def test_the_row_that_no_longer_fits_is_named(raises, monkeypatch):
    monkeypatch.setattr("isotropy.linalg.BLOCK_ELEMENTS", 1)  # blocks of 256 rows
    repair, rows = Center().fit(np.full((3, 2), -1e14, np.float32)), np.zeros((700, 2), np.float32)
    rows[600] = np.finfo(np.float32).max
    rows = rows.astype(np.float32)
    repair.mean_ = np.full(2, -3e38)
    says = "Center: the rows must fit float32, got 6.40282e+38 in row 600. Choose a wider dtype"
    raises(repair.transform, rows, says=says + ", such as float64.", error=InputError)


def test_a_scale_that_cannot_be_undone_is_refused(raises):
    X = np.ldexp(rows("float64"), -1060)
    raises(Whiten().fit, X, says="Whiten: X must have a scale that the repair can undo")


@pytest.mark.parametrize("repair", [Center(), Whiten(), AllButTheTop(2)], ids=str)
def test_files_of_earlier_versions_still_load(repair, folder, monkeypatch):
    """Their sums are about the origin, under the name of products."""
    X = rows("float64") + 3
    repair.fit(X)
    origin = X[0]
    sums = repair.statistic_.about(origin)
    old = {
        "origin": origin, "n_rows": np.array(len(X)), "weight": np.array(float(len(X))),
        "total": sums.total, "products": sums.products, "third": sums.third,
        "fourth": np.array(sums.fourth), "resolution": np.array(2.0**-52),
    }  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(Moments, "state", lambda self: old)
        repair.save("old.safetensors")
    assert "statistic.products" in load_file("old.safetensors")
    loaded = isotropy.load("old.safetensors")
    more = rows("float64")[::-1] * 2
    np.testing.assert_allclose(loaded.transform(X), repair.transform(X), rtol=1e-12)
    repair.partial_fit(more)
    loaded.partial_fit(more)
    np.testing.assert_allclose(loaded.transform(X), repair.transform(X), rtol=1e-9, atol=1e-9)
