"""isotropy compare and advise: does a repair help, and which one?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from isotropy import checks, specs
from isotropy.cli import common
from isotropy.errors import InputError
from isotropy.evidence import advise as find_advice
from isotropy.evidence import compare as compare_repairs
from isotropy.evidence import diagnose
from isotropy.models import (
    KeyedVectors,
    each,
    embeddings,
    holds_vectors,
    open_encoder,
    open_texts,
    read_rows,
    short_name,
)
from isotropy.progress import ProgressBar
from isotropy.repairs import Repair, check_target
from isotropy.sources import guard, open_source
from isotropy.tables import json_line
from isotropy.tasks import Retrieval, Scorer, Task, WordSimilarity, adjacent, open_task

PSEUDO = "pseudo"
Kind = StrEnum("Kind", {name: name for name in [*Task.by_kind, PSEUDO]})  # type: ignore[misc]

VectorsArgument = Annotated[
    str,
    Argument(
        metavar="MODEL_OR_VECTORS",
        help="A model (folder, hub name or .gguf file), or a file of vectors with a column of "
        "texts or words; with words, a text is the mean of its words.",
        show_default=False,
    ),
]
DATA_HELP = "File or folder of the task, or its name on the hub"
GroupsOption = Annotated[
    str | None,
    Option(
        "--group-column",
        metavar="NAME",
        help="Column of --data with the group of each text, such as its language (for pairs "
        "also NAME,NAME): every repair is also tried with one fit per group.",
        show_default=False,
    ),
]
TowersOption = Annotated[
    bool,
    Option(
        "--towers",
        help="Try every repair also with one fit for queries and one for documents; needs "
        "--task retrieval or pseudo.",
    ),
]
REPAIR_NAMES = [*Repair.by_name, *(f"token/{name}" for name in Repair.by_name)]


@dataclass(frozen=True)
class TaskOptions:
    """How the task is read, and what repairs are fitted on."""

    fit_on: Annotated[
        list[str] | None,
        Option(
            help="File of texts to fit repairs on, instead of the task's own; repeatable: "
            "`compare` and `compress` join them, `advise` shows how the choice depends on them."
        ),
    ] = None
    transductive: Annotated[
        bool,
        Option("--transductive", help="Fit on the evaluated texts themselves, as the papers did."),
    ] = False
    option: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE",
            help="An option of the task, such as label=intent, text=utterance or score=rating "
            "(names of columns), combine=mean, similarity=dot, positive=yes, head=mlp or "
            "metric=matthews; repeatable.",
        ),
    ] = None
    header: Annotated[
        str | None,
        Option(
            metavar="NAME,NAME,...",
            help="Names for the columns of --data if it has no header, such as word1,word2,score "
            "or label,text; _ for a column to ignore.",
            show_default=False,
        ),
    ] = None

    def open(self, kind: str, data: str, group_column: str | None = None) -> Task:
        columns: dict[str, Any] = {"header": self.header, "group_column": group_column}
        if kind != PSEUDO:
            found = option_values(kind, self.option or [])
            for name, given in columns.items():
                if given is None:
                    continue
                if name not in Task.by_kind[kind].read_options():
                    raise InputError(
                        f"--{name.replace('_', '-')} can't be used with --task {kind}, whose files "
                        "have fixed columns. Leave it out."
                    )
                found[name] = given
            return open_task(str(kind), data, **found)
        for name, given in (columns | {"option": self.option}).items():
            if given:
                flag = name.replace("_", "-")
                raise InputError(f"--{flag} can't be used with --task {PSEUDO}. Leave it out.")
        return adjacent([str(text) for text in each(open_texts(data, None))])

    def texts(self) -> dict[str, list[Any]]:
        """The texts of each file to fit on, by its name."""
        return {path: list(each(open_texts(path, None))) for path in self.fit_on or ()}


@dataclass(frozen=True)
class VectorOptions:
    """How the vectors of texts are made or read."""

    layer: common.LayerOption = None
    pool: Annotated[
        str | None,
        Option(
            help=f"{common.POOL_HELP}.",
            show_default=False,
            autocompletion=common.among("mean", "cls", "last", "own"),
        ),
    ] = None
    special_tokens: common.SpecialOption = False
    device: common.ModelDeviceOption = None
    cache: common.CacheOption = None
    column: common.ColumnOption = None
    text_column: Annotated[
        str | None,
        Option(help="Column with the texts, if a file of vectors has several.", show_default=False),
    ] = None
    query_vectors: Annotated[
        str | None,
        Option(
            help="File with a vector for each entry of the file of queries, in its order, if "
            "MODEL_OR_VECTORS has one for each entry of the corpus, in its order; for --task "
            "retrieval. --column holds for both files.",
            show_default=False,
        ),
    ] = None

    def open(self, model: str, task: Task | None) -> tuple[Any, Any]:
        """The vectors, and the task with those pairs of words that have vectors."""
        self.refuse_what_is_ignored(model, task)
        found: Any
        if self.query_vectors is not None:
            found = self.of_files(model, self.query_vectors, task)
        elif isinstance(task, WordSimilarity) and not holds_vectors(model):
            found = embeddings(model)
        else:
            layer = None if self.layer is None else common.one_layer(self.layer)
            options = vars(self) | {"layer": layer}
            del options["query_vectors"]
            found = open_encoder(model, **options)
            if isinstance(task, Retrieval) and isinstance(found, KeyedVectors):
                expect_queries(found, task)
        if isinstance(task, WordSimilarity):
            task = task.known(found.words)
            for name, n_listed in task.n_listed.items():
                if task.n_kept[name] < n_listed:
                    kept = f"{task.n_kept[name]:,} of {n_listed:,} pairs of {name!r}"
                    typer.echo(f"both words are known in {kept}", err=True)
        return found, task

    def of_files(self, documents: str, queries: str, task: Task | None) -> KeyedVectors:
        """Vectors in the order of a corpus and of queries, by the texts of these."""
        if not isinstance(task, Retrieval) or not holds_vectors(documents):
            raise InputError(
                "--query-vectors must come with --task retrieval and a file of vectors of the "
                "corpus, got others. Leave it out."
            )
        source = open_source(documents, column=self.column)
        asked = open_source(queries, column=self.column)
        rows = task.arranged(read_rows(source), read_rows(asked))
        found = KeyedVectors(rows, task.texts)
        found.made = source.origin()
        return found

    def refuse_what_is_ignored(self, model: str, task: Task | None) -> None:
        """Raise if an option was given that has no effect on these vectors."""
        of_models = ["layer", "pool", "special_tokens", "device"]
        of_files = ["column", "text_column"]
        if self.query_vectors is not None:
            ignored = [*of_models, "text_column"]
            why = "--query-vectors: no model is run, and the texts are those of --data"
        elif holds_vectors(model):
            ignored, why = of_models, "a file of vectors, for which no model is run"
        elif isinstance(task, WordSimilarity):
            ignored = of_models + of_files
            why = "--task word-similarity, which uses the input embeddings of a model"
        else:
            ignored, why = of_files, "a model"
        for name in ignored:
            if getattr(self, name):
                flag = name.replace("_", "-")
                raise InputError(f"--{flag} can't be used with {why}. Leave it out.")


@common.command(
    "isotropy compare vectors.parquet --task sts --data pairs.tsv",
    "isotropy compare sentence-transformers/all-MiniLM-L6-v2 --task sts "
    "--data sentence-transformers/stsb --repairs center,whiten",
)
def compare(
    model: VectorsArgument,
    *,
    task: Annotated[Kind, Option(help="The kind of task.", show_default=False)],
    data: Annotated[str, Option(help=f"{DATA_HELP}.", show_default=False)],
    repairs: Annotated[
        list[str] | None,
        Option(
            help="Repairs separated by commas, such as center,token/whiten or "
            "cluster-removal:n_clusters=27,n_components=12; with --task retrieval also scorers "
            "that correct for hubs (csls, local-scaling), alone or after a repair: center+csls; "
            "repeatable [every repair with its default parameters].",
            autocompletion=common.among(*REPAIR_NAMES, *Scorer.by_name),
        ),
    ] = None,
    task_options: TaskOptions,
    part: Annotated[
        str | None,
        Option(
            help="Part to evaluate on: train, dev, test or all [dev, else test, else all].",
            autocompletion=common.among("train", "dev", "test", "all"),
        ),
    ] = None,
    seeds: Annotated[
        int, Option(help="Fits to average for repairs that depend on a seed.", min=1)
    ] = 5,
    group_column: GroupsOption = None,
    towers: TowersOption = False,
    options: VectorOptions,
    seed: common.SeedOption = 0,
    as_json: common.JsonOption = False,
) -> None:
    """Score every repair on a task, with intervals and p-values.

    Repairs are fitted on texts that are not evaluated. Each is compared with no repair on the same
    items; p-values are adjusted for the number of repairs (Holm).
    """
    inputs = task_inputs(model, data, task_options, options)
    guard({}, inputs, kept={"--cache": options.cache})
    common.offline_unless_reached(model, data)
    opened = task_options.open(task, data, group_column)
    groups = towers_of(opened) if towers else None
    texts = task_options.texts().values()
    vectors, opened = options.open(model, opened)
    with ProgressBar("repairs") as bar:
        found = compare_repairs(
            vectors,
            opened,
            separated(repairs),
            fit_on=[text for some in texts for text in some] or None,
            transductive=task_options.transductive,
            part=part,
            seeds=seeds,
            seed=seed,
            groups=groups,
            progress=bar.update,
        )
    tell(found, as_json)


@common.command(
    "isotropy advise vectors.parquet --task sts --data pairs.tsv --save repair.safetensors",
    "isotropy advise bert-base-cased --task classification --data labels.tsv --budget 4 --json",
)
def advise(
    model: VectorsArgument,
    *,
    data: Annotated[
        str, Option(help=f"{DATA_HELP}; without --task, a file of texts.", show_default=False)
    ],
    task: Annotated[
        Kind | None,
        Option(
            help="The kind of task; pseudo: find the next line of a text file; omit it to "
            "get a diagnosis only."
        ),
    ] = None,
    repairs: Annotated[
        list[str] | None,
        Option(
            help="Repairs to choose from, simplest first, written as for `compare`; repeatable "
            "[a search over the built-in repairs and their parameters].",
            autocompletion=common.among(*REPAIR_NAMES),
        ),
    ] = None,
    task_options: TaskOptions,
    save: Annotated[
        Path | None,
        Option(
            help="File for the recommended repair, to be used with `apply` or `embed --repair`."
        ),
    ] = None,
    overwrite: common.OverwriteOption = False,
    group_column: GroupsOption = None,
    towers: TowersOption = False,
    budget: Annotated[int, Option(help="Try at most this many repairs.", min=1)] = 24,
    options: VectorOptions,
    seed: common.SeedOption = 0,
    as_json: common.JsonOption = False,
) -> None:
    """Recommend a repair for a task, or advise leaving the space alone.

    Repairs and their parameters are searched on the training part by cross-validation. The
    selection procedure is tested on unseen folds, and the chosen repair is scored on the test part.
    """
    own = {"save": save, "repairs": repairs, "group_column": group_column, "towers": towers}
    for name, given in (vars(task_options) | own).items():
        if given and task is None:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} needs --task, got none. Name a task.")
    save = common.destination(save)
    inputs = task_inputs(model, data, task_options, options)
    kept = {"--cache": options.cache}
    check_target({"--save": save}, inputs, kept=kept, overwrite=overwrite)
    common.offline_unless_reached(model, data)
    if task is None:
        texts = list(each(open_texts(data, None)))
        vectors, _ = options.open(model, None)
        tell(diagnose(vectors, texts, seed=seed), as_json)
        return
    opened = task_options.open(task, data, group_column)
    groups = towers_of(opened) if towers else None
    named = task_options.texts()
    vectors, opened = options.open(model, opened)
    choices: dict[str, Any] = {"candidates": separated(repairs)} if repairs else {}
    choices |= {"transductive": True} if task_options.transductive else {}
    with ProgressBar("repairs") as bar:
        found = find_advice(
            vectors,
            opened,
            named if len(named) > 1 else next(iter(named.values()), None),
            budget=budget,
            seed=seed,
            groups=groups,
            progress=bar.update,
            **choices,
        )
    with common.beside(save):
        tell(found, as_json)  # before it is saved, which may fail
    if save is None:
        return
    if found.repair is None:
        typer.echo("nothing was saved, as no repair is recommended", err=True)
        return
    level = found.choice.level
    note = f"{level} level, {short_name(model)}, {short_name(data)}"
    found.repair.save(save, note=note, level=level, overwrite=overwrite)
    typer.echo(f"saved {found.repair!r} to {save}", err=True)


def expect_queries(vectors: KeyedVectors, task: Retrieval) -> None:
    """Raise if the vectors are those of the documents alone."""
    asked = {task.texts[i] for i in task.members[:, 0]}
    if any(text in vectors for text in asked) or not any(text in vectors for text in task.corpus):
        return
    raise InputError(
        f"MODEL_OR_VECTORS must hold documents and queries, got none of the {len(asked):,} "
        "queries. Give the file with their vectors as --query-vectors."
    )


def towers_of(task: Task) -> dict[Any, str]:
    """The groups of queries and documents."""
    if not isinstance(task, Retrieval):
        raise InputError(
            f"--towers needs --task retrieval or {PSEUDO}, got {task.kind}. Leave it out, or use "
            "--group-column."
        )
    return task.towers


def task_inputs(
    model: str, data: str | None, task_options: TaskOptions, options: VectorOptions
) -> dict[str, Any]:
    """What a command with a task reads, which must not be written to."""
    given = {"MODEL_OR_VECTORS": model, "--data": data, "--fit-on": task_options.fit_on}
    return given | {"--query-vectors": options.query_vectors}


def tell(found: Any, as_json: bool) -> None:
    typer.echo(json_line(found.to_dict()) if as_json else str(found))


def separated(given: Iterable[str] | None) -> list[str] | None:
    """The repairs in texts such as "center,whiten:power=0.5,eps=1": a new one has no equals sign.

    Examples
    --------
    >>> separated(["center,whiten:power=0.5,eps=1,token/center"])
    ['center', 'whiten:power=0.5,eps=1', 'token/center']
    """
    if given is None:
        return None
    return [one.strip() for spec in given for one in re.split(r",(?=[^,=]*(?:[,:]|$))", spec)]


def option_values(kind: str, options: list[str]) -> dict[str, Any]:
    """The values of name=value; one that the task wants as text, such as a label, stays text."""
    known = Task.by_kind[kind].read_options()
    found: dict[str, Any] = {}
    for option in options:
        name, text = specs.split(option, "--option")
        checks.choice(name, f"options of {kind}", list(known))
        worded = "str" in str(known[name].annotation)
        found[name] = text if worded else specs.value(text)
    return found
