"""The contract of every codec: codes of rows, the search among them, and one file to save it in."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from isotropy import checks, linalg, repairs, stored
from isotropy.checks import Array
from isotropy.codecs.ranking import best_of, keys_of, ranked
from isotropy.engines import (
    Checkpoint,
    Engine,
    map_rows,
    open_checkpoint,
    reduce,
    using,
)
from isotropy.errors import InputError, InputTypeError, public
from isotropy.linalg import Floats, like
from isotropy.repairs import Origin, Repair, files
from isotropy.sources import Source, as_source, guard, open_sink, output_path
from isotropy.stats import Moments
from isotropy.stored import Field
from isotropy.threads import over_threads

KIND = "codec"
SUFFIXES = (".npy", ".parquet", ".safetensors", "")  # of files that can hold codes
COMPARED = 1 << 22  # scores that are held at a time
SHIFT = "query_shift_"

Tensors = dict[str, NDArray[Any]]
Blocks = Iterator[tuple[int, Array]]  # (first row, codes)


@public
class Codec(BaseEstimator, ABC):
    """A map of rows to short codes, fitted from statistics, and the search among the codes.

    The score of a row for a query is the product of `queries(query)` and `decode(code)`, which is
    their cosine: both have length one.

    A subclass defines `fit_source(source, checkpoint)`, `encoded(rows)`, `decoded(codes)` and
    `asked(rows)`, sets `dtype` and `n_columns`, and is registered under its `name`. It may replace
    `answers` and `compared`, which say how codes are scored.
    """

    name: ClassVar[str] = ""
    by_name: ClassVar[dict[str, type[Codec]]] = {}
    decodes: bool = True  # whether codes stand for rows; otherwise `decode` refuses them
    align_queries: bool = False  # whether queries are moved by `query_shift_`

    n_features_in_: int
    n_samples_seen_: int
    query_shift_: Floats | None = None
    origin_: Origin = Origin()
    note_: str = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            Codec.by_name[cls.name] = cls

    def fit(
        self,
        X: Any,
        y: object = None,
        *,
        queries: Any = None,
        engine: str | Engine | None = None,
        checkpoint: Any = None,
    ) -> Self:
        """Fit the codec, and its repair unless that is fitted already, to the rows of X.

        Parameters
        ----------
        X : array, tensor, frame, path or source of shape (n_samples, n_features)
        y : ignored
        queries : array, tensor, frame, path or source of shape (n_queries, n_features), optional
            A sample of queries, for `align_queries=True` only.
        engine : {"local", "torch", "dask"} or Engine, optional
            Where the work runs; see `Repair.fit`.
        checkpoint : path, optional
            Folder for finished chunks: an interrupted fit resumes where it stopped.

        Returns
        -------
        self
        """
        source = as_source(X)
        kept = open_checkpoint(checkpoint)
        self._prepare(source, queries is not None)  # before rows are read
        with using(engine) as made, made.keeping():
            shift = None if queries is None else mean_shift(source, _open_queries(queries), kept)
            return self._learn(source, kept, shift)

    def _learn(
        self,
        source: Source,
        checkpoint: Checkpoint | None,
        shift: Floats | None = None,
        **shared: Any,
    ) -> Self:
        self._prepare(source, shift is not None)
        self.n_samples_seen_ = self.fit_source(source, checkpoint, **shared)
        self.query_shift_ = shift
        self.origin_ = Origin.from_dict(source.origin())
        return self

    def _prepare(self, source: Source, with_queries: bool) -> None:
        """Take over the width of the rows, and raise if a parameter is not valid."""
        self.n_features_in_ = source.n_features
        self._check_params()
        if self.align_queries and not with_queries:
            raise InputError(
                "queries must be given with align_queries=True, got none. Give a sample of them."
            )
        if with_queries and not self.align_queries:
            raise InputError("queries need align_queries=True, got False. Set it, or omit them.")

    def encode(
        self,
        X: Any,
        *,
        out: Any = None,
        engine: str | Engine | None = None,
        overwrite: bool = False,
    ) -> Any:
        """The codes of the rows, or with `out` a file of them.

        Parameters
        ----------
        X : array or tensor of shape (n_samples, n_features); with `out` also a path or source
        out : path, optional
            File (.npy, .parquet, .safetensors) to stream the codes to; without a suffix, a folder
            of Parquet parts. It gets its name only when it is complete.
        engine : {"local", "torch", "dask"} or Engine, optional
            Where the work runs; only with `out`.
        overwrite : bool
            Replace an existing file or folder.

        Returns
        -------
        array or tensor of shape (n_samples, n_columns)
            Of `dtype`, on the device of X. With `out`, an array mapped from a .npy file, and None
            for other files.
        """
        if out is not None:
            self.write(X, out, engine=engine, overwrite=overwrite)
            is_array = os.path.splitext(output_path(out, "out"))[1].lower() == ".npy"
            return np.load(output_path(out, "out"), mmap_mode="r") if is_array else None
        check_is_fitted(self)
        return as_given(self.codes_of(self._rows(X)), X)

    def write(
        self, X: Any, out: Any, *, engine: str | Engine | None = None, overwrite: bool = False
    ) -> int:
        """Write the codes to `out`, as `encode` does; returns the number of rows left out."""
        check_is_fitted(self)
        target = output_path(out, "out")
        if os.path.splitext(target)[1].lower() not in SUFFIXES:
            raise InputError(
                f"out must end in {', '.join(SUFFIXES[:-1])} or be a folder to hold codes, got "
                f"{target!r}."
            )
        guard({"out": out}, {"X": X}, overwrite=overwrite)
        source = as_source(X)
        checks.width(source.n_features, self.n_features_in_)
        with using(engine):
            sink = open_sink(out, self.n_columns, self.dtype, source, overwrite=overwrite)
            return map_rows(source, self.codes_of, sink)

    def decode(self, codes: Any) -> Any:
        """The rows that the codes stand for, of length one, in the repaired space.

        Parameters
        ----------
        codes : array or tensor of shape (n_samples, n_columns)

        Returns
        -------
        float32 array or tensor of shape (n_samples, n_dims_)
        """
        found = self._expect_codes(codes)
        parts = [self.decoded(part) for _, part in self._blocks(found)]
        return as_given(linalg.namespace(parts[0]).concat(parts), codes)

    def queries(self, X: Any) -> Any:
        """What queries are scored with: rows of length one in the repaired space.

        Parameters
        ----------
        X : array or tensor of shape (n_queries, n_features)

        Returns
        -------
        float32 array or tensor of shape (n_queries, n_dims_)
        """
        check_is_fitted(self)
        return as_given(self.asked(self._query_rows(X)), X)

    def search(self, Q: Any, codes: Any, k: int = 10) -> tuple[Any, Any]:
        """The best codes for each query: (scores, indices), best first, ties by the lower index.

        Codes are compared in blocks, so that memory does not grow with their number.

        Parameters
        ----------
        Q : array or tensor of shape (n_queries, n_features)
        codes : array or tensor of shape (n_samples, n_columns)
            May be mapped from a file. On a GPU the work is done there.
        k : int

        Returns
        -------
        scores : float32 array or tensor of shape (n_queries, k)
        indices : int64 array or tensor of shape (n_queries, k)
        """
        found = self._expect_codes(codes)
        k = checks.integer(k, "k", 1, int(found.shape[0]))
        rows = beside(self._query_rows(Q), found)
        scores, indices = ranked(self.best(rows, found, k))
        return as_given(scores, codes), as_given(indices, codes)

    def scores(self, Q: Any, codes: Any) -> Any:
        """The score of every code for every query, as `search` ranks them.

        Parameters
        ----------
        Q : array or tensor of shape (n_queries, n_features)
        codes : array or tensor of shape (n_samples, n_columns)

        Returns
        -------
        float32 array or tensor of shape (n_queries, n_samples)
        """
        found = self._expect_codes(codes)
        rows = beside(self._query_rows(Q), found)
        return as_given(self.all_scores(rows, self._blocks(found)), codes)

    def all_scores(self, rows: Array, blocks: Blocks) -> Array:
        """The score of every code for every row."""
        asked = self.prepared_queries(rows)
        parts = [self.compared(asked, self.answers(part)) for _, part in blocks]
        return linalg.namespace(parts[0]).concat(parts, axis=1)

    def best(self, rows: Array, codes: Array, k: int) -> Array:
        """The keys of the k best codes for each row; see `ranked`."""
        return self.best_in(rows, self._blocks(codes), k)

    def best_in(self, rows: Array, blocks: Blocks, k: int) -> Array:
        """The same of codes in blocks."""
        asked = self.prepared_queries(rows)
        kept = None
        for start, part in blocks:
            answers = self.answers(part)
            step = max(1, COMPARED // part.shape[0])
            keys = [
                best_of(keys_of(self.compared(asked[i : i + step], answers), start), k)
                for i in range(0, asked.shape[0], step)
            ]
            xp = linalg.namespace(keys[0])
            found = xp.concat(keys)
            kept = found if kept is None else best_of(xp.concat([kept, found], axis=1), k)
        return kept

    def prepared_queries(self, rows: Array) -> Array:
        """Queries as `compared` takes them."""
        return self.asked(rows)

    def answers(self, codes: Array) -> Array:
        """Codes as `compared` takes them."""
        return self.decoded(codes)

    def compared(self, asked: Array, answers: Array) -> Array:
        """The score of every answer for every query, in float32."""
        return asked @ answers.T

    @property
    @abstractmethod
    def dtype(self) -> str:
        """The dtype of the codes."""

    @property
    @abstractmethod
    def n_columns(self) -> int:
        """The number of columns of the codes."""

    @property
    def n_bytes(self) -> int:
        """Bytes of a vector that a search holds in memory."""
        return self.n_bytes_stored

    @property
    def n_bytes_stored(self) -> int:
        """Bytes of a vector, with what only a second stage reads."""
        return self.n_columns * np.dtype(self.dtype).itemsize

    @abstractmethod
    def fit_source(self, source: Source, checkpoint: Checkpoint | None) -> int:
        """Learn from the rows, with `checkpoint` given to `reduce`; returns their number."""

    @abstractmethod
    def encoded(self, rows: Array) -> Array:
        """The codes of a block of rows."""

    @abstractmethod
    def decoded(self, codes: Array) -> Array:
        """The float32 rows, of length one, that a block of codes stands for."""

    @abstractmethod
    def asked(self, rows: Array) -> Array:
        """The float32 rows, of length one, that queries are scored with."""

    def codes_of(self, rows: Array) -> Array:
        """The codes of rows in float32 or float64, block by block."""
        parts = [part for _, part, _ in linalg.blocks(rows)] or [rows]
        found = over_threads(self.encoded, parts)
        return found[0] if len(found) == 1 else linalg.namespace(found[0]).concat(found)

    def _blocks(self, codes: Array) -> Blocks:
        """(first row, codes) of blocks whose decoded rows take bounded memory."""
        step = max(1, linalg.BLOCK_ELEMENTS // max(self.n_features_in_, self.n_columns))
        for start in range(0, codes.shape[0], step):
            yield start, codes[start : start + step]

    def _rows(self, X: Any) -> Array:
        check_is_fitted(self)
        matrix = checks.matrix(X)
        checks.width(matrix.shape[1], self.n_features_in_)
        rows = linalg.native(matrix)
        checks.finite(rows)
        return rows

    def _query_rows(self, Q: Any) -> Array:
        rows = self._rows(Q)
        return rows if self.query_shift_ is None else rows + like(self.query_shift_, rows)

    def _expect_codes(self, codes: Any) -> Array:
        """The codes, as numpy if they are on the CPU; raises unless they are this codec's."""
        check_is_fitted(self)
        if checks.is_tensor(codes):
            found = codes.detach().numpy() if codes.device.type == "cpu" else codes
        elif isinstance(codes, np.ndarray):
            found = codes
        else:
            raise InputTypeError(
                f"codes must be an array or a tensor, got {type(codes).__name__}. Load a file with "
                'numpy.load(path, mmap_mode="r").'
            )
        dtype = str(found.dtype).removeprefix("torch.")
        if found.ndim != 2 or not len(found) or found.shape[1] != self.n_columns:
            raise InputError(
                f"codes must have rows of {self.n_columns} columns, as encode gives them, got "
                f"shape {tuple(found.shape)}. Encode again with this codec."
            )
        if dtype != self.dtype:
            raise InputError(
                f"codes must be {self.dtype}, as encode gives them, got {dtype}. Encode again with "
                "this codec."
            )
        return found

    @abstractmethod
    def _check_params(self) -> None:
        """Raise if a parameter is not valid."""

    @public("save")
    def save(
        self, path: Any, note: str = "", *, origin: Origin | None = None, overwrite: bool = False
    ) -> None:
        """Write the fitted codec, with its repair, to one safetensors file; see `Repair.save`.

        Parameters
        ----------
        path : path-like
        note : str
            Free text for the header, at most 10,000 characters.
        origin : Origin, optional
            The `origin_` of the loaded codec [that of this one].
        overwrite : bool
            Replace an existing file.
        """
        check_is_fitted(self)
        header, tensors = self.content()
        header["note"] = note
        if origin is not None:
            header["origin"] = origin.to_dict()
        files.write(path, header, tensors, KIND, overwrite=overwrite)

    def content(self) -> tuple[dict[str, Any], Tensors]:
        """The header and the arrays of the file, without those of what the codec is made of."""
        params = {name: getattr(self, name) for name in self._own_params()}
        if "align_queries" in params:
            params["align_queries"] = self.query_shift_ is not None  # as it was fitted
        header = {
            "method": self.name,
            "params": params,
            "n_features": self.n_features_in_,
            "n_samples": self.n_samples_seen_,
            "origin": self.origin_.to_dict(),
            "note": self.note_,
        }
        return header, {} if self.query_shift_ is None else {SHIFT: self.query_shift_}

    @classmethod
    def from_content(cls, header: dict[str, Any], tensors: Tensors) -> Self:
        """The codec with this header and these arrays; raises an InputError if they are wrong."""
        files.check_header(header, cls.__name__, cls._own_params())
        self = cls(**header["params"])
        self.n_features_in_, self.n_samples_seen_ = header["n_features"], header["n_samples"]
        self.note_ = header["note"]
        self.origin_ = Origin.from_dict(header.get("origin", {}))
        checks.flag(self.align_queries, "align_queries")
        wanted = {SHIFT: Field("n_features")} if self.align_queries else {}
        own = {name: array for name, array in tensors.items() if name == SHIFT}
        stored.check(own, wanted, {"n_features": self.n_features_in_})
        self.query_shift_ = own.get(SHIFT)
        self.restore(header, {name: array for name, array in tensors.items() if name != SHIFT})
        return self

    @abstractmethod
    def restore(self, header: dict[str, Any], tensors: Tensors) -> None:
        """Take over what `content` gave, after checking it."""

    @classmethod
    def _own_params(cls) -> list[str]:
        """The parameters that are plain values."""
        return [name for name in cls._get_param_names() if name not in PARTS]


