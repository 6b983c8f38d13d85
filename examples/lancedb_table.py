"""A LanceDB table: measure its vectors, repair them into a new column, and search there.

pip install "isotropy[lancedb]"
"""

import tempfile

import lancedb
import numpy as np

import isotropy

random = np.random.default_rng(0)
folder = tempfile.mkdtemp()
vectors = random.standard_normal((1000, 64)) * np.arange(1, 65) ** -0.5 + 0.5  # drifted, uneven
rows = [{"id": i, "vector": row} for i, row in enumerate(vectors.astype(np.float32))]
database = lancedb.connect(folder)
database.create_table("docs", rows)

source = f"lance://{folder}?column=vector#docs"
print(isotropy.measure(source, ["isoscore", "mean_cosine"]))

repair = isotropy.repairs.AllButTheTop().fit(source)
repair.write(source, f"lance://{folder}?column=repaired#docs")  # the old column stays

query = repair.transform(vectors[:1].astype(np.float32))[0]  # queries take the same repair
table = database.open_table("docs")
found = table.search(query, vector_column_name="repaired").metric("cosine").limit(3).to_list()
print("nearest to row 0:", [row["id"] for row in found])

table.drop_columns(["repaired"])  # how to roll back
