"""How small vectors can get: repairs x codes, and the codes of others on the same vectors.

    python benchmarks/compress.py --models DIR --data DIR --work DIR [--only MODEL:SET ...]

Each cell (a model on a search) is a JSON file in --work, and its vectors lie beside it. Every code
is written as soon as it is scored, and what is there is not made again, so the command can be
stopped and repeated. results/compress.md is written from all that is there, and names what is not.
OPQ takes most of the time.

The searches: Cranfield; the second sentence of each STS-B pair with a score of at least 4, among
all second sentences; the sentence that answers a question of QNLI, among all sentences. Times are
seconds of one CPU core.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from isotropy import Center, Encoder, evidence, linalg
from isotropy.codecs import Binary, Codec, Scalar
from isotropy.evidence.advice import percent, plain, signed
from isotropy.evidence.bench import NO_ITEMS, Evaluation, Plan, bench_of
from isotropy.evidence.codes import OnTask, code_words, default_codecs, repair_of, repair_words
from isotropy.evidence.frontier import frontier, loss_of
from isotropy.evidence.significance import Fold
from isotropy.repairs import Chain, Rotate
from isotropy.tasks import Retrieval, open_task
from isotropy.tasks.scorers import Documents, Index, Scorer

MODELS = ("gte-small", "all-MiniLM-L6-v2", "all-mpnet-base-v2", "smollm2-135m")
SETS = ("cranfield", "stsb", "qnli")
SEEDS = 3  # of rotations
ALIKE = 4.0  # least score of an STS-B pair whose second sentence is to be found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=os.environ.get("ISOTROPY_MODELS"))
    parser.add_argument("--data", default=os.environ.get("ISOTROPY_DATA"))
    parser.add_argument("--work", required=True, help="folder of the cells and their vectors")
    parser.add_argument("--only", nargs="*", default=[], help="model:set ...")
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", default="results/compress.md")
    options = parser.parse_args()
    work = Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    cells = [f"{model}:{name}" for model in MODELS for name in SETS]
    for cell in options.only or cells:
        run(*cell.split(":"), options)
    paths = {cell: path_of(work, *cell.split(":")) for cell in cells}
    known = {cell: json.loads(p.read_text()) for cell, p in paths.items() if p.exists()}
    missing = [cell for cell in cells if cell not in known]
    Path(options.out).write_text(page(known, missing))


def path_of(work: Path, model: str, name: str) -> Path:
    return work / f"{model}--{name}.json"


def written(path: Path, write: Callable[[Path], object]) -> None:
    part = path.with_suffix(".part")
    write(part)
    part.rename(path)


# The searches


def search(name: str, data: Path) -> Retrieval:
    if name == "cranfield":
        return open_task("retrieval", data / name)
    if name == "stsb":
        pairs = [row for part in ("train", "dev", "test") for row in table(data / name, part)]
        alike = [(r["sentence1"], r["sentence2"]) for r in pairs if float(r["score"]) >= ALIKE]
        return paired(alike, [row["sentence2"] for row in pairs], name)
    rows = list(table(data / name, "dev"))
    answered = [(r["question"], r["sentence"]) for r in rows if r["label"] == "entailment"]
    return paired(answered, [row["sentence"] for row in rows], name)


def table(folder: Path, part: str) -> Iterator[dict[str, str]]:
    path = folder / f"{part}.tsv"
    with path.open() if path.exists() else gzip.open(f"{path}.gz", "rt") as lines:
        yield from csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)


def paired(pairs: Iterable[tuple[str, str]], others: Iterable[str], name: str) -> Retrieval:
    """Each first text must find its second one among these and others."""
    pairs = [(a, b) for a, b in dict.fromkeys(pairs) if a != b]
    documents = {text: i for i, text in enumerate(dict.fromkeys(others))}
    queries = {text: i for i, text in enumerate(dict.fromkeys(a for a, _ in pairs))}
    judged = [(queries[a], documents[b], 1) for a, b in pairs]
    return Retrieval(list(queries), list(documents), judged, name=name)


def vectors_of(model: str, task: Retrieval, options: argparse.Namespace) -> np.ndarray:
    path = Path(options.work) / f"{model}--{task.name}.npy"
    if not path.exists():
        encoder = Encoder(Path(options.models) / model, device=options.device)
        rows = encoder.encode(task.texts)
        written(path, lambda part: np.save(part.open("wb"), rows))
    return np.load(path)


# A cell


def run(model: str, name: str, options: argparse.Namespace) -> None:
    path = path_of(Path(options.work), model, name)
    cell = json.loads(path.read_text()) if path.exists() else {"codes": {}, "peers": {}}

    def keep(**parts: Any) -> None:
        cell.update(parts)
        written(path, lambda part: part.write_text(json.dumps(cell, indent=1)))

    task = search(name, Path(options.data))
    X = vectors_of(model, task, options)
    bench = bench_of(X, task, lambda space: ())
    items = np.arange(task.n_items)
    fits, fitted_on, _ = bench.apart(items)
    plan = Plan([Evaluation(items, NO_ITEMS, fits)], fitted_on)
    setting = OnTask(bench, plan, plan)
    keep(
        model=model, set=name, n_queries=task.n_items, n_features=X.shape[1],
        n_documents=len(task.documents), baseline=percent(task.score(X).value),
    )  # fmt: skip
    for codec in default_codecs(X.shape[1], setting.n_fitted, aligned=True):
        key = f"{repair_words(repair_of(codec))}: {code_words(codec)}"
        if key not in cell["codes"]:
            keep(codes=cell["codes"] | {key: scored(setting, codec)})
    for key, peer in peers(bench.task, X.astype(np.float32), cell["peers"]):
        keep(peers=cell["peers"] | {key: peer})
        print(f"{model}:{name}: {key} {peer['score']}", flush=True)
    if name == "stsb" and "recall" not in cell:
        keep(recall=recalls(X.astype(np.float32)))
    if "verdict" not in cell:
        verdict = evidence.compress(X, task).to_dict()
        del verdict["codes"]
        keep(verdict=verdict)
        print(f"{model}:{name}: {verdict['reason']}", flush=True)


def scored(setting: OnTask, codec: Codec) -> dict[str, Any]:
    """A codec on all queries; the mean of several seeds if it has a rotation."""
    repair = repair_of(codec)
    seeds = range(SEEDS if isinstance(repair, Chain) else 1)
    folds: list[Fold] = []
    for seed in seeds:
        compared = setting.compared(with_seed(codec, seed) if seed else codec)
        folds += compared.tested
    return {
        "repair": repair_words(repair), "code": code_words(codec), "seeds": len(seeds),
        "n_bytes": compared.codec.n_bytes, "stored": compared.codec.n_bytes_stored,
    } | outcome(folds)  # fmt: skip


def with_seed(codec: Codec, seed: int) -> Codec:
    """The codec with another seed of its rotation."""
    new = clone(codec)
    getattr(new, "coarse", new).repair = chain(repair_of(codec).repairs[1].method, seed)
    return new


@cache
def chain(method: str, seed: int) -> Chain:
    """Centring and a rotation: the same object for all codes, which share what is fitted."""
    return Chain([Center(), Rotate(method, random_state=seed)])


def outcome(folds: list[Fold]) -> dict[str, Any]:
    loss = loss_of(folds)
    return {
        "score": percent(float(np.mean([fold.system.value for fold in folds]))),
        "loss": percent(loss.value),
        "interval": [percent(end) for end in loss.interval],
    }


# The codes of others


class Ranking(Scorer, Index):
    """What a function finds for queries."""

    def __init__(self, find: Callable[[np.ndarray, int], np.ndarray]) -> None:
        self.find = find

    def index(self, documents: Documents) -> Index:
        return self

    def ranked(self, queries: np.ndarray, n: int) -> np.ndarray:
        return self.find(queries.astype(np.float32), n)


def peers(
    task: Retrieval, X: np.ndarray, known: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Quality and time of our codes and those of others at the same sizes, on all queries."""
    import faiss  # noqa: F401 - now, so that the import is not timed
    import sentence_transformers.util.quantization  # noqa: F401

    documents, baseline = X[task.documents], task.score(X)
    rotated = Chain([Center(), Rotate()])
    d = X.shape[1]
    makers: dict[str, Callable[[np.ndarray], tuple[int, Any, Any]]] = {
        "isotropy int8": lambda D: ours(Scalar(bits=8), D),
        "sentence-transformers int8": sentence_transformers_int8,
        "faiss SQ8": lambda D: faiss_index("SQ8", D),
        "isotropy int4": lambda D: ours(Scalar(bits=4), D),
        "faiss SQ4": lambda D: faiss_index("SQ4", D),
        "isotropy binary, center + rotate(itq)": lambda D: ours(Binary(repair=rotated), D),
        "the same, float queries": lambda D: ours(Binary(repair=rotated, asymmetric=True), D),
        "sentence-transformers binary": sentence_transformers_binary,
        "faiss LSH": lambda D: faiss_lsh(D, d),
        f"faiss PQ{d // 8}": lambda D: faiss_index(f"PQ{d // 8}", D),
        "faiss RaBitQ": lambda D: faiss_index("RaBitQ", D),
        "faiss RR,RaBitQ": lambda D: faiss_index("RR,RaBitQ", D),
        f"faiss PQ{d // 16}": lambda D: faiss_index(f"PQ{d // 16}", D),
        f"isotropy binary, pca {8 * (d // 16)}, center + rotate(itq), float queries": lambda D: (
            ours(Binary(repair=rotated, n_dims=8 * (d // 16), truncate="pca", asymmetric=True), D)
        ),
        f"faiss PQ{d // 4}": lambda D: faiss_index(f"PQ{d // 4}", D),
        f"faiss OPQ{d // 8},PQ{d // 8}": lambda D: faiss_index(f"OPQ{d // 8},PQ{d // 8}", D),
    }
    for name in [name for name in makers if name not in known]:
        clock = Clock()
        n_bytes, encode, find = makers[name](documents)
        fit = clock.lap()
        encode(documents)
        encoding = clock.lap()
        result = task.score(X, scorer=Ranking(find))
        searching = clock.lap()
        times = {"fit": fit, "encode": encoding, "search": searching}
        folds = [Fold(result, baseline, task.groups)]
        yield name, {"n_bytes": n_bytes} | outcome(folds) | times


class Clock:
    """Seconds of CPU time since the last lap."""

    def __init__(self) -> None:
        self.start = time.process_time()

    def lap(self) -> float:
        start, self.start = self.start, time.process_time()
        return round(self.start - start, 3)


def ours(codec: Codec, documents: np.ndarray) -> tuple[int, Any, Any]:
    codec = clone(codec).fit(documents)
    kept: list[np.ndarray] = []
    return (
        codec.n_bytes,
        lambda rows: kept.append(codec.encode(rows)),
        lambda queries, n: codec.search(queries, kept[0], n)[1],
    )


def faiss_index(factory: str, documents: np.ndarray) -> tuple[int, Any, Any]:
    import faiss

    faiss.omp_set_num_threads(1)
    plain_pq = f"{factory}np" if "PQ" in factory else factory  # without polysemous training
    index = faiss.index_factory(documents.shape[1], plain_pq, faiss.METRIC_INNER_PRODUCT)
    index.train(linalg.unit_rows(documents))
    return (
        index.sa_code_size(),
        lambda rows: index.add(linalg.unit_rows(rows)),
        lambda queries, n: index.search(linalg.unit_rows(queries), n)[1],
    )


def faiss_lsh(documents: np.ndarray, n_bits: int) -> tuple[int, Any, Any]:
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexLSH(documents.shape[1], n_bits, True, True)  # rotated, trained thresholds
    index.train(linalg.unit_rows(documents))
    return (
        n_bits // 8,
        lambda rows: index.add(linalg.unit_rows(rows)),
        lambda queries, n: index.search(linalg.unit_rows(queries), n)[1],
    )


def sentence_transformers_int8(documents: np.ndarray) -> tuple[int, Any, Any]:
    """int8 of both sides with ranges of the documents, compared by their integer product."""
    from sentence_transformers.util.quantization import quantize_embeddings

    units = linalg.unit_rows(documents)
    ranges = np.stack([units.min(axis=0), units.max(axis=0)])
    kept: list[np.ndarray] = []

    def encode(rows: np.ndarray) -> np.ndarray:
        codes = quantize_embeddings(linalg.unit_rows(rows), "int8", ranges=ranges)
        return codes.astype(np.float32)

    return (
        documents.shape[1],
        lambda rows: kept.append(encode(rows)),
        lambda queries, n: best(encode(queries) @ kept[0].T, n),
    )


def sentence_transformers_binary(documents: np.ndarray) -> tuple[int, Any, Any]:
    import faiss
    from sentence_transformers.util.quantization import quantize_embeddings

    index = faiss.IndexBinaryFlat(8 * (documents.shape[1] // 8))
    return (
        documents.shape[1] // 8,
        lambda rows: index.add(quantize_embeddings(rows, "ubinary")),
        lambda queries, n: index.search(quantize_embeddings(queries, "ubinary"), n)[1],
    )


def best(scores: np.ndarray, n: int) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")[:, :n]


# int8 without labels


def recalls(X: np.ndarray) -> dict[str, dict[str, float]]:
    """By repair: the share of the ten float32 neighbours that int8 finds, for 5,000 sentences."""
    rows = X[np.random.default_rng(0).permutation(len(X))[:5000]]
    chains = {f"center + rotate({method})": chain(method, 0) for method in ("random", "itq")}
    found = {}
    for name, repair in ({"none": None, "center": Center()} | chains).items():
        units = linalg.unit_rows(rows if repair is None else clone(repair).fit_transform(rows))
        near = neighbours(units, units)
        _, encode, find = sentence_transformers_int8(units)
        encode(units)
        theirs = find(units, 11)
        codec = Scalar(bits=8).fit(units)
        ours = neighbours(codec.queries(units), linalg.unit_rows(codec.decode(codec.encode(units))))
        theirs = np.stack([row[row != i][:10] for i, row in enumerate(theirs)])
        found[name] = {"integers": shared(near, theirs), "isotropy": shared(near, ours)}
    return found


def neighbours(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    scores = linalg.unit_rows(queries) @ documents.T
    np.fill_diagonal(scores, -np.inf)
    return best(scores, 10)


def shared(near: np.ndarray, found: np.ndarray) -> float:
    pairs = zip(near, found, strict=True)
    return percent(float(np.mean([len(np.intersect1d(a, b)) / len(a) for a, b in pairs])))


# The page


def page(known: dict[str, dict[str, Any]], missing: list[str]) -> str:
    lines = ["# Codes of vectors, and what they lose", "", *HEADER, ""]
    if missing:
        names = ", ".join(cell.replace(":", " on ") for cell in missing)
        lines += [f"Not run yet: {names}.", ""]
    lines += [*summary(known), ""]
    for cell in known.values():
        lines += [f"## {cell['model']} on {cell['set']}", ""]
        lines += [
            f"{cell['n_queries']:,} queries, {cell['n_documents']:,} documents, "
            f"{cell['n_features']} dimensions; float32 ({4 * cell['n_features']:,} bytes) has "
            f"nDCG@10 {plain(cell['baseline'])}.",
            "",
        ]
        if "verdict" in cell:
            lines += [f"`isotropy compress` says: *{cell['verdict']['reason']}*", ""]
        head = "| repair | code | bytes | stored | nDCG@10 | loss | 95 % interval | frontier |"
        lines += [head, "| --- | --- | ---: | ---: | ---: | ---: | --- | --- |"]
        codes = sorted(cell["codes"].values(), key=lambda c: (-c["n_bytes"], -c["score"]))
        marks = frontier([(c["n_bytes"], c["stored"]) for c in codes], [c["score"] for c in codes])
        for code, on_frontier in zip(codes, marks, strict=True):
            mark = "yes" if on_frontier else ""
            sizes = f"{code['n_bytes']:,} | {code['stored']:,}"
            lines.append(
                f"| {code['repair']} | {code['code']} | {sizes} | {shown(code)} | {mark} |"
            )
        if "recall" in cell:
            lines += ["", RECALL, "", "| repair | integer product | isotropy int8 |"]
            lines.append("| --- | ---: | ---: |")
            for repair, found in cell["recall"].items():
                shares = f"{plain(found['integers'])} | {plain(found['isotropy'])}"
                lines.append(f"| {repair} | {shares} |")
        lines += ["", "Beside others on the same vectors, on all queries:", ""]
        head = "| code | bytes | nDCG@10 | loss | 95 % interval | fit s | encode s | search s |"
        lines += [head, "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |"]
        for name, peer in sorted(cell["peers"].items(), key=lambda item: -item[1]["n_bytes"]):
            times = " | ".join(f"{peer[name]:.2f}" for name in ("fit", "encode", "search"))
            lines.append(f"| {name} | {peer['n_bytes']:,} | {shown(peer)} | {times} |")
        lines.append("")
    return "\n".join(lines)


def summary(known: dict[str, dict[str, Any]]) -> list[str]:
    """One row for each cell: a bit for every dimension, ours and others', and what is advised."""
    lines = ["## In short", "", SHORT, ""]
    lines += ["| model | set | float32 | bits as they are | ours | others | `compress` advises |"]
    lines += ["| --- | --- | ---: | ---: | --- | --- | --- |"]
    for cell in known.values():
        size = -(-cell["n_features"] // 8)
        codes = [c for c in cell["codes"].values() if c["n_bytes"] == c["stored"] == size]
        ours = max((c for c in codes if "faiss" not in c["code"]), key=lambda c: c["score"])
        peers = {n: p for n, p in cell["peers"].items() if p["n_bytes"] == size and is_other(n)}
        other = max(peers, key=lambda name: peers[name]["score"])
        raw = cell["codes"]["none: binary"]["score"]
        scores = f"{plain(cell['baseline'])} | {plain(raw)} | {plain(ours['score'])}"
        lines.append(
            f"| {cell['model']} | {cell['set']} | {scores}: {ours['repair']}, {ours['code']} | "
            f"{plain(peers[other]['score'])}: {other} | {advised(cell['verdict'])} |"
        )
    return lines


def is_other(name: str) -> bool:
    return name.startswith(("faiss", "sentence-transformers"))


def advised(verdict: dict[str, Any]) -> str:
    """The code and its size, without the reasons."""
    found = re.match(r"Use (.*?)(?: instead of |$)", verdict["reason"].split(". ")[0])
    return found[1] if found else "float32"


SHORT = (
    "The best code of one bit for every dimension (no second stage): ours, and of other packages "
    "at the same size. Each is the best of several by the queries that score it, so a little "
    "optimistic. The tables below have all sizes, and times."
)


def shown(row: dict[str, Any]) -> str:
    low, high = (signed(end) for end in row["interval"])
    return f"{plain(row['score'])} | {signed(row['loss'])} | {low} to {high}"


RECALL = (
    "Without labels: the share (%) of the ten nearest neighbours in the float32 space, repaired "
    "in the same way, that int8 finds, for 5,000 of the sentences (seed 0), by the plain product "
    "of sentence-transformers' int8 codes and by ours:"
)
HEADER = (
    "Written by `python benchmarks/compress.py --work DIR --models DIR --data DIR`. Scores are "
    "times 100; a positive loss is worse "
    f"than float32. Codecs are fitted on the documents. Rotations are the mean of {SEEDS} seeds (0 "
    "to 2). Intervals are 95 %, by paired bootstrap over queries (2,000 draws, seed 0), and not "
    "adjusted for the number of codes. The frontier is of bytes in memory, bytes stored and score. "
    "Aligned queries are shifted so that the mean of all of them, labels unseen, is that of the "
    "documents; in the verdict, by the mean of those that choose. "
    "The verdict of `compress` (seed 0, margin 1 point) chooses on a third of the queries and "
    "tests on the others.",
    "",
    "Times are seconds of one CPU core: to fit on the documents, to encode them, and to find "
    "the 100 best for all queries and score them. RaBitQ of faiss takes queries in float. PQ and "
    "OPQ are faiss's own search in the second table; the codec `Faiss` of the first scales what it "
    "decodes to length one.",
)

if __name__ == "__main__":
    main()
