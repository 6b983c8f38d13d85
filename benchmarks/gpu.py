"""measure and ClusterRemoval of rows held on a GPU, against bare products there.

    python benchmarks/gpu.py [--rows 4000000] [--features 768] [--profile]

The floor is a bare float32 symmetric product plus a bare product on the device. Every time is the
best of three after a warm-up, with the device synchronised. The last part compares the device's
numbers with the CPU's on the first rows.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

import isotropy
from isotropy.engines import reduce
from isotropy.engines.torch import Torch
from isotropy.sources import ArraySource
from isotropy.stats import ClusterSums

COMPARED = 200_000


def vectors(n: int, d: int) -> torch.Tensor:
    """Drifted, anisotropic rows in 40 clusters, on the device."""
    random = torch.Generator("cuda").manual_seed(0)
    options = {"generator": random, "device": "cuda"}
    spectrum = torch.arange(1, d + 1, device="cuda") ** -0.4
    centers = torch.randn(40, d, **options) * spectrum
    drift = 0.5 * torch.randn(d, **options)
    X = torch.empty(n, d, device="cuda")
    for part in X.split(500_000):
        part.normal_(generator=random).mul_(spectrum).add_(drift)
        part += centers[torch.randint(40, (len(part),), **options)]
    return X


def seconds(function, repeat: int = 3) -> float:
    best = float("inf")
    for _ in range(repeat + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        took = time.perf_counter() - start
        best = min(best, took)
    return best


def row(name: str, value: float, unit: str = "s", note: str = "") -> None:
    print(f"{name:58} {value:10.4f} {unit:3} {note}", flush=True)


def time_measure(X: torch.Tensor) -> None:
    d = X.shape[1]
    basis = torch.linalg.qr(torch.randn(d, d, device="cuda"))[0]
    room = torch.empty_like(X)
    symmetric = seconds(lambda: X.T @ X)
    product = seconds(lambda room=room: torch.matmul(X, basis, out=room))
    copy = seconds(lambda room=room: room.copy_(X))
    del room
    floor = symmetric + product
    row("floor: symmetric product, float32", symmetric)
    row("floor: product, float32", product)
    row("copy of the rows on the device", copy)
    ours = seconds(lambda: isotropy.measure(X))
    row("isotropy.measure", ours, note=f"{ours / floor:.2f} of the floor (target 1.3)")
    fast = seconds(lambda: isotropy.measure(X, engine=Torch("cuda", tf32=True)))
    row("isotropy.measure, TF32", fast, note=f"{fast / floor:.2f} of the floor")


def time_clusters(X: torch.Tensor) -> None:
    fitted = []
    fit = seconds(lambda: fitted.append(isotropy.ClusterRemoval().fit(X)), 1)
    row("ClusterRemoval(27, 12).fit", fit)
    row("ClusterRemoval(27, 12).transform", seconds(lambda: fitted[0].transform(X), 1))


def flat(geometry: isotropy.Geometry) -> dict[str, np.ndarray]:
    values = {k: v for k, v in geometry.values.items() if k not in ("norms", "rogue_dimensions")}
    return {name: np.atleast_1d(np.asarray(value)) for name, value in values.items()}


def compare(X: torch.Tensor) -> None:
    part = X[:COMPARED]
    here = part.cpu().numpy()
    expected = flat(isotropy.measure(here))
    for title, engine in (("float32", None), ("TF32", Torch("cuda", tf32=True))):
        found = flat(isotropy.measure(part, engine=engine))
        errors = {
            name: np.max(
                np.abs(found[name] - expected[name]) / np.maximum(1e-3, np.abs(expected[name]))
            )
            for name in expected
        }
        worst = max(errors, key=errors.get)
        note = f"at most, of {worst}"
        print(f"{'relative difference from the CPU, ' + title:58} {errors[worst]:10.1e}     {note}")
    inertias = []
    for rows in (here, part):
        repair = isotropy.ClusterRemoval().fit(rows)
        (sums,) = reduce(ArraySource(here), [ClusterSums(repair.cluster_centers_)]).states
        inertias.append(sums.inertia)
    row(
        "inertia on the device over the CPU's", inertias[1] / inertias[0], "", "(target 1 +- 0.001)"
    )


def profile(X: torch.Tensor) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    isotropy.measure(X)
    with profiled(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        isotropy.measure(X)
        torch.cuda.synchronize()
    print(
        found.key_averages().table(
            sort_by="cuda_time_total", row_limit=22, max_name_column_width=60
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--features", type=int, default=768)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu.py needs a CUDA device, and there is none.")
    X = vectors(args.rows, args.features)
    name = torch.cuda.get_device_name()
    print(f"{args.rows:,} x {args.features} float32 on {name}, torch {torch.__version__}")
    time_measure(X)
    if args.profile:
        profile(X)
    time_clusters(X)
    compare(X)


if __name__ == "__main__":
    main()
