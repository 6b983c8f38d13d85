"""Rajaee and Pilehvar 2021: a cluster-based approach for improving isotropy."""

from __future__ import annotations

import functools
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np

from isotropy.layer_geometry import layers as layers_of
from isotropy.metrics import mean_cosine
from isotropy.papers import cluster_mlp, cluster_words, figures
from isotropy.papers.cluster_shared import (
    BASELINE,
    CLUSTER,
    DB,
    GLOBAL,
    GT,
    ML,
    PAPER,
    QUICK_SIZES,
    SETTINGS,
    SIZES,
    SM,
    components,
    drawn,
    isotropies_over,
    repaired,
    seeds_of,
    sizes_for,
    sizes_note,
)
from isotropy.papers.experiment import (
    Findings,
    Layout,
    Record,
    experiment,
    matching,
    over_seeds,
    published,
    record,
)
from isotropy.papers.settings import (
    BOTH_SIGNS,
    ONE_SIGN,
    Settings,
    isotropies_of,
    isotropy_records,
)
from isotropy.repairs import AllButTheTop, ClusterRemoval

__all__ = ["PAPER", "cluster_mlp", "cluster_words"]

LOGARITHMS = {BOTH_SIGNS: ".2f", ONE_SIGN: ".2f"}
STS_SETS = ("stsb", "sts12", "sts13", "sts14", "sts15", "sts16", "sick")
TABLE_ORDER = ("sts12", "sts13", "sts14", "sts15", "sts16", "sick", "stsb")  # of tables 2 and 6
SPEARMAN, SPEARMAN_ALL = "Spearman x 100", "Spearman x 100, all pairs"


def _curves(settings: Settings, records: list[Record]) -> Findings:
    series = {}
    for name in dict.fromkeys(one["model"] for one in records):
        rows = matching(records, model=name, measure=BOTH_SIGNS)
        series[name] = ([one["layer"] for one in rows], [-one["value"] for one in rows])
    figure = figures.lines(
        series, "layer", "-log10 I, both signs (higher: less isotropic)", y_log=True
    )
    figure.update_yaxes(dtick=1)  # powers of ten only
    return Findings(figures={"layers": figure})


@experiment(
    PAPER,
    "layers",
    shows="figure 1, table 5",
    title="Isotropy of every layer",
    claim="All layers but the first are far from isotropic, and GPT-2's are the worst.",
    data=("stsb",),
    models=(DB, SM, ML, GT),
    minutes=8,
    layouts=tuple(
        Layout(("layer",), ("model",), {name: ".2f"}, name, (name,))
        for name in (BOTH_SIGNS, ONE_SIGN)
    ),
    published=published(
        {
            "GPT-2": "1.5E-02 9.9E-24 2.8E-23 6.1E-26 1.6E-27 3.0E-30 1.6E-32 1.3E-37 3.4E-45 "
            "6.4E-55 4.1E-32 1.8E-132 5.0E-174",
            "BERT": "4.6E-04 9.9E-06 6.3E-05 8.8E-05 9.2E-06 4.8E-06 3.9E-06 1.1E-07 1.0E-05 "
            "2.5E-05 6.9E-05 2.4E-07 5.0E-05",
            "RoBERTa": "9.1E-03 2.7E-07 8.7E-10 4.2E-09 5.4E-12 2.4E-10 3.1E-10 1.3E-10 1.4E-10 "
            "1.3E-10 6.7E-11 1.4E-10 2.7E-06",
        },
        columns={"layer": range(13)},
        convert=math.log10,
        measure=ONE_SIGN,
    ),
    remarks=('Table 5 prints "3.1Ef-10" for layer 6 of RoBERTa; 3.1E-10 is taken to be meant.',),
    conclude=_curves,
)
def layers(settings: Settings, model: str) -> Findings:
    """log10 I(W) of all tokens but special ones, in every layer from the embedding layer (0) to the
    last; all sentences of STS-B dev. "log10 I" takes both signs of every eigenvector; "one sign"
    takes the arbitrary one that the eigenvectors come with, as the paper does. Zero is isotropic.
    """
    found = layers_of(
        settings.location(model),
        settings.task("sts", "stsb", "dev").texts,
        max_texts=None,
        max_tokens=None,
        device=settings.device,
    )
    return Findings([
        record(value, n=geometry.n_samples, layer=i, measure=name)
        for i, geometry in enumerate(found.tokens)
        for name, value in isotropies_of(geometry).items()
    ])  # fmt: skip


