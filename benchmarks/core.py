"""Time and memory of measuring and repairing, against peers and the floor, in one run.

    python benchmarks/core.py [--rows 200000] [--features 768] [--seeds 5] [--threads 2]
        [--skip-slow] [--skip-peers] [--skip-memory] [--memory-threads N] [--profile]

The floor of `measure` is what no exact method can do without: one symmetric product (X'X) and
one product of the same shape (X times a basis), both bare, in float32, into memory that is already
allocated.
Memory is what the peak resident set of a fresh process has beyond its input and imports, once
everything that was freed has been returned to the system; the largest of three.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from make_vectors import vectors, write
from timing import (
    LIMITS,
    add_threads,
    forget_peak,
    limit_threads,
    operations,
    peak_memory,
    profile,
    row,
    seconds,
    target,
)

import isotropy
from isotropy import checks, kmeans, lapack, linalg
from isotropy.engines.base import Partial
from isotropy.kmeans import Points
from isotropy.stats import LogPartition, Moments
from isotropy.stats.moments import RawSums
from isotropy.threads import n_threads, one_blas_thread

FEW_THREADS = 2  # up to which the targets of two cores count, above it those of 16
MANY_ROWS = 2_000_000

OF_MEASURE = {  # what is timed by --profile
    "symmetric products": (linalg, "add_product"),
    "products with the basis": (LogPartition, "_update"),
    "exponentials and their sums": (linalg, "exp_sums"),
    "subtraction of the origin, norms, sums": (linalg, "shifted_sums"),
    "sums of unit rows": (linalg, "unit_sums"),
    "sums about each run's own mean": (RawSums, "fill"),
    "merging the runs": (Partial, "merge"),
    "check for NaN": (checks, "finite"),
    "decompositions": (linalg, "eigh"),
    "rest of both passes": (Partial, "add"),
}
OF_CLUSTERS = {
    "symmetric products": (linalg, "add_product"),
    "subtraction of the origin, norms, sums": (linalg, "shifted_sums"),
    "gathering the rows of a cluster": (linalg, "gathered"),
    "distances to centroids": (linalg, "nearest_about"),
    "sums by cluster": (linalg, "label_sums"),
    "k-means on the sample: starts": (kmeans, "plus_plus"),
    "k-means on the sample: steps": (Points, "_sums_of"),
    "merging": (Moments, "_merge"),
    "directions of clusters": (lapack, "eigh_between"),
    "rest of the passes": (Partial, "add"),
}


def measure_target(n: int) -> float:
    """What `measure` of n rows should take at most, in floors."""
    if n_threads() <= FEW_THREADS:
        return 1.2
    return 1.15 if n >= MANY_ROWS else 1.6


def time_measure(X: np.ndarray, slow: bool, peers: bool) -> None:
    d = X.shape[1]
    basis = np.linalg.qr(np.random.default_rng(1).standard_normal((d, d)))[0].astype(np.float32)
    square = np.empty((d, d), X.dtype)
    symmetric = seconds(lambda: np.matmul(X.T, X, out=square))
    product = seconds(lambda room: np.matmul(X, basis, out=room), room=np.empty_like(X))
    floor = symmetric + product
    row("floor: symmetric product", symmetric)
    row("floor: product", product)

    def of_floor(took: float) -> str:
        ratio = took / floor
        return f"{ratio:.2f} of the floor {target(ratio, measure_target(len(X)))}"

    ours = seconds(lambda: isotropy.measure(X))
    row("isotropy.measure, numpy", ours, note=of_floor(ours))
    score = seconds(lambda: isotropy.metrics.isoscore(X))
    row("isotropy.metrics.isoscore", score)
    try:
        import torch
    except ImportError:
        print("torch is not installed: its row is left out")
    else:
        tensor = torch.from_numpy(X)
        with_torch = seconds(lambda: isotropy.measure(tensor))
        row("isotropy.measure, torch tensor", with_torch, note=of_floor(with_torch))
    if slow:
        start = time.perf_counter()
        for u in basis.T:
            float(np.exp(X @ u).sum())
        loop = time.perf_counter() - start
        note = f"measure is {ours / loop:.2f} of it {target(ours / loop, 0.1)}"
        row("I(W), one matvec per direction", loop, note=note)
    if peers:
        time_peers(X, score)


def time_peers(X: np.ndarray, score: float) -> None:
    from sklearn.decomposition import PCA

    row("scikit-learn PCA().fit", seconds(lambda: PCA().fit(X), 1))
    try:
        from IsoScore.IsoScore import IsoScore
    except ImportError:
        print("IsoScore is not installed: its row is left out")
    else:
        theirs = seconds(lambda: IsoScore(X), 1)
        note = f"ours is {score / theirs:.2f} of it {target(score / theirs, 1)}"
        row("IsoScore 2.0.1 isoscore", theirs, note=note)


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


def time_clusters(X: np.ndarray, n_seeds: int, peers: bool) -> None:
    ours, theirs, our_inertia, their_inertia = [], [], [], []
    for seed in range(n_seeds):
        start = time.perf_counter()
        repair = isotropy.ClusterRemoval(random_state=seed).fit(X)
        repair.transform(X)
        ours.append(time.perf_counter() - start)
        if peers:
            our_inertia.append(inertia(X, repair.cluster_centers_))
            start = time.perf_counter()
            _, found = pipeline(X, seed)
            theirs.append(time.perf_counter() - start)
            their_inertia.append(found)
    took = np.mean(ours)
    timed = n_threads() > FEW_THREADS and len(X) < MANY_ROWS
    note = target(took, 1.5) if timed else ""
    row(f"ClusterRemoval(27, 12) fit + transform, {n_seeds} seeds", took, note=note)
    if peers:
        row("scikit-learn KMeans + PCA per cluster", np.mean(theirs))
        ratio = took / np.mean(theirs)
        row("  time, ours over theirs", ratio, "", target(ratio, 1))
        ratio = np.mean(our_inertia) / np.mean(their_inertia)
        row("  inertia, ours over theirs", ratio, "", target(ratio, 1.005))


def show_parts(X: np.ndarray) -> None:
    """Where the time of one more `measure`, fit and transform goes."""
    print("isotropy.measure, its passes")
    profile(lambda: isotropy.measure(X))
    products = (X.T @ X).astype(np.float64)
    with one_blas_thread():
        row("  bare decomposition, one thread", seconds(lambda: np.linalg.eigh(products)))
    print("isotropy.measure, core seconds by operation")
    operations(lambda: isotropy.measure(X), OF_MEASURE)
    print("ClusterRemoval(27, 12), its passes")
    fitted: list[isotropy.ClusterRemoval] = []
    profile(lambda: fitted.append(isotropy.ClusterRemoval(random_state=0).fit(X)))
    row("  transform", seconds(lambda: fitted[0].transform(X), 1))
    print("ClusterRemoval(27, 12).fit, core seconds by operation")
    operations(lambda: isotropy.ClusterRemoval(random_state=0).fit(X), OF_CLUSTERS)


def memory(task: str, path: Path, threads: int) -> float:
    """MB that three fresh processes take at most for the task on a file's rows, beyond them."""
    command = [sys.executable, __file__, "--memory-of", task, "--rows-of", str(path)]
    command += ["--memory-threads", str(threads)]
    environment = os.environ | dict.fromkeys(LIMITS, str(threads))
    options = {"check": True, "capture_output": True, "text": True, "env": environment}
    return max(float(subprocess.run(command, **options).stdout.split()[-1]) for _ in range(3))


