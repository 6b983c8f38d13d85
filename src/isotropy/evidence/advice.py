"""What `advise` and `diagnose` return: which repair, if any, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.stats

from isotropy import checks, tables
from isotropy.errors import InputError, public
from isotropy.evidence.spaces import NONE, Candidate, encoder_of, space
from isotropy.evidence.trials import excluded
from isotropy.geometry import Geometry, measure
from isotropy.models.texts import Text, distinct, expect_texts
from isotropy.repairs import AllButTheTop, Repair


@dataclass(frozen=True)
class Advice:
    """What to do, and why.

    Attributes
    ----------
    choice : Candidate
        A repair with its parameters and level, or none.
    repair : Repair or None
        The chosen repair, fitted and ready to be saved.
    baseline, score : float
        Without repair and with the choice, on items that were not used to choose; fractions.
    interval : (float, float)
        95 % interval of the difference, by paired bootstrap.
    p : float
        Of the one-sided test of the whole procedure; at most 0.025 where something is chosen.
    reason : str
    candidates : list of dict
        What each candidate got while choosing, the simplest first.
    fitted_on : str
        What repairs were fitted on.
    n_removed : int
        Texts that were excluded from it because they are scored.
    by_fit_text : dict
        Name of each fitting text: what would be chosen with it, its score while choosing, and the
        p of choosing so; where several were given.
    shift : str
        That the scored texts differ from the fitted ones, where they do.
    items : str
        How many items were used for what, and why not the others.
    notes : list of str
        What else is to be known of the vectors.
    """

    choice: Candidate
    repair: Repair | None
    baseline: float
    score: float
    interval: tuple[float, float]
    p: float
    reason: str
    candidates: list[dict[str, Any]]
    task: str
    metric: str
    n_items: int
    scored_on: str
    fitted_on: str
    n_removed: int
    items_needed: int
    seconds: float
    by_fit_text: dict[str, dict[str, Any]] = field(default_factory=dict)
    shift: str = ""
    items: str = ""
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, scores times 100; what `isotropy advise --json` prints."""
        return {
            "choice": self.choice.method,
            "params": dict(self.choice.params),
            "level": self.choice.level if self.choice.method != NONE else None,
            "baseline": percent(self.baseline),
            "score": percent(self.score),
            "interval": [percent(end) for end in self.interval],
            "p": self.p,
            "reason": self.reason,
            "candidates": self.candidates,
            "task": self.task,
            "metric": self.metric,
            "n_items": self.n_items,
            "scored_on": self.scored_on,
            "fitted_on": self.fitted_on,
            "n_removed": self.n_removed,
            "items_needed": self.items_needed,
            "by_fit_text": self.by_fit_text,
            "shift": self.shift,
            "items": self.items,
            "notes": self.notes,
            "seconds": round(self.seconds, 2),
        }

    def _repr_html_(self) -> str:
        rows = [
            (
                str(Candidate(row["method"], row["params"], row["level"])),
                plain(row["score"]),
                signed(row["difference"]),
                plain(row["standard_error"]),
            )
            for row in self.candidates
        ]
        head = ("candidate", "score while choosing", "gain", "standard error")
        lines = [tables.paragraph(line) for line in str(self).splitlines()]
        return "".join([*lines, tables.html_table(head, rows, f"{self.task}: {self.metric}")])

    def __str__(self) -> str:
        head = "Leave it alone." if self.choice.method == NONE else f"Repair it: {self.choice}."
        lines = [head, self.reason, *self.notes, *([self.items] if self.items else [])]
        if self.n_removed:
            lines.append(excluded(self.n_removed))
        for name, other in self.by_fit_text.items():
            lines.append(
                f"Fitted on {name}: {other['choice']} ({plain(other['score'])} while choosing, p "
                f"= {other['p']:.4f})."
            )
        return "\n".join([*lines, *([self.shift] if self.shift else [])])


def plain(value: float | None) -> str:
    """A number of points with one decimal, never -0.0; nothing where it is undefined."""
    return "" if value is None else f"{value:.1f}".replace("-0.0", "0.0")


def signed(value: float | None) -> str:
    """The same with its sign, as a difference is written."""
    return "" if value is None else f"{value:+.1f}".replace("-0.0", "+0.0")


def percent(value: float) -> float | None:
    """A fraction times 100, to four decimals; None where it is undefined."""
    return round(100 * float(value), 4) + 0.0 if math.isfinite(value) else None  # never -0.0


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


@public
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
    seed = checks.integer(seed, "seed", 0)
    different = distinct(expect_texts(texts, "texts"))[0]
    encoder = encoder_of(vectors, different)
    rows = space(encoder, different).pooled
    if len(rows) < LEAST_TEXTS:
        raise InputError(f"texts must be at least {LEAST_TEXTS} that differ, got {len(rows)}.")
    geometry = measure(rows)
    left, right = _pairs(len(rows), np.random.default_rng(seed))
    before = _cosines(rows, left, right)
    if np.ptp(before) < SAME:
        raise InputError("vectors must differ in direction, got one for all texts.")
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


@public
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
