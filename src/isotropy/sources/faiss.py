"""The vectors in a faiss index that holds them exactly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isotropy.errors import needs, one_line
from isotropy.sources import paths
from isotropy.sources.files import Column, File, FormatError, Pieces, Place

ID = "id"
SLACK = 16  # times the size of its file that faiss may allocate at once

_loading = threading.Lock()  # of faiss's limits, which are global


@dataclass(frozen=True, kw_only=True)
class FaissFile(File):
    """An index, which faiss loads as a whole; its rows are one piece."""

    kind: str = "faiss"
    dtype: str = "float32"

    def pieces(self) -> list[tuple[int, Place]]:
        return [(self.n_rows, ())]

    def read(self, first_row: int, n_rows: int, place: Place, carry: bool) -> Pieces:
        for rows, ids in vectors(_loaded(self.path), self.rows_at_once):
            yield rows, pa.table({ID: ids}) if carry and ids is not None else None


def open_faiss(path: str, column: Column, chunk_rows: int | None) -> File:
    index = _loaded(path)
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
    else:
        raise FormatError(
            f"is a faiss {kind.__name__}, which does not hold its vectors exactly, as Flat, "
            "HNSWFlat, IVFFlat and IDMaps of them do. Save the vectors that it was built from."
        )


def _lists(index: Any, most: int) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    import faiss
    from faiss.contrib.inspect_tools import get_invlist

    lists = faiss.downcast_InvertedLists(index.invlists)
    if type(lists) is not faiss.ArrayInvertedLists or index.code_size != 4 * index.d:
        raise FormatError("has its vectors in another file. Write it again with its lists inside.")
    _expect_rows(sum(lists.list_size(i) for i in range(lists.nlist)), index.ntotal)
    for number in range(lists.nlist):
        ids, codes = get_invlist(lists, number)
        rows = codes.view(np.float32).reshape(-1, index.d)
        for start in range(0, len(rows), most):
            yield rows[start : start + most], ids[start : start + most]


def _expect_rows(found: int, promised: int) -> None:
    if found != promised:
        raise FormatError("is damaged: its numbers of rows differ. Write or copy it again.")


def _loaded(path: str) -> Any:
    """The index in a local file, with faiss kept from allocating more than the file can fill."""
    with needs("faiss", "faiss"):
        import faiss
    if paths.is_remote(path):
        raise FormatError("must be a local file. Copy it here first.")
    size, *_ = paths.stamp(path)
    with _loading:
        before = faiss.get_deserialization_vector_byte_limit()
        faiss.set_deserialization_vector_byte_limit(SLACK * size)
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
