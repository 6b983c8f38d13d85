"""The bench: folds that share no sentence, and what is fitted on which text."""

import numpy as np
import pytest

from isotropy import KeyedVectors
from isotropy.errors import InputError
from isotropy.evidence.bench import (
    CORPUS,
    ELSEWHERE,
    FOLDS,
    TRAINING,
    TRANSDUCTIVE,
    VOCABULARY,
    Plan,
    bench_of,
    grouped_folds,
    subsample,
)
from isotropy.evidence.spaces import NONE, SENTENCE, Candidate
from isotropy.models.texts import Span
from isotropy.tasks import STS, Retrieval, WordInContext, WordSimilarity

from .examples import classification, pairs, sts

CENTER = Candidate("center")


def bench(task, X, *candidates, fit_on=None):
    return bench_of(X, task, lambda space: candidates or (CENTER,), fit_on)


def means(bench, texts):
    """Mean row of these texts, as often as each is named."""
    return bench.space.pooled[texts].mean(axis=0, dtype=float)


def fitted_mean(evaluation):
    return evaluation.fits.fitted(CENTER).mean_


@pytest.mark.parametrize("n_folds", [2, 5])
def test_folds_are_of_whole_groups_and_of_one_size(n_folds):
    groups = np.random.default_rng(0).integers(0, 60, 400)
    folds = grouped_folds(groups, n_folds, seed=0)
    for group in range(60):
        assert len(set(folds[groups == group])) <= 1
    sizes = np.bincount(folds)
    assert len(sizes) == n_folds
    assert sizes.max() - sizes.min() <= np.bincount(groups).max()
    assert (folds == grouped_folds(groups, n_folds, seed=0)).all()
    assert (folds != grouped_folds(groups, n_folds, seed=1)).any()


@pytest.mark.parametrize("n_folds", [2, 5])
def test_every_fold_has_its_share_of_each_subset(n_folds):
    random = np.random.default_rng(0)
    subsets = random.choice(["a", "b", "c"], 600, p=[0.6, 0.3, 0.1])
    groups = 100 * np.unique(subsets, return_inverse=True)[1] + random.integers(0, 90, 600)
    folds = grouped_folds(groups, n_folds, 0, subsets)
    assert all(len(set(folds[groups == group])) == 1 for group in np.unique(groups))
    for name in "abc":
        sizes = np.bincount(folds[subsets == name], minlength=n_folds)
        largest = np.bincount(groups[subsets == name]).max()
        assert sizes.max() - sizes.min() <= 2 * largest  # a round may be cut at either end
    one = grouped_folds(groups, n_folds, 0, np.zeros(600))
    assert (one == grouped_folds(groups, n_folds, 0)).all()


def test_large_groups_of_several_subsets_are_in_different_folds():
    sizes = [100, *[1] * 9] * 3
    groups, subsets = np.repeat(np.arange(30), sizes), np.repeat(np.repeat([0, 1, 2], 10), sizes)
    counts = np.bincount(grouped_folds(groups, 5, 0, subsets))
    assert sorted(counts.tolist()) == [6, 6, 105, 105, 105]


def test_the_folds_of_a_task_are_by_subset():
    pairs = [(f"text {i}", f"other {i}") for i in range(40)]
    subset = ["large"] * 30 + ["small"] * 10
    task = STS(pairs, np.arange(40), subset)
    bench = bench_of(np.random.default_rng(0).normal(size=(80, 4)), task, lambda space: (CENTER,))
    plan = bench.across(np.arange(40), 5, 0)
    assert [(fold.items >= 30).sum() for fold in plan.evaluations] == [2] * 5


def test_there_are_no_more_folds_than_groups():
    assert set(grouped_folds(np.array([7, 7, 3, 3, 3]), 5, seed=0)) == {0, 1}


def test_a_sample_is_in_order_and_by_seed():
    items = np.arange(10, 40)
    found = subsample(items, 8, seed=1)
    assert len(found) == 8
    assert (np.diff(found) > 0).all()
    assert (found == subsample(items, 8, seed=1)).all()
    assert subsample(items, 30) is items


