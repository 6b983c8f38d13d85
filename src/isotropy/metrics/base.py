"""The record that every metric carries, and the statistics from which metrics are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import scipy.linalg

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.engines import reduce
from isotropy.linalg import Floats
from isotropy.sources import ArraySource, Source, as_source
from isotropy.stats import Directions, LogPartition, Moments, Sample

Need = Literal["moments", "directions", "sample", "partition"]
Invariance = Literal["rotation", "scale", "translation"]

SAMPLE_ROWS = 5000
N_BASES = 8
SAME_EIGENVALUE = 1e-5


@dataclass(frozen=True)
class Record:
    """What a metric is: for tables, docs and the report.

    `evaluate` takes gathered `Statistics` to the value; it is None for a metric that needs more
    passes than `gather` makes and is computed on request only.
    """

    name: str
    summary: str
    paper: str
    equation: str
    range: tuple[float, float]
    better: Literal["higher", "lower", "nearer zero", "neither"]
    invariant: frozenset[Invariance]
    needs: frozenset[Need]
    evaluate: Callable[[Statistics], Any] | None
    note: str = ""


RECORDS: dict[str, Record] = {}


def record(
    *,
    summary: str,
    paper: str,
    equation: str,
    range: tuple[float, float],
    better: Literal["higher", "lower", "nearer zero", "neither"],
    invariant: Iterable[Invariance],
    needs: Iterable[Need] = (),
    evaluate: Callable[[Statistics], Any] | None = None,
    note: str = "",
) -> Callable[[Callable[..., Any]], Any]:
    """Give the metric its record and enter it into `RECORDS` under the function's name."""

    def decorate(metric: Any) -> Any:
        name = metric.__name__
        metric.record = RECORDS[name] = Record(
            name, summary, paper, equation, range, better,
            frozenset(invariant), frozenset(needs), evaluate, note,
        )  # fmt: skip
        return metric

    return decorate


@dataclass(frozen=True)
class Partition:
    """Log partition functions along the eigenvectors of X'X, and along other bases of it.

    `logs` has shape (2, n_features): both signs of every eigenvector. Where eigenvalues repeat,
    `rotated` holds, for each of a few seeded bases of the repeated eigenspaces, both signs of
    what changes with the basis; `moved` marks those columns.
    """

    logs: Floats
    moved: np.ndarray[Any, np.dtype[np.bool_]]
    rotated: tuple[Floats, ...]

    def over_bases(self, value: Callable[[Floats], float]) -> list[float]:
        """value(logs) in each of the other bases; empty where the eigenvectors are unique."""
        fixed = self.logs[:, ~self.moved]
        return [value(np.concatenate([fixed, logs], axis=1)) for logs in self.rotated]


@dataclass
class Statistics:
    """What one or two passes over the rows have gathered; a part not asked for is empty."""

    n_samples: int
    n_features: int
    moments: Moments
    directions: Directions
    sample: Sample
    device: str = "cpu"
    center: bool = False
    partition: Partition | None = None

    @cached_property
    def mean(self) -> Floats:
        return self.moments.mean

    @cached_property
    def scatter(self) -> Floats:
        return self.moments.scatter

    @cached_property
    def gram(self) -> tuple[Floats, Floats]:
        """Eigenvalues (descending, zero where rounding hides them) and eigenvectors of X'X."""
        if self.center:
            return self.gram_centred
        moments, spread = self.moments, float(np.trace(self.scatter)) / self.n_features
        values, vectors = linalg.gram_eigh(self.scatter, moments.weight, self.mean, self.device)
        split_off = values[0] > linalg.DRIFT * spread * self.n_features
        if split_off and self.n_features > 1:
            rest = linalg.resolved(values[1:], moments.resolution, spread)
            return np.concatenate([values[:1], rest]), vectors
        return linalg.resolved(values, moments.resolution, spread), vectors

    @cached_property
    def variances(self) -> Floats:
        """Eigenvalues of the scatter, descending, zero where rounding hides them."""
        if self.center or self.device != "cpu":
            return self.gram_centred[0]
        with linalg.threads_for(self.n_features):
            ascending = scipy.linalg.eigvalsh(self.scatter, check_finite=False)
        values = ascending[::-1].astype(np.float64)
        return linalg.resolved(values, self.moments.resolution)

    @cached_property
    def gram_centred(self) -> tuple[Floats, Floats]:
        """The same of the centred rows."""
        values, vectors = linalg.eigh(self.scatter, self.device)
        return linalg.resolved(values, self.moments.resolution), vectors


