"""Evidence: whether a repair helps on a task, which one, and how sure that is."""

from isotropy.evidence.advice import Advice, Diagnosis, diagnose
from isotropy.evidence.change import linear_cka, neighbour_overlap
from isotropy.evidence.comparison import HEAD, Comparison, Result, cells, compare
from isotropy.evidence.search import advise
from isotropy.evidence.significance import holm
from isotropy.evidence.spaces import Candidate

__all__ = [
    "Advice",
    "Candidate",
    "Comparison",
    "Diagnosis",
    "Result",
    "advise",
    "compare",
    "diagnose",
    "linear_cka",
    "neighbour_overlap",
]
