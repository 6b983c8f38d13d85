"""advise with groups of texts: one repair per group is tried too, and chosen only if it helps."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import isotropy
from isotropy import Center, PerGroup, Whiten
from isotropy.cli import app
from isotropy.errors import InputError, IsotropyWarning
from isotropy.evidence import Candidate, advise, compare
from isotropy.evidence.bench import bench_of
from isotropy.evidence.spaces import with_groups
from isotropy.tasks import STS, Retrieval, open_task

from .examples import direction, pairs, similar, three_parts

CENTER = Candidate("center")
FEW = [CENTER, Candidate("all-but-the-top", {"n_components": 1}), Candidate("whiten")]


def translated(offset, n=240, d=24, seed=0, part=None):
    """(task, vectors, groups): pairs of two languages, whose vectors are shifted apart.

    The mean of all rows is zero, so nothing but a repair per language removes the shift. Half of
    the pairs are of one language only.
    """
    random = np.random.default_rng(seed)
    X, cosines = similar(random, n, d)
    language = random.integers(0, 2, (n, 2))
    X = X + offset * np.where(language.ravel(), 1.0, -1.0)[:, None] * direction(random, d)
    task = STS(pairs(n), cosines + 0.05 * random.standard_normal(n), part=part)
    order = [(task.texts.index(a), task.texts.index(b)) for a, b in pairs(n)]
    groups = np.empty(2 * n, dtype=object)
    groups[np.ravel(order)] = np.where(language.ravel(), "fr", "en")
    return task, X.astype(np.float32), groups.tolist()


def search(offset, n=150, d=24, seed=0):
    """(task, vectors): queries whose vectors are shifted away from those of documents."""
    random = np.random.default_rng(seed)
    asked = random.standard_normal((n, d))
    X = np.concatenate([asked + offset * direction(random, d), asked])
    X[n:] += 0.7 * random.standard_normal((n, d))
    queries, documents = zip(*pairs(n), strict=True)
    return Retrieval(queries, documents, [(i, i, 1) for i in range(n)]), X.astype(np.float32)


@pytest.mark.parametrize("part", [None, three_parts(240)])
def test_a_shift_between_groups_is_found_and_removed(part, tmp_path):
    task, X, groups = translated(4.0, part=part)
    found = advise(X, task, groups=groups, candidates=FEW)
    assert found.choice == Candidate("center", per_group=True)
    assert found.p <= 0.001
    assert found.score - found.baseline > 0.1
    assert str(found).startswith("Repair it: center per group.")
    used = np.arange(len(X)) if part is None else task.texts_of(task.parts["train"])
    alone = PerGroup(Center()).fit(X[used], groups=[groups[i] for i in used])
    found.repair.save(tmp_path / "repair", level="sentence")
    repair = isotropy.load(tmp_path / "repair")
    assert isinstance(repair, PerGroup)
    assert repair.origin_.evidence == found.reason
    np.testing.assert_allclose(
        repair.transform(X, groups=groups), alone.transform(X, groups=groups), atol=1e-5
    )
    plain = json.loads(json.dumps(found.to_dict(), default=str))
    assert (plain["choice"], plain["per_group"]) == ("center", True)
    assert "center per group" in found._repr_html_()


def test_no_repair_of_all_rows_helps_there():
    task, X, _ = translated(4.0)
    assert advise(X, task, candidates=[CENTER]).choice.method == "none"


@pytest.mark.parametrize("seed", range(3))
def test_groups_that_mean_nothing_are_left_alone(seed):
    task, X, groups = translated(0.0, seed=seed)
    found = advise(X, task, groups=groups, candidates=FEW)
    assert found.choice.method == "none"
    assert sum(candidate["per_group"] for candidate in found.candidates) == len(FEW)


def test_one_repair_for_all_is_preferred_where_it_does_as_well():
    """All rows have more or less of one direction, in either language."""
    task, X, groups = translated(0.0)
    random = np.random.default_rng(1)
    X += (8 + 3 * random.standard_normal((len(X), 1))) * direction(random, X.shape[1])
    found = advise(X, task, groups=groups, candidates=FEW)
    assert found.choice == Candidate("all-but-the-top", {"n_components": 1})


def test_the_towers_of_a_search_are_its_queries_and_documents():
    task, X = search(6.0)
    found = advise(X, task, groups=task.towers, candidates=FEW)
    assert found.choice == Candidate("center", per_group=True)
    assert found.fitted_on == "the corpus ('query': the other folds)"
    assert "center per group, fitted on the corpus ('query': the other folds)" in found.reason
    alone = PerGroup(Center()).fit(X, groups=["query"] * 150 + ["document"] * 150)
    for tower, one in alone.repairs_.items():
        np.testing.assert_allclose(found.repair.repairs_[tower].mean_, one.mean_, atol=1e-6)
    task, X = search(0.0)
    found = advise(X, task, groups=task.towers, candidates=FEW)
    assert found.choice.method == "none"
    assert found.fitted_on == "the corpus"


def test_evaluated_queries_are_not_fitted_on():
    task, X = search(6.0, n=60)
    X[:60] = np.arange(60)[:, None]
    tried = bench_of(X, task, lambda space: with_groups([CENTER]), text_groups=task.towers)
    plan = tried.across(np.arange(60), 3, seed=0)
    for evaluation in plan.evaluations:
        repair = evaluation.fits.fitted(Candidate("center", per_group=True))
        others = np.setdiff1d(np.arange(60), evaluation.items)
        np.testing.assert_allclose(repair.repairs_["query"].mean_, others.mean(), rtol=1e-6)
        np.testing.assert_allclose(repair.repairs_["document"].mean_, X[60:].mean(0), atol=1e-6)
        rows = tried.space.repaired(
            repair, "sentence", np.arange(60), tried._groups_of(np.arange(60))
        )
        np.testing.assert_allclose(rows[:60], X[:60] - others.mean(), atol=1e-4)


def test_candidates_per_group_follow_their_own_and_are_of_pooled_rows():
    tried = with_groups([CENTER, Candidate("center", {}, "token"), Candidate("whiten")])
    assert [str(one) for one in tried] == [
        "center", "center per group", "center on tokens", "whiten", "whiten per group",
    ]  # fmt: skip
    with pytest.raises(InputError, match="must be 'sentence' per group"):
        Candidate("center", {}, "token", per_group=True)


def test_the_budget_counts_repairs_before_their_forms_per_group():
    task, X, groups = translated(0.0, n=60)
    found = advise(X, task, groups=groups, budget=2)
    assert [(one["method"], one["per_group"]) for one in found.candidates] == [
        ("none", False), ("center", False), ("center", True), ("scaled-center", False),
        ("scaled-center", True),
    ]  # fmt: skip


def test_folds_have_their_share_of_each_group():
    task, X, _ = translated(0.0, n=60)
    by_text = dict(zip(task.texts, ["rare"] * 20 + ["common"] * 100, strict=True))
    tried = bench_of(X, task, lambda space: [CENTER], text_groups=by_text)
    plan = tried.across(np.arange(60), 5, seed=0)
    assert [int((fold.items < 10).sum()) for fold in plan.evaluations] == [2] * 5


def test_text_to_fit_on_is_used_for_the_groups_it_has():
    task, X, groups = translated(4.0, n=60)
    by_text = dict(zip(task.texts, groups, strict=True))
    more = [f"en {i}" for i in range(40)]
    rows = np.random.default_rng(1).standard_normal((40, X.shape[1])) + X.mean(axis=0)
    keyed = isotropy.KeyedVectors(np.vstack([X, rows]), [*task.texts, *more])
    found = advise(
        keyed, task, more, groups=by_text | dict.fromkeys(more, "en"), candidates=[CENTER]
    )
    assert found.fitted_on in ("other text", "other text ('fr': the other folds)")
    tried = bench_of(
        keyed, task, lambda space: with_groups([CENTER]), more,
        text_groups=by_text | dict.fromkeys(more, "en"),
    )  # fmt: skip
    repair = tried.everything(np.arange(60)).fitted(Candidate("center", per_group=True))
    np.testing.assert_allclose(repair.repairs_["en"].mean_, rows.mean(axis=0), atol=1e-6)
    own = X[np.array(groups) == "fr"].mean(axis=0)
    np.testing.assert_allclose(repair.repairs_["fr"].mean_, own, atol=1e-6)


def test_a_group_with_one_text_to_fit_on_is_fitted_on_the_known_items():
    task, X, groups = translated(4.0, n=60)
    more = [*(f"en {i}" for i in range(30)), "fr 0"]
    by_text = dict(zip(task.texts, groups, strict=True))
    by_text |= {text: text[:2] for text in more}
    keyed = isotropy.KeyedVectors(np.vstack([X, X[:31] + 1]), [*task.texts, *more])
    found = advise(keyed, task, more, groups=by_text, candidates=[CENTER])
    assert found.fitted_on in ("other text", "other text ('fr': the other folds)")
    tried = bench_of(keyed, task, lambda space: with_groups([CENTER]), more, text_groups=by_text)
    repair = tried.everything(np.arange(60)).fitted(Candidate("center", per_group=True))
    np.testing.assert_allclose(repair.repairs_["en"].mean_, X[:30].mean(axis=0) + 1, atol=1e-6)
    own = X[np.array(groups) == "fr"].mean(axis=0)
    np.testing.assert_allclose(repair.repairs_["fr"].mean_, own, atol=1e-6)


def test_a_recommended_repair_warns_of_small_groups_as_a_fit_does():
    task, X, groups = translated(9.0, n=40, d=60)
    with pytest.warns(IsotropyWarning, match=r"of 2 groups have fewer rows than the 60 features"):
        found = advise(X, task, groups=groups, candidates=[CENTER])
    assert found.choice.per_group


@pytest.mark.parametrize("function", [advise, compare])
def test_a_candidate_per_group_needs_groups(function):
    task, X, _ = translated(0.0, n=60)
    given = [CENTER, Candidate("center", per_group=True)]
    options = {"candidates": given} if function is advise else {"repairs": given}
    with pytest.raises(InputError, match="groups must be given for center per group, got none"):
        function(X, task, **options)


@pytest.mark.parametrize("transductive", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
def test_compare_scores_repairs_per_group(transductive, keyed):
    task, X, groups = translated(4.0, n=60)
    vectors = isotropy.KeyedVectors(X, task.texts) if keyed else X
    found = compare(vectors, task, "center", groups=groups, transductive=transductive)
    assert [str(one.candidate) for one in found.results] == ["none", "center", "center per group"]
    none, center, per_group = (one.score for one in found.results)
    assert per_group > max(none, center) + 0.05
    if transductive:
        fixed = PerGroup(Center()).fit(X, groups=groups).transform(X, groups=groups)
        assert per_group == pytest.approx(task.score(fixed).value, abs=1e-6)


def test_compare_says_what_each_tower_is_fitted_on():
    task, X = search(6.0, n=60)
    found = compare(X, task, "center", groups=task.towers)
    assert [one.fitted_on for one in found.results] == [
        "the corpus", "the corpus", "the corpus ('query': the other folds)",
    ]  # fmt: skip


def test_a_candidate_per_group_is_tried_once():
    assert with_groups(with_groups([CENTER])) == with_groups([CENTER])


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        (["en"] * 3, "groups must be as many as the 120 texts of the task, got 3"),
        (["en"] * 120, "groups must be 2 or more, got 'en' for every text"),
        ([None] + ["en"] * 119, "groups must be text or integers, got a missing one"),
        (["fr"] + ["en"] * 119, "group 'fr' must have at least 2 texts to fit on"),
        ({"a0": "en"}, "groups must have every text of the task, got none for 119, such as 'b0'"),
        (5, "groups"),
    ],
)
def test_what_are_no_groups_is_refused(groups, why):
    task, X, _ = translated(0.0, n=60)
    with pytest.raises(InputError, match=why):
        advise(X, task, groups=groups, candidates=[CENTER])


def test_a_query_that_is_a_document_has_no_tower():
    task = Retrieval(["a", "b"], ["a", "c"], [(0, 0, 1), (1, 1, 1)])
    with pytest.raises(InputError, match="no query that is a document too, got 1"):
        _ = task.towers


# On the command line, from a table


def written(folder, rows, header="score\tsentence1\tsentence2\tlang1\tlang2"):
    path = folder / "pairs.tsv"
    path.write_text("\n".join([header, *("\t".join(map(str, row)) for row in rows)]) + "\n")
    return path


def keyed_file(folder, texts, X):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])
    pq.write_table(pa.table({"text": texts, "vector": lists}), folder / "v.parquet")
    return str(folder / "v.parquet")


def test_groups_come_from_columns_of_the_task(tmp_path):
    task, X, groups = translated(4.0, n=120)
    vectors = keyed_file(tmp_path, task.texts, X)
    by_text = dict(zip(task.texts, groups, strict=True))
    rows = [
        (score, a, b, by_text[a], by_text[b])
        for (a, b), score in zip(pairs(120), task.scores, strict=True)
    ]
    data = written(tmp_path, rows)
    read = open_task("sts", data, group_column="lang1,lang2")
    assert read.text_groups == by_text
    line = ["advise", vectors, "--task", "sts", "--data", str(data)]
    line += ["--repairs", "center", "--group-column", "lang1,lang2"]
    done = CliRunner().invoke(app, [*line, "--save", str(tmp_path / "r.safetensors")])
    assert done.exit_code == 0, done.output
    assert "Repair it: center per group." in done.output
    done = CliRunner().invoke(app, ["compare", *line[1:]])
    assert done.exit_code == 0, done.output
    assert "center per group" in done.output
    saved = isotropy.load(tmp_path / "r.safetensors")
    assert list(saved.repairs_) == ["en", "fr"]
    assert saved.level_ == "sentence"


@pytest.mark.parametrize(
    ("rows", "column", "why"),
    [
        ([(1, "a", "b", "en", "fr"), (2, "a", "c", "fr", "fr")], "lang1,lang2", "line 3 must have"),
        ([(1, "a", "b", "", "fr"), (2, "c", "d", "fr", "fr")], "lang1", "line 2 must have a group"),
        ([(1, "a", "b", "en", "fr"), (2, "c", "d", "fr", "fr")], "tongue", "must have the columns"),
        ([(1, "a", "b", "en", "fr"), (2, "c", "d", "fr", "fr")], "a,b,c", "must name 1 or 2"),
    ],
)
def test_columns_that_name_no_groups_are_refused(rows, column, why, tmp_path):
    with pytest.raises(InputError, match=why):
        open_task("sts", written(tmp_path, rows), group_column=column)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--task", "sts", "--towers"], "--towers needs --task retrieval or pseudo, got sts"),
        (["--towers"], "--towers needs --task"),
        (["--group-column", "lang1"], "--group-column needs --task"),
        (["--task", "retrieval", "--group-column", "x"], "--group-column can't be used with"),
        (["--task", "pseudo", "--group-column", "x"], "--group-column can't be used with"),
    ],
)
def test_options_without_their_task_are_refused(more, why, tmp_path):
    rows = [(i, f"a{i}", f"b{i}", "en", "fr") for i in range(30)]
    np.save(tmp_path / "v.npy", np.zeros((2, 2)))
    line = ["advise", str(tmp_path / "v.npy"), "--data", str(written(tmp_path, rows)), *more]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 2
    assert why in " ".join(done.output.split())


def test_towers_of_a_pseudo_task_are_tried(tmp_path):
    random = np.random.default_rng(0)
    text = "\n".join(f"line number {i} of {random.integers(1e9)}" for i in range(120))
    (tmp_path / "texts.txt").write_text(text)
    _, X = search(6.0, n=60)
    rows = X.reshape(2, 60, -1).transpose(1, 0, 2).reshape(120, -1)
    vectors = keyed_file(tmp_path, text.splitlines(), rows)
    line = ["advise", vectors, "--task", "pseudo", "--towers", "--json"]
    line += ["--data", str(tmp_path / "texts.txt"), "--repairs", "center"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["choice"], found["per_group"]) == ("center", True)


def test_whiten_per_group_equals_its_own_fits():
    """The candidates' fits share moments; those of the test do not."""
    task, X, groups = translated(1.0, n=60)
    by_text = dict(zip(task.texts, groups, strict=True))
    tried = bench_of(X, task, lambda space: with_groups([Candidate("whiten")]), text_groups=by_text)
    fits = tried.everything(np.arange(60))
    found = fits.fitted(Candidate("whiten", per_group=True)).transform(X, groups=groups)
    alone = PerGroup(Whiten()).fit(X, groups=groups).transform(X, groups=groups)
    np.testing.assert_allclose(found, alone, rtol=1e-3, atol=1e-3)
