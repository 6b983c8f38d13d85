"""Rotate: orthogonal, seeded, and learned as Gong and Lazebnik wrote it down."""

import numpy as np
import pytest
import scipy.linalg

import isotropy
from isotropy import engines
from isotropy.errors import InputError
from isotropy.repairs import Center, Rotate
from isotropy.repairs.rotate import hadamard

METHODS = ("itq", "random", "hadamard")
each_method = pytest.mark.parametrize("method", METHODS)


def rows(n=3000, d=24, seed=0, dtype=np.float64):
    random = np.random.default_rng(seed)
    spectrum = np.linspace(2, 0.2, d)
    mixing = np.linalg.qr(random.standard_normal((d, d)))[0]
    return (random.standard_t(5, (n, d)) * spectrum @ mixing + 3).astype(dtype)


def objective(X, R, w=None):
    """How long the rotated rows are along their signs: what itq maximises."""
    mean = np.average(X, axis=0, weights=w)
    lengths = np.abs((X - mean) @ R).sum(axis=1)
    return np.average(lengths, weights=w)


def reference(X, R, n_iter, w=None):
    """Iterative quantisation in float64: B = sign(Z R), then R = V U' of B'Z = U S V'."""
    X = np.asarray(X, dtype=np.float64)
    w = np.ones(len(X)) if w is None else w
    Z = X - np.average(X, axis=0, weights=w)
    for _ in range(n_iter):
        B = np.where(Z @ R >= 0, 1.0, -1.0)
        U, _, Vt = np.linalg.svd(B.T @ (w[:, None] * Z))
        R = Vt.T @ U.T
    return R


@each_method
@pytest.mark.parametrize("d", [1, 2, 3, 8, 12, 63, 64, 100])
def test_it_is_orthogonal_for_any_number_of_features(method, d):
    X = rows(200, d)
    repair = Rotate(method).fit(X)
    R = repair.rotation_
    assert R.shape == (d, d)
    np.testing.assert_allclose(R @ R.T, np.eye(d), atol=1e-13 * d)
    np.testing.assert_allclose(repair.transform(X), X @ R, atol=1e-12 * d)
    np.testing.assert_allclose(repair.inverse_transform(X @ R), X, atol=1e-12 * d)


@each_method
def test_cosines_of_centred_rows_are_kept(method):
    X = rows(300)
    Z = Center().fit_transform(X)
    Y = Rotate(method).fit_transform(Z)
    np.testing.assert_allclose(Y @ Y.T, Z @ Z.T, atol=1e-11 * np.abs(Z @ Z.T).max())


@each_method
def test_a_seed_gives_one_rotation_and_another_seed_another(method):
    X = rows(500)
    R = Rotate(method, random_state=3).fit(X).rotation_
    np.testing.assert_array_equal(Rotate(method, random_state=3).fit(X).rotation_, R)
    assert np.abs(Rotate(method, random_state=4).fit(X).rotation_ - R).max() > 0.1


def test_random_is_the_sign_fixed_q_of_normal_numbers():
    Q, R = np.linalg.qr(np.random.default_rng(5).standard_normal((6, 6)))
    found = Rotate("random", random_state=5).fit(rows(50, 6)).rotation_
    np.testing.assert_allclose(found, Q @ np.diag(np.sign(np.diag(R))), atol=1e-14)


def test_random_is_uniform():
    X = rows(10, 4)
    found = np.stack([Rotate("random", random_state=seed).fit(X).rotation_ for seed in range(400)])
    # an entry of a uniform rotation has mean 0, square 1/d and fourth power 3/(d(d+2))
    for power, expected in ((1, 0.0), (2, 1 / 4), (4, 3 / 24)):
        entries = found**power
        error = entries.std(axis=0) / 20
        assert (np.abs(entries.mean(axis=0) - expected) < 5 * error).all()


@pytest.mark.parametrize("width", [1, 2, 64, 512])
def test_hadamard_blocks_are_those_of_scipy(width):
    X = np.random.default_rng(0).standard_normal((5, width))
    expected = X @ scipy.linalg.hadamard(width) / width**0.5
    np.testing.assert_allclose(hadamard(X), expected, atol=1e-13)


@pytest.mark.parametrize("d", [64, 100, 127])
def test_hadamard_spreads_every_axis_over_all_of_them(d):
    found = Rotate("hadamard").fit(rows(20, d)).rotation_ * d**0.5
    assert np.mean(found**4) < 3.3  # 3 for a uniform one, d for the axes themselves
    assert np.abs(found).max() < 6


