"""The fine-tuning paper on a tiny model: what it reports, computed again from the saved weights."""

from __future__ import annotations

import collections
import csv
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

pytest.importorskip("plotly")
pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from isotropy.papers import experiments, finetuning, reproduce, results, running
from isotropy.repairs import ClusterRemoval

NAMES = ("settings", "least-directions", "layers", "frequency", "directions", "pooling")
CLOSE = 0.1  # of Spearman x 100: two near ties among 40 pairs may swap
LOG_CLOSE = 1e-4  # of log10 I, from float32 states of norm 4


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("papers")


@pytest.fixture(scope="module")
def found(out):
    """All results, without pictures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "write_images", lambda *args, **kwargs: None)  # no browser
        return reproduce("finetuning", out=out, quick=True, device="cpu")


@pytest.fixture(scope="module")
def pairs(found, out):
    """(sentence1, sentence2, score) of STS-B dev."""
    with open(out / "quick/data/stsb/dev.tsv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [(row["sentence1"], row["sentence2"], float(row["score"])) for row in rows]


@pytest.fixture(scope="module")
def folders(found, out):
    """Folders by state."""
    tuned = out / "finetuning" / "tuned"
    names = [f"tiny-bert--stsb-siamese--none--seed{seed}" for seed in (0, 1)]
    return {
        "pre-trained": [out / "quick/models/tiny-bert"],
        "tuned": [tuned / name for name in names],
    }


@pytest.fixture(scope="module")
def states(folders, pairs):
    """{folder: {text: states of shape (layers, tokens, width)}}, texts one by one."""
    texts = dict.fromkeys(text for one, two, _ in pairs for text in (one, two))
    return {folder: hidden(folder, texts) for versions in folders.values() for folder in versions}


def hidden(folder, texts):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return {
            text: torch.cat(
                model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)[
                    "hidden_states"
                ]
            ).numpy()
            for text in texts
        }


def tokens_of(states, layer=-1):
    """Rows of all tokens but [CLS] and [SEP]."""
    return np.concatenate([rows[layer, 1:-1] for rows in states.values()]).astype(np.float64)


def log10_isotropy(X):
    """From the definition, over both signs."""
    _, vectors = np.linalg.eigh(X.T @ X)
    products = X @ vectors
    F = np.concatenate([np.exp(products).sum(axis=0), np.exp(-products).sum(axis=0)])
    return float(np.log10(F.min() / F.max()))


def spearman(pairs, vectors):
    one, two = (np.array([vectors[pair[side]] for pair in pairs]) for side in (0, 1))
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    gold = [score for _, _, score in pairs]
    return 100 * scipy.stats.spearmanr((one * two).sum(1) / norms, gold).statistic


def rounding(pairs, vectors):
    """How far float32 states move Spearman x 100: cosines of a tiny random model nearly tie."""
    random = np.random.default_rng(0)
    eps = 8 * np.finfo(np.float32).eps
    moved = [
        {text: row * (1 + eps * random.standard_normal(row.shape)) for text, row in vectors.items()}
        for _ in range(20)
    ]
    own = spearman(pairs, vectors)
    return 2 * max(abs(spearman(pairs, other) - own) for other in moved)


def means(states, move=lambda rows: rows):
    return {text: move(rows[-1, 1:-1].astype(np.float64)).mean(0) for text, rows in states.items()}


def without(X, n, least=False):
    """A function that centres rows as X, and removes n of the principal directions of X."""
    mean = X.mean(0)
    _, vectors = np.linalg.eigh(np.cov(X.T))
    removed = vectors[:, :n] if least else vectors[:, len(vectors) - n :]
    return lambda rows: (rows - mean) - (rows - mean) @ removed @ removed.T


def value(result, **keys):
    rows = [one for one in result["records"] if keys.items() <= one.items()]
    assert len(rows) == 1, keys
    return rows[0]["value"]


def test_every_experiment_has_a_result(found):
    assert list(found) == [f"finetuning/{name}" for name in NAMES]
    for result in found.values():
        assert result["records"]
        assert not result["missing"]
        for one in result["records"]:
            assert one["n"] > 0
            assert one["seeds"] == 2 if one.get("state") == "tuned" else one.get("seeds", 1) <= 2


def test_models_are_tuned_once_and_differ_by_seed(folders, found, out):
    (base,), (first, second) = folders["pre-trained"], folders["tuned"]
    weights = [
        transformers.AutoModel.from_pretrained(f).state_dict() for f in (base, first, second)
    ]
    name = "encoder.layer.1.output.dense.weight"
    assert not torch.equal(weights[0][name], weights[1][name])
    assert not torch.equal(weights[1][name], weights[2][name])
    written = (first / "model.safetensors").stat().st_mtime_ns
    experiment = experiments()["finetuning/pooling"]
    settings = running.settings_for(experiment, out, None, None, "cpu", None, True)
    assert finetuning.tuned(settings, "tiny-bert") == [str(first), str(second)]
    assert (first / "model.safetensors").stat().st_mtime_ns == written


def test_a_tuned_model_among_the_models_is_used_as_it_is(found, out, tmp_path):
    experiment = experiments()["finetuning/settings"]
    settings = running.settings_for(experiment, tmp_path, None, None, "cpu", 1, False)
    named = tmp_path / "models" / "mine--stsb-siamese--none--seed0"
    named.mkdir(parents=True)
    settings = replace(settings, models=tmp_path / "models")
    assert finetuning.states(settings, "mine") == {"pre-trained": ["mine"], "tuned": [str(named)]}
    assert finetuning.states(settings, "gte-small") == {"as it comes": ["gte-small"]}
    assert not (tmp_path / "finetuning").exists()


@pytest.mark.parametrize("state", ["pre-trained", "tuned"])
def test_settings_are_those_of_table_1(state, found, folders, states, pairs):
    result = found["finetuning/settings"]
    expected = collections.defaultdict(list)
    for folder in folders[state]:
        X = tokens_of(states[folder])
        moves = {"baseline": lambda rows: rows, "zero-mean": without(X, 0), "global": without(X, 2)}
        for name, move in moves.items():
            expected[name, "log10 I"].append(log10_isotropy(move(X)))
            expected[name, "Spearman x 100"].append(spearman(pairs, means(states[folder], move)))
    for (name, measure), values in expected.items():
        close = LOG_CLOSE if measure == "log10 I" else CLOSE
        got = value(result, model="tiny-bert", state=state, setting=name, measure=measure)
        assert got == pytest.approx(np.mean(values), abs=close)


def test_cluster_settings_are_means_over_clusterings(found, folders, states):
    """Each cluster is centred, or also freed of two directions: k-means is the repair's own."""
    X = tokens_of(states[folders["pre-trained"][0]]).astype(np.float32)
    for name, n in (("cluster zero-mean", 0), ("cluster", 2)):
        expected = []
        for seed in (0, 1):
            repair = ClusterRemoval(3, 2, random_state=seed).fit(X)
            centres = repair.cluster_centers_
            labels = ((X[:, None] - centres) ** 2).sum(2).argmin(1)
            parts = [X[labels == k].astype(np.float64) for k in range(len(centres))]
            expected.append(log10_isotropy(np.concatenate([without(p, n)(p) for p in parts])))
        got = value(
            found["finetuning/settings"],
            model="tiny-bert", state="pre-trained", setting=name, measure="log10 I",
        )  # fmt: skip
        assert got == pytest.approx(np.mean(expected), abs=LOG_CLOSE)


