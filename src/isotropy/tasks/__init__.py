"""Tasks: what vectors are good for, as scores whose differences can be tested."""

from isotropy.tasks.base import Task, identity, open_task
from isotropy.tasks.classification import MLP, Classification, Logistic
from isotropy.tasks.clustering import Clustering
from isotropy.tasks.collections import stem
from isotropy.tasks.correlation import Correlation
from isotropy.tasks.decisions import AveragePrecision, Decisions, VMeasure
from isotropy.tasks.labelled import YES
from isotropy.tasks.outcomes import Mean, Outcome
from isotropy.tasks.pair_classification import PairClassification
from isotropy.tasks.reading import UNDIVIDED
from isotropy.tasks.retrieval import Retrieval, adjacent
from isotropy.tasks.sts import STS
from isotropy.tasks.word_in_context import WordInContext
from isotropy.tasks.word_similarity import WordSimilarity

__all__ = [
    "MLP",
    "STS",
    "AveragePrecision",
    "Classification",
    "Clustering",
    "Correlation",
    "Decisions",
    "Logistic",
    "Mean",
    "Outcome",
    "PairClassification",
    "Retrieval",
    "Task",
    "VMeasure",
    "WordInContext",
    "WordSimilarity",
    "open_task",
]
