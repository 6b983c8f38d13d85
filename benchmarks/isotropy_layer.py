"""The isotropy layer on frozen [CLS] features of a fine-tuned model, with IsoBN beside it.

    python benchmarks/isotropy_layer.py --data DATA --models MODELS --runs RUNS
        [--model distilbert-base-cased ...] [--task rte cola mrpc] [--seeds 5] [--device cuda]
        [--out results/isotropy_layer.md]

Each model is fine-tuned on 70 % of a task's training items, with early stopping on the others by
the task's metric; then body and head are frozen and the layer is trained between them. IsoBN is in
place while the model is fine-tuned. Score, IsoScore and explained variance of the head's input are
those of the dev set. Runs are kept in RUNS, one file each, and not run again. The tables have the
shape of tables 2 and 3 of the paper on the isotropy layer.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
import transformers

import isotropy
from isotropy.train.trial import Trial

METHODS = ("isotropy-layer", "isobn")
Record = dict[str, Any]


def outcomes(records: list[Record]) -> dict[str, list[tuple[float, Record]]]:
    """(score, geometry of the head's input) of every finished run, for each of three states."""
    found: dict[str, list[tuple[float, Record]]] = {"fine-tuned": [], "layer": [], "isobn": []}
    for record in records:
        if record["status"] != "finished":
            continue
        after = record["score"], record["geometry"]["after"]["calibrated"]
        if record["method"] == "isobn":
            found["isobn"].append(after)
            continue
        plain = record["finetuned"]
        found["layer"].append(after)
        found["fine-tuned"].append((plain["score"], plain["geometry"]["features"]))
    return found


def median(runs: list[tuple[float, Record]], name: str) -> float:
    return statistics.median(geometry[name] for _, geometry in runs)


def performance(runs: list[tuple[float, Record]]) -> str:
    scores = [100 * score for score, _ in runs]
    spread = statistics.stdev(scores) if len(scores) > 1 else float("nan")
    return f"{statistics.median(scores):.2f} ({spread:.2f})"


def explained(runs: list[tuple[float, Record]]) -> str:
    """Explained variance of the first one, two and three directions, of the run with median EV1."""
    values = sorted(geometry["explained_variance"] for _, geometry in runs)
    return "/".join(f"{value:.2f}" for value in values[(len(values) - 1) // 2])


def gain(before: float, after: float) -> str:
    return f"{100 * (after - before) / abs(before):+.1f} %" if before else ""


def tables(cells: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    """Lines of both tables, of outcomes by (task, model)."""
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
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the GLUE sets")
    parser.add_argument("--models", type=Path, help="folder of pretrained models")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the records")
    parser.add_argument("--model", nargs="+", default=["distilbert-base-cased"])
    parser.add_argument("--task", nargs="+", default=["rte", "cola", "mrpc"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=10, help="at most; early stopping ends them")
    parser.add_argument("--max-train", type=int, help="training items, for a quick look")
    parser.add_argument("--out", type=Path, help="file for the tables, as Markdown")
    args = parser.parse_args()
    settings = {"validation": 0.3, "epochs": args.epochs, "max_train": args.max_train}
    cells = {}
    device = ""
    for model in args.model:
        for task in args.task:
            trial = Trial(
                [task],
                [model],
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
            cells[task, model] = outcomes(records)
            device = records[0]["device"]
    lines = tables(cells)
    print("\n".join(lines))
    if args.out:
        head = (
            f"`python benchmarks/isotropy_layer.py --model {' '.join(args.model)} --task "
            f"{' '.join(args.task)} --seeds {args.seeds} --epochs {args.epochs}`: isotropy "
            f"{isotropy.__version__}, torch {torch.__version__}, transformers "
            f"{transformers.__version__}, on {device}; 70/30 split of "
            f"{'all' if args.max_train is None else args.max_train} training items."
        )
        args.out.write_text("\n".join(["# The isotropy layer", "", head, "", *lines, ""]))


def said(record: Record) -> str:
    """One line on a run that has ended."""
    where = f"{record['model']} {record['task']} {record['method']} seed {record['seed']}"
    return f"{where}: {record['status']}, {record['score']:.4f}, {record['seconds']:.0f} s"


if __name__ == "__main__":
    main()
