"""A torch device: chunks are read and copied there while previous ones are being computed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from isotropy import checks
from isotropy.checks import Array
from isotropy.engines.base import (
    Engine,
    Partial,
    PassCheckpoint,
    Report,
    RowFunction,
    fresh,
    remaining,
    write,
)
from isotropy.engines.local import Local
from isotropy.engines.staging import SLOT_BYTES, CudaSlot, Ring, Slot
from isotropy.errors import InputError, MissingExtraError
from isotropy.sources import Batch, Chunk, PartsSink, Sink, Source, joined
from isotropy.stats import Statistic
from isotropy.threads import ahead, n_threads

READERS = 16  # threads, at most
SLOTS = 2  # for each reader: it fills one while another is copied
AHEAD_BYTES = 1 << 31  # of rows on the device that are not yet in use
KEPT_SHARE = 0.5  # of free memory on the device, which rows may take from one pass to the next
JOINED_BYTES = 1 << 29  # of rows that are worth an update: a device wants larger ones than a core

_call: ContextVar[Any] = ContextVar("isotropy-call", default=None)  # see Torch.keeping

Moved = tuple[Batch, Any]  # a batch on its way to the device, and an event that tells when


def in_groups(chunks: Sequence[Chunk], row_bytes: int) -> list[list[Chunk]]:
    """Consecutive chunks of one file together, until they have JOINED_BYTES.

    A pass that resumes after any group has the same groups.
    """
    groups: list[list[Chunk]] = []
    n_bytes = 0
    for chunk in chunks:
        if not groups or n_bytes >= JOINED_BYTES or groups[-1][0].file != chunk.file:
            groups.append([])
            n_bytes = 0
        groups[-1].append(chunk)
        n_bytes += chunk.n_rows * row_bytes
    return groups


@functools.cache
def copying_streams(index: int) -> list[Any]:
    """Two streams of a CUDA device, always the same ones.

    Memory that was freed is only reused on the stream that it was allocated on.
    """
    import torch

    return [torch.cuda.Stream(index) for _ in range(2)]


class Torch(Engine):
    """One torch device. On the CPU it is the local engine, in which numpy reads tensors in place.

    Parameters
    ----------
    device : str
        "cuda", "cuda:1" or "cpu"; None is CUDA if available.
    tf32 : bool
        Allow TF32 in matrix products of float32 rows. It is faster and keeps 10 bits of the
        mantissa: on one data set, metrics differed from the CPU's by up to 1.3e-4.
    """

    def __init__(self, device: str | None = None, tf32: bool = False) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError(
                "engine 'torch' needs torch, which is not installed. "
                'Run: pip install "isotropy[torch]".'
            ) from error
        self.tf32 = tf32
        name = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self.device = torch.device(name)
            torch.empty(1, device=self.device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                f"engine 'torch': device {name!r} cannot be used ({reason}). Use 'cpu'."
            ) from error
        if self.device.type not in ("cpu", "cuda"):
            raise InputError(
                f"engine 'torch': device must be a CPU or CUDA, got {name!r}. Use 'cpu'."
            )
        self.joins_chunks = self.device.type != "cpu"
        self._held: tuple[list[Any], list[tuple[list[Chunk], list[Batch]]]] | None = None
        self.name = f"torch on {self.device}{' in TF32' if tf32 else ''}"

    def place(self, source: Source) -> str:
        return source.device if self.device.type == "cpu" else str(self.device)

    def reduce(
        self, source: Source, statistics: Sequence[Statistic], saved: PassCheckpoint, report: Report
    ) -> Partial:
        if self.device.type == "cpu":
            return Local().reduce(source, statistics, saved, report)
        saved.begin(1)
        chunks = source.chunks()
        partial = saved.load(0, chunks) or fresh(statistics)
        report(sum(chunk.n_rows for chunk in chunks[: partial.n_chunks]))
        groups = in_groups(chunks[partial.n_chunks :], 4 * source.n_features)
        with self._precision(), contextlib.closing(self._kept(source, groups)) as arriving:
            for group, batches in arriving:
                partial.add(batches, report, len(group))
                saved.save(0, partial, chunks)
        return partial

    def map(
        self, source: Source, function: RowFunction, sink: Sink | PartsSink, report: Report
    ) -> int:
        if self.device.type == "cpu":
            return Local().map(source, function, sink, report)
        with sink, self._precision():
            n_skipped = sink.n_skipped
            groups = [[chunk] for chunk in remaining(source, sink, report)]
            with contextlib.closing(self._ahead(source, groups, False)) as arriving:
                for (chunk,), batches in arriving:
                    mapped = (
                        replace(batch, rows=self._fetch(function(batch.rows))) for batch in batches
                    )
                    n_skipped += write(chunk, mapped, sink, report)
        return n_skipped

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Within, the rows of a file that fits stay on the device from one pass to the next.

        They are those of the outermost block, and no block beside it sees them.
        """
        outer = _call.get()
        if outer is not None and outer[0] is self:
            yield
            return
        call = (self, object())
        token = _call.set(call)
        try:
            yield
        finally:
            _call.reset(token)
            held = self._held
            if held is not None and held[0][0] is call:
                self._held = None

    def _kept(
        self, source: Source, groups: list[list[Chunk]]
    ) -> Generator[tuple[list[Chunk], Iterable[Batch]]]:
        """`_ahead`, or the same from the device, if the last pass left its rows there.

        Only rows of files are left there, and only within `keeping`.
        """
        call = _call.get()
        if call is None or call[0] is not self or not source.paths:
            yield from self._ahead(source, groups, True)
            return
        identity = source.identity() or {}
        key = [call, identity, groups]
        held, self._held = self._held, None
        if held is not None and held[0] == key:
            yield from held[1]
            self._held = held
            return
        held = None
        n_bytes = 8 * source.n_samples * source.n_features
        fits = "files" in identity and n_bytes <= KEPT_SHARE * self._free_bytes()
        found: list[tuple[list[Chunk], list[Batch]]] = []
        with contextlib.closing(self._ahead(source, groups, True)) as arriving:
            try:
                for group, batches in arriving:
                    if not fits:
                        yield group, batches
                        continue
                    found.append((group, list(batches)))
                    yield found[-1]
            except BaseException:
                found.clear()  # which the traceback holds
                raise
        if fits:
            self._held = key, found

    def _free_bytes(self) -> int:
        """Memory of the device that is not in use."""
        import torch

        free, _ = torch.cuda.mem_get_info(self.device)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(free + cached)

    def _ahead(
        self, source: Source, groups: list[list[Chunk]], joining: bool
    ) -> Generator[tuple[list[Chunk], Iterator[Batch]]]:
        """Each group of chunks with its rows on the device, read and copied ahead of their use.

        Threads read the next parts of chunks into page-locked memory, from where they are copied on
        streams of their own. Batches of a group are joined to larger ones if `joining` is set.
        """
        parts = [
            [part for chunk in group for part in source.split(chunk, SLOT_BYTES)]
            for group in groups
        ]
        n_rows = sum(part.n_rows for each in parts for part in each)
        mean_bytes = 4 * source.n_features * n_rows // max(1, sum(map(len, parts))) or 1
        n_readers = min(READERS, n_threads()) if source.device == "cpu" else 1
        free = self._free_bytes()
        ahead_bytes = min(AHEAD_BYTES, free // 8) if free else AHEAD_BYTES
        n_ahead = min(4 * n_readers, max(1, ahead_bytes // mean_bytes))
        most_rows = max((part.n_rows for each in parts for part in each), default=0)
        slot_bytes = min(SLOT_BYTES, max(1, 8 * source.n_features * most_rows))
        ring = Ring(self._slots(slot_bytes), SLOTS * n_readers)

        def moved(part: Chunk) -> deque[Moved]:
            found: deque[Moved] = deque()
            with ring.slot() as slot:
                for batch in source.raw(part, slot.room):
                    there, copied = self._send(batch.rows, slot)
                    found.append((replace(batch, rows=there), copied))
            return found

        reading = ahead(moved, itertools.chain.from_iterable(parts), n_ahead, n_readers)
        with contextlib.closing(reading):
            for group, each in zip(groups, parts, strict=True):
                n_bytes = 2 * JOINED_BYTES if joining else math.inf if len(each) > 1 else 0
                arriving = itertools.islice(reading, len(each))
                yield group, self._arrived(source, group[0], arriving, n_bytes)

    def _arrived(
        self, source: Source, chunk: Chunk, arriving: Iterator[deque[Moved]], n_bytes: float
    ) -> Iterator[Batch]:
        """Batches that are joined until they take `n_bytes`, and checked on the device."""
        waiting: list[Batch] = []

        def taken() -> Batch:
            batch = joined(waiting)
            waiting.clear()
            return source.checked(chunk, batch)

        try:
            for found in arriving:
                while found:
                    waiting.append(self._receive(*found.popleft()))
                    if sum(batch.rows.nbytes for batch in waiting) >= n_bytes:
                        yield taken()
        except Exception:
            if waiting:  # a bad row that was read before is the first error
                taken()
            raise
        if waiting:
            yield taken()

    def _slots(self, n_bytes: int) -> Callable[[], Slot]:
        """What makes a slot: they take turns on two streams, so that one copy follows another."""
        import torch

        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        streams = itertools.cycle(copying_streams(index))
        return lambda: CudaSlot(next(streams), n_bytes)

    def _send(self, rows: Array, slot: Slot) -> tuple[Array, Any]:
        """Rows that will be on the device, and an event that says when."""
        if not checks.is_tensor(rows):
            return slot.send(rows)
        import torch

        return rows.to(self.device), torch.cuda.current_stream(self.device).record_event()

    def _receive(self, batch: Batch, copied: Any) -> Batch:
        """The batch, which the current stream uses after it has arrived."""
        import torch

        if copied is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(copied)
            batch.rows.record_stream(stream)
        return batch

    def _fetch(self, rows: Array) -> Array:
        """Rows from the device as numpy, through page-locked memory that torch keeps for reuse."""
        import torch

        if not (checks.is_tensor(rows) and rows.is_cuda):
            return rows
        held = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        return held.copy_(rows.detach()).numpy()

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        import torch

        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
