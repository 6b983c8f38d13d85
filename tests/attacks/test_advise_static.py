"""Damaged and forged folders of static models: one clear line each, from every command."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from isotropy.models.encoder import Encoder

from .. import static_models

pytest.importorskip("transformers")

N = static_models.N_TOKENS


@pytest.fixture(scope="module")
def parts():
    """Table and tokenizer, made once."""
    return static_models.small()


@pytest.fixture
def model(folder, parts):
    table, tokenizer = parts
    (folder / "m").mkdir()
    (folder / "m" / "tokenizer.json").write_text(tokenizer, "utf-8")
    (folder / "m" / "config.json").write_text('{"model_type": "model2vec", "normalize": true}')
    save_file({"embeddings": table}, folder / "m" / "model.safetensors")
    (folder / "texts.txt").write_text("the cat\na dog\n")
    return folder / "m"


def tensors(**changed):
    def damage(model, table):
        save_file({"embeddings": table} | changed, model / "model.safetensors")

    return damage


def written(name, content):
    def damage(model, table):
        (model / name).write_bytes(content)

    return damage


def removed(name):
    return lambda model, table: (model / name).unlink()


def nan_row(model, table):
    table = table.copy()
    table[41, 3] = np.nan
    save_file({"embeddings": table}, model / "model.safetensors")


def too_large(model, table):
    save_file({"embeddings": table.astype(np.float64) * 1e200}, model / "model.safetensors")


def short_table(model, table):
    save_file({"embeddings": table[:100]}, model / "model.safetensors")


def truncated(model, table):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])


def fitting(values):
    return np.resize(np.array(values), N)


BAD = {
    "no tokenizer": (removed("tokenizer.json"), "must have tokenizer.json, got none"),
    "no table": (removed("model.safetensors"), "must have model.safetensors with the table"),
    "a tokenizer that is none": (written("tokenizer.json", b"{}"), "'m' must be a model"),
    "a tokenizer that is no JSON": (written("tokenizer.json", b"\x00\x01"), "'m' must be a model"),
    "an empty tokenizer": (written("tokenizer.json", b""), "'m' must be a model"),
    "a config that is no JSON": (written("config.json", b'{"a": '), "must be a JSON file"),
    "a table that is none": (written("model.safetensors", b"no table"), "must have a whole"),
    "an empty table": (written("model.safetensors", b""), "must have a whole"),
    "a truncated table": (truncated, "must have a whole"),
    "a tensor of another name": (
        lambda model, table: save_file({"w\nx": table}, model / "model.safetensors"),
        "must have the tensor embeddings or embedding.weight, got w?x",
    ),
    "a table of one dimension": (tensors(embeddings=np.ones(9, np.float32)), "two dimensions"),
    "a table of three dimensions": (
        tensors(embeddings=np.ones((2, 3, 4), np.float32)),
        "two dimensions",
    ),
    "a table without rows": (tensors(embeddings=np.ones((0, 16), np.float32)), "holds no vectors"),
    "a table of fewer rows than tokens": (short_table, f"a row for each of its {N:,} tokens"),
    "a row of NaN": (nan_row, "NaN"),
    "rows beyond float32": (too_large, "that float32 can hold"),
    "a mapping past the end": (tensors(mapping=fitting([0, N])), f"rows, got row {N}"),
    "a mapping before the start": (tensors(mapping=fitting([0, -1])), "rows, got row -1"),
    "a mapping of fractions": (tensors(mapping=fitting([0.5])), "a mapping of whole numbers"),
    "a mapping of two dimensions": (
        tensors(mapping=np.zeros((N, 1), np.int64)),
        "a mapping of whole numbers",
    ),
    "a short mapping": (tensors(mapping=np.zeros(5, np.int64)), "must have mapping for each of"),
    "a short list of weights": (tensors(weights=np.ones(5)), "must have weights for each of its"),
    "weights of NaN": (tensors(weights=fitting([1.0, np.nan])), "must have finite weights"),
    "weights without end": (tensors(weights=fitting([1.0, np.inf])), "must have finite weights"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_folder_gets_one_line(case, model, parts, refused, raises):
    damage, says = BAD[case]
    damage(model, parts[0])
    raises(Encoder, "m", pool="own", says=says)
    refused("embed", "m", "texts.txt", "--out", "x.npy", says=says)


@pytest.mark.parametrize("command", ["advise", "compare"])
@pytest.mark.parametrize("case", ["no tokenizer", "a mapping past the end", "a row of NaN"])
def test_a_bad_folder_gets_one_line_of_the_commands_that_score(
    command, case, model, parts, folder, refused
):
    BAD[case][0](model, parts[0])
    (folder / "pairs.tsv").write_text("score\tsentence1\tsentence2\n1\ta\tb\n2\tc\td\n")
    refused(command, "m", "--task", "sts", "--data", "pairs.tsv", says=BAD[case][1])


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("no table", ""),
        ("a truncated table", "truncated"),
        ("a row of NaN", "NaN in 1 row (first: 41"),
        ("a table of one dimension", "matrices"),
    ],
)
def test_measure_of_a_bad_folder_gets_one_line(case, says, model, parts, refused):
    BAD[case][0](model, parts[0])
    refused("measure", "m", says=says)


def test_modules_after_the_table_that_are_not_known_get_one_line(folder, parts, raises):
    table, tokenizer = parts
    (folder / "s" / "0_StaticEmbedding").mkdir(parents=True)
    (folder / "s" / "0_StaticEmbedding" / "tokenizer.json").write_text(tokenizer, "utf-8")
    save_file({"embedding.weight": table}, folder / "s" / "0_StaticEmbedding" / "model.safetensors")
    first = {"path": "0_StaticEmbedding", "type": "sentence_transformers.models.StaticEmbedding"}
    dense = {"path": "1_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "s" / "modules.json").write_text(json.dumps([first, dense]))
    raises(Encoder, "s", pool="own", says="must end in a mean or Normalize, got Dense")
    assert Encoder("s", pool="mean").encode(["the cat"]).shape == (1, 16)


def test_good_folders_go_through_every_command(folder, model, done):
    random = np.random.default_rng(0)
    words = ["the cat", "a dog", "on the mat", "with spaces", "the moon", "a play"]
    lines = ["score\tsentence1\tsentence2"]
    for i in range(60):
        left, right = random.integers(0, 6, 2)
        lines.append(f"{random.random():.3f}\t{words[left]} {i}\t{words[right]} {i} 7")
    (folder / "pairs.tsv").write_text("\n".join(lines))
    pairs = ("--task", "sts", "--data", "pairs.tsv", "--repairs", "center")
    assert "Items used: all 60 items" in done("advise", "m", *pairs).stdout
    assert "none" in done("compare", "m", *pairs).stdout
    assert "mean cosine" in done("measure", "m").stdout.lower()
    done("embed", "m", "texts.txt", "--out", "x.npy", writes=["x.npy"])
    norms = np.linalg.norm(np.load(folder / "x.npy"), axis=1)
    np.testing.assert_allclose(norms, 1, rtol=1e-5)
