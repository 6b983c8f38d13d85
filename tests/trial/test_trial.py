"""The trial on small models and tasks: every method, what is kept, and what is refused."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from isotropy.errors import InputError
from isotropy.metrics import partition_isotropy
from isotropy.trial import task_data
from isotropy.trial.settings import TrainingSettings, settings_for
from isotropy.trial.summary import summary, table

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
running = importlib.import_module("isotropy.trial.run")
jobs = importlib.import_module("isotropy.trial.settings")
trials = importlib.import_module("isotropy.trial.trial")
methods = importlib.import_module("isotropy.trial.methods")
networks = importlib.import_module("isotropy.trial.networks")
records = importlib.import_module("isotropy.trial.records")
Job, TrainingMethod, Trial = jobs.Job, methods.TrainingMethod, trials.Trial

ENCODERS = ("rte", "stsb", "stsb-siamese")


def same(first, second):
    """Whether two records agree in all but times."""
    timed = ("seconds", "seconds_per_epoch", "peak_memory_mb", "layer_seconds_per_epoch")
    kept = [{k: v for k, v in r.items() if k not in timed} for r in (first, second)]
    return repr(kept[0]) == repr(kept[1])


@pytest.mark.parametrize("method", list(TrainingMethod.by_name))
@pytest.mark.parametrize("task", ENCODERS)
def test_every_method_runs_on_every_kind_of_task(task, method, job):
    record = running.run(job(task, method))
    assert record["status"] == "finished"
    assert record["metric"] in record["metrics"]
    assert len(record["losses"]) == 2
    assert all(math.isfinite(loss) for loss in record["losses"])
    assert record["seconds_per_epoch"] > 0
    assert record["peak_memory_mb"] > 0
    after = record["geometry"]["after"]
    assert after["features"]["n_rows"] == (40 if task == "stsb-siamese" else 20)
    assert ("output" in after) == (task != "stsb-siamese")
    assert ("calibrated" in after) == (method in ("flow", "isobn", "isotropy-layer"))
    json.dumps(record)


def test_the_longest_first_text_may_be_shorter_than_the_longest_second_one(job):
    run = running.prepare(job("stsb-siamese", "none"))
    texts = [("the cat", "the cat sat on the log"), ("a dog", "moon")]
    part = task_data.Part(texts, np.array([1.0, 2.0]), np.array(["dev", "dev"]))
    inputs = run.model.items(part, run.data, run.settings).batch(np.array([1, 0])).inputs
    decoded = run.model.tokenizer.batch_decode(inputs["input_ids"], skip_special_tokens=True)
    assert decoded == ["a dog", "the cat", "moon", "the cat sat on the log"]
    assert inputs["attention_mask"].sum(1).tolist() == [4, 4, 3, 8]


@pytest.mark.parametrize(
    "method", ["none", "cosine", "spectrum-polynomial", "spectrum-exponential", "flow"]
)
@pytest.mark.parametrize("task", ["multi30k", "cnndm"])
def test_encoder_decoders_translate_and_summarise(task, method, job):
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    record = running.run(job(task, method, model="t5", epochs=1, max_target=6, max_eval=6))
    assert record["status"] == "finished"
    assert 0 <= record["score"] <= 1
    assert set(record["metrics"]) == (
        {"bleu"} if task == "multi30k" else {"rouge1", "rouge2", "rougeL"}
    )
    assert record["geometry"]["after"]["output"]["n_rows"] == 32
    assert record["settings"]["schedule"] == "polynomial"


@pytest.mark.parametrize("method", ["none", "flow", "isotropy-layer", "isoscore-star"])
def test_the_same_seed_gives_the_same_record(method, job):
    assert same(running.run(job("rte", method)), running.run(job("rte", method)))
    assert not same(running.run(job("rte", method)), running.run(job("rte", method, seed=1)))


def test_a_weight_of_zero_is_no_method(job):
    plain = running.run(job("rte", "none"))
    for method in ("cosine", "spectrum-exponential", "isoscore-star"):
        other = running.run(job("rte", f"{method}:weight=0"))
        assert other["losses"] == plain["losses"]
        assert repr(other["geometry"]) == repr(plain["geometry"])


@pytest.mark.parametrize("on", ["output", "input", "cls", "hidden:0", "hidden:-1"])
def test_a_regulariser_lowers_its_penalty_on_any_tensor(on, job):
    def cosine(spec):
        network = trained(job("rte", spec, lr=1e-3, epochs=3))
        batch = network.train.batch(np.arange(20))
        network.network.eval()
        network.network.with_hidden = True
        rows = network.network(batch).tensors.on(on).detach().numpy()
        rows = rows[np.abs(rows).sum(axis=1) > 0]  # the row of [PAD] is zero
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return (rows @ rows.T).mean()

    assert cosine(f"cosine:weight=10,on={on}") < cosine(f"cosine:weight=-10,on={on}")


def trained(job):
    found = running.prepare(job)
    found.record()
    return found


@pytest.mark.parametrize("on", ["output", "cls"])
def test_departure_1_loss_of_a_run_has_the_penalty_of_the_output_matrix(on, job):
    """Of one batch, the loss is that of none plus (1/n^2) sum of cosines, written out.

    The paper's form, which a spec without `on` has, is that of the classification head's rows.
    """
    settings = {"epochs": 1, "batch_size": 48}
    spec = "cosine:weight=0.5" if on == "output" else "cosine:weight=0.5,on=cls"
    plain, penalised = (running.prepare(job("rte", s, **settings)) for s in ("none", spec))
    for one in (plain, penalised):
        one.network.dropout.p = 0.0
        one.network.body.eval()
        one.network.train = lambda mode=True: None
    passed = plain.network(plain.train.batch(np.arange(48)))
    rows = plain.network.head.weight if on == "output" else passed.features
    rows = rows.detach().double().numpy()
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    products = unit @ unit.T
    expected = 0.5 * (products.sum() - np.trace(products)) / len(rows) ** 2
    record = penalised.record()
    assert record["options"] == {"weight": 0.5, "on": on}
    difference = record["losses"][0] - plain.record()["losses"][0]
    assert difference == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_departure_1_recorded_isotropy_is_that_of_the_output_matrix(job):
    """I1 over both signs of each eigenvector of W'W, written out."""
    run = running.prepare(job("rte", "spectrum-polynomial"))
    found = run.record()["geometry"]["after"]["output"]
    W = run.network.output.detach().double().numpy()
    assert W.shape == (2, 16)
    directions = np.linalg.eigh(W.T @ W)[1]
    Z = np.exp(np.concatenate([W @ directions, -W @ directions], axis=1)).sum(axis=0)
    assert found["i1"] == pytest.approx(Z.min() / Z.max(), rel=1e-4)


