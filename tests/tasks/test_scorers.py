"""Scorers of a search against their formulas written out, pair by pair."""

import numpy as np
import pytest

from isotropy.errors import InputError
from isotropy.tasks import CSLS, Cosine, LocalScaling, Retrieval, as_scorer, scorers
from isotropy.tasks.scorers import CosineIndex, Index, Scorer

from .. import static_models

N_QUERIES, N_DOCUMENTS = 30, 70
QUERIES = [f"query {i}" for i in range(N_QUERIES)]
DOCUMENTS = [f"document {i}" for i in range(N_DOCUMENTS)]
PARTS = ["train"] * 20 + ["test"] * 10


@pytest.fixture
def task():
    random = np.random.default_rng(0)
    judged = [(q, int(d), 1.0) for q in range(N_QUERIES) for d in random.choice(N_DOCUMENTS, 5)]
    return Retrieval(QUERIES, DOCUMENTS, judged, PARTS)


def vectors(task, n_features=5):
    return np.random.default_rng(1).standard_normal((len(task.texts), n_features)) + 0.5


def cosine(x, y):
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def neighbours(d, others, k):
    return sorted((cosine(d, other) for other in others), reverse=True)[:k]


def csls(q, D, others, k):
    near = [cosine(q, d) for d in D]
    r_q = np.mean(sorted(near, reverse=True)[:k])
    r_d = [np.mean(neighbours(d, o, k)) for d, o in zip(D, others, strict=True)]
    return 2 * np.array(near) - r_q - r_d


def local_scaling(q, D, others, k):
    def distance(cos):
        return np.sqrt(2 - 2 * np.array(cos))

    near = distance([cosine(q, d) for d in D])
    m_q = np.mean(sorted(near)[:k])
    m_d = [distance(neighbours(d, o, k)).mean() for d, o in zip(D, others, strict=True)]
    return -near / np.sqrt(m_q * np.array(m_d))


REFERENCES = {CSLS: csls, LocalScaling: local_scaling}


def ndcg(task, item, scores):
    gains = task.relevance[[item]].toarray()[0]
    top = sorted(range(len(scores)), key=lambda d: (-scores[d], d))[:10]
    discounts = 1 / np.log2(2 + np.arange(len(top)))
    best = np.sort(gains)[::-1][:10]
    return (gains[top] * discounts).sum() / (best * discounts).sum()


@pytest.mark.parametrize("kind", REFERENCES)
@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize("from_queries", [True, False])
@pytest.mark.parametrize("at_once", [(1024, 4096), (7, 9)])
def test_a_scorer_equals_its_formula(task, kind, k, from_queries, at_once, monkeypatch):
    monkeypatch.setattr(scorers, "COMPARED_AT_ONCE", at_once[0])
    monkeypatch.setattr(scorers, "DOCUMENTS_AT_ONCE", at_once[1])
    X = vectors(task)
    train, test = task.parts["train"], task.parts["test"]
    D = X[task.documents]
    if from_queries:
        others = [X[task.members[train, 0]]] * N_DOCUMENTS
    else:
        others = [np.delete(D, i, axis=0) for i in range(N_DOCUMENTS)]
    found = task.score(X, test, train if from_queries else None, kind(k))
    expected = [ndcg(task, i, REFERENCES[kind](X[task.members[i, 0]], D, others, k)) for i in test]
    np.testing.assert_allclose(found.per_item, expected, rtol=1e-12)
    assert found.value != task.score(X, test).value


@pytest.mark.parametrize("kind", REFERENCES)
def test_a_scorer_equals_its_formula_on_real_vectors(task, kind):
    table = static_models.wordllama()[0]
    X = table[np.random.default_rng(3).choice(len(table), len(task.texts), replace=False)]
    rows = X.astype(np.float64)
    train, test = task.parts["train"], task.parts["test"]
    others = [rows[task.members[train, 0]]] * N_DOCUMENTS
    D = rows[task.documents]
    found = task.score(X, test, train, kind())
    expected = [
        ndcg(task, i, REFERENCES[kind](rows[task.members[i, 0]], D, others, 10)) for i in test
    ]
    np.testing.assert_allclose(found.per_item, expected, rtol=1e-12)


def test_cosine_is_the_default_to_the_last_bit(task):
    X = vectors(task)
    given, default = task.score(X, scorer=Cosine()), task.score(X)
    assert given.per_item.tolist() == default.per_item.tolist()
    assert given.metrics == default.metrics


def test_documents_are_not_compared_with_scored_queries(task):
    X = vectors(task)
    items, train = task.parts["test"], task.parts["train"]
    texts, words = task.compared_with(items, np.arange(N_QUERIES))
    assert texts.tolist() == task.members[train, 0].tolist()
    assert words == "20 training queries"
    moved = X.copy()
    moved[task.members[items[1:], 0]] = 9.0  # the other scored queries
    for scorer in (CSLS(), LocalScaling()):
        one = task.score(X, items, train, scorer).per_item[0]
        assert task.score(moved, items, train, scorer).per_item[0] == one
    texts, words = task.compared_with(items, items)
    assert texts.tolist() == np.sort(task.documents).tolist()
    assert words == "70 documents"


def test_queries_that_differ_in_case_only_count_as_scored():
    judged = [(i, i, 1) for i in range(4)]
    asked = ["Why?", "what?", "who?", "why"]
    task = Retrieval(asked, ["a", "b", "c", "d"], judged, ["train"] * 3 + ["test"])
    texts, words = task.compared_with(task.parts["test"], task.parts["train"])
    assert [task.texts[i] for i in texts] == ["what?", "who?"]
    assert words == "2 training queries"


