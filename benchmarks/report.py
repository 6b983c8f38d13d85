"""Size, memory and time of the report's page as the rows grow.

    python benchmarks/report.py --work DIR [--rows 2000 200000 2000000] [--features 384]

Each page is made by `isotropy report` in a process of its own, from a .npy file as
make_vectors.py writes it; --work needs room for the largest of them.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from isotropy._version import __version__

MEGABYTE = 1_000_000
MAKE_VECTORS = Path(__file__).with_name("make_vectors.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", required=True, help="folder for files and pages")
    parser.add_argument("--rows", type=int, nargs="*", default=[2_000, 200_000, 2_000_000])
    parser.add_argument("--features", type=int, default=384)
    parser.add_argument("--out", default="results/report.md")
    options = parser.parse_args()
    work = Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    lines = [
        "# The page as the rows grow",
        "",
        f"`python benchmarks/report.py`: isotropy {__version__}, {os.cpu_count()} cores, "
        f"{platform.machine()}; float32 rows of {options.features} dimensions, seed 0, one repair "
        "(Center).",
        "",
        "| rows | file, MB | page, MB | peak memory, MB | seconds |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for n in options.rows:
        path = work / f"{n}.npy"
        make = [sys.executable, MAKE_VECTORS, path, "--rows", str(n)]
        make += ["--features", str(options.features)]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
        page, memory, seconds = reported(path, work)
        size = path.stat().st_size / MEGABYTE
        lines.append(f"| {n:,} | {size:,.0f} | {page:.2f} | {memory:,.0f} | {seconds:.0f} |")
        print(lines[-1], flush=True)
        path.unlink()
    Path(options.out).write_text("\n".join(lines) + "\n", encoding="utf-8")


def reported(path: Path, work: Path) -> tuple[float, float, float]:
    """Size of the page in MB, peak memory in MB, and seconds.

    The peak that the system gives is at least the size of this process when it starts the other.
    """
    repair, page = work / "repair.safetensors", work / "page.html"
    isotropy = [sys.executable, "-m", "isotropy"]
    fit = [*isotropy, "repair", path, "--method", "center", "--save", repair, "--overwrite"]
    subprocess.run(fit, check=True, stdout=subprocess.DEVNULL)
    begun = time.perf_counter()
    line = [*isotropy, "report", path, "--repair", repair, "--out", page, "--overwrite"]
    made = subprocess.Popen(line)
    _, status, usage = os.wait4(made.pid, 0)
    seconds = time.perf_counter() - begun
    if status:
        sys.exit(f"the page of {path} could not be made")
    return page.stat().st_size / MEGABYTE, usage.ru_maxrss * 1024 / MEGABYTE, seconds


if __name__ == "__main__":
    main()
