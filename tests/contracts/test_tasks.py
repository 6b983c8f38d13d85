"""One contract over every kind of task: items, texts, scores, subsets, files, bad input."""

import numpy as np
import pytest

from isotropy.errors import InputError
from isotropy.models.texts import Span
from isotropy.tasks import (
    STS,
    Classification,
    Clustering,
    Outcome,
    PairClassification,
    Retrieval,
    Task,
    WordInContext,
    WordSimilarity,
    open_task,
)

N = 24
PART = ["train"] * 12 + ["dev"] * 6 + ["test"] * 6
PAIRS = [(f"text {i}", f"text {(7 * i + 3) % 30}") for i in range(N)]
SCORES = [(5 * i) % 11 / 2 for i in range(N)]
LABELS = [("no", "yes")[(i * i) % 5 % 2] for i in range(N)]
SENTENCES = [f"the bank no. {i}" for i in range(N)]
JUDGED = [(i, (i + j) % 9, j) for i in range(N) for j in range(3)]


def spans():
    return [(Span(a, 0, 4), Span(b, 0, 4)) for a, b in PAIRS]


MAKE = {
    "sts": lambda: STS(PAIRS, SCORES, ["a", "b"] * 12, PART, combine="mean"),
    "word-similarity": lambda: WordSimilarity(PAIRS, SCORES, ["a", "b"] * 12, PART),
    "retrieval": lambda: Retrieval(SENTENCES, [f"document {i}" for i in range(9)], JUDGED, PART),
    "classification": lambda: Classification(SENTENCES, LABELS, PART),
    "pair-classification": lambda: PairClassification(PAIRS, LABELS, PART),
    "word-in-context": lambda: WordInContext(spans(), LABELS, PART),
    "clustering": lambda: Clustering(SENTENCES, LABELS, PART),
}
FILES = {
    "sts": ("score\tsentence1\tsentence2", [*zip(SCORES, *zip(*PAIRS, strict=True), strict=True)]),
    "word-similarity": (
        "word1\tword2\tscore",
        [(a, b, score) for (a, b), score in zip(PAIRS, SCORES, strict=True)],
    ),
    "classification": ("label\ttext", [*zip(LABELS, SENTENCES, strict=True)]),
    "pair-classification": (
        "label\tsentence1\tsentence2",
        [(label, *pair) for label, pair in zip(LABELS, PAIRS, strict=True)],
    ),
    "word-in-context": (
        "label\ttoken_idx\tsentence1\tsentence2",
        [(label, "0-0", *pair) for label, pair in zip(LABELS, PAIRS, strict=True)],
    ),
    "clustering": ("label\ttext", [*zip(LABELS, SENTENCES, strict=True)]),
}


@pytest.fixture(params=Task.by_kind)
def task(request):
    return MAKE[request.param]()


@pytest.fixture
def X(task):
    random = np.random.default_rng(0)
    return random.standard_normal((len(task.texts), 8)) + 0.5


def scored(task, X, items=None, train=None):
    return task.score(X, items, task.parts["train"] if train is None else train)


def test_it_says_what_it_is(task):
    assert Task.by_kind[task.kind] is type(task)
    assert task.metric
    assert task.name
    assert task.name in repr(task)
    assert type(task).__doc__
    assert type(task).read.__doc__


def test_texts_are_distinct_and_each_belongs_somewhere(task):
    assert len(set(task.texts)) == len(task.texts)
    used = np.concatenate([task.texts_of(np.arange(task.n_items)), task.background])
    assert sorted(used) == list(range(len(task.texts)))
    _, first = np.unique(task.members, return_index=True)
    assert (np.diff(first) > 0).all()


def test_parts_divide_the_items(task):
    assert list(task.parts) == ["train", "dev", "test"]
    assert sorted(np.concatenate(list(task.parts.values()))) == list(range(task.n_items))
    assert task.groups.shape == (task.n_items,)


def test_score_is_an_outcome_of_the_items_asked_for(task, X):
    outcome = scored(task, X, task.parts["test"])
    assert isinstance(outcome, Outcome)
    assert outcome.n_items == 6
    assert -1 <= outcome.value <= 1
    assert all(np.isfinite(value) for value in outcome.metrics.values())
    assert outcome.resampled(np.ones((2, 6), int)) == pytest.approx([outcome.value] * 2)


def test_the_same_vectors_give_the_same_digits_and_stay_as_they_are(task, X):
    before = X.copy()
    first, second = scored(task, X), scored(task, X)
    assert first.value == second.value
    assert first.metrics == second.metrics
    assert np.array_equal(X, before)


def test_neither_scale_nor_precision_of_the_vectors_matters(task, X):
    found = scored(task, X).value
    assert scored(task, 100 * X).value == pytest.approx(found)
    assert scored(task, X.astype(np.float32)).value == pytest.approx(found, abs=1e-5)
    assert scored(task, X.tolist()).value == found


