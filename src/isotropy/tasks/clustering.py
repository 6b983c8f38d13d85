"""Clustering: do the clusters of a space agree with the classes of its texts?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.errors import public
from isotropy.kmeans import kmeans
from isotropy.models import Text
from isotropy.sources import as_source
from isotropy.tasks.base import LabelledTask
from isotropy.tasks.decisions import VMeasure
from isotropy.tasks.outcomes import Integers


@public
class Clustering(LabelledTask):
    """V-measure of k-means clusters, as many as the items have classes.

    Read from the columns label and text.

    Parameters
    ----------
    items : sequence of str
    labels, part, name
        One label per item; see `Task`.
    seed : int
        Seed of k-means.

    Examples
    --------
    >>> task = Clustering(["red", "green", "cat", "dog"], ["colour", "colour", "animal", "animal"])
    >>> task.score([[0, 1], [0, 1.1], [1, 0], [1.1, 0]]).value
    1.0
    """

    kind = "clustering"
    metric = "v_measure"
    widths = (1,)

    def __init__(
        self,
        items: Sequence[Text],
        labels: Any,
        part: Sequence[str] | None = None,
        name: str = "",
        seed: int = 0,
    ) -> None:
        super().__init__(items, labels, part, name)
        self.seed = checks.integer(seed, "seed", 0)

    def outcome(self, X: NDArray[Any], items: Integers, train: Integers) -> VMeasure:
        rows = self.rows_of(X, self.members[items, 0])
        true = self.labels[items]
        centroids = kmeans(as_source(rows), len(np.unique(true)), self.seed)
        found = linalg.nearest_label(rows, linalg.like(centroids, rows))
        linalg.leave_rooms()
        return VMeasure(found, true)
