"""The papers' settings on STS-B dev and on word similarity, fitted on the evaluated text and apart.

    python benchmarks/compare.py --models DIR --data DIR --cache DIR --work DIR

Each model is a JSON file in --work; what is there is not run again. Writes results/compare.md.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

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
WORD_MODELS = ("distilbert-base-cased", "smollm2-135m")
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
                path.write_text(json.dumps(found.to_dict(), indent=1))
                print(found, flush=True)
    path = work / "words.json"
    if not path.exists():
        path.write_text(json.dumps({m: words(m, options) for m in WORD_MODELS}, indent=1))
    write(work, Path(options.out))


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
        cells = [f"{dot:.1f} / {cosine:.1f}" for dot, cosine in found.values()]
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
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
    "on the whole matrix, words that are one token.",
    "",
    "| model | " + " | ".join(WORD_SETTINGS) + " |",
    "| --- |" + " ---: |" * len(WORD_SETTINGS),
]

if __name__ == "__main__":
    main()
