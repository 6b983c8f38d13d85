"""Fits of sources whose first chunks have no good row."""

import numpy as np
import pytest

import isotropy
from isotropy.repairs import Center, PerGroup, Whiten


@pytest.fixture
def X():
    rows = np.random.default_rng(0).standard_normal((200, 4)) + 3
    rows[:30] = np.nan
    return rows


def test_the_first_good_row_settles_what_all_chunks_share(X, tmp_path):
    np.save(tmp_path / "x.npy", X)
    source = isotropy.open(tmp_path / "x.npy", chunk_rows=10, skip_bad_rows=True)
    np.testing.assert_allclose(Center().fit(source).mean_, X[30:].mean(axis=0), rtol=1e-12)


def test_rows_without_weight_may_come_first(X):
    weight = np.ones(200)
    weight[:30] = 0
    found = Center().fit(np.nan_to_num(X), sample_weight=weight)
    np.testing.assert_allclose(found.mean_, X[30:].mean(axis=0), rtol=1e-12)


def test_a_chunk_without_good_rows_has_the_width_of_the_others(X, tmp_path):
    groups = np.arange(200) % 2
    np.save(tmp_path / "x.npy", X)
    repair = PerGroup(Whiten(n_components=2, method="pca")).fit(X[30:], groups=groups[30:])
    source = isotropy.open(tmp_path / "x.npy", chunk_rows=10, skip_bad_rows=True)
    repair.transform(source, groups=groups, out=tmp_path / "y.npy")
    wanted = repair.transform(X[30:], groups=groups[30:])
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, rtol=1e-12, atol=1e-12)
