"""Every metric over the range of each dtype, ill-conditioned, far off and in any order of rows.

References are in long double, written out here; the bounds are those of docs/metrics.md. A value
is within its bound, or it is NaN and a warning names the metric.
"""

from __future__ import annotations

import functools
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import isotropy
from isotropy.errors import InputError, IsotropyWarning
from isotropy.metrics import METRICS, hubness, local_isotropy, mean_cosine, singular_values
from isotropy.stats import Moments

from .num_documented import EPS, ERRORS, Case

Long = np.longdouble
SHOWN = [name for name, metric in METRICS.items() if metric.evaluate is not None]
SINGLE = float(np.finfo(np.float32).eps)

pytestmark = pytest.mark.skipif(
    np.finfo(Long).eps > 1e-18, reason="long double is no wider than double here"
)


def rows(n_samples=40, n_features=5, seed=0):
    random = np.random.default_rng(seed)
    skewed = random.standard_normal((n_samples, n_features)) + 0.3 * random.exponential(
        size=(n_samples, n_features)
    )
    return skewed * np.linspace(1.5, 0.5, n_features) + 0.4


def jacobi(Y):
    """Singular values and right singular vectors, of high relative accuracy."""
    Y, V = np.array(Y, dtype=Long), np.eye(Y.shape[1], dtype=Long)
    for _ in range(20):
        for i in range(Y.shape[1]):
            for j in range(i + 1, Y.shape[1]):
                a, b, c = Y[:, i] @ Y[:, i], Y[:, j] @ Y[:, j], Y[:, i] @ Y[:, j]
                angle = np.arctan2(2 * c, a - b) / 2
                turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
                Y[:, [i, j]], V[:, [i, j]] = Y[:, [i, j]] @ turn, V[:, [i, j]] @ turn
    values = np.sqrt((Y * Y).sum(0))
    order = np.argsort(-values)
    return values[order], V[:, order]


def log_sum_exp(scores, w):
    top = scores.max(0)
    return top + np.log((w[:, None] * np.exp(scores - top)).sum(0))


def of_pairs(U, w, function):
    pairs = np.outer(w, w) * (1 - np.eye(len(w), dtype=Long))
    return (pairs * function(U @ U.T)).sum() / pairs.sum()


def quantiles(lengths, w):
    shares = (0.05, 0.25, 0.5, 0.75, 0.95)
    order = np.argsort(lengths)
    if (w == w[0]).all():
        places = [q * (len(lengths) - 1) for q in shares]
        ordered = lengths[order]
        return [
            ordered[int(p)]
            + (p - int(p)) * (ordered[min(int(p) + 1, len(w) - 1)] - ordered[int(p)])
            for p in places
        ]
    weight = np.cumsum(w[order]) / w.sum()
    return [lengths[order][np.flatnonzero(weight >= q)[0]] for q in shares]


