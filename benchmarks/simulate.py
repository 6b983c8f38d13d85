"""What 1,000,000,000 vectors would take on a cluster: the real Dask graph, with sleeps for chunks.

    python benchmarks/simulate.py [--rows 1e9] [--features 768] [--workers 4 16 64]
        [--seconds 300] [--busy 16] [--dollars 0.05] [--folder DIR]
    python benchmarks/simulate.py --check [--bytes 4e9] [--check-workers 4]

First both passes of `measure` are timed on chunks of true size, in one process with one thread, and
in as many such processes at the same time as --busy says, because the cores of a machine share its
memory. Then the Dask engine runs both passes over a source of so many rows: its own graph, a real
scheduler, a process per worker, states of true size that are packed, sent and merged. Only the
reading and adding up of chunks is replaced: each run of chunks sleeps for as long as that takes on
a busy core. Sleeps are divided by a factor, so that a simulation takes --seconds at most.

What is not sleep is neither divided nor multiplied: the time beyond the sleeps counts as it was
measured. Tasks, merges and bytes are as many as in the whole job, only closer together, so this
errs on the slow side. All workers share the cores of one machine here; what they compute is only
to pack, send and merge states, and the last columns tell how busy that keeps the machine.

--check makes a file, measures it with real workers, and compares with a simulation at factor 1.
Chunks are timed again for each simulation, so that both are of the same minute.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import heapq
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from make_vectors import write
from timing import limit_threads, target

import isotropy
from isotropy.engines import Engine, named
from isotropy.engines.base import PassCheckpoint, fresh, runs
from isotropy.metrics import SAMPLE_ROWS
from isotropy.sources import Batch, Source
from isotropy.sources.base import balanced_rows, even_chunks
from isotropy.stats import Sample, Statistic
from isotropy.stats.sample import NO_LIMIT

TIMED = "timed.npy"
TIMED_CHUNKS = 12
AGREED = 0.15  # by which a simulation may differ from a real run


@dataclass
class Pass:
    """One pass of `measure`: its statistics, and seconds per row."""

    statistics: list[Statistic]
    seconds_per_row: float


class Clocked(Engine):
    """Reads and adds up chunks one after the other, and keeps how long that takes."""

    name = "clocked"

    def __init__(self) -> None:
        self.passes: list[Pass] = []

    def reduce(self, source, statistics, saved, report):
        partial = fresh(statistics)
        chunks = source.chunks()
        partial.add(source.read(chunks[0]), report)  # the first one makes room
        start = time.perf_counter()
        for chunk in chunks[1:]:
            partial.add(source.read(chunk), report)
        took = time.perf_counter() - start
        n_rows = source.n_samples - chunks[0].n_rows
        self.passes.append(Pass(list(statistics), took / n_rows))
        return partial

    def map(self, source, function, sink, report):
        raise NotImplementedError


def clocked(path: Path, chunk_rows: int) -> tuple[list[Pass], float]:
    """The passes of `measure`, and the seconds that it takes beside them."""
    engine = Clocked()
    source = isotropy.open(path, chunk_rows=chunk_rows)
    start = time.perf_counter()
    isotropy.measure(source, engine=engine)
    took = time.perf_counter() - start
    in_passes = sum(part.seconds_per_row for part in engine.passes) * source.n_samples
    return engine.passes, max(0.0, took - in_passes)


def clocked_together(path: Path, chunk_rows: int, n: int) -> list[float]:
    """Seconds per row of each pass, if n processes do the same at the same time."""
    command = [sys.executable, __file__, "--clock", str(path), "--chunk-rows", str(chunk_rows)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(n)]
    found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]
    return [float(seconds) for seconds in np.mean(found, axis=0)]


def cut(n: int, d: int):
    """The chunks of a file of n rows of width d, in runs."""
    return runs(even_chunks(n, balanced_rows(n, d)), d)


def run_seconds(part: Pass, n: int, d: int) -> list[float]:
    """What each run takes on a busy core."""
    return [part.seconds_per_row * sum(chunk.n_rows for chunk in run) for run in cut(n, d)]


class Sleeping(Source):
    """Rows that are never read: the first chunk of a run sleeps for all of them.

    It then gives a few rows, which make states of true size.
    """

    def __init__(self, n_samples: int, n_features: int, seconds_per_row: float) -> None:
        self.n_samples, self.n_features = n_samples, n_features
        self.seconds_per_row = seconds_per_row
        self.n_sampled = -(-SAMPLE_ROWS // len(cut(n_samples, n_features)))

    def chunks(self):
        found = []
        for first, *others in cut(self.n_samples, self.n_features):
            n_rows = first.n_rows + sum(chunk.n_rows for chunk in others)
            found += [dataclasses.replace(first, place=(n_rows,)), *others]
        return found

    def read(self, chunk):
        (n_rows,) = chunk.place or (0,)
        time.sleep(n_rows * self.seconds_per_row)
        n_given = self.n_sampled if n_rows else 0
        random = np.random.default_rng(chunk.first_row)
        yield Batch(
            chunk.first_row, random.standard_normal((n_given, self.n_features), dtype=np.float32)
        )


@dataclass
class Simulated:
    """What one pass took, in seconds, tasks and bytes; `busy` is the sleep of the last worker."""

    factor: float
    wall: float
    total: float  # of all sleeps, undivided
    busy: float
    n_tasks: int
    n_bytes: int
    state_bytes: float  # of a run
    merging: float  # seconds of all merges on workers
    sending: float  # seconds for which tasks waited for states
    cpu_here: float  # of this process: scheduler, client and the last merges
    cpu_workers: float

    @property
    def beyond(self) -> float:
        """Seconds beyond the sleeps."""
        return self.wall - self.busy / self.factor


def last_worker(lengths: list[float], n_workers: int) -> float:
    """When the last of n workers is done, if each takes the next run as soon as it is free."""
    ends = [0.0] * n_workers
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def worked(dask_worker) -> tuple[float, int]:
    """On a worker: its CPU seconds so far, and the bytes that it has sent."""
    return sum(os.times()[:2]), dask_worker.transfer_outgoing_bytes_total


def counted(engine) -> tuple[float, float, int]:
    found = engine.client.run(worked).values()
    return sum(os.times()[:2]), sum(cpu for cpu, _ in found), sum(sent for _, sent in found)


def simulated(engine, part: Pass, n: int, d: int, n_workers: int, factor: float) -> Simulated:
    """One pass over n rows of width d, on workers that sleep."""
    source = Sleeping(n, d, part.seconds_per_row / factor)
    lengths = run_seconds(part, n, d)
    statistics = [
        Sample(s.size, s.seed, NO_LIMIT) if isinstance(s, Sample) else s for s in part.statistics
    ]
    before, first = counted(engine), time.time()
    engine.client.get_task_stream()  # from here on, tasks are kept
    start = time.perf_counter()
    engine.reduce(source, statistics, PassCheckpoint(), lambda n_rows: None)
    wall = time.perf_counter() - start
    tasks = engine.client.get_task_stream(start=first)
    after = counted(engine)
    return Simulated(
        factor,
        wall,
        sum(lengths),
        last_worker(lengths, n_workers),
        len(tasks),
        after[2] - before[2],
        float(np.mean([task["nbytes"] for task in tasks if str(task["key"]).startswith("run_")])),
        spent(tasks, "compute", "merged_states"),
        spent(tasks, "transfer", "merged_states"),
        after[0] - before[0],
        after[1] - before[1],
    )


def spent(tasks, action: str, function: str) -> float:
    """Seconds that tasks of a function spent in an action."""
    return sum(
        step["stop"] - step["start"]
        for task in tasks
        if str(task["key"]).startswith(function)
        for step in task["startstops"]
        if step["action"] == action
    )


HEADER = (
    "workers", "factor", "hours", "reading and computing", "idle at the end of a pass",
    "scheduler, merges, transfers", "the same, s", "tasks", "tasks/s", "tasks/s simulated",
    "MB of a state", "GB sent", "s in merges", "s waiting for states", "CPU s of scheduler, client",
    "cores used here", "dollars", "bottleneck",
)  # fmt: skip


def line(parts: list[Simulated], beside: float, n_workers: int, dollars: float) -> list[str]:
    """The cells of a line of the table."""

    def total(name: str) -> float:
        return sum(getattr(part, name) for part in parts)

    each, beyond, wall = total("total") / n_workers, total("beyond"), total("wall")
    whole = total("busy") + beyond + beside
    shares = {
        "reading and computing": each / whole,
        "idle workers at the end of a pass": (total("busy") - each) / whole,
        "scheduler, merges and transfers": beyond / whole,
    }
    cpu = (total("cpu_here") + total("cpu_workers")) / wall / len(os.sched_getaffinity(0))
    return [
        str(n_workers),
        f"{parts[0].factor:.0f}",
        f"{whole / 3600:.2f}",
        *(f"{100 * share:.1f} %" for share in shares.values()),
        f"{beyond:.1f}",
        f"{total('n_tasks'):.0f}",
        f"{total('n_tasks') / whole:.1f}",
        f"{total('n_tasks') / wall:.1f}",
        ", ".join(f"{part.state_bytes / 1e6:.2f}" for part in parts),
        f"{total('n_bytes') / 1e9:.2f}",
        f"{total('merging'):.1f}",
        f"{total('sending'):.1f}",
        f"{total('cpu_here'):.1f}",
        f"{100 * cpu:.0f} %",
        f"{n_workers * whole / 3600 * dollars:.2f}",
        max(shares, key=lambda name: shares[name]),
    ]


def prepared(folder: Path, n: int, d: int, n_busy: int) -> tuple[list[Pass], float]:
    """The passes of `measure` on chunks as those of n rows, with the times of a busy machine."""
    chunk_rows = balanced_rows(n, d)
    path = folder / TIMED
    write(path, TIMED_CHUNKS * chunk_rows, d)
    passes, beside = clocked(path, chunk_rows)
    together = clocked_together(path, chunk_rows, n_busy)
    n_runs = len(cut(n, d))
    print(f"{n:,} x {d} float32, in chunks of {chunk_rows:,} rows and {n_runs} runs", flush=True)
    for i, (part, seconds) in enumerate(zip(passes, together, strict=True), 1):
        names = ", ".join(type(statistic).__name__ for statistic in part.statistics)
        alone, busy = (1e3 * chunk_rows * each for each in (part.seconds_per_row, seconds))
        times = f"{alone:.0f} ms per chunk alone, {busy:.0f} ms in each of {n_busy} processes"
        print(f"pass {i} ({names}): {times}", flush=True)
        part.seconds_per_row = seconds
    print(f"beside the passes: {beside:.2f} s", flush=True)
    return passes, beside


@contextlib.contextmanager
def cluster(n_workers: int):
    engine = named("dask", n_workers=n_workers)
    try:
        engine.client.wait_for_workers(n_workers)
        isotropy.measure(isotropy.open(np.eye(8), chunk_rows=1), ["mean_cosine"], engine=engine)
        engine.client.run(imported)
        yield engine
    finally:
        engine.close()


def imported() -> None:
    """On a worker: load what it needs before anything is timed."""
    import isotropy.engines.dask  # noqa: F401


def extrapolate(args, folder: Path) -> None:
    n, d = int(args.rows), args.features
    passes, beside = prepared(folder, n, d, args.busy)
    print("\n| " + " | ".join(HEADER) + " |")
    print("| " + " | ".join(["---:"] * (len(HEADER) - 1)) + " | --- |", flush=True)
    notes = []
    for n_workers in args.workers:
        lengths = [run_seconds(part, n, d) for part in passes]
        asleep = sum(last_worker(each, n_workers) for each in lengths)
        factor = max(1.0, np.ceil(asleep / args.seconds))
        with cluster(n_workers) as engine:
            found = [simulated(engine, part, n, d, n_workers, factor) for part in passes]
        print("| " + " | ".join(line(found, beside, n_workers, args.dollars)) + " |", flush=True)
        n_tasks = sum(part.n_tasks for part in found)
        here = sum(part.cpu_here for part in found) / n_tasks
        per_task = sum(map(sum, lengths)) / n_tasks
        notes.append(
            f"- {n_workers} workers: scheduler and client used {1e3 * here:.1f} ms of CPU per "
            f"task, and a task stands for {per_task:.1f} s of a worker. One core is full of them "
            f"at {per_task / here:,.0f} workers."
        )
    print("\n" + "\n".join(notes))
    print(f"- A pass has {len(cut(n, d))} runs: more workers than that have nothing to do.")


def check(args, folder: Path) -> None:
    d, n_workers = args.features, args.check_workers
    n = int(args.bytes) // (4 * d)
    passes, beside = prepared(folder, n, d, n_workers)
    path = folder / "vectors.npy"
    write(path, n, d)
    real, pretended = [], []
    with cluster(n_workers) as engine:
        isotropy.measure(isotropy.open(path), ["mean_cosine"], engine=engine)  # file in cache
        for _ in range(args.repeats):
            start = time.perf_counter()
            isotropy.measure(isotropy.open(path), engine=engine)
            real.append(time.perf_counter() - start)
            timed = clocked_together(folder / TIMED, balanced_rows(n, d), n_workers)
            for part, seconds in zip(passes, timed, strict=True):
                part.seconds_per_row = seconds
            found = [simulated(engine, part, n, d, n_workers, 1.0) for part in passes]
            pretended.append(sum(part.wall for part in found) + beside)
    ratio = np.median(pretended) / np.median(real)
    for name, times in (("real", real), ("simulated", pretended)):
        print(f"{name} with {n_workers} workers: {', '.join(f'{t:.2f}' for t in times)} s")
    verdict = target(abs(ratio - 1), AGREED)
    print(f"simulated over real, medians: {ratio:.3f}; differs by {abs(ratio - 1):.3f} {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=float, default=1e9)
    parser.add_argument("--features", type=int, default=768)
    parser.add_argument("--workers", type=int, nargs="+", default=(4, 16, 64))
    parser.add_argument("--seconds", type=float, default=300, help="longest sleep of a simulation")
    parser.add_argument("--busy", type=int, help="processes that are timed together; all cores")
    parser.add_argument("--dollars", type=float, default=0.05, help="assumed, per worker and hour")
    parser.add_argument("--folder", type=Path, help="where files are made; a temporary one")
    parser.add_argument("--check", action="store_true", help="compare with a real run")
    parser.add_argument("--bytes", type=float, default=4e9, help="size of the file of --check")
    parser.add_argument("--check-workers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3, help="times of --check")
    parser.add_argument("--clock", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--chunk-rows", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    limit_threads(1)
    args.busy = args.busy or len(os.sched_getaffinity(0))
    if args.clock:
        passes, _ = clocked(args.clock, args.chunk_rows)
        print(json.dumps([part.seconds_per_row for part in passes]))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        (check if args.check else extrapolate)(args, Path(folder))


if __name__ == "__main__":
    main()
