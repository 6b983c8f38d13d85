"""Calibration in training: models, tasks, methods and seeds, in the shape of the paper's tables.

    python benchmarks/glue.py --models DIR --data DIR --runs FILE.jsonl [--jobs N] [--search]

Each run is a line of JSON in the first file of --runs; runs that are there are not run again, so
the command can be stopped and repeated, here or elsewhere, with other --model, --task, --method and
--seeds. results/train.md is written from all runs in these files, in the shape of tables 1, 2, 4
and 5 of Ding et al. 2022; what stands in it above the line `<!-- figures -->` is kept.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.stats

from isotropy import specs
from isotropy.trial.methods import TrainingMethod
from isotropy.trial.records import read_records
from isotropy.trial.summary import NONE, Row, recorded_geometry, remarks, summary
from isotropy.trial.task_data import GENERATION, TASKS
from isotropy.trial.trial import Trial

MODELS = ("distilbert-base-cased", "all-MiniLM-L6-v2")
GLUE = ("rte", "mrpc", "cola", "stsb", "wnli")
GENERATED = ("none", "cosine", "spectrum-polynomial", "spectrum-exponential", "flow")
MARK = "<!-- figures -->"
LEVEL = 0.05
PAPER = {  # DistilBERT in table 1 of Ding et al. 2022: mean and deviation, None where NaN
    "none": {"mrpc": (87.97, 1.02), "cola": (44.11, 2.09), "rte": (56.68, 0.62),
             "wnli": (51.17, 5.69), "stsb": (23.63, 41.08), "sst2": (88.23, 1.79),
             "qnli": (87.53, 0.13)},
    "cosine": {"mrpc": (87.88, 1.36), "cola": (43.13, 0.85), "rte": (58.24, 1.78),
               "wnli": (52.11, 2.44), "stsb": (-0.50, 2.08), "sst2": (88.53, 1.55),
               "qnli": (87.15, 0.84)},
    "spectrum-polynomial": {"mrpc": (81.22, 0), "cola": (0, 0), "rte": (54.15, 2.50),
                            "wnli": (55.87, 0.81), "stsb": None, "sst2": (88.80, 0.37),
                            "qnli": (85.47, 0.96)},
    "spectrum-exponential": {"mrpc": (81.22, 0), "cola": (0, 0), "rte": (54.27, 2.71),
                             "wnli": (55.87, 0.81), "stsb": None, "sst2": (88.92, 0.67),
                             "qnli": (86.25, 0.80)},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=os.environ.get("ISOTROPY_MODELS"), help="folder")
    parser.add_argument("--data", default=os.environ.get("ISOTROPY_DATA"), help="folder")
    parser.add_argument("--runs", required=True, nargs="+", type=Path, help="files of the runs")
    parser.add_argument("--model", nargs="*", default=list(MODELS))
    parser.add_argument("--task", nargs="*", default=list(GLUE), choices=list(TASKS))
    parser.add_argument("--method", nargs="*", help="every one; generation: those of the paper")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--search", action="store_true", help="choose weights and c1 first")
    parser.add_argument("--search-on", nargs="*", default=(), help="tasks that choose for all")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, in processes")
    parser.add_argument("--device", default=None)
    parser.add_argument("--precision", default=None, choices=["float32", "tf32", "bf16"])
    parser.add_argument("--head", default=None, choices=["model", "linear"])
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--max-train", type=int, default=None)
    parser.add_argument("--max-eval", type=int, default=None)
    parser.add_argument("--batch-size", type=int, default=None)
    parser.add_argument("--max-length", type=int, default=None)
    parser.add_argument("--alone", type=Path, help="file of runs, one at a time, to take times of")
    parser.add_argument(
        "--reduced", type=Path, nargs="*", default=(), help="files of runs on reduced sets"
    )
    parser.add_argument("--out", default="results/train.md", help="none is written for none")
    options = parser.parse_args()
    generated = all(TASKS[task].kind == GENERATION for task in options.task)
    names = ("precision", "head", "epochs", "max_train", "max_eval", "batch_size", "max_length")
    trial = Trial(
        options.task,
        options.model,
        options.method or (GENERATED if generated else list(TrainingMethod.by_name)),
        options.runs[0],
        n_seeds=options.seeds,
        search=options.search,
        search_on=options.search_on,
        data=options.data,
        folder=options.models,
        device=options.device,
        jobs=options.jobs,
        settings={name: getattr(options, name) for name in names},
    )
    try:
        trial.run(say)
    finally:
        if options.out != "none":
            write(options.runs, Path(options.out), options.alone, options.reduced)


def say(record: dict) -> None:
    kind = "search" if record["search"] else f"seed {record['seed']}"
    print(
        f"{record['model']} {record['task']} {record['spec']} {kind}: {record['status']} "
        f"{record['metric']} {100 * record['score']:.2f}, {record['seconds_per_epoch']:.1f} "
        f"s/epoch, {record['seconds']:.0f} s",
        flush=True,
    )


def rows_of(files: Sequence[Path]) -> list[Row]:
    rows = summary([record for file in files for record in read_records(file)])
    order = [*TASKS], [*TrainingMethod.by_name]
    rows.sort(key=lambda r: (r.model, order[0].index(r.task), place(r.method, order[1])))
    return rows


def write(
    runs: Sequence[Path], out: Path, alone: Path | None = None, reduced: Sequence[Path] = ()
) -> None:
    """results/train.md of the runs that are there; words above the mark stay."""
    rows = rows_of(runs)
    timed = [] if alone is None else rows_of([alone])
    if alone is not None and not timed:
        raise SystemExit(f"--alone: there are no runs in {alone}")
    glue = [row for row in rows if TASKS[row.task].kind != GENERATION]
    generated = [row for row in rows if TASKS[row.task].kind == GENERATION]
    lines = [MARK, "", *HEAD]
    if glue:
        lines += [*scores(glue), *compared(glue), *overall(glue), *isotropy(glue)]
        lines += [*vectors(glue), *evenness(glue)]
        lines += times(timed, "one run at a time") if timed else times(glue)
    if generated:
        lines += generation(generated, "Translation and summarisation")
        lines += compared(generated, "Translation and summarisation against none")
        lines += times(generated, title="Times of translation and summarisation")
    for file in reduced:
        own = rows_of([file])
        device = own[0].records[0]["device"]
        lines += generation(own, f"On a reduced set, with its own baseline: {file.stem}, {device}")
    lines += [*searches(runs), *used(rows)]
    words = out.read_text("utf-8").partition(MARK)[0] if out.exists() else TITLE
    out.write_text(words + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {out} of {sum(len(row.scores) for row in rows)} runs")


def place(method: str, names: Sequence[str]) -> tuple[int, str]:
    return names.index(method.partition(":")[0]), method


def unique(rows: Sequence[Row], name: str) -> list[str]:
    return list(dict.fromkeys(getattr(row, name) for row in rows))


def spread(values: Sequence[float], digits: int = 2, scale: float = 1.0) -> str:
    """mean ± deviation of those that are defined."""
    known = [scale * value for value in values if not math.isnan(value)]
    if not known:
        return "NaN"
    deviation = f" ± {np.std(known, ddof=1):.{digits}f}" if len(known) > 1 else ""
    return f"{np.mean(known):.{digits}f}{deviation}"


def known(value: float, digits: int = 3) -> str:
    return "NaN" if math.isnan(value) else f"{value:.{digits}f}"


def signed(value: float) -> str:
    """A difference in points."""
    return "NaN" if math.isnan(value) else f"{100 * value:+.2f}"


def grid(rows: Sequence[Row], head: Sequence[str], cell) -> list[str]:
    """A line a model and method, a column a task; cell(row) gives as many cells as head has."""
    tasks = unique(rows, "task")
    columns = [f"{task} {name}".strip() for task in tasks for name in head]
    lines = ["| model | method | " + " | ".join(columns) + " |"]
    lines.append("| --- | --- |" + " ---: |" * len(columns))
    found = {(row.model, row.method, row.task): row for row in rows}
    for model in unique(rows, "model"):
        for method in unique([row for row in rows if row.model == model], "method"):
            cells: list[str] = []
            for task in tasks:
                row = found.get((model, method, task))
                cells += [""] * len(head) if row is None else cell(row)
            lines.append(f"| {model} | {method} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def mark(row: Row) -> str:
    """A star for a method that is better than none by the paper's test, two where Holm agrees."""
    better = row.difference > 0 and row.p_student < LEVEL
    return (" **" if row.p_holm < LEVEL else " *") if better else ""


