"""advise: planted truth is found, nothing is found where there is none, and what is reported."""

import json
import warnings

import numpy as np
import pytest

import isotropy
from isotropy import AllButTheTop, ClusterRemoval, KeyedVectors
from isotropy.errors import InputError, IsotropyWarning
from isotropy.evidence import Candidate, advise
from isotropy.evidence.advice import percent, signed
from isotropy.evidence.advice import plain as printed
from isotropy.evidence.search import LEAST_ITEMS
from isotropy.evidence.significance import Fold, interval
from isotropy.evidence.split import divided
from isotropy.models.texts import Span
from isotropy.tasks import STS, Retrieval, WordInContext

from .examples import TokenEncoder, classification, direction, pairs, sts, three_parts

PROMISED = {"choice", "params", "baseline", "score", "interval", "p", "reason", "candidates"}
REMOVAL = Candidate("all-but-the-top", {"n_components": 1})
FEW = [Candidate("center"), REMOVAL, Candidate("whiten")]


def plain(advice):
    """The advice as JSON has it, without its time."""
    found = json.loads(json.dumps(advice.to_dict(), allow_nan=False))
    del found["seconds"]
    return found


@pytest.fixture(scope="module")
def planted():
    """A divided task with a planted direction, its rows, and the advice."""
    task, X = sts("planted", part=three_parts(300))
    return task, X.astype(np.float32), advise(X, task)


# Planted truth


def test_a_planted_direction_is_found_and_removed(planted):
    _, X, found = planted
    assert found.choice == REMOVAL
    assert found.p <= 0.001
    assert found.score - found.baseline > 0.1
    assert found.interval[0] > 0.1
    common = X.mean(axis=0)  # all rows have some of the planted direction
    assert abs(found.repair.components_[0] @ common) > 0.95 * np.linalg.norm(common)


def test_an_undivided_task_is_scored_on_folds_it_was_not_chosen_with():
    task, X = sts("planted")
    found = advise(X, task)
    assert found.choice == REMOVAL
    assert found.scored_on == "held-out folds"
    assert found.n_items == 300
    assert found.score - found.baseline > 0.1
    assert found.p <= 0.001


def test_it_is_left_alone_where_labels_ignore_the_planted_direction():
    task, X = classification(part=three_parts(240))
    found = advise(X, task)
    assert found.choice.method == "none"
    assert found.repair is None
    assert found.p > 0.025
    assert str(found).startswith("Leave it alone.")


def test_a_planted_direction_is_found_in_tokens():
    """Each text has more or less of one direction in all of its tokens."""
    task, X = sts("planted", n=200, d=12)
    found = advise(TokenEncoder(task.texts, X), task)
    assert found.choice.method != "none"
    assert found.score - found.baseline > 0.1
    levels = {candidate["level"] for candidate in found.candidates}
    assert levels == {"token", "sentence"}


# What is reported


def test_the_promised_keys_are_there(planted):
    _, _, advice = planted
    found = plain(advice)
    assert set(found) >= PROMISED
    assert found["choice"] == "all-but-the-top"
    assert found["params"] == {"n_components": 1}
    assert found["level"] == "sentence"
    assert found["score"] == pytest.approx(100 * advice.score, abs=1e-4)
    assert found["interval"] == pytest.approx([100 * end for end in advice.interval], abs=1e-4)
    assert found["p"] == advice.p
    assert set(found["candidates"][0]) == {
        "method", "params", "level", "per_group", "score", "difference", "standard_error",
    }  # fmt: skip
    assert found["candidates"][0]["method"] == "none"
    assert found["candidates"][0]["difference"] == 0
    for word in ("all-but-the-top(n_components=1)", "'sts'", "the test part", "one-sided p"):
        assert word in advice.reason
    assert str(advice).startswith("Repair it: all-but-the-top(n_components=1).")


def test_scores_are_those_of_the_test_part(planted):
    task, X, advice = planted
    test, train = task.parts["test"], task.parts["train"]
    repair = AllButTheTop(1).fit(X[task.members[train].ravel()])
    none, system = task.score(X, test), task.score(repair.transform(X), test)
    assert advice.baseline == none.value
    assert advice.score == pytest.approx(system.value, abs=1e-6)
    folds = [Fold(system, none, task.groups[test])]
    assert advice.interval == pytest.approx(interval(folds), abs=1e-6)
    assert (advice.n_items, advice.scored_on) == (100, "the test part")


def test_the_repair_is_that_of_a_fit_on_the_training_text(planted):
    task, X, advice = planted
    alone = AllButTheTop(1).fit(X[task.members[task.parts["train"]].ravel()])
    np.testing.assert_allclose(advice.repair.transform(X), alone.transform(X), rtol=1e-6)
    assert advice.repair.get_params() == alone.get_params()


