"""Labels of items, and which of two says yes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import InputError
from isotropy.tasks.outcomes import base

YES = {"1", "1.0", "true", "t", "yes", "y", "positive", "same", "similar"}
YES |= {"entailment", "equivalent", "duplicate", "paraphrase"}


def classes(
    labels: Any, n_items: int, caller: str, name: str
) -> tuple[list[Any], NDArray[np.int64]]:
    """(the classes, sorted; the number of each item's class), of which there must be two."""
    array = base.labels(labels, "labels", caller, n_items)
    found, numbers = np.unique(array, return_inverse=True)
    if len(found) < 2:
        raise InputError(
            f"{caller}: labels of {name!r} must be of two classes or more, got "
            f"{found.tolist()[0]!r} for every item."
        )
    return found.tolist(), numbers.astype(np.int64)


def positive_class(found: list[Any], positive: Any, caller: str) -> int:
    """Number of the class that says yes, of two: the one that is named, or has such a name."""
    if len(found) != 2:
        raise InputError(f"{caller}: labels must be of two classes, got {len(found)}.")
    names = [str(label).lower() for label in found]
    if positive is not None:
        if str(positive).lower() not in names:
            raise InputError(
                f"{caller}: positive must be one of the labels {found[0]!r} and {found[1]!r}, got "
                f"{positive!r}."
            )
        return names.index(str(positive).lower())
    yes = [number for number, label in enumerate(names) if label in YES]
    if len(yes) != 1:
        raise InputError(
            f"{caller}: positive must say which of the labels {found[0]!r} and {found[1]!r} is the "
            "positive one."
        )
    return yes[0]
