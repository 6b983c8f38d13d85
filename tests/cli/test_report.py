"""isotropy report: the page of a file, from the command line."""

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import isotropy
from isotropy.cli import app

WITHOUT = "import sys; sys.modules['plotly'] = None; from isotropy.cli import app; app()"


@pytest.fixture
def vectors(tmp_path):
    X = np.random.default_rng(0).standard_normal((300, 8)) + 1
    np.save(tmp_path / "vectors.npy", X)
    isotropy.Center().fit(X).save(tmp_path / "repair.safetensors")
    return tmp_path / "vectors.npy"


def run(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_page_has_repair_and_evidence(vectors, tmp_path):
    pytest.importorskip("plotly")
    result = {
        "task": "t", "metric": "m", "repair": "center", "method": "center", "score": 2.0,
        "difference": 1.0, "interval": [0.5, 1.5], "p_holm": 0.01, "fitted_on": "the other folds",
    }  # fmt: skip
    none = result | {"method": "none", "score": 1.0}
    found = {"results": [none, result], "notes": [], "transductive": False}
    (tmp_path / "evidence.json").write_text(json.dumps(found))
    page = tmp_path / "page.html"
    options = ("--repair", tmp_path / "repair.safetensors", "--out", page, "--title", "A & B")
    done = run(vectors, *options, "--evidence", tmp_path / "evidence.json")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"wrote {page} (")
    text = page.read_text("utf-8")
    for part in ("<h1>A &amp; B</h1>", "after center", "+0.5 to +1.5", "Does it help?"):
        assert part in text


def test_bad_files_get_one_line_and_no_page(vectors, tmp_path):
    pytest.importorskip("plotly")
    (tmp_path / "bad.json").write_text("{")
    cases = {
        ("--evidence", tmp_path / "bad.json"): "it is not valid JSON",
        ("--evidence", tmp_path / "no.json"): "must be readable",
        ("--layers", tmp_path / "bad.json"): "isotropy layers --json",
        ("--repair", vectors): "is an array of numpy (.npy), not a repair",
        ("--out", tmp_path / "page.doc"): "must be an .html file",
    }
    for options, words in cases.items():
        done = run(vectors, "--out", tmp_path / "page.html", *options)
        assert done.exit_code == 2
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "page.html").exists()


def test_without_plotly_one_line_says_what_to_install(vectors, tmp_path):
    command = [sys.executable, "-c", WITHOUT, "report", vectors, "--out", tmp_path / "page.html"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        'needs plotly, which is not installed. Run: pip install "isotropy[report]"' in done.stderr
    )
    assert done.stderr.count("\n") == 1


def test_a_checkpoint_goes_with_repairs(vectors, tmp_path):
    pytest.importorskip("plotly")
    pages = [tmp_path / name for name in ("a.html", "b.html", "c.html")]
    kept = ("--checkpoint", tmp_path / "kept")
    for page, options in zip(pages, (kept, kept, ()), strict=True):
        done = run(vectors, "--repair", tmp_path / "repair.safetensors", "--out", page, *options)
        assert done.exit_code == 0, done.output
    assert len({page.read_bytes() for page in pages}) == 1
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_rows_left_out_are_counted_once(vectors, tmp_path):
    pytest.importorskip("plotly")
    X = np.load(vectors)
    X[[3, 200]] = np.nan
    np.save(vectors, X)
    page, saved = tmp_path / "page.html", tmp_path / "repair.safetensors"
    done = run(vectors, "--skip-bad-rows", "--repair", saved, "--out", page)
    assert done.stderr == "2 bad rows left out\n"
    assert "all 298 rows" in page.read_text("utf-8")
