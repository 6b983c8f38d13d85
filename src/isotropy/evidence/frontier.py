"""Which code is the smallest that loses little: a fixed sequence of non-inferiority tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isotropy.evidence.significance import Fold, difference, quantiles
from isotropy.tasks import Mean

LEVEL = 0.05  # of the one-sided tests
FEW = 20  # with fewer groups that differ, a bootstrap may have seen none of a rare loss
Size = tuple[int, int]  # bytes in memory, bytes stored


@dataclass(frozen=True)
class Loss:
    """The score of float32 less that of a code on the same items; a positive loss is worse.

    Attributes
    ----------
    value : float
    interval : (float, float)
        Two-sided 95 % interval, by paired bootstrap.
    least, most : float
        One-sided 95 % limits: the loss is at least `least`, or at most `most`.
    """

    value: float
    interval: tuple[float, float]
    least: float
    most: float


def loss_of(folds: Sequence[Fold], seed: int = 0, *, whole: bool = False) -> Loss:
    """What the system of these folds loses against their baseline; NaN if it is undefined.

    If it may lose the whole score of an item at once, as a search does that misses a candidate,
    `most` is at least what `unseen` losses may take.
    """
    ends = quantiles(folds, [LEVEL / 2, LEVEL, 1 - LEVEL, 1 - LEVEL / 2], seed=seed)
    low, least, most, high = (0.0 - end for end in reversed(ends))
    if whole:
        most = max(most, unseen(folds))
    return Loss(0.0 - difference(folds), (low, high), least, most)


def unseen(folds: Sequence[Fold]) -> float:
    """The largest loss that n groups miss in 5 % of cases, if each loss is of the whole score.

    That is 1 - 0.05^(1/n) of the score, about 3/n. Minus infinity, which limits nothing, if enough
    groups differ to see how losses vary, and for scores that are no means.

    Examples
    --------
    >>> one = Mean(np.ones(150))
    >>> round(100 * unseen([Fold(one, one, np.arange(150))]), 2)
    1.98
    """
    pairs = [(fold.system, fold.baseline, fold.groups) for fold in folds]
    if not all(isinstance(a, Mean) and isinstance(b, Mean) for a, b, _ in pairs):
        return -math.inf
    differing = [groups[a.per_item != b.per_item] for a, b, groups in pairs]  # type: ignore[attr-defined]
    if len(np.unique(np.concatenate(differing))) >= FEW:
        return -math.inf
    n_groups = len(np.unique(np.concatenate([fold.groups for fold in folds])))
    score = float(np.mean([fold.baseline.value for fold in folds]))
    share: float = 1 - LEVEL ** (1 / n_groups)
    return score * share


def items_unseen(score: float, margin: float) -> int:
    """How many groups of items it takes until `unseen` is below the margin.

    Examples
    --------
    >>> items_unseen(1.0, 0.01)
    299
    """
    return 1 + int(math.log(LEVEL) / math.log1p(-margin / score)) if margin < score else 1


def ladder(sizes: Sequence[Size], most: Sequence[float]) -> list[int]:
    """Numbers of the codes to test one after the other, the largest first.

    Of each size, the code with the smallest upper limit of the loss; it is left out if a smaller
    code has a smaller limit. Ties in memory are broken by what is stored. Codes whose loss is
    undefined are left out.

    Examples
    --------
    >>> sizes = [(384, 384), (192, 192), (48, 48), (48, 48), (96, 96)]
    >>> ladder(sizes, [0.1, 0.4, 9.0, 1.5, 3.0])
    [0, 1, 3]
    """
    known = [number for number in range(len(sizes)) if not math.isnan(most[number])]
    found: list[int] = []
    for number in sorted(known, key=lambda number: (sizes[number], most[number])):
        if found and sizes[number] == sizes[found[-1]]:
            continue
        if not found or most[number] <= most[found[-1]]:
            found.append(number)
    return found[::-1]


def descend(most: Sequence[float], margin: float) -> int:
    """How many tests are passed before the first that is not: losses below the margin.

    Testing stops at the first code that is not shown to lose less than the margin, so each test has
    the full level: to accept any code that loses the margin or more, the first of these on the
    ladder must be accepted, and that happens in at most 5 % of cases.

    Examples
    --------
    >>> descend([0.1, 0.4, 1.5, 0.2], margin=1)
    2
    """
    for n_passed, limit in enumerate(most):
        if not limit < margin:
            return n_passed
    return len(most)


def frontier(sizes: Sequence[Size], scores: Sequence[float]) -> list[bool]:
    """Whether no code takes as few bytes, in memory and stored, and is as good, and better in one.

    Examples
    --------
    >>> frontier([(384, 384), (192, 192), (48, 432), (48, 48), (48, 48)], [53, 51, 52.5, 52, 42])
    [True, False, True, True, False]
    """
    codes = [(*size, -score) for size, score in zip(sizes, scores, strict=True)]
    return [
        not math.isnan(code[2])
        and not any(
            other != code and all(a <= b for a, b in zip(other, code, strict=True))
            for other in codes
        )
        for code in codes
    ]
