"""Rows that are not finite are named, or left out and counted."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isotropy.errors import InputError
from isotropy.sources import open


def test_the_row_is_named_from_the_beginning_of_the_file(make, X, rows, name):
    X[17, 2] = np.nan
    source = open(make(name, X), chunk_rows=5)
    good = [chunk for chunk in source.chunks() if chunk.first_row + chunk.n_rows <= 17]
    for chunk in good:
        list(source.read(chunk))
    with pytest.raises(InputError, match=r"NaN in 1 row \(first: 17\b"):
        rows(source)


def test_bad_rows_are_left_out_and_counted(make, X, name):
    X[[3, 17, 18], 2] = np.nan
    source = open(make(name, X), chunk_rows=5, skip_bad_rows=True, sample_weight=np.arange(23.0))
    batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
    assert sum(batch.n_skipped for batch in batches) == 3
    kept = np.delete(np.arange(23), [3, 17, 18])
    np.testing.assert_allclose(np.concatenate([b.rows for b in batches]), X[kept], rtol=1e-7)
    np.testing.assert_array_equal(np.concatenate([b.weights for b in batches]), kept)
    for batch in batches:
        assert batch.carried is None or batch.carried.num_rows == len(batch.rows)


def test_arrays_leave_bad_rows_out_too(X, rows):
    X[4, 0] = np.inf
    with pytest.raises(InputError, match="first: 4"):
        rows(open(X))
    source = open(X, skip_bad_rows=True)
    (batch,) = source.read(source.chunks()[0])
    assert batch.n_skipped == 1
    assert batch.rows.shape == (22, 5)


def test_a_batch_of_bad_rows_only_is_empty(tmp_path):
    np.save(tmp_path / "x.npy", np.full((3, 2), np.nan))
    source = open(tmp_path / "x.npy", skip_bad_rows=True)
    (batch,) = source.read(source.chunks()[0])
    assert batch.n_skipped == 3
    assert batch.rows.shape == (0, 2)


def test_missing_vectors_are_bad_rows(tmp_path, rows):
    pq.write_table(pa.table({"e": [[1.0, 2.0], None, [3.0, None]]}), tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text('{"e": [1, 2]}\n{"f": 1}\n{"e": [3, NaN]}\n')
    (tmp_path / "x.csv").write_text("a,b\n1.5,2.5\n,1.5\n2.5,\n")
    for name in ("x.parquet", "x.jsonl", "x.csv"):
        with pytest.raises(InputError, match=r"NaN in 2 rows \(first: 1\b"):
            rows(open(tmp_path / name))
        assert len(rows(open(tmp_path / name, skip_bad_rows=True))) == 1


def test_sums_that_overflow_are_not_mistaken_for_bad_rows(tmp_path, rows):
    X = np.full((4, 3), 3e38, np.float32)
    np.save(tmp_path / "x.npy", X)
    np.testing.assert_array_equal(rows(open(tmp_path / "x.npy")), X)
