"""compress: which code it accepts, how often it errs, and what it says."""

from __future__ import annotations

import os
from importlib.util import find_spec

import numpy as np
import pytest
import scipy.stats

from isotropy import Center, KeyedVectors
from isotropy.codecs import Binary, Codec, Float, Rescored, Scalar
from isotropy.errors import InputError
from isotropy.evidence import compress
from isotropy.evidence.bench import grouped_folds
from isotropy.evidence.codes import code_words, default_codecs, repair_of, repair_words
from isotropy.evidence.frontier import descend, frontier, ladder, loss_of
from isotropy.evidence.significance import Fold, interval, quantiles
from isotropy.repairs import Chain, Rotate, Whiten
from isotropy.stats import Sample
from isotropy.tasks import STS, Mean, Retrieval

from . import examples

N_DOCUMENTS = 16
RANKS = (0, 2, 12)  # of the relevant document: nDCG@10 of 1, 0.5 and 0
N_SEEDS = 200 if os.environ.get("ISOTROPY_ALL_NULLS") else 30
UNLIKELY = 1e-3  # that a test fails by chance


class Planned(Codec):
    """A code of so many bytes, whose rankings are written in a block of each query's row."""

    def __init__(self, block=1, size=1, stored=None):
        self.block, self.size, self.stored = block, size, stored

    def fit_source(self, source, checkpoint):
        return source.n_samples

    def _check_params(self):
        """Any will do."""

    dtype, n_columns = "float32", N_DOCUMENTS
    n_bytes = property(lambda self: self.size)
    n_bytes_stored = property(lambda self: self.stored or self.size)

    def encoded(self, rows):
        return rows[:, :N_DOCUMENTS].astype(np.float32)

    def decoded(self, codes):
        return codes

    def asked(self, rows):
        start = self.block * N_DOCUMENTS
        return rows[:, start : start + N_DOCUMENTS].astype(np.float32)

    def restore(self, header, tensors):
        """There is nothing."""


def rankings(random, levels):
    """Scores of all documents for queries whose relevant one, document 0, is at these ranks."""
    n = len(levels)
    order = np.argsort(random.random((n, N_DOCUMENTS - 1)), axis=1) + 1
    ranks = np.asarray(RANKS)[levels]
    found = np.zeros((n, N_DOCUMENTS))
    places = np.arange(N_DOCUMENTS - 1)[None]
    places = places + (places >= ranks[:, None])
    found[np.arange(n)[:, None], order] = N_DOCUMENTS - places
    found[:, 0] = N_DOCUMENTS - ranks
    return found


def simulated(seed, losses, n=2000, noise=0.1):
    """(task, vectors) of n queries; code i loses losses[i] points in truth, with noise.

    A third of the queries, those with an nDCG@10 of 0.5, gain or lose half a point of nDCG.
    """
    random = np.random.default_rng(seed)
    levels = random.integers(0, 3, n)
    blocks = [rankings(random, levels)]
    for loss in losses:
        down, drawn = noise + 0.06 * loss, random.random(n)
        step = np.where(drawn < noise, -1, np.where(drawn < noise + down, 1, 0))
        blocks.append(rankings(random, levels + np.where(levels == 1, step, 0)))
    queries = np.concatenate(blocks, axis=1)
    documents = np.eye(N_DOCUMENTS, queries.shape[1])
    names = [f"query {i}" for i in range(n)], [f"document {i}" for i in range(N_DOCUMENTS)]
    task = Retrieval(*names, [(i, 0, 1) for i in range(n)])
    return task, np.concatenate([queries, documents])


def accepted(losses, sizes, seeds, **options):
    """The code that is accepted, or None, for each seed."""
    found = []
    for seed in seeds:
        task, X = simulated(seed, losses)
        codecs = [Planned(i + 1, size) for i, size in enumerate(sizes)]
        result = compress(X, task, codecs, seed=seed, **options)
        found.append(None if result.choice is None else result.choice.codec.block - 1)
    return found


def counted(found):
    """How many are accepted, printed for the record."""
    n_accepted = sum(choice is not None for choice in found)
    print(f"accepted in {n_accepted} of {len(found)}")
    return n_accepted


def most(rate):
    """Successes that so many seeds exceed with a probability below UNLIKELY, at that rate."""
    return int(scipy.stats.binom.isf(UNLIKELY, N_SEEDS, rate))


def fewest(rate):
    return int(scipy.stats.binom.ppf(UNLIKELY, N_SEEDS, rate))


# How often it errs


