"""Every score against an independent reference."""

import warnings

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn import metrics
from sklearn.linear_model import LogisticRegression

from isotropy import threads
from isotropy.errors import InputError
from isotropy.models.texts import Span
from isotropy.tasks import (
    MLP,
    STS,
    Classification,
    Clustering,
    Logistic,
    PairClassification,
    Retrieval,
    WordInContext,
    WordSimilarity,
    retrieval,
    scorers,
)

random = np.random.default_rng(5)
PAIRS = [(f"left {i}", f"right {i}") for i in range(60)]
SCORES = random.integers(0, 11, 60) / 2
SUBSETS = random.choice(["a", "b", "c"], 60)


def vectors(task, n_features=6, seed=1):
    return np.random.default_rng(seed).standard_normal((len(task.texts), n_features)) + 0.3


def cosines(task, X):
    u, v = X[task.members[:, 0]], X[task.members[:, 1]]
    return (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)


def by_subset(correlation, predicted, weighted):
    parts = [np.equal(SUBSETS, name) for name in "abc"]
    found = [correlation(predicted[part], SCORES[part])[0] for part in parts]
    return np.average(found, weights=[part.sum() for part in parts] if weighted else None)


def test_sts_equals_scipy():
    task = STS(PAIRS, SCORES)
    X = vectors(task)
    outcome = task.score(X)
    assert outcome.value == pytest.approx(spearmanr(cosines(task, X), SCORES)[0])
    assert outcome.metrics["pearson"] == pytest.approx(pearsonr(cosines(task, X), SCORES)[0])
    some = [40, 3, 17, 5, 29]
    assert task.score(X, some).value == pytest.approx(
        spearmanr(cosines(task, X)[some], SCORES[some])[0]
    )


@pytest.mark.parametrize("combine", ["mean", "wmean"])
def test_sts_over_subsets_equals_scipy(combine):
    task = STS(PAIRS, SCORES, SUBSETS, combine=combine)
    X = vectors(task)
    outcome, weighted = task.score(X), combine == "wmean"
    assert outcome.value == pytest.approx(by_subset(spearmanr, cosines(task, X), weighted))
    expected = by_subset(pearsonr, cosines(task, X), weighted)
    assert outcome.metrics["pearson"] == pytest.approx(expected)


def test_the_metric_says_how_subsets_are_combined():
    names = {"all": "", "mean": " (mean of subsets)", "wmean": " (weighted mean of subsets)"}
    for combine, how in names.items():
        task = STS(PAIRS, SCORES, SUBSETS, combine=combine)
        assert task.metric == f"spearman{how}"
        assert task.subset(np.flatnonzero(SUBSETS == "a")).metric == "spearman"
        assert STS(PAIRS, SCORES, combine=combine).metric == "spearman"
    assert WordSimilarity(PAIRS, SCORES, SUBSETS).metric == "pearson (mean of sets)"
    assert WordSimilarity(PAIRS, SCORES).metric == "pearson"


def test_cosine_of_zeros_is_zero_and_of_equal_rows_exactly_one():
    task = STS(PAIRS, SCORES)
    X = vectors(task)
    X[task.members[0, 0]] = 0
    X[task.members[1:, 0]] = X[task.members[1:, 1]]
    predicted = task.score(X).predicted
    assert predicted[0] == 0
    assert (predicted[1:] == 1).all()


def test_word_similarity_is_pearsons_mean_over_sets():
    task = WordSimilarity(PAIRS, SCORES, SUBSETS)
    X = vectors(task)
    outcome = task.score(X)
    assert outcome.value == pytest.approx(by_subset(pearsonr, cosines(task, X), False))
    expected = by_subset(spearmanr, cosines(task, X), False)
    assert outcome.metrics["spearman"] == pytest.approx(expected)
    products = (X[task.members[:, 0]] * X[task.members[:, 1]]).sum(1)
    dot = WordSimilarity(PAIRS, SCORES, SUBSETS, similarity="dot").score(X)
    assert dot.value == pytest.approx(by_subset(pearsonr, products, False))


