"""Losses against pairwise sums, torch's own decompositions and the IsoScore package."""

import numpy as np
import pytest

from isotropy import losses, metrics
from isotropy.errors import InputError

torch = pytest.importorskip("torch", reason="torch is not installed")
TorchDispatchMode = pytest.importorskip("torch.utils._python_dispatch").TorchDispatchMode
F = losses.functional

POLYNOMIAL = {"decay": "polynomial", "c1": 3.0, "gamma": -0.5}
EXPONENTIAL = {"decay": "exponential", "c1": 5.0, "c2": 0.2, "gamma": 0.7}


def rows(n, d, seed=0, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=random, dtype=torch.float64)
    return (X * torch.linspace(2, 0.3, d, dtype=torch.float64) + 0.4).to(dtype)


def losses(d):
    known = torch.cov(rows(200, d, seed=9).T)
    directions = torch.linalg.qr(rows(d, d, seed=8)).Q[:, : d // 2]
    return {
        "mean_cosine": F.mean_cosine,
        "cosine_penalty": F.cosine_penalty,
        "isoscore": F.isoscore,
        "isoscore_star": lambda X: F.isoscore_star(X, known, 0.3),
        "log_inverse": lambda X: F.log_inverse(F.isoscore(X)),
        "log_partition": lambda X: F.log_partition(X, directions),
        "polynomial": lambda X: F.spectrum_penalty(X, **POLYNOMIAL),
        "exponential": lambda X: F.spectrum_penalty(X, **EXPONENTIAL),
    }


NAMES = list(losses(4))
SHAPES = [(30, 6), (5, 9)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_finite_differences(name, shape):
    assert torch.autograd.gradcheck(losses(shape[1])[name], rows(*shape).requires_grad_())


@pytest.mark.parametrize("shape", [*SHAPES, (2, 2)])
def test_mean_cosine_is_the_sum_over_pairs(shape):
    X = rows(*shape)
    unit = X / X.norm(dim=1, keepdim=True)
    cosines = (unit @ unit.T).fill_diagonal_(0)
    n = len(X)
    assert F.mean_cosine(X).item() == pytest.approx(cosines.sum().item() / (n * (n - 1)))
    assert F.mean_cosine(X).item() == pytest.approx(metrics.mean_cosine(X))
    assert F.cosine_penalty(X).item() == pytest.approx(cosines.sum().item() / n**2)


def test_departure_4_cosine_penalty_of_one_row_is_zero_and_zero_rows_count():
    """(1/|V|^2) sum_{i != j} cos: no pairs give 0; of e1, e1, 0 two of nine ordered pairs are 1."""
    one = torch.tensor([[3.0, 4.0]], requires_grad=True)
    F.cosine_penalty(one).backward()
    assert F.cosine_penalty(one).item() == pytest.approx(0, abs=1e-6)
    assert one.grad.abs().max() < 1e-6
    X = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 0.0]], requires_grad=True)
    value = F.cosine_penalty(X)
    value.backward()
    assert value.item() == pytest.approx(2 / 9)
    assert torch.isfinite(X.grad).all()
    assert not X.grad[2].any()


def test_mean_cosine_leaves_zero_rows_out():
    X = rows(12, 5)
    X[3] = 0
    X.requires_grad_()
    value = F.mean_cosine(X)
    value.backward()
    assert value.item() == pytest.approx(metrics.mean_cosine(X))
    assert X.grad.isfinite().all()
    assert (X.grad[3] == 0).all()


