"""The isotropy layer as a repair: its contract, with labels, and what training must bring."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

import isotropy
from isotropy.errors import InputError, NotAffineError
from isotropy.metrics import isoscore
from isotropy.repairs import LearnedLayer

torch = pytest.importorskip("torch", reason="torch is not installed")
QUICK = LearnedLayer(n_epochs=5, batch_size=64)
FASTER = {"learning_rate": 1e-3, "n_epochs": 50}  # for eight features


@pytest.fixture(scope="module")
def X():
    random = np.random.default_rng(0)
    return random.standard_normal((600, 8)) * np.linspace(9, 0.5, 8) + 4


@pytest.fixture(scope="module")
def y(X):
    return ((X[:, 0] - 4) / 9 + (X[:, 6] - 4) > 0).astype(int)


@pytest.fixture(scope="module")
def head(X, y):
    found = LogisticRegression().fit(X, y)
    linear = torch.nn.Linear(8, 2).double()
    linear.weight.data = torch.tensor(np.vstack([-found.coef_, found.coef_]) / 2)
    linear.bias.data = torch.tensor(np.append(-found.intercept_, found.intercept_) / 2)
    return linear


def accuracy(head, X, y):
    with torch.no_grad():
        answers = head(torch.tensor(X, dtype=head.weight.dtype)).argmax(dim=1).numpy()
    return (answers == y).mean()


@parametrize_with_checks([QUICK])
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def test_rows_become_more_isotropic_and_the_head_keeps_its_answers(X, y, head):
    repair = LearnedLayer(batch_size=64, validation=0.0, **FASTER).fit(X, y, head)
    assert isoscore(repair.transform(X)) > 1.3 * isoscore(X)
    assert accuracy(head, repair.transform(X), y) > accuracy(head, X, y) - 0.02


def test_alpha_weighs_the_task_against_isotropy(X, y, head):
    scores = [
        isoscore(LearnedLayer(alpha=alpha, validation=0.0).fit(X, y, head).transform(X))
        for alpha in (1.0, 0.5, 0.1)
    ]
    assert scores == sorted(scores)


def test_head_and_rows_stay_as_they_were(X, y, head):
    before, weights = X.copy(), [part.clone() for part in head.parameters()]
    QUICK.fit(X, y, head)
    assert np.array_equal(X, before)
    assert all(torch.equal(a, b) for a, b in zip(weights, head.parameters(), strict=True))
    assert all(part.requires_grad for part in head.parameters())


def test_a_pair_of_arrays_is_a_linear_head(X, y, head):
    pair = tuple(part.detach().numpy() for part in head.parameters())
    one, other = clone(QUICK).fit(X, y, pair), clone(QUICK).fit(X, y, head)
    assert np.array_equal(one.weight_, other.weight_)


def test_without_a_head_a_linear_one_is_fitted(X, y):
    names = np.where(y == 1, "yes", "no")
    repair = LearnedLayer(batch_size=64, validation=0.0, **FASTER).fit(X, names)
    assert isoscore(repair.transform(X)) > 1.3 * isoscore(X)
    same = LearnedLayer(batch_size=64, validation=0.0, **FASTER).fit(X, y)
    assert np.array_equal(repair.weight_, same.weight_)


def test_three_classes_and_numbers(X):
    classes = np.digitize(X[:, 0], [0, 8])
    assert isoscore(LearnedLayer(validation=0.0).fit(X, classes).transform(X)) > isoscore(X)
    numbers = X[:, 0] / 9 + X[:, 3]
    repair = LearnedLayer(n_epochs=20, validation=0.0).fit(X, numbers)
    assert isoscore(repair.transform(X)) > isoscore(X)
    assert np.corrcoef(repair.transform(X)[:, 3], X[:, 3])[0, 1] > 0.9


def test_it_is_affine_and_folds_into_the_head(X, y, head):
    repair = clone(QUICK).fit(X, y, head)
    A, b = repair.affine()
    assert np.allclose(X @ A.T + b, repair.transform(X))
    folded = torch.nn.Linear(8, 2).double()
    with torch.no_grad():
        folded.weight.copy_(head.weight @ torch.tensor(A))
        folded.bias.copy_(head.weight @ torch.tensor(b) + head.bias)
        expected = head(torch.tensor(repair.transform(X)))
        assert torch.allclose(folded(torch.tensor(X)), expected)
    with pytest.raises(NotAffineError, match="normalize=True"):
        clone(QUICK).set_params(normalize=True).fit(X, y, head).affine()


def test_inverse_leads_back(X, y):
    repair = clone(QUICK).fit(X, y)
    assert np.allclose(repair.inverse_transform(repair.transform(X)), X, atol=1e-9)


def test_save_then_load_is_equal(X, y, tmp_path):
    repair = clone(QUICK).fit(X, y)
    repair.save(tmp_path / "layer.safetensors", note="some text")
    loaded = isotropy.load(tmp_path / "layer.safetensors")
    assert loaded.get_params() == repair.get_params()
    assert (loaded.n_epochs_, loaded.n_samples_seen_) == (repair.n_epochs_, 600)
    assert np.array_equal(loaded.transform(X), repair.transform(X))
    assert loaded.shift(X[:50]) == repair.shift(X[:50])


def test_a_seed_gives_the_same_digits_and_another_one_others(X, y):
    one, same, other = (
        clone(QUICK).set_params(random_state=seed).fit(X, y).weight_ for seed in (3, 3, 4)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "tensor"])
def test_kind_and_dtype_of_the_rows_stay(X, y, kind):
    rows = torch.tensor(X, dtype=torch.bfloat16) if kind == "tensor" else X.astype(kind)
    repair = clone(QUICK).fit(rows, torch.tensor(y) if kind == "tensor" else y)
    found = repair.transform(rows)
    assert type(found) is type(rows)
    assert found.dtype == rows.dtype
    expected = clone(QUICK).fit(X, y).transform(X)
    assert np.abs(np.asarray(torch.as_tensor(found).float()) - expected).max() < 0.5


def test_rows_far_away_are_treated_like_those_near(X, y):
    near = clone(QUICK).fit(X, y)
    far = clone(QUICK).fit(X + 1e6, y)
    assert np.allclose(far.transform(X + 1e6) - 1e6, near.transform(X), atol=0.05)


@pytest.mark.parametrize(
    "rows",
    [np.ones((40, 6)), np.zeros((40, 6)), np.repeat(np.eye(6)[:4], 10, axis=0)],
    ids=["constant", "zero", "duplicate"],
)
def test_awkward_rows_give_finite_rows(rows):
    repair = clone(QUICK).fit(rows, np.arange(40) % 2)
    assert np.isfinite(repair.transform(rows)).all()


def test_the_best_epoch_is_kept(X, y, head):
    repair = LearnedLayer(n_epochs=30, patience=3, learning_rate=0.3).fit(X, y, head)
    assert 1 <= repair.n_epochs_ <= 30
    last = LearnedLayer(n_epochs=4, validation=0.0).fit(X, y, head)
    assert last.n_epochs_ == 4


@pytest.mark.parametrize(
    ("change", "labels", "message"),
    [
        ({}, None, "requires y to be passed, but the target y is None"),
        ({}, np.zeros(600, dtype=int), "y must have at least two classes, got one class"),
        ({}, np.zeros(7, dtype=int), r"one value per row, got shape \(7,\) for 600 rows"),
        ({}, np.full(600, np.nan), "Input y contains NaN"),
        ({"alpha": float("nan")}, np.arange(600) % 2, "alpha must be a number"),
        ({"batch_size": 1}, np.arange(600) % 2, "batch_size must be an integer of at least 2"),
        ({"metric": "f1"}, np.arange(600) % 2, "metric must be one of 'accuracy', 'matthews'"),
    ],
)
def test_bad_input_gets_one_line(X, change, labels, message):
    with pytest.raises(InputError, match=message):
        LearnedLayer(**change).fit(X, labels)


def test_labels_must_fit_the_head(X, y, head):
    with pytest.raises(InputError, match=r"y must be classes in \[0, 1\] .*, got 2 in row 5"):
        QUICK.fit(X, np.where(np.arange(600) == 5, 2, y), head)
    with pytest.raises(InputError, match="class numbers from 0 if a head is given, got 'no'"):
        QUICK.fit(X, np.where(y == 0, "no", "no"), head)
    with pytest.raises(InputError, match="one number for a float y, got 2"):
        QUICK.fit(X, y.astype(float), head)
    with pytest.raises(InputError, match="head must be a torch module or a pair"):
        QUICK.fit(X, y, np.ones(3))


def test_one_row_or_feature_is_refused():
    with pytest.raises(InputError, match="at least 2 features"):
        QUICK.fit(np.ones((9, 1)), np.arange(9) % 2)
    with pytest.raises(InputError, match="at least 2 rows"):
        QUICK.fit(np.ones((1, 3)), np.array([0]), (np.ones((2, 3)), np.zeros(2)))


@pytest.mark.parametrize("numbers", [False, True])
def test_training_that_diverges_is_said_and_not_kept(X, y, numbers):
    target = y.astype(float) if numbers else y
    with pytest.raises(InputError, match=r"training diverged at learning_rate=1e\+300. Lower it"):
        LearnedLayer(n_epochs=5, batch_size=64, learning_rate=1e300).fit(X, target)
