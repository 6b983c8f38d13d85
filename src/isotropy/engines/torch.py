"""A torch device: chunks are copied there while the one before is computed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from isotropy import checks
from isotropy.engines.base import Partial, Pass, Report, Rows, fresh
from isotropy.engines.local import Local
from isotropy.errors import InputError, MissingExtraError
from isotropy.sources import Batch, Chunk, PartsSink, Sink, Source


class OnDevice:
    """Another source's rows on a device."""

    def __init__(self, source: Source, device: Any, stream: Any) -> None:
        self.source = source
        self.place = device
        self.device = str(device)
        self.n_features = source.n_features
        self.n_samples = source.n_samples
        self.stream = stream

    def chunks(self) -> list[Chunk]:
        return self.source.chunks()

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        import torch

        for batch in self.source.read(chunk):
            rows = batch.rows
            if not checks.is_tensor(rows):
                rows = torch.from_numpy(rows if rows.flags.writeable else rows.copy()).pin_memory()
            with torch.cuda.stream(self.stream):  # beside what is computed at the same time
                moved = rows.to(self.place, non_blocking=True)
            self.stream.synchronize()
            yield replace(batch, rows=moved)


class Torch:
    """One torch device; the CPU is the local engine, whose numpy views tensors as they are.

    Parameters
    ----------
    device : str
        "cuda", "cuda:1", "cpu", ...; None takes CUDA where there is one.
    tf32 : bool
        Let matrix products of float32 rows use TF32, which is faster and keeps 10 bits of the
        mantissa: on one set of rows metrics then differed from the CPU's by up to 1.3e-4.
    """

    in_process = True

    @property
    def name(self) -> str:
        """Tells apart, for checkpoints, what gives other digits."""
        return f"torch on {self.device}{' in TF32' if self.tf32 else ''}"

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

    def reduce(
        self, source: Source, statistics: Sequence[Any], kept: Pass, report: Report
    ) -> Partial:
        if self.device.type == "cpu":
            return Local().reduce(source, statistics, kept, report)
        kept.n_runs(1)
        chunks = source.chunks()
        partial = kept.load(0, chunks) or fresh(statistics)
        report(sum(chunk.n_rows for chunk in chunks[: partial.n_chunks]))
        with self._precision():
            for ready in self._ahead(source, chunks[partial.n_chunks :]):
                partial.add(ready, ready.chunk, report)
                kept.save(0, partial, chunks)
        return partial

    def map(self, source: Source, function: Rows, sink: Sink | PartsSink, report: Report) -> int:
        if self.device.type == "cpu":
            return Local().map(source, function, sink, report)
        n_skipped = 0
        with sink, self._precision():
            for ready in self._ahead(source, source.chunks()):
                for batch in ready.read(ready.chunk):
                    sink.write(function(batch.rows), batch.carried)
                    n_skipped += batch.n_skipped
                    report(batch.rows.shape[0] + batch.n_skipped)
        return n_skipped

    def check(self, sink: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def _ahead(self, source: Source, chunks: list[Chunk]) -> Iterator[ReadChunk]:
        """Each chunk on the device, read and copied while the one before is in use.

        The reader copies on a stream of its own and hands a chunk on when it is there.
        """
        import torch

        moved = OnDevice(source, self.device, torch.cuda.Stream(self.device))
        with ThreadPoolExecutor(1) as reader:
            future = None
            for chunk in [*chunks, None]:
                previous = future
                future = chunk and reader.submit(ReadChunk, moved, chunk)
                if previous:
                    yield previous.result()

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        import torch

        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


class ReadChunk(OnDevice):
    """The batches of one chunk, already read."""

    def __init__(self, source: OnDevice, chunk: Chunk) -> None:
        super().__init__(source.source, source.place, source.stream)
        self.chunk = chunk
        self.batches = list(source.read(chunk))

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        while self.batches:  # each is let go as soon as it was used
            yield self.batches.pop(0)
