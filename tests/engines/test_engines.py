"""One contract over engines: the same numbers, the same files, the same complaints."""

from __future__ import annotations

import gc
import inspect
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.base import clone

import isotropy
from isotropy import engines, linalg
from isotropy.engines import map_rows
from isotropy.errors import InputError, MissingExtraError
from isotropy.repairs import Repair
from isotropy.sources import Batch, Chunk, SourceView, as_source
from isotropy.sources.sinks import ChunkWriter

from .. import tolerances
from .conftest import N_ROWS

OTHER_BLOCKS = tolerances.of_sum(N_ROWS)  # float32 sums over blocks, none larger than all rows
PRECISION = {"local": 1e-12, "torch": 1e-9, "dask": 1e-12}
REPAIRS = [
    *(kind() for name, kind in Repair.by_name.items() if name != "cluster-removal"),
    isotropy.ClusterRemoval(3, 2),
    isotropy.ClusterRemoval(2, 0, normalize=True),
]


@pytest.fixture(params=REPAIRS, ids=str)
def repair(request):
    return clone(request.param)


def rows_of(source):
    return np.concatenate([b.rows for chunk in source.chunks() for b in source.read(chunk)])


def learned(repair):
    return {name: np.asarray(getattr(repair, name)) for name in repair.learned}


def one_line(error, *words):
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def with_table(path, X, **options):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), X.shape[1])
    table = pa.table({"id": np.arange(len(X)), "vector": lists})
    pq.write_table(table, path, **options)


def agree(found, expected, rtol):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = np.abs(value).max() if value.size else 0
        np.testing.assert_allclose(
            found[name], value, rtol=rtol, atol=rtol * scale * (value.ndim > 0), err_msg=name
        )


def test_measure_agrees_with_the_local_engine(source, engine, numbers):
    expected = numbers(isotropy.measure(source))
    found = numbers(isotropy.measure(source, engine=engine))
    agree(found, expected, PRECISION[engine.name.split()[0]])


def test_local_measures_agree_too(source, torch_engine):
    expected = isotropy.measure(source, ["isoscore"], local=1).local_isotropy
    found = isotropy.measure(source, ["isoscore"], local=1, engine=torch_engine).local_isotropy
    assert found["isoscore"]["mean"] == pytest.approx(expected["isoscore"]["mean"], rel=1e-9)


def test_measure_of_a_file_agrees_with_formulas_in_float64(source, engine, X):
    rows = X.astype(np.float64)
    geometry = isotropy.measure(source, engine=engine)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    n = len(rows)
    mean_cosine = (np.square(unit.sum(axis=0)).sum() - n) / (n * (n - 1))
    drift = np.linalg.norm(rows.mean(axis=0)) / np.linalg.norm(rows, axis=1).mean()
    assert geometry.mean_cosine == pytest.approx(mean_cosine, rel=OTHER_BLOCKS)
    assert geometry.mean_norm_ratio == pytest.approx(drift, rel=OTHER_BLOCKS)
    expected = np.linalg.svd(rows, compute_uv=False)
    np.testing.assert_allclose(geometry.singular_values, expected, rtol=OTHER_BLOCKS)


@pytest.mark.parametrize("chunk_rows", [100, 999, 6000])
def test_another_chunk_size_agrees(path, source, engine, numbers, chunk_rows):
    expected = numbers(isotropy.measure(source))
    other = isotropy.open(path, chunk_rows=chunk_rows)
    agree(numbers(isotropy.measure(other, engine=engine)), expected, OTHER_BLOCKS)


def test_the_same_rows_as_several_parquet_files_agree(source, engine, X, numbers, tmp_path):
    for i, part in enumerate(np.array_split(X, 5)):
        with_table(tmp_path / f"part-{i}.parquet", part, row_group_size=170)
    expected = numbers(isotropy.measure(source))
    found = numbers(isotropy.measure(isotropy.open(tmp_path, column="vector"), engine=engine))
    agree(found, expected, OTHER_BLOCKS)


def test_a_repair_fitted_on_chunks_equals_one_fitted_on_the_array(source, engine, X, repair):
    expected = clone(repair).fit(isotropy.open(X, chunk_rows=250))
    repair.fit(source, engine=engine)
    assert repair.n_samples_seen_ == len(X)
    for name, value in learned(expected).items():
        tolerance = PRECISION[engine.name.split()[0]]
        np.testing.assert_allclose(
            getattr(repair, name), value, rtol=tolerance, atol=tolerance, err_msg=name
        )


def test_a_repair_fitted_on_chunks_treats_rows_like_one_fitted_whole(source, engine, X, repair):
    expected = clone(repair).fit(X).transform(X)
    found = repair.fit(source, engine=engine).transform(X)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def streamed(repair, source, engine, out, X):
    """transform(source, out) gives one file or folder, with the rows of transform(X)."""
    written = repair.fit(X).transform(source, out=out, engine=engine)
    assert written.dtype == "float32"
    assert [p.name for p in out.parent.iterdir()] == [out.name]
    expected = repair.transform(X)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(rows_of(written), expected, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".safetensors"])
