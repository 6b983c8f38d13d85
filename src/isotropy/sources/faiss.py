"""The vectors in a faiss index that holds them exactly: one reader, also for exports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isotropy.errors import needs, one_line
from isotropy.linalg import Floats
from isotropy.sources import paths
from isotropy.sources.files import Column, File, FormatError, Pieces, Place

ID = "id"
SLACK = 16  # times the size of its file that faiss may allocate at once
SQUARES = 1 << 28  # bytes: faiss counts d x d floats for a shift too, which has only d

_loading = threading.Lock()  # of faiss's limits, which are global


class NotExact(FormatError):
    """The index does not hold its vectors exactly; `found` says what it is."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"is a faiss index that does not hold its vectors exactly ({found}), as Flat, "
            "HNSWFlat, IVFFlat and IDMaps of them do. Save the vectors that it was built from."
        )
        self.found = found


@dataclass(frozen=True, kw_only=True)
class FaissFile(File):
    """An index, which faiss loads as a whole; its rows are one piece."""

    kind: str = "faiss"
    dtype: str = "float32"

    def pieces(self) -> list[tuple[int, Place]]:
        return [(self.n_rows, ())]

    def read(self, first_row: int, n_rows: int, place: Place, carry: bool) -> Pieces:
        for rows, ids in vectors(read_index(self.path), self.rows_at_once):
            yield rows, pa.table({ID: ids}) if carry and ids is not None else None


def open_faiss(path: str, column: Column, chunk_rows: int | None) -> File:
    index = read_index(path)
    _, ids = next(vectors(index, 1), (None, None))
    return FaissFile(
        path=path,
        n_rows=int(index.ntotal),
        n_features=int(index.d),
        chunk_rows=chunk_rows,
        others=() if ids is None else ((ID, "int64"),),
    )


def vectors(
    index: Any, most: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64] | None]]:
    """(rows, ids) of an index that holds them exactly, at most so many at once.

    Without ids if these are the positions. The rows of an IVF index are in the order of its lists.
    Rotations and shifts in front of an index are undone.
    """
    import faiss

    found: Any = faiss.downcast_index(index)  # a view: `index` is what keeps it alive
    kind = type(found)
    if kind in (faiss.IndexFlat, faiss.IndexFlatIP, faiss.IndexFlatL2):
        _expect_rows(found.codes.size(), 4 * found.ntotal * found.d)
        for start in range(0, found.ntotal, most):
            yield found.reconstruct_n(start, min(most, found.ntotal - start)), None
    elif kind is faiss.IndexHNSWFlat:
        _expect_rows(found.storage.ntotal, found.ntotal)
        yield from vectors(found.storage, most)
    elif kind is faiss.IndexIVFFlat:
        yield from _lists(found, most)
    elif kind in (faiss.IndexIDMap, faiss.IndexIDMap2):
        names, start = faiss.vector_to_array(found.id_map), 0
        _expect_rows(len(names), found.index.ntotal)
        for rows, ids in vectors(found.index, most):
            places = np.arange(start, start + len(rows)) if ids is None else ids
            _expect_rows(int(((places >= 0) & (places < len(names))).sum()), len(rows))
            yield rows, names[places]
            start += len(rows)
    elif kind is faiss.IndexPreTransform:
        back = [_inverse(transform) for transform in transforms(index)]
        _expect_rows(found.index.ntotal, found.ntotal)
        for rows, ids in vectors(found.index, most):
            wide = rows.astype(np.float64)
            for matrix, offset in reversed(back):
                wide = wide @ matrix.T + offset
            yield wide.astype(np.float32), ids
    else:
        raise NotExact(kind.__name__)


def transforms(index: Any) -> list[Any]:
    """The transforms in front of an index."""
    import faiss

    found: Any = faiss.downcast_index(index)
    return [faiss.downcast_VectorTransform(found.chain.at(i)) for i in range(found.chain.size())]


def _inverse(transform: Any) -> tuple[Floats, Floats]:
    """(matrix, offset) that undo a transform."""
    import faiss
    from faiss.contrib.inspect_tools import get_LinearTransform_matrix

    if isinstance(transform, faiss.CenteringTransform):
        mean = faiss.vector_to_array(transform.mean).astype(np.float64)
        return np.eye(len(mean)), mean
    if isinstance(transform, faiss.LinearTransform) and transform.d_in == transform.d_out:
        matrix, bias = get_LinearTransform_matrix(transform)
        wide = matrix.astype(np.float64)
        rounding = len(wide) * float(np.finfo(np.float32).eps)
        if np.abs(wide @ wide.T - np.eye(len(wide))).max() <= rounding:
            back = np.linalg.inv(wide)
            return back, -back @ bias if len(bias) else np.zeros(len(wide))
    raise NotExact(f"a {type(transform).__name__} that can't be undone")


def _lists(index: Any, most: int) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    import faiss
    from faiss.contrib.inspect_tools import get_invlist

    lists = faiss.downcast_InvertedLists(index.invlists)
    if type(lists) is not faiss.ArrayInvertedLists or index.code_size != 4 * index.d:
        raise FormatError("has its vectors in another file. Write it again with its lists inside.")
    _expect_rows(sum(lists.list_size(i) for i in range(lists.nlist)), index.ntotal)
    parts: list[tuple[NDArray[np.float32], NDArray[np.int64]]] = []
    n_rows = 0
    for number in range(lists.nlist):
        ids, codes = get_invlist(lists, number)
        rows = codes.view(np.float32).reshape(-1, index.d)
        for start in range(0, len(rows), most):
            part = rows[start : start + most], ids[start : start + most]
            if n_rows + len(part[0]) > most:
                yield _joined(parts)
                parts, n_rows = [], 0
            parts.append(part)
            n_rows += len(part[0])
    if parts:
        yield _joined(parts)


def _joined(
    parts: list[tuple[NDArray[np.float32], NDArray[np.int64]]],
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rows, ids = zip(*parts, strict=True)
    return np.concatenate(rows), np.concatenate(ids)


def _expect_rows(found: int, promised: int) -> None:
    if found != promised:
        raise FormatError("is damaged: its numbers of rows differ. Write or copy it again.")


def read_index(path: str) -> Any:
    """The index in a local file, with faiss kept from allocating more than the file can fill."""
    with needs("faiss", "faiss"):
        import faiss
    if paths.is_remote(path):
        raise FormatError("must be a local file. Copy it here first.")
    size, *_ = paths.stamp(path)
    with _loading:
        before = faiss.get_deserialization_vector_byte_limit()
        faiss.set_deserialization_vector_byte_limit(
            max(SLACK * size, min(size * size // 4, SQUARES))
        )
        try:
            return faiss.read_index(path, faiss.IO_FLAG_READ_ONLY)
        except (RuntimeError, MemoryError) as error:
            reason = str(error).rpartition("Error: ")[2].replace("\n", " ")
            raise FormatError(
                f"is damaged or not a faiss index ({one_line(reason, 160)}). Write or copy it "
                "again."
            ) from error
        finally:
            faiss.set_deserialization_vector_byte_limit(before)