def test_the_simulation_loses_what_it_says():
    task, X = simulated(0, [3.0, 0.0], n=60_000)
    scores = [task.score(X).value]
    scores += [compress_score(task, X, block) for block in (1, 2)]
    assert scores[0] - scores[1] == pytest.approx(0.03, abs=0.003)  # 4 standard errors: 0.0025
    assert scores[0] - scores[2] == pytest.approx(0.00, abs=0.003)


def compress_score(task, X, block):
    rows = np.concatenate(
        [X[: task.n_items, block * N_DOCUMENTS : (block + 1) * N_DOCUMENTS], np.eye(N_DOCUMENTS)]
    )
    return task.score(rows).value


@pytest.mark.slow
def test_a_code_that_loses_three_points_is_not_accepted():
    """At most 16 of 200; the level promises 5 %."""
    found = accepted([3.0], [8], range(N_SEEDS))
    assert counted(found) <= min(16, most(0.05))


@pytest.mark.slow
def test_a_code_that_loses_nothing_is_accepted():
    """At least 160 of 200."""
    found = accepted([0.0], [8], range(N_SEEDS))
    assert counted(found) >= (160 if N_SEEDS == 200 else fewest(0.8))


@pytest.mark.slow
def test_the_level_holds_for_the_smallest_of_many_codes_that_lose_the_margin():
    found = accepted([1.0] * 6, [8, 8, 4, 4, 2, 2], range(1000, 1000 + N_SEEDS))
    assert counted(found) <= most(0.05)


@pytest.mark.slow
def test_a_smaller_code_that_loses_does_not_hide_a_larger_one_that_does_not():
    found = accepted([0.0, 3.0], [8, 4], range(2000, 2000 + N_SEEDS))
    assert sum(choice == 1 for choice in found) <= most(0.05)
    assert sum(choice == 0 for choice in found) >= fewest(0.75)


@pytest.mark.parametrize("shared", [0.0, 0.9])
def test_the_sequence_keeps_its_level_whatever_is_chosen(shared):
    """With normal scores of 24 codes that all lose the margin, in four sizes."""
    random = np.random.default_rng(1)
    sizes = [(size, size) for size in (64, 32, 16, 8) for _ in range(6)]
    z, n_sets, n_wrong = scipy.stats.norm.ppf(0.95), 4000, 0
    for _ in range(n_sets):
        common = random.standard_normal((2, 1))
        own = random.standard_normal((2, len(sizes)))
        chosen, tested = 1 + np.sqrt(shared) * common + np.sqrt(1 - shared) * own
        steps = ladder(sizes, (chosen + z).tolist())
        n_wrong += descend([tested[step] + z for step in steps], 1.0) > 0
    assert n_wrong <= scipy.stats.binom.isf(UNLIKELY, n_sets, 0.05)


# The steps


def test_quantiles_are_those_of_the_interval():
    random = np.random.default_rng(0)
    folds = [Fold(Mean(random.random(50)), Mean(random.random(50)), np.arange(50))]
    low, high = quantiles(folds, [0.025, 0.975])
    assert interval(folds) == pytest.approx((low, high))
    loss = loss_of(folds)
    assert loss.interval == pytest.approx((-high, -low))
    assert loss.interval[0] < loss.least < loss.value < loss.most < loss.interval[1]
    assert interval(folds, level=0.9) == pytest.approx((-loss.most, -loss.least))


def test_limits_of_the_loss_are_those_of_a_normal_mean():
    random = np.random.default_rng(0)
    lost = 0.02 + 0.1 * random.standard_normal(4000)
    folds = [Fold(Mean(np.zeros(4000)), Mean(lost), np.arange(4000))]
    error = lost.std() / np.sqrt(4000)
    assert loss_of(folds).value == pytest.approx(lost.mean())
    assert loss_of(folds).most == pytest.approx(lost.mean() + 1.645 * error, abs=0.1 * error)


@pytest.mark.parametrize("seed", range(20))
def test_the_ladder_is_the_frontier_of_size_and_limit(seed):
    random = np.random.default_rng(seed)
    sizes = [(int(s), int(s + t)) for s, t in random.integers(1, 6, (12, 2))]
    limits = random.integers(0, 9, 12).astype(float).tolist()
    steps = ladder(sizes, limits)
    assert [sizes[i] for i in steps] == sorted({sizes[i] for i in steps}, reverse=True)
    for i in range(12):
        beaten = any(sizes[j] <= sizes[i] and limits[j] < limits[i] for j in range(12))
        assert beaten == ((sizes[i], limits[i]) not in {(sizes[k], limits[k]) for k in steps})


