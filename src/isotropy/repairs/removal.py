"""One family: subtract the mean of a row's cluster, then its dominant (or least) directions.

(1 cluster, 0 directions) is centring, (1, D) all-but-the-top, (k, 0) the cluster zero-mean
setting, (k, D) cluster removal; `side` says from which end of the spectrum directions go.
"""

from __future__ import annotations

import math
import warnings
from typing import Literal

import numpy as np
import scipy.linalg

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.errors import InputError, IsotropyWarning
from isotropy.linalg import Floats
from isotropy.stats import Moments

Side = Literal["top", "bottom"]
SIDES = ("top", "bottom")


def n_directions(n_components: int | None, n_features: int, caller: str) -> int:
    """How many directions to remove: ceil(d/100) for None, at most d - 1."""
    if n_components is None:
        return min(math.ceil(n_features / 100), n_features - 1)
    wanted = checks.integer(n_components, "n_components", caller, 0)
    if wanted >= n_features:
        warnings.warn(
            f"{caller}: n_components={wanted} would leave nothing of {n_features} features; "
            f"{n_features - 1} directions are removed.",
            IsotropyWarning,
            stacklevel=4,
        )
    return min(wanted, n_features - 1)


def expect_removed(n_removed: int, n_components: int | None, n_features: int) -> None:
    """Raise where a file holds more directions than its parameters ask for."""
    asked = math.ceil(n_features / 100) if n_components is None else n_components
    most = min(asked, n_features - 1)
    if n_removed > most:
        raise InputError(f"components_ must have at most {most} directions, got {n_removed}")


def directions(moments: Moments, n_components: int, side: str) -> Floats:
    """Principal directions to remove, as rows; fewer where the rows do not have as many.

    Directions without variance are not among them, nor is the last one with variance: removing
    it would turn every row into zero.
    """
    scatter = moments.at_unit_scale.scatter
    d = len(scatter)
    if n_components == 0:
        return np.zeros((0, d))
    ends = (d - n_components, d - 1) if side == "top" else (0, d - 1)
    with linalg.threads_for(len(scatter)):
        values, vectors = scipy.linalg.eigh(scatter, subset_by_index=ends, check_finite=False)
    trace = float(np.trace(scatter))
    noise = max(d * float(np.finfo(np.float64).eps), 4 * moments.resolution / d**0.5) * trace
    varying = np.flatnonzero(values > noise)
    if side == "top":
        varying = varying[::-1]
    removed = varying[:n_components]
    if len(removed) and trace - float(values[removed].sum()) <= noise:
        removed = removed[:-1]
    return vectors[:, removed].T


def remove(rows: Array, mean: Array, components: Array | None, out: Array) -> None:
    """Write rows - mean to out, without their projections on the components."""
    out[:] = rows - mean
    if components is not None and components.shape[0]:
        out -= (out @ components.T) @ components
