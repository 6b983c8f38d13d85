"""Packed text that is out of proportion or cut, counts that lie, and pickles in any guise."""

import gzip
import io
import pickle
import zipfile

import numpy as np
import pytest

import isotropy
from isotropy.sources import tables

from . import vec_files as made
from .vec_files import X, read


class Bomb:
    def __reduce__(self):
        return (print, ("a pickle was loaded",))


@pytest.mark.parametrize("name", ["x.pt", "x.PTH", "x.ckpt", "x.pkl", "x.pickle", "x.joblib"])
def test_pickles_are_refused_by_name(folder, raises, capsys, name):
    (folder / name).write_bytes(pickle.dumps(Bomb()))
    raises(isotropy.open, name, says="which can run any code when it is loaded")
    assert not capsys.readouterr().out


def test_a_torch_checkpoint_called_bin_is_refused(folder, raises):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Bomb()))
    for data in (archive.getvalue(), pickle.dumps(Bomb(), 4)):
        (folder / "pytorch_model.bin").write_bytes(data)
        raises(isotropy.open, "pytorch_model.bin", says="is a pickle")


@pytest.mark.parametrize("suffix", [".vec.gz", ".csv.gz", ".jsonl.gz"])
def test_text_that_unpacks_out_of_proportion_is_refused(folder, raises, monkeypatch, suffix):
    monkeypatch.setattr(tables, "UNPACKED_FREELY", 1 << 16)
    line = {".vec.gz": b"a 1 2\n", ".csv.gz": b"1.5,2.5\n", ".jsonl.gz": b'{"e": [1, 2]}\n'}[suffix]
    (folder / f"x{suffix}").write_bytes(gzip.compress(line * 100_000))
    raises(isotropy.open, f"x{suffix}", says="unpacks to more than 100 times its size")


def test_a_line_without_end_is_refused(folder, raises, monkeypatch):
    from isotropy.sources import csv

    monkeypatch.setattr(csv, "MOST_RECORD", 1 << 16)
    (folder / "x.vec.gz").write_bytes(gzip.compress(b"0" * (1 << 22)))
    raises(isotropy.open, "x.vec.gz", says="has a record of more than")


def test_packed_text_that_is_cut_or_changed_is_refused(folder, raises):
    data = gzip.compress(made.words())
    for broken in (data[:-1], data[:-9], data[: len(data) // 2], data[:5], data + b"more"):
        (folder / "x.vec.gz").write_bytes(broken)
        raises(isotropy.open, "x.vec.gz", says="is damaged or not a")
    checked = bytearray(data)
    checked[-8] ^= 1  # the checksum
    (folder / "x.vec.gz").write_bytes(checked)
    raises(isotropy.open, "x.vec.gz", says="CRC check failed")


def test_text_that_is_not_packed_is_refused(folder, raises):
    (folder / "x.vec.gz").write_bytes(made.words())
    raises(isotropy.open, "x.vec.gz", says="Not a gzipped file")


def test_packed_rows_with_nan_are_refused_or_left_out(folder, raises):
    rows = X.copy()
    rows[3, 1] = np.nan
    (folder / "x.vec.gz").write_bytes(gzip.compress(made.words(rows=rows)))
    source = isotropy.open("x.vec.gz", chunk_rows=5)
    raises(read, source, says="got NaN in 1 row")
    found, carried = read(isotropy.open("x.vec.gz", chunk_rows=5, skip_bad_rows=True))
    np.testing.assert_array_equal(found, np.delete(rows, 3, axis=0))
    assert carried["word"].to_pylist() == [f"w{i}" for i in range(12) if i != 3]


@pytest.mark.parametrize(
    ("data", "says"),
    {
        "empty": (b"", "is empty"),
        "half a header": (b"\x01\0\0\0", "is truncated"),
        "more rows": (made.fbin(counts=(13, 4)), "is truncated: it has 192 bytes of values"),
        "fewer rows": (made.fbin(counts=(6, 4)), "its header promises 96"),
        "no rows": (made.fbin(counts=(0, 4))[:8], "holds no vectors: 0 rows of 4"),
        "no columns": (made.fbin(counts=(12, 0))[:8], "holds no vectors: 12 rows of 0"),
        "the most of both": (made.fbin(counts=(2**32 - 1, 2**32 - 1)), "is truncated"),
    }.values(),
)
def test_counts_that_lie_are_refused(folder, raises, data, says):
    (folder / "x.fbin").write_bytes(data)
    raises(isotropy.open, "x.fbin", says=says)