@pytest.mark.parametrize("shape", [*SHAPES, (60, 60)])
@pytest.mark.parametrize("options", [POLYNOMIAL, EXPONENTIAL], ids=["polynomial", "exponential"])
def test_the_spectrum_is_that_of_svdvals(shape, options):
    W = rows(*shape).requires_grad_()
    k = torch.arange(1, min(shape) + 1, dtype=torch.float64)
    target = {
        "polynomial": 3.0 * k**-0.5,
        "exponential": 5.0 * torch.exp(-0.2 * k**0.7),
    }[options["decay"]]
    expected = ((torch.linalg.svdvals(W) - target) ** 2).sum()
    found = F.spectrum_penalty(W, **options)
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    ours, theirs = (torch.autograd.grad(value, W)[0] for value in (found, expected))
    assert torch.allclose(ours, theirs, atol=1e-8)


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
def test_the_gradient_at_ties_is_the_mean_of_both_sides(shape):
    U = torch.linalg.qr(rows(9, 9, seed=1)).Q[:, :4]
    V = torch.linalg.qr(rows(4, 4, seed=2)).Q
    W = U @ torch.diag(torch.tensor([3.0, 3.0, 1.0, 1.0], dtype=torch.float64)) @ V.T
    W = (W if shape == (9, 4) else W.T).contiguous()
    assert torch.autograd.gradcheck(
        lambda X: F.spectrum_penalty(X, **POLYNOMIAL), W.requires_grad_()
    )


def conditioned(shape, condition, dtype=torch.float32):
    """A matrix with singular values from 100 down to 100/condition."""
    n, k = max(shape), min(shape)
    U = torch.linalg.qr(rows(n, k, seed=1)).Q
    V = torch.linalg.qr(rows(k, k, seed=2)).Q
    sigma = 100 * torch.logspace(0, -np.log10(condition), k, dtype=torch.float64)
    W = U @ torch.diag(sigma) @ V.T
    return (W if shape[0] == n else W.T).to(dtype).contiguous()


def spectrum_error(W):
    """Of the gradient of spectrum_penalty, against that of torch's singular values in float64."""
    single = W.clone().requires_grad_()
    F.spectrum_penalty(single, **POLYNOMIAL).backward()
    exact = W.double().requires_grad_()
    k = torch.arange(1, min(W.shape) + 1, dtype=torch.float64)
    ((torch.linalg.svdvals(exact) - 3.0 * k**-0.5) ** 2).sum().backward()
    return ((single.grad - exact.grad).norm() / exact.grad.norm()).item()


class Products(TorchDispatchMode):
    """Counts multiplications of matrix products by dtype, and decompositions."""

    def __init__(self):
        super().__init__()
        self.multiplications = {torch.float32: 0, torch.float64: 0}
        self.decompositions = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("mm", "_linear_pointwise"):
            self.multiplications[found.dtype] += found.numel() * args[0].shape[1]
        self.decompositions += name == "_linalg_eigh"
        return found


@pytest.fixture(params=["onednn", "blas"])
def multiply(request, monkeypatch):
    if request.param == "blas":
        monkeypatch.setattr(F, "ONEDNN", None)
    elif F.ONEDNN is None:
        pytest.skip("this torch has no oneDNN")


@pytest.mark.parametrize("condition", [1.5, 10, 100, 1e3, 1e4, 1e5])
def test_the_float32_gradient_is_right_up_to_condition_1e5(condition):
    assert spectrum_error(conditioned((200, 20), condition)) < 1e-6


@pytest.mark.usefixtures("multiply")
@pytest.mark.parametrize("shape", [(6000, 48), (48, 6000), (4096, 5), (300, 40), (60, 60)])
@pytest.mark.parametrize("condition", [10, 1e3, 1e5])
def test_the_gradient_of_many_rows_is_right_to_1e_5(shape, condition):
    assert spectrum_error(conditioned(shape, condition)) < 1e-5


@pytest.mark.usefixtures("multiply")
@pytest.mark.parametrize("shape", [(8192, 48), (48, 8192)])
@pytest.mark.parametrize(("condition", "c1"), [(10, 3.0), (100, 3.0), (1e3, 0.03)])
def test_double_precision_is_only_for_a_sample(shape, condition, c1):
    W = conditioned(shape, condition).requires_grad_()
    n, d = 8192, 48
    with Products() as counted:
        F.spectrum_penalty(W, c1=c1, gamma=-0.5).backward()
    assert counted.decompositions == 1
    assert counted.multiplications[torch.float64] <= d * d * (1024 + 256 + d)
    half = 0.5 + 0.5 / F.BLOCKS
    assert counted.multiplications[torch.float32] <= d * d * (n * (1 + half) + 1024 + 256)


