"""isotropy compare and advise: does a repair help, and which one?"""

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

from isotropy import checks
from isotropy.cli.common import (
    POOL_HELP,
    CacheOption,
    ColumnOption,
    JsonOption,
    LayerOption,
    ModelDeviceOption,
    OverwriteOption,
    Pool,
    SeedOption,
    SpecialOption,
    among,
    beside,
    destination,
    examples,
    json_line,
    offline_unless_reached,
    one_layer,
)
from isotropy.errors import InputError
from isotropy.evidence import advise as find_advice
from isotropy.evidence import compare as compared
from isotropy.evidence.advice import diagnose
from isotropy.evidence.trials import Progress
from isotropy.models.embeddings import embeddings
from isotropy.models.encoder import Encoder
from isotropy.models.keyed import KeyedVectors
from isotropy.models.loading import is_model, pools_itself
from isotropy.models.texts import each, open_texts
from isotropy.repairs import Repair
from isotropy.repairs.files import check_target
from isotropy.sources.guard import guard
from isotropy.sources.opening import FORMATS
from isotropy.tasks import Task, open_task
from isotropy.tasks.pseudo import adjacent
from isotropy.tasks.word_similarity import WordSimilarity

PSEUDO = "pseudo"
Kind = StrEnum("Kind", {name: name for name in [*Task.by_kind, PSEUDO]})  # type: ignore[misc]

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL_OR_VECTORS",
        help="A model (folder, hub name or .gguf), or a file of vectors with a column of texts or "
        "words; of words, each text is the mean of its words.",
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
        "--pool",
        help=f"{POOL_HELP}.",
        show_default=False,
        autocompletion=among(*(pool for pool in Pool if pool != Pool.tokens)),
    ),
]
repair_names = among(*Repair.by_name, *(f"token/{name}" for name in Repair.by_name))
RepairsOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A repair, as center, token/whiten or cluster-removal:n_clusters=27,n_components=12; "
        "several times for more [every repair at its default].",
        autocompletion=repair_names,
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
        help="An option of the task, as label=intent, text=utterance or score=rating (names of "
        "columns), combine=mean, similarity=dot, positive=yes, head=mlp or metric=matthews; "
        "several times for more.",
    ),
]
HeaderOption = Annotated[
    str | None,
    typer.Option(
        "--header",
        metavar="NAME,NAME,...",
        help="Names of the columns of --data, where it has no header: word1,word2,score or "
        "label,text; _ for one that is not needed.",
        show_default=False,
    ),
]
TextColumnOption = Annotated[
    str | None,
    typer.Option(
        "--text-column",
        help="Column with the texts, where a file of vectors has several of words.",
        show_default=False,
    ),
]


