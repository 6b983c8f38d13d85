"""Repairs that are solved from moments, against other packages and formulas written out."""

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from isotropy import AllButTheTop, Center, ScaledCenter, Standardize, Whiten
from isotropy.errors import IsotropyWarning, NotAffineError
from isotropy.metrics import explained_variance, mean_cosine


@pytest.fixture(scope="module")
def X():
    random = np.random.default_rng(3)
    return random.standard_normal((600, 30)) @ random.standard_normal((30, 30)) + 2


def test_center_subtracts_the_mean(X):
    assert np.allclose(Center().fit_transform(X), X - X.mean(0), atol=1e-12)


def test_center_keeps_the_digits_of_rows_far_away(X):
    far = X.astype(np.float32) + np.float32(1e6)
    expected = far.astype(np.float64) - far.astype(np.float64).mean(0)
    assert np.abs(Center().fit_transform(far) - expected).max() < 0.07  # half a step of the mean


def test_scaled_center_subtracts_the_mean_direction_times_the_norm(X):
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    expected = X - norms * (X / norms).mean(0)
    assert np.allclose(ScaledCenter().fit_transform(X), expected, atol=1e-12)


def test_scaled_center_leaves_zero_rows_out_of_the_mean(X):
    rows = np.vstack([X, np.zeros((50, 30))])
    assert np.allclose(ScaledCenter().fit(rows).direction_, ScaledCenter().fit(X).direction_)


def test_scaled_center_says_where_it_is_affine(X):
    with pytest.raises(NotAffineError, match="On unit rows it subtracts direction_"):
        ScaledCenter().fit(X).affine()


def test_standardize_equals_standard_scaler(X):
    assert np.allclose(
        Standardize().fit_transform(X), StandardScaler().fit_transform(X), atol=1e-12
    )


def test_standardize_turns_a_constant_dimension_into_zero(X):
    rows = X.astype(np.float32)
    rows[:, 4] = 0.1
    assert (Standardize().fit_transform(rows)[:, 4] == 0).all()


@pytest.mark.parametrize("n_components", [1, 3, 29])
def test_all_but_the_top_removes_principal_components(X, n_components):
    pca = PCA(n_components).fit(X)
    centred = X - X.mean(0)
    expected = centred - centred @ pca.components_.T @ pca.components_
    assert np.allclose(AllButTheTop(n_components).fit_transform(X), expected, atol=1e-9)


def test_the_uncentred_form_projects_the_rows_themselves(X):
    pca = PCA(3).fit(X)
    expected = X - X.mean(0) - X @ pca.components_.T @ pca.components_
    repair = AllButTheTop(3, centered=False).fit(X)
    assert np.allclose(repair.transform(X), expected, atol=1e-9)
    A, b = repair.affine()
    assert np.allclose(X @ A.T + b, expected, atol=1e-9)


def test_all_but_the_top_removes_one_direction_in_a_hundred_by_default():
    X = np.random.default_rng(0).standard_normal((2000, 250))
    assert AllButTheTop().fit(X).components_.shape == (3, 250)


def test_the_least_directions_can_be_removed_instead(X):
    _, _, axes = np.linalg.svd(X - X.mean(0), full_matrices=False)
    least = axes[-4:]
    centred = X - X.mean(0)
    expected = centred - centred @ least.T @ least
    assert np.allclose(AllButTheTop(4, side="bottom").fit_transform(X), expected, atol=1e-9)


def test_as_many_components_as_features_leave_one_and_warn(X):
    with pytest.warns(IsotropyWarning, match="n_components=30 would leave nothing of 30 features"):
        repair = AllButTheTop(30).fit(X)
    assert len(repair.components_) == 29


def test_rows_of_low_rank_keep_their_last_direction():
    X = np.outer(np.arange(20.0), np.ones(6))
    assert len(AllButTheTop(3).fit(X).components_) == 0


@pytest.mark.parametrize("method", ["zca", "pca"])
def test_whiten_makes_the_covariance_the_identity(X, method):
    covariance = np.cov(Whiten(method).fit_transform(X).T)
    assert np.abs(covariance - np.eye(30)).max() < 1e-9