PARTS = ("repair", "coarse", "fine")  # parameters that are fitted with the codec


def restored(header: Any, tensors: Tensors) -> Codec:
    """The codec with this header and these arrays."""
    files.expect(header, dict, "a codec", "an object")
    known = Codec.by_name
    kind = known[checks.choice(header.get("method"), "the method of a codec", list(known))]
    return kind.from_content(header, tensors)


def joined(prefix: str, tensors: Tensors) -> Tensors:
    """The arrays under the names that they have as a part of something else."""
    return {f"{prefix}/{name}": array for name, array in tensors.items()}


def split_off(prefix: str, tensors: Tensors) -> Tensors:
    """The arrays of a part, by the names that they have there; they are taken out of `tensors`."""
    names = [name for name in tensors if name.startswith(f"{prefix}/")]
    return {name.removeprefix(f"{prefix}/"): tensors.pop(name) for name in names}


def mean_shift(source: Source, queries: Source, checkpoint: Checkpoint | None = None) -> Floats:
    """What moves the mean of queries to that of rows."""
    if queries.n_features != source.n_features:
        raise InputError(
            f"queries must have {source.n_features} features, as X has, got {queries.n_features}. "
            "Check the encoder."
        )
    (rows,) = reduce(source, [Moments()], checkpoint).states
    with _about_queries():
        (asked,) = reduce(queries, [Moments()], checkpoint).states
    return np.asarray(rows.mean - asked.mean, dtype=np.float64)


