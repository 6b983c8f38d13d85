"""Hidden states of texts: of which layers, and in which batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from isotropy.errors import InputError
from isotropy.sources.models import Encoding, Rows

Layer = int | str | Sequence[int]
SIMILAR = 0.8  # of a batch's longest text: padding then costs little


class States(NamedTuple):
    """Hidden states of all tokens of one text of many, for each layer."""

    number: int
    encoding: Encoding
    layers: list[Rows]


def layer_numbers(layer: Layer, n_layers: int) -> list[int]:
    """Numbers from 0, the embedding layer, to n_layers.

    Examples
    --------
    >>> layer_numbers(-1, 12), layer_numbers([0, -2], 12), layer_numbers("first-last", 12)
    ([12], [0, 11], [1, 12])
    """
    if layer == "first-last":
        return [1, n_layers]
    if layer == "all":
        return list(range(n_layers + 1))
    asked = [layer] if isinstance(layer, (int, np.integer)) else layer
    least = -n_layers - 1
    if isinstance(asked, str) or not len(asked) or not all(least <= i <= n_layers for i in asked):
        raise InputError(
            f"Encoder: layer must be in {least}..{n_layers}, a list of such, 'all' or "
            f"'first-last', got {layer!r}."
        )
    return [int(i) % (n_layers + 1) for i in asked]


def batched(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of texts in batches of similar length, longest first: what fails, fails early.

    Examples
    --------
    >>> list(batched([3, 10, 9, 10, 4], 20))
    [[1, 3], [2], [4], [0]]
    """
    batch: list[int] = []
    for i in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        longest = lengths[batch[0]] if batch else 0
        full = (len(batch) + 1) * longest > batch_tokens
        if batch and (full or lengths[i] < SIMILAR * longest):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