def test_zca_is_the_inverse_square_root_of_the_covariance(X):
    values, vectors = np.linalg.eigh(np.cov(X.T))
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    assert np.allclose(Whiten().fit(X).affine()[0], root, atol=1e-9)


def test_half_the_power_is_half_the_way(X):
    values = np.linalg.eigvalsh(np.cov(X.T))
    after = np.linalg.eigvalsh(np.cov(Whiten(power=0.5).fit_transform(X).T))
    assert np.allclose(after, np.sqrt(values), atol=1e-9)


def test_fewer_components_are_the_first_principal_ones(X):
    expected = PCA(5, whiten=True).fit_transform(X)
    assert np.allclose(np.abs(Whiten("pca", n_components=5).fit_transform(X)), np.abs(expected))


def test_whitening_does_not_depend_on_the_threads_of_blas():
    X = np.random.default_rng(0).standard_normal((3000, 384)) @ np.diag(np.linspace(3, 0.1, 384))
    found = []
    for n_threads in (1, 2, 3):
        with threadpool_limits(n_threads, user_api="blas"):
            found.append(Whiten().fit(X))
    assert found[0].shrinkage_ > 0
    for other in found[1:]:
        assert other.shrinkage_ == found[0].shrinkage_
        assert np.array_equal(other.scale_, found[0].scale_)


def test_shrinkage_is_that_of_ledoit_and_wolf():
    X = np.random.default_rng(0).standard_normal((80, 40)) * np.arange(1, 41)
    assert Whiten().fit(X).shrinkage_ == pytest.approx(ledoit_wolf(X)[1], rel=1e-9)


def test_many_rows_are_not_shrunk(X):
    assert Whiten().fit(X).shrinkage_ == 0


@pytest.mark.parametrize("scale", [np.ones(100), np.arange(1, 101) ** -2.0])
def test_few_rows_never_explode_new_ones(scale):
    random = np.random.default_rng(0)
    repair = Whiten().fit(random.standard_normal((50, 100)) * scale)
    new = repair.transform(random.standard_normal((1000, 100)) * scale)
    assert np.linalg.norm(new, axis=1).max() < 5 * np.sqrt(100)


def test_a_dimension_that_never_varied_is_set_to_zero(X):
    rows = X.copy()
    rows[:, 7] = 1.5
    repair = Whiten().fit(rows)
    rows[:, 7] = 100.0
    assert np.abs(repair.transform(rows)[:, 7]).max() < 1e-9


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"method": "both"}, "Whiten: method must be one of 'zca', 'pca', got 'both'."),
        ({"eps": -1}, "Whiten: eps must be a number in"),
        ({"n_components": 31}, r"Whiten: n_components must be an integer in \[1, 30\], got 31."),
        ({"shrinkage": "lots"}, "Whiten: shrinkage must be 'auto' or a number"),
        ({"shrinkage": 2}, "Whiten: shrinkage must be a number in"),
        ({"normalize": "yes"}, "Whiten: normalize must be True or False"),
    ],
)
def test_bad_parameters_get_one_line(X, params, line):
    with pytest.raises(ValueError, match=line):
        Whiten(**params).fit(X)


def test_merging_other_parameters_is_refused(X):
    with pytest.raises(ValueError, match="other must be a AllButTheTop with the same parameters"):
        AllButTheTop(1).fit(X).merge(AllButTheTop(2).fit(X))


def test_repairs_make_the_space_more_even(X):
    drifted = X + 20
    assert mean_cosine(drifted) > 0.5
    assert abs(mean_cosine(Center().fit_transform(drifted))) < 0.01
    assert explained_variance(AllButTheTop(2).fit_transform(X)) < explained_variance(X)


def test_relative_weights_whiten_like_none(X):
    relative = np.full(len(X), 1 / len(X))
    weighted = Whiten().fit(X, sample_weight=relative)
    assert weighted.shrinkage_ == 0
    assert np.allclose(weighted.transform(X), Whiten().fit(X).transform(X), atol=1e-9)