@experiment(
    PAPER,
    "local",
    shows="table 1",
    title="Isotropy after centring each cluster",
    claim="Seen from within its clusters, the space is far more isotropic; GPT-2's stays far from "
    "isotropic.",
    data=("stsb",),
    models=(DB, SM),
    minutes=10,
    seeds=5,
    options={"n_clusters": [1, 3, 6, 9, 20]},
    quick={"n_clusters": [1, 3]},
    layouts=(Layout(("model", "clusters"), forms=LOGARITHMS),),
    published=published(
        {
            "GPT-2": "5.02E-174 2.49E-220 9.42E-66 1.40E-41 1.18E-41 4.06E-47",
            "BERT": "5.05E-05 0.010 0.040 0.125 0.131 0.262",
            "RoBERTa": "2.70E-06 0.015 0.290 0.453 0.545 0.603",
        },
        columns={"clusters": ("none", 1, 3, 6, 9, 20)},
        convert=math.log10,
        measure=ONE_SIGN,
    ),
    remarks=(
        "For BERT on STS-B dev the authors print I = 5.05E-05 here and 1.1E-5 in their paper on "
        "fine-tuning; a value that depends on arbitrary signs can differ so much.",
    ),
)
def local(settings: Settings, model: str) -> Findings:
    """log10 I(W) of all tokens but special ones of STS-B dev, last layer, after k-means with k
    clusters and subtracting from each token the mean of its cluster; "none" is the space as it is.
    Mean over clusterings with different seeds.
    """
    rows = settings.tokens(model, settings.task("sts", "stsb", "dev").texts).rows
    found = isotropy_records(rows, clusters="none")
    for k in settings.options["n_clusters"]:
        found += isotropies_over(
            functools.partial(repaired, rows, CLUSTER, (k, 0, 0)),
            range(settings.seeds),
            clusters=k,
        )
    return Findings(found)


@experiment(
    PAPER,
    "local-view",
    shows="figure 2",
    title="Where the mean cosine is fooled",
    claim="After local centring GPT-2's tokens lie around a line: random pairs have a cosine near "
    "zero, and yet the space is far from isotropic.",
    data=("stsb",),
    models=(SM,),
    minutes=5,
    options={"sizes": SIZES, "n_points": 2000},
    quick={"sizes": QUICK_SIZES},
    layouts=(
        Layout(
            ("model", "tokens"),
            forms=LOGARITHMS | {"mean cosine": ".3f", "variance along the first component": ".1%"},
        ),
    ),
)
def local_view(settings: Settings, model: str) -> Findings:
    """All tokens of STS-B dev, last layer, as they are and after each lost the mean of its cluster:
    the mean cosine of pairs, log10 I(W), and the share of the variance along the first principal
    component. The figures show a sample of the tokens along the first two components.
    """
    rows = settings.tokens(model, settings.task("sts", "stsb", "dev").texts).rows
    n_clusters, _, _ = sizes_for(settings, model)
    centred = ClusterRemoval(n_clusters, 0).fit_transform(rows)
    shown = drawn(len(rows), settings.options["n_points"])
    found = Findings(notes=[f"{Path(model).name}: {n_clusters} clusters."])
    for name, space in (("as they are", rows), ("locally centred", centred)):
        positions, shares = components(space, 2)
        found.records.append(record(mean_cosine(space), measure="mean cosine", tokens=name))
        found.records.extend(isotropy_records(space, tokens=name))
        measure = "variance along the first component"
        found.records.append(record(shares[0], n=len(space), measure=measure, tokens=name))
        figure = figures.points({name: positions[shown]})
        figure.update_yaxes(scaleanchor="x")  # one scale, so that a line looks like one
        found.figures[name.replace(" ", "-")] = figure
    return found


