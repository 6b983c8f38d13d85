"""The best of many scores, block by block, ties broken by the lower index.

A score and its index are one int64 key: the upper half orders float32 scores from high to low, the
lower half is the index. Keys differ, so that the k smallest are the same however they are found.
"""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np

from isotropy import linalg
from isotropy.checks import Array, is_tensor

MAGNITUDE = 0x7FFFFFFF
MOST_CODES = 1 << 32  # that an index of 32 bits can tell apart


def keys_of(scores: Array, first: int | Array) -> Array:
    """The keys of float32 scores of shape (n_queries, n); `first` is the index of the first."""
    xp = linalg.namespace(scores)
    bits = _viewed(scores + 0, xp.int32)  # -0 becomes 0
    order = xp.astype(bits ^ ((bits >> 31) & MAGNITUDE), xp.int64)
    if isinstance(first, int):
        first = xp.arange(first, first + scores.shape[1], device=array_api_compat.device(scores))
    return (-order << 32) + first


def best_of(keys: Array, k: int) -> Array:
    """The k smallest keys of each row, or all if there are fewer, unordered."""
    if keys.shape[1] <= k:
        return keys
    if is_tensor(keys):
        return keys.topk(k, dim=1, largest=False, sorted=False).values
    return np.partition(keys, k - 1, axis=1)[:, :k]


def ranked(keys: Array) -> tuple[Array, Array]:
    """(scores, indices) of keys, best first."""
    xp = linalg.namespace(keys)
    keys = xp.sort(keys, axis=1)
    indices = keys & (MOST_CODES - 1)
    order = xp.astype(-(keys >> 32), xp.int32)
    return _viewed(order ^ ((order >> 31) & MAGNITUDE), xp.float32), indices


def _viewed(X: Array, dtype: Any) -> Array:
    return X.view(dtype) if is_tensor(X) else np.ascontiguousarray(X).view(dtype)
