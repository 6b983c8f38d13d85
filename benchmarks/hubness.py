"""Do CSLS and local scaling help a search? And does it matter where neighbours are looked for?

    python benchmarks/hubness.py MODEL... --data CRANFIELD [--cache FOLDER]

For each model: hubness and antihubs of the documents, and the gain of each scorer over cosine with
its 95 % interval, by paired bootstrap. Neighbours of a document are looked for among the other
documents, or among queries that are not scored: the queries are cut into two halves (seed 0), and
each half is scored with the other.
"""

from __future__ import annotations

import argparse

import numpy as np

import isotropy
from isotropy.evidence.significance import Fold, difference, interval
from isotropy.tasks import CSLS, LocalScaling, Retrieval, Scorer

SCORERS = [kind(k) for kind in (CSLS, LocalScaling) for k in (5, 10, 20)]


def gain(task: Retrieval, X: np.ndarray, scorer: Scorer, parts: list[tuple]) -> str:
    """The gain on (items, items to learn from), and its interval, in points."""
    folds = [
        Fold(task.score(X, items, train, scorer), task.score(X, items), task.groups[items])
        for items, train in parts
    ]
    low, high = (100 * end for end in interval(folds))
    return f"{100 * difference(folds):+.1f} ({low:+.1f} to {high:+.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--data", required=True)
    parser.add_argument("--cache")
    options = parser.parse_args()
    task = Retrieval.read(options.data)
    everything = np.arange(task.n_items)
    order = np.random.default_rng(0).permutation(task.n_items)
    one, other = (np.sort(half) for half in np.array_split(order, 2))
    print("| model | hubness | antihubs | cosine | scorer | among documents | among queries |")
    print("| --- | ---: | ---: | ---: | --- | --- | --- |")
    for model in options.models:
        X = isotropy.Encoder(model, cache=options.cache).encode(task.texts)
        hubs = isotropy.measure(X[task.documents], ["hubness", "antihubs"])
        head = f"{model.rpartition('/')[2]} | {hubs.hubness:.2f} | {100 * hubs.antihubs:.1f} %"
        head += f" | {100 * task.score(X).value:.1f}"
        for scorer in SCORERS:
            documents = gain(task, X, scorer, [(everything, None)])
            queries = gain(task, X, scorer, [(one, other), (other, one)])
            print(f"| {head} | {scorer} | {documents} | {queries} |", flush=True)


if __name__ == "__main__":
    main()
