"""The flow as a repair; tests/contracts has the contract, tests/losses/test_flow.py the network."""

import numpy as np
import pytest

import isotropy
from isotropy import Standardize, losses
from isotropy.errors import InputError, NotAffineError, RepairFileError
from isotropy.repairs import Flow

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(scope="module")
def X():
    random = np.random.default_rng(0)
    a = random.standard_normal((1500, 3))
    return np.hstack([a, a**2 + 0.1 * random.standard_normal((1500, 3))]) * 5 + 2


def log_likelihood(repair, X):
    """Mean log density of the rows, by change of variables, through the saved weights alone."""
    network = losses.FlowNetwork(
        X.shape[1], repair.n_levels, repair.n_steps, repair.hidden
    ).double()
    torch.nn.utils.vector_to_parameters(torch.tensor(repair.weights_), network.parameters())
    z, logdet = network.eval()(torch.tensor((X - repair.mean_) / repair.scale_))
    assert np.allclose(z.detach().numpy(), repair.transform(X), atol=1e-10)
    density = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(dim=1) + logdet
    return density.mean().item() - np.log(repair.scale_).sum()


def test_more_epochs_make_the_rows_more_likely(X):
    few = log_likelihood(Flow(n_epochs=1, learning_rate=5e-3).fit(X), X)
    many = log_likelihood(Flow(n_epochs=8, learning_rate=5e-3).fit(X), X)
    Z = Standardize().fit_transform(X)
    gaussian = -0.5 * (Z**2).sum(axis=1).mean() - 3 * np.log(2 * np.pi) - np.log(X.std(0)).sum()
    assert gaussian < few < many


def test_inverse_error_in_float32(X):
    rows = X.astype(np.float32)
    repair = Flow(n_epochs=3).fit(rows)
    assert np.abs(repair.inverse_transform(repair.transform(rows)) - rows).max() < 1e-4


def test_a_seed_gives_the_same_digits_and_another_one_others(X):
    one, same, other = (Flow(random_state=seed).fit(X).weights_ for seed in (3, 3, 4))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_the_seed_of_torch_is_left_alone(X):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    Flow().fit(X)
    assert torch.equal(torch.rand(3), expected)


def test_files_are_read_in_chunks(X, tmp_path):
    np.save(tmp_path / "x.npy", X)
    source = isotropy.open(tmp_path / "x.npy", chunk_rows=400)
    found = Flow(n_epochs=2, learning_rate=5e-3).fit(source)
    whole = Flow(n_epochs=2, learning_rate=5e-3).fit(X)
    assert found.n_samples_seen_ == 1500
    assert log_likelihood(found, X) == pytest.approx(log_likelihood(whole, X), abs=1)


def test_weights_count_and_rows_without_weight_do_not(X):
    weights = np.where(X[:, 0] > 2, 1.0, 0.0)
    left_out = Flow().fit(X, sample_weight=weights)
    assert np.allclose(left_out.mean_, X[X[:, 0] > 2].mean(axis=0))
    heavy = Flow(n_epochs=4, learning_rate=5e-3).fit(X, sample_weight=1 + 50 * weights)
    plain = Flow(n_epochs=4, learning_rate=5e-3).fit(X)
    part = X[X[:, 0] > 2]
    assert log_likelihood(heavy, part) > log_likelihood(plain, part)


def test_it_is_not_affine(X):
    with pytest.raises(NotAffineError, match="Flow: the repair is not affine"):
        Flow().fit(X).affine()


def test_a_training_that_diverges_says_so(X):
    with pytest.raises(InputError, match=r"diverged at learning_rate=1e\+30\. Lower it"):
        Flow(learning_rate=1e30).fit(X)


def test_a_file_of_another_shape_gets_one_line(X, tmp_path):
    repair = Flow().fit(X)
    repair.weights_ = repair.weights_[:-1]
    repair.save(tmp_path / "flow.safetensors")
    with pytest.raises(RepairFileError, match=r"weights_ must have shape"):
        isotropy.load(tmp_path / "flow.safetensors")


@pytest.mark.parametrize("option", ["n_levels", "n_steps", "hidden", "n_epochs", "batch_size"])
def test_bad_options_get_one_line(X, option):
    with pytest.raises(InputError, match=f"Flow: {option} must be an integer of at least 1, got 0"):
        Flow(**{option: 0}).fit(X)
