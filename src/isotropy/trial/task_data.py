"""The tasks of the trial: their data, their settings, and how they are scored."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError, MissingExtraError
from isotropy.tasks import YES, reading, stem

CLASSIFICATION, REGRESSION, SIAMESE, GENERATION = (
    "classification",
    "regression",
    "siamese",
    "generation",
)
MOST = 5.0  # the highest score of STS-B
UNDIVIDED_SHARE = 0.2  # of a task without parts, held out for evaluation
Labels = NDArray[Any]


@dataclass(frozen=True)
class TaskSpec:
    """A task of the trial: where its data is, and how it is trained and scored."""

    hub: str  # its name on the hub, with the configuration after a colon
    columns: tuple[str, ...] = ("sentence1", "sentence2")  # texts; of generation source and target
    metrics: tuple[str, ...] = ("accuracy",)  # methods are compared by the first
    kind: str = CLASSIFICATION
    label: str = "label"  # column of the label or the score
    folder: str = ""  # its folder, if that is not named like the task
    prefix: str = ""  # what T5 reads before the source
    settings: Mapping[str, Any] = field(default_factory=dict)  # that differ from others of its kind


FIVE_EPOCHS = {"epochs": 5}
PAIR = ("sentence1", "sentence2")
ROUGE = ("rouge1", "rouge2", "rougeL")
TASKS = {
    "rte": TaskSpec("nyu-mll/glue:rte"),
    "mrpc": TaskSpec("nyu-mll/glue:mrpc", PAIR, ("f1", "accuracy"), settings=FIVE_EPOCHS),
    "cola": TaskSpec("nyu-mll/glue:cola", ("sentence",), ("matthews", "accuracy")),
    "sst2": TaskSpec("nyu-mll/glue:sst2", ("sentence",)),
    "wnli": TaskSpec("nyu-mll/glue:wnli", settings=FIVE_EPOCHS),
    "qnli": TaskSpec("nyu-mll/glue:qnli", ("question", "sentence")),
    "mnli": TaskSpec("nyu-mll/glue:mnli", ("premise", "hypothesis")),
    "qqp": TaskSpec("nyu-mll/glue:qqp", ("question1", "question2"), ("accuracy", "f1")),
    "stsb": TaskSpec("nyu-mll/glue:stsb", PAIR, ("pearson", "spearman"), REGRESSION, "score"),
    "stsb-siamese": TaskSpec(
        "nyu-mll/glue:stsb", PAIR, ("spearman", "pearson"), SIAMESE, "score", folder="stsb"
    ),
    "wic": TaskSpec("aps/super_glue:wic"),
    "boolq": TaskSpec("aps/super_glue:boolq", ("question", "passage")),
    "multi30k": TaskSpec(
        "bentrevett/multi30k",
        ("en", "de"),
        ("bleu",),
        GENERATION,
        prefix="translate English to German: ",
    ),
    "wmt16-enro": TaskSpec(
        "wmt/wmt16:ro-en",
        ("en", "ro"),
        ("bleu",),
        GENERATION,
        prefix="translate English to Romanian: ",
    ),
    "cnndm": TaskSpec(
        "abisee/cnn_dailymail:3.0.0",
        ("article", "highlights"),
        ROUGE,
        GENERATION,
        prefix="summarize: ",
    ),
}


@dataclass(frozen=True)
class Part:
    """Items of a task: their texts, and their labels (class numbers, scores or texts)."""

    texts: list[tuple[str, ...]]
    labels: Labels
    files: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: NDArray[np.int64]) -> Part:
        return Part([self.texts[i] for i in rows], self.labels[rows], self.files[rows])


@dataclass(frozen=True)
class TaskData:
    """The data of a task: what to train on and what to evaluate."""

    name: str
    spec: TaskSpec
    train: Part
    evaluated: Part
    classes: list[str]  # their names; empty if labels are scores or texts
    divided: bool  # whether there is a training part; else a fifth of the rows is held out

    def checksum(self) -> str:
        """Checksum of all texts and labels."""
        found = hashlib.sha256()
        for part in (self.train, self.evaluated):
            for texts, label in zip(part.texts, part.labels.tolist(), strict=True):
                found.update(repr((texts, label)).encode(errors="surrogatepass"))
        return found.hexdigest()[:16]

    @property
    def positive(self) -> int:
        """The class that F1 refers to."""
        yes = [i for i, name in enumerate(self.classes) if name.lower() in YES]
        return yes[0] if yes else len(self.classes) - 1


def task_spec(name: str) -> TaskSpec:
    """The task of this name."""
    return TASKS[checks.choice(name, "TASK", list(TASKS))]


def read_task(name: str, folder: str | os.PathLike[str] | None, part: str = "dev") -> TaskData:
    """One of TASKS, read from its folder in `folder` or else from the hub, to evaluate a part."""
    spec = task_spec(name)
    checks.choice(part, "part", ("dev", "test"))
    table = _flat(_table(spec, name, folder))
    to_train_on = "train" in table.parts
    items, of_item, classes = _items(table, spec, name)
    parts = np.asarray(of_item)
    if to_train_on and "train" not in parts:
        raise InputError(f"{name!r} must have labelled rows in its part 'train', got none.")
    if "train" in parts:
        if part not in parts:
            found = ", ".join(sorted(set(parts.tolist())))
            raise InputError(f"{name!r} must have labelled rows in its part {part!r}, got {found}.")
        train, evaluated = np.flatnonzero(parts == "train"), np.flatnonzero(parts == part)
    else:
        order = np.random.default_rng(0).permutation(len(parts))
        cut = max(1, round(UNDIVIDED_SHARE * len(parts)))
        evaluated, train = np.sort(order[:cut]), np.sort(order[cut:])
    if len(train) < 2:
        raise InputError(f"{name!r} must have at least 2 rows to train on, got {len(train)}.")
    return TaskData(name, spec, items.take(train), items.take(evaluated), classes, "train" in parts)


def _table(spec: TaskSpec, name: str, folder: str | os.PathLike[str] | None) -> reading.Table:
    """The table in the task's folder or else on the hub."""
    if folder is None:
        return reading.read_table(spec.hub)
    if not os.path.isdir(folder):
        raise InputError(f"data must be a folder, got {str(folder)!r}.")
    local = Path(folder) / (spec.folder or name)
    if local.is_dir():
        return reading.read_table(local)
    try:
        return reading.read_table(spec.hub)
    except InputError as error:
        raise InputError(f"there is no folder {str(local)!r}, and {error}") from error


