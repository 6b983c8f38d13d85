"""Size, power and coverage by simulation; groups, folds and Holm's method against hand values."""

import math

import numpy as np
import pytest
import scipy.stats

from isotropy.errors import InputError
from isotropy.evidence.significance import (
    Fold,
    difference,
    holm,
    interval,
    items_needed,
    p_value,
    standard_error,
)
from isotropy.tasks import Correlation, Decisions, Mean


def systems(seed, n=150, mine=1.0, theirs=1.0):
    """Two noisy systems, one with cosines near 0.95 and one spread over a wide scale."""
    random = np.random.default_rng(seed)
    gold = random.random(n) * 5
    narrow = 0.95 + 0.005 * (gold + mine * random.standard_normal(n))
    wide = np.exp(gold + theirs * random.standard_normal(n))
    return [Fold(Correlation(narrow, gold), Correlation(wide, gold), np.arange(n))]


def means(seed, n=80, effect=0.0, spread=1.0):
    random = np.random.default_rng(seed)
    common = random.standard_normal(n)
    gained = common + effect + spread * random.standard_normal(n)
    return [Fold(Mean(gained), Mean(common), np.arange(n))]


def share(found):
    return float(np.mean(list(found)))


@pytest.mark.parametrize("alternative", ["two-sided", "greater"])
def test_equal_systems_on_different_scales_are_told_apart_in_one_of_twenty(alternative):
    found = [p_value(systems(seed), alternative, n_draws=199) for seed in range(400)]
    assert 0.025 <= share(p <= 0.05 for p in found) <= 0.085
    assert 0.4 <= share(p <= 0.5 for p in found) <= 0.6


def test_a_real_difference_is_found():
    better = [systems(seed, mine=1.0, theirs=1.8) for seed in range(60)]
    assert share(p_value(folds, n_draws=199) <= 0.05 for folds in better) >= 0.9
    assert share(p_value(folds, "greater", n_draws=199) <= 0.05 for folds in better) >= 0.9
    worse = [[Fold(fold.baseline, fold.system, fold.groups)] for (fold,) in better]
    assert share(p_value(folds, n_draws=199) <= 0.05 for folds in worse) >= 0.9
    assert share(p_value(folds, "greater", n_draws=199) > 0.95 for folds in worse) >= 0.9


def test_intervals_of_a_mean_hold_the_truth_as_often_as_they_say():
    ends = [interval(means(seed, effect=0.3), n_draws=400) for seed in range(300)]
    assert 0.91 <= share(low <= 0.3 <= high for low, high in ends) <= 0.98
    ends = [interval(means(seed, effect=0.3), n_draws=400, level=0.5) for seed in range(300)]
    assert 0.41 <= share(low <= 0.3 <= high for low, high in ends) <= 0.59


def test_intervals_of_a_rank_correlation_hold_the_truth_as_often_as_they_say():
    ends = [interval(systems(seed), n_draws=300) for seed in range(200)]
    assert 0.90 <= share(low <= 0 <= high for low, high in ends) <= 0.99


def test_the_standard_error_of_a_mean_is_the_textbooks():
    (fold,) = means(0, n=400)
    gap = fold.system.per_item - fold.baseline.per_item
    wanted = gap.std() / math.sqrt(400)
    assert standard_error([fold], n_draws=4000) == pytest.approx(wanted, rel=0.04)


def test_the_p_value_of_a_mean_is_that_of_every_exchange_written_out():
    gap = np.array([0.9, 1.1, -0.2, 0.7, 0.4, 0.8, -0.1, 0.3])
    signs = 1 - 2 * ((np.arange(256)[:, None] >> np.arange(8)) & 1)
    every = signs @ gap / 8
    folds = [Fold(Mean(gap), Mean(np.zeros(8)), np.arange(8))]
    wanted = np.mean(every >= gap.mean() - 1e-12)
    assert p_value(folds, "greater", n_draws=20_000) == pytest.approx(wanted, abs=0.003)
    wanted = np.mean(np.abs(every) >= gap.mean() - 1e-12)
    assert p_value(folds, n_draws=20_000) == pytest.approx(wanted, abs=0.004)


def test_copies_of_items_in_one_group_bring_nothing():
    (once,) = means(3, effect=0.2)
    copies = np.repeat(np.arange(once.n_items), 4)
    system, baseline = Mean(once.system.per_item[copies]), Mean(once.baseline.per_item[copies])
    grouped = [Fold(system, baseline, once.groups[copies])]
    assert interval(grouped) == pytest.approx(interval([once]), abs=1e-12)
    assert standard_error(grouped) == pytest.approx(standard_error([once]), abs=1e-12)
    assert p_value(grouped) == p_value([once])
    apart = [Fold(system, baseline, np.arange(len(copies)))]
    assert standard_error(apart) == pytest.approx(standard_error([once]) / 2, rel=0.1)
    assert p_value(apart) < p_value([once])


def test_any_numbers_name_groups():
    (fold,) = means(4, effect=0.2)
    renamed = Fold(fold.system, fold.baseline, fold.groups * 1000 - 7)
    assert interval([renamed]) == interval([fold])


def test_folds_are_averaged_and_not_pooled():
    easy = Fold(Mean([1.0, 1.0]), Mean([0.0, 0.0]), np.array([0, 1]))
    hard = Fold(Mean(np.zeros(8)), Mean(np.full(8, 0.5)), np.arange(2, 10))
    assert difference([easy, hard]) == 0.25


def test_independent_folds_tell_more_than_one():
    folds = [
        Fold(fold.system, fold.baseline, fold.groups + 1000 * seed)
        for seed in range(4)
        for fold in means(seed)
    ]
    wanted = math.sqrt(sum(standard_error([fold]) ** 2 for fold in folds)) / 4
    assert standard_error(folds) == pytest.approx(wanted, rel=0.1)


