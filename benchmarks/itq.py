"""Is a sample of the rows enough to learn a rotation for bits?

    python benchmarks/itq.py VECTORS.npy [--rows N ...] [--samples N ...] [--skip-all]

Rotate(max_samples=N) is fitted on the first rows of a file, each time in a process of its own, and
the sum of |Z R|, which ITQ makes as large as it can, is taken over all these rows. The table has
its ratio to the fit on all rows (at most 50 steps each), and the memory that the fit took. With
--skip-all there is no such fit: it shows how the memory of a sample depends on the rows.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from timing import peak_memory

from isotropy.repairs import Rotate

BLOCK = 8192


def learned(path: Path, max_samples: int) -> tuple[np.ndarray, float]:
    """The rotation, and the megabytes by which the process grew."""
    start = peak_memory()
    rotation = Rotate(max_samples=max_samples).fit(path).rotation_
    return rotation, peak_memory() - start


def objective(path: Path, rotation: np.ndarray) -> float:
    X = np.load(path, mmap_mode="r")
    mean, R = X.mean(axis=0, dtype=float).astype(X.dtype), rotation.astype(X.dtype)
    blocks = (X[start : start + BLOCK] - mean for start in range(0, len(X), BLOCK))
    return sum(float(np.abs(block @ R).sum(dtype=float)) for block in blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vectors")
    parser.add_argument("--rows", type=int, nargs="*", help="of the file (default: all)")
    parser.add_argument("--samples", type=int, nargs="*", default=[20_000, 100_000])
    parser.add_argument("--skip-all", action="store_true", help="learn on samples only")
    options = parser.parse_args()
    X = np.load(options.vectors, mmap_mode="r")
    print(f"{Path(options.vectors).name}, {X.shape[1]} dimensions\n")
    print("| rows | learned on | objective / that of all rows | MB |")
    print("| ---: | ---: | ---: | ---: |")
    for n_rows in options.rows or [len(X)]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "rows.npy")
            np.save(path, X[:n_rows])
            found = {}
            samples = [n for n in options.samples if n < n_rows]
            for n in samples if options.skip_all else [n_rows, *samples]:
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    rotation, memory = pool.submit(learned, path, n).result()
                ratio = ""
                if not options.skip_all:
                    found[n] = objective(path, rotation)
                    ratio = f"{found[n] / found[n_rows]:.5f}"
                print(f"| {n_rows:,} | {n:,} | {ratio} | {memory:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
