"""How well clusters agree with classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from isotropy.linalg import Floats
from isotropy.tasks.outcomes.base import Integers, Outcome, coded, indicator


class VMeasure(Outcome):
    """The V-measure of clusters: harmonic mean of homogeneity and completeness.

    1 - H(class|cluster)/H(class) and 1 - H(cluster|class)/H(cluster). The entropies are means
    over items of -log p(class|cluster), -log p(cluster|class) and -log p(cluster); these numbers
    are exchanged, as those of clusters mean nothing from one system to another.

    Parameters
    ----------
    predicted : array of shape (n_items,)
        Cluster of every item.
    true : array of shape (n_items,)
        Class of every item.
    metrics : mapping, optional

    Notes
    -----
    0 where all items are in one cluster, NaN where all are of one class.

    Examples
    --------
    >>> VMeasure([1, 1, 0, 0], ["a", "a", "b", "b"]).value
    1.0
    """

    fixed = ("true",)

    def __init__(
        self, predicted: Any, true: Any, metrics: Mapping[str, float] | None = None
    ) -> None:
        self.predicted = coded(predicted, "predicted", None, "VMeasure")
        self.true = coded(true, "true", len(self.predicted), "VMeasure")
        super().__init__(len(self.predicted), metrics)

    @cached_property
    def _cells(self) -> tuple[Integers, Integers]:
        """Cluster and class of each cell that has items, and the cell of each item."""
        keys = self.predicted * (int(self.true.max()) + 1) + self.true
        _, first, codes = np.unique(keys, return_index=True, return_inverse=True)
        return np.stack([self.predicted[first], self.true[first]]), codes

    def _counts(self, weights: Floats) -> tuple[Floats, Floats, Floats]:
        """Items in each cell, and in the cluster and the class of each cell."""
        (cluster, label), codes = self._cells
        cells = indicator(codes) @ weights
        clusters, classes = indicator(cluster) @ cells, indicator(label) @ cells
        return cells, clusters[cluster], classes[label]

    def _resampled(self, weights: Floats) -> Floats:
        cells, clusters, classes = self._counts(weights)
        total = weights.sum(axis=0)

        def mean_log(wholes: Floats) -> Floats:
            logs = np.log(np.where(cells > 0, wholes / cells, 1.0))
            means: Floats = np.einsum("ij,ij->j", cells, logs) / total
            return means

        given_cluster, given_class = mean_log(clusters), mean_log(classes)
        joint = mean_log(np.broadcast_to(total, cells.shape))  # H(class, cluster)
        means = np.stack([given_cluster, given_class, joint - given_cluster])
        return v_measure(means, joint - given_class)

    @cached_property
    def _per_item(self) -> Floats:
        """-log p(class|cluster), -log p(cluster|class) and -log p(cluster) of every item."""
        codes = self._cells[1]
        cells, clusters, classes = (
            part[codes, 0] for part in self._counts(np.ones((self.n_items, 1)))
        )
        logs: Floats = np.log(
            np.stack([clusters / cells, classes / cells, self.n_items / clusters])
        )
        return logs

    def _exchange(self, other: VMeasure) -> Callable[[Floats], Floats]:
        gap = (other._per_item - self._per_item) / self.n_items
        ours, others = (part._per_item.mean(axis=1, keepdims=True) for part in (self, other))
        shares = np.bincount(self.true) / self.n_items
        entropy = np.float64(-shares @ np.log(shares))

        def differences(swaps: Floats) -> Floats:
            moved = gap @ swaps
            return v_measure(ours + moved, entropy) - v_measure(others - moved, entropy)

        return differences


def v_measure(means: Floats, class_entropy: Floats | np.float64) -> Floats:
    """2 h c/(h + c); means are H(class|cluster), H(cluster|class) and H(cluster), by draw.

    Homogeneity h and completeness c of a mixture of systems can come out below zero, and then
    count as zero.
    """
    given_cluster, given_class, entropy = means
    least = 1e-12  # an entropy below this is that of one value
    homogeneity = 1 - given_cluster / np.where(class_entropy > least, class_entropy, np.nan)
    completeness = 1 - np.where(entropy > least, given_class / entropy, 0.0)
    h, c = np.maximum(homogeneity, 0), np.maximum(completeness, 0)
    scores: Floats = 2 * h * c / np.where(h + c < least, 1.0, h + c)
    return scores
