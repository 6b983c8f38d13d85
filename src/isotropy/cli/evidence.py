"""isotropy compare, advise and calibrate: does a repair help, and which one?"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from isotropy.cli.common import (
    ChunkOption,
    ColumnOption,
    DeviceOption,
    EngineName,
    EngineOption,
    SchedulerOption,
    SkipOption,
    SourceArgument,
    opened,
    running,
    say_skipped,
)
from isotropy.cli.measure import _finite
from isotropy.cli.texts_options import LayerOption, ModelDeviceOption, SpecialOption, one_layer
from isotropy.errors import InputError
from isotropy.evidence import ScoreCalibrator
from isotropy.evidence import advise as find_advice
from isotropy.evidence import compare as compared
from isotropy.evidence.diagnose import diagnose
from isotropy.evidence.trials import Progress
from isotropy.repairs import load
from isotropy.repairs.files import check_target
from isotropy.sources.embeddings import embeddings
from isotropy.sources.encoder import Encoder
from isotropy.sources.keyed import KeyedVectors
from isotropy.sources.loading import is_model, pools_itself
from isotropy.sources.opening import FORMATS
from isotropy.sources.texts import each, open_texts
from isotropy.tasks import Task, open_task
from isotropy.tasks.pseudo import adjacent
from isotropy.tasks.word_similarity import WordSimilarity

PSEUDO = "pseudo"
Kind = StrEnum("Kind", {name: name for name in [*Task.by_kind, PSEUDO]})  # type: ignore[misc]

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL_OR_VECTORS",
        help="A model (folder, hub name or .gguf), or a file of vectors with a column of texts.",
        show_default=False,
    ),
]
DataOption = Annotated[
    str,
    typer.Option(
        help="Folder or file of the task, or its name on the hub; without --task, texts.",
        show_default=False,
    ),
]
FitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fit-on",
        help="File of texts that repairs are fitted on, instead of the task's own; several times "
        "to see how the choice depends on it.",
    ),
]
PoolOption = Annotated[
    str | None,
    typer.Option(
        help="mean, cls, last, or own [own for a sentence-transformers model, else mean]."
    ),
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        envvar="ISOTROPY_CACHE", help="Folder that keeps vectors, so that no text is run twice."
    ),
]
RepairsOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A repair, as center, token/whiten or cluster-removal:n_clusters=27,n_components=12; "
        "several times for more [every repair at its default]."
    ),
]
KeyOption = Annotated[
    str | None, typer.Option(help="Column with the texts, where a file of vectors is given.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
SeedOption = Annotated[int, typer.Option(help="Seed of folds, draws and clusterings.", min=0)]


def compare(
    model: ModelArgument,
    task: Annotated[Kind, typer.Option(help="What kind of task.", show_default=False)],
    data: DataOption,
    repairs: RepairsOption = None,
    fit_on: FitOption = None,
    transductive: Annotated[
        bool,
        typer.Option("--transductive", help="Fit on the evaluated text itself, as the papers did."),
    ] = False,
    part: Annotated[
        str | None, typer.Option(help="train, dev, test or all [dev, else test, else all].")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Fits of clusterings to average.", min=1)] = 5,
    layer: LayerOption = "-1",
    pool: PoolOption = None,
    special_tokens: SpecialOption = False,
    device: ModelDeviceOption = None,
    cache: CacheOption = None,
    column: ColumnOption = None,
    key: KeyOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Score every repair on a task, with intervals and p-values.

    Examples:

      isotropy compare sentence-transformers/all-MiniLM-L6-v2 --task sts --data stsb

      isotropy compare vectors.parquet --key text --task sts --data pairs.tsv --repairs whiten
    """
    wanted = opened_task(task, data, "compare")
    texts = joined_texts(fit_on)
    vectors, wanted = vectors_for(
        model, wanted, layer, pool, special_tokens, device, cache, column, key, "compare"
    )
    with bar() as progress:
        found = compared(
            vectors,
            wanted,
            repairs,
            fit_on=texts,
            transductive=transductive,
            part=part,
            seeds=seeds,
            seed=seed,
            progress=progress,
        )
    tell(found, as_json)