def test_departure_7_records_have_explained_variance_to_20_centred_and_not():
    rows = np.random.default_rng(0).standard_normal((60, 24)).astype(np.float32) + 0.5
    found = running.measured(rows)
    for name, X in (
        ("explained_variance", rows - rows.mean(axis=0)),
        ("explained_variance_uncentered", rows),
    ):
        squares = np.linalg.svd(X.astype(np.float64), compute_uv=False) ** 2
        expected = np.cumsum(squares)[:20] / squares.sum()
        np.testing.assert_allclose(found[name], expected, atol=2e-6)


def test_records_have_i1_with_one_sign_of_each_eigenvector_too():
    row = np.array([[3.0, 4.0]], dtype=np.float32)  # exp(5) or exp(-5) along it, 1 across
    found = running.measured(row)
    assert found["i1"] == pytest.approx(np.exp(-10), rel=1e-5)
    assert found["i1_one_sign"] == pytest.approx(np.exp(-5), rel=1e-5)
    rows = np.random.default_rng(0).standard_normal((60, 24)).astype(np.float32) + 0.5
    expected = partition_isotropy(rows, signs="given")
    assert running.measured(rows)["i1_one_sign"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "kind", ["Bert", "DistilBert", "Roberta", "XLMRoberta", "MPNet", "Electra"]
)
def test_departure_8_the_models_own_head_is_that_of_transformers(kind):
    """Scores of its classifier with the same weights; and those of one linear layer on [CLS]."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24}
    sizes |= {"num_attention_heads": 2, "embedding_size": 16}
    if kind == "DistilBert":
        sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
    config = getattr(transformers, f"{kind}Config")(vocab_size=40, num_labels=3, **sizes)
    whole = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    for part in whole.modules():
        if isinstance(part, torch.nn.Linear):
            torch.nn.init.normal_(part.weight, std=0.5)
            torch.nn.init.normal_(part.bias)
    own = networks.Classifier(whole.base_model, 3, "model").eval()
    body = {id(part) for part in whole.base_model.modules()}
    pairs = zip(
        [p for p in whole.modules() if isinstance(p, torch.nn.Linear) and id(p) not in body],
        [p for p in own.modules() if isinstance(p, torch.nn.Linear) and id(p) not in body],
        strict=True,
    )
    for theirs, ours in pairs:
        ours.load_state_dict(theirs.state_dict())
    ids = torch.randint(5, 40, (4, 7))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch = networks.TrainingBatch(inputs, torch.zeros(4, dtype=torch.long), np.arange(4))
    with torch.no_grad():
        expected = whole(**inputs).logits
        torch.testing.assert_close(own(batch).scores, expected)
        linear = networks.Classifier(whole.base_model, 3, "linear").eval()
        linear.head.load_state_dict(own.head.state_dict())
        states = whole.base_model(**inputs).last_hidden_state[:, 0]
        torch.testing.assert_close(linear(batch).scores, own.head(states))
    assert own.dropout.p == next(
        part.p for part in reversed(list(whole.modules())) if isinstance(part, torch.nn.Dropout)
    )


def test_a_model_without_a_known_head_needs_a_linear_one():
    config = transformers.AlbertConfig(hidden_size=16, intermediate_size=8, num_attention_heads=2)
    body = transformers.AlbertModel(config)
    with pytest.raises(InputError, match="head must be 'linear' for a model of kind 'albert'"):
        networks.Classifier(body, 2, "model")
    assert networks.Classifier(body, 2, "linear").n_features == 16


def test_the_flow_learns_from_likelihood_alone_and_the_rest_from_the_task_alone():
    torch.manual_seed(0)
    calibration = methods.FlowCalibration(6)
    rows = torch.randn(16, 6, requires_grad=True)
    z = calibration(rows)
    z.square().sum().backward()
    assert rows.grad.abs().sum() > 0
    assert all(p.grad is None for p in calibration.parameters())
    rows.grad = None
    calibration.surprise.backward()
    assert rows.grad is None
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in calibration.parameters())
    expected, _ = calibration.flow(rows)
    torch.testing.assert_close(z, expected)


def test_a_flow_with_a_rate_of_zero_stays_as_it_started(job):
    flow = trained(job("rte", "flow:lr=0")).network.calibration.flow
    couplings = [step.coupling.shift[-1].weight for level in flow.levels for step in level]
    assert all(not weight.any() for weight in couplings)


def started(job):
    """A run that is ready to be trained."""
    run = running.prepare(job)
    run.start_head()
    return run


def test_the_head_after_a_flow_starts_from_the_labels(job):
    """The flow has no mean: at the body's learning rate the bias would never get there."""
    scored, classed = (started(job(task, "flow")) for task in ("stsb", "rte"))
    assert scored.network.head.bias.item() == pytest.approx(scored.data.train.labels.mean())
    share = classed.data.train.labels.mean()
    expected = [math.log(1 - share), math.log(share)]
    assert classed.network.head.bias.tolist() == pytest.approx(expected)
    assert started(job("stsb", "none")).network.head.bias.item() == 0
    assert started(job("stsb-siamese", "flow")).network.calibration.flow.d == 16


