"""The isotropy layer on frozen [CLS] features of a fine-tuned model, with IsoBN beside it.

    python benchmarks/isotropy_layer.py --data DATA --models MODELS --runs RUNS
        [--model distilbert-base-cased ...] [--task rte cola mrpc] [--seeds 5] [--device cuda]
        [--jobs 1] [--precision tf32] [--out results/isotropy_layer.md]

Each model is fine-tuned on 70 % of a task's training items, with early stopping on the others by
the task's metric; then body and head are frozen and the layer is trained between them. IsoBN is in
place while the model is fine-tuned. Score, IsoScore and explained variance of the head's input are
those of the dev set. Runs are kept in RUNS, one line each, and not run again. The tables have the
shape of tables 2 and 3 of the paper on the isotropy layer.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import scipy.stats

import isotropy
from isotropy.trial.trial import Trial

METHODS = ("isotropy-layer", "isobn")
TITLE = "# The isotropy layer\n\n"
MARK = "<!-- figures -->"  # what stands above it in --out is kept
Record = dict[str, Any]


STATES = ("fine-tuned", "layer", "isobn")
JUDGED_BY = {"rte": "accuracy", "cola": "matthews", "mrpc": "accuracy"}  # in that paper
Outcome = tuple[float, Record]


def outcomes(records: list[Record]) -> dict[str, list[Outcome]]:
    """(score, geometry of the head's input) of every finished run, for each of the states."""
    found: dict[str, list[Outcome]] = {state: [] for state in STATES}
    for record in records:
        if record["status"] != "finished":
            continue
        metric = JUDGED_BY.get(record["task"], record["metric"])
        after = record["metrics"][metric], record["geometry"]["after"]["calibrated"]
        states = {"isobn": after}
        if record["method"] != "isobn":
            plain = record["finetuned"]
            before = plain["metrics"][metric], plain["geometry"]["features"]
            states = {"fine-tuned": before, "layer": after}
        if all(score is not None for score, _ in states.values()):  # null where it is undefined
            for state, outcome in states.items():
                found[state].append(outcome)
    return found


def median(runs: list[Outcome], name: str) -> float:
    return statistics.median(geometry[name] for _, geometry in runs)


def performance(runs: list[Outcome]) -> str:
    scores = [100 * score for score, _ in runs]
    spread = statistics.stdev(scores) if len(scores) > 1 else float("nan")
    return f"{statistics.median(scores):.2f} ({spread:.2f})"


def explained(runs: list[Outcome]) -> str:
    """Explained variance of the first one, two and three directions, of the run with median EV1."""
    values = sorted(geometry["explained_variance"] for _, geometry in runs)
    return "/".join(f"{value:.2f}" for value in values[(len(values) - 1) // 2][:3])


def gain(before: float, after: float) -> str:
    return f"{100 * (after - before) / abs(before):+.1f} %" if before else ""


def change(before: list[Outcome], after: list[Outcome], paired: bool) -> str:
    """Change of the mean score in points, its 95 % interval and p: paired by seed, or Welch's."""
    one, two = [[100 * score for score, _ in runs] for runs in (before, after)]
    if min(len(one), len(two)) < 2:
        return "NaN | NaN | NaN"
    difference = statistics.mean(two) - statistics.mean(one)
    varying = (
        [after - before for before, after in zip(one, two, strict=True)] if paired else one + two
    )
    if max(varying) - min(varying) < 1e-9:
        return f"{difference:+.2f} | NaN | NaN"
    test = scipy.stats.ttest_ind(two, one, equal_var=False)
    if paired:
        test = scipy.stats.ttest_rel(two, one)
    interval = test.confidence_interval()
    return f"{difference:+.2f} | {interval.low:+.2f} to {interval.high:+.2f} | {test.pvalue:.3f}"


def tables(cells: dict[tuple[str, str], dict[str, list[Outcome]]]) -> list[str]:
    """Lines of the tables, of outcomes by (task, model)."""
    lines = ["## Before and after the layer (medians; shape of table 2)", ""]
    lines += ["| task | model | | score | IsoScore |", "| --- | --- | --- | ---: | ---: |"]
    for (task, model), found in cells.items():
        scores = [statistics.median(s for s, _ in found[k]) for k in ("fine-tuned", "layer")]
        isos = [median(found[k], "isoscore") for k in ("fine-tuned", "layer")]
        for label, score, iso in zip(("fine-tuned", "+ layer"), scores, isos, strict=True):
            lines.append(f"| {task} | {model} | {label} | {100 * score:.2f} | {iso:.4f} |")
        lines.append(f"| {task} | {model} | change | {gain(*scores)} | {gain(*isos)} |")
    lines += ["", "## Beside IsoBN (median and deviation of the score; shape of table 3)", ""]
    lines += [
        "| task | model | | runs | score | EV1/EV2/EV3 | IsoScore |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for (task, model), found in cells.items():
        for label, runs in found.items():
            row = (performance(runs), explained(runs), f"{median(runs, 'isoscore'):.4f}")
            lines.append(f"| {task} | {model} | {label} | {len(runs)} | {' | '.join(row)} |")
    lines += ["", "## Against the fine-tuned model", ""]
    lines.append("Change of the mean score in points; the layer's runs are paired with the")
    lines[-1] += " fine-tuned models they stand on (t-test), IsoBN's are runs of their own (Welch)."
    lines += ["", "| task | model | | change | 95 % interval | p |"]
    lines.append("| --- | --- | --- | ---: | ---: | ---: |")
    for (task, model), found in cells.items():
        for label in STATES[1:]:
            cell = change(found["fine-tuned"], found[label], label == "layer")
            lines.append(f"| {task} | {model} | {label} | {cell} |")
    for label in STATES[1:] if len(cells) > 1 else ():
        changes = [
            mean_score(found[label]) - mean_score(found["fine-tuned"]) for found in cells.values()
        ]
        test = scipy.stats.ttest_1samp(changes, 0.0)
        low, high = test.confidence_interval()
        lines.append(
            f"| mean of the {len(cells)} | | {label} | {statistics.mean(changes):+.2f} | "
            f"{low:+.2f} to {high:+.2f} | {test.pvalue:.3f} |"
        )
    return lines


def mean_score(runs: list[Outcome]) -> float:
    return 100 * statistics.mean(score for score, _ in runs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the GLUE sets")
    parser.add_argument("--models", type=Path, help="folder of pretrained models")
    parser.add_argument("--runs", type=Path, required=True, help="file of the records")
    parser.add_argument("--model", nargs="+", default=["distilbert-base-cased"])
    parser.add_argument("--task", nargs="+", default=["rte", "cola", "mrpc"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=10, help="at most; early stopping ends them")
    parser.add_argument("--precision", choices=["float32", "tf32", "bf16"])
    parser.add_argument("--max-train", type=int, help="training items, for a quick look")
    parser.add_argument("--out", type=Path, help="file for the tables, as Markdown")
    args = parser.parse_args()
    settings = {
        "validation": 0.3,
        "head": "linear",
        "epochs": args.epochs,
        "max_train": args.max_train,
        "precision": args.precision,
    }
    trial = Trial(
        args.task,
        args.model,
        METHODS,
        args.runs,
        n_seeds=args.seeds,
        data=args.data,
        folder=args.models,
        device=args.device,
        jobs=args.jobs,
        settings=settings,
    )
    records = trial.run(lambda record: print(said(record), flush=True))
    cells = {}
    for task in args.task:
        for model in args.model:
            name = Path(model).name
            mine = [r for r in records if (r["task"], r["model"]) == (task, name)]
            found = outcomes(mine)
            if all(found.values()):
                cells[task, name] = found
            else:
                print(f"{task} with {name} is left out: every run of a method diverged")
    lines = tables(cells)
    print("\n".join(lines))
    if args.out:
        precision = f" --precision {args.precision}" if args.precision else ""
        versions = records[0]["versions"]
        head = (
            f"`python benchmarks/isotropy_layer.py --model {' '.join(args.model)} --task "
            f"{' '.join(args.task)} --seeds {args.seeds} --epochs {args.epochs}{precision}`: "
            f"isotropy {isotropy.__version__}, torch {versions['torch']}, transformers "
            f"{versions['transformers']}, on {records[0]['device']}; 70/30 split of "
            f"{'all' if args.max_train is None else args.max_train} training items."
        )
        words = args.out.read_text("utf-8").partition(MARK)[0] if args.out.exists() else TITLE
        args.out.write_text(words + "\n".join([MARK, "", head, "", *lines, ""]), encoding="utf-8")


def said(record: Record) -> str:
    """One line on a run that has ended."""
    where = f"{record['model']} {record['task']} {record['method']} seed {record['seed']}"
    return f"{where}: {record['status']}, {record['score']:.4f}, {record['seconds']:.0f} s"


if __name__ == "__main__":
    main()
