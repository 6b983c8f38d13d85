"""Bad input gives one line that says what is wrong and what to do."""

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from safetensors.numpy import save_file

from isotropy.errors import InputError, IsotropyError, public
from isotropy.sources.opening import open_source as open


@public("measure")
def read_all(path, **options):
    source = open(path, **options)
    for chunk in source.chunks():
        list(source.read(chunk))


def refused(path, match, **options):
    """Opening, or reading all of it, gives one line that names the caller and matches."""
    with pytest.raises(IsotropyError, match=match) as caught:
        read_all(path, **options)
    message = str(caught.value)
    assert message.startswith("measure: ")
    assert "\n" not in message
    assert message.endswith(".")


def files_of(path):
    """The file, or all files of a folder."""
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def test_every_format_refuses_an_empty_file(make, X, name):
    path = make(name, X)
    for file in files_of(path):
        file.write_bytes(b"")
    refused(path, "is empty")


def test_no_truncated_or_scrambled_file_escapes_unexplained(make, X, truncated, name):
    path = make(name, X)
    noise = [b"hello, this is text\n" * 9, bytes(range(256)) * 4, b"{}\n", b"[1]\n", b"\n\n"]
    said = []
    for file in files_of(path):
        whole = file.read_bytes()
        cuts = [whole[:n] for n in (1, 3, 9, 40, len(whole) // 2, len(whole) - 2)]
        for data in cuts + noise:
            file.write_bytes(data)
            try:
                read_all(path)
            except InputError as error:
                said.append(str(error))
        file.write_bytes(whole)
    assert said
    for message in said:
        assert message.startswith("measure: ")
        assert "\n" not in message
        assert message.endswith(".")


def test_npy(make, X, truncated, tmp_path):
    path = truncated(make("npy", X), 300)
    refused(path, r"x\.npy' is truncated: it has 172 bytes of values, and its header promises 460")
    path.write_text("this is text\n" * 40)
    refused(path, r"is damaged or not a .npy file: it does not begin as one")
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    refused(path, r"Python objects \(pickled\)")
    np.save(path, np.zeros(5))
    refused(path, r"shape \(5,\). Save it with two dimensions")
    np.save(path, np.zeros((3, 2), complex))
    refused(path, "dtype complex128")
    np.save(path, np.zeros((0, 4)))
    refused(path, "holds no vectors: 0 rows of 4")
    refused(make("npy", X), "Leave column out", column="x")
    refused(make("npy", X), "must have a positive sum", sample_weight=np.zeros(23))


def test_npz(tmp_path, X):
    np.savez(tmp_path / "x.npz", a=X, b=X)
    refused(tmp_path / "x.npz", "holds 2 matrices among 'a', 'b'. Choose one with column")
    refused(tmp_path / "x.npz", "has no array 'c', only 'a', 'b'", column="c")
    np.savez_compressed(tmp_path / "x.npz", a=np.asfortranarray(X))
    refused(tmp_path / "x.npz", "Fortran order. Save it in C order")


def test_safetensors(tmp_path, X, truncated):
    path = tmp_path / "x.safetensors"
    save_file({"a": X, "b": X, "c": X[0]}, path)
    refused(path, r"holds 2 matrices among 'a' \(23, 5\), 'b' \(23, 5\), 'c' \(5,\)")
    refused(path, "has no tensor 'd', only 'a'", column="d")
    refused(path, "'c' without two dimensions", column="c")
    refused(truncated(path, 700), "is truncated", column="b")
    path.write_text("this is text, not tensors")
    refused(path, "not a safetensors file")
    save_file({"a": X > 0}, path)
    refused(path, "holds 'a' in BOOL")


def test_parquet_of_mixed_widths_names_the_row(tmp_path):
    lists = [[1.0, 2.0]] * 10 + [[1.0, 2.0, 3.0]] + [[1.0, 2.0]]
    pq.write_table(pa.table({"e": lists}), tmp_path / "x.parquet", row_group_size=4)
    refused(tmp_path / "x.parquet", "has 3 features in row 10 of column 'e', but 2 in the first")


def test_columns_that_are_missing_ambiguous_or_text(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [[1.0]], "b": [[2.0]], "t": ["x"]}), path)
    refused(path, "has no column 'c', only 'a', 'b', 't'", column="c")
    refused(path, "has several columns of vectors: 'a', 'b'. Choose with column")
    refused(path, "has string in column 't', not numbers", column="t")
    pq.write_table(pa.table({"t": ["x"]}), path)
    refused(path, "has no column of numbers or lists, only 't'")


def test_damaged_parquet(make, X, truncated):
    path = truncated(make("parquet", X), 500)
    refused(path, r"is damaged or not a Parquet file \(Parquet magic bytes not found")


