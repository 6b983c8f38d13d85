"""compare: scores, differences and their uncertainty against the parts they are made of."""

import json
import warnings

import numpy as np
import pytest

from isotropy import KeyedVectors
from isotropy.errors import InputError, IsotropyWarning
from isotropy.evidence import Candidate, compare
from isotropy.evidence.bench import grouped_folds
from isotropy.evidence.significance import Fold, difference, holm, interval, p_value
from isotropy.evidence.spaces import Fits
from isotropy.metrics import isoscore, mean_cosine
from isotropy.repairs import AllButTheTop, Center, ClusterRemoval, Repair, Whiten
from isotropy.tasks import CSLS, STS, Classification, LocalScaling, Retrieval

from .examples import TokenEncoder, classification, pairs, similar, sts, three_parts


def by_name(found):
    return {str(result.candidate): result for result in found.results}


@pytest.fixture(scope="module")
def divided():
    """A planted task of three parts, its rows, and every repair compared on its dev part."""
    task, X = sts("planted", n=300, d=14, part=three_parts(300))
    X = X.astype(np.float32)
    return task, X, compare(X, task, seeds=2)


def test_every_repair_comes_after_none(divided):
    _, _, found = divided
    names = [result.candidate.method for result in found.results]
    assert names == ["none", *sorted(Repair.by_name)]
    assert {result.task for result in found.results} == {"sts"}


def test_none_scores_as_the_vectors_do(divided):
    task, X, found = divided
    none = found.results[0]
    outcome = task.score(X, task.parts["dev"])
    assert none.score == outcome.value
    assert none.metrics == outcome.metrics
    assert (none.difference, none.interval, none.p, none.p_holm) == (0, (0, 0), 1, 1)
    assert (none.cka, none.neighbour_overlap, none.n_items) == (1, 1, 50)


def test_differences_are_those_of_the_outcomes(divided):
    task, X, found = divided
    dev, train = task.parts["dev"], task.parts["train"]
    fitted = X[task.members[train].ravel()]
    none = task.score(X, dev)
    for repair in (Center(), AllButTheTop(), Whiten()):
        result = by_name(found)[repair.name]
        outcome = task.score(repair.fit(fitted).transform(X), dev)
        folds = [Fold(outcome, none, task.groups[dev])]
        assert result.score == pytest.approx(outcome.value, abs=1e-6)
        assert result.difference == pytest.approx(difference(folds), abs=1e-6)
        assert result.interval == pytest.approx(interval(folds), abs=1e-6)
        assert result.p == pytest.approx(p_value(folds), abs=2e-4)
        assert result.metrics["pearson"] == pytest.approx(outcome.metrics["pearson"], abs=1e-6)
        assert result.fitted_on == "the training part"


def test_p_values_are_adjusted_for_the_repairs(divided):
    _, _, found = divided
    repairs = found.results[1:]
    np.testing.assert_array_equal(
        [result.p_holm for result in repairs], holm([result.p for result in repairs])
    )
    assert any(result.p_holm > result.p for result in repairs)


def test_seeds_of_clusterings_are_averaged(divided):
    task, X, found = divided
    dev, fitted = task.parts["dev"], X[task.members[task.parts["train"]].ravel()]
    scores = [
        task.score(ClusterRemoval(random_state=seed).fit(fitted).transform(X), dev).value
        for seed in (0, 1)
    ]
    result = by_name(found)["cluster-removal"]
    assert result.score == pytest.approx(np.mean(scores), abs=1e-6)
    assert scores[0] != scores[1]
    assert {r.candidate.method: r.n_seeds for r in found.results} == {
        "none": 1,
        **{name: 2 if name == "cluster-removal" else 1 for name in Repair.by_name},
    }


def test_the_geometry_is_that_of_the_evaluated_rows(divided):
    task, X, found = divided
    dev = task.texts_of(task.parts["dev"])
    fitted = X[task.members[task.parts["train"]].ravel()]
    assert found.results[0].isotropy["mean_cosine"] == pytest.approx(mean_cosine(X[dev]), abs=1e-5)
    after = Whiten().fit(fitted).transform(X[dev])
    result = by_name(found)["whiten"]
    assert result.isotropy["isoscore"] == pytest.approx(isoscore(after), abs=1e-5)
    assert result.isotropy["mean_cosine"] == pytest.approx(mean_cosine(after), abs=1e-5)
    assert 0 < result.cka < 1
    assert 0 < result.neighbour_overlap < 1


