"""reproduce: run an experiment of a paper, or all of them, on any model."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isotropy import checks
from isotropy._version import __version__
from isotropy.errors import InputError, public
from isotropy.papers import quick as quickly
from isotropy.papers import results
from isotropy.papers.experiment import Experiment, Findings, Record, check_seeds, chosen
from isotropy.papers.runs import checksum, recorded_models
from isotropy.papers.settings import Settings
from isotropy.sources import guard, output_path
from isotropy.tables import finite
from isotropy.trial.settings import weights_checksum
from isotropy.writing import atomic_write, quoted, write_errors

Tell = Callable[[str], object]
Page = tuple[Experiment, dict[str, Any], dict[str, Any]]  # with its result and its figures


@public
def reproduce(
    names: str | Sequence[str],
    *,
    out: Any,
    skip: Sequence[str] = (),
    models: Sequence[str] | None = None,
    data: Any = None,
    folder: Any = None,
    device: str | None = None,
    seeds: int | None = None,
    quick: bool = False,
    jobs: int = 1,
    records: Any = None,
    overwrite: bool = False,
    tell: Tell | None = None,
) -> dict[str, dict[str, Any]]:
    """Run experiments of a paper, or all experiments of one, and write what they found.

    Parts that are finished are kept in `out`, so an interrupted run goes on where it stopped.

    Parameters
    ----------
    names : str or list of str
        "cluster/layers", or "cluster" for all experiments of that paper.
    out : path
        Folder for the results: a folder for each experiment with result.json, README.md and the
        figures, and a page for the paper.
    skip : list of str
        Experiments to leave out, named in the same way.
    models : list of str, optional
        Names in `folder`, folders, or names on the hub; by default the stand-ins of each experiment
        that are in `folder`.
    data : path, optional
        Folder with a folder for each data set; by default the environment variable ISOTROPY_DATA.
    folder : path, optional
        Folder in which models are looked up first; by default ISOTROPY_MODELS.
    device : str, optional
        Torch device; by default "cuda" if available.
    seeds : int, optional
        By default as many as the paper has.
    quick : bool
        Run on tiny random models and generated data, in seconds, to see that everything works.
    jobs : int
        Fine-tuning runs at a time, each in its own process.
    records : path, optional
        File of `isotropy train` with the runs that experiments report instead of fine-tuning. By
        default these are in runs.jsonl in the folder of the experiment, and missing ones are run.
    overwrite : bool
        Repeat parts that are finished; fine-tuning runs that are in runs.jsonl are kept.
    tell : callable, optional
        Called with a line about each step.

    Returns
    -------
    dict
        What each result.json holds, by the name of the experiment.
    """
    tell = tell or (lambda line: None)
    target = Path(output_path(out, "out"))
    data, folder = (
        _from_environment(data, "ISOTROPY_DATA"),
        _from_environment(folder, "ISOTROPY_MODELS"),
    )
    given = None if records is None else Path(checks.path(records, "records")).expanduser()
    inputs = {"data": data, "folder": folder, "records": given, "models": list(models or ())}
    guard({}, inputs, kept={"out": target})
    found: dict[str, dict[str, Any]] = {}
    pages: dict[str, Page] = {}
    for experiment in chosen([names] if isinstance(names, str) else names, skip):
        settings = settings_for(experiment, target, data, folder, device, seeds, quick)
        settings = replace(settings, jobs=checks.integer(jobs, "jobs", 1), records=given)
        result, figures = run(settings, models, overwrite, tell)
        if result is not None:
            found[experiment.full_name] = result
            pages[experiment.full_name] = (experiment, result, figures)
    for paper in {page[0].paper.name: page[0].paper for page in pages.values()}.values():
        shown = (pages.get(one.full_name) or _earlier(one, target) for one in chosen([paper.name]))
        results.paper_page(paper, target / paper.name, [page for page in shown if page])
    return found


def settings_for(
    experiment: Experiment,
    out: Path,
    data: Path | None,
    folder: Path | None,
    device: str | None,
    seeds: int | None,
    quick: bool,
) -> Settings:
    """The settings of an experiment; with `quick` its models and data are made here."""
    settings = Settings(
        experiment,
        out / experiment.paper.name / experiment.name,
        data,
        folder,
        device,
        check_seeds(seeds, experiment),
        options=experiment.options,
    )
    if not quick:
        return settings
    made = quickly.made(out / "quick")
    return replace(
        settings,
        data=made / "data",
        models=made / "models",
        seeds=min(settings.seeds, 2),
        quick=True,
        options={**experiment.options, **experiment.quick},
    )


def planned(settings: Settings, models: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The models that an experiment runs on, and what is missing, in words."""
    experiment = settings.experiment
    wanted = list(experiment.trained or models or ())
    missing: list[str] = []
    if settings.records is not None:
        return wanted or recorded_models(settings.records, experiment.data), missing
    if not wanted:
        names = quickly.stand_ins(experiment.models) if settings.quick else experiment.models
        wanted = [name for name in names if settings.has_model(name)]
        missing += [
            f"{name} was not found, so it is left out." for name in names if name not in wanted
        ]
    absent = [name for name in experiment.data if not settings.has_data(name)]
    missing += [f"The data set {name} was not found, so it is left out." for name in absent]
    return wanted, missing


