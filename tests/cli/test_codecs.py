"""Saved codecs on the command line: apply, show, export, and what is refused."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import isotropy
from isotropy.cli import app
from isotropy.codecs import Binary, Rescored

N, D = 300, 24


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path):
    X = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32) + 1
    np.save(tmp_path / "rows.npy", X)
    Binary(repair=isotropy.Center()).fit(X).save(tmp_path / "codec.safetensors", note="a note")
    Rescored().fit(X).save(tmp_path / "two.safetensors")
    return tmp_path


@pytest.mark.parametrize("name", ["codec", "two"])
def test_apply_writes_codes(folder, name):
    file, rows, out = folder / f"{name}.safetensors", folder / "rows.npy", folder / "codes.npy"
    done = run("apply", file, rows, "--out", out)
    assert done.exit_code == 0, done.output
    codec = isotropy.load(file)
    np.testing.assert_array_equal(np.load(out), codec.encode(np.load(rows)))
    again = run("apply", file, rows, "--out", out)
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr


def test_show_describes_codecs(folder):
    done = run("show", folder / "codec.safetensors")
    assert done.exit_code == 0, done.output
    assert "Binary(repair=Center())" in done.stdout
    assert "3, instead of 96 of float32" in done.stdout
    assert "a note" in done.stdout
    assert "3 in memory, 27 stored" in run("show", folder / "two.safetensors").stdout
    found = json.loads(run("show", folder / "two.safetensors", "--json").stdout)
    assert (found["n_bytes"], found["n_bytes_stored"]) == (3, 27)


@pytest.mark.parametrize("name", ["codec", "two"])
def test_export_writes_an_index(folder, name):
    pytest.importorskip("faiss")
    codec, out = folder / f"{name}.safetensors", folder / "index.faiss"
    done = run("export", codec, "--to", "faiss", "--out", out, "--verify")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("largest difference")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["export", "codec.safetensors", "--to", "onnx", "--out", "x.onnx"],
            "only with --to faiss",
        ),
        (["watch", "codec.safetensors", "rows.npy"], "got a codec"),
        (["apply", "codec.safetensors", "rows.npy", "--out", "x.vec"], "must end in .npy"),
        (["apply", "rows.npy", "codec.safetensors", "--out", "x.npy"], "REPAIR must come before"),
        (
            ["apply", "codec.safetensors", "rows.npy", "--out", "x.npy", "--group-column", "a"],
            "can't be used with Binary",
        ),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(folder, monkeypatch, words, message):
    monkeypatch.chdir(folder)
    done = run(*words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_codec_for_other_rows_is_refused(folder):
    np.save(folder / "wide.npy", np.ones((5, 30)))
    done = run(
        "apply", folder / "codec.safetensors", folder / "wide.npy", "--out", folder / "x.npy"
    )
    assert done.exit_code == 2
    assert "X has 30 features, but Binary is expecting 24 features" in done.stderr
