"""The contract of every repair: scikit-learn's, and one file to save it in."""

from __future__ import annotations

import copy
import inspect
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from isotropy import checks, linalg, stored
from isotropy.checks import Array
from isotropy.engines import (
    Checkpoint,
    Engine,
    Reduced,
    map_rows,
    open_checkpoint,
    reduce,
    using,
)
from isotropy.errors import InputError, NotAffineError, needs, one_line, public
from isotropy.linalg import Floats
from isotropy.repairs import files
from isotropy.repairs.drift import Drift, HeldOut, drift, held_out, n_directions
from isotropy.repairs.origin import Origin
from isotropy.repairs.shift import Shift, shift
from isotropy.repairs.steps import Normalize, Step, affine_steps, named
from isotropy.sources import (
    ArraySource,
    Batch,
    PartsSink,
    RowMap,
    Sink,
    Source,
    as_frame,
    as_source,
    guard,
    open_sink,
    open_source,
)
from isotropy.stats import BlockSums, Moments, Statistic
from isotropy.stored import Field
from isotropy.threads import over_blocks
from isotropy.writing import is_stream

LEVELS = ("token", "sentence")
SIZED = ("mean_", "scale_", "means_", "cluster_centers_")  # fitted arrays in units of the rows
NORMALIZE = "normalize : bool\n    Scale the repaired rows to length one; zero rows stay zero."
WIDE = 1e15  # if one of them is above this or below 1/this, float32 rows are repaired in float64


def with_parameters(text: str, first: str = "", last: str = "") -> str:
    """The docstring with these parameters before and behind its own."""
    heading = "Parameters\n----------\n"
    before, found, after = inspect.cleandoc(text).partition(heading)
    own, blank, rest = after.partition("\n\n")
    if not found:
        section = re.search(r"\n\n(?=[A-Z]\w+\n-{4,}\n)", before)
        end = section.start() if section else len(before)
        before, blank, rest = f"{before[:end]}\n\n", "", before[end:]
    return before + heading + "\n".join(part for part in (first, own, last) if part) + blank + rest


