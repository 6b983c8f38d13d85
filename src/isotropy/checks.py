"""Every input check of the package and its wording.

Messages read ``{argument} must {rule}, got {value}. {What to do}.``; where
scikit-learn's estimator checks look for a phrase, the phrase is kept and the fix added.
"""

from __future__ import annotations

import contextlib
import math
import numbers
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from isotropy.errors import DROP_ROWS, InputError, InputTypeError, WidthError, brief, one_line

Array = Any  # a numpy array or a torch tensor
MOST_FEATURES = 1 << 20  # the matrix of their products would take 8 TB

LARGEST_WEIGHT = 1e100  # squares of weights and of their inverses must be floats
LARGEST_TOTAL = LARGEST_WEIGHT * 2.0**62  # of the weights of all rows


def is_tensor(X: object) -> bool:
    """Whether X is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(X, torch.Tensor)


def is_a(X: object, package: str, name: str) -> bool:
    """Whether X is of a class of a package; never imports it."""
    kind = getattr(sys.modules.get(package), name, None)
    return kind is not None and isinstance(X, kind)


def is_frame(X: object) -> bool:
    """Whether X is a frame: it has columns and speaks Arrow, or is a data set of datasets."""
    has_columns = hasattr(X, "columns") or hasattr(X, "schema")
    return (has_columns and hasattr(X, "__arrow_c_stream__")) or is_a(X, "datasets", "Dataset")


def matrix(X: object) -> Array:
    """X as a real two-dimensional numpy array or torch tensor with at least one row and column."""
    found = real_numbers(X, "X")
    shape = found.shape
    if len(shape) != 2:
        raise InputError(
            f"X must be two-dimensional. Expected 2D array, got {len(shape)}D array "
            f"instead. Reshape your data: X.reshape(1, -1) for one row, X.reshape(-1, 1) for one "
            "feature."
        )
    n_samples, n_features = shape
    for size, what, unit in ((n_features, "features", "feature"), (n_samples, "rows", "sample")):
        if size == 0:
            raise InputError(
                f"X must have {what}. Found array with 0 {unit}(s) "
                f"(shape={tuple(shape)}) while a minimum of 1 is required."
            )
    if n_features > MOST_FEATURES:
        raise InputError(
            f"X must have at most {MOST_FEATURES:,} features, got {n_features:,}. Check its shape."
        )
    return found


def real_numbers(X: object, name: str) -> Array:
    """X as a numpy array or dense tensor of real numbers."""
    if scipy.sparse.issparse(X):
        raise InputTypeError(
            f"{name} must be dense, got a sparse matrix. Sparse data was passed where "
            f"dense data is required; use {name}.toarray()."
        )
    if is_tensor(X):
        return _dense(X, name)
    if has_mask(X):
        raise InputError(
            f"{name} must have no masked values, got some. Fill them, drop their rows, "
            "or leave such rows out with skip_bad_rows."
        )
    return _numeric(X, name)


def has_mask(X: object) -> bool:
    """Whether X is a masked array, or a list of them, with a value masked."""
    if isinstance(X, (list, tuple)):
        return any(isinstance(row, np.ma.MaskedArray) and np.ma.is_masked(row) for row in X)
    return isinstance(X, np.ma.MaskedArray) and bool(np.ma.is_masked(X))


def unmasked(X: Any) -> np.ndarray[Any, Any]:
    """X with NaN for masked values."""
    array: Any = np.ma.vstack(X) if isinstance(X, (list, tuple)) else X
    wide = array.dtype if array.dtype.kind == "f" else np.float64
    filled: np.ndarray[Any, Any] = array.astype(wide).filled(np.nan)
    return filled


def _dense(X: Any, name: str) -> Array:
    """The tensor X, if it is dense and real."""
    if X.is_nested:
        what, instead = "nested", f"{name}.to_padded_tensor(0.0), or its rows one by one"
    elif X.layout is not sys.modules["torch"].strided:
        what, instead = "sparse", f"{name}.to_dense()"
    elif X.is_quantized:
        what, instead = "quantized", f"{name}.dequantize()"
    elif X.device.type == "meta":
        what, instead = "meta (without values)", "one with values"
    elif X.is_complex():
        raise _complex(name)
    else:
        return X
    raise InputTypeError(f"{name} must be a dense tensor, got a {what} one. Give {instead}.")


def _complex(name: str) -> InputError:
    return InputError(
        f"{name} must be real. Complex data not supported; pass {name}.real, or its parts as "
        "columns."
    )


def _numeric(X: object, name: str) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(X)
    except (TypeError, ValueError) as error:
        if "inhomogeneous" in str(error):
            raise InputError(
                f"{name} must have rows of one length, got rows that differ. Pad or cut them."
            ) from error
        raise InputTypeError(
            f"{name} must be an array, got {type(X).__name__} "
            f"({one_line(error, 160)}). Convert it to a numpy array."
        ) from error
    if array.dtype.kind == "c":
        raise _complex(name)
    if array.dtype.kind in "OSU":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            kind = InputTypeError if isinstance(error, TypeError) else InputError
            raise kind(
                f"{name} must be numeric: {one_line(error, 160)}. Convert it to floats."
            ) from error
    if array.dtype.kind not in "fiub":
        raise InputTypeError(
            f"{name} must be numeric, got dtype {one_line(str(array.dtype), 80)}. "
            "Convert it to floats."
        )
    return array


def finite(
    X: Array,
    first_row: int = 0,
    where: str = "",
    names: Sequence[str] = (),
    advice: str = DROP_ROWS,
) -> None:
    """Raise unless every value of X is finite, naming the first bad row.

    `where` names the file that rows are counted in, `names` the columns, and `advice` what to do.
    """
    good = finite_rows(X)
    if good is None:
        return
    first = int(np.argmin(good))
    bad = _host(X[np.flatnonzero(~good)])
    kinds = {"NaN": np.isnan(bad).any(), "infinity": np.isinf(bad).any()}
    kind = " or ".join(name for name, there in kinds.items() if there)
    if names:
        where += f", column {brief(names[int(np.argmin(np.isfinite(bad[0])))])}"
    raise InputError(
        f"X must be finite, got {kind} in {len(bad)} {'row' if len(bad) == 1 else 'rows'} "
        f"(first: {first_row + first}{where}, counting from 0). {advice}"
    )


def finite_rows(X: Array) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Whether each row of X is finite; None if all are."""
    if math.isfinite(_total(X)):  # only its failure needs a closer look
        return None
    good: np.ndarray[Any, np.dtype[np.bool_]] = np.isfinite(_host(X)).all(axis=1)
    return None if good.all() else good


