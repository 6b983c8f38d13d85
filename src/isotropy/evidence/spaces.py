"""The vectors of a task's texts, and what a repair makes of them on either level."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks, linalg
from isotropy.errors import InputError
from isotropy.repairs import Repair
from isotropy.repairs.base import is_affine
from isotropy.sources.encoder import Encoder, Tokens
from isotropy.sources.keyed import KeyedVectors
from isotropy.sources.models import Rows
from isotropy.sources.picked import PickedRows
from isotropy.sources.texts import Text
from isotropy.sources.tokens import bounded
from isotropy.sources.word_means import WordMeans, averaged

Integers = NDArray[np.int64]
TOKEN, SENTENCE = "token", "sentence"


@dataclass(frozen=True)
class Space:
    """Token rows of texts, and how one row a text is made of them.

    Where each text has one row only, as vectors from a file do, there is one level.
    """

    tokens: Tokens
    finish: Callable[[Rows], Rows]

    @cached_property
    def levels(self) -> tuple[str, ...]:
        several = len(self.tokens.rows) > self.tokens.n_texts
        return (TOKEN, SENTENCE) if several else (SENTENCE,)

    @cached_property
    def pooled(self) -> Rows:
        """One row a text, nothing repaired."""
        return self.finish(self._means)

    @cached_property
    def _means(self) -> Rows:
        return self.tokens.means()

    def source(self, level: str, texts: Integers) -> PickedRows:
        """The rows of these texts, as often as each is named, that a repair is fitted on."""
        if level == SENTENCE:
            return PickedRows(self.pooled, texts)
        return PickedRows(self.tokens.rows, self.tokens.of(texts))

    def repaired(self, repair: Repair | None, level: str, texts: Integers) -> Rows:
        """An array with a row for every text, of which those of `texts` are filled."""
        if repair is None:
            return self.pooled
        if level == SENTENCE:
            return _filled(repair.transform(self.pooled[texts]), texts, self.tokens.n_texts)
        return _filled(self._from_tokens(repair, texts), texts, self.tokens.n_texts)

    def _from_tokens(self, repair: Repair, texts: Integers) -> Rows:
        if is_affine(repair):  # the mean of repaired rows is the repaired mean
            return self.finish(repair.transform(self._means[texts]))
        lengths = np.diff(self.tokens.starts)[texts]
        means = []
        for block in bounded(lengths, self.tokens.rows.shape[1]):
            rows = repair.transform(self.tokens.rows[self.tokens.of(texts[block])])
            starts = np.concatenate([[0], np.cumsum(lengths[block])])
            means.append(Tokens(rows, starts.astype(np.int64)).means())
        return self.finish(np.concatenate(means))


def _filled(rows: Rows, texts: Integers, n_texts: int) -> Rows:
    whole = np.zeros((n_texts, rows.shape[1]), dtype=rows.dtype)
    whole[texts] = rows
    return whole


class Given:
    """Rows of an array, looked up by the text that each was made of.

    Parameters
    ----------
    vectors : array of shape (len(texts), n_features)
    texts : sequence of texts
    caller : str
        Name that error messages begin with.
    """

    def __init__(self, vectors: Any, texts: Sequence[Text], caller: str) -> None:
        rows = linalg.to_numpy(checks.matrix(vectors, caller))
        if len(rows) != len(texts):
            raise InputError(
                f"{caller}: vectors must have a row for each of the {len(texts):,} texts of the "
                f"task, got {len(rows):,}. Encode task.texts in their order."
            )
        checks.finite(rows, caller)
        self.rows, self.caller = rows, caller
        self.places = {text: place for place, text in enumerate(texts)}

    def encode(self, texts: Sequence[Text]) -> Rows:
        unknown = [text for text in texts if text not in self.places]
        if unknown:
            raise InputError(
                f"{self.caller}: fit_on must be of the task's texts where vectors are an array, "
                f"got {len(unknown):,} others. Use isotropy.KeyedVectors or an Encoder."
            )
        found: Rows = self.rows[[self.places[text] for text in texts]]
        return found


def encoder_of(vectors: Any, texts: Sequence[Text], caller: str) -> Any:
    """What encodes texts: `vectors` where they do, and otherwise the rows of these texts.

    Where the vectors are of words and the texts are not, these are means of their words.
    """
    if isinstance(vectors, (str, os.PathLike)):
        raise InputError(
            f"{caller}: vectors must be an encoder or an array, got the name {str(vectors)!r}. Use "
            "isotropy.Encoder(...) of a model, isotropy.KeyedVectors.load(...) of a file."
        )
    if isinstance(vectors, KeyedVectors):
        return averaged(vectors, texts)
    return vectors if hasattr(vectors, "encode") else Given(vectors, texts, caller)


def space(vectors: Any, texts: Sequence[Text], caller: str) -> Space:
    """The space of texts by an encoder, by whatever else has `encode`, or of their rows."""
    vectors = encoder_of(vectors, texts, caller)
    if isinstance(vectors, Encoder):
        return _of_model(vectors, texts, caller)
    if isinstance(vectors, WordMeans):
        return _of_tokens(vectors.tokens(texts), _as_is, caller)
    rows = linalg.to_numpy(checks.matrix(vectors.encode(list(texts)), caller))
    if len(rows) != len(texts):
        raise InputError(
            f"{caller}: vectors must encode {len(texts):,} texts as that many rows, got "
            f"{len(rows):,}."
        )
    with np.errstate(over="ignore"):  # what is too large is infinite, and refused
        rows = rows.astype(np.float32)
    checks.finite(rows, caller)
    return Space(Tokens(rows, np.arange(len(rows) + 1)), _as_is)


def _of_model(encoder: Encoder, texts: Sequence[Text], caller: str) -> Space:
    if encoder.pool == "tokens":
        raise InputError(
            f"{caller}: the encoder must pool its tokens, got pool='tokens'. Use "
            "Encoder(..., pool='mean')."
        )
    if encoder.repair is not None or encoder.sentence_repair is not None:
        raise InputError(
            f"{caller}: the encoder must be without repair, got one with_repair. Name that repair "
            "among those to try."
        )
    finish = encoder.own.finish if encoder.own else _as_is
    return _of_tokens(encoder.tokens(texts), finish, caller)


def _of_tokens(tokens: Tokens, finish: Callable[[Rows], Rows], caller: str) -> Space:
    checks.finite(tokens.rows, caller)
    return Space(tokens, finish)


def _as_is(rows: Rows) -> Rows:
    return rows
