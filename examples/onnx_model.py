"""A repair as an ONNX model, for any runtime and without isotropy.

pip install "isotropy[onnx,demo]"
python examples/onnx_model.py
"""

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

import isotropy

X = isotropy.examples.wordllama().vectors
repair = isotropy.ClusterRemoval(n_clusters=8, n_components=3, normalize=True).fit(X[:5000])

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "repair.onnx")
    isotropy.export.onnx(repair, path)
    session = onnxruntime.InferenceSession(path)
    (repaired,) = session.run(["repaired"], {"vectors": X[5000:6000]})
    print(session.get_modelmeta().custom_metadata_map["isotropy.repair"], repaired.shape)

apart = np.linalg.norm(repaired - repair.transform(X[5000:6000]), axis=1)
print(f"largest difference from transform: {apart.max():.0e}")
