"""Outcomes: scores whose differences can be tested, one kind a file."""

from isotropy.tasks.outcomes.base import Outcome
from isotropy.tasks.outcomes.correlation import Correlation
from isotropy.tasks.outcomes.decisions import Decisions
from isotropy.tasks.outcomes.mean import Mean
from isotropy.tasks.outcomes.precision import Precision
from isotropy.tasks.outcomes.v_measure import VMeasure

__all__ = ["Correlation", "Decisions", "Mean", "Outcome", "Precision", "VMeasure"]