def references(X, w=None):
    """(values by name, facts that bounds depend on), in long double from the floats themselves."""
    X = np.asarray(X).astype(Long)
    n, d = X.shape
    w = np.ones(n, dtype=Long) if w is None else np.asarray(w).astype(Long)
    lengths = np.sqrt((X * X).sum(1))
    U = X / lengths[:, None]
    mean = w @ X / w.sum()
    Y = (X - mean) * np.sqrt(w)[:, None]
    variances = jacobi(Y)[0] ** 2 / w.sum()
    singular, vectors = jacobi(X * np.sqrt(w)[:, None])
    square = (variances**2).sum()
    excess = variances.sum() ** 2 - square
    if excess < 1e-6 * square:
        excess = 2 * sum(variances[i] * variances[i + 1 :].sum() for i in range(d))
    found = {"isoscore": excess / square / (d - 1), "participation_ratio": 1 + excess / square}
    count = max(w.sum(), Long(n))
    larger = count / (count - 1)
    fourth = (w * ((X - mean) ** 2).sum(1) ** 2).sum() / w.sum() * larger
    parts = (count - 1) * (count - 2) * square * larger**2, count * fourth
    estimate = parts[0] + (excess + square) * larger**2 - parts[1]
    found["isoscore_unbiased"] = count * (count - 3) * excess * larger**2 / estimate / (d - 1)
    found["explained_variance"] = np.cumsum(variances[:3]) / variances.sum()
    found["singular_values"] = singular
    p = singular / singular.sum()
    found["effective_rank"] = np.exp(-(p * np.log(p)).sum())
    found["mean_cosine"] = of_pairs(U, w, lambda cosines: cosines)
    pairs = w.sum() ** 2 - w @ w
    contributions = ((w @ U) ** 2 - w**2 @ U**2) / pairs
    found["rogue_dimensions"] = contributions / contributions.sum()
    found["uniformity"] = np.log(of_pairs(U, w, lambda cosines: np.exp(4 * cosines - 4)))
    found["mean_norm_ratio"] = np.sqrt(mean @ mean) / (w @ lengths / w.sum())
    found["mean_alignment"] = abs(mean @ vectors[:, 0]) / np.sqrt(mean @ mean)
    found["norms"] = np.array(
        [w @ lengths / w.sum(), lengths.min(), *quantiles(lengths, w), lengths.max()]
    )
    scores = X @ vectors
    logs = np.stack([log_sum_exp(scores, w), log_sum_exp(-scores, w)])
    found["log_partition_isotropy"] = logs.min() - logs.max()
    found["partition_isotropy"] = np.exp(logs.min() - logs.max())
    F = np.exp(logs - logs.max())
    found["partition_dispersion"] = F.std() / F.mean()
    facts = {
        "n_features": d,
        "singular": singular,
        "cosine": found["mean_cosine"],
        "drift": np.sqrt(mean @ mean) / np.sqrt(variances.sum() + mean @ mean),
        "longest": lengths.max(),
        "fourth": (parts[0] + parts[1]) / abs(estimate),
    }
    return found, facts


