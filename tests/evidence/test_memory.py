"""Token rows are held once: fits, folds and repairs read them in blocks."""

import tracemalloc

import numpy as np
import pytest

from isotropy import threads
from isotropy.evidence import advise, compare
from isotropy.models import tokens
from isotropy.models.tokens import Stack, TokenRows, joined
from isotropy.sources import PickedRows, base

from .examples import TokenEncoder, sts

BLOCK = 1 << 16  # elements


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks that are small beside the rows of these tests, for two threads at most."""
    monkeypatch.setattr(base, "PICKED_ELEMENTS", BLOCK)
    monkeypatch.setattr(tokens, "BLOCK_ELEMENTS", BLOCK)
    monkeypatch.setattr(threads, "n_threads", lambda: 2)


class Long(TokenEncoder):
    """Sixty token rows a text, all in one array."""

    def __init__(self, texts, X):
        super().__init__(texts, X[:, :4])
        random = np.random.default_rng(0)
        rows = np.repeat(X.astype(np.float32), 60, axis=0)
        rows += random.standard_normal(rows.shape, dtype=np.float32)
        self.found = TokenRows(rows, np.arange(len(X) + 1) * 60)
        self.known = list(texts)

    def tokens(self, texts, progress=None):
        assert list(texts) == self.known
        return self.found


@pytest.mark.slow
@pytest.mark.parametrize("function", [advise, compare])
def test_no_second_copy_of_the_token_rows_is_made(function, small_blocks):
    task, X = sts("planted", n=250, d=192)
    encoder = Long(task.texts, X)
    repairs = ["center", "whiten:n_components=8", "cluster-removal:n_clusters=3,n_components=2"]
    options = {"candidates": repairs} if function is advise else {"repairs": repairs, "seeds": 1}
    function(encoder, task, **options)  # what is imported and cached on first use
    size = encoder.found.rows.nbytes
    assert size > 20_000_000
    tracemalloc.start()
    found = function(encoder, task, **options)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found is not None
    assert peak < size, f"{peak / size:.1f} times the rows, beside them"


def test_means_of_many_blocks_are_those_of_one(monkeypatch):
    random = np.random.default_rng(0)
    parts = [
        random.standard_normal((random.integers(1, 9), 5)).astype(np.float32) for _ in "x" * 99
    ]
    found = joined(parts)
    expected = np.stack([part.astype(np.float64).mean(axis=0) for part in parts])
    for elements in (1, 40, 1 << 21):
        monkeypatch.setattr(tokens, "BLOCK_ELEMENTS", elements)
        np.testing.assert_allclose(found.means(), expected, rtol=1e-6)
        slices = list(tokens.bounded(np.diff(found.starts), 5))
        assert [i for part in slices for i in range(99)[part]] == list(range(99))


def test_parts_are_stacked_in_one_copy():
    random = np.random.default_rng(0)
    parts = [joined([random.standard_normal((n, 64)).astype(np.float32)]) for n in [500] * 80]
    size = sum(part.rows.nbytes for part in parts)
    tracemalloc.start()
    stack = Stack()
    for part in parts:
        stack.add(part)
    found = stack.tokens()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.3 * size
    np.testing.assert_array_equal(found.rows, np.concatenate([part.rows for part in parts]))
    assert found.starts.tolist() == list(range(0, 40_001, 500))


def test_picked_rows_are_a_source_of_them(monkeypatch):
    X = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float16)
    numbers = np.array([7, 3, 3, 49, 0, 12])
    monkeypatch.setattr(base, "PICKED_ELEMENTS", 8)
    source = PickedRows(X, numbers)
    batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
    assert [len(batch.rows) for batch in batches] == [2, 2, 2]
    assert (source.n_samples, source.n_features) == (6, 4)
    found = np.concatenate([batch.rows for batch in batches])
    np.testing.assert_array_equal(found, X[numbers].astype(np.float32))
