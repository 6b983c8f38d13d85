"""faiss indexes with a repair in front, against `transform` and a search."""

import os

import numpy as np
import pytest

import isotropy
from isotropy import export, repairs
from isotropy.errors import InputError, InputTypeError, IsotropyWarning, NotAffineError

from .elsewhere import LIMIT, fitted, generated, largest_difference, run_elsewhere, sentences

faiss = pytest.importorskip("faiss")

N, D = 1000, 32
REFUSED = (
    "scaled-center",
    "cluster-removal",
    "cluster-removal-unit",
    "cluster-rotate",
    "cluster-rotate-unit",
)
TIE = 2e-5
APPLY = """
import os, faiss, numpy as np
folder, rows = sys.argv[1:]
X = np.load(rows)
for name in os.listdir(folder):
    if not name.endswith(".faiss"):
        continue
    index = faiss.read_index(f"{folder}/{name}")
    found = X
    for i in range(index.chain.size()):
        found = faiss.downcast_VectorTransform(index.chain.at(i)).apply(found)
    np.save(f"{folder}/{name}.npy", found)
    index.add(X)
    scores, ids = index.search(X[:5], 1)
    assert index.ntotal == len(X)
"""


def check_elsewhere(found, X, folder):
    """Write an index for each repair, and run rows through all of them without isotropy."""
    np.save(folder / "rows.npy", X)
    for name, repair in found.items():
        export.faiss(repair, out=folder / f"{name}.faiss")
    run_elsewhere(APPLY, folder, folder / "rows.npy")
    for name, repair in found.items():
        repaired = np.load(folder / f"{name}.faiss.npy")
        assert largest_difference(repaired, repair, X) < LIMIT, name


def supported(found, *refused):
    return {name: repair for name, repair in found.items() if name not in (*REFUSED, *refused)}


@pytest.mark.parametrize("shift", [0.0, 10.0])
def test_the_file_repairs_rows_where_there_is_no_isotropy(shift, tmp_path):
    X = generated(2 * N, D, shift)
    check_elsewhere(supported(fitted(X[:N])), X[N:], tmp_path)


@pytest.mark.parametrize("shift", [0.0, 10.0])
@pytest.mark.slow
@pytest.mark.model
@pytest.mark.data
def test_the_file_repairs_sentences_where_there_is_no_isotropy(shift, tmp_path, models, data):
    X = sentences(models, data) + np.float32(shift)
    drifted = ["scaled-center-unit"] if shift else []  # float32 has too few digits: refused
    check_elsewhere(supported(fitted(X[N:]), *drifted), X[:N], tmp_path)


def test_rows_far_from_zero_keep_their_digits():
    X = generated(N, D, 1e4)
    for name, repair in supported(fitted(X), "scaled-center-unit").items():
        index = export.faiss(repair)
        found = X
        for i in range(index.chain.size()):
            found = faiss.downcast_VectorTransform(index.chain.at(i)).apply(found)
        assert largest_difference(found, repair, X) < LIMIT, name


def test_a_learned_layer_is_a_matrix():
    pytest.importorskip("torch")
    X = generated(N, 8, 10.0)
    repair = repairs.LearnedLayer(n_epochs=1, batch_size=64).fit(X, X[:, 1] > 10)
    index = export.faiss(repair)
    index.add(X)
    found = faiss.downcast_index(index.index).reconstruct_n(0, N)
    assert largest_difference(found, repair, X) < LIMIT


@pytest.mark.parametrize("name", REFUSED)
def test_what_faiss_cannot_run_is_refused(name):
    with pytest.raises(NotAffineError, match=r"export.faiss: .* got .*repair\.transform") as error:
        export.faiss(fitted(generated(N, D))[name])
    assert "\n" not in str(error.value)


def test_a_flow_is_refused():
    pytest.importorskip("torch")
    flow = repairs.Flow(n_levels=1, n_steps=1).fit(generated(200, 4))
    with pytest.raises(NotAffineError, match=r"got Flow, which is a network\. Add repair"):
        export.faiss(flow)


def test_rows_that_nearly_coincide_are_refused_for_the_scaled_mean():
    X = generated(N, D, 1e4)
    with pytest.raises(InputError, match="the rows nearly coincide"):
        export.faiss(repairs.ScaledCenter(normalize=True).fit(X))


def test_other_arguments_are_refused():
    repair = repairs.Center().fit(generated(N, D))
    with pytest.raises(InputTypeError, match=r"repair must be .* got str\. .*isotropy\.load"):
        export.faiss("repair.safetensors")
    with pytest.raises(InputTypeError, match=r"index must be a faiss index.* got list"):
        export.faiss(repair, [])
    with pytest.raises(InputError, match="a file that exists, or a factory string"):
        export.faiss(repair, "documents.faiss")
    with pytest.raises(InputError, match=r"index must have 32 dimensions.* got 31"):
        export.faiss(repair, faiss.IndexFlatL2(31))


