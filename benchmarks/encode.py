"""Texts a second against sentence-transformers, and memory as the text grows.

    python benchmarks/encode.py [--data DIR] [--models DIR] [--model all-MiniLM-L6-v2] [--all]

Both encoders run over the same texts of WikiText-2's training part, slice by slice and in turn, so
that what else the machine does hits both. Their batches are of the same size: 32 texts of the
longest length there, 32 texts a batch. The rows are compared too. Memory is the peak resident set
of a fresh process that streams the vectors of 1, 2 and 4 times the same text to a file.
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from isotropy.engines import map_rows
from isotropy.errors import IsotropyWarning
from isotropy.models import Encoder
from isotropy.sources import open_sink

BATCH_TEXTS = 32
N_SLICES = 4
MEMORY_TEXTS = 300  # a block of them


def main() -> None:
    here = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Plain)
    data = os.environ.get("ISOTROPY_DATA", here.parent / "shared" / "data")
    parser.add_argument("--data", type=Path, default=data)
    models = os.environ.get("ISOTROPY_MODELS", Path.home() / ".cache" / "isotropy-models")
    parser.add_argument("--models", type=Path, default=models)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--lines", type=int, default=800, help="texts compared")
    parser.add_argument("--all", action="store_true", help="compare all texts, in 2,000s")
    parser.add_argument("--stream", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    model = given.models / given.model
    if given.stream:
        stream(model, *given.stream)
        return
    with gzip.open(given.data / "wikitext2" / "train.txt.gz", "rt", encoding="utf-8") as file:
        texts = [line.strip() for line in file if line.strip()]
    compare(model, texts if given.all else texts[: given.lines])
    memory(model, texts[:MEMORY_TEXTS])


class Plain(argparse.RawDescriptionHelpFormatter):
    pass


def compare(model: Path, texts: list[str]) -> None:
    """Both encoders over the texts, in turn."""
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(model), device="cpu")
    ours = Encoder(model, pool="own", device="cpu")
    ours.batch_tokens = BATCH_TEXTS * ours.max_length
    n_slices = max(N_SLICES, len(texts) // 2000)
    seconds = {"ours": 0.0, "theirs": 0.0}
    ratios, difference = [], 0.0
    ours.encode(texts[:BATCH_TEXTS])
    theirs.encode(texts[:BATCH_TEXTS])
    for number, part in enumerate(np.array_split(np.arange(len(texts)), n_slices)):
        slice_ = [texts[i] for i in part]
        runs = {
            "ours": lambda t=slice_: read(ours.source(t)),
            "theirs": lambda t=slice_: theirs.encode(t, batch_size=BATCH_TEXTS),
        }
        took, rows = {}, {}
        for name in list(runs)[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            rows[name] = runs[name]()
            took[name] = time.perf_counter() - start
            seconds[name] += took[name]
        ratios.append(took["theirs"] / took["ours"])
        difference = max(difference, float(np.abs(rows["ours"] - rows["theirs"]).max()))
    print(f"{len(texts):,} texts of WikiText-2, {model.name}, {os.cpu_count()} cores")
    print(f"ours, streamed             {len(texts) / seconds['ours']:8.1f} texts/s")
    print(f"sentence-transformers      {len(texts) / seconds['theirs']:8.1f} texts/s")
    ratio = seconds["theirs"] / seconds["ours"]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f} over {n_slices} slices"
    print(f"ratio                      {ratio:8.2f}  ({spread}; target 0.9)")
    print(f"largest difference of rows {difference:8.1e}", flush=True)


def read(source) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IsotropyWarning)
        return np.concatenate([b.rows for c in source.chunks() for b in source.read(c)])


def memory(model: Path, texts: list[str]) -> None:
    """Peak resident set of processes that stream more and more text."""
    with tempfile.TemporaryDirectory() as folder:
        for times in (1, 2, 4):
            path = Path(folder) / "texts.txt"
            path.write_text("\n".join(texts * times), "utf-8")
            command = [sys.executable, __file__, "--models", str(model.parent)]
            command += ["--model", model.name, "--stream", str(path), f"{folder}/vectors.npy"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(
                f"peak memory at {times} x {len(texts):,} texts  {done.stdout.strip()}", flush=True
            )


def stream(model: Path, texts: str, out: str) -> None:
    warnings.simplefilter("ignore", IsotropyWarning)
    encoder = Encoder(model, pool="own", device="cpu")
    source = encoder.source(texts)
    map_rows(source, lambda rows: rows, open_sink(out, source.n_features, like=source))
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:8.0f} MB")


if __name__ == "__main__":
    main()
