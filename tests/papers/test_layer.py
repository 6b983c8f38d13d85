"""The experiments of the isotropy layer paper on tiny models, recomputed from their runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("plotly")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from isotropy.errors import InputError
from isotropy.papers import layer, results
from isotropy.papers.experiment import experiments, matching
from isotropy.papers.running import reproduce

LAYER = layer.QUICK["methods"][0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("layer")


@pytest.fixture(scope="module")
def found(folder):
    """What every experiment found, by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "write_images", lambda *args, **kwargs: None)  # no browser
        made = reproduce("layer", out=folder, quick=True)
    return {name.removeprefix("layer/"): one for name, one in made.items()}


def runs(folder, name, **keys):
    lines = (folder / "layer" / name / "runs.jsonl").read_text("utf-8").splitlines()
    return sorted(matching(map(json.loads, lines), **keys), key=lambda run: run["seed"])


def one(records, **keys):
    (found,) = matching(records, **keys)
    return found


def test_three_experiments_share_their_runs(folder, found):
    for name in ("glue", "isobn", "explained-variance"):
        assert found[name]["records"]
        assert (folder / "layer" / name / "runs.jsonl").exists() == (name == "glue")
    models, tasks, methods, seeds = 2, 3, 2, 2
    assert len(runs(folder, "glue")) == models * tasks * methods * seeds


def test_scores_before_and_after_are_means_over_seeds_and_paired(folder, found):
    records = found["glue"]["records"]
    for task, metric in (("rte", "accuracy"), ("cola", "matthews"), ("mrpc", "accuracy")):
        keys = {"model": "tiny-bert", "task": task}
        own = runs(folder, "glue", method=LAYER, **keys)
        after = np.array([run["geometry"]["after"]["calibrated"]["isoscore"] for run in own])
        before = np.array([run["finetuned"]["geometry"]["features"]["isoscore"] for run in own])
        change = one(records, state="change", measure="IsoScore", **keys)
        assert change["value"] == pytest.approx((after - before).mean())
        test = stats.ttest_rel(after, before)
        assert (change["low"], change["high"]) == pytest.approx(test.confidence_interval())
        assert ("mark" in change) == (test.pvalue < 0.05)
        percent = one(records, state=layer.LAYER, measure="IsoScore, change in %", **keys)
        assert percent["value"] == pytest.approx(100 * (after.mean() / before.mean() - 1))
        scores = [100 * run["finetuned"]["metrics"][metric] for run in own]
        plain = one(records, state=layer.PLAIN, measure="score", **keys)
        assert plain["value"] == pytest.approx(np.mean(scores))
        assert plain["n"] == 40
    changes = matching(records, state="change", measure="IsoScore")
    rises = sum(record["value"] > 0 for record in changes)
    assert any(f"IsoScore rises in {rises} of 6" in note for note in found["glue"]["notes"])


def test_medians_and_explained_variance_of_the_median_run(folder, found):
    records = found["isobn"]["records"]
    keys = {"model": "tiny-sentence-bert", "task": "cola"}
    own = runs(folder, "glue", method="isobn", **keys)
    scores = [100 * run["metrics"]["matthews"] for run in own]
    of = {**keys, "state": layer.ISOBN}
    assert one(records, measure="median score", **of)["value"] == pytest.approx(np.median(scores))
    assert one(records, measure="deviation", **of)["value"] == pytest.approx(np.std(scores, ddof=1))
    spaces = [run["geometry"]["after"]["calibrated"] for run in own]
    lower = min(spaces, key=lambda space: space["explained_variance"][0])  # of two runs
    for rows, name in (
        ("", "explained_variance"),
        (", uncentred", "explained_variance_uncentered"),
    ):
        values = [one(records, measure=f"EV{k}{rows}", **of)["value"] for k in (1, 2, 3)]
        assert values == lower[name][:3]


