"""The trial: every model, task, method and seed is one run, recorded in its own file."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from isotropy import checks
from isotropy.errors import InputError, reason
from isotropy.sources import guard, output_path
from isotropy.tables import finite
from isotropy.trial.methods import method_of, searched_specs
from isotropy.trial.run import run
from isotropy.trial.settings import Job, settings_for
from isotropy.trial.summary import RunRecord
from isotropy.trial.task_data import task_spec
from isotropy.writing import atomic_write, quoted, write_errors

Cell = tuple[str, str, str]  # model, task and method
SEARCHED_SHARE = 0.2  # of the training items, on which options are chosen


@dataclass(frozen=True)
class Trial:
    """Every method on every task with every model, for several seeds."""

    tasks: Sequence[str]
    models: Sequence[str]
    methods: Sequence[str]  # specs for `method_of`
    out: str | os.PathLike[str]  # folder of the records; runs with a record are not repeated
    n_seeds: int = 3  # from 0; all runs with one seed come before those with the next
    search: bool = False  # choose missing weights of regularisers on a fifth of the training items
    data: str | os.PathLike[str] | None = None  # folder with a folder per task, before the hub
    folder: str | os.PathLike[str] | None = None  # in which models are looked up before the hub
    device: str | None = None  # by default "cuda" if there is a GPU
    jobs: int = 1  # runs at a time, each in its own process
    settings: dict[str, Any] = field(default_factory=dict)  # for `settings_for`
    overwrite: bool = False  # repeat runs that have a record, and replace it

    def __post_init__(self) -> None:
        inputs = {"--model": list(self.models), "--data": self.data, "--models": self.folder}
        guard({}, inputs, kept={"--out": self.out})
        object.__setattr__(self, "out", output_path(self.out, "--out"))
        if os.path.exists(self.out) and not os.path.isdir(self.out):
            raise InputError(f"--out must be a folder, got the file {quoted(self.out)}.")
        checks.integer(self.n_seeds, "seeds", 1)
        checks.integer(self.jobs, "jobs", 1)
        names = [Path(model).name for model in self.models]
        for model, name in zip(self.models, names, strict=True):
            if names.count(name) > 1:
                raise InputError(
                    "models must differ in the last part of their names, by which records are "
                    f"kept, got {model!r} and another {name!r}. Run them with two --out."
                )
        for task in self.tasks:
            task_spec(task)
        for method in self.methods:
            method_of(method)

    def run(self, tell: Callable[[RunRecord], None] = lambda record: None) -> list[RunRecord]:
        """The records of all runs, after running those without one; `tell` gets each new record."""
        chosen: dict[Cell, str] = {}
        if self.search:
            if not self.overwrite:
                self._expect_searched()
            self._complete(self._searches(), tell)
            chosen = self._chosen()
        jobs = self._jobs(chosen)
        self._complete(jobs, tell)
        return [record for job in jobs if (record := self._kept(job)) is not None]

    def _expect_searched(self) -> None:
        """Raise before the search if there is a record of a run made without one."""
        for job in self._jobs({}):
            path, specs = self._path(job), searched_specs(job.method)
            if specs and path.is_file() and read(path)["spec"] not in specs:
                self._kept(replace(job, spec=specs[0]))

    def _complete(self, jobs: Sequence[Job], tell: Callable[[RunRecord], None]) -> None:
        """Run the jobs that have no record yet, and keep their records."""
        missing = [job for job in jobs if self._to_do(job)]
        with write_errors(self.out):
            Path(self.out).mkdir(parents=True, exist_ok=True)
        failed = []
        for job, found in _results(missing, min(self.jobs, len(missing))):
            if isinstance(found, Exception):
                failed.append(f"{self._path(job).stem}: {reason(found).splitlines()[0]}")
                continue
            keep(self._path(job), found)
            tell(found)
        if failed:
            raise InputError(
                f"{len(failed)} of {len(missing)} runs failed; the others are kept. The first "
                f"failure was {failed[0]}"
            )

    def _to_do(self, job: Job) -> bool:
        """Whether a job is to be run: it has no record, or the record is to be replaced."""
        if not self.overwrite:
            return self._kept(job) is None
        if self._path(job).is_file():
            read(self._path(job))  # raises if the file is not a record
        return True

    def _grid(self) -> list[Cell]:
        return [(m, t, method) for m in self.models for t in self.tasks for method in self.methods]

    def _jobs(self, chosen: dict[Cell, str]) -> list[Job]:
        return [
            self._job(*cell, chosen.get(cell, cell[2]), seed)
            for seed in range(self.n_seeds)
            for cell in self._grid()
        ]

    def _searches(self) -> list[Job]:
        return [
            self._job(model, task, spec, spec, 0, SEARCHED_SHARE)
            for model, task, method in self._grid()
            for spec in searched_specs(method)
        ]

    def _chosen(self) -> dict[Cell, str]:
        """The spec of each method with the best score in the search, the first among equals."""
        found = {}
        for model, task, method in self._grid():
            scores = {}
            for spec in searched_specs(method):
                record = self._kept(self._job(model, task, spec, spec, 0, SEARCHED_SHARE))
                score = math.nan if record is None else record["score"]
                scores[spec] = -math.inf if math.isnan(score) else score
            if scores:
                found[model, task, method] = max(scores, key=scores.__getitem__)
        return found

    def _job(
        self, model: str, task: str, method: str, spec: str, seed: int, search: float = 0.0
    ) -> Job:
        local = None if self.folder is None else Path(self.folder) / model
        name = str(local) if local is not None and os.path.isdir(local) else model
        settings = settings_for(task, model, **self.settings)
        data = None if self.data is None else str(self.data)
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        return Job(task, name, method, spec, seed, settings, data, device, search)

    def _path(self, job: Job) -> Path:
        parts = (Path(job.model).name, job.task, job.method, f"seed{job.seed}")
        name = "--".join(re.sub(r"[^\w.=-]+", "_", part) for part in parts)
        return Path(self.out) / f"{'search--' if job.search else ''}{name}.json"

    def _kept(self, job: Job) -> RunRecord | None:
        """The record of a job, or None; raises if the file is the record of another job."""
        path = self._path(job)
        if not path.is_file():
            return None
        record = read(path)
        for name, wanted in job.identity().items():
            if record.get(name) != wanted:
                raise _other_run(path, _apart(record.get(name), wanted))
        changed = [
            name for name, now in job.inputs().items() if record.get(name) not in (None, now)
        ]
        if changed:
            raise _other_run(path, f"other {' and '.join(changed)}")
        return record


def _other_run(path: Path, what: str) -> InputError:
    return InputError(
        f"{str(path)!r} records a run with {what}. Choose another --out, or add --overwrite."
    )


def _apart(found: Any, wanted: Any) -> str:
    """How what is recorded differs from what is wanted."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        names = [name for name in wanted if found.get(name) != wanted[name]]
        return ", ".join(f"{name} {found.get(name)} (now {wanted[name]})" for name in names)
    return f"{found} (now {wanted})"


