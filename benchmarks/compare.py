"""The papers' settings on STS-B dev and on word similarity, fitted on the evaluated text and apart.

    python benchmarks/compare.py --models DIR --data DIR --cache DIR --work DIR

Each model is a JSON file in --work; what is there is not run again. Writes results/compare.md.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import isotropy
from isotropy.evidence import Candidate, compare
from isotropy.repairs import AllButTheTop, Center, ScaledCenter
from isotropy.tasks import STS, WordSimilarity

MODELS = (
    "distilbert-base-cased",
    "smollm2-135m",
    "gte-small",
    "all-MiniLM-L6-v2",
    "flan-t5-small",
)
SETTINGS = {
    "zero-mean": Candidate("center", {}, "token"),
    "global 12": Candidate("all-but-the-top", {"n_components": 12}, "token"),
    "cluster zero-mean 27": Candidate(
        "cluster-removal", {"n_clusters": 27, "n_components": 0}, "token"
    ),
    "cluster 27/12": Candidate("cluster-removal", {"n_clusters": 27, "n_components": 12}, "token"),
    "cluster 10/30": Candidate("cluster-removal", {"n_clusters": 10, "n_components": 30}, "token"),
}
EXPECTED = {  # a plain prototype's figures, fitted on the evaluated text
    "distilbert-base-cased": (35.8, 43.6, 59.1, 58.5, 69.1, 68.5),
    "smollm2-135m": (54.2, 57.2, 68.0, 64.9, 72.0, 72.7),
    "gte-small": (89.4, 88.9, 87.3, 87.8, 80.4, 79.2),
    "all-MiniLM-L6-v2": (86.7, 86.8, 85.4, 86.5, 82.1, 81.8),
    "flan-t5-small": (58.4, 60.1, 70.9, 70.2, 75.8, 75.3),
}
EXPECTED_WORDS = {  # the same prototype's, inner product and cosine
    "distilbert-base-cased": ((43.5, 54.0), (52.3, 54.9), (60.6, 61.6), (67.1, 67.3)),
    "smollm2-135m": ((28.8, 37.3), (25.5, 36.7), (39.2, 48.9), (58.7, 60.3)),
}
TARGETS = {"closed form": 0.3, "k-means": 1.5, "words": 0.2}  # distances from the prototype
WORD_MODELS = tuple(EXPECTED_WORDS)
WORD_SETTINGS = {
    "none": None,
    "centred": Center(),
    "scaled-centred": ScaledCenter(),
    "all-but-the-top": AllButTheTop(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=os.environ.get("ISOTROPY_MODELS"))
    parser.add_argument("--data", default=os.environ.get("ISOTROPY_DATA"))
    parser.add_argument("--cache", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--out", default="results/compare.md")
    options = parser.parse_args()
    work = Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    for transductive in (True, False):
        for model in MODELS:
            path = work / f"{model}--{'transductive' if transductive else 'train'}.json"
            if not path.exists():
                encoder = isotropy.Encoder(
                    Path(options.models) / model, pool="mean", cache=options.cache
                )
                task = STS.read(Path(options.data) / "stsb")
                settings = list(SETTINGS.values())
                found = compare(encoder, task, settings, part="dev", transductive=transductive)
                keep(path, found.to_dict())
                print(found, flush=True)
    path = work / "words.json"
    if not path.exists():
        keep(path, {m: words(m, options) for m in WORD_MODELS})
    write(work, Path(options.out))
    for name, distance in distances(work).items():
        verdict = "within" if distance <= TARGETS[name] else "NOT within"
        print(f"{name}: at most {distance:.2f} from the prototype, {verdict} {TARGETS[name]}")


def keep(path: Path, found: dict[str, Any]) -> None:
    """Write the file whole or not at all: what is there is not run again."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1), encoding="utf-8")
    part.replace(path)


