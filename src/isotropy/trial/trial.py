"""The trial: models, tasks, methods and seeds, run by run, each kept in a file of its own."""

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
from isotropy.sources.guard import guard, output_path
from isotropy.tables import finite
from isotropy.trial.methods import Method, method_of, spec_of
from isotropy.trial.run import run
from isotropy.trial.settings import Job, settings_for
from isotropy.trial.task_data import task_spec
from isotropy.writing import explained, shown, whole

Record = dict[str, Any]
Tell = Callable[[Record], None]
SEARCHED_SHARE = 0.2  # of the training items that options are chosen on


@dataclass(frozen=True)
class Trial:
    """Every method on every task with every model, for several seeds.

    Parameters
    ----------
    tasks, models, methods : sequences of str
        Methods as `method_of` takes them.
    out : path
        Folder of the records, one JSON file a run. What is there is not run again, unless with
        `overwrite`.
    n_seeds : int
        Seeds from 0 on; the first of all runs comes before the second of any.
    search : bool
        Choose the weights of regularisers that were given none on a fifth of the training items,
        with seed 0.
    data : path, optional
        Folder with a folder for each task; what it does not hold is loaded from the hub.
    folder : path, optional
        Folder in which models are looked for by name before the hub.
    device : str, optional
        By default "cuda" where there is one.
    jobs : int
        Runs at a time, each in a process of its own.
    settings : mapping
        Of `settings_for`; where nothing is set, what the papers state.
    overwrite : bool
        Run again what has a record, and replace that.
    """

    tasks: Sequence[str]
    models: Sequence[str]
    methods: Sequence[str]
    out: str | os.PathLike[str]
    n_seeds: int = 3
    search: bool = False
    data: str | os.PathLike[str] | None = None
    folder: str | os.PathLike[str] | None = None
    device: str | None = None
    jobs: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    overwrite: bool = False

    def __post_init__(self) -> None:
        inputs = {"--model": list(self.models), "--data": self.data, "--models": self.folder}
        guard({}, inputs, kept={"--out": self.out})
        object.__setattr__(self, "out", output_path(self.out, "--out"))
        if os.path.exists(self.out) and not os.path.isdir(self.out):
            raise InputError(f"--out must be a folder, got the file {shown(self.out)}.")
        checks.integer(self.n_seeds, "seeds", 1)
        checks.integer(self.jobs, "jobs", 1)
        names = [Path(model).name for model in self.models]
        for model, name in zip(self.models, names, strict=True):
            if names.count(name) > 1:
                raise InputError(
                    f"models must differ in the last part of their names, which records "
                    f"are kept by, got {model!r} and another {name!r}. Run them with two --out."
                )
        for task in self.tasks:
            task_spec(task)
        for method in self.methods:
            method_of(method)

    def run(self, tell: Tell = lambda record: None) -> list[Record]:
        """The records of all runs, those that were missing run now; tell hears of each of these."""
        chosen: dict[tuple[str, str, str], str] = {}
        if self.search:
            if not self.overwrite:
                self._expect_searched()
            self._complete(self._searches(), tell)
            chosen = self._chosen()
        jobs = self._jobs(chosen)
        self._complete(jobs, tell)
        return [record for job in jobs if (record := self._kept(job)) is not None]

    def _expect_searched(self) -> None:
        """Raise before the search where a record of a run is there that was made without one."""
        for job in self._jobs({}):
            path, specs = self._path(job), _searched(job.method)
            if specs and path.is_file() and read(path)["spec"] not in specs:
                self._kept(replace(job, spec=specs[0]))

    def _complete(self, jobs: Sequence[Job], tell: Tell) -> None:
        """Run those jobs that have no record yet, and keep theirs."""
        missing = [job for job in jobs if self._to_do(job)]
        with explained(self.out):
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
                f"{len(failed)} of {len(missing)} runs failed, and the others are kept; "
                f"the first was {failed[0]}"
            )

    def _to_do(self, job: Job) -> bool:
        """Whether a job has no record; with `overwrite`, one that is there is replaced."""
        if not self.overwrite:
            return self._kept(job) is None
        if self._path(job).is_file():
            read(self._path(job))  # raises where the file is not ours
        return True

    def _grid(self) -> list[tuple[str, str, str]]:
        return [(m, t, method) for m in self.models for t in self.tasks for method in self.methods]

    def _jobs(self, chosen: dict[tuple[str, str, str], str]) -> list[Job]:
        return [
            self._job(*cell, chosen.get(cell, cell[2]), seed)
            for seed in range(self.n_seeds)
            for cell in self._grid()
        ]

    def _searches(self) -> list[Job]:
        return [
            self._job(model, task, spec, spec, 0, SEARCHED_SHARE)
            for model, task, method in self._grid()
            for spec in _searched(method)
        ]

    def _chosen(self) -> dict[tuple[str, str, str], str]:
        """The spec of each method that did best on the items kept for that, the first of equals."""
        found = {}
        for model, task, method in self._grid():
            specs = _searched(method)
            scores = []
            for spec in specs:
                record = self._kept(self._job(model, task, spec, spec, 0, SEARCHED_SHARE))
                score = math.nan if record is None else record["score"]
                scores.append(-math.inf if math.isnan(score) else score)
            if specs:
                found[model, task, method] = specs[scores.index(max(scores))]
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

    def _kept(self, job: Job) -> Record | None:
        """The record of a job, None where there is none; raises where it is of another one."""
        path = self._path(job)
        if not path.is_file():
            return None
        record = read(path)
        for name, wanted in job.identity().items():
            if record.get(name) != wanted:
                raise InputError(
                    f"{str(path)!r} is of a run with {_apart(record.get(name), wanted)}. "
                    "Choose another --out, or add --overwrite."
                )
        changed = [name for name, was in _inputs(record).items() if was != job.inputs()[name]]
        if changed:
            raise InputError(
                f"{str(path)!r} is of a run with other {' and '.join(changed)}. "
                "Choose another --out, or add --overwrite."
            )
        return record


