"""How far rounding can move a result, whichever CPU, BLAS or number of threads made it."""

from __future__ import annotations

import math

import numpy as np

LIKELY = 8  # standard deviations of the accumulated rounding; 2 exp(-32) of the sums go past that


def of_sum(n_terms: int, dtype: type = np.float32, condition: float = 1.0) -> float:
    """Relative error of a sum of n_terms in dtype, added up in any order and blocks.

    LIKELY sqrt(n) u (Higham and Mary, 2019, theorem 2.4), where u is half of eps; times
    sum |x| / |sum x|, which is 1 where all terms have one sign.
    """
    return LIKELY * math.sqrt(n_terms) * float(np.finfo(dtype).eps) / 2 * condition
