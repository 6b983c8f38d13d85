"""measure(): every metric of a space, in a few passes over it, and a verdict in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from isotropy import checks, tables
from isotropy.engines import Engine, open_checkpoint, using
from isotropy.errors import InputError, public
from isotropy.linalg import Floats
from isotropy.metrics import (
    METRICS,
    SAMPLE_ROWS,
    Statistics,
    explained,
    gather,
    isotropy_range,
    local_isotropy,
    warn_of_basis,
)
from isotropy.sources import as_source
from isotropy.stats import Sample

DRIFTED = 0.3
CONED = 0.2
FEW_DIRECTIONS = 0.1
HUBS = 1.0
HALF = 0.5
DRAWN_ROWS = 2000
LOOKED_AT = {
    "mean_norm_ratio": "drift {:.2f}",
    "mean_cosine": "mean cosine {:.2f}",
    "isoscore": "IsoScore {:.2f}",
}
ALONE = "Leave it alone unless a task says otherwise."
CAUTION = "This is geometry, not evidence: keep a repair only if your own task gains from it."


@public
def measure(
    X: Any,
    metrics: Iterable[str] | None = None,
    *,
    sample_weight: object = None,
    center: bool = False,
    local: int | None = None,
    random_state: int = 0,
    engine: str | Engine | None = None,
    checkpoint: Any = None,
) -> Geometry:
    """The geometry of X: all metrics in a few passes, and a verdict.

    These are two passes, and up to four more where rounding hides small eigenvalues.

    Parameters
    ----------
    X : array, tensor, path or source of shape (n_samples, n_features)
    metrics : iterable of str, optional
        Names of the metrics wanted; None is all but "hubness" and "antihubs", which compare all
        pairs of up to 5,000 rows.
    sample_weight : array of shape (n_samples,), optional
    center : bool
        Take partition function, singular values and effective rank of the centred rows.
    local : int, optional
        Add `local_isotropy` with this many clusters.
    random_state : int
        Seed of samples and clusterings.
    engine : {"local", "torch", "dask"} or Engine, optional
        Where the work runs: threads of this process (the default), a torch device, a cluster.
    checkpoint : path, optional
        Folder in which the states of finished chunks are kept, so that a run that was killed
        resumes where it stopped, with the same result. What `local` adds is not kept.

    Returns
    -------
    Geometry

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 16)) + 1
    >>> geometry = measure(X)
    >>> round(geometry.mean_cosine, 2), geometry.findings[0]
    (0.51, 'drifted')
    """
    default = [name for name, record in METRICS.items() if record.evaluate is not None]
    asked = [name for name, record in METRICS.items() if record.on_request is not None]
    names = default if metrics is None else checks.known(metrics, [*default, *asked], "metrics")
    refused = [name for name in asked if name in names and sample_weight is not None]
    if refused:
        raise InputError(f"{refused[0]} takes no sample_weight. Leave one of them out.")
    source = as_source(X, sample_weight)
    kept = open_checkpoint(checkpoint)
    needs = {need for name in names for need in METRICS[name].needs}
    values: dict[str, Any] = dict.fromkeys(names)
    bases = None
    of_sample = [name for name in names if name in default and METRICS[name].needs == {"sample"}]

    def evaluate(some: list[str], statistics: Statistics) -> None:
        for name in some:
            value = METRICS[name].evaluate or METRICS[name].on_request
            assert value is not None
            values[name] = value(statistics)

    with using(engine) as made, made.keeping():
        statistics = gather(
            source,
            needs,
            center=center,
            random_state=random_state,
            checkpoint=kept,
            meanwhile=lambda statistics: evaluate(of_sample, statistics),
        )
        evaluate([name for name in names if name not in of_sample], statistics)
        if statistics.partition is not None:
            bases = isotropy_range(statistics.partition)
            warn_of_basis(statistics, "measure")
        if local is not None:
            values["local_isotropy"] = local_isotropy(source, local, random_state=random_state)
    return Geometry(
        source.n_samples - statistics.n_skipped,
        source.n_features,
        center,
        MappingProxyType(values),
        bases,
        statistics.n_skipped,
        _drawn(statistics, values),
    )


@dataclass(frozen=True)
class Drawn:
    """What charts show of a space beside its metrics; a part that was not gathered is None.

    `log_partition`, of shape (2, n_features), has the logarithms of the mean of exp(u.x) over rows
    x, weighted where they are, along both signs u of every eigenvector of X'X.
    """

    sample: Sample | None  # at most 2,000 rows
    log_partition: Floats | None
    explained: Floats | None  # cumulative shares of variance of the principal components


def _drawn(statistics: Statistics, values: Mapping[str, Any]) -> Drawn:
    sample, partition = statistics.sample, statistics.partition
    variances = "explained_variance" in values
    return Drawn(
        None if sample.rows is None else sample.first(DRAWN_ROWS),
        None if partition is None else partition.logs - np.log(statistics.moments.weight),
        explained(statistics, statistics.n_features) if variances else None,
    )


@dataclass(frozen=True)
class Geometry:
    """What `measure` found: each metric is an attribute of its name.

    Attributes
    ----------
    n_samples, n_features : int
    center : bool
        Whether partition function and singular values are of the centred rows.
    values : mapping
        Metric names to values.
    partition_isotropy_range : (float, float) or None
        Least and largest I(W) over bases, where repeated eigenvalues leave it open.
    n_skipped : int
        Bad rows that were left out, where that was asked for.
    drawn : Drawn
        What `report` and its charts show.
    """

    n_samples: int
    n_features: int
    center: bool
    values: Mapping[str, Any] = field(repr=False)
    partition_isotropy_range: tuple[float, float] | None = None
    n_skipped: int = 0
    drawn: Drawn = field(default=Drawn(None, None, None), repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self.n_samples, self.n_features, self.center, dict(self.values))
        return type(self), (*parts, self.partition_isotropy_range, self.n_skipped, self.drawn)

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"Geometry has no {name!r}; it has {', '.join(values)}.")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.values]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values, fit for JSON but for NaN where undefined."""
        return {
            "n_samples": self.n_samples,
            "n_features": self.n_features,
            "n_skipped": self.n_skipped,
            "center": self.center,
            **{k: v.tolist() if hasattr(v, "tolist") else v for k, v in self.values.items()},
            "partition_isotropy_range": self.partition_isotropy_range,
            "sampled": list(self.sampled),
            "findings": list(self.findings),
            "verdict": self.verdict,
        }

    @property
    def sampled(self) -> tuple[str, ...]:
        """Metrics that are of a seeded sample of the rows, because there are many."""
        from_sample = [n for n in self.values if n in METRICS and "sample" in METRICS[n].needs]
        return tuple(from_sample) if self.n_samples > SAMPLE_ROWS else ()

    @property
    def findings(self) -> tuple[str, ...]:
        """Of "drifted", "coned", "rogue dimensions", "few directions", "hubs", those that hold."""
        return tuple(self._reasons())

    @property
    def verdict(self) -> str:
        """What is wrong with the space in a few sentences, with the numbers behind it."""
        reasons = self._reasons()
        if not reasons:
            missing = [name for name in LOOKED_AT if name not in self.values]
            if missing:
                were = "was" if len(missing) == 1 else "were"
                return f"No problems found; {', '.join(missing)} {were} not measured."
            undefined = [name for name in LOOKED_AT if np.isnan(self.values[name])]
            if undefined:
                are = "is" if len(undefined) == 1 else "are"
                names = ", ".join(undefined)
                return f"No problems found; {names} {are} not defined for these rows."
            texts = (text.format(round(self.values[k], 2) + 0.0) for k, text in LOOKED_AT.items())
            return f"Fine: {', '.join(texts)}. {ALONE}"
        return " ".join([*reasons.values(), CAUTION])

    def _reasons(self) -> dict[str, str]:
        get = self.values.get
        found: dict[str, str] = {}
        drift, cosine = get("mean_norm_ratio", np.nan), get("mean_cosine", np.nan)
        if drift >= DRIFTED:
            found["drifted"] = (
                f"Drifted: all rows share a common part {drift:.2f} times as long as an average "
                "row; Center removes it."
            )
        if cosine >= CONED:
            found["coned"] = (
                f"Narrow cone: two random rows have a cosine of {cosine:.2f} on average, so a "
                "high cosine alone does not mean that two rows are related."
            )
        rogue = self._rogue()
        if cosine >= CONED / 2 and 0 < len(rogue) <= max(3, self.n_features // 100):
            listed = ", ".join(str(i) for i in rogue)
            found["rogue dimensions"] = (
                f"Rogue dimensions: {len(rogue)} of {self.n_features} ({listed}) bring half of "
                "the mean cosine; Standardize evens them out."
            )
        score = get("isoscore_unbiased", get("isoscore", np.nan))
        if score < FEW_DIRECTIONS:
            found["few directions"] = (
                f"Few directions: the variance fills only {100 * max(score, 0):.0f} % of the "
                "dimensions evenly (IsoScore); AllButTheTop or Whiten spread it."
            )
        if get("hubness", np.nan) >= HUBS:
            found["hubs"] = (
                "Hubs: a few rows are near neighbours of many others (hubness "
                f"{get('hubness'):.1f}); if a search suffers, compare csls and local-scaling on it."
            )
        return found

    def _rogue(self) -> list[int]:
        """The fewest dimensions that bring half of the mean cosine, largest first."""
        shares = np.asarray(self.values.get("rogue_dimensions", []))
        if not len(shares) or not np.isfinite(shares).all():
            return []
        order = np.argsort(-shares, kind="stable")
        n_least = int(np.searchsorted(np.cumsum(shares[order]), HALF)) + 1
        return [int(i) for i in order[:n_least]]

    def report(self, path: Any, **options: Any) -> None:
        """Write the page of the space as `isotropy.report.write` does; needs the extra `report`."""
        from isotropy.report import write

        write(self, path, **options)

    def _repr_html_(self) -> str:
        head, rows = self._table()
        title = f"{self.n_samples:,} rows of {self.n_features} dimensions"
        return tables.html_table(head, rows, title) + tables.paragraph(self.verdict)

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        rows: list[tuple[str, ...]] = [
            (name, _shown(name, value), METRICS[name].better, METRICS[name].summary)
            for name, value in self.values.items()
        ]
        return ("metric", "value", "better", "what it is"), rows

    def __str__(self) -> str:
        head, rows = self._table()
        lines = [f"{self.n_samples:,} rows of {self.n_features} dimensions"]
        lines[0] += ", centred for X'X" if self.center else ""
        if self.n_skipped:
            lines[0] += (
                f"; {self.n_skipped:,} bad {'row' if self.n_skipped == 1 else 'rows'} left out"
            )
        lines.append(tables.text_table(head, rows))
        if self.sampled:
            lines.append(f"sampled, since there are more than {SAMPLE_ROWS:,} rows:")
            lines += [f"  {name}: {METRICS[name].note}" for name in self.sampled]
        if self.partition_isotropy_range is not None:
            low, high = self.partition_isotropy_range
            lines.append(f"partition_isotropy depends on the basis here: {low:.3g} to {high:.3g}")
        return "\n".join([*lines, self.verdict])


def _shown(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if name == "rogue_dimensions":
        top = np.argsort(-value, kind="stable")[:3]
        shares = [(i, 100 * float(value[i])) for i in top]
        return ", ".join(f"{i}: {v:.0f} %" if v >= 1 else f"{i}: {v:.1g} %" for i, v in shares)
    if isinstance(value, np.ndarray):
        shown = ", ".join(f"{v:.3g}" for v in value[:3])
        return shown + (", ..." if len(value) > 3 else "")
    if name == "norms":
        return f"{value['min']:.3g} / {value['q50']:.3g} / {value['max']:.3g}"
    return "see .local_isotropy"