def test_a_repair_for_an_undivided_task_is_fitted_on_all_of_it(tmp_path):
    task, X = sts("planted", n=120, d=8)
    found = advise(X, task, candidates=FEW)
    alone = AllButTheTop(1).fit(X.astype(np.float32))
    found.repair.save(tmp_path / "repair")
    rows = isotropy.load(tmp_path / "repair").transform(X)
    np.testing.assert_allclose(rows, alone.transform(X), rtol=1e-5)


def test_a_repair_is_fitted_on_the_text_that_was_given():
    task, X = sts("planted", n=120, d=8)
    random = np.random.default_rng(0)
    axis = AllButTheTop(1).fit(X).components_[0]
    more = random.standard_normal((200, 8)) + (8 + 3 * random.standard_normal((200, 1))) * axis
    words = [f"word {i}" for i in range(200)]
    keyed = KeyedVectors(np.vstack([X, more]), [*task.texts, *words])
    found = advise(keyed, task, words, candidates=FEW)
    assert found.fitted_on == "other text"
    alone = AllButTheTop(1).fit(more.astype(np.float32))
    np.testing.assert_allclose(found.repair.transform(X), alone.transform(X), rtol=1e-5, atol=1e-5)


def test_a_repair_for_a_search_is_fitted_on_its_corpus():
    random = np.random.default_rng(0)
    asked = random.standard_normal((150, 16))
    X = np.concatenate([asked, asked + 0.7 * random.standard_normal((150, 16))])
    X += (8 + 3 * random.standard_normal((300, 1))) * direction(random, 16)
    queries, documents = zip(*pairs(150), strict=True)
    task = Retrieval(queries, documents, [(i, i, 1) for i in range(150)])
    found = advise(X, task, candidates=FEW)
    assert found.fitted_on == "the corpus"
    assert found.choice.method != "none"
    alone = found.choice.make().fit(X[150:].astype(np.float32))
    np.testing.assert_allclose(found.repair.transform(X), alone.transform(X), rtol=1e-5, atol=1e-5)


def test_none_has_one_score_and_no_interval():
    for task, X in (sts("random", n=60, d=8), sts("random", n=120, d=8, part=three_parts(120))):
        found = advise(X, task, candidates=FEW)
        assert found.choice.method == "none"
        assert found.score == found.baseline
        assert plain(found)["interval"] == [0, 0]
        assert plain(found)["params"] == {}
        assert plain(found)["level"] is None
        assert found.items_needed > 100


def test_dev_is_scored_where_test_has_no_labels():
    task, X = sts("planted", n=120, d=8, part=["train"] * 80 + ["dev"] * 40)
    found = advise(X, task, candidates=FEW)
    assert (found.scored_on, found.n_items) == ("the dev part", 40)
    assert found.baseline == task.score(X.astype(np.float32), task.parts["dev"]).value


@pytest.mark.parametrize("value", [-0.0, -1e-9, -0.0004, 0.0, 0.0004])
def test_nothing_is_minus_zero(value):
    assert signed(100 * value) == "+0.0"
    assert printed(100 * value) == "0.0"
    assert "-" not in str(percent(value * 1e-4))
    assert (signed(-0.06), signed(None), printed(-3.04)) == ("-0.1", "", "-3.0")


# What the choice may depend on


def test_labels_of_the_test_part_do_not_matter_for_the_choice(planted):
    task, X, advice = planted
    random = np.random.default_rng(1)
    other = task.subset(np.arange(task.n_items))
    other.scores = task.scores.copy()
    other.scores[task.parts["test"]] = random.permutation(task.scores[task.parts["test"]])
    found = advise(X, other)
    assert found.choice == advice.choice
    assert found.p == advice.p
    assert found.candidates == advice.candidates
    assert found.baseline != advice.baseline


def test_nor_do_vectors_of_the_test_part(planted):
    task, X, advice = planted
    changed = X.copy()
    changed[task.texts_of(task.parts["test"])] += np.arange(24)
    found = advise(changed, task)
    assert "differ from the text that repairs were fitted on" in found.shift
    assert (found.choice, found.p) == (advice.choice, advice.p)
    assert found.candidates == advice.candidates


def test_items_that_share_a_sentence_with_the_test_part_are_not_chosen_with():
    texts = [("a", "b"), ("c", "d"), ("e", "a"), ("f", "g")]
    task = STS(texts, [1, 2, 3, 4], part=["train", "train", "test", "test"])
    found = divided(task, 2000, 0)
    assert (found.inside.tolist(), found.outside.tolist()) == ([1], [2, 3])
    assert (found.scored_on, found.n_removed) == ("the test part", 1)
    assert "1 of 2 items of the train part (1 excluded for sharing" in found.words
    sentence = "the bank of the river bank"
    spans = [
        (Span(sentence, 4, 8), Span("one bank", 4, 8)),
        (Span("two banks", 4, 9), Span("no bank", 3, 7)),
        (Span(sentence, 22, 26), Span("my bank", 3, 7)),
    ]
    task = WordInContext(spans, [1, 0, 1], ["train", "train", "test"])
    assert divided(task, 2000, 0).inside.tolist() == [1]


