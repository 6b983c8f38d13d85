"""Every input check of the package and its wording.

Messages read ``{caller}: {argument} must {rule}, got {value}. {What to do}.``; where
scikit-learn's estimator checks look for a phrase, the phrase is kept and the fix added.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from isotropy.errors import InputError, InputTypeError

Array = Any  # a numpy array or a torch tensor

LARGEST_WEIGHT = 1e100  # its square, times rows, is a float; so is that of its inverse


def is_tensor(X: object) -> bool:
    """Whether X is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(X, torch.Tensor)


def matrix(X: object, caller: str) -> Array:
    """X as a real two-dimensional numpy array or torch tensor with at least one row and column."""
    if scipy.sparse.issparse(X):
        raise InputTypeError(
            f"{caller}: X must be dense, got a sparse matrix. Sparse data was passed where "
            "dense data is required; use X.toarray()."
        )
    if not is_tensor(X):
        X = _numeric(X, caller)
    shape = X.shape  # type: ignore[attr-defined]
    if len(shape) != 2:
        raise InputError(
            f"{caller}: X must be two-dimensional. Expected 2D array, got {len(shape)}D array "
            f"instead. Reshape your data: X.reshape(1, -1) for one row, X.reshape(-1, 1) for one "
            "feature."
        )
    n_samples, n_features = shape
    if n_features == 0:
        raise InputError(
            f"{caller}: X must have features. Found array with 0 feature(s) "
            f"(shape={tuple(shape)}) while a minimum of 1 is required."
        )
    if n_samples == 0:
        raise InputError(
            f"{caller}: X must have rows. Found array with 0 sample(s) "
            f"(shape={tuple(shape)}) while a minimum of 1 is required."
        )
    return X


def _numeric(X: object, caller: str) -> np.ndarray[Any, Any]:
    array = np.asarray(X)
    if array.dtype.kind == "c":
        raise InputError(
            f"{caller}: X must be real. Complex data not supported; pass X.real, or its parts as "
            "columns."
        )
    if array.dtype.kind in "OSU":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            kind = InputTypeError if isinstance(error, TypeError) else InputError
            raise kind(f"{caller}: X must be numeric: {error}. Convert it to floats.") from None
    if array.dtype.kind not in "fiub":
        raise InputTypeError(
            f"{caller}: X must be numeric, got dtype {array.dtype}. Convert it to floats."
        )
    return array


def finite(X: Array, caller: str, first_row: int = 0) -> None:
    """Raise unless every value of X is finite, naming the first bad row."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(X.sum())  # one fast pass; only its failure needs a closer look
    if math.isfinite(total):
        return
    values = X.cpu() if is_tensor(X) else X
    bad = ~np.isfinite(np.asarray(values)).all(axis=1)
    rows = np.flatnonzero(bad)
    if len(rows):
        kind = "NaN" if np.isnan(np.asarray(values)[rows[0]]).any() else "infinity"
        raise InputError(
            f"{caller}: X must be finite. Input X contains {kind} (NaN and inf are not allowed) "
            f"in {len(rows)} {'row' if len(rows) == 1 else 'rows'} "
            f"(first: {rows[0] + first_row}). Drop those rows."
        )


def weights(sample_weight: object, n_samples: int, caller: str) -> np.ndarray[Any, Any] | None:
    """sample_weight as float64 of shape (n_samples,), or None where it was None."""
    if sample_weight is None:
        return None
    if isinstance(sample_weight, numbers.Real):
        sample_weight = np.full(n_samples, float(sample_weight))
    if is_tensor(sample_weight):
        sample_weight = sample_weight.detach().cpu().numpy()  # type: ignore[attr-defined]
    w = np.asarray(sample_weight, dtype=np.float64)
    if w.ndim != 1:
        raise InputError(f"{caller}: Sample weights must be 1D array or scalar, got {w.ndim}D.")
    if w.shape != (n_samples,):
        raise InputError(
            f"{caller}: sample_weight.shape == {w.shape}, expected {(n_samples,)}! "
            "Give one weight a row."
        )
    if not np.isfinite(w).all():
        raise InputError(f"{caller}: sample_weight must be finite (it contains NaN or infinity).")
    if (w < 0).any():
        raise InputError(f"{caller}: sample_weight must not be negative, got {w.min():g}.")
    extreme = w[(w > 0) & ((w < 1 / LARGEST_WEIGHT) | (w > LARGEST_WEIGHT))]
    if len(extreme):
        raise InputError(
            f"{caller}: sample_weight must be 0 or from {1 / LARGEST_WEIGHT:g} to "
            f"{LARGEST_WEIGHT:g}, got {extreme[0]:g}. Divide the weights by their mean."
        )
    return w


def n_features(X: Array, expected: int, caller: str) -> None:
    """Raise unless X has the expected number of columns."""
    width(X.shape[1], expected, caller)


def width(found: int, expected: int, caller: str) -> None:
    """Raise unless there are as many columns as expected."""
    if found != expected:
        raise InputError(
            f"X has {found} features, but {caller} is expecting {expected} features as "
            "input. Check the encoder, or fit again."
        )


def integer(value: object, name: str, caller: str, low: int, high: int | None = None) -> int:
    """value as an int in [low, high]."""
    rule = f"an integer of at least {low}" if high is None else f"an integer in [{low}, {high}]"
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):  # type: ignore[operator]
        raise InputError(f"{caller}: {name} must be {rule}, got {value!r}.")
    return int(value)  # type: ignore[call-overload, no-any-return]


def real(value: object, name: str, caller: str, low: float, high: float = math.inf) -> float:
    """value as a float in [low, high]."""
    ok = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        number = float(value) if ok else math.nan  # type: ignore[arg-type]
    except OverflowError:  # an integer that no float reaches
        number = math.nan
    if not low <= number <= high:
        raise InputError(
            f"{caller}: {name} must be a number in [{low:g}, {high:g}], got {value!r}."
        )
    return number


def choice(value: object, name: str, caller: str, options: Sequence[str]) -> str:
    """value, which must be one of options."""
    if not isinstance(value, str) or value not in options:
        words = ", ".join(repr(option) for option in options)
        raise InputError(f"{caller}: {name} must be one of {words}, got {value!r}.")
    return value


def known(names: Iterable[str], options: Iterable[str], name: str, caller: str) -> list[str]:
    """names as a list, each of which must be among options."""
    options = list(options)
    return [choice(item, name, caller, options) for item in names]
