"""Sinks keep rows, dtype and columns, and leave a whole file or what was there before."""

import errno
import os
import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from isotropy.errors import InputError
from isotropy.sources import open, open_sink

SUFFIXES = [".npy", ".parquet", ".safetensors", ".vec"]


def pour(source, sink, scale=1.0):
    for chunk in source.chunks():
        for batch in source.read(chunk):
            sink.write(batch.rows * scale, batch.carried)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_and_dtype_come_back(tmp_path, X, rows, suffix, dtype):
    X = X.astype(dtype)
    words = pa.table({"word": [f"w{i}" for i in range(23)]})
    with open_sink(tmp_path / f"x{suffix}", 5, dtype) as sink:
        sink.write(X[:10], words.slice(0, 10))
        sink.write(X[10:], words.slice(10))
    assert sink.n_rows == 23
    assert [path.name for path in tmp_path.iterdir()] == [f"x{suffix}"]
    source = open(tmp_path / f"x{suffix}")
    assert source.dtype == ("float32" if suffix == ".vec" else dtype)
    np.testing.assert_allclose(rows(source), X, rtol=1e-6)


def test_other_readers_read_what_was_written(tmp_path, X):
    carried = pa.table({"word": [f"w{i}" for i in range(23)]})
    for suffix in SUFFIXES:
        with open_sink(tmp_path / f"x{suffix}", 5, "float32") as sink:
            sink.write(X, carried)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), X)
    np.testing.assert_array_equal(load_file(tmp_path / "x.safetensors")["embeddings"], X)
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.column_names == ["word", "embedding"]
    np.testing.assert_array_equal(np.stack(table["embedding"].to_numpy()), X)
    first, *lines = (tmp_path / "x.vec").read_text().splitlines()
    assert first.split() == ["23", "5"]
    word, *values = lines[4].split(" ")
    assert word == "w4"
    np.testing.assert_array_equal(np.float32(values), X[4])


def test_bfloat16_stays_in_safetensors_and_widens_elsewhere(tmp_path, X):
    torch = pytest.importorskip("torch", reason="checks the rounding against torch")
    from safetensors.torch import load_file as load

    for suffix in (".safetensors", ".npy"):
        with open_sink(tmp_path / f"x{suffix}", 5, "bfloat16") as sink:
            sink.write(X)
    kept = load(tmp_path / "x.safetensors")["embeddings"]
    assert torch.equal(kept, torch.from_numpy(X).bfloat16())
    assert np.load(tmp_path / "x.npy").dtype == np.float32


def test_whole_numbers_are_written_as_floats(tmp_path, X):
    with open_sink(tmp_path / "x.npy", 5, "int16") as sink:
        sink.write(X)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), X)


def test_codes_are_written_as_they_are_and_rows_are_not_cut_to_codes(tmp_path, X):
    codes = np.arange(10, dtype=np.int8).reshape(2, 5)
    with open_sink(tmp_path / "x.npy", 5, "int8") as sink:
        sink.write(codes)
    assert np.load(tmp_path / "x.npy").dtype == np.int8
    with (
        pytest.raises(InputError, match="codes must be int8, got float"),
        open_sink(tmp_path / "y.npy", 5, "int8") as sink,
    ):
        sink.write(X)


@pytest.mark.parametrize("which", ["parquet", "arrow stream", "csv", "csv lists", "jsonl", "glove"])
def test_carried_columns_come_back_from_parquet(make, tmp_path, X, rows, which):
    source = open(make(which, X), chunk_rows=7)
    with open_sink(tmp_path / "out.parquet", 5, like=source) as sink:
        pour(source, sink, scale=2)
    again = open(tmp_path / "out.parquet", chunk_rows=7)
    assert again.dtype == source.dtype
    np.testing.assert_allclose(rows(again), 2 * X, rtol=1e-6)
    assert again.column == source.column or again.column == "embedding"
    carried = [
        pa.concat_tables(b.carried for c in s.chunks() for b in s.read(c)).to_pydict()
        for s in (source, again)
    ]
    assert carried[0] == carried[1]


