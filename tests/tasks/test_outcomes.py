"""Outcomes against scipy and scikit-learn on samples written out, and loops over the draws."""

import numpy as np
import pytest
import scipy.stats
from sklearn import metrics

from isotropy.errors import InputError
from isotropy.tasks import AveragePrecision, Correlation, Decisions, Mean, VMeasure

N = 60
DRAWS = 40


def random(seed=0):
    return np.random.default_rng(seed)


def scores(seed, ties=False):
    values = random(seed).standard_normal(N)
    return np.round(values, 0) if ties else values


def drawn(seed=9, n_items=N):
    return random(seed).integers(0, 4, (DRAWS, n_items))


def swapped(seed=8, n_items=N):
    return random(seed).integers(0, 2, (DRAWS, n_items)).astype(bool)


GOLD = np.round(random(1).random(N) * 4)
TRUE = random(2).integers(0, 3, N)
STRATA = random(3).integers(0, 4, N)

PAIRS = {
    "mean": lambda: (Mean(scores(10)), Mean(scores(11))),
    "spearman": lambda: (Correlation(scores(10), GOLD), Correlation(scores(11, True), GOLD)),
    "spearman of strata": lambda: tuple(
        Correlation(scores(seed), GOLD, strata=STRATA, combine="wmean") for seed in (10, 11)
    ),
    "pearson": lambda: tuple(Correlation(scores(seed), GOLD, "pearson") for seed in (10, 11)),
    "matthews": lambda: tuple(Decisions(random(seed).integers(0, 3, N), TRUE) for seed in (10, 11)),
    "f1": lambda: tuple(
        Decisions(random(seed).integers(0, 2, N), TRUE > 1, "f1") for seed in (10, 11)
    ),
    "macro-f1": lambda: tuple(
        Decisions(random(seed).integers(0, 3, N), TRUE, "macro-f1") for seed in (10, 11)
    ),
    "average precision": lambda: (
        AveragePrecision(scores(10), TRUE > 1),
        AveragePrecision(scores(11), TRUE > 1),
    ),
    "v-measure": lambda: tuple(VMeasure(random(s).integers(0, 4, N), TRUE) for s in (10, 11)),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_no_swap_is_the_difference_and_all_swaps_its_negative(kind):
    mine, theirs = PAIRS[kind]()
    none, every = mine.exchanged(theirs, np.array([[False] * N, [True] * N]))
    assert none == pytest.approx(mine.value - theirs.value, abs=1e-12)
    assert every == pytest.approx(theirs.value - mine.value, abs=1e-12)


@pytest.mark.parametrize("kind", PAIRS)
def test_an_exchange_with_itself_changes_nothing(kind):
    mine, _ = PAIRS[kind]()
    assert np.allclose(mine.exchanged(mine, swapped()), 0, atol=1e-12)


@pytest.mark.parametrize("kind", PAIRS)
def test_draws_in_blocks_are_the_draws_one_by_one(kind, monkeypatch):
    monkeypatch.setattr("isotropy.tasks.outcomes.BLOCK_ELEMENTS", 7 * N)
    mine, theirs = PAIRS[kind]()
    weights, swaps = drawn(), swapped()
    one_by_one = np.concatenate([mine.resampled(w[None]) for w in weights])
    assert np.allclose(mine.resampled(weights), one_by_one, atol=1e-13)
    one_by_one = np.concatenate([mine.exchanged(theirs, s[None]) for s in swaps])
    assert np.allclose(mine.exchanged(theirs, swaps), one_by_one, atol=1e-13)


@pytest.mark.parametrize("kind", PAIRS)
def test_a_draw_of_nothing_is_undefined(kind):
    mine, _ = PAIRS[kind]()
    assert np.isnan(mine.resampled(np.zeros((1, N)))).all()
    assert mine.resampled(np.zeros((0, N))).shape == (0,)


def expanded(reference, weights, *values):
    return [reference(*(np.repeat(v, w) for v in values)) for w in weights]


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_is_scipys_on_the_sample_written_out(ties):
    predicted = scores(4, ties)
    outcome = Correlation(predicted, GOLD)
    wanted = expanded(lambda x, y: scipy.stats.spearmanr(x, y)[0], drawn(), predicted, GOLD)
    assert np.allclose(outcome.resampled(drawn()), wanted, rtol=0, atol=1e-12)
    assert outcome.value == pytest.approx(scipy.stats.spearmanr(predicted, GOLD)[0], abs=1e-12)


def test_pearson_is_scipys_on_the_sample_written_out():
    predicted = 1e6 + scores(4)
    outcome = Correlation(predicted, GOLD, kind="pearson")
    wanted = expanded(lambda x, y: scipy.stats.pearsonr(x, y)[0], drawn(), predicted, GOLD)
    assert np.allclose(outcome.resampled(drawn()), wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("combine", ["all", "mean", "wmean"])
def test_strata_are_combined_as_written_out(combine):
    predicted = scores(4)
    outcome = Correlation(predicted, GOLD, strata=STRATA, combine=combine)

    def reference(x, y, strata):
        if combine == "all":
            return scipy.stats.spearmanr(x, y)[0]
        parts = [strata == k for k in np.unique(strata)]
        found = [scipy.stats.spearmanr(x[part], y[part])[0] for part in parts]
        shares = [part.sum() if combine == "wmean" else 1 for part in parts]
        return np.average(found, weights=shares)

    wanted = expanded(reference, drawn(), predicted, GOLD, STRATA)
    assert np.allclose(outcome.resampled(drawn()), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("combine", ["mean", "wmean"])
def test_a_stratum_that_was_not_drawn_is_left_out(combine):
    predicted = scores(4)
    kept = STRATA != 2
    whole = Correlation(predicted, GOLD, strata=STRATA, combine=combine)
    rest = Correlation(predicted[kept], GOLD[kept], strata=STRATA[kept], combine=combine)
    assert whole.resampled(kept[None])[0] == pytest.approx(rest.value, abs=1e-12)


def test_strata_may_have_any_labels():
    names = np.array(["news", "forum", "images", "answers"])[STRATA]
    by_name = Correlation(scores(4), GOLD, strata=names, combine="mean")
    by_number = Correlation(scores(4), GOLD, strata=STRATA, combine="mean")
    assert by_name.value == pytest.approx(by_number.value, abs=1e-14)


def pearson_after_swaps(a, b, gold, swaps, transform, strata):
    """The differences of mean correlations over strata, one draw at a time."""
    found = []
    for swap in swaps:
        gaps = []
        for part in (strata == k for k in np.unique(strata)):
            x, y, s = transform(a[part]), transform(b[part]), swap[part]
            mine, theirs = np.where(s, y, x), np.where(s, x, y)
            g = transform(gold[part])
            gaps.append(np.corrcoef(mine, g)[0, 1] - np.corrcoef(theirs, g)[0, 1])
        found.append(np.mean(gaps))
    return np.array(found)


@pytest.mark.parametrize("combine", ["all", "mean"])
@pytest.mark.parametrize("kind", ["spearman", "pearson"])
def test_exchanged_ranks_and_z_scores_are_those_of_a_loop(kind, combine):
    a, b = scores(4), np.exp(scores(5, True))
    strata = STRATA if combine == "mean" else np.zeros(N)
    transform = scipy.stats.rankdata if kind == "spearman" else scipy.stats.zscore
    mine, theirs = (Correlation(x, GOLD, kind, strata=STRATA, combine=combine) for x in (a, b))
    wanted = pearson_after_swaps(a, b, GOLD, swapped(), transform, strata)
    assert np.allclose(mine.exchanged(theirs, swapped()), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["spearman", "pearson"])
def test_the_scale_of_a_system_does_not_count(kind):
    mine, theirs = (Correlation(scores(seed), GOLD, kind) for seed in (4, 5))
    scaled = Correlation(1e-3 * scores(5) + 0.99, GOLD, kind)
    found, wanted = (mine.exchanged(x, swapped()) for x in (scaled, theirs))
    assert np.allclose(found, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["spearman", "pearson"])
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e9 / 7])
def test_constant_predictions_or_gold_are_undefined(kind, constant):
    flat = np.full(N, constant)
    assert np.isnan(Correlation(flat, GOLD, kind).value)
    assert np.isnan(Correlation(GOLD, flat, kind).value)
    gaps = Correlation(flat, GOLD, kind).exchanged(Correlation(scores(4), GOLD, kind), swapped())
    assert np.isfinite(gaps).all()
    assert np.isnan(Correlation([1.0], [2.0], kind).value)


def test_a_draw_of_one_item_again_and_again_has_no_correlation():
    weights = np.eye(N, dtype=int)[:5] * N
    for kind in ("spearman", "pearson"):
        assert np.isnan(Correlation(scores(4) / 3, GOLD / 7, kind).resampled(weights)).all()


def test_the_mean_is_that_of_the_sample_written_out():
    values = scores(4)
    assert Mean(values).value == pytest.approx(values.mean(), abs=1e-14)
    wanted = expanded(np.mean, drawn(), values)
    assert np.allclose(Mean(values).resampled(drawn()), wanted, rtol=0, atol=1e-13)


def test_exchanged_numbers_are_those_of_a_loop():
    a, b = scores(4), scores(5)
    wanted = [(np.where(s, b, a) - np.where(s, a, b)).mean() for s in swapped()]
    assert np.allclose(Mean(a).exchanged(Mean(b), swapped()), wanted, rtol=0, atol=1e-13)


def matthews(x, y):
    return metrics.matthews_corrcoef(x, y)


def f1(true, predicted):
    return metrics.f1_score(true, predicted, pos_label=2, average="binary")


def macro_f1(true, predicted):
    return metrics.f1_score(true, predicted, average="macro")


@pytest.mark.parametrize(
    ("measure", "n_labels", "reference"),
    [
        ("matthews", 2, matthews),
        ("matthews", 5, matthews),
        ("f1", 2, f1),
        ("macro-f1", 5, macro_f1),
    ],
)
def test_decisions_are_scored_as_scikit_learn_does(measure, n_labels, reference):
    true, a, b = (random(seed).integers(1, n_labels + 1, N) for seed in (4, 5, 6))
    mine, theirs = (Decisions(x, true, measure, positive=2) for x in (a, b))
    assert mine.value == pytest.approx(reference(true, a), abs=1e-12)
    wanted = expanded(reference, drawn(), true, a)
    assert np.allclose(mine.resampled(drawn()), wanted, rtol=0, atol=1e-12)
    wanted = [
        reference(true, np.where(s, b, a)) - reference(true, np.where(s, a, b)) for s in swapped()
    ]
    assert np.allclose(mine.exchanged(theirs, swapped()), wanted, rtol=0, atol=1e-12)


def test_decisions_take_labels_that_only_one_system_uses():
    true = np.array(["a", "b", "a", "b"])
    mine, theirs = Decisions(["a", "b", "a", "c"], true), Decisions(["b", "b", "d", "b"], true)
    gap = mine.exchanged(theirs, np.array([[True, False, False, False]]))
    wanted = matthews(true, list("bbac")) - matthews(true, list("abdb"))
    assert gap[0] == pytest.approx(wanted, abs=1e-12)


def test_decisions_without_a_choice():
    assert Decisions([1, 1, 1], [0, 1, 1]).value == 0
    assert np.isnan(Decisions([0, 1, 1], [1, 1, 1]).value)
    assert Decisions([0, 0], [0, 1], "f1").value == 0
    assert np.isnan(Decisions([0, 0], [0, 0], "f1").value)
    assert Decisions([1], [1], "macro-f1").value == 1


def test_a_positive_label_that_does_not_occur_is_refused():
    with pytest.raises(InputError, match=r"positive must be one of the labels, got 1 and labels"):
        Decisions(["yes", "no"], ["no", "no"], "f1")


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_is_scikit_learns_on_the_sample_written_out(ties):
    predicted, gold = scores(4, ties), TRUE > 1
    outcome = AveragePrecision(predicted, gold)
    reference = metrics.average_precision_score
    assert outcome.value == pytest.approx(reference(gold, predicted), abs=1e-12)
    wanted = expanded(reference, drawn(), gold, predicted)
    assert np.allclose(outcome.resampled(drawn()), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_after_an_exchange_of_ranks_is_that_of_a_loop(ties):
    gold = TRUE > 1
    a, b = scores(4, ties), np.exp(scores(5))
    x, y = scipy.stats.rankdata(a), scipy.stats.rankdata(b)
    reference = metrics.average_precision_score
    wanted = [
        reference(gold, np.where(s, y, x)) - reference(gold, np.where(s, x, y)) for s in swapped()
    ]
    found = AveragePrecision(a, gold).exchanged(AveragePrecision(b, gold), swapped())
    assert np.allclose(found, wanted, rtol=0, atol=1e-12)


def test_average_precision_without_positives_is_undefined():
    assert np.isnan(AveragePrecision([1.0, 2.0], [0, 0]).value)
    assert AveragePrecision([1.0, 1.0, 1.0, 1.0], [0, 1, 0, 0]).value == 0.25
    with pytest.raises(InputError, match="gold must be 0 or 1"):
        AveragePrecision([1.0, 2.0], [0, 2])


def test_v_measure_is_scikit_learns_on_the_sample_written_out():
    clusters = random(4).integers(0, 5, N)
    clusters[TRUE == 1] = 3
    outcome = VMeasure(clusters, TRUE)
    reference = metrics.v_measure_score
    assert outcome.value == pytest.approx(reference(TRUE, clusters), abs=1e-12)
    wanted = expanded(reference, drawn(), TRUE, clusters)
    assert np.allclose(outcome.resampled(drawn()), wanted, rtol=0, atol=1e-12)


def surprises(clusters, true):
    """-log p(class|cluster), -log p(cluster|class), -log p(cluster) of each item, counted out."""
    found = []
    for k, c in zip(clusters, true, strict=True):
        both = np.mean((clusters == k) & (true == c))
        found.append([np.mean(clusters == k) / both, np.mean(true == c) / both])
        found[-1].append(1 / np.mean(clusters == k))
    return np.log(found)


def test_v_measure_after_an_exchange_is_that_of_a_loop():
    a, b = (random(seed).integers(0, 4, N) for seed in (4, 5))
    x, y = surprises(a, TRUE), surprises(b, TRUE)
    entropy = scipy.stats.entropy(np.bincount(TRUE))

    def v(items):
        given_cluster, given_class, clusters = items.mean(axis=0)
        h, c = max(1 - given_cluster / entropy, 0), max(1 - given_class / clusters, 0)
        return scipy.stats.hmean([h, c])

    wanted = [v(np.where(s[:, None], y, x)) - v(np.where(s[:, None], x, y)) for s in swapped()]
    found = VMeasure(a, TRUE).exchanged(VMeasure(b, TRUE), swapped())
    assert np.allclose(found, wanted, rtol=0, atol=1e-12)


def test_v_measure_of_one_cluster_is_zero_and_of_one_class_undefined():
    assert VMeasure([0, 0, 0], [0, 1, 1]).value == 0
    assert VMeasure(["x", "y", "y"], [0, 1, 1]).value == pytest.approx(1)
    assert np.isnan(VMeasure([0, 1, 1], [2, 2, 2]).value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mean([]), r"Mean: per_item must have the shape \(n_items,\)"),
        (lambda: Mean([[1.0]]), r"Mean: per_item must have the shape \(n_items,\)"),
        (lambda: Mean([1.0, np.nan]), r"Mean: per_item must be finite, got nan for 1 item \(first"),
        (lambda: Mean(["a"]), "Mean: per_item must be numeric"),
        (
            lambda: Correlation([1, 2], [1, 2, 3]),
            "gold must have one entry for each of the 2 items",
        ),
        (
            lambda: Correlation([1, 2], [1, 2], "kendall"),
            "kind must be one of 'spearman', 'pearson'",
        ),
        (lambda: Correlation([1, 2], [1, 2], combine="sum"), "combine must be one of 'all'"),
        (lambda: Correlation([1, 2], [1, 2], strata=[1]), "strata must have one entry for each"),
        (lambda: Decisions([1], [1], "recall"), "measure must be one of 'matthews'"),
        (lambda: Decisions([1], ["1"]), "predicted must be labels like the true ones"),
        (lambda: VMeasure([1, 2], [1]), "VMeasure: true must have one entry for each of the 2"),
    ],
)
def test_bad_input_gets_one_line(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_draws_and_systems_that_do_not_fit_get_one_line():
    mine = Correlation([1, 2, 3], [1, 2, 3])
    with pytest.raises(InputError, match=r"weights must have the shape \(draws, 3\), got \(3,\)"):
        mine.resampled(np.ones(3))
    with pytest.raises(InputError, match=r"weights must not be negative, got -1"):
        mine.resampled(np.array([[1, -1, 2]]))
    with pytest.raises(InputError, match=r"swaps must have the shape \(draws, 3\)"):
        mine.exchanged(mine, np.ones((2, 4), dtype=bool))
    with pytest.raises(InputError, match=r"other must be a Correlation on 3 items, got Mean on 3"):
        mine.exchanged(Mean([1, 2, 3]), np.ones((2, 3), dtype=bool))
    with pytest.raises(InputError, match=r"other must have the same gold"):
        mine.exchanged(Correlation([1, 2, 3], [1, 2, 4]), np.ones((2, 3), dtype=bool))


def test_other_figures_are_kept():
    assert Mean([1.0], metrics={"mrr": 0.5}).metrics == {"mrr": 0.5}
    assert Mean([1.0]).metrics == {}


def test_a_stratum_with_constant_gold_is_left_out_of_the_mean():
    predicted, gold = [0.1, 0.4, 0.2, 0.9, 0.3, 0.5], [1, 2, 3, 4, 2, 2]
    strata = [0, 0, 0, 0, 1, 1]
    found = Correlation(predicted, gold, strata=strata, combine="mean")
    assert found.value == Correlation(predicted[:4], gold[:4]).value
    assert np.isfinite(found.resampled(np.ones((2, 6), dtype=int))).all()