def _sts_tables() -> tuple[Record, ...]:
    table = {
        ("GPT-2", BASELINE): "26.49 30.25 35.74 41.25 46.40 45.05 24.8",
        ("BERT", BASELINE): "42.87 59.21 59.75 62.85 63.74 58.69 47.4",
        ("RoBERTa", BASELINE): "33.09 56.44 46.76 55.44 60.88 61.28 56.0",
        ("GPT-2", GLOBAL): "51.42 69.71 55.91 60.35 62.12 59.22 55.7",
        ("BERT", GLOBAL): "54.62 70.39 60.34 63.73 69.37 63.68 65.5",
        ("RoBERTa", GLOBAL): "51.59 73.57 60.70 66.72 69.34 65.82 70.1",
        ("GPT-2", CLUSTER): "52.40 72.71 59.23 62.19 64.26 59.51 62.3",
        ("BERT", CLUSTER): "58.34 75.65 63.55 64.37 69.63 63.75 66.0",
        ("RoBERTa", CLUSTER): "54.87 76.70 64.18 67.05 69.28 66.93 71.4",
    }
    tuned = {"GPT-2": "10 30 30", "BERT": "27 12 15", "RoBERTa": "27 12 25"}
    return published(
        table, names=("model", "setting"), columns={"data": TABLE_ORDER}, measure=SPEARMAN
    ) + published(tuned, columns={"measure": TUNED})


TUNED = ("clusters", "directions per cluster", "global directions")


@experiment(
    PAPER,
    "sts",
    shows="table 2, appendix B",
    title="Sentence similarity",
    claim="Removing global directions helps on every set, and removing those of clusters helps "
    "more.",
    data=STS_SETS,
    models=(DB, SM),
    minutes=25,
    seeds=5,
    options={
        "n_clusters": list(range(5, 31)),
        "n_components": list(range(5, 31)),
        "sizes": SIZES,
    },
    quick={"n_clusters": [2, 3], "n_components": [1, 3], "sizes": QUICK_SIZES},
    layouts=(
        Layout(
            ("model", "setting"), ("data",), {SPEARMAN: ".2f"}, "Mean over subsets", (SPEARMAN,)
        ),
        Layout(
            ("model", "setting"), ("data",), {SPEARMAN_ALL: ".2f"}, "All pairs", (SPEARMAN_ALL,)
        ),
        Layout(("model",), forms=dict.fromkeys(TUNED, "g"), title="Tuned", measures=TUNED),
    ),
    published=_sts_tables(),
    remarks=(
        "The paper does not say how subsets of STS12 to STS16 are combined; the mean over subsets "
        "is most likely, so its figures stand beside that.",
    ),
)
def sts(settings: Settings, model: str) -> Findings:
    """Spearman's correlation (x 100) of human scores with cosines of mean-pooled last-layer tokens,
    on test sets. The repairs are fitted on all tokens of the evaluated set, as in the paper. The
    numbers of clusters and directions are those with the best score on STS-B dev (clusters with
    seed 0), or the paper's if that set is missing. Mean over clusterings with different seeds.
    """
    sizes = sizes_for(settings, model)
    found: list[Record] = []
    if settings.has_data("stsb"):
        sizes, found = _tuned(settings, model)
    for name in settings.data_sets:
        tasks = {SPEARMAN_ALL: settings.task("sts", name, "test")}
        subsets = tasks[SPEARMAN_ALL].subsets
        if subsets is not None and len(set(subsets)) > 1:
            tasks[SPEARMAN] = settings.task("sts", name, "test", combine="mean")
        else:
            tasks[SPEARMAN] = tasks[SPEARMAN_ALL]
        tokens = settings.tokens(model, tasks[SPEARMAN].texts)
        for setting in SETTINGS:
            vectors = [
                tokens.means(repaired(tokens.rows, setting, sizes, seed))
                for seed in seeds_of(settings, setting)
            ]
            found += [
                over_seeds(
                    [100 * task.score(one).value for one in vectors],
                    n=task.n_items, measure=measure, setting=setting, data=name,
                )
                for measure, task in tasks.items()
            ]  # fmt: skip
    return Findings(found)