def test_a_larger_code_is_tested_before_a_smaller_one_as_good():
    assert ladder([(8, 8), (4, 4)], [0.2, 0.2]) == [0, 1]
    assert ladder([(8, 8), (4, 4)], [0.3, 0.2]) == [1]


@pytest.mark.parametrize("n", [50, 100, 150, 300])
def test_rare_losses_of_the_whole_score_are_not_missed(n):
    """One query in a hundred loses everything, as when its document is no candidate."""
    random, n_sets = np.random.default_rng(n), 400
    right = Mean(np.ones(n))
    lost = random.random((n_sets, n)) < 0.01
    limits = [
        loss_of([Fold(Mean(1.0 - row), right, np.arange(n))], whole=True).most for row in lost
    ]
    assert (np.array(limits) < 0.01).sum() <= scipy.stats.binom.isf(UNLIKELY, n_sets, 0.05)


def test_a_gain_of_two_stages_is_a_gain():
    gains = np.random.default_rng(0).random(200)
    folds = [Fold(Mean(gains), Mean(np.zeros(200)), np.arange(200))]
    assert loss_of(folds, whole=True) == loss_of(folds)
    assert loss_of(folds).most < -0.4


def test_codes_for_searches_are_refused_for_pairs():
    task = STS([(f"a{i}", f"b{i}") for i in range(60)], np.arange(60))
    X = np.random.default_rng(0).standard_normal((120, 16))
    for codec in (Rescored(), Binary(asymmetric=True)):
        with pytest.raises(InputError, match="must not be for searches in this task"):
            compress(X, task, [codec])


def test_codes_without_a_score_are_not_tested():
    assert ladder([(4, 4), (2, 2)], [0.1, float("nan")]) == [0]
    assert frontier([(4, 4), (2, 2)], [0.5, float("nan")]) == [True, False]


# What it says


def planned(losses, sizes, n=1500, noise=0.02, **options):
    task, X = simulated(7, losses, n, noise)
    stored = options.pop("stored", [None] * len(sizes))
    codecs = [Planned(i + 1, *size) for i, size in enumerate(zip(sizes, stored, strict=True))]
    return compress(X, task, codecs, **options)


def test_use_the_smallest_that_holds():
    found = planned([0.0, 0.0, 5.0], [32, 16, 8])
    assert (found.verdict, found.choice.n_bytes) == ("use", 16)
    assert found.reason.startswith(f"Use {found.choice.name}: 16 bytes instead of")
    said = "with 95 % confidence). The next one is no better: planned, block=3, size=8 (8 bytes)"
    assert said in found.reason
    assert found.items_needed is None
    assert found.codec.n_features_in_ == found.n_features
    assert found.choice.loss.most < 0.01


def test_stay_if_all_lose():
    found = planned([8.0, 9.0], [32, 8])
    assert (found.verdict, found.choice, found.codec) == ("stay", None, None)
    assert found.reason.startswith("Stay with float32: planned, ")
    assert found.reason.endswith("more than 1 point.")


def test_not_enough_items_says_how_many():
    found = planned([0.0], [32], n=120, noise=0.4)
    assert found.verdict == "undecided"
    assert found.reason.startswith("Not enough items: the loss of ")
    (result,) = found.results
    error = (result.loss.interval[1] - result.loss.interval[0]) / (2 * 1.96)
    expected = found.n_tested * ((1.645 + 0.842) * error / 0.01) ** 2
    assert found.items_needed == pytest.approx(expected, rel=0.15)
    assert f"about {found.items_needed:,} items" in found.reason


def test_not_enough_for_a_smaller_one_is_said_beside_what_holds():
    task, X = simulated(3, [0.0, 0.0], 300, 0.35)
    X[: task.n_items, N_DOCUMENTS : 2 * N_DOCUMENTS] = X[: task.n_items, :N_DOCUMENTS]
    found = compress(X, task, [Planned(1, 32), Planned(2, 8)])
    assert (found.verdict, found.choice.n_bytes) == ("use", 32)
    assert f"for the next one: the loss of {found.results[1].name} (8 bytes) is" in found.reason


def test_few_independent_groups_decide_nothing():
    task, X = simulated(0, [0.0], 300)
    X[: task.n_items] = X[np.arange(task.n_items) % 12]
    with pytest.raises(InputError, match="at least 20 labelled items"):
        compress(X[np.r_[:40, 300:316]], task.subset(np.arange(40)), [Planned(1, 8)])
    found = compress(X, task, [Planned(1, 8)])
    assert found.verdict == "undecided"
    assert "independent groups; at least 20 are needed" in found.reason


