"""Candidates: their names, their order, and fits that share what they can."""

import numpy as np
import pytest

import isotropy
from isotropy import AllButTheTop, Center, ClusterRemoval, ScaledCenter, Whiten
from isotropy.errors import InputError
from isotropy.evidence.spaces import (
    NONE,
    Candidate,
    Fits,
    as_candidate,
    default_candidates,
    search_grid,
)
from isotropy.repairs import Chain, PerGroup, Repair, Rotate
from isotropy.tasks import CSLS, LocalScaling

BOTH = ("token", "sentence")
X = np.random.default_rng(0).standard_normal((600, 20)).astype(np.float32) * np.arange(1, 21) + 1


@pytest.mark.parametrize(
    ("spec", "method", "params", "level"),
    [
        ("center", "center", {}, "token"),
        ("sentence/whiten", "whiten", {}, "sentence"),
        ("token/whiten:power=0.5,method=pca", "whiten", {"power": 0.5, "method": "pca"}, "token"),
        ("all-but-the-top:n-components=3", "all-but-the-top", {"n_components": 3}, "token"),
        ("all-but-the-top:n_components=none", "all-but-the-top", {"n_components": None}, "token"),
        ("center: normalize = True", "center", {"normalize": True}, "token"),
        (AllButTheTop(2), "all-but-the-top", {"n_components": 2}, "token"),
        (ClusterRemoval(random_state=4), "cluster-removal", {"random_state": 4}, "token"),
        (Candidate("whiten"), "whiten", {}, "sentence"),
        ("none", NONE, {}, "token"),
    ],
)
def test_a_spec_names_a_candidate(spec, method, params, level):
    assert as_candidate(spec, BOTH) == Candidate(method, params, level)


def test_a_single_row_is_token_and_sentence():
    assert as_candidate("token/center", ("sentence",)).level == "sentence"
    assert as_candidate("center", ("sentence",)).level == "sentence"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("whitening", "method must be one of 'none', .*'whiten'.*, got 'whitening'"),
        ("word/center", "level must be one of 'sentence', 'token', got 'word'"),
        ("center:strength=3", "params of center must be among normalize, got 'strength'"),
        ("none:power=1", "params of none must be left out, got 'power'"),
        ("whiten:power=much", "power must be a number in .*, got 'much'"),
        ("cluster-removal:n_clusters=0", "n_clusters must be an integer of at least 1, got 0"),
        ("cluster-removal:n_components=few", "n_components must be an integer .*, got 'few'"),
        (3, "method must be one of"),
    ],
)
def test_a_bad_spec_gets_one_line(spec, message):
    with pytest.raises(InputError, match=message) as caught:
        as_candidate(spec, BOTH)
    assert "\n" not in str(caught.value)


def test_candidates_say_what_they_are():
    candidate = Candidate("all-but-the-top", {"n_components": 3}, "token")
    assert str(candidate) == "all-but-the-top(n_components=3) on tokens"
    assert str(Candidate("whiten")) == "whiten"
    assert str(Candidate(NONE)) == "none"
    assert candidate.to_dict() == {
        "method": "all-but-the-top",
        "params": {"n_components": 3},
        "level": "token",
        "per_group": False,
    }


def test_only_an_open_seed_is_set():
    assert Candidate("cluster-removal").seeded
    assert Candidate("cluster-removal").make(3).random_state == 3
    fixed = Candidate("cluster-removal", {"random_state": 7})
    assert not fixed.seeded
    assert fixed.make(3).random_state == 7
    assert not any(c.seeded for c in default_candidates(BOTH) if c.method != "cluster-removal")


def test_every_repair_is_compared_at_its_default():
    assert [c.method for c in default_candidates(BOTH)] == sorted(Repair.by_name)
    assert {c.level for c in default_candidates(BOTH)} == {"token"}


@pytest.mark.parametrize("n_features", [1, 2, 8, 24, 768])
@pytest.mark.parametrize("levels", [BOTH, ("sentence",)])
def test_the_search_begins_with_none_and_leaves_something_over(levels, n_features):
    found = search_grid(levels, n_features)
    assert found[0] == Candidate(NONE)
    assert len({str(candidate) for candidate in found}) == len(found)
    assert {candidate.level for candidate in found} == set(levels)
    removed = [c.params.get("n_components", 0) for c in found]
    assert max(removed) < n_features
    if n_features == 768:
        assert {c.method for c in found} == {NONE, *Repair.by_name}
        assert len(found) <= 24


def fits(*candidates, rows=X):
    asked = []

    def source_of(level):
        asked.append(level)
        return isotropy.open(rows)

    return Fits(source_of, candidates), asked


def test_repairs_from_shared_moments_equal_those_fitted_alone():
    candidates = [
        c for c in search_grid(("sentence",), 20) if c.method not in (NONE, "cluster-removal")
    ]
    shared, asked = fits(*candidates)
    for candidate in candidates:
        found = shared.fitted(candidate).transform(X)
        alone = candidate.make().fit(X).transform(X)
        np.testing.assert_allclose(found, alone, rtol=1e-6, atol=1e-6, err_msg=str(candidate))
    assert set(asked) == {"sentence"}