def fits(cast: Array, rows: Array | None, dtype: str, first_row: int | None = 0) -> None:
    """Raise if finite rows are no longer finite after a cast to a dtype, naming the first one.

    Without `rows`, all rows were finite before the cast; without `first_row`, no row is named.
    """
    if math.isfinite(_total(cast)):
        return
    bad = ~np.isfinite(_host(cast)).all(axis=1)
    rows = cast if rows is None else rows
    if rows is not cast:
        bad &= np.isfinite(_host(rows)).all(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        where = "" if first_row is None else f" in row {first_row + row}"
        fix = f"Choose a wider dtype, such as {'float64' if '32' in dtype else 'float32'}."
        fix = "Divide them by a power of two first." if dtype == "float64" else fix
        largest = np.abs(_host(rows[row])).max()
        raise InputError(f"the rows must fit {dtype}, got {largest:g}{where}. {fix}")


def _total(X: Array) -> float:
    """The sum of X in one fast pass; finite if X is, unless its values are very large."""
    narrow = X.dtype.itemsize < 4  # the sum of ordinary rows is too much for float16
    with np.errstate(over="ignore", invalid="ignore"):
        if is_tensor(X):
            return float(X.sum(dtype=sys.modules["torch"].float32) if narrow else X.sum())
        return float(X.sum(dtype=np.float32 if narrow else None))


def _host(X: Array) -> np.ndarray[Any, Any]:
    """X as a numpy array."""
    found: np.ndarray[Any, Any] = X.detach().cpu().double().numpy() if is_tensor(X) else X
    return found


def weights(sample_weight: object, n_samples: int) -> np.ndarray[Any, Any] | None:
    """sample_weight as float64 of shape (n_samples,), or None."""
    if sample_weight is None:
        return None
    if isinstance(sample_weight, numbers.Real):
        sample_weight = np.full(n_samples, real(sample_weight, "sample_weight", 0))
    w = real_numbers(sample_weight, "sample_weight")
    if w.ndim != 1:
        raise InputError(f"Sample weights must be 1D array or scalar, got {w.ndim}D.")
    if w.shape != (n_samples,):
        raise InputError(
            f"sample_weight.shape == {tuple(w.shape)}, expected {(n_samples,)}! "
            "Give one weight a row."
        )
    w = np.asarray(w.detach().cpu() if is_tensor(w) else w, dtype=np.float64)
    if not np.isfinite(w).all():
        raise InputError("sample_weight must be finite (it contains NaN or infinity).")
    if (w < 0).any():
        raise InputError(f"sample_weight must not be negative, got {w.min():g}.")
    extreme = w[(w > 0) & ((w < 1 / LARGEST_WEIGHT) | (w > LARGEST_WEIGHT))]
    if len(extreme):
        raise InputError(
            f"sample_weight must be 0 or from {1 / LARGEST_WEIGHT:g} to "
            f"{LARGEST_WEIGHT:g}, got {extreme[0]:g}. Divide the weights by their mean."
        )
    return w


def width(found: int, expected: int) -> None:
    """Raise unless there are as many columns as expected."""
    if found != expected:
        raise WidthError(found, expected)


def integer(value: object, name: str, low: int, high: int | None = None) -> int:
    """value as an int in [low, high]."""
    rule = f"an integer of at least {low}" if high is None else f"an integer in [{low}, {high}]"
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):  # type: ignore[operator]
        raise InputError(f"{name} must be {rule}, got {brief(value)}.")
    return int(value)  # type: ignore[call-overload, no-any-return]


