"""What `measure` costs, counted: passes, products and copies, so that no clock is needed."""

from unittest import mock

import numpy as np
import pytest

import isotropy
from isotropy import engines, kernels, linalg
from isotropy.engines import reduce
from isotropy.sources import ArraySource
from isotropy.stats import Directions, LogPartition, Moments, Sample

from ..on_device import as_device, copies_to_host, device_source

N, D = 3000, 24


@pytest.fixture(scope="module")
def X():
    random = np.random.default_rng(0)
    mixed = random.standard_normal((N, D)) * np.linspace(2, 0.5, D) + 0.3
    return mixed.astype(np.float32)


class Passes:
    def __init__(self):
        self.n, self.n_rows = 0, 0

    def begin(self, n_rows):
        self.n += 1

    def advance(self, n_rows):
        self.n_rows += n_rows


def test_measure_makes_two_passes(X):
    seen = Passes()
    with engines.using(progress=seen):
        isotropy.measure(X)
    assert (seen.n, seen.n_rows) == (2, 2 * N)


def test_rows_in_memory_are_checked_once(X, monkeypatch):
    checked, check = [], isotropy.checks.finite_rows
    monkeypatch.setattr(
        isotropy.checks, "finite_rows", lambda X: checked.append(len(X)) or check(X)
    )
    isotropy.measure(X)
    assert sum(checked) == N
    checked.clear()
    isotropy.ClusterRemoval(3, 2).fit(X)
    assert sum(checked) == N


def test_each_row_is_multiplied_once_a_pass(X, monkeypatch):
    rows, add = [], linalg.add_product
    monkeypatch.setattr(
        linalg, "add_product", lambda total, X: rows.append(X.shape) or add(total, X)
    )
    scores, empty = [], linalg.room
    monkeypatch.setattr(
        linalg,
        "room",
        lambda shape, X, name="rows": scores.append((name, shape)) or empty(shape, X, name),
    )
    isotropy.measure(ArraySource(X, chunk_rows=700))
    assert sum(shape[0] for shape in rows) == N
    wanted = [shape for name, shape in scores if name == "scores"]
    assert sum(shape[0] for shape in wanted) == N
    assert {shape[1] for shape in wanted} == {D}


def test_measure_decomposes_once_with_vectors_and_once_without(X, monkeypatch):
    made = {"eigh": 0, "eigvalsh": 0}
    for name in made:
        function = getattr(np.linalg, name)

        def counted(A, name=name, function=function):
            made[name] += len(A) == D
            return function(A)

        monkeypatch.setattr(np.linalg, name, counted)
    isotropy.measure(X)
    assert made == {"eigh": 1, "eigvalsh": 1}


def test_a_block_on_a_device_is_looked_at_once_by_each_statistic(X):
    torch = pytest.importorskip("torch", reason="makes tensors")
    rows = torch.from_numpy(X)
    statistics = [Moments(np.zeros(D), False), Directions(False), Sample(10, limit=-(2**62))]
    statistics.append(LogPartition(np.eye(D), largest_norm=30.0))
    with as_device(), mock.patch.object(linalg, "BLOCK_ELEMENTS", 256 * D):
        n_blocks = len(list(linalg.blocks(rows, on_device=1)))
        with mock.patch.object(linalg.blocks, "__defaults__", (None, 1, 1)):
            for statistic in statistics:
                with copies_to_host() as copies:
                    statistic.update(rows)
                expected = {Moments: n_blocks, Directions: 1}  # whose blocks are larger
                found = copies["lists"], copies["numbers"] + copies["arrays"]
                assert found[0] == expected.get(type(statistic), 0), type(statistic).__name__
                assert found[1] <= 8, type(statistic).__name__


def test_a_pass_on_a_device_copies_states_and_no_rows(X):
    pytest.importorskip("torch", reason="makes tensors")
    copied, to_numpy = [], linalg.to_numpy
    with (
        as_device(),
        mock.patch.object(
            linalg, "to_numpy", lambda X: copied.append(tuple(X.shape)) or to_numpy(X)
        ),
    ):
        reduce(device_source(X), [Moments(), Directions(), Sample(10)])
    assert not [shape for shape in copied if len(shape) == 2 and shape[0] > D]


def test_a_symmetric_product_of_a_device_makes_no_product_twice(monkeypatch):
    torch = pytest.importorskip("torch", reason="makes tensors")
    from torch.utils.flop_counter import FlopCounterMode

    monkeypatch.setattr(kernels, "PANEL", 8)
    total = torch.zeros(D, D, dtype=torch.float64)
    with FlopCounterMode(display=False) as counted:
        linalg.add_product(total, torch.ones(10, D))
    assert counted.get_total_flops() == 2 * 10 * D**2 * 6 // 9  # of nine panels, six
    assert (total == 10).all()