def test_moments_are_made_once_a_level():
    token, sentence = Candidate("center", {}, "token"), Candidate("center")
    shared, asked = fits(token, sentence)
    for candidate in (token, sentence, token, Candidate(NONE)):
        shared.fitted(candidate)
    assert asked == ["token", "sentence"]
    assert shared.fitted(Candidate(NONE)) is None


def removal(n_clusters, n_components, **params):
    params |= {"n_clusters": n_clusters, "n_components": n_components}
    return Candidate("cluster-removal", params)


@pytest.mark.parametrize("side", ["top", "bottom"])
def test_cluster_removals_that_share_clusters_equal_those_fitted_alone(side, monkeypatch):
    candidates = [removal(3, n, side=side) for n in (0, 2, 5)] + [removal(4, 1, side=side)]
    n_fits = count_fits(monkeypatch)
    shared, _ = fits(*candidates)
    found = [shared.fitted(candidate).transform(X) for candidate in candidates]
    assert len(n_fits) == 2
    for candidate, rows in zip(candidates, found, strict=True):
        alone = candidate.make().fit(X)
        assert alone.n_clusters_ == candidate.params["n_clusters"]
        np.testing.assert_allclose(rows, alone.transform(X), rtol=1e-5, atol=1e-4)


def test_what_differs_by_more_than_directions_shares_nothing():
    plain, unit = removal(3, 2), removal(3, 2, normalize=True)
    fixed, other_side = removal(3, 2, random_state=5), removal(3, 2, side="bottom")
    candidates = [plain, unit, fixed, other_side]
    shared, _ = fits(*candidates)
    for candidate in candidates:
        alone = candidate.make().fit(X)
        repair = shared.fitted(candidate)
        assert repair.get_params() == alone.get_params()
        np.testing.assert_allclose(repair.transform(X), alone.transform(X), rtol=1e-5, atol=1e-4)


def test_seeds_are_clustered_apart(monkeypatch):
    n_fits = count_fits(monkeypatch)
    candidate = removal(3, 2)
    shared, _ = fits(candidate)
    repairs = [shared.fitted(candidate, seed) for seed in (0, 1, 0)]
    assert len(n_fits) == 2
    assert [repair.random_state for repair in repairs] == [0, 1, 0]


def count_fits(monkeypatch):
    calls, fit = [], ClusterRemoval.fit

    def counted(self, X, *arguments):
        calls.append(self)
        return fit(self, X, *arguments)

    monkeypatch.setattr(ClusterRemoval, "fit", counted)
    return calls


def test_a_repair_without_moments_is_fitted_by_itself():
    candidate = Candidate("scaled-center")
    shared, _ = fits(candidate)
    expected = ScaledCenter().fit(X).transform(X)
    np.testing.assert_allclose(shared.fitted(candidate).transform(X), expected, rtol=1e-6)


@pytest.mark.parametrize("candidate", [Candidate("center"), Candidate("whiten"), removal(3, 2)])
def test_shared_fits_can_be_saved_and_tell_shifts(candidate, tmp_path):
    shared, _ = fits(candidate, removal(3, 5))
    repair = shared.fitted(candidate)
    repair.save(tmp_path / "repair")
    loaded = isotropy.load(tmp_path / "repair")
    np.testing.assert_array_equal(loaded.transform(X), repair.transform(X))
    assert not repair.shift(X).large
    assert repair.shift(X + 100).large


def test_the_references_are_themselves():
    """What is fitted alone is what the classes give."""
    np.testing.assert_array_equal(
        Candidate("whiten", {"power": 0.5}).make().fit(X).transform(X),
        Whiten(power=0.5).fit(X).transform(X),
    )
    assert isinstance(Candidate("center").make().fit(X), Center)


@pytest.mark.parametrize("repair", [Rotate(), Chain([Center(), Rotate()])])
def test_a_repair_that_keeps_cosines_is_refused(repair):
    with pytest.raises(InputError, match=f"must be one of .*, got {type(repair).__name__}"):
        as_candidate(repair, ("sentence",))
    assert not {"rotate", "chain"} & {c.method for c in default_candidates(BOTH)}


def test_a_repair_of_groups_is_refused():
    with pytest.raises(InputError, match="one for all rows, got PerGroup"):
        as_candidate(PerGroup(Center()), ("sentence",))


@pytest.mark.parametrize(
    ("spec", "candidate", "shown"),
    [
        ("csls", Candidate(NONE, {}, "token", CSLS()), "csls"),
        ("local-scaling:k=5", Candidate(NONE, {}, "token", LocalScaling(5)), "local-scaling(k=5)"),
        ("center+csls", Candidate("center", {}, "token", CSLS()), "center on tokens + csls"),
        (
            "sentence/whiten:power=0.5+csls:k=3",
            Candidate("whiten", {"power": 0.5}, "sentence", CSLS(3)),
            "whiten(power=0.5) + csls(k=3)",
        ),
        (CSLS(7), Candidate(NONE, scorer=CSLS(7)), "csls(k=7)"),
    ],
)
def test_a_scorer_is_a_candidate_alone_or_after_a_repair(spec, candidate, shown):
    found = as_candidate(spec, BOTH)
    assert found == candidate
    assert str(found) == shown
    assert not found.is_none
    assert found.to_dict()["scorer"] == str(candidate.scorer)
    assert Candidate(NONE).is_none


def test_neither_default_list_has_a_scorer():
    assert not any(c.scorer for c in [*default_candidates(BOTH), *search_grid(BOTH, 768)])