def test_words_that_are_not_known_are_left_out_and_counted():
    pairs = [("a", "b"), ("b", "c"), ("a", "z"), ("b", "a"), ("a", "y"), ("c", "b"), ("z", "y")]
    task = WordSimilarity(pairs, range(7), ["s", "s", "s", "t", "t", "t", "t"])
    assert task.groups.tolist() == [0, 1, 2, 0, 3, 1, 4]
    known = task.known({"a", "b", "c"})
    assert known.n_listed == {"s": 3, "t": 4}
    assert known.n_kept == {"s": 2, "t": 2}
    assert known.scores.tolist() == [0, 1, 3, 5]
    assert known.texts == ["a", "b", "c"]
    assert task.n_kept == task.n_listed
    few = task.known({"a", "b", "z"})  # one pair of t is too few for a correlation
    assert few.n_kept == {"s": 2, "t": 0}
    with pytest.raises(InputError, match="vocabulary must hold both words of two pairs of 'words'"):
        task.known({"x"})


QUERIES = [f"query {i}" for i in range(8)]
DOCUMENTS = [f"document {i}" for i in range(150)]
JUDGED = [(q, int(d), g) for q in range(7) for d in random.choice(150, 12, False) for g in [q % 4]]
JUDGED += [(q, (17 * q) % 150, 3) for q in range(6)] + [(6, 3, -1), (2, 4, 1)]


def reference_ranking(cosine):
    return sorted(range(len(cosine)), key=lambda d: (-cosine[d], d))


def reference(task, X, n_queries):
    """nDCG@10, recalls and MRR@10 of each query with a relevant document, written out."""
    n_own = len(task.texts) - len(DOCUMENTS)
    found = []
    for query in range(n_queries):
        gains = {d: g for q, d, g in JUDGED if q == query and g > 0}
        if not gains:
            continue
        x = X[task.texts.index(QUERIES[query])]
        D = X[n_own:]
        norms = np.linalg.norm(D, axis=1) * np.linalg.norm(x)
        ranked = reference_ranking(D @ x / np.where(norms > 0, norms, 1))
        dcg = sum(gains.get(d, 0) / np.log2(i + 2) for i, d in enumerate(ranked[:10]))
        best = sorted(gains.values(), reverse=True)[:10]
        ideal = sum(gain / np.log2(i + 2) for i, gain in enumerate(best))
        recalls = [len(gains.keys() & set(ranked[:k])) / len(gains) for k in (10, 100)]
        hits = [1 / (i + 1) for i, d in enumerate(ranked[:10]) if d in gains]
        found.append([dcg / ideal, *recalls, hits[0] if hits else 0])
    return np.array(found)


@pytest.mark.parametrize("blocks", [(1024, 4096), (3, 40), (1, 101)])
def test_retrieval_equals_the_formulas_written_out(blocks, monkeypatch):
    monkeypatch.setattr(retrieval, "QUERIES_AT_ONCE", blocks[0])
    monkeypatch.setattr(scorers, "DOCUMENTS_AT_ONCE", blocks[1])
    task = Retrieval(QUERIES, DOCUMENTS, JUDGED)
    X = vectors(task, 3)
    X[-40:] = 0  # equal cosines in the middle of every ranking
    expected = reference(task, X, 8)
    outcome = task.score(X)
    assert task.n_items == len(expected) == 7
    assert task.n_unlabelled == 1
    np.testing.assert_allclose(outcome.per_item, expected[:, 0], rtol=1e-12)
    assert outcome.value == pytest.approx(expected[:, 0].mean())
    found = [outcome.metrics[name] for name in ("recall@10", "recall@100", "mrr@10")]
    assert found == pytest.approx(expected[:, 1:].mean(0))
    some = task.subset([4, 2])
    rows = np.concatenate([X[task.members[[4, 2], 0]], X[7:]])
    np.testing.assert_allclose(some.score(rows).per_item, expected[[4, 2], 0], rtol=1e-12)


