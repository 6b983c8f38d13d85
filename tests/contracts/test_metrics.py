"""What every metric with a record promises, what weights mean, and what measure makes of them."""

import json
import warnings
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import scipy.sparse

from isotropy import measure, metrics
from isotropy.errors import InputError, InputTypeError, IsotropyWarning
from isotropy.metrics import METRICS
from isotropy.sources import ArraySource

ON_REQUEST = [name for name, record in METRICS.items() if record.evaluate is None]
WITH_FUNCTION = [name for name in METRICS if name in metrics.__all__]
WEIGHED = [name for name in WITH_FUNCTION if name != "hubness"]
PAIRWISE = {"mean_cosine", "rogue_dimensions", "uniformity"}  # a row is no pair with itself
OPTIONS = {"local_isotropy": {"n_clusters": 2, "n_seeds": 2}}

each_metric = pytest.mark.parametrize("name", METRICS)
each_function = pytest.mark.parametrize("name", WITH_FUNCTION)
each_weighed = pytest.mark.parametrize("name", WEIGHED)


def rows(n_samples=200, n_features=6, seed=0):
    random = np.random.default_rng(seed)
    scales = np.linspace(1.6, 0.6, n_features)
    return random.standard_normal((n_samples, n_features)) * scales + 0.4


def two_groups():
    X = rows()
    X[:90] += [12.0, -8, 0, 5, 0, 3]
    return X


def value(name, X, **options):
    """The metric's value by its own function, or from measure where it has none."""
    if name not in WITH_FUNCTION:
        return measure(X, [name], **options).values[name]
    return getattr(metrics, name)(X, **OPTIONS.get(name, {}), **options)


def flat(found, prefix=""):
    """A metric's value as {name of part: array}."""
    if not isinstance(found, dict):
        return {prefix: np.atleast_1d(np.asarray(found, dtype=float))}
    parts = {}
    for key, part in found.items():
        parts |= flat(part, f"{prefix}/{key}")
    return parts


def assert_same(found, expected, rel=1e-6, only=None):
    found, expected = flat(found), flat(expected)
    assert found.keys() == expected.keys()
    for key, wanted in expected.items():
        if only is None or key.split("/")[1] in only:
            scale = max(np.abs(wanted[np.isfinite(wanted)]).max(initial=0), 1e-3)
            np.testing.assert_allclose(found[key], wanted, rtol=0, atol=rel * scale, err_msg=key)


def differs(found, expected, rel=1e-5):
    found, expected = flat(found), flat(expected)
    return any(not np.allclose(found[k], expected[k], rtol=rel, atol=rel) for k in expected)


def rotation(n_features=6):
    return np.linalg.qr(np.random.default_rng(8).standard_normal((n_features, n_features)))[0]


CHANGES = {
    "rotation": lambda X: X @ rotation(),
    "scale": lambda X: 2.7 * X,
    "translation": lambda X: X + np.array([3.0, -4, 5, 2, 0, 1]),
}


def parts_with(name, change):
    """Parts of local_isotropy that declare the invariance; its mean is rounding after centring."""
    if name != "local_isotropy":
        return None
    return {n for n, r in METRICS.items() if change in r.invariant} - {"mean_alignment"}


@each_metric
def test_record_says_what_the_metric_is(name):
    record = METRICS[name]
    assert record.name == name
    assert record.summary
    assert record.paper
    assert record.equation
    assert record.better in ("higher", "lower", "nearer zero", "neither")
    assert record.invariant <= CHANGES.keys()
    low, high = record.range
    assert low < high


def test_every_public_function_is_a_metric():
    tools = {"METRICS", "Metric", "Statistics", "gather", "metric"}
    functions = set(metrics.__all__) - tools
    assert functions <= METRICS.keys()
    assert all(getattr(metrics, name).metric is METRICS[name] for name in functions)
    assert all(getattr(metrics, name).__doc__ for name in functions)


