"""Repairs from moments that were made before, and clusters with fewer directions."""

import numpy as np
import pytest

import isotropy
from isotropy import AllButTheTop, Center, ClusterRemoval, ScaledCenter, Standardize, Whiten
from isotropy.errors import InputError
from isotropy.repairs import Repair
from isotropy.repairs.base import SummedRepair
from isotropy.stats import ClusterMoments, Moments

X = np.random.default_rng(0).standard_normal((500, 12)) * np.arange(1, 13) + np.arange(12)
SOLVED = [
    kind
    for kind in Repair.by_name.values()
    if issubclass(kind, SummedRepair) and kind.statistic is Moments
]


def test_there_are_repairs_that_moments_solve():
    assert {Center, Standardize, AllButTheTop, Whiten} <= set(SOLVED)


@pytest.mark.parametrize("kind", SOLVED)
def test_moments_made_before_fit_as_the_rows_do(kind):
    alone, found = kind().fit(X), kind().fit_statistic(Moments().update(X))
    np.testing.assert_allclose(found.transform(X), alone.transform(X), rtol=1e-6, atol=1e-6)
    assert (found.n_samples_seen_, found.n_features_in_) == (500, 12)


@pytest.mark.parametrize("kind", SOLVED)
def test_moments_of_parts_fit_as_the_whole_does(kind):
    whole = Moments().update(X[:100])
    whole.merge(Moments().update(X[100:]))
    found = kind().fit_statistic(whole).transform(X)
    np.testing.assert_allclose(found, kind().fit(X).transform(X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", SOLVED)
def test_such_a_repair_is_saved_and_knows_its_rows(kind, tmp_path):
    found = kind().fit_statistic(Moments().update(X))
    found.save(tmp_path / "repair")
    loaded = isotropy.load(tmp_path / "repair")
    np.testing.assert_array_equal(loaded.transform(X), found.transform(X))
    for repair in (found, loaded):
        assert repair.shift(X).frechet == pytest.approx(kind().fit(X).shift(X).frechet, abs=1e-9)
        assert repair.shift(X + 50).large


def test_parameters_are_checked():
    with pytest.raises(InputError, match="n_components must be"):
        AllButTheTop(-1).fit_statistic(Moments().update(X))


@pytest.mark.parametrize("method", ["zca", "pca"])
def test_few_components_are_kept_from_moments_too(method):
    alone = Whiten(method, n_components=5).fit(X)
    found = Whiten(method, n_components=5).fit_statistic(Moments().update(X))
    np.testing.assert_allclose(found.transform(X), alone.transform(X), rtol=1e-6, atol=1e-6)
    with pytest.raises(InputError, match=r"n_components must be an integer in \[1, 12\], got 13"):
        Whiten(n_components=13).fit_statistic(Moments().update(X))


def test_parameters_can_be_checked_before_the_fit():
    Whiten(n_components=5)._check_params()
    with pytest.raises(InputError, match="n_components must be an integer of at least 1, got 0"):
        Whiten(n_components=0)._check_params()


@pytest.mark.parametrize(
    ("repair", "statistic", "message"),
    [
        (Center(), Moments(), "statistic must be Moments of some rows, got Moments"),
        (Center(), X, "statistic must be Moments of some rows, got ndarray"),
        (Center(), ClusterMoments(np.zeros((1, 12))), "must be Moments .*, got ClusterMoments"),
        (ScaledCenter(), Moments().update(X), "statistic must be .* of some rows, got Moments"),
    ],
)
def test_what_is_no_statistic_of_the_repair_gets_one_line(repair, statistic, message):
    with pytest.raises(InputError, match=message):
        repair.fit_statistic(statistic)


@pytest.mark.parametrize("side", ["top", "bottom"])
@pytest.mark.parametrize("n_components", [0, 1, 3])
def test_fewer_directions_of_the_same_clusters_equal_a_fit_of_their_own(side, n_components):
    most = ClusterRemoval(3, 5, side=side).fit(X)
    alone = ClusterRemoval(3, n_components, side=side).fit(X)
    assert most.n_clusters_ == alone.n_clusters_ == 3
    found = most.with_components(ClusterRemoval(3, n_components, side=side))
    np.testing.assert_allclose(found.transform(X), alone.transform(X), rtol=1e-6, atol=1e-6)
    assert found.get_params() == alone.get_params()
    np.testing.assert_array_equal(found.n_components_, alone.n_components_)


def test_the_clusters_that_were_asked_stay_as_they_are():
    most = ClusterRemoval(3, 5).fit(X)
    before = most.transform(X)
    most.with_components(ClusterRemoval(3, 1))
    np.testing.assert_array_equal(most.transform(X), before)
    assert most.n_components == 5


def test_clusters_too_small_for_the_most_are_dissolved_for_all():
    rows = np.concatenate([X[:200], X[:6] + 1000])  # six rows far away have no 9 directions
    most = ClusterRemoval(2, 9).fit(rows)
    found = most.with_components(ClusterRemoval(2, 1))
    assert most.n_clusters_ == found.n_clusters_ == 1
    assert ClusterRemoval(2, 1).fit(rows).n_clusters_ == 2