def test_retrieval_agrees_with_scikit_learn_where_that_averages_no_ties():
    task = Retrieval(QUERIES, DOCUMENTS, JUDGED)
    X = vectors(task)
    for number, query in enumerate(task.members[:, 0]):
        cosine = X[7:] @ X[query] / np.linalg.norm(X[7:], axis=1)
        gains = task.relevance[[number]].toarray()
        expected = metrics.ndcg_score(gains, cosine[None], k=10)
        assert task.score(X, [number]).value == pytest.approx(expected)


def test_equal_documents_keep_their_order():
    task = Retrieval(["q", "r"], ["same", "other", "same"], [(0, 2, 1), (1, 0, 1)])
    assert task.texts == ["q", "r", "same", "other"]
    assert task.background.tolist() == [2, 3]
    found = task.score([[1.0, 0], [1, 0], [1, 0], [0, 1]])
    assert found.per_item.tolist() == pytest.approx([1 / np.log2(3), 1])


@pytest.mark.parametrize("n", [1, 5, 12, 40])
def test_highest_takes_the_first_of_equal_scores(n):
    scores = random.integers(0, 6, (30, 40)) / 6
    for row, found in zip(scores, scorers.highest(scores, n), strict=True):
        assert found.tolist() == reference_ranking(row)[:n]


LABELS = random.choice(["x", "y", "z"], 60)


def classified(labels, X, pairs, head):
    """Features centred and scaled block by block, and scikit-learn's own model."""
    blocks = [np.abs(X[0] - X[1]), X[0] * X[1]] if pairs else [X]
    blocks = [b - b[:40].mean(0) for b in blocks]
    F = np.hstack([b / np.sqrt((b[:40] ** 2).mean()) for b in blocks])
    F /= np.sqrt(F.shape[1])
    return LogisticRegression(C=head, tol=1e-5).fit(F[:40], labels[:40]).predict(F[40:])


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("metric", ["accuracy", "matthews", "macro-f1"])
def test_classification_equals_scikit_learn(pairs, metric):
    items = PAIRS if pairs else [left for left, _ in PAIRS]
    task = Classification(items, LABELS, metric=metric, head=Logistic(C=3.0))
    X = vectors(task) + 2
    X[task.members[:, 0], 0] += LABELS == "x"
    outcome = task.score(X, np.arange(40, 60), np.arange(40))
    sides = X[task.members.T] if pairs else X
    predicted, true = classified(LABELS, sides, pairs, 3.0), LABELS[40:]
    expected = {
        "accuracy": metrics.accuracy_score(true, predicted),
        "matthews": metrics.matthews_corrcoef(true, predicted),
        "macro-f1": metrics.f1_score(true, predicted, average="macro"),
    }
    assert {metric: outcome.value} | outcome.metrics == pytest.approx(expected)


def test_f1_is_that_of_the_class_that_says_yes():
    labels = np.where(LABELS == "x", "equivalent", "not_equivalent")
    task = Classification([left for left, _ in PAIRS], labels, metric="f1")
    X = vectors(task)
    outcome = task.score(X, np.arange(40, 60), np.arange(40))
    predicted = classified(labels, X, False, 10.0)
    expected = metrics.f1_score(labels[40:], predicted, pos_label="equivalent")
    assert outcome.value == pytest.approx(expected)
    other = Classification([left for left, _ in PAIRS], labels, positive="not_equivalent")
    expected = metrics.f1_score(labels[40:], predicted, pos_label="not_equivalent")
    found = other.score(X, np.arange(40, 60), np.arange(40)).metrics["f1"]
    assert found == pytest.approx(expected)


def test_a_shift_of_the_space_changes_nothing_for_single_texts():
    task = Classification([left for left, _ in PAIRS], LABELS)
    X = vectors(task)
    for head in (Logistic(), MLP(n_epochs=3)):
        task.head = head
        known, items = np.arange(40), np.arange(40, 60)
        first, moved = (task.score(Y, items, known) for Y in (X, 7 * X + 50))
        assert np.array_equal(first.per_item, moved.per_item)


