"""Isotropy of the partition function over directions: I1 and I2."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from scipy.special import logsumexp

from isotropy.errors import warn
from isotropy.linalg import Floats
from isotropy.metrics.base import METRICS, Partition, Statistics, metric, undefined

Signs = Literal["both", "given"]

UNSURE = 1e-2  # rounding of log F past which F is not known
TOO_LARGE = "the products u.w are too large for float64"
LARGE = "rows are so long that rounding moves log F by up to {:.1g}"


def log_isotropy(logs: Floats) -> float:
    """log min F - log max F."""
    return float(logs.min() - logs.max())


def dispersion(logs: Floats) -> float:
    """Standard deviation of F over its mean."""
    scaled = np.exp(logs - logs.max())
    return float(np.std(scaled) / np.exp(logsumexp(logs - logs.max()) - np.log(logs.size)))


def along(statistics: Statistics, signs: Signs) -> tuple[Floats, float]:
    """log F along the eigenvectors, with both signs or the one they come with; its rounding."""
    partition = statistics.partition
    assert partition is not None, "gather was not asked for the partition function"
    return partition.logs if signs == "both" else partition.logs[0], partition.rounding


def isotropy_range(partition: Partition) -> tuple[float, float] | None:
    """Least and largest I over the seeded bases, None where it does not depend on the basis."""
    with np.errstate(over="ignore", invalid="ignore"):
        own = log_isotropy(partition.logs)
        logs = partition.over_bases(log_isotropy)
    if (
        not logs
        or not np.isfinite([own, *logs]).all()
        or max(abs(log - own) for log in logs) <= 1e-6 * max(1.0, abs(own))
    ):
        return None
    return float(np.exp(min(logs))), float(np.exp(max(logs)))


def warn_of_basis(statistics: Statistics, name: str) -> None:
    """Warn if repeated eigenvalues leave the value open."""
    partition = statistics.partition
    found = None if partition is None else isotropy_range(partition)
    if partition is None or found is None:
        return
    low, high = np.log10(np.maximum(found, np.finfo(float).tiny))
    own = log_isotropy(partition.logs) / np.log(10)
    warn(
        f"{name}: eigenvalues of X'X repeat, so I(W) depends on the basis: log10 I is {own:.3g} "
        f"in the one found, {low:.3g} to {high:.3g} over {len(partition.rotated)} seeded others. "
        "Compare such spaces by isoscore."
    )


@metric(
    summary="least over largest partition function along the eigenvectors of X'X, both signs",
    needs=("moments", "partition"),
    center=True,
    remark=warn_of_basis,
    range=(0.0, 1.0),
    better="higher",
    invariant=("rotation",),
    equation="I(W) = min_u F(u) / max_u F(u), F(u) = sum_w exp(u.w)",
    paper="Mu and Viswanath 2018; Wang et al. 2020 (I1)",
    note="unique only where the eigenvalues of X'X differ; grows fast with the norms",
)
def partition_isotropy(statistics: Statistics, log: bool = False, signs: Signs = "both") -> float:
    r"""Partition isotropy I(W) in [0, 1]; one is isotropic.

    I(W) = min F(u) / max F(u) with F(u) = sum_w exp(u.w), over both signs of the eigenvectors u
    of X'X.

    Parameters
    ----------
    log : bool
        Return the natural logarithm, which is finite where I(W) underflows.
    signs : {"both", "given"}
        "given" takes each eigenvector with the one sign it comes with, as the papers do.

    Notes
    -----
    Eq. 2 of Rajaee and Pilehvar 2021, eq. 8 of Bis, Podkorytov and Liu 2021. Differs from them:
    F(u) is not F(-u) and the sign of an eigenvector is arbitrary, so the papers' value changes
    with the LAPACK build by orders of magnitude; ours takes both signs. Where eigenvalues repeat,
    as in a whitened space, the eigenvectors are not unique either: an `IsotropyWarning` gives the
    range over 8 seeded bases.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((2000, 4)) * [1.0, 0.9, 0.8, 0.7]
    >>> round(partition_isotropy(X), 2), round(partition_isotropy(X + 3), 4)
    (0.76, 0.0)
    >>> round(partition_isotropy(X + 3, log=True), 2)
    -11.97
    """
    logs, rounding = along(statistics, signs)
    with np.errstate(over="ignore", invalid="ignore"):
        found = log_isotropy(logs)
    if np.isnan(found) or (log and np.isinf(found)):
        return undefined(f"{'log_' if log else ''}partition_isotropy", TOO_LARGE)
    if log:
        return found
    if rounding > UNSURE and found + 2 * rounding > np.log(np.finfo(float).tiny):
        return undefined("partition_isotropy", LARGE.format(rounding))
    return float(np.exp(found))


METRICS["log_partition_isotropy"] = replace(
    partition_isotropy.metric,
    name="log_partition_isotropy",
    summary="natural logarithm of partition_isotropy, finite where that underflows",
    equation="log I(W)",
    range=(-np.inf, 0.0),
    evaluate=lambda statistics: partition_isotropy.of(statistics, log=True),
)


@metric(
    summary="standard deviation of the partition function over its mean, along the same directions",
    needs=("moments", "partition"),
    center=True,
    remark=warn_of_basis,
    range=(0.0, np.inf),
    better="lower",
    invariant=("rotation",),
    equation="I2(W) = std_u F(u) / mean_u F(u)",
    paper="Wang et al. 2020 (I2)",
)
def partition_dispersion(statistics: Statistics, signs: Signs = "both") -> float:
    r"""Partition dispersion I2(W), at least 0; zero is isotropic.

    The standard deviation of F over its mean, over the directions of `partition_isotropy`.

    Parameters
    ----------
    signs : {"both", "given"}
        As in `partition_isotropy`.

    Notes
    -----
    Equation of appendix A in Ding et al. 2022, with the sum over both signs. It is at most
    (1/I1 - 1)/2; values printed there break that bound and cannot be matched.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((2000, 4)) * [1.0, 0.9, 0.8, 0.7]
    >>> round(partition_dispersion(X), 2)
    0.1
    """
    logs, rounding = along(statistics, signs)
    if not np.isfinite(logs).all():
        return undefined("partition_dispersion", TOO_LARGE)
    with np.errstate(over="ignore"):
        found = dispersion(logs)
        if rounding > UNSURE:
            below = np.where(logs < logs.max(), logs - 2 * rounding, logs)
            above = np.minimum(logs + 2 * rounding, logs.max())
            if abs(dispersion(above) - dispersion(below)) > UNSURE * found:
                return undefined("partition_dispersion", LARGE.format(rounding))
    return found