def measured(X, **options):
    """(values of measure, the warnings' text)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        geometry = isotropy.measure(X, **options)
    words = [str(warning.message) for warning in caught]
    assert all(issubclass(warning.category, IsotropyWarning) for warning in caught), words
    return geometry.values, words


def assert_right(name, values, words, found, facts, dtype_eps, u=EPS, may_be_nan=False):
    got, expected = values[name], found[name]
    got = np.asarray(list(got.values()) if isinstance(got, dict) else got, dtype=Long)
    bound = ERRORS[name][1](Case(u, dtype_eps, expected, **facts))
    missing = np.isnan(got)
    if missing.any():
        assert may_be_nan, f"{name} is NaN"
        assert any(word.startswith(f"{name}: ") for word in words), words
    error = np.abs(got - expected)
    assert (missing | (error <= bound)).all(), (name, got, expected, error / bound)


SCALES = {
    "float16": [2e-5, 1e-3, 1.0, 1e4],
    "float32": [1e-40, 1e-30, 1e-23, 1e-10, 1.0, 1e10, 1e19, 1e30, 5e37],
    "float64": [1e-309, 1e-200, 1e-120, 1.0, 1e60, 1e150, 1e300, 3e307],
}
EACH_SCALE = [(dtype, scale) for dtype, scales in SCALES.items() for scale in scales]


@functools.cache
def at_scale(dtype, scale):
    with np.errstate(all="ignore"):
        X = (rows().astype(Long) * Long(scale)).astype(dtype)
    assert np.isfinite(X).all()
    eps = float(np.finfo(np.float64 if dtype == "float64" else np.float32).eps)
    return *measured(X), *references(X), eps


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize(("dtype", "scale"), EACH_SCALE)
def test_every_metric_is_right_at_any_scale(name, dtype, scale):
    values, words, found, facts, eps = at_scale(dtype, scale)
    nan = {"norms", "singular_values"} if scale == 3e307 else set()
    if scale > 1e9:
        nan |= {"partition_isotropy", "partition_dispersion", "log_partition_isotropy"}
    assert_right(name, values, words, found, facts, eps, may_be_nan=name in nan)


def moved_by(dtype, scale):
    """Rows, and the same rows times a power of two near the scale."""
    X = rows(60).astype(dtype).astype(np.float64)
    power = 2.0 ** (np.frexp(scale)[1])
    return X, (X * power).astype(dtype), power


def keeps_digits(dtype, scale):
    """Whether no digits are lost below the normal range."""
    X, moved, power = moved_by(dtype, scale)
    return np.array_equal(moved.astype(Long) / Long(power), X)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(dtype, scale) for dtype, scale in EACH_SCALE if keeps_digits(dtype, scale)],
)
def test_what_compares_rows_does_not_depend_on_scale(dtype, scale):
    X, moved, _ = moved_by(dtype, scale)
    assert hubness(moved, 5) == pytest.approx(hubness(X, 5), rel=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, expected = local_isotropy(moved, 2, n_seeds=2), local_isotropy(X, 2, n_seeds=2)
    for name in ("isoscore", "mean_cosine", "participation_ratio", "effective_rank", "uniformity"):
        assert found[name]["mean"] == pytest.approx(expected[name]["mean"], rel=1e-4, abs=1e-6)


def conditioned(condition, n_samples=60, n_features=6, seed=1):
    random = np.random.default_rng(seed)
    left = np.linalg.qr(random.standard_normal((n_samples, n_features)))[0]
    right = np.linalg.qr(random.standard_normal((n_features, n_features)))[0]
    return (left * np.geomspace(1, 1 / condition, n_features)) @ right.T * n_samples**0.5


@functools.cache
def at_condition(dtype, condition, offset, large):
    X = (conditioned(condition) + offset).astype(dtype)
    patch = pytest.MonkeyPatch()
    if large:  # as updates of 2^31 multiply-adds and more are summed
        patch.setattr("isotropy.stats.moments.EXACT_PRODUCTS", 0)
        patch.setattr("isotropy.stats.directions.EXACT_FEATURES", 0)
        patch.setattr("isotropy.linalg.BLOCK_ELEMENTS", 0)
    try:
        return *measured(X), *references(X)
    finally:
        patch.undo()


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("condition", [1e1, 1e3, 1e4, 1e6, 1e8, 1e10, 1e12])
@pytest.mark.parametrize("dtype", ["float32", "float32 by the million", "float64"])
def test_every_metric_is_right_at_any_condition(name, dtype, condition, offset):
    dtype, _, large = dtype.partition(" ")
    values, words, found, facts = at_condition(dtype, condition, offset, bool(large))
    u, eps = (SINGLE if large else EPS), float(np.finfo(dtype).eps)
    assert_right(name, values, words, found, facts, eps, u)


def blocks_far_apart(distance, order):
    X = rows(96, 6, seed=2) - 0.4
    X[:16] += distance * np.array([1.0, -0.5, 0.7, 0.2, -1.1, 0.4])
    if order == "last":
        X = X[::-1].copy()
    if order == "mixed":
        X = X[np.random.default_rng(0).permutation(96)]
    return X


@functools.cache
def in_order(distance, order, chunk_rows):
    X = blocks_far_apart(distance, order)
    return *measured(isotropy.open(X, chunk_rows=chunk_rows)), *references(X)


@pytest.mark.parametrize("name", ["isoscore", "participation_ratio", "explained_variance"])
@pytest.mark.parametrize("chunk_rows", [1, 16, 96])
@pytest.mark.parametrize("order", ["first", "last", "mixed"])
@pytest.mark.parametrize("distance", [1e2, 1e4, 1e6, 1e8])
def test_rows_far_from_the_others_cost_no_digits(name, distance, order, chunk_rows):
    values, words, found, facts = in_order(distance, order, chunk_rows)
    assert_right(name, values, words, found, facts, EPS)


@pytest.mark.parametrize("order", ["first", "last", "mixed"])
@pytest.mark.parametrize("distance", [1e6, 1e8])
def test_singular_values_of_rows_far_from_the_others(distance, order):
    values, words, found, facts = in_order(distance, order, 16)
    assert_right("singular_values", values, words, found, facts, EPS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1e-98, 1e-30, 1.0, 1e30, 1e98])
@pytest.mark.parametrize("name", [n for n in SHOWN if n != "norms"])
def test_every_metric_is_right_with_weights_of_any_size(name, size, dtype):
    values, words, found, facts = with_weights(size, dtype)
    assert_right(name, values, words, found, facts, float(np.finfo(dtype).eps))


@functools.cache
def with_weights(size, dtype):
    X = rows().astype(dtype)
    w = size * np.random.default_rng(3).uniform(0.1, 2, len(X))
    return *measured(X, sample_weight=w), *references(X, w)


@pytest.mark.parametrize("size", [1e-300, 1e300, 1e-101, 3e100])
@pytest.mark.parametrize("call", [isotropy.measure, mean_cosine, isotropy.Center().fit])
def test_weights_past_all_use_are_refused(size, call, raises):
    says = f"sample_weight must be 0 or from 1e-100 to 1e+100, got {size:g}. Divide"
    raises(call, rows(), sample_weight=np.full(40, size), says=says, error=InputError)


@pytest.mark.parametrize("n_features", [2, 3, 4, 8, 17])
def test_many_float32_rows_of_a_narrow_cone_have_the_right_mean_cosine(n_features):
    random = np.random.default_rng(0)
    X = (1 + 5e-4 * random.standard_normal((1_000_000 // n_features, n_features))).astype("float32")
    U = X.astype(Long)
    U /= np.linalg.norm(U, axis=1, keepdims=True)
    total = U.sum(0)
    expected = (total @ total - len(U)) / len(U) / (len(U) - 1)
    assert mean_cosine(X) == pytest.approx(
        expected, rel=0, abs=32 * (EPS + SINGLE * (n_features > 16))
    )


@pytest.mark.parametrize("scale", [1e-23, 1e19])
def test_many_float32_rows_at_any_scale(scale, monkeypatch):
    """The float32 path, which small arrays do not take."""
    monkeypatch.setattr("isotropy.stats.moments.EXACT_PRODUCTS", 0)
    monkeypatch.setattr("isotropy.stats.directions.EXACT_FEATURES", 0)
    monkeypatch.setattr("isotropy.linalg.BLOCK_ELEMENTS", 256)
    X = (rows(3000, 6) * scale).astype(np.float32)
    values, words = measured(X, metrics=["isoscore", "mean_cosine", "singular_values", "norms"])
    Y = X.astype(np.float64) / scale
    expected = isotropy.measure(Y, ["isoscore", "mean_cosine", "singular_values", "norms"])
    for name in ("isoscore", "mean_cosine"):
        assert values[name] == pytest.approx(getattr(expected, name), rel=1e-4)
    np.testing.assert_allclose(
        values["singular_values"] / scale, expected.singular_values, rtol=1e-4
    )
    assert values["norms"]["mean"] / scale == pytest.approx(expected.norms["mean"], rel=1e-5)
    assert not words


@pytest.mark.parametrize("sizes", [(1e-30, 1.0), (1.0, 1e-30), (1e30, 1e-30), (1e-200, 1e200)])
def test_parts_of_different_scales_merge_in_any_order(sizes):
    parts = [rows(30) * size for size in sizes]
    larger = int(sizes[1] > sizes[0])
    for order in ((0, 1), (1, 0)):
        merged = Moments().update(parts[order[0]]).merge(Moments().update(parts[order[1]]))
        both = Moments().update(np.concatenate([parts[i] for i in order]))
        for found in (merged, both):
            unit = found.at_unit_scale
            small = np.zeros((30, 5))
            stacked = np.concatenate([rows(30), small]) * sizes[larger]
            alone = Moments().update(stacked).over(found.exponent)
            np.testing.assert_allclose(unit.scatter, alone.scatter, rtol=1e-10)


def test_the_order_of_merging_does_not_matter():
    X = blocks_far_apart(1e8, "first")
    parts = [Moments().update(X[a:b]) for a, b in pairwise(range(0, 97, 8))]
    forward, backward = Moments(), Moments()
    for part in parts:
        forward.merge(part)
    for part in reversed(parts):
        backward.merge(part)
    size = np.abs(forward.scatter).max()
    np.testing.assert_allclose(forward.scatter, backward.scatter, rtol=0, atol=16 * EPS * size)


@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rank_deficient_rows_have_zeros_and_no_warning(rank, dtype):
    X = np.round(rows(50, rank) * 16) / 16  # products of small integers are exact
    X = (X @ np.round(4 * rows(rank, 6))).astype(dtype)
    found = singular_values(X)
    assert (found[rank:] == 0).all()
    assert (found[:rank] > 1e-3 * found[0]).all()


def test_the_documented_errors_are_in_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    for name, (words, _) in ERRORS.items():
        assert f"| `{name}` | {words} |" in page
    assert set(ERRORS) == set(SHOWN)
