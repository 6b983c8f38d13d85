"""Advice: which repair, if any, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from isotropy import markup
from isotropy.evidence.candidates import NONE, Candidate
from isotropy.evidence.trials import excluded
from isotropy.repairs import Repair


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
        lines = [markup.paragraph(line) for line in str(self).splitlines()]
        return "".join([*lines, markup.table(head, rows, f"{self.task}: {self.metric}")])

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