def test_one_sign_is_never_less_isotropic_than_both(found):
    for name in ("settings", "least-directions", "layers"):
        records = found[f"finetuning/{name}"]["records"]
        both = [one for one in records if one["measure"] == "log10 I"]
        assert both
        for one in both:
            keys = {k: one[k] for k in ("model", "state", "setting", "layer", "rows") if k in one}
            other = value(found[f"finetuning/{name}"], measure="log10 I, one sign", **keys)
            assert one["value"] <= other + 1e-9 <= 1e-9


def test_least_directions_are_a_share_of_the_width(found, folders, states, pairs):
    """100 and 700 of 768 are 2 and 15 of 16."""
    for state in ("pre-trained", "tuned"):
        for label, n in (("global, 100 least", 2), ("global, 700 least", 15)):
            moves = [
                (states[folder], without(tokens_of(states[folder]), n, least=True))
                for folder in folders[state]
            ]
            keys = {"model": "tiny-bert", "state": state, "setting": label}
            got = value(found["finetuning/least-directions"], measure="log10 I", **keys)
            expected = [log10_isotropy(move(tokens_of(rows))) for rows, move in moves]
            assert got == pytest.approx(np.mean(expected), abs=LOG_CLOSE)
            if n == 15:  # one direction is left: cosines are 1 or -1, and rounding breaks the ties
                continue
            got = value(found["finetuning/least-directions"], measure="Spearman x 100", **keys)
            expected = [spearman(pairs, means(rows, move)) for rows, move in moves]
            assert got == pytest.approx(np.mean(expected), abs=CLOSE)


