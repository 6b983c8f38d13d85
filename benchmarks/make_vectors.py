"""Write a large file of float32 vectors from a seed.

    python benchmarks/make_vectors.py OUT.npy [--rows 10000000] [--features 256] [--parquet DIR]

With --parquet, the same rows are written again as 16 Parquet files into DIR.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from isotropy.sources import open as open_source
from isotropy.sources import open_sink

BLOCK = 10_000


def fill(X: np.ndarray, seed: int = 0) -> np.ndarray:
    """Fill X with drifted, anisotropic rows in 40 clusters.

    Each block has a generator of its own, so any thread can make it.
    """
    n, d = X.shape
    random = np.random.default_rng(seed)
    spectrum = (np.arange(1, d + 1) ** -0.4).astype(np.float32)
    centers = random.standard_normal((40, d), dtype=np.float32) * spectrum
    drift = 0.5 * random.standard_normal(d, dtype=np.float32)

    def make(start: int) -> None:
        random, rows = np.random.default_rng([seed, start]), X[start : start + BLOCK]
        random.standard_normal(dtype=np.float32, out=rows)
        rows *= spectrum
        rows += centers[random.integers(40, size=len(rows))]
        rows += drift

    with ThreadPoolExecutor() as threads:
        list(threads.map(make, range(0, n, BLOCK)))
    return X


def vectors(n: int, d: int) -> np.ndarray:
    """The rows in memory."""
    return fill(np.empty((n, d), dtype=np.float32))


def write(path: Path, n: int, d: int) -> None:
    """The rows as one .npy file."""
    fill(np.lib.format.open_memmap(path, "w+", np.float32, (n, d))).flush()


def write_parts(source: Path, folder: Path, n_parts: int = 16) -> None:
    """The rows of a .npy file as Parquet files of equal size."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.load(source, mmap_mode="r")
    bounds = [len(rows) * i // n_parts for i in range(n_parts + 1)]
    for i in range(n_parts):
        with open_sink(folder / f"part-{i:02d}.parquet", rows.shape[1], "float32") as sink:
            for start in range(bounds[i], bounds[i + 1], BLOCK):
                sink.write(np.array(rows[start : min(start + BLOCK, bounds[i + 1])]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--parquet", type=Path)
    args = parser.parse_args()
    write(args.out, args.rows, args.features)
    if args.parquet:
        write_parts(args.out, args.parquet)
    source = open_source(args.out)
    print(f"{args.out}: {source.n_samples:,} x {source.n_features} {source.dtype}")


if __name__ == "__main__":
    main()