def test_heads_in_threads_leave_the_filters_of_warnings_alone(monkeypatch):
    monkeypatch.setattr(threads, "n_threads", lambda: 4)
    random = np.random.default_rng(0)
    X, labels = random.standard_normal((30, 4)), np.arange(30) % 2
    before = list(warnings.filters)
    threads.over_threads(lambda seed: MLP(n_epochs=2, seed=seed).predict(X, labels, X), range(12))
    assert warnings.filters == before


def test_the_mlp_learns_and_its_seed_decides():
    task = Classification([left for left, _ in PAIRS], LABELS, head="mlp")
    assert task.head == MLP()
    X = vectors(task, 20)
    X[:, 0] += 6 * (LABELS == "x") - 6 * (LABELS == "y")
    task.head = MLP(learning_rate=1e-2, n_epochs=30)
    known, items = np.arange(40), np.arange(40, 60)
    assert task.score(X, items, known).value >= 0.9
    outcomes = []
    for seed in (1, 1, 2):
        task.head = MLP(n_epochs=1, seed=seed)
        outcomes.append(task.score(X, items, known).per_item)
    assert np.array_equal(outcomes[0], outcomes[1])
    assert not np.array_equal(outcomes[0], outcomes[2])


def test_one_class_to_train_on_is_refused():
    task = Classification(["a", "b", "c", "d"], [0, 0, 1, 1])
    with pytest.raises(InputError, match="train must hold items of two classes, got only 0"):
        task.score(np.eye(4), [2, 3], [0, 1])


def test_pair_classification_equals_scikit_learn():
    labels = (LABELS != "x").astype(int)
    task = PairClassification(PAIRS, labels)
    X = np.round(vectors(task, 2))
    X[(X == 0).all(1)] = 1  # some pairs of equal cosine
    outcome, cosine = task.score(X), cosines(task, X)
    assert outcome.value == pytest.approx(metrics.average_precision_score(labels, cosine.round(12)))
    cuts = [*np.unique(outcome.predicted), np.inf]
    called = [outcome.predicted >= cut for cut in cuts]
    accuracy = max(metrics.accuracy_score(labels, c) for c in called)
    f1 = max(metrics.f1_score(labels, c) for c in called)
    assert outcome.metrics == pytest.approx({"accuracy": accuracy, "f1": f1})


def test_the_positive_label_is_found_or_asked_for():
    pairs = PAIRS[:3]
    entailed = PairClassification(pairs, ["entailment", "not_entailment", "entailment"])
    assert entailed.labels.tolist() == [True, False, True]
    assert PairClassification(pairs, [True, False, False]).labels.tolist() == [True, False, False]
    with pytest.raises(
        InputError, match="positive must say which of the labels 'left' and 'right'"
    ):
        PairClassification(pairs, ["left", "right", "left"])
    named = PairClassification(pairs, ["left", "right", "left"], positive="right")
    assert named.labels.tolist() == [False, True, False]
    with pytest.raises(InputError, match="positive must be one of the labels 0 and 1, got 2"):
        PairClassification(pairs, [0, 1, 1], positive=2)


