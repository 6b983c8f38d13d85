"""Tasks with a known truth, and an encoder whose tokens are made up."""

from __future__ import annotations

import numpy as np

from isotropy.models.encoder import Encoder
from isotropy.models.tokens import joined
from isotropy.tasks import STS, Classification


def pairs(n, first="a", second="b"):
    return [(f"{first}{i}", f"{second}{i}") for i in range(n)]


def similar(random, n, d):
    """Rows of n pairs (first, second, first, second, ...) and the cosine of each pair."""
    u, weight = random.standard_normal((n, d)), random.random((n, 1))
    v = weight * u + np.sqrt(1 - weight**2) * random.standard_normal((n, d))
    cosines = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    return np.stack([u, v], axis=1).reshape(-1, d), cosines


def direction(random, d):
    found = random.standard_normal(d)
    return found / np.linalg.norm(found)


def sts(kind="strong", seed=0, n=300, d=24, part=None):
    """(task, vectors): gold scores are random, the cosines, or the cosines before all rows got
    more or less of one direction ("planted").
    """
    random = np.random.default_rng(seed)
    X, cosines = similar(random, n, d)
    gold = random.random(n) if kind == "random" else cosines + 0.05 * random.standard_normal(n)
    if kind == "planted":
        X = X + (8 + 3 * random.standard_normal(2 * n))[:, None] * direction(random, d)
    return STS(pairs(n), gold, part=part), X


def classification(seed=0, n=240, d=8, part=None):
    """(task, vectors): classes lie apart in another direction than that which all rows share."""
    random = np.random.default_rng(seed)
    X = random.standard_normal((n, d))
    labels = random.integers(0, 2, n)
    X[:, 0] += 2 * labels
    X[:, 1] += 5 + 2 * random.standard_normal(n)
    return Classification([f"text {i}" for i in range(n)], labels, part=part), X


def three_parts(n):
    """Half of n items for training, a sixth to develop on, the rest to test."""
    return ["train"] * (n // 2) + ["dev"] * (n // 6) + ["test"] * (n - n // 2 - n // 6)


class TokenEncoder(Encoder):
    """Three to six made-up token rows a text, about its vector; needs no model."""

    def __init__(self, texts, X, seed=0, noise=0.5):
        random = np.random.default_rng(seed)
        self.pool, self.own, self.repair, self.sentence_repair = "mean", None, None, None
        self.rows = {
            text: (row + noise * random.standard_normal((random.integers(3, 7), len(row)))).astype(
                np.float32
            )
            for text, row in zip(texts, X, strict=True)
        }
        self.asked = []

    def origin(self, level="sentence"):
        return {"model": "made-up", "normalised": level == "sentence"}

    def tokens(self, texts, progress=None):
        self.asked.append(list(texts))
        return joined([self.rows[text] for text in texts])
