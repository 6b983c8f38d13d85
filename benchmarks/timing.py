"""What the benchmarks share: threads, times, memory, and lines that say whether a target is met."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path

LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, help="threads of BLAS and engines; all cores")


def limit_threads(n: int | None) -> None:
    """Start this script again with n threads: BLAS takes the limit when it is loaded."""
    if n is not None and any(os.environ.get(name) != str(n) for name in LIMITS):
        os.environ.update(dict.fromkeys(LIMITS, str(n)))
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def seconds(function, repeat: int = 3, **arguments) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        function(**arguments)
        best = min(best, time.perf_counter() - start)
    return best


def peak_memory() -> float:
    """Peak resident set of this process in MB (of Linux: getrusage would count the parent's)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1e6


def row(name: str, value: float, unit: str = "s", note: str = "") -> None:
    print(f"{name:58} {value:10.3f} {unit:3} {note}", flush=True)


def target(value: float, most: float) -> str:
    """The most that a value should be, and whether it is."""
    return f"(target {most:g}: {'met' if value <= most else 'not met'})"