def test_layers_are_of_all_tokens_and_of_cls(out, folders, states):
    """Of all sentences here; the quick form of the experiment takes fewer."""
    experiment = experiments()["finetuning/layers"]
    settings = running.settings_for(experiment, out, None, None, "cpu", 2, True)
    settings = replace(settings, options={**settings.options, "max_texts": None})
    records = experiment.measure(settings, "tiny-bert").records
    for state, versions in folders.items():
        for layer in (0, 1, 2):
            for kind in ("all tokens", "[CLS]"):
                expected = []
                for folder in versions:
                    X = tokens_of(states[folder], layer)
                    if kind == "[CLS]":
                        X = np.array([rows[layer, 0] for rows in states[folder].values()])
                    expected.append(log10_isotropy(X.astype(np.float64)))
                keys = {"state": state, "layer": layer, "rows": kind, "measure": "log10 I"}
                got = value({"records": records}, **keys)
                assert got == pytest.approx(np.mean(expected), abs=LOG_CLOSE)


def test_frequency_is_that_of_the_words_in_wikitext(found, folders, states, out):
    with gzip.open(out / "quick/data/wikitext2/train.txt.gz", "rt", encoding="utf-8") as file:
        counts = collections.Counter(file.read().split())
    rows, words = [], []
    for text, layers in states[folders["pre-trained"][0]].items():
        rows += list(layers[-1, 1:-1])
        words += re.findall(r"\w+|[^\w\s]", text.lower())
    X = np.array(rows, dtype=np.float64)
    _, vectors = np.linalg.eigh(np.cov(X.T))
    along = X @ vectors[:, ::-1]
    strengths = [abs(scipy.stats.spearmanr(one, [counts[w] for w in words])[0]) for one in along.T]
    result = found["finetuning/frequency"]
    keys = {"model": "tiny-bert", "state": "pre-trained"}
    first = value(result, measure=finetuning.FIRST, **keys)
    assert first == pytest.approx(strengths[0], abs=1e-3)
    assert value(result, measure=finetuning.TEN, **keys) == pytest.approx(
        max(strengths[:10]), abs=1e-3
    )