@pytest.mark.parametrize("name", ["local", "torch"])
def test_a_streamed_transform_equals_the_one_in_memory(
    source, name, X, repair, suffix, tmp_path, request
):
    engine = "local" if name == "local" else request.getfixturevalue(f"{name}_engine")
    streamed(repair, source, engine, tmp_path / f"fixed{suffix}", X)


def test_every_repair_is_streamed_by_dask_into_a_folder(source, dask_engine, X, repair, tmp_path):
    streamed(repair, source, dask_engine, tmp_path / "fixed", X)
    names = sorted(p.name for p in (tmp_path / "fixed").glob("part-*"))
    assert names == [f"part-{i:05d}.parquet" for i in range(len(source.chunks()))]


def test_every_engine_writes_a_folder_of_parts(source, engine, X, tmp_path):
    streamed(isotropy.Center(), source, engine, tmp_path / "fixed", X)


def test_carried_columns_and_order_survive_parts(engine, X, tmp_path):
    with_table(tmp_path / "x.parquet", X, row_group_size=170)
    source = isotropy.open(tmp_path / "x.parquet", column="vector")
    out = tmp_path / ("fixed" if engine.name == "dask" else "fixed.parquet")
    isotropy.Center().fit(X).transform(source, out=out, engine=engine)
    assert pq.read_table(out)["id"].to_pylist() == list(range(len(X)))


def test_rows_that_are_read_only_bring_no_warning(torch_engine, X, tmp_path, recwarn):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with_table(tmp_path / "x.parquet", X, row_group_size=500)
    source = isotropy.open(tmp_path / "x.parquet", column="vector")
    torch.set_warn_always(True)
    try:
        isotropy.measure(source, engine=torch_engine)
    finally:
        torch.set_warn_always(False)
    assert {str(w.message)[:80] for w in recwarn} == set()


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_dask_refuses_a_file_as_target(source, dask_engine, X, suffix, tmp_path):
    repair = isotropy.Center().fit(X)
    with pytest.raises(InputError, match="out must be a folder") as error:
        repair.transform(source, out=tmp_path / f"fixed{suffix}", engine=dask_engine)
    one_line(error, "engine 'dask'", "without suffix")
    assert list(tmp_path.iterdir()) == []


def test_bad_rows_are_counted_by_every_engine(engine, X, tmp_path):
    bad = X.copy()
    bad[[3, 800, 5999], 2] = np.nan
    np.save(tmp_path / "x.npy", bad)
    source = isotropy.open(tmp_path / "x.npy", chunk_rows=250, skip_bad_rows=True)
    geometry = isotropy.measure(source, ["mean_norm_ratio", "singular_values"], engine=engine)
    assert (geometry.n_skipped, geometry.n_samples) == (3, len(X) - 3)
    good = np.delete(bad, [3, 800, 5999], axis=0).astype(np.float64)
    expected = np.linalg.svd(good, compute_uv=False)
    np.testing.assert_allclose(geometry.singular_values, expected, rtol=1e-6)
    repair = isotropy.ClusterRemoval(2, 1).fit(source, engine=engine)
    assert repair.n_samples_seen_ == len(X) - 3
    out = tmp_path / ("fixed" if engine.name == "dask" else "fixed.npy")
    assert repair.transform(source, out=out, engine=engine).n_samples == len(X) - 3


def test_every_engine_names_the_bad_row(engine, X, tmp_path):
    bad = X.copy()
    bad[4321, 0] = np.inf
    np.save(tmp_path / "x.npy", bad)
    source = isotropy.open(tmp_path / "x.npy", chunk_rows=250)
    with pytest.raises(InputError, match=r"infinity in 1 row \(first: 4321, ") as error:
        isotropy.measure(source, engine=engine)
    one_line(error, "counting from 0")
    out = tmp_path / ("fixed" if engine.name == "dask" else "fixed.npy")
    with pytest.raises(InputError, match=r"infinity in 1 row \(first: 4321, "):
        isotropy.Center().fit(X).transform(source, out=out, engine=engine)
    assert [p.name for p in tmp_path.iterdir()] == ["x.npy"]


def test_statistics_travel_and_rows_do_not(source, dask_engine, monkeypatch):
    seen = []
    reduce = dask_engine.reduce

    def spy(rows, *others):
        seen.append(type(rows).__name__)
        return reduce(rows, *others)

    monkeypatch.setattr(dask_engine, "reduce", spy)
    isotropy.ClusterRemoval(3, 2).fit(source, engine=dask_engine)
    assert set(seen) == {"FileSource"}, f"{seen.count('ArraySource')} passes sent rows in memory"


