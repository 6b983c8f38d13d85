"""Fine-tuned encoders that a trial saves: what opens them, and what is refused."""

from __future__ import annotations

import errno
import importlib
import json
import os

import numpy as np
import pytest
import scipy.stats
from typer.testing import CliRunner

import isotropy
from isotropy.cli import app
from isotropy.errors import InputError

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
running = importlib.import_module("isotropy.trial.run")
trials = importlib.import_module("isotropy.trial.trial")


def weights(folder):
    return transformers.AutoModel.from_pretrained(folder).state_dict()


def test_departure_3_a_saved_run_opens_as_the_model_that_was_trained(job, tmp_path):
    run = running.prepare(job("rte", "none", lr=1e-3))
    run.record()
    running.save(run.model, str(tmp_path / "tuned"), False)
    trained = run.network.body.state_dict()
    found = weights(tmp_path / "tuned")
    assert found.keys() == trained.keys()
    for name, weight in trained.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=0)


def test_departure_3_a_siamese_encoder_scores_the_same_after_it_is_saved(job, tmp_path):
    """Its Spearman on dev, with vectors of the saved folder pooled as in training."""
    wanted = job("stsb-siamese", "none", lr=1e-3, epochs=3)
    run = running.prepare(wanted)
    record = run.record()
    assert record["metric"] == "spearman"
    running.save(run.model, str(tmp_path / "tuned"), False)
    encoder = isotropy.Encoder(str(tmp_path / "tuned"), pool="mean", special_tokens=True)
    part = run.evaluated.part
    one, two = (encoder.encode([pair[side] for pair in part.texts]) for side in (0, 1))
    cosines = (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    expected = scipy.stats.spearmanr(cosines, part.labels).statistic
    assert record["score"] == pytest.approx(expected, abs=0.01)  # near ties may swap


def test_departure_3_commands_open_what_train_saved(places, tmp_path):
    data, models = places
    saved = tmp_path / "tuned"

    def command(*words):
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, result.stderr
        return result.stdout

    command(
        "train", "stsb-siamese", "--model", "bert", "--models", models, "--data", data,
        "--out", tmp_path / "runs.jsonl", "--save", saved, "--seeds", 1, "--epochs", 1,
    )  # fmt: skip
    texts = tmp_path / "texts.txt"
    texts.write_text("the cat sat\na dog ran on the log\nthe moon\nnew york , new moon\n")
    layers = json.loads(command("layers", models / "bert", texts, "--against", saved, "--json"))
    assert layers
    compared = command(
        "compare", saved, "--task", "sts", "--data", data / "stsb", "--repairs", "center", "--json"
    )
    assert "center" in compared
    again = command(
        "train", "rte", "--model", saved, "--data", data, "--out", tmp_path / "more.jsonl",
        "--seeds", 1, "--epochs", 1,
    )  # fmt: skip
    assert "tuned" in again


def test_one_run_takes_the_folder_and_several_have_folders_of_their_own(trial, tmp_path):
    trial(save=tmp_path / "one").run()
    assert (tmp_path / "one" / "config.json").is_file()
    trial(methods=["none", "cosine:on=cls"], save=tmp_path / "two", n_seeds=2).run()
    assert sorted(os.listdir(tmp_path / "two")) == [
        f"bert--rte--{method}--seed{seed}" for method in ("cosine_on=cls", "none")
        for seed in (0, 1)
    ]  # fmt: skip
    assert set(weights(tmp_path / "two" / "bert--rte--none--seed1"))


def test_runs_are_repeated_only_for_weights_that_are_missing(trial, tmp_path):
    seen = []
    trial().run()
    trial(save=tmp_path / "tuned").run(seen.append)
    assert len(seen) == 1
    trial(save=tmp_path / "tuned").run(seen.append)
    assert len(seen) == 1


def test_an_existing_folder_is_refused_without_overwrite(trial, tmp_path):
    trial(save=tmp_path / "tuned").run()
    before = (tmp_path / "tuned" / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(InputError, match=r"--save '.*tuned' exists\. Add --overwrite"):
        trial(save=tmp_path / "tuned", out=tmp_path / "other.jsonl").run()
    assert (tmp_path / "tuned" / "model.safetensors").stat().st_mtime_ns == before
    trial(save=tmp_path / "tuned", overwrite=True).run()
    assert (tmp_path / "tuned" / "model.safetensors").stat().st_mtime_ns > before
    (tmp_path / "tuned" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="files that isotropy did not write"):
        trial(save=tmp_path / "tuned", overwrite=True).run()


def test_a_folder_that_cannot_be_finished_leaves_nothing(job, tmp_path, monkeypatch):
    run = running.prepare(job("rte", "none"))

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(type(run.model.tokenizer), "save_pretrained", full)
    with pytest.raises(InputError, match=r"could not be written.*Free some room"):
        running.save(run.model, str(tmp_path / "tuned"), False)
    assert not os.listdir(tmp_path)


def test_searches_and_diverged_runs_are_not_saved(trial, tmp_path):
    made = trial(methods=["cosine:on=cls,weight=1e300"], save=tmp_path / "tuned")
    assert made.run()[0]["status"] == "diverged"
    assert not (tmp_path / "tuned").exists()


def test_a_flow_before_an_output_layer_is_not_saved_without_it(trial, tmp_path):
    with pytest.raises(InputError, match=r"--save must be left out with flow on 'multi30k'"):
        trial(["multi30k"], ["flow"], model="t5", save=tmp_path / "tuned")