def test_directions_are_removed_one_by_one(found, folders, states):
    result = found["finetuning/directions"]
    for state, versions in folders.items():
        counts = collections.defaultdict(list)
        for folder in versions:
            X = tokens_of(states[folder])
            logs = [log10_isotropy(without(X, n)(X)) for n in range(16)]
            for least in (0.1, 0.5, 0.9):
                first = next((n for n, log in enumerate(logs) if log >= np.log10(least)), 16)
                counts[f"directions to remove for I >= {least:g}"].append(first)
            shares = np.cumsum(np.linalg.eigvalsh(np.cov(X.T))[::-1]) / np.trace(np.cov(X.T))
            for share in (0.5, 0.9):
                n_held = int((shares < share).sum()) + 1
                counts[f"directions with {share:.0%} of the variance"].append(n_held)
        for measure, values in counts.items():
            got = value(result, model="tiny-bert", state=state, measure=measure)
            assert got == np.mean(values)


def test_pooling_is_of_cls_of_tokens_and_of_words(found, folders, states, pairs, out):
    result = found["finetuning/pooling"]
    ways = {
        "[CLS]": lambda rows: rows[-1, 0],
        "mean": lambda rows: rows[-1, 1:-1].mean(0),
        "mean with special tokens": lambda rows: rows[-1].mean(0),
    }
    for state, versions in folders.items():
        for way, pool in ways.items():
            vectors = [
                {text: pool(rows.astype(np.float64)) for text, rows in states[folder].items()}
                for folder in versions
            ]
            expected = np.mean([spearman(pairs, each) for each in vectors])
            close = CLOSE + max(rounding(pairs, each) for each in vectors)
            got = value(result, model="tiny-bert", state=state, pooling=way)
            assert got == pytest.approx(expected, abs=close)
    glove = out / "quick/models/tiny-glove"
    words = (glove / "words.txt").read_text(encoding="utf-8").split()
    rows = dict(zip(words, np.load(glove / "vectors.npy"), strict=True))
    vectors = {
        text: np.mean([rows[word] for word in re.findall(r"\w+", text)], axis=0)
        for pair in pairs
        for text in pair[:2]
    }
    got = value(result, model="tiny-glove", pooling="mean of word vectors")
    assert got == pytest.approx(spearman(pairs, vectors), abs=CLOSE)


def test_the_score_of_the_tuned_model_is_the_one_of_its_training(found, out):
    """With special tokens, as in training."""
    lines = (out / "finetuning/tuned.jsonl").read_text(encoding="utf-8").splitlines()
    scores = [100 * json.loads(line)["score"] for line in lines]
    got = value(
        found["finetuning/pooling"],
        model="tiny-bert", state="tuned", pooling="mean with special tokens",
    )  # fmt: skip
    assert len(scores) == 2
    assert got == pytest.approx(np.mean(scores), abs=CLOSE)


def test_published_figures_and_settings_are_the_papers():
    table_1, table_2 = (experiments()[f"finetuning/{name}"] for name in NAMES[:2])
    assert (len(table_1.published), len(table_2.published)) == (40, 20)
    published = {"records": list(table_1.published)}
    keys = {"model": "RoBERTa", "state": "tuned", "setting": "cluster"}
    assert value(published, measure="Spearman x 100", **keys) == 60.96
    assert value(published, measure="log10 I, one sign", **keys) == np.log10(0.28)
    keys = {"model": "BERT", "setting": "cluster, 700 least"}
    published = {"records": list(table_2.published)}
    assert value(published, measure="Spearman x 100", **keys) == 75.10
    assert value(published, measure="log10 I, one sign", **keys) == np.log10(0.16)
    for name in NAMES:
        experiment = experiments()[f"finetuning/{name}"]
        assert experiment.seeds == 3
        assert experiment.options["training"] == {"epochs": 3, "batch_size": 32, "lr": 7e-5}
    assert (table_1.options["n_clusters"], table_1.options["n_components"]) == (27, 12)


def test_tables_show_ours_above_the_papers(found, out):
    page = Path(out / "finetuning/settings/README.md").read_text(encoding="utf-8")
    ours, papers = page.index("| tiny-bert | tuned |"), page.index("| BERT (paper) | tuned | 84.41")
    assert ours < papers
