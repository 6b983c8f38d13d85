"""Rajaee and Pilehvar 2021: how fine-tuning changes the geometry of the embedding space."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from isotropy.errors import InputError
from isotropy.geometry import measure
from isotropy.layer_geometry import layers as layers_of
from isotropy.metrics.partition import log_isotropy
from isotropy.models import (
    Float32Array,
    KeyedVectors,
    TokenRows,
    WordMeans,
    holds_vectors,
    plain_text,
)
from isotropy.papers import figures
from isotropy.papers.cluster_words import FIRST, TEN, by_frequency, log_frequencies, read_tokens
from isotropy.papers.experiment import (
    Findings,
    Layout,
    Paper,
    Record,
    experiment,
    matching,
    over_seeds,
    published,
    record,
)
from isotropy.papers.settings import (
    BOTH_SIGNS,
    LOG10,
    ONE_SIGN,
    Settings,
    isotropies,
    isotropies_of,
)
from isotropy.repairs import AllButTheTop, Center, ClusterRemoval
from isotropy.tasks import Task

PAPER = Paper(
    "finetuning",
    title="How does fine-tuning affect the geometry of embedding space: a case study on isotropy",
    authors="Rajaee and Pilehvar",
    year=2021,
    about="Fine-tuning on sentence similarity makes a model much better at it without making its "
    "space isotropic. The directions that could be removed with profit before then carry what the "
    "task needs, so methods that remove them do harm.",
    bibtex="""
