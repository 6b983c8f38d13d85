"""Which items are chosen with and scored on, and that the advice says so."""

import numpy as np
import pytest

from isotropy.evidence import advise, compare
from isotropy.evidence.split import HELD_OUT, divided, effective_groups, separable
from isotropy.tasks import STS

from .examples import direction, pairs


def recurring(n_families=60, each=4, n=480, links=0.0, seed=0, planted=True):
    """(task, vectors) of SICK's shape: every sentence is in several pairs, of train and of test.

    Sentences come in families that pairs are made within, but for a share of links between them;
    scores are the cosines before all rows got more or less of one direction.
    """
    random = np.random.default_rng(seed)
    family = random.integers(0, n_families, n)
    first, step = random.integers(0, each, n), random.integers(1, each, n)
    other = np.where(random.random(n) < links, random.integers(0, n_families, n), family)
    left, right = family * each + first, other * each + (first + step) % each
    Z = random.standard_normal((n_families * each, 16))
    u, v = Z[left], Z[right]
    gold = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    names = [(f"sentence {a}", f"sentence {b}") for a, b in zip(left, right, strict=True)]
    task = STS(names, gold + 0.05 * random.standard_normal(n), part=["train", "test"] * (n // 2))
    X = Z[[int(text.split()[1]) for text in task.texts]]
    if planted:
        X = X + (8 + 3 * random.standard_normal((len(X), 1))) * direction(random, 16)
    return task, X


@pytest.mark.parametrize("links", [0.0, 0.3])
def test_a_planted_repair_is_found_where_train_and_test_share_their_sentences(links):
    task, X = recurring(links=links)
    train, test = (task.members[task.parts[part]] for part in ("train", "test"))
    assert np.isin(train, test).any(axis=1).mean() > 0.95
    found = advise(X, task, candidates=["center", "all-but-the-top:n_components=1", "whiten"])
    assert str(found).startswith("Repair it: all-but-the-top(n_components=1).")
    assert found.score - found.baseline > 0.1
    assert found.scored_on == HELD_OUT
    assert found.n_items >= 100
    n_items = f"all {found.n_items}" if found.n_items == task.n_items else f"{found.n_items} of 480"
    assert f"Items used: {n_items} of the train and test parts together" in str(found)
    assert "train items share a sentence with the test part" in found.items
    assert found.to_dict()["items"] == found.items


def test_nothing_is_planted_where_train_and_test_share_their_sentences():
    for seed in range(3):
        task, X = recurring(seed=seed, planted=False)
        task.scores = np.random.default_rng(seed).permutation(task.scores)
        found = advise(X, task, candidates=["center", "all-but-the-top:n_components=1", "whiten"])
        assert found.choice.method == "none"
        assert "Items used: all 480" in str(found)


def test_folds_of_both_parts_share_no_sentence():
    task, _ = recurring()
    found = divided(task, 2000, 0)
    assert found.pooled
    assert found.outside is None
    used = found.task(task)
    assert list(used.parts) == ["all"]
    assert used.n_items == len(found.inside) == 480
    assert list(task.parts) == ["train", "test"], "the task given is left as it was"


def test_items_of_one_large_group_are_given_up_for_more_groups():
    task, _ = recurring(links=0.3)
    assert effective_groups(task.groups) < 3
    found = divided(task, 2000, 0)
    left = found.task(task)
    assert effective_groups(left.groups) >= 20
    assert f"{left.n_items} of 480 of the train and test parts" in found.words
    assert f"{480 - left.n_items} excluded because they share sentences" in found.words


def test_items_that_are_no_group_are_all_kept():
    task = STS(pairs(50), np.arange(50))
    assert (separable(task, np.arange(50), 0) == np.arange(50)).all()
    star = STS([("a", f"b{i}") for i in range(50)], np.arange(50))
    assert (separable(star, np.arange(50), 0) == np.arange(50)).all()


def test_few_that_share_are_excluded_from_the_training_part():
    texts = [*pairs(50), *pairs(40, "c", "d")]
    texts[:12] = [(f"c{i}", f"b{i}") for i in range(12)]
    task = STS(texts, np.arange(90), part=["train"] * 50 + ["test"] * 40)
    found = divided(task, 30, 0)
    assert set(found.inside) <= set(range(12, 50))
    assert (len(found.inside), found.outside.tolist()) == (30, list(range(50, 90)))
    assert found.words == (
        "Items used: 30 of 50 items of the train part (12 excluded for sharing a sentence with the "
        "test part; at most 30 are used) to choose, all 40 of the test part to score."
    )


def test_where_most_of_the_training_part_shares_with_few_these_are_not_scored():
    texts = [*((f"a{i}", f"t{i % 4}") for i in range(50)), *pairs(40, "t", "u")]
    task = STS(texts, np.arange(90), part=["train"] * 50 + ["test"] * 40)
    found = divided(task, 2000, 0)
    assert found.inside.tolist() == list(range(50))
    assert found.outside.tolist() == list(range(54, 90))
    assert found.words == (
        "Items used: all 50 items of the train part to choose, 36 of 40 of the test part (4 "
        "excluded for sharing a sentence with the train part) to score."
    )


def test_advise_and_compare_count_the_same_excluded_texts():
    random = np.random.default_rng(0)
    texts = [*pairs(60), *pairs(60, "c", "d")]
    texts[:12] = [(f"c{i}", f"b{i}") for i in range(12)]
    task = STS(texts, random.random(120), part=["train"] * 60 + ["test"] * 60)
    X = random.standard_normal((len(task.texts), 6))
    advised = advise(X, task, candidates=["center"])
    compared = compare(X, task, ["center"], part="test")
    line = "12 evaluated texts were excluded from fitting."
    assert advised.n_removed == 12
    assert line in str(advised)
    assert line in str(compared)


def test_items_of_parts_that_are_put_together_are_all_counted():
    task, _ = recurring()
    found = divided(task, 100, 0)
    assert found.pooled
    used = f"Items used: {len(found.inside)} of {task.n_items} of the train and test parts"
    assert used in found.words
    assert "at most 100 of the train part are used" in found.words
    n_left = 100 + len(task.parts["test"]) - len(found.inside)
    tied = f"{n_left} excluded because they share sentences with most other items"
    assert (tied in found.words) == (n_left > 0)
    assert "all" not in found.words
