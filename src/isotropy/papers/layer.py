"""The isotropy layer: one layer before the head, trained by a joint loss, all else frozen."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import Any

from isotropy.papers import figures
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
from isotropy.papers.runs import conditions, fine_tuned
from isotropy.papers.settings import Settings
from isotropy.trial.summary import RunRecord

PAPER = Paper(
    "layer",
    title="Optimizing the performance of text classification models by improving the isotropy of "
    "the embeddings using a joint loss function",
    authors="Anonymous",
    year=2022,
    about="A model is fine-tuned on a task and frozen. Between it and its classifier one layer is "
    "trained by two losses at once: that of the task, and the logarithm of 1/IsoScore of a batch. "
    "The [CLS] vectors become more isotropic, and the paper reports a better score.",
    bibtex="""
@misc{isotropy-layer-joint-loss,
  title = {Optimizing the Performance of Text Classification Models by Improving the Isotropy of
           the Embeddings Using a Joint Loss Function},
  author = {Anonymous authors},
  note = {Paper under double-blind review},
  year = {2022}
}""",
    models={"BERT": "bert-base-cased", "RoBERTa-large": "roberta-large"},
)
DB, ML = "distilbert-base-cased", "all-MiniLM-L6-v2"
TASKS = ("rte", "cola", "mrpc")
JUDGED_BY = {"rte": "accuracy", "cola": "matthews", "mrpc": "accuracy"}
PLAIN, LAYER, ISOBN = "fine-tuned", "isotropy layer", "IsoBN"
METHODS = ("isotropy-layer", "isobn")
TRAINING = {"validation": 0.3, "epochs": 10, "head": "linear", "precision": "tf32"}
QUICK_TRAINING = TRAINING | {"epochs": 1, "precision": "float32"}
OPTIONS = {"methods": METHODS, "training": TRAINING}
QUICK = {
    "methods": ("isotropy-layer:layer_epochs=3,layer_batch=8", "isobn"),
    "training": QUICK_TRAINING,
}
SCORE, ISOSCORE = "score", "IsoScore"
RELATIVE = {SCORE: "score, change in %", ISOSCORE: "IsoScore, change in %"}
EXPLAINED = "explained_variance"
CENTRED, UNCENTRED = "centred", "uncentred"
ROWS = {CENTRED: EXPLAINED, UNCENTRED: "explained_variance_uncentered"}  # names in runs
EV = {CENTRED: ("EV1", "EV2", "EV3"), UNCENTRED: tuple(f"EV{k}, uncentred" for k in (1, 2, 3))}
SHARE, SHARE_CHANGE = "explained variance", "change of explained variance"
Outcome = tuple[float, dict[str, Any]]  # score, and geometry of what the head gets


def outcomes(runs: Sequence[RunRecord], task: str, method: str) -> dict[str, list[Outcome]]:
    """Scores (times 100) and geometry with this method and before it, of runs that have both.

    Before the isotropy layer is the fine-tuned model that it stands on; IsoBN has nothing before.
    """
    found: dict[str, list[Outcome]] = {}
    for run in runs:
        if (run["task"], run["method"], run["status"]) != (task, method, "finished"):
            continue
        metric = JUDGED_BY.get(task, run["metric"])
        states = {LAYER: (run["metrics"], run["geometry"]["after"]["calibrated"])}
        if "finetuned" in run:
            plain = run["finetuned"]
            states = {PLAIN: (plain["metrics"], plain["geometry"]["features"])} | states
        else:
            states = {ISOBN: states[LAYER]}
        if all(scores[metric] is not None and space for scores, space in states.values()):
            for state, (scores, space) in states.items():
                found.setdefault(state, []).append((100 * scores[metric], space))
    return found


def compared(
    settings: Settings, model: str
) -> tuple[dict[str, dict[str, list[Outcome]]], list[str]]:
    """(outcomes by task and state, how the runs were made); shared by three experiments."""
    methods = settings.options["methods"]
    runs = fine_tuned(
        settings, model, TASKS, methods, of="glue", training=settings.options["training"]
    )
    found = {
        task: {k: v for method in methods for k, v in outcomes(runs, task, method).items()}
        for task in TASKS
    }
    return {task: states for task, states in found.items() if states}, conditions(runs)


def scores_of(found: Sequence[Outcome]) -> list[float]:
    return [score for score, _ in found]


def values_of(found: Sequence[Outcome], name: str) -> list[Any]:
    return [space[name] for _, space in found]


def differences(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [b - a for a, b in zip(before, after, strict=True)]


def explained(found: Sequence[Outcome]) -> dict[str, list[float]]:
    """Explained variances of the run with the median first one (of two, the lower).

    Those of the uncentred rows are in newer runs only.
    """
    ordered = sorted((space for _, space in found), key=lambda space: space[EXPLAINED][0])
    space = ordered[(len(ordered) - 1) // 2]
    return {name: space[key] for name, key in ROWS.items() if key in space}


GLUE_PUBLISHED = published(
    {
        ("BERT", "rte", PLAIN): "67.87 0.0051 - -",
        ("BERT", "rte", LAYER): "71.84 0.025 5.8 390.2",
        ("BERT", "cola", PLAIN): "61.61 0.004 - -",
        ("BERT", "cola", LAYER): "63.57 0.0255 3.2 537.5",
        ("BERT", "mrpc", PLAIN): "85.29 0.0033 - -",
        ("BERT", "mrpc", LAYER): "87.99 0.0103 221.2 221.2",
        ("RoBERTa-large", "rte", PLAIN): "85.56 0.0049 - -",
        ("RoBERTa-large", "rte", LAYER): "87.36 0.0145 2.1 195.9",
        ("RoBERTa-large", "cola", PLAIN): "67.23 0.0012 - -",
        ("RoBERTa-large", "cola", LAYER): "68.77 0.0023 2.3 91.67",
        ("RoBERTa-large", "mrpc", PLAIN): "90.93 0.0016 - -",
        ("RoBERTa-large", "mrpc", LAYER): "91.17 0.00245 0.26 53.13",
    },
    names=("model", "task", "state"),
    columns={"measure": (SCORE, ISOSCORE, *RELATIVE.values())},
)


def _overall(settings: Settings, records: list[Record]) -> Findings:
    """The mean change over cells of model and task."""
    changes = matching(records, state="change", measure=SCORE)
    if len(changes) < 2:
        return Findings()
    mean = over_seeds([one["value"] for one in changes])
    higher = matching(records, state="change", measure=ISOSCORE)
    note = (
        f"Over {len(changes)} cells of model and task the layer changes the score by "
        f"{mean['value']:+.2f} points (95 % interval {mean['low']:+.2f} to {mean['high']:+.2f}, as "
        f"if cells were independent); IsoScore rises in "
        f"{sum(one['value'] > 0 for one in higher)} of {len(higher)}."
    )
    return Findings(notes=[note])


@experiment(
    PAPER,
    "glue",
    shows="table 2",
    title="Score and IsoScore with the isotropy layer",
    claim="With the layer, IsoScore and the score on the task are higher in every cell.",
    data=TASKS,
    models=(DB, ML),
    minutes=600,
    gpu=True,
    seeds=5,
    options=OPTIONS,
    quick=QUICK,
    layouts=(
        Layout(
            ("model", "task", "state"),
            forms={SCORE: ".2f", ISOSCORE: ".3g"} | dict.fromkeys(RELATIVE.values(), "+.1f"),
            title="RTE and MRPC: accuracy; CoLA: Matthews correlation (times 100). * the interval "
            "of the change excludes 0",
        ),
    ),
    published=GLUE_PUBLISHED,
    remarks=(
        'Table 2 prints "+221.2 %" as the improvement of the score of BERT on MRPC; from 85.29 to '
        "87.99 it is +3.2 %.",
        "Table 2 does not say whether it shows one run or several. The paper does not report its "
        "learning rates, epochs and batch sizes; ours are listed above, and the layer has 20 "
        "epochs at most, batch 256 and 1e-4.",
    ),
    conclude=_overall,
)
def glue(settings: Settings, model: str) -> Findings:
    """Each model is fine-tuned on 70 % of the training items, with early stopping on the others.
    Then everything is frozen, and the isotropy layer is trained between [CLS] and the classifier.
    Score and IsoScore of what the classifier gets are those of the dev set, before and after; means
    over seeds. The change is paired by seed.
    """
    cells, notes = compared(settings, model)
    found = []
    for task, states in cells.items():
        if not {PLAIN, LAYER} <= states.keys():
            continue  # all its runs have diverged
        of = {
            SCORE: {state: scores_of(states[state]) for state in (PLAIN, LAYER)},
            ISOSCORE: {state: values_of(states[state], "isoscore") for state in (PLAIN, LAYER)},
        }
        n = states[PLAIN][0][1]["n_rows"]
        of_layer = {"task": task, "state": LAYER}
        for measure, values in of.items():
            keys = {"task": task, "measure": measure, "n": n}
            found += [over_seeds(values[state], state=state, **keys) for state in values]
            change = over_seeds(differences(*values.values()), state="change", **keys)
            if change.get("low", 0) > 0 or change.get("high", 0) < 0:
                change["mark"] = "*"
            before, after = map(fmean, values.values())
            found.append(change)
            if before:
                relative = 100 * (after - before) / abs(before)
                found.append(record(relative, n=n, measure=RELATIVE[measure], **of_layer))
    return Findings(found, notes=notes)


ISOBN_PUBLISHED = published(
    {
        ("BERT", "rte", PLAIN): "67.72 0.83 0.61 0.75 0.78",
        ("BERT", "rte", LAYER): "70.40 1.05 0.27 0.35 0.38",
        ("BERT", "rte", "before IsoBN"): "67.87 1.1 0.88 0.93 0.95",
        ("BERT", "rte", ISOBN): "70.75 1.6 0.49 0.72 0.85",
        ("BERT", "cola", PLAIN): "60.89 0.81 0.60 0.75 0.77",
        ("BERT", "cola", LAYER): "62.82 0.85 0.18 0.30 0.32",
        ("BERT", "cola", "before IsoBN"): "60.72 1.4 0.49 0.58 0.64",
        ("BERT", "cola", ISOBN): "61.59 1.6 0.25 0.37 0.48",
        ("BERT", "mrpc", PLAIN): "86.64 1.09 0.63 0.80 0.81",
        ("BERT", "mrpc", LAYER): "87.5 0.42 0.43 0.49 0.52",
        ("BERT", "mrpc", "before IsoBN"): "85.29 0.9 0.76 0.87 0.89",
        ("BERT", "mrpc", ISOBN): "87.5 0.6 0.37 0.68 0.77",
        ("RoBERTa-large", "rte", PLAIN): "85.56 0.8 0.44 0.65 0.73",
        ("RoBERTa-large", "rte", LAYER): "87.36 0.6 0.19 0.31 0.39",
        ("RoBERTa-large", "rte", "before IsoBN"): "84.47 1.0 0.53 0.66 0.70",
        ("RoBERTa-large", "rte", ISOBN): "87.00 1.3 0.15 0.29 0.37",
        ("RoBERTa-large", "cola", PLAIN): "67.33 0.9 0.66 0.87 0.91",
        ("RoBERTa-large", "cola", LAYER): "68.77 0.8 0.41 0.63 0.76",
        ("RoBERTa-large", "cola", "before IsoBN"): "68.25 1.1 0.83 0.88 0.90",
        ("RoBERTa-large", "cola", ISOBN): "69.70 0.8 0.21 0.38 0.49",
        ("RoBERTa-large", "mrpc", PLAIN): "90.93 0.2 0.73 0.96 0.98",
        ("RoBERTa-large", "mrpc", LAYER): "91.17 0.3 0.61 0.96 0.98",
        ("RoBERTa-large", "mrpc", "before IsoBN"): "90.68 0.9 0.86 0.90 0.91",
        ("RoBERTa-large", "mrpc", ISOBN): "91.42 0.8 0.18 0.36 0.43",
    },
    names=("model", "task", "state"),
    columns={"measure": ("median score", "deviation", *EV[CENTRED])},
)


@experiment(
    PAPER,
    "isobn",
    shows="table 3",
    title="The isotropy layer beside IsoBN",
    claim="The isotropy layer is on par with IsoBN in score, and explains less variance by its "
    "first three directions than IsoBN does for BERT, more for RoBERTa.",
    data=TASKS,
    models=(DB, ML),
    minutes=600,
    gpu=True,
    seeds=5,
    options=OPTIONS,
    quick=QUICK,
    layouts=(
        Layout(
            ("model", "task", "state"),
            forms={"median score": ".2f", "deviation": ".2f"}
            | dict.fromkeys((*EV[CENTRED], *EV[UNCENTRED]), ".2f"),
            title="Median and standard deviation of the score over seeds; explained variance of "
            "the run with the median EV1",
        ),
    ),
    published=ISOBN_PUBLISHED,
    remarks=(
        "The published figures of IsoBN, before and after, are those of Zhou et al. 2021, with "
        "fine-tuned models of their own.",
        "Equation 1 of the paper has the singular values of the uncentred embeddings, its text "
        "speaks of principal components, which are centred: both are shown if they were recorded.",
    ),
)
def isobn(settings: Settings, model: str) -> Findings:
    """As layer/glue, whose runs it shares, with IsoBN as a third state: isotropic batch
    normalisation is in place before the classifier while the model is fine-tuned. Median and
    standard deviation of the score, and the shares of variance of the first one, two and three
    principal components of what the classifier gets.
    """
    cells, notes = compared(settings, model)
    found = []
    for task, states in cells.items():
        for state, runs in states.items():
            keys = {"task": task, "state": state, "n": runs[0][1]["n_rows"]}
            scores = scores_of(runs)
            found.append(
                record(median(scores), measure="median score", **keys) | {"seeds": len(scores)}
            )
            if len(scores) > 1:
                found.append(record(stdev(scores), measure="deviation", **keys))
            found += [
                record(value, measure=measure, **keys)
                for rows, values in explained(runs).items()
                for measure, value in zip(EV[rows], values, strict=False)
            ]
    return Findings(found, notes=notes)


@experiment(
    PAPER,
    "explained-variance",
    shows="figure 2",
    title="Explained variance of the first 20 directions",
    claim="With the layer, the first directions explain less of the variance; for RoBERTa the "
    "improvement is limited, and most variance stays in the first five directions.",
    data=TASKS,
    models=(DB, ML),
    minutes=600,
    gpu=True,
    seeds=5,
    options=OPTIONS | {"directions": 20, "changes": (1, 2, 3, 5, 10, 20)},
    quick=QUICK,
    layouts=(
        Layout(
            ("model", "task", "rows", "state"),
            ("directions",),
            forms={SHARE: ".2f"},
            title="Share of the variance that the first directions explain together, of the run "
            "with the median first share",
            measures=(SHARE,),
        ),
        Layout(
            ("model", "task", "rows"),
            ("directions",),
            forms={SHARE_CHANGE: "+.3f"},
            title="Change of that share with the layer, paired by seed. * the interval excludes 0",
            measures=(SHARE_CHANGE,),
        ),
    ),
)
def explained_variance(settings: Settings, model: str) -> Findings:
    """The share of the variance of what the classifier gets (dev set) that its first 1 to 20
    directions explain together, before and after the isotropy layer, of centred rows (principal
    components) and of uncentred ones (equation 1 of the paper); of the run with the median first
    share, and its change as a mean over seeds. The runs are those of layer/glue.
    """
    cells, notes = compared(settings, model)
    found = []
    series: dict[str, dict[str, Any]] = {}
    for task, states in cells.items():
        for state in filter(states.__contains__, (PLAIN, LAYER)):
            keys = {"n": states[state][0][1]["n_rows"], "task": task, "state": state}
            for rows, every in explained(states[state]).items():
                shares = every[: settings.options["directions"]]
                line = (range(1, len(shares) + 1), shares)
                series.setdefault(rows, {})[f"{task}, {state}"] = line
                found += [
                    record(share, rows=rows, directions=k, measure=SHARE, **keys)
                    for k, share in zip(*line, strict=True)
                ]
        found += _share_changes(task, states, settings.options["changes"])
    drawn = {
        f"explained-variance-{rows}": figures.lines(
            lines, "number of first directions", f"share of the variance ({rows} rows)"
        )
        for rows, lines in series.items()
    }
    for figure in drawn.values():
        figures.pair(figure)
        figure.update_xaxes(dtick=1, range=(0.5, settings.options["directions"] + 0.5))
        figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    return Findings(found, drawn, notes)


def _share_changes(
    task: str, states: dict[str, list[Outcome]], chosen: Sequence[int]
) -> list[Record]:
    """How much less the first directions explain with the layer, over seeds."""
    found: list[Record] = []
    if not {PLAIN, LAYER} <= states.keys():
        return found
    for rows, key in ROWS.items():
        if not all(key in space for state in (PLAIN, LAYER) for _, space in states[state]):
            continue
        before, after = (values_of(states[state], key) for state in (PLAIN, LAYER))
        for k in (k for k in chosen if k <= len(before[0])):
            pairs = ([shares[k - 1] for shares in every] for every in (before, after))
            keys = {"n": states[PLAIN][0][1]["n_rows"], "task": task, "rows": rows}
            change = over_seeds(differences(*pairs), directions=k, measure=SHARE_CHANGE, **keys)
            excludes = change.get("low", 0) > 0 or change.get("high", 0) < 0
            found.append(change | ({"mark": "*"} if excludes else {}))
    return found


VARIANTS = {
    "as in the paper": "",
    "2 layers": "depth=2",
    "3 layers": "depth=3",
    "with the head": "variant=joint",
    "head in turns": "variant=alternating",
    "batch 32": "layer_batch=32",
    "batch 64": "layer_batch=64",
    "batch 128": "layer_batch=128",
    "batch 512": "layer_batch=512",
}


def _specs(settings: Settings) -> dict[str, str]:
    """The method of each variant; what all have in common comes first."""
    common = settings.options["common"]
    return {
        name: ":".join(filter(None, ("isotropy-layer", ",".join(filter(None, (own, common))))))
        for name, own in settings.options["variants"].items()
    }


@experiment(
    PAPER,
    "variants",
    shows="sections 3.3, 4.4",
    title="Depth, head and batch of the isotropy layer",
    claim="A larger batch measures isotropy more accurately; a deeper layer, or training the "
    "classifier with it or in turns with it, is proposed as future work.",
    data=("rte", "mrpc"),
    models=(ML,),
    minutes=600,
    gpu=True,
    seeds=3,
    options={"variants": VARIANTS, "common": "", "training": TRAINING},
    quick={
        "variants": {k: VARIANTS[k] for k in ("as in the paper", "2 layers", "head in turns")},
        "common": "layer_epochs=3",
        "training": QUICK_TRAINING,
    },
    layouts=(
        Layout(
            ("model", "task", "variant"),
            forms={"score": ".2f", "change": "+.2f", "IsoScore": ".4f", "times IsoScore": ".2f"}
            | {"EV1": ".2f"},
            title="Change against the fine-tuned model, paired by seed",
        ),
    ),
    remarks=("The paper prints no figures of these variants; it trains one layer, head frozen.",),
)
def variants(settings: Settings, model: str) -> Findings:
    """The isotropy layer with 1, 2 or 3 layers; with the classifier frozen, trained jointly, or
    trained in turns with the layer; with batches of 32 to 512 items (256 unless named). Score on
    the dev set, its change against the fine-tuned model, IsoScore of what the classifier gets, how
    many times that of the fine-tuned model it is, and the share of the first principal component.
    """
    methods = _specs(settings)
    tasks = settings.experiment.data
    runs = fine_tuned(
        settings, model, tasks, list(methods.values()), training=settings.options["training"]
    )
    found = []
    drawn: dict[str, dict[str, Record]] = {}
    for task in tasks:
        for name, method in methods.items():
            states = outcomes(runs, task, method)
            if not states:
                continue
            keys = {"task": task, "variant": name, "n": states[PLAIN][0][1]["n_rows"]}
            scores = {state: scores_of(states[state]) for state in (PLAIN, LAYER)}
            before, after = (values_of(states[state], "isoscore") for state in (PLAIN, LAYER))
            ratios = [b / a for a, b in zip(before, after, strict=True)]
            change = over_seeds(differences(*scores.values()), measure="change", **keys)
            drawn.setdefault(task, {})[name] = change
            found += [
                over_seeds(scores[LAYER], measure="score", **keys),
                change,
                over_seeds(after, measure="IsoScore", **keys),
                over_seeds(ratios, measure="times IsoScore", **keys),
                over_seeds(
                    [shares[0] for shares in values_of(states[LAYER], EXPLAINED)],
                    measure="EV1",
                    **keys,
                ),
            ]
    shown = (
        {"variants": figures.intervals(drawn, "change (points), 95 % interval")} if drawn else {}
    )
    return Findings(found, shown, conditions(runs))
