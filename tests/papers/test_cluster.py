"""The experiments of the cluster-based paper on tiny models, recomputed."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import subspace_angles
from scipy.special import logsumexp
from scipy.stats import spearmanr
from sklearn.metrics import matthews_corrcoef

pytest.importorskip("plotly")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from isotropy import AllButTheTop, ClusterRemoval, Encoder
from isotropy.papers import cluster, cluster_mlp, cluster_words, results
from isotropy.papers.cluster_shared import BASELINE, CLUSTER, GLOBAL
from isotropy.papers.experiment import experiments, matching
from isotropy.papers.running import reproduce
from isotropy.papers.settings import BOTH_SIGNS, ONE_SIGN, Settings
from isotropy.tasks import Classification


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def found(folder):
    """The records of every experiment, by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "write_images", lambda *args, **kwargs: None)  # no browser
        made = reproduce("cluster", out=folder, quick=True)
    return {name.removeprefix("cluster/"): one["records"] for name, one in made.items()}


def value(records, **keys):
    (one,) = matching(records, **keys)
    return one["value"]


def table(folder, path):
    with open(folder / "quick/data" / path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def sentences(rows):
    """Every distinct sentence of pairs."""
    return list(dict.fromkeys(row[key] for row in rows for key in ("sentence1", "sentence2")))


@pytest.fixture(scope="module")
def dev(folder, found):
    return sentences(table(folder, "stsb/dev.tsv"))


def encoder(folder, model="tiny-bert", **options):
    return Encoder(folder / "quick/models" / model, **{"pool": "tokens"} | options)


@pytest.fixture(scope="module")
def rows(folder, dev):
    return encoder(folder).encode(dev).astype(np.float64)


def log10_isotropy(X):
    """log10 of the least over the largest sum of exp(u.w), over both signs of eigenvectors."""
    _, vectors = np.linalg.eigh(X.T @ X)
    logs = np.concatenate([logsumexp(sign * X @ vectors, axis=0) for sign in (1, -1)])
    return (logs.min() - logs.max()) / math.log(10)


def locally_centred(X, n_clusters, seed):
    centers = ClusterRemoval(n_clusters, 0, random_state=seed).fit(X).cluster_centers_
    labels = ((X[:, None] - centers) ** 2).sum(-1).argmin(1)
    out = X.copy()
    for label in np.unique(labels):
        out[labels == label] -= X[labels == label].mean(0)
    return out


def test_all_twelve_experiments_ran(folder, found):
    assert {name for name in experiments() if name.startswith("cluster/")} == {
        f"cluster/{name}" for name in found
    }
    assert len(found) == 12
    for name in found:
        result = json.loads((folder / "cluster" / name / "result.json").read_text())
        assert result["records"], name
        assert all(one["model"] for one in result["records"]), name


def test_layers_are_measured_on_all_tokens_in_both_conventions(folder, found, dev):
    for layer in range(3):
        X = encoder(folder, layer=layer).encode(dev).astype(np.float64)
        keys = {"model": "tiny-bert", "layer": layer}
        (both,) = matching(found["layers"], measure=BOTH_SIGNS, **keys)
        assert both["n"] == len(X)
        assert both["value"] == pytest.approx(log10_isotropy(X), abs=1e-4)
        assert both["value"] <= value(found["layers"], measure=ONE_SIGN, **keys) <= 0


def test_the_papers_figures_are_those_it_prints():
    known = experiments()
    layers = known["cluster/layers"].published
    assert len(layers) == 39
    assert value(layers, model="GPT-2", layer=12) == pytest.approx(math.log10(5.0e-174))
    assert value(layers, model="RoBERTa", layer=6) == pytest.approx(math.log10(3.1e-10))
    local = known["cluster/local"].published
    assert value(local, model="BERT", clusters=20) == pytest.approx(math.log10(0.262))
    sts = known["cluster/sts"].published
    assert value(sts, model="GPT-2", setting=CLUSTER, data="stsb") == 62.3
    assert value(sts, model="BERT", measure="clusters") == 27
    tense = known["cluster/tense"].published
    assert value(tense, model="RoBERTa", verbs=cluster_words.AFTER, measure=ONE_SIGN) == (
        pytest.approx(math.log10(0.73))
    )
    classified = matching(known["cluster/classification"].published, setting=CLUSTER)
    assert [one["value"] for one in classified] == [56.5, 40.7, 82.5, 72.4, 61.0, 66.4, 63.2]


def test_local_centring_is_that_of_each_cluster(found, rows):
    keys = {"model": "tiny-bert", "measure": BOTH_SIGNS}
    assert value(found["local"], clusters="none", **keys) == pytest.approx(
        log10_isotropy(rows), abs=1e-4
    )
    assert value(found["local"], clusters=1, **keys) == pytest.approx(
        log10_isotropy(rows - rows.mean(0)), abs=1e-4
    )
    over = [log10_isotropy(locally_centred(rows, 3, seed)) for seed in (0, 1)]
    (one,) = matching(found["local"], clusters=3, **keys)
    assert one["value"] == pytest.approx(np.mean(over), abs=1e-3)
    assert one["seeds"] == 2


def test_the_view_shows_cosines_and_shares_of_variance(folder, found, dev):
    X = encoder(folder, "tiny-llama").encode(dev).astype(np.float64)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    n = len(unit)
    cosine = ((unit.sum(0) ** 2).sum() - n) / (n * (n - 1))
    keys = {"model": "tiny-llama", "tokens": "as they are"}
    view = found["local-view"]
    assert value(view, measure="mean cosine", **keys) == pytest.approx(cosine, abs=1e-4)
    squares = np.linalg.svd(X - X.mean(0), compute_uv=False) ** 2
    measure = "variance along the first component"
    assert value(view, measure=measure, **keys) == pytest.approx(
        squares[0] / squares.sum(), rel=1e-4
    )
    assert (folder / "cluster/local-view/locally-centred-tiny-llama.html").is_file()


def similarities(folder, pairs, repair=None):
    """Cosines of mean-pooled tokens of pairs, repaired by a fit on all of them."""
    texts = sentences(pairs)
    tokens = encoder(folder, pool="mean").tokens(texts)
    X = tokens.rows if repair is None else repair.fit_transform(tokens.rows)
    parts = np.split(X.astype(np.float64), tokens.starts[1:-1])
    means = dict(zip(texts, (part.mean(0) for part in parts), strict=True))
    u, v = (np.array([means[row[f"sentence{i}"]] for row in pairs]) for i in (1, 2))
    cosines = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    return cosines, np.array([float(row["score"]) for row in pairs])


def spearman(folder, pairs, repair=None):
    return 100 * spearmanr(*similarities(folder, pairs, repair)).statistic


def test_sts_scores_are_those_of_the_tuned_repairs(folder, found):
    records = matching(found["sts"], model="tiny-bert")
    pairs = table(folder, "stsb/dev.tsv")
    grid = {(k, n): spearman(folder, pairs, ClusterRemoval(k, n)) for k in (2, 3) for n in (1, 3)}
    best = max(grid, key=grid.get)
    tuned = tuple(int(value(records, measure=name)) for name in cluster.TUNED)
    assert tuned[:2] == best
    assert value(records, data="stsb dev (tuned on)", setting=CLUSTER) == pytest.approx(grid[best])
    test = table(folder, "stsb/test.tsv")
    of_set = {"data": "stsb", "measure": cluster.SPEARMAN}
    assert value(records, setting=BASELINE, **of_set) == pytest.approx(spearman(folder, test))
    assert value(records, setting=GLOBAL, **of_set) == pytest.approx(
        spearman(folder, test, AllButTheTop(tuned[2]))
    )
    over = [spearman(folder, test, ClusterRemoval(*best, random_state=seed)) for seed in (0, 1)]
    assert value(records, setting=CLUSTER, **of_set) == pytest.approx(np.mean(over))


def test_sets_with_subsets_are_scored_in_both_ways(folder, found):
    pairs = table(folder, "sts12/test.tsv")
    cosines, scores = similarities(folder, pairs)
    subsets = np.array([row["subset"] for row in pairs])
    mean = np.mean([
        spearmanr(cosines[subsets == one], scores[subsets == one]).statistic
        for one in np.unique(subsets)
    ])  # fmt: skip
    keys = {"model": "tiny-bert", "setting": BASELINE, "data": "sts12"}
    assert value(found["sts"], measure=cluster.SPEARMAN, **keys) == pytest.approx(100 * mean)
    every = 100 * spearmanr(cosines, scores).statistic
    assert value(found["sts"], measure=cluster.SPEARMAN_ALL, **keys) == pytest.approx(every)


def test_table_6_is_of_all_tokens(folder, found):
    for name in ("stsb", "sts12", "sts14"):
        X = encoder(folder).encode(sentences(table(folder, f"{name}/test.tsv")))
        X = X.astype(np.float64)
        keys = {"model": "tiny-bert", "data": name, "measure": BOTH_SIGNS}
        records = matching(found["isotropy"], **keys)
        assert {one["n"] for one in records} == {len(X)}
        assert value(records, setting=BASELINE) == pytest.approx(log10_isotropy(X), abs=1e-4)
        centred = X - X.mean(0)
        axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
        without = centred - centred @ axes.T @ axes
        assert value(records, setting=GLOBAL) == pytest.approx(log10_isotropy(without), abs=1e-3)


def test_overlap_is_the_mean_squared_cosine_of_principal_angles():
    random = np.random.default_rng(0)
    a, b = (np.linalg.qr(random.standard_normal((20, 5)))[0].T for _ in range(2))
    expected = np.mean(np.cos(subspace_angles(a.T, b.T)) ** 2)
    assert cluster.overlap(a, b) == pytest.approx(expected)
    assert cluster.overlap(a, a) == pytest.approx(1)
    assert cluster.overlap(a[:2], a[2:]) == pytest.approx(0, abs=1e-12)


def test_no_direction_removed_is_centring(found, rows):
    records = matching(found["directions"], model="tiny-bert")
    assert value(records, measure="expected by chance") == 2 / 16
    keys = {"measure": BOTH_SIGNS, "directions": 0}
    assert value(records, setting=GLOBAL, **keys) == pytest.approx(
        log10_isotropy(rows - rows.mean(0)), abs=1e-4
    )
    assert value(records, setting=CLUSTER, **keys) == pytest.approx(
        log10_isotropy(locally_centred(rows, 3, 0)), abs=1e-3
    )


def test_neighbours_are_counted_by_group():
    texts = np.array([0, 1, 2, 3, 3])  # two groups of two texts; text 3 has two rows
    rows = np.array([[0.0], [1.0], [5.0], [5.1], [9.0]])
    share, chance = cluster_words.same_group(rows, texts, 2, 1)
    # nearest in another text: 0-1, 1-0, 2-3, 3-2, 3-2
    assert share == 1.0
    assert chance == pytest.approx(np.mean([1 / 4, 1 / 4, 2 / 4, 1 / 3, 1 / 3]))
    crossed = np.array([[0.0], [5.0], [0.5], [5.5], [9.0]])  # the nearest are of the other group
    assert cluster_words.same_group(crossed, texts, 2, 1)[0] == 0.0


def test_groups_have_the_same_counts_and_shares_are_shares(folder, found):
    path = folder / "quick/data/structure/sentences.tsv.gz"
    groups = cluster_words._groups(path, 3)
    assert groups
    assert {len(group) for group in groups} == {3}
    assert all(len({len(text.split()) for text in group}) == 1 for group in groups)
    assert all(0 <= one["value"] <= 1 for one in found["structure"])
    chances = matching(found["structure"], measure=cluster_words.CHANCE)
    assert {one["token"] for one in chances} == {".", "the"}


def test_verb_distances_are_means_of_pairs_then_of_verbs():
    random = np.random.default_rng(0)
    spans = [None] * 12
    verbs = [
        cluster_words.Occurrence("see", sense, form, span)
        for sense, form, span in zip("112211221122", "abababababab", spans, strict=True)
    ]
    verbs += [cluster_words.Occurrence("go", "1", "a", None)] * 3  # has no pairs of all kinds
    X = random.standard_normal((15, 4))
    expected = {}
    for name, (form, sense) in cluster_words.CONDITIONS.items():
        expected[name] = np.mean([
            np.linalg.norm(X[i] - X[j])
            for i in range(12)
            for j in range(i)
            if (verbs[i].form == verbs[j].form) == form
            and (verbs[i].sense == verbs[j].sense) == sense
        ])  # fmt: skip
    assert cluster_words.verb_distances(X, verbs) == pytest.approx(expected)


def test_tense_has_all_measures_before_and_after(found):
    records = matching(found["tense"], model="tiny-bert")
    for verbs in (cluster_words.BEFORE, cluster_words.AFTER):
        for measure in (*cluster_words.CONDITIONS, BOTH_SIGNS, ONE_SIGN):
            assert math.isfinite(value(records, verbs=verbs, measure=measure))


def words_of(dev):
    return [word for text in dev for word in text.split()]


def test_frequencies_correlate_with_the_first_component(folder, found, dev, rows):
    words = words_of(dev)  # each is a token of the tiny model
    assert len(words) == len(rows)
    with gzip.open(folder / "quick/data/wikitext2/train.txt.gz", "rt") as file:
        corpus = file.read().split()
    counts = {word: corpus.count(word) for word in set(words)}
    centred = rows - rows.mean(0)
    first = centred @ np.linalg.svd(centred, full_matrices=False)[2][0]
    expected = abs(spearmanr(first, [counts[word] for word in words]).statistic)
    keys = {"model": "tiny-bert", "setting": BASELINE}
    assert value(found["frequency"], measure=cluster_words.FIRST, **keys) == pytest.approx(
        expected, abs=1e-3
    )
    for one in matching(found["frequency"], measure=cluster_words.TEN):
        same = {key: one[key] for key in ("model", "setting")}
        assert 1 >= one["value"] >= value(found["frequency"], measure=cluster_words.FIRST, **same)


def test_tokens_know_their_piece_and_word(folder, found):
    class Found:
        def encoder(self, model):
            return encoder(folder, pool="mean")

    rows, tokens = cluster_words.read_tokens(Found(), "", ["The cat, old.", "a dog"])
    assert len(rows) == len(tokens) == 7
    assert [token.word for token in tokens] == ["the", "cat", ",", "old", ".", "a", "dog"]
    assert [token.piece for token in tokens] == [token.word for token in tokens]
    assert [token.text for token in tokens] == [0, 0, 0, 0, 0, 1, 1]


def test_composition_counts_punctuation_and_stop_words(found, dev):
    words = words_of(dev)
    punctuation = np.mean([not re.search(r"\w", word) for word in words])
    records = matching(found["composition"], model="tiny-bert")
    assert value(records, measure="tokens: punctuation") == pytest.approx(punctuation)
    stop = np.mean([word in ("the", "a", "in", "on", "of", "and", "found") for word in words])
    assert value(records, measure="tokens: stop words") == pytest.approx(stop)
    either = value(records, measure="mostly either")
    assert 1 >= either >= value(records, measure="mostly punctuation") >= 0


def items_of(seed=0, n=24, shift=0.0):
    """Items of two to three tokens whose first token tells the label."""
    random = np.random.default_rng(seed)
    labels = random.integers(2, size=n)
    rows = random.standard_normal((3 * n, 4)).astype(np.float32)
    rows[::3, 0] += 6 * labels - 3
    places = np.arange(3 * n).reshape(n, 3)
    places[::2, 2] = -1
    folds = [(np.arange(16), np.arange(16, n))]
    return cluster_mlp.Items(rows + np.float32(shift), places, labels, "accuracy", folds)


OPTIONS = {"n_hidden": 5, "learning_rate": 0.05, "batch_size": 16, "n_epochs": 3}


def test_the_network_is_trained_as_written_out():
    """Adam on the mean cross-entropy of one hidden layer, all training items in one batch."""
    items = items_of()
    train, asked = items.folds[0]
    padded = np.vstack([items.rows, np.zeros((1, 4))]).astype(np.float64)
    X = padded[items.places].reshape(len(items.places), -1)
    assert (X[::2, 8:] == 0).all()  # padding
    parts = cluster_mlp.network(12, 5, 0).state_dict().values()
    weights = [part.numpy().astype(np.float64) for part in parts]
    moments = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
    expected = []
    for step in range(1, 4):
        A, a, B, b = weights
        before = X[train] @ A.T + a
        hidden = np.maximum(before, 0)
        said = 1 / (1 + np.exp(-(hidden @ B.T + b)[:, 0]))
        error = (said - items.labels[train])[:, None] / len(train)
        back = (error @ B) * (before > 0)
        gradients = [back.T @ X[train], back.sum(0), error.T @ hidden, error.sum(0)]
        for i, gradient in enumerate(gradients):
            first, second = moments[i]
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            moments[i] = (first, second)
            mean, square = first / (1 - 0.9**step), second / (1 - 0.999**step)
            weights[i] = weights[i] - 0.05 * mean / (np.sqrt(square) + 1e-7)
        A, a, B, b = weights
        logits = (np.maximum(X[asked] @ A.T + a, 0) @ B.T + b)[:, 0]
        assert np.abs(logits).min() > 1e-4  # rounding decides none of them
        expected.append((logits > 0).astype(int).tolist())
    found = cluster_mlp.predictions(items, 0, OPTIONS, "cpu")
    assert [one.tolist() for one in found] == expected


def test_a_shift_of_all_tokens_is_not_undone():
    """As in the paper; the pooled task centres its features, so that it sees no difference."""
    options = OPTIONS | {"n_epochs": 1, "learning_rate": 1e-3}
    plain, shifted = items_of(), items_of(shift=30.0)
    said = [cluster_mlp.predictions(one, 0, options, "cpu")[0].tolist() for one in (plain, shifted)]
    assert said[0] != said[1]
    task = Classification([str(i) for i in range(24)], plain.labels)
    pooled = [one.rows.reshape(24, 3, 4).mean(1) for one in (plain, shifted)]
    scores = [task.score(one, np.arange(16, 24), np.arange(16)).value for one in pooled]
    assert scores[0] == scores[1]


def test_a_repair_is_fitted_on_training_items_and_padding_stays_zero():
    items = items_of()
    used = np.unique(items.places[:16])
    used = used[used >= 0]
    centre = items.rows[used].mean(0)
    found = items.repaired(GLOBAL, (1, 0, 0), 0)
    assert np.allclose(found.rows, items.rows - centre, atol=1e-5)
    assert (found.places == items.places).all()
    assert items.repaired(BASELINE, (1, 0, 0), 0) is items


def test_cola_is_scored_by_matthews_and_the_others_by_accuracy():
    items = items_of()
    predicted, asked = np.array([0, 1, 1, 0, 1, 0, 0, 1]), items.folds[0][1]
    true = items.labels[asked]
    assert items.score(predicted, asked) == pytest.approx(100 * np.mean(predicted == true))
    other = replace(items, metric="matthews")
    assert other.score(predicted, asked) == pytest.approx(100 * matthews_corrcoef(true, predicted))


def test_classification_scores_are_shares_of_dev_items(found):
    records = found["classification"]
    sets = ("rte", "cola", "sst2", "mrpc", "wic", "boolq")
    assert {one["data"] for one in records} == {*sets, "mean"}
    for setting in (BASELINE, GLOBAL, CLUSTER):
        of_setting = matching(records, setting=setting)
        for name in ("rte", "mrpc", "wic"):  # two seeds, 40 items in dev: steps of 1.25
            score = value(of_setting, data=name, measure=cluster_mlp.BEST)
            assert score / 1.25 == pytest.approx(round(score / 1.25), abs=1e-6)
        for measure in (cluster_mlp.BEST, cluster_mlp.LAST):
            each = [value(of_setting, data=name, measure=measure) for name in sets]
            mean = value(of_setting, data="mean", measure=measure)
            assert mean == pytest.approx(np.mean(each))
        best, last = (
            value(of_setting, data="mean", measure=one)
            for one in (cluster_mlp.BEST, cluster_mlp.LAST)
        )
        assert best >= last


def test_convergence_ends_where_classification_does(found):
    for data in ("rte", "boolq"):
        for setting in (BASELINE, CLUSTER):
            keys = {"data": data, "setting": setting}
            epochs = matching(found["convergence"], **keys)
            assert [one["epoch"] for one in epochs] == [1, 2]
            last = value(found["classification"], measure=cluster_mlp.LAST, **keys)
            assert epochs[-1]["value"] == pytest.approx(last)


def test_boolq_is_divided_into_folds_of_whole_passages(folder, found):
    experiment = experiments()["cluster/classification"]
    options = {**experiment.options, **experiment.quick}
    data, models = folder / "quick/data", folder / "quick/models"
    settings = Settings(experiment, folder / "x/y", data, models, "cpu", 5, options=options)
    items = cluster_mlp.read_items(settings, "tiny-bert", "boolq")
    asked = np.concatenate([one for _, one in items.folds])
    assert sorted(asked) == list(range(40))
    assert all(not set(train) & set(one) for train, one in items.folds)
