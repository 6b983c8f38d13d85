"""diagnose: what is said without labels, which is no recommendation."""

import json
import math

import numpy as np
import pytest
from scipy.stats import norm

from isotropy import KeyedVectors
from isotropy.errors import InputError
from isotropy.evidence.advice import diagnose, pairs_needed

from .examples import TokenEncoder

TEXTS = [f"text {i}" for i in range(300)]


def rows(strength=0.0, n=300, d=16):
    random = np.random.default_rng(0)
    common = np.zeros(d)
    common[0] = 1
    return random.standard_normal((n, d)) + strength * (1 + random.random((n, 1))) * common


def test_nothing_is_recommended():
    found = diagnose(rows(9), TEXTS).to_dict()
    assert (found["choice"], found["params"], found["candidates"]) == ("none", {}, [])
    assert [found[name] for name in ("baseline", "score", "interval", "p")] == [None] * 4
    assert "nothing is recommended" in found["reason"]
    json.dumps(found, allow_nan=False)


def test_the_risk_is_named():
    found = diagnose(rows(9), TEXTS)
    assert "drifted" in found.geometry.findings
    assert "Drifted" in found.reason
    assert "Drifted" in str(found)
    assert str(found).count("Drifted") == 1
    assert f"{found.items_needed:,} labelled pairs" in str(found)
    assert "Fine" in diagnose(rows(), TEXTS).reason


def test_a_repair_that_would_change_more_needs_more_labels():
    agreements = [-0.2, 0.0, 0.5, 0.9, 0.99, 1.0]
    needed = [pairs_needed(agreement) for agreement in agreements]
    assert needed == sorted(needed, reverse=True)
    assert len(set(needed)) == len(needed)
    assert needed[-1] == 1
    isotropic, drifted = diagnose(rows(), TEXTS), diagnose(rows(9), TEXTS)
    assert isotropic.agreement > drifted.agreement
    assert isotropic.items_needed < drifted.items_needed


def test_so_many_labels_are_enough():
    """Of two equal predictors whose ranks agree to r, one point more is found 8 times in 10."""
    agreement, effect, n_tries = 0.9, 0.05, 400
    n = math.ceil(pairs_needed(agreement) * (0.01 / effect) ** 2)
    random = np.random.default_rng(0)
    truth = random.standard_normal((n_tries, n))
    own = np.sqrt(1 - agreement)
    shared = np.sqrt(agreement) * truth
    first, second = (shared + own * random.standard_normal((n_tries, n)) for _ in range(2))
    ranks = [np.argsort(np.argsort(part)) for part in (truth, first, second)]
    scores = [[np.corrcoef(ranks[0][i], r[i])[0, 1] for i in range(n_tries)] for r in ranks[1:]]
    error = np.std(np.subtract(*scores))
    power = norm.sf(norm.ppf(0.975) - effect / error)
    assert power > 0.8


def test_random_pairs_depend_on_the_seed_alone():
    X = rows(3)
    assert diagnose(X, TEXTS).agreement == diagnose(X, TEXTS).agreement
    assert diagnose(X, TEXTS).agreement != diagnose(X, TEXTS, seed=1).agreement


def test_texts_that_return_count_once():
    X = rows()
    keyed = KeyedVectors(X, TEXTS)
    assert diagnose(keyed, TEXTS * 2).geometry.n_samples == 300
    assert diagnose(TokenEncoder(TEXTS, X), TEXTS).geometry.n_samples == 300


@pytest.mark.parametrize(
    ("vectors", "texts", "message"),
    [
        (rows(), TEXTS[:9], "vectors must have one row for each of the task's 9 texts, got 300"),
        (rows(n=9), TEXTS[:9], "texts must hold at least 10 that differ, got 9"),
        (rows(n=1), ["same"] * 20, "texts must hold at least 10 that differ, got 1"),
        (np.ones((300, 4)), TEXTS, "vectors must differ in direction"),
        (np.outer(np.arange(1, 301), np.ones(4)), TEXTS, "vectors must differ in direction"),
        (rows() * np.nan, TEXTS, "must be finite"),
    ],
)
def test_bad_input_gets_one_line(vectors, texts, message):
    with pytest.raises(InputError, match=message) as caught:
        diagnose(vectors, texts)
    assert str(caught.value).startswith("diagnose: ")
    assert "\n" not in str(caught.value)
