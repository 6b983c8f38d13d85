"""A CUDA device gives the CPU's numbers."""

import threading
import warnings

import numpy as np
import pytest

import isotropy
from isotropy import engines
from isotropy.errors import InputError
from isotropy.metrics import METRICS
from isotropy.stats import Sample

torch = pytest.importorskip("torch", reason="torch is not installed")
from isotropy.engines import staging  # noqa: E402
from isotropy.engines import torch as torch_engine  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(scope="module")
def X():
    random = np.random.default_rng(0)
    mixed = random.standard_normal((20_000, 48)) @ random.standard_normal((48, 48)) / 7 + 0.5
    return mixed.astype(np.float32)


def flat(geometry):
    found = geometry.to_dict()
    names = [name for name in METRICS if name in found and name != "norms"]
    return np.concatenate([np.atleast_1d(np.asarray(found[name])) for name in names])


@pytest.mark.parametrize("place", ["held there", "copied there"])
def test_metrics_agree_with_the_cpu(X, place):
    expected = flat(isotropy.measure(X))
    if place == "held there":
        found = flat(isotropy.measure(torch.from_numpy(X).cuda()))
    else:
        found = flat(isotropy.measure(X, engine="torch"))
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(isotropy.repairs.Repair.by_name))
def test_repairs_agree_with_the_cpu_and_stay_on_the_device(X, name):
    options = {"n_clusters": 4, "n_components": 2} if name == "cluster-removal" else {}
    repair = isotropy.repairs.Repair.by_name[name](**options)
    expected = repair.fit(X).transform(X)
    rows = torch.from_numpy(X).cuda()
    found = repair.fit(rows).transform(rows)
    assert found.device == rows.device
    assert found.dtype == rows.dtype
    assert np.allclose(found.cpu().numpy(), expected, atol=1e-3 * np.abs(expected).max())


def test_a_file_is_streamed_through_the_device(X, tmp_path):
    np.save(tmp_path / "rows.npy", X)
    source = isotropy.open(tmp_path / "rows.npy", chunk_rows=3000)
    repair = isotropy.Whiten().fit(source, engine="torch")
    written = repair.transform(source, out=tmp_path / "fixed.npy", engine="torch")
    assert written.n_samples == len(X)
    assert np.allclose(np.load(tmp_path / "fixed.npy"), repair.transform(X), atol=1e-3)


@pytest.fixture
def folder(X, tmp_path, monkeypatch):
    """A folder with rows.npy of many small chunks, several of which fill a slot."""
    for module in (staging, torch_engine):
        monkeypatch.setattr(module, "SLOT_BYTES", 1 << 16)
    monkeypatch.setattr(torch_engine, "JOINED_BYTES", 1 << 18)
    monkeypatch.setattr(torch_engine, "n_threads", lambda: 4)
    monkeypatch.setattr("isotropy.threads.n_threads", lambda: 4)
    np.save(tmp_path / "rows.npy", X)
    before = threading.active_count()
    yield tmp_path
    assert threading.active_count() <= before, "readers must not outlive the pass"