def test_word_in_context_decides_by_the_best_threshold_of_the_training_items():
    pairs = [(Span(a, 0, 2), Span(b, 0, 2)) for a, b in PAIRS]
    labels = np.where(LABELS == "x", "T", "F")
    task = WordInContext(pairs, labels)
    X = vectors(task)
    cosine, same = cosines(task, X), labels == "T"
    known, items = np.arange(40), np.arange(40, 60)
    edges = np.concatenate([[-np.inf], np.sort(cosine[known]), [np.inf]])
    cuts = (edges[1:] + edges[:-1]) / 2
    right = [((cosine[known] > cut) == same[known]).mean() for cut in cuts]
    best = [cut for cut, share in zip(cuts, right, strict=True) if share == max(right)]
    outcome = task.score(X, items, known)
    shares = [((cosine[items] > cut) == same[items]) for cut in best]
    assert any(np.array_equal(outcome.per_item, share) for share in shares)
    if len(best) % 2:
        assert np.array_equal(outcome.per_item, shares[len(best) // 2])


def test_occurrences_in_one_sentence_belong_together():
    bank = "the bank by the bank"
    pairs = [(Span(bank, 4, 8), Span("a bank", 2, 6)), (Span(bank, 16, 20), Span("x bank", 2, 6))]
    task = WordInContext([*pairs, (Span("one", 0, 3), Span("two", 0, 3))], [1, 0, 0])
    assert task.groups.tolist() == [0, 0, 1]
    assert len(task.texts) == 6


def test_clustering_equals_scikit_learn_on_the_clusters_it_found():
    task = Clustering([left for left, _ in PAIRS], LABELS)
    X = 0.1 * vectors(task)
    X[np.arange(60), np.unique(LABELS, return_inverse=True)[1]] += 1
    X[:5] += [0, 1, 0, 0, 0, 0]
    outcome = task.score(X)
    expected = metrics.v_measure_score(LABELS, outcome.predicted)
    assert outcome.value == pytest.approx(expected)
    assert 0.8 < outcome.value < 1
    two = np.flatnonzero(LABELS != "z")
    assert set(task.score(X, two).predicted) == {0, 1}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: STS(PAIRS, [1] * 60), "STS: scores of 'sts' must differ, got 1 for every pair"),
        (
            lambda: STS(PAIRS[:4], [1, 1, 2, 3], ["a", "a", "b", "b"], combine="mean"),
            "scores of 'a' in 'sts' must differ",
        ),
        (lambda: STS(["ab", "cd"], [1, 2]), "STS: item 0 must have 2 texts, .* got 'ab'"),
        (
            lambda: Retrieval(["a", "b"], ["c"], [(1, 0, 1)], ["dev"]),
            "part must have one entry for each of the 2 items, got 1",
        ),
        (lambda: Retrieval(["a"] * 2, ["c", ""], [(0, 0, 1)]), "document 1 must have text"),
        (lambda: STS(PAIRS, SCORES[1:]), "scores must have one entry for each of the 60 items"),
        (lambda: STS(PAIRS[:2], ["a", "b"]), "STS: scores must be numeric"),
        (lambda: STS(PAIRS[:2], [1, np.nan]), "STS: scores must be finite"),
        (
            lambda: STS(PAIRS, SCORES, combine="sum"),
            "combine must be one of 'all', 'mean', 'wmean'",
        ),
        (lambda: STS(PAIRS, SCORES, ["a"]), "subset must have one entry for each of the 60 items"),
        (lambda: STS(PAIRS, SCORES, part=["dev"]), "part must have one entry for each of the 60"),
        (
            lambda: Classification(["a", "b"], ["x", "x"]),
            "labels of 'classification' must be of two",
        ),
        (lambda: Clustering(["a", "b"], [3, 3]), "must be of two classes or more, got 3 for every"),
        (lambda: Classification(["a"] * 3, "xyz", metric="f1"), "one entry|shape"),
        (lambda: Classification(["a"] * 3, [*"xyz"], metric="f1"), "must have two classes, got 3"),
        (lambda: Classification(["a", "b"], [0, 1], head="svm"), "head must be one of 'logistic'"),
        (lambda: PairClassification(PAIRS[:3], [0, 1, 2]), "labels must be of two classes, got 3"),
        (lambda: Retrieval(["a", "b"], ["c"], [(0, 0, 0)]), "a relevant document for some query"),
        (
            lambda: Retrieval(["a", "b"], ["c"], [(0, 1, 1)]),
            "must refer to the 2 queries and 1 documents, got the numbers 0 and 1",
        ),
        (lambda: Retrieval(["a", "b"], ["c"], [(0, 0, 1)]), "must have at least 2 items, got 1"),
    ],
)
def test_bad_data_is_refused_in_one_line(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
