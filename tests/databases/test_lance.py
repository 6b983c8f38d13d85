"""What is LanceDB's own: fragments, deleted rows, folders, and search at scale."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pytest

import isotropy
from isotropy.errors import InputError
from isotropy.repairs import Center, PerGroup, Standardize, Whiten
from isotropy.sources import lance as lance_module
from isotropy.sources.databases import DatabaseSink
from isotropy.sources.lance import LanceColumn, LanceNewTable

from .conftest import lists

lancedb = pytest.importorskip("lancedb")
pylance = pytest.importorskip("lance")


def test_deleted_rows_are_neither_read_nor_written(lance, vectors, rows):
    table = lance.client.open_table("docs")
    table.delete("id % 7 = 3 OR id BETWEEN 1000 AND 1999")
    kept = [i for i in range(len(vectors)) if i % 7 != 3 and not 1000 <= i <= 1999]
    source = isotropy.open(lance.source, chunk_rows=300)
    assert np.array_equal(rows(source), vectors[kept])
    Center().fit(source).write(source, lance.target("repaired"))
    table = lance.client.open_table("docs").to_arrow()
    assert table["id"].to_pylist() == kept
    found = table["repaired"].combine_chunks().flatten().to_numpy().reshape(len(kept), -1)
    assert np.allclose(found, vectors[kept] - vectors[kept].mean(axis=0), atol=1e-5)


def test_rows_without_a_vector_have_none_in_the_new_column(tmp_path, vectors, rows):
    client = lancedb.connect(tmp_path)
    given = lists(vectors[:100]).to_pylist()
    given[3] = given[40] = None
    kind = pa.list_(pa.float32(), vectors.shape[1])
    client.create_table(
        "docs", pa.table({"id": range(100), "v": pa.array(given, kind)}), on_bad_vectors="null"
    )
    url = f"lance://{tmp_path}#docs"
    with pytest.raises(InputError, match=r"NaN in 2 rows .first: 3"):
        isotropy.measure(url)
    source = isotropy.open(url, skip_bad_rows=True, chunk_rows=30)
    repair = Center().fit(source)
    assert repair.write(source, f"lance://{tmp_path}?column=repaired#docs") == 2
    found = client.open_table("docs").to_arrow()["repaired"].to_pylist()
    assert [i for i, row in enumerate(found) if row is None] == [3, 40]
    good = np.delete(vectors[:100], [3, 40], axis=0)
    written = np.array([row for row in found if row is not None])
    assert np.allclose(written, good - good.mean(axis=0), atol=1e-5)


def test_the_folder_of_a_table_is_a_source_and_a_target(lance, vectors, tmp_path, rows):
    folder = tmp_path / "docs.lance"
    assert np.array_equal(rows(isotropy.open(folder)), vectors)
    repair = Center().fit(folder)
    written = repair.transform(folder, out=tmp_path / "centred.lance")
    assert np.allclose(rows(written), vectors - vectors.mean(axis=0), atol=1e-5)
    with pytest.raises(InputError, match="must be another column than the one that is read"):
        repair.write(folder, folder, overwrite=True)
    with pytest.raises(InputError, match="which isotropy did not write"):
        repair.write(tmp_path / "centred.lance", folder, overwrite=True)


def test_rows_added_later_do_not_change_an_open_source(lance, vectors, rows):
    source = isotropy.open(lance.source)
    added = {"id": [5000], "text": ["late"], "embedding": lists(vectors[:1])}
    lance.client.open_table("docs").add(pa.table(added))
    assert np.array_equal(rows(source), vectors)
    with pytest.raises(InputError, match="has changed since it was opened"):
        Center().fit(source).write(source, lance.target("repaired"))


def test_urls_that_cannot_work_say_so(tmp_path):
    with pytest.raises(InputError, match=r"must name a table. End it with #docs"):
        isotropy.open(f"lance://{tmp_path}")
    with pytest.raises(InputError, match="with three slashes"):
        isotropy.open("lance://folder#docs")
    with pytest.raises(InputError, match="a Path drops one"):
        isotropy.open("lance:/folder#docs")
    with pytest.raises(InputError, match="which holds none"):
        isotropy.open(f"lance://{tmp_path}#docs")
    with pytest.raises(InputError, match="a table in a list"):
        isotropy.open([f"lance://{tmp_path}#docs", "x.npy"])
    with pytest.raises(InputError, match="a table without a slash, got 'a/b'"):
        isotropy.open(f"lance://{tmp_path}#a/b")
    (tmp_path / "docs.lance").mkdir()
    with pytest.raises(InputError, match="could not be read"):
        isotropy.open(f"lance://{tmp_path}#docs")


@pytest.mark.parametrize("beside", [False, True])
def test_a_second_run_to_the_same_place_is_refused(lance, vectors, monkeypatch, beside, rows):
    repair, out = Center().fit(vectors), lance.target("new") if beside else lance.table("new")
    source = isotropy.open(lance.source, chunk_rows=1000)
    commit, refused = DatabaseSink.commit, []

    def meanwhile(self, chunk, n_skipped):
        commit(self, chunk, n_skipped)
        with pytest.raises(InputError, match="another run is writing to") as caught:
            repair.write(source, out)
        refused.append(str(caught.value))

    monkeypatch.setattr(DatabaseSink, "commit", meanwhile)
    repair.write(source, out)
    monkeypatch.undo()
    assert len(refused) == 5
    found = rows(isotropy.open(out, column="new" if beside else "embedding"))
    assert np.allclose(found, vectors - vectors.mean(axis=0), atol=1e-5)


def test_a_run_that_fails_at_once_leaves_nothing_behind(lance, vectors, tmp_path, monkeypatch):
    def full(self, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(LanceNewTable, "save", full)
    with pytest.raises(KeyboardInterrupt):
        Center().fit(vectors).write(lance.source, lance.table("new"))
    assert [path.name for path in tmp_path.iterdir()] == ["docs.lance"]


@pytest.mark.parametrize("step", ["_add", "alter_columns"])
def test_a_column_that_only_lacks_its_name_gets_it(lance, vectors, monkeypatch, step):
    out = lance.target("repaired")
    Center().fit(vectors).write(lance.source, out)
    old, scaled = lance.read("repaired"), Standardize().fit(vectors)
    kind = LanceColumn if step == "_add" else pylance.LanceDataset
    method, written = getattr(kind, step), []

    def stopping(self, *args):
        method(self, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(kind, step, stopping)
    with pytest.raises(KeyboardInterrupt):
        scaled.write(lance.source, out, overwrite=True)
    monkeypatch.undo()
    wanted = scaled.transform(vectors)
    assert np.allclose(lance.read("repaired"), old if step == "_add" else wanted, atol=1e-5)
    put = LanceColumn.put
    monkeypatch.setattr(LanceColumn, "put", lambda *args: written.append(1) or put(*args))
    scaled.write(lance.source, out, overwrite=step == "_add")
    assert not written
    assert np.allclose(lance.read("repaired"), wanted, atol=1e-5)
    assert lance.names() == ["id", "text", "embedding", "repaired"]
    with pytest.raises(InputError, match="exists"):
        scaled.write(lance.source, out)


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("step", ["rename", "rmtree"])
def test_a_whole_table_only_lacks_its_name(lance, vectors, monkeypatch, tmp_path, step, replaces):
    """Killed before it gets its name, or after that and before its progress is removed."""
    out, scaled = lance.table("new"), Standardize().fit(vectors)
    if replaces:
        Center().fit(vectors).write(lance.source, out)
    named = (lance_module, "replace_folder") if replaces else (os, "rename")
    target = (shutil, "rmtree") if step == "rmtree" else named

    def stopping(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*target, stopping)
        with pytest.raises(KeyboardInterrupt):
            scaled.write(lance.source, out, overwrite=replaces)
    monkeypatch.setattr(LanceNewTable, "put", None)  # nothing is left to write
    scaled.write(lance.source, out, overwrite=replaces and step == "rename")
    found = pylance.dataset(tmp_path / "new.lance").to_table()["embedding"].to_pylist()
    assert np.allclose(found, scaled.transform(vectors), atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docs.lance", "new.lance"]
    assert not (tmp_path / "new.lance" / "_isotropy").exists()
    with pytest.raises(InputError, match="exists"):
        scaled.write(lance.source, out)


def interrupt(monkeypatch, run, kind=LanceColumn):
    """The run, which stops after two fragments."""
    save, saved = kind.save, []

    def stopping(self, progress):
        save(self, progress)
        saved.append(progress)
        if len(saved) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kind, "save", stopping)
        with pytest.raises(KeyboardInterrupt):
            run()


def test_a_run_with_groups_resumes(lance, vectors, monkeypatch, tmp_path):
    groups, saved = np.where(np.arange(len(vectors)) % 2, "en", "fr"), tmp_path / "repair"
    PerGroup(Center()).fit(vectors, groups=groups).save(saved)
    source, out = isotropy.open(lance.source, chunk_rows=1000), lance.target("repaired")
    interrupt(monkeypatch, lambda: isotropy.load(saved).write(source, out, groups=groups))
    put, first_rows = LanceColumn.put, []

    def watched(self, rows, batch):
        first_rows.append(batch.first_row)
        put(self, rows, batch)

    monkeypatch.setattr(LanceColumn, "put", watched)
    isotropy.load(saved).write(source, out, groups=groups)
    assert first_rows == [2000, 3000, 4000]
    wanted = vectors.copy()
    for one in ("en", "fr"):
        wanted[groups == one] -= vectors[groups == one].mean(axis=0, dtype=np.float64)
    assert np.allclose(lance.read("repaired"), wanted, atol=1e-5)


@pytest.mark.parametrize("beside", [False, True])
def test_a_run_does_not_go_on_with_other_groups(tmp_path, vectors, monkeypatch, beside):
    dataset = pylance.write_dataset(
        pa.table({"number": np.arange(1000), "embedding": lists(vectors[:1000])}),
        tmp_path / "docs.lance",
        max_rows_per_file=250,
    )
    dataset.add_columns({"lang": "cast(number % 2 as string)"})
    url = f"lance://{tmp_path}#docs"
    out = f"lance://{tmp_path}?column=repaired#docs" if beside else f"lance://{tmp_path}#new"
    repair = PerGroup(Center()).fit(url, groups="lang")
    kind = LanceColumn if beside else LanceNewTable
    source = isotropy.open(url, chunk_rows=250)
    interrupt(monkeypatch, lambda: repair.write(source, out, groups="lang"), kind)
    dataset = pylance.dataset(tmp_path / "docs.lance")
    dataset.drop_columns(["lang"])
    dataset.add_columns({"lang": "cast((number + 1) % 2 as string)"})
    repair.write(isotropy.open(url, chunk_rows=250), out, groups="lang")
    name, column = ("docs", "repaired") if beside else ("new", "embedding")
    found = pylance.dataset(tmp_path / f"{name}.lance").to_table()[column].to_pylist()
    groups = [str((i + 1) % 2) for i in range(1000)]
    assert np.allclose(found, repair.transform(vectors[:1000], groups=groups), atol=1e-5)


def test_a_column_that_others_add_between_two_runs_stays(lance, vectors, monkeypatch):
    repair, out = Center().fit(vectors), lance.target("repaired")
    source = isotropy.open(lance.source, chunk_rows=1000)
    interrupt(monkeypatch, lambda: repair.write(source, out))
    pylance.dataset(lance.url[len("lance://") :] + "/docs.lance").add_columns({"twice": "id * 2"})
    repair.write(isotropy.open(lance.source, chunk_rows=1000), out)
    found = lance.client.open_table("docs").to_arrow().sort_by("id")
    assert found["twice"].to_pylist() == list(range(0, 2 * len(vectors), 2))
    assert np.allclose(lance.read("repaired"), vectors - vectors.mean(axis=0), atol=1e-5)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_table_that_others_make_during_a_run_stays(tmp_path, vectors, monkeypatch, overwrite):
    theirs = tmp_path / "new.lance"
    save = LanceNewTable.save

    def late(self, progress):
        save(self, progress)
        pylance.write_dataset(pa.table({"theirs": [1]}), theirs)

    monkeypatch.setattr(LanceNewTable, "save", late)
    np.save(tmp_path / "x.npy", vectors[:100])
    with pytest.raises(InputError, match="which isotropy did not write"):
        Center().fit(vectors[:100]).write(
            tmp_path / "x.npy", f"lance://{tmp_path}#new", overwrite=overwrite
        )
    assert pylance.dataset(theirs).to_table().column_names == ["theirs"]


def test_groups_may_be_a_column_of_the_table_that_is_written_to(tmp_path, vectors):
    groups = ["en", "fr"] * 500
    rows = pa.table({"lang": groups, "embedding": lists(vectors[:1000])})
    pylance.write_dataset(rows, tmp_path / "docs.lance")
    url = f"lance://{tmp_path}"
    repair = PerGroup(Center()).fit(f"{url}#docs", groups="lang")
    repair.write(f"{url}#docs", f"{url}?column=repaired#docs", groups="lang")
    found = pylance.dataset(tmp_path / "docs.lance").to_table()["repaired"].to_pylist()
    assert np.allclose(found, repair.transform(vectors[:1000], groups=groups), atol=1e-6)


@pytest.mark.slow
def test_neighbours_of_100_000_rows_are_those_of_transform_then_search(tmp_path):
    random = np.random.default_rng(1)
    spectrum = (np.arange(1, 129) ** -0.4).astype(np.float32)
    X = random.standard_normal((100_000, 128), dtype=np.float32) * spectrum + np.float32(0.2)
    queries = random.standard_normal((1000, 128), dtype=np.float32) * spectrum + np.float32(0.2)
    client = lancedb.connect(tmp_path)
    client.create_table("docs", pa.table({"id": np.arange(len(X)), "v": lists(X)}))
    repair = Whiten(normalize=True).fit(f"lance://{tmp_path}#docs")
    repair.write(f"lance://{tmp_path}#docs", f"lance://{tmp_path}?column=repaired#docs")
    rows, asked = repair.transform(X), repair.transform(queries)
    table = client.open_table("docs")
    search = table.search(list(asked), vector_column_name="repaired").metric("cosine")
    found = (
        search.limit(10)
        .select(["id", "_distance"])
        .to_arrow()
        .sort_by([("query_index", "ascending"), ("_distance", "ascending")])
    )
    assert len(found) == 10_000
    ids = found["id"].to_numpy().reshape(1000, 10)
    cosines = asked @ rows.T
    best = -np.partition(-cosines, 9, axis=1)[:, :10]
    worst_wanted = best.min(axis=1)
    given = np.take_along_axis(cosines, ids, axis=1)
    assert all(len(set(row)) == 10 for row in ids.tolist())
    assert (given >= worst_wanted[:, None] - 2e-5).all()  # but for ties, the same rows