def all_rows(source, engine="torch"):
    """The numbers, rows and weights that a pass saw."""
    with engines.using(engine):
        found = engines.reduce(source, [Sample(100_000)]).states[0]
    order = np.argsort(found.numbers)
    return found.numbers[order], found.rows[order], found.weights[order]


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4"])
@pytest.mark.parametrize("chunk_rows", [100, 3000, 100_000])
def test_every_row_of_a_file_arrives_as_it_was(X, folder, dtype, chunk_rows):
    np.save(folder / "rows.npy", X.astype(dtype))
    weights = np.arange(len(X), dtype=np.float64) % 3
    source = isotropy.open(folder / "rows.npy", chunk_rows=chunk_rows, sample_weight=weights)
    for mine, theirs in zip(all_rows(source), all_rows(source, "local"), strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("n_rows", [1, 100, 20_000])
def test_metrics_of_a_file_agree_with_the_cpu(X, folder, n_rows):
    np.save(folder / "rows.npy", X[:n_rows])
    source = isotropy.open(folder / "rows.npy")
    names = ["isoscore", "mean_cosine"] if n_rows > 1 else ["mean_norm_ratio"]
    expected = isotropy.measure(source, names, engine="local").to_dict()
    found = isotropy.measure(source, names, engine="torch").to_dict()
    for name in names:
        assert np.allclose(found[name], expected[name], rtol=1e-5, atol=1e-6, equal_nan=True)


def test_rows_of_a_parquet_file_arrive(X, folder):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    column = pa.FixedSizeListArray.from_arrays(X.reshape(-1), X.shape[1])
    pq.write_table(pa.table({"x": column}), folder / "rows.parquet", row_group_size=900)
    source = isotropy.open(folder / "rows.parquet")
    for mine, theirs in zip(all_rows(source), all_rows(source, "local"), strict=True):
        assert np.array_equal(mine, theirs)


def test_bad_rows_are_named_or_left_out(X, folder):
    bad = X.copy()
    bad[[12_345, 19_000]] = np.nan
    np.save(folder / "rows.npy", bad)
    source = isotropy.open(folder / "rows.npy", chunk_rows=700)
    with pytest.raises(InputError, match="first: 12345"):
        all_rows(source)
    source = isotropy.open(folder / "rows.npy", chunk_rows=700, skip_bad_rows=True)
    numbers, rows, _ = all_rows(source)
    kept = np.delete(np.arange(len(X)), [12_345, 19_000])
    assert np.array_equal(numbers, kept)
    assert np.array_equal(rows, X[kept])


def test_a_truncated_file_is_refused(X, folder, monkeypatch):
    source = isotropy.open(folder / "rows.npy", chunk_rows=700)
    with open(folder / "rows.npy", "r+b") as file:
        file.truncate(128 + 15_000 * X[:1].nbytes)
    with pytest.raises(InputError, match="has changed since it was opened"):
        all_rows(source)
    monkeypatch.setattr("isotropy.sources.files.expect_unchanged", lambda file: None)
    with pytest.raises(InputError, match="is truncated"):
        all_rows(source)


def test_an_error_in_the_middle_is_raised_and_ends_the_readers(folder):
    class Broken(Sample):
        def _update(self, X, w, first_row):
            if first_row:
                raise KeyboardInterrupt

    source = isotropy.open(folder / "rows.npy", chunk_rows=700)
    with pytest.raises(KeyboardInterrupt), engines.using("torch"):
        engines.reduce(source, [Broken()])


def test_page_locked_memory_is_allocated_once(folder, monkeypatch):
    made = []

    class Counted(staging.CudaSlot):
        def __init__(self, stream, n_bytes):
            super().__init__(stream, n_bytes)
            assert self.memory.is_pinned()
            made.append(self)

    monkeypatch.setattr(torch_engine, "CudaSlot", Counted)
    source = isotropy.open(folder / "rows.npy", chunk_rows=100)
    all_rows(source)
    assert 1 <= len(made) <= 4 * torch_engine.SLOTS
    assert len(source.chunks()) > 10 * len(made)


def test_the_reader_waits_for_the_device_once_an_update(folder):
    source = isotropy.open(folder / "rows.npy", chunk_rows=100).bare()
    engine = torch_engine.Torch("cuda")
    groups = torch_engine.in_groups(source.chunks(), 4 * source.n_features)
    n_updates = 0
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _, batches in engine._ahead(source, groups, True):
                n_updates += len(list(batches))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [item for item in caught if "synchroniz" in str(item.message)]
    assert n_updates == len(groups) > 5
    assert len(waits) <= n_updates, "the finite check is the only wait"


def test_mapped_rows_are_written_in_order(X, folder):
    source = isotropy.open(folder / "rows.npy", chunk_rows=700)
    sink = isotropy.sources.open_sink(folder / "out.npy", source.n_features, "float32")
    with engines.using("torch"):
        engines.map_rows(source, lambda rows: rows * 2, sink)
    assert np.array_equal(np.load(folder / "out.npy"), X * 2)


def test_a_rotation_is_learned_on_the_device(X):
    centred = X - X.mean(axis=0)

    def length(rotation):
        return np.abs(centred @ rotation).sum()

    expected = isotropy.repairs.Rotate().fit(X).rotation_
    found = isotropy.repairs.Rotate().fit(torch.from_numpy(X).cuda()).rotation_
    assert np.allclose(found @ found.T, np.eye(X.shape[1]), atol=1e-10)
    # each path ends where a step adds less than a millionth; they may part by then
    assert length(found) == pytest.approx(length(expected), rel=1e-3)


CODECS = {
    "binary": lambda repair: isotropy.codecs.Binary(repair=repair),
    "float queries": lambda repair: isotropy.codecs.Binary(repair=repair, asymmetric=True),
    "int8": lambda repair: isotropy.codecs.Scalar(repair=repair),
    "int4": lambda repair: isotropy.codecs.Scalar(bits=4, repair=repair),
    "rescored": lambda repair: isotropy.codecs.Rescored(
        coarse=isotropy.codecs.Binary(repair=repair)
    ),
}


@pytest.mark.parametrize("name", CODECS)
def test_codes_are_searched_on_the_device(X, name):
    repair = isotropy.repairs.Chain([isotropy.Center(), isotropy.repairs.Rotate("random")])
    codec = CODECS[name](repair).fit(X)
    rows = torch.from_numpy(X).cuda()
    codes, there = codec.encode(X), codec.encode(rows)
    assert there.device == rows.device
    assert (there.cpu().numpy() == codes).mean() > 0.999  # a value at the edge of a cell may round
    same = torch.from_numpy(codes).cuda()
    expected, indices = codec.search(X[:50], codes, 5)
    scores, found = codec.search(rows[:50], same, 5)
    assert found.device == rows.device
    assert np.allclose(scores.cpu().numpy(), expected, rtol=1e-5, atol=1e-5)
    assert (found.cpu().numpy() == indices).mean() > 0.98


def test_rows_of_a_file_stay_on_the_device_from_one_pass_to_the_next(X, folder, monkeypatch):
    source = isotropy.open(folder / "rows.npy", chunk_rows=1000)
    engine = torch_engine.Torch("cuda")
    monkeypatch.setattr(torch_engine, "KEPT_SHARE", 0.0)
    expected = flat(isotropy.measure(source, engine=engine))
    monkeypatch.setattr(torch_engine, "KEPT_SHARE", 0.5)
    reads = []
    ahead = torch_engine.Torch._ahead
    monkeypatch.setattr(
        torch_engine.Torch, "_ahead", lambda *given: reads.append(1) or ahead(*given)
    )
    before = torch.cuda.memory_allocated()
    found = flat(isotropy.measure(source, engine=engine))
    assert len(reads) == 1
    assert np.array_equal(found, expected, equal_nan=True)
    assert torch.cuda.memory_allocated() <= before + X.nbytes // 2
