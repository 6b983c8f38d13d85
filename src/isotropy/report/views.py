"""What charts show: the geometry of a space, and a sample of its rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.errors import InputError, IsotropyWarning
from isotropy.geometry import Geometry, measure
from isotropy.kmeans import kmeans
from isotropy.linalg import Floats
from isotropy.repairs import Repair
from isotropy.repairs.calibrator import FEWEST, ScoreCalibrator
from isotropy.sources import ArraySource, MappedSource, Source

AS_IT_IS = "as it is"
N_CLUSTERS = 9
N_PAIRS = 200_000
FALSE_MATCHES = 0.01
WITHIN_CLUSTERS = ("mean_cosine", "isoscore", "partition_isotropy")


class View:
    """A space to draw: exact metrics of all its rows, and a sample of rows to show.

    Parameters
    ----------
    geometry : Geometry
        From `measure`; charts of metrics it does not have raise an error.
    name : str
        Name of the space in charts.
    columns : mapping of str to sequence, optional
        Values of each sampled row, in the order of `geometry.drawn.sample`.
    seed : int
        Seed for pairs and clusters.

    Examples
    --------
    >>> import numpy as np
    >>> view = View(measure(np.random.default_rng(0).standard_normal((500, 8)) + 1))
    >>> view.positions.shape, float(view.cosines.mean().round(1))
    ((500, 3), 0.5)
    """

    def __init__(
        self,
        geometry: Geometry,
        name: str = AS_IT_IS,
        columns: Mapping[str, Sequence[Any]] | None = None,
        seed: int = 0,
    ) -> None:
        self.geometry = geometry
        self.name = name
        self.columns = dict(columns or {})
        self.seed = seed

    @property
    def rows(self) -> NDArray[Any]:
        """The sampled rows."""
        sample = self.geometry.drawn.sample
        if sample is None or sample.rows is None:
            raise InputError(
                "the geometry must have a sample of rows, got none. Measure all metrics."
            )
        return linalg.to_numpy(sample.rows)

    @property
    def sampled(self) -> str:
        """How many rows are drawn, in words."""
        n, total = len(self.rows), self.geometry.n_samples
        return (
            f"all {n:,} rows"
            if n == total
            else f"a sample of {n:,} of {total:,} rows (seed {self.seed})"
        )

    @cached_property
    def norms(self) -> Floats:
        found: Floats = np.linalg.norm(self.rows.astype(np.float64), axis=1)
        return found

    @cached_property
    def cosines(self) -> Floats:
        """Cosines of random pairs of the sampled rows; none if all rows are equal."""
        if len(np.unique(self.rows[self.rows.any(axis=1)], axis=0)) < 2:
            return np.empty(0)
        calibrator = ScoreCalibrator(N_PAIRS, self.seed).fit(self.rows)
        return calibrator.scores_.astype(np.float64)

    @property
    def threshold(self) -> float:
        """Cosine that 1 % of random pairs reach; NaN if there are too few pairs."""
        few = len(self.cosines) < FEWEST / FALSE_MATCHES
        return float("nan") if few else float(np.quantile(self.cosines, 1 - FALSE_MATCHES))

    @cached_property
    def axes(self) -> tuple[Floats, Floats, Floats]:
        """Mean, first three principal axes (in columns) and their shares of the variance."""
        rows = self.rows.astype(np.float64)
        mean = rows.mean(axis=0)
        values, vectors = linalg.eigh((rows - mean).T @ (rows - mean))
        total, values, axes = float(values.sum()), values[:3], vectors[:, :3]
        shares = values / total if total > 0 else 0 * values
        signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
        missing = 3 - axes.shape[1]
        return (
            mean,
            np.pad(axes * np.where(signs == 0, 1, signs), ((0, 0), (0, missing))),
            np.pad(shares, (0, missing)),
        )

    @cached_property
    def positions(self) -> Floats:
        """Coordinates of the sampled rows along the first three principal axes."""
        mean, axes, _ = self.axes
        found: Floats = (self.rows.astype(np.float64) - mean) @ axes
        return found

    @property
    def origin(self) -> Floats:
        """The position of the zero vector."""
        mean, axes, _ = self.axes
        found: Floats = -mean @ axes
        return found

    @cached_property
    def clusters(self) -> NDArray[np.int64]:
        """The k-means cluster of each sampled row; 0 is the largest cluster."""
        rows = np.ascontiguousarray(self.rows)
        centroids = kmeans(ArraySource(rows), min(N_CLUSTERS, len(rows)), self.seed)
        labels, _ = linalg.nearest(rows, linalg.like(centroids, rows))
        order = np.argsort(-np.bincount(labels, minlength=len(centroids)), kind="stable")
        found: NDArray[np.int64] = np.argsort(order)[labels]
        return found

    @cached_property
    def local(self) -> dict[str, tuple[float, float]]:
        """Metrics of the sampled rows: as they are, and after each loses its cluster's mean."""
        rows = self.rows.astype(np.float64)
        centred = rows.copy()
        for cluster in np.unique(self.clusters):
            members = self.clusters == cluster
            centred[members] -= rows[members].mean(axis=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IsotropyWarning)
            before, after = (
                measure(x, WITHIN_CLUSTERS, engine="local").values for x in (rows, centred)
            )
        return {name: (float(before[name]), float(after[name])) for name in WITHIN_CLUSTERS}


def as_view(space: Any, name: str = AS_IT_IS, seed: int = 0) -> View:
    """The view of a view, a geometry, or anything that can be measured."""
    if isinstance(space, View):
        return space
    if not isinstance(space, Geometry):
        space = measure(space, random_state=seed)
    return View(space, name, seed=seed)


def repaired(source: Source, repair: Repair, name: str, first: View) -> View:
    """The view of the source after a repair, with the same rows as in the first view."""
    width = repair.transform(first.rows[:1]).shape[1]
    mapped = MappedSource(source, repair.transform, width)
    with warnings.catch_warnings():  # charts tell that a whitened space has no basis of its own
        warnings.simplefilter("ignore", IsotropyWarning)
        geometry = measure(mapped, random_state=first.seed)
    return View(geometry, name, first.columns, first.seed)
