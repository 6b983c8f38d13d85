"""The examples that end the help of every command work as they stand, on small files."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

import isotropy
from isotropy.cli import app
from isotropy.codecs import Binary

from .. import tiny_models
from ..trial import trial_data

COMMANDS = typer.main.get_command(app).commands
N_FEATURES = 16  # as many as the small models have


def help_of(*command):
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    return result.stdout


def examples_of(command):
    """The lines after `Examples:`, which end the help."""
    _, found, lines = help_of(command).rpartition("\n  Examples:\n")
    return [line.strip() for line in lines.splitlines() if line.strip()] if found else []


def tour():
    """The commands that `isotropy --help` begins with."""
    found = re.findall(r"^ +(?:\d\. )?(isotropy .+?)(?:  .*)?$", help_of(), re.MULTILINE)
    return [line for line in found if "COMMAND" not in line and line != "isotropy demo"]


ELSEWHERE = ("demo",)  # tests/cli/test_demo.py runs them, on the real vectors
LINES = [
    *tour(),
    *(line for c in COMMANDS if c not in ELSEWHERE for line in examples_of(c)),
]


def write_vectors(path, texts, X):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])
    languages = ["en", "fr"] * (len(texts) // 2)
    pq.write_table(pa.table({"text": texts, "language": languages, "vector": lists}), path)


def write_table(path, *columns):
    rows = zip(*columns, strict=True)
    path.write_text("\n".join("\t".join(map(str, row)) for row in rows) + "\n", "utf-8")


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """The current folder, with the files and models that examples name."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    lengths = random.integers(5, 10, 200)
    texts = [" ".join(random.choice(tiny_models.WORDS[:10], n)) for n in lengths]
    assert len(set(texts)) == 200
    X = (random.standard_normal((2000, N_FEATURES)) + 0.5).astype(np.float32)
    for name in ("vectors.npy", "new.npy"):
        np.save(name, X)
    write_vectors("vectors.parquet", texts, X[:200])
    lines = [{"text": text, "vector": row} for text, row in zip(texts, X.tolist(), strict=False)]
    (tmp_path / "new.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "corpus").mkdir()
    for i in range(2):
        write_vectors(f"corpus/part-{i}.parquet", texts, X[200 * i : 200 * (i + 1)])
    for name in ("sentences.txt", "new.txt", "texts.txt"):
        (tmp_path / name).write_text("\n".join(texts) + "\n", "utf-8")
    left, right = texts[:100], texts[100:]
    units = X[:200] / np.linalg.norm(X[:200], axis=1, keepdims=True)
    scores = (units[:100] * units[100:200]).sum(1).tolist()
    pairs = ["score", *scores], ["sentence1", *left], ["sentence2", *right]
    write_table(tmp_path / "pairs.tsv", *pairs)
    (tmp_path / "sentence-transformers" / "stsb").mkdir(parents=True)
    write_table(tmp_path / "sentence-transformers" / "stsb" / "test.tsv", *pairs)
    (tmp_path / "search").mkdir()
    for name, part in (("queries", left), ("corpus", right)):
        entries = [json.dumps({"_id": str(i), "text": text}) for i, text in enumerate(part)]
        (tmp_path / "search" / f"{name}.jsonl").write_text("\n".join(entries), "utf-8")
    judged = [(i, i, 1) for i in range(100)]
    columns = zip(("query-id", "corpus-id", "score"), *judged, strict=True)
    write_table(tmp_path / "search" / "qrels.tsv", *columns)
    np.save("queries.npy", X[:100])
    np.save("docs.npy", X[100:200])
    labels = ["odd" if len(text) % 2 else "even" for text in texts]
    write_table(tmp_path / "labels.tsv", ["label", *labels], ["text", *texts])
    for task in ("rte", "cola"):
        (tmp_path / "data" / task).mkdir(parents=True)
        columns = ["label", *labels[:100]], ["sentence1", *left], ["sentence2", *right]
        columns += (["sentence", *left],)
        for part in ("train", "dev"):
            write_table(tmp_path / "data" / task / f"{part}.tsv", *columns)
    isotropy.Center().fit(X).save("repair.safetensors")
    Binary(repair=isotropy.Center()).fit(X).save("codec.safetensors")
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        for name in ("bert-base-cased", "my-model", "sentence-transformers/all-MiniLM-L6-v2"):
            tiny_models.bert(tmp_path / name)
    trial_data.tasks(tmp_path / "data")
    return tmp_path


def test_the_tour_has_commands():
    assert len(tour()) >= 3


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_two_examples(command):
    lines = examples_of(command)
    assert len(lines) >= 2, f"use @examples of isotropy.cli.common for {command}"
    for line in lines:
        assert line.startswith(f"isotropy {command}"), line


@pytest.mark.filterwarnings("default::isotropy.errors.IsotropyWarning")
@pytest.mark.parametrize("line", dict.fromkeys(LINES))
def test_examples_work(line, prepared):
    _, *arguments = shlex.split(line)
    for option in {"--out", "--save"} & set(arguments):
        (prepared / arguments[arguments.index(option) + 1]).unlink(missing_ok=True)
    given = None
    if "<" in arguments:  # the shell's
        at = arguments.index("<")
        given, arguments = (prepared / arguments[at + 1]).read_bytes(), arguments[:at]
    result = CliRunner().invoke(app, arguments, input=given)
    if result.exit_code and "not installed" in result.stderr:
        pytest.skip(result.stderr)
    assert result.exit_code == 0, (result.stderr, result.exception)
    for option in {"--out", "--save"} & set(arguments):
        saved = prepared / arguments[arguments.index(option) + 1]
        if saved.name == "-":
            assert result.stdout
            continue
        assert saved.exists() or "nothing was saved" in result.stderr
