"""faiss indexes that code what is added, against the codecs themselves."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from isotropy import examples, export
from isotropy.codecs import Binary, Faiss, Float, Rescored, Scalar
from isotropy.errors import InputError, IsotropyWarning
from isotropy.repairs import Center, Chain, ClusterRemoval, Rotate, Whiten

from .elsewhere import LIMIT, generated, run_elsewhere

faiss = pytest.importorskip("faiss")

N, D = 1000, 32
CODECS = {
    "int8": Scalar(repair=Center()),
    "int8-pca": Scalar(n_dims=20, truncate="pca"),
    "int4": Scalar(bits=4, n_dims=17, repair=Center()),
    "binary": Binary(repair=Center()),
    "binary-median": Binary(threshold="median", n_dims=21),
    "binary-float": Binary(asymmetric=True, repair=Whiten(power=0.5)),
    "binary-float-median": Binary(asymmetric=True, threshold="median"),
    "float32": Float(repair=Center()),
    "float16": Float(half=True),
    "pq": Faiss(factory="PQ8x4", repair=Center()),
    "rabitq": Faiss(factory="RR,RaBitQ"),
}
SEARCH = """
import os, faiss, numpy as np
folder = sys.argv[1]
X = np.load(f"{folder}/rows.npy")
for name in os.listdir(folder):
    if name.endswith(".faiss"):
        index = faiss.read_index(f"{folder}/{name}")
        np.save(f"{folder}/{name}.codes.npy", index.sa_encode(X))
        index.add(X)
        np.save(f"{folder}/{name}.scores.npy", index.search(X[:50], 10)[0])
        np.save(f"{folder}/{name}.ids.npy", index.search(X[:50], 10)[1])
"""


def bits_of(codes, codec):
    """The cells of our codes in faiss's layout."""
    if isinstance(codec, Scalar) and codec.bits == 8:
        return (codes.astype(np.int16) + 128).astype(np.uint8)
    if isinstance(codec, Binary):
        n = codec.n_dims_
        return np.packbits(np.unpackbits(codes, axis=1, count=n), axis=1, bitorder="little")
    return np.ascontiguousarray(codes).view(np.uint8)


def products(codec, queries, codes):
    """Scores in the order of faiss, which does not scale decoded rows to length one."""
    if isinstance(codec, Scalar):
        return codec.queries(queries) @ codec.values(codes).T
    if isinstance(codec, Faiss) and codec.decodes:
        return codec.queries(queries) @ codec.index().sa_decode(codes).T
    return codec.scores(queries, codes)


def test_the_file_codes_and_finds_rows_where_there_is_no_isotropy(tmp_path):
    X = generated(2 * N, D, 1.0)
    fitted = {name: codec.fit(X[:N]) for name, codec in CODECS.items()}
    rows = X[N:]
    np.save(tmp_path / "rows.npy", rows)
    for name, codec in fitted.items():
        export.faiss(codec, out=tmp_path / f"{name}.faiss")
        assert export.verify(codec, tmp_path / f"{name}.faiss", to="faiss").largest < LIMIT
    run_elsewhere(SEARCH, tmp_path)
    for name, codec in fitted.items():
        found = np.load(tmp_path / f"{name}.faiss.codes.npy")
        wanted = bits_of(codec.encode(rows), codec)
        assert found.shape == wanted.shape, name
        if name not in ("float32", "float16", "rabitq"):  # floats differ in their last digits
            assert (found != wanted).mean() < 1e-3, name
        scores = products(codec, rows[:50], codec.encode(rows))
        ids = np.load(tmp_path / f"{name}.faiss.ids.npy")
        best = -np.sort(-scores, axis=1)[:, :10]
        chosen = np.take_along_axis(scores, ids, axis=1)
        apart = np.abs(chosen - best) > 2e-3  # by a value next to the end of its cell
        assert apart.mean() < 0.01, name


def test_bits_are_counted(tmp_path):
    X = generated(N, D, 1.0)
    codec = Binary(repair=Center()).fit(X)
    index = export.faiss(codec)
    index.add(X)
    distances, ids = index.search(X[:20], 5)
    scores = np.take_along_axis(codec.scores(X[:20], codec.encode(X)), ids, axis=1)
    np.testing.assert_allclose(1 - 2 * distances / D, scores, atol=1e-6)


