"""Opening anything that holds vectors as a source."""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from isotropy import checks
from isotropy.errors import InputError, brief
from isotropy.sources import addresses, paths
from isotropy.sources.addresses import Address
from isotropy.sources.base import ArraySource, Source
from isotropy.sources.files import (
    PICKLED,
    Column,
    File,
    FileSource,
    FormatError,
    expect_unchanged,
    listed,
    read_errors,
)
from isotropy.stored import parse_json

if TYPE_CHECKING:
    from isotropy.sources.frames import FrameSource

STATE_BYTES = 1 << 24  # of the list of files of a saved data set
FORMATS = {  # suffix: (what it is, module, function, whether its parts have names)
    ".npy": (".npy", "flat", "open_npy", False),
    ".npz": (".npz", "flat", "open_npz", True),
    ".safetensors": ("safetensors", "flat", "open_safetensors", True),
    ".parquet": ("Parquet", "columnar", "open_parquet", True),
    ".pq": ("Parquet", "columnar", "open_parquet", True),
    ".arrow": ("Arrow", "columnar", "open_arrow", True),
    ".ipc": ("Arrow", "columnar", "open_arrow", True),
    ".feather": ("Arrow", "columnar", "open_arrow", True),
    ".csv": ("CSV", "csv", "open_csv", True),
    ".tsv": ("CSV", "csv", "open_csv", True),
    ".jsonl": ("JSON lines", "jsonl", "open_jsonl", True),
    ".ndjson": ("JSON lines", "jsonl", "open_jsonl", True),
    ".txt": ("word2vec text", "word2vec", "open_words", False),
    ".vec": ("word2vec text", "word2vec", "open_words", False),
    ".bin": ("word2vec binary", "word2vec", "open_binary_words", False),
    ".fvecs": (".fvecs", "flat", "open_fvecs", False),
    ".bvecs": (".bvecs", "flat", "open_fvecs", False),
    ".ivecs": (".ivecs", "flat", "open_fvecs", False),
    ".fbin": (".fbin", "flat", "open_fbin", False),
    ".u8bin": (".u8bin", "flat", "open_fbin", False),
    ".i8bin": (".i8bin", "flat", "open_fbin", False),
    ".h5": ("HDF5", "chunked", "open_hdf5", True),
    ".hdf5": ("HDF5", "chunked", "open_hdf5", True),
    ".h5ad": ("HDF5", "chunked", "open_hdf5", True),
    ".zarr": ("Zarr", "chunked", "open_zarr", True),
    ".gguf": ("GGUF", "gguf", "open_gguf", True),
    ".faiss": ("faiss", "faiss", "open_faiss", False),
}
IN_FOLDERS = (".zarr",)  # formats that are folders themselves
FORMATS |= {
    f"{suffix}.gz": FORMATS[suffix]
    for suffix in (".csv", ".tsv", ".jsonl", ".ndjson", ".txt", ".vec")
}
PICKLES = (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")


class FolderFormat(NamedTuple):
    """A kind of folder that holds vectors in its own way, such as a static model.

    `file(path)` is the file with the rows; `vectors(path)` are the rows if they are not simply
    those of the file. Both are None for other folders.
    """

    file: Callable[[str], str | None]
    vectors: Callable[[str], Any]


FOLDERS: list[FolderFormat] = []  # extended by the modules that can read them


def open_source(
    X: Any,
    *,
    column: Column = None,
    chunk_rows: int | None = None,
    skip_bad_rows: bool = False,
    sample_weight: object = None,
) -> Source:
    """The source of anything that holds vectors, read in chunks as often as needed.

    Parameters
    ----------
    X : array, tensor, frame, path, list of paths, or source
        A frame is one of pandas, polars, pyarrow or datasets, or of another library that speaks
        Arrow, with a column of vectors, or of floats beside text. A path may be a file (.npy, .npz,
        .safetensors, .parquet, .arrow, .feather, .csv, .tsv, .jsonl, word2vec's .txt, .vec and
        .bin, .fvecs, .fbin, .h5, .h5ad, .gguf, .faiss; those of text also packed, as .csv.gz), a
        Zarr folder, a folder or a glob of files of one kind, a folder written by Hugging Face's
        `save_to_disk`, a URL such as s3://bucket/x.npy, or the folder of a static model, whose
        token vectors are read. Files are read in sorted order.
        Tables of databases: lance:///folder#table, postgresql://host/db?table=docs&column=vector,
        qdrant://host:6333#collection, or the folder of a Lance table, docs.lance.
    column : str or list of str, optional
        The array, tensor or column with the vectors; a pattern or a list of names of number
        columns; or the dotted path of a nested field. By default, the only candidate.
    chunk_rows : int, optional
        Rows per chunk; by default about 64 MB. Parquet and Arrow files keep their row groups
        together.
    skip_bad_rows : bool
        Leave out rows with NaN, infinity or missing values, instead of raising.
    sample_weight : array of shape (n_samples,), optional

    Returns
    -------
    Source
        Each batch comes with the other columns.

    Examples
    --------
    >>> import numpy as np
    >>> source = open_source(np.eye(3, dtype=np.float32), chunk_rows=2)
    >>> [chunk.n_rows for chunk in source.chunks()]
    [2, 1]
    """
    if chunk_rows is not None:
        chunk_rows = checks.integer(chunk_rows, "chunk_rows", 1)
    if column is not None and not isinstance(column, str):
        column = checks.listing(column, "column")
        if not column or not all(isinstance(name, str) for name in column):
            raise InputError(f"column must be names of columns, got {brief(column)}.")
    if isinstance(X, Source):
        if sample_weight is not None or column is not None or chunk_rows or skip_bad_rows:
            what = "sample_weight" if sample_weight is not None else "options"
            raise InputError(f"{what} must be given to the source, not beside it.")
        return X
    options: Any = {"sample_weight": sample_weight, "skip_bad_rows": skip_bad_rows}
    names = X if isinstance(X, (list, tuple)) and X else [X]
    if not all(isinstance(name, (str, os.PathLike)) for name in names):
        frame = as_frame(X, column=column, chunk_rows=chunk_rows, **options)
        return frame or ArraySource(X, chunk_rows=chunk_rows, **options)
    names = [checks.path(name, "X") for name in names]
    tables = [addresses.address(name) for name in names]
    if any(tables):
        return _open_table(tables, column, chunk_rows, **options)
    if len(names) == 1 and column is None:
        table = _first(format.vectors(names[0]) for format in _folder_formats(names[0]))
        if table is not None:
            return ArraySource(table, chunk_rows=chunk_rows, **options)
    found = []
    for path in names:
        with read_errors(path, "readable"):
            found += _expand(paths.normal(path))
    files = [_open_file(path, column, chunk_rows) for path in found]
    return FileSource(files, asked=column, **options)


def _open_table(
    tables: list[Address | None], column: Column, chunk_rows: int | None, **options: Any
) -> Source:
    if len(tables) > 1 or tables[0] is None:
        raise InputError("X must be one table or a list of files, got a table in a list.")
    databases = importlib.import_module("isotropy.sources.databases")
    opened: Source = databases.open_table(tables[0], column, chunk_rows, **options)
    return opened


def as_source(X: Any, sample_weight: object = None) -> Source:
    """X itself if it is a source, otherwise the source of its rows."""
    return open_source(X, sample_weight=sample_weight)


def as_frame(X: Any, **options: Any) -> FrameSource | None:
    """The source of a frame with a column of vectors; None if X is something else."""
    if not (checks.is_frame(X) or isinstance(X, Source)):
        return None
    from isotropy.sources import frames  # with pyarrow

    if isinstance(X, Source):
        return X if isinstance(X, frames.FrameSource) else None
    return frames.open_frame(X, **options)


def _folder_formats(path: str) -> list[FolderFormat]:
    if paths.is_remote(path) or not os.path.isdir(path):
        return []
    importlib.import_module("isotropy.models.static")  # which adds its format to FOLDERS
    return FOLDERS


def _first(found: Iterable[Any]) -> Any:
    return next((one for one in found if one is not None), None)


def _open_file(path: str, column: Column, chunk_rows: int | None) -> File:
    suffix = paths.suffix(path)
    if suffix in PICKLES:
        raise InputError(f"{path!r} {PICKLED}")
    if not suffix and not paths.is_remote(path) and not os.path.exists(path):
        raise InputError(f"there is no file or folder {path!r}. Check the name.")
    if suffix not in FORMATS:
        raise InputError(
            f"{path!r} must have a suffix that tells its format, got {suffix!r}. Use one "
            f"of {', '.join(FORMATS)}."
        )
    kind, module, function, named = FORMATS[suffix]
    with read_errors(path, kind):
        stamp = paths.stamp(path)
        if not stamp[0]:
            raise FormatError("is empty. Write or copy it again.")
        if column is not None and not named:
            raise FormatError("has no names to choose from. Leave column out.")
        opener = getattr(importlib.import_module(f"isotropy.sources.{module}"), function)
        file: File = replace(opener(path, column, chunk_rows), stamp=stamp)
        expect_unchanged(file)
        if not file.n_rows or not file.n_features:
            raise FormatError(f"holds no vectors: {file.n_rows} rows of {file.n_features}.")
        if file.n_features > checks.MOST_FEATURES:
            raise FormatError(
                f"has rows of {file.n_features:,} features, and at most {checks.MOST_FEATURES:,} "
                "can be computed with. Check how it was written."
            )
    return file


def _expand(path: str) -> list[str]:
    """The files that a path stands for."""
    if paths.is_pattern(path):
        found = paths.matches(path)
        if not found:
            raise InputError(f"no file matches {path!r}. Check the pattern.")
        return found
    if paths.suffix(path) in IN_FOLDERS or not paths.is_folder(path):
        return [path]
    return _folder(path)


def _folder(path: str) -> list[str]:
    state = paths.join(path, "state.json")
    if paths.is_file(paths.join(path, "dataset_dict.json")):
        raise InputError(
            f"{path!r} holds several splits of a data set. Choose one, such as "
            f"{paths.join(path, 'train')!r}."
        )
    if paths.is_file(state) and paths.is_file(paths.join(path, "dataset_info.json")):
        with read_errors(state, "data set"):
            return [paths.join(path, name) for name in _data_files(state)]
    if (file := _first(format.file(path) for format in _folder_formats(path))) is not None:
        return [file]
    folder = path if paths.is_remote(path) else glob.escape(path)
    found = paths.matches(paths.join(folder, "*"))
    found = [name for name in found if paths.suffix(name) in FORMATS]
    if not found:
        raise InputError(
            f"the folder {path!r} holds no file of vectors. Files must end in one of "
            f"{', '.join(FORMATS)}."
        )
    kinds = sorted({paths.suffix(name) for name in found})
    if len(kinds) > 1:
        raise InputError(
            f"the folder {path!r} holds files of several kinds: {listed(kinds)}. Choose "
            f"with a pattern, such as {paths.join(path, '*' + kinds[0])!r}."
        )
    return found


def _data_files(state: str) -> list[str]:
    """The files listed by a saved data set, all of them in its folder."""
    try:
        listing = parse_json(paths.read_bytes(state, 0, STATE_BYTES))
    except InputError as error:
        raise FormatError(f"is damaged: {error}. Save the data set again.") from error
    files = listing.get("_data_files") if isinstance(listing, dict) else None
    names: list[Any] = [
        x.get("filename") if isinstance(x, dict) else None
        for x in (files if isinstance(files, list) else [None])
    ]
    for name in names:
        if not isinstance(name, str) or not name:
            raise FormatError("does not list the files of the data set. Save the data set again.")
        if name in (".", "..") or any(c in name for c in "/\\\0"):
            raise FormatError(
                f"names the file {brief(name)}, and all must lie in its own folder. Save the data "
                "set again."
            )
    if not names:
        raise FormatError("lists no files. Save the data set again.")
    return names
