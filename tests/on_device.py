"""Run what a device would run on tensors of the CPU, and count what it copies to the host."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from unittest import mock

import numpy as np

from isotropy import linalg
from isotropy.checks import is_tensor
from isotropy.sources import ArraySource

DEVICE = "cpu:0"  # to torch it is the CPU, to isotropy a device


def as_device() -> contextlib.AbstractContextManager[object]:
    """Tensors of the CPU stay tensors within, as those of a device do."""
    native = linalg.native
    return mock.patch.object(linalg, "native", lambda X: X if is_tensor(X) else native(X))


def device_source(rows: np.ndarray) -> ArraySource:
    """The rows as tensors on DEVICE, to be read within `as_device`."""
    import torch

    source = ArraySource(torch.from_numpy(np.array(rows)))
    source.device = DEVICE
    return source


@contextlib.contextmanager
def copies_to_host() -> Iterator[Counter[str]]:
    """How often tensors were made arrays or Python numbers within."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found: Counter[str] = Counter()

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "_local_scalar_dense" in str(function):
                found["numbers"] += 1
            return function(*args, **(kwargs or {}))

    to_numpy, to_list = linalg.to_numpy, torch.Tensor.tolist

    def counted(X):
        found["arrays"] += is_tensor(X)
        return to_numpy(X)

    def listed(X):
        found["lists"] += 1
        return to_list(X)

    with (
        Counting(),
        mock.patch.object(linalg, "to_numpy", counted),
        mock.patch.object(torch.Tensor, "tolist", listed),
    ):
        yield found