def test_rows_of_texts_that_are_not_asked_for_may_hold_anything(task, X):
    items, train = task.parts["dev"], task.parts["train"]
    needed = task.texts_of(np.concatenate([items, train]))
    blank = np.full_like(X, np.nan)
    blank[needed], blank[task.background] = X[needed], X[task.background]
    assert scored(task, blank, items, train).value == scored(task, X, items, train).value


def test_vectors_of_zeros_give_a_documented_score(task, X):
    value = scored(task, np.zeros_like(X)).value
    assert np.isnan(value) == (task.kind in ("sts", "word-similarity"))


def test_subset_scores_as_the_whole_does_on_its_items(task, X):
    items = np.concatenate([task.parts["train"], task.parts["test"][::-1]])
    part = task.subset(items)
    assert part.n_items == len(items)
    assert {name: len(numbers) for name, numbers in part.parts.items()} == {"train": 12, "test": 6}
    place = {text: number for number, text in enumerate(task.texts)}
    rows = X[[place[text] for text in part.texts]]
    found = part.score(rows, np.arange(12, 18), np.arange(12))
    whole = task.score(X, task.parts["test"][::-1], task.parts["train"])
    assert found.value == whole.value
    assert found.metrics == whole.metrics
    assert task.n_items == N
    used = np.concatenate([part.texts_of(np.arange(18)), part.background])
    assert sorted(used) == list(range(len(part.texts)))


def test_subset_keeps_what_it_had_of_everything(task, X):
    whole = task.subset(np.arange(task.n_items))
    assert whole.texts == task.texts
    assert np.array_equal(whole.groups, task.groups)
    assert scored(whole, X).value == scored(task, X).value


def test_items_in_a_group_share_a_sentence(task):
    for group in np.unique(task.groups):
        inside = task.texts_of(np.flatnonzero(task.groups == group))
        outside = np.flatnonzero(task.groups != group)
        if task.kind != "word-similarity" and len(outside):
            assert not set(inside) & set(task.texts_of(outside))


@pytest.mark.parametrize("kind", FILES)
def test_a_file_holds_the_same_task(kind, tmp_path):
    header, rows = FILES[kind]
    lines = "\n".join("\t".join(map(str, row)) for row in rows)
    (tmp_path / "mine.tsv").write_text(f"{header}\n{lines}\n", encoding="utf-8")
    task, expected = open_task(kind, tmp_path / "mine.tsv", name="own"), MAKE[kind]()
    assert task.name == "own"
    assert task.texts == expected.texts
    assert np.array_equal(task.members, expected.members)
    for name in set(task.per_item) - {"subsets"}:
        assert np.array_equal(getattr(task, name), getattr(expected, name))
    assert list(task.parts) == ["all"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X: {"vectors": X[1:]}, "vectors must have a row for each of the .* texts, got"),
        (lambda X: {"vectors": X[0]}, "X must be two-dimensional"),
        (lambda X: {"vectors": X * np.nan}, "vectors must be finite, got NaN or infinity in the"),
        (lambda X: {"items": []}, "items must be a list of item numbers"),
        (lambda X: {"items": [0.5]}, "items must be a list of item numbers"),
        (lambda X: {"items": [3, 99]}, r"items must be in \[0, 23\], got 99"),
        (lambda X: {"items": [-1]}, r"items must be in \[0, 23\], got -1"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(task, X, change, message):
    arguments = {"vectors": X, "items": [0, 1], "train": task.parts["train"]} | change(X)
    with pytest.raises(InputError, match=f"^{type(task).__name__}: {message}") as caught:
        task.score(**arguments)
    assert "\n" not in str(caught.value)


def test_only_a_supervised_task_needs_items_to_train_on(task, X):
    if not task.supervised:
        assert np.isfinite(task.score(X).value)
        return
    with pytest.raises(InputError, match="train must name the items to learn from, got None"):
        task.score(X)


def test_an_empty_text_and_a_part_of_another_name_are_refused(task):
    empty = Span("some text", 4, 4) if task.kind == "word-in-context" else " "
    n_texts = task.members.shape[1]
    items = [(empty,) * n_texts] * 3
    with pytest.raises(InputError, match="item 0 must have text, got"):
        Task.__init__(task, items, None, "x")
    with pytest.raises(InputError, match=r"part must be one of 'train', 'dev', 'test'.*'later'"):
        Task.__init__(task, [("a",) * n_texts] * 2, ["train", "later"], "x")
    with pytest.raises(InputError, match="'x' must have at least 2 items, got 1"):
        Task.__init__(task, [("a",) * n_texts], None, "x")
    with pytest.raises(InputError, match=r"item 1 must have .* texts, as many as the others"):
        Task.__init__(task, [("a",) * n_texts, ("a",) * 3], None, "x")


def test_kinds_and_options_are_checked(tmp_path):
    with pytest.raises(InputError, match=r"open_task: kind must be one of .*'sts', .* got 'nli'"):
        open_task("nli", tmp_path)
    with pytest.raises(InputError, match=r"options of sts must be one of 'name', .*, got 'combin'"):
        open_task("sts", tmp_path, combin="all")
