"""Classification: what a small model can learn from frozen vectors."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from isotropy import checks
from isotropy.errors import InputError, public
from isotropy.linalg import Floats
from isotropy.models import Text
from isotropy.tasks.base import LabelledTask
from isotropy.tasks.decisions import Decisions
from isotropy.tasks.outcomes import Integers, Mean, Outcome
from isotropy.tasks.reading import PAIRS, TEXTS
from isotropy.threads import one_blas_thread

METRICS = ("accuracy", "matthews", "f1", "macro-f1")
_filtering = threading.Lock()  # the filters of warnings are those of all threads


class Head(Protocol):
    """A model that is trained on the features of some items and predicts the labels of others.

    Folds are evaluated in threads, so `predict` keeps nothing.
    """

    def predict(self, features: Floats, labels: Integers, asked: Floats) -> Integers: ...


@public
@dataclass(frozen=True)
class Logistic:
    """Logistic regression; the L2 penalty has strength 1/C for items of mean squared length 1."""

    name: ClassVar[str] = "logistic"
    C: float = 10.0

    def predict(self, features: Floats, labels: Integers, asked: Floats) -> Integers:
        model = LogisticRegression(C=self.C, tol=1e-5, max_iter=2000)
        length = np.sqrt(features.shape[1])
        with one_blas_thread():  # the products are too small for more
            return np.asarray(model.fit(features / length, labels).predict(asked / length))


@public
@dataclass(frozen=True)
class MLP:
    """One hidden layer of ReLU units, trained by Adam for a number of epochs.

    The defaults follow the cluster-based repair paper, which however fed the network 64 token
    vectors side by side and reported the best epoch on the evaluated items. `isotropy reproduce
    cluster/classification` does the same.
    """

    name: ClassVar[str] = "mlp"
    n_hidden: int = 100
    learning_rate: float = 3e-5
    n_epochs: int = 10
    batch_size: int = 32
    seed: int = 0

    def predict(self, features: Floats, labels: Integers, asked: Floats) -> Integers:
        model = MLPClassifier(
            (self.n_hidden,),
            alpha=0.0,
            learning_rate_init=self.learning_rate,
            max_iter=self.n_epochs,
            batch_size=min(self.batch_size, len(features)),
            random_state=self.seed,
        )
        with _filtering, warnings.catch_warnings(), one_blas_thread():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is given
            return np.asarray(model.fit(features, labels).predict(asked))


HEADS: dict[str, type[Logistic | MLP]] = {head.name: head for head in (Logistic, MLP)}


@public
class Classification(LabelledTask):
    """How often a head trained on some items is right about others.

    The features of one text are its vector u, those of a pair |u - v| and u * v. Each of these is
    centred by the mean of the training items and divided by the root of their mean square, so
    that neither a shift nor the scale of a space changes what a head learns.

    Read from the columns label and text, or label, sentence1 and sentence2, or those of the GLUE
    sets, BoolQ and TREC.

    Parameters
    ----------
    items : sequence of str, or of pairs of str
    labels, part, name
        One label per item; see `Task`.
    metric : {"accuracy", "matthews", "f1", "macro-f1"}
        The outcome's `metrics` hold the others, F1 if `positive` is known. `read` follows GLUE
        for sets of these names: "matthews" for cola, "f1" for mrpc and qqp.
    head : {"logistic", "mlp"} or Head
        Pass `Logistic(C=...)` or `MLP(...)` to set options.
    positive : label, optional
        The class that F1 is about. By default it is recognised by its name: 1, true, yes,
        entailment, ...

    Examples
    --------
    >>> task = Classification(["good", "fine", "poor", "bad"], [1, 1, 0, 0])
    >>> task.score([[2, 1], [1, 0], [-1, 0], [-2, 1]], items=[0, 3], train=[1, 2]).value
    1.0
    """

    kind = "classification"
    supervised = True
    widths = (1, 2)
    text_columns = (*PAIRS, *TEXTS)
    known_sets = {"cola": {"metric": "matthews"}, "mrpc": {"metric": "f1"}, "qqp": {"metric": "f1"}}

    def __init__(
        self,
        items: Sequence[str] | Sequence[tuple[Text, ...]],
        labels: Any,
        part: Sequence[str] | None = None,
        name: str = "",
        metric: str = "accuracy",
        head: str | Head = "logistic",
        positive: str | float | None = None,
    ) -> None:
        super().__init__(items, labels, part, name)
        self.metric = checks.choice(metric, "metric", METRICS)
        if isinstance(head, str):
            head = HEADS[checks.choice(head, "head", list(HEADS))]()
        self.head: Head = head
        if metric == "f1" and len(self.classes) > 2:
            raise InputError(
                f"metric 'f1' must have two classes, got {len(self.classes)}. Use 'macro-f1'."
            )
        needed = metric == "f1" or positive is not None
        self.positive = self._positive(positive) if needed else None

    def outcome(self, X: NDArray[Any], items: Integers, train: Integers) -> Outcome:
        known, asked = self._features(X, train, items)
        found = np.unique(self.labels[train])
        if len(found) < 2:
            raise InputError(
                f"train must hold items of two classes, got only {self.classes[found[0]]!r}."
            )
        predicted, true = self.head.predict(known, self.labels[train], asked), self.labels[items]
        outcomes: dict[str, Outcome] = {"accuracy": Mean(predicted == true)}
        for measure in METRICS[1:]:
            if measure != "f1" or self.positive is not None:
                outcomes[measure] = Decisions(predicted, true, measure, self.positive)
        main = outcomes.pop(self.metric)
        main.metrics |= {name: outcome.value for name, outcome in outcomes.items()}
        return main

    def _features(self, X: NDArray[Any], train: Integers, items: Integers) -> list[Floats]:
        """Features of the training items and of the items to predict."""
        blocks = []
        for known, asked in zip(self._blocks(X, train), self._blocks(X, items), strict=True):
            centre = known.mean(axis=0)
            known, asked = known - centre, asked - centre
            spread = np.sqrt(np.einsum("ij,ij->", known, known) / known.size) or 1.0
            blocks.append((known / spread, asked / spread))
        return [np.hstack(parts) for parts in zip(*blocks, strict=True)]

    def _blocks(self, X: NDArray[Any], items: Integers) -> list[Floats]:
        vectors = [self.rows_of(X, numbers) for numbers in self.members[items].T]
        if len(vectors) == 1:
            return vectors
        u, v = vectors
        return [np.abs(u - v), u * v]
