"""How much `advise` computes: passes, fits, products and repaired rows, without a clock."""

import threading
from collections import Counter

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from isotropy import linalg, threads
from isotropy.engines.local import Local
from isotropy.evidence.bench import Plan, bench_of
from isotropy.evidence.search import Options, searches
from isotropy.evidence.spaces import NONE, Candidate
from isotropy.models import tokens
from isotropy.repairs import AllButTheTop, ClusterRemoval, Repair
from isotropy.sources import base
from isotropy.stats import ClusterMoments, ClusterSums
from isotropy.stats.moments import RawSums
from isotropy.tasks import STS, Retrieval

from .examples import TokenEncoder, classification, sts

N_FOLDS = 5
REMOVALS = [
    Candidate("cluster-removal", {"n_clusters": k, "n_components": n}, "token")
    for k, n in ((3, 0), (3, 2), (2, 2), (2, 4))
]


def counted(monkeypatch, owner, name, of=lambda *arguments: 1):
    """The sum of `of` over the calls of a function, by the type of its first argument."""
    found, function, lock = Counter(), getattr(owner, name), threading.Lock()

    def call(first, *arguments, **options):
        with lock:  # folds run in threads
            found[type(first).__name__] += of(first, *arguments)
        return function(first, *arguments, **options)

    monkeypatch.setattr(owner, name, call)
    return found


@pytest.fixture
def passes(monkeypatch):
    """How many passes were made for each statistic."""
    found, run, lock = Counter(), Local.reduce, threading.Lock()

    def reduce(self, source, statistics, *arguments):
        with lock:
            found.update(type(statistic).__name__ for statistic in statistics)
        return run(self, source, statistics, *arguments)

    monkeypatch.setattr(Local, "reduce", reduce)
    return found


@pytest.fixture
def repaired(monkeypatch):
    """How many rows each kind of repair was applied to."""
    return counted(monkeypatch, Repair, "_repaired", lambda self, rows, *_: len(rows))


def search_of(task, encoder, candidates=None):
    options = Options(candidates=candidates, n_folds=N_FOLDS)
    (found,) = searches(encoder, task, {"": None}, options).values()
    return found


def test_a_search_makes_moments_once_a_fold_and_clusters_once_a_clustering(passes):
    task, X = sts("planted", n=200, d=32)
    search = search_of(task, TokenEncoder(task.texts, X))
    methods = Counter((c.method, c.level) for c in search.candidates)
    assert methods["cluster-removal", "token"] == 4  # of 10 and of 27 clusters
    assert methods["all-but-the-top", "token"] > 1
    assert len(search.outcomes) == len(search.candidates)
    n_alone = 2 + 1  # clusterings, and scaled-center: they have blocks too
    assert passes["BlockSums"] <= N_FOLDS * (n_alone + 2)  # two may dissolve clusters
    assert passes["Sample"] == 2 * N_FOLDS
    assert 2 * N_FOLDS <= passes["ClusterMoments"] <= 2 * 2 * N_FOLDS
    assert passes["ClusterSums"] <= 10 * 2 * N_FOLDS
    assert passes["Directions"] == N_FOLDS
    assert passes["Moments"] == N_FOLDS + passes["Directions"]  # those of tokens are the clusters'


def test_every_fold_repairs_only_its_own_texts(repaired):
    task, X = sts("planted", n=100, d=8)
    encoder = TokenEncoder(task.texts, X)
    center = [Candidate("center", {}, level) for level in ("sentence", "token")]
    search = search_of(task, encoder, [*center, *REMOVALS])
    assert len(search.outcomes) == 1 + len(center) + len(REMOVALS)
    n_tokens = sum(len(rows) for rows in encoder.rows.values())
    assert repaired["Center"] == 2 * len(task.texts)  # tokens are repaired as their means
    assert repaired["ClusterRemoval"] == len(REMOVALS) * n_tokens


def retrieval(n=60, d=8):
    random = np.random.default_rng(0)
    documents = [f"document {i}" for i in range(n)]
    queries = [f"query {i}" for i in range(n)]
    task = Retrieval(queries, documents, [(i, i, 1) for i in range(n)])
    X = random.standard_normal((n, d)) + 3
    noise = random.standard_normal((n, d))
    return task, TokenEncoder(task.texts, np.concatenate([X + noise, X]))


@pytest.mark.parametrize("level", ["sentence", "token"])
def test_documents_are_repaired_once_where_one_fit_serves_all_folds(level, passes, repaired):
    task, encoder = retrieval()
    candidates = [Candidate("center", {}, level), *REMOVALS]
    search = search_of(task, encoder, candidates)
    assert len(search.plan.evaluations) == N_FOLDS
    assert len(search.outcomes) == 1 + len(candidates)
    n_tokens = sum(len(rows) for rows in encoder.rows.values())
    assert repaired == {"Center": len(task.texts), "ClusterRemoval": len(REMOVALS) * n_tokens}
    assert (passes["Moments"], passes["Sample"]) == (level == "sentence", 2)