def test_damaged_json_lines_are_named(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"e": [1.5, 2]}\n\n{"e": [1.5, 2]}\n{"e": [1.5, \n{"e": [1, 2]}\n')
    refused(path, "is not valid JSON in line 4", chunk_rows=1)
    refused(path, "is not valid JSON in line 4")
    path.write_text("no json\n")
    refused(path, "is not valid JSON in line 1")
    path.write_text('{"e": [1.5, 2]}\n{"e": [1.5, 2, 3]}\n')
    refused(path, "has 3 features in row 1")
    path.write_text('{"e": [1.5, 2]}\n{"e": "x"}\n')
    refused(path, r"cannot be parsed in line 2 \(.*changed from array to string")
    path.write_text('{"text": "a"}\n')
    refused(path, "has no column of numbers")
    path.write_text('{"d": [{"e": [1.5]}, {"e": [2.5]}]}\n')
    refused(path, "other than one vector a row")


def test_damaged_csv_lines_are_named(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1.5,2.5\n1.5,2.5\n1.5,x\n")
    refused(path, r"has 'x' in column 'b', row 2 \(line 4\), where there must be a number")
    path.write_text("a,b\n1.5,2.5\n1.5\n")
    refused(path, "must have 2 cells in every line, got 1 in line 3")
    path.write_text("id,a,b\n1,1.5,2.5\n")
    refused(path, "whole numbers in 'id'. They may be labels or features")
    path.write_text("a,b\n")
    refused(path, "holds no rows")
    path.write_text('e\n"[1, 2]"\n"[1, x]"\n')
    refused(path, "has other than numbers in the lists of column 'e'")
    path.write_text('e\n"[1, 2]"\n"[1, 2, 3]"\n')
    refused(path, "has 3 features in row 1")


def test_damaged_word_vectors(make, X, truncated, tmp_path):
    path = make("word2vec text", X)
    path.write_text(path.read_text().replace("23 5", "24 5"))
    refused(path, "has 23 rows, and its header promises 24")
    path.write_text("2 3\na 1 2 3\nb 1 2\n")
    refused(path, "must have a word and 3 numbers in row 1, got 'b 1 2'")
    path.write_text("0.5 1.5\n2.5 3.5\n")
    refused(path, "has no words followed by numbers")
    path = make("word2vec binary", X)
    refused(truncated(path, 400), "is truncated: its 400 bytes cannot hold 23 rows of 5 features")
    path.write_bytes(b"hello")
    refused(path, "does not begin with the numbers of rows and of features")


def test_damaged_fvecs(make, X, truncated):
    path = make("fvecs", X)
    data = bytearray(path.read_bytes())
    data[24 * 7] = 4
    path.write_bytes(data)
    refused(path, "has 4 features in row 7, but 5 in the first")
    refused(truncated(path, 100), "is truncated or not a .fvecs file")


def test_paths_that_lead_nowhere(tmp_path):
    refused(tmp_path / "x.npy", "there is no file '.*x.npy'. Check the path")
    refused(tmp_path / "x.docx", "must have a suffix that tells its format, got '.docx'")


def test_files_that_shrink_after_opening(make, X, truncated):
    path = make("npy", X)
    source = open(path)
    truncated(path, 300)
    with pytest.raises(InputError, match="has changed since it was opened"):
        list(source.read(source.chunks()[0]))


def test_things_that_are_no_vectors():
    refused(scipy.sparse.eye(3), r"X must be dense, got a sparse matrix")
    refused(np.eye(3), "chunk_rows must be an integer of at least 1", chunk_rows=0)
    refused(open(np.eye(3)), "options must be given to the source", skip_bad_rows=True)
    refused(open(np.eye(3)), "sample_weight must be given to the source", sample_weight=[1, 1, 1])


@pytest.mark.parametrize(
    ("kind", "package", "extra"),
    [("hdf5", "h5py", "hdf5"), ("zarr", "zarr", "zarr"), ("faiss", "faiss", "faiss")],
)
def test_a_missing_package_is_named_with_its_extra(make, X, monkeypatch, kind, package, extra):
    path = make(kind, X)
    monkeypatch.setitem(sys.modules, package, None)
    refused(path, rf'{package} is needed, .* pip install "isotropy\[{extra}\]"')


def test_too_little_memory_is_not_called_damage(make, X, monkeypatch):
    path = make("parquet", X)

    def no_room(*_, **__):
        raise pa.lib.ArrowMemoryError("malloc of size 1050816 failed")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", no_room)
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", no_room)
    refused(path, r"needs more memory than there is \(malloc of size 1050816 failed\)")