def test_the_best_of_a_size():
    found = planned([0.0, 6.0, 2.0], [32, 8, 8], max_bytes=20)
    assert (found.verdict, found.choice.codec.block) == ("best", 3)
    low, high = (100 * end for end in found.choice.loss.interval)
    assert found.reason.endswith(f"(95 % interval {low:.1f} to {high:.1f}).")
    assert found.reason.startswith("Up to 20 bytes, use planned, block=3, size=8: 8 bytes")
    with pytest.raises(InputError, match="max_bytes must be at least 8, the bytes of the smallest"):
        planned([0.0], [8], max_bytes=7)


def test_codes_with_two_stages_name_both_sizes_and_give_way_to_one_that_stores_less():
    found = planned([0.0, 0.0], [8, 8], stored=[64, None])
    assert found.choice.codec.block == 2
    found = planned([0.0, 9.0], [8, 8], stored=[64, None])
    assert found.choice.codec.block == 1
    assert "8 bytes in memory and 64 stored instead of" in found.reason


@pytest.mark.parametrize(("n_candidates", "share"), [(100, "20 %"), (1000, "100 %"), (5, "")])
def test_many_candidates_of_a_small_corpus_are_a_caveat(n_candidates, share):
    random = np.random.default_rng(0)
    documents = random.standard_normal((500, 64))
    queries = documents[:300] + 0.5 * random.standard_normal((300, 64))
    names = [f"query {i}" for i in range(300)], [f"document {i}" for i in range(500)]
    task = Retrieval(*names, [(i, i, 1) for i in range(300)])
    codecs = [Rescored(n_candidates=n_candidates)]
    found = compress(np.concatenate([queries, documents]), task, codecs, max_bytes=8)
    said = [note for note in found.notes if note.startswith("Rescoring ranks")]
    assert len(said) == bool(share)
    if share:
        assert f"{n_candidates:,} candidates, {share} of the 500 documents, so it looks" in said[0]
    plain = compress(np.concatenate([queries, documents]), task, [Binary()], max_bytes=8)
    assert not any("candidates" in note for note in plain.notes)


def test_codes_that_store_too_much_are_not_chosen():
    losses, sizes, stored = [0.0, 0.0, 0.0], [32, 8, 4], [None, 64, 64]
    assert planned(losses, sizes, stored=stored).choice.n_bytes == 4
    found = planned(losses, sizes, stored=stored, max_stored_bytes=40)
    assert found.choice.n_bytes == 32
    assert len(found.results) == 3
    reverse = planned(losses, sizes, stored=stored, max_stored_bytes=64, max_bytes=20)
    assert reverse.choice.n_bytes in (4, 8)
    with pytest.raises(InputError, match="max_stored_bytes must be at least 32, the bytes"):
        planned(losses, sizes, stored=stored, max_stored_bytes=31)
    with pytest.raises(InputError, match=r"max_bytes must be at least 32, .* at most 40 bytes,"):
        planned(losses, sizes, stored=stored, max_stored_bytes=40, max_bytes=20)


def test_the_chosen_code_is_marked_and_not_another_of_its_name():
    task, X = simulated(7, [0.0], 1500, 0.02)
    found = compress(X, task, [Planned(1, 8), Planned(1, 8)])
    assert [one["name"] for one in found.to_dict()["codes"]] == 2 * [found.choice.name]
    assert sum(one["chosen"] for one in found.to_dict()["codes"]) == 1
    assert str(found).count("chosen") == 1


def test_plain_values_and_tables():
    found = planned([0.0, 3.0], [32, 8])
    plain = found.to_dict()
    assert plain["baseline"] == pytest.approx(100 * found.baseline, abs=1e-3)
    for row, result in zip(plain["codes"], found.results, strict=True):
        assert row["score"] == pytest.approx(100 * result.score, abs=1e-3)
        assert plain["baseline"] - row["score"] == pytest.approx(row["loss"], abs=1e-3)
    assert str(found).startswith(found.reason)
    assert str(found).count("\n") == 6 + len(found.results)
    assert "<table>" in found._repr_html_()