@pytest.mark.parametrize("kind", ["sts", "retrieval", "classification"])
@pytest.mark.parametrize("shared", [True, False])
def test_outcomes_of_all_folds_equal_those_of_each(kind, shared):
    if kind == "retrieval":
        task, encoder = retrieval()
    else:
        task, X = sts("planted", n=100, d=8) if kind == "sts" else classification(n=100)
        encoder = TokenEncoder(task.texts, X)
    candidates = [Candidate(NONE), Candidate("whiten", {}, "token"), *REMOVALS]
    tried = bench_of(encoder, task, lambda space: candidates, transductive=shared)
    plan = tried.across(np.arange(task.n_items), N_FOLDS, seed=0)
    n_fits = len({id(evaluation.fits) for evaluation in plan.evaluations})
    assert n_fits == (1 if shared or kind == "retrieval" else N_FOLDS)
    for candidate in candidates:
        together = tried.outcomes(candidate, plan)
        apart = [tried.outcomes(candidate, Plan([e], plan.fitted_on)) for e in plan.evaluations]
        for outcome, (expected,) in zip(together, apart, strict=True):
            assert outcome.n_items == expected.n_items
            assert outcome.value == pytest.approx(expected.value, abs=1e-6)


def test_a_step_of_clustering_multiplies_rows_with_centroids_once(monkeypatch):
    n_rows, d, k = 5000, 64, 6
    monkeypatch.setattr(linalg, "BLOCK_ELEMENTS", 1000 * d)
    rows = np.random.default_rng(0).standard_normal((n_rows, d)).astype(np.float32)
    products = counted(monkeypatch, linalg, "_nearest")
    sums = counted(monkeypatch, linalg, "label_sums", lambda X, *_: X.shape[1])
    ClusterSums(rows[:k]).update(rows)
    assert products == {"ndarray": 3}  # blocks of up to 2,000 rows
    assert sums == {"ndarray": 3 * d}
    scatters = counted(monkeypatch, RawSums, "add", lambda self, part, *_: len(part))
    ClusterMoments(rows[:k]).update(rows)
    assert products == {"ndarray": 6}
    assert n_rows <= scatters["RawSums"] <= n_rows + k * n_rows / 10  # a far block is tried twice


def test_chunks_of_picked_rows_are_large_beside_their_moments():
    rows = base.PickedRows(np.zeros((20_000, 768), np.float32), np.arange(20_000))
    assert len(rows.chunks()) == 2  # each costs 27 clusters a few matrices of 768 x 768


def test_fits_that_share_clusters_share_their_decompositions(monkeypatch):
    calls = counted(monkeypatch, ClusterRemoval, "fit_source")
    task, X = sts("planted", n=60, d=8)
    search = search_of(task, TokenEncoder(task.texts, X), REMOVALS)
    assert len(search.outcomes) == 1 + len(REMOVALS)
    assert calls == {"ClusterRemoval": 2 * N_FOLDS}


def test_folds_run_in_threads_and_clusterings_one_by_one_with_one_blas_thread(monkeypatch):
    monkeypatch.setattr(threads, "n_threads", lambda: 3)
    ours, seen = threading.get_ident(), []

    def place(*_):
        found = [p for p in threadpool_info() if p["user_api"] == "blas"]
        # OpenMP counts in each thread apart, and is faiss's, if another test has loaded it
        blas = {p["num_threads"] for p in found if p.get("threading_layer") != "openmp"}
        seen.append((threading.get_ident() == ours, blas <= {1}))
        return 1

    task, X = sts("planted", n=60, d=8)
    removal = Candidate("all-but-the-top", {"n_components": 1}, "token")
    search = search_of(task, TokenEncoder(task.texts, X), [removal, *REMOVALS])
    counted(monkeypatch, ClusterRemoval, "fit_source", place)
    assert len(search.outcomes) == 2 + len(REMOVALS)
    assert seen == [(True, True)] * 2 * N_FOLDS  # so each pass can use all threads
    seen.clear()
    counted(monkeypatch, AllButTheTop, "solve", place)
    counted(monkeypatch, STS, "outcome", place)
    search.bench.outcomes(removal, search.plan)
    assert seen == [(False, True)] * 2 * N_FOLDS
    seen.clear()
    search.advice()
    assert all(one_thread for _, one_thread in seen)


def test_rows_of_tokens_are_repaired_block_by_block_in_threads(monkeypatch):
    monkeypatch.setattr(threads, "n_threads", lambda: 3)
    monkeypatch.setattr(tokens, "BLOCK_ELEMENTS", 80)
    task, encoder = retrieval()
    search = search_of(task, encoder, REMOVALS)
    ours, seen = threading.get_ident(), []
    counted(
        monkeypatch, ClusterRemoval, "apply", lambda *_: seen.append(threading.get_ident()) or 1
    )
    assert len(search.outcomes) == 1 + len(REMOVALS)
    assert len(seen) > 10 * len(REMOVALS)
    assert ours not in seen