def _flat(table: reading.Table) -> reading.Table:
    """The table with one column per language, if pairs share a column."""
    pairs = table.columns.get("translation")
    if pairs and isinstance(pairs[0], dict):
        table.columns.update({name: [pair[name] for pair in pairs] for name in pairs[0]})
    return table


def _items(
    table: reading.Table, spec: TaskSpec, name: str
) -> tuple[Part, Sequence[str], list[str]]:
    """(the items, the part of each, names of the classes)."""
    if spec.kind == GENERATION:
        table.choose(spec.columns)
        pairs = table.texts(*spec.columns)
        targets = np.array([target for _, target in pairs], dtype=object)
        sources: list[tuple[str, ...]] = [(source,) for source, _ in pairs]
        return Part(sources, targets, np.asarray(table.files)), table.parts, []
    columns = table.choose(spec.columns)
    label = table.choose((spec.label,), ("label",))[0]
    table, names = table.labels(label)
    texts = table.texts(*columns)
    if name == "wic":
        words = table.texts(*table.choose(("lemma",), ("word",)))
        texts = [(f"{word}: {one}", two) for (word,), (one, two) in zip(words, texts, strict=True)]
    files = np.asarray(table.files)
    if spec.kind == CLASSIFICATION:
        classes = _classes(table, names, name)
        labels: Labels = np.array([classes.index(value) for value in names])
        return Part(texts, labels, files), table.parts, classes
    scores = np.array(table.numbers(label))
    outside = np.flatnonzero(~((scores >= 0) & (scores <= MOST)))
    if len(outside):
        raise InputError(
            f"{table.place(int(outside[0]))} must have a score in [0, {MOST:g}], got "
            f"{scores[outside[0]]:g}. Correct that line."
        )
    return Part(texts, scores, files), table.parts, []