def test_folds_share_no_sentence_and_cover_every_item():
    texts = [(f"t{i}", f"t{(i * 7) % 90}") for i in range(60)]
    task = STS(texts, np.arange(60) % 5)
    X = np.random.default_rng(0).standard_normal((len(task.texts), 4))
    plan = bench(task, X).across(np.arange(60), 5, seed=0)
    assert plan.fitted_on == FOLDS
    assert plan.n_removed == 0
    assert sorted(np.concatenate([evaluation.items for evaluation in plan.evaluations])) == list(
        range(60)
    )
    for evaluation in plan.evaluations:
        assert not np.intersect1d(
            task.texts_of(evaluation.items), task.texts_of(evaluation.train)
        ).size


def test_each_fold_is_fitted_on_the_others():
    task, X = sts(n=30, d=4)
    tried = bench(task, X)
    for evaluation in tried.across(np.arange(30), 3, seed=0).evaluations:
        others = np.setdiff1d(np.arange(30), evaluation.items)
        expected = means(tried, task.members[others].ravel())
        np.testing.assert_allclose(fitted_mean(evaluation), expected, atol=1e-6)


def test_evaluated_sentences_are_removed_from_the_training_text():
    texts = [("a", "b"), ("c", "d"), ("e", "a"), ("f", "g"), ("h", "b")]
    part = ["dev", "dev", "train", "train", "train"]
    task = STS(texts, [1, 2, 3, 4, 5], part=part)
    X = np.random.default_rng(0).standard_normal((len(task.texts), 4))
    tried = bench(task, X)
    plan = tried.held_out(task.parts["dev"], task.parts["train"])
    assert (plan.fitted_on, plan.n_removed) == (TRAINING, 2)
    left = [task.texts.index(text) for text in "efgh"]
    np.testing.assert_allclose(fitted_mean(plan.evaluations[0]), means(tried, left), atol=1e-6)


def test_a_word_in_an_evaluated_sentence_is_removed_too():
    shared, other = "the bank of the river", "a bank lends money"
    items = [
        (Span(shared, 4, 8), Span("sit on the bank", 11, 15)),
        (Span(shared, 16, 21), Span(other, 2, 6)),
        (Span("one bank", 4, 8), Span("two banks", 4, 9)),
    ]
    task = WordInContext(items, [1, 0, 1], ["dev", "train", "train"])
    X = np.random.default_rng(0).standard_normal((len(task.texts), 4))
    tried = bench(task, X)
    plan = tried.held_out(task.parts["dev"], task.parts["train"])
    left = [i for i, text in enumerate(task.texts) if text.text not in (shared, "sit on the bank")]
    assert plan.n_removed == 1
    np.testing.assert_allclose(fitted_mean(plan.evaluations[0]), means(tried, left), atol=1e-6)
    numbers = task.identities
    assert numbers[task.members[0, 0]] == numbers[task.members[1, 0]]


def test_words_of_other_pairs_are_removed_from_a_fold_that_has_them():
    words = [("sun", "moon"), ("sun", "tax"), ("cat", "moon"), ("cat", "tax"), ("sea", "sky")]
    task = WordSimilarity(words, [5, 1, 2, 3, 4])
    X = np.random.default_rng(0).standard_normal((len(task.texts), 4))
    tried = bench(task, X)
    for evaluation in tried.across(np.arange(5), 3, seed=0).evaluations:
        evaluated = set(task.texts_of(evaluation.items))
        numbers = task.members[np.setdiff1d(np.arange(5), evaluation.items)].ravel()
        left = [i for i in numbers if i not in evaluated]
        np.testing.assert_allclose(fitted_mean(evaluation), means(tried, left), atol=1e-6)


