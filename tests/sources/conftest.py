"""Writers of every format, independent of the readers under test."""

from __future__ import annotations

import csv
import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

WORDS = ["the", ",", '"', "naïve", "New York", "nan", "0.5"]


def words(n):
    return [WORDS[i] if i < len(WORDS) else f"w{i}" for i in range(n)]


def table(X):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), X.shape[1])
    return pa.table({"id": list(range(len(X))), "vector": lists, "text": words(len(X))})


def npz_stored(path, X):
    np.savez(path, X=X, labels=np.arange(len(X)))


def npz_compressed(path, X):
    np.savez_compressed(path, X=X, labels=np.arange(len(X)))


def fortran(path, X):
    np.save(path, np.asfortranarray(X))


def safetensors(path, X):
    from safetensors.numpy import save_file

    save_file({"embeddings": X, "labels": np.arange(len(X))}, path)


def parquet(path, X):
    pq.write_table(table(X), path, row_group_size=7)


def parquet_lists(path, X):
    kind = pa.list_(pa.from_numpy_dtype(X.dtype))
    pq.write_table(pa.table({"id": range(len(X)), "vector": pa.array(list(X), kind)}), path)


def parquet_columns(path, X):
    columns = {f"d{j}": X[:, j] for j in range(X.shape[1])}
    pq.write_table(pa.table({"id": list(range(len(X)))} | columns), path, row_group_size=7)


def arrow_file(path, X):
    with pa.ipc.new_file(path, table(X).schema) as writer:
        writer.write_table(table(X), max_chunksize=6)


def arrow_stream(path, X):
    with pa.ipc.new_stream(path, table(X).schema) as writer:
        writer.write_table(table(X), max_chunksize=6)


def feather(path, X):
    pyarrow.feather.write_feather(table(X), path, compression="lz4")


def csv_columns(path, X):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", *(f"d{j}" for j in range(X.shape[1]))])
        for word, row in zip(words(len(X)), X.tolist(), strict=True):
            writer.writerow(["two\nlines, " + word, *row])


def csv_lists(path, X):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerow(["text", "vector"])
        for word, row in zip(words(len(X)), X.tolist(), strict=True):
            writer.writerow([word, json.dumps(row)])


def csv_bare(path, X):
    Path(path).write_text("".join(",".join(map(repr, row)) + "\n" for row in X.tolist()))


def jsonl(path, X):
    lines = [{"id": i, "embedding": row} for i, row in enumerate(X.tolist())]
    Path(path).write_text("\n\n".join(map(json.dumps, lines)))


def jsonl_nested(path, X):
    lines = [{"data": [{"embedding": row, "index": 0}], "model": "m"} for row in X.tolist()]
    Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines))


def word2vec_text(path, X):
    lines = [f"{w} {' '.join(map(repr, row))}" for w, row in zip(words(len(X)), X.tolist())]  # noqa: B905
    Path(path).write_text(f"{len(X)} {X.shape[1]}\n" + " \n".join(lines) + " \n")


def glove(path, X):
    lines = [f"{w} {' '.join(map(repr, row))}" for w, row in zip(words(len(X)), X.tolist())]  # noqa: B905
    Path(path).write_text("\n".join(lines))


def word2vec_binary(path, X):
    with open(path, "wb") as file:
        file.write(f"{len(X)} {X.shape[1]}\n".encode())
        for i, row in enumerate(X):
            file.write(f"w{i} ".encode() + row.astype("<f4").tobytes() + b"\n" * (i % 2))


def fvecs(path, X):
    with open(path, "wb") as file:
        for row in X:
            file.write(struct.pack("<i", len(row)) + row.tobytes())


def fbin(path, X):
    Path(path).write_bytes(struct.pack("<II", *X.shape) + X.tobytes())


def hdf5(path, X):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["labels"] = np.arange(len(X))
        file["deep/X"] = X


def hdf5_chunked(path, X):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=(7, 2), compression="gzip", shuffle=True)


def zarr_array(path, X):
    zarr = pytest.importorskip("zarr")
    zarr.create_array(path, data=X, chunks=(7, 2), overwrite=True)


def zarr_group(path, X):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(path, mode="w")
    group.create_array("deep/X", data=X, chunks=(2, 5), shards=(6, 5))
    group.create_array("labels", data=np.arange(len(X)))


def zarr_old(path, X):
    zarr = pytest.importorskip("zarr")
    zarr.create_array(path, data=X, chunks=(7, 5), zarr_format=2, overwrite=True)