def test_words_come_back_from_word2vec_text(make, tmp_path, X):
    source = open(make("glove", X), chunk_rows=7)
    with open_sink(tmp_path / "out.vec", 5, like=source) as sink:
        pour(source, sink)
    assert (tmp_path / "out.vec").read_bytes().startswith(b"23 5\n")
    for path in (source, open(tmp_path / "out.vec")):
        words = [
            w for c in path.chunks() for b in path.read(c) for w in b.carried["word"].to_pylist()
        ]
        assert words[:5] == ["the", ",", '"', "naïve", "New York"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_input_is_never_its_own_target(make, X, rows, overwrite):
    path = make("npy", X)
    source = open(path, chunk_rows=5)
    with pytest.raises(InputError, match="must be another file than X"):
        open_sink(path, 5, like=source, overwrite=overwrite)
    np.testing.assert_allclose(rows(open(path)), X, rtol=1e-6)


def test_a_file_that_exists_is_replaced_when_asked(tmp_path, X, rows):
    (tmp_path / "x.npy").write_bytes(b"old")
    with pytest.raises(InputError, match=r"exists\. Pass overwrite=True to replace it\.$"):
        open_sink(tmp_path / "x.npy", 5)
    with open_sink(tmp_path / "x.npy", 5, overwrite=True) as sink:
        sink.write(X)
    np.testing.assert_array_equal(rows(open(tmp_path / "x.npy")), X)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_the_middle_leaves_the_old_file(tmp_path, X, suffix, error):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"old")
    words = pa.table({"word": ["w"] * 23})
    with pytest.raises(error), open_sink(path, 5, "float32", overwrite=True) as sink:  # noqa: PT012
        sink.write(X, words)
        raise error
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


class FullDisk:
    """A file on a disk that takes no more after n bytes."""

    def __init__(self, file, n):
        self.file, self.left = file, n

    def write(self, data):
        self.left -= memoryview(data).nbytes
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


def fill_the_disk(sink, X, words):
    sink.file = FullDisk(sink.file, 700)
    for _ in range(100):
        sink.write(X, words)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk_gives_one_line_and_leaves_the_old_file(tmp_path, X, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"old")
    words = pa.table({"word": ["w"] * 23})
    with (
        pytest.raises(InputError, match=r"^'.*' could not be written .* the disk is full\. Fr"),
        open_sink(path, 5, "float32", overwrite=True) as sink,
    ):
        fill_the_disk(sink, X, words)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_is_full_at_the_end_leaves_the_old_file(tmp_path, X, monkeypatch):
    def fsync(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "x.npy").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fsync)
    with (
        pytest.raises(InputError, match="the disk is full"),
        open_sink(tmp_path / "x.npy", 5, overwrite=True) as sink,
    ):
        sink.write(X)
    assert (tmp_path / "x.npy").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_leftover_of_a_killed_run_is_removed_and_a_file_of_somebody_is_not(tmp_path, X):
    (tmp_path / ".x.npy.0123456789abcdef.isotropy-part").write_bytes(b"half")
    (tmp_path / "x.npy.part").write_bytes(b"somebody's")
    with open_sink(tmp_path / "x.npy", 5) as sink:
        sink.write(X)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy", "x.npy.part"]
    assert (tmp_path / "x.npy.part").read_bytes() == b"somebody's"


def test_what_cannot_be_written_is_said(tmp_path, X):
    with pytest.raises(InputError, match=r"must end in one of \.npy"):
        open_sink(tmp_path / "x.docx", 5)
    with pytest.raises(InputError, match="must be in an existing folder"):
        open_sink(tmp_path / "no" / "x.npy", 5)
    with pytest.raises(InputError, match="must be a local file"):
        open_sink("s3://bucket/x.npy", 5)
    with pytest.raises(InputError, match="no rows to write"), open_sink(tmp_path / "x.npy", 5):
        pass
    with pytest.raises(InputError, match="rows must fit float16"):  # noqa: SIM117
        with open_sink(tmp_path / "x.npy", 5, "float16") as sink:
            sink.write(X * 1e6)
    with pytest.raises(InputError, match="has 4 features, but isotropy is expecting 5"):  # noqa: SIM117
        with open_sink(tmp_path / "x.npy", 5) as sink:
            sink.write(X[:, :4])
    with pytest.raises(InputError, match="needs words"), open_sink(tmp_path / "x.vec", 5) as sink:
        sink.write(X)
    with open_sink(tmp_path / "x.parquet", 5) as sink:
        sink.write(X, pa.table({"a": range(23)}))
        with pytest.raises(InputError, match="carried columns must stay the same"):
            sink.write(X, pa.table({"b": range(23)}))
    (tmp_path / "x.parquet").unlink()
    with pytest.raises(InputError, match="a carried column 'embedding' already"):  # noqa: SIM117
        with open_sink(tmp_path / "x.parquet", 5) as sink:
            sink.write(X, pa.table({"embedding": range(23)}))
    assert not list(tmp_path.iterdir())


