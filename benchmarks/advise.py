"""What advise chose, against no repair, every repair at its default, and the best in hindsight.

    python benchmarks/advise.py --models DIR --data DIR --cache DIR --work DIR [--jobs N]

Each cell (a model on a task) is a JSON file in --work; cells that are there are not run again, so
the command can be stopped and repeated. results/advise.md is written from all that are there.

With --alone a cell is `advise` and nothing else: its seconds, its choice, p, and the score of every
candidate on each fold. --before DIR then prints the table of results/advise-speed.md: the cells of
that folder, made by another version (its src as PYTHONPATH), beside those of --work.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from timing import limit_threads

from isotropy.errors import IsotropyWarning
from isotropy.evidence.advice import percent
from isotropy.evidence.search import Options, searches
from isotropy.evidence.significance import Fold, holm, interval, p_value
from isotropy.evidence.spaces import NONE, Candidate, default_candidates
from isotropy.models.encoder import Encoder

MODELS = (
    "distilbert-base-cased",
    "smollm2-135m",
    "gte-small",
    "all-MiniLM-L6-v2",
    "all-mpnet-base-v2",
)
TASKS = {
    "stsb": "sts", "sts12": "sts", "sts14": "sts", "cranfield": "retrieval",
    "trec": "classification", "rte": "classification", "wic": "word-in-context",
    "wordsim": "word-similarity", "stsb-regrouped": "sts",
}  # fmt: skip
REGROUPED = "-regrouped"  # pairs of a set that share sentences, dealt to train and test in turn
LEVEL = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=os.environ.get("ISOTROPY_MODELS"))
    parser.add_argument("--data", default=os.environ.get("ISOTROPY_DATA"))
    parser.add_argument("--cache", default="cache", help="folder of token vectors")
    parser.add_argument("--work", required=True, help="folder of the cells")
    parser.add_argument("--only", nargs="*", default=[], help="model:task ...")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time, in processes")
    parser.add_argument("--device", default=None)
    parser.add_argument("--threads", type=int, help="of each job [as many as cores]")
    parser.add_argument("--alone", action="store_true", help="time advise, without other repairs")
    parser.add_argument("--before", help="folder of cells to print those of --work beside")
    parser.add_argument("--out", default="results/advise.md")
    options = parser.parse_args()
    if options.before:
        print("\n".join(speeds(Path(options.before), Path(options.work))))
        return
    limit_threads(options.threads)
    work = Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    wanted = options.only or [f"{m}:{t}" for t in options.tasks for m in MODELS]
    missing = [name for name in wanted if not path_of(work, name).exists()]
    if len(missing) == 1 or options.jobs == 1:
        for name in missing:
            run(name, options)
    else:
        command = [sys.executable, __file__, "--models", options.models, "--data", options.data]
        command += ["--cache", options.cache, "--work", options.work, "--out", os.devnull]
        command += ["--device", options.device] if options.device else []
        command += ["--alone"] if options.alone else []
        with ThreadPoolExecutor(options.jobs) as pool:
            ends = pool.map(lambda name: subprocess.run([*command, "--only", name]), missing)
            failed = [n for n, end in zip(missing, ends, strict=True) if end.returncode]
            if failed:
                sys.exit(f"failed, and not in the table: {', '.join(failed)}")
    if not options.alone:
        write(work, Path(options.out))


def path_of(work: Path, name: str) -> Path:
    return work / f"{name.replace(':', '--')}.json"


def run(name: str, options: argparse.Namespace) -> None:
    from isotropy.cli.evidence import TaskOptions, VectorOptions

    model, task_name = name.split(":")
    warnings.simplefilter("ignore", IsotropyWarning)
    source = Path(options.data) / task_name.removesuffix(REGROUPED)
    task = TaskOptions().open(TASKS[task_name], str(source))
    if task_name.endswith(REGROUPED):
        task = regrouped(task, task_name)
    folder = str(Path(options.models) / model)
    device = None if TASKS[task_name] == "word-similarity" else options.device  # no model is run
    vectors, task = VectorOptions(device=device, cache=Path(options.cache)).open(folder, task)
    if isinstance(vectors, Encoder):  # so that the time of a cell is without encoding
        searches(vectors, task, {"": None}, Options(candidates=[Candidate(NONE)]))
    begun = time.perf_counter()
    found = alone(vectors, task)[0] if options.alone else cell(vectors, task)
    found |= {"model": model, "task": task_name, "seconds": time.perf_counter() - begun}
    path = path_of(Path(options.work), name)
    path.with_suffix(".part").write_text(json.dumps(found, indent=1))
    path.with_suffix(".part").rename(path)
    print(f"{name}: {found['choice']} {found['baseline']} -> {found['score']}, "
          f"advise {found['advise_seconds']:.1f} s ({found['advise_cpu_seconds']:.1f} s of CPU), "
          f"all {found['seconds']:.0f} s", flush=True)  # fmt: skip


def regrouped(task, name: str):
    """The pairs that share a sentence with another one, dealt to train and test in turn.

    So nearly every sentence of the training part is one of the test part too, as in SICK.
    """
    _, groups, sizes = np.unique(task.groups, return_inverse=True, return_counts=True)
    items = np.flatnonzero(sizes[groups] > 1)
    items = items[np.argsort(groups[items], kind="stable")]
    found = task.subset(items)
    found.name, found.part = name, np.resize(["train", "test"], len(items))
    return found.subset(np.arange(len(items)))


def alone(vectors, task) -> tuple[dict, Any, Any]:
    """The advice and what it took, with the search and the advice themselves."""
    start, cpu_start = time.perf_counter(), time.process_time()
    (search,) = searches(vectors, task, {"": None}, Options()).values()
    advice = search.advice()
    found = advice.to_dict() | {"name": str(advice.choice), "values": search.values.tolist()}
    found |= {"advise_seconds": time.perf_counter() - start}
    found |= {"advise_cpu_seconds": time.process_time() - cpu_start}
    return found | {"load": os.getloadavg()[0]}, search, advice


def cell(vectors, task) -> dict:
    """Everything of one model on one task, on the part that was not used to choose."""
    found, search, advice = alone(vectors, task)
    plan = search.plan
    if search.outside is not None:
        plan = search.bench.held_out(search.outside, search.inside)
    shown = list(search.candidates)
    usual = default_candidates(search.bench.space.levels)
    extra = [c for c in usual if str(c) not in map(str, shown)]
    for evaluation in plan.evaluations:
        evaluation.fits._candidates = shown + extra
    none = search.bench.outcomes(Candidate(NONE), plan)
    rows = []
    for i, candidate in enumerate(shown + extra):
        outcomes = (
            search.outcomes[i]
            if plan is search.plan and i < len(shown)
            else search.bench.outcomes(candidate, plan)
        )
        folds = search.bench.folds(plan, outcomes, none)
        same = candidate.method == NONE
        rows.append(
            candidate.to_dict()
            | {
                "name": str(candidate),
                "default": i >= len(shown) or str(candidate) in map(str, usual),
                "searched": i < len(shown),
                "score": percent(float(np.mean([o.value for o in outcomes]))),
                "interval": [0, 0] if same else [percent(e) for e in interval(folds)],
                "p": 1.0 if same else p_value(folds),
            }
        )
    best = max((r for r in rows if r["score"] is not None), key=lambda r: r["score"])
    found |= {"results": rows, "hindsight": best}
    found["against_none"] = advised_against_none(search, advice, plan)
    return found


def advised_against_none(search, advice, plan) -> dict:
    """The difference that the advice makes on the reported part, and its two-sided p."""
    if advice.choice.method == NONE:
        return {"difference": 0.0, "p": 1.0}
    folds: list[Fold]
    if search.outside is None:
        folds, _, _ = search.tested
    else:
        none = search.bench.outcomes(Candidate(NONE), plan)
        folds = search.bench.folds(plan, search.bench.outcomes(advice.choice, plan), none)
    mean = float(np.mean([fold.difference for fold in folds]))
    return {"difference": percent(mean), "p": p_value(folds)}


def speeds(before: Path, after: Path) -> list[str]:
    """The table of two folders of cells, made with --alone by two versions."""
    columns = ("model", "task", "choice", "p", "CPU s", "wall s", "largest change of a score")
    lines = [f"| {' | '.join(columns)} |", "| --- | --- | --- |" + " ---: |" * 4]
    for model, task in itertools.product(MODELS, TASKS):
        paths = [path_of(folder, f"{model}:{task}") for folder in (before, after)]
        if not all(path.exists() for path in paths):
            continue
        old, new = (json.loads(path.read_text()) for path in paths)
        change = np.nanmax(np.abs(np.mean(new["values"], axis=1) - np.mean(old["values"], axis=1)))
        row = [model, task, from_to(old["name"], new["name"])]
        row += [from_to(f"{old['p']:.4f}", f"{new['p']:.4f}")]
        for kind in ("advise_cpu_seconds", "advise_seconds"):
            row += [f"{old[kind]:.0f} -> {new[kind]:.0f}"]
        lines.append(f"| {' | '.join([*row, f'{100 * change:.4f}'])} |")
    return lines


def from_to(old: str, new: str) -> str:
    return old if old == new else f"{old} -> {new}"


def write(work: Path, out: Path) -> None:
    if str(out) == os.devnull:
        return
    cells = [json.loads(path.read_text()) for path in work.glob("*.json")]
    cells.sort(key=lambda c: (MODELS.index(c["model"]), list(TASKS).index(c["task"])))
    if not cells:
        return
    gains = np.array([c["hindsight"]["score"] - c["baseline"] for c in cells])
    taken = np.array([c["score"] - c["baseline"] for c in cells])
    significant = (holm([c["hindsight"]["p"] for c in cells]) <= LEVEL) & (gains > 0)
    worse = (holm([c["against_none"]["p"] for c in cells]) <= LEVEL) & (taken < 0)
    lines = [*HEAD, *table(cells, gains, taken, significant), "", "## Over the cells", ""]
    lines.append(
        f"- {len(cells)} cells; with advise significantly worse than without repair (Holm over "
        f"the cells, 5 %): {worse.sum()}."
    )
    for model in ("all", *MODELS):
        mine = np.array([model in ("all", c["model"]) for c in cells]) & significant
        if not mine.any():
            lines.append(f"- {model}: no cell with a significant gain in hindsight.")
            continue
        share = 100 * taken[mine].sum() / gains[mine].sum()
        lines.append(
            f"- {model}: {share:.0f} % of the {gains[mine].sum():.1f} points of gain in hindsight, "
            f"over {mine.sum()} cells where it is significant."
        )
    lines += ["", "## Every repair", "", "p: paired permutation, two-sided, not adjusted."]
    for cell in cells:
        lines += detail(cell)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {out}: {len(cells)} cells")


def table(cells, gains, taken, significant) -> list[str]:
    columns = ("model", "task", "items", "none", "best default", "best in hindsight", "gain")
    columns += ("advise chose", "score", "of the gain", "seconds")
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    for c, gain, got, sure in zip(cells, gains, taken, significant, strict=True):
        scored = [r for r in c["results"] if r["score"] is not None]
        default = max((r for r in scored if r["default"]), key=lambda r: r["score"])
        row = (
            c["model"],
            c["task"],
            f"{c['n_items']:,}",
            f"{c['baseline']:.1f}",
            f"{default['name']} {default['score']:.1f}",
            f"{c['hindsight']['name']} {c['hindsight']['score']:.1f}",
            f"{gain:+.1f}{'*' if sure else ''}",
            chosen(c),
            f"{c['score']:.1f}",
            f"{100 * got / gain:.0f} %" if sure else "",
            f"{c['seconds']:.0f}",
        )
        lines.append(f"| {' | '.join(row)} |")
    return lines


def chosen(cell: dict) -> str:
    keys = ("params", "level")
    for r in cell["results"]:
        if r["method"] == cell["choice"] and all(r[k] == cell[k] for k in keys):
            return r["name"]
    return cell["choice"]


def detail(cell: dict) -> list[str]:
    lines = ["", f"### {cell['model']}, {cell['task']}: {cell['metric']}", ""]
    lines += [f"Fitted on {cell['fitted_on']}. {cell['reason']}", ""]
    lines += ["| repair | score | difference | 95 % interval | p |", "| --- |" + " ---: |" * 4]
    for r in cell["results"]:
        if r["score"] is not None:
            low, high = (float("nan") if end is None else end for end in r["interval"])
            lines.append(
                f"| {r['name']} | {r['score']:.1f} | {r['score'] - cell['baseline']:+.1f} | "
                f"{low:+.1f} to {high:+.1f} | {r['p']:.4f} |"
            )
    return lines


HEAD = [
    "# What advise chose",
    "",
    "Made by `python benchmarks/advise.py --models DIR --data DIR --cache DIR --work DIR`; the",
    "models and sets are those of the table, scores are times 100, seed 0 throughout. Last layer,",
    "mean of tokens without special ones, or a sentence-transformers model's own pooling; word",
    "similarity on input embeddings. At most 2,000 training items a cell. What is scored is the",
    "part not used to choose: test (dev where test has no labels), or in an undivided task the",
    "outer folds. `*`: the gain of the best repair in hindsight is significant (Holm over the",
    "cells, 5 %; picking the best of all is not corrected for, which asks more of advise). Seconds",
    "are those of the cell on 2 threads, its vectors cached, every repair on the reported part",
    "included. stsb-regrouped has the pairs of STS-B that share a sentence with another pair,",
    "dealt in turn to train and test: as in SICK, nearly every training pair shares a sentence",
    "with the test part.",
    "",
]

if __name__ == "__main__":
    main()