def gguf(path, X):
    pytest.importorskip("gguf")
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "test")
    writer.add_token_list(words(len(X)))
    writer.add_tensor("norm.weight", np.ones(5, np.float32))
    writer.add_tensor("token_embd.weight", X)
    writer.add_tensor("output.weight", X + 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def faiss_flat(path, X):
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexIDMap2(faiss.IndexFlatIP(X.shape[1]))
    index.add_with_ids(X, np.arange(len(X)) * 7)
    faiss.write_index(index, str(path))


def packed(writer):
    """The writer of the same file as .gz."""

    def write(path, X):
        writer(path.with_suffix(""), X)
        path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))

    return write


FLOATS = ("float16", "float32", "float64")
FORMATS = {  # name: (suffix, writer, dtypes that it keeps)
    "npy": (".npy", np.save, (*FLOATS, "int8", "int32", ">f4")),
    "npy in Fortran order": (".npy", fortran, FLOATS),
    "npz": (".npz", npz_stored, FLOATS),
    "npz compressed": (".npz", npz_compressed, (*FLOATS, "int8")),
    "safetensors": (".safetensors", safetensors, (*FLOATS, "int8")),
    "parquet": (".parquet", parquet, (*FLOATS, "int8")),
    "parquet lists": (".parquet", parquet_lists, FLOATS),
    "parquet columns": (".parquet", parquet_columns, FLOATS),
    "arrow file": (".arrow", arrow_file, (*FLOATS, "int8")),
    "arrow stream": (".arrow", arrow_stream, FLOATS),
    "feather": (".feather", feather, FLOATS),
    "csv": (".csv", csv_columns, ("float64",)),
    "csv lists": (".csv", csv_lists, ("float64",)),
    "tsv lists": (".tsv", csv_lists, ("float64",)),
    "csv without header": (".csv", csv_bare, ("float64",)),
    "jsonl": (".jsonl", jsonl, ("float64",)),
    "jsonl nested": (".ndjson", jsonl_nested, ("float64",)),
    "word2vec text": (".vec", word2vec_text, ("float32",)),
    "glove": (".txt", glove, ("float32",)),
    "word2vec binary": (".bin", word2vec_binary, ("float32",)),
    "fvecs": (".fvecs", fvecs, ("float32",)),
    "fbin": (".fbin", fbin, ("float32",)),
    "hdf5": (".h5", hdf5, (*FLOATS, "int8", ">f4")),
    "hdf5 chunked": (".hdf5", hdf5_chunked, FLOATS),
    "zarr": (".zarr", zarr_array, (*FLOATS, "int8")),
    "zarr group": (".zarr", zarr_group, FLOATS),
    "zarr format 2": (".zarr", zarr_old, FLOATS),
    "gguf": (".gguf", gguf, ("float16", "float32")),
    "faiss": (".faiss", faiss_flat, ("float32",)),
    "csv.gz": (".csv.gz", packed(csv_columns), ("float64",)),
    "tsv.gz": (".tsv.gz", packed(csv_lists), ("float64",)),
    "jsonl.gz": (".jsonl.gz", packed(jsonl), ("float64",)),
    "vec.gz": (".vec.gz", packed(word2vec_text), ("float32",)),
    "glove.gz": (".txt.gz", packed(glove), ("float32",)),
}
COLUMN = {"npz": "X", "npz compressed": "X", "safetensors": "embeddings"}


@pytest.fixture
def make(tmp_path):
    """make(format, X) writes X and gives the path."""

    def write(name, X, stem="x"):
        suffix, writer, _ = FORMATS[name]
        path = tmp_path / f"{stem}{suffix}"
        writer(path, X)
        return path

    return write


@pytest.fixture
def X():
    return np.random.default_rng(0).normal(size=(23, 5)).astype(np.float32)


@pytest.fixture
def truncated():
    """truncated(path, n) cuts a file to its first n bytes."""

    def cut(path, n):
        path.write_bytes(path.read_bytes()[:n])
        return path

    return cut


def pytest_generate_tests(metafunc):
    if {"name", "dtype"} <= set(metafunc.fixturenames):
        cases = [(name, dtype) for name, (_, _, kept) in FORMATS.items() for dtype in kept]
        metafunc.parametrize(("name", "dtype"), cases)
    elif "name" in metafunc.fixturenames:
        metafunc.parametrize("name", FORMATS)