@pytest.mark.parametrize("n_iter", [1, 5, 50])
def test_itq_is_the_algorithm_of_the_paper(n_iter):
    X = rows()
    start = Rotate("random", random_state=2).fit(X).rotation_
    expected = reference(X, start, n_iter)
    found = Rotate(random_state=2, n_iter=n_iter).fit(X).rotation_
    assert objective(X, found) == pytest.approx(objective(X, expected), rel=1e-6)
    if n_iter == 1:
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert objective(X, found) > objective(X, start)


def test_itq_never_lets_the_objective_fall():
    X = rows(1000)
    found = [objective(X, Rotate(n_iter=n).fit(X).rotation_) for n in range(1, 12)]
    assert (np.diff(found) >= 0).all()


def test_itq_weighs_rows():
    X, w = rows(400, 8), np.random.default_rng(1).integers(0, 4, 400).astype(float)
    found = Rotate(n_iter=4).fit(X, sample_weight=w).rotation_
    expected = reference(X, Rotate("random").fit(X).rotation_, 4, w)
    assert objective(X, found, w) == pytest.approx(objective(X, expected, w), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("chunk_rows", [100, 999, 3000])
def test_itq_streamed_over_chunks_equals_itq_in_memory(chunk_rows, dtype, tmp_path):
    X = rows(dtype=dtype)
    np.save(tmp_path / "x.npy", X)
    whole = objective(X, Rotate().fit(X).rotation_)
    streamed = Rotate().fit(isotropy.open(tmp_path / "x.npy", chunk_rows=chunk_rows))
    assert objective(X, streamed.rotation_) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("name", ["torch", "dask"])
@pytest.mark.parametrize("max_samples", [1000, 100_000])
def test_itq_on_another_engine_equals_itq_on_the_local_one(name, max_samples, tmp_path):
    pytest.importorskip({"torch": "torch", "dask": "distributed"}[name])
    X = rows(dtype=np.float32)
    np.save(tmp_path / "x.npy", X)
    options = {"n_workers": 2} if name == "dask" else {"device": "cpu"}
    engine = engines.named(name, **options)
    repair = Rotate(max_samples=max_samples)
    expected = objective(X, repair.fit(X).rotation_)
    try:
        source = isotropy.open(tmp_path / "x.npy", chunk_rows=500)
        found = repair.fit(source, engine=engine).rotation_
    finally:
        engine.close()
    assert objective(X, found) == pytest.approx(expected, rel=1e-6)


def test_a_sample_is_nearly_as_good_as_all_rows():
    X = rows(20_000, 16, dtype=np.float32)
    start = Rotate("random").fit(X).rotation_
    best = objective(X, reference(X, start, 50))
    found = objective(X, Rotate(max_samples=4000).fit(X).rotation_)
    assert found > 0.99 * best
    assert objective(X, Rotate(n_iter=15).fit(X).rotation_) > 0.99 * best


def test_a_scale_changes_nothing():
    X = rows(300, 8)
    R = Rotate().fit(X).rotation_
    for scale in (2.0**-400, 2.0**400):
        np.testing.assert_allclose(Rotate().fit(scale * X).rotation_, R, atol=1e-9)


@pytest.mark.parametrize("X", [np.ones((5, 4)), np.zeros((5, 4)), np.eye(4)[:2]])
def test_rows_without_variance_in_some_direction_give_a_rotation(X):
    R = Rotate().fit(X).rotation_
    np.testing.assert_allclose(R @ R.T, np.eye(4), atol=1e-12)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"method": "pca"}, "method must be one of"),
        ({"random_state": -1}, "random_state must be"),
        ({"n_iter": 0}, "n_iter must be"),
        ({"max_samples": 0}, "max_samples must be"),
        ({"normalize": 1}, "normalize must be"),
    ],
)
def test_parameters_are_checked(params, message):
    with pytest.raises(InputError, match=f"^Rotate: {message}"):
        Rotate(**params).fit(rows(10, 2))


def test_steps_are_one_matrix():
    X = rows(100, 6)
    (step,) = Rotate().fit(X).steps()
    np.testing.assert_allclose(X @ step.matrix.T, Rotate().fit_transform(X), atol=1e-12)