RANGES = {
    "plain": rows,
    "far": lambda: rows() + 1e4,
    "wide": lambda: rows(40, 60, seed=2),
    "line": lambda: np.outer(np.linspace(1, 2, 50), [1.0, 2, -1, 0.3]),
    "symmetric": lambda: np.concatenate([rows(), -rows()]),
    "equal": lambda: np.tile([1.3, 2.1, -0.7], (50, 1)),
}


@each_metric
@pytest.mark.parametrize("data", RANGES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_value_lies_within_the_declared_range(name, data, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = flat(value(name, RANGES[data]().astype(dtype)))
    low, high = METRICS[name].range
    for key, part in found.items():
        part = part[~np.isnan(part)]
        assert (part >= low - 1e-12).all(), (key, part)
        assert (part <= high + 1e-12).all(), (key, part)


@pytest.mark.parametrize(
    ("name", "change"), [(n, c) for n, r in METRICS.items() for c in sorted(r.invariant)]
)
def test_declared_invariance_holds(name, change):
    X = two_groups()
    expected = value(name, X)
    assert_same(value(name, CHANGES[change](X)), expected, only=parts_with(name, change))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (n, c)
        for n, r in METRICS.items()
        for c in sorted(CHANGES.keys() - r.invariant)
        if (n, c) != ("local_isotropy", "translation")  # its clusters move with the rows
    ],
)
def test_what_is_not_declared_invariant_changes(name, change):
    X = rows()
    assert differs(value(name, CHANGES[change](X)), value(name, X))


@each_metric
def test_same_rows_give_the_same_value_twice(name):
    X = two_groups()
    first, second = flat(value(name, X)), flat(value(name, X))
    assert all(np.array_equal(first[key], second[key], equal_nan=True) for key in first)


@each_metric
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torch_tensors_equal_numpy_arrays(name, dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    X = two_groups().astype(dtype)
    found, expected = flat(value(name, torch.asarray(X))), flat(value(name, X))
    for key, wanted in expected.items():
        if "mean_alignment" not in key:
            np.testing.assert_allclose(found[key], wanted, rtol=1e-6, atol=1e-9, err_msg=key)


@each_function
def test_rows_are_not_modified(name):
    X = two_groups()
    X.flags.writeable = False
    value(name, X)
    np.testing.assert_array_equal(X, two_groups())


@pytest.mark.parametrize("name", sorted(set(WEIGHED) - PAIRWISE - {"local_isotropy", "norms"}))
def test_integer_weights_equal_repeated_rows(name):
    X, w = rows(60), np.random.default_rng(1).integers(0, 4, 60)
    assert_same(value(name, X, sample_weight=w), value(name, np.repeat(X, w, axis=0)), 1e-9)


def test_integer_weights_equal_repeated_rows_for_the_rest():
    X, w = rows(60), np.random.default_rng(1).integers(0, 4, 60)
    repeated = np.repeat(X, w, axis=0)
    unbiased = metrics.isoscore(repeated, unbiased=True)
    assert metrics.isoscore(X, unbiased=True, sample_weight=w) == pytest.approx(unbiased)
    found, lengths = metrics.norms(X, sample_weight=w), np.linalg.norm(repeated, axis=1)
    expected = np.quantile(lengths, [0.05, 0.25, 0.5, 0.75, 0.95], method="inverted_cdf")
    assert [found[k] for k in ("q05", "q25", "q50", "q75", "q95")] == pytest.approx(expected)
    assert found["mean"] == pytest.approx(lengths.mean())
    assert (found["min"], found["max"]) == pytest.approx((lengths.min(), lengths.max()))


def test_weights_of_pairs_are_products():
    X, w = rows(30), np.random.default_rng(1).uniform(0, 2, 30)
    U = X / np.linalg.norm(X, axis=1, keepdims=True)
    pairs = np.outer(w, w) * (1 - np.eye(30))
    cosine = (pairs * (U @ U.T)).sum() / pairs.sum()
    assert metrics.mean_cosine(X, sample_weight=w) == pytest.approx(cosine, rel=1e-9)
    shares = np.einsum("ij,ik,jk->k", pairs, U, U) / pairs.sum() / cosine
    np.testing.assert_allclose(metrics.rogue_dimensions(X, sample_weight=w), shares, rtol=1e-9)
    potential = np.log((pairs * np.exp(4 * (U @ U.T) - 4)).sum() / pairs.sum())
    for exact in (False, True):
        found = metrics.uniformity(X, exact=exact, sample_weight=w)
        assert found == pytest.approx(potential, rel=1e-9)


@each_weighed
@pytest.mark.parametrize("size", [1.0, 1e4], ids=["usual", "far"])
def test_rows_of_no_weight_are_rows_that_are_not_there(name, size):
    X = two_groups()
    w = (np.arange(len(X)) % 3 > 0).astype(float)
    moved = np.where(w[:, None] > 0, X, size * X)
    only = None if name != "local_isotropy" else METRICS.keys() - {"mean_alignment"}
    assert_same(value(name, moved, sample_weight=w), value(name, X[w > 0]), 1e-9, only)


@each_function
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.ones(3), r"{}: X must be two-dimensional\. Expected 2D array, got 1D array instead"),
        (np.ones((0, 3)), r"{}: X must have rows\. Found array with 0 sample"),
        (np.ones((3, 0)), r"{}: X must have features\. Found array with 0 feature"),
        (np.ones((3, 2)) * 1j, r"{}: X must be real\. Complex data not supported"),
        ([["a", "b"]], r"{}: X must be numeric: .* Convert it to floats\."),
        (scipy.sparse.eye(4), r"{}: X must be dense, got a sparse matrix\. .* X\.toarray\(\)"),
        (np.full((20, 3), np.nan), r"{}: X must be finite\. Input X contains NaN .* in 20 rows"),
    ],
    ids=["flat", "no rows", "no features", "complex", "words", "sparse", "NaN"],
)
def test_bad_input_is_refused_in_one_line(name, bad, message):
    with pytest.raises((InputError, InputTypeError), match="^" + message.format(name)) as caught:
        value(name, bad)
    assert "\n" not in str(caught.value)


