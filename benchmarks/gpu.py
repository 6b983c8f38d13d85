"""measure and ClusterRemoval of rows held on a GPU, against bare products there, and of files.

    python benchmarks/gpu.py [--rows 4000000] [--features 768] [--threads 16] [--profile]
        [--parts measure clusters compare files] [--file-bytes 4e9] [--folder /tmp]

The floor of `measure` is a bare float32 symmetric product plus a bare product on the device. Every
time is the best of four, for clusters of two, with the device synchronised. `compare` compares the
device's numbers with the CPU's on the first rows. `files` measures a .npy file in the page cache;
its floor is the slower of bare reads, by as many threads, and of bare copies of page-locked memory
to the device. Its rate is what is read of the file per second. A file that fits is read in the
first pass and stays on the device for the others; the rate is taken with that and without.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import timing
import torch
from timing import add_threads, limit_threads, target

import isotropy
from isotropy.engines import reduce, using
from isotropy.engines import torch as torch_engine
from isotropy.engines.torch import READERS, Torch
from isotropy.sources import ArraySource
from isotropy.stats import ClusterSums, Statistic
from isotropy.threads import n_threads

COMPARED = 200_000
READ_BYTES = 1 << 24  # at once by bare reads: larger ones are slower
PARTS = ("measure", "clusters", "compare", "files")


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
    ratio = ours / floor
    row("isotropy.measure", ours, note=f"{ratio:.2f} of the floor {target(ratio, 1.25)}")
    fast = seconds(lambda: isotropy.measure(X, engine=Torch("cuda", tf32=True)))
    row("isotropy.measure, TF32", fast, note=f"{fast / floor:.2f} of the floor")


def time_clusters(X: torch.Tensor) -> None:
    fitted = []
    fit = seconds(lambda: fitted.append(isotropy.ClusterRemoval().fit(X)), 1)
    row("ClusterRemoval(27, 12).fit", fit, note=target(fit, 0.5))
    transform = seconds(lambda: fitted[0].transform(X), 1)
    row("ClusterRemoval(27, 12).transform", transform, note=target(transform, 0.12))


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


def write_file(path: str, n: int, d: int) -> None:
    """n rows like those of `vectors`, through the device in parts."""
    file = np.lib.format.open_memmap(path, "w+", np.float32, (n, d))
    part = vectors(min(n, 1_000_000), d)
    for start in range(0, n, len(part)):
        rows = part[: n - start]
        file[start : start + len(rows)] = rows.cpu().numpy()
    file.flush()


def bare_reads(path: str) -> None:
    """Read the file once, with as many threads as the engine has."""
    size = os.path.getsize(path)
    readers = min(READERS, n_threads())
    parts = np.arange(0, size + READ_BYTES, READ_BYTES).clip(max=size)
    buffers = [np.zeros(READ_BYTES, np.uint8) for _ in range(readers)]

    def follow(reader: int) -> None:
        with open(path, "rb", buffering=0) as file:
            for i in range(reader, len(parts) - 1, readers):
                file.seek(parts[i])
                view = buffers[reader][: parts[i + 1] - parts[i]].data
                while view:
                    view = view[file.readinto(view) :]

    with ThreadPoolExecutor(readers) as threads:
        list(threads.map(follow, range(readers)))


def bare_copies(n_bytes: int, pinned: torch.Tensor, there: torch.Tensor) -> None:
    for _ in range(-(-n_bytes // len(pinned))):
        there.copy_(pinned, non_blocking=True)


class Nothing(Statistic):
    """Takes rows and keeps none."""

    fields = {}

    def _update(self, X: torch.Tensor, w: object, first_row: object) -> None:
        pass


class Passes:
    """Counts the passes over the rows."""

    def __init__(self) -> None:
        self.n = 0

    def begin(self, n_rows: int) -> None:
        self.n += 1

    def advance(self, n_rows: int) -> None:
        pass


def time_files(n_bytes: int, d: int, folder: str) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        path = os.path.join(inner, "rows.npy")
        write_file(path, n_bytes // (4 * d), d)
        n_bytes = os.path.getsize(path)
        print(f"file of {n_bytes / 1e9:.1f} GB, {min(READERS, n_threads())} readers")
        pinned = torch.ones(1 << 26, dtype=torch.uint8).pin_memory()
        there = torch.empty_like(pinned, device="cuda")
        read = n_bytes / seconds(lambda: bare_reads(path)) / 1e9
        copy = n_bytes / seconds(lambda: bare_copies(n_bytes, pinned, there)) / 1e9
        floor = min(read, copy)
        row("bare read from the page cache", read, "GB/s")
        row("bare copy to the device", copy, "GB/s")
        engine, passes = Torch("cuda"), Passes()
        alone = seconds(lambda: pass_over(path, [Nothing()], engine))
        row("one pass that computes nothing", n_bytes / alone / 1e9, "GB/s")
        with using(engine, progress=passes):
            isotropy.measure(path)
        share, ways = torch_engine.KEPT_SHARE, [(f"read {passes.n} times", 0.0, passes.n)]
        if 2 * n_bytes <= share * torch.cuda.mem_get_info()[0]:
            ways.insert(0, ("read once and kept", share, 1))
        for name, torch_engine.KEPT_SHARE, n_read in ways:
            took = seconds(lambda: isotropy.measure(path, engine=engine))
            rate = n_read * n_bytes / took / 1e9
            note = f"{rate / floor:.2f} of the slower {target(rate / floor, 0.8, least=True)}"
            row(f"isotropy.measure, {name}: {took:.3f} s", rate, "GB/s", note)
        torch_engine.KEPT_SHARE = share


def pass_over(path: str, statistics: list[Statistic], engine: Torch) -> None:
    with using(engine):
        reduce(isotropy.open(path), statistics)


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
    print("ClusterRemoval(27, 12).fit, its passes")
    isotropy.ClusterRemoval().fit(X)
    timing.profile(lambda: isotropy.ClusterRemoval().fit(X), torch.cuda.synchronize)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--features", type=int, default=768)
    add_threads(parser)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--file-bytes", type=float, default=4e9)
    parser.add_argument("--folder", help="where the file is written; default: the system's")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu.py needs a CUDA device, and there is none.")
    limit_threads(args.threads)
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, {n_threads()} threads")
    if args.profile or set(args.parts) - {"files"}:
        X = vectors(args.rows, args.features)
        print(f"{args.rows:,} x {args.features} float32")
    if "measure" in args.parts:
        time_measure(X)
    if args.profile:
        profile(X)
    if "clusters" in args.parts:
        time_clusters(X)
    if "compare" in args.parts:
        compare(X)
    if "files" in args.parts:
        time_files(int(args.file_bytes), args.features, args.folder)


if __name__ == "__main__":
    main()