def scores(rows: Sequence[Row]) -> list[str]:
    metrics = ", ".join(f"{row.task} {row.metric}" for row in first_of_each(rows))
    lines = ["## Scores", "", f"Times 100, mean ± deviation over seeds: {metrics}.", ""]
    lines += grid(rows, [""], lambda row: [spread(row.scores, scale=100) + mark(row)])
    tasks = unique(rows, "task")
    lines += ["The paper's DistilBERT:", "", "| method | " + " | ".join(tasks) + " |"]
    lines.append("| --- |" + " ---: |" * len(tasks))
    for method, figures in PAPER.items():
        cells = [printed(figures.get(task, ())) for task in tasks]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def printed(figures: tuple[float, ...] | None) -> str:
    if figures is None:
        return "NaN"
    return f"{figures[0]:.2f} ± {figures[1]:g}" if figures else ""


def first_of_each(rows: Sequence[Row]) -> list[Row]:
    return list({row.task: row for row in reversed(rows)}.values())[::-1]


def compared(rows: Sequence[Row], title: str = "Against none") -> list[str]:
    lines = [f"## {title}", "", "Change of the mean in points, its 95 % interval and p", ""]
    lines[2] += " (Welch), and p by Holm over the methods."
    lines.append("| model | task | method | change | interval | p | Holm | median | remarks |")
    lines.append("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |")
    for row in rows:
        if row.method != NONE:
            lines.append(
                f"| {row.model} | {row.task} | {row.method} | {signed(row.difference)} | "
                f"{signed(row.low)} to {signed(row.high)} | {known(row.p)} | "
                f"{known(row.p_holm)} | {known(100 * row.median, 2)} | {remarks(row)} |"
            )
    tested = [row for row in rows if row.method != NONE and not math.isnan(row.p)]
    better = [row for row in tested if row.difference > 0 and row.p < LEVEL]
    worse = [row for row in tested if row.difference < 0 and row.p < LEVEL]
    held = [sum(row.p_holm < LEVEL for row in part) for part in (better, worse)]
    lines += ["", f"Comparisons with a defined p: {len(tested)}; {len(better)} better at 5 % "]
    lines[-1] += f"({held[0]} after Holm), {len(worse)} worse ({held[1]} after Holm)."
    return [*lines, ""]


