"""A model over texts, as a source of vectors: one row per token, or one row per text."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from isotropy import checks
from isotropy.errors import InputError, public, warn
from isotropy.models.cache import Cache, digest
from isotropy.models.keyed import KeyedVectors
from isotropy.models.loading import is_model, pools_itself, short_name, static_folder
from isotropy.models.models import (
    Encoding,
    Float32Array,
    Layer,
    Model,
    OwnPooling,
    States,
    batched,
    layer_numbers,
)
from isotropy.models.static import StaticModel, StaticPooling
from isotropy.models.texts import Span, Text, Texts, each, open_texts, plain_text
from isotropy.models.tokens import Integers, Stack, TokenRows, joined, labels
from isotropy.progress import ProgressBar
from isotropy.sources import FORMATS, Batch, Chunk, Source, paths

if TYPE_CHECKING:
    import pyarrow as pa


class TextSource(Source):
    """The vectors of texts as a source; a block of texts is encoded each time it is read.

    With one row per token, texts are tokenised when the source is made, to count the rows. Other
    columns are the labels of tokens, or the texts (named `text_column`, if set) and the other
    columns of their file.
    """

    text_column: str | None = None

    def __init__(self, encoder: Encoder, texts: Texts) -> None:
        encoder.check_one_layer("a source")
        self.encoder, self.texts = encoder, texts
        self.n_features = encoder.n_features
        self.n_blank = texts.n_blank
        self._cut: dict[int, int] = {}
        self._carry = True
        self._chunks = self._counted()
        self.n_samples = sum(chunk.n_rows for chunk in self._chunks)

    @property
    def n_truncated(self) -> int:
        """Number of texts read so far that were truncated."""
        return sum(self._cut.values())

    def count_truncated(self) -> int:
        """Number of texts that are truncated; those that were not read are tokenised."""
        for number, block in enumerate(self.texts.blocks):
            if number not in self._cut:
                encodings, _ = self.encoder.tokenized(self.texts.read(block))
                self._say_cut(number, sum(encoding.truncated for encoding in encodings))
        return self.n_truncated

    def chunks(self) -> list[Chunk]:
        return self._chunks

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        number, first_text = chunk.place
        block = self.texts.blocks[number]
        texts = self.texts.read(block)
        (found,), n_cut = self.encoder.block(texts)
        self._say_cut(number, n_cut)
        carried = self._carried(texts, block, first_text) if self._carry else None
        yield Batch(chunk.first_row, found.rows, carried=carried)

    def bare(self) -> TextSource:
        found = copy.copy(self)
        found._carry = False
        return found

    def origin(self) -> dict[str, Any]:
        made = self.encoder.origin()
        return made and made | {"fingerprint": fingerprint(each(self.texts))}

    def identity(self) -> dict[str, Any]:
        return {
            "kind": "texts",
            **self.encoder.identity(),
            "repairs": digest([self.encoder.repair, self.encoder.sentence_repair]),
            "texts": fingerprint(each(self.texts)),
        }

    def _counted(self) -> list[Chunk]:
        """One chunk per block."""
        chunks, first_row, first_text = [], 0, 0
        for number, block in enumerate(self.texts.blocks):
            n_rows = block[0]
            if self.encoder.pool == "tokens":
                encodings, kept = self.encoder.tokenized(self.texts.read(block))
                self._say_cut(number, sum(encoding.truncated for encoding in encodings))
                n_rows = sum(map(len, kept))
            chunks.append(Chunk(first_row, n_rows, place=(number, first_text)))
            first_row, first_text = first_row + n_rows, first_text + block[0]
        return chunks

    def _carried(self, texts: Sequence[Text], block: tuple[int, ...], first_text: int) -> pa.Table:
        if self.encoder.pool == "tokens":
            table, name = self.encoder.labels(texts, first_text), "token"
        else:
            table = self.texts.table(block)
            name = table.column_names[0]
        renamed = {name: self.text_column or name}
        return table.rename_columns([renamed.get(n, n) for n in table.column_names])

    def _say_cut(self, block: int, n_cut: int) -> None:
        if n_cut and not self.n_truncated:
            warn(
                f"Encoder: texts of more than {self.encoder.max_length} tokens are truncated; the "
                "source's n_truncated counts them."
            )
        self._cut[block] = n_cut


def fingerprint(texts: Iterable[Text]) -> str:
    """A checksum of texts in their order."""
    found = hashlib.sha256()
    for text in texts:
        found.update(repr(text).encode())
    return found.hexdigest()


POOLS = ("tokens", "mean", "cls", "last", "own")
CPU_BATCH, GPU_BATCH = 1 << 12, 1 << 16  # tokens
CACHE_BATCH = 64  # texts
NOT_IN_CACHE_KEY = ("pool", "own", "special_tokens")  # since a cache has every token


@public
class Encoder:
    """Encodes texts with a pretrained model; deterministic on one machine.

    Parameters
    ----------
    name_or_path : str or path
        A transformers or sentence-transformers model: its name on the hub, a local folder or a
        .gguf file. Only the encoder of an encoder-decoder is used. A static model (model2vec or
        sentence-transformers) has one layer, its table of token vectors.
    layer : int, list of int, "all" or "first-last"
        Hidden layer: 0 is the embedding layer, -1 the last one. "first-last" averages layer 1 and
        the last one. Only `encode`, `by_layer` and `batches` work with several layers.
    pool : {"own", "mean", "cls", "last", "tokens"}, optional
        How the rows of a text's tokens become one row: "own" is the pooling that comes with a
        sentence-transformers or static model; "mean" averages; "cls" takes the first and "last"
        the last token. "tokens" keeps one row per token. By default "own" if the model has a
        pooling of its own, else "mean".
    special_tokens : bool
        Whether "tokens" and "mean" include special tokens, such as [CLS] and </s>.
    device : str, optional
        Torch device; by default "cuda" if available.
    batch_tokens : int, optional
        Tokens per batch, including padding; by default 4,096, or 65,536 on a GPU.
    max_length : int, optional
        Longer texts are truncated, with a warning; by default the model's own limit.
    cache : path, optional
        Folder that keeps the rows of all tokens, so that no text is run twice. It works with one
        layer or the "first-last" average.

    Notes
    -----
    For a `Span`, only the tokens of that word are used, encoded in its context. For a text without
    ordinary tokens, the special ones are used.

    Examples
    --------
    With a model from the hub::

        encoder = Encoder("bert-base-cased", pool="mean")
        encoder.encode(["A text.", "Another one."]).shape  # (2, 768)
        isotropy.measure(encoder.source("texts.txt"))
    """

    def __init__(
        self,
        name_or_path: Any,
        layer: Layer = -1,
        pool: str | None = None,
        special_tokens: bool = False,
        device: str | None = None,
        batch_tokens: int | None = None,
        max_length: int | None = None,
        cache: Any = None,
    ) -> None:
        self.name = checks.path(name_or_path, "name_or_path")
        if pool is None:
            pool = "own" if pools_itself(self.name) else "mean"
        self.pool = checks.choice(pool, "pool", POOLS)
        self.special_tokens = bool(special_tokens)
        self.layer = layer
        self.repair: Any = None
        self.sentence_repair: Any = None
        self._device = device
        self._load()
        self.layers = layer_numbers(layer, self.model.n_layers)
        default = CPU_BATCH if self.model.device.type == "cpu" else GPU_BATCH
        self.batch_tokens = checks.integer(batch_tokens or default, "batch_tokens", 1)
        self.max_length = self.own.max_length if self.own else self.model.max_length
        self.max_length = min(self.max_length, self.model.max_length)
        if max_length is not None:
            least = 1 + int(self.model.tokenizer.num_special_tokens_to_add())
            asked = checks.integer(max_length, "max_length", least)
            self.max_length = min(self.max_length, asked)
        self.cache: Cache | None = None
        if cache is not None:
            self.check_one_layer("a cache")
            key = {k: v for k, v in self.identity().items() if k not in NOT_IN_CACHE_KEY}
            self.cache = Cache(cache, key)

    def _load(self) -> None:
        self.model: Model | StaticModel
        self.own: OwnPooling | StaticPooling | None
        folder = static_folder(self.name)
        if folder is None:
            self.model = Model(self.name, self._device)
            self.own = OwnPooling(self.name, self.model) if self.pool == "own" else None
        else:
            self.model = StaticModel(self.name, folder)
            self.own = StaticPooling(self.model) if self.pool == "own" else None

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("model", "own")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._load()

    @property
    def n_features(self) -> int:
        width = int(getattr(self.repair, "_n_features_out", self.model.n_features))
        if self.own:
            width = self.own.width(width)
        after = None if self.pool == "tokens" else self.sentence_repair
        return int(getattr(after, "_n_features_out", width))

    @property
    def several_layers(self) -> bool:
        return self.layer == "all" or not isinstance(self.layer, (int, str, np.integer))

    def check_one_layer(self, what: str) -> None:
        """Raise if the encoder has several layers."""
        if self.several_layers:
            raise InputError(
                f"{what} must be of one layer, got layer={self.layer!r}. Use by_layer, or "
                "isotropy.layers."
            )

    def with_repair(self, repair: Any, level: str = "token") -> Self:
        """An encoder that repairs token rows before pooling, as the papers do.

        Parameters
        ----------
        repair : fitted repair
            Replaces an earlier one of the same level.
        level : {"token", "sentence"}
            "sentence" repairs the pooled rows instead.
        """
        checks.choice(level, "level", ("token", "sentence"))
        found = object.__new__(type(self))  # copy.copy would load the model again
        found.__dict__.update(self.__dict__)
        setattr(found, "repair" if level == "token" else "sentence_repair", repair)
        return found

    def source(self, texts: Any, columns: Sequence[str] | None = None) -> TextSource:
        """The vectors of texts, or of a file of texts, as a source that is read in chunks."""
        return TextSource(self, open_texts(texts, columns))

    def encode(self, texts: Any, progress: bool | None = None) -> Float32Array:
        """One row per text, or per token with pool="tokens"; (n_layers, n, d) for several layers.

        Parameters
        ----------
        texts : list of str, or path
        progress : bool, optional
            Whether to show a bar; by default if standard error is a terminal.
        """
        found = self.by_layer(texts, progress)
        return np.stack(found) if self.several_layers else found[0]

    def by_layer(self, texts: Any, progress: bool | None = None) -> list[Float32Array]:
        """The result of `encode` for each layer, in one pass of the model."""
        return [tokens.rows for tokens in self._all(texts, progress, self._finished)]

    def tokens(self, texts: Any, progress: bool | None = None) -> TokenRows:
        """The token rows to pool, without repairs: all of a text, its first or its last."""
        self.check_one_layer("tokens")
        return self._all(texts, progress, lambda tokens: tokens)[0]

    def pooled(self, tokens: TokenRows, rows: Float32Array | None = None) -> Float32Array:
        """One row per text from its token rows; `rows`, if given, replace these."""
        means = tokens.means(rows)
        return self.own.finish(means) if self.own else means

    def labels(self, texts: Sequence[Text], first_text: int = 0) -> pa.Table:
        """A table with one row for each token that has a vector.

        Columns: token, token_id, sentence (number of the text, starting at first_text), position,
        is_special, is_punctuation.
        """
        encodings, kept = self.tokenized(texts)
        plain = [self._plain(text) for text in texts]
        return labels(plain, encodings, kept, self.model.tokenizer, first_text)

    def origin(self, level: str = "sentence") -> dict[str, Any]:
        """How its vectors are made, as fields of `repairs.Origin`; empty if they are repaired.

        With level="token" it is about the rows of tokens, before pooling.
        """
        if self.repair is not None or self.sentence_repair is not None or self.several_layers:
            return {}
        pooled = level == "sentence"
        special = self.special_tokens and self.pool in ("tokens", "mean")
        found = {
            "model": short_name(self.name),
            "revision": self.model.revision,
            "layer": "first-last" if self.layer == "first-last" else self.layers[0],
            "pooling": f"{self.pool}+special" if special else self.pool,
            "prompt": self.own.prompt if self.own else "",
            "normalised": pooled and self.own is not None and self.own.normalize,
            "dimension": self.n_features if pooled else self.model.n_features,
        }
        return {name: value for name, value in found.items() if value is not None}

    def identity(self) -> dict[str, Any]:
        """Plain values that identify this encoder's vectors, apart from repairs."""
        return {
            "model": self.model.fingerprint(),
            "layers": self.layers,
            "average": self.layer == "first-last",
            "pool": self.pool,
            "own": digest(self.own.identity()) if self.own else "",
            "special_tokens": self.special_tokens,
            "max_length": self.max_length,
        }

    def tokenized(self, texts: Sequence[Text]) -> tuple[list[Encoding], list[Integers]]:
        """The tokens of each text, and the positions of those that have rows."""
        plain = [self._plain(text) for text in texts]
        encodings = self.model.encodings(plain, self.max_length)
        return encodings, [self._kept(t, e) for t, e in zip(texts, encodings, strict=True)]

    def batches(self, texts: Sequence[Text]) -> Iterator[list[States]]:
        """Hidden states of all tokens, in batches of texts of similar length, longest first."""
        plain = [self._plain(text) for text in texts]
        if self.cache is None:
            yield from self._run(plain)
            return
        missing = self.cache.missing(plain)
        if missing:
            ran = (states for batch in self._run(missing) for states in batch)
            states = sorted(ran, key=attrgetter("number"))
            self.cache.add(missing, [s.encoding for s in states], [s.layers[0] for s in states])
        for start in range(0, len(plain), CACHE_BATCH):
            found = map(self.cache.get, plain[start : start + CACHE_BATCH])
            yield [States(i, encoding, [rows]) for i, (encoding, rows) in enumerate(found, start)]

    def block(
        self,
        texts: Sequence[Text],
        finish: Callable[[TokenRows], TokenRows] | None = None,
        advance: Callable[[int], object] | None = None,
    ) -> tuple[list[TokenRows], int]:
        """The rows of each text for each layer, and the number of truncated texts.

        Repairs and pools batch by batch, so that only the token rows of a batch are in memory.
        """
        finish = finish or self._finished
        found: list[list[Float32Array]] = [[] for _ in texts]
        n_cut = 0
        for batch in self.batches(texts):
            kept = [self._kept(texts[s.number], s.encoding) for s in batch]
            layers = [
                finish(joined([s.layers[k][rows] for s, rows in zip(batch, kept, strict=True)]))
                for k in range(len(batch[0].layers))
            ]
            for states, *rows in zip(batch, *(tokens.split() for tokens in layers), strict=True):
                found[states.number] = rows
                n_cut += states.encoding.truncated
            if advance is not None:
                advance(len(batch))
        return [joined(layer) for layer in zip(*found, strict=True)], n_cut

    def _all(
        self, texts: Any, progress: bool | None, finish: Callable[[TokenRows], TokenRows]
    ) -> list[TokenRows]:
        opened = open_texts(texts)
        stacks: list[Stack] = []
        n_cut = 0
        with ProgressBar("texts", progress) as bar:
            bar.begin(opened.n_texts, "encoding")
            for block in opened.blocks:
                layers, n = self.block(opened.read(block), finish, bar.advance)
                stacks = stacks or [Stack() for _ in layers]
                for stack, layer in zip(stacks, layers, strict=True):
                    stack.add(layer)
                n_cut += n
        if n_cut:
            remark = cut_off(n_cut, opened.n_texts, self.max_length)
            warn(f"Encoder: {remark}.")
        return [stack.tokens() for stack in stacks]

    def _run(self, texts: Sequence[str]) -> Iterator[list[States]]:
        encodings = self.model.encodings(texts, self.max_length)
        for batch in batched([len(encoding) for encoding in encodings], self.batch_tokens):
            picked = [encodings[i] for i in batch]
            hidden = self.model.hidden(picked, self.layers)
            if self.layer == "first-last":
                hidden = [[(first + last) * np.float32(0.5)] for first, last in hidden]
            yield [States(*found) for found in zip(batch, picked, hidden, strict=True)]

    def _finished(self, tokens: TokenRows) -> TokenRows:
        """Token rows repaired and pooled."""
        rows = tokens.rows if self.repair is None else self.repair.transform(tokens.rows)
        if self.pool == "tokens":
            return TokenRows(rows, tokens.starts)
        pooled = self.pooled(tokens, rows)
        if self.sentence_repair is not None:
            pooled = self.sentence_repair.transform(pooled)
        return TokenRows(pooled, np.arange(len(pooled) + 1))

    def _plain(self, text: Text) -> str:
        return (self.own.prompt if self.own else "") + plain_text(text)

    def _kept(self, text: Text, encoding: Encoding) -> Integers:
        """Positions of the tokens of a text that have rows."""
        if isinstance(text, Span):
            return self._inside(text, encoding)
        pool = self.own.mode if self.own else self.pool
        if not len(encoding):
            raise InputError(f"texts must have tokens, got none in {text[:60]!r}.")
        if pool in ("cls", "last"):
            return np.array([0 if pool == "cls" else len(encoding) - 1])
        if self.own or self.special_tokens or encoding.special.all():
            return np.arange(len(encoding))
        return np.flatnonzero(~encoding.special)

    def _inside(self, span: Span, encoding: Encoding) -> Integers:
        shift = len(self.own.prompt) if self.own else 0
        start, end = (encoding.offsets - shift).T
        inside = (start < span.end) & (end > span.start) & (end > start)
        found = np.flatnonzero(inside & ~encoding.special)
        if not len(found):
            raise InputError(
                f"characters {span.start} to {span.end} of {span.text[:60]!r} must lie "
                f"within the first {self.max_length} tokens and hold a word."
            )
        return found