def _classes(table: reading.Table, names: Sequence[str], task: str) -> list[str]:
    """The classes of the training rows; evaluated rows may have no others."""
    learned = {n for n, part in zip(names, table.parts, strict=True) if part == "train"}
    classes = sorted(learned or set(names))
    for row, name in enumerate(names):
        if name not in classes:
            raise InputError(
                f"{table.place(row)} must have one of the labels {', '.join(classes)} "
                f"that {task!r} is trained on, got {name!r}. Correct that line."
            )
    if len(classes) < 2:
        raise InputError(f"{task!r} must have at least two classes, got {', '.join(classes)}.")
    return classes


def split(part: Part, share: float, seed: int) -> tuple[Part, Part]:
    """(the rest, a share drawn with the seed) of the items, both in their order."""
    order = np.random.default_rng([seed, 1]).permutation(len(part))
    cut = round(share * len(part))
    if not 0 < cut < len(part) - 1:
        raise InputError(
            f"validation must leave items on both sides, got {cut} and {len(part) - cut} with a "
            f"share of {share:g}. Use another share, or more items."
        )
    return part.take(np.sort(order[cut:])), part.take(np.sort(order[:cut]))


def first(part: Part, n_items: int | None, seed: int) -> Part:
    """At most n_items of the items, drawn with the seed."""
    if n_items is None or n_items >= len(part):
        return part
    order = np.random.default_rng([seed, 2]).permutation(len(part))
    return part.take(np.sort(order[:n_items]))


def scores(data: TaskData, part: Part, predicted: Any) -> dict[str, float]:
    """The metrics of predictions for a part, for each file if it comes from several.

    Predictions are of shape (n_items, n_classes) or (n_items,), or texts. An undefined metric, such
    as the correlation of a constant, is NaN. Runs are compared by the first.
    """
    files = list(dict.fromkeys(part.files.tolist()))
    if len(files) == 1:
        return _scored(data, part.labels, predicted)
    found = {}
    for file in files:  # the matched and the mismatched part of MNLI, for example
        rows = np.flatnonzero(part.files == file)
        chosen = [predicted[i] for i in rows]
        own = _scored(data, part.labels[rows], np.asarray(chosen))
        found.update({f"{name}_{stem(file)}": value for name, value in own.items()})
    return found


def _scored(data: TaskData, gold: Labels, predicted: Any) -> dict[str, float]:
    if data.spec.kind == GENERATION:
        return _generated(data.spec.metrics, list(predicted), gold.tolist())
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore")  # about constant input, for which the metric is NaN
        if data.spec.kind == CLASSIFICATION:
            return _classified(data, gold, np.argmax(predicted, axis=1))
        return {name: _correlation(name, gold, predicted) for name in data.spec.metrics}


def _classified(data: TaskData, gold: Labels, called: Labels) -> dict[str, float]:
    from sklearn.metrics import f1_score, matthews_corrcoef

    of = {
        "accuracy": (gold == called).mean(),
        "matthews": matthews_corrcoef(gold, called),
        "f1": f1_score(gold, called, labels=[data.positive], average="micro", zero_division=0.0),
    }
    found = {name: float(of[name]) for name in data.spec.metrics}
    return found | {"n_called": float(len(np.unique(called)))}


def _correlation(name: str, gold: Labels, predicted: Labels) -> float:
    import scipy.stats

    if not np.isfinite(predicted).all():
        return math.nan
    of: Any = scipy.stats.pearsonr if name == "pearson" else scipy.stats.spearmanr
    return float(of(gold, predicted).statistic)


def _generated(metrics: Sequence[str], texts: list[str], gold: list[str]) -> dict[str, float]:
    try:
        import sacrebleu
        from rouge_score import rouge_scorer
    except ImportError as error:
        raise MissingExtraError(
            f"{', '.join(metrics)} needs {error.name}, which is not installed. "
            'Run: pip install "isotropy[train]".'
        ) from error
    if metrics == ("bleu",):
        return {"bleu": sacrebleu.corpus_bleu(texts, [gold]).score / 100}
    scorer = rouge_scorer.RougeScorer(list(metrics), use_stemmer=True)
    each = [scorer.score(target, text) for target, text in zip(gold, texts, strict=True)]
    return {name: float(np.mean([found[name].fmeasure for found in each])) for name in metrics}
