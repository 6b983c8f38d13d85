"""What the report knows of a space: its geometry, sampled rows and their other columns."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.engines import using
from isotropy.errors import InputError, IsotropyWarning
from isotropy.geometry import Geometry, measure
from isotropy.kmeans import kmeans
from isotropy.linalg import Floats
from isotropy.models import KEYS, as_written
from isotropy.repairs import FEWEST, Repair, ScoreCalibrator
from isotropy.sources import ArraySource, MappedSource, Source

AS_IT_IS = "as it is"
N_CLUSTERS = 9
N_PAIRS = 200_000
FALSE_MATCHES = 0.01
WITHIN_CLUSTERS = ("mean_cosine", "isoscore", "partition_isotropy")


@dataclass(eq=False)
class View:
    """A space to draw: exact metrics of all its rows, and a sample of rows to show.

    Parameters
    ----------
    geometry : Geometry
        From `measure`; charts of metrics it does not have raise an error.
    name : str
        Name of the space in charts.
    columns : dict of str to sequence, optional
        Values of each sampled row, in the order of `geometry.drawn.sample`.
    seed : int
        Seed for pairs and clusters.
    centered : bool
        Take the axes of the rows less their mean, the principal components; False takes the
        singular vectors of the rows themselves, which show a drift as it is.

    Examples
    --------
    >>> import numpy as np
    >>> view = View(measure(np.random.default_rng(0).standard_normal((500, 8)) + 1))
    >>> view.positions.shape, float(view.cosines.mean().round(1))
    ((500, 3), 0.5)
    """

    geometry: Geometry
    name: str = AS_IT_IS
    columns: dict[str, Sequence[Any]] = field(default_factory=dict)
    seed: int = 0
    centered: bool = True

    @property
    def rows(self) -> NDArray[Any]:
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
        part = f"a sample of {n:,} of {total:,} rows (seed {self.seed})"
        return f"all {n:,} rows" if n == total else part

    @cached_property
    def norms(self) -> Floats:
        found: Floats = np.linalg.norm(self.rows.astype(np.float64), axis=1)
        return found

    @cached_property
    def cosines(self) -> Floats:
        """Cosines of random pairs of the sampled rows; none if all rows are equal."""
        if len(np.unique(self.rows[self.rows.any(axis=1)], axis=0)) < 2:
            return np.empty(0)
        with using("local"):  # they are few
            calibrator = ScoreCalibrator(N_PAIRS, self.seed).fit(self.rows)
        return calibrator.scores_.astype(np.float64)

    @property
    def threshold(self) -> float:
        """Cosine that 1 % of random pairs reach; NaN if there are too few pairs."""
        few = len(self.cosines) < FEWEST / FALSE_MATCHES
        return float("nan") if few else float(np.quantile(self.cosines, 1 - FALSE_MATCHES))

    @cached_property
    def axes(self) -> tuple[Floats, Floats, Floats]:
        """Centre, first three axes (in columns) and their shares of the squared distances to it."""
        rows = self.rows.astype(np.float64)
        mean = rows.mean(axis=0) if self.centered else np.zeros(rows.shape[1])
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
        """Coordinates of the sampled rows along the first three axes."""
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
        with using("local"):
            centroids = kmeans(ArraySource(rows), min(N_CLUSTERS, len(rows)), self.seed)
        labels = linalg.nearest_label(rows, linalg.like(centroids, rows))
        linalg.leave_rooms()
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


MOST_NAMES = 10
LONGEST = 160
LONGEST_LINES = 320  # for all columns of a row, so that the page stays small
MOST_COLUMNS = 12


@dataclass(frozen=True)
class Colouring:
    """Values for the colours of points: numbers, or codes of a few names."""

    values: NDArray[np.float64]
    names: tuple[str, ...] = ()


def carried(source: Source, view: View) -> dict[str, list[Any]]:
    """The other columns of the source, at the rows that the view shows."""
    sample = view.geometry.drawn.sample
    numbers = np.asarray(linalg.to_numpy(getattr(sample, "numbers", None)), dtype=np.int64)
    if isinstance(source.words, dict):
        word_of = {row: word for word, row in reversed(list(source.words.items()))}
        return {"word": [word_of.get(int(number)) for number in numbers]}
    place = np.argsort(numbers, kind="stable")
    ordered = numbers[place]
    found: dict[str, list[Any]] = {}
    for chunk in source.chunks():
        low, high = np.searchsorted(ordered, (chunk.first_row, chunk.first_row + chunk.n_rows))
        if low == high:
            continue
        for batch in source.read(chunk):
            if batch.carried is None:
                return {}
            counted = batch.first_row + np.arange(len(batch.rows))
            own = counted if batch.numbers is None else batch.numbers
            here = np.flatnonzero(np.isin(own, ordered[low:high]))
            at = place[np.searchsorted(ordered, own[here])]
            for name in batch.carried.column_names[:MOST_COLUMNS]:
                values = found.setdefault(name, [None] * len(numbers))
                for i, value in zip(at, batch.carried.column(name).take(here), strict=True):
                    values[i] = _python(value)
    return found


def _python(value: Any) -> Any:
    """The value from Arrow, or None if Python can't hold it, such as a day in the year 300,000."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return None