def test_a_file_that_is_no_index_is_refused(tmp_path):
    path = tmp_path / "index.faiss"
    path.write_bytes(b"no index at all")
    with pytest.raises(InputError, match="damaged or not a faiss index") as error:
        export.faiss(repairs.Center().fit(generated(N, D)), path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("description", ["Flat", "HNSW16,Flat", "IVF8,Flat", "SQ8"])
def test_a_factory_string_makes_an_empty_index_for_raw_vectors(description):
    X = generated(N, D)
    index = export.faiss(repairs.Whiten(normalize=True).fit(X), description)
    assert index.ntotal == 0
    assert index.metric_type == faiss.METRIC_INNER_PRODUCT
    index.train(X)
    index.add(X)
    _, ids = index.search(X[:50], 1)
    assert np.mean(ids[:, 0] == np.arange(50)) > 0.9


def filled(description, X, metric, ids=None):
    index = faiss.index_factory(X.shape[1], description, metric)
    index.train(X)
    if ids is None:
        index.add(X)
    else:
        index.add_with_ids(X, ids)
    return index


EXACT = ["Flat", "HNSW32,Flat", "IVF8,Flat", "IVF8_HNSW16,Flat", "IDMap,Flat", "IDMap2,Flat"]
EXACT += [
    "IDMap2,HNSW32,Flat",
    "IDMap,IVF8,Flat",
    "RR32,Flat",
    "PCA32,IVF8,Flat",
    "IDMap,RR32,Flat",
]
WITH_IDS = ("IDMap", "IVF")


@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT])
@pytest.mark.parametrize("description", EXACT)
def test_an_index_is_built_again_with_its_ids(description, metric):
    X = generated(N, D, 1.0)
    names = np.random.default_rng(0).permutation(10**6)[:N]
    ids = names if description.startswith(WITH_IDS) else None
    old = filled(description, X, metric, ids)
    before = faiss.serialize_index(old)
    repair = repairs.Whiten(normalize=True).fit(X)
    new = export.faiss(repair, old)
    assert np.array_equal(before, faiss.serialize_index(old))
    assert (new.metric_type, new.ntotal) == (metric, N)
    if "IVF" in description:
        faiss.extract_index_ivf(new).nprobe = 8
    exact = faiss.IndexFlat(D, metric)
    exact.add(repair.transform(X))
    wanted, at = exact.search(repair.transform(X[:100]), 5)
    found, which = new.search(X[:100], 5)
    same = np.mean(which == (at if ids is None else names[at]))
    assert same == 1 if "HNSW32" not in description else same > 0.99
    np.testing.assert_allclose(found[which[:, 0] >= 0][:, 0], wanted[:, 0], atol=TIE)


def test_parameters_are_kept():
    X = generated(N, D)
    repair = repairs.Whiten(method="pca", n_components=8, normalize=True).fit(X)
    old = filled("IVF8,Flat", X, faiss.METRIC_INNER_PRODUCT)
    old.nprobe, old.cp.niter = 3, 7
    outer = export.faiss(repair, old)
    new = faiss.downcast_index(outer.index)
    assert (type(new), new.d, new.nlist) == (faiss.IndexIVFFlat, 8, 8)
    assert (new.nprobe, new.cp.niter, new.cp.spherical) == (3, 7, old.cp.spherical)
    old = faiss.IndexHNSWFlat(D, 24)
    old.hnsw.efConstruction, old.hnsw.efSearch = 77, 99
    old.add(X)
    outer = export.faiss(repair, old)
    new = faiss.downcast_index(outer.index)
    assert (new.hnsw.nb_neighbors(1), new.hnsw.efConstruction, new.hnsw.efSearch) == (24, 77, 99)
    old = faiss.IndexFlat(D, faiss.METRIC_Lp)
    old.metric_arg = 3.0
    outer = export.faiss(repair, old)
    new = outer.index
    assert (new.metric_type, new.metric_arg) == (faiss.METRIC_Lp, 3.0)


LOSSY = ["SQ8", "SQfp16", "PQ4x4np", "RaBitQ", "LSH", "IVF8,SQ8", "IVF8,PQ4x4np", "HNSW16_SQ8"]
LOSSY += ["IDMap,SQ8", "PCA8,Flat", "L2norm,Flat", "PCAW32,Flat", "ITQ8,LSH", "PQ4x4np,RFlat"]


@pytest.mark.parametrize("description", LOSSY)
def test_what_does_not_hold_vectors_exactly_is_refused(description):
    X = generated(N, D)
    ids = np.arange(N) if description.startswith(WITH_IDS) else None
    old = filled(description, X, faiss.METRIC_L2, ids)
    with pytest.raises(InputError, match=r"index must hold its vectors exactly.* --index") as error:
        export.faiss(repairs.Center().fit(X), old)
    assert "\n" not in str(error.value)


def test_an_exported_index_is_not_repaired_twice():
    X = generated(N, D)
    repair = repairs.Whiten(normalize=True).fit(X)
    once = export.faiss(repair)
    once.add(X)
    with pytest.raises(InputError, match="LinearTransform that can't be undone"):
        export.faiss(repair, once)


