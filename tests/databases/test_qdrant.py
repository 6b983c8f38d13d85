"""What is Qdrant's own: cosine collections, named vectors, ids, and folders that are in use."""

from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest

import isotropy
from isotropy.errors import InputError, IsotropyWarning
from isotropy.repairs import Center, Standardize
from isotropy.sources import qdrant as qdrant_source
from isotropy.sources.qdrant import QdrantSink

from .conftest import lists

models = pytest.importorskip("qdrant_client.models")
QdrantClient = pytest.importorskip("qdrant_client").QdrantClient


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_cosine_collections_give_unit_rows_and_say_so_once(qdrant, vectors, rows):
    qdrant.create("angles", vectors[:200], "Cosine")
    url = qdrant.target("angles")
    with pytest.warns(IsotropyWarning, match="scales vectors to length one"):
        source = isotropy.open(url)
    assert np.allclose(rows(source), unit(vectors[:200]), atol=1e-6)
    isotropy.open(url)  # a second warning would be an error
    repair = Center().fit(source)
    with pytest.warns(IsotropyWarning, match="scales vectors to length one"):
        written = repair.transform(source, out=qdrant.target("centred"))
    assert np.allclose(rows(written), unit(repair.transform(unit(vectors[:200]))), atol=1e-5)


def test_named_vectors_uuids_and_points_without_a_vector(qdrant, vectors, rows):
    ids = [f"00000000-0000-0000-0000-{i:012d}" for i in range(50)]
    with qdrant.opened() as client:
        params = models.VectorParams(size=384, distance=models.Distance.DOT)
        client.create_collection("named", vectors_config={"title": params, "body": params})
        points = [
            models.PointStruct(id=one, vector={"body": row.tolist()}, payload={"n": [i]})
            for i, (one, row) in enumerate(zip(ids, vectors[:50], strict=True))
        ]
        points[7].vector = {"title": vectors[7].tolist()}
        client.upsert("named", points)
    with pytest.raises(InputError, match="has several vectors, only 'title', 'body'"):
        isotropy.open(qdrant.target("named"))
    url = f"{qdrant.url}?column=body#named"
    with pytest.raises(InputError, match=r"NaN in 1 row .first: 7"):
        isotropy.measure(url)
    source = isotropy.open(url, skip_bad_rows=True)
    repair = Center().fit(source)
    assert repair.write(source, qdrant.target("centred")) == 1
    with qdrant.opened() as client:
        found, _ = client.scroll("centred", limit=100, with_vectors=True)
    kept = np.delete(np.arange(50), 7)
    assert [point.id for point in found] == [ids[i] for i in kept]
    assert [point.payload for point in found] == [{"n": [i]} for i in kept]
    given = np.array([point.vector["body"] for point in found])
    assert np.allclose(given, repair.transform(vectors[kept]), atol=1e-6)


def test_ids_that_repeat_or_are_none_are_refused(tmp_path, vectors):
    parquet = pytest.importorskip("pyarrow.parquet")
    repair, path = Center().fit(vectors[:8]), tmp_path / "x.parquet"
    for ids, rule in (
        ([0, 1] * 4, "got 2 ids in 8 rows"),
        ([None, *range(7)], "a whole number from 0 or a UUID, got None"),
        (list(range(-1, 7)), "a whole number from 0 or a UUID, got -1"),
    ):
        parquet.write_table(pa.table({"id": ids, "v": lists(vectors[:8])}), path)
        with pytest.raises(InputError, match=rule):
            repair.write(path, f"qdrant://{tmp_path}/db#docs", overwrite=True)
        with pytest.raises(InputError, match="is incomplete"):
            isotropy.open(f"qdrant://{tmp_path}/db#docs")


def test_a_folder_that_is_in_use_is_one_line(qdrant):
    with qdrant.opened(), pytest.raises(InputError, match=r"open in another client. Close that"):
        isotropy.open(qdrant.source)
    assert isotropy.open(qdrant.source).n_samples == 5000