def _tuned(settings: Settings, model: str) -> tuple[tuple[int, int, int], list[Record]]:
    """Numbers of clusters and directions with the best score on STS-B dev; the scores."""
    task = settings.task("sts", "stsb", "dev")
    tokens = settings.tokens(model, task.texts)
    grid = settings.options["n_components"]

    def score(rows: Any) -> float:
        return 100 * task.score(tokens.means(rows)).value

    globally = {n: score(AllButTheTop(n).fit_transform(tokens.rows)) for n in grid}
    locally = {}
    for k in settings.options["n_clusters"]:
        most = ClusterRemoval(k, max(grid)).fit(tokens.rows)
        for n in grid:
            repair = most.with_components(ClusterRemoval(k, n))
            locally[k, n] = score(repair.transform(tokens.rows))
    n_global = max(globally, key=globally.__getitem__)
    k, n = max(locally, key=locally.__getitem__)
    locally[k, n] = score(ClusterRemoval(k, n).fit_transform(tokens.rows))  # as it is used
    tuned = (k, n, n_global)
    found = [record(one, measure=name) for name, one in zip(TUNED, tuned, strict=True)]
    scores = [
        (locally[k, n], CLUSTER),
        (globally[n_global], GLOBAL),
        (score(tokens.rows), BASELINE),
    ]
    found += [
        record(value, n=task.n_items, setting=setting, data="stsb dev (tuned on)", measure=SPEARMAN)
        for value, setting in reversed(scores)
    ]
    return tuned, found


@experiment(
    PAPER,
    "isotropy",
    shows="table 6",
    title="Isotropy of all tokens of the STS sets",
    claim="Removing directions of clusters makes the space of every model and set more isotropic "
    "than removing global ones.",
    data=STS_SETS,
    models=(DB, SM),
    minutes=8,
    seeds=5,
    options={"sizes": SIZES},
    quick={"sizes": QUICK_SIZES},
    layouts=tuple(
        Layout(("model", "setting"), ("data",), {name: ".2f"}, name, (name,))
        for name in (BOTH_SIGNS, ONE_SIGN)
    ),
    published=published(
        {
            ("GPT-2", BASELINE): "1.4E-178 1.0E-170 1.4E-172 2.9E-177 6.0E-174 9.9E-140 2.6E-105",
            ("BERT", BASELINE): "3.1E-05 1.9E-04 2.6E-04 3.7E-07 2.8E-04 4.2E-05 1.1E-04",
            ("RoBERTa", BASELINE): "3.1E-06 3.1E-07 3.8E-06 3.8E-06 3.5E-06 3.7E-07 2.9E-06",
            ("GPT-2", GLOBAL): "0.57 0.40 0.05 0.12 0.60 0.57 0.51",
            ("BERT", GLOBAL): "0.48 0.41 0.55 0.72 0.65 0.63 0.58",
            ("RoBERTa", GLOBAL): "0.67 0.87 0.87 0.84 0.85 0.90 0.88",
            ("GPT-2", CLUSTER): "0.71 0.74 0.47 0.74 0.74 0.78 0.70",
            ("BERT", CLUSTER): "0.68 0.61 0.77 0.81 0.75 0.82 0.73",
            ("RoBERTa", CLUSTER): "0.89 0.91 0.93 0.92 0.89 0.94 0.90",
        },
        names=("model", "setting"),
        columns={"data": TABLE_ORDER},
        convert=math.log10,
        measure=ONE_SIGN,
    ),
)
def isotropy(settings: Settings, model: str) -> Findings:
    """log10 I(W) of all tokens but special ones of each test set, last layer: as they are, without
    the dominant directions of the whole space, and without those of each cluster. Zero is
    isotropic. Mean over clusterings with different seeds.
    """
    found: list[Record] = []
    sizes = sizes_for(settings, model)
    for name in settings.data_sets:
        rows = settings.tokens(model, settings.task("sts", name, "test").texts).rows
        for setting in SETTINGS:
            found += isotropies_over(
                functools.partial(repaired, rows, setting, sizes),
                seeds_of(settings, setting),
                setting=setting,
                data=name,
            )
    return Findings(found, notes=[sizes_note(settings, model)])


