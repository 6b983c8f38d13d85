"""A repair as transforms in front of a faiss index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from isotropy.errors import InputError, InputTypeError, NotAffineError, warn
from isotropy.export._steps import steps_for
from isotropy.linalg import Floats
from isotropy.repairs import Repair, check_target
from isotropy.repairs.steps import Add, Multiply, Normalize, Step, Subtract, SubtractScaled
from isotropy.sources import output_path
from isotropy.sources.faiss import NotExact, read_index, transforms
from isotropy.sources.faiss import vectors as stored_vectors
from isotropy.sources.files import FormatError
from isotropy.sources.paths import normal
from isotropy.writing import atomic_write, quoted, write_errors

Rows = NDArray[np.float32]
Ids = NDArray[np.int64]

INSTEAD = "Add repair.transform(X) to an index, and search it with repair.transform(queries)."
MOST = 1e-5  # error of a repaired row, relative to its norm
CHUNK = 65_536  # rows read back and repaired at a time
PER_CENTROID = 256  # rows that faiss trains a centroid on at most
UNIT = 1e-3  # rows whose norms are this near to one are meant to be unit rows


def exported(repair: Repair, index: Any, out: Any, overwrite: bool) -> Any:
    """See `isotropy.export.faiss`."""
    steps = chain(repair)
    path = index if _is_path(index) else None
    check_target({"out": out}, {"index": path}, overwrite=overwrite)
    made = faiss.IndexPreTransform(_inner(repair, index))
    for transform in reversed(steps):
        made.prepend_transform(transform)
    if out is not None:
        write(made, out, overwrite)
    return made


def write(index: Any, out: Any, overwrite: bool) -> None:
    """Write an index, completely or not at all."""
    target = output_path(out, "out")
    with write_errors(target), atomic_write(target, overwrite=overwrite) as part:
        try:
            faiss.write_index(index, os.fspath(part))
        except RuntimeError as error:
            raise OSError(str(error)) from error


def read(path: Any) -> Any:
    """The index in a file."""
    try:
        return read_index(normal(path))
    except FormatError as error:
        raise InputError(f"index must be a faiss index, but {quoted(path)} {error}") from error


def stages(index: Any) -> tuple[Any, Any]:
    """The indexes of an exported codec of two stages."""
    expect_kind(index, faiss.IndexRefine)
    return index.base_index, index.refine_index


def expect_kind(index: Any, kind: type[Any]) -> None:
    """Raise unless an exported index is of this kind."""
    found = type(faiss.downcast_index(index))
    if found is not kind:
        raise InputError(
            f"out must be what was exported, an {kind.__name__}, got an {found.__name__}. Check "
            "the file, or export it again."
        )


def apply(index: Any, rows: Rows, n_transforms: int | None = None) -> Rows:
    """What the chain of an exported index, or the first transforms of it, makes of raw rows."""
    expect_kind(index, faiss.IndexPreTransform)
    if index.d != rows.shape[1]:
        raise InputError(
            f"out must be an index of rows of {rows.shape[1]} dimensions, got one of {index.d}. "
            "Export it again."
        )
    for transform in transforms(index)[:n_transforms]:
        rows = transform.apply(rows)
    return rows


def chain(repair: Repair) -> list[Any]:
    """The transforms that a row goes through."""
    steps = steps_for(repair, "faiss", INSTEAD)
    found: list[Any] = []
    for step, after in zip_longest(steps, steps[1:]):
        found += _transforms(step, after, repair)
    return found


def _transforms(step: Step, after: Step | None, repair: Repair) -> list[Any]:
    match step:
        case Subtract(vector):
            return [_centering(vector)]
        case Add(vector):
            return [_centering(-vector)]
        case Multiply(matrix):
            return [_linear(matrix)]
        case Normalize():
            return [faiss.NormalizationTransform(repair._n_features_out)]
        case SubtractScaled(direction):
            _check_scaled(direction, after)
            # x - ||x|| m has the direction of x / ||x|| - m
            return [faiss.NormalizationTransform(len(direction)), _centering(direction)]
    raise NotAffineError(
        f"repair must be one that faiss can run, got {type(repair).__name__}, which has a map for "
        f"every cluster. {INSTEAD}"
    )


def _check_scaled(direction: Floats, after: Step | None) -> None:
    """Raise unless unit rows in float32 lead to the same result, up to its norm."""
    if not isinstance(after, Normalize):
        raise NotAffineError(
            "ScaledCenter must have normalize=True for faiss, which can't give a row its norm "
            f"back, got normalize=False. Set it if you compare cosines, or: {INSTEAD}"
        )
    left = max(1 - float(direction @ direction), 0.0) ** 0.5  # of a unit row without its mean
    if left * MOST < np.finfo(np.float32).eps:
        raise InputError(
            f"ScaledCenter must leave enough of a row for float32, got {left:.1g} of its norm: the "
            f"rows nearly coincide. Use Center(normalize=True), or: {INSTEAD}"
        )


def _centering(vector: Floats) -> Any:
    found = faiss.CenteringTransform(len(vector))
    faiss.copy_array_to_vector(vector.astype(np.float32), found.mean)
    found.is_trained = True
    return found


def _linear(matrix: Floats) -> Any:
    n_out, n_in = matrix.shape
    found = faiss.LinearTransform(n_in, n_out, False)
    faiss.copy_array_to_vector(matrix.astype(np.float32).ravel(), found.A)
    found.is_trained = True
    found.set_is_orthonormal()
    return found


def _is_path(index: Any) -> bool:
    return isinstance(index, os.PathLike) or (
        isinstance(index, str) and os.path.isfile(normal(index))
    )


def _inner(repair: Repair, index: Any) -> Any:
    """The index behind the chain: empty, or with the repaired vectors of another."""
    n_out = repair._n_features_out
    if index is None:
        return faiss.IndexFlatIP(n_out)
    if _is_path(index):
        return rebuilt(repair, read(index))
    if isinstance(index, str):
        return _from_factory(index, n_out)
    if isinstance(index, faiss.Index):
        return rebuilt(repair, index)
    raise InputTypeError(
        f"index must be a faiss index, its path, or a factory string, got {type(index).__name__}."
    )


def _from_factory(description: str, n_features: int) -> Any:
    try:
        return faiss.index_factory(n_features, description, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise InputError(
            f"index must be a file that exists, or a factory string for {n_features} dimensions "
            f'such as "HNSW32,Flat", got {quoted(description)}.'
        ) from error


def rebuilt(repair: Repair, index: Any) -> Any:
    """A new index of the same kind with the repaired vectors.

    `index` stays bound while it is read: what `downcast_index` returns does not keep it alive.
    """
    if index.d != repair.n_features_in_:
        raise InputError(
            f"index must have {repair.n_features_in_} dimensions, as the rows that the repair was "
            f"fitted on, got {index.d}. Check the encoder, or fit again."
        )
    new = empty_like(index, repair._n_features_out)
    if index.ntotal == 0:
        return new
    if not new.is_trained:
        new.train(_training_rows(repair, index))
    all_unit = True
    for rows, ids in vectors(index):
        all_unit &= bool((np.abs(np.linalg.norm(rows, axis=1) - 1) < UNIT).all())
        repaired = repair.transform(rows)
        if ids is None:
            new.add(repaired)
        else:
            new.add_with_ids(repaired, ids)
    if all_unit and index.metric_type == faiss.METRIC_INNER_PRODUCT and not repair.normalize:
        warn(
            "export.faiss: index holds unit vectors, whose inner products are cosines; those of "
            "the repaired ones are not. Set normalize=True on the repair to compare cosines."
        )
    return new


def _training_rows(repair: Repair, index: Any) -> Rows:
    """Repaired rows for the centroids of an IVF index, evenly spaced among all."""
    n_lists = faiss.extract_index_ivf(index).nlist
    if index.ntotal < n_lists:
        raise InputError(
            f"index must hold at least as many vectors as its {n_lists} lists, to train them on "
            f"repaired ones, got {index.ntotal}. Train a smaller one."
        )
    stride = max(1, index.ntotal // (PER_CENTROID * n_lists))
    start, found = 0, []
    for rows, _ in vectors(index):
        found.append(rows[-start % stride :: stride])
        start += len(rows)
    return np.ascontiguousarray(repair.transform(np.concatenate(found)))


def vectors(index: Any) -> Iterator[tuple[Rows, Ids | None]]:
    """(rows, ids) of an index that holds them exactly; without ids if these are the positions."""
    try:
        yield from stored_vectors(index, CHUNK)
    except NotExact as error:
        raise _not_exact(error.found) from error
    except FormatError as error:
        raise InputError(f"index {error}") from error


def empty_like(index: Any, n_features: int) -> Any:
    """An index of the same kind, metric and parameters for rows of another width.

    A chain of transforms is left out: the repaired vectors take the place of the raw ones.
    """
    new: Any
    index = faiss.downcast_index(index)
    kind = type(index)
    if kind in (faiss.IndexFlat, faiss.IndexFlatIP, faiss.IndexFlatL2):
        new = faiss.IndexFlat(n_features, index.metric_type)
    elif kind is faiss.IndexHNSWFlat:
        new = faiss.IndexHNSWFlat(n_features, index.hnsw.nb_neighbors(1), index.metric_type)
        new.hnsw.efConstruction = index.hnsw.efConstruction
        new.hnsw.efSearch = index.hnsw.efSearch
    elif kind is faiss.IndexIVFFlat:
        quantizer = empty_like(index.quantizer, n_features)
        new = faiss.IndexIVFFlat(quantizer, n_features, index.nlist, index.metric_type)
        new.nprobe, new.cp = index.nprobe, index.cp
        new.quantizer_trains_alone = index.quantizer_trains_alone
    elif kind in (faiss.IndexIDMap, faiss.IndexIDMap2):
        return kind(empty_like(index.index, n_features))
    elif kind is faiss.IndexPreTransform:
        return empty_like(index.index, n_features)
    else:
        raise _not_exact(kind.__name__)
    new.metric_arg = index.metric_arg
    return new


def _not_exact(found: str) -> InputError:
    return InputError(
        f"index must hold its vectors exactly (Flat, HNSWFlat, IVFFlat, IDMap), got {found}. "
        "Build it again from the raw vectors: --index with a factory string, such as IVF64,PQ16, "
        'makes an empty index that repairs what you add (export.faiss(repair, "IVF64,PQ16")).'
    )