def test_a_task_with_parts_is_tested_on_its_test_part():
    task, X = simulated(5, [0.0], 900, 0.02)
    task.part = np.array(["train"] * 300 + ["test"] * 600)
    task.parts = {"train": np.arange(300), "test": np.arange(300, 900)}
    found = compress(X, task, [Planned(1, 8)])
    assert (found.n_chosen, found.n_tested) == (300, 600)
    assert found.baseline == task.score(X, np.arange(300, 900)).value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": 0}, "margin must be above 0, got 0: no number of items shows that a code"),
        ({"max_stored_bytes": 0}, "max_stored_bytes must be"),
        ({"margin": "1"}, "margin must be a number"),
        ({"max_bytes": 0}, "max_bytes must be"),
        ({"codecs": []}, "codecs must be a list of at least one Codec"),
        ({"codecs": [Center()]}, "codecs must be a list of at least one Codec"),
        ({"fit_on": ["a"], "transductive": True}, "fit_on must not be given with transductive"),
        ({"task": "retrieval"}, "task must be a Task, got str"),
        ({"task": None, "fit_on": ["a"]}, "fit_on must come with a task"),
    ],
)
def test_refused(options, message):
    task, X = simulated(0, [0.0], 90)
    with pytest.raises(InputError, match=message):
        compress(X, **({"task": task} | options))


# Real codecs


def searched(seed=0, n=240, d=32):
    """(task, vectors): each query is near its own document, in a narrow cone."""
    random = np.random.default_rng(seed)
    documents = random.standard_normal((n, d)) * np.geomspace(3, 0.3, d)
    queries = documents + 0.7 * random.standard_normal((n, d)) * np.geomspace(3, 0.3, d)
    names = [f"query {i}" for i in range(n)], [f"document {i}" for i in range(n)]
    task = Retrieval(*names, [(i, i, 1) for i in range(n)])
    return task, np.concatenate([queries, documents]) + 4


def test_every_default_code_scores_as_its_codec_ranks():
    task, X = searched()
    codecs = default_codecs(X.shape[1], 240, aligned=True)
    found = compress(X, task, margin=5)
    assert len(found.results) == len(codecs) == 43 + bool(find_spec("faiss"))
    names = [(result.repair, result.code) for result in found.results]
    assert len(set(names)) == len(names)
    n, items = task.n_items, np.arange(task.n_items)
    for result in found.results[::5]:
        asked = X[:n].astype(np.float32)[~of_the_test(task, X)]
        queries = {"queries": asked} if result.codec.align_queries else {}
        codec = result.codec.fit(X[n:].astype(np.float32), **queries)
        _, ranked = codec.search(X[:n], codec.encode(X[n:]), 10)
        hits = ranked == items[:, None]
        gains = np.where(hits.any(1), 1 / np.log2(2 + hits.argmax(1)), 0.0)
        expected = gains[of_the_test(task, X)].mean()
        assert result.score == pytest.approx(expected, abs=0.02)  # float32 and float64 may tie
        assert result.n_bytes == codec.n_bytes


def of_the_test(task, X):
    joined = task.joined(X.astype(np.float32))
    return grouped_folds(joined.groups, 3, 0) != 0


def test_the_saved_codec_is_fitted_on_the_corpus():
    task, X = searched()
    vectors = KeyedVectors(X.astype(np.float32), task.texts)
    found = compress(vectors, task, [Binary(repair=Center())], margin=50)
    rows = X[task.n_items :].astype(np.float32)
    np.testing.assert_allclose(found.codec.repair_.mean_, rows.mean(0, dtype=np.float64), rtol=1e-6)
    assert found.codec.origin_.evidence == found.reason


def test_pairs_are_scored_by_decoded_codes():
    task, X = examples.sts(n=200)
    codecs = [Scalar(bits=8), Binary(repair=Center())]
    found = compress(X, task, codecs, transductive=True, margin=20)
    rows = X.astype(np.float32)
    for result in found.results:
        codec = result.codec.fit(rows[np.concatenate([task.members.ravel()])])
        decoded = codec.decode(codec.encode(rows))
        items = np.flatnonzero(of_the_test(task, X))
        assert result.score == pytest.approx(task.score(decoded, items).value, abs=1e-6)
    tried = default_codecs(64, 5000, search=False)
    assert not any(isinstance(codec, Rescored) for codec in tried)
    assert not any(getattr(codec, "asymmetric", False) or not codec.decodes for codec in tried)


@pytest.mark.filterwarnings("ignore::isotropy.errors.IsotropyWarning")
def test_supervised_tasks_train_on_codes():
    task, X = examples.classification(n=300)
    found = compress(X, task, [Scalar(bits=8)], margin=10)
    assert found.verdict == "use"
    assert abs(found.choice.loss.value) < 0.05


