"""Fine-tuning runs, the material of experiments on training, and how they were made in words."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isotropy.errors import InputError
from isotropy.papers.settings import Settings
from isotropy.trial.records import current_records
from isotropy.trial.summary import RunRecord
from isotropy.writing import quoted

FILE = "runs.jsonl"
HEADS = {"model": "the classifier of transformers", "linear": "one linear layer on [CLS]"}


def fine_tuned(
    settings: Settings,
    model: str,
    tasks: Sequence[str],
    methods: Sequence[str],
    *,
    search_on: Sequence[str] = (),
    of: str | None = None,
    training: Mapping[str, Any],
) -> list[RunRecord]:
    """The records of a model's runs on every task with every method and seed.

    They are in runs.jsonl in the folder of the experiment, or of that which it shares them with;
    those that are missing are run first. With `settings.records` they are those in that file,
    whatever the options of the methods.
    """
    if settings.records is not None:
        names = list(dict.fromkeys(method.partition(":")[0] for method in methods))
        given = [
            record
            for record in _given(settings.records)
            if record["model"] == Path(model).name
            and record["task"] in tasks
            and record["method"].partition(":")[0] in names
            and record["seed"] < settings.seeds
        ]
        return sorted(given, key=lambda record: _place(record, tasks, names))
    from isotropy.trial.trial import Trial

    folder = settings.out if of is None else settings.out.parent / of
    known = [task for task in search_on if settings.has_data(task)]
    trial = Trial(
        [task for task in tasks if settings.has_data(task)],
        [model],
        methods,
        folder / FILE,
        n_seeds=settings.seeds,
        search=bool(known),
        search_on=known,
        data=settings.data,
        folder=settings.models,
        device=settings.device,
        jobs=settings.jobs,
        settings=dict(training),
    )
    return trial.run()


def _place(record: RunRecord, tasks: Sequence[str], names: Sequence[str]) -> tuple[Any, ...]:
    """Where a record stands among others, which may be in any order."""
    name, _, options = record["method"].partition(":")
    return tasks.index(record["task"]), names.index(name), options, record["seed"]


def searches(settings: Settings, model: str, of: str) -> list[RunRecord]:
    """The runs by which options of methods were chosen."""
    path = settings.records or settings.out.parent / of / FILE
    name = Path(model).name
    return [one for one in current_records(path) if one["search"] and one["model"] == name]


def recorded_models(path: Path, tasks: Sequence[str]) -> list[str]:
    """The models with runs on one of these tasks in a file."""
    return list(dict.fromkeys(one["model"] for one in _given(path) if one["task"] in tasks))


def checksum(path: Path) -> str:
    """Checksum of a file of runs."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _given(path: Path) -> list[RunRecord]:
    found = [record for record in current_records(path) if not record["search"]]
    if not found:
        raise InputError(f"--records must have runs of isotropy train, got {quoted(path)}.")
    return found


def conditions(runs: Sequence[RunRecord]) -> list[str]:
    """How runs of one model were made, in words, to be compared with a paper."""
    if not runs:
        return []
    name, first = runs[0]["model"], runs[0]["settings"]
    of_task = {run["task"]: run for run in runs}
    items = ", ".join(f"{task} {_items(run)}" for task, run in of_task.items())
    n_seeds = {task: len({run["seed"] for run in runs if run["task"] == task}) for task in of_task}
    if len(set(n_seeds.values())) > 1:
        seeds = "seeds: " + ", ".join(f"{task} {n}" for task, n in n_seeds.items())
    else:
        (n,) = set(n_seeds.values())
        seeds = "1 seed" if n == 1 else f"{n} seeds"
    found = [f"{name}: {seeds}; training items: {items}."]
    undivided = [task for task, run in of_task.items() if not run["divided"]]
    if undivided:
        found.append(
            f"{name}: no training part was found for {', '.join(undivided)}, so four fifths of the "
            "rows were trained on, and the others scored."
        )
    epochs = ", ".join(f"{task} {run['settings']['epochs']}" for task, run in of_task.items())
    parts = [f"learning rate {first['lr']:g}", f"batch {first['batch_size']}", f"epochs: {epochs}"]
    if first["validation"]:
        parts.append(
            f"{first['validation']:.0%} of the training items held out for early stopping "
            f"(patience {first['patience']})"
        )
    if runs[0]["metric"] not in ("bleu", "rouge1"):
        parts.append(f"head: {HEADS[first.get('head', 'linear')]}")
    parts.append(f"{first['precision']} on {', '.join(dict.fromkeys(r['device'] for r in runs))}")
    found.append(f"{name}: {'; '.join(parts)}.")
    made = dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in run.get("versions", {}).items())
        for run in runs
    )
    if any(made):
        found.append(f"{name}: the runs were made with {'; '.join(filter(None, made))}.")
    specs = [spec for spec in dict.fromkeys(r["spec"] for r in runs) if ":" in spec]
    if specs:
        found.append(f"{name}: options of the methods: {'; '.join(specs)}.")
    return found


def _items(run: RunRecord) -> str:
    """How many items a run was trained on, and whether that is a cap."""
    cap, share = run["settings"]["max_train"], 1 - run["settings"]["validation"]
    capped = cap is not None and run["n_train"] >= share * cap - 1
    return f"{run['n_train']:,}{' (capped)' if capped else ''}"