def test_an_output_layer_after_a_flow_starts_as_its_twin(job):
    """Pretrained weights would be of no use on whitened states; tied ones are let go."""
    plain, calibrated = (started(job("multi30k", s, model="t5")) for s in ("none", "flow"))
    batch = plain.evaluated.batch(np.arange(6))
    with networks.evaluating(plain.network), networks.evaluating(calibrated.network):
        one, two = plain.network(batch), calibrated.network(batch)
    torch.testing.assert_close(two.loss, one.loss, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(two.features, two.calibrated, rtol=0.1)
    input_, output = calibrated.network.input, calibrated.network.output
    assert input_.data_ptr() != output.data_ptr()
    torch.testing.assert_close(input_, plain.network.input, rtol=0, atol=0)
    texts = [run._generated(run.evaluated) for run in (plain, calibrated)]
    assert texts[0] == texts[1]


def test_the_isotropy_layer_is_trained_after_all_else_is_frozen(job):
    plain, layered = (trained(job("rte", s)) for s in ("none", "isotropy-layer"))
    mine = layered.network.state_dict()
    for name, weight in plain.network.state_dict().items():
        torch.testing.assert_close(mine[name], weight, rtol=0, atol=0)
    layer = layered.network.calibration.linear.weight
    assert not torch.equal(layer, torch.eye(16))


def test_the_isotropy_layer_raises_the_isoscore_of_what_the_head_gets(job):
    spec = "isotropy-layer:layer_lr=0.01,layer_batch=24,alpha=0.1"
    record = running.run(job("rte", spec))
    after = record["geometry"]["after"]
    assert after["calibrated"]["isoscore"] > after["features"]["isoscore"]
    finetuned = record["finetuned"]["geometry"]["features"]
    assert repr(finetuned) == repr(after["features"])


def test_the_head_variants_of_the_isotropy_layer_train_the_head(job):
    plain = trained(job("rte", "none"))
    for variant in ("joint", "alternating"):
        other = trained(job("rte", f"isotropy-layer:variant={variant}"))
        assert not torch.equal(other.network.head.weight, plain.network.head.weight)


def test_early_stopping_keeps_the_best_epoch(job):
    found = running.prepare(job("rte", "none", validation=0.3, epochs=6, patience=2, lr=1e-2))
    record = found.record()
    assert record["n_train"] + len(found.validation) == 48
    assert len(found.validation) == round(0.3 * 48)
    best = int(np.argmax(record["validation"])) + 1
    assert record["best_epoch"] == best
    assert len(record["validation"]) == min(6, best + 2)
    assert found._scores(found.validation)["score"] == record["validation"][best - 1]


def test_early_stopping_goes_on_from_a_score_that_is_not_defined(job, monkeypatch):
    found = running.prepare(job("stsb", "none", validation=0.3, epochs=3, patience=3))
    scores = iter([math.nan, 0.2, 0.1])
    monkeypatch.setattr(running.TrainingRun, "_scores", lambda run, items: {"score": next(scores)})
    history = running.History()
    found._fine_tune(history)
    assert history.best_epoch == 2


def test_the_polynomial_schedule_ends_at_its_last_rate(job, monkeypatch):
    made = []
    real = torch.optim.AdamW

    def kept(*args, **kwargs):
        made.append(real(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(torch.optim, "AdamW", kept)
    running.run(job("rte", "none", schedule="polynomial", lr=1e-3 / 4))
    assert made[0].param_groups[0]["lr"] == pytest.approx(1e-7)


def test_the_flow_of_an_encoder_decoder_sees_no_padding(job):
    found = running.prepare(job("multi30k", "flow", model="t5", max_target=12))
    network, seen = found.network.train(), []
    network.calibration.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    batch = found.train.batch(np.arange(8))
    n_predicted = int((batch.labels != -100).sum())
    assert n_predicted < batch.labels.numel()
    passed = network(batch)
    assert len(seen[0]) == len(passed.features) == len(passed.calibrated) == n_predicted
    network.body.generate(**batch.inputs, max_new_tokens=2, do_sample=False)
    assert len(seen[-1]) == 8


def test_models_that_records_cannot_tell_apart_are_refused(trial):
    with pytest.raises(InputError, match=r"differ in the last part.*got 'a/bert' and another"):
        dataclasses.replace(trial(), models=["a/bert", "b/bert"])


def test_a_diverged_run_is_recorded_as_what_it_is(trial):
    made = trial(methods=["none", "cosine:weight=1e300"])
    none, diverged = made.run()
    assert (none["status"], diverged["status"]) == ("finished", "diverged")
    assert math.isnan(diverged["score"])
    assert "epoch 1" in diverged["why"]
    assert same(made.run()[1], diverged)


def test_what_is_there_is_not_run_again(trial, monkeypatch):
    seen = []
    first = trial(methods=["none", "cosine"]).run(seen.append)
    assert len(seen) == 2
    monkeypatch.setattr(trials, "run", lambda job: pytest.fail("was run again"))
    second = trial(methods=["none", "cosine"]).run(seen.append)
    assert len(seen) == 2
    assert all(same(a, b) for a, b in zip(first, second, strict=True))


def test_a_killed_run_leaves_no_record(trial, tmp_path, monkeypatch):
    real = trials.run

    def killed(job):
        if job.method == "cosine":
            raise KeyboardInterrupt
        return real(job)

    monkeypatch.setattr(trials, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        trial(methods=["none", "cosine"]).run()
    monkeypatch.setattr(trials, "run", real)
    seen = []
    trial(methods=["none", "cosine"]).run(seen.append)
    assert [record["method"] for record in seen] == ["cosine"]
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 2


def test_records_of_other_settings_are_refused(trial):
    trial().run()
    with pytest.raises(InputError, match=r"lr 2e-05 \(now 0.001\).*Choose another --out"):
        trial(settings={"lr": 1e-3}).run()


def test_records_are_replaced_when_asked_and_files_of_others_never(trial, tmp_path, monkeypatch):
    real, seen = trials.run, []
    monkeypatch.setattr(trials, "run", lambda job: seen.append(job) or real(job))
    for overwrite in (False, False, True):
        trial(overwrite=overwrite).run()
    assert len(seen) == 2
    trial(overwrite=True, settings={"lr": 1e-3}).run()
    path = tmp_path / "runs.jsonl"
    assert [r["settings"]["lr"] for r in records.read_records(path)] == [1e-3]
    for text in ("{}", "[3]", "my own notes", path.read_text() + "mine", '{"task":3}\n'):
        path.write_text(text)
        with pytest.raises(InputError, match=r"line \d must be the record of a run.*Move the file"):
            trial(overwrite=True).run()
        assert path.read_text() == text
    with pytest.raises(InputError, match="--out must be a file, got the folder"):
        trial(out=tmp_path)


def test_records_in_results_are_read_and_say_what_they_regularised():
    """Those made when [CLS] was regularised by default are not taken for the paper's form."""
    files = sorted((Path(__file__).parents[2] / "results").glob("runs*.jsonl"))
    if not files:
        pytest.skip("there are no results beside the tests")
    for file in files:
        for record in records.read_records(file):
            method = methods.method_of(record["spec"])
            on = record["options"].get("on")
            if isinstance(method, methods.RegularizedMethod) and on is not None:
                usual = None if record["task"] not in ("multi30k", "cnndm") else method.on_generated
                assert method.regularizer(method.on or usual).options["on"] == on


def test_a_record_torn_by_a_kill_is_dropped_and_its_run_repeated(trial, tmp_path):
    first = trial(methods=["none", "isobn"]).run()
    path = tmp_path / "runs.jsonl"
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    for cut in (second + 3, second + 400, len(whole) - 2):
        path.write_bytes(whole[:cut])
        seen = []
        again = trial(methods=["none", "isobn"]).run(seen.append)
        assert [record["method"] for record in seen] == ["isobn"]
        assert all(same(a, b) for a, b in zip(first, again, strict=True))
        assert len(records.read_records(path)) == path.read_bytes().count(b"\n") == 2


def test_a_last_record_without_its_line_end_is_kept(trial, tmp_path):
    trial(methods=["none"]).run()
    path = tmp_path / "runs.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    seen = []
    trial(methods=["none", "isobn"]).run(seen.append)
    assert [record["method"] for record in seen] == ["isobn"]
    assert [record["method"] for record in records.read_records(path)] == ["none", "isobn"]


@pytest.mark.parametrize("what", ["data", "weights"])
def test_records_of_other_inputs_are_refused(what, trial, places, tmp_path):
    data, models = (shutil.copytree(place, tmp_path / place.name) for place in places)
    here = {"data": data, "folder": models}
    Trial(["rte"], ["bert"], ["none"], tmp_path / "runs.jsonl", 1, device="cpu", **here).run()
    changed = {"data": data / "rte" / "dev.tsv", "weights": models / "bert" / "model.safetensors"}
    content = bytearray(changed[what].read_bytes())
    content[-2] = content[-2] ^ 1
    changed[what].write_bytes(content)
    for cached in (jobs.read_once, jobs.data_checksum, jobs.weights_checksum):
        cached.cache_clear()
    with pytest.raises(InputError, match=f"records a run of .* with other {what}. Choose"):
        Trial(["rte"], ["bert"], ["none"], tmp_path / "runs.jsonl", 1, device="cpu", **here).run()


def test_a_search_is_refused_at_once_where_runs_without_one_are(trial):
    trial(methods=["none", "cosine"]).run()
    seen = []
    with pytest.raises(InputError, match=r"seed0 with cosine \(now cosine:weight=0.01\)"):
        trial(methods=["none", "cosine"], search=True).run(seen.append)
    assert not seen


def test_a_search_chooses_on_training_items_and_is_kept(trial, tmp_path):
    made = trial(methods=["none", "cosine"], search=True)
    found = made.run()
    kept = records.read_records(tmp_path / "runs.jsonl")
    searches = [record for record in kept if record["search"]]
    assert len(searches) == len(TrainingMethod.by_name["cosine"].searched)
    assert {r["n_train"] + r["n_evaluated"] for r in searches} == {24}
    best = max(r["score"] for r in searches)
    chosen = [r for r in searches if r["spec"] == found[1]["spec"]]
    assert chosen[0]["score"] == best
    assert found[1]["method"] == "cosine"
    assert found[1]["spec"] in table(summary(found))
    assert made.run() == found


def test_first_seeds_come_first(trial):
    seen = []
    trial(methods=["none", "isobn"], n_seeds=2).run(seen.append)
    assert [(r["seed"], r["method"]) for r in seen] == [
        (0, "none"), (0, "isobn"), (1, "none"), (1, "isobn"),
    ]  # fmt: skip


@pytest.mark.slow
def test_processes_give_the_same_records(trial, tmp_path):
    one = trial(methods=["none", "cosine"]).run()
    two = trial(methods=["none", "cosine"], jobs=2, out=tmp_path / "other").run()
    assert [r["metrics"] for r in one] == [r["metrics"] for r in two]
    assert [r["status"] for r in two] == ["finished", "finished"]


def test_half_precision_trains(job):
    for method in ("none", "cosine", "spectrum-polynomial", "flow", "isobn", "isoscore-star"):
        record = running.run(job("rte", method, precision="bf16", epochs=1))
        assert record["status"] == "finished"
        assert math.isfinite(record["losses"][0])


def test_a_lone_last_row_joins_the_batch_before(job):
    found = running.prepare(job("rte", "cosine", max_train=17))
    sizes = [len(rows) for rows in found.train.shuffled(8, np.random.default_rng(0))]
    assert sizes == [8, 9]


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("cosin", "method must be one of"),
        ("cosine:weight=nan", "weight must be a finite number, got nan"),
        ("cosine:wait=1", "options of cosine must be among weight, on, got 'wait'"),
        ("cosine:weight", "options of cosine must be name=value, got 'weight'"),
        ("cosine:on=middle", "on must be one of output, input, cls or hidden:K, got 'middle'"),
        ("isotropy-layer:variant=thawed", "variant must be one of"),
    ],
)
def test_wrong_methods_are_refused_before_anything_runs(spec, line, trial):
    with pytest.raises(InputError, match=line):
        trial(methods=[spec])


@pytest.mark.parametrize(
    ("task", "model", "spec", "line"),
    [
        ("rte", "bert", "cosine:on=hidden:9", "from hidden:0 to hidden:3, got 'hidden:9'"),
        ("stsb-siamese", "bert", "cosine:on=output", "one of input, cls, got 'output'"),
        ("multi30k", "t5", "cosine:on=cls", "one of output, input, got 'cls'"),
        ("multi30k", "t5", "isobn", "method must be one for tasks of generation, got 'isobn'"),
        (
            "stsb-siamese",
            "bert",
            "isotropy-layer:variant=alternating",
            "variant must be 'frozen' or 'joint' for a siamese network",
        ),
        ("multi30k", "bert", "none", "needs an encoder-decoder"),
        ("rte", "t5", "none", "needs an encoder with a .CLS. token|has none"),
    ],
)
def test_what_a_model_does_not_have_is_said_in_a_line(task, model, spec, line, job):
    with pytest.raises(InputError, match=line) as caught:
        running.run(job(task, spec, model=model))
    assert "\n" not in str(caught.value)


def test_settings_are_those_of_the_papers():
    glue = settings_for("rte", "distilbert-base-cased")
    assert (glue.lr, glue.batch_size, glue.epochs, glue.schedule) == (2e-5, 32, 3, "constant")
    assert settings_for("mrpc", "x").epochs == settings_for("wnli", "x").epochs == 5
    assert settings_for("rte", "FacebookAI/roberta-base").lr == 1e-5
    written = settings_for("cnndm", "t5")
    assert (written.lr, written.batch_size, written.epochs) == (3e-5, 48, 5)
    siamese = settings_for("stsb-siamese", "x")
    assert (siamese.lr, siamese.batch_size, siamese.epochs) == (7e-5, 32, 3)
    assert settings_for("rte", "x", epochs=7, lr=None).epochs == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [("epochs", 0), ("lr", math.nan), ("validation", 1.0), ("schedule", "cosine"), ("clip", 0.0)],
)
def test_wrong_settings_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} must"):
        TrainingSettings(**{name: value})


