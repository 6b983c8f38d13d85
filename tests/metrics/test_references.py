"""Every metric against its formula written out, and against the papers' own code."""

import importlib
import re
import warnings

import numpy as np
import pytest

from isotropy import measure, metrics
from isotropy.errors import InputError, IsotropyWarning
from isotropy.metrics.base import gather
from isotropy.stats import LogPartition, Sample

from . import references

DATASETS = references.datasets()
DTYPES = {"float64": (np.float64, 1e-9), "float32": (np.float32, 1e-5)}
PLAIN = [
    ("isoscore", {}),
    ("participation_ratio", {}),
    ("explained_variance", {}),
    ("explained_variance", {"k": 3}),
    ("explained_variance", {"k": 8}),
    ("explained_variance", {"k": 1, "center": False}),
    ("explained_variance", {"k": 3, "center": False}),
    ("effective_rank", {}),
    ("effective_rank", {"center": True}),
    ("mean_norm_ratio", {}),
    ("mean_alignment", {}),
    ("partition_isotropy", {"center": True}),
    ("partition_dispersion", {}),
    ("partition_dispersion", {"center": True}),
]

each_dataset = pytest.mark.parametrize("data", DATASETS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def rows_of(data, dtype):
    """(rows as the metric gets them, the same numbers in float64, tolerance)."""
    kind, tolerance = DTYPES[dtype]
    X = DATASETS[data].astype(kind)
    return X, X.astype(np.float64), tolerance


def drifted_rows(n_samples=300, n_features=6, seed=3):
    random = np.random.default_rng(seed)
    return random.standard_normal((n_samples, n_features)) * np.linspace(2, 0.5, n_features) + 0.7


def whitened_rows(n_samples=500, n_features=6):
    U = np.linalg.svd(references.centred(drifted_rows(n_samples, n_features)), full_matrices=False)
    return U[0] * np.sqrt(n_samples - 1)


@each_dtype
@each_dataset
@pytest.mark.parametrize(("name", "options"), PLAIN)
def test_metric_equals_its_formula(name, options, data, dtype):
    X, exact, tolerance = rows_of(data, dtype)
    expected = getattr(references, name)(exact, **options)
    assert getattr(metrics, name)(X, **options) == pytest.approx(expected, rel=tolerance)


@each_dtype
@each_dataset
@pytest.mark.parametrize("center", [False, True])
def test_singular_values_equal_those_of_the_rows(center, data, dtype):
    X, exact, tolerance = rows_of(data, dtype)
    expected = references.singular_values(exact, center)
    found = metrics.singular_values(X, center=center)
    assert found.shape == (min(X.shape),)
    # documented: those that rounding of X'X would hide are read from the rows
    rounding = 1e-14 * X.shape[1] * references.singular_values(exact)[0]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=rounding)


@each_dtype
@each_dataset
def test_mean_cosine_and_shares_equal_the_mean_over_all_pairs(data, dtype):
    X, exact, tolerance = rows_of(data, dtype)
    scale = 1.0 if dtype == "float32" else abs(references.mean_cosine(exact))
    cosine = references.mean_cosine(exact)
    assert metrics.mean_cosine(X) == pytest.approx(cosine, rel=0, abs=tolerance * scale)
    shares, found = references.rogue_dimensions(exact), metrics.rogue_dimensions(X)
    np.testing.assert_allclose(found, shares, rtol=0, atol=tolerance * abs(shares).max())
    assert found.sum() == pytest.approx(1)


@each_dtype
@each_dataset
@pytest.mark.parametrize("exact_pairs", [False, True])
def test_uniformity_equals_the_mean_over_all_pairs(exact_pairs, data, dtype):
    X, exact, tolerance = rows_of(data, dtype)
    # rows shifted by 1e6 score -3e-12, which no cosine resolves: absolute there
    close = {"abs": 1e-9} if data == "shifted" else {"rel": tolerance}
    found = metrics.uniformity(X, exact=exact_pairs)
    assert found == pytest.approx(references.uniformity(exact), **close)


@each_dtype
@each_dataset
@pytest.mark.parametrize("center", [False, True])
def test_log_partition_isotropy_equals_explicit_sums(center, data, dtype):
    X, exact, tolerance = rows_of(data, dtype)
    expected = references.log_partition_isotropy(exact, center)
    found = metrics.partition_isotropy(X, log=True, center=center)
    assert found == pytest.approx(expected, rel=0, abs=tolerance * max(1, abs(expected)))
    if data != "shifted":
        assert metrics.partition_isotropy(X, center=center) == pytest.approx(
            references.partition_isotropy(exact, center), rel=tolerance
        )


