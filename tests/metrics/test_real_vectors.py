"""The figures of distilbert-base-cased's input embeddings."""

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from safetensors import safe_open
from sklearn.neighbors import NearestNeighbors

from isotropy import AllButTheTop, Whiten, measure, metrics
from isotropy.errors import IsotropyWarning

TENSOR = "embeddings.word_embeddings.weight"  # after "distilbert." in some copies

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def embeddings():
    folder = Path(os.environ.get("ISOTROPY_MODELS", "~/.cache/isotropy-models")).expanduser()
    path = folder / "distilbert-base-cased" / "model.safetensors"
    if not path.exists():
        pytest.skip(f"distilbert-base-cased is not under {folder}; set ISOTROPY_MODELS")
    with safe_open(path, framework="numpy") as file:
        return file.get_tensor(next(name for name in file.keys() if name.endswith(TENSOR)))  # noqa: SIM118


def test_measure_gives_the_known_figures(embeddings):
    geometry = measure(embeddings)
    assert embeddings.shape == (28996, 768)
    assert round(geometry.partition_isotropy, 3) == 0.197
    assert round(geometry.mean_norm_ratio, 2) == 0.57
    assert round(geometry.mean_cosine, 3) == 0.317
    assert round(geometry.isoscore, 3) == 0.214
    assert {"drifted", "coned"} <= set(geometry.findings)


def test_centring_and_all_but_the_top_raise_partition_isotropy(embeddings):
    assert round(metrics.partition_isotropy(embeddings, center=True), 3) == 0.963
    repaired = AllButTheTop().fit_transform(embeddings)
    assert repaired.dtype == np.float32
    assert round(metrics.partition_isotropy(repaired), 3) == 0.997


@pytest.mark.slow
def test_whitened_embeddings_give_the_range_over_seeded_bases(embeddings):
    whitened = Whiten().fit_transform(embeddings)  # all eigenvalues of X'X repeat
    with pytest.warns(IsotropyWarning, match="eigenvalues of X'X repeat"):
        geometry = measure(whitened, ["partition_isotropy"])
    random, X, found = np.random.default_rng(0), whitened.astype(np.float64), []
    for _ in range(8):
        scores = X @ np.linalg.qr(random.standard_normal((768, 768)))[0]
        sums = np.concatenate([np.exp(scores).sum(axis=0), np.exp(-scores).sum(axis=0)])
        found.append(sums.min() / sums.max())
    # a float32 product is off by at most d eps ||x||, and norms reach 61
    tolerance = 768 * np.finfo(np.float32).eps * np.linalg.norm(X, axis=1).max()
    assert geometry.partition_isotropy_range == pytest.approx(
        [min(found), max(found)], rel=tolerance
    )


def test_hubs_are_those_that_scikit_learn_counts(embeddings):
    X = embeddings[3000:5000].astype(np.float64)
    units = X / np.linalg.norm(X, axis=1, keepdims=True)
    found = NearestNeighbors(n_neighbors=10).fit(units).kneighbors(return_distance=False)
    counts = np.bincount(found.ravel(), minlength=len(X))
    assert metrics.hubness(X) == pytest.approx(scipy.stats.skew(counts), rel=1e-9)
    assert metrics.antihubs(X) == (counts == 0).mean()
    in_single = metrics.hubness(X.astype(np.float32))
    assert in_single == pytest.approx(scipy.stats.skew(counts), rel=1e-2)
    assert "hubs" in measure(X, ["hubness"]).findings