@pytest.mark.parametrize(
    ("parts", "chosen_with", "scored"),
    [
        (("train", "dev", "test"), "train", "test"),
        (("train", "dev"), "train", "dev"),
        (("dev", "test"), "dev", "test"),
        (("train", "test"), "train", "test"),
        (("train",), "train", None),
        (("dev",), "dev", None),
        (("test",), "test", None),
        (("all",), "all", None),
    ],
)
def test_one_part_is_chosen_with_and_another_scored(parts, chosen_with, scored):
    part = None if parts == ("all",) else [name for name in parts for _ in range(5)]
    task = STS(pairs(5 * len(parts)), np.arange(5 * len(parts)), part=part)
    found = divided(task, 2000, 0)
    assert found.inside.tolist() == task.parts[chosen_with].tolist()
    if scored is None:
        assert found.outside is None
    else:
        assert found.outside.tolist() == task.parts[scored].tolist()


def test_no_more_training_items_are_used_than_asked():
    task, X = sts("planted", n=300, d=8, part=three_parts(300))
    model = TokenEncoder(task.texts, X)
    found = advise(model, task, candidates=FEW, max_items=60)
    assert "on 60 items" in found.reason
    assert [len(texts) for texts in model.asked] == [2 * (60 + 100)]


def test_the_same_input_gives_the_same_digits(planted):
    task, X, advice = planted
    assert plain(advise(X, task)) == plain(advice)


# What is searched


def test_the_budget_is_that_of_repairs():
    task, X = sts("planted", n=60, d=8)
    found = advise(X, task, budget=3)
    assert [c["method"] for c in found.candidates] == [
        "none", "center", "scaled-center", "standardize",
    ]  # fmt: skip


def test_candidates_can_be_given_in_any_form():
    task, X = sts("planted", n=60, d=8)
    given = ["whiten:power=0.5", ClusterRemoval(2, 1), Candidate("none"), REMOVAL]
    found = advise(X, task, candidates=given)
    names = [(c["method"], c["params"]) for c in found.candidates]
    assert names == [
        ("none", {}),
        ("whiten", {"power": 0.5}),
        ("cluster-removal", {"n_clusters": 2, "n_components": 1}),
        ("all-but-the-top", {"n_components": 1}),
    ]


def test_progress_is_told():
    task, X = sts(n=60, d=8)
    told = []
    advise(X, task, candidates=FEW[:2], progress=lambda *what: told.append(what))
    assert told == [("sts", 0, 3), ("sts", 1, 3), ("sts", 2, 3), ("sts", 3, 3)]


# What is fitted on


def keyed_with_texts(task, X):
    """Two texts to fit on: one like the task's, one without its planted direction."""
    random = np.random.default_rng(0)
    axis = AllButTheTop(1).fit(X).components_[0]
    noise = random.standard_normal((2, 200, X.shape[1]))
    like = noise[0] + (8 + 3 * random.standard_normal((200, 1))) * axis
    names = {"like": [f"like {i}" for i in range(200)], "other": [f"other {i}" for i in range(200)]}
    rows = np.vstack([X, like, noise[1] + 20 * direction(random, X.shape[1])])
    return KeyedVectors(rows, [*task.texts, *names["like"], *names["other"]]), names


def test_several_texts_to_fit_on_are_reported():
    task, X = sts("planted", n=120, d=8)
    keyed, texts = keyed_with_texts(task, X)
    found = advise(keyed, task, texts, candidates=FEW)
    assert list(found.by_fit_text) == ["like", "other"]
    assert found.by_fit_text["like"]["choice"] == str(REMOVAL)
    assert found.by_fit_text["like"]["score"] > found.by_fit_text["other"]["score"] + 5
    assert found.by_fit_text["like"]["p"] == found.p
    assert found.choice == REMOVAL
    assert "Fitted on like: all-but-the-top(n_components=1)" in str(found)
    assert "Fitted on other: " in str(found)
    assert set(plain(found)["by_fit_text"]["other"]) == {"choice", "score", "p"}
    assert advise(keyed, task, texts["like"], candidates=FEW).by_fit_text == {}


