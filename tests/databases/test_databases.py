"""What holds for every database: measured, repaired into a new column, killed and resumed."""

import signal
import subprocess
import sys

import numpy as np
import pytest

import isotropy
from isotropy.errors import InputError
from isotropy.repairs import Center, Whiten
from isotropy.sources.databases import DatabaseSink
from isotropy.sources.flat import CompressedFile

N_CHUNK = 1000
KILLED = """
import os, signal, sys
import isotropy
from isotropy.sources.databases import DatabaseSink

source, out, repair, point, number, overwrite = sys.argv[1:]
seen = []

def dying(method, when):
    def called(self, *args):
        seen.append(when)
        if point == f"before {when}" and len(seen) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        method(self, *args)
        if point == f"after {when}" and len(seen) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
    return called

name = point.split()[1]
if name == "commit":
    DatabaseSink.commit = dying(DatabaseSink.commit, name)
if name == "finish":
    leave = DatabaseSink.__exit__
    def left(self, kind, *rest):
        if kind is None:
            os.kill(os.getpid(), signal.SIGKILL)
        leave(self, kind, *rest)
    DatabaseSink.__exit__ = left
source = isotropy.open(source, chunk_rows=1000)
isotropy.load(repair).write(source, out, overwrite=bool(overwrite))
"""


def expected(vectors):
    """Whitening written out in float64: (x - mean) C^-1/2."""
    rows = vectors.astype(np.float64)
    mean = rows.mean(axis=0)
    values, basis = np.linalg.eigh(np.cov(rows.T))
    return (rows - mean) @ (basis / np.sqrt(values)) @ basis.T


def close(found, vectors):
    """Equal to float32's digits, which whitening spreads over the condition of the covariance."""
    wanted = expected(vectors)
    error = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    return error.max() < 1e-5


def killed(database, out, repair, point, number=1, overwrite=""):
    """A run in another process that ends with SIGKILL at a point."""
    words = database.source, out, repair, point, str(number), overwrite
    command = [sys.executable, "-c", KILLED, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def first_rows_written(monkeypatch):
    """The numbers of the rows at which batches begin, once they are written to a database."""
    write, seen = DatabaseSink.write_batch, []

    def watched(self, batch):
        seen.append(batch.first_row)
        write(self, batch)

    monkeypatch.setattr(DatabaseSink, "write_batch", watched)
    return seen


def test_measure_equals_that_of_the_array(database, vectors):
    source = isotropy.open(database.source, chunk_rows=N_CHUNK)
    assert (source.n_samples, source.n_features) == vectors.shape
    found, wanted = isotropy.measure(source).to_dict(), isotropy.measure(vectors).to_dict()
    for name, value in wanted.items():
        if isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=1e-5), name
    assert found["findings"] == wanted["findings"]


def test_rows_can_be_read_again(database, vectors, rows):
    source = isotropy.open(database.source, chunk_rows=2777)
    assert np.array_equal(rows(source), vectors)
    assert np.array_equal(rows(source), vectors)
    assert np.array_equal(rows(isotropy.open(database.source)), vectors)


def test_a_repair_goes_to_a_new_column_and_the_old_one_stays(database, vectors, rows):
    repair = Whiten().fit(database.source)
    assert np.allclose(repair.mean_, vectors.mean(axis=0, dtype=np.float64), atol=1e-6)
    written = repair.transform(database.source, out=database.target("repaired"))
    found = database.read("repaired")
    assert close(found, vectors)
    assert np.array_equal(rows(written), found)
    assert np.array_equal(database.read(), vectors)


def test_search_in_the_new_column_finds_the_neighbours_of_the_repaired_rows(database, vectors):
    repair = Whiten().fit(vectors)
    repair.write(database.source, database.target("repaired"))
    queries = repair.transform(vectors[:5] + np.float32(0.05))
    distances = np.linalg.norm(repair.transform(vectors)[None] - queries[:, None], axis=2)
    for query, distance in zip(queries, distances, strict=True):
        wanted = np.sort(distance)[:10]
        found = database.nearest("repaired", query, 10)
        assert np.allclose(distance[found], wanted, rtol=2e-5)


