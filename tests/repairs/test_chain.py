"""Chain: equal to repairs fitted by hand one after another, in one file."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

import isotropy
from isotropy.errors import InputError, NotAffineError
from isotropy.repairs import (
    AllButTheTop,
    Center,
    Chain,
    ClusterRemoval,
    LearnedLayer,
    Origin,
    PerGroup,
    Rotate,
    ScaledCenter,
    Standardize,
    Whiten,
)

CHAINS = [
    Chain([Center(), Rotate()]),
    Chain([Rotate("hadamard")]),
    Chain([Center(), Whiten("pca", n_components=5), Rotate("random")]),
    Chain([AllButTheTop(2), Standardize()], normalize=True),
    Chain([ScaledCenter(normalize=True), Rotate()]),
    Chain([ClusterRemoval(3, 2), Center(), Rotate("random")]),
    Chain([Center(), Chain([Whiten(power=0.5), Rotate()], normalize=True), Center()]),
]
each_chain = pytest.mark.parametrize("repair", CHAINS, ids=str)


@pytest.fixture
def X():
    random = np.random.default_rng(0)
    return random.standard_normal((600, 8)) @ random.standard_normal((8, 8)) + 3


def by_hand(repair, X):
    """The rows after each repair was fitted on those of the one before."""
    for one in repair.repairs:
        X = by_hand(one, X) if isinstance(one, Chain) else clone(one).fit_transform(X)
    return X / np.linalg.norm(X, axis=1, keepdims=True) if repair.normalize else X


@each_chain
def test_it_equals_repairs_fitted_one_after_another(repair, X):
    expected = by_hand(repair, X)
    fitted = clone(repair).fit(X)
    np.testing.assert_allclose(fitted.transform(X), expected, atol=1e-9)
    assert not hasattr(repair, "repairs_")
    assert not any(hasattr(one, "moments_") and one.moments_ for one in repair.repairs)


@each_chain
def test_one_file_holds_all_of_it(repair, X, tmp_path):
    fitted = clone(repair).fit(X)
    fitted.save(tmp_path / "r", note="a note", level="token", origin=Origin(model="m"))
    loaded = isotropy.load(tmp_path / "r")
    assert str(loaded) == str(repair)
    assert (loaded.note_, loaded.level_, loaded.origin_.model) == ("a note", "token", "m")
    np.testing.assert_array_equal(loaded.transform(X), fitted.transform(X))
    assert loaded.shift(X + 1) == fitted.shift(X + 1)
    assert loaded.drift(X + 1) == fitted.drift(X + 1)


@each_chain
def test_steps_give_what_transform_gives(repair, X):
    torch = pytest.importorskip("torch")
    fitted = clone(repair).fit(X)
    found = fitted.as_module().double()(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(found, fitted.transform(X), atol=1e-4 * np.abs(X).max())


def test_affine_repairs_are_one_matrix(X):
    fitted = Chain([Center(), Whiten("pca", n_components=5), Rotate()]).fit(X)
    A, b = fitted.affine()
    assert A.shape == (5, 8)
    np.testing.assert_allclose(X @ A.T + b, fitted.transform(X), atol=1e-9)
    assert [type(step).__name__ for step in fitted.steps()] == ["Subtract", "Multiply"]
    for repairs in ([Center(normalize=True), Rotate()], [Center(), ClusterRemoval(2, 1)]):
        other = Chain(repairs).fit(X)
        assert not other.is_affine
        with pytest.raises(NotAffineError):
            other.affine()


def test_the_inverse_exists_if_every_repair_has_one(X):
    fitted = Chain([Center(), ScaledCenter(), Rotate()]).fit(X)
    np.testing.assert_allclose(fitted.inverse_transform(fitted.transform(X)), X, atol=1e-9)
    assert not hasattr(Chain([Center(), AllButTheTop()]).fit(X), "inverse_transform")
    assert not hasattr(Chain([Center(normalize=True), Rotate()]), "inverse_transform")
    assert not hasattr(Chain([Center()], normalize=True), "inverse_transform")


@each_chain
def test_a_file_is_read_in_chunks_and_nothing_is_kept(repair, X, tmp_path):
    np.save(tmp_path / "x.npy", X.astype(np.float32))
    source = isotropy.open(tmp_path / "x.npy", chunk_rows=70)
    fitted = clone(repair).fit(source, checkpoint=tmp_path / "checkpoint")
    expected = clone(repair).fit(X.astype(np.float32)).transform(X)
    np.testing.assert_allclose(fitted.transform(X), expected, atol=1e-3 * np.abs(expected).max())
    again = clone(repair).fit(source, checkpoint=tmp_path / "checkpoint")
    np.testing.assert_array_equal(again.transform(X), fitted.transform(X))


def test_weights_and_bad_rows_reach_every_repair(X):
    w = np.arange(600.0) % 3
    repeated = np.repeat(X, w.astype(int), axis=0)
    found = Chain([Center(), Standardize()]).fit(X, sample_weight=w).transform(X)
    expected = Chain([Center(), Standardize()]).fit(repeated).transform(X)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    X[3] = np.nan
    fitted = Chain([Center(), Rotate()]).fit(isotropy.open(X, skip_bad_rows=True))
    assert [one.n_samples_seen_ for one in (fitted, *fitted.repairs_)] == [599] * 3


def test_parameters_are_nested_by_name():
    repair = Chain([Center(), Whiten(), Center(normalize=True)])
    found = repair.get_params()
    assert found["whiten__power"] == 1.0
    assert (found["center_1__normalize"], found["center_2__normalize"]) == (False, True)
    repair.set_params(whiten__power=0.5, center_1=Rotate(), normalize=True)
    assert str(repair) == str(
        Chain([Rotate(), Whiten(power=0.5), Center(normalize=True)], normalize=True)
    )
    repair.set_params(repairs=[Rotate(), Rotate()]).set_params(rotate_2__random_state=7)
    assert [one.random_state for one in repair.repairs] == [0, 7]
    with pytest.raises(ValueError, match="Invalid parameter 'whiten'"):
        repair.set_params(whiten__power=1)


def test_clones_share_nothing():
    repair = Chain([Center(), Rotate()])
    other = clone(repair).set_params(rotate__random_state=3)
    assert repair.repairs[1].random_state == 0
    assert other.repairs[1].random_state == 3


def test_a_grid_search_sets_the_parameters_inside(X):
    y = X[:, 0] > 3
    model = make_pipeline(Chain([Center(), Whiten()]), KNeighborsClassifier())
    search = GridSearchCV(model, {"chain__whiten__power": [0.0, 1.0]}, cv=2).fit(X, y)
    assert search.best_params_.keys() == {"chain__whiten__power"}


def test_groups_may_each_have_a_chain(X, tmp_path):
    groups = np.arange(600) % 2
    fitted = PerGroup(Chain([Center(), Rotate()])).fit(X, groups=groups)
    fitted.save(tmp_path / "r")
    found = isotropy.load(tmp_path / "r").transform(X, groups=groups)
    np.testing.assert_array_equal(found, fitted.transform(X, groups=groups))
    expected = Chain([Center(), Rotate()]).fit_transform(X[::2])
    np.testing.assert_allclose(found[::2], expected, atol=1e-9)


def test_names_of_columns_are_those_of_the_last_repair(X):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcdefgh"))
    assert list(Chain([Center(), Rotate()]).fit(frame).get_feature_names_out()) == list("abcdefgh")
    fitted = Chain([Center(), Whiten("pca", n_components=2)]).fit(frame)
    assert list(fitted.get_feature_names_out()) == ["whiten0", "whiten1"]


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_float32_rows_of_any_size_are_repaired(X, scale):
    rows = (X * scale).astype(np.float32)
    found = Chain([Center(), Rotate()]).fit_transform(rows) / scale
    expected = Chain([Center(), Rotate()]).fit_transform(X)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("repairs", "message"),
    [
        ([], r"repairs must be a list of repairs, got \[\]"),
        (Center(), "repairs must be a list of repairs, got Center"),
        (["center"], "repairs must be repairs of rows, got 'center'"),
        ([PerGroup(Center())], "repairs must be repairs of rows, got PerGroup"),
        ([LearnedLayer()], "repairs must be fitted without labels, got LearnedLayer"),
    ],
)
def test_what_is_no_list_of_repairs_is_refused(repairs, message, X):
    with pytest.raises(InputError, match=f"^Chain: {message}"):
        Chain(repairs).fit(X)


def test_a_parameter_that_the_rows_do_not_allow_is_refused(X):
    with pytest.raises(InputError, match=r"^Chain: n_components must be an integer in \[1, 8\]"):
        Chain([Center(), Whiten(n_components=20)]).fit(X)


def test_neighbouring_affine_steps_are_one_matrix(X):
    repairs = [Center(), Whiten(), Center(normalize=True), Rotate(), Standardize()]
    steps = Chain([Chain(repairs), Rotate("random")]).fit(X).steps()
    kinds = [type(step).__name__ for step in steps]
    assert kinds == ["Subtract", "Multiply", "Normalize", "Multiply", "Add"]
    assert [type(step).__name__ for step in Chain([Rotate()]).fit(X).steps()] == ["Multiply"]
