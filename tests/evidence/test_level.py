"""The level of advise: it promises to recommend in at most 2.5 % of tasks that no repair helps.

30 seeds of every kind are run, and with ISOTROPY_ALL_NULLS=1 the 200 of docs/evidence.md.
"""

import os

import numpy as np
import pytest

from isotropy.errors import IsotropyWarning
from isotropy.evidence import advise
from isotropy.evidence.search import overlapping
from isotropy.models.texts import Span
from isotropy.tasks import (
    STS,
    Classification,
    Clustering,
    PairClassification,
    Retrieval,
    WordInContext,
    WordSimilarity,
)

from .examples import pairs, sts

N, D = 200, 16
N_SEEDS, N_ALLOWED = (200, 10) if os.environ.get("ISOTROPY_ALL_NULLS") else (30, 4)
N_TOGETHER = 10  # seeds of one test; processes share the tests
NULLS = {}


def null(make):
    """Registers what makes (task, vectors) of a seed in which no repair helps."""
    NULLS[make.__name__] = make
    return make


def rows(random, n):
    """Rows in a cone, with directions of unlike variance."""
    return random.standard_normal((n, D)) * np.geomspace(4, 0.25, D) + 3


def two_classes(random, n=N):
    return random.integers(0, 2, n)


@null
def similarity(seed):
    """Even seeds have random scores, odd ones a strong signal that no repair improves."""
    return sts("strong" if seed % 2 else "random", seed)


@null
def similarity_in_subsets(seed):
    """Three subsets of unlike size, each in a place of its own, with scores of its own level."""
    random = np.random.default_rng(seed)
    subset = random.choice(3, N, p=[0.6, 0.3, 0.1])
    X = rows(random, 2 * N) + np.repeat(3 * random.standard_normal((3, D))[subset], 2, axis=0)
    scores = random.random(N) + 0.2 * random.permutation(subset)
    return STS(pairs(N), scores, [f"set {i}" for i in subset]), X


@null
def words(seed):
    random = np.random.default_rng(seed)
    drawn = np.sort([random.choice(150, 2, replace=False) for _ in range(N)], axis=1)
    task = WordSimilarity([(f"w{i}", f"w{j}") for i, j in drawn], random.random(N))
    return task, rows(random, len(task.texts))


@null
def classification(seed):
    """Even seeds have two classes at random, odd ones a rare class."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(N) % 5 == 0) if seed % 2 else two_classes(random)
    return Classification([f"text {i}" for i in range(N)], labels), rows(random, N)


@null
def pairs_with_a_head(seed):
    random = np.random.default_rng(seed)
    return Classification(pairs(N), two_classes(random)), rows(random, 2 * N)


@null
def pair_classification(seed):
    random = np.random.default_rng(seed)
    return PairClassification(pairs(N), two_classes(random)), rows(random, 2 * N)


@null
def word_in_context(seed):
    random = np.random.default_rng(seed)
    items = [tuple(Span(text, 0, 1) for text in pair) for pair in pairs(N)]
    return WordInContext(items, two_classes(random)), rows(random, 2 * N)


@null
def retrieval(seed):
    random = np.random.default_rng(seed)
    judged = [(i, int(j), 1) for i in range(N) for j in random.choice(300, 3, replace=False)]
    texts = [f"query {i}" for i in range(N)], [f"document {i}" for i in range(300)]
    return Retrieval(*texts, judged), rows(random, N + 300)


@null
def clustering(seed):
    random = np.random.default_rng(seed)
    task = Clustering([f"text {i}" for i in range(N)], random.integers(0, 4, N))
    return task, rows(random, N)


@null
def repeated_pairs(seed):
    """30 pairs, five times under other names."""
    random = np.random.default_rng(seed)
    scores, X = random.random(30), rows(random, 60)
    return STS(pairs(150), np.tile(scores, 5)), np.tile(X, (5, 1))


@null
def repeated_texts(seed):
    """40 texts with their classes, five times under other names."""
    random = np.random.default_rng(seed)
    labels, X = two_classes(random, 40), rows(random, 40)
    task = Classification([f"text {i}" for i in range(N)], np.tile(labels, 5))
    return task, np.tile(X, (5, 1))


WRITTEN = ("{}", "{} ", " {}", "{}!", '"{}"')


@null
def pairs_written_anew(seed):
    """30 pairs, five times in other writing, with vectors and scores that are a little other."""
    random = np.random.default_rng(seed)
    scores, X = np.tile(random.random(30), 5), np.tile(rows(random, 60), (5, 1))
    names = [tuple(form.format(t) for t in pair) for form in WRITTEN for pair in pairs(30)]
    X = X + 0.01 * random.standard_normal(X.shape)
    return STS(names, scores + 0.01 * random.standard_normal(150)), X


@null
def texts_written_anew(seed):
    random = np.random.default_rng(seed)
    labels, X = np.tile(two_classes(random, 40), 5), np.tile(rows(random, 40), (5, 1))
    names = [form.format(f"Text {i}") for form in WRITTEN for i in range(40)]
    return Classification(names, labels), X + 0.01 * random.standard_normal(X.shape)


@pytest.fixture(scope="session")
def recommended(tmp_path_factory):
    """A folder that all processes of a run share: what was recommended, a file for each seed."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # then every process has a folder of its own there
        folder = folder.parent
    return folder / "recommended"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings(f"ignore::{IsotropyWarning.__module__}.{IsotropyWarning.__name__}")