def test_text_is_fitted_as_often_as_items_name_it():
    task = STS([("a", "b"), ("a", "c"), ("d", "e"), ("f", "g")], [1, 2, 3, 4])
    X = np.random.default_rng(0).standard_normal((7, 3))
    tried = bench(task, X)
    plan = tried.held_out(np.array([2, 3]), np.array([0, 1]))
    expected = (2 * X[0] + X[1] + X[2]) / 4
    np.testing.assert_allclose(fitted_mean(plan.evaluations[0]), expected, atol=1e-6)


def test_other_text_is_used_without_the_evaluated_one():
    task, X = sts(n=20, d=4)
    fit_on = [*task.texts[:6], "more", "text", "more"]
    keyed = KeyedVectors(np.vstack([X, np.ones((2, 4))]), [*task.texts, "more", "text"])
    tried = bench(task, keyed, fit_on=fit_on)
    plan = tried.held_out(np.array([0, 1]), np.arange(2, 20))
    assert (plan.fitted_on, plan.n_removed) == (ELSEWHERE, 4)
    expected = (X[4] + X[5] + 2) / 4
    np.testing.assert_allclose(fitted_mean(plan.evaluations[0]), expected, atol=1e-6)
    everything = tried.everything(np.arange(20)).fitted(CENTER).mean_
    np.testing.assert_allclose(everything, (X[:6].sum(axis=0) + 2) / 8, atol=1e-6)


def test_keyed_vectors_are_fitted_on_the_other_rows():
    task, X = sts(n=20, d=4)
    extra = np.random.default_rng(1).standard_normal((30, 4))
    keys = [*task.texts, *(f"word {i}" for i in range(29)), "a0"]
    extra[-1] = X[0]  # the row of a0, once more
    keyed = KeyedVectors(np.vstack([X, extra]), keys)
    tried = bench(task, keyed)
    plan = tried.held_out(np.array([0, 3]), np.arange(20))
    assert (plan.fitted_on, plan.n_removed) == (VOCABULARY, 5)
    others = np.vstack([np.delete(X, [0, 1, 6, 7], axis=0), extra[:-1]])
    np.testing.assert_allclose(fitted_mean(plan.evaluations[0]), others.mean(axis=0), atol=1e-6)
    for fits in (tried.evaluated(np.arange(2)).evaluations[0].fits, tried.everything(np.arange(2))):
        np.testing.assert_allclose(fits.fitted(CENTER).mean_, keyed.vectors.mean(axis=0), atol=1e-6)


