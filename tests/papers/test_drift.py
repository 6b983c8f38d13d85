"""The drift paper's experiments in their quick form, against numpy on the same tiny models."""

import csv
import gzip
import json
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("plotly")
pytest.importorskip("jinja2")

import torch
import transformers

from isotropy.papers import drift, drift_training, reproduce, results
from isotropy.papers.experiment import experiments, matching
from isotropy.papers.running import planned, settings_for

NAMES = ("isotropy", "word-similarity", "geometry", "projection", "rare", "zipf", "norms")
SMALL = {"width": 8, "length": 6, "heads": 2, "layers": 1, "batch": 3, "masked": 0.3}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("drift")


@pytest.fixture(scope="module")
def found(out):
    """What every experiment of the paper found, without pictures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "_write_pictures", lambda folder, figures: "")
        return reproduce("drift", out=out, quick=True)


@pytest.fixture(scope="module")
def W(found, out):
    """The embeddings of the tiny model, in float64."""
    model = transformers.AutoModel.from_pretrained(out / "quick" / "models" / "tiny-bert")
    return model.get_input_embeddings().weight.detach().double().numpy()


@pytest.fixture(scope="module")
def vocabulary(found, out):
    return (out / "quick" / "models" / "tiny-bert" / "vocab.txt").read_text("utf-8").split("\n")


def value(found, name, model="tiny-bert", **keys):
    (one,) = matching(found[f"drift/{name}"]["records"], model=model, **keys)
    return one["value"]


def isotropy(X):
    _, vectors = np.linalg.eigh(X.T @ X)
    sums = np.exp(np.concatenate([X @ vectors, -X @ vectors], axis=1)).sum(axis=0)
    return sums.min() / sums.max()


def without_first(X, uncentred=False):
    """Eq. 11 with one component, on centred rows or on the rows themselves."""
    centred = X - X.mean(axis=0)
    first = np.linalg.svd(centred)[2][0]
    return centred - np.outer((X if uncentred else centred) @ first, first)


def unit_rows(X):
    """Rows of length one, and zero rows, which have no direction."""
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    return X / np.where(lengths > 0, lengths, 1)


def scaled_centred(X):
    directed = X.any(axis=1)
    return X - np.outer(np.linalg.norm(X, axis=1), unit_rows(X)[directed].mean(axis=0))


TREATED = {
    drift.AS_IS: lambda X: X,
    drift.CENTRED: lambda X: X - X.mean(axis=0),
    drift.SCALED: scaled_centred,
    drift.PROCESSED: without_first,
}


def test_all_experiments_ran_and_are_on_the_page(found, out):
    assert set(found) == {f"drift/{name}" for name in (*NAMES, "training")}
    page = (out / "drift" / "index.html").read_text("utf-8")
    for name in (*NAMES, "training"):
        assert experiments()[f"drift/{name}"].title in page
        assert (out / "drift" / name / "README.md").is_file()
    assert "RoBERTa-large (paper)" in page


@pytest.mark.parametrize("setting", [drift.AS_IS, drift.CENTRED, drift.PROCESSED])
def test_isotropy_equals_the_formula(found, W, setting):
    expected = isotropy(TREATED[setting](W))
    keys = {"name": "isotropy", "setting": setting}
    assert value(found, **keys, measure="I") == pytest.approx(expected, rel=1e-5)
    assert value(found, **keys, measure="log10 I") == pytest.approx(math.log10(expected), abs=1e-5)
    one = value(found, **keys, measure="I, one sign")
    assert expected * (1 - 1e-5) <= one <= 1
    assert value(found, **keys, measure="log10 I, one sign") == pytest.approx(math.log10(one))


def test_the_drift_of_the_mean_equals_the_formula(found, W):
    norm, mean = np.linalg.norm(W, axis=1).mean(), W.mean(axis=0)
    top = np.linalg.eigh(W.T @ W)[1][:, -1]
    units = unit_rows(W[W.any(axis=1)])  # the row of padding is zero
    cosines = (units @ units.T)[~np.eye(len(units), dtype=bool)]
    length = np.linalg.norm(mean)
    expected = (norm, length, length / norm, abs(mean @ top) / length, cosines.mean())
    for name, figure in zip((*drift.NORMS, drift.ALIGNED, drift.COSINE), expected, strict=True):
        assert value(found, "isotropy", measure=name) == pytest.approx(figure, abs=1e-5)


def test_static_vectors_are_measured_too(found, out):
    X = np.load(out / "quick" / "models" / "tiny-glove" / "vectors.npy").astype(np.float64)
    keys = {"model": "tiny-glove", "setting": drift.AS_IS, "measure": "I"}
    assert value(found, "isotropy", **keys) == pytest.approx(isotropy(X), rel=1e-4)


@pytest.fixture(scope="module")
def pairs(found, out):
    """The rows of the words of every set, and the scores."""
    folder = out / "quick" / "data" / "wordsim"
    sets = {}
    for file, title in drift.SETS.items():
        with open(folder / f"{file}.tsv", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines, delimiter="\t"))
        words = [(row["word1"], row["word2"]) for row in rows]
        sets[title] = words, [float(row["score"]) for row in rows]
    return sets


@pytest.mark.parametrize("setting", TREATED)
@pytest.mark.parametrize("score", ["cosine", "inner product"])
def test_word_similarity_equals_the_formula(found, W, vocabulary, pairs, setting, score):
    X = TREATED[setting](W)
    correlations = []
    for title, (words, scores) in pairs.items():
        first, second = (X[[vocabulary.index(pair[side]) for pair in words]] for side in (0, 1))
        similarities = (first * second).sum(axis=1)
        if score == "cosine":
            similarities /= np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        expected = 100 * stats.pearsonr(similarities, scores).statistic
        keys = {"setting": setting, "data": title, "measure": score}
        assert value(found, "word-similarity", **keys) == pytest.approx(expected, abs=1e-3)
        correlations.append(expected)
    mean = value(found, "word-similarity", setting=setting, measure=drift.MEAN[score])
    assert mean == pytest.approx(np.mean(correlations), abs=1e-3)


def test_gains_are_differences_with_intervals(found):
    records = found["drift/word-similarity"]["records"]
    gains = [one for one in records if one["measure"] in drift.GAIN.values()]
    assert len(gains) == 5 * 3 * 2  # models, repairs, scores
    for one in gains:
        keys = {"model": one["model"], "measure": one["measure"].replace("gain", "mean r")}
        before, after = (
            value(found, "word-similarity", setting=setting, **keys)
            for setting in (drift.AS_IS, one["setting"])
        )
        assert one["value"] == pytest.approx(after - before)
        assert one["low"] <= one["high"]


def test_means_of_table_3_are_table_2():
    published = experiments()["drift/word-similarity"].published
    means = [one for one in published if "data" not in one and one["setting"] != drift.CENTRED]
    assert len(means) == 36
    for one in means:
        score = one["measure"].removeprefix("mean r, ")
        keys = {"model": one["model"], "setting": one["setting"], "measure": score}
        cells = [cell["value"] for cell in matching(published, **keys)]
        assert np.mean(cells) == pytest.approx(one["value"], abs=0.0051)


def test_singular_values_equal_those_of_numpy(found, W):
    for setting, X in ((drift.AS_IS, W), (drift.CENTRED, W - W.mean(axis=0))):
        values = np.linalg.svd(X, compute_uv=False)
        keys = {"name": "geometry", "setting": setting}
        assert value(found, **keys, measure=drift.FIRST) == pytest.approx(values[0], rel=1e-5)
        assert value(found, **keys, measure=drift.RATIO) == pytest.approx(
            values[0] / values[1], rel=1e-4
        )
        share = values[0] ** 2 / (values**2).sum()
        assert value(found, **keys, measure=drift.SHARE) == pytest.approx(share, rel=1e-4)


def test_a_sphere_that_moves_away_gets_one_large_singular_value(found):
    records = matching(found["drift/geometry"]["records"], measure=drift.RATIO)
    ratios = {one["shift"]: one["value"] for one in records if "shift" in one}
    assert sorted(ratios.values()) == list(ratios.values())
    far = max(ratios)  # sigma_1^2 is about n (1/3 + shift^2), the others n/3
    assert ratios[far] == pytest.approx(math.sqrt(1 + 3 * far**2), rel=0.15)
    assert ratios[0.0] < 1.3


@pytest.mark.parametrize("uncentred", [False, True])
def test_both_projections_equal_equation_11(found, W, uncentred):
    setting = f"{'un' if uncentred else ''}centred vector projected"
    expected = math.log10(isotropy(without_first(W, uncentred)))
    keys = {"setting": setting, "measure": "log10 I"}
    assert value(found, "projection", **keys) == pytest.approx(expected, abs=1e-5)


def test_cosines_with_unused_tokens_are_means_over_all_pairs(found, W, vocabulary):
    unused = np.array([token.startswith("[unused") for token in vocabulary])
    assert value(found, "rare", measure=drift.REFERENCE) == unused.sum() == 22
    units = unit_rows(W)
    bins = matching(found["drift/rare"]["records"], model="tiny-bert", measure=drift.BY_BIN)
    assert [one["first"] for one in bins] == [0, 8, 16, 24, 32, 40]
    for one in bins:
        inside = np.arange(one["first"], one["first"] + 8)
        inside = inside[~unused[inside] & W[inside].any(axis=1)]
        expected = np.mean([[a @ b for b in units[unused]] for a in units[inside]])
        assert one["value"] == pytest.approx(expected, abs=1e-6)
        assert one["n"] == len(inside)
    trend = stats.spearmanr([one["first"] for one in bins], [one["value"] for one in bins])
    assert value(found, "rare", measure=drift.TREND) == pytest.approx(trend.statistic)


def test_a_vocabulary_without_unused_tokens_has_its_last_ones(out, found):
    settings = settings_for(experiments()["drift/rare"], out, None, None, None, None, True)
    findings = drift.rare(settings, "tiny-glove")
    assert matching(findings.records, measure=drift.REFERENCE)[0]["value"] == 8
    assert findings.notes == ["tiny-glove: the reference is its last 8 tokens."]


def test_coverage_counts_the_most_frequent_units(found, out):
    with gzip.open(
        out / "quick/data/cnndm/validation_subset.jsonl.gz", "rt", encoding="utf-8"
    ) as file:
        texts = [json.loads(line)["article"] for line in file]
    assert len(texts) == 24
    counts = Counter(word for text in texts for word in text.split()).most_common()
    total = sum(n for _, n in counts)
    for share, name in drift.NEEDED.items():
        needed = next(
            k for k in range(1, len(counts) + 1) if sum(n for _, n in counts[:k]) >= share * total
        )
        for unit in ("tokens", "words"):  # every word of the generated text is one token
            assert value(found, "zipf", unit=unit, measure=name) == needed
    assert value(found, "zipf", unit="tokens", measure=drift.DISTINCT) == len(counts)


def test_vectors_without_a_tokenizer_have_no_tokens_to_count(out, found):
    settings = settings_for(experiments()["drift/zipf"], out, None, None, None, None, True)
    assert drift.zipf(settings, "tiny-glove").notes == [
        "tiny-glove has no tokenizer, so it is left out."
    ]


def test_norms_go_with_frequency_as_scipy_says(found, W, vocabulary):
    zipf_frequency = pytest.importorskip("wordfreq").zipf_frequency
    often = np.array([zipf_frequency(token.removeprefix("##"), "en") for token in vocabulary])
    lengths = np.linalg.norm(W, axis=1)
    expected = stats.spearmanr(often[often > 0], lengths[often > 0]).statistic
    assert value(found, "norms", measure=drift.FREQUENCY) == pytest.approx(expected, abs=1e-6)


def test_densities_of_norms_integrate_to_one(found):
    rows = matching(found["drift/norms"]["records"], model="tiny-bert", measure=drift.DENSITY)
    step = math.log10(rows[1]["norm"] / rows[0]["norm"])
    assert sum(one["value"] for one in rows) * step == pytest.approx(1)


def test_the_correlation_over_the_papers_models_is_the_published_one(found):
    rows = matching(found["drift/norms"]["records"], measure="mean norm and I")
    ours, theirs = (next(one for one in rows if word in one["over"]) for word in ("our", "table 1"))
    assert theirs["value"] == pytest.approx(-0.61, abs=0.01)  # of rounded figures
    models = dict.fromkeys(
        one["model"] for one in found["drift/norms"]["records"] if "model" in one
    )
    columns = [
        [value(found, "norms", model=model, measure=name) for model in models]
        for name in ("mean norm", "I, one sign")
    ]
    assert ours["value"] == pytest.approx(np.corrcoef(columns)[0, 1])


# The training study


def test_training_is_measured_at_the_steps_asked_for(found):
    records = found["drift/training"]["records"]
    assert {one["model"] for one in records} == set(drift.TRAINED)
    steps = {one["step"] for one in records if one["measure"] == drift.LOSS}
    assert steps == {0, 3, 6}
    assert {one["when"]: one["step"] for one in records if "when" in one} == {"start": 0, "end": 6}


@pytest.mark.parametrize("model", drift.TRAINED)
def test_every_non_target_moves_along_minus_h(found, model):
    for step in (0, 3, 6):
        for name in drift.ALONG:
            assert value(found, "training", model=model, step=step, measure=name) == 1
        error = value(found, "training", model=model, step=step, measure=drift.ERROR)
        assert error < 100 * np.finfo(np.float32).eps


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_regularised_training_keeps_the_mean_direction_short(found, objective):
    plain, regularised = (
        value(found, "training", model=model, step=6, measure=drift.COSINE)
        for model in (objective, f"{objective} regularised")
    )
    assert regularised < plain


def test_training_learns_and_drifts(found):
    for model in drift.TRAINED:
        losses = [
            value(found, "training", model=model, step=step, measure=drift.LOSS) for step in (0, 6)
        ]
        assert losses[1] < losses[0]
        moved = value(found, "training", model=model, step=6, measure=drift.MOVED)
        assert moved > 0 == value(found, "training", model=model, step=0, measure=drift.MOVED)


def test_an_experiment_that_trains_its_models_takes_no_others(out, found):
    settings = settings_for(experiments()["drift/training"], out, None, None, None, None, True)
    assert planned(settings, ["another-model"])[0] == list(drift.TRAINED)
    assert "--model" not in found["drift/training"]["command"]


def test_appendix_a_holds_on_any_matrix():
    X = np.random.default_rng(0).standard_normal((40, 6)) + 0.3
    units = X / np.linalg.norm(X, axis=1, keepdims=True)
    pairs = sum(units[i] @ units[j] for i in range(40) for j in range(40) if i != j) / 40**2
    found = drift_training.identity(torch.from_numpy(X))
    for side in drift.SIDES:
        assert found[side] == pytest.approx(pairs, rel=1e-12)
    assert found[drift.APART[0]] < 1e-14
    assert found[drift.APART[1]] < 1e-12
    penalty = drift_training.cosine_regularizer(torch.from_numpy(X))
    assert float(penalty) == pytest.approx(pairs, rel=1e-12)


def test_along_h_counts_rows_that_move_another_way():
    W = torch.eye(3, dtype=torch.float64).requires_grad_()
    h = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert drift_training.along_h(W, h, torch.tensor(1)) == (1.0, 1.0)


@pytest.mark.parametrize("causal", [True, False])
def test_only_a_masked_model_sees_what_comes_later(causal):
    torch.manual_seed(0)
    model = drift_training.LanguageModel(20, causal, SMALL, "cpu")
    text = np.arange(20)
    batch = drift_training.draw(text, causal, SMALL, np.random.default_rng(0), "cpu")
    everywhere = torch.ones_like(batch.predicted)
    changed = batch.ids.clone()
    changed[:, -1] = 19
    before, after = (
        model.outputs(drift_training.Batch(ids, everywhere, None)).reshape(3, 6, 8)[:, :-1]
        for ids in (batch.ids, changed)
    )
    assert torch.allclose(before, after, atol=1e-6) == causal


def test_targets_are_the_next_or_the_hidden_tokens():
    text = np.arange(2, 40)
    random = np.random.default_rng(1)
    batch = drift_training.draw(text, True, SMALL, random, "cpu")
    assert torch.equal(batch.targets, batch.ids.flatten() + 1)
    batch = drift_training.draw(text, False, SMALL, random, "cpu")
    hidden = batch.ids == 1
    assert torch.equal(hidden, batch.predicted)
    first = batch.ids.where(~hidden, 0) - torch.arange(6)  # a window counts upwards
    starts = torch.tensor([row[~mask][0] for row, mask in zip(first, hidden, strict=True)])
    expected = starts[:, None] + torch.arange(6)
    assert torch.equal(batch.targets, expected[hidden])


def test_unused_tokens_never_occur(out, found):
    settings = settings_for(experiments()["drift/training"], out, None, None, None, None, True)
    corpus = drift_training.read_corpus(settings)
    unused = corpus.part("unused", 1000)
    assert unused.stop - unused.start == 6
    assert max(corpus.train.max(), corpus.validation.max()) < unused.start
    counts = np.bincount(corpus.train, minlength=corpus.n_tokens)
    frequent, rare = (counts[corpus.part(name, 1000)] for name in ("frequent", "rare"))
    assert frequent.min() >= rare.max()