@pytest.mark.parametrize(
    ("point", "number", "resumes_at"),
    [("before commit", 3, 2000), ("after commit", 3, 3000), ("before finish", 1, None)],
)
def test_a_killed_run_resumes_without_losing_or_doubling_a_row(
    database, vectors, tmp_path, monkeypatch, point, number, resumes_at
):
    repair = Whiten().fit(vectors)
    repair.save(tmp_path / "repair.safetensors")
    out = database.target("repaired")
    killed(database, out, str(tmp_path / "repair.safetensors"), point, number)
    assert np.array_equal(database.read(), vectors)
    if database.incomplete_is_visible:
        with pytest.raises(InputError, match="is incomplete"):
            isotropy.open(out)
    else:
        assert "repaired" not in database.names()
    source = isotropy.open(database.source, chunk_rows=N_CHUNK)
    seen = first_rows_written(monkeypatch)
    assert isotropy.load(tmp_path / "repair.safetensors").write(source, out) == 0
    if number == 3:
        assert min(seen) == resumes_at
    elif database.incomplete_is_visible:
        assert not seen
    else:  # the last fragment is written again
        assert min(seen) == 4000
    assert close(database.read("repaired"), vectors)
    assert np.array_equal(database.read(), vectors)
    assert isotropy.open(out).n_samples == len(vectors)


def test_a_killed_run_to_a_new_table_resumes(make_database, vectors, tmp_path, rows, monkeypatch):
    database = make_database("lance")
    Whiten().fit(vectors).save(tmp_path / "repair.safetensors")
    repair = isotropy.load(tmp_path / "repair.safetensors")
    out = database.table("other")
    killed(database, out, str(tmp_path / "repair.safetensors"), "after commit", 2)
    assert list(database.client.list_tables().tables) == ["docs"]
    source = isotropy.open(database.source, chunk_rows=N_CHUNK)
    seen = first_rows_written(monkeypatch)
    found = repair.transform(source, out=out)
    assert min(seen) == 2000
    assert close(rows(found), vectors)
    other = database.client.open_table("other").to_arrow()
    assert other["id"].to_pylist() == list(range(len(vectors)))
    assert other["text"][17].as_py() == "text 17"


def test_another_repair_does_not_finish_what_one_began(database, vectors, tmp_path):
    Whiten().fit(vectors).save(tmp_path / "repair.safetensors")
    out = database.target("repaired")
    killed(database, out, str(tmp_path / "repair.safetensors"), "after commit", 2)
    source, other = isotropy.open(database.source, chunk_rows=N_CHUNK), Center().fit(vectors)
    if database.incomplete_is_visible:
        with pytest.raises(InputError, match=r"begun with another repair.*overwrite=True"):
            other.write(source, out)
    other.write(source, out, overwrite=True)
    assert np.allclose(database.read("repaired"), vectors - vectors.mean(axis=0), atol=1e-5)


def test_an_existing_column_is_replaced_only_if_we_wrote_it(database, vectors):
    repair, out = Center().fit(vectors), database.target("repaired")
    repair.write(database.source, out)
    with pytest.raises(InputError, match=r"exists. Pass overwrite=True to replace it"):
        repair.write(database.source, out)
    Whiten().fit(vectors).write(database.source, out, overwrite=True)
    assert close(database.read("repaired"), vectors)
    assert np.array_equal(database.read(), vectors)


def test_the_old_one_stays_until_the_new_one_is_whole(database, vectors, tmp_path, monkeypatch):
    centred, out = Center().fit(vectors), database.target("repaired")
    centred.write(database.source, out)
    old, names = database.read("repaired"), database.names()
    Whiten().fit(vectors).save(tmp_path / "repair.safetensors")
    killed(database, out, str(tmp_path / "repair.safetensors"), "after commit", 3, "overwrite")
    assert np.array_equal(database.read("repaired"), old)
    assert np.array_equal(database.read(), vectors)
    seen = first_rows_written(monkeypatch)
    source = isotropy.open(database.source, chunk_rows=N_CHUNK)
    isotropy.load(tmp_path / "repair.safetensors").write(source, out, overwrite=True)
    assert min(seen) == 3000
    assert close(database.read("repaired"), vectors)
    assert database.names() == names


@pytest.mark.parametrize("kind", ["lance", "postgres"])
def test_an_old_table_stays_until_the_new_one_is_whole(
    make_database, vectors, tmp_path, rows, kind
):
    database = make_database(kind)
    centred, out = Center().fit(vectors), database.table("other")
    centred.write(database.source, out)
    old = rows(isotropy.open(out))
    Whiten().fit(vectors).save(tmp_path / "repair.safetensors")
    killed(database, out, str(tmp_path / "repair.safetensors"), "before finish", 1, "overwrite")
    assert np.array_equal(rows(isotropy.open(out)), old)
    source = isotropy.open(database.source, chunk_rows=N_CHUNK)
    repair = isotropy.load(tmp_path / "repair.safetensors")
    assert close(rows(repair.transform(source, out=out, overwrite=True)), vectors)