def run(
    settings: Settings, models: Sequence[str] | None, overwrite: bool, tell: Tell
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The result of an experiment and its figures, after running what is not finished."""
    experiment = settings.experiment
    wanted, missing = planned(settings, models)
    names = [Path(model).name for model in wanted]
    if len(set(names)) < len(names):
        raise InputError(
            "--model must differ in the last part of the names, by which results are kept, got "
            f"{', '.join(names)}."
        )
    needed = 0 if settings.records is not None else min(experiment.needed, len(experiment.data))
    if len(settings.data_sets) < needed:
        needs = ", ".join(experiment.data)
        tell(f"{experiment.full_name}: left out, since it needs {needs} in --data.")
        return None, {}
    if experiment.models and not wanted:
        tell(f"{experiment.full_name}: left out, since no model was found. Name one with --model.")
        return None, {}
    records: list[Record] = []
    figures: dict[str, Any] = {}
    notes: list[str] = []
    parts: list[tuple[str, Callable[[], Findings]]] = []
    if experiment.measure is not None:
        measure = experiment.measure
        parts += [(model, functools.partial(measure, settings, model)) for model in wanted]
    if experiment.conclude is not None:
        conclude = experiment.conclude
        parts.append(("", lambda: conclude(settings, records)))
    for model, work in parts:
        tell(f"{experiment.full_name}{f': {Path(model).name}' if model else ''}")
        part = _kept_or_done(settings, model, work, overwrite)
        name = Path(model).name
        records += [({"model": name} if model else {}) | one for one in part.records]
        figures |= _named(part.figures, model)
        notes += [note for note in part.notes if note not in notes]
    found = results.result(settings, Findings(records, figures, notes), wanted, missing)
    for remark in results.write(settings, found, figures):
        tell(f"{experiment.full_name}: {remark}")
    return found, figures


def _kept_or_done(
    settings: Settings, model: str, work: Callable[[], Findings], overwrite: bool
) -> Findings:
    """The findings of a part from its file, or by working it out and keeping it there."""
    path = _part(settings.out, model)
    identity = finite({
        "version": __version__,
        "model": results.given_name(settings, model),
        "data": settings.fingerprints(),
        "options": json.loads(json.dumps(dict(settings.options))),
        "seeds": settings.seeds,
        "quick": settings.quick,
        "records": None if settings.records is None else checksum(settings.records),
    })  # fmt: skip
    weights = weights_checksum(settings.location(model)) if model else None
    if model and not overwrite and path.is_file():  # what is concluded from models is done anew
        kept = _read(path)
        if kept.get("identity") == identity and kept.get("weights") in (None, weights):
            return _findings(kept)
    found = work()
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as part:
            figures = {key: json.loads(one.to_json()) for key, one in found.figures.items()}
            whole = {
                "identity": identity,
                "weights": weights,
                "versions": results.versions(),
                "records": found.records,
                "notes": found.notes,
                "figures": figures,
            }
            part.write_text(json.dumps(finite(whole)), encoding="utf-8")
    return _findings(_read(path))


PART = ("records", "notes", "figures")


def _read(path: Path, needed: Sequence[str] = PART) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{quoted(path)} is damaged. Delete it.") from error
    if not isinstance(found, dict) or not set(needed) <= found.keys():
        raise InputError(f"{quoted(path)} is not a part of an experiment. Move it away.")
    return found


def _findings(kept: dict[str, Any]) -> Findings:
    import plotly.graph_objects as go

    figures = {key: go.Figure(one) for key, one in kept["figures"].items()}
    notes = list(kept["notes"])
    made, now = kept.get("versions", {}), results.versions()
    others = ", ".join(f"{name} {found}" for name, found in made.items() if found != now.get(name))
    if others:
        model = Path(kept["identity"]["model"]).name
        notes.append(f"{model or 'The summary'} was computed with other versions: {others}.")
    return Findings(kept["records"], figures, notes)


def _earlier(experiment: Experiment, out: Path) -> Page | None:
    """An experiment that was run into this folder before, with its figures; None if it was not."""
    folder = out / experiment.paper.name / experiment.name
    if not (folder / "result.json").is_file():
        return None
    result = _read(folder / "result.json", ("records", "models", "command"))
    figures: dict[str, Any] = {}
    for model in (*result["models"], ""):
        path = _part(folder, model)
        if path.is_file():
            figures |= _named(_findings(_read(path)).figures, model)
    return experiment, result, figures


def _part(folder: Path, model: str) -> Path:
    """The file of a model's part, or of what is concluded from all of them."""
    name = re.sub(r"[^\w.-]+", "_", Path(model).name) or "all"
    return folder / "parts" / f"{name}.json"


def _named(figures: dict[str, Any], model: str) -> dict[str, Any]:
    """Figures by names that tell models apart."""
    return {f"{key}-{Path(model).name}" if model else key: one for key, one in figures.items()}


def _from_environment(given: Any, name: str) -> Path | None:
    found = os.environ.get(name) if given is None else checks.path(given, name.lower())
    return Path(found).expanduser() if found else None