def _results(jobs: Sequence[Job], n_at_once: int) -> Iterable[tuple[Job, RunRecord | Exception]]:
    """Each job as it ends, with its record or the exception that ended it."""
    if n_at_once <= 1:
        for job in jobs:
            yield job, _tried(job)
        return
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // n_at_once)
    with ProcessPoolExecutor(n_at_once, context, _start, (threads,)) as pool:
        running = {pool.submit(_tried, job): job for job in jobs}
        try:
            for future in as_completed(running):
                try:
                    yield running[future], future.result()
                except BrokenProcessPool as error:  # a process was killed
                    yield running[future], error
        except (SystemExit, KeyboardInterrupt):  # don't wait for runs that are to be stopped
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _tried(job: Job) -> RunRecord | Exception:
    """The record of a job, or an error that other jobs may not have; other errors are raised."""
    try:
        return run(job)
    except (RuntimeError, MemoryError) as error:  # such as a device that is out of memory
        return error


def _start(n_threads: int) -> None:
    torch.set_num_threads(n_threads)
    threadpool_limits(n_threads)


def keep(path: Path, record: RunRecord) -> None:
    """Write the record completely or not at all; null stands for values that are not finite."""
    with write_errors(path), atomic_write(path) as part:
        part.write_text(json.dumps(finite(record), indent=1, allow_nan=False), encoding="utf-8")


def read(path: Path) -> RunRecord:
    """A record that was kept; its score is NaN if there is none."""
    try:
        record: RunRecord = json.loads(path.read_text(encoding="utf-8"))
        _ = record["score"], record["spec"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{quoted(path)} is not the record of a run. Move it away.") from error
    if record["score"] is None:
        record["score"] = math.nan
    return record