def test_a_document_is_not_its_own_neighbour_even_if_it_is_a_query():
    asked = ["a", "b", "c", "x?", "y?"]
    judged = [(i, 0, 1) for i in range(5)]
    task = Retrieval(asked, ["a", "b", "c", "d"], judged, ["train"] * 3 + ["test"] * 2)
    X = vectors(task, 3)
    train, test = task.parts["train"], task.parts["test"]
    D = X[task.documents]
    others = [np.delete(D[:3], i, axis=0) if i < 3 else D[:3] for i in range(4)]
    expected = [ndcg(task, i, csls(X[task.members[i, 0]], D, others, 2)) for i in test]
    assert task.score(X, test, train, CSLS(2)).per_item.tolist() == pytest.approx(expected)
    with pytest.raises(InputError, match=r"k must be at most 2, the number of texts .* got 3"):
        task.score(X, test, train, CSLS(3))


def test_the_sample_is_bounded_and_seeded(task, monkeypatch):
    from isotropy.tasks import retrieval

    monkeypatch.setattr(retrieval, "SAMPLED", 12)
    X = vectors(task)
    none = np.empty(0, int)
    texts, words = task.compared_with(np.arange(N_QUERIES), none)
    assert words == "12 of 70 documents"
    assert len(np.unique(texts)) == 12
    assert np.isin(texts, task.documents).all()
    assert task.score(X, scorer=CSLS(3)).value == task.score(X, scorer=CSLS(3)).value


@pytest.mark.parametrize("kind", REFERENCES)
def test_copies_and_zero_rows_give_finite_scores(task, kind):
    X = vectors(task)
    X[task.documents[:20]] = X[task.documents[0]]
    X[task.documents[-3:]] = 0
    assert 0 <= task.score(X, scorer=kind(10)).value <= 1
    assert 0 <= task.score(np.zeros_like(X), scorer=kind(10)).value <= 1


@pytest.mark.parametrize("kind", REFERENCES)
def test_scale_and_order_of_documents_do_not_matter(task, kind):
    X = vectors(task)
    expected = task.score(X, scorer=kind()).per_item
    np.testing.assert_allclose(task.score(100 * X, scorer=kind()).per_item, expected)
    order = np.random.default_rng(2).permutation(N_DOCUMENTS)
    judged = [
        (int(q), int(np.flatnonzero(order == d)[0]), 1.0)
        for q, d in zip(*task.relevance.nonzero(), strict=True)
    ]
    other = Retrieval(QUERIES, [DOCUMENTS[i] for i in order], judged, PARTS)
    rows = X[[task.texts.index(text) for text in other.texts]]
    np.testing.assert_allclose(other.score(rows, scorer=kind()).per_item, expected)


def test_hubs_lose_and_what_they_hid_is_found():
    """Each query is nearest to the hub, and nearer to its own document than to the others."""
    n = 12
    asked, documents = [f"{i}?" for i in range(n)], ["hub", *(f"{i}" for i in range(n))]
    task = Retrieval(asked, documents, [(i, i + 1, 1) for i in range(n)])
    queries = 0.62 * np.ones((n, n)) + np.eye(n)
    X = np.concatenate([queries, np.ones((1, n)), 0.2 * np.ones((n, n)) + np.eye(n)])
    assert task.score(X).metrics["mrr@10"] == pytest.approx(0.5)
    for scorer in (CSLS(3), LocalScaling(3)):
        assert task.score(X, scorer=scorer).metrics["mrr@10"] == 1


@pytest.mark.parametrize("kind", REFERENCES)
@pytest.mark.parametrize("k", [0, -1, 2.5, "ten"])
def test_k_must_be_a_positive_integer(kind, k):
    with pytest.raises(InputError, match=f"^{kind.__name__}: k must be an integer"):
        kind(k)


def test_a_scorer_is_written_as_a_spec():
    assert as_scorer("csls") == CSLS()
    assert as_scorer("local-scaling:k=5") == LocalScaling(5)
    assert as_scorer("center") is None
    assert [str(CSLS()), str(LocalScaling(5))] == ["csls", "local-scaling(k=5)"]
    with pytest.raises(InputError, match="params of csls must be among k, got 'n'"):
        as_scorer("csls:n=5")
    assert set(Scorer.by_name) == {"csls", "local-scaling"}


def test_a_scorer_of_ones_own_needs_an_index(task):
    class Shortest(Index):
        def __init__(self, documents):
            rows = np.concatenate([rows for _, rows in documents.blocks(16)])
            self.order = np.argsort(np.linalg.norm(rows, axis=1), kind="stable")

        def ranked(self, queries, n):
            return np.tile(self.order[:n], (len(queries), 1))

    class Length(Scorer):
        def index(self, documents):
            return Shortest(documents)

    X = vectors(task)
    norms = np.linalg.norm(X[task.documents], axis=1)
    expected = [ndcg(task, i, -norms) for i in range(N_QUERIES)]
    assert task.score(X, scorer=Length()).per_item.tolist() == pytest.approx(expected)


def test_an_index_of_few_documents_ranks_them_all(task):
    few = Retrieval(["q", "r"], ["a", "b", "c"], [(0, 0, 1), (1, 1, 1)])
    X = vectors(few)
    documents = scorers.Documents(few.documents, few.documents, lambda texts: X[texts])
    ranked = CosineIndex(documents, lambda cosines, places: cosines).ranked(X[:2], 100)
    assert np.sort(ranked, axis=1).tolist() == [[0, 1, 2]] * 2