def _by_directions(settings: Settings, records: list[Record]) -> Findings:
    series = {}
    for model in dict.fromkeys(one["model"] for one in records):
        for setting in (GLOBAL, CLUSTER):
            rows = matching(records, model=model, setting=setting, measure=BOTH_SIGNS)
            series[f"{model}, {setting}"] = (
                [one["directions"] for one in rows],
                [one["value"] for one in rows],
            )
    figure = figures.lines(
        series, "directions removed, globally or from each cluster", "log10 I, both signs"
    )
    return Findings(figures={"directions": figure})


OVERLAPS = ("of two clusters", "of a cluster and the whole space", "expected by chance")


@experiment(
    PAPER,
    "directions",
    shows="section 3",
    title="Dominant directions of clusters",
    claim="Clusters do not share their dominant directions; removing a few of each cluster makes "
    "the space more isotropic than removing more global ones.",
    data=("stsb",),
    models=(DB, SM),
    minutes=5,
    options={"sizes": SIZES, "n_components": [0, 1, 2, 4, 8, 12, 16, 20, 25, 30]},
    quick={"sizes": QUICK_SIZES, "n_components": [0, 1, 4]},
    layouts=(
        Layout(("model",), forms=dict.fromkeys(OVERLAPS, ".1%"), title="Overlap of dominant "
               "subspaces", measures=OVERLAPS),
        Layout(("model", "directions"), ("setting", "measure"), LOGARITHMS, "Isotropy",
               (BOTH_SIGNS, ONE_SIGN)),
    ),
    conclude=_by_directions,
)  # fmt: skip
def directions(settings: Settings, model: str) -> Findings:
    """All tokens of STS-B dev, last layer, in clusters. The overlap of two subspaces of n
    directions is the mean squared cosine between them: 1 if they are equal, n/d expected for
    random ones in d dimensions. And log10 I(W) by the number of directions that are removed from
    the whole space, or from each cluster; 0 only centres.
    """
    rows = settings.tokens(model, settings.task("sts", "stsb", "dev").texts).rows
    n_clusters, n, _ = sizes_for(settings, model)
    grid = settings.options["n_components"]
    most = ClusterRemoval(n_clusters, max(n, *grid)).fit(rows)
    whole = AllButTheTop(n).fit(rows).components_
    subspaces = [
        part[: min(n, m)] for part, m in zip(most.components_, most.n_components_, strict=True)
    ]
    pairs = [overlap(a, b) for a, b in itertools.combinations(subspaces, 2)]
    values = (
        np.mean(pairs) if pairs else math.nan,
        np.mean([overlap(one, whole) for one in subspaces]),
        n / rows.shape[1],
    )
    found = [
        record(value, n=len(subspaces), measure=name)
        for name, value in zip(OVERLAPS, values, strict=True)
    ]
    for one in grid:
        repairs = {
            GLOBAL: AllButTheTop(one).fit(rows),
            CLUSTER: most.with_components(ClusterRemoval(n_clusters, one)),
        }
        for setting, repair in repairs.items():
            found += isotropy_records(repair.transform(rows), setting=setting, directions=one)
    note = f"{Path(model).name}: {most.n_clusters_} clusters and subspaces of {n} directions"
    return Findings(found, notes=[f"{note}; {most.n_dissolved_} smaller clusters were dissolved."])


def overlap(a: Any, b: Any) -> float:
    """The mean squared cosine between two subspaces, given by orthonormal rows; in [0, 1]."""
    return float(((a @ b.T) ** 2).sum() / min(len(a), len(b)))