def label_column(columns: Mapping[str, Sequence[Any]]) -> str | None:
    """The column with the word or text of a row."""
    texts = [name for name, values in columns.items() if any(isinstance(v, str) for v in values)]
    return next((name for name in KEYS if name in texts), texts[0] if texts else None)


def hover(columns: Mapping[str, Sequence[Any]], n: int) -> list[str]:
    """The text shown for each row: its word or text first, then the other columns."""
    label = label_column(columns)
    others = [name for name in columns if name != label]
    lines = []
    for i in range(n):
        head = [] if label is None else [shortened(columns[label][i])]
        rest = [f"{name}: {shortened(columns[name][i])}" for name in others]
        lines.append(shortened("\n".join(head + rest), LONGEST_LINES))
    return lines


def shortened(value: Any, longest: int = LONGEST) -> str:
    """The value as text, cut off if it is long."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def colourings(view: View) -> dict[str, Colouring]:
    """The colourings of a view: cluster, norm, frequency, and its own columns."""
    clusters = view.clusters
    sizes = np.bincount(clusters)
    names = tuple(f"{i + 1} ({100 * size / len(clusters):.0f} %)" for i, size in enumerate(sizes))
    found = {
        "cluster": Colouring(clusters.astype(np.float64), names),
        "norm": Colouring(view.norms),
    }
    label = label_column(view.columns)
    known = None if label is None else frequencies(view.columns[label])
    if known is not None:
        found["frequency"] = Colouring(known)
    for name, values in view.columns.items():
        colouring = _colouring(values)
        if colouring is not None:
            while name in found:
                name += " (column)"
            found[name] = colouring
    return found


def _colouring(values: Sequence[Any]) -> Colouring | None:
    if all(v is None or (isinstance(v, (int, float)) and not isinstance(v, bool)) for v in values):
        try:
            numbers = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
        except OverflowError:  # integers beyond the floats
            return None
        return Colouring(numbers) if np.isfinite(numbers).any() else None
    texts = [shortened(value) for value in values]
    names = sorted(set(texts))
    if len(names) > MOST_NAMES:
        return None
    codes = {name: code for code, name in enumerate(names)}
    return Colouring(np.array([codes[text] for text in texts], dtype=np.float64), tuple(names))


def frequencies(words: Sequence[Any]) -> NDArray[np.float64] | None:
    """Zipf frequencies of English words by wordfreq; None if the rows are not words.

    Word pieces are looked up as text: "Ġthe" and "##the" are "the".
    """
    single = [isinstance(word, str) and " " not in word.strip() for word in words]
    if not all(single) or importlib.util.find_spec("wordfreq") is None:
        return None
    from wordfreq import zipf_frequency

    return np.array([zipf_frequency(word, "en") for word in as_written(words)])
