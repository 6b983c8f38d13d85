"""diagnose: what can be said of a space without labels, and how many labels would tell more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats

from isotropy.errors import InputError
from isotropy.evidence.spaces import encoder_of, space
from isotropy.measure import Geometry, measure
from isotropy.repairs import AllButTheTop
from isotropy.sources.texts import Text, distinct

N_PAIRS = 20_000
LEAST_TEXTS = 10
SAME = 1e-6  # cosines that differ by less are equal
EFFECT, POWER, LEVEL = 0.01, 0.8, 0.05


@dataclass(frozen=True)
class Diagnosis:
    """A space as it is; nothing is recommended, since nothing was shown.

    Attributes
    ----------
    geometry : Geometry
    agreement : float
        Spearman's correlation of the cosines of random pairs before and after all-but-the-top.
    items_needed : int
        Labelled pairs at which a difference of one point would be found with probability 0.8.
    reason : str
    """

    geometry: Geometry
    agreement: float
    items_needed: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the keys of an advice."""
        return {
            "choice": "none",
            "params": {},
            "baseline": None,
            "score": None,
            "interval": None,
            "p": None,
            "reason": self.reason,
            "candidates": [],
            "items_needed": self.items_needed,
            "geometry": self.geometry.to_dict(),
        }

    def __str__(self) -> str:
        told = self.reason.removeprefix(self.geometry.verdict).strip()
        return f"{self.geometry}\n{told}"


def diagnose(vectors: Any, texts: Sequence[Text], *, seed: int = 0) -> Diagnosis:
    """What the geometry of texts' vectors says, what is at risk, and what evidence would take.

    Parameters
    ----------
    vectors : Encoder, array with a row for each distinct text, or anything with `encode`
    texts : sequence of texts
    seed : int
        Of the random pairs.

    Notes
    -----
    For two predictors of one quantity whose ranks correlate with r, the variance of the difference
    of their Spearman correlations is at most about 2 (1 - r)/n. From it, with r between the
    cosines before and after a usual repair, follows the number of labelled pairs.
    """
    different = distinct(texts)[0]
    encoder = encoder_of(vectors, different, "diagnose")
    rows = space(encoder, different, "diagnose").pooled
    if len(rows) < LEAST_TEXTS:
        raise InputError(
            f"diagnose: texts must be at least {LEAST_TEXTS} that differ, got {len(rows)}."
        )
    geometry = measure(rows)
    left, right = _pairs(len(rows), np.random.default_rng(seed))
    before = _cosines(rows, left, right)
    if np.ptp(before) < SAME:
        raise InputError("diagnose: vectors must differ in direction, got one for all texts.")
    repaired = AllButTheTop().fit(rows).transform(rows)
    agreement = float(scipy.stats.spearmanr(before, _cosines(repaired, left, right)).statistic)
    needed = items_needed(agreement)
    reason = (
        f"{geometry.verdict} Without labels nothing is recommended: a repair would change who is "
        f"near whom (ranks of cosines before and after all-but-the-top agree to {agreement:.2f}), "
        f"for better or worse. About {needed:,} labelled pairs would show a difference of one "
        "point; fewer show larger ones. With labels: isotropy advise ... --task sts --data "
        "pairs.tsv."
    )
    reason = " ".join([reason, *getattr(encoder, "notes", ())])
    return Diagnosis(geometry, agreement, needed, reason)


def items_needed(agreement: float) -> int:
    """Pairs that show a difference of one point between systems whose ranks agree so far."""
    z = scipy.stats.norm.ppf(1 - LEVEL / 2) + scipy.stats.norm.ppf(POWER)
    return max(1, math.ceil(2 * (1 - agreement) * (z / EFFECT) ** 2))


def _pairs(n: int, random: np.random.Generator) -> Any:
    """Numbers of random pairs of different rows."""
    left = random.integers(0, n, N_PAIRS)
    return left, (left + random.integers(1, n, N_PAIRS)) % n


def _cosines(rows: Any, left: Any, right: Any) -> Any:
    products = np.einsum("ij,ij->i", rows[left], rows[right], dtype=np.float64)
    norms = np.linalg.norm(rows, axis=1).astype(np.float64)
    return products / np.maximum(norms[left] * norms[right], np.finfo(np.float64).tiny)
