"""What every statistic of isotropy.stats promises, found automatically."""

import inspect

import numpy as np
import pytest

from isotropy import stats
from isotropy.stats import Moments, Projections, Statistic
from isotropy.testing import check_statistic
from isotropy.testing.statistics import N_FEATURES, STATISTIC_CHECKS, Checked, rows

RANDOM = np.random.default_rng(4)
SETTINGS = {
    "basis": np.linalg.qr(RANDOM.standard_normal((N_FEATURES, N_FEATURES)))[0],
    "centroids": RANDOM.standard_normal((3, N_FEATURES)) * 2,
    "rotation": np.linalg.qr(RANDOM.standard_normal((N_FEATURES, N_FEATURES)))[0],
    "size": 17,
}
OTHER_SETTINGS = {
    "basis": np.eye(N_FEATURES),
    "centroids": np.zeros((3, N_FEATURES)),
    "size": 18,
    "seed": 1,
    "center": np.ones(N_FEATURES),
    "rotation": np.eye(N_FEATURES),
}
OWN_SETTINGS = {Projections: {"basis": SETTINGS["basis"][:, :2]}}  # all of it leaves no rest
KINDS = [kind for kind in map(stats.__dict__.get, stats.__all__) if kind is not Statistic]

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def fresh(kind, **changed):
    """An empty statistic, its required arguments taken from SETTINGS."""
    parameters = inspect.signature(kind).parameters
    unknown = {p.name for p in parameters.values() if p.default is p.empty} - SETTINGS.keys()
    assert not unknown, f"say in SETTINGS what {kind.__name__} should get as {unknown}"
    given = SETTINGS | OWN_SETTINGS.get(kind, {}) | changed
    return kind(**{k: v for k, v in given.items() if k in parameters})


def others(kind):
    """Statistics of the kind with one setting changed each."""
    settable = [name for name in inspect.signature(kind).parameters if name in OTHER_SETTINGS]
    return [fresh(kind, **{name: OTHER_SETTINGS[name]}) for name in settable]


def test_every_kind_of_statistic_is_found():
    assert {"Moments", "Directions", "LogPartition", "ClusterMoments", "Sample"} <= {
        kind.__name__ for kind in KINDS
    }


@each_kind
@pytest.mark.parametrize("check", STATISTIC_CHECKS, ids=lambda check: check.__name__)
def test_statistic(kind, check):
    check(Checked(fresh(kind), others(kind)))


@each_kind
def test_any_split_far_from_zero_equals_one_pass(kind):
    moved = fresh(kind, centroids=SETTINGS["centroids"] + 1e6)
    check = STATISTIC_CHECKS[0]
    assert check.__name__ == "check_any_split_and_merge_order_equals_one_pass"
    check(Checked(moved, X=rows() + 1e6))


def test_check_statistic_names_what_fails(monkeypatch):
    check_statistic(Moments(), others(Moments))
    monkeypatch.setattr(Moments, "_merge", lambda self, other: None)
    with pytest.raises(AssertionError, match=r"^check_any_split_and_merge_order_equals_one_pass: "):
        check_statistic(Moments())
    with pytest.raises(AssertionError, match="no checks called check_nothing"):
        check_statistic(Moments(), expected_failed_checks={"check_nothing": "a slip"})
