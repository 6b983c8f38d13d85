"""Qdrant: measure a collection, repair it into a new one, and search there.

pip install "isotropy[qdrant]"

This example keeps the collections in a folder. With a server, the URL is qdrant://host:6333#docs,
and the key is in QDRANT_API_KEY.
"""

import tempfile
from contextlib import closing

import numpy as np
from qdrant_client import QdrantClient, models

import isotropy

random = np.random.default_rng(0)
folder = tempfile.mkdtemp()
vectors = random.standard_normal((200, 64)) * np.arange(1, 65) ** -0.5 + 0.5  # drifted, uneven
with closing(QdrantClient(path=folder)) as client:  # only one client can have a folder open
    params = models.VectorParams(size=64, distance=models.Distance.DOT)
    client.create_collection("docs", vectors_config=params)
    client.upsert("docs", models.Batch(ids=list(range(200)), vectors=vectors.tolist()))

source = f"qdrant://{folder}#docs"
print(isotropy.measure(source, ["isoscore", "mean_cosine"]))

repair = isotropy.repairs.AllButTheTop(normalize=True).fit(source)
repair.write(source, f"qdrant://{folder}#repaired")  # a new collection with the same ids

query = repair.transform(vectors[:1])[0]  # queries take the same repair
with closing(QdrantClient(path=folder)) as client:
    found = client.query_points("repaired", query=query.tolist(), limit=3).points
    print("nearest to row 0:", [point.id for point in found])
    client.delete_collection("repaired")  # how to roll back
