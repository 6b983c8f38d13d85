"""A torch device: each chunk is copied there while the previous one is being computed."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace

from isotropy import checks
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
from isotropy.errors import InputError, MissingExtraError
from isotropy.sources import Batch, Chunk, PartsSink, Sink, Source
from isotropy.stats import Statistic


class Torch(Engine):
    """One torch device. On the CPU it is the local engine, in which numpy reads tensors in place.

    Parameters
    ----------
    device : str
        "cuda", "cuda:1", "cpu", ...; None is CUDA if available.
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
        self.name = f"torch on {self.device}{' in TF32' if tf32 else ''}"

    def reduce(
        self, source: Source, statistics: Sequence[Statistic], saved: PassCheckpoint, report: Report
    ) -> Partial:
        if self.device.type == "cpu":
            return Local().reduce(source, statistics, saved, report)
        saved.n_runs(1)
        chunks = source.chunks()
        partial = saved.load(0, chunks) or fresh(statistics)
        report(sum(chunk.n_rows for chunk in chunks[: partial.n_chunks]))
        with self._precision():
            for batches in self._ahead(source, chunks[partial.n_chunks :]):
                partial.add(batches, report)
                saved.save(0, partial, chunks)
        return partial

    def map(
        self, source: Source, function: RowFunction, sink: Sink | PartsSink, report: Report
    ) -> int:
        if self.device.type == "cpu":
            return Local().map(source, function, sink, report)
        with sink, self._precision():
            n_skipped = sink.n_skipped
            chunks = remaining(source, sink, report)
            for chunk, batches in zip(chunks, self._ahead(source, chunks), strict=True):
                mapped = (replace(batch, rows=function(batch.rows)) for batch in batches)
                n_skipped += write(chunk, mapped, sink, report)
        return n_skipped

    def _ahead(self, source: Source, chunks: list[Chunk]) -> Iterator[Iterator[Batch]]:
        """Each chunk on the device, read and copied while the previous one is in use.

        The reader copies on its own stream, and hands over a chunk once it has arrived.
        """
        import torch

        stream = torch.cuda.Stream(self.device)

        def moved(chunk: Chunk) -> deque[Batch]:
            found: deque[Batch] = deque()
            for batch in source.read(chunk):
                rows = batch.rows
                if not checks.is_tensor(rows):
                    rows = torch.from_numpy(rows if rows.flags.writeable else rows.copy())
                    rows = rows.pin_memory()
                with torch.cuda.stream(stream):  # in parallel with the computation
                    rows = rows.to(self.device, non_blocking=True)
                stream.synchronize()
                found.append(replace(batch, rows=rows))
            return found

        with ThreadPoolExecutor(1) as reader:
            future = None
            for chunk in [*chunks, None]:
                previous = future
                future = chunk and reader.submit(copy_context().run, moved, chunk)
                if previous:
                    batches = previous.result()  # each is freed as soon as it has been used
                    yield (batches.popleft() for _ in range(len(batches)))

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        import torch

        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