def test_a_rate_that_polynomial_decay_cannot_lower_is_refused():
    with pytest.raises(InputError, match=r"lr must be above 1e-07.*got 0"):
        TrainingSettings(schedule="polynomial", lr=0.0)


def test_options_of_methods_are_found_by_their_names():
    assert dataclasses.asdict(methods.method_of("none")) == {}
    assert dataclasses.asdict(methods.method_of("flow:lr=0.01")) == {"lr": 0.01}


def test_departure_5_the_isotropy_layer_and_isobn_have_one_set_of_defaults():
    from isotropy.losses import IsoBatchNorm, JointLoss
    from isotropy.repairs import LearnedLayer

    layer, method = LearnedLayer(), methods.method_of("isotropy-layer")
    assert (layer.learning_rate, layer.n_epochs, layer.batch_size, layer.alpha) == (
        method.layer_lr, method.layer_epochs, method.layer_batch, method.alpha,
    )  # fmt: skip
    assert layer.patience == TrainingSettings().patience
    assert (layer.alpha, layer.smoothing) == (JointLoss().alpha, JointLoss().smoothing)
    norm, isobn = IsoBatchNorm(3), methods.method_of("isobn")
    assert (norm.momentum, norm.eps) == (isobn.momentum, isobn.eps)


def test_departure_14_the_flow_learns_at_the_networks_rate():
    assert methods.method_of("flow").own_lr is None
    assert methods.method_of("flow:lr=0.001").own_lr == 1e-3


