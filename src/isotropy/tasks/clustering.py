"""Clustering: do the clusters of a space agree with the classes of its texts?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.errors import public
from isotropy.kmeans import kmeans
from isotropy.models.texts import Text
from isotropy.sources import as_source
from isotropy.tasks import reading
from isotropy.tasks.base import Integers, Task, classes
from isotropy.tasks.decisions import VMeasure


@public
class Clustering(Task):
    """V-measure of k-means clusters, as many as the items have classes.

    Parameters
    ----------
    items : sequence of str
    labels : sequence
    part, name
        As of every task.
    seed : int
        Of the clusters' start.

    Examples
    --------
    >>> task = Clustering(["red", "green", "cat", "dog"], ["colour", "colour", "animal", "animal"])
    >>> task.score([[0, 1], [0, 1.1], [1, 0], [1.1, 0]]).value
    1.0
    """

    kind = "clustering"
    metric = "v_measure"
    widths = (1,)
    per_item = ("labels",)

    def __init__(
        self,
        items: Sequence[Text],
        labels: Any,
        part: Sequence[str] | None = None,
        name: str = "clustering",
        seed: int = 0,
    ) -> None:
        super().__init__([(item,) for item in items], part, name)
        self.classes, self.labels = classes(labels, self.n_items, name)
        self.seed = checks.integer(seed, "seed", 0)

    @classmethod
    def read(
        cls,
        source: str | os.PathLike[str],
        *,
        name: str | None = None,
        label: str | None = None,
        text: str | None = None,
        header: str | Sequence[str] | None = None,
        seed: int = 0,
    ) -> Self:
        """The items in a file, a folder or a data set of the hub: columns label and text."""
        table = reading.read(source, header)
        (column,) = table.choose(*reading.TEXTS, named=text, option="text")
        table, labels, n_unlabelled = table.labels(label)
        texts = [one for (one,) in table.texts(column)]
        task = cls(texts, labels, table.parts, name or table.name, seed)
        task.n_unlabelled = n_unlabelled
        return task

    def _score(self, X: NDArray[Any], items: Integers, train: Integers) -> VMeasure:
        rows = self._rows(X, self.members[items, 0])
        true = self.labels[items]
        centroids = kmeans(as_source(rows), len(np.unique(true)), self.seed)
        found, _ = linalg.nearest(rows, centroids)
        return VMeasure(found, true)
