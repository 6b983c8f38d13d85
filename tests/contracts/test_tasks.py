"""One contract over every kind of task: items, texts, scores, subsets, files, bad input."""

import numpy as np
import pytest

from isotropy.errors import InputError
from isotropy.models.texts import Span
from isotropy.tasks import (
    STS,
    Classification,
    Clustering,
    PairClassification,
    Retrieval,
    Task,
    WordInContext,
    WordSimilarity,
    open_task,
)
from isotropy.testing import check_task
from isotropy.testing.tasks import TASK_CHECKS, score, vectors

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


GROUPED_APART = {
    "check_items_of_different_groups_share_no_text": "words return: pairs count as independent"
}


@pytest.fixture(params=Task.by_kind)
def task(request):
    return MAKE[request.param]()


@pytest.mark.parametrize("check", TASK_CHECKS, ids=lambda check: check.__name__)
def test_task(task, check):
    if task.kind != "word-similarity" or check.__name__ not in GROUPED_APART:
        check(task)


def test_check_task_takes_all_checks_and_names_what_fails():
    task = MAKE["word-similarity"]()
    check_task(task, GROUPED_APART)
    with pytest.raises(AssertionError, match=r"^check_items_of_different_groups_share_no_text: "):
        check_task(task)


def test_vectors_of_zeros_have_no_correlation_and_some_score(task):
    value = score(task, np.zeros_like(vectors(task))).value
    assert np.isnan(value) == (task.kind in ("sts", "word-similarity"))


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


def test_kinds_and_options_are_checked(tmp_path):
    with pytest.raises(InputError, match=r"open_task: kind must be one of .*'sts', .* got 'nli'"):
        open_task("nli", tmp_path)
    with pytest.raises(InputError, match=r"options of sts must be one of 'name', .*, got 'combin'"):
        open_task("sts", tmp_path, combin="all")
