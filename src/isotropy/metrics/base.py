"""What a metric is, how it is declared, and the statistics from which metrics are computed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.engines import Checkpoint, reduce
from isotropy.errors import public, warn
from isotropy.linalg import Floats
from isotropy.repairs import with_parameters
from isotropy.sources import ArraySource, Source, as_source
from isotropy.stats import Directions, LogPartition, Moments, Projections, Sample
from isotropy.threads import ThreadPool

Need = Literal["moments", "directions", "sample", "traces", "spectrum", "partition"]
Invariance = Literal["rotation", "scale", "translation"]
Better = Literal["higher", "lower", "nearer zero", "neither"]
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

SAMPLE_ROWS = 5000
N_BASES = 8
SAME_EIGENVALUE = 1e-5
UNSURE = {True: 1e-4, False: 1e-2}  # relative error of an eigenvalue, of products in float64 or not
PASSES = 4  # over the rows at most for the eigenvalues that rounding blurs
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Metric:
    """What a metric is: for tables, docs and the report.

    `evaluate` takes gathered `Statistics` to the value that `measure` shows. It is None for a
    metric that is computed on request only; then `on_request` takes them to the value that
    `measure` shows if it is asked for by name. Both are None if `gather` makes too few passes.
    """

    name: str
    summary: str
    paper: str
    equation: str
    range: tuple[float, float]
    better: Better
    invariant: frozenset[Invariance]
    needs: frozenset[Need]
    evaluate: Callable[[Statistics], Any] | None
    note: str = ""
    on_request: Callable[[Statistics], Any] | None = None


METRICS: dict[str, Metric] = {}


class MetricFunction(Protocol[R_co]):
    """The public form of a metric: a function of X; `of` is the function of statistics."""

    __name__: str
    metric: Metric
    of: Any

    def __call__(self, X: Any, *args: Any, **options: Any) -> R_co: ...


def metric(
    *,
    summary: str,
    needs: Iterable[Need] = (),
    center: bool = False,
    evaluate: Callable[[Statistics], Any] | None = None,
    on_request: Callable[[Statistics], Any] | None = None,
    remark: Callable[[Statistics, str], None] | None = None,
    range: tuple[float, float],
    better: Better = "neither",
    invariant: Iterable[Invariance],
    equation: str,
    paper: str = "",
    note: str = "",
) -> Callable[[Callable[..., R]], MetricFunction[R]]:
    """Declare a metric, enter it into `METRICS`, and make its public form.

    The decorated function takes `Statistics` and options of its own. The public form takes X
    instead, gathers what the metric needs in a pass or two, and adds the common parameters to
    signature and docstring: `sample_weight`, `random_state` where rows are sampled, and with
    `center=True` here also `center`. Options that are annotated as bool or Literal are checked
    before a row is read.

    A function whose first parameter is X makes its own passes and stays as it is.

    Parameters
    ----------
    needs : sequence of str
        What `gather` must collect.
    center : bool
        Whether the metric can also be taken of the centred rows.
    evaluate : callable, optional
        What `measure` shows, if that is not the function with its defaults.
    on_request : callable, optional
        What `measure` shows for a function of X, if it is asked for by name.
    remark : callable, optional
        Called by the public form with the statistics and the metric's name: warns where needed.
    summary, range, better, invariant, equation, paper, note
        As in `Metric`.
    """

    def decorate(function: Callable[..., R]) -> MetricFunction[R]:
        takes_rows = next(iter(inspect.signature(function).parameters)) == "X"
        shown = evaluate if takes_rows else evaluate or function
        known = Metric(
            function.__name__, summary, paper, equation, range, better,
            frozenset(invariant), frozenset(needs), shown, note, on_request,
        )  # fmt: skip
        METRICS[known.name] = known
        made: Any = function if takes_rows else _of_rows(function, known.needs, center, remark)
        taken = inspect.signature(made).parameters
        common = "\n".join(words for name, (_, words) in COMMON.items() if name in taken)
        made.__doc__ = with_parameters(function.__doc__ or "", ROWS, common)
        made = public(made)
        made.metric, made.of = known, function
        found: MetricFunction[R] = made
        return found

    return decorate


ROWS = "X : array, tensor, path or source of shape (n_samples, n_features)"
COMMON = {  # parameters of the public form, by name: (default, lines of its docstring)
    "center": (False, "center : bool\n    Subtract the mean first."),
    "sample_weight": (
        None,
        "sample_weight : array of shape (n_samples,), optional\n"
        "    Counted as repetitions, or as relative if they sum to less than the number of rows.",
    ),
    "random_state": (0, "random_state : int\n    Seed of what is drawn at random."),
}


def _of_rows(
    function: Callable[..., R],
    needs: frozenset[Need],
    center: bool,
    remark: Callable[[Statistics, str], None] | None,
) -> Callable[..., R]:
    """The function with X in the place of statistics, and with the parameters of `gather`."""
    _, *own = inspect.signature(function).parameters.values()
    drawn = not needs.isdisjoint(("sample", "partition"))
    added = [*["center"] * center, "sample_weight", *["random_state"] * drawn]
    either, named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    common = [
        inspect.Parameter(name, either if name == "center" else named, default=COMMON[name][0])
        for name in added
    ]
    signature = inspect.Signature([inspect.Parameter("X", either), *own, *common])

    @functools.wraps(function)
    def of_rows(*args: Any, **kwargs: Any) -> R:
        given = signature.bind(*args, **kwargs).arguments
        X = given.pop("X")
        passed = {name: given.pop(name) for name in added if name in given}
        for name, hint in get_type_hints(function).items():
            if name in given and hint is bool:
                checks.flag(given[name], name)
            elif name in given and get_origin(hint) is Literal:
                checks.choice(given[name], name, get_args(hint))
        statistics = gather(X, needs, **passed)
        if remark is not None:
            remark(statistics, function.__name__)
        return function(statistics, **given)

    of_rows.__signature__ = signature  # type: ignore[attr-defined]
    return of_rows


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
    rounding: float = 0.0
    """How far rounding of the products u.w moves a logarithm."""

    def over_bases(self, value: Callable[[Floats], float]) -> list[float]:
        """value(logs) in each of the other bases; empty where the eigenvectors are unique."""
        fixed = self.logs[:, ~self.moved]
        return [value(np.concatenate([fixed, logs], axis=1)) for logs in self.rotated]


@dataclass
class Statistics:
    """What the passes over the rows have gathered; a part not asked for is empty.

    Moments, and what follows from them, are those of the rows divided by 2^exponent.
    """

    n_samples: int
    n_features: int
    moments: Moments
    directions: Directions
    sample: Sample
    device: str = "cpu"
    center: bool = False
    exponent: int = 0
    n_skipped: int = 0
    partition: Partition | None = None
    unsure: Projections | None = field(default=None, repr=False)
    """Along the eigenvectors whose eigenvalues rounding blurs."""
    dominant: Projections | None = field(default=None, repr=False)
    """Along the first principal component, where it holds nearly all of the variance."""

    @cached_property
    def mean(self) -> Floats:
        return self.moments.mean

    @cached_property
    def scatter(self) -> Floats:
        return self.moments.scatter

    @cached_property
    def gram(self) -> tuple[Floats, Floats]:
        """Eigenvalues (descending, zero where rounding hides them) and eigenvectors of X'X."""
        values, vectors, noise = self._blurred
        if self.unsure is not None:
            values, vectors, _ = sharpened(values, vectors, self.unsure)
            noise = (8 * EPS) ** 2 * self.n_features * float(values[0])
        return np.where(values > noise, values, 0.0), vectors

    @cached_property
    def _blurred(self) -> tuple[Floats, Floats, float]:
        """Eigenvalues and eigenvectors of X'X as its sum gives them, and their rounding."""
        if self.center:
            return self._blurred_centred
        moments, spread = self.moments, float(np.trace(self.scatter)) / self.n_features
        values, vectors = linalg.gram_eigh(self.scatter, moments.weight, self.mean, self.device)
        split_off = self.n_features > 1 and values[0] > linalg.DRIFT * spread * self.n_features
        rest = values[1:] if split_off else values
        return values, vectors, linalg.noise_of(rest, moments.resolution, spread)

    @cached_property
    def _blurred_centred(self) -> tuple[Floats, Floats, float]:
        values, vectors = linalg.eigh(self.scatter, self.device)
        return values, vectors, linalg.noise_of(values, self.moments.resolution)

    @property
    def n_unsure(self) -> int:
        """Eigenvalues of X'X that rounding blurs, the last ones; none where they must be zero."""
        values, _, noise = self._blurred
        n_unsure = int((values <= noise / UNSURE[self.moments.resolution <= EPS]).sum())
        constant = np.diag(self.scatter) == 0
        if not self.center:
            constant &= self.mean == 0
        rank = min(self.moments.n_rows - self.center, self.n_features - int(constant.sum()))
        return n_unsure if n_unsure > self.n_features - rank else 0

    @property
    def dominated(self) -> bool:
        """Whether one direction holds so much of the variance that rounding hides the others."""
        S = self.scatter / self.moments.weight
        trace, square = float(np.trace(S)), float(np.square(S).sum())
        return square > 0 and trace**2 / square - 1 < self.moments.resolution**0.4

    @cached_property
    def variances(self) -> Floats:
        """Eigenvalues of the scatter, descending, zero where rounding hides them."""
        if self.center:
            return self.gram[0]
        with linalg.threads_for(self.n_features):
            values: Floats = np.linalg.eigvalsh(self.scatter)[::-1].astype(np.float64)
        return linalg.resolved(values, self.moments.resolution)


