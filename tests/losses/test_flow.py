"""The flow as a torch module: its inverse, its determinant, its start."""

import pytest

from isotropy import losses
from isotropy.errors import InputError

torch = pytest.importorskip("torch", reason="torch is not installed")
FlowNetwork = losses.FlowNetwork


def moved(d, dtype=torch.float64, **shape):
    """A flow with weights that are not those of its start, and rows for it."""
    with torch.random.fork_rng():
        torch.manual_seed(d)
        flow = FlowNetwork(d, **shape).to(dtype)
        x = 2 * torch.randn(40, d, dtype=dtype) + 1
        flow(x)
        for part in flow.parameters():
            part.data += 0.1 * torch.randn_like(part)
    return flow.eval(), x


@pytest.mark.parametrize("d", [1, 2, 3, 5, 7, 16, 33, 768])
def test_the_inverse_leads_back_in_float32(d):
    flow, x = moved(d, torch.float32)
    z, logdet = flow(x)
    assert z.shape == x.shape
    assert logdet.shape == (40,)
    assert (flow.inverse(z) - x).abs().max() < 1e-4


@pytest.mark.parametrize("d", [1, 2, 3, 5, 8, 11])
def test_logdet_is_the_change_of_variables_by_finite_differences(d):
    flow, x = moved(d)
    _, logdet = flow(x)
    step = 1e-6
    for row in range(3):
        near = x[row] + step * torch.eye(d, dtype=torch.float64)
        far = x[row] - step * torch.eye(d, dtype=torch.float64)
        jacobian = (flow(near)[0] - flow(far)[0]) / (2 * step)
        found = torch.linalg.slogdet(jacobian).logabsdet
        assert logdet[row].item() == pytest.approx(found.item(), abs=1e-6)


def test_autocast_is_left():
    flow, x = moved(9, torch.float32)
    expected = flow(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z, _ = flow(x)
        assert flow(x.bfloat16())[0].dtype == torch.float32
    assert torch.equal(z, expected)
    assert (flow.inverse(z) - x).abs().max() < 1e-4


def test_log_prob_is_that_of_the_gaussian_and_the_determinant():
    flow, x = moved(5)
    z, logdet = flow(x)
    normal = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(dim=1)
    assert torch.allclose(flow.log_prob(x), normal + logdet)


def test_density_adds_up_to_one():
    flow, _ = moved(2)
    ticks = torch.linspace(-30, 30, 601, dtype=torch.float64)
    grid = torch.cartesian_prod(ticks, ticks)
    assert flow.log_prob(grid).exp().sum().item() * 0.01 == pytest.approx(1, abs=1e-6)


def test_actnorm_starts_from_the_first_batch_in_training():
    x = 7 * torch.randn(200, 6, generator=torch.Generator().manual_seed(0)) - 3
    flow = FlowNetwork(6)
    z, _ = flow.eval()(x)
    assert torch.equal(z.sort(dim=1).values, x.sort(dim=1).values)
    z, _ = flow.train()(x)
    assert torch.allclose(z.mean(dim=0), torch.zeros(6), atol=1e-5)
    assert torch.allclose(z.std(dim=0, correction=0), torch.ones(6), atol=1e-4)
    before = [part.clone() for part in flow.parameters()]
    flow(5 * x)
    assert all(torch.equal(a, b) for a, b in zip(before, flow.parameters(), strict=True))
    other = FlowNetwork(6)
    other.load_state_dict(flow.state_dict())
    assert torch.equal(other(x)[0], flow(x)[0])


def test_a_flow_that_is_put_back_to_before_its_start_starts_again():
    x = 7 * torch.randn(200, 6, generator=torch.Generator().manual_seed(0)) - 3
    flow = FlowNetwork(6)
    fresh = {name: value.clone() for name, value in flow.state_dict().items()}
    flow(x)
    flow.load_state_dict(fresh)
    assert torch.allclose(flow(100 * x)[0].std(dim=0, correction=0), torch.ones(6), atol=1e-4)
    other = FlowNetwork(6)
    torch.func.functional_call(other, {k: v.clone() for k, v in fresh.items()}, (x,))
    assert not any(step.norm.started for level in other.levels for step in level)
    assert torch.allclose(other(x)[0].std(dim=0, correction=0), torch.ones(6), atol=1e-4)


@pytest.mark.parametrize("rows", [torch.ones(1, 4), torch.full((8, 4), 0.1), torch.zeros(8, 4)])
def test_a_start_that_does_not_vary_is_only_centred(rows):
    z, logdet = FlowNetwork(4)(rows)
    assert z.abs().max() < 1e-6
    assert (logdet == 0).all()


@pytest.mark.parametrize(
    ("d", "widths"), [(1, []), (2, [2]), (3, [3]), (4, [4, 2]), (9, [9, 4, 2])]
)
def test_levels_halve_and_stop_below_two_columns(d, widths):
    assert [len(level[0].norm.bias) for level in FlowNetwork(d).levels] == widths


def test_the_second_half_has_the_odd_column():
    step = FlowNetwork(5).levels[0][0]
    assert step.coupling.shift[0].in_features == 2
    assert step.coupling.shift[-1].out_features == 3


def test_training_raises_the_likelihood():
    random = torch.Generator().manual_seed(0)
    a = torch.randn(512, 2, generator=random)
    x = torch.cat([a, a**2 + 0.1 * torch.randn(512, 2, generator=random)], dim=1)
    flow = FlowNetwork(4)
    start = flow.log_prob(x).mean().item()
    optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
    for _ in range(150):
        optimizer.zero_grad()
        (-flow.log_prob(x).mean()).backward()
        optimizer.step()
    assert flow.log_prob(x).mean().item() > start + 1


def test_bad_shapes_get_one_line():
    with pytest.raises(InputError, match="FlowNetwork: d must be an integer of at least 1, got 0"):
        FlowNetwork(0)
    with pytest.raises(
        InputError, match="FlowNetwork: hidden must be an integer of at least 1, got 0"
    ):
        FlowNetwork(3, hidden=0)
