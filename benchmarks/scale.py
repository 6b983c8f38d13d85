"""Engines over files against the floor, memory against rows, and what applying a repair costs.

    python benchmarks/scale.py [--folder DIR] [--bytes 2e9] [--rows 10000000] [--threads 2]
        [--parts ...] [--engines ...] [--widths ...] [--workers 2] [--repeats 3]

One run prints ratios taken in it. Files are made in DIR from a seed and removed at the end. The
floor is that of benchmarks/core.py: a bare symmetric product and a bare product, for as many rows.
Engines take turns, and the best time of each counts.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from make_vectors import write
from timing import add_threads, limit_threads, row, seconds, target

import isotropy
from isotropy.engines import named
from isotropy.threads import n_threads

PARTS = ("engines", "memory", "apply", "single")
ENGINES = ("local", "torch", "dask")
FEW_THREADS = 2  # up to which the target of two cores counts, above it that of 16
LARGE = 1.6e10  # bytes from which starting and ending a pass on a cluster should not show


def floor(n: int, d: int) -> float:
    """Seconds of both bare products for n rows, measured on as many as fit 600 MB."""
    n_here = min(n, int(6e8) // (4 * d))
    random = np.random.default_rng(0)
    X = random.standard_normal((n_here, d), dtype=np.float32)
    basis = np.linalg.qr(random.standard_normal((d, d)))[0].astype(np.float32)
    room = np.empty_like(X)
    both = seconds(lambda: X.T @ X) + seconds(lambda room: np.matmul(X, basis, out=room), room=room)
    return both * n / n_here


def time_engines(folder: Path, n_bytes: float, names, widths, n_workers, repeats: int) -> None:
    of_floor = 1.2 if n_threads() <= FEW_THREADS else 1.5
    of_local = 1.15 if n_bytes >= LARGE else 1.3
    for d in widths:
        n = int(n_bytes) // (4 * d)
        path = folder / f"vectors-{d}.npy"
        write(path, n, d)
        bare = floor(n, d)
        row(f"d = {d}: floor for {n:,} rows", bare)
        took = dict.fromkeys(names, float("inf"))
        with contextlib.ExitStack() as opened:
            engines = {}
            for name in names:  # a cluster's start is not its throughput
                options = {"n_workers": n_workers} if name == "dask" else {}
                engines[name] = named(name, **options)
                opened.callback(engines[name].close)
                isotropy.measure(isotropy.open(path), ["mean_cosine"], engine=engines[name])
            for _ in range(repeats):
                for name, engine in engines.items():
                    once = seconds(measured, 1, path=path, engine=engine)
                    took[name] = min(took[name], once)
        for name in names:
            ratio = took[name] / bare
            note = f"{ratio:.2f} of the floor"
            if name == "local":
                note += f" {target(ratio, of_floor)}"
            if name == "dask" and "local" in took:
                ratio = took[name] / took["local"]
                note += f", {ratio:.2f} of local {target(ratio, of_local)}"
            note += f", {n / took[name]:,.0f} rows/s"
            row(f"d = {d}: measure, engine {name}", took[name], note=note)
        path.unlink()


def measured(path: Path, engine) -> isotropy.Geometry:
    return isotropy.measure(isotropy.open(path), engine=engine)


def time_memory(folder: Path, n_most: int) -> None:
    n = 100_000
    while n <= n_most:
        path = folder / "vectors.npy"
        write(path, n, 256)
        code = (
            "import sys; from isotropy.cli import app; "
            "app(['measure', sys.argv[1], '--json'], standalone_mode=False); "
            "print(open('/proc/self/status').read(), file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
        )
        peak = 1024 * int(re.search(r"VmHWM:\s+(\d+)", done.stderr)[1]) / 1e6
        row(f"peak memory of isotropy measure, {n:,} x 256", peak, "MB", target(peak, 1200))
        path.unlink()
        n *= 10


def time_apply(folder: Path, n_bytes: float) -> None:
    d = 768
    path, fixed, copied = (folder / f"{name}.npy" for name in ("vectors", "fixed", "copied"))
    write(path, int(n_bytes) // (4 * d), d)
    source = isotropy.open(path)
    X = np.load(path, mmap_mode="r")[: int(3e8) // (4 * d)].copy()
    A = np.eye(d, dtype=np.float32)
    room = np.empty_like(X)
    product = seconds(lambda: np.matmul(X, A, out=room)) * source.n_samples / len(X)
    copy = seconds(lambda: (shutil.copyfile(path, copied), sync(copied)))
    copied.unlink()
    row(f"copy of {source.n_samples:,} x {d} float32, synced", copy)
    for repair, bare, most in (
        (isotropy.Whiten(), copy + product, 1.3),
        (isotropy.Center(), copy, 2.0),
        (isotropy.AllButTheTop(), copy, 2.0),
    ):
        repair.fit(X)
        took = seconds(lambda repair=repair: repair.transform(source, out=fixed, overwrite=True))
        what = "copy" if bare == copy else "copy and product"
        note = f"{took / bare:.2f} of {what} {target(took / bare, most)}"
        row(f"apply {repair.name}", took, note=note)
        fixed.unlink()


def sync(path: Path) -> None:
    import os

    with open(path, "rb") as file:
        os.fsync(file.fileno())


def time_single() -> None:
    from sklearn.preprocessing import StandardScaler

    X = np.random.default_rng(0).standard_normal((20_000, 768), dtype=np.float32)
    one = X[:1]
    scaler = StandardScaler().fit(X)

    def micro(repair) -> float:
        return 1e6 * seconds(lambda: [repair.transform(one) for _ in range(300)], 7) / 300

    theirs = micro(scaler)
    row("one row of 768: StandardScaler.transform", theirs, "us")
    for repair in (
        isotropy.Center(),
        isotropy.ScaledCenter(),
        isotropy.Standardize(),
        isotropy.AllButTheTop(),
        isotropy.Whiten(),
        isotropy.ClusterRemoval(),
    ):
        ours = micro(repair.fit(X))
        most = 3 if repair.name == "cluster-removal" else 2
        note = f"{ours / theirs:.2f} of StandardScaler {target(ours / theirs, most)}"
        row(f"one row of 768: {repair.name}", ours, "us", note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where files are made; a temporary one")
    parser.add_argument("--bytes", type=float, default=2e9, help="size of each file")
    parser.add_argument("--rows", type=int, default=10_000_000, help="most rows for memory")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--widths", nargs="+", type=int, default=(256, 768, 1536))
    parser.add_argument("--workers", type=int, help="processes of the Dask engine; --threads")
    parser.add_argument("--repeats", type=int, default=3, help="times that each engine is timed")
    add_threads(parser)
    args = parser.parse_args()
    limit_threads(args.threads)
    print(f"files of {args.bytes / 1e9:g} GB, {n_threads()} threads", flush=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        if "engines" in args.parts:
            names = [name for name in ENGINES if name in args.engines]
            options = (names, args.widths, args.workers, args.repeats)
            time_engines(Path(folder), args.bytes, *options)
        if "memory" in args.parts:
            time_memory(Path(folder), args.rows)
        if "apply" in args.parts:
            time_apply(Path(folder), args.bytes)
        if "single" in args.parts:
            time_single()


if __name__ == "__main__":
    main()
