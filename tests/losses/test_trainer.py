"""The Trainer with regularisers, on small models."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from isotropy.errors import InputError

from .. import tiny_models

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
trainer_module = importlib.import_module("isotropy.losses.trainer")
regularizers_module = importlib.import_module("isotropy.losses.regularizers")
methods = importlib.import_module("isotropy.trial.methods")
Regularizer, Tensors = regularizers_module.Regularizer, regularizers_module.Tensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.bert(tmp_path_factory.mktemp("trainer") / "bert")


@pytest.fixture
def model(folder):
    """A classifier of three classes without dropout."""
    torch.manual_seed(0)
    return transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )


def items(n=16, length=7):
    random = np.random.default_rng(0)
    mask = np.ones((n, length), dtype=int)
    mask[::2, 4:] = 0
    ids = random.integers(5, 25, (n, length)) * mask
    labels = random.integers(0, 3, n)
    names = ("input_ids", "attention_mask", "labels")
    return [dict(zip(names, row, strict=True)) for row in zip(ids, mask, labels, strict=True)]


def made(model, tmp_path, regularizers, kind=None, **arguments):
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        **{
            "per_device_train_batch_size": 8,
            "num_train_epochs": 1,
            "logging_steps": 1,
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "save_strategy": "no",
            "learning_rate": 1e-3,
            **arguments,
        },
    )
    kind = kind or trainer_module.IsotropyTrainer
    options = {"regularizers": regularizers} if kind is not transformers.Trainer else {}
    return kind(model, arguments, train_dataset=items(), eval_dataset=items(), **options)


def batch(rows):
    return {name: torch.tensor(np.array([row[name] for row in rows])) for name in rows[0]}


def cosines(rows):
    """(1/n^2) sum over pairs of different rows, in float64."""
    rows = rows.detach().double().numpy()
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    products = unit @ unit.T
    return (products.sum() - np.trace(products)) / len(rows) ** 2


@pytest.mark.parametrize("on", ["output", "input", "cls", "hidden:1"])
def test_the_loss_gains_the_weighted_penalty_of_the_tensor(on, model, tmp_path):
    trainer = made(model, tmp_path, {"c": {"what": "cosine", "weight": 0.7, "on": on}})
    inputs = batch(items())
    model.train()
    plain = model(**inputs, output_hidden_states=True)
    tensors = {
        "output": model.classifier.weight,
        "input": model.bert.embeddings.word_embeddings.weight,
        "cls": plain.hidden_states[-1][:, 0],
        "hidden:1": plain.hidden_states[1][inputs["attention_mask"].bool()],
    }
    if on == "input":  # of [PAD] it has a row of zeros, which is no direction
        with torch.no_grad():
            tensors["input"][0] = 1.0
        plain = model(**inputs)
    expected = 0.7 * cosines(tensors[on])
    found = (trainer.compute_loss(model, inputs) - plain.loss).detach()
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_several_regularisers_train_and_are_logged(model, tmp_path):
    trainer = made(
        model,
        tmp_path,
        {
            "narrow": Regularizer("cosine", weight=1.0, on="cls"),
            "decay": {"what": "spectrum-polynomial", "weight": 1e-3, "on": "input"},
            "even": {"what": "isoscore-star", "weight": -0.1, "on": "hidden:-1", "zeta": 0.3},
            "own": {"what": lambda X: X.square().mean(), "weight": 0.5, "on": "output"},
        },
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 2
    for name in ("narrow", "decay", "even", "own"):
        for metric in ("penalty", "isoscore", "mean_cosine"):
            assert all(np.isfinite(entry[f"{name}/{metric}"]) for entry in logged)
    assert logged[0]["even/penalty"] < 0


def test_a_regulariser_moves_its_metric(folder, tmp_path):
    found = []
    for weight in (5.0, -5.0):
        torch.manual_seed(0)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, num_labels=3
        )
        regularizers = {"c": {"what": "cosine", "weight": weight, "on": "cls"}}
        trainer = made(model, tmp_path, regularizers, num_train_epochs=5)
        trainer.train()
        logged = [e["c/mean_cosine"] for e in trainer.state.log_history if "c/mean_cosine" in e]
        found.append(logged[-1])
    assert found[0] < found[1]


def test_without_regularisers_it_is_the_trainer(folder, tmp_path):
    found = []
    for kind in (transformers.Trainer, trainer_module.IsotropyTrainer):
        torch.manual_seed(0)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, num_labels=3
        )
        trainer = made(model, tmp_path, {}, kind)
        trainer.train()
        found.append([e["loss"] for e in trainer.state.log_history if "loss" in e])
    assert found[0] == found[1]


def test_accumulated_batches_have_the_mean_penalty(folder, tmp_path):
    """What the penalty adds to a step does not depend on how many batches make one."""
    added = []
    for size, accumulated in ((16, 1), (8, 2)):
        steps = []
        for weight in (0.0, 3.0):
            torch.manual_seed(0)
            model = transformers.AutoModelForSequenceClassification.from_pretrained(
                folder, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
            )
            trainer = made(
                model,
                tmp_path,
                {"w": {"what": "cosine", "weight": weight, "on": "output"}},
                per_device_train_batch_size=size,
                gradient_accumulation_steps=accumulated,
                optim="sgd",
                max_grad_norm=0.0,
            )
            trainer.train()
            steps.append(model.classifier.weight.detach())
        added.append(steps[1] - steps[0])
    assert added[0].abs().max() > 1e-4
    torch.testing.assert_close(added[0], added[1], rtol=1e-3, atol=1e-7)


def test_evaluation_has_no_regularisers(model, tmp_path):
    trainer = made(model, tmp_path, {"c": {"what": "cosine", "weight": 1e3, "on": "cls"}})
    plain = made(model, tmp_path, {}, transformers.Trainer)
    assert trainer.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]


def test_an_encoder_decoder_has_output_embeddings_and_decoder_states(tmp_path):
    folder = tiny_models.t5(tmp_path / "t5")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    trainer = made(
        model,
        tmp_path / "out",
        {
            "words": {"what": "cosine", "weight": 1.0, "on": "output"},
            "states": {"what": "cosine", "weight": 1.0, "on": "hidden:-1"},
        },
    )
    inputs = batch(items(4))
    labels = inputs["input_ids"].clone()
    labels[:, 5:] = -100
    model.train()
    model.config.dropout_rate = 0.0
    assert torch.isfinite(trainer.compute_loss(model, inputs | {"labels": labels}))
    trainer = made(model, tmp_path / "out", {"c": {"what": "cosine", "on": "cls"}})
    with pytest.raises(InputError, match=r"one of output, input, hidden:K, got 'cls'"):
        trainer.compute_loss(model, inputs | {"labels": labels})


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"what": "cosine", "weight": float("nan")}, "weight must be a finite number, got nan"),
        ({"what": "cosine", "weight": True}, "weight must be a finite number, got True"),
        ({"what": "sine"}, "what must be one of 'cosine'"),
        ({"what": "cosine", "on": "pooler"}, "on must be one of output, input, cls or hidden:K"),
        ({"what": "cosine", "c1": 2.0}, "options of cosine must be left out, got 'c1'"),
        ({"weight": 1.0}, "must be a Regularizer, or a mapping with what, weight and on"),
    ],
)
def test_wrong_regularisers_are_refused_in_a_line(given, line, model, tmp_path):
    with pytest.raises(InputError, match=line) as caught:
        made(model, tmp_path, {"r": given})
    assert "\n" not in str(caught.value)


def test_a_tensor_that_the_model_does_not_have_is_said(folder, tmp_path):
    bare = Tensors(cls=torch.ones(3, 2))
    with pytest.raises(InputError, match="one of cls, got 'output'"):
        Regularizer("cosine", on="output")(bare)


def test_departure_4_an_output_matrix_of_one_row_has_no_cosine_penalty():
    penalty = Regularizer("cosine")(Tensors(output=torch.tensor([[3.0, 4.0]])))
    assert float(penalty) == pytest.approx(0, abs=1e-6)


def test_departure_1_and_5_regularizers_have_the_papers_tensor_and_one_set_of_defaults():
    for what in ("cosine", "spectrum-polynomial", "spectrum-exponential"):
        assert Regularizer(what).options == methods.method_of(what).regularizer(None).options
        assert Regularizer(what).on == "output"
    assert Regularizer("isoscore-star").on == "cls"
    constants = Regularizer("spectrum-exponential").options
    assert constants == {"weight": 1.0, "on": "output", "c1": None, "c2": 0.1, "gamma": 0.5}


def test_the_first_target_of_the_spectrum_is_the_largest_value_found():
    torch.manual_seed(0)
    W = torch.randn(12, 5, dtype=torch.float64)
    sigma = np.linalg.svd(W.numpy(), compute_uv=False)
    ranks = np.arange(1, 6)
    polynomial = Regularizer("spectrum-polynomial", on="output", gamma=-0.5)
    expected = ((sigma - sigma[0] * ranks**-0.5) ** 2).sum()
    assert float(polynomial(Tensors(output=W))) == pytest.approx(expected)
    exponential = Regularizer("spectrum-exponential", on="output", c2=0.3, gamma=1.0)
    expected = ((sigma - sigma[0] * np.exp(-0.3 * (ranks - 1))) ** 2).sum()
    assert float(exponential(Tensors(output=W))) == pytest.approx(expected)
    batch = Regularizer("spectrum-polynomial", on="cls", c1=2.0)
    expected = ((sigma / np.sqrt(12) - 2.0 * ranks**-0.5) ** 2).sum()
    assert float(batch(Tensors(cls=W))) == pytest.approx(expected)
