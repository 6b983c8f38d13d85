"""Vectors to export repairs for, and a process that has no isotropy."""

from __future__ import annotations

import copy
import csv
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from isotropy import repairs

LIMIT = 1e-5  # of the row's norm
NEAR = 1e-5  # of the squared distance to the nearest centre


def run_elsewhere(code: str, *arguments: object) -> str:
    """What the code prints in a new process where isotropy cannot be imported."""
    return run_fresh("import sys\nsys.modules['isotropy'] = None\n" + code, *arguments)


def run_fresh(code: str, *arguments: object) -> str:
    """What the code prints in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def generated(n: int, d: int, shift: float = 0.0, seed: int = 0) -> np.ndarray:
    """Rows with a decaying spectrum, three clusters and a mean, in float32."""
    random = np.random.default_rng(seed)
    X = random.standard_normal((n, d)) * np.geomspace(2, 0.1, d) + 0.5
    X[: n // 3, 0] += 9
    X[n // 3 : n // 2, 1] -= 9
    return (X[random.permutation(n)] + shift).astype(np.float32)


@cache
def sentences(models: Path, data: Path) -> np.ndarray:
    """Vectors of 2,000 sentences of STS-B by all-MiniLM-L6-v2."""
    transformers = pytest.importorskip("sentence_transformers")
    if not (models / "all-MiniLM-L6-v2").is_dir():
        pytest.skip("no model all-MiniLM-L6-v2")
    with open(data / "stsb" / "train.tsv", encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    texts = [row[column] for row in rows for column in ("sentence1", "sentence2")]
    texts = list(dict.fromkeys(texts))[:2000]
    model = transformers.SentenceTransformer(str(models / "all-MiniLM-L6-v2"), device="cpu")
    return model.encode(texts, batch_size=64, show_progress_bar=False)


def fitted(X: np.ndarray) -> dict[str, repairs.Repair]:
    """Every repair but the flow in several forms, each with and without `normalize`.

    A learned layer needs torch.
    """
    plain = {
        "center": repairs.Center(),
        "scaled-center": repairs.ScaledCenter(),
        "standardize": repairs.Standardize(),
        "all-but-the-top": repairs.AllButTheTop(3),
        "all-but-the-top-uncentered": repairs.AllButTheTop(3, centered=False),
        "whiten": repairs.Whiten(),
        "whiten-pca": repairs.Whiten(method="pca", n_components=X.shape[1] // 3),
        "cluster-removal": repairs.ClusterRemoval(5, 2),
        "rotate": repairs.Rotate(),
        "center-rotate": repairs.Chain([repairs.Center(), repairs.Rotate("hadamard")]),
        "cluster-rotate": repairs.Chain([repairs.ClusterRemoval(5, 2), repairs.Rotate()]),
        "unit-rotate": repairs.Chain([repairs.Center(normalize=True), repairs.Rotate()]),
    }
    found = {name: repair.fit(X) for name, repair in plain.items()}
    if find_spec("torch"):
        found["learned-layer"] = learned_layer(X)
    unit = {n: copy.copy(repair).set_params(normalize=True) for n, repair in found.items()}
    return found | {f"{name}-unit": repair for name, repair in unit.items()}


def learned_layer(X: np.ndarray) -> repairs.LearnedLayer:
    """A layer that is trained for a moment, on labels made up from the rows."""
    layer = repairs.LearnedLayer(n_epochs=1, batch_size=512)
    return layer.fit(X, X[:, 0] > np.median(X[:, 0]))


def decided(repair: repairs.Repair, X: np.ndarray) -> np.ndarray:
    """Which rows are not nearly equidistant from two clusters."""
    repair = getattr(repair, "repairs_", [repair])[0]
    if not isinstance(repair, repairs.ClusterRemoval) or repair.n_clusters_ == 1:
        return np.ones(len(X), bool)
    gaps = X[:, None].astype(np.float64) - repair.cluster_centers_
    nearest = np.sort(np.square(gaps).sum(2), axis=1)
    return nearest[:, 1] - nearest[:, 0] > NEAR * nearest[:, 0]


def largest_difference(found: np.ndarray, repair: repairs.Repair, X: np.ndarray) -> float:
    """The largest distance from `transform`, relative to the row's norm.

    At most one row in a hundred may be left out as nearly equidistant from two clusters.
    """
    kept = decided(repair, X)
    assert np.count_nonzero(~kept) <= len(X) // 100
    wanted = repair.transform(X)
    apart = np.linalg.norm(found.astype(np.float64) - wanted, axis=1)
    return float((apart / np.linalg.norm(wanted, axis=1))[kept].max())
