"""The layers that sentence-transformers needs for the steps of a repair."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from isotropy.errors import InputError
from isotropy.linalg import Floats
from isotropy.repairs import Repair
from isotropy.repairs.steps import (
    Add,
    Multiply,
    Normalize,
    RemoveByCluster,
    Step,
    Subtract,
    SubtractScaled,
)
from isotropy.stats import Moments

SENTENCE, TOKENS = "sentence_embedding", "token_embeddings"
EXACT = 2.5e-6  # of a row's norm: a quarter of what is promised, since it is an estimate
LIKELY = 8  # the largest rounding error of many rows, over a typical one


@dataclass(frozen=True, eq=False)
class Dense:
    """W x + b in float32, which must hold both."""

    weight: Floats  # (n_out, n)
    bias: Floats  # (n_out,)
    features: str = SENTENCE

    def after(self, other: Dense) -> Dense:
        """This layer and the one before it as one."""
        return Dense(self.weight @ other.weight, self.weight @ other.bias + self.bias)


@dataclass(frozen=True, eq=False)
class Coded:
    """Steps that need the code of modeling_isotropy.py."""

    steps: tuple[Step, ...]
    features: str = SENTENCE


@dataclass(frozen=True, eq=False)
class Routes:
    """Layers of their own for queries and for documents."""

    layers: Mapping[str, tuple[Layer, ...]]


Layer = Dense | Normalize | Coded | Routes


def as_layers(repair: Repair, *, unit_rows: bool, unit_result: bool) -> list[Layer]:
    """The repair as layers.

    Parameters
    ----------
    unit_rows : bool
        Whether its rows have unit length.
    unit_result : bool
        Whether the result is scaled to unit length afterwards in any case.
    """
    steps, found = repair.steps(), list[Layer]()
    rest = [type(step) for step in steps[1:]]
    turned = rest[: rest.index(Normalize)] if Normalize in rest else rest
    scaled_later = (unit_result or Normalize in rest) and set(turned) <= {Multiply}
    norms_needed = not (unit_rows or scaled_later)
    if steps and isinstance(steps[0], SubtractScaled) and not norms_needed:
        found = [] if unit_rows else [Normalize()]
        steps[0] = Subtract(steps[0].direction)
    if any(isinstance(step, SubtractScaled | RemoveByCluster) for step in steps):
        return [Coded(tuple(steps))]
    moments = repair.moments_
    for unit, run in groupby(steps, lambda step: isinstance(step, Normalize)):
        found += [Normalize()] if unit else _dense(list(run), moments)
        moments = None  # of the rows that are given, and no others
    return found


def _dense(steps: Sequence[Step], moments: Moments | None) -> list[Dense]:
    """One layer, or two where one would lose digits: the first subtracts the centre."""
    if not steps:
        return []
    centre = next((step.vector for step in steps if isinstance(step, Subtract)), None)
    matrix = next((step.matrix for step in steps if isinstance(step, Multiply)), None)
    added = next((step.vector for step in steps if isinstance(step, Add)), None)
    last = Dense(*_filled(matrix, added, centre))
    if centre is None:
        return [last]
    first = Dense(np.eye(len(centre)), -centre)
    one = last.after(first)
    if matrix is None or (moments is not None and rounding(one, moments) <= EXACT):
        return [one]
    return [first, last]


def _filled(
    matrix: Floats | None, added: Floats | None, centre: Floats | None
) -> tuple[Floats, Floats]:
    """Weight and bias of the layer after the centre is subtracted."""
    if matrix is None:
        known = centre if added is None else added
        assert known is not None
        matrix = np.eye(len(known))
    return matrix, np.zeros(len(matrix)) if added is None else added


def rounding(layer: Dense, moments: Moments) -> float:
    """About the largest rounding error of the layer in float32, over the norm of its result.

    Each product is rounded on its own scale, which the second moments give; the result is of the
    size that the covariance gives.
    """
    mean, covariance = moments.mean, moments.scatter / moments.weight
    squares = np.diag(covariance) + mean**2
    with np.errstate(over="ignore", invalid="ignore"):  # what float32 can't hold is refused later
        terms = float((layer.weight**2 @ squares).sum() + layer.bias @ layer.bias)
        middle = layer.weight @ mean + layer.bias
        result = float(((layer.weight @ covariance) * layer.weight).sum() + middle @ middle)
    half = float(np.finfo(np.float32).eps) / 2
    return LIKELY * half * math.sqrt(terms / result) if 0 < result < math.inf else math.inf


def absorbed(layers: list[Layer], before: Dense, moments: Moments | None) -> Dense | None:
    """The first of the layers and the model's own one before it as one, if that is exact.

    The rows between the two drop out, and with them what they lost where they are far from zero.
    """
    first = layers[0] if layers else None
    if not isinstance(first, Dense) or moments is None or first.features != before.features:
        return None
    if first.weight.shape[1] != len(moments.mean):  # of rows that are truncated
        return None
    if len(layers) > 1 and isinstance(layers[1], Dense):
        return None
    from_bias = Dense(first.weight, first.weight @ before.bias + first.bias)
    exact = max(rounding(first, moments), rounding(from_bias, moments)) <= EXACT
    return first.after(before) if exact else None


def widened(layers: list[Layer], n_features: int, width: int) -> list[Layer]:
    """The layers for rows of this width, of which the repair takes the first n_features."""
    if n_features == width:
        return layers
    if not layers or not isinstance(layers[0], Dense):
        layers = [Dense(np.eye(n_features), np.zeros(n_features)), *layers]
    first = layers[0]
    assert isinstance(first, Dense)
    more = np.zeros((len(first.weight), width - n_features))
    return [replace(first, weight=np.hstack([first.weight, more])), *layers[1:]]


def single(array: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The array in float32, which must hold it."""
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(found).all():
        raise InputError(
            f"repair must have values that float32 can hold, got {np.abs(array).max():g}. "
            "Divide the vectors by a power of two and fit again."
        )
    return found
