"""Classification: what a small model can learn to tell from frozen vectors."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from isotropy import checks
from isotropy.errors import InputError, public
from isotropy.linalg import Floats, one_blas_thread
from isotropy.models.texts import Text
from isotropy.tasks import reading
from isotropy.tasks.base import Integers, Task, classes, positive_class
from isotropy.tasks.decisions import Decisions
from isotropy.tasks.outcomes import Mean, Outcome

METRICS = ("accuracy", "matthews", "f1", "macro-f1")
USUAL = {"cola": "matthews", "mrpc": "f1", "qqp": "f1"}


class Head(Protocol):
    """What is trained on the features of some items, and then asked about others."""

    def predict(self, features: Floats, labels: Integers, asked: Floats) -> Integers: ...


@public
@dataclass(frozen=True)
class Logistic:
    """Logistic regression with an L2 penalty.

    Parameters
    ----------
    C : float
        Inverse of the penalty's strength, for items of mean squared length one.
    """

    name: ClassVar[str] = "logistic"
    C: float = 10.0

    def predict(self, features: Floats, labels: Integers, asked: Floats) -> Integers:
        model = LogisticRegression(C=self.C, tol=1e-5, max_iter=2000)
        length = np.sqrt(features.shape[1])
        with one_blas_thread():  # the products are too small to be worth more threads
            return np.asarray(model.fit(features / length, labels).predict(asked / length))


@public
@dataclass(frozen=True)
class MLP:
    """One hidden layer of ReLU units, trained by Adam for a number of epochs.

    The defaults are those of the cluster-based repair paper, which however fed it 64 token vectors
    side by side, and reported the best epoch on the evaluated items.
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
        with warnings.catch_warnings(), one_blas_thread():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is given
            return np.asarray(model.fit(features, labels).predict(asked))


HEADS: dict[str, type[Logistic | MLP]] = {head.name: head for head in (Logistic, MLP)}


@public
class Classification(Task):
    """How often a head trained on some items is right about others.

    The features of one text are its vector u, those of a pair |u - v| and u * v. Each of these is
    centred by the mean of the training items and divided by one number, the root of their mean
    square: neither a shift nor the scale of a space changes what a head learns.

    Parameters
    ----------
    items : sequence of str, or of pairs of str
    labels : sequence
    part, name
        As of every task.
    metric : {"accuracy", "matthews", "f1", "macro-f1"}
        The others come along in the outcome's `metrics`, F1 where `positive` is known.
    head : {"logistic", "mlp"} or Head
        `Logistic(C=...)` and `MLP(...)` take options.
    positive : label, optional
        The class that F1 is of; found by its name (1, true, yes, entailment, ...) where it can be.

    Examples
    --------
    >>> task = Classification(["good", "fine", "poor", "bad"], [1, 1, 0, 0])
    >>> task.score([[2, 1], [1, 0], [-1, 0], [-2, 1]], items=[0, 3], train=[1, 2]).value
    1.0
    """

    kind = "classification"
    supervised = True
    widths = (1, 2)
    per_item = ("labels",)

    def __init__(
        self,
        items: Sequence[str] | Sequence[tuple[Text, ...]],
        labels: Any,
        part: Sequence[str] | None = None,
        name: str = "classification",
        metric: str = "accuracy",
        head: str | Head = "logistic",
        positive: Any = None,
    ) -> None:
        super().__init__([(i,) if isinstance(i, str) else i for i in items], part, name)
        self.classes, self.labels = classes(labels, self.n_items, name)
        self.metric = checks.choice(metric, "metric", METRICS)
        if isinstance(head, str):
            head = HEADS[checks.choice(head, "head", list(HEADS))]()
        self.head: Head = head
        if metric == "f1" and len(self.classes) > 2:
            raise InputError(
                f"metric 'f1' must have two classes, got {len(self.classes)}. Use 'macro-f1'."
            )
        needed = metric == "f1" or positive is not None
        self.positive = positive_class(self.classes, positive) if needed else None

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str],
        *,
        name: str | None = None,
        label: str | None = None,
        text: str | None = None,
        header: str | Sequence[str] | None = None,
        metric: str | None = None,
        head: str | Head = "logistic",
        positive: str | None = None,
    ) -> Self:
        """The items in a file, a folder or a data set of the hub.

        Its columns are label and text, or label, sentence1 and sentence2; also understood are those
        of the GLUE sets, BoolQ and TREC.

        Parameters
        ----------
        label : str, optional
            The column of the label, such as "fine" for TREC's 50 classes.
        metric : str, optional
            Of "cola" Matthews' correlation and of "mrpc" and "qqp" F1 as GLUE has it, otherwise
            accuracy.
        """
        table = reading.read(source, header)
        columns = table.choose(*reading.PAIRS, *reading.TEXTS, named=text, option="text")
        table, labels, n_unlabelled = table.labels(label)
        name = name or table.name
        metric = metric or USUAL.get(name, "accuracy")
        task = cls(table.texts(*columns), labels, table.parts, name, metric, head, positive)
        task.n_unlabelled = n_unlabelled
        return task

    def _score(self, X: NDArray[Any], items: Integers, train: Integers) -> Outcome:
        known, asked = self._features(X, train, items)
        found = np.unique(self.labels[train])
        if len(found) < 2:
            raise InputError(
                f"train must hold items of two classes, got only {self.classes[found[0]]!r}."
            )
        predicted = self.head.predict(known, self.labels[train], asked)
        return self._outcome(predicted, self.labels[items])

    def _features(self, X: NDArray[Any], train: Integers, items: Integers) -> list[Floats]:
        """Features of the items to train on and of those to be asked about."""
        blocks = []
        for known, asked in zip(self._blocks(X, train), self._blocks(X, items), strict=True):
            centre = known.mean(axis=0)
            known, asked = known - centre, asked - centre
            spread = np.sqrt(np.einsum("ij,ij->", known, known) / known.size) or 1.0
            blocks.append((known / spread, asked / spread))
        return [np.hstack(parts) for parts in zip(*blocks, strict=True)]

    def _blocks(self, X: NDArray[Any], items: Integers) -> list[Floats]:
        vectors = [self._rows(X, numbers) for numbers in self.members[items].T]
        if len(vectors) == 1:
            return vectors
        u, v = vectors
        return [np.abs(u - v), u * v]

    def _outcome(self, predicted: Integers, true: Integers) -> Outcome:
        right = predicted == true
        outcomes: dict[str, Outcome] = {"accuracy": Mean(right)}
        for measure in METRICS[1:]:
            if measure != "f1" or self.positive is not None:
                outcomes[measure] = Decisions(predicted, true, measure, self.positive)
        main = outcomes.pop(self.metric)
        main.metrics |= {name: outcome.value for name, outcome in outcomes.items()}
        return main
