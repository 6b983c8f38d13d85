"""The contract of every repair: scikit-learn's, and a file that ships."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from isotropy import checks, linalg, stored
from isotropy.checks import Array
from isotropy.engines import Engine, map_rows, over_threads, reduce, using
from isotropy.errors import InputError, NotAffineError, one_line, public
from isotropy.linalg import Floats
from isotropy.repairs import files
from isotropy.repairs.shift import Shift, shift
from isotropy.sources import ArraySource, PartsSink, Sink, Source, as_source, open_sink
from isotropy.sources.guard import guard
from isotropy.stats import Moments, Statistic
from isotropy.stored import Field
from isotropy.writing import is_stream

LEVELS = ("token", "sentence")
SIZED = ("mean_", "scale_", "means_", "cluster_centers_")  # what has the scale of the rows
WIDE = 1e15  # of these, past which float32 rows are repaired in float64


@public
class Repair(OneToOneFeatureMixin, TransformerMixin, BaseEstimator, ABC):
    """A map of rows to rows, fitted from statistics.

    A subclass defines `_fit(source)` and `_apply(rows, out)`, names its fitted arrays in `learned`
    with what each must be when it is loaded, and is found by its `name` from then on. `moments_`
    of the rows that it was fitted on stay with it, so that `shift` can tell how far others are
    from them. `level_` is "token" or "sentence"
    where the file that it was loaded from says which rows it is for, otherwise empty.

    A repair that is `trained`, by gradient descent in torch, is found in `trained_by_name` instead:
    it takes an extra and its time, so what tries every repair leaves it to those who ask for it.
    """

    name: ClassVar[str] = ""
    learned: ClassVar[dict[str, Field]] = {}
    trained: ClassVar[bool] = False
    by_name: ClassVar[dict[str, type[Repair]]] = {}
    trained_by_name: ClassVar[dict[str, type[Repair]]] = {}

    normalize: bool
    n_features_in_: int
    moments_: Moments | None = None
    level_: str = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            found = Repair.trained_by_name if cls.trained else Repair.by_name
            found[cls.name] = cls

    def fit(
        self,
        X: Any,
        y: object = None,
        sample_weight: object = None,
        *,
        engine: str | Engine | None = None,
        checkpoint: Any = None,
    ) -> Self:
        """Fit to the rows of X, which is not modified.

        Parameters
        ----------
        X : array, tensor, path or source of shape (n_samples, n_features)
        y : ignored
        sample_weight : array of shape (n_samples,), optional
        engine : {"local", "torch", "dask"} or Engine, optional
            Where the work runs: threads of this process (the default), a torch device, a cluster.
        checkpoint : path, optional
            Folder in which the states of finished chunks are kept, so that a fit that was killed
            resumes where it stopped, with the same result.

        Returns
        -------
        self
        """
        source = self._source(X, sample_weight, reset=True)
        self._check_params()
        with using(engine, checkpoint=checkpoint) as run:
            self._fit(source)
            self._check_learned()
            self.n_samples_seen_ = source.n_samples - run.n_skipped
        return self

    def transform(
        self,
        X: Any,
        *,
        out: Any = None,
        engine: str | Engine | None = None,
        overwrite: bool = False,
    ) -> Any:
        """The repaired rows, in the dtype and on the device of X, or written to a file.

        Parameters
        ----------
        X : array or tensor of shape (n_samples, n_features); with `out` also a path or source
        out : path, optional
            File (.npy, .parquet, .safetensors, .vec) that the repaired rows are streamed to in
            order, with the columns that came along; without suffix, a folder of Parquet parts.
            It takes its name only when it is whole, and must not be a file that is read.
        engine : {"local", "torch", "dask"} or Engine, optional
            Where the work runs; with `out` only.
        overwrite : bool
            Replace what `out` names, where that exists.

        Returns
        -------
        array or tensor of shape (n_samples, n_features_out)
            With `out`, the source of the file written; None where that is a pipe.
        """
        if out is not None:
            return self._stream(X, out, engine, overwrite)
        rows = self._rows(X)
        return _restored(self._repaired(rows, 0), X)

    def _stream(
        self, X: Any, out: Any, engine: str | Engine | None, overwrite: bool
    ) -> Source | None:
        check_is_fitted(self)
        guard({"out": out}, {"X": X}, overwrite=overwrite)
        source = as_source(X)
        checks.width(source.n_features, self.n_features_in_)
        with using(engine):
            sink = target(out, self._n_features_out, source, overwrite=overwrite)
            map_rows(source, self._repaired, sink)
        return None if is_stream(out) else as_source(out)

    def shift(self, X: Any, *, engine: str | Engine | None = None) -> Shift:
        """How far the rows of X are from those that the repair was fitted on.

        Parameters
        ----------
        X : array, tensor, path or source of shape (n_samples, n_features)
            Read once.
        engine : {"local", "torch", "dask"} or Engine, optional
            Where the work runs.

        Returns
        -------
        Shift
        """
        check_is_fitted(self)
        if self.moments_ is None:
            raise InputError(
                "shift must know the moments of the fitted rows, which this repair was "
                "saved without. Fit it again."
            )
        source = as_source(X)
        checks.width(source.n_features, self.n_features_in_)
        with using(engine):
            return shift(self.moments_, source)

    def affine(self) -> tuple[Floats, Floats]:
        """(A, b) with transform(X) equal to X @ A.T + b.

        Raises
        ------
        NotAffineError
            Where the repair has no such form, or ends in `normalize`.
        """
        check_is_fitted(self)
        if self.normalize:
            raise NotAffineError(
                "normalize=True is not affine. Use normalize=False and scale the rows afterwards."
            )
        return self._affine()

    @public("save")
    def save(self, path: Any, note: str = "", *, level: str = "", overwrite: bool = False) -> None:
        """Write the fitted repair to one safetensors file, whole or not at all.

        Parameters
        ----------
        path : path-like
        note : str
            Free text kept in the header, such as the model and the corpus; at most 10,000
            characters.
        level : {"token", "sentence"}, optional
            The rows that it is for: of tokens before they are pooled, or of texts. Kept in the
            header, and `level_` of the loaded repair; by default the `level_` of this one.
        overwrite : bool
            Replace a file that is there.
        """
        check_is_fitted(self)
        level = level or self.level_
        if level:
            checks.choice(level, "level", LEVELS)
        try:
            files.check_note(note)
        except InputError as error:
            raise InputError(f"{error}.") from None
        files.write(path, self._header(note, level), self._tensors(), overwrite=overwrite)

    def _header(self, note: str, level: str) -> dict[str, Any]:
        names = getattr(self, "feature_names_in_", None)
        return {
            "method": self.name,
            "params": self.get_params(),
            "n_features": self.n_features_in_,
            "n_samples": self.n_samples_seen_,
            "feature_names": None if names is None else [str(name) for name in names],
            "note": note,
            "level": level,
        }

    def _tensors(self) -> dict[str, NDArray[Any]]:
        tensors = {name: np.asarray(getattr(self, name)) for name in self.learned}
        for prefix, statistic in self._kept().items():
            tensors |= {f"{prefix}.{name}": part for name, part in statistic.state().items()}
        return tensors

    def _kept(self) -> dict[str, Statistic]:
        """Statistics that are saved, by name."""
        return {} if self.moments_ is None else {"moments": self.moments_}

    @classmethod
    def _from_file(cls, header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Self:
        """The repair that a file holds, or one line on what in it is not right."""
        files.check_header(header)
        unknown = header["params"].keys() - cls._get_param_names()
        if unknown:
            raise InputError(f"{cls.__name__} has no parameter {one_line(repr(min(unknown)), 60)}")
        self = cls(**header["params"])
        self.n_features_in_ = header["n_features"]
        self._check_params()
        apart = tuple(f"{prefix}." for prefix in self._statistics())  # which check their own
        own = {name: array for name, array in tensors.items() if not name.startswith(apart)}
        stored.check(own, self.learned, self._sizes())
        self._restore(header, tensors)
        return self

    def _statistics(self) -> dict[str, type[Statistic]]:
        """Kinds of the statistics that its file may hold, by name."""
        return {"moments": Moments}

    def _sizes(self) -> dict[str, int]:
        """The sizes that shapes of fitted arrays name, as far as the parameters settle them."""
        return {"n_features": int(self.n_features_in_)}

    def _restore(self, header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> None:
        self.n_samples_seen_ = header["n_samples"]
        self.note_ = header["note"]
        self.level_ = header.get("level", "")  # older files don't have it
        if self.level_ != "":
            checks.choice(self.level_, "level", LEVELS)
        names = header.get("feature_names")
        if names is not None:
            self.feature_names_in_ = np.asarray(self._names(names), dtype=object)
        for name in self.learned:
            value = tensors[name]
            setattr(self, name, value if value.ndim else value.item())
        moments = _state(tensors, "moments")  # older files don't have it
        self.moments_ = self._seen(Moments.from_state(moments)) if moments else None
        self._check_fitted()

    def _names(self, names: Any) -> list[str]:
        files.expect(names, list, "feature_names", "a list")
        if len(names) != self.n_features_in_:
            raise InputError(
                f"feature_names must have {self.n_features_in_} names, got {len(names)}"
            )
        return [files.expect(name, str, "a feature name", "text") for name in names]

    def _seen(self, statistic: Any) -> Any:
        """A statistic of the fitted rows, as it must be."""
        name, n_rows = type(statistic).__name__, getattr(statistic, "n_rows", 1)
        if statistic.n_features is None or not 1 <= n_rows <= self.n_samples_seen_:
            raise InputError(
                f"{name} must be of 1 to n_samples={self.n_samples_seen_} rows, got "
                f"{n_rows if statistic.n_features else 'none'}"
            )
        if statistic.n_features != self.n_features_in_:
            raise InputError(
                f"{name} must be of {one_line(self.n_features_in_, 30)} features, got "
                f"{statistic.n_features}"
            )
        return statistic

    def _check_fitted(self) -> None:
        """Raise where loaded arrays do not agree with each other or with the parameters."""

    @abstractmethod
    def _fit(self, source: Source) -> None:
        """Learn from the rows."""

    @abstractmethod
    def _apply(self, rows: Array, out: Array) -> None:
        """Write the repaired rows to out, which has their dtype."""

    def _affine(self) -> tuple[Floats, Floats]:
        raise NotAffineError("the repair is not affine.")

    def _check_params(self) -> None:
        checks.flag(self.normalize, "normalize")

    @property
    def _n_features_out(self) -> int:
        return int(self.n_features_in_)

    def _check_learned(self) -> None:
        learned = [np.asarray(getattr(self, name)) for name in self.learned]
        if not all(np.isfinite(part).all() for part in learned if part.dtype.kind == "f"):
            raise InputError(
                "X must have a scale that the repair can undo in float64. "
                "Multiply the rows by a power of two first."
            )

    def _wide(self) -> bool:
        """Whether what was learned is too large or too small for the squares of float32."""
        sizes = [np.abs(getattr(self, name)).max() for name in SIZED if name in self.learned]
        return any(size > 0 and not 1 / WIDE < size < WIDE for size in sizes)

    def _repaired(self, rows: Array, first_row: int | None = None) -> Array:
        return self._mapped(self._finished, rows, self._n_features_out, first_row)

    def _finished(self, rows: Array, out: Array) -> None:
        self._apply(rows, out)
        if self.normalize:
            out[:] = linalg.unit_rows(out)

    def _mapped(self, function: Any, rows: Array, n_out: int, first_row: int | None = 0) -> Array:
        """What function(rows, out) writes, in the dtype of rows, into whose range it must fit."""
        kind = str(rows.dtype).removeprefix("torch.")

        def checked(part: Array, out: Array, start: int) -> None:
            with np.errstate(all="ignore"):  # looked for afterwards
                function(part, out)
            checks.fits(out, None, kind, None if first_row is None else first_row + start)

        if not self._wide():
            return self._blockwise(checked, rows, n_out)
        found = self._blockwise(checked, linalg.double(rows), n_out)
        with np.errstate(over="ignore"):
            out = linalg.like(found, rows)
        checks.fits(out, found, kind, first_row)
        return out

    def _source(self, X: Any, sample_weight: object, reset: bool) -> Source:
        source = as_source(X, sample_weight)
        if not reset and hasattr(self, "n_features_in_"):
            checks.width(source.n_features, self.n_features_in_)
        if isinstance(source, ArraySource) and source is not X:
            validate_data(self, X, reset=reset, skip_check_array=True)
        else:
            self.n_features_in_ = source.n_features
            if reset and hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
        return source

    def _rows(self, X: Any) -> Array:
        """X checked for `transform`, in float32 or float64."""
        check_is_fitted(self)
        matrix = checks.matrix(X)
        checks.n_features(matrix, self.n_features_in_)
        if not checks.is_tensor(X):
            validate_data(self, X, reset=False, skip_check_array=True)
        rows = linalg.native(matrix)
        checks.finite(rows)
        return rows

    def _blockwise(self, function: Any, rows: Array, n_out: int) -> Array:
        """What function(rows, out, start) writes, in blocks over threads where rows are many."""
        bounds = [start for start, _, _ in linalg.blocks(rows)] + [rows.shape[0]]
        out = linalg.empty((rows.shape[0], n_out), rows)

        def fill(i: int) -> None:
            part = slice(bounds[i], bounds[i + 1])
            function(rows[part], out[part], bounds[i])

        over_threads(fill, range(len(bounds) - 1))
        return out

    def __sklearn_is_fitted__(self) -> bool:
        return all(hasattr(self, name) for name in self.learned)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _restored(rows: Array, X: Any) -> Array:
    """rows in the kind and dtype of X, as far as X was floating."""
    if not checks.is_tensor(X):
        kept = np.asarray(X).dtype
        if kept.kind != "f" or kept == rows.dtype:
            return rows
        with np.errstate(over="ignore"):
            cast = rows.astype(kept)
    else:
        import torch

        rows = rows if checks.is_tensor(rows) else torch.from_numpy(rows)
        if not X.dtype.is_floating_point or X.dtype == rows.dtype:
            return rows
        cast = rows.to(X.dtype)
    checks.fits(cast, rows, str(cast.dtype).removeprefix("torch."))
    return cast


def target(out: Any, n_features: int, like: Source, **options: Any) -> Sink | PartsSink:
    """Where `out` says that rows go: a file, or without suffix a folder of Parquet parts."""
    if os.fspath(out) == "-":
        raise InputError(
            f"{options.get('name', 'out')} must be a file or a folder, got '-'. Name a "
            "file: rows cannot go to standard output."
        )
    kind = open_sink if os.path.splitext(out)[1] else PartsSink
    return kind(out, n_features, like=like, **options)


def is_affine(repair: Repair) -> bool:
    """Whether a fitted repair is one matrix and one bias."""
    try:
        repair.affine()
    except NotAffineError:
        return False
    return True


@public
class SummedRepair(Repair):
    """A repair solved from one mergeable statistic, which it keeps.

    So it can be fitted part by part (`partial_fit`) and from parts fitted apart (`merge`).
    A subclass names its `statistic` and defines `_solve(statistic)`.
    """

    statistic: ClassVar[type[Statistic]]
    statistic_: Any

    def partial_fit(self, X: Any, y: object = None, sample_weight: object = None) -> Self:
        """Add the rows of X to those already fitted; parameters as of `fit`."""
        first = not hasattr(self, "statistic_")
        source = self._source(X, sample_weight, reset=first)
        self._check_params()
        with using(None) as run:
            found, moments = self._gathered(source)
            n_new = source.n_samples - run.n_skipped
        self.n_samples_seen_ = n_new + (0 if first else self.n_samples_seen_)
        if first:
            self.statistic_, self.moments_ = found, moments
        else:
            self._add(found, moments)
        self._solve(self.statistic_)
        self._check_learned()
        return self

    def fit_statistic(self, statistic: Moments) -> Self:
        """Fit from moments made before, where the repair is solved from those."""
        if not isinstance(statistic, self.statistic) or statistic.n_features is None:
            raise InputError(
                f"statistic must be {self.statistic.__name__} of some rows, got "
                f"{type(statistic).__name__}."
            )
        self.n_features_in_ = statistic.n_features
        self._check_params()
        self.n_samples_seen_ = statistic.n_rows
        self.statistic_ = copy.deepcopy(statistic)  # rows that are added later are this repair's
        self.moments_ = self.statistic_ if isinstance(self.statistic_, Moments) else None
        self._solve(self.statistic_)
        return self

    def merge(self, other: Self) -> Self:
        """Add the rows that `other` was fitted on, as one fit to all of them would."""
        name = type(self).__name__
        check_is_fitted(self)
        if isinstance(other, Repair):
            check_is_fitted(other)
        if type(other) is not type(self) or other.get_params() != self.get_params():
            raise InputError(f"other must be a {name} with the same parameters.")
        self._add(other.statistic_, other.moments_)
        self.n_samples_seen_ += other.n_samples_seen_
        self._solve(self.statistic_)
        return self

    def _fit(self, source: Source) -> None:
        self.statistic_, self.moments_ = self._gathered(source)
        self._solve(self.statistic_)

    def _gathered(self, source: Source) -> tuple[Statistic, Moments]:
        """The statistic and the moments of the rows: one and the same where it is those."""
        if self.statistic is Moments:
            (moments,) = reduce(source, [Moments()])
            return moments, moments
        statistics: list[Any] = [self.statistic(), Moments()]
        found, moments = reduce(source, statistics)
        return found, moments

    def _add(self, statistic: Statistic, moments: Moments | None) -> None:
        """Add the rows that these have seen."""
        self.statistic_.merge(statistic)
        if self.moments_ is None or moments is None:
            self.moments_ = None
        elif self.moments_ is not self.statistic_:
            self.moments_.merge(moments)

    @abstractmethod
    def _solve(self, statistic: Any) -> None:
        """Learn from the statistic."""

    def _kept(self) -> dict[str, Statistic]:
        moments = {} if self.moments_ is self.statistic_ else super()._kept()
        return {"statistic": self.statistic_} | moments

    def _statistics(self) -> dict[str, type[Statistic]]:
        apart = {} if self.statistic is Moments else super()._statistics()
        return {"statistic": self.statistic} | apart

    def _restore(self, header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> None:
        super()._restore(header, tensors)
        self.statistic_ = self._seen(self.statistic.from_state(_state(tensors, "statistic")))
        if isinstance(self.statistic_, Moments):
            self.moments_ = self.statistic_


def _state(tensors: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """The part of a file's tensors that is the state of one statistic."""
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}


