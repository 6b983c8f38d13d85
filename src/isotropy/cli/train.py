"""isotropy train: does calibration during fine-tuning help?"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from isotropy.cli.common import JsonOption, ModelDeviceOption, command
from isotropy.tables import json_line

ALL = "all"
METHODS = (
    "none",
    "cosine",
    "spectrum-polynomial",
    "spectrum-exponential",
    "flow",
    "isobn",
    "isotropy-layer",
    "isoscore-star",
)


@dataclass(frozen=True)
class RunSettings:
    """How a model is fine-tuned and scored; None for the default of the task."""

    epochs: Annotated[
        int | None, Option(help="Epochs [3; MRPC, WNLI and generation 5].", min=1)
    ] = None
    lr: Annotated[
        float | None,
        Option(help="Learning rate of AdamW [2e-5; RoBERTa 1e-5; siamese 7e-5; generation 3e-5]."),
    ] = None
    batch_size: Annotated[int | None, Option(help="Items per step [32; generation 48].", min=2)] = (
        None
    )
    schedule: Annotated[
        Literal["constant", "linear", "polynomial"] | None,
        Option(
            help="How the learning rate changes [constant; generation polynomial].",
            show_default=False,
        ),
    ] = None
    weight_decay: Annotated[float | None, Option(help="Weight decay of AdamW [0].")] = None
    clip: Annotated[float | None, Option(help="Clip gradients to this norm [1].")] = None
    validation: Annotated[
        float | None,
        Option(
            help="Share of the training items held out for early stopping; 0 trains for all "
            "epochs [0]."
        ),
    ] = None
    patience: Annotated[
        int | None, Option(help="Stop early after this many epochs without improvement [3].", min=1)
    ] = None
    max_train: Annotated[int | None, Option(help="Train on at most this many items.", min=2)] = None
    max_eval: Annotated[int | None, Option(help="Evaluate on at most this many items.", min=2)] = (
        None
    )
    max_length: Annotated[
        int | None, Option(help="Truncate texts to this many tokens [128; generation 512].", min=8)
    ] = None
    max_target: Annotated[
        int | None, Option(help="Truncate targets to this many tokens [128].", min=2)
    ] = None
    beams: Annotated[int | None, Option(help="Beams for generation [1].", min=1)] = None
    part: Annotated[
        Literal["dev", "test"] | None, Option(help="Part to score [dev].", show_default=False)
    ] = None
    head: Annotated[
        Literal["model", "linear"] | None,
        Option(
            help="Head of classifiers: the model's own in transformers, such as BERT's pooler, "
            "tanh and linear layer; or one linear layer on [CLS] [model].",
            show_default=False,
        ),
    ] = None
    precision: Annotated[
        Literal["float32", "tf32", "bf16"] | None,
        Option(
            help="Precision of training steps; bf16 uses autocast [float32].", show_default=False
        ),
    ] = None


@command(
    "isotropy train rte --model ./my-model --method none --method cosine --data data --out r.jsonl",
    "isotropy train rte cola --model bert-base-cased --method all --data data --out runs.jsonl",
)
def train(
    tasks: Annotated[
        list[str],
        Argument(
            metavar="TASK",
            help="rte, mrpc, cola, sst2, wnli, qnli, mnli, qqp, stsb, stsb-siamese, wic, boolq; "
            "for encoder-decoders multi30k, wmt16-enro (translation) and cnndm (summarisation).",
            show_default=False,
        ),
    ],
    *,
    model: Annotated[
        list[str],
        Option(
            help="A transformers model: its folder, or its name in --models or on the hub; "
            "repeatable.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        Option(
            help="File for one line of JSON per run, such as runs.jsonl; finished runs are not "
            "repeated.",
            show_default=False,
        ),
    ],
    method: Annotated[
        list[str] | None,
        Option(
            help=f"{', '.join(METHODS)}, or all; repeatable. Options follow a colon: "
            "cosine:weight=0.1,on=cls [none]. cosine and spectrum act on the output matrix (the "
            "head's weights); on=cls is its input. isobn and isotropy-layer don't work for "
            "generation.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, Option(help="Runs per method, each with its own seed.", min=1)] = 3,
    search: Annotated[
        bool,
        Option(
            "--search",
            help="First choose the weight of each regularizer on a fifth of the training items "
            "(cosine from 0.01 to 10, spectrum from 0.01 to 1e6, isoscore-star from -1 to 10), "
            "and c1 of spectrum from 0.01 to 10, unless they are given.",
        ),
    ] = False,
    search_on: Annotated[
        list[str] | None,
        Option(
            help="With --search: choose for all tasks by the mean score on this TASK; repeatable "
            "[each task for itself].",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        Option(
            envvar="ISOTROPY_DATA",
            help="Folder with a subfolder for each task, such as rte/train.tsv and rte/dev.tsv "
            "with columns label, sentence1, sentence2; other tasks come from the hub.",
        ),
    ] = None,
    models: Annotated[
        Path | None,
        Option(envvar="ISOTROPY_MODELS", help="Folder in which to look for models first."),
    ] = None,
    settings: RunSettings,
    save: Annotated[
        Path | None,
        Option(
            help="Keep the fine-tuned encoders, without their heads, for isotropy layers, compare "
            "and transformers: in this folder, or in one subfolder per run if there are several.",
            show_default=False,
        ),
    ] = None,
    device: ModelDeviceOption = None,
    jobs: Annotated[int, Option(help="Runs at the same time, each in a process.", min=1)] = 1,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Repeat finished runs, and replace what they wrote.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Fine-tune models with and without calibration, and test whether it helped.

    Every run is scored, and its geometry is measured before and after. The table gives the mean,
    standard deviation and median over seeds, and for each method a Welch t-test against none,
    adjusted for the number of methods (Holm). An interrupted command resumes where it stopped.
    Defaults follow the papers.
    """
    from isotropy.losses import functional  # noqa: F401  fails now if torch is missing
    from isotropy.trial.summary import NONE, summary, table
    from isotropy.trial.trial import Trial

    methods = [name for one in method or ["none"] for name in (METHODS if one == ALL else (one,))]
    trial = Trial(
        tasks,
        model,
        list(dict.fromkeys(methods)),
        out,
        n_seeds=seeds,
        search=search,
        search_on=search_on or (),
        data=data,
        folder=models,
        device=device,
        jobs=jobs,
        settings=vars(settings),
        overwrite=overwrite,
        save=save,
    )
    rows = summary(trial.run(_say_run))
    if as_json:
        kept = [{k: v for k, v in vars(row).items() if k != "records"} for row in rows]
        typer.echo(json_line({"rows": kept}))
    else:
        typer.echo(table(rows))
        if any(row.method != NONE and math.isnan(row.difference) for row in rows):
            typer.echo("Nothing to compare with: no run of none has finished.", err=True)
        elif seeds == 1 and len(rows) > 1:
            typer.echo("A change can't be tested with one seed. Use more --seeds.", err=True)


def _say_run(record: dict[str, Any]) -> None:
    """A line for each finished run, if standard error is a terminal."""
    if sys.stderr.isatty():
        score = f"{100 * record['score']:.2f}" if record["status"] == "finished" else "-"
        names = " ".join(str(record[name]) for name in ("model", "task", "spec"))
        searched = " (search)" if record["search"] else ""
        typer.echo(
            f"{names} seed {record['seed']}{searched}: {record['metric']} {score}, "
            f"{record['seconds']:.0f} s, {record['status']}",
            err=True,
        )