def sharpened(values: Floats, vectors: Floats, found: Projections) -> tuple[Floats, Floats, Floats]:
    """Eigenvalues and eigenvectors with the last ones from products of their own.

    Those along the last eigenvectors, less what these share with the others (the Schur
    complement), have the small eigenvalues without the rounding of the large ones. What was
    subtracted from each comes third.
    """
    last = found.basis
    sure, first = values[: -last.shape[1]], vectors[:, : -last.shape[1]]
    first = first - last @ (last.T @ first)
    first /= np.linalg.norm(first, axis=0)
    cross = found.cross @ first
    coupling = cross / sure
    shared = coupling @ cross.T
    small, turn = linalg.eigh(found.products - shared)
    turned = np.linalg.qr((last - first @ coupling.T) @ turn)[0]
    subtracted = np.einsum("ij,ik,kj->j", turn, shared, turn)
    return (
        np.concatenate([sure, np.maximum(small, 0)]),
        np.hstack([first, turned]),
        np.abs(subtracted),
    )


def undefined(name: str, why: str) -> float:
    """NaN, with a warning that names the metric."""
    warn(f"{name}: {why}; NaN is given.")
    return float("nan")


def gather(
    X: Any,
    needs: Iterable[str],
    *,
    sample_weight: object = None,
    center: bool = False,
    random_state: int = 0,
    checkpoint: Checkpoint | None = None,
    meanwhile: Callable[[Statistics], object] = bool,
) -> Statistics:
    """The statistics named in `needs`, in one pass over X, or two with "partition".

    "traces" and "spectrum" are the moments, and up to four further passes where their rounding
    hides small eigenvalues.
    With `center`, X'X and what follows from it are those of the centred rows. `meanwhile` is called
    with the statistics of the first pass, in a thread of its own unless rows are wide.
    """
    needs = set(needs)
    center = checks.flag(center, "center")
    source = as_source(X, sample_weight)
    statistics = Statistics(
        source.n_samples,
        source.n_features,
        Moments(),
        Directions(),
        Sample(SAMPLE_ROWS, random_state),
        center=center,
    )
    if "partition" in needs:
        needs |= {"moments", "directions"}
    names = [name for name in ("moments", "directions", "sample") if name in needs]
    done = reduce(source, [getattr(statistics, name) for name in names], checkpoint)
    statistics.n_skipped, statistics.device = done.n_skipped, done.device
    for name, found in zip(names, done.states, strict=True):
        setattr(statistics, name, found)
    if "moments" in needs:
        statistics.exponent = statistics.moments.exponent
        statistics.moments = statistics.moments.at_unit_scale
    beside = [meanwhile]
    if needs >= {"spectrum", "partition"} and not center:
        beside.append(lambda statistics: statistics.variances)
    if source.n_features > linalg.ONE_THREAD:  # a large decomposition has all cores to itself
        for work in beside:
            work(statistics)
        beside = []
    with linalg.threads_for(source.n_features), ThreadPool(2) as threads:
        results = [threads.submit(work, statistics) for work in beside]
        if "moments" in needs:
            _look_closer(source, statistics, needs, checkpoint)
        if "partition" in needs:
            statistics.partition = _partition(source, statistics, random_state, checkpoint)
        for result in results:
            result.result()
    return statistics