def test_parts_are_written_in_any_order_and_read_in_theirs(tmp_path, X, rows):
    source = open(X, chunk_rows=5)
    with open_sink(tmp_path / "out", 5, like=source) as parts:
        for i, chunk in reversed(list(enumerate(source.chunks()))):
            with pickle.loads(pickle.dumps(parts)).part(i) as sink:
                for batch in source.read(chunk):
                    sink.write(batch.rows)
        with parts.part(99):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert sorted(os.listdir(tmp_path / "out"))[-1] == "part-00004.parquet"
    np.testing.assert_array_equal(rows(open(tmp_path / "out")), X)


def test_parts_are_written_by_another_process(tmp_path, X, rows):
    code = (
        "import pickle, sys; parts, X = pickle.load(sys.stdin.buffer)\n"
        "with parts.part(0) as sink: sink.write(X)"
    )
    with open_sink(tmp_path / "out", 5) as parts:
        subprocess.run([sys.executable, "-c", code], input=pickle.dumps((parts, X)), check=True)
    np.testing.assert_array_equal(rows(open(tmp_path / "out")), X)


def test_parts_replace_older_parts_only_when_whole(tmp_path, X, rows):
    for scale in (1, 2):
        with open_sink(tmp_path / "out", 5, overwrite=True) as parts, parts.part(0) as sink:
            sink.write(X * scale)
    np.testing.assert_array_equal(rows(open(tmp_path / "out")), 2 * X)
    with pytest.raises(InputError, match="exists"):
        open_sink(tmp_path / "out", 5)
    parts = open_sink(tmp_path / "out", 5, overwrite=True)
    with pytest.raises(KeyboardInterrupt), parts:  # noqa: PT012
        with parts.part(0) as sink:
            sink.write(X)
        raise KeyboardInterrupt
    np.testing.assert_array_equal(rows(open(tmp_path / "out")), 2 * X)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_of_other_things_is_not_replaced(tmp_path, X):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    for overwrite in (False, True):
        with pytest.raises(InputError, match="files that isotropy did not write"):
            open_sink(tmp_path / "out", 5, overwrite=overwrite)
    assert (tmp_path / "out" / "thesis.tex").exists()


@pytest.mark.parametrize("suffix", [".parquet", ".safetensors", ""])
def test_the_origin_is_kept_where_the_format_has_room(tmp_path, X, rows, suffix):
    origin = {"model": "bert", "layer": 6, "prompt": 'q"\u00fc', "normalised": False}
    with open_sink(tmp_path / f"x{suffix}", 5, "float64", origin=origin) as sink:
        sink.write(X[:10])
        sink.write(X[10:])
    source = open(tmp_path / f"x{suffix}")
    assert source.origin() == origin
    np.testing.assert_array_equal(rows(source), X)
    with open_sink(tmp_path / "y.parquet", 5, like=source) as sink:
        pour(source, sink)  # which may be other rows by now
    assert open(tmp_path / "y.parquet").origin() == {}


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_damaged_origin_is_refused(tmp_path, X, text):
    schema = pa.schema([pa.field("v", pa.list_(pa.float64(), 5))], {"isotropy.origin": text})
    table = pa.table({"v": pa.array(X.tolist(), pa.list_(pa.float64(), 5))}, schema=schema)
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"isotropy\.origin.*Write it again"):
        open(tmp_path / "x.parquet").origin()