@each_function
@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (-np.inf, "infinity")])
def test_rows_that_are_not_finite_are_named(name, bad, word):
    X = rows()
    X[[17, 60, 61], [0, 1, 2]] = bad
    message = rf"{name}: .* contains {word} .* in 3 rows \(first: 17\)\. Drop those rows\."
    with pytest.raises(InputError, match=message):
        value(name, X)
    with pytest.raises(InputError, match=r"in 1 row \(first: 17\)"):
        value(name, X[:50])


@each_weighed
def test_bad_weights_are_refused_in_one_line(name):
    for w, message in (
        (np.zeros(200), "sample_weight must have a positive sum, got zeros only"),
        (np.ones(3), r"sample_weight.shape == \(3,\), expected \(200,\)!"),
        (-np.ones(200), "sample_weight must not be negative, got -1"),
        (np.full(200, np.inf), "sample_weight must be finite"),
    ):
        with pytest.raises(InputError, match=f"^{name}: {message}"):
            value(name, rows(), sample_weight=w)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda X: measure(X, ["isoscore", "beauty"]),
            "measure: metrics must be one of .*'beauty'",
        ),
        (lambda X: metrics.explained_variance(X, 7), r"k must be an integer in \[1, 6\], got 7"),
        (lambda X: metrics.hubness(X, 200), r"k must be an integer in \[1, 199\], got 200"),
        (lambda X: metrics.partition_isotropy(X, signs="one"), "'both', 'given', got 'one'"),
        (lambda X: metrics.local_isotropy(X, 2, n_seeds=0), "n_seeds must be an integer of at"),
        (lambda X: measure(X).beauty, "Geometry has no 'beauty'; it has "),
    ],
)
def test_bad_options_are_refused_in_words(call, message):
    with pytest.raises((InputError, AttributeError), match=message):
        call(rows())


