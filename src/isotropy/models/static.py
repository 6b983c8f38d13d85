"""Static models: a tokenizer and a table of token vectors, whose mean is the vector of a text.

Folders of model2vec and of sentence-transformers' StaticEmbedding are read without either package.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from isotropy import linalg
from isotropy.errors import InputError, warn
from isotropy.models.loading import STATIC_TABLE, extra, file_of, loading, read_json, static_folder
from isotropy.models.models import NO_LIMIT, NORMALIZE, Encoding, Float32Array, default_prompt
from isotropy.sources import FOLDERS, FolderFormat, open_source

OWN_TABLE, TABLES = "embeddings", ("embeddings", "embedding.weight")
BESIDE = {"weights", "mapping"}
OWN_LENGTH = 512  # tokens per text in model2vec


class StaticModel:
    """A static model with the interface of `Model`; its one layer is the table of token vectors.

    In model2vec, the row of token t is weights[t] * embeddings[mapping[t]], both optional. Unknown
    tokens are left out, and a text is truncated after 512 known ones. sentence-transformers uses
    all tokens, including unknown ones. A text without tokens becomes a row of zeros.
    """

    n_layers = 0
    revision: str | None = None
    device = SimpleNamespace(type="cpu")

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        kind, tensors = self._read()
        self.is_own = kind == OWN_TABLE
        self.table = self._table(kind)
        self.weights, self.mapping = tensors.get("weights"), tensors.get("mapping")
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise self._bad("must have tokenizer.json, got none")
        _, transformers = extra()
        with loading(name):
            self.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
        self._check()
        self.n_features = int(self.table.shape[1])
        self.max_length = OWN_LENGTH if self.is_own else NO_LIMIT
        self.unknown = self._unknown() if self.is_own else None
        self._tokenizing, self._said_empty = threading.Lock(), False

    # Reading

    def _read(self) -> tuple[str, dict[str, NDArray[Any]]]:
        """The name of the table, and the other tensors."""
        path = self.folder / STATIC_TABLE
        if not path.is_file():
            raise self._bad(f"must have {STATIC_TABLE} with the table of token vectors, got none")
        try:
            with safe_open(path, framework="numpy") as file:
                names = set(file.keys())
                beside = {n: file.get_tensor(n) for n in BESIDE & names}
        except (SafetensorError, OSError, TypeError, ValueError) as error:
            raise self._bad(f"must have a whole {STATIC_TABLE} ({_short(error)})") from error
        kind = next((table for table in TABLES if table in names), None)
        if kind is None:
            there = _short(", ".join(sorted(names)) or "none")
            raise self._bad(f"must have the tensor {' or '.join(TABLES)}, got {there}")
        return kind, beside if kind == OWN_TABLE else {}

    def _table(self, kind: str) -> Float32Array:
        source = open_source(self.folder / STATIC_TABLE, column=kind)
        table = np.empty((source.n_samples, source.n_features), np.float32)
        for batch in chain.from_iterable(map(source.read, source.chunks())):
            with np.errstate(over="ignore"):  # what is too large is infinite, and refused
                table[batch.first_row :][: len(batch.rows)] = batch.rows
        if not np.isfinite(table).all():
            raise self._bad("must have token vectors that float32 can hold, got larger ones")
        return table

    def _check(self) -> None:
        """Raise if table, mapping, weights and vocabulary don't match."""
        n_rows, mapping, weights = len(self.table), self.mapping, self.weights
        n_ids = self.n_ids = 1 + max(self.tokenizer.get_vocab().values(), default=-1)
        if not n_ids:
            raise self._bad("must have a vocabulary, got a tokenizer without tokens")
        if mapping is not None and (mapping.ndim != 1 or mapping.dtype.kind not in "iu"):
            raise self._bad(f"must have a mapping of whole numbers, got shape {mapping.shape}")
        for what, tensor in (("mapping", mapping), ("weights", weights)):
            if tensor is not None and (tensor.ndim != 1 or len(tensor) < n_ids):
                raise self._bad(
                    f"must have {what} for each of its {n_ids:,} tokens, got shape {tensor.shape}"
                )
        if mapping is not None and not 0 <= mapping.min() <= mapping.max() < n_rows:
            worst = mapping.min() if mapping.min() < 0 else mapping.max()
            raise self._bad(f"must have a mapping to its {n_rows:,} rows, got row {worst}")
        if mapping is None and n_rows < n_ids:
            raise self._bad(f"must have a row for each of its {n_ids:,} tokens, got {n_rows:,}")
        if weights is not None and not (weights.dtype.kind in "fiu" and np.isfinite(weights).all()):
            raise self._bad("must have finite weights, got others")

    def _unknown(self) -> int | None:
        """The token for unknown text, which is left out."""
        settings = read_json(self.folder / "tokenizer.json")
        name = settings["model"].get("unk_token")
        if name is None and isinstance(number := settings["model"].get("unk_id"), int):
            return number
        return None if name is None else self.tokenizer.get_vocab().get(name)

    def _bad(self, rule: str) -> InputError:
        return InputError(f"{_short(self.folder)!r} {rule}. Save the model again.")

    # The interface of Model

    def encodings(self, texts: Sequence[str], max_length: int) -> list[Encoding]:
        """The known tokens of every text, cut at max_length."""
        with self._tokenizing:
            found = self.tokenizer(
                list(texts),
                add_special_tokens=False,
                return_attention_mask=False,
                return_offsets_mapping=True,
                verbose=False,
            )
        pairs = zip(texts, found["input_ids"], found["offset_mapping"], strict=True)
        return [self._encoding(*pair, max_length) for pair in pairs]

    def _encoding(self, text: str, ids: list[int], places: Any, max_length: int) -> Encoding:
        kept = [i for i, token in enumerate(ids) if token != self.unknown]
        if not kept:
            if not self._said_empty:
                self._said_empty = True
                warn(
                    f"Encoder: texts without a token that the model knows get a vector of zeros, "
                    f"such as {text[:40]!r}."
                )
            whole = np.array([[0, len(text)]], dtype=np.int64)
            return Encoding([self.n_ids], np.array([True]), whole)
        offsets = np.array(places, dtype=np.int64).reshape(-1, 2)[kept[:max_length]]
        picked = [ids[i] for i in kept[:max_length]]
        return Encoding(picked, np.zeros(len(picked), bool), offsets, len(kept) > max_length)

    def hidden(
        self, encodings: Sequence[Encoding], layers: Sequence[int]
    ) -> list[list[Float32Array]]:
        """For each text, the vectors of its tokens, once per layer."""
        return [[self.vectors(np.array(e.ids))] * len(layers) for e in encodings]

    def vectors(self, ids: NDArray[np.int64] | None = None) -> Float32Array:
        """The rows of these tokens, or of all; zeros for the token of an empty text."""
        ids = np.arange(self.n_ids) if ids is None else ids
        known = ids < self.n_ids
        ids = np.where(known, ids, 0)
        rows = self.table[ids if self.mapping is None else self.mapping[ids].astype(np.int64)]
        if self.weights is not None:
            rows = (rows * self.weights[ids, None]).astype(np.float32)
        if not known.all():
            rows[~known] = 0
        return rows

    def fingerprint(self) -> str:
        """A checksum of a sample of the rows, the tokenizer and the settings."""
        picked = np.linspace(0, self.n_ids - 1, min(self.n_ids, 1000)).astype(np.int64)
        digest = hashlib.sha256(self.vectors(picked).tobytes())
        digest.update(json.dumps([self.n_ids, self.table.shape, self.unknown]).encode())
        digest.update((self.folder / "tokenizer.json").read_bytes())
        return digest.hexdigest()[:32]