def test_what_is_planted_is_removed(divided):
    _, _, found = divided
    result = by_name(found)["all-but-the-top"]
    assert result.difference > 0.1
    assert result.interval[0] > 0
    assert result.p_holm < 0.01


def test_folds_are_averaged_and_not_pooled():
    task, X = sts("planted", n=90, d=6)
    X = X.astype(np.float32)
    found = by_name(compare(X, task, ["all-but-the-top:n_components=1"], n_folds=3))
    of_item = grouped_folds(task.groups, 3, 0)
    before, after, folds = [], [], []
    for fold in range(3):
        items = np.flatnonzero(of_item == fold)
        others = X[task.members[of_item != fold].ravel()]
        none = task.score(X, items)
        system = task.score(AllButTheTop(1).fit(others).transform(X), items)
        before.append(none.value)
        after.append(system.value)
        folds.append(Fold(system, none, task.groups[items]))
    result = found["all-but-the-top(n_components=1)"]
    assert found["none"].score == pytest.approx(np.mean(before), abs=1e-12)
    assert result.score == pytest.approx(np.mean(after), abs=1e-6)
    assert result.interval == pytest.approx(interval(folds), abs=1e-6)
    assert result.p == pytest.approx(p_value(folds), abs=2e-4)
    assert (result.fitted_on, result.n_items) == ("the other folds", 90)


@pytest.fixture
def fitted(monkeypatch):
    """Rows that repairs were fitted on, in the order of the fits."""
    rows, moments = [], Fits.moments

    def spied(self, level):
        source = self.source(level)
        rows.append(np.concatenate([b.rows for c in source.chunks() for b in source.read(c)]))
        return moments(self, level)

    monkeypatch.setattr(Fits, "moments", spied)
    return rows


def without(rows, evaluated):
    """Whether none of the rows is an evaluated one."""
    known = {row.tobytes() for row in evaluated}
    return all(row.tobytes() not in known for row in rows)


def shared_parts():
    """A divided task of which 12 of 100 training sentences are evaluated ones too."""
    random = np.random.default_rng(0)
    names = [*pairs(50), *pairs(30, "c", "d")]
    names[:12] = [(f"c{i}", f"b{i}") for i in range(12)]
    task = STS(names, random.random(80), part=["train"] * 50 + ["dev"] * 30)
    return task, random.standard_normal((len(task.texts), 5)).astype(np.float32)


def test_evaluated_sentences_are_not_fitted_on_and_their_number_is_noted(fitted):
    task, X = shared_parts()
    found = compare(X, task, ["center", "whiten"])
    assert len(fitted) >= 2
    assert all(without(rows, X[task.texts_of(task.parts["dev"])]) for rows in fitted)
    assert all(len(rows) == 88 for rows in fitted)
    note = "sts: 12 evaluated texts were excluded from fitting."
    assert found.notes == [note]
    assert note in str(found)
    assert note in found.to_dict()["notes"]


def test_nor_are_they_in_folds(fitted):
    task, X = sts(n=40, d=5)
    X = X.astype(np.float32)
    found = compare(X, task, ["center"], n_folds=4)
    of_item = grouped_folds(task.groups, 4, 0)
    assert found.notes == []
    assert len(fitted) >= 4
    for rows in fitted:
        folds = [X[task.texts_of(np.flatnonzero(of_item == k))] for k in range(4)]
        assert sum(without(rows, fold) for fold in folds) == 1


def test_other_text_is_fitted_on_where_it_is_given(fitted):
    task, X = shared_parts()
    more = np.random.default_rng(1).standard_normal((60, 5)).astype(np.float32)
    words = [f"word {i}" for i in range(60)]
    keyed = KeyedVectors(np.vstack([X, more]), [*task.texts, *words])
    found = compare(keyed, task, ["center"], fit_on=[*words, "c0", "d3"])
    assert all((rows == more).all() for rows in fitted)
    assert found.results[1].fitted_on == "other text"
    assert found.notes[0].startswith("sts: 2 evaluated texts")
    none = task.score(X, task.parts["dev"]).value
    after = task.score(X - more.mean(axis=0), task.parts["dev"]).value
    assert found.results[0].score == none
    assert found.results[1].score == pytest.approx(after, abs=1e-6)


