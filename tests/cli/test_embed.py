"""isotropy embed: what is written, said and refused."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

import isotropy
from isotropy.cli import Commands
from isotropy.cli.embed import embed
from isotropy.errors import IsotropyWarning
from isotropy.models.encoder import Encoder
from isotropy.models.keyed import KeyedVectors, read_rows

from .. import tiny_models
from ..tiny_models import TEXTS

pytest.importorskip("transformers")

app = typer.Typer(cls=Commands, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(embed)
app.callback()(lambda: None)
CLOSE = {"rtol": 0, "atol": 1e-5}


def run(*arguments):
    return CliRunner().invoke(app, ["embed", *map(str, arguments)])


def done(*arguments):
    result = run(*arguments, "--overwrite")
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert result.stdout == ""
    return result.stderr


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_models.bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS), "utf-8")
    return path


def test_an_interrupted_run_to_a_database_resumes(bert, texts, tmp_path, monkeypatch):
    pytest.importorskip("lance")
    from isotropy.sources.lance import LanceNewTable

    def stopping(self, progress):
        raise KeyboardInterrupt

    out = f"lance://{tmp_path}/db#new"
    with monkeypatch.context() as patch:
        patch.setattr(LanceNewTable, "finish", stopping)
        assert run(bert, texts, "--out", out).exit_code
    monkeypatch.setattr(Encoder, "block", None)  # nothing is left to encode
    done(bert, texts, "--out", out)
    assert isotropy.open(out).n_samples == len(TEXTS)


def interrupted(tmp_path, model, texts, monkeypatch, *options):
    """The table of a run that was stopped after its first text."""
    pytest.importorskip("lance")
    from isotropy.sources.lance import LanceNewTable

    save, out = LanceNewTable.save, f"lance://{tmp_path}/db#new"

    def stopping(self, progress):
        save(self, progress)
        raise KeyboardInterrupt

    monkeypatch.setattr("isotropy.models.texts.BLOCK_SIZE", 1)
    with monkeypatch.context() as patch:
        patch.setattr(LanceNewTable, "save", stopping)
        assert run(model, texts, "--out", out, *options).exit_code
    return out


def test_a_resumed_run_counts_the_texts_that_were_truncated_before(bert, tmp_path, monkeypatch):
    (tmp_path / "x.txt").write_text("the cat sat on the mat\ndog\nthe cat sat on a mat\n")
    out = interrupted(tmp_path, bert, tmp_path / "x.txt", monkeypatch, "--max-length", 6)
    said = done(bert, tmp_path / "x.txt", "--out", out, "--max-length", 6)
    assert said.strip() == "2 of 3 texts were longer than 6 tokens and truncated"


def test_a_run_does_not_go_on_with_another_pooling(texts, tmp_path, monkeypatch):
    pytest.importorskip("sentence_transformers")
    model = tiny_models.sentence_bert(tmp_path / "model", max_length=32)
    out = interrupted(tmp_path, model, texts, monkeypatch)
    modules = json.loads((model / "modules.json").read_text())
    assert modules.pop()["type"].endswith("Normalize")
    (model / "modules.json").write_text(json.dumps(modules))
    done(model, texts, "--out", out)
    found = read_rows(isotropy.open(out))
    np.testing.assert_allclose(found, Encoder(model).encode(TEXTS), **CLOSE)


def test_a_row_a_text_beside_the_text(bert, texts, tmp_path):
    assert done(bert, texts, "--out", tmp_path / "x.parquet") == ""
    table = pq.read_table(tmp_path / "x.parquet")
    assert table["text"].to_pylist() == TEXTS
    expected = Encoder(bert, pool="mean").encode(TEXTS)
    np.testing.assert_allclose(np.stack(table["embedding"].to_numpy()), expected, **CLOSE)
    found = KeyedVectors.load(tmp_path / "x.parquet").encode(TEXTS[::-1])
    np.testing.assert_allclose(found, expected[::-1], **CLOSE)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".vec", ""])
def test_every_sink_takes_the_rows(suffix, bert, texts, tmp_path):
    done(bert, texts, "--out", tmp_path / f"x{suffix}")
    source = isotropy.open(tmp_path / f"x{suffix}")
    rows = np.concatenate([b.rows for c in source.chunks() for b in source.read(c)])
    np.testing.assert_allclose(rows, Encoder(bert, pool="mean").encode(TEXTS), **CLOSE)


def test_options_are_those_of_the_encoder(bert, texts, tmp_path):
    options = ("--layer", "first-last", "--pool", "tokens", "--special-tokens")
    options += ("--batch-tokens", 20, "--device", "cpu", "--cache", tmp_path / "cache")
    for _ in range(2):
        done(bert, texts, "--out", tmp_path / "x.parquet", *options)
        encoder = Encoder(bert, layer="first-last", pool="tokens", special_tokens=True)
        table = pq.read_table(tmp_path / "x.parquet")
        rows = np.stack(table["embedding"].to_numpy())
        np.testing.assert_allclose(rows, encoder.encode(TEXTS), **CLOSE)
        assert table.drop_columns("embedding").to_pydict() == encoder.labels(TEXTS).to_pydict()
    assert list((tmp_path / "cache").rglob("*.npz"))


def test_columns_beside_the_texts_come_along(bert, tmp_path):
    path = tmp_path / "x.jsonl"
    rows = [{"id": i, "title": text, "lang": "en"} for i, text in enumerate(TEXTS)]
    path.write_text("\n".join(map(json.dumps, rows)))
    done(bert, path, "--text-column", "title", "--out", tmp_path / "x.parquet")
    found = pq.read_table(tmp_path / "x.parquet").drop_columns("embedding").to_pydict()
    assert found == {"title": TEXTS, "id": list("01234"), "lang": ["en"] * 5}


def test_ids_stay_beside_their_vectors_when_blank_texts_are_left_out(bert, tmp_path):
    texts = [*TEXTS[:2], " ", *TEXTS[2:]]
    lines = [json.dumps({"_id": f"d{i}", "text": text}) for i, text in enumerate(texts)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    said = done(bert, tmp_path / "corpus.jsonl", "--out", tmp_path / "docs.parquet")
    assert said == "1 blank text left out (line 3)\n"
    found = pq.read_table(tmp_path / "docs.parquet")
    assert found["_id"].to_pylist() == ["d0", "d1", "d3", "d4", "d5"]
    assert found["text"].to_pylist() == TEXTS


def test_blank_and_cut_texts_are_counted_on_stderr(bert, tmp_path):
    (tmp_path / "x.txt").write_text("the cat sat on the mat\n\ndog\n  \nthe cat sat on a mat\n")
    said = done(bert, tmp_path / "x.txt", "--out", tmp_path / "x.npy", "--max-length", 6)
    assert said.splitlines() == [
        "2 blank texts left out (lines 2, 4)",
        "2 of 3 texts were longer than 6 tokens and truncated",
    ]
    said = done(
        bert, tmp_path / "x.txt", "--out", tmp_path / "x.npy", "--max-length", 6, "--pool", "tokens"
    )
    assert "2 of 3 texts were longer" in said
    assert len(np.load(tmp_path / "x.npy")) == 9


def test_a_sentence_transformers_folder_pools_as_it_does_itself(texts, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    path = tiny_models.sentence_bert(tmp_path / "model", max_length=32)
    done(path, texts, "--out", tmp_path / "x.npy")
    expected = sentence_transformers.SentenceTransformer(str(path), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), expected, **CLOSE)
    done(path, texts, "--out", tmp_path / "x.npy", "--pool", "mean")
    assert np.load(tmp_path / "x.npy").shape == (5, 16)


def rows_of(*arguments, out):
    done(*arguments, "--out", out)
    return np.load(out)


def test_a_repair_treats_the_level_that_its_file_names(bert, texts, tmp_path):
    encoder, saved = Encoder(bert, pool="mean"), tmp_path / "repair"
    repair = isotropy.ClusterRemoval(2, 1).fit(Encoder(bert, pool="tokens").encode(TEXTS))
    command, out = (bert, texts, "--repair", saved), tmp_path / "x.npy"
    for level in ("token", "sentence"):
        expected = encoder.with_repair(repair, level).encode(TEXTS)
        repair.save(saved, level=level, overwrite=True)
        np.testing.assert_allclose(rows_of(*command, out=out), expected, **CLOSE)
        repair.save(saved, overwrite=True)
        found = rows_of(*command, "--level", level, out=out)
        np.testing.assert_allclose(found, expected, **CLOSE)
    np.testing.assert_allclose(rows_of(*command, out=out), expected, **CLOSE)  # of sentences


def test_a_repair_of_fewer_features_gives_fewer(bert, texts, tmp_path):
    tokens = Encoder(bert, pool="tokens").encode(TEXTS)
    whiten = isotropy.Whiten("pca", n_components=3).fit(tokens)
    whiten.save(tmp_path / "repair", level="token")
    command = (bert, texts, "--repair", tmp_path / "repair", "--pool", "tokens")
    found = rows_of(*command, out=tmp_path / "x.npy")
    np.testing.assert_allclose(found, whiten.transform(tokens), rtol=0, atol=1e-4)


def test_a_level_without_use_gives_one_line(bert, texts, tmp_path):
    isotropy.Center().fit(np.eye(16)).save(tmp_path / "repair")
    command = (bert, texts, "--out", tmp_path / "x.npy")
    result = run(*command, "--level", "token")
    assert result.stderr == "embed: --level needs --repair, got none. Name a repair.\n"
    result = run(*command, "--repair", tmp_path / "repair", "--pool", "tokens")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "embed: --level must be token with --pool tokens" in result.stderr
    result = run(*command, "--repair", tmp_path / "gone")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "x.npy").exists()


def test_the_cache_may_come_from_the_environment(bert, texts, tmp_path, monkeypatch):
    monkeypatch.setenv("ISOTROPY_CACHE", str(tmp_path / "cache"))
    done(bert, texts, "--out", tmp_path / "x.npy")
    assert list((tmp_path / "cache").rglob("*.npz"))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--layer", "all"), "embed: --layer must be a number or first-last, got 'all'"),
        (("--layer", 9), "--layer must be in -4..3"),
        (("--text-column", "title"), "a .txt file has no columns"),
        (("--device", "nowhere"), "device 'nowhere' cannot be used"),
        (("--pool", "own"), "has no modules.json"),
        (("--pool", "max"), "--pool"),
    ],
)
def test_wrong_options_give_one_line_and_write_nothing(options, match, bert, texts, tmp_path):
    result = run(bert, texts, "--out", tmp_path / "x.npy", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert match in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "x.npy").exists()


def test_bad_input_gives_one_line_and_writes_nothing(bert, texts, tmp_path):
    (tmp_path / "latin1.txt").write_bytes(b"fine\ncaf\xe9\n")
    (tmp_path / "notes").mkdir()
    out = ("--out", tmp_path / "x.npy")
    cases = [
        ((bert, tmp_path / "latin1.txt", *out), "must be UTF-8, got byte 0xe9 in line 2"),
        ((bert, tmp_path / "none.txt", *out), "embed: there is no file"),
        ((tmp_path / "notes", texts, *out), "holds no model"),
        ((bert, texts, "--out", tmp_path / "x.doc"), "must end in one of"),
        ((bert, texts, "--out", tmp_path / "no" / "x.npy"), "must be in an existing folder"),
    ]
    for arguments, match in cases:
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert match in result.stderr
        assert result.stderr.count("\n") == 1
    assert not list(tmp_path.glob("x.*"))


def test_the_origin_goes_with_the_vectors_and_the_repair(bert, texts, tmp_path):
    vectors, saved = tmp_path / "x.parquet", tmp_path / "repair"
    done(bert, texts, "--layer", 2, "--out", vectors)
    made = isotropy.open(vectors).origin()
    assert (made["model"], made["layer"], made["pooling"]) == (bert.name, 2, "mean")
    isotropy.Center().fit(vectors).save(saved)
    assert isotropy.load(saved).origin_.to_dict() == made
    said = run(bert, texts, "--repair", saved, "--out", tmp_path / "y.parquet").exception
    assert isinstance(said, IsotropyWarning)
    assert "embed: the vectors come from layer 3, and those fitted on from layer 2" in str(said)
    done(bert, texts, "--repair", saved, "--layer", 2, "--out", tmp_path / "y.parquet")
    assert isotropy.open(tmp_path / "y.parquet").origin() == {}  # repaired ones are others
