"""isotropy compare, advise and calibrate: does a repair help, and which one?"""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from isotropy.cli.common import ColumnOption, SourceArgument
from isotropy.errors import InputError
from isotropy.evidence import ScoreCalibrator
from isotropy.evidence import advise as find_advice
from isotropy.evidence import compare as compared
from isotropy.evidence.diagnose import diagnose
from isotropy.repairs import load
from isotropy.repairs.files import check_target
from isotropy.sources import open as open_source
from isotropy.sources.embeddings import embeddings
from isotropy.sources.encoder import Encoder
from isotropy.sources.keyed import KeyedVectors
from isotropy.sources.models import is_model, is_sentence_transformer
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
    str, typer.Option(help="Hidden layer: a number, -1 for the last, or first-last.")
]
PoolOption = Annotated[
    str | None,
    typer.Option(
        help="mean, cls, last, or own [own for a sentence-transformers folder, else mean]."
    ),
]
SpecialOption = Annotated[
    bool, typer.Option("--special-tokens", help="Count [CLS] and its like as tokens.")
]
ModelDeviceOption = Annotated[str | None, typer.Option(help="Torch device of the model.")]
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
    opened = opened_task(task, data)
    vectors, opened = vectors_for(
        model, opened, layer, pool, special_tokens, device, cache, column, key
    )
    found = compared(
        vectors,
        opened,
        repairs,
        fit_on=joined_texts(fit_on),
        transductive=transductive,
        part=part,
        seeds=seeds,
        seed=seed,
    )
    typer.echo(json.dumps(found.to_dict()) if as_json else str(found))


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
        texts = list(each(open_texts(data, None, "advise")))
        vectors, _ = vectors_for(
            model, None, layer, pool, special_tokens, device, cache, column, key
        )
        found: Any = diagnose(vectors, texts, seed=seed)
    else:
        opened = opened_task(task, data)
        vectors, opened = vectors_for(
            model, opened, layer, pool, special_tokens, device, cache, column, key
        )
        found = find_advice(vectors, opened, named_texts(fit_on), budget=budget, seed=seed)
        if save is not None and found.repair is not None:
            level = found.choice.level
            found.repair.save(save, note=f"{level} level, {model}, {data}")
            typer.echo(f"saved {found.repair!r} to {save}", err=True)
    typer.echo(json.dumps(found.to_dict()) if as_json else str(found))


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
    column: ColumnOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Say what a high cosine is in this space: the threshold for a wanted false-match rate.

    Examples:

      isotropy calibrate vectors.npy --rate 0.001

      isotropy calibrate vectors.npy --score 0.83 --repair repair.safetensors --json
    """
    if save is not None:
        check_target(save)
    rows = open_source(source, column=column, caller="calibrate")
    fitted = None if repair is None else load(repair)
    calibrator = ScoreCalibrator(n_pairs, seed).fit(rows, repair=fitted)
    found = {
        "threshold": calibrator.threshold(rate),
        "false_match_rate": rate,
        "mean": calibrator.mean_,
        "std": calibrator.std_,
        "n_pairs": calibrator.n_pairs_,
        "scores": [
            {
                "score": value,
                "p": float(calibrator.p_value(value)),
                "percentile": float(calibrator.percentile(value)),
            }
            for value in score or []
        ],
    }
    if save is not None:
        calibrator.save(save)
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo(str(calibrator))
    typer.echo(f"threshold for a false-match rate of {rate:g}: {found['threshold']:.4f}")
    for entry in found["scores"]:  # type: ignore[attr-defined]
        typer.echo(
            f"{entry['score']:g}: above {entry['percentile']:.2f} % of unrelated pairs, "
            f"p = {entry['p']:.2g}"
        )


def opened_task(kind: str, data: str) -> Task:
    """The task that the options name."""
    if kind == PSEUDO:
        return adjacent([str(text) for text in each(open_texts(data, None, "advise"))])
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
) -> tuple[Any, Any]:
    """What gives vectors of the task's texts, and the task, of words those that are known."""
    if os.path.exists(model) and not is_model(model):
        found: Any = KeyedVectors.load(model, key, column)
    elif isinstance(task, WordSimilarity):
        found = embeddings(model)
    else:
        own = is_sentence_transformer(model)
        found = Encoder(
            model,
            layer=layer if layer == "first-last" else _number(layer),
            pool=pool or ("own" if own else "mean"),
            special_tokens=special_tokens,
            device=device,
            cache=cache,
        )
    if isinstance(task, WordSimilarity):
        task = task.known(found.words)
    return found, task


def _number(layer: str) -> int:
    try:
        return int(layer)
    except ValueError:
        raise InputError(f"--layer must be a number or first-last, got {layer!r}.") from None
