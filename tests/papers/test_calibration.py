"""The experiments of the calibration paper on tiny models and on invented runs, recomputed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("plotly")
pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("sacrebleu")
pytest.importorskip("rouge_score")

from isotropy import Encoder
from isotropy.papers import calibration, results
from isotropy.papers.experiment import experiments, matching
from isotropy.papers.running import reproduce
from isotropy.trial.task_data import read_task


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("calibration")


@pytest.fixture(scope="module")
def found(folder):
    """What every experiment found, by its name."""
    return run_without_browser("calibration", out=folder, quick=True)


def run_without_browser(name, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "write_images", lambda *args, **kwargs: None)
        made = reproduce(name, **options)
    return {name.removeprefix("calibration/"): one for name, one in made.items()}


def runs(folder, name, **keys):
    lines = (folder / "calibration" / name / "runs.jsonl").read_text("utf-8").splitlines()
    return sorted(matching(map(json.loads, lines), **keys), key=lambda run: run["seed"])


def one(records, **keys):
    (found,) = matching(records, **keys)
    return found


def test_scores_and_isotropy_are_means_over_seeds(folder, found):
    records = found["glue"]["records"]
    keys = {"model": "tiny-bert", "task": "stsb"}
    scores = {}
    for method in ("none", "flow"):
        own = runs(folder, "glue", method=method, search=0.0, **keys)
        assert [run["seed"] for run in own] == [0, 1]
        scores[method] = [100 * run["score"] for run in own]
        shown = one(records, method=method, measure="score", **keys)
        assert shown["value"] == pytest.approx(np.mean(scores[method]))
        for measure, name in (("I1", "i1"), ("I1, one sign", "i1_one_sign"), ("I2", "i2")):
            values = [run["geometry"]["after"]["output"][name] for run in own]
            shown = one(records, method=method, measure=measure, **keys)
            assert shown["value"] == pytest.approx(np.mean(values))
    test = stats.ttest_ind(scores["flow"], scores["none"])
    assert one(records, method="flow", measure="p", **keys)["value"] == pytest.approx(test.pvalue)


def test_one_sign_of_a_single_row_is_the_root_of_both_signs(folder, found):
    for run in runs(folder, "glue", model="tiny-bert", task="stsb", search=0.0):
        space = run["geometry"]["after"]["output"]
        assert space["n_rows"] == 1
        # Z is exp(|w|) or exp(-|w|) along w, and 1 across
        assert sorted((1.0, space["i1_one_sign"]))[0] ** 2 == pytest.approx(space["i1"])


def test_options_are_searched_on_the_named_tasks_with_one_seed(folder, found):
    searched = [run for run in runs(folder, "glue") if run["search"]]
    assert {(run["task"], run["seed"]) for run in searched} == {("mrpc", 0)}
    assert {run["spec"].partition(":")[0] for run in searched} == {"cosine"}
    notes = " ".join(found["glue"]["notes"])
    assert "chosen by the score on a fifth of the training items of mrpc (seed 0, 4 runs)" in notes
    assert "training items: mrpc 32 (capped), stsb 32 (capped)" in notes
    assert "head: the classifier of transformers" in notes


def test_generation_reports_metrics_isotropy_and_times(folder, found):
    for name, label, metric in (
        ("translation", "BLEU", "bleu"),
        ("summarization", "ROUGE-L", "rougeL"),
    ):
        records = found[name]["records"]
        task = "wmt16-enro" if name == "translation" else "cnndm"
        own = {m: runs(folder, name, task=task, method=m) for m in ("none", "cosine")}
        shown = "EN-RO" if name == "translation" else "CNN/DM"
        for method, each in own.items():
            value = one(records, task=shown, method=method, measure=label)["value"]
            assert value == pytest.approx(100 * np.mean([run["metrics"][metric] for run in each]))
        seconds = [np.mean([run["seconds_per_epoch"] for run in each]) for each in own.values()]
        times = one(records, task=shown, method="cosine", measure="time, times none")
        assert times["value"] == pytest.approx(seconds[1] / seconds[0])


def test_relation_uses_the_runs_of_all_experiments(folder, found):
    assert not (folder / "calibration/relation/runs.jsonl").exists()
    records = found["relation"]["records"]
    tasks = {record["task"] for record in matching(records, measure="change of I1")}
    assert tasks == {"mrpc", "stsb", "rte", "wmt16-enro", "multi30k", "cnndm"}


def test_local_isotropy_of_the_tokens(folder, found):
    records = matching(found["relation"]["records"], measure="log10 I", model="tiny-sentence-bert")
    methods = {"before", "none", "cosine", "flow"}
    assert {(record["method"], record["tokens"]) for record in records} == {
        (method, tokens) for method in methods for tokens in ("as they are", "locally centred")
    }
    pairs = read_task("rte", folder / "quick/data").evaluated.texts
    encoder = Encoder(str(folder / "quick/models/tiny-sentence-bert"), pool="mean")
    rows = encoder.tokens([text for pair in pairs for text in pair]).rows.astype(np.float64)
    directions = np.linalg.eigh(rows.T @ rows)[1]
    sums = np.exp(np.hstack([rows @ directions, -rows @ directions])).sum(axis=0)
    shown = one(records, method="before", tokens="as they are")
    assert shown["n"] == len(rows)
    assert shown["value"] == pytest.approx(math.log10(sums.min() / sums.max()), rel=1e-3)


def invented(task, method, seed, score, n_called=2, i1=0.9, seconds=1.0):
    """A run as `isotropy train` records it."""
    space = {"i1": i1, "i1_one_sign": i1, "i2": 0.1}
    run = {"task": task, "model": "m", "method": method, "spec": method, "seed": seed}
    return run | {
        "search": 0.0,
        "settings": {
            "epochs": 3, "batch_size": 32, "lr": 2e-5, "max_train": 5000, "validation": 0.0,
            "precision": "tf32", "head": "model",
        },
        "status": "finished", "metric": "matthews", "score": score, "divided": True,
        "n_train": 5000, "n_evaluated": 100, "metrics": {"matthews": score, "n_called": n_called},
        "geometry": {"after": {"output": space}}, "device": "cpu",
        "seconds_per_epoch": seconds, "peak_memory_mb": 1.0,
    }  # fmt: skip


SCORES = {
    ("cola", "none"): (0.50, 0.52, 0.51),
    ("cola", "cosine"): (0.60, 0.61, 0.63),
    ("cola", "spectrum-polynomial"): (0.0, 0.0, 0.0),
    ("rte", "none"): (0.55, 0.56, 0.60),
    ("rte", "cosine"): (0.54, 0.55, 0.60),
    ("rte", "spectrum-polynomial"): (0.50, 0.53, 0.50),
}
I1 = {"none": 0.6, "cosine": 0.7, "spectrum-polynomial": 0.9}


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory):
    """Tables of invented runs, in which spectrum control predicts one class on CoLA."""
    folder = tmp_path_factory.mktemp("invented")
    with open(folder / "runs.jsonl", "w", encoding="utf-8") as file:
        for (task, method), scores in SCORES.items():
            for seed, score in enumerate(scores):
                run = invented(
                    task, method, seed, score,
                    n_called=1 if score == 0 else 2,
                    i1=1.0 if score == 0 else I1[method],
                    seconds=2.0 if method == "cosine" else 1.0,
                )  # fmt: skip
                file.write(json.dumps(run, separators=(",", ":")) + "\n")
    return {
        name: run_without_browser(
            f"calibration/{name}", out=folder / "out", records=folder / "runs.jsonl"
        )[name]
        for name in ("glue", "relation")
    }


def test_marks_follow_the_two_sample_t_test_and_the_collapse(collapsed):
    records = collapsed["glue"]["records"]
    for task, method in SCORES:
        shown = one(records, task=task, method=method, measure="score")
        if method == "none":
            assert "mark" not in shown
            continue
        test = stats.ttest_ind(SCORES[task, method], SCORES[task, "none"], equal_var=True)
        better = test.statistic > 0 and test.pvalue < 0.05
        gone = method == "spectrum-polynomial" and task == "cola"
        assert shown.get("mark", "") == ("*" if better else "") + ("†" if gone else "")
        assert one(records, task=task, method=method, measure="p")["value"] == pytest.approx(
            test.pvalue
        )
    assert one(records, task="cola", method="cosine", measure="score")["mark"] == "*"


def test_changes_are_summed_up_over_tasks_and_models(collapsed):
    records = collapsed["glue"]["records"]
    changes = [
        100 * (np.mean(SCORES[task, "cosine"]) - np.mean(SCORES[task, "none"]))
        for task in ("cola", "rte")
    ]
    own = {"cells": "all", "method": "cosine"}
    mean = one(records, measure="mean change", **own)
    assert mean["value"] == pytest.approx(np.mean(changes))
    expected = stats.ttest_1samp(changes, 0).confidence_interval()
    assert (mean["low"], mean["high"]) == pytest.approx(tuple(expected))
    counts = {"tasks and models": 2, "up": 1, "better at 5 %": 1, "worse at 5 %": 0}
    assert {name: one(records, measure=name, **own)["value"] for name in counts} == counts
    spectrum = {"cells": "without wnli", "method": "spectrum-polynomial"}
    assert one(records, measure="worse at 5 %", **spectrum)["value"] == 2  # cola and rte


def test_the_collapse_is_named(collapsed):
    notes = " ".join(collapsed["glue"]["notes"])
    assert (
        "in 3 of 3 runs of spectrum control on W on these tasks (spectrum-polynomial 3 of 3)"
        in notes
    )
    assert "largest I1 of W with it is 1.00, over both signs" in notes
    assert "Runs that predict one class: m cola spectrum-polynomial 3 of 3." in notes
    assert "m: 3 seeds; training items: cola 5,000 (capped), rte 5,000 (capped)." in notes


def test_correlation_of_the_changes_over_cells(collapsed):
    records = collapsed["relation"]["records"]
    pairs = []
    for (task, method), scores in SCORES.items():
        if method != "none":
            i1 = 1.0 if scores == (0.0, 0.0, 0.0) else I1[method]
            pairs.append((i1 - I1["none"], np.mean(scores) - np.mean(SCORES[task, "none"])))
    shown = one(records, cells="all", measure="Pearson r")
    assert shown["n"] == len(pairs) == 4
    assert shown["value"] == pytest.approx(np.corrcoef(np.transpose(pairs))[0, 1])
    assert shown["value"] < 0
    times = one(records, method="cosine", task="GLUE", measure="time, times none")
    assert times["value"] == pytest.approx(2)
    own = one(records, cells="the paper's tables 1 and 4", measure="Spearman rho")
    assert own["value"] < 0


def test_published_figures_are_those_of_tables_1_and_4():
    published = experiments()["calibration/glue"].published
    assert len(matching(published, measure="score")) == 13 * 10
    assert len(matching(published, measure="I2")) == 13 * 9
    cell = one(
        published, model="RoBERTa", method="spectrum-polynomial", task="wnli", measure="score"
    )
    assert (cell["value"], cell["mark"]) == (57.28, "*")
    cell = one(published, model="DistilBERT", method="none", task="stsb", measure="deviation")
    assert cell["value"] == 41.08
    assert math.isnan(
        one(published, model="BERT", method="spectrum-exponential", task="stsb", measure="score")[
            "value"
        ]
    )
    changes = calibration.printed_changes()
    assert any((x, y) == pytest.approx((0.09, -53.16)) for x, y in changes)  # BERT, CoLA
    assert len(changes) == 10 * 9 - 2 - 6  # two shifted cells, six undefined scores