def overall(rows: Sequence[Row]) -> list[str]:
    """The mean change of each method over models and tasks, with and without WNLI."""
    lines = ["## Over models and tasks", "", "Mean of the changes above in points, with a 95 %"]
    lines[-1] += " interval (t over cells of model and task, as if these were independent, though"
    lines[-1] += " models share tasks), and how many cells went up."
    lines += ["", "| method | all | interval | up | without wnli | interval | up |"]
    lines.append("| --- |" + " ---: |" * 6)
    for method in unique([row for row in rows if row.method != NONE], "method"):
        cells = []
        for left_out in ((), ("wnli",)):
            mine = [r for r in rows if r.method == method and r.task not in left_out]
            changes = [100 * r.difference for r in mine if not math.isnan(r.difference)]
            up = sum(change > 0 for change in changes)
            cells += [*mean_and_interval(changes), f"{up} of {len(changes)}"]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def mean_and_interval(changes: Sequence[float]) -> list[str]:
    if len(changes) < 2:
        return [f"{changes[0]:+.2f}" if changes else "NaN", "NaN"]
    mean = float(np.mean(changes))
    low, high = scipy.stats.t.interval(0.95, len(changes) - 1, mean, scipy.stats.sem(changes))
    return [f"{mean:+.2f}", f"{low:+.2f} to {high:+.2f}"]


def isotropy(rows: Sequence[Row]) -> list[str]:
    def cell(row: Row) -> list[str]:
        one, two = (
            recorded_geometry(row.records, "after", "output", name) for name in ("i1", "i2")
        )
        return [spread(one), spread(two, 3)]

    lines = ["## Isotropy of the output embeddings after training", ""]
    lines += ["Of the head's weights, a row a class; I1 is over both signs of each direction.", ""]
    return [*lines, *grid(rows, ["I1", "I2"], cell)]


