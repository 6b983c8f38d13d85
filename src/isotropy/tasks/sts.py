"""Semantic textual similarity: do cosines order pairs of sentences as people do?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError, public
from isotropy.models.texts import Text
from isotropy.tasks import reading
from isotropy.tasks.base import Integers, Task
from isotropy.tasks.correlation import Correlation
from isotropy.tasks.outcomes import numbers

COMBINE = ("all", "mean", "wmean")


@public
class STS(Task):
    """Spearman's correlation of the cosines of sentence pairs with scores given by people.

    Pearson's comes along in the outcome's `metrics`.

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
    combine : {"all", "mean", "wmean"}
        One correlation over all pairs, or its mean over subsets, plain or weighted by pairs.

    Notes
    -----
    STS12 to STS16 are reported in all three ways in the literature, and they differ by points:
    name the one that a figure is. `metric` does: "spearman (mean of subsets)".

    Examples
    --------
    >>> task = STS([("a cat", "a kitten"), ("a cat", "a car"), ("a car", "a kitten")], [5, 1, 0])
    >>> task.texts
    ['a cat', 'a kitten', 'a car']
    >>> round(task.score([[1, 0.1], [1, 0], [0.3, 1]]).value, 3)
    1.0
    """

    kind = "sts"
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
        name: str = "sts",
        combine: str = "all",
    ) -> None:
        super().__init__(pairs, part, name)
        self.combine = checks.choice(combine, "combine", COMBINE)
        self.scores = numbers(scores, "scores", self.n_items)
        self.subsets = np.asarray([name] * self.n_items if subset is None else subset)
        self._expect_length(self.subsets, "subset")
        apart = np.zeros(self.n_items, int) if combine == "all" else self.subsets
        for label in np.unique(apart).tolist():
            values = np.unique(self.scores[apart == label])
            if len(values) < 2:
                where = f"{name!r}" if combine == "all" else f"{label!r} in {name!r}"
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
        combine: str = "all",
        header: str | Sequence[str] | None = None,
        text: str | None = None,
        score: str | None = None,
    ) -> Self:
        """The pairs in a file, a folder or a data set of the hub.

        Its columns are score, sentence1, sentence2 and perhaps subset; also understood are those
        of SICK's original, of GLUE's STS-B and of other common sets.

        Parameters
        ----------
        header : str or sequence of str, optional
            Names of the columns, where the file has no header.
        text : str, optional
            The two columns of the sentences, with a comma between.
        score : str, optional
            The column of the score.
        """
        return cls._read(source, name, reading.PAIRS, header, text, score, combine=combine)

    @classmethod
    def _read(
        cls,
        source: str | os.PathLike[str],
        name: str | None,
        pairs: Sequence[Sequence[str]],
        header: str | Sequence[str] | None,
        text: str | None,
        score: str | None,
        **options: str,
    ) -> Self:
        table = reading.read(source, header)
        columns = table.choose(*pairs, named=text, option="text")
        (score,) = table.choose(*reading.SCORES, named=score, option="score")
        table, n_unlabelled = table.labelled(score)
        task = cls(
            table.texts(*columns),
            table.numbers(score),
            table.subsets(),
            table.parts,
            name or table.name,
            **options,
        )
        task.n_unlabelled = n_unlabelled
        return task

    def subset(self, items: Any) -> Self:
        """The same task with these items only, in this order, and the texts that it then needs."""
        new = super().subset(items)
        new.metric = new._metric()
        return new

    def _metric(self) -> str:
        """The correlation, and where there are several subsets how they are combined."""
        if self.combine == "all" or len(np.unique(self.subsets)) < 2:
            return self.primary
        mean = "mean" if self.combine == "mean" else "weighted mean"
        return f"{self.primary} ({mean} of {self.strata})"

    def _score(self, X: NDArray[Any], items: Integers, train: Integers) -> Correlation:
        return self._correlation(self._similarities(X, items), items)

    def _correlation(self, predicted: Any, items: Integers) -> Correlation:
        gold, strata = self.scores[items], self.subsets[items]
        other = Correlation(predicted, gold, self.secondary, strata, self.combine).value
        metrics = {self.secondary: other}
        return Correlation(predicted, gold, self.primary, strata, self.combine, metrics)
