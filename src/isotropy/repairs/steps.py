"""What a fitted repair does to a row, as a few steps that other tools can run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotropy.linalg import Floats


@dataclass(frozen=True, eq=False)
class Subtract:
    """x - vector."""

    vector: Floats  # (n,)


@dataclass(frozen=True, eq=False)
class Multiply:
    """A x: a row times the transposed matrix."""

    matrix: Floats  # (n_out, n)


@dataclass(frozen=True, eq=False)
class Add:
    """x + vector."""

    vector: Floats  # (n,)


@dataclass(frozen=True, eq=False)
class SubtractScaled:
    """x - ||x|| direction."""

    direction: Floats  # (n,)


@dataclass(frozen=True, eq=False)
class RemoveByCluster:
    """x - mean, then without its projections on the components, both of the nearest centre."""

    centers: Floats  # (n_clusters, n)
    means: Floats  # (n_clusters, n)
    components: Floats  # (n_clusters, n_removed, n); rows of zeros remove nothing


@dataclass(frozen=True, eq=False)
class Normalize:
    """x / ||x||; a zero row stays zero."""


Step = Subtract | Multiply | Add | SubtractScaled | RemoveByCluster | Normalize


def named(steps: Sequence[Step]) -> list[tuple[str, dict[str, Floats]]]:
    """The kind of each step and its arrays by name, as files and `RepairModule` have them."""
    return [(type(step).__name__, dict(vars(step))) for step in steps]


def folded(steps: Sequence[Step], centre: Floats | None) -> list[Step]:
    """The same with neighbouring affine steps as one matrix; the rows are about the centre."""
    found: list[Step] = []
    run: list[Subtract | Multiply | Add] = []
    for step in steps:
        if isinstance(step, Subtract | Multiply | Add):
            run.append(step)
        else:
            found += [*_as_one(run, None if found else centre), step]
            run = []
    return found + _as_one(run, None if found else centre)


def _as_one(run: Sequence[Subtract | Multiply | Add], centre: Floats | None) -> list[Step]:
    if not run:
        return []
    first = run[0]
    n_features = first.matrix.shape[1] if isinstance(first, Multiply) else len(first.vector)
    matrix, bias = np.eye(n_features), np.zeros(n_features)
    for step in run:
        if isinstance(step, Multiply):
            matrix, bias = step.matrix @ matrix, step.matrix @ bias
        else:
            bias = bias + step.vector * (1 if isinstance(step, Add) else -1)
    if centre is None and isinstance(first, Subtract):
        centre = first.vector
    return affine_steps(matrix, bias, centre if bias.any() else None)


def affine_steps(matrix: Floats, bias: Floats, centre: Floats | None) -> list[Step]:
    """A x + b as A (x - centre) + rest, which keeps the digits of rows far from zero.

    What does nothing is left out: a zero vector, an identity matrix.
    """
    found: list[Step] = []
    if centre is not None and centre.any():
        found.append(Subtract(centre))
        product = matrix @ centre
        rounding = len(centre) * float(np.finfo(np.float64).eps) * (np.abs(matrix) @ np.abs(centre))
        bias = np.where(np.abs(product + bias) > rounding, product + bias, 0.0)
    if matrix.shape[0] != matrix.shape[1] or not np.array_equal(matrix, np.eye(len(matrix))):
        found.append(Multiply(matrix))
    return [*found, *([Add(bias)] if bias.any() else [])]