def test_folds_of_the_same_groups_share_their_draws():
    (fold,) = means(5, effect=0.2)
    order = np.random.default_rng(0).permutation(fold.n_items)
    shuffled = Fold(
        Mean(fold.system.per_item[order]), Mean(fold.baseline.per_item[order]), fold.groups[order]
    )
    assert interval([fold, shuffled, fold]) == pytest.approx(interval([fold]), abs=1e-12)
    assert p_value([fold, shuffled, fold]) == p_value([fold])
    assert items_needed([fold, shuffled]) == items_needed([fold])


def test_the_same_seed_gives_the_same_digits():
    folds = systems(6)
    for function in (interval, standard_error, p_value):
        assert function(folds, seed=1) == function(folds, seed=1)
        assert function(folds, seed=1) != function(folds, seed=2)


def test_the_digits_do_not_depend_on_the_draws_made_at_a_time(monkeypatch):
    folds = systems(6, mine=0.5)
    whole = interval(folds), p_value(folds)
    monkeypatch.setattr("isotropy.evidence.significance.BLOCK_ELEMENTS", 10_000)
    assert (interval(folds), p_value(folds)) == whole


def test_undefined_scores_give_nan_and_p_one():
    gold = np.arange(20.0)
    flat = Fold(Correlation(np.ones(20), gold), Correlation(gold, gold), np.arange(20))
    assert math.isnan(difference([flat]))
    assert p_value([flat]) == 1
    assert all(math.isnan(end) for end in interval([flat]))
    assert math.isnan(standard_error([flat]))
    with pytest.raises(InputError, match="items_needed: folds must have defined scores"):
        items_needed([flat])


def test_draws_that_are_undefined_are_left_out():
    true = np.array([1, 0, 0, 0])
    fold = Fold(Decisions([1, 0, 0, 0], true), Decisions([0, 0, 0, 0], true), np.arange(4))
    assert interval([fold], n_draws=200) == (1.0, 1.0)


def test_equal_outcomes_have_p_one_and_no_width():
    (fold,) = systems(7)
    same = [Fold(fold.system, fold.system, fold.groups)]
    assert p_value(same) == p_value(same, "greater") == 1
    assert interval(same) == (0, 0)
    assert items_needed(same) == 1


def test_one_group_can_show_nothing():
    fold = Fold(Mean([1.0, 1.0, 1.0]), Mean([0.0, 0.0, 0.0]), np.zeros(3, dtype=int))
    assert p_value([fold]) == 1
    assert p_value([fold], "greater") == pytest.approx(0.5, abs=0.03)


def test_holms_values_are_those_of_the_textbook():
    assert np.allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    assert np.allclose(holm([0.5, 0.6]), [1, 1])
    assert np.allclose(holm([0.02]), [0.02])
    assert holm([]).shape == (0,)


def test_holm_is_the_closed_test_of_bonferroni():
    """An adjusted p is the largest over the sets with it of the set's size times its least p."""
    p = np.random.default_rng(0).random(6) ** 3
    wanted = np.zeros(6)
    for subset in range(1, 64):
        members = [i for i in range(6) if subset >> i & 1]
        value = min(1, len(members) * min(p[members]))
        wanted[members] = np.maximum(wanted[members], value)
    assert np.allclose(holm(p), wanted)


def test_the_items_needed_suffice_and_are_not_too_many():
    spread, effect = 0.3, 0.05
    needed = items_needed(means(8, n=600, spread=spread), effect=effect, n_draws=2000)
    z = scipy.stats.norm.ppf(0.975) + scipy.stats.norm.ppf(0.8)
    assert needed == pytest.approx((z * spread / effect) ** 2, rel=0.15)
    found = [
        p_value(means(seed, n=needed, effect=effect, spread=spread), n_draws=199)
        for seed in range(200)
    ]
    assert 0.7 <= share(p <= 0.05 for p in found) <= 0.9


def test_the_items_needed_do_not_depend_on_the_items_at_hand():
    few, many = (items_needed(systems(9, n=n), n_draws=1000) for n in (400, 3200))
    assert few == pytest.approx(many, rel=0.25)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: difference([]), "difference: folds must be a list of at least one Fold"),
        (lambda f: interval(f, level=95), r"interval: level must be a number in \[0, 1\], got 95"),
        (lambda f: interval(f, n_draws=0), "interval: n_draws must be an integer of at least 1"),
        (lambda f: interval(f, seed=-1), "interval: seed must be an integer of at least 0"),
        (
            lambda f: p_value(f, "less"),
            "p_value: alternative must be one of 'two-sided', 'greater'",
        ),
        (lambda f: p_value(f, n_draws=1.5), "p_value: n_draws must be an integer of at least 1"),
        (lambda f: items_needed(f, effect=0), r"items_needed: effect must be a number in \(0, 1\)"),
        (lambda f: items_needed(f, power=1), r"items_needed: power must be a number in \(0, 1\)"),
        (lambda f: holm([0.5, math.nan]), r"holm: p_values must be a list of numbers in \[0, 1\]"),
        (
            lambda f: Fold(Mean([1]), Mean([1, 2]), np.arange(1)),
            "Fold: system, baseline and groups",
        ),
    ],
)
def test_bad_input_gets_one_line(call, message):
    with pytest.raises(InputError, match=message):
        call(means(0))


def test_one_group_has_no_interval():
    fold = Fold(Mean([1.0, 0.0, 1.0]), Mean([0.0, 0.0, 1.0]), np.zeros(3, dtype=np.int64))
    assert np.isnan(interval([fold])).all()