@examples(
    "isotropy compare vectors.parquet --task sts --data pairs.tsv",
    "isotropy compare sentence-transformers/all-MiniLM-L6-v2 --task sts "
    "--data sentence-transformers/stsb --repairs whiten",
)
def compare(
    model: ModelArgument,
    task: Annotated[Kind, typer.Option(help="What kind of task.", show_default=False)],
    data: DataOption,
    repairs: RepairsOption = None,
    fit_on: FitOption = None,
    transductive: TransductiveOption = False,
    option: TaskOption = None,
    header: HeaderOption = None,
    part: Annotated[
        str | None,
        typer.Option(
            help="train, dev, test or all [dev, else test, else all].",
            autocompletion=among("train", "dev", "test", "all"),
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Fits of clusterings to average.", min=1)] = 5,
    layer: LayerOption = None,
    pool: PoolOption = None,
    special_tokens: SpecialOption = False,
    device: ModelDeviceOption = None,
    cache: CacheOption = None,
    column: ColumnOption = None,
    text_column: TextColumnOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Score every repair on a task, with intervals and p-values."""
    inputs = {"MODEL_OR_VECTORS": model, "--data": data, "--fit-on": fit_on}
    guard({}, inputs, kept={"--cache": cache})
    offline_unless_reached(model, data)
    wanted = opened_task(task, data, option, header)
    texts = joined_texts(fit_on)
    vectors, wanted = vectors_for(
        model, wanted, layer, pool, special_tokens, device, cache, column, text_column
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


@examples(
    "isotropy advise vectors.parquet --task sts --data pairs.tsv --save repair.safetensors",
    "isotropy advise bert-base-cased --task classification --data labels.tsv --budget 4 --json",
)
def advise(
    model: ModelArgument,
    data: DataOption,
    task: Annotated[
        Kind | None,
        typer.Option(
            help="What kind of task; pseudo is finding the next line; omit it to get a diagnosis "
            "only.",
        ),
    ] = None,
    repairs: Annotated[
        list[str] | None,
        typer.Option(
            help="A repair to choose from, the simplest first, named as for `compare`; several "
            "times for more [a search over repairs and their parameters].",
            autocompletion=repair_names,
        ),
    ] = None,
    fit_on: FitOption = None,
    transductive: TransductiveOption = False,
    option: TaskOption = None,
    header: HeaderOption = None,
    save: Annotated[
        Path | None,
        typer.Option(help="File for the chosen repair, which `apply` and `embed --repair` take."),
    ] = None,
    overwrite: OverwriteOption = False,
    budget: Annotated[int, typer.Option(help="Repairs tried at most.", min=1)] = 24,
    layer: LayerOption = None,
    pool: PoolOption = None,
    special_tokens: SpecialOption = False,
    device: ModelDeviceOption = None,
    cache: CacheOption = None,
    column: ColumnOption = None,
    text_column: TextColumnOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Say which repair helps on a task, or to leave the space alone.

    Repairs and their parameters are searched on the training part by cross-validation; the
    selection procedure is tested on unseen folds, and the choice is scored on the test part.
    """
    if task is None:
        goes_with_task = {
            "save": save,
            "fit-on": fit_on,
            "repairs": repairs,
            "transductive": transductive,
            "option": option,
            "header": header,
        }
        for name, given in goes_with_task.items():
            if given:
                raise InputError(f"--{name} goes with --task, got none. Name a task.")
    save = destination(save)
    inputs = {"MODEL_OR_VECTORS": model, "--data": data, "--fit-on": fit_on}
    kept = {"--cache": cache}
    check_target({"--save": save}, inputs, kept=kept, overwrite=overwrite)
    offline_unless_reached(model, data)
    if task is None:
        texts = list(each(open_texts(data, None)))
        vectors, _ = vectors_for(
            model, None, layer, pool, special_tokens, device, cache, column, text_column
        )
        tell(diagnose(vectors, texts, seed=seed), as_json)
        return
    wanted = opened_task(task, data, option, header)
    named = named_texts(fit_on)
    vectors, wanted = vectors_for(
        model, wanted, layer, pool, special_tokens, device, cache, column, text_column
    )
    choices: dict[str, Any] = {"candidates": repairs} if repairs else {}
    choices |= {"transductive": True} if transductive else {}
    with bar() as progress:
        found = find_advice(
            vectors, wanted, named, budget=budget, seed=seed, progress=progress, **choices
        )
    with beside(save):
        tell(found, as_json)  # before it is saved, which may fail
    if save is not None and found.repair is None:
        typer.echo("nothing was saved, as no repair is recommended", err=True)
    elif save is not None and found.repair is not None:
        level = found.choice.level
        note = f"{level} level, {model}, {data}"
        found.repair.save(save, note=note, level=level, overwrite=overwrite)
        typer.echo(f"saved {found.repair!r} to {save}", err=True)


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
    kind: str, data: str, options: list[str] | None = None, header: str | None = None
) -> Task:
    """The task that the options name."""
    if kind != PSEUDO:
        found = task_options(kind, options or [])
        if (
            header is not None
            and "header" not in inspect.signature(Task.by_kind[kind].read).parameters
        ):
            raise InputError(
                f"--header does not go with --task {kind}, whose files have names of "
                "their own. Leave it out."
            )
        found |= {} if header is None else {"header": header}
        return open_task(str(kind), data, **found)
    for name, given in (("option", options), ("header", header)):
        if given:
            raise InputError(f"--{name} does not go with --task {PSEUDO}. Leave it out.")
    return adjacent([str(text) for text in each(open_texts(data, None))])


def task_options(kind: str, options: list[str]) -> dict[str, Any]:
    """What each name=value says: the text itself where the task wants one, as of a label."""
    read = inspect.signature(Task.by_kind[kind].read).parameters
    known = dict(list(read.items())[1:])  # the first is what --data names
    found: dict[str, Any] = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not name or not equals:
            raise InputError(f"--option must be name=value, got {option!r}.")
        checks.choice(name, f"options of {kind}", list(known))
        worded = "str" in str(known[name].annotation)
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
    found = {path: list(each(open_texts(path, None))) for path in paths}
    return found if len(found) > 1 else found[paths[0]]


def joined_texts(paths: list[str] | None) -> Any:
    """The texts of all files together; None where there is none."""
    if not paths:
        return None
    return [text for path in paths for text in each(open_texts(path, None))]


def holds_vectors(model: str) -> bool:
    """Whether this is a file or folder of vectors, rather than a model."""
    path = Path(model)
    if os.path.isdir(path):  # one with texts alone is meant as a model, and lacks its config.json
        suffixes = {file.suffix for file in path.iterdir()} & set(FORMATS)
        return not is_model(model) and bool(suffixes - {".txt", ".bin", ".safetensors"})
    return not is_model(model) and (os.path.exists(model) or path.suffix in FORMATS)


def refuse_what_is_ignored(
    model: str, task: Task | None, of_models: dict[str, Any], of_files: dict[str, Any]
) -> None:
    """Raise where an option was given that the kind of vectors has no use for."""
    if holds_vectors(model):
        ignored, why = of_models, "a file of vectors, over which no model is run"
    elif isinstance(task, WordSimilarity):
        ignored = of_models | of_files
        why = "--task word-similarity, which takes the input embeddings of a model"
    else:
        ignored, why = of_files, "a model, whose vectors are made here"
    for name, given in ignored.items():
        if given:
            raise InputError(f"--{name} does not go with {why}. Leave it out.")


def vectors_for(
    model: str,
    task: Task | None,
    layer: str | None,
    pool: str | None,
    special_tokens: bool,
    device: str | None,
    cache: Path | None,
    column: str | None,
    text_column: str | None,
) -> tuple[Any, Any]:
    """What gives vectors of the task's texts, and the task, of words those that are known."""
    of_models = {
        "layer": layer,
        "pool": pool,
        "special-tokens": special_tokens,
        "device": device,
    }
    of_files = {"column": column, "text-column": text_column}
    refuse_what_is_ignored(model, task, of_models, of_files)
    if holds_vectors(model):
        found: Any = KeyedVectors.load(model, text_column, column)
    elif isinstance(task, WordSimilarity):
        found = embeddings(model)
    else:
        number = one_layer(layer)
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
                typer.echo(f"both words are known in {kept}", err=True)
    return found, task
