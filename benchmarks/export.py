"""What a repair costs where it is exported to: in a faiss index, and behind an encoder.

    python benchmarks/export.py --model FOLDER [--rows 100000] [--out results/export.md]

Needs the extras faiss and models. Everything runs in one thread and CPU time is taken, which is
the latency on a core that has no other work. Ways are timed in turn, round by round, and the ratios
are medians over the rounds.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import sentence_transformers
import torch
from make_vectors import vectors
from sentence_transformers import SentenceTransformer

import isotropy
from isotropy._version import __version__

FEATURES = 384
TOP = 10
TEXT = "The committee agreed on {} new rules for the harbour, and asked the {} towns to comment."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="all-MiniLM-L6-v2: a folder, or its name")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", default="results/export.md")
    options = parser.parse_args()
    lines = [
        "# Exported repairs",
        "",
        f"`python benchmarks/export.py --model {Path(options.model).name} --rows {options.rows}`: "
        f"isotropy {__version__}, faiss {faiss.__version__}, sentence-transformers "
        f"{sentence_transformers.__version__}, torch {torch.__version__.partition('+')[0]}; "
        f"{os.cpu_count()} cores, {platform.machine()}. CPU time in one thread, ways in turn, "
        f"medians over {options.rounds} rounds.",
        "",
        *searched(options.rows, options.rounds),
        *encoded(options.model, options.rounds),
        *whitened(),
    ]
    Path(options.out).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def timed(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, np.ndarray]:
    """CPU seconds of each way in each round, after one round that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            begun = time.process_time()
            way()
            if number:
                found[name].append(time.process_time() - begun)
    return {name: np.array(seconds) for name, seconds in found.items()}


def searched(n: int, rounds: int) -> list[str]:
    """Raw search, transform and search, and search in a folded index."""
    faiss.omp_set_num_threads(1)
    X = vectors(n + 1000, FEATURES)
    X, queries = X[1000:], np.ascontiguousarray(X[:1000])
    repair = isotropy.Whiten(normalize=True).fit(X)
    lines = [
        f"## Search: top {TOP}, {FEATURES} dimensions, Whiten",
        "",
        "In ms. An approximate index takes another path among repaired vectors than among raw "
        "ones, so the ratios are to the search of the repaired vectors alone, with queries that "
        "are repaired already.",
        "",
        "| index | queries at a time | raw | repaired | transform, then search | folded |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for description, n_rows in (("Flat", n), ("HNSW16,Flat", n // 5)):
        raw = faiss.index_factory(FEATURES, description, faiss.METRIC_INNER_PRODUCT)
        raw.add(X[:n_rows])
        folded = isotropy.export.faiss(repair, description)
        folded.add(X[:n_rows])
        for size in (1, 100):
            seconds = latencies(raw, folded, repair, queries, size, rounds)
            alone = seconds["repaired"]
            found = {way: np.median(times) * 1000 for way, times in seconds.items()}
            ratio = {way: np.median(times / alone) for way, times in seconds.items()}
            lines.append(
                f"| {description}, {n_rows:,} vectors | {size} | {found['raw']:,.2f} | "
                f"{found['repaired']:,.2f} | {found['transform']:,.2f} "
                f"({ratio['transform']:.2f} x) | {found['folded']:,.2f} ({ratio['folded']:.2f} x) |"
            )
            print(lines[-1], flush=True)
    return [*lines, ""]


def latencies(
    raw: Any, folded: Any, repair: Any, queries: np.ndarray, size: int, rounds: int
) -> dict[str, np.ndarray]:
    """Seconds of a search for `size` queries, each way."""
    batches = np.split(queries, len(queries) // size)[: max(2, 20 // size)]
    repaired = [repair.transform(batch) for batch in batches]
    plain = folded.index

    def each(search: Callable[[np.ndarray], object], asked: list[np.ndarray]) -> None:
        for batch in asked:
            search(batch)

    ways: dict[str, Callable[[], object]] = {
        "raw": lambda: each(lambda rows: raw.search(rows, TOP), batches),
        "repaired": lambda: each(lambda rows: plain.search(rows, TOP), repaired),
        "transform": lambda: each(lambda rows: plain.search(repair.transform(rows), TOP), batches),
        "folded": lambda: each(lambda rows: folded.search(rows, TOP), batches),
    }
    return {way: times / len(batches) for way, times in timed(ways, rounds).items()}


def encoded(name: str, rounds: int) -> list[str]:
    """Encoding without a repair, with one in the model, and with `transform` afterwards."""
    torch.set_num_threads(1)
    model = SentenceTransformer(name, device="cpu")
    texts = [TEXT.format(number, number % 7) for number in range(96)]
    rows = model.encode(texts)
    repair = isotropy.Whiten(normalize=True).fit(rows + np.eye(len(rows), rows.shape[1]))
    module = repair.as_module()
    pooled = [torch.from_numpy(rows[start : start + 32]) for start in range(0, len(rows), 32)]

    def fold() -> None:
        with torch.inference_mode():
            for part in pooled:
                module(part)

    ways = {
        "encode": lambda: model.encode(texts, batch_size=32),
        "fold": fold,
        "transform": lambda: repair.transform(rows),
    }
    seconds = timed(ways, rounds)
    base = seconds["encode"]
    shares = {way: np.median(seconds[way] / base) * 100 for way in ("fold", "transform")}
    return [
        f"## Encoding: {Path(name).name} on CPU, {len(texts)} sentences in batches of 32, Whiten",
        "",
        "| | ms | of encoding |",
        "| --- | ---: | ---: |",
        f"| encoding | {np.median(base) * 1000:.0f} | |",
        f"| the repair as a torch module behind it | {np.median(seconds['fold']) * 1000:.2f} | "
        f"{shares['fold']:.2f} % |",
        f"| `transform` of the result | {np.median(seconds['transform']) * 1000:.2f} | "
        f"{shares['transform']:.2f} % |",
        "",
    ]


def whitened() -> list[str]:
    """How far whitened rows are from uncorrelated ones of unit variance, as the rows drift."""
    lines = [
        "## faiss's own whitening on vectors that have drifted",
        "",
        "20,000 vectors of 64 dimensions, shifted by the same amount in every dimension. Largest "
        "deviation of the whitened rows' covariance from a multiple of the identity, over that "
        "multiple. nan: rounding has made eigenvalues of faiss's covariance negative.",
        "",
        "| shift | faiss PCAMatrix, eigen_power -0.5 | Whiten, exported to faiss |",
        "| ---: | ---: | ---: |",
    ]
    for shift in (0.0, 10.0, 100.0, 1000.0, 10_000.0):
        X = vectors(20_000, 64) + np.float32(shift)
        theirs = faiss.PCAMatrix(64, 64, -0.5, False)
        theirs.train(X)
        index = isotropy.export.faiss(isotropy.Whiten(method="pca", shrinkage=0.0).fit(X))
        index.add(X)
        ours = faiss.downcast_index(index.index).reconstruct_n(0, len(X))
        apart = [deviation(rows) for rows in (theirs.apply(X), ours)]
        lines.append(f"| {shift:,.0f} | {apart[0]:.1e} | {apart[1]:.1e} |")
    return lines


def deviation(rows: np.ndarray) -> float:
    covariance = np.cov(rows.astype(np.float64), rowvar=False, bias=True)
    scale = np.trace(covariance) / len(covariance)  # faiss's is another one, which is no fault
    return float(np.abs(covariance / scale - np.eye(len(covariance))).max())


if __name__ == "__main__":
    main()