@pytest.mark.parametrize("first", range(0, N_SEEDS, N_TOGETHER))
@pytest.mark.parametrize("make", NULLS.values(), ids=list(NULLS))
def test_nothing_is_recommended_where_nothing_helps(make, first, recommended):
    """The bound is on all seeds: each test counts the files of all, and the last to end has all."""
    folder = recommended / make.__name__
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(first, first + N_TOGETHER):
        task, X = make(seed)
        advice = advise(X, task)
        if advice.choice.method != "none":
            (folder / str(seed)).write_text(str(advice.choice), encoding="utf-8")
    found = {int(path.name): path.read_text(encoding="utf-8") for path in folder.iterdir()}
    print(f"{make.__name__}: {len(found)} so far, of {N_SEEDS} seeds {found}")
    assert len(found) <= N_ALLOWED, found


# Why folds with heads are not independent


def test_scores_of_folds_are_correlated_where_heads_are_trained_on_each_other():
    """Folds share no item, yet with random labels their scores go up and down together."""
    random = np.random.default_rng(0)
    n_folds, n = 5, 60
    X = random.standard_normal((n, 6))
    fold = np.arange(n) % n_folds
    labels = random.choice([-1.0, 1.0], (n, 2000))
    scores = []
    for k in range(n_folds):
        known, asked = X[fold != k], X[fold == k]
        weights = np.linalg.solve(known.T @ known + np.eye(6), known.T @ labels[fold != k])
        scores.append((np.sign(asked @ weights) == labels[fold == k]).mean(axis=0))
    assert np.mean(scores) == pytest.approx(0.5, abs=0.01)
    correlations = np.corrcoef(scores)[np.triu_indices(n_folds, 1)]
    assert 0.08 < correlations.mean() < 1 / (n_folds - 1)


@pytest.mark.parametrize("n_folds", [2, 3, 5, 10])
def test_chance_of_overlapping_folds_keeps_its_spread_and_gets_a_correlation(n_folds):
    random = np.random.default_rng(0)
    root = np.array([[1.0, 0.0], [0.8, 0.5]])
    drawn = overlapping(random.standard_normal((20_000, n_folds, 2)) @ root.T)
    found = np.cov(drawn.reshape(len(drawn), -1).T).reshape(n_folds, 2, n_folds, 2)
    for j in range(n_folds):
        for k in range(n_folds):
            wanted = root @ root.T * (1 if j == k else 1 / n_folds)
            np.testing.assert_allclose(found[j, :, k], wanted, atol=0.05)
