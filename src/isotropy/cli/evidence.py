"""isotropy compare, advise and calibrate: does a repair help, and which one?"""

from __future__ import annotations

import contextlib
import inspect
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
    json_line,
    opened,
    running,
    say_skipped,
)
from isotropy.cli.texts_options import ModelDeviceOption, SpecialOption, one_layer
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
LayerOption = Annotated[
    str | None,
    typer.Option(
        help="Hidden layer: 0 is the embedding layer, -1 the last; or first-last, the average of "
        "the first and the last [-1].",
        show_default=False,
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
TransductiveOption = Annotated[
    bool,
    typer.Option("--transductive", help="Fit on the evaluated text itself, as the papers did."),
]
TaskOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the task, as combine=mean, similarity=dot, label=fine, positive=yes, "
        "head=mlp or metric=matthews; several times for more.",
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
    transductive: TransductiveOption = False,
    option: TaskOption = None,
    part: Annotated[
        str | None, typer.Option(help="train, dev, test or all [dev, else test, else all].")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Fits of clusterings to average.", min=1)] = 5,
    layer: LayerOption = None,
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
    wanted = opened_task(task, data, "compare", option)
    running_options = {"layer": layer, "pool": pool, "special-tokens": special_tokens}
    refuse_what_words_ignore(model, wanted, running_options, "compare")
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
    repairs: Annotated[
        list[str] | None,
        typer.Option(
            help="A repair to choose from, the simplest first, named as for `compare`; several "
            "times for more [a search over repairs and their parameters]."
        ),
    ] = None,
    fit_on: FitOption = None,
    transductive: TransductiveOption = False,
    option: TaskOption = None,
    save: Annotated[
        Path | None,
        typer.Option(help="File for the chosen repair, which `apply` and `embed --repair` take."),
    ] = None,
    budget: Annotated[int, typer.Option(help="Repairs tried at most.", min=1)] = 24,
    layer: LayerOption = None,
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
        goes_with_task = {
            "save": save,
            "fit-on": fit_on,
            "repairs": repairs,
            "transductive": transductive,
            "option": option,
        }
        for name, given in goes_with_task.items():
            if given:
                raise InputError(f"advise: --{name} goes with --task, got none. Name a task.")
        texts = list(each(open_texts(data, None, "advise")))
        vectors, _ = vectors_for(
            model, None, layer, pool, special_tokens, device, cache, column, key
        )
        tell(diagnose(vectors, texts, seed=seed), as_json)
        return
    wanted = opened_task(task, data, "advise", option)
    running_options = {"layer": layer, "pool": pool, "special-tokens": special_tokens}
    refuse_what_words_ignore(model, wanted, running_options, "advise")
    named = named_texts(fit_on)
    vectors, wanted = vectors_for(
        model, wanted, layer, pool, special_tokens, device, cache, column, key
    )
    choices: dict[str, Any] = {"candidates": repairs} if repairs else {}
    choices |= {"transductive": True} if transductive else {}
    with bar() as progress:
        found = find_advice(
            vectors, wanted, named, budget=budget, seed=seed, progress=progress, **choices
        )
    if save is not None and found.repair is None:
        typer.echo("nothing was saved, as no repair is recommended", err=True)
    elif save is not None and found.repair is not None:
        level = found.choice.level
        found.repair.save(save, note=f"{level} level, {model}, {data}", level=level)
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
        typer.echo(json_line(found))
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
    plain = json_line(found.to_dict()) if as_json else str(found)
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


def opened_task(
    kind: str, data: str, caller: str = "advise", options: list[str] | None = None
) -> Task:
    """The task that the options name."""
    if kind != PSEUDO:
        return open_task(str(kind), data, **task_options(kind, options or [], caller))
    if options:
        raise InputError(f"{caller}: --option does not go with --task {PSEUDO}. Leave it out.")
    return adjacent([str(text) for text in each(open_texts(data, None, caller))])


def task_options(kind: str, options: list[str], caller: str) -> dict[str, Any]:
    """What each name=value says: the text itself where the task wants one, as of a label."""
    known = inspect.signature(Task.by_kind[kind].read).parameters
    found: dict[str, Any] = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not name or not equals:
            raise InputError(f"{caller}: --option must be name=value, got {option!r}.")
        worded = name in known and "str" in str(known[name].annotation)
        found[name] = text if worded else plain_value(text)
    return found


def plain_value(text: str) -> Any:
    """The int, float or bool that the text spells, else the text."""
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return {"true": True, "false": False}.get(text.lower(), text)


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


def holds_vectors(model: str) -> bool:
    """Whether this is a file or folder of vectors, rather than a model."""
    path = Path(model)
    if path.is_dir():  # one with texts alone is meant as a model, and lacks its config.json
        suffixes = {file.suffix for file in path.iterdir()} & set(FORMATS)
        return not is_model(model) and bool(suffixes - {".txt", ".bin", ".safetensors"})
    return not is_model(model) and (os.path.exists(model) or path.suffix in FORMATS)


def refuse_what_words_ignore(model: str, task: Task, options: dict[str, Any], caller: str) -> None:
    """Raise where an option of running a model was given, and it is only looked up in."""
    if not isinstance(task, WordSimilarity) or holds_vectors(model):
        return
    for name, given in options.items():
        if given:
            raise InputError(
                f"{caller}: --{name} does not go with --task word-similarity, which takes the "
                "input embeddings of a model. Leave it out."
            )


def vectors_for(
    model: str,
    task: Task | None,
    layer: str | None,
    pool: str | None,
    special_tokens: bool,
    device: str | None,
    cache: Path | None,
    column: str | None,
    key: str | None,
    caller: str = "advise",
) -> tuple[Any, Any]:
    """What gives vectors of the task's texts, and the task, of words those that are known."""
    if holds_vectors(model):
        found: Any = KeyedVectors.load(model, key, column)
    elif isinstance(task, WordSimilarity):
        found = embeddings(model)
    else:
        number = one_layer("-1" if layer is None else layer, caller)
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
