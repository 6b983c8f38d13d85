"""Modules against their formulas written out, over many steps and over processes."""

import subprocess
import sys

import numpy as np
import pytest

from isotropy import losses
from isotropy.errors import InputError

torch = pytest.importorskip("torch", reason="torch is not installed")


def batches(n_steps, n=32, d=10):
    random = np.random.default_rng(0)
    mix = random.standard_normal((d, d)) * np.linspace(3, 0.1, d)[:, None]
    return [random.standard_normal((n, d)) @ mix + step / 50 for step in range(n_steps)]


class WrittenOut:
    """IsoBN, formula by formula, in numpy."""

    def __init__(self, d, momentum=0.05, eps=1e-3):
        self.cov, self.std, self.step = np.zeros((d, d)), np.zeros(d), 0
        self.momentum, self.eps = momentum, eps

    def __call__(self, X):
        d = X.shape[1]
        m, self.step = self.momentum, self.step + 1
        self.cov = (1 - m) * self.cov + m * np.cov(X.T, ddof=0)
        self.std = (1 - m) * self.std + m * X.std(axis=0)
        cov = self.cov / (1 - (1 - m) ** self.step)
        std = self.std / (1 - (1 - m) ** self.step)
        scale = np.empty(d)
        for i in range(d):
            rho = [np.clip(cov[i, j] / (std[i] * std[j]), -1, 1) for j in range(d)]
            scale[i] = (np.mean(np.square(rho)) * std[i] + self.eps) ** -0.5
        scale *= np.sqrt(np.trace(cov) / np.sum(np.diag(cov) * scale**2))
        return X * scale


def test_isobn_is_its_formulas_over_200_steps():
    module, single, reference = (
        losses.IsoBatchNorm(10).double(),
        losses.IsoBatchNorm(10),
        WrittenOut(10),
    )
    for X in batches(200):
        expected = reference(X)
        assert np.allclose(module(torch.tensor(X)).numpy(), expected, rtol=1e-6, atol=1e-9)
        found = single(torch.tensor(X, dtype=torch.float32)).numpy()
        assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def test_isobn_keeps_the_total_variance():
    X = torch.tensor(batches(1)[0])
    after = losses.IsoBatchNorm(10).double()(X)
    assert after.var(dim=0).sum().item() == pytest.approx(X.var(dim=0).sum().item())


def test_isobn_in_eval_is_the_identity_until_it_has_seen_a_batch():
    X, module = torch.tensor(batches(1)[0]), losses.IsoBatchNorm(10).double()
    assert torch.equal(module.eval()(X), X)
    after = module.train()(X)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    assert torch.equal(module.eval()(X), after)
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())


def test_isobn_goes_on_from_a_checkpoint():
    first, rest = batches(10)[:5], batches(10)[5:]
    one, other = losses.IsoBatchNorm(10).double(), losses.IsoBatchNorm(10).double()
    for X in first:
        one(torch.tensor(X))
    other.load_state_dict(one.state_dict())
    for X in rest:
        assert torch.equal(one(torch.tensor(X)), other(torch.tensor(X)))


def test_isobn_does_not_differentiate_its_scale():
    X, module = torch.tensor(batches(1)[0], requires_grad=True), losses.IsoBatchNorm(10).double()
    module(X).sum().backward()
    assert torch.allclose(X.grad, module.scale().expand_as(X))


@pytest.mark.parametrize("constant", [0.0, 5.0])
def test_isobn_stays_finite_where_nothing_varies(constant):
    X = torch.randn(20, 4)
    X[:, 2] = constant
    assert losses.IsoBatchNorm(4)(X).isfinite().all()
    assert losses.IsoBatchNorm(4)(torch.full((20, 4), constant)).isfinite().all()