def _inputs(record: Record) -> dict[str, str]:
    """The checksums that a record has."""
    return {name: record[name] for name in ("data", "weights") if record.get(name)}


def _searched(method: str) -> list[str]:
    """The specs to choose from; none where what is searched is given, or there is nothing to."""
    name, _, given = method.partition(":")
    grid = Method.by_name[name].searched
    if len(grid) < 2 or any(f"{key}=" in given for key in grid[0]):
        return []
    return [spec_of(method, options) for options in grid]


def _apart(found: Any, wanted: Any) -> str:
    """What differs between what a record says and what is wanted."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        names = [name for name in wanted if found.get(name) != wanted[name]]
        return ", ".join(f"{name} {found.get(name)} (now {wanted[name]})" for name in names)
    return f"{found} (now {wanted})"


def _results(jobs: Sequence[Job], n_at_once: int) -> Iterable[tuple[Job, Record | Exception]]:
    """Each job with its record as it is done, or with why there is none."""
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
        except (SystemExit, KeyboardInterrupt):  # nobody waits for runs that are to be stopped
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _tried(job: Job) -> Record | Exception:
    """The record of a job, or why it failed in a way that others need not; other errors raise."""
    try:
        return run(job)
    except (RuntimeError, MemoryError) as error:  # such as a device without memory
        return error


def _start(n_threads: int) -> None:
    torch.set_num_threads(n_threads)
    threadpool_limits(n_threads)


def keep(path: Path, record: Record) -> None:
    """Write the record whole or not at all; null stands for what is not finite."""
    with explained(path), whole(path) as part:
        part.write_text(json.dumps(finite(record), indent=1, allow_nan=False), encoding="utf-8")


def read(path: Path) -> Record:
    """A record that was kept; its score is NaN where there is none."""
    try:
        record: Record = json.loads(path.read_text(encoding="utf-8"))
        _ = record["score"], record["spec"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{shown(path)} is no record of a run. Move it away.") from error
    if record["score"] is None:
        record["score"] = math.nan
    return record