@public
class Repair(OneToOneFeatureMixin, TransformerMixin, BaseEstimator, ABC):
    """A map of rows to rows, fitted from statistics.

    A subclass defines `fit_source(source, checkpoint)` and `apply(rows, out)`. It lists its fitted
    arrays in `learned`, with the shape and bounds that are checked on loading, and is registered
    under its `name`. Every repair has the parameter `normalize`, which its docstring need not
    mention. `moments_` are those of the fitted rows, for `shift`, and `held_out_` says how far
    blocks of them are apart, for `drift`. `level_` is "token" (for rows of tokens, before pooling)
    or "sentence" if its file says which rows it is for, otherwise "".
    `origin_` says how the fitted rows were made, as far as that is known.

    Repairs that are `trained`, by gradient descent in torch, are registered in `trained_by_name`
    instead: they need an extra and time, so they are tried only on request. `PerGroup`, which is
    made of other repairs, is in `grouped_by_name`. `Rotate`, which leaves cosines as they are, and
    `Chain` are in `on_request_by_name`: no search tries them by itself.
    """

    name: ClassVar[str] = ""
    learned: ClassVar[dict[str, Field]] = {}
    trained: ClassVar[bool] = False
    by_name: ClassVar[dict[str, type[Repair]]] = {}
    trained_by_name: ClassVar[dict[str, type[Repair]]] = {}
    grouped: ClassVar[bool] = False
    grouped_by_name: ClassVar[dict[str, type[Repair]]] = {}
    on_request: ClassVar[bool] = False
    on_request_by_name: ClassVar[dict[str, type[Repair]]] = {}

    normalize: bool
    n_features_in_: int
    moments_: Moments | None = None
    held_out_: HeldOut | None = None
    level_: str = ""
    origin_: Origin = Origin()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            found = Repair.trained_by_name if cls.trained else Repair.by_name
            found = Repair.on_request_by_name if cls.on_request else found
            (Repair.grouped_by_name if cls.grouped else found)[cls.name] = cls
        own = vars(cls).get("__doc__")
        if cls.name and own and not cls.grouped and "normalize :" not in own:
            cls.__doc__ = with_parameters(own, last=NORMALIZE)

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
        X : array, tensor, frame, path or source of shape (n_samples, n_features)
        y : ignored
        sample_weight : array of shape (n_samples,), optional
        engine : {"local", "torch", "dask"} or Engine, optional
            Where the work runs: threads of this process (the default), a torch device, a cluster.
        checkpoint : path, optional
            Folder for finished chunks: an interrupted fit resumes where it stopped.

        Returns
        -------
        self
        """
        source = self._source(X, sample_weight, reset=True)
        self._check_params()
        kept = open_checkpoint(checkpoint)
        with using(engine) as made, made.keeping():
            return self._learn(source, kept)

    def _learn(self, source: Source, checkpoint: Checkpoint | None) -> Self:
        """Fit to a source whose width is known, with parameters that were checked."""
        self.n_samples_seen_ = self.fit_source(source, checkpoint)
        self._check_learned()
        self.origin_ = Origin.from_dict(source.origin())
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
        X : array, tensor or frame of shape (n_samples, n_features)
            With `out` also a path or source. A frame (pandas, polars, pyarrow, datasets) with a
            column of vectors comes back as a frame of the same kind, in which the repaired vectors
            take their place.
        out : path, optional
            File (.npy, .parquet, .safetensors, .vec) to stream the repaired rows to, in order
            and with any other columns; without a suffix, a folder of Parquet parts. It gets its
            name only when it is complete. Or the URL of a new column or table in a database.
        engine : {"local", "torch", "dask"} or Engine, optional
            Where the work runs; only with `out`.
        overwrite : bool
            Replace an existing file or folder.

        Returns
        -------
        array, tensor or frame of shape (n_samples, n_features_out)
            With `out`, a source of the file written, or None if that is a pipe.
        """
        return self._transformed(X, None, out, engine, overwrite)

    def _transformed(
        self, X: Any, groups: Any, out: Any, engine: str | Engine | None, overwrite: bool
    ) -> Any:
        """What `transform` returns; `groups` are those of the rows, for a repair that has some."""
        if out is not None:
            _, sink = self._written(X, groups, out, engine, overwrite)
            return None if is_stream(out) else open_source(out, column=sink.vectors)
        check_is_fitted(self)
        if checks.is_a(X, "pyarrow", "RecordBatchReader"):
            from isotropy.sources.streams import mapped_reader

            return mapped_reader(X, self.row_map(groups))
        if (frame := as_frame(X)) is not None:
            self._expect_own_output()
            return frame.mapped(self.row_map(groups, frame))
        rows = self._rows(X, self.n_features_in_)
        if not checks.is_tensor(X):
            validate_data(self, X, reset=False, skip_check_array=True)
        return as_given(self._function(groups, ArraySource(rows))(Batch(0, rows)), X)

    def _expect_own_output(self) -> None:
        """Raise if scikit-learn would make another kind of frame of what `transform` returns."""
        style = getattr(self, "_sklearn_output_config", {}).get("transform")
        if (style or get_config()["transform_output"]) != "default":
            raise InputError(
                "X must be numbers only with set_output, got a frame with a column of vectors, "
                'which comes back as the kind of frame it is. Use set_output(transform="default").'
            )

    def row_map(self, groups: Any = None, source: Source | None = None, **options: Any) -> RowMap:
        """What `isotropy.sources.streams` needs to repair a stream, or the rows of a source."""
        names = list(self.get_feature_names_out())
        sizes = int(self.n_features_in_), self._n_features_out
        return RowMap(self._function(groups, source), *sizes, names, **options)

    def _function(self, groups: Any, source: Source | None) -> Callable[[Batch], Array]:
        """What repairs a batch of the source."""
        return lambda batch: self._repaired(batch.rows, batch.first_row)

    def write(
        self, X: Any, out: Any, *, engine: str | Engine | None = None, overwrite: bool = False
    ) -> int:
        """Write the repaired rows to `out`, as `transform` does; returns the rows left out."""
        return self._written(X, None, out, engine, overwrite)[0]

    def _written(
        self, X: Any, groups: Any, out: Any, engine: str | Engine | None, overwrite: bool
    ) -> tuple[int, Sink | PartsSink]:
        """Write the repaired rows; returns the number of rows left out, and where they went."""
        check_is_fitted(self)
        guard({"out": out}, {"X": X}, overwrite=overwrite)
        source = as_source(X)
        checks.width(source.n_features, self.n_features_in_)
        rows, function, job = self._work(source, groups)
        with using(engine):
            sink = open_target(out, self._n_features_out, source, overwrite=overwrite, job=job)
            return map_rows(rows, function, sink), sink

    def _work(self, source: Source, groups: Any) -> tuple[Source, Callable[[Array], Array], str]:
        """(rows to write, function to apply to them, what identifies that) for a source."""
        return source, self._repaired, self._job()

    def _job(self) -> str:
        """What identifies the fitted repair, to the last digit of its arrays."""
        params = self.get_params() | self._header()
        plain = {name: str(value) for name, value in params.items()}
        return f"{self.name} {stored.checksum(plain, self._arrays()):08x}"

    def shift(self, X: Any, *, engine: str | Engine | None = None) -> Shift:
        """How far the rows of X are from the rows that the repair was fitted on.

        X is read once; see `fit` for the parameters.
        """
        return self._shift(as_source(X), engine)

    def drift(
        self, X: Any, max_drift: float | None = None, *, engine: str | Engine | None = None
    ) -> Drift:
        """Whether the rows of X have drifted away from those that the repair was fitted on.

        Parameters
        ----------
        X : array, tensor, path or source of shape (n_samples, n_features)
        max_drift : float, optional
            Largest Frechet distance that is no drift; by default what chance and held-out blocks
            of the fitted rows allow.
        engine : {"local", "torch", "dask"} or Engine, optional
            Where the work runs; X is read once.
        """
        if max_drift is not None:
            max_drift = checks.real(max_drift, "max_drift", 0.0)
        source = as_source(X)
        found = self._shift(source, engine, n_directions(source.n_samples))
        return drift(found, self.held_out_, max_drift)

    def _shift(
        self, source: Source, engine: str | Engine | None, n_directions: int | None = None
    ) -> Shift:
        check_is_fitted(self)
        if self.moments_ is None:
            raise InputError(
                "shift needs the moments of the fitted rows, but the file of this repair lacks "
                "them. Fit it again."
            )
        checks.width(source.n_features, self.n_features_in_)
        with using(engine):
            return shift(self.moments_, source, n_directions)

    def affine(self) -> tuple[Floats, Floats]:
        """(A, b) with transform(X) equal to X @ A.T + b.

        Raises
        ------
        NotAffineError
            If the repair has no such form, or `normalize` is set.
        """
        check_is_fitted(self)
        if self.normalize:
            raise NotAffineError(
                "normalize=True is not affine. Use normalize=False and scale the rows afterwards."
            )
        return self.affine_form()

    @property
    def is_affine(self) -> bool:
        """Whether the fitted repair is one matrix and one bias."""
        try:
            self.affine()
        except NotAffineError:
            return False
        return True

    def steps(self) -> list[Step]:
        """What the repair does to a row, as steps that other tools can run one after another.

        Raises
        ------
        NotAffineError
            If the repair has no such form: a flow.
        """
        check_is_fitted(self)
        return [*self.own_steps(), *([Normalize()] if self.normalize else [])]

    def as_module(self) -> Any:
        """The repair as a torch module with the arrays as buffers; needs the extra `torch`.

        It takes tensors of any shape (..., n_features) and any floating dtype, is differentiable,
        and works under `torch.export` and `torch.compile`. See `steps` for what it raises.
        """
        with needs("torch", "torch"):
            from isotropy.repairs.module import RepairModule

        return RepairModule(named(self.steps()))

    @public("save")
    def save(
        self,
        path: Any,
        note: str = "",
        *,
        level: str = "",
        origin: Origin | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the fitted repair to one safetensors file, completely or not at all.

        Parameters
        ----------
        path : path-like
        note : str
            Free text for the header, such as the model and the corpus; at most 10,000 characters.
        level : {"token", "sentence"}, optional
            The `level_` of the loaded repair [that of this one].
        origin : Origin, optional
            The `origin_` of the loaded repair [that of this one].
        overwrite : bool
            Replace an existing file.
        """
        check_is_fitted(self)
        level = level or self.level_
        if level:
            checks.choice(level, "level", LEVELS)
        header = self.header() | {"note": note, "level": level}
        if origin is not None:
            header["origin"] = origin.to_dict()
        files.write(path, header, self._tensors(), overwrite=overwrite)

    def header(self) -> dict[str, Any]:
        """The entries of the file besides the arrays, as plain values."""
        names = getattr(self, "feature_names_in_", None)
        return {
            "method": self.name,
            "params": self._params(),
            "n_features": self.n_features_in_,
            "n_samples": self.n_samples_seen_,
            "feature_names": None if names is None else [str(name) for name in names],
            "note": "",
            "level": self.level_,
            "origin": self.origin_.to_dict(),
            "held_out": None if self.held_out_ is None else asdict(self.held_out_),
        } | self._header()

    def _header(self) -> dict[str, Any]:
        """Entries of the header besides those of every repair, or instead of them."""
        return {}

    def _params(self) -> dict[str, Any]:
        """The parameters as plain values."""
        found: dict[str, Any] = self.get_params()
        return found

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """What was learned."""
        return {name: np.asarray(getattr(self, name)) for name in self.learned}

    def _tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays of the file: what was learned, and the statistics."""
        tensors = self._arrays()
        for kind in self._statistics():
            statistic = getattr(self, f"{kind}_")
            if statistic is not None:
                tensors |= {f"{kind}.{name}": part for name, part in statistic.state().items()}
        return tensors

    @classmethod
    def _from_file(cls, header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Self:
        """The repair in a file; raises an InputError that says what is wrong with it."""
        files.check_header(header, cls.__name__, cls._get_param_names())
        self = cls(**header["params"])
        self.n_features_in_ = header["n_features"]
        self._check_params()
        apart = tuple(f"{prefix}." for prefix in self._statistics())  # they check themselves
        own = {name: array for name, array in tensors.items() if not name.startswith(apart)}
        stored.check(own, self.learned, self._sizes())
        self._restore(header, tensors)
        return self

    def _statistics(self) -> dict[str, type[Statistic]]:
        """The statistics that a file may hold: their names, without the final underscore."""
        return {"moments": Moments}

    def _sizes(self) -> dict[str, int]:
        """The named sizes in the shapes of `learned` that follow from the parameters."""
        return {"n_features": int(self.n_features_in_)}

    def _restore(self, header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> None:
        self.n_samples_seen_ = header["n_samples"]
        self.note_ = header["note"]
        self.level_ = header.get("level", "")  # older files don't have it
        if self.level_ != "":
            checks.choice(self.level_, "level", LEVELS)
        self.origin_ = Origin.from_dict(header.get("origin", {}))
        blocks = header.get("held_out")
        self.held_out_ = None if blocks is None else HeldOut.from_dict(blocks)
        names = header.get("feature_names")  # checked with the header
        if names is not None:
            self.feature_names_in_ = np.asarray(names, dtype=object)
        for name in self.learned:
            value = tensors[name]
            setattr(self, name, value if value.ndim else value.item())
        for name, kind in self._statistics().items():
            start = f"{name}."
            state = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
            if state or name != "moments":  # older files don't have them
                setattr(self, f"{name}_", self._expect_seen(kind.from_state(state)))
        self._check_fitted()
        self._prepare()

    def _expect_seen(self, statistic: Any) -> Any:
        """The statistic, which must be of the fitted rows."""
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
        """Raise if loaded arrays contradict each other or the parameters."""

    def _prepare(self) -> None:
        """Compute what `apply` needs besides the fitted arrays; called after loading."""

    @abstractmethod
    def fit_source(self, source: Source, checkpoint: Checkpoint | None) -> int:
        """Learn from the rows, with `checkpoint` given to `reduce`; returns their number."""

    @abstractmethod
    def apply(self, rows: Array, out: Array) -> None:
        """Write the repaired rows to out, which has their dtype."""

    def affine_form(self) -> tuple[Floats, Floats]:
        raise NotAffineError("the repair is not affine.")

    def own_steps(self) -> list[Step]:
        """The steps without the last one of `normalize`; by default those of the affine form."""
        return affine_steps(*self.affine_form(), getattr(self.moments_, "mean", None))

    def _check_params(self) -> None:
        checks.flag(self.normalize, "normalize")

    @property
    def _n_features_out(self) -> int:
        return int(self.n_features_in_)

    def _check_learned(self) -> None:
        learned = [np.asarray(getattr(self, name)) for name in self.learned]
        if not all(np.isfinite(part).all() for part in learned if part.dtype.kind == "f"):
            raise InputError(
                "X must have a scale that the repair can undo in float64. Multiply the rows by a "
                "power of two first."
            )

    def _repaired(self, rows: Array, first_row: int | None = None) -> Array:
        return self._mapped(self._finished, rows, self._n_features_out, first_row)

    def _finished(self, rows: Array, out: Array) -> None:
        self.apply(rows, out)
        if self.normalize:
            out[:] = linalg.unit_rows(out)

    def _mapped(self, function: Any, rows: Array, n_out: int, first_row: int | None = 0) -> Array:
        return blockwise(function, rows, n_out, first_row, self._in_float64)

    @property
    def _in_float64(self) -> bool:
        """Whether float32 rows must be repaired in float64."""
        sizes = [np.abs(getattr(self, name)).max() for name in SIZED if name in self.learned]
        return any(size > 0 and not 1 / WIDE < size < WIDE for size in sizes)

    def _source(self, X: Any, sample_weight: object, reset: bool) -> Source:
        source = as_source(X, sample_weight)
        if not reset and hasattr(self, "n_features_in_"):
            checks.width(source.n_features, self.n_features_in_)
        named = isinstance(X, (str, os.PathLike)) or source is X
        if isinstance(source, ArraySource) and not named:
            validate_data(self, X, reset=reset, skip_check_array=True)
        else:
            self.n_features_in_ = source.n_features
            if reset and hasattr(self, "feature_names_in_"):
                del self.feature_names_in_
        return source

    def _rows(self, X: Any, n_features: int) -> Array:
        """X in float32 or float64, which must be finite and of this width."""
        matrix = checks.matrix(X)
        checks.width(matrix.shape[1], n_features)
        rows = linalg.native(matrix)
        blocks = [block for _, block, _ in linalg.blocks(rows)]
        if any(good is not None for good in over_blocks(checks.finite_rows, blocks, rows)):
            checks.finite(rows)  # names the bad rows
        return rows

    def __sklearn_is_fitted__(self) -> bool:
        return all(hasattr(self, name) for name in self.learned)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


@public
class SummedRepair(Repair):
    """A repair solved from one mergeable statistic, which it keeps.

    It can therefore be fitted part by part (`partial_fit`), and repairs fitted on different parts
    can be merged. A subclass sets `statistic` and defines `solve(statistic)`. `statistic_` is what
    it was fitted on.
    """

    statistic: ClassVar[type[Statistic]]
    statistic_: Any

    def partial_fit(self, X: Any, y: object = None, sample_weight: object = None) -> Self:
        """Add the rows of X to those already fitted; see `fit` for the parameters."""
        first = not hasattr(self, "statistic_")
        source = self._source(X, sample_weight, reset=first)
        self._check_params()
        if first:
            self.n_samples_seen_ = self.fit_source(source, None)
            self.origin_ = Origin.from_dict(source.origin())
        else:
            found = self._gathered(source)
            self._add(found.states[0], found.states[-2], found.n_samples)
            self.origin_ = self.origin_.common(Origin.from_dict(source.origin()))
        self._check_learned()
        return self

    def fit_statistic(self, statistic: Moments) -> Self:
        """Fit from moments that have been computed already."""
        if not isinstance(statistic, self.statistic) or statistic.n_features is None:
            raise InputError(
                f"statistic must be {self.statistic.__name__} of some rows, got "
                f"{type(statistic).__name__}."
            )
        self.n_features_in_ = statistic.n_features
        self._check_params()
        self.n_samples_seen_, self.origin_ = statistic.n_rows, Origin()
        self.held_out_ = None
        self.statistic_ = copy.deepcopy(statistic)  # rows that are added later are this repair's
        self.moments_ = self.statistic_ if isinstance(self.statistic_, Moments) else None
        self.solve(self.statistic_)
        return self

    def merge(self, other: Self) -> Self:
        """Add the rows that `other` was fitted on; the result equals one fit to all rows."""
        check_is_fitted(self)
        if isinstance(other, Repair):
            check_is_fitted(other)
        if type(other) is not type(self) or other.get_params() != self.get_params():
            raise InputError(f"other must be a {type(self).__name__} with the same parameters.")
        self._add(other.statistic_, other.moments_, other.n_samples_seen_)
        self.origin_ = self.origin_.common(other.origin_)
        return self

    def fit_source(self, source: Source, checkpoint: Checkpoint | None) -> int:
        found = self._gathered(source, checkpoint)
        self.statistic_, self.moments_ = found.states[0], found.states[-2]
        self.held_out_ = held_out(found.states[-1])
        self.solve(self.statistic_)
        return found.n_samples

    def _gathered(self, source: Source, checkpoint: Checkpoint | None = None) -> Reduced[Any]:
        """The statistic and the moments of the rows, which may be one and the same, and blocks."""
        kinds: dict[Any, None] = dict.fromkeys([self.statistic, Moments])
        blocks = BlockSums(source.n_samples)
        return reduce(source, [*(kind() for kind in kinds), blocks], checkpoint)

    def _add(self, statistic: Statistic, moments: Moments | None, n_samples: int) -> None:
        """Learn from other rows too, of which these are the statistic and the moments."""
        self.statistic_.merge(statistic)
        self.held_out_ = None  # of parts, it does not say how they differ
        if self.moments_ is None or moments is None:
            self.moments_ = None
        elif self.moments_ is not self.statistic_:
            self.moments_.merge(moments)
        self.n_samples_seen_ += n_samples
        self.solve(self.statistic_)

    @abstractmethod
    def solve(self, statistic: Any) -> None:
        """Learn from the statistic."""

    def _statistics(self) -> dict[str, type[Statistic]]:
        apart = {} if self.statistic is Moments else super()._statistics()
        return {"statistic": self.statistic} | apart

    def _restore(self, header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> None:
        super()._restore(header, tensors)
        if self.statistic is Moments:
            self.moments_ = self.statistic_


class Invertible(Repair):
    """A repair with an inverse: a subclass defines `revert(rows, out)`."""

    @property
    def _has_inverse(self) -> bool:
        return not self.normalize

    @available_if(lambda self: self._has_inverse)  # type: ignore[untyped-decorator]
    @public
    def inverse_transform(self, X: Any) -> Any:
        """The rows whose repair is X. Not available with `normalize`, which loses the norms."""
        check_is_fitted(self)
        rows = self._rows(X, self._n_features_out)
        return as_given(self._mapped(self.revert, rows, self.n_features_in_), X)

    @abstractmethod
    def revert(self, rows: Array, out: Array) -> None:
        """Write to out the rows that these are the repair of."""


@public
def load(path: Any) -> Repair:
    """Load a fitted repair that `save` wrote. Nothing in the file is executed.

    Raises
    ------
    RepairFileError
        If the file is missing, damaged, of another kind or of a newer format, or if its arrays or
        parameters are not those of a repair.
    """
    return load_with_header(path)[0]


def load_with_header(path: Any) -> tuple[Repair, dict[str, Any]]:
    """The repair that `load` returns, and the header of its file."""
    header, tensors = files.read(path, known_repairs())
    with files.validated(path):
        return restored(header, tensors), header


def restored(header: Any, tensors: dict[str, NDArray[Any]]) -> Repair:
    """The repair with this header and these arrays; raises an InputError if they are wrong."""
    known = known_repairs()
    method = files.expect(header, dict, "a repair", "an object").get("method")
    return known[checks.choice(method, "the method of a repair", list(known))]._from_file(
        header, tensors
    )


def known_repairs() -> dict[str, type[Repair]]:
    """Every repair by its name."""
    return ungrouped() | Repair.grouped_by_name


def ungrouped() -> dict[str, type[Repair]]:
    """Every repair that is one map for all rows, by its name."""
    return Repair.by_name | Repair.trained_by_name | Repair.on_request_by_name


def blockwise(
    function: Callable[[Array, Array], None],
    rows: Array,
    n_out: int,
    first_row: int | None = 0,
    in_float64: bool = False,
) -> Array:
    """The rows of width n_out that function(rows, out) writes, in the dtype of rows.

    Blocks of many rows are spread over threads. Values that don't fit the dtype are refused.
    """
    kind = str(rows.dtype).removeprefix("torch.")
    given = linalg.double(rows) if in_float64 else rows
    blocks = linalg.blocks(given, on_device=128, on_host=2)
    bounds = [start for start, _, _ in blocks] + [given.shape[0]]
    out = linalg.empty((given.shape[0], n_out), given)

    def fill(i: int) -> None:
        part = slice(bounds[i], bounds[i + 1])
        with np.errstate(all="ignore"):  # checked below
            function(given[part], out[part])
        number = None if first_row is None else first_row + bounds[i]
        checks.fits(out[part], None, kind, number)

    try:
        over_blocks(fill, range(len(bounds) - 1), given)
    finally:
        linalg.leave_rooms()
    if not in_float64:
        return out
    with np.errstate(over="ignore"):
        narrow = linalg.like(out, rows)
    checks.fits(narrow, out, kind, first_row)
    return narrow


def as_given(rows: Array, X: Any) -> Array:
    """rows as an array or tensor like X, in its dtype if that is floating."""
    if not checks.is_tensor(X):
        dtype = np.asarray(X).dtype
        if dtype.kind != "f" or dtype == rows.dtype:
            return rows
        with np.errstate(over="ignore"):
            cast = rows.astype(dtype)
    else:
        import torch

        rows = rows if checks.is_tensor(rows) else torch.from_numpy(rows)
        if not X.dtype.is_floating_point or X.dtype == rows.dtype:
            return rows
        cast = rows.to(X.dtype)
    checks.fits(cast, rows, str(cast.dtype).removeprefix("torch."))
    return cast


def open_target(out: Any, n_features: int, like: Source, **options: Any) -> Sink | PartsSink:
    """The sink for rows: a file, or, for a name without a suffix, a folder of Parquet parts."""
    if os.fspath(out) == "-":
        raise InputError(
            f"{options.get('name', 'out')} must be a file or a folder, got '-'. Name a file: rows "
            "cannot go to standard output."
        )
    return open_sink(out, n_features, like=like, **options)
