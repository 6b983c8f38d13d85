"""Cost of each regulariser per training step, against its naive form, in one run.

    python benchmarks/train.py [--repeat 3] [--device cuda] [--threads N] [--skip-naive] [--out F]

A step is the value and its gradient. Sizes: the output embeddings of a BERT (30,522 x 768) and
batches of 32 x 768 and 4,096 x 768, all float32. Naive forms: the n x n cosines, the singular
values by a full SVD in single and in double precision, and for IsoScore the published package.
Each time is the best of a few, naive and ours taking turns, so that what else the machine does
meets both. The floor of spectrum control is what no exact form does without: half of W'W and a
product of W with a matrix, both bare in float32 by the faster of torch's libraries, and one
decomposition in float64.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

import isotropy
from isotropy.losses import FlowNetwork, IsoBatchNorm, functional

SIZES = ((30_522, 768), (32, 768), (4_096, 768))
TARGETS = {("mean_cosine", 30_522): 50, ("spectrum_penalty", 30_522): 5}

Loss = Callable[[torch.Tensor], torch.Tensor]


def rows(n: int, d: int) -> torch.Tensor:
    """Drifted, anisotropic rows from seed 0."""
    random = torch.Generator().manual_seed(0)
    spectrum = torch.arange(1, d + 1) ** -0.4
    return torch.randn(n, d, generator=random) * spectrum + 0.1


def pairwise_cosine(X: torch.Tensor) -> torch.Tensor:
    unit = torch.nn.functional.normalize(X)
    cosines = unit @ unit.T
    n = len(X)
    return (cosines.sum() - cosines.diagonal().sum()) / (n * (n - 1))


def full_svd(X: torch.Tensor) -> torch.Tensor:
    singular = torch.linalg.svd(X, full_matrices=False).S
    ranks = torch.arange(1, len(singular) + 1, device=X.device)
    return ((singular - ranks**-0.5) ** 2).sum()


def losses(d: int, device: torch.device) -> dict[str, tuple[Loss, Loss | None]]:
    from IsoScore.IsoScore import istar

    known = torch.eye(d, device=device)
    flow, norm = FlowNetwork(d).to(device), IsoBatchNorm(d).to(device)
    return {
        "mean_cosine": (functional.mean_cosine, pairwise_cosine),
        "spectrum_penalty": (
            lambda X: functional.spectrum_penalty(X, c1=1.0, gamma=-0.5),
            full_svd,
        ),
        "spectrum_penalty, naive in float64": (
            lambda X: functional.spectrum_penalty(X, c1=1.0, gamma=-0.5),
            lambda X: full_svd(X.double()),
        ),
        "isoscore": (
            functional.isoscore,
            lambda X: istar().IsoScore_star(X, known, 0.0, is_eval=False),
        ),
        "isoscore_star": (
            lambda X: functional.isoscore_star(X, known, 0.2),
            lambda X: istar().IsoScore_star(X, known, 0.2, is_eval=False),
        ),
        "log_partition": (lambda X: functional.log_partition(X).logsumexp(dim=(0, 1)), None),
        "IsoBatchNorm": (lambda X: norm(X).square().mean(), None),
        "Flow": (lambda X: -flow.log_prob(X).mean(), None),
    }


def step(loss: Loss, X: torch.Tensor) -> tuple[float, float, torch.Tensor]:
    """(seconds, value, gradient) of one step."""
    X = X.clone().requires_grad_()
    start = now(X.device)
    value = loss(X)
    value.backward()
    return now(X.device) - start, value.item(), X.grad


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def measured(name: str, ours: Loss, naive: Loss | None, X: torch.Tensor, repeat: int) -> str:
    """The row of one regulariser on one matrix."""
    best, peer, error = float("inf"), float("inf"), 0.0
    for _ in range(repeat):
        seconds, value, gradient = step(ours, X)
        best = min(best, seconds)
        if naive is None:
            continue
        seconds, other, expected = step(naive, X)
        peer = min(peer, seconds)
        error = float((gradient - expected).norm() / expected.norm())
        error = max(error, abs(value - other) / abs(other))
    n, d = X.shape
    cells = [f"{n:,} x {d}", name, milliseconds(best)]
    if naive is not None:
        target = TARGETS.get((name, n))
        wanted = f" (target {target})" if target else ""
        cells += [milliseconds(peer), f"{peer / best:.1f}{wanted}", f"{error:.0e}"]
    else:
        cells += ["", "", ""]
    return "| " + " | ".join(cells) + " |"


def bare_spectrum(X: torch.Tensor, repeat: int) -> str:
    """The row of the floor of spectrum control."""
    n, d = X.shape
    matrix = torch.randn(d, d, device=X.device)
    gram, columns = (X.T @ X).double(), X.T.contiguous()

    def seconds(A: torch.Tensor, B: torch.Tensor) -> float:
        works = [lambda: A @ B.T]
        if functional.ONEDNN is not None and X.device.type == "cpu":
            works.append(lambda: functional.ONEDNN(A, B, None, "none", [], ""))
        return min(least(work, X.device, repeat) for work in works)

    half, product = seconds(columns, columns) / 2, seconds(X, matrix)
    decomposition = least(lambda: torch.linalg.eigh(gram), X.device, repeat)
    parts = " + ".join(map(milliseconds, (half, product, decomposition)))
    whole = milliseconds(half + product + decomposition)
    return f"| {n:,} x {d} | floor of spectrum_penalty: {parts} | {whole} |  |  |  |"


def least(work: Callable[[], object], device: torch.device, repeat: int) -> float:
    """Seconds of the fastest of a few calls."""
    found = []
    for _ in range(repeat):
        start = now(device)
        work()
        found.append(now(device) - start)
    return min(found)


def machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads, {platform.machine()}"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="times each is run at full size")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--threads", type=int, help="torch's; by default all cores")
    parser.add_argument("--skip-naive", action="store_true")
    parser.add_argument("--out", type=Path, help="file for the table, as Markdown")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    head = (
        f"torch {torch.__version__}, isotropy {isotropy.__version__}, {machine(args.device)}; "
        f"float32; best of {args.repeat}, of "
        f"{5 * args.repeat} for batches"
    )
    lines = [
        "| matrix | regulariser | ms a step | naive, ms | naive over ours | difference |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    print("\n".join([head, *lines]), flush=True)
    for n, d in SIZES:
        X = rows(n, d).to(args.device)
        for name, (ours, naive) in losses(d, args.device).items():
            if n == SIZES[0][0] and name in ("IsoBatchNorm", "Flow"):
                continue  # these are for batches
            repeat = args.repeat if n == SIZES[0][0] else 5 * args.repeat
            lines.append(measured(name, ours, None if args.skip_naive else naive, X, repeat))
            print(lines[-1], flush=True)
            if name == "spectrum_penalty" and n == SIZES[0][0]:
                lines.append(bare_spectrum(X, repeat))
                print(lines[-1], flush=True)
    if args.out:
        command = f"python benchmarks/train.py --device {args.device} --repeat {args.repeat}"
        if args.threads:
            command += f" --threads {args.threads}"
        text = f"# Cost of the regularisers\n\n`{command}`: {head}.\n\n" + "\n".join(lines)
        args.out.write_text(f"{text}\n\n{READING}\n")


READING = """A step is the value and its gradient. Naive forms: the n x n cosines, the singular
values by a full SVD (in float32 and in float64), and for IsoScore the published package (2.0.1).
The difference is the larger of those of value and gradient, both relative."""


if __name__ == "__main__":
    main()
