"""isotropy layers: every metric of every layer, in a table, in JSON and in a chart."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import isotropy
from isotropy.cli import Commands
from isotropy.cli.layers import COLUMNS, layers
from isotropy.metrics import METRICS
from isotropy.models.encoder import Encoder
from isotropy.models.models import Model

from .. import tiny_models
from ..tiny_models import TEXTS

pytest.importorskip("transformers")

app = typer.Typer(cls=Commands, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(layers)
app.callback()(lambda: None)
MORE = [f"{text} {other}" for text in TEXTS for other in TEXTS if text != other][:12]


def run(*arguments):
    return CliRunner().invoke(app, ["layers", *map(str, arguments)])


def done(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def bert(folder):
    return tiny_models.bert(folder / "bert", max_length=64)


@pytest.fixture(scope="module")
def llama(folder):
    return tiny_models.llama(folder / "llama")


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(MORE), "utf-8")
    return path


def test_json_has_every_metric_of_every_layer(bert, texts):
    found = json.loads(done(bert, texts, "--json").stdout)
    assert (found["n_texts"], found["n_listed"], found["n_blank"]) == (12, 12, 0)
    (model,) = found["models"]
    assert (model["model"], model["first_token"], model["n_truncated"]) == (str(bert), "[CLS]", 0)
    assert [layer["layer"] for layer in model["layers"]] == [0, 1, 2, 3]
    rows = Encoder(bert, layer="all", pool="tokens").by_layer(MORE)
    firsts = Encoder(bert, layer="all", pool="cls").by_layer(MORE)
    names = {name for name, record in METRICS.items() if record.evaluate is not None}
    for layer, expected, first in zip(model["layers"], rows, firsts, strict=True):
        assert names <= layer["tokens"].keys() == layer["cls"].keys()
        geometry = isotropy.measure(expected)
        for name in ("isoscore", "mean_cosine", "effective_rank", "log_partition_isotropy"):
            assert layer["tokens"][name] == pytest.approx(getattr(geometry, name), rel=1e-3)
        assert layer["cls"]["n_samples"] == len(first) == 12
        norm = np.linalg.norm(first, axis=1).mean()
        assert layer["cls"]["norms"]["mean"] == pytest.approx(norm, rel=1e-5)
    assert model["layers"][0]["cls"]["isoscore"] is None  # all [CLS] rows are one there


def test_the_model_is_run_once(bert, texts, monkeypatch):
    ran = []
    hidden = Model.hidden
    monkeypatch.setattr(
        Model, "hidden", lambda s, e, n: ran.extend(x.ids for x in e) or hidden(s, e, n)
    )
    done(bert, texts)
    assert len(ran) == len(MORE)


def test_the_table_shows_both_kinds_and_other_models_beside(bert, llama, texts):
    shown = done(bert, texts, "--against", llama).stdout
    assert f"{bert}, 12 texts" in shown
    assert f"{llama}, 12 texts" in shown
    for title in ("all tokens: ", "[CLS]: 12 rows", "first token: 12 rows"):
        assert title in shown
    assert max(map(len, shown.splitlines())) <= max(80, 20 + len(str(llama)))
    assert "log10 I" in shown
    geometry = isotropy.layers(llama, MORE)
    assert geometry.first_token is None
    assert f"{COLUMNS['log10 I'](geometry.tokens[-1]):.3g}" in shown


def test_a_note_says_why_a_layer_has_no_number(bert, llama, texts):
    shown = done(bert, texts).stdout
    note = "nan in layer 0: all rows are equal, as it has seen only [CLS]"
    assert shown.splitlines()[-1] == note
    assert shown.count("nan in layer") == 1
    assert "nan" not in done(llama, texts).stdout  # whose texts begin with different tokens
    texts.write_text("the cat sat\n", "utf-8")
    shown = done(bert, texts).stdout
    assert shown.splitlines()[-1] == "nan in layers 0, 1, 2, 3: there is only one row"


def test_more_texts_and_tokens_than_wanted_are_sampled_and_said(bert, texts):
    result = done(bert, texts, "--max-texts", 5, "--max-tokens", 30, "--seed", 3)
    assert "5 texts of 12, drawn at random" in result.stdout
    assert re.search(r"all tokens: 30 rows of \d+, drawn at random", result.stdout)
    assert (
        result.stdout == done(bert, texts, "--max-texts", 5, "--max-tokens", 30, "--seed", 3).stdout
    )
    other = done(bert, texts, "--max-texts", 5, "--max-tokens", 30, "--seed", 4)
    assert result.stdout != other.stdout


def test_all_takes_every_text_and_every_token(bert, texts):
    result = done(bert, texts, "--max-texts", 5, "--max-tokens", 30, "--all", "--json")
    (found,) = json.loads(result.stdout)["models"]
    n_tokens = len(Encoder(bert, pool="tokens").encode(MORE))
    assert found["n_tokens"] == n_tokens > 30
    assert {one["tokens"]["n_samples"] for one in found["layers"]} == {n_tokens}
    assert {one["cls"]["n_samples"] for one in found["layers"]} == {len(MORE)}


def test_blank_and_cut_texts_are_counted_on_stderr(bert, tmp_path):
    (tmp_path / "x.txt").write_text("the cat sat on the mat\n\na dog ran\nplaying\n")
    result = done(bert, tmp_path / "x.txt", "--max-length", 6)
    assert result.stderr.splitlines() == [
        "1 blank text left out (line 2)",
        "1 of 3 texts were longer than 6 tokens and truncated",
    ]
    found = json.loads(done(bert, tmp_path / "x.txt", "--max-length", 6, "--json").stdout)
    assert (found["n_blank"], found["models"][0]["n_truncated"]) == (1, 1)


def test_the_chart_is_one_file_with_every_curve(bert, llama, texts, tmp_path):
    pytest.importorskip("plotly")
    done(bert, texts, "--against", llama, "--out", tmp_path / "chart.html", "--json")
    page = (tmp_path / "chart.html").read_text("utf-8")
    for name in ("bert, all tokens", "bert, [CLS]", "llama, all tokens", "llama, first token"):
        assert name in page
    assert len(page) > 1_000_000  # plotly.js is inside
    assert "<script src=" not in page


def test_charts_that_cannot_be_written_are_refused_before_the_model_is_run(bert, texts, tmp_path):
    cases = {"x.doc": "must end in .html", "no/x.html": "must be in an existing folder"}
    for name, match in cases.items():
        result = run(bert, texts, "--out", tmp_path / name)
        assert (result.exit_code, result.stdout) == (2, "")
        assert match in result.stderr
        assert result.stderr.count("\n") == 1


def test_bad_input_gives_one_line(bert, tmp_path):
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "x.txt").write_text("one\n")
    cases = [
        ((bert, tmp_path / "latin1.txt"), "must be UTF-8, got byte 0xe9 in line 1"),
        ((bert, tmp_path / "none.txt"), "layers: there is no file"),
        ((tmp_path / "notes", tmp_path / "x.txt"), "holds no model"),
    ]
    for arguments, match in cases:
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert match in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.model
def test_a_pretrained_model_is_least_isotropic_where_the_papers_say(models, tmp_path):
    path = models / "distilbert-base-cased"
    if not path.is_dir():
        pytest.skip(f"distilbert-base-cased is not in {models}")
    found = isotropy.layers(path, MORE)
    heights = [-geometry.log_partition_isotropy / math.log(10) for geometry in found.tokens]
    assert len(heights) == 7
    assert all(height > 3 for height in heights)  # strongly anisotropic throughout
    assert found.first_token == "[CLS]"