class Invertible(Repair):
    """A repair with a way back: a subclass defines `_revert(rows, out)`."""

    @available_if(lambda self: not self.normalize)  # type: ignore[untyped-decorator]
    def inverse_transform(self, X: Any) -> Any:
        """The rows whose repair is X; not there with `normalize`, which forgets the norms."""
        check_is_fitted(self)
        matrix = checks.matrix(X)
        checks.n_features(matrix, self._n_features_out)
        rows = linalg.native(matrix)
        checks.finite(rows)
        return _restored(self._mapped(self._revert, rows, self.n_features_in_), X)

    @abstractmethod
    def _revert(self, rows: Array, out: Array) -> None:
        """Write to out the rows whose repair these are."""


class InvertibleRepair(Invertible, SummedRepair):
    """A repair solved from one statistic, with a way back."""


@public
def load(path: Any) -> Repair:
    """The fitted repair that `save` wrote to path. Nothing in the file is executed.

    Raises
    ------
    RepairFileError
        Where the file is missing, damaged, of another kind, or of a newer format, or where what
        it holds is no fitted repair: arrays of another shape or dtype, or not finite, or
        parameters that break their rules.
    """
    return read(path)[0]


def read(path: Any) -> tuple[Repair, dict[str, Any]]:
    """The repair that `load` returns, and the header of its file."""
    known = Repair.by_name | Repair.trained_by_name
    header, tensors = files.read(path, known)
    with files.validated(path):
        return known[header["method"]]._from_file(header, tensors), header
