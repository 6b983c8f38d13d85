"""Word vectors on texts: the mean of the known words, the unknown ones counted."""

from __future__ import annotations

import numpy as np
import pytest

from isotropy import KeyedVectors
from isotropy.errors import InputError
from isotropy.evidence import advise, compare
from isotropy.evidence.advice import diagnose
from isotropy.models.keyed import WordMeans, averaged
from isotropy.models.texts import Span
from isotropy.tasks import STS

WORDS = ["sun", "moon", "tax", "New", "york", "well", "known"]
ROWS = np.eye(7, dtype=np.float32)


@pytest.fixture
def words():
    return KeyedVectors(ROWS, WORDS)


@pytest.mark.parametrize(
    ("text", "expected", "n_unknown"),
    [
        ("sun moon", [0, 1], 0),
        ("Sun, MOON!", [0, 1], 0),
        ("the sun", [0], 1),
        ("New York", [3, 4], 0),
        ("a well-known tax", [5, 6, 2], 1),
        ("tax's sun_moon", [2, 0, 1], 0),
        ("sun sun moon", [0, 0, 1], 0),
        (Span("the sun and moon", 4, 7), [0], 0),
        ("... --- !", [], 0),
        ("nothing known", [6], 1),
    ],
)
def test_a_text_is_the_mean_of_its_known_words(words, text, expected, n_unknown):
    means = WordMeans(words, [text])
    mean = ROWS[expected].mean(axis=0) if expected else np.zeros(7)
    np.testing.assert_allclose(means.encode([text])[0], mean, atol=1e-7)
    np.testing.assert_array_equal(means.tokens([text]).rows, ROWS[expected] if expected else [mean])
    assert means.n_unknown == n_unknown
    assert means.n_words == n_unknown + len(expected)
    assert means.n_empty == (not expected)


def test_what_is_done_is_said_with_counts(words):
    (note,) = WordMeans(words, ["the sun", "moon", "?"]).notes
    assert "mean of the vectors of its words" in note
    assert "1 of 3 words are unknown" in note
    assert "1 of 3 texts have no known word" in note


def test_keys_are_looked_up_where_the_texts_are_keys(words):
    assert averaged(words, ["sun", "moon"]) is words
    assert averaged(words, ["sun", "moon", "sun moon"]) is words  # whose one text is refused
    assert isinstance(averaged(words, ["sun moon", "moon sun", "sun"]), WordMeans)
    assert averaged(words, ["wholly other words", "some more of them"]) is words


def planted(n=120):
    """(task, words) of sentences of words that all have more or less of one direction."""
    random = np.random.default_rng(0)
    names = [f"w{i}" for i in range(400)]
    Z = random.standard_normal((400, 12))
    picked = random.integers(0, 400, (2 * n, 3))
    picked[1::2, 0] = picked[::2, 0]
    sums = Z[picked].mean(axis=1)
    u, v = sums[::2], sums[1::2]
    gold = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    texts = [
        f"{' '.join(names[i] for i in row).title()} unseen{i}!" for i, row in enumerate(picked)
    ]
    X = Z + (8 + 3 * random.standard_normal((400, 1))) * np.eye(12)[0]
    task = STS(list(zip(texts[::2], texts[1::2], strict=True)), gold)
    return task, KeyedVectors(X, names)


def test_advise_and_compare_average_the_words_and_say_so():
    task, words = planted()
    found = advise(words, task, candidates=["center", "all-but-the-top:n_components=1"])
    note = "Each text is the mean of the vectors of its words, since the vectors are of words: "
    assert f"{note}240 of 960 words are unknown" in str(found)
    assert found.to_dict()["notes"] == found.notes
    assert found.choice.method != "none"
    assert found.fitted_on == "the other folds"
    compared = compare(words, task, ["center"])
    assert compared.notes == [f"sts: {note}240 of 960 words are unknown and left out."]
    before = task.score(WordMeans(words, task.texts).encode(task.texts))
    assert compared.results[0].n_items == before.n_items
    assert note in str(diagnose(words, task.texts))


def test_texts_of_unknown_words_are_still_refused(words):
    task = STS([(f"der Hund {i}", f"die Katze {i}") for i in range(30)], np.arange(30))
    with pytest.raises(InputError, match="texts must be among the keys, got 60 that are not"):
        compare(words, task, ["center"])
