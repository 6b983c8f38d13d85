"""The vectors of a task's texts, and what a repair makes of them on either level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError, NotAffineError
from isotropy.repairs import Repair
from isotropy.sources.encoder import Encoder, Tokens
from isotropy.sources.models import Rows
from isotropy.sources.texts import Text

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

    def rows(self, level: str, texts: Integers) -> Rows:
        """The rows of these texts, as often as each is named, that a repair is fitted on."""
        if level == SENTENCE:
            return self.pooled[texts]
        return self.tokens.rows[self.tokens.of(texts)]

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
        rows = repair.transform(self.tokens.rows[self.tokens.of(texts)])
        part = Tokens(rows, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
        return self.finish(part.means())


def _filled(rows: Rows, texts: Integers, n_texts: int) -> Rows:
    whole = np.zeros((n_texts, rows.shape[1]), dtype=rows.dtype)
    whole[texts] = rows
    return whole


def is_affine(repair: Repair) -> bool:
    """Whether a fitted repair is one matrix and one bias."""
    try:
        repair.affine()
    except NotAffineError:
        return False
    return True


def space(vectors: Any, texts: Sequence[Text], caller: str) -> Space:
    """The space of texts by an encoder, by whatever else has `encode`, or of their rows."""
    if isinstance(vectors, Encoder):
        if vectors.pool == "tokens":
            raise InputError(
                f"{caller}: the encoder must pool its tokens, got pool='tokens'. Use "
                "Encoder(..., pool='mean')."
            )
        pool = vectors.own.finish if vectors.own else _as_is
        return Space(vectors.tokens(texts), pool)
    encode = getattr(vectors, "encode", None)
    rows = np.asarray(encode(list(texts)) if encode is not None else vectors)
    rows = np.asarray(checks.matrix(rows, caller))
    if len(rows) != len(texts):
        raise InputError(
            f"{caller}: vectors must have a row for each of the {len(texts):,} texts of the task, "
            f"got {len(rows):,}. Encode task.texts in their order."
        )
    checks.finite(rows, caller)
    return Space(Tokens(np.asarray(rows, np.float32), np.arange(len(rows) + 1)), _as_is)


def _as_is(rows: Rows) -> Rows:
    return rows