def words(model: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Mean Pearson of the five sets by product and by cosine, fitted on the whole matrix."""
    matrix = isotropy.embeddings(Path(options.models) / model)
    found: dict[str, list[float]] = {}
    for similarity in ("dot", "cosine"):
        task = WordSimilarity.read(Path(options.data) / "wordsim", similarity=similarity)
        task = task.known(matrix.words)
        rows = [matrix.words[word] for word in task.texts]
        for name, repair in WORD_SETTINGS.items():
            vectors = matrix.vectors
            if repair is not None:
                vectors = repair.fit(vectors).transform(vectors)
            found.setdefault(name, []).append(100 * task.score(vectors[rows]).value)
    return found


def distances(work: Path) -> dict[str, float]:
    """The largest distance of a figure from the prototype's, which has one decimal, by kind."""
    found: dict[str, list[float]] = {name: [] for name in TARGETS}
    for model in MODELS:
        path = work / f"{model}--transductive.json"
        results = json.loads(path.read_text())["results"]
        for result, expected in zip(results, EXPECTED[model], strict=True):
            kind = "k-means" if result["method"] == "cluster-removal" else "closed form"
            found[kind].append(abs(result["score"] - expected))
    for model, cells in json.loads((work / "words.json").read_text()).items():
        for pair, both in zip(cells.values(), EXPECTED_WORDS[model], strict=True):
            found["words"] += [abs(a - b) for a, b in zip(pair, both, strict=True)]
    return {name: max(values) for name, values in found.items()}


def write(work: Path, out: Path) -> None:
    lines = [*HEAD, "| model | fitted on | none | " + " | ".join(SETTINGS) + " |"]
    lines.append("| --- | --- |" + " ---: |" * (1 + len(SETTINGS)))
    for model in MODELS:
        for kind in ("transductive", "train"):
            path = work / f"{model}--{kind}.json"
            if not path.exists():
                continue
            results = json.loads(path.read_text())["results"]
            cells = [f"{results[0]['score']:.1f}"]
            for r in results[1:]:
                low, high = r["interval"]
                cells.append(f"{r['score']:.1f} ({low:+.1f} to {high:+.1f})")
            lines.append(f"| {model} | {kind} | " + " | ".join(cells) + " |")
        lines.append(
            f"| {model} | prototype | " + " | ".join(f"{v:.1f}" for v in EXPECTED[model]) + " |"
        )
    lines += ["", *WORDS_HEAD]
    for model, found in json.loads((work / "words.json").read_text()).items():
        for name, pairs in (("isotropy", found.values()), ("prototype", EXPECTED_WORDS[model])):
            cells = [f"{dot:.1f} / {cosine:.1f}" for dot, cosine in pairs]
            lines.append(f"| {model} | {name} | " + " | ".join(cells) + " |")
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {out}")


HEAD = [
    "# The papers' settings",
    "",
    "Made by `python benchmarks/compare.py --models DIR --data DIR --cache DIR --work DIR`.",
    "",
    "STS-B dev, 1,500 pairs: Spearman x 100 of the cosine of mean-pooled token vectors of the last",
    "layer, without special tokens; the repair is applied to tokens. k-means settings are the mean",
    "of 5 seeds. In brackets the 95 % interval of the difference from none (paired bootstrap over",
    "groups of pairs that share a sentence, 2,000 draws, seed 0). `transductive` is fitted on the",
    "tokens of the evaluated sentences, as the cluster-based paper does; `train` on those of STS-B",
    "train without the evaluated sentences; `prototype` are the figures of a plain prototype,",
    "fitted as `transductive`.",
    "",
]
WORDS_HEAD = [
    "## Word similarity on input embeddings",
    "",
    "Mean over MEN, RW, SimLex, WS-sim and WS-rel of Pearson x 100, inner product / cosine; fitted",
    "on the whole matrix, words that are one token; `prototype` as above.",
    "",
    "| model | by | " + " | ".join(WORD_SETTINGS) + " |",
    "| --- | --- |" + " ---: |" * len(WORD_SETTINGS),
]

if __name__ == "__main__":
    main()
