"""Spaces: rows of texts on both levels, and what repairs make of them."""

import numpy as np
import pytest

from isotropy import AllButTheTop, Center, ClusterRemoval, KeyedVectors, Standardize, Whiten
from isotropy.errors import InputError
from isotropy.evidence.spaces import SENTENCE, TOKEN, ArrayEncoder, space_of
from isotropy.models.texts import Span

from .examples import TokenEncoder

TEXTS = [f"text {i}" for i in range(40)]
X = np.random.default_rng(0).standard_normal((40, 6)) + np.arange(6)
AFFINE = [Center(), Standardize(), AllButTheTop(2), Whiten(), Whiten("pca", n_components=3)]


def read(source):
    return np.concatenate([b.rows for chunk in source.chunks() for b in source.read(chunk)])


@pytest.fixture
def encoder():
    return TokenEncoder(TEXTS, X)


def test_one_row_a_text_is_one_level():
    found = space_of(X, TEXTS)
    assert found.levels == (SENTENCE,)
    np.testing.assert_allclose(found.pooled, X, rtol=1e-6)
    np.testing.assert_array_equal(
        read(found.source(SENTENCE, np.array([3, 1, 3]))), found.pooled[[3, 1, 3]]
    )


def test_tokens_are_a_level_of_their_own(encoder):
    found = space_of(encoder, TEXTS)
    assert found.levels == (TOKEN, SENTENCE)
    means = [encoder.rows[text].mean(axis=0) for text in TEXTS]
    np.testing.assert_allclose(found.pooled, means, atol=1e-6)
    expected = np.concatenate([encoder.rows[TEXTS[i]] for i in (5, 2, 5)])
    np.testing.assert_array_equal(read(found.source(TOKEN, np.array([5, 2, 5]))), expected)


@pytest.mark.parametrize("repair", AFFINE, ids=repr)
def test_repaired_means_are_means_of_repaired_tokens(encoder, repair):
    found = space_of(encoder, TEXTS)
    repair.fit(found.tokens.rows)
    texts = np.array([0, 7, 39])
    after = found.repaired(repair, TOKEN, texts)
    expected = [repair.transform(encoder.rows[TEXTS[i]]).mean(axis=0) for i in texts]
    np.testing.assert_allclose(after[texts], expected, atol=1e-5)
    assert repair.is_affine


@pytest.mark.parametrize("repair", [ClusterRemoval(3, 1), Center(normalize=True)], ids=repr)
def test_other_repairs_treat_every_token(encoder, repair):
    found = space_of(encoder, TEXTS)
    repair.fit(found.tokens.rows)
    texts = np.array([11, 4, 30])
    after = found.repaired(repair, TOKEN, texts)
    expected = [repair.transform(encoder.rows[TEXTS[i]]).mean(axis=0) for i in texts]
    np.testing.assert_allclose(after[texts], expected, atol=1e-5)
    assert not repair.is_affine


def test_sentences_are_repaired_after_pooling(encoder):
    found = space_of(encoder, TEXTS)
    repair = Center(normalize=True).fit(found.pooled)
    after = found.repaired(repair, SENTENCE, np.arange(40))
    np.testing.assert_allclose(after, repair.transform(found.pooled), atol=1e-6)
    assert found.repaired(None, TOKEN, np.arange(40)) is found.pooled


def test_what_comes_after_pooling_comes_after_token_repairs(encoder):
    class Own:
        finish = staticmethod(lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True))

    encoder.own = Own
    found = space_of(encoder, TEXTS)
    np.testing.assert_allclose(np.linalg.norm(found.pooled, axis=1), 1, rtol=1e-5)
    repair = Center().fit(found.tokens.rows)
    mean = repair.transform(encoder.rows[TEXTS[3]]).mean(axis=0)
    after = found.repaired(repair, TOKEN, np.array([3]))
    np.testing.assert_allclose(after[3], mean / np.linalg.norm(mean), atol=1e-5)


def test_rows_of_an_array_are_found_by_their_text():
    texts = [*TEXTS[:-1], Span("some text", 0, 4)]
    given = ArrayEncoder(X, texts)
    np.testing.assert_array_equal(given.encode([texts[-1], texts[2]]), X[[39, 2]])


def test_anything_that_encodes_will_do():
    keyed = KeyedVectors(X, TEXTS)
    np.testing.assert_allclose(space_of(keyed, TEXTS[::-1]).pooled, X[::-1], rtol=1e-6)


def with_nan():
    bad = X.copy()
    bad[7, 2] = np.nan
    return bad


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (lambda e: X[:-1], "vectors must have one row for each of the task's 40 texts, got 39"),
        (lambda e: with_nan(), r"got NaN .* \(first: 7, "),
        (lambda e: X[0], "must be two-dimensional"),
        (lambda e: X * 1e300, "must be finite"),
        (lambda e: "vectors.parquet", "must be an encoder or an array, got the name"),
        (lambda e: KeyedVectors(X[1:], TEXTS[1:]), "must be among the keys, got 1 that are not"),
        (lambda e: setattr(e, "pool", "tokens") or e, "must pool its tokens, got pool='tokens'"),
        (lambda e: setattr(e, "repair", Center()) or e, "must have no repair"),
        (lambda e: setattr(e, "sentence_repair", Center()) or e, "must have no repair"),
    ],
)
def test_bad_vectors_get_one_line(encoder, vectors, message):
    with pytest.raises(InputError, match=message) as caught:
        space_of(vectors(encoder), TEXTS)
    assert "\n" not in str(caught.value)


def test_what_encodes_other_rows_gets_one_line():
    class Wrong:
        def encode(self, texts):
            return X[:3]

    with pytest.raises(InputError, match="must encode 40 texts as that many rows, got 3"):
        space_of(Wrong(), TEXTS)
