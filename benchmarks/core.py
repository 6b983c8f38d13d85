"""Time and memory of measuring and repairing, against peers and the floor, in one run.

    python benchmarks/core.py [--rows 200000] [--features 768] [--seeds 5] [--skip-slow]

The floor of `measure` is what no exact method can do without: one symmetric product (X'X) and
one product of the same shape (X times a basis), both bare, in float32, into memory that is there.
Memory is the growth of the peak resident set in a fresh process, beyond the input.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import isotropy


def vectors(n: int, d: int) -> np.ndarray:
    """Drifted, anisotropic float32 rows in 40 clusters, made in blocks from seed 0."""
    random = np.random.default_rng(0)
    spectrum = (np.arange(1, d + 1) ** -0.4).astype(np.float32)
    centers = random.standard_normal((40, d), dtype=np.float32) * spectrum
    drift = 0.5 * random.standard_normal(d, dtype=np.float32)
    X = np.empty((n, d), dtype=np.float32)
    for start in range(0, n, 10_000):
        part = X[start : start + 10_000]
        random.standard_normal(dtype=np.float32, out=part)
        part *= spectrum
        part += centers[random.integers(40, size=len(part))] + drift
    return X


def seconds(function, repeat: int = 3, **arguments) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        function(**arguments)
        best = min(best, time.perf_counter() - start)
    return best


def row(name: str, value: float, unit: str = "s", note: str = "") -> None:
    print(f"{name:58} {value:10.3f} {unit:3} {note}", flush=True)


def time_measure(X: np.ndarray, slow: bool) -> None:
    d = X.shape[1]
    basis = np.linalg.qr(np.random.default_rng(1).standard_normal((d, d)))[0].astype(np.float32)
    symmetric = seconds(lambda: X.T @ X)
    product = seconds(lambda room: np.matmul(X, basis, out=room), room=np.empty_like(X))
    floor = symmetric + product
    row("floor: symmetric product", symmetric)
    row("floor: product", product)
    ours = seconds(lambda: isotropy.measure(X))
    row("isotropy.measure, numpy", ours, note=f"{ours / floor:.2f} of the floor (target 1.8)")
    score = seconds(lambda: isotropy.metrics.isoscore(X))
    row("isotropy.metrics.isoscore", score)
    try:
        import torch
        from IsoScore.IsoScore import IsoScore
    except ImportError:
        print("torch or IsoScore is not installed: their rows are left out")
    else:
        tensor = torch.from_numpy(X)
        with_torch = seconds(lambda: isotropy.measure(tensor))
        row(
            "isotropy.measure, torch tensor",
            with_torch,
            note=f"{with_torch / floor:.2f} of the floor (target 1.5)",
        )
        theirs = seconds(lambda: IsoScore(X), 1)
        row("IsoScore 2.0.1 isoscore", theirs, note=f"{theirs / score:.1f} times ours (target > 1)")
    if slow:
        start = time.perf_counter()
        for u in basis.T:
            float(np.exp(X @ u).sum())
        loop = time.perf_counter() - start
        row(
            "I(W), one matvec per direction",
            loop,
            note=f"{loop / ours:.1f} times measure (target 10)",
        )
    from sklearn.decomposition import PCA

    row("scikit-learn PCA().fit", seconds(lambda: PCA().fit(X), 1))


def pipeline(X: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    """scikit-learn's KMeans and a PCA per cluster: the peer of ClusterRemoval."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    kmeans = KMeans(27, random_state=seed).fit(X)
    out = np.empty_like(X)
    for cluster in range(27):
        members = kmeans.labels_ == cluster
        pca = PCA(12).fit(X[members])
        centred = X[members] - pca.mean_
        out[members] = centred - (centred @ pca.components_.T) @ pca.components_
    return out, float(kmeans.inertia_)


def inertia(X: np.ndarray, centers: np.ndarray) -> float:
    from isotropy.engines import reduce
    from isotropy.sources import ArraySource
    from isotropy.stats import ClusterSums

    (sums,) = reduce(ArraySource(X), [ClusterSums(centers)]).states
    return sums.inertia


def time_clusters(X: np.ndarray, n_seeds: int) -> None:
    ours, theirs, our_inertia, their_inertia = [], [], [], []
    for seed in range(n_seeds):
        start = time.perf_counter()
        repair = isotropy.ClusterRemoval(random_state=seed).fit(X)
        repair.transform(X)
        ours.append(time.perf_counter() - start)
        our_inertia.append(inertia(X, repair.cluster_centers_))
        start = time.perf_counter()
        _, found = pipeline(X, seed)
        theirs.append(time.perf_counter() - start)
        their_inertia.append(found)
    row(f"ClusterRemoval(27, 12) fit + transform, {n_seeds} seeds", np.mean(ours))
    row("scikit-learn KMeans + PCA per cluster", np.mean(theirs))
    row("  time, ours over theirs", np.mean(ours) / np.mean(theirs), "", "(target < 1)")
    ratio = np.mean(our_inertia) / np.mean(their_inertia)
    row("  inertia, ours over theirs", ratio, "", "(target <= 1.005)")


def memory(task: str, n: int, d: int) -> float:
    """MB by which the peak of a fresh process grows over its input during the task."""
    done = subprocess.run(
        [sys.executable, __file__, "--memory-of", task, "--rows", str(n), "--features", str(d)],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def run_memory(task: str, n: int, d: int) -> None:
    X = vectors(n, d)
    isotropy.measure(X[:100])  # imports what is loaded on first use: that is not the task's memory
    isotropy.ClusterRemoval(1, 1).fit(X[:100])
    before = peak_memory()
    if task == "measure":
        isotropy.measure(X)
    else:
        isotropy.ClusterRemoval().fit(X)
    print(json.dumps(peak_memory() - before))


def peak_memory() -> float:
    """Peak resident set of this process in MB (of Linux: getrusage would count the parent's)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--features", type=int, default=768)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--skip-slow", action="store_true", help="leave out the matvec loop")
    parser.add_argument("--memory-of", choices=("measure", "cluster-fit"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        run_memory(args.memory_of, args.rows, args.features)
        return
    print(f"{args.rows:,} x {args.features} float32, numpy {np.__version__}, {platform.machine()}")
    X = vectors(args.rows, args.features)
    time_measure(X, not args.skip_slow)
    time_clusters(X, args.seeds)
    del X
    for task, target in (("measure", 300), ("cluster-fit", 600)):
        grown = memory(task, args.rows, args.features)
        row(f"memory of {task}, beyond the input", grown, "MB", f"(target < {target})")


if __name__ == "__main__":
    main()