def run_memory(task: str, path: str, threads: int) -> None:
    os.sched_getaffinity = lambda process: set(range(threads))  # which share the cores there are
    X = np.load(path)  # made elsewhere: what made it leaves free memory behind, to be used again
    isotropy.measure(X[:100])  # imports what is loaded on first use: that is not the task's memory
    isotropy.ClusterRemoval(1, 1).fit(X[:100])
    before = forget_peak()
    if task == "measure":
        isotropy.measure(X)
    else:
        isotropy.ClusterRemoval().fit(X)
    print(peak_memory() - before)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000, help="default: 200,000")
    parser.add_argument("--features", type=int, default=768, help="default: 768")
    parser.add_argument("--seeds", type=int, default=5, help="of the clusterings (default: 5)")
    parser.add_argument("--skip-slow", action="store_true", help="leave out the matvec loop")
    parser.add_argument(
        "--skip-peers", action="store_true", help="leave out scikit-learn and IsoScore"
    )
    parser.add_argument("--skip-memory", action="store_true", help="leave out the memory lines")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    add_threads(parser)
    parser.add_argument("--memory-of", choices=("measure", "cluster-fit"), help=argparse.SUPPRESS)
    parser.add_argument("--rows-of", help=argparse.SUPPRESS)
    parser.add_argument(
        "--memory-threads", type=int, help="threads for the memory lines (default: --threads)"
    )
    args = parser.parse_args()
    limit_threads(args.threads)
    if args.memory_of:
        run_memory(args.memory_of, args.rows_of, args.memory_threads)
        return
    print(
        f"{args.rows:,} x {args.features} float32, {n_threads()} threads, "
        f"numpy {np.__version__}, {platform.machine()}"
    )
    X = vectors(args.rows, args.features)
    time_measure(X, not args.skip_slow, not args.skip_peers)
    time_clusters(X, args.seeds, not args.skip_peers)
    if args.profile:
        show_parts(X)
    del X
    if args.skip_memory:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        write(path, args.rows, args.features)
        for task, most in (("measure", 300), ("cluster-fit", 600)):
            taken = memory(task, path, args.memory_threads or n_threads())
            row(f"memory of {task}, beyond the input", taken, "MB", target(taken, most))


if __name__ == "__main__":
    main()
