"""Tasks: what vectors are good for, as scores whose differences can be tested."""

from isotropy.tasks.base import YES, Task, identity, open_task
from isotropy.tasks.classification import MLP, Classification, Logistic
from isotropy.tasks.clustering import Clustering
from isotropy.tasks.collections import stem
from isotropy.tasks.decisions import AveragePrecision, Decisions, VMeasure
from isotropy.tasks.outcomes import Correlation, Mean, Outcome
from isotropy.tasks.pair_classification import PairClassification, WordInContext
from isotropy.tasks.reading import UNDIVIDED
from isotropy.tasks.retrieval import Retrieval, adjacent
from isotropy.tasks.scorers import CSLS, Cosine, LocalScaling, Scorer, as_scorer
from isotropy.tasks.similarity import STS, WordSimilarity

__all__ = [
    "CSLS",
    "MLP",
    "STS",
    "AveragePrecision",
    "Classification",
    "Clustering",
    "Correlation",
    "Cosine",
    "Decisions",
    "LocalScaling",
    "Logistic",
    "Mean",
    "Outcome",
    "PairClassification",
    "Retrieval",
    "Scorer",
    "Task",
    "VMeasure",
    "WordInContext",
    "WordSimilarity",
    "open_task",
]
