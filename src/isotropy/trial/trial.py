"""The trial: every model, task, method and seed is one run, with one record."""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from isotropy import checks
from isotropy.errors import InputError, reason
from isotropy.sources import guard, output_path
from isotropy.trial.methods import method_of, searched_specs
from isotropy.trial.records import RunRecords, run_name
from isotropy.trial.run import run
from isotropy.trial.settings import Job, settings_for
from isotropy.trial.summary import RunRecord
from isotropy.trial.task_data import GENERATION, task_spec
from isotropy.writing import quoted, write_errors

Cell = tuple[str, str, str]  # model, task and method
SEARCHED_SHARE = 0.2  # of the training items, on which options are chosen


@dataclass(frozen=True)
class Trial:
    """Every method on every task with every model, for several seeds."""

    tasks: Sequence[str]
    models: Sequence[str]
    methods: Sequence[str]  # specs for `method_of`
    out: str | os.PathLike[str]  # file of the records; runs with a record are not repeated
    n_seeds: int = 3  # from 0; all runs with one seed come before those with the next
    search: bool = False  # choose options of regularisers on a fifth of the training items
    search_on: Sequence[str] = ()  # tasks that choose for all tasks; by default each for itself
    data: str | os.PathLike[str] | None = None  # folder with a folder per task, before the hub
    folder: str | os.PathLike[str] | None = None  # in which models are looked up before the hub
    device: str | None = None  # by default "cuda" if there is a GPU
    jobs: int = 1  # runs at a time, each in its own process
    settings: dict[str, Any] = field(default_factory=dict)  # for `settings_for`
    overwrite: bool = False  # repeat runs that have a record, and replace it
    save: str | os.PathLike[str] | None = None  # folder of one run's encoder, or of all of them

    def __post_init__(self) -> None:
        inputs = {"--model": list(self.models), "--data": self.data, "--models": self.folder}
        guard({}, inputs, kept={"--out": self.out, "--save": self.save})
        object.__setattr__(self, "out", output_path(self.out, "--out"))
        if self.save is not None:
            object.__setattr__(self, "save", output_path(self.save, "--save"))
            self._expect_savable()
        if os.path.isdir(self.out):
            raise InputError(f"--out must be a file, got the folder {quoted(self.out)}.")
        checks.integer(self.n_seeds, "seeds", 1)
        checks.integer(self.jobs, "jobs", 1)
        names = [Path(model).name for model in self.models]
        for model, name in zip(self.models, names, strict=True):
            if names.count(name) > 1:
                raise InputError(
                    "models must differ in the last part of their names, by which records are "
                    f"kept, got {model!r} and another {name!r}. Run them with two --out."
                )
        for task in (*self.tasks, *self.search_on):
            task_spec(task)
        for method in self.methods:
            method_of(method)

    def run(self, tell: Callable[[RunRecord], None] = lambda record: None) -> list[RunRecord]:
        """The records of all runs, after running those without one; `tell` gets each new record."""
        records = RunRecords(self.out)
        chosen: dict[Cell, str] = {}
        if self.search:
            if not self.overwrite:
                self._expect_searched(records)
            self._complete(self._searches(), records, tell)
            chosen = self._chosen(records)
        jobs = self._jobs(chosen)
        self._complete(jobs, records, tell)
        return [record for job in jobs if (record := records.of(job)) is not None]

    def _expect_savable(self) -> None:
        centred = any(method_of(method).centres for method in self.methods)
        for task in self.tasks:
            if centred and task_spec(task).kind == GENERATION:
                raise InputError(
                    f"--save must be left out with flow on {task!r}: the flow changes the output "
                    "layer, and the saved model would not have the flow."
                )

    def _expect_searched(self, records: RunRecords) -> None:
        """Raise before the search if there is a record of a run made without one."""
        for job in self._jobs({}):
            specs = searched_specs(job.method)
            if specs and records.spec_of(job) not in (None, *specs):
                records.of(replace(job, spec=specs[0]))

    def _complete(
        self, jobs: Sequence[Job], records: RunRecords, tell: Callable[[RunRecord], None]
    ) -> None:
        """Run the jobs that have no record yet, and keep their records."""
        missing = [job for job in jobs if self.overwrite or self._to_do(job, records)]
        self._make_room("--out", records.path, overwrite=True)
        for job in missing:
            if job.save is not None:
                self._make_room("--save", job.save, self.overwrite)
        failed = []
        for job, found in _results(missing, min(self.jobs, len(missing))):
            if isinstance(found, Exception):
                failed.append(f"{run_name(job)}: {reason(found).splitlines()[0]}")
                continue
            records.add(found)
            tell(found)
        records.compact()
        if failed:
            raise InputError(
                f"{len(failed)} of {len(missing)} runs failed; the others are kept. The first "
                f"failure was {failed[0]}"
            )

    def _make_room(self, name: str, path: str | os.PathLike[str], overwrite: bool) -> None:
        """Make the folder above an output, and raise if the output can't be written."""
        with write_errors(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        guard({name: path}, overwrite=overwrite)

    def _to_do(self, job: Job, records: RunRecords) -> bool:
        """Whether a job has no record, or its encoder is to be saved and is not there."""
        record = records.of(job)
        unsaved = job.save is not None and not os.path.isdir(job.save)
        return record is None or (unsaved and record["status"] == "finished")

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
            self._search(model, task, spec)
            for model in self.models
            for task in self.search_on or self.tasks
            for method in self.methods
            for spec in searched_specs(method)
        ]

    def _search(self, model: str, task: str, spec: str) -> Job:
        return self._job(model, task, spec, spec, 0, SEARCHED_SHARE)

    def _chosen(self, records: RunRecords) -> dict[Cell, str]:
        """The spec of each method with the best score in the search, the first among equals.

        Over several tasks that is the mean of their scores.
        """
        found = {}
        for model, task, method in self._grid():
            tasks = self.search_on or [task]
            scores = {
                spec: float(
                    np.mean([_rank(records.of(self._search(model, t, spec))) for t in tasks])
                )
                for spec in searched_specs(method)
            }
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
        job = Job(task, name, method, spec, seed, settings, data, device, search)
        if self.save is None or search:
            return job
        alone = len(self._grid()) * self.n_seeds == 1
        save = self.save if alone else os.path.join(self.save, run_name(job))
        return replace(job, save=str(save), overwrite=self.overwrite)


def _rank(record: RunRecord | None) -> float:
    """The score by which options are chosen; the lowest if it is not defined."""
    score = math.nan if record is None else record["score"]
    return -math.inf if math.isnan(score) else score


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