def test_all_folds_of_keyed_vectors_share_one_fit_on_rows_of_no_item():
    task, X = sts(n=20, d=4)
    extra = np.random.default_rng(1).standard_normal((50, 4))
    keyed = KeyedVectors(np.vstack([X, extra]), [*task.texts, *(f"word {i}" for i in range(50))])
    plan = bench(task, keyed).across(np.arange(20), 4, seed=0)
    assert (plan.fitted_on, plan.n_removed) == (VOCABULARY, 40)
    assert len({id(evaluation.fits) for evaluation in plan.evaluations}) == 1
    np.testing.assert_allclose(fitted_mean(plan.evaluations[0]), extra.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("n_more", [0, 3])
def test_keyed_vectors_of_hardly_more_than_the_task_are_fitted_on_its_other_items(n_more):
    task, X = sts(n=20, d=4)
    keys = [*task.texts, *(f"word {i}" for i in range(n_more))]
    tried = bench(task, KeyedVectors(np.vstack([X, np.ones((n_more, 4))]), keys))
    plan = tried.across(np.arange(20), 4, seed=0)
    assert plan.fitted_on == FOLDS
    expected = means(tried, task.members[plan.evaluations[0].train].ravel())
    np.testing.assert_allclose(fitted_mean(plan.evaluations[0]), expected, atol=1e-6)


def search(n=12):
    documents = [f"document {i}" for i in range(n)]
    return Retrieval([f"query {i}" for i in range(n)], documents, [(i, i, 1) for i in range(n)])


def test_a_search_is_fitted_on_its_corpus():
    task = search()
    X = np.random.default_rng(0).standard_normal((24, 4))
    tried = bench(task, X)
    plan = tried.across(np.arange(12), 3, seed=0)
    assert plan.fitted_on == CORPUS
    for fits in (
        *(evaluation.fits for evaluation in plan.evaluations),
        tried.everything(np.arange(12)),
    ):
        np.testing.assert_allclose(fits.fitted(CENTER).mean_, X[12:].mean(axis=0), atol=1e-6)


def test_transductive_is_everything_that_is_evaluated():
    task, X = sts(n=20, d=4)
    plan = bench(task, X).evaluated(np.array([1, 2]))
    assert plan.fitted_on == TRANSDUCTIVE
    np.testing.assert_allclose(fitted_mean(plan.evaluations[0]), X[2:6].mean(axis=0), atol=1e-6)
    task = search()
    X = np.random.default_rng(0).standard_normal((24, 4))
    plan = bench(task, X).evaluated(np.array([1, 2]))
    expected = X[[1, 2, *range(12, 24)]].mean(axis=0)
    np.testing.assert_allclose(fitted_mean(plan.evaluations[0]), expected, atol=1e-6)


def test_a_head_is_trained_on_the_other_items():
    task, X = classification(n=60)
    tried = bench(task, X)
    plan = tried.across(np.arange(60), 3, seed=0)
    outcomes = tried.outcomes(Candidate(NONE), plan)
    for outcome, evaluation in zip(outcomes, plan.evaluations, strict=True):
        others = np.setdiff1d(np.arange(60), evaluation.items)
        assert (np.sort(evaluation.train) == others).all()
        expected = task.score(X.astype(np.float32), evaluation.items, others)
        assert outcome.value == expected.value


def test_an_outcome_is_the_score_of_the_repaired_rows():
    task, X = sts("planted", n=60, d=6)
    candidate = Candidate("all-but-the-top", {"n_components": 1})
    tried = bench(task, X, candidate)
    plan = tried.held_out(np.arange(20), np.arange(20, 60))
    repaired = candidate.make().fit(X[40:].astype(np.float32)).transform(X.astype(np.float32))
    expected = task.score(repaired, np.arange(20)).value
    assert tried.outcomes(candidate, plan)[0].value == pytest.approx(expected, abs=1e-6)


def test_seeds_are_rows_of_folds_beside_the_same_baseline():
    task, X = sts(n=60, d=6)
    candidate = Candidate("cluster-removal", {"n_clusters": 3, "n_components": 1})
    tried = bench(task, X, candidate)
    plan = tried.across(np.arange(60), 2, seed=0)
    none = tried.outcomes(Candidate(NONE), plan, seeds=3)
    system = tried.outcomes(candidate, plan, seeds=3)
    assert (len(none), len(system)) == (2, 6)
    folds = tried.folds(plan, system, none)
    assert [fold.baseline for fold in folds] == none * 3
    assert all(
        (f.groups == task.groups[plan.evaluations[i % 2].items]).all() for i, f in enumerate(folds)
    )


def test_rows_before_and_after_are_a_sample():
    task, X = sts(n=60, d=6)
    tried = bench(task, X)
    evaluation = tried.evaluated(np.arange(60)).evaluations[0]
    before, after = tried.rows_before_and_after(CENTER, evaluation, n_texts=50)
    assert len(before) == 50
    np.testing.assert_allclose(before - after, np.tile(fitted_mean(evaluation), (50, 1)), atol=1e-5)


def test_what_is_far_from_the_fitted_rows_is_said():
    task, X = sts(n=200, d=4)
    moved = X.copy()
    moved[:200] += 10
    for rows, said in ((X, ""), (moved, "The 200 evaluated texts differ from the text that")):
        tried = bench(task, rows)
        plan = tried.held_out(np.arange(100), np.arange(100, 200))
        assert tried.shift_note(SENTENCE, plan)[: len(said) or None] == said
    assert "give such text with fit_on (--fit-on)" in tried.shift_note(SENTENCE, plan)


def test_all_texts_are_looked_at_where_one_fit_serves_all_folds():
    task, X = sts(n=60, d=4)
    words = [f"word {i}" for i in range(200)]
    rows = np.vstack([X + 20, np.random.default_rng(0).standard_normal((200, 4))])
    tried = bench(task, KeyedVectors(rows, [*task.texts, *words]), fit_on=words)
    plan = tried.across(np.arange(60), 5, seed=0)
    assert tried.shift_note(SENTENCE, plan).startswith("The 120 evaluated texts differ")
    groups = np.arange(60) % 5
    X[np.unique(task.members[groups == 0])] += 20
    task.groups = groups
    tried = bench(task, X)
    plan = tried.across(np.arange(60), 5, seed=0)
    assert "evaluated texts of one fold differ" in "".join(
        tried.shift_note(
            SENTENCE, Plan(plan.evaluations[k:] + plan.evaluations[:k], plan.fitted_on)
        )
        for k in range(5)
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t, X: bench(t, X, fit_on=[]), "fit_on must have at least one text, got none"),
        (lambda t, X: bench(t, X, fit_on="a0"), "fit_on must be a list, got 'a0'"),
        (
            lambda t, X: bench(t, X, fit_on=["a0", "b0"]).held_out(np.arange(1), np.arange(1, 9)),
            "fit_on must have text that is not evaluated, got none",
        ),
        (
            lambda t, X: bench(t, X, fit_on=["other"]).held_out(np.arange(1), np.arange(1, 9)),
            "fit_on must hold texts of the task when vectors are an array, got 1 others",
        ),
        (
            lambda t, X: bench(t, X).held_out(np.arange(9), np.arange(3)),
            "'sts' must have text to fit on that is not evaluated, got none. Give fit_on",
        ),
    ],
)
def test_what_cannot_be_fitted_on_gets_one_line(call, message):
    task, X = sts(n=9, d=4)
    with pytest.raises(InputError, match=message) as caught:
        call(task, X)
    assert "\n" not in str(caught.value)