def _look_closer(
    source: Source, statistics: Statistics, needs: set[str], checkpoint: Checkpoint | None
) -> None:
    """Read the rows again for what the rounding of X'X hides, where it hides something."""
    wanted: dict[str, Projections] = {}
    if needs & {"spectrum", "partition"} and statistics.n_unsure:
        basis = statistics._blurred[1][:, -statistics.n_unsure :]
        mean = statistics.mean if statistics.center else None
        wanted["unsure"] = Projections(basis, mean, statistics.exponent)
    if "traces" in needs and statistics.dominated:
        first = statistics._blurred_centred[1][:, :1]
        wanted["dominant"] = Projections(first, statistics.mean, statistics.exponent)
    for _ in range(PASSES):
        if not wanted:
            return
        done = reduce(source, list(wanted.values()), checkpoint)
        for name, found in zip(wanted, done.states, strict=True):
            setattr(statistics, name, found)
        wanted = _closer_still(statistics) if "unsure" in wanted else {}


def _closer_still(statistics: Statistics) -> dict[str, Projections]:
    """Projections along better eigenvectors, where those of `unsure` hide what is needed.

    They have parts along the others that X'X's rounding left in them. What these add is
    subtracted, but only as exactly as the others' eigenvalues are known.
    """
    found, (values, vectors, _) = statistics.unsure, statistics._blurred
    assert found is not None
    values, vectors, subtracted = sharpened(values, vectors, found)
    small = values[-len(subtracted) :]
    floor = (8 * EPS) ** 2 * statistics.n_features * float(values[0])
    known = UNSURE[statistics.moments.resolution <= EPS]
    if not (known * subtracted > 1e-3 * np.maximum(small, floor)).any():
        return {}
    basis = vectors[:, -len(subtracted) :]
    return {"unsure": Projections(basis, found.center, found.exponent)}