@inproceedings{rajaee-pilehvar-2021-fine,
  title = {How Does Fine-tuning Affect the Geometry of Embedding Space: A Case Study on Isotropy},
  author = {Rajaee, Sara and Pilehvar, Mohammad Taher},
  booktitle = {Findings of the Association for Computational Linguistics: EMNLP 2021},
  year = {2021}
}""",
    models={"BERT": "bert-base-uncased", "RoBERTa": "roberta-base"},
)
DB, ML, GT = "distilbert-base-cased", "all-MiniLM-L6-v2", "gte-small"
GLOVE = "glove.6B.50d"
TASK, METHOD = "stsb-siamese", "none"
BEFORE, AFTER, READY = "pre-trained", "tuned", "as it comes"
SPEARMAN = "Spearman x 100"
FORMS = {SPEARMAN: ".2f", BOTH_SIGNS: ".2f", ONE_SIGN: ".2f"}
WIDTH = 768  # of the paper's models
TUNING: dict[str, Any] = {
    "ready": (ML, GT),  # models that others have tuned on sentences: they are measured as they come
    "training": {"epochs": 3, "batch_size": 32, "lr": 7e-5},
}
QUICK_TUNING = {
    "ready": ("tiny-sentence-bert",),
    "training": {"epochs": 1, "batch_size": 16, "lr": 1e-3},
}
REMARK = (
    "Tuned: cosine of mean-pooled vectors, special tokens included, trained to be the score of an "
    "STS-B training pair divided by 5 (AdamW, constant learning rate); then measured on STS-B dev "
    "without special tokens."
)


def states(settings: Settings, model: str) -> dict[str, list[str]]:
    """Folders of a model before and after fine-tuning, the latter for each seed.

    A model that others have tuned has its own folder only.
    """
    own = settings.location(model)
    if Path(model).name in settings.options["ready"]:
        return {READY: [own]}
    return {BEFORE: [own], AFTER: tuned(settings, model)}


def tuned(settings: Settings, model: str) -> list[str]:
    """Folders of a model after siamese fine-tuning on STS-B, one for each seed.

    They are those that `isotropy train stsb-siamese --save` writes, such as
    distilbert-base-cased--stsb-siamese--none--seed0. A folder of that name among the models is used
    as it is; the others are kept beside the experiments of this paper, and not tuned twice.
    """
    from isotropy.trial.records import run_name
    from isotropy.trial.settings import Job, settings_for
    from isotropy.trial.trial import Trial

    training = dict(settings.options["training"])
    resolved = settings_for(TASK, model, **training)
    names = [
        run_name(Job(TASK, model, METHOD, METHOD, seed, resolved)) for seed in range(settings.seeds)
    ]
    if all(map(settings.has_model, names)):
        return [settings.location(name) for name in names]
    kept = settings.out.parent / "tuned"
    folders = [kept / name for name in names]
    trial = Trial(
        [TASK],
        [settings.location(model)],
        [METHOD],
        settings.out.parent / "tuned.jsonl",
        n_seeds=settings.seeds,
        data=settings.data,
        device=settings.device,
        jobs=settings.jobs,
        settings=training,
        save=kept if len(folders) > 1 else folders[0],
    )
    for run in trial.run():
        if run["status"] != "finished":
            raise InputError(
                f"{Path(model).name} must learn {TASK} with every seed, but seed {run['seed']} "
                f"{run['status']} ({run['why']}). Leave the model out."
            )
    return [str(folder) for folder in folders]


Spaces = Iterable[tuple[str, Float32Array]]  # settings, and the token rows in each


def _compared(
    settings: Settings,
    model: str,
    names: Iterable[str],
    fixed: Callable[[Float32Array], Spaces],
    clustered: Callable[[Float32Array, int], Spaces],
) -> list[Record]:
    """Spearman and I of each state of a model in each setting, over seeds.

    A pre-trained model has the seeds of the clustering only, a tuned one those of both.
    """
    task = settings.task("sts", "stsb", "dev")
    records = []
    for state, folders in states(settings, model).items():
        values: dict[tuple[str, str], list[float]] = {}
        n_tokens = 0
        for number, folder in enumerate(folders):
            tokens = settings.tokens(folder, task.texts)
            seeds = range(settings.seeds) if len(folders) == 1 else (number,)
            n_tokens = len(tokens.rows)
            spaces = [fixed(tokens.rows), *(clustered(tokens.rows, seed) for seed in seeds)]
            for space in spaces:
                for name, rows in space:
                    for key, value in _figures_of(task, tokens, rows).items():
                        values.setdefault((name, key), []).append(value)
        records += [
            over_seeds(
                values[name, key],
                n=task.n_items if key == SPEARMAN else n_tokens,
                state=state,
                setting=name,
                measure=key,
            )
            for name in names
            for key in FORMS
        ]
    return records


def _figures_of(task: Task, tokens: TokenRows, rows: Float32Array) -> dict[str, float]:
    """Spearman of the cosines of mean-pooled rows, and I of the rows."""
    spearman = 100 * task.score(tokens.means(rows)).value
    return {SPEARMAN: spearman} | isotropies(rows)


def _by_setting(settings: Settings, records: list[Record]) -> Findings:
    """Spearman and I in every setting, one series for each state of each model."""
    series = dict.fromkeys((one["model"], one["state"]) for one in records)
    drawn = {}
    axes = {"spearman": (SPEARMAN, SPEARMAN), "isotropy": (BOTH_SIGNS, "log10 I, both signs")}
    for name, (key, y) in axes.items():
        values = {
            f"{model}, {state}": {
                one["setting"]: one["value"]
                for one in matching(records, model=model, state=state, measure=key)
            }
            for model, state in series
        }
        drawn[name] = figures.bars(values, y)
    return Findings(figures=drawn)


def _tables() -> tuple[Layout, ...]:
    """A table for each measure, with a column for each setting."""
    titles = {
        SPEARMAN: "Spearman's correlation with people's scores, times 100",
        BOTH_SIGNS: "log10 I of all tokens, over both signs of the eigenvectors",
        ONE_SIGN: "log10 I of all tokens, with one sign of each eigenvector",
    }
    return tuple(
        Layout(("model", "state"), ("setting",), FORMS, title, (key,))
        for key, title in titles.items()
    )


SETTINGS = ("baseline", "zero-mean", "cluster zero-mean", "global", "cluster")


@experiment(
    PAPER,
    "settings",
    shows="table 1",
    title="Five settings before and after fine-tuning",
    claim="More isotropy improves a pre-trained model (54.14 to 74.01 for BERT) and harms a tuned "
    "one (84.41 to 64.43).",
    data=("stsb",),
    models=(DB, ML, GT),
    minutes=150,
    gpu=True,
    seeds=3,
    options={**TUNING, "n_clusters": 27, "n_components": 12},
    quick={**QUICK_TUNING, "n_clusters": 3, "n_components": 2},
    layouts=_tables(),
    published=(
        *published(
            {
                ("BERT", BEFORE): "54.14 59.70 67.73 69.20 74.01",
                ("BERT", AFTER): "84.41 84.94 80.10 82.14 64.43",
                ("RoBERTa", BEFORE): "33.99 37.66 60.32 65.99 73.86",
                ("RoBERTa", AFTER): "81.08 81.34 76.03 79.71 60.96",
            },
            names=("model", "state"),
            columns={"setting": SETTINGS},
            measure=SPEARMAN,
        ),
        *published(
            {
                ("BERT", BEFORE): "1.1E-5 1.1E-4 0.31 0.59 0.83",
                ("BERT", AFTER): "4.1E-3 6.6E-3 0.11 0.22 0.60",
                ("RoBERTa", BEFORE): "2.5E-6 8.3E-2 0.69 0.86 0.95",
                ("RoBERTa", AFTER): "3.3E-4 6.1E-3 0.05 0.18 0.28",
            },
            names=("model", "state"),
            columns={"setting": SETTINGS},
            convert=math.log10,
            measure=ONE_SIGN,
        ),
    ),
    remarks=(
        REMARK,
        "The same authors give I = 5.05E-05 for BERT's baseline in the cluster paper (1.1E-5 "
        "here).",
    ),
    conclude=_by_setting,
)
def five_settings(settings: Settings, model: str) -> Findings:
    """Spearman's correlation on STS-B dev (cosine of mean-pooled tokens) and I of all tokens.

    The tokens are left as they are (baseline), centred (zero-mean), centred in each of 27 clusters
    (cluster zero-mean), freed of their 12 dominant directions (global), or of those of their
    cluster (cluster). The repair is fitted on the tokens that it is applied to.
    """
    n_clusters, n_components = (settings.options[key] for key in ("n_clusters", "n_components"))
    dissolved = [0]

    def fixed(rows: Float32Array) -> Spaces:
        yield "baseline", rows
        yield "zero-mean", Center().fit_transform(rows)
        yield "global", AllButTheTop(n_components).fit_transform(rows)

    def clustered(rows: Float32Array, seed: int) -> Spaces:
        repair = ClusterRemoval(n_clusters, n_components, random_state=seed).fit(rows)
        dissolved.append(repair.n_dissolved_)
        centred = repair.with_components(ClusterRemoval(n_clusters, 0, random_state=seed))
        yield "cluster zero-mean", centred.transform(rows)
        yield "cluster", repair.transform(rows)

    records = _compared(settings, model, SETTINGS, fixed, clustered)
    note = (
        f"{Path(model).name}: up to {max(dissolved)} of {n_clusters} clusters had too few rows for "
        f"{n_components} directions, and their rows joined the nearest other cluster."
    )
    return Findings(records, notes=[note] if max(dissolved) else [])


LEAST = ("global, 100 least", "global, 700 least", "cluster, 100 least", "cluster, 700 least")


@experiment(
    PAPER,
    "least-directions",
    shows="table 2",
    title="Without the directions of least variance",
    claim="A tuned model hardly notices when 700 of its 768 directions are removed, those of least "
    "variance (84.41 to 82.93 for BERT), so the task relies on the few others.",
    data=("stsb",),
    models=(DB, GT),
    minutes=150,
    gpu=True,
    seeds=3,
    options={**TUNING, "n_clusters": 27, "least": (100, 700)},
    quick={**QUICK_TUNING, "n_clusters": 3},
    layouts=_tables(),
    published=(
        *published(
            {
                ("BERT", AFTER): "84.41 84.93 82.93 77.87 75.10",
                ("RoBERTa", AFTER): "81.08 81.66 78.59 73.19 71.39",
            },
            names=("model", "state"),
            columns={"setting": ("baseline", *LEAST)},
            measure=SPEARMAN,
        ),
        *published(
            {
                ("BERT", AFTER): "4.1E-3 2.2E-3 2.2E-3 0.10 0.16",
                ("RoBERTa", AFTER): "3.3E-4 3.2E-4 1.4E-2 0.13 0.13",
            },
            names=("model", "state"),
            columns={"setting": ("baseline", *LEAST)},
            convert=math.log10,
            measure=ONE_SIGN,
        ),
    ),
    remarks=(REMARK,),
    conclude=_by_setting,
)
def least_directions(settings: Settings, model: str) -> Findings:
    """Spearman's correlation on STS-B dev and I of all tokens without their least directions.

    The 100 or 700 principal directions of least variance are removed from all tokens (global) or
    from each of 27 clusters (cluster), after centring. If a model has another width than 768, the
    same share of its directions is removed. The pre-trained model stands beside the tuned one.
    """
    n_clusters, least = (settings.options[key] for key in ("n_clusters", "least"))
    few = [0]

    def share(n: int, rows: Float32Array) -> int:
        return int(n * rows.shape[1] / WIDTH + 0.5)

    def fixed(rows: Float32Array) -> Spaces:
        yield "baseline", rows
        for n in least:
            repair = AllButTheTop(share(n, rows), side="bottom")
            yield f"global, {n} least", repair.fit_transform(rows)

    def clustered(rows: Float32Array, seed: int) -> Spaces:
        for n in least:
            removed = share(n, rows)
            repair = ClusterRemoval(n_clusters, removed, "bottom", random_state=seed).fit(rows)
            few.append(int((repair.n_components_ < removed).sum()))
            yield f"cluster, {n} least", repair.transform(rows)

    records = _compared(settings, model, ("baseline", *LEAST), fixed, clustered)
    note = (
        f"{Path(model).name}: in up to {max(few)} of {n_clusters} clusters some of the least "
        "directions have no variance, because the rows are few or the last layer is normalised; "
        "less is removed there."
    )
    return Findings(records, notes=[note] if max(few) else [])


@experiment(
    PAPER,
    "layers",
    shows="figure 1",
    title="Isotropy of every layer before and after fine-tuning",
    claim="Fine-tuning makes the upper layers more isotropic, but they stay far from it; [CLS] is "
    "less isotropic than all tokens in most layers of a tuned model.",
    data=("stsb",),
    models=(DB,),
    minutes=150,
    gpu=True,
    seeds=3,
    options={**TUNING, "max_texts": 1_000_000},
    quick={**QUICK_TUNING, "max_texts": 30},
    layouts=tuple(
        Layout(("model", "layer"), ("state", "rows"), FORMS, title, (key,))
        for key, title in (
            (BOTH_SIGNS, "log10 I, over both signs of the eigenvectors"),
            (ONE_SIGN, "log10 I, with one sign of each eigenvector"),
        )
    ),
    remarks=(REMARK,),
)
def layers(settings: Settings, model: str) -> Findings:
    """log10 I of all tokens but special ones, and of [CLS], in every layer; STS-B dev sentences.

    Layer 0 is the embedding layer, where [CLS] is the same for every sentence. The figure shows
    -log10 I as the paper does: higher is less isotropic.
    """
    texts = settings.task("sts", "stsb", "dev").texts
    records: list[Record] = []
    for state, folders in states(settings, model).items():
        values: dict[tuple[str, int, str], list[float]] = {}
        sizes: dict[str, int] = {}
        for folder in folders:
            found = layers_of(
                folder,
                texts,
                max_texts=settings.options["max_texts"],
                max_tokens=10_000_000,
                device=settings.device,
            )
            kinds = {"all tokens": found.tokens}
            if found.first_token is not None:
                kinds[found.first_token] = found.cls
            for kind, geometries in kinds.items():
                sizes[kind] = geometries[0].n_samples
                for layer, geometry in enumerate(geometries):
                    for key, value in isotropies_of(geometry).items():
                        values.setdefault((kind, layer, key), []).append(value)
        records += [
            over_seeds(each, n=sizes[kind], layer=layer, state=state, rows=kind, measure=key)
            for (kind, layer, key), each in values.items()
        ]
    return Findings(records, {"layers": _layer_curves(records)})


def _layer_curves(records: list[Record]) -> Any:
    shown = matching(records, measure=BOTH_SIGNS)
    series, bands = {}, {}
    for state, kind in dict.fromkeys((one["state"], one["rows"]) for one in shown):
        rows = matching(shown, state=state, rows=kind)
        name = f"{state}, {kind}"
        series[name] = ([one["layer"] for one in rows], [-one["value"] for one in rows])
        if "low" in rows[0]:
            bands[name] = ([-one["high"] for one in rows], [-one["low"] for one in rows])
    figure = figures.lines(
        series, "layer", "-log10 I, both signs (higher: less isotropic)", bands=bands
    )
    figure.update_xaxes(dtick=1)
    return figure


@experiment(
    PAPER,
    "frequency",
    shows="figure 2",
    title="Word frequency in the space of tokens before and after fine-tuning",
    claim="Tokens of similar frequency lie together in pre-trained spaces; fine-tuning removes "
    "these areas.",
    data=("stsb", "wikitext2"),
    needed=2,
    models=(DB,),
    minutes=150,
    gpu=True,
    seeds=3,
    options={**TUNING, "n_points": 2000},
    quick=QUICK_TUNING,
    layouts=(Layout(("model", "state"), forms={FIRST: ".2f", TEN: ".2f"}),),
    remarks=(REMARK,),
)
def frequency(settings: Settings, model: str) -> Findings:
    """The absolute Spearman correlation of a token's word frequency with its coordinate along the
    first principal component of all tokens of STS-B dev, last layer; and the largest one among the
    first ten components. The figures show a sample of tokens, coloured by the frequency of their
    word in Wikipedia text (wikitext-2, log10 of occurrences per million), after tuning with the
    first seed.
    """
    texts = [plain_text(text) for text in settings.task("sts", "stsb", "dev").texts]
    found = Findings()
    for state, folders in states(settings, model).items():
        values: dict[str, list[float]] = {}
        for folder in reversed(folders):  # the figure of the first one stays
            rows, tokens = read_tokens(settings, folder, texts)
            logs = log_frequencies(settings, tokens)
            strengths, found.figures[state] = by_frequency(settings, rows, tokens, logs)
            for key, value in strengths.items():
                values.setdefault(key, []).append(value)
        found.records.extend(
            over_seeds(each, n=len(rows), state=state, measure=key) for key, each in values.items()
        )
    return found


REMOVED = "directions to remove"
HELD = "directions with {} of the variance"
N_SHOWN = 24  # points of a curve


@experiment(
    PAPER,
    "directions",
    shows="section 4",
    title="Directions to remove until the space is isotropic",
    claim="Fine-tuning increases the number of elongated directions, so more of them must be "
    "removed until a tuned space is as isotropic as a pre-trained one.",
    data=("stsb",),
    models=(DB,),
    minutes=150,
    gpu=True,
    seeds=3,
    options={**TUNING, "isotropy": (0.1, 0.5, 0.9), "variance": (0.5, 0.9)},
    quick=QUICK_TUNING,
    layouts=(Layout(("model", "state"), forms={}),),
    remarks=(
        REMARK,
        "I(W) depends on the lengths of the vectors, which fine-tuning changes; the number of "
        "directions that hold a share of the variance does not.",
    ),
)
def directions(settings: Settings, model: str) -> Findings:
    """How many dominant directions to remove until I of all tokens of STS-B dev is at least 0.5.

    The tokens are centred, and their principal directions removed one by one, largest variance
    first; I is taken over both signs. Also for other values of I, and the number of directions that
    hold half and nine tenths of the variance.
    """
    texts = settings.task("sts", "stsb", "dev").texts
    records: list[Record] = []
    series: dict[str, tuple[Any, Any]] = {}
    for state, folders in states(settings, model).items():
        values: dict[str, list[float]] = {}
        for number, folder in enumerate(folders):
            rows = settings.tokens(folder, texts).rows
            logs, explained = _along_directions(rows)
            for least in settings.options["isotropy"]:
                n_removed = int(np.argmax(logs >= math.log10(least)))
                values.setdefault(f"{REMOVED} for I >= {least:g}", []).append(n_removed)
            for share in settings.options["variance"]:
                n_held = 1 + int(np.searchsorted(explained, share))
                values.setdefault(HELD.format(f"{share:.0%}"), []).append(n_held)
            name = state if len(folders) == 1 else f"{state}, seed {number}"
            spaced = np.geomspace(1, len(logs) - 1, N_SHOWN)
            shown = np.unique(spaced.round().astype(int))
            series[name] = (shown, logs[shown])
        records += [
            over_seeds(each, n=len(rows), state=state, measure=key) for key, each in values.items()
        ]
    curves = figures.lines(series, "dominant directions removed", "log10 I, both signs", x_log=True)
    return Findings(records, {"directions": curves})


def _along_directions(rows: Float32Array) -> tuple[Any, Any]:
    """(log10 I without the first 0, 1, ... principal directions, cumulative shares of variance).

    Along a direction that was removed, exp(u.w) is 1 for every row; the others stay as they are.
    So the partition function of the centred rows along their principal directions is enough.
    """
    geometry = measure(rows, ["log_partition_isotropy", "explained_variance"], center=True)
    logs = geometry.drawn.log_partition  # of the mean of exp(u.w), largest variance first
    assert logs is not None
    found = [log_isotropy(logs)]
    found += [log_isotropy(np.append(logs[:, n:], 0.0)) for n in range(1, logs.shape[1] + 1)]
    return np.array(found) / LOG10, geometry.drawn.explained


CLS, MEAN, ALL, WORDS = "[CLS]", "mean", "mean with special tokens", "mean of word vectors"


def _by_pooling(settings: Settings, records: list[Record]) -> Findings:
    values: dict[str, dict[str, float]] = {}
    for one in records:
        values.setdefault(f"{one['model']}, {one['state']}", {})[one["pooling"]] = one["value"]
    return Findings(figures={"pooling": figures.bars(values, SPEARMAN)})


@experiment(
    PAPER,
    "pooling",
    shows="section 3.3",
    title="How tokens become a sentence",
    claim="Without fine-tuning [CLS] does worse than the mean of all tokens, and both do worse "
    "than the mean of GloVe's word vectors; fine-tuning lifts them far above.",
    data=("stsb",),
    models=(DB, GLOVE, ML),
    minutes=150,
    gpu=True,
    seeds=3,
    options=TUNING,
    quick=QUICK_TUNING,
    layouts=(Layout(("model", "state"), ("pooling",), FORMS),),
    remarks=(REMARK, "Models are tuned with the mean; the paper says that [CLS] does as well."),
    conclude=_by_pooling,
)
def pooling(settings: Settings, model: str) -> Findings:
    """Spearman's correlation on STS-B dev of the cosines of sentence vectors.

    A sentence is its [CLS] vector, the mean of its tokens without or with special ones, or the mean
    of its words' vectors.
    """
    task = settings.task("sts", "stsb", "dev")
    location = settings.location(model)
    kept: dict[str, Any] = {"n": task.n_items, "measure": SPEARMAN}
    if holds_vectors(location):
        means = WordMeans(KeyedVectors.load(location), task.texts)
        score = 100 * task.score(means.encode(task.texts)).value
        return Findings([record(score, state=READY, pooling=WORDS, **kept)], notes=means.notes)
    ways: Mapping[str, dict[str, Any]] = {
        CLS: {"pool": "cls"},
        MEAN: {"pool": "mean"},
        ALL: {"pool": "mean", "special_tokens": True},
    }
    records = []
    for state, folders in states(settings, model).items():
        for way, options in ways.items():
            scores = [
                100 * task.score(settings.encoder(folder, **options).encode(task.texts)).value
                for folder in folders
            ]
            records.append(over_seeds(scores, state=state, pooling=way, **kept))
    return Findings(records)
