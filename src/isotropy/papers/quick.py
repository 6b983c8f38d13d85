"""Tiny random models and generated data sets, so that every experiment runs anywhere in seconds."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isotropy.models import extra, loading
from isotropy.writing import write_errors

TINY = {  # stand-in: the tiny model that takes its place
    "distilbert-base-cased": "tiny-bert",
    "smollm2-135m": "tiny-llama",
    "all-MiniLM-L6-v2": "tiny-sentence-bert",
    "gte-small": "tiny-sentence-bert",
    "all-mpnet-base-v2": "tiny-sentence-bert",
    "flan-t5-small": "tiny-t5",
    "glove.6B.50d": "tiny-glove",
}
WIDTH, LAYERS, LENGTH = 16, 2, 64
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NOUNS = [
    "cat",
    "dog",
    "sun",
    "moon",
    "man",
    "woman",
    "child",
    "horse",
    "river",
    "house",
    "city",
    "team",
    "game",
    "song",
    "plane",
]
VERBS = ["sees", "likes", "follows", "finds", "hears", "saw", "liked", "followed", "found", "heard"]
OTHERS = ["the", "a", "of", "and", ",", ".", "in", "on", "old", "new", "big", "small"]
WORDS = [*OTHERS, *NOUNS, *VERBS]


def stand_ins(names: Sequence[str]) -> list[str]:
    """The tiny models that take the place of these."""
    return list(dict.fromkeys(TINY[name] for name in names))


def made(folder: Path) -> Path:
    """A folder with `models` and `data`, made if it is not there."""
    if not (folder / "done").is_file():
        with write_errors(folder):
            _data(folder / "data")
            with loading("the tiny models"):
                _models(folder / "models")
            (folder / "done").write_text("")
    return folder


def sentence(draw: random.Random) -> str:
    subject, thing = draw.sample(NOUNS, 2)
    parts = ["the", draw.choice(["old", "new", "big", "small"]), subject, draw.choice(VERBS)]
    parts += ["a", thing, draw.choice(["in", "on"]), "the", draw.choice(NOUNS)]
    return " ".join(
        [*parts, *draw.choice([(",", "the", "sun", "."), (".",), ("and", "the", "moon", ".")])]
    )


def _data(folder: Path) -> None:
    """Data sets with the files and columns of the real ones."""
    draw = random.Random(0)

    def pairs(n: int) -> list[tuple[str, str]]:
        return [(sentence(draw), sentence(draw)) for _ in range(n)]

    def table(path: str, head: str, rows: Iterable[Sequence[Any]]) -> None:
        lines = [head.split(), *([str(cell) for cell in row] for row in rows)]
        _write(folder / path, "".join("\t".join(line) + "\n" for line in lines))

    def lines(path: str, rows: Iterable[dict[str, Any]]) -> None:
        _write(folder / path, "".join(json.dumps(row) + "\n" for row in rows))

    sizes = {"train": 48, "dev": 40, "test": 24}
    rows: list[tuple[Any, ...]]
    for part, n in sizes.items():
        rows = [("captions", "file", "2012", round(draw.uniform(0, 5), 1), *p) for p in pairs(n)]
        table(f"stsb/{part}.tsv", "genre file year score sentence1 sentence2", rows)
    for name in ("sts12", "sts14"):
        rows = [(f"part{i % 2}", round(draw.uniform(0, 5), 1), *p) for i, p in enumerate(pairs(40))]
        table(f"{name}/test.tsv", "subset score sentence1 sentence2", rows)
    yes_no = {
        "rte": ("entailment", "not_entailment"),
        "mrpc": (1, 0),
        "wnli": (1, 0),
        "qnli": ("entailment", "not_entailment"),
    }
    for name, labels in yes_no.items():
        head = "label question sentence" if name == "qnli" else "label sentence1 sentence2"
        for part in ("dev",) if name == "qnli" else ("train", "dev"):
            table(
                f"{name}/{part}.tsv",
                head,
                [(labels[i % 2], *p) for i, p in enumerate(pairs(sizes[part]))],
            )
    for name in ("cola", "sst2"):
        for part in ("train", "dev"):
            table(
                f"{name}/{part}.tsv",
                "label sentence",
                [(i % 2, p[0]) for i, p in enumerate(pairs(sizes[part]))],
            )
    for part in ("train", "dev"):
        rows = [("TF"[i % 2], "the", "D", "0-0", *p) for i, p in enumerate(pairs(sizes[part]))]
        table(f"wic/{part}.tsv", "label lemma pos token_idx sentence1 sentence2", rows)
    lines(
        "boolq/dev.jsonl.gz",
        [{"question": a, "passage": b, "label": bool(i % 2)} for i, (a, b) in enumerate(pairs(40))],
    )
    tagged = [text.split() for text in (sentence(draw) for _ in range(60))]
    lines("semcor/brown1.jsonl.gz", [
        {"tokens": words, "pos": ["VB" if w in VERBS else "NN" for w in words],
         "senses": [[i, w[:3], draw.choice("12"), w] for i, w in enumerate(words) if w in VERBS]}
        for words in tagged
    ])  # fmt: skip
    rows = [
        (len(text.split()), 3.0, 2.0, text, i % 3, i % 2)
        for i, text in enumerate(map(" ".join, tagged))
    ]
    table(
        "structure/sentences.tsv.gz", "length max-depth avg-depth sent pobj-count dobj-count", rows
    )
    articles = [" ".join(sentence(draw) for _ in range(4)) for _ in range(24)]
    lines(
        "cnndm/validation_subset.jsonl.gz",
        [{"article": a, "highlights": a.split(" .")[0]} for a in articles],
    )
    for name in ("men3000", "rw2034", "simlex999", "ws353_sim", "ws353_rel"):
        rows = [(*draw.sample(NOUNS, 2), round(draw.uniform(0, 10), 1)) for _ in range(30)]
        table(f"wordsim/{name}.tsv", "word1 word2 score", rows)
    for part in ("train", "valid", "test"):
        _write(
            folder / f"wikitext2/{part}.txt.gz", "\n".join(sentence(draw) for _ in range(60)) + "\n"
        )
    for part in ("train", "val", "test2016"):
        table(f"multi30k/{part}.tsv", "en de", pairs(24))
    table("wmt16-enro/newsdev2016.tsv", "en ro", pairs(24))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.write(text)


def _models(folder: Path) -> None:
    torch, transformers = extra()
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "hidden_size": WIDTH,
        "intermediate_size": 24,
        "max_position_embeddings": LENGTH,
    }
    for name in ("tiny-bert", "tiny-sentence-bert"):
        _tokenizer(folder / name)
        transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).save_pretrained(
            folder / name
        )
    _tokenizer(folder / "tiny-llama")
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=True, pad_token_id=0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "tiny-llama")
    _tokenizer(folder / "tiny-t5")
    config = transformers.T5Config(
        vocab_size=64, d_model=WIDTH, d_kv=8, d_ff=24, num_layers=LAYERS, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=3,
    )  # fmt: skip
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder / "tiny-t5")
    glove = folder / "tiny-glove"
    glove.mkdir(parents=True, exist_ok=True)
    rows = np.random.default_rng(0).standard_normal((len(WORDS), WIDTH)) + 0.5
    np.save(glove / "vectors.npy", rows.astype(np.float32))
    (glove / "words.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")


def _tokenizer(folder: Path) -> None:
    """A lower-casing WordPiece tokenizer of 64 tokens."""
    _, transformers = extra()
    vocabulary = [*SPECIAL, *WORDS]
    vocabulary += [f"[unused{i}]" for i in range(64 - len(vocabulary))]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(vocabulary), "utf-8")
    kind = transformers.BertTokenizerFast
    kind(str(folder / "vocab.txt"), do_lower_case=True, model_max_length=LENGTH).save_pretrained(
        folder
    )