def _partition(
    source: Source, statistics: Statistics, random_state: int, checkpoint: Checkpoint | None
) -> Partition:
    values, vectors = statistics.gram
    groups = repeated(values)
    moved = np.zeros(len(values), dtype=bool)
    moved[[i for group in groups for i in group]] = True
    bases = [vectors]
    if groups:
        random = np.random.default_rng(random_state)
        bases += [_seeded_basis(vectors, groups, random) for _ in range(N_BASES)]
    mean, shift = None, 0.0
    if statistics.center:
        mean = linalg.scaled(statistics.mean, -statistics.exponent)
        shift = float(linalg.lengths(mean[None])[0])
    longest = 1.001 * (statistics.directions.norm_max + shift)
    wanted = LogPartition(np.concatenate(bases, axis=1), mean, longest)
    (partition,) = reduce(source, [wanted], checkpoint).states
    logs = np.stack([linalg.to_numpy(partition.log_plus), linalg.to_numpy(partition.log_minus)])
    d, width = len(values), int(moved.sum())
    rotated = tuple(logs[:, i : i + width] for i in range(d, logs.shape[1], max(width, 1)))
    return Partition(logs[:, :d], moved, rotated, 4 * partition.resolution * longest)


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


def _seeded_basis(vectors: Floats, groups: list[list[int]], random: np.random.Generator) -> Floats:
    """An orthonormal basis of each group's eigenspace, the same for any that `vectors` holds."""
    parts = []
    for group in groups:
        space = vectors[:, group]
        drawn = random.standard_normal(space.shape)
        parts.append(np.linalg.qr(space @ (space.T @ drawn))[0])
    return np.concatenate(parts, axis=1)


def all_rows(X: Any, sample_weight: object) -> tuple[Array, Floats | None]:
    """All rows and their weights, for the metrics that compare rows with each other."""
    source = as_source(X, sample_weight).bare()
    if isinstance(source, ArraySource) and not source.skip_bad_rows:
        rows = linalg.native(source.X)
        checks.finite(rows)
        return rows, source.weights
    batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
    rows = np.concatenate([linalg.to_numpy(batch.rows) for batch in batches])
    weights = [batch.weights for batch in batches if batch.weights is not None]
    return rows, np.concatenate(weights) if weights else None