TWO_STAGES = {
    "bits, int8": Rescored(coarse=Binary(repair=Chain([Center(), Rotate("random")]))),
    "float queries, int8": Rescored(coarse=Binary(asymmetric=True, repair=Center())),
    "pca, float32": Rescored(
        coarse=Binary(n_dims=64, truncate="pca"), fine=Float(), n_candidates=50
    ),
    "bits, float16": Rescored(fine=Float(half=True)),
    "rabitq, float32": Rescored(coarse=Faiss(factory="RaBitQ"), fine=Float()),
}
REFINED = """
import os, faiss, numpy as np
folder = sys.argv[1]
X, Q = (np.load(f"{folder}/{name}.npy") for name in ("rows", "queries"))
for name in os.listdir(folder):
    if name.endswith(".faiss"):
        index = faiss.read_index(f"{folder}/{name}")
        index.add(X)
        faiss.write_index(index, f"{folder}/{name}.full")
        mapped = faiss.read_index(f"{folder}/{name}.full", faiss.IO_FLAG_MMAP_IFC)
        np.save(f"{folder}/{name}.ids.npy", mapped.search(Q, 10)[1])
"""


def test_two_stages_find_what_their_codec_finds_where_there_is_no_isotropy(tmp_path):
    words = examples.wordllama().vectors[:3000].astype(np.float32)
    rows, queries = words[200:], words[:200]
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "queries.npy", queries)
    for name, codec in TWO_STAGES.items():
        export.faiss(codec.fit(rows), out=tmp_path / f"{name}.faiss")
        assert export.verify(codec, tmp_path / f"{name}.faiss", to="faiss").close
    run_elsewhere(REFINED, tmp_path)
    for name, codec in TWO_STAGES.items():
        found = np.load(tmp_path / f"{name}.faiss.ids.npy")
        codes = codec.encode(rows)
        expected = codec.search(queries, codes, 10)[1]
        same = (found[:, :, None] == expected[:, None, :]).any(axis=2)
        assert same.mean() > 0.99, name  # of counted bits, any of those that tie are candidates


def test_two_stages_find_rows_if_there_are_fewer_than_candidates():
    X = generated(N, D, 1.0)
    codec = Rescored(fine=Float()).fit(X)
    index = export.faiss(codec)
    index.add(X[:50])
    expected = codec.search(X[:20], codec.encode(X[:50]), 10)[1]
    np.testing.assert_array_equal(index.search(X[:20], 10)[1], expected)


def test_an_index_takes_queries_that_are_aligned():
    X = generated(N, D, 1.0)
    codec = Float(repair=Center(), align_queries=True).fit(X, queries=X[:100] - 3)
    with pytest.warns(IsotropyWarning, match=r"Search it with queries \+ codec\.query_shift_"):
        index = export.faiss(codec)
    index.add(X)
    queries = X[:20] - 3
    expected = codec.search(queries, codec.encode(X), 5)
    scores, ids = index.search((queries + codec.query_shift_).astype(np.float32), 5)
    np.testing.assert_array_equal(ids, expected[1])
    np.testing.assert_allclose(scores, expected[0], atol=1e-5)


def test_what_faiss_cannot_run_is_refused_in_one_line():
    X = generated(N, D, 1.0)
    with pytest.raises(InputError, match="fine must not be Binary for faiss"):
        export.faiss(Rescored(fine=Binary()).fit(X))
    with pytest.raises(InputError, match="index can't be used with a codec"):
        export.faiss(Binary().fit(X), "HNSW32,Flat")
    with pytest.raises(TypeError, match="has a map for every cluster"):
        export.faiss(Binary(repair=ClusterRemoval(n_clusters=3)).fit(X))


def test_codecs_that_are_not_fitted_are_refused():
    for codec in (Binary(), Rescored()):
        with pytest.raises(NotFittedError, match=f"This {type(codec).__name__} .* is not fitted"):
            export.faiss(codec)


def test_verify_says_what_a_file_is_if_it_is_another(tmp_path):
    X = generated(N, D, 1.0)
    one, two, other = Binary().fit(X), Rescored().fit(X), Binary().fit(X[:, :8])
    for name, codec in {"one": one, "two": two, "other": other}.items():
        export.faiss(codec, out=tmp_path / name)
    for repair, name, message in (
        (two, "one", "an IndexRefine, got an IndexPreTransform"),
        (one, "two", "an IndexPreTransform, got an IndexRefine"),
        (Center().fit(X), "two", "an IndexPreTransform, got an IndexRefine"),
        (one, "other", f"of rows of {D} dimensions, got one of 8"),
    ):
        with pytest.raises(InputError, match=f"^export.verify: out must be .*{message}"):
            export.verify(repair, tmp_path / name, to="faiss")
    with pytest.raises(InputError, match=f"^X has 5 features, but export.verify is expecting {D}"):
        export.verify(two, tmp_path / "two", to="faiss", X=X[:, :5])