def advise(
    model: ModelArgument,
    data: DataOption,
    task: Annotated[
        Kind | None,
        typer.Option(
            help="What kind of task; pseudo is finding the next line; none at all diagnoses.",
        ),
    ] = None,
    fit_on: FitOption = None,
    save: Annotated[
        Path | None, typer.Option(help="File for the chosen repair, which `apply` takes.")
    ] = None,
    budget: Annotated[int, typer.Option(help="Repairs tried at most.", min=1)] = 24,
    layer: LayerOption = "-1",
    pool: PoolOption = None,
    special_tokens: SpecialOption = False,
    device: ModelDeviceOption = None,
    cache: CacheOption = None,
    column: ColumnOption = None,
    key: KeyOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Say which repair helps on a task, or to leave the space alone.

    Repairs and their parameters are searched on the training part by cross-validation; the choice
    is tested on folds it did not see, and scored on the test part.

    Examples:

      isotropy advise distilbert-base-cased --task sts --data stsb --save repair.safetensors

      isotropy advise vectors.parquet --key text --task classification --data labels.tsv --json
    """
    if save is not None:
        check_target(save)
    if task is None:
        for name, given in (("save", save), ("fit-on", fit_on)):
            if given:
                raise InputError(f"advise: --{name} goes with --task, got none. Name a task.")
        texts = list(each(open_texts(data, None, "advise")))
        vectors, _ = vectors_for(
            model, None, layer, pool, special_tokens, device, cache, column, key
        )
        tell(diagnose(vectors, texts, seed=seed), as_json)
        return
    wanted = opened_task(task, data)
    named = named_texts(fit_on)
    vectors, wanted = vectors_for(
        model, wanted, layer, pool, special_tokens, device, cache, column, key
    )
    with bar() as progress:
        found = find_advice(vectors, wanted, named, budget=budget, seed=seed, progress=progress)
    if save is not None and found.repair is None:
        typer.echo("nothing was saved, as no repair is recommended", err=True)
    elif save is not None and found.repair is not None:
        found.repair.save(save, note=f"{found.choice.level} level, {model}, {data}")
        typer.echo(f"saved {found.repair!r} to {save}", err=True)
    tell(found, as_json)


def calibrate(
    source: SourceArgument,
    rate: Annotated[
        float, typer.Option(help="Share of unrelated pairs that may pass as matches.")
    ] = 0.01,
    score: Annotated[
        list[float] | None, typer.Option(help="A cosine to be judged; several times for more.")
    ] = None,
    repair: Annotated[
        Path | None, typer.Option(help="Saved repair that rows go through first.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="File for the calibrator.")] = None,
    n_pairs: Annotated[int, typer.Option(help="Random pairs of rows.", min=1)] = 1_000_000,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    engine: EngineOption = EngineName.local,
    device: DeviceOption = None,
    scheduler: SchedulerOption = None,
    column: ColumnOption = None,
    chunk_rows: ChunkOption = None,
    skip_bad_rows: SkipOption = False,
) -> None:
    """Say what a high cosine is in this space: the threshold for a wanted false-match rate.

    Examples:

      isotropy calibrate vectors.npy --rate 0.001

      isotropy calibrate vectors.npy --score 0.83 --repair repair.safetensors --json
    """
    if save is not None:
        check_target(save)
    fitted = None if repair is None else load(repair)
    rows = opened(source, column, chunk_rows, skip_bad_rows, "calibrate")
    with running(engine, device, scheduler, None, "calibrate") as run:
        calibrator = ScoreCalibrator(n_pairs, seed).fit(rows, repair=fitted)
        n_skipped = run.n_skipped
    threshold = calibrator.threshold(rate)
    scores = [
        {"score": one, "p": calibrator.p_value(one), "percentile": calibrator.percentile(one)}
        for one in score or []
    ]
    if save is not None:
        calibrator.save(save)
    say_skipped(n_skipped)
    if as_json:
        found = {
            "threshold": threshold,
            "false_match_rate": rate,
            "mean": calibrator.mean_,
            "std": calibrator.std_,
            "n_pairs": calibrator.n_pairs_,
            "repair": calibrator.repair_,
            "scores": scores,
        }
        typer.echo(json.dumps(found, allow_nan=False))
        return
    typer.echo(str(calibrator))
    typer.echo(f"threshold for a false-match rate of {rate:g}: {threshold:.4f}")
    for one in scores:
        typer.echo(
            f"{one['score']:g}: above {one['percentile']:.2f} % of unrelated pairs, "
            f"p = {one['p']:.2g}"
        )


def tell(found: Any, as_json: bool) -> None:
    """Print what was found, in words or as one JSON object."""
    plain = json.dumps(_finite(found.to_dict()), allow_nan=False) if as_json else str(found)
    typer.echo(plain)


@contextlib.contextmanager
def bar() -> Iterator[Progress]:
    """Shows on a terminal's standard error how many repairs are done; elsewhere nothing."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    shown = Bar(
        *columns,
        TextColumn("repairs"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    rows: dict[str, TaskID] = {}

    def progress(name: str, n_done: int, n_all: int) -> None:
        if name not in rows:
            rows[name] = shown.add_task(name, total=n_all)
            shown.start()  # only now: an encoder shows a bar of its own before
        shown.update(rows[name], completed=n_done)

    try:
        yield progress
    finally:
        shown.stop()


def opened_task(kind: str, data: str, caller: str = "advise") -> Task:
    """The task that the options name."""
    if kind == PSEUDO:
        return adjacent([str(text) for text in each(open_texts(data, None, caller))])
    return open_task(str(kind), data)


def named_texts(paths: list[str] | None) -> Any:
    """The texts of each file by its name; None where there is none."""
    if not paths:
        return None
    found = {path: list(each(open_texts(path, None, "advise"))) for path in paths}
    return found if len(found) > 1 else found[paths[0]]


def joined_texts(paths: list[str] | None) -> Any:
    """The texts of all files together; None where there is none."""
    if not paths:
        return None
    return [text for path in paths for text in each(open_texts(path, None, "compare"))]


def vectors_for(
    model: str,
    task: Task | None,
    layer: str,
    pool: str | None,
    special_tokens: bool,
    device: str | None,
    cache: Path | None,
    column: str | None,
    key: str | None,
    caller: str = "advise",
) -> tuple[Any, Any]:
    """What gives vectors of the task's texts, and the task, of words those that are known."""
    if not is_model(model) and (os.path.exists(model) or Path(model).suffix in FORMATS):
        found: Any = KeyedVectors.load(model, key, column)
    elif isinstance(task, WordSimilarity):
        found = embeddings(model)
    else:
        number = one_layer(layer, caller)
        found = Encoder(
            model,
            layer=number,
            pool=pool or ("own" if pools_itself(model) else "mean"),
            special_tokens=special_tokens,
            device=device,
            cache=cache,
        )
    if isinstance(task, WordSimilarity):
        task = task.known(found.words)
        for name, n_listed in task.n_listed.items():
            if task.n_kept[name] < n_listed:
                kept = f"{task.n_kept[name]:,} of {n_listed:,} pairs of {name!r}"
                typer.echo(f"{kept} are of words that are known", err=True)
    return found, task