def test_items_that_all_share_a_sentence_make_no_folds():
    task = STS([("a", f"b{i}") for i in range(9)], np.arange(9))
    X = np.random.default_rng(0).standard_normal((10, 4))
    with pytest.raises(InputError, match="share no sentence and no vector, got 1"):
        bench(task, X).across(np.arange(9), 5, seed=0)


def test_scores_without_repair_must_be_defined():
    task = STS(pairs(9), [1.0] * 8 + [2.0])
    tried = bench(task, np.random.default_rng(0).standard_normal((18, 4)))
    plan = tried.across(np.arange(9), 3, seed=0)
    with pytest.raises(InputError, match="scores of 'sts' must be defined in every fold"):
        tried.expect_defined(tried.outcomes(Candidate(NONE), plan), plan)


def test_folds_of_one_item_say_how_many_are_needed():
    task = STS(pairs(4), np.arange(4))
    tried = bench(task, np.random.default_rng(0).standard_normal((8, 4)))
    plan = tried.across(np.arange(4), 5, seed=0)
    message = r"'sts' must have at least 10 items \(two in each of 5 folds\), got 4"
    with pytest.raises(InputError, match=message):
        tried.expect_defined(tried.outcomes(Candidate(NONE), plan), plan)


def test_documents_that_are_queries_too_are_repaired():
    random = np.random.default_rng(0)
    texts = [f"t{i}" for i in range(40)]
    queries, documents = texts[:20], texts[10:]
    task = Retrieval(queries, documents, [(i, i, 1.0) for i in range(20)])
    X = random.standard_normal((len(task.texts), 6)) + 3
    tried = bench(task, X)
    plan = tried.across(np.arange(task.n_items), 5, 0)
    evaluation = plan.evaluations[0]
    repair = evaluation.fits.fitted(Candidate("center"))
    expected = task.score(repair.transform(X.astype(np.float32)), evaluation.items).value
    assert tried.outcomes(Candidate("center"), plan)[0].value == pytest.approx(expected)