def test_fidelity_is_the_share_of_neighbours_that_are_found_again():
    random = np.random.default_rng(0)
    X = (random.standard_normal((700, 24)) + 1).astype(np.float32)
    found = compress(X, codecs=[Scalar(bits=4), Float()], margin=1)
    exact, coarse = found.results
    assert exact.score == 1.0
    assert exact.metrics["rank correlation"] == pytest.approx(1, abs=1e-6)
    assert (found.n_chosen, found.n_tested) == (46, 94)
    assert found.metric == "recall@10 of float32's own neighbours"
    assert found.notes[0].startswith("This is fidelity, not quality")
    assert 0.7 < coarse.score < 0.99
    assert 0.9 < coarse.metrics["rank correlation"] < 1
    rows = Sample(21_000, 0).update(X).rows
    queries, documents = rows[46:140], rows[140:]
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, documents)]
    near = np.argsort(-(units[0] @ units[1].T), axis=1)[:, :10]
    codec = Scalar(bits=4).fit(documents)
    decoded = codec.decode(codec.encode(documents))
    other = np.argsort(-(codec.queries(queries) @ decoded.T), axis=1)[:, :10]
    shared = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(near, other, strict=True)])
    assert coarse.score == pytest.approx(shared, abs=0.005)  # ties by rounding
    with pytest.raises(InputError, match="vectors must have at least 150 rows, got 99"):
        compress(X[:99])


class Weighted(Binary):
    """A codec with an array among its parameters."""

    name = ""

    def __init__(self, weights=None):
        super().__init__()
        self.weights = weights


def test_names():
    rotated = Chain([Center(), Rotate("random")])
    assert repair_words(rotated) == "center + rotate(random)"
    assert repair_words(None) == "none"
    codec = Rescored(coarse=Binary(repair=rotated, n_dims=16, truncate="pca"), fine=Scalar(bits=8))
    assert code_words(codec) == "binary, pca 16, rescored by int8"
    assert repair_of(codec) is rotated
    assert code_words(Binary(asymmetric=True)) == "binary, float queries"
    assert code_words(Float(half=True)) == "float16"
    assert code_words(Binary(threshold="median")) == "binary, threshold=median"
    assert code_words(Scalar(random_state=3)) == "int8, random_state=3"
    assert code_words(Binary(n_dims=8, align_queries=True)) == "binary, first 8, aligned queries"
    two = Rescored(fine=Float(repair=Center()), n_candidates=50)
    assert code_words(two) == "binary, rescored by float32 (center), n_candidates=50"
    assert repair_words(Rotate("itq", random_state=2)) == "rotate(itq, random_state=2)"
    assert repair_words(Chain([Center()], normalize=True)) == "center, normalize=True"
    assert code_words(Weighted(np.ones(3))) == "binary, weights=ndarray of shape (3,)"


def test_codecs_of_one_width_share_what_is_fitted(monkeypatch):
    task, X = searched()
    fits = []
    learn = Whiten._learn
    monkeypatch.setattr(Whiten, "_learn", lambda *given: fits.append(given) or learn(*given))
    compress(X, task, default_codecs(X.shape[1], 240, aligned=True), margin=50)
    assert len(fits) <= 2  # to compare codes, and to fit the one that is saved


def test_aligned_queries_pay_where_queries_have_another_mean():
    task, X = searched()
    X[: task.n_items] += np.random.default_rng(3).standard_normal(X.shape[1])
    codecs = [Binary(repair=Center(), align_queries=aligned) for aligned in (False, True)]
    found = compress(X, task, codecs, margin=50)
    scores = {result.codec.align_queries: result.score for result in found.results}
    assert scores[True] > scores[False] + 0.05
    assert found.choice.codec.align_queries
    n = task.n_items
    shift = X[n:].mean(axis=0) - X[:n].mean(axis=0)
    np.testing.assert_allclose(found.codec.query_shift_, shift, atol=1e-5)  # of all queries
    pairs = STS([(f"a{i}", f"b{i}") for i in range(60)], np.arange(60))
    with pytest.raises(InputError, match="must not be for searches"):
        compress(X[:120], pairs, [Binary(align_queries=True)])


def test_undefined_scores_are_refused():
    task = STS(examples.pairs(90), np.arange(90.0))
    X = np.random.default_rng(0).standard_normal((180, 16))
    X[::2, :8] = X[1::2, 8:] = 0  # every cosine is zero
    with pytest.raises(InputError, match="must be defined"):
        compress(X, task)
