"""A model's input or output embedding matrix, with its vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError, public
from isotropy.models.keyed import KeyedVectors
from isotropy.models.loading import extra, loading, pretrained_location, static_folder
from isotropy.models.static import StaticModel


class Words(Mapping[str, int]):
    """The row of every word that is one ordinary token of a tokenizer.

    If the tokenizer distinguishes a word inside a sentence, with a space before it, that form is
    looked up first, then the bare word.

    Parameters
    ----------
    tokenizer : transformers tokenizer
    n_rows : int
        Number of rows of the matrix.
    """

    def __init__(self, tokenizer: Any, n_rows: int) -> None:
        self.tokenizer, self.n_rows = tokenizer, n_rows
        self._special = set(tokenizer.all_special_ids)

    def rows(self, words: Sequence[str]) -> list[int | None]:
        """The row of each word; None if it has none."""
        if not words:
            return []
        options = {"add_special_tokens": False, "verbose": False}
        spaced = self.tokenizer([f" {word}" for word in words], **options)["input_ids"]
        bare = self.tokenizer(list(words), **options)["input_ids"]
        pairs = zip(spaced, bare, strict=True)
        return [
            self._only(first) if self._only(first) is not None else self._only(second)
            for first, second in pairs
        ]

    def _only(self, ids: Sequence[int]) -> int | None:
        ordinary = len(ids) == 1 and ids[0] not in self._special and ids[0] < self.n_rows
        return int(ids[0]) if ordinary else None

    def __getitem__(self, word: str) -> int:
        row = self.rows([word])[0] if isinstance(word, str) and word.strip() == word != "" else None
        if row is None:
            raise KeyError(word)
        return row

    @cached_property
    def _listed(self) -> dict[str, int]:
        """Words of the vocabulary as written."""
        written = self.tokenizer.batch_decode([[i] for i in range(self.n_rows)])
        words = sorted({text.strip() for text in written} - {""})
        found = zip(words, self.rows(words), strict=True)
        return {word: row for word, row in found if row is not None}

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)


@public
class Embeddings(KeyedVectors):
    """The embedding matrix of a model: all rows, including special and unused tokens.

    It is a source of rows and an encoder of words that are one token. `embeddings` makes it.

    Attributes
    ----------
    vectors : array of shape (n_samples, n_features)
    tokens : list of str
        The vocabulary; an empty string for rows beyond it.
    words : mapping of str to int
        The row of each word that is one ordinary token.
    """

    words: Words

    def __init__(self, vectors: NDArray[np.float32], tokenizer: Any) -> None:
        super().__init__(vectors, {})
        self.words = Words(tokenizer, len(vectors))
        self.tokens = [""] * len(vectors)
        for token, row in tokenizer.get_vocab().items():
            if row < len(vectors):
                self.tokens[row] = token


@public
def embeddings(name_or_path: Any, which: str = "input") -> Embeddings:
    """The input or output embeddings of a model, with its vocabulary.

    Parameters
    ----------
    name_or_path : str or path
        Name on the hub, folder or .gguf file of a model, which may be a static one.
    which : {"input", "output"}
        The matrix that tokens are looked up in, or the one that predicts tokens. Many models use
        one matrix for both.

    Returns
    -------
    Embeddings

    Examples
    --------
    With a model from the hub::

        matrix = embeddings("bert-base-cased")
        isotropy.measure(matrix)
        matrix.encode(["sun", "moon"]).shape  # (2, 768)
    """
    checks.choice(which, "which", ("input", "output"))
    torch, transformers = extra()
    name = checks.path(name_or_path, "name_or_path")
    folder = static_folder(name)
    if folder is not None:
        if which == "output":
            raise _no_output(name)
        static = StaticModel(name, folder)
        return Embeddings(static.vectors(), static.tokenizer)
    with loading(name):
        where, options = pretrained_location(name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, **options)
        kind = transformers.AutoModel if which == "input" else _head(transformers, where, options)
        if kind is None:
            raise _no_output(name)
        model, info = kind.from_pretrained(
            where, dtype=torch.float32, output_loading_info=True, **options
        )
    layer = model.get_input_embeddings() if which == "input" else model.get_output_embeddings()
    weight = getattr(layer, "weight", None)
    made_up = [
        key for key, w in model.named_parameters() if w is weight and key in info["missing_keys"]
    ]
    if weight is None or made_up:
        raise _no_output(name)
    return Embeddings(weight.detach().float().numpy().copy(), tokenizer)


def _head(transformers: Any, where: str, options: dict[str, Any]) -> Any:
    """The class with the head that the model was saved with; None if it has none."""
    config = transformers.AutoConfig.from_pretrained(where, **options)
    names = config.architectures or []
    found = getattr(transformers, names[0], None) if names else None
    return found or (transformers.AutoModelForCausalLM if options else None)


def _no_output(name: str) -> InputError:
    return InputError(
        f"which='output' must be of a model that predicts tokens, and {name!r} was saved "
        "without output embeddings. Use which='input'."
    )