def _open_queries(queries: Any) -> Source:
    with _about_queries():
        return as_source(queries)


@contextlib.contextmanager
def _about_queries() -> Iterator[None]:
    """What is said of X within is said of queries."""
    try:
        yield
    except (InputError, InputTypeError) as error:
        kind = InputTypeError if isinstance(error, InputTypeError) else InputError
        if not (text := str(error)).startswith("X "):
            raise
        raise kind(text.replace("X ", "queries ", 1).replace("X.", "queries.")) from error


def as_given(values: Array, X: Any) -> Array:
    """values as a tensor if X is one."""
    if not checks.is_tensor(X) or checks.is_tensor(values):
        return values
    import torch

    return torch.from_numpy(values)


def beside(rows: Array, codes: Array) -> Array:
    """rows where the codes are."""
    if not checks.is_tensor(codes):
        return linalg.to_numpy(rows)
    device = str(codes.device)
    return rows if checks.is_tensor(rows) else linalg.on_device(rows, device)


@public
def load(path: Any) -> Repair | Codec:
    """Load a fitted repair or codec that `save` wrote. Nothing in the file is executed.

    Raises
    ------
    RepairFileError
        If the file is missing, damaged, of another kind or of a newer format, or if its arrays or
        parameters are not those of a repair or a codec.
    """
    return load_with_header(path)[0]


def load_with_header(path: Any) -> tuple[Repair | Codec, dict[str, Any]]:
    """The repair or codec that `load` returns, and the header of its file."""
    if not files.holds(path, KIND):
        return repairs.load_with_header(path)
    header, tensors = files.read(path, Codec.by_name, KIND)
    with files.validated(path, KIND):
        return restored(header, tensors), header