def test_isobn_under_autocast_keeps_the_dtype():
    X = torch.randn(20, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert losses.IsoBatchNorm(4)(X.bfloat16()).dtype == torch.bfloat16
        assert torch.equal(losses.IsoBatchNorm(4)(X), losses.IsoBatchNorm(4)(X.clone()))


def test_running_covariance_is_the_weighted_mean_of_the_batches():
    module = losses.RunningCovariance(10, momentum=0.1).double()
    assert (module.covariance == 0).all()
    for step, X in enumerate(batches(30), 1):
        found = module(torch.tensor(X))
        weights = 0.9 ** np.arange(step)[::-1]
        covariances = [np.cov(batch.T) for batch in batches(30)[:step]]
        assert np.allclose(found, np.average(covariances, axis=0, weights=weights), rtol=1e-6)
    before = module.covariance
    assert torch.equal(module.eval()(torch.randn(9, 10, dtype=torch.float64)), before)


def joint_written_out(pairs, alpha, s):
    """Equations 2 and 3 of the paper, with |mean| + eps."""
    means, found = list(pairs[0]), []
    for k, pair in enumerate(pairs):
        mean = (abs(means[0]) + abs(means[1])) / 2
        scaled = [v * mean / (abs(m) + 1e-8) for v, m in zip(pair, means, strict=True)]
        found.append(alpha * scaled[0] + (1 - alpha) * scaled[1])
        weight = s / (1 + k)
        means = [v * weight + m * (1 - weight) for v, m in zip(pair, means, strict=True)]
    return found


@pytest.mark.parametrize("alpha", [0.5, 0.2, -0.5, 1.5])
def test_joint_loss_is_its_equations(alpha):
    random = np.random.default_rng(0)
    pairs = [(random.uniform(0.2, 2), random.uniform(-1, 6)) for _ in range(40)]
    joint = losses.JointLoss(alpha).double()
    found = [joint(*torch.tensor(pair, dtype=torch.float64)).item() for pair in pairs]
    assert found == pytest.approx(joint_written_out(pairs, alpha, 0.15))


def test_joint_loss_does_not_differentiate_its_means():
    joint = losses.JointLoss(0.3)
    one, two = torch.tensor(4.0, requires_grad=True), torch.tensor(-2.0, requires_grad=True)
    joint(one, two).backward()
    assert one.grad.item() == pytest.approx(0.3 * 3 / 4)
    assert two.grad.item() == pytest.approx(0.7 * 3 / 2)


def test_joint_loss_in_eval_stays_as_it_is():
    joint = losses.JointLoss().eval()
    assert joint(torch.tensor(4.0), torch.tensor(2.0)).item() == pytest.approx(3.0)
    assert joint.step == 0
    joint.train()(torch.tensor(0.0), torch.tensor(0.0)).item()
    assert joint.eval()(torch.tensor(1.0), torch.tensor(1.0)).isfinite()


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_layer_starts_as_the_identity_and_learns(depth):
    X = torch.randn(20, 6)
    layer = losses.IsotropyLayer(6, depth)
    assert torch.equal(layer(X), X)
    layer(X).square().sum().backward()
    assert all(part.grad.abs().max() > 0 for part in layer.parameters())
    assert sum(isinstance(part, torch.nn.Linear) for part in layer.modules()) == depth


@pytest.mark.parametrize(
    ("variant", "layer_learns", "head_learns"),
    [
        ("frozen", (True, True, True), (False, False, False)),
        ("joint", (True, True, True), (True, True, True)),
        ("alternating", (True, False, True), (False, True, False)),
    ],
)
def test_the_head_is_frozen_joint_or_alternating(variant, layer_learns, head_learns):
    layer, head = losses.IsotropyLayer(3), torch.nn.Linear(3, 2)
    for epoch in range(3):
        losses.freeze(layer, head, variant, epoch)
        assert {p.requires_grad for p in layer.parameters()} == {layer_learns[epoch]}
        assert {p.requires_grad for p in head.parameters()} == {head_learns[epoch]}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: losses.IsoBatchNorm(3)(torch.ones(1, 3)), "at least 2 rows, got 1"),
        (
            lambda: losses.IsoBatchNorm(3)(torch.ones(5, 4)),
            "4 features, but IsoBatchNorm is expecting 3",
        ),
        (lambda: losses.IsoBatchNorm(3, momentum=0), "momentum must be"),
        (lambda: losses.RunningCovariance(3)(torch.ones(1, 3)), "at least 2 rows, got 1"),
        (lambda: losses.JointLoss(float("nan")), "alpha must be a number .*, got nan"),
        (lambda: losses.JointLoss(smoothing=2), "smoothing must be"),
        (lambda: losses.IsotropyLayer(0), "d must be an integer of at least 1"),
        (lambda: losses.IsotropyLayer(3, depth=0), "depth must be an integer of at least 1"),
        (
            lambda: losses.freeze(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1), "both"),
            "variant must be one of",
        ),
    ],
)
def test_bad_input_gets_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


PROCESS = """
import sys, torch, torch.distributed as dist
from isotropy.losses import FlowNetwork, IsoBatchNorm, JointLoss, RunningCovariance
rank, store = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
X = torch.randn(3, 30, 6, dtype=torch.float64) * torch.arange(1, 7) + 1

def found(pick):
    modules = [IsoBatchNorm(6), RunningCovariance(6), FlowNetwork(6), JointLoss()]
    for module in modules:
        module.double()
    for part in X:
        rows = part[pick]
        out = modules[0](rows)
        modules[1](rows)
        modules[2](rows)
        modules[3](part.mean(), part.var())
    states = [module.state_dict() for module in modules]
    states[2] = {k: v for k, v in states[2].items() if "norm" in k}
    return states

alone = found(slice(None))
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
shared = found(slice(0, 10) if rank == 0 else slice(10, 30))
for one, other in zip(alone, shared):
    for name, value in one.items():
        assert torch.allclose(value.double(), other[name].double(), atol=1e-12), name
dist.destroy_process_group()
print("equal")
"""


@pytest.mark.slow
def test_processes_share_their_statistics(tmp_path):
    pytest.importorskip("torch.distributed", reason="torch has no distributed part")
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in running:
        out, err = process.communicate()
        assert out.strip() == "equal", err