def test_static_vectors_are_fitted_on_the_other_rows(fitted):
    task, X = sts(n=30, d=5)
    more = np.random.default_rng(1).standard_normal((200, 5)).astype(np.float32)
    keyed = KeyedVectors(np.vstack([X, more]), [*task.texts, *(f"word {i}" for i in range(200))])
    found = compare(keyed, task, ["center"])
    assert all((rows == more).all() for rows in fitted)
    assert found.results[1].fitted_on == "the other vectors"
    assert found.results[0].score == task.score(X.astype(np.float32)).value
    after = task.score(X - more.mean(axis=0)).value
    assert found.results[1].score == pytest.approx(after, abs=1e-6)
    assert "60 evaluated texts were excluded" in found.notes[0]


def test_transductive_results_say_so_everywhere(fitted):
    task, X = shared_parts()
    found = compare(X, task, ["center"], transductive=True)
    dev = X[task.members[task.parts["dev"]].ravel()]
    assert all((rows == dev).all() for rows in fitted)
    assert found.transductive
    assert "transductive" in str(found)
    plain = found.to_dict()
    assert plain["transductive"] is True
    assert all("transductive" in result["fitted_on"] for result in plain["results"])
    assert "transductive" not in str(compare(X, task, ["center"]))


@pytest.mark.parametrize(
    ("part", "n_items", "how"),
    [
        (None, 50, "the training part"),
        ("dev", 50, "the training part"),
        ("test", 100, "the training part"),
        ("train", 150, "the other folds"),
        ("all", 300, "the other folds"),
    ],
)
def test_a_part_can_be_chosen(part, n_items, how):
    task, X = sts(n=300, d=5, part=three_parts(300))
    result = compare(X, task, ["center"], part=part).results[1]
    assert (result.n_items, result.fitted_on) == (n_items, how)


def test_a_head_is_trained_on_the_training_part():
    task, X = classification(part=three_parts(240))
    X = X.astype(np.float32)
    found = compare(X, task, ["standardize"], max_items=60, part="test")
    random = np.random.default_rng(0)
    train, test = task.parts["train"], task.parts["test"]
    some = np.sort(random.choice(train, 60, replace=False))
    assert found.results[0].score == task.score(X, test, some).value
    after = by_name(found)["standardize"]
    repaired = Candidate("standardize").make().fit(X[train]).transform(X)
    assert after.score == pytest.approx(task.score(repaired, test, some).value, abs=1e-9)
    again = compare(X, task, ["standardize"], max_items=60, part="test", transductive=True)
    repaired = Candidate("standardize").make().fit(X[test]).transform(X)
    expected = task.score(repaired, test, some).value
    assert again.results[1].score == pytest.approx(expected, abs=1e-9)


def test_a_search_is_of_all_documents_and_fitted_on_them():
    random = np.random.default_rng(0)
    X, _ = similar(random, 40, 6)
    X = np.concatenate([X[::2], X[1::2]]).astype(np.float32)
    queries, documents = zip(*pairs(40), strict=True)
    task = Retrieval(queries, documents, [(i, i, 1) for i in range(40)])
    found = compare(X, task, ["center"])
    assert found.results[1].fitted_on == "the corpus"
    assert found.results[0].score == task.score(X).value
    expected = task.score(X - X[40:].mean(axis=0)).value
    assert found.results[1].score == pytest.approx(expected, abs=1e-9)


@pytest.fixture(scope="module")
def encoder():
    task, X = sts("planted", n=60, d=5, part=["train"] * 30 + ["dev"] * 30)
    return TokenEncoder(task.texts, X), task


@pytest.mark.parametrize(
    "repair",
    [Center(), AllButTheTop(1), ClusterRemoval(3, 1), Center(normalize=True)],
    ids=repr,
)
def test_tokens_are_repaired_before_pooling(encoder, repair):
    model, task = encoder
    found = compare(model, task, [repair], seeds=1)
    train = [model.rows[task.texts[i]] for i in task.members[task.parts["train"]].ravel()]
    repair.fit(np.concatenate(train))
    pooled = np.stack([repair.transform(model.rows[text]).mean(axis=0) for text in task.texts])
    expected = task.score(pooled, task.parts["dev"]).value
    assert found.results[1].candidate.level == "token"
    assert found.results[1].score == pytest.approx(expected, abs=1e-5)