def test_a_server_that_is_not_there_is_one_line_without_the_key():
    with pytest.raises(InputError, match="Check that the server runs") as caught:
        isotropy.open("qdrant://:s3cret@127.0.0.1:1?https=1#docs")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(InputError, match="there is no Qdrant folder '/nowhere'"):
        isotropy.open("qdrant:///nowhere#docs")


def test_a_collection_of_the_same_name_on_another_server_is_another(vectors, rows, monkeypatch):
    clients = {host: QdrantClient(":memory:") for host in ("one", "two")}
    monkeypatch.setattr(qdrant_source, "_opened", lambda a: clients[urlsplit(a.server).hostname])
    monkeypatch.setattr(qdrant_source, "_release", lambda address, client: None)
    params = models.VectorParams(size=384, distance=models.Distance.DOT)
    clients["one"].create_collection("docs", vectors_config=params)
    points = models.Batch(ids=list(range(100)), vectors=vectors[:100].tolist())
    clients["one"].upsert("docs", points)
    source = isotropy.open("qdrant://one:6333#docs")
    repair = Center().fit(source)
    written = repair.transform(source, out="qdrant://two:6333#docs")
    assert np.allclose(rows(written), vectors[:100] - vectors[:100].mean(axis=0), atol=1e-5)
    for same in ("qdrant://one#docs", "qdrant://:key@one:6333?https=0#docs"):
        with pytest.raises(InputError, match="must be another collection than the one"):
            repair.write(source, same)


def test_a_copy_that_stops_is_made_again(qdrant, vectors, monkeypatch):
    few, out = vectors[:600], qdrant.target("few")
    qdrant.create("some", few, "Euclid")
    source = isotropy.open(qdrant.target("some"))
    Center().fit(few).write(source, out)
    scaled, create, created = Standardize().fit(few), QdrantSink._create, []

    def stopping(self, name):
        create(self, name)
        created.append(name)
        if len(created) == 2:  # after the collection that is replaced is gone
            raise KeyboardInterrupt

    monkeypatch.setattr(QdrantSink, "_create", stopping)
    with pytest.raises(KeyboardInterrupt):
        scaled.write(source, out, overwrite=True)
    monkeypatch.undo()
    assert created == ["few-isotropy-part", "few"]
    scaled.write(source, out)
    assert qdrant.names() == ["docs", "some", "few"]
    with qdrant.opened() as client:
        points, _ = client.scroll("few", limit=1000, with_vectors=True)
    assert [point.payload["text"] for point in points] == [f"text {i}" for i in range(600)]
    found = np.array([point.vector for point in points])
    assert np.allclose(found, scaled.transform(few), atol=1e-4)


@pytest.mark.parametrize("n_requests", [2, 3])
def test_a_run_that_stops_between_requests_resumes_with_all_rows(
    qdrant, vectors, rows, monkeypatch, n_requests
):
    few = vectors[:1500].copy()  # three requests, and one chunk
    few[[3, -1]] = np.nan
    np.save(qdrant.folder.parent / "few.npy", few)
    source = isotropy.open(qdrant.folder.parent / "few.npy", skip_bad_rows=True)
    repair, out, saved = Center().fit(source), qdrant.target("centred"), []
    save = QdrantSink.save

    def stopping(self, progress):
        save(self, progress)
        saved.append(progress)
        if len(saved) == n_requests:
            raise KeyboardInterrupt

    monkeypatch.setattr(QdrantSink, "save", stopping)
    with pytest.raises(KeyboardInterrupt):
        repair.write(source, out)
    monkeypatch.undo()
    with pytest.warns(IsotropyWarning, match="scales vectors to length one"):
        assert repair.write(source, out) == 2
    wanted = unit(repair.transform(np.delete(few, [3, 1499], axis=0)))
    assert np.allclose(rows(isotropy.open(out)), wanted, atol=1e-5)
