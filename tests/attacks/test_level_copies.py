"""Copies of evaluation text that differ in nothing but how they are written pass for new text.

They must not be fitted on, must not be chosen with, and must not count as further evidence.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isotropy import KeyedVectors, advise, compare
from isotropy.evidence.bench import bench_of
from isotropy.evidence.split import disjoint, divided
from isotropy.models.texts import Span
from isotropy.tasks import STS, Classification, Retrieval, WordInContext, WordSimilarity
from isotropy.tasks.base import identity

TEXT = "Don't stop: the caf\u00e9 paid 1.5 million, file 12."

COPIES = {
    "case": TEXT.upper(),
    "lower": TEXT.lower(),
    "space": TEXT + " ",
    "spaces": TEXT.replace(" ", "  "),
    "tab and newline": "\t" + TEXT.replace(" ", "\n") + "\r\n",
    "no-break space": TEXT.replace(" ", "\u00a0"),
    "wide space": TEXT.replace(" ", "\u3000"),
    "no punctuation": "Dont stop the caf\u00e9 paid 1,5 million file 12",
    "more punctuation": f'"{TEXT}"!!!',
    "curly quote": TEXT.replace("'", "\u2019"),
    "tokenised": "Do n't stop : the caf\u00e9 paid 1.5 million , file 12 .",
    "dashes": TEXT.replace(":", " \u2014"),
    "decomposed": TEXT.replace("\u00e9", "e\u0301"),
    "ligature": TEXT.replace("fi", "\ufb01"),
    "full width": TEXT.replace("12", "\uff11\uff12").replace("s", "\uff53"),
    "zero width": "\u200b".join(TEXT),
    "zero width joiner": TEXT.replace("stop", "st\u200dop"),
    "word joiner": TEXT.replace("12", "1\u20602"),
    "soft hyphen": TEXT.replace("million", "mil\u00adlion"),
    "byte order mark": "\ufeff" + TEXT,
    "direction mark": "\u202a" + TEXT + "\u202c",
    "variation selector": TEXT.replace("stop", "stop\ufe0f"),
    "tag characters": TEXT + "\U000e0041\U000e0042",
    "control characters": "\x00" + TEXT + "\x1b",
}

APART = [
    ("1.5", "15"),
    ("1-11", "11-1"),
    ("C", "C++"),
    ("5 > 3", "5 < 3"),
    ("resume", "r\u00e9sum\u00e9"),
    ("\u0915\u093f", "\u0915\u0940"),  # vowel signs of Devanagari are no punctuation
    ("!", "?"),
    ("\u2764", "\u2665"),
    ("a cat", "a cart"),
]

copies = pytest.mark.parametrize("copy", list(COPIES.values()), ids=list(COPIES))


def rows(n, d=6, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def no_candidates(space):
    return ()


def fitted(evaluation):
    """The rows that the repairs of an evaluation are fitted on."""
    source = evaluation.fits.source("sentence")
    return np.concatenate([batch.rows for c in source.chunks() for batch in source.read(c)])


@copies
def test_a_copy_is_the_same_text(copy):
    assert copy != TEXT
    assert identity(copy) == identity(TEXT)
    assert identity(Span(copy, 0, 4)) == identity(TEXT)


@pytest.mark.parametrize("pair", APART, ids=[" or ".join(map(ascii, pair)) for pair in APART])
def test_what_differs_stays_apart(pair):
    assert identity(pair[0]) != identity(pair[1])


@copies
def test_a_copy_is_in_the_same_group(copy):
    others = [(f"left {i}", f"right {i}") for i in range(4)]
    task = STS([(TEXT, "one"), *others, ("two", copy)], np.arange(6))
    assert task.groups[0] == task.groups[-1]
    assert len(set(task.groups)) == 5
    words = WordSimilarity([("one", TEXT), *others, (copy, "one")], np.arange(6))
    assert words.groups[0] == words.groups[-1]
    spans = [(Span(TEXT, 0, 4), Span("one", 0, 1)), (Span("two", 0, 1), Span(copy, 0, 4))]
    assert len(set(WordInContext(spans, [0, 1]).groups)) == 1


@copies
def test_a_copy_in_the_training_part_is_neither_fitted_on_nor_chosen_with(copy):
    texts = [TEXT, *(f"test {i}" for i in range(9)), copy, *(f"train {i}" for i in range(9))]
    part = ["test"] * 10 + ["train"] * 10
    task = Classification(texts, np.arange(20) % 2, part=part)
    X = rows(20)
    plan = bench_of(X, task, no_candidates).held_out(task.parts["test"], task.parts["train"])
    np.testing.assert_array_equal(fitted(plan.evaluations[0]), X[11:].astype(np.float32))
    assert plan.n_removed == 1
    inside = disjoint(task, task.parts["train"], task.parts["test"])
    assert inside.tolist() == list(range(11, 20))


@copies
def test_a_copy_in_the_text_to_fit_on_is_left_out(copy):
    task = STS([(TEXT, "one"), ("two", "three")], [1, 2])
    keyed = KeyedVectors(rows(6), [*task.texts, copy, "new text"])
    plan = bench_of(keyed, task, no_candidates, [copy, "new text"]).held_out(
        np.arange(2), np.arange(2)
    )
    assert (len(fitted(plan.evaluations[0])), plan.n_removed) == (1, 1)


@copies
def test_a_copy_in_the_vocabulary_is_left_out(copy):
    task = WordSimilarity([(TEXT, "one"), ("two", "three")], [1, 2])
    keyed = KeyedVectors(rows(20), [*task.texts, copy, *(f"word {i}" for i in range(15))])
    plan = bench_of(keyed, task, no_candidates).held_out(np.arange(2), np.arange(2))
    np.testing.assert_array_equal(fitted(plan.evaluations[0]), keyed.vectors[5:])


@copies
def test_a_copy_of_a_query_in_the_corpus_is_not_fitted_on(copy):
    task = Retrieval([TEXT, "query"], [copy, "one", "two"], [(0, 0, 1), (1, 1, 1)])
    X = rows(5)
    plan = bench_of(X, task, no_candidates).held_out(np.arange(2), np.arange(2))
    np.testing.assert_array_equal(fitted(plan.evaluations[0]), X[3:].astype(np.float32))
    assert plan.n_removed == 1


def repeated(seed, rename):
    """30 pairs with random scores and rows, five times each, the texts of a copy renamed."""
    random = np.random.default_rng(seed)
    scores, X = random.random(30), random.standard_normal((30, 2, 8))
    names = [(f"Left side, {i}", f"Right side, {i}") for i in range(30)]
    pairs = [tuple(rename(text, k) for text in pair) for k in range(5) for pair in names]
    return STS(pairs, np.tile(scores, 5)), np.tile(X, (5, 1, 1)).reshape(300, 8)


WRITTEN = [
    str,
    str.upper,
    lambda text: f" {text}",
    lambda text: f"{text}!",
    lambda text: f"{text} ",
]
RENAMED = {
    "as they are written": lambda text, k: WRITTEN[k](text),
    "by their names": lambda text, k: f"copy {k} of {text}",
}


@pytest.mark.parametrize("rename", list(RENAMED.values()), ids=list(RENAMED))
def test_pairs_that_return_under_other_names_are_as_many_groups_as_pairs(rename):
    task, X = repeated(0, rename)
    task = bench_of(X, task, no_candidates).task
    assert len(set(task.groups)) == 30
    assert (task.groups.reshape(5, 30) == task.groups[:30]).all()


@pytest.mark.parametrize("rename", list(RENAMED.values()), ids=list(RENAMED))
def test_folds_keep_copies_together(rename):
    task, X = repeated(1, rename)
    bench = bench_of(X, task, no_candidates)
    for evaluation in bench.across(np.arange(150), 5, seed=0).evaluations:
        assert not set(evaluation.items % 30) & set(evaluation.train % 30)
        seen = {row.tobytes() for row in bench.space.pooled[task.texts_of(evaluation.items)]}
        assert not {row.tobytes() for row in fitted(evaluation)} & seen


def test_parts_of_rows_under_other_names_are_put_together():
    task, X = repeated(2, RENAMED["by their names"])
    task.part = np.array(["train"] * 120 + ["test"] * 30)
    task = task.subset(np.arange(150))
    found = divided(bench_of(X, task, no_candidates).task, 2000, 0)
    assert found.pooled  # so that the folds keep them together
    assert found.outside is None


@pytest.mark.parametrize("rename", list(RENAMED.values()), ids=list(RENAMED))
def test_copies_of_scored_pairs_are_not_chosen_with(rename):
    task, X = repeated(2, rename)
    fresh = STS([(f"new left {i}", f"new right {i}") for i in range(40)], np.arange(40))
    part = ["train"] * 120 + ["test"] * 30 + ["train"] * 40
    scores = np.append(task.scores, fresh.scores)
    task = STS(task_pairs(task) + task_pairs(fresh), scores, part=part)
    advice = advise(np.vstack([X, rows(80, 8)]), task, candidates=["center"])
    apart = "On 40 items" in advice.reason
    together = "190 of the train and test parts together" in advice.items
    assert apart or together, advice


def task_pairs(task):
    return [tuple(task.texts[i] for i in item) for item in task.members]


def test_rows_of_zeros_of_either_sign_are_equal():
    task = STS([("a", "b"), ("c", "d"), ("e", "f")], [1, 2, 3])
    X = rows(6)
    X[0], X[4] = 0.0, -0.0
    groups = task.joined(X).groups
    assert groups[0] == groups[2] != groups[1]


@pytest.mark.filterwarnings("ignore::isotropy.errors.IsotropyWarning")
def test_the_command_counts_copies_as_one_group(done):
    task, _ = repeated(3, RENAMED["as they are written"])
    header = "sentence1,sentence2,score\n"
    lines = [
        f'"{first}","{second}",{score}\n'
        for (first, second), score in zip(task_pairs(task)[:19], task.scores[:19], strict=True)
    ]
    lines += [line.upper() for line in lines]
    with open("pairs.csv", "w") as file:
        file.write(header + "".join(lines))
    read = STS.read("pairs.csv")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows(len(read.texts)).ravel()), 6)
    pq.write_table(pa.table({"text": read.texts, "vector": vectors}), "vectors.parquet")
    options = ("--task", "sts", "--data", "pairs.csv", "--json")
    found = json.loads(done("advise", "vectors.parquet", *options).stdout)
    assert found["choice"] == "none"
    assert "amount to 19 independent groups" in found["reason"]


def test_comparison_and_advice_leave_copies_out_alike():
    pairs = [(f"Left, {i}", f"Right, {i}") for i in range(40)]
    task = STS(pairs, np.arange(40.0))
    texts = [f"{text} ." for pair in pairs for text in pair] + [f"new {i}" for i in range(30)]
    keyed = KeyedVectors(rows(80 + 110), [*task.texts, *texts])
    advice = advise(keyed, task, texts, candidates=["center"])
    notes = compare(keyed, task, ["center"], fit_on=texts).notes
    assert advice.n_removed == 80
    assert notes[0].startswith("sts: 80 evaluated texts")