def real(value: object, name: str, low: float, high: float = math.inf) -> float:
    """value as a float in [low, high]."""
    ok = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        number = float(value) if ok else math.nan  # type: ignore[arg-type]
    except OverflowError:  # an integer beyond the range of floats
        number = math.nan
    if not low <= number <= high:
        raise InputError(f"{name} must be a number in [{low:g}, {high:g}], got {brief(value)}.")
    return number


def flag(value: object, name: str) -> bool:
    """value, which must be True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} must be True or False, got {brief(value)}.")
    return bool(value)


def choice(value: object, name: str, options: Sequence[str]) -> str:
    """value, which must be one of options."""
    if not isinstance(value, str) or value not in options:
        words = ", ".join(map(repr, options))
        raise InputError(f"{name} must be one of {words}, got {brief(value)}.")
    return value


def known(names: Iterable[str], options: Iterable[str], name: str) -> list[str]:
    """names, or a single name, as a list; each must be one of options."""
    if not isinstance(names, Iterable):
        raise InputError(f"{name} must be a list of names, got {brief(names)}.")
    options = list(options)
    return [choice(item, name, options) for item in ([names] if isinstance(names, str) else names)]


def listing(values: Any, name: str) -> list[Any]:
    """values as a list; a single text is not a list."""
    if not (isinstance(values, (str, bytes, Mapping)) or is_tensor(values)):
        with contextlib.suppress(TypeError):
            return list(values)
    raise InputError(f"{name} must be a list, got {brief(values)}.")


def function(value: object, name: str) -> None:
    """Raise unless value can be called, or is None."""
    if value is not None and not callable(value):
        raise InputError(f"{name} must be a function, got {brief(value)}.")


def path(value: object, name: str) -> str:
    """value as the path of a file or folder, in words."""
    try:
        text = os.fsdecode(value)  # type: ignore[arg-type]
        usable = bool(os.fsencode(text)) and "\0" not in text
    except (TypeError, UnicodeEncodeError):
        usable = False
    if not usable:
        raise InputError(f"{name} must be a path, got {brief(value)}.")
    return text
