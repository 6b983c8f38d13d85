"""Models, repairs and the comparison that the tests of exports share."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from isotropy import repairs

from ..tiny_models import WORDS, bert

CLOSE = 1e-5  # of a row's norm
REPAIRS = {
    "center": repairs.Center(),
    "scaled-center": repairs.ScaledCenter(),
    "standardize": repairs.Standardize(),
    "all-but-the-top": repairs.AllButTheTop(2),
    "all-but-the-top, not centred": repairs.AllButTheTop(2, centered=False),
    "whiten": repairs.Whiten(eps=0.01),  # tiny models have a direction without variance
    "whiten, pca": repairs.Whiten(method="pca", n_components=5),
    "cluster-removal": repairs.ClusterRemoval(3, 1),
    "rotate": repairs.Rotate(),
    "center, rotate": repairs.Chain([repairs.Center(), repairs.Rotate("hadamard")]),
    "clusters, rotate": repairs.Chain([repairs.ClusterRemoval(3, 1), repairs.Rotate()]),
}
CURVED = ("scaled-center", "cluster-removal", "clusters, rotate")
AFFINE = [name for name in REPAIRS if name not in CURVED]


def fitted(name, X, normalize=False):
    return copy.deepcopy(REPAIRS[name]).set_params(normalize=normalize).fit(X)


def sentences(n=200):
    """Distinct texts of tiny words."""
    random = np.random.default_rng(0)
    found = (" ".join(random.choice(WORDS[:11], random.integers(3, 9))) for _ in range(3 * n))
    return list(dict.fromkeys(found))[:n]


def tiny(folder, mode="mean", dense=None, normalize=False, **settings):
    """A tiny sentence-transformers model; `dense` is (weight, bias) of a layer without activation.

    Its modules have the names, and its pooling the settings, of version 5 and before.
    """
    torch = pytest.importorskip("torch")
    pytest.importorskip("sentence_transformers")
    from safetensors.torch import save_file

    bert(folder)
    types = ["Transformer", "Pooling"] + ["Dense"] * bool(dense) + ["Normalize"] * normalize
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(types) if i)]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(types, paths, strict=True))
    ]
    modes = {"cls": "cls_token", "lasttoken": "lasttoken"}
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": False}
    pooling[f"pooling_mode_{modes.get(mode, f'{mode}_tokens')}"] = True
    put(folder / "1_Pooling" / "config.json", pooling)
    put(folder / "modules.json", listed)
    put(folder / "config_sentence_transformers.json", settings)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# tiny\n", "utf-8")
    if dense:
        weight, bias = dense
        config = {"in_features": weight.shape[1], "out_features": len(weight), "bias": True}
        config |= {"activation_function": "torch.nn.modules.linear.Identity"}
        put(folder / "2_Dense" / "config.json", config)
        arrays = {"linear.weight": weight, "linear.bias": bias}
        tensors = {name: torch.tensor(array).float() for name, array in arrays.items()}
        save_file(tensors, folder / "2_Dense" / "model.safetensors")
    return folder


def put(path, values):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values), "utf-8")


def encode(model, texts):
    """What a model or folder gives in this process."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    if isinstance(model, Path):
        model = SentenceTransformer(str(model), device="cpu", trust_remote_code=True)
    return model.encode(texts)


def encode_alone(jobs, folder):
    """The vectors of each job, in one process without isotropy."""
    for number, job in enumerate(jobs):
        job["out"] = str(folder / f"found-{number}.npy")
    put(folder / "jobs.json", [{k: v for k, v in job.items() if k != "wanted"} for job in jobs])
    script = Path(__file__).with_name("alone.py")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["HF_MODULES_CACHE"] = str(folder / "code")
    done = subprocess.run(
        [sys.executable, str(script), str(folder / "jobs.json")],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [np.load(job["out"]) for job in jobs]


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def off(found, wanted):
    """The largest distance between rows, over the norm of the wanted one."""
    assert found.shape == wanted.shape
    norms = np.linalg.norm(wanted, axis=1)
    return (np.linalg.norm(found - wanted, axis=1) / norms).max()


def clear(repair, X):
    """Rows that are not nearly as near to a second centre as to their own."""
    repair = getattr(repair, "repairs_", [repair])[0]
    if not hasattr(repair, "cluster_centers_"):
        return np.full(len(X), True)
    apart = np.square(X[:, None].astype(np.float64) - repair.cluster_centers_).sum(2)
    first, second = np.sort(apart, axis=1)[:, :2].T
    return second - first > 1e-5 * (first + np.square(X).sum(1))
