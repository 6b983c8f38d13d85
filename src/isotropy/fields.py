"""What saved arrays must be: declared once beside what they are, checked wherever they are read."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import InputError, one_line

DTYPES = {
    "float": ("float64",),
    "single": ("float32",),
    "rows": ("float32", "float64"),
    "int": ("int64",),
    "seed": ("int64", "uint64"),
}
HALF_THE_DIGITS = float(np.finfo(np.float64).eps) ** 0.5


@dataclass(frozen=True)
class Outline:
    """Dtype and shape of an array, which a file tells before it is read."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Field:
    """What one saved array must be.

    Parameters
    ----------
    shape : str
        Sizes with commas between: names, such as "n_features", which all fields that name one
        share, or numbers. None at all is a single value.
    kind : {"float", "single", "rows", "int", "seed"}
        Float64, float32, either of them, int64, or any 64-bit integer.
    low, high : float
        Bounds of every value. Every value is finite, unless `infinite`, and never NaN.
    above : bool
        Values must be above `low`, not equal to it.
    infinite : bool
        Whether values may be infinite.
    optional : bool
        Whether the array may be left out.
    orthonormal : bool
        Whether the rows (of each part, where there are three axes) are orthonormal, or zero.
    ascending : bool
        Whether no value is below the one before it.

    Examples
    --------
    >>> fields = {"mean_": Field("n_features"), "scale_": Field("n_features", low=0, above=True)}
    >>> check({"mean_": np.zeros(3), "scale_": np.ones(3)}, fields)
    {'n_features': 3}
    >>> check({"mean_": np.zeros(3), "scale_": np.ones(2)}, fields)
    Traceback (most recent call last):
    ...
    isotropy.errors.InputError: scale_ must have shape (3,), got (2,)
    """

    shape: str = ""
    kind: Literal["float", "single", "rows", "int", "seed"] = "float"
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    infinite: bool = False
    optional: bool = False
    orthonormal: bool = False
    ascending: bool = False

    @property
    def axes(self) -> list[str]:
        """The sizes of the shape, as they are named."""
        return [size.strip() for size in self.shape.split(",")] if self.shape else []

    def check_outline(self, name: str, outline: Outline, sizes: dict[str, int]) -> None:
        """Raise unless dtype and shape are right; sizes that are named first here are noted."""
        if outline.dtype not in DTYPES[self.kind]:
            wanted = " or ".join(DTYPES[self.kind])
            raise InputError(f"{name} must be {wanted}, got {one_line(outline.dtype, 20)}")
        if len(outline.shape) == len(self.axes):
            for size, n_found in zip(self.axes, outline.shape, strict=True):
                if not size.isdigit():
                    sizes.setdefault(size, n_found)
        expected = [size if size.isdigit() else str(sizes.get(size, size)) for size in self.axes]
        if [str(size) for size in outline.shape] != expected:
            said = one_line(f"({', '.join(expected)}{',' * (len(expected) == 1)})", 60)
            raise InputError(f"{name} must have shape {said}, got {one_line(outline.shape, 60)}")

    def check_values(self, name: str, array: NDArray[Any]) -> None:
        """Raise unless every value is what it must be."""
        if array.dtype.kind == "f":
            bad = np.isnan(array) if self.infinite else ~np.isfinite(array)
            if bad.any():
                rule = "numbers" if self.infinite else "finite"
                raise InputError(f"{name} must be {rule}, got {array[bad].flat[0]}")
        if not array.size:
            return
        least, most = array.min(), array.max()
        if least < self.low or (self.above and least <= self.low):
            rule = "above" if self.above else "at least"
            raise InputError(f"{name} must be {rule} {self.low:g}, got {least}")
        if most > self.high:
            raise InputError(f"{name} must be at most {self.high:g}, got {most}")
        if self.orthonormal and not _orthonormal(array):
            raise InputError(f"{name} must have orthonormal rows, but does not")
        if self.ascending and not (array[1:] >= array[:-1]).all():
            raise InputError(f"{name} must be ascending, but is not")


def outlines(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Outline]:
    """Dtypes and shapes of arrays."""
    return {name: Outline(str(array.dtype), array.shape) for name, array in arrays.items()}


def check_outlines(
    found: Mapping[str, Outline], fields: Mapping[str, Field], sizes: Mapping[str, int] = {}
) -> dict[str, int]:
    """The sizes by name, or one line on what is missing, not known, or of another shape."""
    known = dict(sizes)
    unknown = found.keys() - fields.keys()
    if unknown:
        raise InputError(f"{_listed(sorted(unknown))} {_is(unknown)} not expected")
    missing = [name for name, field in fields.items() if not field.optional and name not in found]
    if missing:
        raise InputError(f"{_listed(missing)} {_is(missing)} missing")
    for name, field in fields.items():
        if name in found:
            field.check_outline(name, found[name], known)
    return known


def _is(names: Collection[str]) -> str:
    return "is" if len(names) == 1 else "are"


def check(
    arrays: Mapping[str, NDArray[Any]],
    fields: Mapping[str, Field],
    sizes: Mapping[str, int] = {},
) -> dict[str, int]:
    """The sizes by name of arrays that are what the fields say, or one line on what is not."""
    found = check_outlines(outlines(arrays), fields, sizes)
    for name, array in arrays.items():
        fields[name].check_values(name, array)
    return found


def _orthonormal(array: NDArray[Any]) -> bool:
    """Whether the rows are orthonormal or zero, to half the digits; seen by two mixtures of them.

    C C' v = v for every v that is zero where a row of C is: at two products, not one for each row.
    """
    n_rows = array.shape[-2]
    lengths = np.einsum("...ij,...ij->...i", array, array)
    one = lengths > 0.5
    if (np.abs(lengths - one) > HALF_THE_DIGITS).any():
        return False
    mixtures = np.random.default_rng(0).standard_normal((n_rows, 2)) * one[..., None]
    back = array @ (np.swapaxes(array, -1, -2) @ mixtures)
    return bool((np.abs(back - mixtures) <= HALF_THE_DIGITS * max(n_rows, 1)).all())


def _listed(names: Iterable[str]) -> str:
    return one_line(", ".join(names), 120)
