"""One repair for each group of rows: languages, queries and documents, images and texts."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from isotropy import checks, linalg
from isotropy.checks import Array
from isotropy.engines import Checkpoint, Engine, open_checkpoint, using
from isotropy.errors import InputError, NotAffineError, brief, public, warn
from isotropy.linalg import Floats
from isotropy.repairs import files
from isotropy.repairs.base import Repair, ungrouped
from isotropy.repairs.drift import Drift, GroupDrift
from isotropy.sources import Batch, Chunk, Source, SourceView, as_source, listed
from isotropy.stats import Moments

Label = str | int
Labels = NDArray[Any]  # of objects, each a Label
LEAST_ROWS = 2  # of a group


@public
@dataclass(eq=False, repr=False)
class PerGroup(Repair):
    """Fit one repair to each group of rows, and apply to each row that of its group.

    Parameters
    ----------
    repair : Repair
        Cloned for every group; its parameters are `repair__power` and so on.

    Attributes
    ----------
    repairs_ : dict of str or int to Repair
        The fitted repair of each group.

    Notes
    -----
    `fit` and `transform` need `groups`: a label for each row, text or integers, or the name of a
    column beside the vectors of a file. Fitting takes one pass for each group, and one more to read
    a column. `shift` compares with the fitted rows of all groups together, and so does `drift` if
    it is not told the groups.

    Examples
    --------
    >>> import numpy as np
    >>> from isotropy import Center
    >>> X, groups = np.array([[1.0], [3.0], [10.0], [30.0]]), ["en", "en", "fr", "fr"]
    >>> PerGroup(Center()).fit(X, groups=groups).transform(X, groups=groups).ravel()
    array([ -1., 1., -10., 10.])
    """

    name = "per-group"
    grouped = True
    normalize = False  # that of `repair` counts

    repair: Repair

    def fit(
        self,
        X: Any,
        y: object = None,
        sample_weight: object = None,
        *,
        groups: Any = None,
        engine: str | Engine | None = None,
        checkpoint: Any = None,
    ) -> Self:
        """Fit one repair to each group of rows.

        Parameters
        ----------
        X : array, tensor, path or source of shape (n_samples, n_features)
        y : ignored
        sample_weight : array of shape (n_samples,), optional
        groups : sequence of str or int of length n_samples, or str
            The group of each row, or the column that holds it.
        engine, checkpoint
            As for the `fit` of every repair.
        """
        source = self._source(X, sample_weight, reset=True)
        self._check_params()
        kept = open_checkpoint(checkpoint)
        with using(engine) as made, made.keeping():
            return self._learn(ByGroup(source, given(groups, source)), kept)

    def fit_source(self, source: Source, checkpoint: Checkpoint | None) -> int:
        assert isinstance(source, ByGroup)
        members = source.members()
        expect_enough(members, source.n_features)
        self.repairs_: dict[Label, Repair] = {}
        for label, rows in members.items():
            one = clone(self.repair)
            one.n_features_in_ = source.n_features
            one._check_params()
            try:
                self.repairs_[label] = one._learn(GroupRows(source.source, rows), checkpoint)
            except InputError as error:
                raise InputError(f"group {brief(label)}: {error}") from error
        self._merge_moments()
        return sum(one.n_samples_seen_ for one in self.repairs_.values())

    def transform(
        self,
        X: Any,
        *,
        groups: Any = None,
        out: Any = None,
        engine: str | Engine | None = None,
        overwrite: bool = False,
    ) -> Any:
        """The rows, each repaired as its group is, in the dtype and on the device of X, or written.

        Parameters
        ----------
        X : array, tensor or frame of shape (n_samples, n_features); with `out` also path or source
        groups : sequence of str or int of length n_samples, or str
            The group of each row, or the column that holds it; groups that were not fitted are
            refused.
        out, engine, overwrite
            As for the `transform` of every repair.
        """
        return self._transformed(X, groups, out, engine, overwrite)

    @classmethod
    def of(cls, repairs: Mapping[Label, Repair]) -> Self:
        """The repair made of these, which are fitted and have the same kind and parameters."""
        self = cls(clone(next(iter(repairs.values()))))
        self.repairs_ = {label: repairs[label] for label in distinct(repairs)}
        self.n_features_in_ = self._first.n_features_in_
        self.n_samples_seen_ = sum(one.n_samples_seen_ for one in repairs.values())
        self._merge_moments()
        return self

    def fit_transform(self, X: Any, y: object = None, *, groups: Any = None, **options: Any) -> Any:
        """`fit`, then `transform` of the same rows."""
        return self.fit(X, y, groups=groups, **options).transform(X, groups=groups)

    def write(
        self,
        X: Any,
        out: Any,
        *,
        groups: Any = None,
        engine: str | Engine | None = None,
        overwrite: bool = False,
    ) -> int:
        """Write the repaired rows to `out`, as `transform` does; returns the rows left out."""
        return self._written(X, groups, out, engine, overwrite)[0]

    def drift(
        self,
        X: Any,
        max_drift: float | None = None,
        *,
        groups: Any = None,
        engine: str | Engine | None = None,
    ) -> Drift:
        """Whether the rows of X have drifted away from the fitted rows of their groups.

        Parameters
        ----------
        X : array, tensor, path or source of shape (n_samples, n_features)
        max_drift : float, optional
            As for the `drift` of every repair; it holds for each group.
        groups : sequence of str or int of length n_samples, or str, optional
            The group of each row, or the column that holds it. Without it, X is compared with the
            fitted rows of all groups together.
        engine : {"local", "torch", "dask"} or Engine, optional
            Where the work runs; X is read once for each group.

        Returns
        -------
        GroupDrift, or Drift without groups
        """
        if groups is None:
            return super().drift(X, max_drift, engine=engine)
        check_is_fitted(self)
        source = as_source(X)
        members = ByGroup(source, given(groups, source)).members()
        self._expect_known(members)
        if not members:
            raise InputError("X must have good rows, got none.")
        found: dict[Label, Drift] = {}
        for label, rows in members.items():
            own = GroupRows(source, rows)
            found[label] = self.repairs_[label].drift(own, max_drift, engine=engine)
        return GroupDrift.of(found)

    def _work(self, source: Source, groups: Any) -> tuple[Source, Callable[[Array], Array], str]:
        labels = given(groups, source)
        rows = RepairedByGroup(source, labels, self)
        named = labels if isinstance(labels, str) else zlib.crc32(repr(labels.tolist()).encode())
        return rows, unchanged, f"{self._job()} {named}"

    def _function(self, groups: Any, source: Source | None) -> Callable[[Batch], Array]:
        labels = given(groups, source)
        return lambda batch: self.by_group(batch.rows, labels_of(batch, labels), batch.first_row)

    def by_group(self, rows: Array, labels: Labels, first_row: int | None = None) -> Array:
        """The rows, each repaired as its group is."""
        self._expect_known(distinct(labels))
        out = linalg.empty((rows.shape[0], self._n_features_out), rows)
        for label in distinct(labels):
            numbers = np.flatnonzero(labels == label)
            picked = linalg.index(numbers, rows)
            first = None if first_row is None or len(numbers) < len(rows) else first_row
            out[picked] = self.repairs_[label]._repaired(rows[picked], first)
        return out

    def _expect_known(self, labels: Iterable[Label]) -> None:
        unknown = [label for label in labels if label not in self.repairs_]
        if unknown:
            raise InputError(
                f"groups must be among those fitted, {listed(list(self.repairs_), 5)}, got "
                f"{listed(unknown, 3)}. Fit again with rows of that group."
            )

    def apply(self, rows: Array, out: Array) -> None:
        raise InputError("groups must be given with the rows, got none.")

    def affine_form(self) -> tuple[Floats, Floats]:
        raise NotAffineError(
            "the repair is not affine: each group has its own map. Use repairs_[group].affine()."
        )

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Names of the output columns, which are those of `repair`."""
        check_is_fitted(self)
        return self._first.get_feature_names_out(input_features)

    @property
    def _first(self) -> Repair:
        return next(iter(self.repairs_.values()))

    @property
    def _n_features_out(self) -> int:
        return self._first._n_features_out

    def _check_params(self) -> None:
        if not isinstance(self.repair, Repair) or self.repair.grouped:
            raise InputError(f"repair must be a repair of rows, got {brief(self.repair)}.")
        self.repair._check_params()

    def _merge_moments(self) -> None:
        """Keep the moments of all groups together, if each has its own."""
        parts = [one.moments_ for one in self.repairs_.values()]
        self.moments_ = None
        if all(part is not None for part in parts):
            self.moments_ = Moments()
            for part in parts:
                assert part is not None
                self.moments_.merge(part)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "repairs_")

    # The file: what every repair has, and the arrays of group i as "group/i/..."

    def _header(self) -> dict[str, Any]:
        inner = {"method": self.repair.name, "params": self._first._params()}
        groups = [
            {
                "label": label,
                "n_samples": one.n_samples_seen_,
                "held_out": None if one.held_out_ is None else asdict(one.held_out_),
            }
            for label, one in self.repairs_.items()
        ]
        return {"params": {"repair": inner}, "groups": groups}

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return files.numbered("group", [one._arrays() for one in self.repairs_.values()])

    def _tensors(self) -> dict[str, NDArray[Any]]:
        return files.numbered("group", [one._tensors() for one in self.repairs_.values()])

    @classmethod
    def _from_file(cls, header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Self:
        files.check_header(header, cls.__name__, ["repair"])
        inner = files.expect(header["params"].get("repair"), dict, "repair", "an object")
        known = ungrouped()
        kind = known[checks.choice(inner.get("method"), "the repair", list(known))]
        parts = files.by_number("group", tensors, n_groups(header))
        shared = {"n_features": header["n_features"], "params": inner.get("params"), "note": ""}
        repairs: dict[Label, Repair] = {}
        for group, part in zip(header["groups"], parts, strict=True):
            own = {name: group.get(name) for name in ("n_samples", "held_out")}
            repairs[group["label"]] = kind._from_file(shared | own, part)
        if sum(one.n_samples_seen_ for one in repairs.values()) != header["n_samples"]:
            raise InputError("n_samples must be the sum of those of the groups, but is not")
        self = cls.of(repairs)
        self._restore(header, {})
        return self


def n_groups(header: dict[str, Any]) -> int:
    """The number of groups that a header lists; raises if there is something else in it."""
    groups = files.expect(header.get("groups"), list, "groups", "a list")
    labels = [files.expect(group, dict, "a group", "an object").get("label") for group in groups]
    for label in labels:
        if type(label) not in (str, int):
            raise InputError(f"the label of a group must be text or an integer, got {brief(label)}")
    if not labels or len(set(labels)) < len(labels):
        raise InputError(f"groups must be one or more that differ, got {listed(labels, 5)}")
    return len(groups)


def given(groups: Any, source: Source | None) -> Labels | str:
    """The label of each row, or the name of the column that holds them.

    A stream, which is no source, must have a column.
    """
    if isinstance(groups, str):
        return groups
    if groups is None:
        raise InputError(
            "groups must be given: the label of each row, or the name of a column, got none."
        )
    if source is None:
        raise InputError("groups must be the name of a column for a stream, got labels.")
    listing = groups if isinstance(groups, (list, tuple)) else linalg.to_numpy(groups)
    labels = as_labels(checks.listing(listing, "groups"))
    if len(labels) != source.n_samples:
        raise InputError(
            f"groups must be as many as the {source.n_samples:,} rows, got {len(labels):,}."
        )
    return labels


def as_labels(values: list[Any]) -> Labels:
    """Labels as an array of text and integers; raises if there are others."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    for row, value in enumerate(plain):
        if type(value) not in (str, int):
            what = "a missing one" if value is None else brief(value)
            raise InputError(
                f"groups must be text or integers, got {what} in row {row}. Leave that row out."
            )
    labels = np.empty(len(plain), dtype=object)
    labels[:] = plain
    return labels


def distinct(labels: Iterable[Label]) -> list[Label]:
    """The different labels in order, text behind integers."""
    return sorted(set(labels), key=lambda label: (isinstance(label, str), label))


def expect_enough(members: Mapping[Label, Sized], n_features: int) -> None:
    """Raise if a group has too few rows to fit anything; warn if it has few."""
    label = min(members, key=lambda one: len(members[one]))
    least = len(members[label])
    if least < LEAST_ROWS:
        raise InputError(
            f"groups must have at least {LEAST_ROWS} rows each, got {least} in {brief(label)}. "
            "Leave it out, or join it with another."
        )
    if least < n_features:
        n_few = sum(len(rows) < n_features for rows in members.values())
        warn(
            f"PerGroup: {n_few} of {len(members)} groups have fewer rows than the {n_features} "
            f"features, such as {brief(label)} with {least}. Join groups, or fit on more rows."
        )


def labels_of(batch: Batch, labels: Labels | str) -> Labels:
    """The labels of a batch: some of those given, or a column beside its vectors."""
    if not isinstance(labels, str):
        return labels[batch.row_numbers]
    there = [] if batch.carried is None else batch.carried.column_names
    if batch.carried is None or labels not in there:
        raise InputError(
            f"groups must be a column beside the vectors, got {brief(labels)}, and there is "
            f"{listed(there, 5) or 'none'}. Choose another, or give the label of each row."
        )
    return as_labels(batch.carried.column(labels).to_pylist())


def unchanged(rows: Array) -> Array:
    """The rows as they are."""
    return rows


class ByGroup(SourceView):
    """A source whose rows have labels, in a column or beside it."""

    def __init__(self, source: Source, labels: Labels | str) -> None:
        super().__init__(source)
        self.labels = labels

    def members(self) -> dict[Label, NDArray[np.int64]]:
        """The row numbers of each group."""
        found: dict[Label, list[NDArray[np.int64]]] = {}
        for rows, labels in self._labelled():
            for label in distinct(labels):
                found.setdefault(label, []).append(rows[labels == label])
        return {label: np.concatenate(found[label]) for label in distinct(found)}

    def _labelled(self) -> Iterator[tuple[NDArray[np.int64], Labels]]:
        """Row numbers with their labels; the vectors are read only where the labels are."""
        if not isinstance(self.labels, str):
            yield np.arange(self.n_samples), self.labels
            return
        for chunk in self.chunks():
            for batch in self.read(chunk):
                yield batch.row_numbers, labels_of(batch, self.labels)


class RepairedByGroup(ByGroup):
    """The rows of a source, each repaired as its group is."""

    def __init__(self, source: Source, labels: Labels | str, repair: PerGroup) -> None:
        super().__init__(source, labels)
        self.repair, self.n_features = repair, repair._n_features_out

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        for batch in self.source.read(chunk):
            if batch.rows.shape[0]:
                labels = labels_of(batch, self.labels)
                rows = self.repair.by_group(batch.rows, labels)
            else:
                rows = linalg.empty((0, self.n_features), batch.rows)
            yield replace(batch, rows=rows)

    def bare(self) -> Self:
        return self if isinstance(self.labels, str) else super().bare()  # the labels are beside

    def origin(self) -> dict[str, Any]:
        return {}


class GroupRows(SourceView):
    """The rows of a source with these ascending numbers, counted from zero on their own.

    Chunks without any are not read.
    """

    def __init__(self, source: Source, members: NDArray[np.int64]) -> None:
        super().__init__(source.bare())
        self.members, self.n_samples = members, len(members)
        self._whole: dict[Chunk, Chunk] = {}
        for chunk in source.chunks():
            first, end = np.searchsorted(members, [chunk.first_row, chunk.first_row + chunk.n_rows])
            if end > first:
                part = replace(chunk, first_row=int(first), n_rows=int(end - first))
                self._whole[part] = chunk

    def chunks(self) -> list[Chunk]:
        return list(self._whole)

    def read(self, chunk: Chunk) -> Iterator[Batch]:
        for batch in self.source.read(self._whole[chunk]):
            numbers = batch.row_numbers
            places = np.minimum(np.searchsorted(self.members, numbers), self.n_samples - 1)
            own = np.flatnonzero(self.members[places] == numbers)
            end = batch.first_row + batch.rows.shape[0] + batch.n_skipped
            first, last = np.searchsorted(self.members, [batch.first_row, end])
            yield Batch(
                int(first),
                batch.rows[linalg.index(own, batch.rows)],
                None if batch.weights is None else batch.weights[own],
                n_skipped=int(last - first) - len(own),
                numbers=places[own],
            )

    def identity(self) -> dict[str, Any] | None:
        found = self.source.identity()
        members = np.ascontiguousarray(self.members, dtype=np.int64)
        return found and found | {"group": zlib.crc32(members.tobytes())}