class CountedSource(ArraySource):
    """The rows of an array in chunks of 50, with the reads of each chunk counted."""

    def __init__(self, X):
        super().__init__(X)
        self.reads = {}

    def chunks(self):
        whole = super().chunks()[0]
        return [type(whole)(start, 50) for start in range(0, self.n_samples, 50)]

    def read(self, chunk):
        self.reads[chunk.first_row] = self.reads.get(chunk.first_row, 0) + 1
        return super().read(chunk)


@pytest.mark.parametrize("center", [False, True])
def test_measure_reads_the_rows_at_most_twice(center):
    source = CountedSource(rows())
    in_chunks = measure(source, center=center)
    assert source.reads == dict.fromkeys((0, 50, 100, 150), 2)
    assert_same(dict(in_chunks.values), dict(measure(rows(), center=center).values), 1e-9)
    once = CountedSource(rows())
    measure(once, ["isoscore", "mean_cosine", "uniformity"])
    assert set(once.reads.values()) == {1}


@pytest.mark.parametrize("weight", [None, np.arange(200) % 3], ids=["plain", "weighted"])
def test_measure_equals_the_single_metrics(weight):
    X = rows()
    geometry = measure(X, sample_weight=weight)
    assert set(geometry.values) == set(METRICS) - set(ON_REQUEST)
    for name in sorted(set(WEIGHED) - set(ON_REQUEST) - {"explained_variance"}):
        assert_same(getattr(geometry, name), value(name, X, sample_weight=weight), 1e-12)
    for k, share in enumerate(geometry.explained_variance, 1):
        assert share == metrics.explained_variance(X, k, sample_weight=weight)
    options = {"center": True, "sample_weight": weight}
    centred = measure(X, **options)
    for name in ("partition_isotropy", "partition_dispersion", "effective_rank", "singular_values"):
        assert_same(getattr(centred, name), value(name, X, **options), 1e-12)


def test_measure_adds_hubness_and_local_isotropy_on_request():
    X = two_groups()
    geometry = measure(X, ["isoscore", "hubness"], local=2)
    assert geometry.hubness == metrics.hubness(X)
    assert_same(geometry.local_isotropy, metrics.local_isotropy(X, 2), 1e-12)
    assert measure(ArraySource(X), ["hubness"]).hubness == geometry.hubness
    assert "hubness" not in measure(X).values


def findings_of(shift=0.0, scales=1.0):
    X = np.random.default_rng(0).standard_normal((2000, 40)) * scales
    return measure(X * np.linspace(1.2, 0.8, 40) + shift)


def test_verdict_names_what_is_wrong_with_its_numbers():
    fine = findings_of()
    assert fine.findings == ()
    assert fine.verdict.startswith("Fine: drift 0.0")
    drifted = findings_of(shift=1.0)
    assert drifted.findings == ("drifted", "coned")
    assert f"{drifted.mean_norm_ratio:.2f}" in drifted.verdict
    assert f"{drifted.mean_cosine:.2f}" in drifted.verdict
    rogue = findings_of(shift=np.where(np.arange(40) == 7, 6.0, 0.0))
    assert "rogue dimensions" in rogue.findings
    assert "1 of 40 (7)" in rogue.verdict
    few = findings_of(scales=np.where(np.arange(40) < 2, 30.0, 1.0))
    assert few.findings == ("few directions",)
    assert "evidence" in few.verdict
    assert few.verdict in str(few)


def test_geometry_is_frozen_and_turns_into_json():
    with pytest.warns(IsotropyWarning):
        free = measure(10 * np.linalg.qr(rows() - rows().mean(0))[0])
    assert free.partition_isotropy_range is not None
    for geometry in (free, measure(two_groups(), center=True, local=2)):
        plain = json.loads(json.dumps(geometry.to_dict()))
        assert plain["isoscore"] == geometry.isoscore
        assert plain["findings"] == list(geometry.findings)
        assert set(geometry.values) <= plain.keys()
        assert all(name in str(geometry) for name in geometry.values)
        assert set(geometry.values) <= set(dir(geometry))
        with pytest.raises(FrozenInstanceError):
            geometry.n_samples = 3
        with pytest.raises(TypeError):
            geometry.values["isoscore"] = 1.0
