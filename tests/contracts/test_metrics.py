"""What every metric with a record promises, what weights mean, and what measure makes of them."""

import json
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

import isotropy
from isotropy import measure, metrics
from isotropy.errors import InputError, IsotropyWarning, warn
from isotropy.metrics import METRICS
from isotropy.sources import ArraySource
from isotropy.testing import check_metric
from isotropy.testing.metrics import (
    CHANGES,
    METRIC_CHECKS,
    Checked,
    check_rows_that_differ_give_numbers_or_a_warning,
    expect_same,
    parts,
    rows,
    two_groups,
)

ON_REQUEST = [name for name, record in METRICS.items() if record.evaluate is None]
WITH_FUNCTION = [name for name in METRICS if name in metrics.__all__]
WEIGHED = [name for name in WITH_FUNCTION if name not in ("hubness", "antihubs")]
OPTIONS = {"local_isotropy": {"n_clusters": 2, "n_seeds": 2}}
OF_PAIRS = {"check_integer_weights_equal_repeated_rows": "a row is no pair with itself"}
EXCUSED = {
    **dict.fromkeys(("mean_cosine", "rogue_dimensions", "uniformity"), OF_PAIRS),
    "norms": {"check_integer_weights_equal_repeated_rows": "quantiles are of rows: see below"},
    "mean_alignment": {
        "check_rows_that_differ_give_numbers_or_a_warning": "a mean of zero has no direction",
    },
    "local_isotropy": {
        "check_rows_that_differ_give_numbers_or_a_warning": "its mean alignment is of no mean",
        "check_declared_invariances_hold": "of those parts that declare it: see below",
        "check_what_is_not_declared_invariant_changes": "its clusters move with the rows",
        "check_tensors_equal_arrays": "its mean alignment is rounding after centring: see below",
        "check_integer_weights_equal_repeated_rows": "k-means is seeded by rows",
        "check_rows_of_no_weight_do_not_count": "its mean alignment is rounding: see below",
    },
}


def checked(name):
    """The metric by its own function, or by measure where it has none."""
    function = getattr(metrics, name) if name in WITH_FUNCTION else name
    return Checked.of(function, OPTIONS.get(name, {}))


def value(name, X, **options):
    """The metric's value."""
    if name not in WITH_FUNCTION:
        return measure(X, [name], **options).values[name]
    return getattr(metrics, name)(X, **OPTIONS.get(name, {}), **options)


def assert_same(found, expected, tolerance):
    expect_same(parts(found), parts(expected), tolerance)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("check", METRIC_CHECKS, ids=lambda check: check.__name__)
def test_metric(name, check):
    if check.__name__ not in EXCUSED.get(name, {}):
        check(checked(name))


def test_check_metric_names_what_fails(monkeypatch):
    check_metric(metrics.uniformity, OF_PAIRS)
    with pytest.raises(AssertionError, match=r"^check_integer_weights_equal_repeated_rows: "):
        check_metric(metrics.uniformity)
    monkeypatch.setitem(METRICS, "isoscore", METRICS["uniformity"])
    with pytest.raises(AssertionError, match="isoscore must be in METRICS"):
        check_metric(metrics.isoscore)


def test_check_metric_refuses_a_nan_that_no_warning_explains():
    def of(words):
        def some(X, **options):
            if words:
                warn(words)
            return float("nan")

        some.metric = METRICS["isoscore"]
        return Checked.of(some, {})

    check = check_rows_that_differ_give_numbers_or_a_warning
    check(of("isoscore: there is no reason; NaN is given."))
    for words in ("", "another: there is no reason; NaN is given."):
        with pytest.raises(AssertionError, match=r"float32 rows that are plain is NaN, without"):
            check(of(words))


def test_every_public_function_is_a_metric_of_a_paper():
    for_authors = {"METRICS", "Metric", "Statistics", "gather", "metric", "undefined"}
    functions = set(metrics.__all__) - for_authors
    assert functions <= METRICS.keys()
    assert all(getattr(metrics, name).metric is METRICS[name] for name in functions)
    assert all(record.paper for record in METRICS.values())


def parts_of(X, only, **options):
    """Parts of local_isotropy; its mean alignment is rounding, as rows are centred."""
    found = checked("local_isotropy")(X, **options)
    return {k: v for k, v in found.items() if k.split("/")[1] in only - {"mean_alignment"}}


def test_parts_of_local_isotropy_keep_their_promises():
    X = two_groups()
    for change in CHANGES:
        only = {name for name, record in METRICS.items() if change in record.invariant}
        expect_same(parts_of(CHANGES[change](X), only), parts_of(X, only))
    for change in ("rotation", "scale"):
        every = checked("local_isotropy")
        after, before = every(CHANGES[change](rows())), every(rows())
        assert any(not np.allclose(after[k], before[k], rtol=1e-5, atol=1e-5) for k in before)
    w = (np.arange(len(X)) % 3 > 0).astype(float)
    for size in (1.0, 1e4):
        moved = np.where(w[:, None] > 0, X, size * X)
        found = parts_of(moved, METRICS.keys(), sample_weight=w)
        expect_same(found, parts_of(X[w > 0], METRICS.keys()), 1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parts_of_local_isotropy_are_the_same_of_tensors(dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    X = two_groups().astype(dtype)
    found, expected = (parts_of(rows, METRICS.keys()) for rows in (torch.asarray(X), X))
    for key, wanted in expected.items():
        np.testing.assert_allclose(found[key], wanted, rtol=1e-6, atol=1e-9, err_msg=key)


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda X: measure(X, ["isoscore", "beauty"]),
            "measure: metrics must be one of .*'beauty'",
        ),
        (lambda X: metrics.explained_variance(X, 7), r"k must be an integer in \[1, 6\], got 7"),
        (
            lambda X: metrics.hubness(X, 200),
            r"must have more than 200 rows .*, got 200\.",
        ),
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
    geometry = measure(X, ["isoscore", "hubness", "antihubs"], local=2)
    assert geometry.hubness == metrics.hubness(X)
    assert geometry.antihubs == metrics.antihubs(X)
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
    random = np.random.default_rng(0)
    hubs = measure(random.standard_normal((800, 60)) + 2 * random.random((800, 1)), ["hubness"])
    assert hubs.findings == ("hubs",)
    assert f"(hubness {hubs.hubness:.1f})" in hubs.verdict
    assert measure(rows(), ["hubness"]).findings == ()


@pytest.mark.parametrize("name", ["hubness", "antihubs"])
def test_hubs_need_more_rows_than_neighbours_and_no_weights(name):
    with pytest.raises(InputError, match=f"^{name}: X must have more than 10 rows .*, got 9\\."):
        measure(rows(9), [name])
    with pytest.raises(InputError, match=f"^measure: {name} takes no sample_weight"):
        measure(rows(), [name], sample_weight=np.ones(200))
    source = isotropy.open(rows(), sample_weight=np.arange(200.0) + 1)
    with pytest.raises(InputError, match=f"^{name}: X must have no weights"):
        measure(source, [name])


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
