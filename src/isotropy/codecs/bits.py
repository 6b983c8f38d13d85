"""Bits and half bytes in bytes, for numpy arrays and torch tensors alike."""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.checks import Array, is_tensor


def pack_bits(bits: Array) -> Array:
    """Rows of bits as bytes in the order of numpy.packbits, the last one filled with zeros."""
    if not is_tensor(bits):
        return np.packbits(bits, axis=1)
    import torch

    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.shape[1] % 8))
    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=bits.device)
    return (padded.reshape(len(bits), -1, 8) << places).sum(-1, dtype=torch.uint8)


def signs(codes: Array, n_dims: int) -> Array:
    """Bits as 1 and -1 in float32."""
    if not is_tensor(codes):
        return np.unpackbits(codes, axis=1, count=n_dims) * np.float32(2) - 1
    import torch

    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=codes.device)
    bits = ((codes[:, :, None] >> places) & 1).reshape(len(codes), -1)[:, :n_dims]
    return bits.to(torch.float32) * 2 - 1


def n_different_bits(A: Array, B: Array) -> Array:
    """How many bits of every row of A differ from those of every row of B, in float32."""
    if is_tensor(A):  # products are what devices are fast at; exact up to 2^24 bits
        n_bits = 8 * A.shape[1]
        return (n_bits - signs(A, n_bits) @ signs(B, n_bits).T) / 2
    found = np.zeros((len(A), len(B)), np.float32)
    ours, theirs = _words(A), _words(B)
    for i in range(ours.shape[1]):
        found += np.bitwise_count(ours[:, i, None] ^ theirs[None, :, i])
    return found


def pack_nibbles(cells: Array) -> Array:
    """Rows of numbers below 16, two in a byte: the first of a pair in the lower half."""
    xp = linalg.namespace(cells)
    if cells.shape[1] % 2:
        device = array_api_compat.device(cells)
        empty = xp.zeros((cells.shape[0], 1), dtype=xp.uint8, device=device)
        cells = xp.concat([cells, empty], axis=1)
    return cells[:, 0::2] | (cells[:, 1::2] << 4)


def unpack_nibbles(codes: Array, n_dims: int) -> Array:
    """The numbers that `pack_nibbles` packed."""
    xp = linalg.namespace(codes)
    pairs = xp.stack([codes & 15, codes >> 4], axis=2)
    return xp.reshape(pairs, (codes.shape[0], -1))[:, :n_dims]


def _words(codes: NDArray[Any]) -> NDArray[np.uint64]:
    """Rows of bytes as rows of 64-bit words, filled up with zeros."""
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 8)))
    return np.ascontiguousarray(padded).view(np.uint64)
