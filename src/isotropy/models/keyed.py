"""Vectors looked up by word or text, means of word vectors, and a model's embedding matrix."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, ItemsView, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import InputError, brief, public
from isotropy.models.loading import extra, loading, pretrained_location, static_folder
from isotropy.models.models import Float32Array
from isotropy.models.static import StaticModel
from isotropy.models.texts import Text, occurrence
from isotropy.models.tokens import Integers, TokenRows
from isotropy.sources import ArraySource, Source, listed, open_source

KEYS = ("word", "text", "sentence", "token", "question")


@public
class KeyedVectors(ArraySource):
    """Vectors with a word or text each, which makes them an encoder of these texts.

    Parameters
    ----------
    vectors : array of shape (n_samples, n_features)
    keys : sequence of str, or mapping of str to int
        The word or text of each row, or a mapping of these to rows (the attribute `words`). If a
        key is repeated, its first row counts.

    Examples
    --------
    >>> vectors = KeyedVectors(np.eye(3), ["sun", "moon", "tax"])
    >>> "moon" in vectors, vectors.encode(["tax", "sun"]).tolist()
    (True, [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    """

    words: Mapping[Any, int]

    def __init__(self, vectors: Any, keys: Sequence[Text] | Mapping[Any, int]) -> None:
        super().__init__(vectors)
        self.vectors: NDArray[Any] = self.X
        self.made: dict[str, Any] = {}
        self.words = keys if isinstance(keys, Mapping) else self._numbered(keys)
        if isinstance(keys, Mapping):
            rows = list(keys.values())
            if set(map(type, rows)) != {int} or not 0 <= min(rows) <= max(rows) < self.n_samples:
                for row in rows:
                    checks.integer(row, "the row of each key", 0, self.n_samples - 1)

    def _numbered(self, keys: Any) -> dict[Any, int]:
        """The first row of each key."""
        listed = isinstance(keys, Iterable) and not isinstance(keys, (str, bytes))
        given = list(islice(keys, self.n_samples + 1)) if listed else None
        if given is None or not all(isinstance(key, Hashable) for key in given):
            raise InputError(
                f"keys must be a list of words or texts, or the row of each, got {brief(keys)}."
            )
        if len(given) != self.n_samples:
            n_keys = f"{len(given):,}" if len(given) < self.n_samples else "more"
            raise InputError(
                f"keys must be as many as the {self.n_samples:,} vectors, got "
                f"{n_keys}. Give one a row."
            )
        return dict(zip(reversed(given), reversed(range(len(given))), strict=True))

    @classmethod
    def load(cls, path: Any, key: str | None = None, column: str | None = None) -> Self:
        """Load vectors from a file that also has their words or texts.

        Parameters
        ----------
        path : path
            A file with columns that `isotropy.open` reads (.parquet, .jsonl, .csv, word2vec's .txt,
            .vec and .bin), or a folder with vectors.npy and words.txt.
        key : str, optional
            Column with the words or texts; by default word, text, sentence, token, question, or
            the only column of strings.
        column : str, optional
            Column with the vectors, if there are several.
        """
        folder = Path(checks.path(path, "path"))
        if all(os.path.isfile(folder / name) for name in ("words.txt", "vectors.npy")):
            words = _lines(folder / "words.txt")
            return cls(_read(open_source(folder / "vectors.npy"))[0], words)
        source = open_source(path, column=column)
        rows, tables = _read(source)
        name = _key_column(tables[0], key, str(path))
        keys = [word for table in tables for word in table.column(name).to_pylist()]
        found = cls(rows, keys)
        found.made = source.origin()
        return found

    def origin(self) -> dict[str, Any]:
        return self.made

    def __contains__(self, key: object) -> bool:
        return key in self.words

    def encode(self, texts: Iterable[Text]) -> NDArray[Any]:
        """The row of each text; all texts must be among the keys."""
        if not isinstance(texts, Iterable):
            raise InputError(f"texts must be a list of texts, got {brief(texts)}.")
        asked = list(texts)
        found = [self.words.get(text) if isinstance(text, Hashable) else None for text in asked]
        unknown = [text for text, row in zip(asked, found, strict=True) if row is None]
        if unknown:
            raise InputError(
                f"texts must be among the keys, got {len(unknown):,} that are not: "
                f"{listed(unknown, 3)}. Leave them out."
            )
        return self.vectors[np.array(found, dtype=np.int64)]

    def with_repair(self, repair: Any) -> KeyedVectors:
        """Keyed vectors with the same keys and repaired rows."""
        repaired = KeyedVectors(repair.transform(self.vectors), {})
        repaired.words = self.words
        return repaired


def read_rows(source: Source) -> NDArray[Any]:
    """All rows of a source."""
    return _read(source)[0]


def _read(source: Source) -> tuple[NDArray[Any], list[Any]]:
    """All rows, and the tables of what comes with them."""
    batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
    return np.concatenate([batch.rows for batch in batches]), [batch.carried for batch in batches]


def _lines(path: Path) -> list[str]:
    data = path.read_bytes()
    try:
        return data.decode("utf-8").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{str(path)!r} must be UTF-8, got other bytes in line {line}. Convert "
            "it, as with iconv -f latin1 -t utf-8."
        ) from error


def _key_column(table: Any, asked: str | None, path: str) -> str:
    names = [] if table is None else table.column_names
    texts = [name for name in names if str(table.schema.field(name).type).endswith("string")]
    if asked is not None:
        found = [asked] if asked in names else []
    else:
        found = [name for name in KEYS if name in texts][:1] or texts
    if not names:
        raise InputError(
            f"{path!r} must hold words or texts beside the vectors, got vectors only. Save both "
            "in a .parquet, .jsonl, .csv or word2vec file, or as vectors.npy and words.txt; for a "
            "search, give the queries' vectors with --query-vectors."
        )
    if len(found) != 1:
        raise InputError(
            f"{path!r} must have the column {asked or 'word or text'}, got {', '.join(names)}. "
            "Name the one with the words or texts."
        )
    return found[0]


WORD = re.compile(r"[^\W_]+(?:['\u2019.\-][^\W_]+)*")
PIECE = re.compile(r"[^\W_]+")
NONE = -1


class WordMeans:
    """Encodes each text as the mean of the vectors of its known words.

    A word is looked up as written, then in lower case, then in parts, split at hyphens, apostrophes
    and dots. Punctuation is ignored. A text without a known word becomes a row of zeros. The
    unknown words of `texts` are counted.

    Examples
    --------
    >>> words = KeyedVectors([[1.0, 0.0], [0.0, 1.0]], ["sun", "moon"])
    >>> means = WordMeans(words, ["Sun, moon!", "the sun"])
    >>> means.encode(["Sun, moon!", "the sun"]).tolist(), means.n_words, means.n_unknown
    ([[0.5, 0.5], [1.0, 0.0]], 4, 1)
    """

    def __init__(self, vectors: KeyedVectors, texts: Sequence[Text]) -> None:
        self.vectors = vectors
        self._rows: dict[str, list[int]] = {}
        found = [self._found(text) for text in texts]
        self.n_texts, self.n_empty = len(texts), sum(not rows for rows, _ in found)
        self.n_unknown = sum(n_unknown for _, n_unknown in found)
        self.n_words = self.n_unknown + sum(len(rows) for rows, _ in found)

    @property
    def notes(self) -> list[str]:
        """How texts are encoded, and how many words are unknown."""
        empty = f"; {self.n_empty:,} of {self.n_texts:,} texts have no known word and are zero"
        return [
            "Each text is the mean of the vectors of its words, since the vectors are of words: "
            f"{self.n_unknown:,} of {self.n_words:,} words are unknown and left out"
            f"{empty if self.n_empty else ''}."
        ]

    def encode(self, texts: Sequence[Text]) -> Float32Array:
        """The mean of each text's known words."""
        return self.tokens(texts).means()

    def tokens(self, texts: Sequence[Text]) -> TokenRows:
        """The rows of each text's known words."""
        found = [self._found(text)[0] or [NONE] for text in texts]
        starts: Integers = np.cumsum([0, *map(len, found)])
        numbers = np.array([row for rows in found for row in rows], dtype=np.int64)
        with np.errstate(over="ignore"):  # what is too large is infinite, and refused
            rows = self.vectors.vectors[numbers].astype(np.float32)
        rows[numbers == NONE] = 0
        return TokenRows(rows, starts)

    def _found(self, text: Text) -> tuple[list[int], int]:
        """The rows of a text's known words, and the number of unknown ones."""
        words = WORD.findall(occurrence(text))
        for word in words:
            if word not in self._rows:
                self._rows[word] = self._look_up([word]) or self._look_up(PIECE.findall(word))
        found = [self._rows[word] for word in words]
        return [row for rows in found for row in rows], sum(not rows for rows in found)

    def _look_up(self, words: Sequence[str]) -> list[int]:
        known: Any = self.vectors.words
        rows = (known.get(word, known.get(word.lower())) for word in words)
        return [int(row) for row in rows if row is not None]


def averaged(vectors: KeyedVectors, texts: Sequence[Text]) -> KeyedVectors | WordMeans:
    """The vectors, or means of words if the texts are not among the keys but their words are.

    Means are used if fewer than half of the texts, and at least half of their words, are keys.
    """
    if 2 * sum(text in vectors for text in texts) >= len(texts):
        return vectors
    found = WordMeans(vectors, texts)
    return found if 0 < found.n_words >= 2 * found.n_unknown else vectors


class Words(Mapping[str, int]):
    """The row of every word that is one ordinary token of a tokenizer, in a matrix of n_rows.

    If the tokenizer distinguishes a word inside a sentence, with a space before it, that form is
    looked up first, then the bare word.
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
        found = []
        for forms in zip(spaced, bare, strict=True):
            tokens = (ids[0] for ids in forms if len(ids) == 1)
            known = (int(t) for t in tokens if t not in self._special and t < self.n_rows)
            found.append(next(known, None))
        return found

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

    def items(self) -> ItemsView[str, int]:
        """All words with their rows, which the tokenizer is asked for together, not one by one."""
        return self._listed.items()


@public
class Embeddings(KeyedVectors):
    """The embedding matrix of a model: all rows, including special and unused tokens.

    It is a source of rows and an encoder of words that are one token. `embeddings` makes it.

    Attributes
    ----------
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
        kind = transformers.AutoModel
        if which == "output":  # the class that the model was saved as
            config = transformers.AutoConfig.from_pretrained(where, **options)
            saved_as = getattr(transformers, (config.architectures or [""])[0], None)
            kind = saved_as or (transformers.AutoModelForCausalLM if options else None)
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


def _no_output(name: str) -> InputError:
    return InputError(
        f"which='output' must be of a model that predicts tokens, and {name!r} was saved "
        "without output embeddings. Use which='input'."
    )
