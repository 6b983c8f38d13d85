"""isotropy train: a table or JSON, runs that are kept, and one line for what is wrong."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from isotropy.cli import app

from .. import tiny_models
from ..trial import trial_data

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture
def command(tmp_path, monkeypatch):
    """command(*arguments) over small tasks and a small model."""
    monkeypatch.delenv("ISOTROPY_MODELS", raising=False)
    monkeypatch.setenv("ISOTROPY_DATA", str(trial_data.tasks(tmp_path / "data")))
    tiny_models.bert(tmp_path / "models" / "tiny")

    def run(*arguments):
        line = [
            "train",
            *arguments,
            "--out",
            tmp_path / "runs.jsonl",
            "--models",
            tmp_path / "models",
        ]
        quick = ["--device", "cpu", "--epochs", "1"]
        quick += [] if "--seeds" in arguments else ["--seeds", "2"]
        return CliRunner().invoke(app, [str(word) for word in [*line, *quick]])

    return run


def test_a_table_of_methods_against_none(command, tmp_path):
    result = command("rte", "cola", "--model", "tiny", "--method", "none", "--method", "isobn")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split()[:4] == ["model", "task", "method", "metric"]
    assert [line.split()[1:3] for line in lines[1:]] == [
        ["rte", "none"], ["rte", "isobn"], ["cola", "none"], ["cola", "isobn"],
    ]  # fmt: skip
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 8


def test_all_stands_for_every_method_and_json_has_the_figures(command):
    result = command("stsb", "--model", "tiny", "--method", "all", "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert [row["method"] for row in rows] == [
        "none", "cosine", "spectrum-polynomial", "spectrum-exponential", "flow", "isobn",
        "isotropy-layer", "isoscore-star",
    ]  # fmt: skip
    assert all(len(row["scores"]) == 2 for row in rows)
    assert rows[0]["p"] is None
    assert {"mean", "sd", "median", "difference", "low", "high", "p_holm"} <= rows[1].keys()


def test_what_is_not_tested_is_said(command):
    alone = command("rte", "--model", "tiny", "--method", "isobn")
    assert "no run of none has finished" in alone.stderr
    both = command("rte", "--model", "tiny", "--method", "none", "--method", "isobn", "--seeds", 1)
    assert "Use more --seeds" in both.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("glue", "--model", "tiny"), "TASK must be one of 'rte'"),
        (("rte", "--model", "tiny", "--method", "sine"), "method must be one of 'none'"),
        (("rte", "--model", "tiny", "--method", "cosine:weight=nan"), "weight must be a finite"),
        (("rte", "--model", "tiny", "--method", "cosine:on=hidden:7"), "hidden:0 to hidden:3"),
        (("rte", "--model", "./nothing"), "there is no folder './nothing'"),
        (("rte", "--model", "tiny", "--lr", "nan"), r"lr must be a number in [0, 1]"),
        (("multi30k", "--model", "tiny"), "needs an encoder-decoder"),
        (("rte",), "--model"),
    ],
)
def test_bad_input_gives_one_line(arguments, line, command, tmp_path):
    result = command(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert line in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "runs.jsonl").exists()


def test_a_record_that_is_none_is_named(command, tmp_path):
    (tmp_path / "runs.jsonl").write_text("{}\n")
    result = command("rte", "--model", "tiny")
    assert result.exit_code == 2
    assert "line 1 must be the record of a run" in result.stderr