def test_partition_isotropy_far_from_the_origin_underflows_to_zero_in_silence():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metrics.partition_isotropy(DATASETS["shifted"]) == 0.0
        assert measure(DATASETS["shifted"]).partition_isotropy == 0.0


@each_dtype
@each_dataset
@pytest.mark.parametrize("center", [False, True])
def test_given_signs_equal_explicit_sums_along_the_basis_found(center, data, dtype):
    X, exact, tolerance = rows_of(data, dtype)
    values, basis = gather(X, {"moments"}, center=center).gram
    Y = references.centred(exact) if center else exact
    np.testing.assert_allclose(basis.T @ basis, np.eye(len(basis)), atol=1e-10)
    np.testing.assert_allclose(Y.T @ (Y @ basis), basis * values, atol=1e-9 * values[0])
    plus, minus = references.log_partition(Y, basis)
    found = metrics.partition_isotropy(X, log=True, signs="given", center=center)
    close = tolerance * max(1, abs(plus.min() - plus.max()))
    assert found == pytest.approx(plus.min() - plus.max(), rel=0, abs=close)
    if data == "shifted" and not center:
        return  # a float32 step of a score of 1e6 moves the F of every other direction by 6 %
    assert metrics.partition_dispersion(X, signs="given", center=center) == pytest.approx(
        references.dispersion(plus), rel=tolerance
    )
    state = LogPartition(basis, gather(X, {"moments"}).mean if center else None).update(X)
    for logs, expected in ((state.log_plus, plus), (state.log_minus, minus)):
        np.testing.assert_allclose(logs, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("length", "log10"), [(100, -87), (230, -200), (250, -217)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_partition_isotropy_is_right_where_the_value_underflows(length, log10, dtype):
    random = np.random.default_rng(5)
    X = random.standard_normal((400, 12)) * np.linspace(2, 1, 12)
    X[:, 0] += 100
    X = (X * (length / np.linalg.norm(X, axis=1, keepdims=True))).astype(dtype)
    expected = references.log_partition_isotropy(X.astype(np.float64))
    found = metrics.partition_isotropy(X, log=True)
    assert found == pytest.approx(expected, rel=1e-5 if dtype is np.float32 else 1e-9)
    assert found / np.log(10) == pytest.approx(log10, abs=2)
    assert measure(X).log_partition_isotropy == found


@pytest.mark.parametrize("signs", ["both", "given"])
def test_partition_values_agree_with_each_other(signs):
    X = drifted_rows()
    value = metrics.partition_isotropy(X, signs=signs)
    assert value == pytest.approx(np.exp(metrics.partition_isotropy(X, log=True, signs=signs)))
    assert metrics.partition_dispersion(X, signs=signs) <= (1 / value - 1) / 2


def test_repeated_eigenvalues_warn_and_give_the_range():
    X = whitened_rows()
    with pytest.warns(IsotropyWarning, match="eigenvalues of X'X repeat") as caught:
        value = metrics.partition_isotropy(X)
    text = str(caught[0].message)
    assert "\n" not in text
    own, low, high, n_bases = map(
        float, re.search(r"I is (\S+) in .* (\S+) to (\S+) over (\d+) seeded", text).groups()
    )
    assert own == pytest.approx(np.log10(value), rel=1e-2)
    assert low < high <= 0
    assert n_bases == 8
    with pytest.warns(IsotropyWarning, match="^measure: eigenvalues"):
        geometry = measure(X)
    assert np.log10(geometry.partition_isotropy_range) == pytest.approx([low, high], rel=1e-2)
    assert "depends on the basis" in str(geometry)


def test_range_over_bases_covers_what_random_bases_give():
    X = whitened_rows()
    with pytest.warns(IsotropyWarning):
        low, high = measure(X).partition_isotropy_range
    random = np.random.default_rng(11)
    bases = [np.linalg.qr(random.standard_normal((6, 6)))[0] for _ in range(50)]
    logs = [references.log_partition(X, basis) for basis in bases]
    values = [np.exp(log.min() - log.max()) for log in logs]
    assert min(values) <= high
    assert max(values) >= low
    assert min(values) * 0.9 <= low <= high <= max(values) * 1.1


@each_dataset
def test_isoscore_agrees_with_the_published_package(data):
    pytest.importorskip("torch", reason="IsoScore 2.0.1 needs torch")
    published = pytest.importorskip("IsoScore.IsoScore", reason="IsoScore 2.0.1 is not installed")
    X = DATASETS[data]
    assert metrics.isoscore(X) == pytest.approx(float(published.IsoScore(X)), abs=1e-6)


@pytest.mark.parametrize("n_samples", [4, 5, 6, 7])
def test_unbiased_isoscore_equals_averages_over_four_different_rows(n_samples):
    X = np.random.default_rng(n_samples).exponential(size=(n_samples, 3)) * [3, 2, 1] + 10
    expected = references.isoscore_unbiased(X)
    assert metrics.isoscore(X, unbiased=True) == pytest.approx(expected, rel=1e-9)
    assert measure(X).isoscore_unbiased == pytest.approx(expected, rel=1e-9)
    assert references.isoscore_unbiased_by_sums(X) == pytest.approx(expected, rel=1e-9)


@each_dtype
@each_dataset
def test_unbiased_isoscore_equals_its_formula(data, dtype):
    X, exact, tolerance = rows_of(data, dtype)
    expected = references.isoscore_unbiased_by_sums(exact)
    assert metrics.isoscore(X, unbiased=True) == pytest.approx(expected, rel=tolerance)


def test_unbiased_isoscore_has_little_bias_on_skewed_rows():
    random = np.random.default_rng(2)
    scales = np.linspace(2, 0.5, 30)
    truth = ((scales**2).sum() ** 2 / (scales**4).sum() - 1) / 29
    draws = [random.exponential(size=(25, 30)) * scales for _ in range(400)]
    plain = np.mean([metrics.isoscore(X) for X in draws])
    unbiased = np.array([metrics.isoscore(X, unbiased=True) for X in draws])
    assert plain < truth - 0.2
    assert abs(unbiased.mean() - truth) < 0.04  # what is left is the ratio's own


def test_unbiased_isoscore_can_leave_its_range_and_needs_four_rows():
    random = np.random.default_rng(0)
    scores = [metrics.isoscore(random.standard_normal((4, 5)), unbiased=True) for _ in range(50)]
    assert min(scores) < 0 or max(scores) > 1
    for n_samples in (2, 3):
        with pytest.raises(InputError, match=f"at least 4 rows for unbiased=True, got {n_samples}"):
            metrics.isoscore(random.standard_normal((n_samples, 5)), unbiased=True)


@each_dtype
@each_dataset
def test_norms_equal_sorted_lengths(data, dtype):
    X, exact, tolerance = rows_of(data, dtype)
    found = metrics.norms(X)
    assert found == pytest.approx(references.norms(exact), rel=tolerance)
    assert list(found) == ["mean", "min", *references.QUANTILES, "max"]


def test_norm_quantiles_of_many_rows_are_those_of_a_seeded_sample():
    X = drifted_rows(20_000)
    found, lengths = metrics.norms(X), np.linalg.norm(X, axis=1)
    assert (found["min"], found["max"]) == pytest.approx((lengths.min(), lengths.max()))
    assert found["mean"] == pytest.approx(lengths.mean())
    for name, q in references.QUANTILES.items():
        assert (lengths < found[name]).mean() == pytest.approx(q, abs=0.02)
    assert found != metrics.norms(X, random_state=1)


def test_sampled_uniformity_is_near_the_exact_one():
    X = drifted_rows(6000)
    sampled, exact = metrics.uniformity(X), metrics.uniformity(X, exact=True)
    assert sampled == pytest.approx(exact, abs=0.05)
    assert sampled != exact
    assert sampled != metrics.uniformity(X, random_state=1)
    U = references.units(X)
    potential = np.exp(4 * (U @ U.T) - 4).sum() - len(U)
    assert exact == pytest.approx(np.log(potential / len(U) / (len(U) - 1)), rel=1e-9)
    assert metrics.uniformity(X.astype(np.float32), exact=True) == pytest.approx(exact, rel=1e-5)
    few = metrics.uniformity(X[:5000])  # the same pairs, in the order of the sample's keys
    assert few == pytest.approx(metrics.uniformity(X[:5000], exact=True), rel=1e-12)


@each_dtype
@pytest.mark.parametrize("data", sorted(set(DATASETS) - {"shifted", "duplicate rows"}))
def test_hubness_equals_counted_neighbours(data, dtype):
    X, exact, tolerance = rows_of(data, dtype)
    for k in (1, 3, 5):
        expected = references.hubness(exact, k)
        assert metrics.hubness(X, k) == pytest.approx(expected, rel=tolerance)
        assert metrics.hubness(X, k, exact=True) == pytest.approx(expected, rel=tolerance)
        share = (references.occurrences(exact, k) == 0).mean()
        assert metrics.antihubs(X, k) == metrics.antihubs(X, k, exact=True) == share


def test_hubness_of_twins_counts_pairs():
    X = DATASETS["duplicate rows"]
    assert metrics.hubness(X, 5) == pytest.approx(references.hubness(X, 5))
    assert np.isnan(metrics.hubness(X, 1))  # everyone's nearest is the twin


def test_hubness_in_blocks_equals_one_block(monkeypatch):
    X = drifted_rows()
    whole = metrics.hubness(X)
    module = importlib.import_module("isotropy.metrics.hubs")
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 7 * len(X))
    assert metrics.hubness(X) == whole


def test_hubness_on_an_arc_is_counted_by_hand():
    for degrees, k, counts in (
        ([0, 10, 21, 33], 1, [1, 2, 1, 0]),
        ([-3, 0, 1, 5], 1, [0, 2, 2, 0]),
        ([0, 10, 21, 33, 90], 2, [1, 3, 4, 2, 0]),
    ):
        angles, deviations = np.deg2rad(degrees), np.array(counts) - k
        X = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        skewness = (deviations**3).mean() / (deviations**2).mean() ** 1.5
        assert metrics.hubness(X, k) == pytest.approx(skewness, abs=1e-12)
        assert metrics.antihubs(X, k) == counts.count(0) / len(counts)


def test_hubness_of_a_star_is_that_of_its_centre():
    n = 20
    X = np.concatenate([np.ones((1, n)), np.eye(n)])  # N_1 is n, one of the others 1, the rest 0
    mean = (n + 1) / (n + 1)
    moments = [((n - mean) ** p + (n - 1) * (0 - mean) ** p) / (n + 1) for p in (2, 3)]
    assert metrics.hubness(X, 1) == pytest.approx(moments[1] / moments[0] ** 1.5, rel=1e-12)
    assert metrics.antihubs(X, 1) == pytest.approx((n - 1) / (n + 1))


def test_hubness_of_many_rows_is_that_of_the_seeded_sample():
    random = np.random.default_rng(3)
    X = random.standard_normal((5400, 20)) + 2 * random.random((5400, 1))
    drawn = Sample(5000, seed=4).update(X).rows
    for function in (metrics.hubness, metrics.antihubs):
        found = function(X, random_state=4)
        assert found == function(drawn, exact=True)
        assert found != function(X, exact=True)
        assert found != function(X)
    geometry = measure(X, ["hubness", "antihubs"], random_state=4)
    assert geometry.hubness == metrics.hubness(X, random_state=4)
    assert geometry.antihubs == metrics.antihubs(X, random_state=4)
    assert geometry.sampled == ("hubness", "antihubs")
    assert "hubness: of a seeded sample of 5,000 rows" in str(geometry)


def local_formulas(Y):
    """What local_isotropy gives for rows whose cluster means are already gone."""
    names = ["isoscore", "participation_ratio", "effective_rank", "mean_cosine", "uniformity"]
    names += ["partition_isotropy", "log_partition_isotropy", "partition_dispersion"]
    found = {name: getattr(references, name)(Y) for name in names}
    found["singular_values"] = references.singular_values(Y).tolist()
    found["explained_variance"] = [references.explained_variance(Y, k) for k in (1, 2, 3)]
    found["rogue_dimensions"] = references.rogue_dimensions(Y).tolist()
    return found | {"mean_norm_ratio": 0.0}


def two_clusters():
    X = drifted_rows(100)
    X[:40] += 60 * np.array([1, -1, 1, 0, 0, 1])
    Y = np.concatenate([references.centred(X[:40]), references.centred(X[40:])])
    return X, Y


@pytest.mark.parametrize("n_clusters", [1, 2])
def test_local_isotropy_is_every_metric_after_centring_clusters(n_clusters):
    X, Y = two_clusters()
    Y = references.centred(X) if n_clusters == 1 else Y
    found = metrics.local_isotropy(X, n_clusters, n_seeds=2)
    for name, expected in local_formulas(Y).items():
        assert found[name]["mean"] == pytest.approx(expected, rel=1e-9, abs=1e-9), name
        assert found[name]["std"] == pytest.approx(np.zeros(np.shape(expected)), abs=1e-9), name
    lengths = {name: part["mean"] for name, part in found["norms"].items()}
    assert lengths == pytest.approx(references.norms(Y), rel=1e-9)
    default = {name for name, record in metrics.METRICS.items() if record.evaluate is not None}
    assert set(found) == default
