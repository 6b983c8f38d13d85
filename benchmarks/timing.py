"""What the benchmarks share: threads, times, memory, and lines that say whether a target is met."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads", type=int, help="threads of BLAS and engines (default: all cores)"
    )


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


def profile(function, wait=lambda: None) -> None:
    """Print where a call spends its time: passes over rows in memory, and what is beside them.

    `wait` returns when the device has done its work.
    """
    from isotropy.engines import using
    from isotropy.engines.local import Local

    took: dict[str, list[float]] = {}

    class Timed(Local):
        def reduce(self, source, statistics, saved, report):
            start = time.perf_counter()
            found = super().reduce(source, statistics, saved, report)
            wait()
            names = ", ".join(type(statistic).__name__ for statistic in statistics)
            took.setdefault(names, []).append(time.perf_counter() - start)
            return found

    with using(Timed()):
        whole = seconds(function, 1)
    for names, times in took.items():
        row(f"  {len(times)} x {names}", sum(times))
    row("  beside these passes", whole - sum(map(sum, took.values())), note=f"of {whole:.3f} s")


def operations(function, places: dict[str, tuple[Any, str]]) -> None:
    """Print core seconds by operation, in all threads: `places` has functions by what they do.

    What an operation spends in another one counts there only. Cores that wait are what is left.
    """
    from isotropy.threads import n_threads

    took: dict[str, float] = dict.fromkeys(places, 0.0)
    inner, lock = threading.local(), threading.Lock()

    def timed(name, original):
        @functools.wraps(original)
        def run(*args, **options):
            outside, inner.seconds = getattr(inner, "seconds", 0.0), 0.0
            start = time.thread_time()
            try:
                return original(*args, **options)
            finally:
                whole = time.thread_time() - start
                with lock:
                    took[name] += whole - inner.seconds
                inner.seconds = outside + whole

        return run

    with contextlib.ExitStack() as patched:
        for name, (owner, attribute) in places.items():
            run = timed(name, getattr(owner, attribute))
            patched.enter_context(mock.patch.object(owner, attribute, run))
        cpu, start = time.process_time(), time.perf_counter()
        function()
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    for name, spent in sorted(took.items(), key=lambda item: -item[1]):
        row(f"  {name}", spent)
    row("  all else", cpu - sum(took.values()))
    row("  cores that wait", n_threads() * wall - cpu, note=f"of {n_threads()} x {wall:.3f} s")


def peak_memory() -> float:
    """Peak resident set of this process in MB (of Linux: getrusage would count the parent's)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1e6


def forget_peak() -> float:
    """Return what was freed to the system, let the peak begin anew, and give it, in MB."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()


def row(name: str, value: float, unit: str = "s", note: str = "") -> None:
    print(f"{name:58} {value:10.3f} {unit:3} {note}".rstrip(), flush=True)


def target(value: float, limit: float, least: bool = False) -> str:
    """What a value should be at most, or at least, and whether it is."""
    met = value >= limit if least else value <= limit
    return f"(target {limit:g}: {'met' if met else 'not met'})"
