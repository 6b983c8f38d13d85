"""A repair inside a faiss index: raw vectors and raw queries in, repaired neighbours out.

pip install "isotropy[faiss,demo]"
python examples/faiss_index.py
"""

import tempfile
from pathlib import Path

import faiss
import numpy as np

import isotropy

words = isotropy.examples.wordllama()
names = [word for word in words.row_of if word.isalpha() and word.islower()]
X = words.vectors[[words.row_of[name] for name in names]]
repair = isotropy.AllButTheTop(normalize=True).fit(X)

# A new index: HNSW over repaired vectors, to which raw ones are added.
index = isotropy.export.faiss(repair, "HNSW32,Flat")
index.add(X)
_, found = index.search(X[[names.index("moon")]], 5)
print("near moon:", ", ".join(names[i] for i in found[0]))

with tempfile.TemporaryDirectory() as folder:
    # An index that exists already, with ids of its own: read back, repaired, built again.
    old, new = Path(folder, "words.faiss"), Path(folder, "repaired.faiss")
    documents = faiss.index_factory(X.shape[1], "IDMap2,Flat", faiss.METRIC_INNER_PRODUCT)
    documents.add_with_ids(X, np.arange(len(X)) + 1000)
    faiss.write_index(documents, str(old))
    isotropy.export.faiss(repair, old, new)

    # To verify it, search both ways. To roll back, load the old file.
    folded = faiss.read_index(str(new))
    plain = faiss.IndexFlatIP(X.shape[1])
    plain.add(repair.transform(X))
    queries = X[::50]
    expected = plain.search(repair.transform(queries), 10)[0]
    scores, ids = folded.search(queries, 10)
    print(f"largest difference of a score: {np.abs(scores - expected).max():.0e}")
    print("ids begin at", ids.min())