def test_sentences_are_repaired_where_that_is_asked(encoder):
    model, task = encoder
    found = compare(model, task, ["sentence/center"])
    pooled = np.stack([model.rows[text].mean(axis=0) for text in task.texts])
    train = pooled[task.members[task.parts["train"]].ravel()]
    expected = task.score(pooled - train.mean(axis=0), task.parts["dev"]).value
    assert found.results[1].candidate.level == "sentence"
    assert found.results[1].score == pytest.approx(expected, abs=1e-5)


def test_only_what_is_needed_is_encoded(encoder):
    model, task = encoder
    model.asked.clear()
    compare(model, task, ["center"], transductive=True)
    assert [set(texts) for texts in model.asked] == [
        {task.texts[i] for i in task.texts_of(task.parts["dev"])}
    ]


def test_several_tasks_are_reported_one_after_the_other():
    first, X = sts(n=40, d=5)
    labels = np.arange(80) % 2
    second = Classification(first.texts, labels)
    found = compare(X, [first, second], ["center"])
    tasks = [(result.task, str(result.candidate)) for result in found.results]
    names = ["none", "center"]
    assert tasks == [(t, n) for t in ("sts", "classification") for n in names]
    text = str(found)
    assert "sts: spearman, 40 items, fitted on the other folds" in text
    assert "classification: accuracy, 80 items" in text


def test_json_is_plain_and_in_percent(divided):
    _, _, found = divided
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert set(plain) == {"transductive", "notes", "results"}
    result, of = plain["results"][-1], found.results[-1]
    assert result["score"] == pytest.approx(100 * of.score, abs=1e-4)
    assert result["interval"] == pytest.approx([100 * end for end in of.interval], abs=1e-4)
    assert {"repair", "method", "params", "level", "difference", "p", "p_holm"} <= set(result)
    assert {"isotropy", "cka", "neighbour_overlap", "n_items", "fitted_on"} <= set(result)


def test_what_is_undefined_is_null_in_json():
    task = Classification([f"text {i}" for i in range(9)], np.arange(9) % 2)
    X = np.tile(np.eye(2), (5, 1))[:9] + 0.01 * np.arange(9)[:, None]
    found = compare(X, task, ["center"], n_folds=9)
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["results"][1]["neighbour_overlap"] is None
    assert plain["results"][1]["cka"] is None


def test_the_same_input_gives_the_same_digits():
    task, X = sts("planted", n=60, d=14)
    first, second = (compare(X, task, seeds=2).to_dict() for _ in range(2))
    for result in (*first["results"], *second["results"]):
        del result["seconds"]
    assert first == second


def test_progress_is_told():
    task, X = sts(n=40, d=5)
    told = []
    compare(X, task, ["center", "whiten"], progress=lambda *what: told.append(what))
    assert told == [("sts", 0, 2), ("sts", 1, 2), ("sts", 2, 2)]


def test_text_far_from_the_evaluated_one_is_said_once():
    task, X = sts(n=200, d=5)
    words = [f"word {i}" for i in range(300)]
    far = np.random.default_rng(0).standard_normal((300, 5)) + 9
    keyed = KeyedVectors(np.vstack([X, far]), [*task.texts, *words])
    with warnings.catch_warnings():
        warnings.simplefilter("error", IsotropyWarning)
        found = compare(keyed, task, ["center", "whiten"], fit_on=words)
    said = "The 400 evaluated texts differ from the text that repairs were fitted on"
    assert all(r.shift.startswith(said) for r in found.results[1:])
    assert str(found).count("differ from the text") == 1
    assert found.notes == [f"sts: {found.results[1].shift}"]
    assert found.results[0].shift == ""


