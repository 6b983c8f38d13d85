"""Page-locked memory through which rows go to a device while it computes."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from isotropy import linalg

Tensor = Any
SLOT_BYTES = 1 << 26  # read and copied at once, at most: few large reads wait less for the lock


class Copied(Protocol):
    """Tells when a copy is done."""

    def synchronize(self) -> None:
        """Wait for it."""


class Slot(ABC):
    """Memory that is filled by one thread, copied to a device, and filled again after that.

    A subclass allocates it, and defines `_empty` and `_copy`.
    """

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.copied: Copied | None = None

    def room(self, shape: tuple[int, int], dtype: Any) -> NDArray[Any]:
        """The memory as an array, as soon as the last copy out of it is done.

        What is too large for it gets ordinary memory.
        """
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if n_bytes > len(self.memory):
            return np.empty(shape, dtype)
        if self.copied is not None:
            self.copied.synchronize()
        held: NDArray[Any] = self.memory.numpy()[:n_bytes].view(dtype).reshape(shape)
        return held

    def send(self, rows: NDArray[Any]) -> tuple[Tensor, Copied | None]:
        """The rows as a tensor on the device, and what tells when they are there."""
        import torch

        if rows.dtype not in (np.float16, np.float32, np.float64):
            rows = linalg.native(rows)
        there = self._empty(rows.shape, torch.from_numpy(np.empty(0, rows.dtype)).dtype)
        given = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        bytes_there, copied = there.reshape(-1).view(torch.uint8), None
        for start in range(0, len(given), len(self.memory)):
            part = given[start : start + len(self.memory)]
            if part.ctypes.data != self.memory.data_ptr():  # else it was read into this memory
                self.room((1, len(part)), np.uint8)[0] = part
            copied = self._copy(self.memory[: len(part)], bytes_there[start : start + len(part)])
            self.copied = copied
        return there, copied

    @abstractmethod
    def _empty(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        """Memory on the device."""

    @abstractmethod
    def _copy(self, source: Tensor, target: Tensor) -> Copied:
        """Begin to copy."""


class CudaSlot(Slot):
    """Page-locked memory, copied on a stream of its own."""

    def __init__(self, stream: Any, n_bytes: int) -> None:
        import torch

        super().__init__(torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True))
        self.stream = stream

    def _empty(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        import torch

        with torch.cuda.stream(self.stream):
            return torch.empty(shape, dtype=dtype, device=self.stream.device)

    def _copy(self, source: Tensor, target: Tensor) -> Copied:
        import torch

        with torch.cuda.stream(self.stream):
            target.copy_(source, non_blocking=True)
        copied: Copied = self.stream.record_event()
        return copied


class Ring:
    """A fixed number of slots in turn, made when they are first needed."""

    def __init__(self, make: Callable[[], Slot], n_slots: int) -> None:
        self._make = make
        self._free: SimpleQueue[Slot | None] = SimpleQueue()
        for _ in range(n_slots):
            self._free.put(None)

    @contextlib.contextmanager
    def slot(self) -> Iterator[Slot]:
        """The slot that has been free for longest."""
        found = self._free.get()
        try:
            found = found or self._make()
            yield found
        finally:
            self._free.put(found)
