"""How far the metrics of `measure` are from float64 written out, on the benchmarks' rows.

    python benchmarks/accuracy.py [--rows 40000] [--features 768] [--threads 2]

The reference uses float64 throughout, numpy and scipy alone, and all rows at once. Errors are
relative to the largest value of each metric; those of float64 rows are of the same rows in double
precision.
"""

from __future__ import annotations

import argparse

import numpy as np
from make_vectors import vectors
from scipy.special import logsumexp
from timing import add_threads, limit_threads

import isotropy


def reference(X: np.ndarray) -> dict[str, np.ndarray]:
    X = X.astype(np.float64)
    n, d = X.shape
    mean, norms = X.mean(axis=0), np.sqrt((X * X).sum(axis=1))
    covariance = (X - mean).T @ (X - mean) / n
    variances = np.linalg.eigvalsh(covariance)[::-1]
    values, vectors = np.linalg.eigh(X.T @ X)
    scores = X @ vectors[:, ::-1]
    logs = np.concatenate([logsumexp(scores, axis=0), logsumexp(-scores, axis=0)])
    unit_sum = (X / norms[:, None]).sum(axis=0)
    participation = np.trace(covariance) ** 2 / (covariance * covariance).sum()
    return {
        "isoscore": (participation - 1) / (d - 1),
        "participation_ratio": participation,
        "explained_variance": np.cumsum(variances[:3]) / variances.sum(),
        "singular_values": np.sqrt(values[::-1]),
        "mean_cosine": (unit_sum @ unit_sum - n) / (n * (n - 1)),
        "mean_norm_ratio": np.linalg.norm(mean) / norms.mean(),
        "mean_alignment": abs(mean @ vectors[:, -1]) / np.linalg.norm(mean),
        "log_partition_isotropy": logs.min() - logs.max(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--features", type=int, default=768)
    add_threads(parser)
    args = parser.parse_args()
    limit_threads(args.threads)
    X = vectors(args.rows, args.features)
    expected = reference(X)
    print(f"{args.rows:,} x {args.features}, largest relative error")
    for kind in (np.float32, np.float64):
        found = isotropy.measure(X.astype(kind), list(expected))
        for name, value in expected.items():
            error = np.abs(np.asarray(getattr(found, name)) - value).max() / np.abs(value).max()
            print(f"{kind.__name__}  {name:24} {error:.1e}", flush=True)


if __name__ == "__main__":
    main()