@pytest.mark.parametrize(
    ("change", "dtype"),
    [(1e6, torch.float32), (1e3, torch.float64), (None, torch.float32)],
    ids=["ill-conditioned", "float64", "deficient"],
)
def test_double_precision_is_for_all_rows_where_it_is_needed(change, dtype):
    W = conditioned((8192, 48), change or 10, dtype)
    if change is None:
        W[:, -1] = W[:, 0]
    with Products() as counted:
        F.spectrum_penalty(W.requires_grad_(), **POLYNOMIAL).backward()
    assert counted.multiplications[torch.float64] >= 48 * 48 * 8192 / 2


@pytest.mark.usefixtures("multiply")
@pytest.mark.parametrize("others", ["zeros", "short"])
def test_a_few_long_rows_decide_on_the_precision(others):
    W = torch.zeros(8192, 32)
    if others == "short":
        W[torch.arange(8192), torch.arange(8192) % 32] = 1e-6
    where = torch.randperm(8192, generator=torch.Generator().manual_seed(0))[-64:]  # not sampled
    W[where] = conditioned((64, 32), 1e4) / 100
    assert spectrum_error(W) < 1e-5


def test_equal_singular_values_of_many_rows_share_their_targets():
    W = torch.linalg.qr(rows(6000, 8, seed=1)).Q.float().requires_grad_()
    F.spectrum_penalty(W, **POLYNOMIAL).backward()
    target = (3.0 * torch.arange(1, 9, dtype=torch.float64) ** -0.5).mean()
    expected = 2 * (1 - target) * W.detach().double()
    assert (W.grad - expected).norm() < 1e-5 * expected.norm()


def test_a_lower_precision_of_products_is_noticed(monkeypatch):
    """As after torch.set_float32_matmul_precision("medium") on some processors."""
    W = conditioned((6000, 48), 100)

    def halves(A, B):
        if A.dtype == torch.float64:
            return A @ B.T
        return A.bfloat16().float() @ B.bfloat16().float().T

    monkeypatch.setattr(F, "_product", halves)
    assert spectrum_error(W) < 1e-5


@pytest.mark.parametrize("scale", [1e-25, 1e-15, 1e15, 1e20])
def test_the_gradient_of_any_scale_is_finite_and_right(scale):
    W = scale * rows(6000, 6, dtype=torch.float32)
    assert spectrum_error(W) < 1e-5


def test_singular_values_that_are_rounding_get_no_gradient():
    W = (rows(30, 2) @ rows(2, 6, seed=1)).requires_grad_()
    F.spectrum_penalty(W, **POLYNOMIAL).backward()
    assert torch.linalg.matrix_rank(W.grad, rtol=1e-9) == 2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("zeta", [None, 0.0, 0.3, 1.0])
def test_isoscore_is_that_of_the_package(shape, zeta):
    published = pytest.importorskip("IsoScore.IsoScore", reason="IsoScore 2.0.1 is not installed")
    X = rows(*shape).requires_grad_()
    known = torch.cov(rows(200, shape[1], seed=9).T)
    theirs = published.istar().IsoScore_star(X, known, zeta or 0.0, is_eval=False)
    ours = F.isoscore(X) if zeta is None else F.isoscore_star(X, known, zeta)
    # torch.tensor(n) makes the package's constants single precision
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)
    if zeta != 1.0:
        found, expected = (torch.autograd.grad(value, X)[0] for value in (ours, theirs))
        assert torch.allclose(found, expected, atol=1e-6 * expected.abs().max())


@pytest.mark.parametrize("shape", SHAPES)
def test_isoscore_is_the_metric(shape):
    X = rows(*shape)
    assert F.isoscore(X).item() == pytest.approx(metrics.isoscore(X), rel=1e-12)
    assert F.isoscore(1e4 + X).item() == pytest.approx(metrics.isoscore(X), rel=1e-8)


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_isoscore_of_any_scale(scale):
    X = rows(30, 6, dtype=torch.float32)
    assert F.isoscore(scale * X).item() == pytest.approx(F.isoscore(X).item(), rel=1e-5)