def vectors(rows: Sequence[Row]) -> list[str]:
    def cell(row: Row) -> list[str]:
        tensor = "calibrated" if calibrated(row) else "features"
        when = [(row.records, "before", "features"), (row.records, "after", tensor)]
        logs = [[v / math.log(10) for v in recorded_geometry(*one, "log_i1")] for one in when]
        score = [recorded_geometry(*one, "isoscore") for one in when]
        first = [[np.nan if v is np.nan else v[0] for v in evs(*one)] for one in when]
        return [  # before training, all seeds are alike
            f"{spread(before[:1], digits)} → {spread(after, digits)}"
            for (before, after), digits in ((logs, 1), (score, 4), (first, 2))
        ]

    lines = ["## [CLS] before and after training", ""]
    lines += ["Of the evaluated items: log10 I1, IsoScore, share of the first principal", ""]
    lines[-2] += " component; after training what the head gets, where a method changes it."
    return [*lines, *grid(rows, ["log10 I1", "IsoScore", "EV1"], cell)]


def evenness(rows: Sequence[Row]) -> list[str]:
    """In how many cells each method left what the head gets more even than none did."""
    base = {(row.model, row.task): row for row in rows if row.method == NONE}
    lines = ["Cells of model and task in which the mean after training is more even than that of"]
    lines[-1] += " none:"
    lines += ["", "| method | cells | IsoScore | I1 | EV1 |", "| --- |" + " ---: |" * 4]
    for method in unique([row for row in rows if row.method != NONE], "method"):
        pairs = [(base[r.model, r.task], r) for r in rows if r.method == method]
        counts = [
            sum(sign * (head_input(after, name) - head_input(before, name)) > 0
                for before, after in pairs)
            for name, sign in (("isoscore", 1), ("log_i1", 1), ("explained_variance", -1))
        ]  # fmt: skip
        lines.append(f"| {method} | {len(pairs)} | " + " | ".join(map(str, counts)) + " |")
    return [*lines, ""]


def head_input(row: Row, name: str) -> float:
    """Mean over seeds of a metric of what the head gets; of explained variance the first."""
    tensor = "calibrated" if calibrated(row) else "features"
    if name == "explained_variance":
        return float(np.nanmean([values[0] for values in evs(row.records, "after", tensor)]))
    return float(np.nanmean(recorded_geometry(row.records, "after", tensor, name)))


def evs(records, when: str, tensor: str) -> list:
    found = recorded_geometry(records, when, tensor, "explained_variance")
    return [v if isinstance(v, list) and v[0] is not None else [math.nan] for v in found]


def calibrated(row: Row) -> bool:
    return any("calibrated" in r.get("geometry", {}).get("after", {}) for r in row.records)


def times(rows: Sequence[Row], how: str = "as they were run", title: str = "Times") -> list[str]:
    base = {(r.model, r.task): r.seconds_per_epoch for r in rows if r.method == NONE}

    def cell(row: Row) -> list[str]:
        ratio = row.seconds_per_epoch / base.get((row.model, row.task), math.nan)
        return [f"{row.seconds_per_epoch:.1f}", f"{ratio:.2f}", f"{row.peak_memory_mb:,.0f}"]

    devices = ", ".join(dict.fromkeys(r["device"] for row in rows for r in row.records))
    lines = [
        f"## {title}",
        "",
        f"Seconds an epoch, the same over none's, peak memory in MB; {devices}, {how}.",
    ]
    return [*lines, "", *grid(rows, ["s", "x none", "MB"], cell)]


