"""Semantic textual similarity: do cosines rank pairs of sentences as people do?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError, public
from isotropy.models import Text
from isotropy.tasks import reading
from isotropy.tasks.base import Task
from isotropy.tasks.correlation import Correlation
from isotropy.tasks.outcomes import Integers, labels, numbers

COMBINE = ("all", "mean", "wmean")


@public
class STS(Task):
    """Spearman's correlation of the cosines of sentence pairs with human scores.

    The outcome's `metrics` hold Pearson's.

    Read from the columns score, sentence1, sentence2 and optionally subset, or those of SICK, of
    GLUE's STS-B and of other common sets.

    Parameters
    ----------
    pairs : sequence of pairs of str
    scores : sequence of float
        Higher is more similar.
    subset : sequence of str, optional
        The source of each pair.
    part : sequence of str, optional
        "train", "dev" or "test" for each pair.
    name : str
        Shown in tables.
    combine : {"all", "mean", "wmean"}
        One correlation over all pairs, or the mean over subsets, plain or weighted by their size.

    Notes
    -----
    The literature reports STS12 to STS16 in all three ways, and they differ by whole points, so
    always say which one you report. `metric` does: "spearman (mean of subsets)".

    Examples
    --------
    >>> task = STS([("a cat", "a kitten"), ("a cat", "a car"), ("a car", "a kitten")], [5, 1, 0])
    >>> task.texts
    ['a cat', 'a kitten', 'a car']
    >>> round(task.score([[1, 0.1], [1, 0], [0.3, 1]]).value, 3)
    1.0
    """

    kind = "sts"
    text_columns = reading.PAIRS
    per_item = ("scores", "subsets")
    primary = "spearman"
    secondary = "pearson"
    strata = "subsets"

    def __init__(
        self,
        pairs: Sequence[tuple[Text, ...]],
        scores: Any,
        subset: Sequence[str] | None = None,
        part: Sequence[str] | None = None,
        name: str = "",
        combine: str = "all",
    ) -> None:
        super().__init__(pairs, part, name)
        self.combine = checks.choice(combine, "combine", COMBINE)
        self.scores = numbers(scores, "scores", self.n_items)
        given = [self.name] * self.n_items if subset is None else subset
        self.subsets = labels(given, "subset", self.n_items)
        apart = np.zeros(self.n_items, int) if combine == "all" else self.subsets
        for label in np.unique(apart).tolist():
            values = np.unique(self.scores[apart == label])
            if len(values) < 2:
                where = f"{self.name!r}" if combine == "all" else f"{label!r} in {self.name!r}"
                raise InputError(
                    f"scores of {where} must differ, got {values[0]:g} for every "
                    "pair. A correlation needs two values."
                )
        self.metric = self._metric()

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str],
        *,
        name: str | None = None,
        header: str | Sequence[str] | None = None,
        text: str | None = None,
        score: str | None = None,
        **options: Any,
    ) -> Self:
        """Read the task from a file, a folder or a dataset on the hub; see `Task.read`."""
        table = reading.read_table(source, header)
        columns = table.choose(*cls.text_columns, named=text, option="text")
        (score,) = table.choose(*reading.SCORES, named=score, option="score")
        table = table.labelled(score)
        pairs, scores, name = table.texts(*columns), table.numbers(score), name or table.name
        task = cls(pairs, scores, table.subsets(), table.parts, name, **options)
        task.n_unlabelled = table.n_unlabelled
        return task

    def subset(self, items: Any) -> Self:
        """The same task with only these items, in this order."""
        new = super().subset(items)
        new.metric = new._metric()
        return new

    def _metric(self) -> str:
        """The correlation, and how several subsets are combined."""
        if self.combine == "all" or len(np.unique(self.subsets)) < 2:
            return self.primary
        mean = "mean" if self.combine == "mean" else "weighted mean"
        return f"{self.primary} ({mean} of {self.strata})"

    def outcome(self, X: NDArray[Any], items: Integers, train: Integers) -> Correlation:
        return self._correlation(self.similarities(X, items), items)

    def _correlation(self, predicted: Any, items: Integers) -> Correlation:
        gold, strata = self.scores[items], self.subsets[items]
        other = Correlation(predicted, gold, self.secondary, strata, self.combine).value
        metrics = {self.secondary: other}
        return Correlation(predicted, gold, self.primary, strata, self.combine, metrics)