def gather(
    X: Any,
    needs: Iterable[str],
    *,
    sample_weight: object = None,
    center: bool = False,
    random_state: int = 0,
    caller: str = "isotropy",
) -> Statistics:
    """The statistics named in `needs`, in one pass over X, or two with "partition".

    With `center`, X'X and what follows from it are those of the centred rows.
    """
    needs = set(needs)
    center = checks.flag(center, "center", caller)
    source = as_source(X, sample_weight, caller)
    statistics = Statistics(
        source.n_samples,
        source.n_features,
        Moments(),
        Directions(),
        Sample(SAMPLE_ROWS, random_state),
        source.device,
        center,
    )
    names = [name for name in ("moments", "directions", "sample") if name in needs]
    if "partition" in needs and "moments" not in needs:
        names.append("moments")
    for name, found in zip(
        names, reduce(source, [getattr(statistics, name) for name in names]), strict=True
    ):
        setattr(statistics, name, found)
    if "partition" in needs:
        statistics.partition = _partition(source, statistics, random_state)
    return statistics


def _partition(source: Source, statistics: Statistics, random_state: int) -> Partition:
    values, vectors = statistics.gram
    groups = repeated(values)
    moved = np.zeros(len(values), dtype=bool)
    moved[[i for group in groups for i in group]] = True
    bases = [vectors]
    if groups:
        random = np.random.default_rng(random_state)
        bases += [_rotated(vectors, groups, random) for _ in range(N_BASES)]
    mean = statistics.mean if statistics.center else None
    longest = None
    if statistics.directions.n_features is not None:
        shift = 0.0 if mean is None else float(np.linalg.norm(mean))
        longest = 1.001 * (statistics.directions.norm_max + shift)
    (partition,) = reduce(source, [LogPartition(np.concatenate(bases, axis=1), mean, longest)])
    logs = np.stack([linalg.to_numpy(partition.log_plus), linalg.to_numpy(partition.log_minus)])
    d, width = len(values), int(moved.sum())
    rotated = tuple(logs[:, i : i + width] for i in range(d, logs.shape[1], max(width, 1)))
    return Partition(logs[:, :d], moved, rotated)


def repeated(values: Floats) -> list[list[int]]:
    """Runs of two and more positive eigenvalues that are equal to rounding, as index lists.

    Along eigenvectors of eigenvalue zero every u.w is zero, whatever the basis.
    """
    groups: list[list[int]] = []
    for i in range(1, len(values)):
        if values[i] > 0 and values[i - 1] - values[i] <= SAME_EIGENVALUE * values[i - 1]:
            if groups and groups[-1][-1] == i - 1:
                groups[-1].append(i)
            else:
                groups.append([i - 1, i])
    return groups


def _rotated(vectors: Floats, groups: list[list[int]], random: np.random.Generator) -> Floats:
    parts = []
    for group in groups:
        rotation, _ = np.linalg.qr(random.standard_normal((len(group), len(group))))
        parts.append(vectors[:, group] @ rotation)
    return np.concatenate(parts, axis=1)


def all_rows(X: Any, sample_weight: object, caller: str) -> tuple[Array, Floats | None]:
    """All rows and their weights, for the metrics that compare rows with each other."""
    source = as_source(X, sample_weight, caller)
    source = getattr(source, "bare", lambda: source)()
    if isinstance(source, ArraySource) and not source.skip_bad_rows:
        rows = linalg.native(source.X)
        checks.finite(rows, caller)
        return rows, source.weights
    batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
    rows = np.concatenate([linalg.to_numpy(batch.rows) for batch in batches])
    weights = [batch.weights for batch in batches if batch.weights is not None]
    return rows, np.concatenate(weights) if weights else None
