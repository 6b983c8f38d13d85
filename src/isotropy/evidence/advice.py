"""What `advise` returns, and the diagnosis of a space without a task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import scipy.stats

from isotropy import checks, tables
from isotropy.errors import InputError, public
from isotropy.evidence.bench import exclusion_note
from isotropy.evidence.spaces import NONE, Candidate, as_encoder, space_of
from isotropy.geometry import Geometry, measure
from isotropy.models import Text, distinct, expect_texts
from isotropy.repairs import AllButTheTop, Repair


@dataclass(frozen=True)
class Advice:
    """Which repair to use, if any, and why.

    Attributes
    ----------
    choice, repair : Candidate, Repair or None
        A repair with its parameters and level, or none; the same fitted and ready to be saved.
    baseline, score : float
        Scores without repair and with the choice, on items that were not used to choose; fractions.
    interval : (float, float)
        95 % interval of the difference, by paired bootstrap.
    p : float
        Of the one-sided test of the selection procedure; at most 0.025 if a repair is chosen.
    candidates : list of dict
        The score of each candidate while choosing, simplest first.
    fitted_on, n_removed : str, int
        What repairs were fitted on, and how many evaluated texts were excluded from that.
    by_fit_text : dict
        By the name of each fitting text, if there were several: what would be chosen with it, its
        score while choosing, and the p-value.
    shift, items, notes
        A note if the scored texts differ from the fitted ones, how many items were used for what
        (and why not the others), and remarks about the vectors.
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
    by_fit_text: dict[str, dict[str, Any]] = field(default_factory=dict)
    shift: str = ""
    items: str = ""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, scores times 100, as `isotropy advise --json` prints them."""
        names = [field.name for field in fields(self)]
        return {
            "choice": self.choice.method,
            "params": dict(self.choice.params),
            "level": None if self.choice.method == NONE else self.choice.level,
            "per_group": self.choice.per_group,
            "baseline": percent(self.baseline),
            "score": percent(self.score),
            "interval": [percent(end) for end in self.interval],
            **{name: getattr(self, name) for name in names[names.index("p") :]},
            "seconds": round(self.seconds, 2),
        }

    def _repr_html_(self) -> str:
        rows = [
            (
                _named(row),
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
        lines += [exclusion_note(self.n_removed)] if self.n_removed else []
        lines += [
            f"Fitted on {name}: {other['choice']} ({plain(other['score'])} while choosing, p = "
            f"{other['p']:.4f})."
            for name, other in self.by_fit_text.items()
        ]
        return "\n".join([*lines, *([self.shift] if self.shift else [])])


def _named(row: dict[str, Any]) -> str:
    """The candidate of a row of `Advice.candidates`, in words."""
    given = (row["method"], row["params"], row["level"])
    return str(Candidate(*given, per_group=row["per_group"]))


def plain(value: float | None) -> str:
    """Points with one decimal, never -0.0; "" if undefined."""
    return "" if value is None else f"{value:.1f}".replace("-0.0", "0.0")


def signed(value: float | None) -> str:
    """A difference in points with its sign and one decimal; "" if undefined."""
    return "" if value is None else f"{value:+.1f}".replace("-0.0", "+0.0")


def percent(value: float) -> float | None:
    """A fraction times 100, to four decimals; None if undefined."""
    return round(100 * float(value), 4) + 0.0 if math.isfinite(value) else None  # never -0.0


N_PAIRS = 20_000
LEAST_TEXTS = 10
SAME = 1e-6  # cosines that differ by less are equal
EFFECT, POWER, LEVEL = 0.01, 0.8, 0.05


@public
@dataclass(frozen=True)
class Diagnosis:
    """The geometry of a space; nothing is recommended, as nothing was tested."""

    geometry: Geometry
    agreement: float
    """Spearman's correlation of the cosines of random pairs before and after all-but-the-top."""
    items_needed: int
    """Labelled pairs needed to find a difference of one point with probability 0.8."""
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the keys of an `Advice`."""
        return {
            "choice": "none",
            "params": {},
            **dict.fromkeys(("baseline", "score", "interval", "p")),
            "reason": self.reason,
            "candidates": [],
            "items_needed": self.items_needed,
            "geometry": self.geometry.to_dict(),
        }

    def __str__(self) -> str:
        return f"{self.geometry}\n{self.reason.removeprefix(self.geometry.verdict).strip()}"


@public
def diagnose(vectors: Any, texts: Sequence[Text], *, seed: int = 0) -> Diagnosis:
    """The geometry of texts' vectors, and how many labels would show whether a repair helps.

    Parameters
    ----------
    vectors : Encoder, array with a row for each distinct text, or anything with `encode`
    texts : sequence of texts
    seed : int

    Notes
    -----
    For two predictors of one quantity whose ranks have correlation r, the variance of the
    difference of their Spearman correlations is at most about 2 (1 - r)/n. With r between the
    cosines before and after a usual repair, this gives the number of labelled pairs.
    """
    seed = checks.integer(seed, "seed", 0)
    different = distinct(expect_texts(texts, "texts"))[0]
    encoder = as_encoder(vectors, different)
    rows = space_of(encoder, different).pooled
    if len(rows) < LEAST_TEXTS:
        raise InputError(f"texts must hold at least {LEAST_TEXTS} that differ, got {len(rows)}.")
    geometry = measure(rows)
    random = np.random.default_rng(seed)
    left = random.integers(0, len(rows), N_PAIRS)
    right = (left + random.integers(1, len(rows), N_PAIRS)) % len(rows)
    before = _cosines(rows, left, right)
    if np.ptp(before) < SAME:
        raise InputError("vectors must differ in direction, got the same one for all texts.")
    repaired = AllButTheTop().fit(rows).transform(rows)
    agreement = float(scipy.stats.spearmanr(before, _cosines(repaired, left, right)).statistic)
    needed = pairs_needed(agreement)
    reason = (
        f"{geometry.verdict} Without labels nothing is recommended: a repair would change which "
        "texts are near each other (ranks of cosines before and after all-but-the-top agree to "
        f"{agreement:.2f}), for better or worse. About {needed:,} labelled pairs would show a "
        "difference of one point; fewer show larger ones. With labels: isotropy advise ... --task "
        "sts --data pairs.tsv."
    )
    reason = " ".join([reason, *getattr(encoder, "notes", ())])
    return Diagnosis(geometry, agreement, needed, reason)


def pairs_needed(agreement: float) -> int:
    """Pairs that show a difference of one point between systems whose ranks agree this much."""
    z = scipy.stats.norm.ppf(1 - LEVEL / 2) + scipy.stats.norm.ppf(POWER)
    return max(1, math.ceil(2 * (1 - agreement) * (z / EFFECT) ** 2))


def _cosines(rows: Any, left: Any, right: Any) -> Any:
    products = np.einsum("ij,ij->i", rows[left], rows[right], dtype=np.float64)
    norms = np.linalg.norm(rows, axis=1).astype(np.float64)
    return products / np.maximum(norms[left] * norms[right], np.finfo(np.float64).tiny)