def small(part=None, n=30):
    return sts(n=n, d=4, part=part)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t, X: compare(X, t, ["wihten"]), "method must be one of"),
        (lambda t, X: compare(X, t, ["whiten:strength=2"]), "params of whiten must be among"),
        (lambda t, X: compare(X, t, part="dev"), "part must be one of all for 'sts', got 'dev'"),
        (lambda t, X: compare(X, t, part="some"), "part must be one of all for 'sts', got 'some'"),
        (
            lambda t, X: compare(X[:-1], t),
            "vectors must have one row for each of the task's 60 texts",
        ),
        (lambda t, X: compare(np.where(X > 2, np.nan, X), t), "must be finite"),
        (lambda t, X: compare(X, "sts"), "tasks must be a list"),
        (lambda t, X: compare(X, []), "tasks must be a Task or a list"),
        (lambda t, X: compare(X, t, seeds=0), "seeds must be an integer of at least 1"),
        (lambda t, X: compare(X, t, n_folds=1), "n_folds must be an integer of at least 2"),
        (lambda t, X: compare(X, t, seed=-1), "seed must be an integer of at least 0"),
        (lambda t, X: compare(X, t, max_items=0), "max_items must be an integer of at least 1"),
        (lambda t, X: compare(X, t, fit_on=[]), "fit_on must have at least one text"),
        (
            lambda t, X: compare(KeyedVectors(X, t.texts), t, fit_on=t.texts),
            "fit_on must have text that is not evaluated",
        ),
        (
            lambda t, X: compare(X, t, fit_on=t.texts, transductive=True),
            "fit_on must not be given with transductive",
        ),
        (
            lambda t, X: compare(X, t, ["center"], n_folds=30),
            "'sts' must have at least 60 items",
        ),
        (
            lambda t, X: compare(np.ones_like(X), t, ["center"]),
            "at least 2 groups that share no sentence and no vector, got 1",
        ),
    ],
)
def test_bad_input_gets_one_line(call, message):
    with pytest.raises(InputError, match=message) as caught:
        call(*small())
    assert "\n" not in str(caught.value)


def test_a_task_that_learns_needs_something_to_learn_from():
    task, X = classification(n=40)
    with pytest.raises(
        InputError, match="must have a training part to be evaluated transductively"
    ):
        compare(X, task, ["center"], transductive=True)


def search_with_hubs(n=60, parts=None):
    """A search in which a common direction makes hubs of some documents."""
    random = np.random.default_rng(7)
    task = Retrieval(
        [f"query {i}" for i in range(n)],
        [f"document {i}" for i in range(3 * n)],
        [(i, i, 1.0) for i in range(n)],
        parts,
    )
    common, own = random.standard_normal((2, 1, 12)), random.standard_normal((3 * n, 12))
    documents = own + 2 * random.random((3 * n, 1)) * common[0]
    queries = own[:n] + common[0] + 0.7 * random.standard_normal((n, 12))
    return task, np.concatenate([queries, documents]).astype(np.float32)


def test_scorers_are_compared_like_repairs():
    task, X = search_with_hubs()
    found = compare(X, task, ["none", "csls", "center", "center+local-scaling:k=5"])
    names = ["none", "csls", "center", "center + local-scaling(k=5)"]
    assert [str(result.candidate) for result in found.results] == names
    centred = Center().fit(X[60:]).transform(X)
    none = task.score(X)
    scored = [task.score(X, scorer=CSLS()), task.score(centred, scorer=LocalScaling(5))]
    for result, outcome in zip(found.results[1::2], scored, strict=True):
        folds = [Fold(outcome, none, task.groups)]
        assert result.score == pytest.approx(outcome.value, abs=1e-6)
        assert result.interval == pytest.approx(interval(folds), abs=1e-6)
        assert result.p == pytest.approx(p_value(folds), abs=2e-4)
    assert found.results[1].difference > 0.01
    assert [result.compared_with for result in found.results] == [
        "", "180 documents", "", "180 documents"
    ]  # fmt: skip
    assert found.notes == [
        "retrieval: csls looks for the neighbours of a document among 180 documents.",
        "retrieval: local-scaling(k=5) looks for the neighbours of a document among 180 documents.",
    ]
    assert "center + local-scaling(k=5)" in str(found)
    written = json.loads(json.dumps(found.to_dict()))["results"]
    assert [result.get("scorer") for result in written] == [None, "csls", None, names[3][9:]]


@pytest.mark.parametrize("options", [{}, {"fit_on": ["document 3", "document 9"]}])
def test_a_scorer_looks_among_training_queries_if_there_are_any(options):
    task, X = search_with_hubs(parts=["train"] * 40 + ["test"] * 20)
    result = compare(X, task, CSLS(3), **options).results[1]
    assert result.compared_with == "40 training queries"
    expected = task.score(X, task.parts["test"], task.parts["train"], CSLS(3))
    assert result.score == pytest.approx(expected.value, abs=1e-6)
    after_fold = compare(X, task, "csls", part="train").results[1]
    assert after_fold.compared_with == "180 documents"


def test_a_scorer_needs_a_retrieval_task(divided):
    task, X, _ = divided
    with pytest.raises(InputError, match=r"^compare: csls must be used with a retrieval task, got"):
        compare(X, task, ["center", "csls"])