def test_too_few_vectors_for_the_lists_are_refused():
    X = generated(N, D)
    old = faiss.index_factory(D, "IVF8,Flat")
    old.train(X)
    old.add(X[:5])
    with pytest.raises(InputError, match=r"as its 8 lists.* got 5"):
        export.faiss(repairs.Center().fit(X), old)


@pytest.mark.parametrize("chunk", [7, 1000])
def test_lists_that_are_empty_or_short_are_read(chunk, monkeypatch):
    monkeypatch.setattr("isotropy.export._faiss.CHUNK", chunk)
    X = generated(N, D)
    old = faiss.index_factory(D, "IVF32,Flat")
    old.train(X)
    old.add(X[:40])
    repair = repairs.Center().fit(X)
    new = export.faiss(repair, old)
    faiss.extract_index_ivf(new).nprobe = 32
    _, ids = new.search(X[:40], 1)
    assert np.array_equal(ids[:, 0], np.arange(40))


def test_an_empty_index_stays_empty():
    X = generated(N, D)
    new = export.faiss(repairs.Center().fit(X), faiss.index_factory(D, "IVF8,Flat"))
    assert not new.is_trained
    new.train(X)
    new.add(X)
    assert new.ntotal == N


def test_unit_vectors_that_lose_their_length_are_named():
    X = generated(N, D)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    repair = repairs.Center().fit(X)
    old = filled("Flat", X, faiss.METRIC_INNER_PRODUCT)
    with pytest.warns(IsotropyWarning, match="Set normalize=True"):
        export.faiss(repair, old)
    export.faiss(repair, filled("Flat", X, faiss.METRIC_L2))
    export.faiss(repair.set_params(normalize=True), old)


def test_files_are_written_whole_and_never_over_the_index(tmp_path):
    X = generated(N, D)
    repair = repairs.Center(normalize=True).fit(X)
    old, new = tmp_path / "old.faiss", tmp_path / "new.faiss"
    faiss.write_index(filled("IDMap2,Flat", X, faiss.METRIC_L2, np.arange(N) + 7), str(old))
    before = old.read_bytes()
    for path in (old, str(old)):
        with pytest.raises(InputError, match="out must be another file than index"):
            export.faiss(repair, path, old, overwrite=True)
    export.faiss(repair, old, new)
    with pytest.raises(InputError, match="exists"):
        export.faiss(repair, old, new)
    export.faiss(repair, str(old), new, overwrite=True)
    assert old.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["new.faiss", "old.faiss"]
    _, ids = faiss.read_index(str(new)).search(X[:20], 1)
    assert np.array_equal(ids[:, 0], np.arange(20) + 7)


def check_neighbours(repair, X, queries):
    """The top 10 of raw queries in a folded index are those of repaired ones, but for ties."""
    index = export.faiss(repair)
    index.add(X)
    plain = faiss.IndexFlatIP(index.index.d)
    plain.add(repair.transform(X))
    asked = repair.transform(queries)
    scores, wanted = plain.search(asked, 10)
    _, found = index.search(queries, 10)
    stored = repair.transform(X)
    for query, lowest, these, those in zip(asked, scores[:, -1], wanted, found, strict=True):
        other = np.setdiff1d(those, these)
        assert len(set(those)) == 10
        assert (stored[other] @ query >= lowest - TIE * np.linalg.norm(query)).all()


@pytest.mark.slow
@pytest.mark.parametrize("repair", [repairs.Whiten(normalize=True), repairs.Center(normalize=True)])
def test_top_10_of_1000_queries_over_100000_vectors(repair):
    X = generated(101_000, 128, 1.0)
    check_neighbours(repair.fit(X[1000:]), X[1000:], X[:1000])


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.data
def test_top_10_among_sentences(models, data):
    X = sentences(models, data)
    for repair in (isotropy.Whiten(normalize=True), isotropy.AllButTheTop(normalize=True)):
        check_neighbours(repair.fit(X), X[200:], X[:200])


def test_files_are_read_as_sources_are(tmp_path):
    """One reader: what is in front of an index is undone, and a damaged file is refused."""
    X = generated(N, D)
    index = faiss.IndexPreTransform(faiss.RandomRotationMatrix(D, D), faiss.IndexFlatL2(D))
    index.train(X)
    index.add(X)
    faiss.write_index(index, str(tmp_path / "rotated.faiss"))
    source = isotropy.open(tmp_path / "rotated.faiss")
    rows = np.concatenate([b.rows for chunk in source.chunks() for b in source.read(chunk)])
    np.testing.assert_allclose(rows, X, atol=1e-5 * np.abs(X).max())
    faiss.write_index(faiss.IndexFlatL2(D), str(tmp_path / "huge.faiss"))
    content = bytearray((tmp_path / "huge.faiss").read_bytes())
    content[8:16] = (1 << 40).to_bytes(8, "little")  # its number of rows
    (tmp_path / "huge.faiss").write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        export.faiss(repairs.Center().fit(X), tmp_path / "huge.faiss")