def test_log_partition_is_the_metric():
    X = rows(50, 6)
    logs = F.log_partition(X)
    assert logs.shape == (2, 6)
    found = (logs.min() - logs.max()).item()
    assert found == pytest.approx(metrics.partition_isotropy(X, log=True), rel=1e-9)
    far = F.log_partition(1000 * X.float())
    assert far.isfinite().all()


AWKWARD = {
    "few": rows(3, 8),
    "duplicate": rows(4, 8).repeat(5, 1),
    "constant": torch.full((10, 8), 0.1, dtype=torch.float64),
    "rank one": rows(10, 1) @ rows(1, 8, seed=1),
    "constant dimension": torch.cat([rows(10, 7), torch.full((10, 1), 0.3)], dim=1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", AWKWARD)
@pytest.mark.parametrize("name", NAMES)
def test_awkward_batches_give_finite_gradients(name, kind, dtype):
    X = AWKWARD[kind].to(dtype, copy=True).requires_grad_()
    value = losses(8)[name](X).sum()
    value.backward()
    assert value.isfinite()
    assert X.grad.isfinite().all()
    assert X.grad.abs().max() < 1e4


@pytest.mark.parametrize("name", NAMES)
def test_autocast_is_left(name):
    loss = losses(6)[name]
    X = rows(30, 6, dtype=torch.float32)
    outside = loss(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(X)
        half = loss(X.bfloat16())
    assert inside.dtype == half.dtype == torch.float32
    assert torch.equal(inside, outside)
    assert torch.allclose(half, outside, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.mean_cosine(torch.ones(1, 3)), "at least 2 rows, got 1.*drop_last"),
        (lambda: F.mean_cosine(torch.eye(1, 3).repeat(3, 1) * torch.tensor([[1.0], [0], [0]])),
         "at least 2 rows that are not zero, got 1"),
        (lambda: F.isoscore(torch.ones(1, 3)), "isoscore: X must have at least 2 rows, got 1"),
        (lambda: F.isoscore(torch.ones(4, 1)), "at least 2 features, got 1"),
        (lambda: F.isoscore(np.ones((3, 3))), "X must be a torch tensor, got ndarray"),
        (lambda: F.isoscore(torch.ones(3)), "X must be two-dimensional"),
        (lambda: F.isoscore_star(torch.ones(4, 3), torch.eye(2), 0.1), r"shape \(3, 3\), got"),
        (lambda: F.isoscore_star(torch.ones(4, 3), torch.eye(3), 2), r"zeta must be .*\[0, 1\]"),
        (lambda: F.log_partition(torch.ones(4, 3), torch.eye(2)), "columns of 3 values"),
        (lambda: F.spectrum_penalty(torch.ones(4, 3), "linear", c1=1, gamma=-1), "decay must be"),
        (lambda: F.spectrum_penalty(torch.ones(4, 3), c1=0.0, gamma=-1), "c1 must be"),
        (lambda: F.spectrum_penalty(torch.ones(4, 3), c1=1.0, gamma=1), r"gamma must .*-inf, 0\]"),
        (lambda: F.spectrum_penalty(torch.ones(4, 3), c1=float("nan"), gamma=-1), "c1 must be"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_rows_that_multiply_exactly_do_not_hide_the_rounding_of_others():
    random = torch.Generator().manual_seed(0)
    U = torch.linalg.qr(torch.randn(4096, 32, generator=random, dtype=torch.float64))[0]
    V = torch.linalg.qr(torch.randn(32, 32, generator=random, dtype=torch.float64))[0]
    W = ((U * torch.logspace(0, -5, 32, dtype=torch.float64)) @ V.T).float()
    W[::4] = 0
    W[::4, 0] = 0.25
    gradients = []
    for rows in (W, W.double()):
        rows = rows.clone().requires_grad_()
        F.spectrum_penalty(rows, c1=1.0, gamma=-0.5).backward()
        gradients.append(rows.grad.double())
    found, expected = gradients
    assert (found - expected).norm() <= 1e-5 * expected.norm()