def test_a_search_keeps_the_options_that_were_given(trial):
    seen = []
    trial(methods=["cosine:on=cls"], search=True).run(seen.append)
    specs = [record["spec"] for record in seen if record["search"]]
    assert specs[0] == "cosine:on=cls,weight=0.01"
    assert seen[-1]["method"] == "cosine:on=cls"
    assert not [r for r in trial(methods=["isobn"], search=True).run() if r["search"]]


def test_departure_2_c1_is_searched_and_pushes_the_output_matrix(job):
    """Without c1 nothing pulls on the largest singular value; with a small one all of them fall."""
    grid = {
        tuple(methods.specs.parse(spec)[1].items())
        for spec in methods.searched_specs("spectrum-polynomial")
    }
    assert grid == {
        (("weight", weight), ("c1", c1)) for c1 in (0.01, 1.0, 10.0) for weight in (0.01, 1.0, 1e4)
    }
    given = methods.searched_specs("spectrum-exponential:c1=0.5,on=cls")
    assert given == [f"spectrum-exponential:c1=0.5,on=cls,weight={w}" for w in (0.01, 1.0, 1e4)]
    assert not methods.searched_specs("spectrum-exponential:c1=0.5,weight=2")
    settings = {"lr": 1e-3, "epochs": 8}
    for spec in ("spectrum-polynomial:weight=100", "spectrum-exponential:weight=100"):
        own, collapsed = (trained(job("rte", s, **settings)) for s in (spec, f"{spec},c1=0.001"))
        values = [torch.linalg.svdvals(run.network.output.detach()) for run in (own, collapsed)]
        assert values[1].max() < 0.1 * values[0].max()
        after = running.measured(collapsed.network.output.detach().numpy())
        assert after["i1"] > 0.99


def test_one_choice_for_all_tasks_is_that_of_the_tasks_searched_on(trial):
    seen = []
    made = trial(["cola", "rte"], ["none", "cosine"], search=True, search_on=["rte", "mrpc"])
    found = made.run(seen.append)
    searched = [record for record in seen if record["search"]]
    assert {record["task"] for record in searched} == {"rte", "mrpc"}
    scores = {}
    for record in searched:
        scores[record["spec"]] = scores.get(record["spec"], 0.0) + record["score"]
    chosen = {r["spec"] for r in found if r["method"] == "cosine"}
    assert chosen == {max(scores, key=scores.get)}
    assert made.run() == found
    with pytest.raises(InputError, match="TASK must be one of"):
        trial(search=True, search_on=["glue"])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_every_method_trains_on_a_gpu(precision, job):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for method in TrainingMethod.by_name:
        wanted = dataclasses.replace(job("rte", method, precision=precision), device="cuda")
        record = running.run(wanted)
        assert record["status"] == "finished"
        assert 0 < record["peak_memory_mb"] < 1000