def test_explained_variance_rises_to_one(found):
    records = found["explained-variance"]["records"]
    for rows in ("centred", "uncentred"):
        for state in (layer.PLAIN, layer.LAYER):
            own = matching(records, model="tiny-bert", task="rte", state=state, rows=rows)
            values = [record["value"] for record in own]
            assert [record["directions"] for record in own] == list(range(1, 17))
            assert np.all(np.diff(values) >= 0)
            assert values[-1] == pytest.approx(1, abs=1e-5)
            if rows == "centred":
                beside = one(
                    found["isobn"]["records"],
                    model="tiny-bert", task="rte", state=state, measure="EV1",
                )  # fmt: skip
                assert values[0] == beside["value"]


def test_changes_of_explained_variance_are_paired_by_seed(folder, found):
    keys = {"model": "tiny-bert", "task": "cola"}
    own = runs(folder, "glue", method=LAYER, **keys)
    spaces = [
        (run["geometry"]["after"]["calibrated"], run["finetuned"]["geometry"]["features"])
        for run in own
    ]
    records = found["explained-variance"]["records"]
    for rows, name in (
        ("centred", "explained_variance"),
        ("uncentred", "explained_variance_uncentered"),
    ):
        for k in (1, 10):
            after, before = np.array([[space[name][k - 1] for space in pair] for pair in spaces]).T
            change = one(records, measure=layer.SHARE_CHANGE, rows=rows, directions=k, **keys)
            assert change["value"] == pytest.approx((after - before).mean())
            expected = stats.ttest_rel(after, before).confidence_interval()
            assert (change["low"], change["high"]) == pytest.approx(tuple(expected))


def test_variants_start_from_the_same_fine_tuned_models(folder, found):
    records = found["variants"]["records"]
    assert {record["variant"] for record in records} == {
        "as in the paper", "2 layers", "head in turns",
    }  # fmt: skip
    methods = dict.fromkeys(run["method"] for run in runs(folder, "variants"))
    assert list(methods) == [
        "isotropy-layer:layer_epochs=3",
        "isotropy-layer:depth=2,layer_epochs=3",
        "isotropy-layer:variant=alternating,layer_epochs=3",
    ]
    plain = [
        [run["finetuned"]["score"] for run in runs(folder, "variants", task="rte", method=method)]
        for method in methods
    ]
    assert plain[0] == plain[1] == plain[2]
    own = runs(folder, "variants", task="rte", method="isotropy-layer:depth=2,layer_epochs=3")
    ratios = [
        run["geometry"]["after"]["calibrated"]["isoscore"]
        / run["finetuned"]["geometry"]["features"]["isoscore"]
        for run in own
    ]
    shown = one(records, task="rte", variant="2 layers", measure="times IsoScore")
    assert shown["value"] == pytest.approx(np.mean(ratios))


def test_published_figures_have_all_cells_of_tables_2_and_3():
    glue, isobn = experiments()["layer/glue"], experiments()["layer/isobn"]
    assert len(glue.published) == 2 * 3 * (2 * 2 + 2)
    assert len(isobn.published) == 2 * 3 * 4 * 5
    keys = {"model": "RoBERTa-large", "task": "mrpc", "state": layer.LAYER}
    assert one(glue.published, measure="IsoScore", **keys)["value"] == 0.00245
    assert one(isobn.published, measure="EV2", **keys)["value"] == 0.96


def test_given_runs_are_reported_without_training(tmp_path, folder, found):
    kept = [run for run in runs(folder, "glue", model="tiny-bert") if run["task"] == "rte"]
    path = tmp_path / "kept.jsonl"
    path.write_text("".join(json.dumps(run, separators=(",", ":")) + "\n" for run in kept))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "write_images", lambda *args, **kwargs: None)
        again = reproduce("layer/isobn", out=tmp_path / "out", records=path, quick=True, seeds=2)
    records = again["layer/isobn"]["records"]
    assert records == [
        record
        for record in found["isobn"]["records"]
        if (record["model"], record["task"]) == ("tiny-bert", "rte")
    ]
    assert not list(tmp_path.glob("out/layer/*/runs.jsonl"))
    with pytest.raises(InputError, match="records must have runs"):
        reproduce("layer/isobn", out=tmp_path / "other", records=tmp_path / "none.jsonl")
