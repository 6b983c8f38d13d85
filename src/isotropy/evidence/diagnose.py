"""diagnose: what can be said of a space without labels, and how many labels would tell more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats

from isotropy.evidence.spaces import space
from isotropy.measure import Geometry, measure
from isotropy.repairs import AllButTheTop
from isotropy.sources.texts import Text, distinct

N_PAIRS = 20_000
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
        return f"{self.geometry}\n{self.reason}"


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
    rows = space(vectors, distinct(texts)[0], "diagnose").pooled
    geometry = measure(rows)
    repaired = AllButTheTop().fit(rows).transform(rows)
    random = np.random.default_rng(seed)
    left, right = random.integers(0, len(rows), (2, N_PAIRS))
    before, after = (_cosines(part, left, right) for part in (rows, repaired))
    agreement = float(scipy.stats.spearmanr(before, after).statistic)
    z = scipy.stats.norm.ppf(1 - LEVEL / 2) + scipy.stats.norm.ppf(POWER)
    needed = max(1, math.ceil(2 * (1 - agreement) * (z / EFFECT) ** 2))
    reason = (
        f"Without labels nothing is recommended: a repair would change who is near whom (ranks of "
        f"cosines before and after all-but-the-top agree to {agreement:.2f}), for better or worse. "
        f"About {needed:,} labelled pairs would show a difference of one point; fewer show larger "
        f"ones. With labels: isotropy advise ... --task sts --data pairs.tsv."
    )
    return Diagnosis(geometry, agreement, needed, reason)


def _cosines(rows: Any, left: Any, right: Any) -> Any:
    products = np.einsum("ij,ij->i", rows[left], rows[right], dtype=np.float64)
    norms = np.linalg.norm(rows, axis=1).astype(np.float64)
    return products / np.maximum(norms[left] * norms[right], np.finfo(np.float64).tiny)
