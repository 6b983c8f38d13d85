"""The steps of a repair, and the torch module made of them, against `transform`."""

import copy

import numpy as np
import pytest

from isotropy import repairs
from isotropy.errors import NotAffineError
from isotropy.repairs.steps import (
    Add,
    Multiply,
    Normalize,
    RemoveByCluster,
    Subtract,
    SubtractScaled,
)

N, D = 600, 12
EPS32 = float(np.finfo(np.float32).eps)


def rows(shift: float, dtype: str = "float64") -> np.ndarray:
    random = np.random.default_rng(0)
    X = random.standard_normal((N, D)) * np.geomspace(3, 0.3, D) + shift
    X[: N // 3, 0] += 9
    return X.astype(dtype)


def fitted(shift: float) -> list[repairs.Repair]:
    X = rows(shift)
    plain = [
        repairs.Center(),
        repairs.ScaledCenter(),
        repairs.Standardize(),
        repairs.AllButTheTop(2),
        repairs.AllButTheTop(2, centered=False),
        repairs.Whiten(),
        repairs.Whiten(method="pca", n_components=5),
        repairs.ClusterRemoval(3, 2),
        repairs.Rotate(),
        repairs.Chain([repairs.Center(), repairs.Rotate("hadamard")]),
        repairs.Chain([repairs.Center(normalize=True), repairs.Whiten(), repairs.Rotate()]),
    ]
    found = [repair.fit(X) for repair in plain]
    return found + [copy.copy(one).set_params(normalize=True) for one in found]


def written_out(steps: list, X: np.ndarray) -> np.ndarray:
    """The steps in float64, one row at a time."""
    found = []
    for row in X.astype(np.float64):
        for step in steps:
            match step:
                case Subtract(vector):
                    row = row - vector
                case Add(vector):
                    row = row + vector
                case Multiply(matrix):
                    row = matrix @ row
                case SubtractScaled(direction):
                    row = row - np.linalg.norm(row) * direction
                case RemoveByCluster(centers, means, components):
                    k = np.square(centers - row).sum(1).argmin()
                    row = row - means[k]
                    row = row - components[k].T @ (components[k] @ row)
                case Normalize():
                    row = row / np.linalg.norm(row)
        found.append(row)
    return np.stack(found)


@pytest.mark.parametrize("shift", [0.0, 10.0, 1e4])
@pytest.mark.parametrize("number", range(16))
def test_steps_are_the_repair(number: int, shift: float) -> None:
    repair = fitted(shift)[number]
    X = rows(shift)
    np.testing.assert_allclose(written_out(repair.steps(), X), repair.transform(X), atol=1e-9)


def test_what_does_nothing_is_left_out() -> None:
    X = rows(5.0)
    assert [type(s) for s in repairs.Center().fit(X).steps()] == [Subtract]
    assert [type(s) for s in repairs.Whiten().fit(X).steps()] == [Subtract, Multiply]
    assert [type(s) for s in repairs.Center(normalize=True).fit(X).steps()] == [Subtract, Normalize]


@pytest.mark.parametrize("shift", [0.0, 10.0])
@pytest.mark.parametrize("number", range(16))
def test_the_module_is_the_repair_in_float32(number: int, shift: float) -> None:
    torch = pytest.importorskip("torch")
    repair = fitted(shift)[number]
    X = rows(shift, "float32")
    found = repair.as_module()(torch.from_numpy(X)).numpy()
    wanted = repair.transform(X.astype(np.float64))
    gain = np.linalg.norm(wanted, axis=1).max() / np.linalg.norm(X - X.mean(0), axis=1).max()
    size = np.abs(X).max() * max(gain, 1.0) * D
    limit = 8 * EPS32 * size * (4 if repair.normalize else 1)
    np.testing.assert_allclose(found, wanted, atol=limit)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_keeps_the_arrays(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    module = repairs.Whiten().fit(rows(10.0)).as_module()
    X = torch.from_numpy(rows(10.0, "float32")).to(kind)
    wanted = module(X.float()).to(kind)
    found = module.to(kind)(X)
    assert found.dtype == kind
    assert torch.equal(found, wanted)
    assert all(buffer.dtype == torch.float32 for buffer in module.buffers())
    assert not list(module.parameters())


@pytest.mark.parametrize("number", [1, 5, 7, 15])
def test_it_is_exported_with_any_number_of_rows(number: int) -> None:
    torch = pytest.importorskip("torch")
    module = fitted(1.0)[number].as_module()
    X = torch.from_numpy(rows(1.0, "float32"))
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    program = torch.export.export(module, (X[:7],), dynamic_shapes=({0: batch},)).module()
    for n in (2, 50):
        torch.testing.assert_close(program(X[:n]), module(X[:n]))


@pytest.mark.parametrize("number", range(16))
def test_it_is_differentiable(number: int) -> None:
    torch = pytest.importorskip("torch")
    module = fitted(1.0)[number].as_module()
    X = torch.from_numpy(rows(1.0)[::100].copy()).requires_grad_()
    assert torch.autograd.gradcheck(module, (X,))
    zero = torch.zeros((1, D), requires_grad=True)
    module(zero).sum().backward()
    assert torch.isfinite(zero.grad).all()


def test_tokens_of_sentences_are_repaired_as_rows() -> None:
    torch = pytest.importorskip("torch")
    module = repairs.ClusterRemoval(3, 2).fit(rows(1.0)).as_module()
    X = torch.from_numpy(rows(1.0, "float32"))
    torch.testing.assert_close(module(X.reshape(20, 30, D)).reshape(N, D), module(X))


def test_a_flow_has_no_steps() -> None:
    pytest.importorskip("torch")
    flow = repairs.Flow(n_levels=1, n_steps=1).fit(rows(0.0)[:, :4])
    with pytest.raises(NotAffineError, match="Flow"):
        flow.steps()


def test_a_learned_layer_far_from_zero() -> None:
    torch = pytest.importorskip("torch")
    X = rows(100.0, "float32")
    layer = repairs.LearnedLayer(n_epochs=1, batch_size=64).fit(X, X[:, 1] > X[:, 1].mean())
    wanted = X.astype(np.float64) @ layer.weight_.T + layer.bias_
    limit = 8 * D * EPS32 * np.abs(X).max()
    np.testing.assert_allclose(layer.transform(X), wanted, atol=limit)
    np.testing.assert_allclose(layer.as_module()(torch.from_numpy(X)), wanted, atol=limit)


def test_a_device_without_float64_gets_the_same_rows():
    """A stand-in for Apple's mps, whose tensors can't be float64: that step runs on the CPU."""
    torch = pytest.importorskip("torch")

    class Here(torch.Tensor):
        """On the CPU, from where it can go back."""

        def to(self, target):
            return self.as_subclass(There) if target == There.device else super().to(target)

    class There(torch.Tensor):
        """As if on mps."""

        device = torch.device("mps")

        def to(self, target):
            assert target != torch.float64
            return self.as_subclass(Here) if target == torch.device("cpu") else super().to(target)

    def moved(tensor):
        if tensor.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return tensor

    X = rows(10.0, "float32")
    repair = repairs.ScaledCenter(normalize=True).fit(X)
    module = repair.as_module()._apply(moved)
    found = module(torch.from_numpy(X).as_subclass(There))
    assert type(found) is There
    wanted = repair.transform(X)
    apart = np.linalg.norm(found.as_subclass(torch.Tensor).numpy() - wanted, axis=1)
    assert (apart / np.linalg.norm(wanted, axis=1)).max() < 1e-5