def test_an_engine_of_another_name_is_refused(source, X):
    repair = isotropy.Center().fit(X)
    calls = (
        lambda: isotropy.measure(source, engine="spark"),
        lambda: isotropy.Center().fit(source, engine="spark"),
        lambda: repair.transform(source, out="fixed.npy", engine="spark"),
    )
    for call in calls:
        with pytest.raises(InputError, match="engine must be one of") as error:
            call()
        one_line(error, "local", "torch", "dask", "spark")


@pytest.mark.parametrize("device", ["cuda:99", "nonsense"])
def test_a_device_that_cannot_be_used_gets_one_line(device):
    pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(InputError, match=f"device '{device}' cannot be used") as error:
        engines.named("torch", device=device)
    one_line(error, "engine 'torch'", "Use 'cpu'")


@pytest.mark.parametrize("scheduler", ["tcp://127.0.0.1:1", "nonsense", "nowhere://x:1"])
def test_a_scheduler_out_of_reach_gets_one_line(scheduler, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="dask is not installed")
    monkeypatch.setattr("isotropy.engines.dask.CONNECTING", "2s")
    with pytest.raises(InputError, match="must be reachable") as error:
        engines.named("dask", scheduler=scheduler)
    failed = [one for one in gc.get_objects() if type(one) is distributed.Client]
    failed = [one for one in failed if scheduler in repr(one.__dict__.get("_start_arg"))]
    assert all(one.status in ("closed", "newly-created") for one in failed)
    one_line(error, "engine 'dask'", repr(scheduler))


@pytest.mark.parametrize(("name", "module"), [("torch", "torch"), ("dask", "distributed")])
def test_an_engine_that_is_not_installed_names_its_extra(source, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as error:
        isotropy.measure(source, engine=name)
    one_line(error, f"needs {name}, which is not installed", f'pip install "isotropy[{name}]"')


def test_an_engine_is_chosen_by_calls_and_not_by_constructors():
    for kind in Repair.by_name.values():
        assert "engine" not in inspect.signature(kind).parameters
        assert "engine" in inspect.signature(kind.fit).parameters
        assert "engine" in inspect.signature(kind.transform).parameters
    assert "engine" in inspect.signature(isotropy.measure).parameters


def test_open_is_there_and_does_not_hide_the_built_in(path):
    assert isotropy.open(path).n_samples == 6000
    assert "open" not in isotropy.__all__
    namespace = {}
    exec("from isotropy import *", namespace)
    assert "open" not in namespace


def test_an_engine_named_by_a_word_is_closed_afterwards(source, monkeypatch):
    closed = []
    monkeypatch.setattr(engines.Local, "close", lambda self: closed.append(self))
    isotropy.measure(source, ["isoscore"], engine="local")
    assert len(closed) == 1
    isotropy.measure(source, ["isoscore"], engine=engines.Local())
    assert len(closed) == 1, "what the caller has made is the caller's to close"


def test_progress_counts_every_row_of_every_pass(source, engine):
    class Told:
        passes = ()

        def begin(self, n_rows):
            self.passes = (*self.passes, [n_rows, 0])

        def advance(self, n_rows):
            self.passes[-1][1] += n_rows

    told = Told()
    with engines.using(engine, progress=told):
        isotropy.measure(source)
    assert told.passes == ([6000, 6000], [6000, 6000])


@pytest.mark.parametrize("apart", [True, False])
def test_a_single_chunk_is_written_while_it_is_read(apart):
    """A packed file may be large; a database may be what is read, which has to end first."""
    told = []

    class OneChunk(SourceView):
        def chunks(self):
            return [Chunk(0, 6)]

        def read(self, chunk):
            for start in (0, 2, 4):
                told.append("read")
                yield Batch(start, np.full((2, 3), float(start)))

    class Told(ChunkWriter):
        def __enter__(self):
            return self

        def __exit__(self, *error):
            told.append("end")

        def write(self, rows, carried=None):
            told.append(rows[0, 0])

    sink = Told()
    sink.apart = apart
    assert map_rows(OneChunk(as_source(np.zeros((6, 3)))), lambda rows: rows + 1, sink) == 0
    if apart:
        assert told == ["read", 1.0, "read", 3.0, "read", 5.0, "end"]
    else:
        assert told == ["read", "read", "read", 1.0, 3.0, 5.0, "end"]


def test_what_follows_a_pass_is_done_where_the_rows_were_summed(source, monkeypatch):
    asked = []

    class There(engines.Local):
        def place(self, source):
            return "there"

    def eigh(symmetric, device="cpu"):
        asked.append(device)
        return eigh_here(symmetric)

    eigh_here = linalg.eigh
    monkeypatch.setattr(linalg, "eigh", eigh)
    isotropy.measure(source, ["singular_values"], engine=There())
    isotropy.measure(source, ["singular_values"])
    assert set(asked) == {"there", "cpu"}