def cut_off(n_cut: int, n_texts: int, max_length: int) -> str:
    """How many texts were truncated, in words."""
    return f"{n_cut:,} of {n_texts:,} texts were longer than {max_length} tokens and truncated"


NOT_ALONE = {
    ".txt",
    ".txt.gz",
    ".bin",
    ".gguf",
    ".safetensors",
}  # suffixes that folders of models have too


@public
def open_encoder(
    name_or_path: Any,
    *,
    layer: Layer | None = None,
    pool: str | None = None,
    special_tokens: bool = False,
    device: str | None = None,
    cache: Any = None,
    column: str | None = None,
    text_column: str | None = None,
) -> Encoder | KeyedVectors:
    """An encoder of texts, from a model or from a file that has vectors beside their texts.

    `compare`, `advise` and `diagnose` take either.

    Parameters
    ----------
    name_or_path : str or path
        A model's folder, hub name or .gguf file, as for `Encoder`; or a file or folder of vectors
        with a column of texts or words, as for `KeyedVectors.load`.
    layer, pool, special_tokens, device
        For models only, as for `Encoder`.
    cache : path, optional
        As for `Encoder`; a file of vectors has no use for it.
    column, text_column : str, optional
        For files only: the column with the vectors, and the one with the texts.

    Examples
    --------
    ::

        isotropy.open_encoder("sentence-transformers/all-MiniLM-L6-v2")
        isotropy.open_encoder("vectors.parquet", text_column="question")
    """
    name = checks.path(name_or_path, "name_or_path")
    if holds_vectors(name):
        for_models = {"layer": layer, "pool": pool, "device": device}
        for_models["special_tokens"] = special_tokens or None
        _refuse(for_models, "a file of vectors, for which no model is run")
        return KeyedVectors.load(name, text_column, column)
    _refuse({"column": column, "text_column": text_column}, "a model")
    return Encoder(
        name,
        layer=-1 if layer is None else layer,
        pool=pool,
        special_tokens=special_tokens,
        device=device,
        cache=cache,
    )


def holds_vectors(name_or_path: Any) -> bool:
    """Whether this is a file or folder of vectors rather than a model."""
    path = Path(name_or_path)
    if is_model(path):
        return False
    if os.path.isdir(path):  # one with texts alone is meant as a model, and lacks its config.json
        return bool({paths.suffix(file.name) for file in path.iterdir()} & set(FORMATS) - NOT_ALONE)
    return os.path.exists(path) or paths.suffix(path.name) in FORMATS


def _refuse(options: dict[str, Any], why: str) -> None:
    for name, given in options.items():
        if given is not None:
            raise InputError(f"{name} can't be used with {why}. Leave it out.")