def generation(rows: Sequence[Row], title: str) -> list[str]:
    lines = [f"## {title}", ""]
    lines.append(
        "Scores times 100; log10 I1 and I2 of the output embeddings after training (with a"
    )
    lines[-1] += " flow, of the twin that it gets: in other coordinates from the first step on)."
    for task in unique(rows, "task"):
        mine = [row for row in rows if row.task == task]
        names = TASKS[task].metrics
        lines += ["", f"{task}:", "", "| model | method | " + " | ".join(names) + f" | {TAIL} |"]
        lines.append("| --- | --- |" + " ---: |" * (len(names) + 5))
        for row in mine:
            done = [r for r in row.records if r["status"] == "finished"]
            cells = [spread([r["metrics"][name] for r in done], scale=100) for name in names]
            logs, i2 = (
                recorded_geometry(row.records, "after", "output", n) for n in ("log_i1", "i2")
            )
            cells += [spread(logs, scale=1 / math.log(10)), spread(i2, 3)]
            first = row.records[0]
            cells += [f"{row.seconds_per_epoch / 60:.2f}", f"{first['n_train']:,}"]
            cells.append(f"{first['n_evaluated']:,}")
            lines.append(f"| {row.model} | {row.method} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def searches(files: Sequence[Path]) -> list[str]:
    """What each choice scored on the part of the training items that options are chosen on."""
    records = [r for file in files for r in read_records(file) if r["search"]]
    if not records:
        return []
    lines = ["## The search for weights and c1", "", "Mean score times 100 on a fifth of the"]
    lines[-1] += " training items over the cells of model and task (seed 0), in how many cells the"
    lines[-1] += (
        " choice was best (ties count for each; the first of them is used), and in how many"
    )
    lines[-1] += " the model called all items the same."
    lines += ["", "| method | weight | c1 | cells | mean | best | all the same |"]
    lines.append("| --- |" + " ---: |" * 6)
    best: dict[tuple[str, ...], float] = {}
    for record in records:
        cell = cell_of(record)
        best[cell] = max(best.get(cell, -math.inf), record["score"])
    order = [*TrainingMethod.by_name]
    found = sorted({r["spec"] for r in records}, key=lambda s: (place(s, order)[0], *chosen(s)))
    for spec in found:
        mine = [r for r in records if r["spec"] == spec]
        known_scores = [r["score"] for r in mine if not math.isnan(r["score"])]
        wins = sum(r["score"] == best[cell_of(r)] for r in mine)
        same = sum(r.get("metrics", {}).get("n_called") == 1 for r in mine)
        method, weight, c1 = chosen(spec)
        cells = [f"{weight:g}", f"{c1:g}" if c1 else "", str(len(mine))]
        cells.append(f"{100 * np.mean(known_scores):.2f}")
        lines.append(f"| {method} | {' | '.join(cells)} | {wins} | {same} |")
    return [*lines, ""]


def cell_of(record: dict) -> tuple[str, ...]:
    return record["model"], record["task"], chosen(record["spec"])[0]


def chosen(spec: str) -> tuple[str, float, float]:
    """(the method as given, the weight and c1 that a search tries), 0 for a c1 that is not set."""
    name, options = specs.parse(spec)
    weight, c1 = options.pop("weight"), options.pop("c1", 0.0)
    return specs.render(name, options), weight, c1


def used(rows: Sequence[Row]) -> list[str]:
    lines = ["## Settings and options as used", "", "The same for every method of a task:", ""]
    names = ("epochs", "lr", "batch_size", "schedule", "max_length", "validation", "precision")
    names += ("head",)
    lines.append("| model | task | " + " | ".join(names) + " | trained on | scored on |")
    lines.append("| --- | --- |" + " ---: |" * (len(names) + 2))
    for row in {(row.model, row.task): row for row in rows}.values():
        record = row.records[0]
        cells = [str(record["settings"][name]) for name in names]
        cells += [f"{record['n_train']:,}", f"{record['n_evaluated']:,}"]
        cells[-1] += "" if record["divided"] else " (a fifth of an undivided set)"
        lines.append(f"| {row.model} | {row.task} | " + " | ".join(cells) + " |")
    lines += ["", "Options of the first seed, with what its data settled:", ""]
    lines += ["| model | task | method | options |", "| --- | --- | --- | --- |"]
    for row in rows:
        options = row.records[0]["options"] or {}
        said = ", ".join(f"{name} {shown(value)}" for name, value in options.items())
        if said:
            lines.append(f"| {row.model} | {row.task} | {row.method} | {said} |")
    return lines


def shown(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


TITLE = "# Calibration in training\n\n"
TAIL = "log10 I1 | I2 | min/epoch | trained on | scored on"
HEAD = [
    "Made by `python benchmarks/glue.py --models DIR --data DIR --runs FILE`, of the runs that are",
    "in the file. `cosine` and the two `spectrum` regularise the output matrix W in every step (a",
    "row a class, or a token where text is generated), as in the paper; with `on=cls`, and for",
    "`isoscore-star`, the rows that W reads. `isobn` and `flow` stand before W, the flow trained",
    "along by its own likelihood, the head's bias started from the labels, as the flow takes every",
    "mean away (where text is generated, the output layer starts as its twin for the flow's rows);",
    "the `isotropy-layer` is trained after fine-tuning, all else frozen. The head `model` is that",
    "of transformers, as in the paper, `linear` one layer on [CLS] (last section). `*`: better",
    "than none at 5 % by a two-sample t-test with equal variances, as in the paper; `**`: also by",
    "Welch's test with Holm over the methods.",
    "",
]

if __name__ == "__main__":
    main()
