"""Evidence: whether a repair helps on a task, which one, and how sure that is."""

from isotropy.evidence.advice import Advice, Diagnosis, diagnose
from isotropy.evidence.change import linear_cka, neighbour_overlap
from isotropy.evidence.comparison import HEAD, Comparison, Result, cells, compare
from isotropy.evidence.compression import CodeResult, Compression, compress
from isotropy.evidence.search import advise
from isotropy.evidence.significance import holm
from isotropy.evidence.spaces import Candidate

__all__ = [
    "Advice",
    "Candidate",
    "CodeResult",
    "Comparison",
    "Compression",
    "Diagnosis",
    "Result",
    "advise",
    "compare",
    "compress",
    "diagnose",
    "linear_cka",
    "neighbour_overlap",
]