def test_texts_are_encoded_once_for_all_that_is_fitted_on():
    task, X = sts("planted", n=60, d=8)
    more = {"one": [f"one {i}" for i in range(40)], "two": [f"two {i}" for i in range(40)]}
    rows = np.vstack([X, X[:80]])
    model = TokenEncoder([*task.texts, *more["one"], *more["two"]], rows)
    advise(model, task, more, candidates=FEW)
    assert model.asked == [task.texts, more["one"], more["two"]]


def test_text_far_from_the_scored_one_is_said_once():
    task, X = sts("planted", n=120, d=8)
    keyed, texts = keyed_with_texts(task, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error", IsotropyWarning)
        found = advise(keyed, task, texts["other"], candidates=FEW)
    assert "differ from the text that repairs were fitted on" in found.shift
    assert str(found).count(found.shift) == 1
    assert advise(keyed, task, texts["like"], candidates=FEW).shift == ""


# What is refused


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda t, X: advise(X),
            "task must be given, got None. Without labels use isotropy.diagnose",
        ),
        (lambda t, X: advise(X, "sts"), "task must be a Task, got str"),
        (
            lambda t, X: advise(X[:-1], t),
            "vectors must have one row for each of the task's 60 texts",
        ),
        (lambda t, X: advise(np.where(X > 2, np.nan, X), t), "must be finite"),
        (lambda t, X: advise(X, t, n_folds=1), "n_folds must be an integer of at least 2"),
        (lambda t, X: advise(X, t, budget=0), "budget must be an integer of at least 1"),
        (lambda t, X: advise(X, t, max_items=9), "max_items must be an integer of at least 20"),
        (lambda t, X: advise(X, t, seed=-1), "seed must be an integer of at least 0"),
        (lambda t, X: advise(X, t, candidates=["wihten"]), "method must be one of"),
        (lambda t, X: advise(X, t, candidates=["whiten:p=1"]), "params of whiten must be among"),
        (lambda t, X: advise(X, t, candidates=["none"]), "candidates must hold a repair"),
        (lambda t, X: advise(X, t, candidates=["csls"]), "candidates must be repairs, got the sc"),
        (lambda t, X: advise(X, t, {}), "fit_on must name at least one text"),
        (lambda t, X: advise(X, t, []), "fit_on must have at least one text"),
        (
            lambda t, X: advise(KeyedVectors(X, t.texts), t, t.texts),
            "fit_on must have text that is not evaluated",
        ),
        (
            lambda t, X: advise(X[:38], t.subset(np.arange(LEAST_ITEMS - 1))),
            "'sts' must have at least 20 labelled items to choose with, got 19",
        ),
        (lambda t, X: advise(np.ones_like(X), t), "2 groups that share no sentence and no vector"),
    ],
)
def test_bad_input_gets_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call(*sts(n=30, d=4))
    assert "\n" not in str(caught.value)


def test_a_test_part_with_constant_labels_gets_one_line():
    scores = np.append(np.arange(40.0), [1.0] * 20)
    task = STS(pairs(60), scores, part=["train"] * 40 + ["test"] * 20)
    X = np.random.default_rng(0).standard_normal((120, 4))
    with pytest.raises(InputError, match="scores of 'sts' must be defined in every fold"):
        advise(X, task, candidates=["center"])


def test_more_folds_than_groups_allow_are_not_made():
    task, X = sts("strong", 1, n=40)
    assert advise(X, task, n_folds=30).choice.method == "none"


def grouped(seed, n_groups=4, n_each=40, n_single=40, d=8):
    """Random scores of pairs that hang together in a few large groups, and of some alone."""
    random = np.random.default_rng(seed)
    pairs = [(f"g{g}", f"g{g}-{i}") for g in range(n_groups) for i in range(n_each)]
    pairs += [(f"a{i}", f"b{i}") for i in range(n_single)]
    task = STS(pairs, random.random(len(pairs)))
    return task, random.standard_normal((len(task.texts), d)) + 2


@pytest.mark.filterwarnings("ignore::isotropy.errors.IsotropyWarning")
def test_items_that_hang_together_do_not_pass_for_evidence():
    found = []
    for seed in range(12):
        task, X = grouped(seed)
        found.append(advise(X, task, candidates=["center", "all-but-the-top", "whiten"]))
    assert {advice.choice.method for advice in found} == {"none"}
    assert "amount to" in found[0].reason
    assert "Label items" in found[0].reason


def test_transductive_advice_says_so():
    task, X = sts("planted", 0)
    advice = advise(X, task, transductive=True, candidates=["all-but-the-top:n_components=1"])
    assert "transductive" in advice.fitted_on
    assert "transductive" in advice.reason
    with pytest.raises(InputError, match="fit_on must not be given with transductive"):
        advise(X, task, ["some text"], transductive=True)


def test_sentences_removed_from_the_fitted_text_are_counted(planted):
    _, _, advice = planted
    assert plain(advice)["n_removed"] == advice.n_removed >= 0