@pytest.mark.parametrize("kind", ["postgres", "qdrant"])
def test_a_resumed_run_notices_that_vectors_were_changed(make_database, vectors, tmp_path, kind):
    database = make_database(kind)
    Whiten().fit(vectors).save(tmp_path / "repair.safetensors")
    repair, out = isotropy.load(tmp_path / "repair.safetensors"), database.target("repaired")
    killed(database, out, str(tmp_path / "repair.safetensors"), "after commit", 3)
    changed = vectors.copy()
    changed[2999] = vectors[0] + np.float32(1)
    database.change(2999, changed[2999])
    source = isotropy.open(database.source, chunk_rows=N_CHUNK)
    with pytest.raises(InputError, match=r"with vectors that have changed since.*overwrite=True"):
        repair.write(source, out)
    repair.write(source, out, overwrite=True)
    assert np.allclose(database.read("repaired"), repair.transform(changed), atol=1e-5)


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_read_is_never_written_to(database, vectors, overwrite):
    repair = Center().fit(vectors)
    with pytest.raises(InputError, match=r"must be another (column|collection) than the one"):
        repair.write(database.source, database.source, overwrite=overwrite)
    assert np.array_equal(database.read(), vectors)


@pytest.mark.parametrize("kind", ["lance", "postgres"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_columns_of_others_are_never_replaced(make_database, vectors, kind, overwrite):
    database = make_database(kind)
    with pytest.raises(InputError, match="which isotropy did not write"):
        Center().fit(vectors).write(database.source, database.target("id"), overwrite=overwrite)


def test_files_go_to_a_new_table_and_back(database, vectors, tmp_path, rows):
    np.save(tmp_path / "rows.npy", vectors[:500])
    repair = Center(normalize=True).fit(vectors)
    if database.url.startswith("qdrant"):
        with pytest.warns(isotropy.errors.IsotropyWarning, match="length one"):
            written = repair.transform(tmp_path / "rows.npy", out=database.table())
    else:
        written = repair.transform(tmp_path / "rows.npy", out=database.table())
    assert np.allclose(rows(written), repair.transform(vectors[:500]), atol=1e-6)
    with pytest.raises(InputError, match="exists"):
        repair.write(tmp_path / "rows.npy", database.table())
    with pytest.raises(InputError, match=r"did not write|must be another"):
        repair.write(tmp_path / "rows.npy", database.table("docs"), overwrite=True)
    repair.transform(database.source, out=tmp_path / "back.parquet")
    assert np.allclose(
        rows(isotropy.open(tmp_path / "back.parquet", column="embedding")),
        repair.transform(vectors),
        atol=1e-6,
    )


@pytest.mark.parametrize("kind", ["lance", "postgres"])
def test_a_packed_file_is_streamed_into_a_table(
    make_database, vectors, tmp_path, kind, rows, monkeypatch
):
    database = make_database(kind)
    np.savez_compressed(tmp_path / "rows.npz", vectors=vectors[:1000])
    source = isotropy.open(tmp_path / "rows.npz", chunk_rows=100)
    assert len(source.chunks()) == 1
    read, put, seen = CompressedFile.read, DatabaseSink.write_batch, []

    def reading(self, *args):
        for piece in read(self, *args):
            seen.append("read")
            yield piece

    def putting(self, batch):
        seen.append("written")
        put(self, batch)
        assert len(getattr(self, "parts", ())) <= 2  # tables that wait

    monkeypatch.setattr(CompressedFile, "read", reading)
    monkeypatch.setattr(DatabaseSink, "write_batch", putting)
    monkeypatch.setattr("isotropy.sources.lance.CHUNK_BYTES", 2 * 100 * 4 * vectors.shape[1])
    repair = Center().fit(vectors)
    repair.write(source, database.table())
    assert seen == ["read", "written"] * 10
    found = rows(isotropy.open(database.table()))
    assert np.allclose(found, repair.transform(vectors[:1000]), atol=1e-6)


def test_a_width_that_does_not_fit_is_refused(database, vectors):
    repair = Center().fit(vectors[:, :100])
    with pytest.raises(InputError, match="X has 384 features, but Center is expecting 100"):
        repair.write(database.source, database.target("repaired"))
    assert "repaired" not in database.names()


def test_a_missing_package_names_its_extra(database, monkeypatch):
    package = {"l": "lance", "p": "psycopg", "q": "qdrant_client"}[database.url[0]]
    extra = {"l": "lancedb", "p": "postgres", "q": "qdrant"}[database.url[0]]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(isotropy.errors.MissingExtraError, match=rf'"isotropy\[{extra}\]"'):
        isotropy.open(database.source)


def test_a_missing_table_is_named(database):
    with pytest.raises(InputError, match=r"there is no (table|collection) 'other'.*'docs'"):
        isotropy.open(database.table("other"))


def test_a_fit_with_a_checkpoint_takes_a_table(database, vectors, tmp_path):
    repair = Whiten().fit(database.source, checkpoint=tmp_path / "kept")
    again = Whiten().fit(database.source, checkpoint=tmp_path / "kept")
    assert np.array_equal(repair.mean_, again.mean_)
