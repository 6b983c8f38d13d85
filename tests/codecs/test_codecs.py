"""Codecs, compared with numpy, with what they store, and on real vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone

from isotropy import linalg, repairs, sources
from isotropy.codecs import Binary, Codec, Faiss, Float, Rescored, Scalar, base, bits, load, ranking
from isotropy.errors import InputError, IsotropyError, RepairFileError
from isotropy.repairs import Center, Whiten, files
from isotropy.testing import check_codec

CODECS = {
    "binary": Binary(),
    "binary, centred": Binary(repair=Center()),
    "binary, medians, asymmetric": Binary(threshold="median", asymmetric=True),
    "binary, first dimensions": Binary(n_dims=13),
    "int8": Scalar(),
    "int8, principal components": Scalar(n_dims=10, truncate="pca"),
    "int4": Scalar(bits=4, repair=Center()),
    "int4, odd": Scalar(bits=4, n_dims=13, truncate="pca", repair=Center()),
    "float32": Float(repair=Whiten(n_components=6, method="pca")),
    "float16": Float(half=True),
    "bits, then int8": Rescored(
        coarse=Binary(repair=Center(), n_dims=16), fine=Scalar(), n_candidates=600
    ),
    "bits, then float32": Rescored(
        coarse=Binary(asymmetric=True), fine=Float(repair=Center()), n_candidates=600
    ),
}


FAISS = {
    "PQ": Faiss(factory="PQ6x4", repair=Center()),
    "OPQ": Faiss(factory="OPQ4_16,PQ4x4", n_dims=20),
    "RaBitQ": Faiss(factory="RaBitQ", repair=Center()),
    "RaBitQ, rotated": Faiss(factory="RR,RaBitQ4"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAISS)
def test_codec_of_faiss_keeps_its_promises(name: str) -> None:
    pytest.importorskip("faiss")
    check_codec(FAISS[name])


@pytest.mark.parametrize("name", CODECS)
def test_codec_keeps_its_promises(name: str) -> None:
    check_codec(CODECS[name])


def rows(n_rows: int = 500, n_features: int = 37) -> np.ndarray:
    random = np.random.default_rng(0)
    return (random.standard_normal((n_rows, n_features)) + 0.3).astype(np.float32)


def test_bits_are_those_of_packbits() -> None:
    X = rows()
    np.testing.assert_array_equal(Binary().fit(X).encode(X), np.packbits(X > 0, axis=1))
    centred = X - X.astype(np.float64).mean(axis=0).astype(np.float32)
    codes = Binary(repair=Center()).fit(X).encode(X)
    assert (codes != np.packbits(centred > 0, axis=1)).mean() < 1e-3
    medians = Binary(threshold="median").fit(X)
    shares = np.unpackbits(medians.encode(X), axis=1, count=37).mean(axis=0)
    np.testing.assert_allclose(shares, 0.5, atol=2 / 500)


def test_bits_equal_those_of_sentence_transformers() -> None:
    quantization = pytest.importorskip("sentence_transformers.util.quantization")
    X = rows(200, 64)
    wanted = quantization.quantize_embeddings(X, "ubinary")
    np.testing.assert_array_equal(Binary().fit(X).encode(X), wanted)


def test_search_counts_differing_bits() -> None:
    X = rows()
    codec = Binary().fit(X)
    codes = codec.encode(X)
    signs = np.where(X > 0, 1, -1)
    differing = (37 - signs[:30] @ signs.T) // 2
    order = np.argsort(differing, axis=1, kind="stable")[:, :9]
    scores, indices = codec.search(X[:30], codes, 9)
    np.testing.assert_array_equal(indices, order)
    wanted = 1 - 2 * np.take_along_axis(differing, order, axis=1) / 37
    np.testing.assert_allclose(scores, wanted, atol=1e-6)


def test_search_in_small_blocks_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    X = rows()
    found = []
    for n_elements in (1 << 21, 37 * 10):
        monkeypatch.setattr(linalg, "BLOCK_ELEMENTS", n_elements)
        monkeypatch.setattr(base, "COMPARED", n_elements)
        for codec in (Binary(), Rescored(n_candidates=30)):
            codec.fit(X)
            found.append(codec.search(X[:40], codec.encode(X), 7)[1])
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], found[3])


def test_tensors_are_searched_as_arrays_are() -> None:
    """What runs on a device, with tensors that would be made arrays on the way in."""
    torch = pytest.importorskip("torch")
    X = rows()
    for codec in (Binary(), Binary(asymmetric=True), Scalar(), Scalar(bits=4), Rescored()):
        codec.fit(X)
        codes = codec.encoded(torch.from_numpy(X))
        assert isinstance(codes, torch.Tensor)
        np.testing.assert_array_equal(codes.numpy(), codec.encode(X))
        wanted = codec.search(X[:20], codec.encode(X), 5)
        found = ranking.ranked(codec.best(torch.from_numpy(X[:20]), codes, 5))
        np.testing.assert_allclose(found[0].numpy(), wanted[0], atol=1e-6)
        if type(codec) is Binary and not codec.asymmetric:
            np.testing.assert_array_equal(found[1].numpy(), wanted[1])


def test_nibbles_have_the_first_of_a_pair_below() -> None:
    cells = np.array([[1, 2, 3], [15, 0, 7]], np.uint8)
    packed = bits.pack_nibbles(cells)
    np.testing.assert_array_equal(packed, [[0x21, 0x03], [0x0F, 0x07]])
    np.testing.assert_array_equal(bits.unpack_nibbles(packed, 3), cells)


@pytest.mark.parametrize("n_bits", [8, 4])
def test_values_are_in_the_middle_of_their_cells(n_bits: int) -> None:
    X = rows(2000, 16)
    codec = Scalar(bits=n_bits).fit(X)
    width = codec.span_ / (2**n_bits - 1)
    low, high = codec.low_, codec.low_ + width * 2**n_bits
    units = X / np.linalg.norm(X, axis=1, keepdims=True)
    inside = (units > low) & (units < high)
    apart = np.abs(codec.values(codec.encode(X)) - units) / width
    assert apart[inside].max() < 0.5 + 1e-3
    assert inside.mean() > (0.99 if n_bits == 8 else 0.98)


def test_scores_order_floats_of_any_sign() -> None:
    scores = np.array([[-0.5, 0.0, 3.0, -0.0, -0.5, 1e-30, -1e30]], np.float32)
    found, indices = ranking.ranked(ranking.keys_of(scores, 0))
    assert indices.tolist() == [[2, 5, 1, 3, 0, 4, 6]]
    np.testing.assert_array_equal(found, scores[0][indices])


def test_streamed_codes_equal_those_in_memory(tmp_path: Path) -> None:
    X = rows(3000, 37)
    np.save(tmp_path / "rows.npy", X)
    for codec in (Binary(repair=Center()), Scalar(), Rescored(coarse=Binary())):
        wanted = codec.fit(X).encode(X)
        for suffix in (".npy", ".parquet", ".safetensors"):
            out = tmp_path / f"{codec.name}{suffix}"
            codec.encode(tmp_path / "rows.npy", out=out)
            found = sources.open(out)
            assert (found.n_samples, found.n_features) == wanted.shape
            (batch,) = found.read(found.chunks()[0])
            np.testing.assert_array_equal(batch.rows, wanted)
        mapped = np.load(tmp_path / f"{codec.name}.npy", mmap_mode="r")
        assert mapped.dtype == wanted.dtype
        np.testing.assert_array_equal(
            codec.search(X[:5], mapped, 3)[1], codec.search(X[:5], wanted, 3)[1]
        )


def test_integers_are_still_repaired_to_floats(tmp_path: Path) -> None:
    X = np.arange(24, dtype=np.int8).reshape(6, 4)
    found = Center().fit(X).transform(X, out=tmp_path / "out.npy")
    assert found.dtype == "float32"


def test_a_fitted_repair_is_used_as_it_is() -> None:
    X = rows()
    repair = Center().fit(X[:100])
    codec = Binary(repair=repair).fit(X)
    assert codec.repair_ is repair
    np.testing.assert_array_equal(codec.encode(X), Binary().fit(X).encode(repair.transform(X)))
    with pytest.raises(InputError, match="fitted on the 8 dimensions"):
        Binary(repair=repair, n_dims=8).fit(X)


def test_truncation_keeps_first_dimensions_or_principal_components() -> None:
    X = rows() @ np.diag(np.linspace(0.1, 3, 37)).astype(np.float32)
    first = Float(n_dims=5).fit(X).decode(Float(n_dims=5).fit(X).encode(X))
    wanted = X[:, :5] / np.linalg.norm(X[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(first, wanted, atol=1e-6)
    centred = X.astype(np.float64) - X.mean(axis=0, dtype=np.float64)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    kept = centred @ directions[:5].T
    kept /= np.linalg.norm(kept, axis=1, keepdims=True)
    found = Float(n_dims=5, truncate="pca").fit(X).queries(X).astype(np.float64)
    np.testing.assert_allclose(found @ found.T, kept @ kept.T, atol=1e-5)


def test_rescoring_finds_more_than_bits_alone() -> None:
    X = rows(2000, 64)
    units = X / np.linalg.norm(X, axis=1, keepdims=True)
    truth = np.argsort(-(units[:50] @ units.T), axis=1)[:, :10]

    def recall(codec: Codec) -> float:
        found = codec.fit(X).search(X[:50], codec.encode(X), 10)[1]
        return float(
            np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, truth, strict=True)])
        )

    bits_alone, rescored = recall(Binary()), recall(Rescored(n_candidates=200))
    assert rescored > bits_alone + 0.2
    assert recall(Rescored(fine=Float(), n_candidates=2000)) == 1


def test_checkpoints_resume(tmp_path: Path) -> None:
    X = rows()
    np.save(tmp_path / "rows.npy", X)
    codec = Binary(n_dims=9, truncate="pca", repair=Center(), threshold="median")
    wanted = codec.fit(tmp_path / "rows.npy").encode(X)
    again = codec.fit(tmp_path / "rows.npy", checkpoint=tmp_path / "kept").encode(X)
    np.testing.assert_array_equal(again, wanted)
    resumed = codec.fit(tmp_path / "rows.npy", checkpoint=tmp_path / "kept").encode(X)
    np.testing.assert_array_equal(resumed, wanted)


def test_files_with_wrong_contents_are_refused(tmp_path: Path) -> None:
    X, path = rows(), tmp_path / "codec.safetensors"
    codec = Scalar(repair=Center()).fit(X)
    header, tensors = codec.content()
    forged = {
        "span_ must be above 0": (header, tensors | {"span_": np.zeros(37, np.float32)}),
        "span_ must have shape": (header, tensors | {"span_": np.ones(3, np.float32)}),
        "span_ is missing": (header, {k: v for k, v in tensors.items() if k != "span_"}),
        "bits must be 8 or 4": (header | {"params": header["params"] | {"bits": 5}}, tensors),
        "its repair must be one of rows of 12": (header | {"n_features": 12}, tensors),
        "the method of a repair must be one of": (
            header | {"repair": header["repair"] | {"method": "os.system"}},
            tensors,
        ),
        "a repair must be an object": (header | {"repair": 3}, tensors),
        "its pca must be there": (
            header | {"params": header["params"] | {"n_dims": 37, "truncate": "pca"}},
            tensors,
        ),
    }
    for message, (some_header, some_tensors) in forged.items():
        files.write(path, some_header, some_tensors, "codec", overwrite=True)
        with pytest.raises(RepairFileError, match=message):
            load(path)


def test_faiss_files_with_wrong_contents_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    X, path = rows(500, 24), tmp_path / "codec.safetensors"
    header, tensors = Faiss(factory="PQ4x4").fit(X).content()
    params = header["params"]
    for message, factory, some in (
        ("trained_ must have", "PQ4x4", tensors | {"trained_": np.ones(3, np.float32)}),
        ("rotation_ must have shape", "OPQ4,PQ4x4", tensors),
        ("factory must fit rows", "PQ5x4", tensors),
        ("factory must be PQ or RaBitQ", "IVF1,Flat", tensors),
        ("factory must be PQ or RaBitQ", "PQ4x24", tensors),
    ):
        changed = header | {"params": params | {"factory": factory}}
        files.write(path, changed, some, "codec", overwrite=True)
        with pytest.raises(RepairFileError, match=message):
            load(path)


def test_faiss_files_of_huge_rows_are_refused_before_an_index_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    X, path = rows(500, 24), tmp_path / "codec.safetensors"
    for factory, message in (
        ("PQ4x4", "trained_ must have 16000000000 values"),
        ("RaBitQ", "trained_ must have 1000000000 values"),
        ("RR,PQ4x4", r"rotation_ must have shape \(1000000000, 1000000000\)"),
    ):
        header, tensors = Faiss(factory=factory).fit(X).content()
        forged = tensors | {"rotation_": np.empty((0, 10**9), np.float32)}
        files.write(path, header | {"n_features": 10**9}, forged, "codec", overwrite=True)
        with monkeypatch.context() as patched:
            patched.setattr("isotropy.codecs.faiss.made", lambda *_: pytest.fail("made an index"))
            with pytest.raises(RepairFileError, match=message):
                load(path)


@pytest.mark.parametrize(
    "factory", ["PQ4", "PQ6x4", "OPQ4,PQ4x4", "OPQ4_16,PQ4x5", "RR,PQ4x4", "RR16,RaBitQ4", "RaBitQ"]
)
def test_shapes_are_those_of_the_index(factory: str) -> None:
    faiss = pytest.importorskip("faiss")
    from isotropy.codecs.faiss import made, parts, shapes

    chain, inner = parts(index := made(factory, 24))
    n_trained = inner.pq.centroids.size() if hasattr(inner, "pq") else inner.d
    rotation = (0, 24) if chain is None else (chain.d_out, chain.d_in)
    assert shapes(factory, 24) == (n_trained, rotation)
    assert isinstance(index, faiss.Index)


def test_scores_of_two_stages_are_tensors_for_tensors() -> None:
    torch = pytest.importorskip("torch")
    X = rows()
    codec = Rescored(n_candidates=20).fit(X)
    codes = codec.encode(X)
    found = codec.scores(torch.from_numpy(X[:30]), torch.from_numpy(codes))
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), codec.scores(X[:30], codes))


def test_two_stages_take_short_codes_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    X, sizes = rows(), []
    codec = Rescored(n_candidates=20).fit(X)
    coarse = Rescored._coarse

    def counted(self: Rescored, codes: np.ndarray) -> np.ndarray:
        sizes.append(len(codes))
        return coarse(self, codes)

    monkeypatch.setattr(Rescored, "_coarse", counted)
    monkeypatch.setattr(linalg, "BLOCK_ELEMENTS", 50 * codec.n_columns)
    codec.search(X[:5], codec.encode(X), 3)
    codec.scores(X[:5], codec.encode(X))
    assert max(sizes) == 50


def test_aligned_queries_have_the_mean_of_the_rows(tmp_path: Path) -> None:
    X, random = rows(), np.random.default_rng(1)
    Q = (random.standard_normal((80, 37)) - 0.7).astype(np.float32)
    shift = X.mean(axis=0, dtype=np.float64) - Q.mean(axis=0, dtype=np.float64)
    moved = (Q + shift).astype(np.float32)
    for codec in (
        Binary(repair=Center(), asymmetric=True),
        Scalar(n_dims=9, truncate="pca"),
        Rescored(fine=Float(), n_candidates=20),
    ):
        plain = codec.fit(X)
        codes = plain.encode(X)
        wanted = plain.queries(moved), plain.scores(moved, codes), plain.search(moved, codes)[1]
        found = clone(codec).set_params(align_queries=True).fit(X, queries=Q)
        found.save(tmp_path / "codec.safetensors", overwrite=True)
        for one in (found, load(tmp_path / "codec.safetensors")):
            np.testing.assert_allclose(one.query_shift_, shift, atol=1e-12)
            np.testing.assert_array_equal(one.encode(X), codes)
            np.testing.assert_allclose(one.queries(Q), wanted[0], atol=1e-5)
            np.testing.assert_allclose(one.scores(Q, codes), wanted[1], atol=1e-5)
            assert (one.search(Q, codes)[1] == wanted[2]).mean() > 0.99  # rounding may swap two


def test_a_file_keeps_how_a_codec_was_fitted(tmp_path: Path) -> None:
    X = rows()
    codec = Binary(align_queries=True).fit(X, queries=X + 1)
    codec.set_params(align_queries=False).save(tmp_path / "codec.safetensors")
    found = load(tmp_path / "codec.safetensors")
    assert found.align_queries
    np.testing.assert_array_equal(found.query_shift_, codec.query_shift_)


def test_aligned_queries_need_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, path = rows(), tmp_path / "codec.safetensors"
    with pytest.raises(InputError, match="queries must be given with align_queries=True"):
        Binary(align_queries=True).fit(X)
    with pytest.raises(InputError, match="queries need align_queries=True"):
        Binary().fit(X, queries=X)
    aligned = Binary(align_queries=True)
    for message, queries in (
        ("queries must have 37 features, as X has, got 5", X[:, :5]),
        (r"queries must be finite, got NaN in 500 rows \(first: 0", X * np.nan),
        ("queries must have rows", X[:0]),
        (r"queries must be two-dimensional.* queries.reshape\(1, -1\) for one row", X[0]),
        ("queries must be dense, got a sparse matrix.* use queries.toarray", csr_array(X)),
    ):
        with pytest.raises(IsotropyError, match=f"^Binary: {message}"):
            aligned.fit(X, queries=queries)
    with pytest.raises(InputError, match=r"^Binary: X must be finite"):
        aligned.fit(X * np.nan, queries=X)
    monkeypatch.setattr(base, "reduce", lambda *_: pytest.fail("read rows"))
    for codec in (Binary(), Binary(align_queries="yes"), Binary(align_queries=True, n_dims=99)):
        with pytest.raises(InputError, match=r"align_queries|n_dims"):
            codec.fit(X, queries=X)
    monkeypatch.undo()
    with pytest.raises(InputError, match="Set align_queries of Rescored"):
        Rescored(coarse=Binary(align_queries=True)).fit(X)
    header, tensors = Binary(align_queries=True).fit(X, queries=X).content()
    for message, some in (
        ("query_shift_ is missing", {k: v for k, v in tensors.items() if k != "query_shift_"}),
        ("query_shift_ must have shape", tensors | {"query_shift_": np.zeros(3)}),
        ("query_shift_ must be finite", tensors | {"query_shift_": np.full(37, np.nan)}),
    ):
        files.write(path, header, some, "codec", overwrite=True)
        with pytest.raises(RepairFileError, match=message):
            load(path)


def test_load_gives_repairs_too_and_says_what_else_a_file_is(tmp_path: Path) -> None:
    X = rows()
    Center().fit(X).save(tmp_path / "repair.safetensors")
    assert isinstance(load(tmp_path / "repair.safetensors"), Center)
    Binary().fit(X).save(tmp_path / "codec.safetensors")
    with pytest.raises(RepairFileError, match="holds no repair"):
        repairs.load(tmp_path / "codec.safetensors")
    with pytest.raises(RepairFileError, match="does not exist"):
        load(tmp_path / "none.safetensors")