def table_file(path: str) -> str | None:
    """The file with the table of a static model; None for other folders."""
    folder = static_folder(path)
    return None if folder is None else str(folder / STATIC_TABLE)


def token_vectors(path: str) -> Float32Array | None:
    """The token vectors of a static model with weights or a mapping; None for others."""
    folder = static_folder(path)
    if folder is None:
        return None
    try:
        with safe_open(folder / STATIC_TABLE, framework="numpy") as file:
            names = set(file.keys())
    except (SafetensorError, OSError):  # which is explained when the table is read
        return None
    return StaticModel(path, folder).vectors() if OWN_TABLE in names and BESIDE & names else None


FOLDERS.append(FolderFormat(table_file, token_vectors))


class StaticPooling:
    """The pooling of a static model: the mean of the rows, scaled to unit length if it says so.

    model2vec says so with `normalize` in config.json, sentence-transformers with a module.
    """

    mode = "mean"

    def __init__(self, model: StaticModel) -> None:
        inside = (model.folder / "modules.json").is_file()
        root = model.folder if inside else model.folder.parent
        self.max_length = model.max_length
        self.prompt, self.normalize = "", False
        if (config := model.folder / "config.json").is_file() and model.is_own:
            settings = read_json(config)
            self.normalize = isinstance(settings, dict) and settings.get("normalize") is True
        elif (modules := root / "modules.json").is_file():
            kinds = [m.get("type") if isinstance(m, dict) else None for m in read_json(modules)]
            later = [str(kind).rsplit(".", 1)[-1] for kind in kinds[1:]]
            if later not in ([], [NORMALIZE]):
                raise InputError(
                    f"pool='own' of a static model must end in a mean or {NORMALIZE}, "
                    f"got {_short(', '.join(later))}. Use pool='mean'."
                )
            self.normalize = bool(later)
            self.prompt = default_prompt(file_of(str(root), "config_sentence_transformers.json"))

    def identity(self) -> list[Any]:
        """What its vectors depend on, besides the rows of tokens."""
        return [self.mode, self.prompt, self.normalize]

    def width(self, n_features: int) -> int:
        """Width of the vectors for rows of this width."""
        return n_features

    def finish(self, pooled: Float32Array) -> Float32Array:
        """The means, scaled to unit length if the model says so; zero rows stay zero."""
        return linalg.unit_rows(pooled) if self.normalize else pooled


def _short(what: object) -> str:
    """At most 120 printable characters."""
    text = "".join(c if c.isprintable() else "?" for c in str(what))
    return text if len(text) <= 120 else f"{text[:60]}...{text[-57:]}"
