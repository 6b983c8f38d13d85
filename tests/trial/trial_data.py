"""A folder of small tasks for small models."""

from __future__ import annotations

import numpy as np

from .. import tiny_models

WORDS = tiny_models.WORDS[:10]


def write_table(path, *columns):
    rows = zip(*columns, strict=True)
    path.write_text("\n".join("\t".join(map(str, row)) for row in rows) + "\n", "utf-8")


def sentences(random, n):
    return [" ".join(random.choice(WORDS, random.integers(3, 9))) for _ in range(n)]


def tasks(folder, n_train=48, n_dev=20):
    """rte, cola, stsb, boolq and multi30k: the label is whether the first word is "the"."""
    random = np.random.default_rng(0)
    for part, n in (("train", n_train), ("dev", n_dev)):
        one, two = sentences(random, n), sentences(random, n)
        yes = [text.split()[0] in WORDS[:5] for text in one]
        named = ["entailment" if y else "not_entailment" for y in yes]
        scores = np.round(random.uniform(0, 5, n), 2).tolist()
        write(folder / "rte", part, label=named, sentence1=one, sentence2=two)
        write(folder / "mrpc", part, label=[int(y) for y in yes], sentence1=one, sentence2=two)
        write(folder / "cola", part, label=[int(y) for y in yes], sentence=one)
        write(folder / "stsb", part, score=scores, sentence1=one, sentence2=two)
        write(folder / "multi30k", part, en=one, de=two)
        write(folder / "cnndm", part, article=one, highlights=two)
    return folder


def write(folder, part, **columns):
    folder.mkdir(parents=True, exist_ok=True)
    columns = [[name, *values] for name, values in columns.items()]
    write_table(folder / f"{part}.tsv", *columns)
