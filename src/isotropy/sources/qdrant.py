"""Collections of Qdrant, on a server or in a local folder, through its client."""

from __future__ import annotations

import functools
import json
import os
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isotropy import linalg
from isotropy.errors import InputError, brief, one_line, warn
from isotropy.sources.addresses import Address
from isotropy.sources.base import Batch, Source
from isotropy.sources.databases import (
    MARK,
    DatabaseSink,
    Progress,
    Table,
    expect_complete,
    imported,
    mark_of,
)
from isotropy.sources.files import FormatError, Pieces, Place, listed

PAGE_ELEMENTS = 1 << 18  # of one request: a server takes at most 32 MB
COSINE = "Cosine"
IDS = 10_000  # of one request without vectors
LOCAL = ("localhost", "127.0.0.1", "::1")

_clients: dict[str, tuple[Any, int]] = {}  # open folders, each with the number of its users
_clients_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class QdrantTable(Table):
    """A collection in the order of its ids; `bounds` are the ids at which pieces begin."""

    kind: str = "Qdrant"
    bounds: tuple[int | str, ...]
    distance: str

    @property
    def rows_at_once(self) -> int:
        """A folder is loaded as a whole each time it is opened, so it is one piece."""
        if self.chunk_rows or _folder(self.address) is None:
            return super().rows_at_once
        return max(1, self.n_rows)

    def read(self, first_row: int, n_rows: int, place: Place, carry: bool) -> Pieces:
        piece = first_row // self.rows_at_once
        start: Any = self.bounds[piece]
        n_left = n_rows
        with _connected(self.address) as client:
            while n_left and start is not None:
                points, start = client.scroll(
                    self.address.table,
                    limit=min(n_left, page_rows(self.n_features)),
                    offset=start,
                    with_payload=carry,
                    with_vectors=[self.column] if self.column else True,
                )
                n_left -= len(points)
                yield self._rows(points), self._carried(points) if carry else None
        if n_left or start != (*self.bounds, None)[piece + 1]:
            raise FormatError("has changed since it was opened. Open it again.")

    def _rows(self, points: list[Any]) -> NDArray[np.float32]:
        found = [point.vector for point in points]
        if self.column:
            found = [None if vector is None else vector.get(self.column) for vector in found]
        missing = [np.nan] * self.n_features
        rows = np.array([missing if one is None else one for one in found], np.float32)
        if self.distance == COSINE:  # as a server has them; a folder that is opened again has not
            rows = linalg.unit_rows(rows)
        return rows

    def _carried(self, points: list[Any]) -> pa.Table:
        """Ids, and payloads as JSON."""
        kind = pa.uint64() if dict(self.others)["id"] == "uint64" else pa.string()
        ids = [point.id if kind == pa.uint64() else str(point.id) for point in points]
        payloads = [json.dumps(point.payload or {}) for point in points]
        return pa.table({"id": pa.array(ids, kind), "payload": pa.array(payloads, pa.string())})


def page_rows(n_features: int) -> int:
    return max(1, PAGE_ELEMENTS // n_features)


def open_table(address: Address, chunk_rows: int | None) -> QdrantTable:
    folder = _folder(address)
    if folder is not None and not os.path.isfile(os.path.join(folder, "meta.json")):
        raise InputError(f"there is no Qdrant folder {folder!r}. Check the path.")
    with _connected(address) as client:
        if not client.collection_exists(address.table):
            there = [one.name for one in client.get_collections().collections]
            raise InputError(
                f"{str(address)!r}: there is no collection {address.table!r}, "
                f"only {listed(there) or 'none'}. Check the name."
            )
        config = client.get_collection(address.table).config
        expect_complete(address, "the collection", _progress(config))
        column, vectors = _vectors(address, config.params.vectors)
        pages = _pages(client, address.table, IDS, False)
        ids = [point.id for points in pages for point in points]
    whole = all(isinstance(one, int) for one in ids)
    table = QdrantTable(
        path=str(address),
        address=address,
        n_rows=len(ids),
        n_features=vectors.size,
        dtype="float32",
        column=column,
        chunk_rows=chunk_rows,
        others=(("id", "uint64" if whole else "string"), ("payload", "string")),
        bounds=(),
        distance=str(vectors.distance.value),
        mark=mark_of([address.table, column, ids], len(ids)),
    )
    if table.distance == COSINE:
        _say_unit_rows(str(address))
    return QdrantTable(**(vars(table) | {"bounds": tuple(ids[:: table.rows_at_once])}))


@functools.cache
def _say_unit_rows(shown: str) -> None:
    """Once for each collection."""
    warn(
        f"{shown!r} is a cosine collection of Qdrant, which scales vectors to length one when they "
        "are stored: their own lengths are lost."
    )


def _vectors(address: Address, found: Any) -> tuple[str | None, Any]:
    """(name, settings) of the vectors that the URL names; by default the only ones."""
    named = found if isinstance(found, dict) else {None: found}
    names = [address.column] if address.column else list(named)
    if len(names) != 1 or names[0] not in named:
        wanted = f"has no vectors {address.column!r}" if address.column else "has several vectors"
        there = listed([name for name in named if name]) or "some without a name"
        raise InputError(
            f"{str(address)!r}: the collection {wanted}, only {there}. Choose with column."
        )
    if named[names[0]].multivector_config is not None:
        raise InputError(f"{str(address)!r} must hold one vector a point, got several.")
    return names[0], named[names[0]]


def _pages(client: Any, collection: str, n_points: int, whole: bool) -> Iterator[list[Any]]:
    """All points, some at a time: with vectors and payloads, or only ids."""
    start = None
    while True:
        points, start = client.scroll(
            collection, limit=n_points, offset=start, with_payload=whole, with_vectors=whole
        )
        yield points
        if start is None:
            return


def _progress(config: Any) -> Progress | None:
    return Progress.parse((config.metadata or {}).get(MARK))


def _folder(address: Address) -> str | None:
    """The folder of a local collection; None for a server."""
    parts = urlsplit(address.server)
    return None if parts.netloc else os.path.abspath(unquote(parts.path))


def _place(address: Address) -> tuple[object, ...]:
    """What tells servers and folders apart."""
    folder, server = _folder(address), _server(address)
    if folder is not None:
        return (os.path.realpath(folder),)
    return "localhost" if server["host"] in LOCAL else server["host"], server["port"]


@contextmanager
def _connected(address: Address) -> Iterator[Any]:
    """A client; what it raises becomes one line.

    A folder can be open only once, so all who read or write it at the same time share a client.
    """
    http = imported("qdrant_client", "qdrant", "qdrant://").http.exceptions
    try:
        client = _opened(address)
        try:
            yield client
        finally:
            _release(address, client)
    except http.UnexpectedResponse as error:
        denied = error.status_code in (401, 403)
        fix = "Check the key in QDRANT_API_KEY" if denied else "Check the collection"
        why = f"the server answered {error.status_code} {error.reason_phrase}"
        raise InputError(f"{str(address)!r}: {why}. {fix}.") from error
    except http.ResponseHandlingException as error:
        raise InputError(
            f"{str(address)!r}: {one_line(error, 160)}. Check that the server runs, then repeat "
            "the command; a run that writes resumes."
        ) from error
    except (sqlite3.Error, OSError) as error:
        raise InputError(f"{str(address)!r}: {one_line(error, 160)}. Check the folder.") from error


def _opened(address: Address) -> Any:
    QdrantClient = imported("qdrant_client", "qdrant", "qdrant://").QdrantClient
    folder = _folder(address)
    if folder is None:
        return QdrantClient(**_server(address), check_compatibility=False)
    with _clients_lock:
        client, n_users = _clients.get(folder, (None, 0))
        if client is None:
            try:
                client = QdrantClient(path=folder, force_disable_check_same_thread=True)
            except RuntimeError as error:
                raise InputError(
                    f"{str(address)!r}: the folder is open in another client. Close that first."
                ) from error
        _clients[folder] = client, n_users + 1
    return client


def _release(address: Address, client: Any) -> None:
    folder = _folder(address)
    with _clients_lock:
        n_users = 1 if folder is None else _clients[folder][1]
        if folder is not None:
            _clients[folder] = client, n_users - 1
        if n_users == 1:
            _clients.pop(folder or "", None)
            client.close()


def _server(address: Address) -> dict[str, Any]:
    parts = urlsplit(address.server)
    options = parse_qs(parts.query)
    key = parts.password or next(iter(options.get("api_key", [])), None)
    https = options.get("https", ["0"])[0].lower() in ("1", "true")
    return {
        "host": parts.hostname,
        "port": parts.port or 6333,
        "https": https,
        "api_key": unquote(key) if key else os.environ.get("QDRANT_API_KEY"),
        "timeout": 60,
    }


def open_sink(
    address: Address,
    n_features: int,
    dtype: str | None,
    like: Source | None,
    name: str,
    job: str,
    overwrite: bool,
) -> QdrantSink:
    return QdrantSink(address, n_features, dtype, like, name, job, overwrite)


class QdrantSink(DatabaseSink):
    """A new collection, with the ids and payloads of the one that is read.

    Points are written by id, so one that is written twice is there once. The metadata of the
    collection record the progress after each request. One that is to be replaced stays until there
    is a whole one beside it, which is copied in its place: Qdrant cannot rename collections.
    """

    dtypes = ("float32",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        read = self.read if isinstance(self.read, QdrantTable) else None
        self.source = read
        self.column = self.address.column or (None if read is None else read.column)
        self.distance = COSINE if read is None else read.distance
        if (
            read is not None
            and read.address.table == self.address.table
            and _place(read.address) == _place(self.address)
        ):
            raise InputError(
                f"{self.name} must be another collection than the one that is read, got "
                f"{self.address.table!r} for both. Choose another name."
            )
        self.open: Any = None
        folder = _folder(self.address)
        if folder is not None and not os.path.isdir(os.path.dirname(folder)):
            raise InputError(
                f"{self.name} must be in an existing folder, got {folder!r}. Make it first."
            )
        with _connected(self.address) as client:
            self._look(client)

    def _look(self, client: Any) -> Progress | None:
        """What an interrupted run has done; sets `into`, the collection that is written to."""
        table, part = self.address.table, f"{self.address.table}-isotropy-part"
        there: dict[str, Progress | None] = {}
        for name in filter(client.collection_exists, (table, part)):
            found = _progress(client.get_collection(name).config)
            there[name] = self.expect_room(f"the collection {name!r}", found)
        replaces = table in there and there[table] is None
        self.into = part if part in there or replaces else table
        self.exists = self.into in there
        return there.get(self.into)

    def begin(self) -> Progress:
        self.open = _connected(self.address)
        self.client = self.open.__enter__()
        with self._errors():
            found = self._look(self.client)
            if found is not None:
                return found
            if self.exists:
                self.client.delete_collection(self.into)
            self._create(self.into)
        return Progress(self.job)

    def _create(self, name: str) -> None:
        models = imported("qdrant_client.models", "qdrant", "qdrant://")
        params = models.VectorParams(size=self.n_features, distance=models.Distance(self.distance))
        self.client.create_collection(
            name,
            vectors_config={self.column: params} if self.column else params,
            metadata={MARK: str(Progress(self.job))},
        )

    def put(self, rows: NDArray[Any], batch: Batch) -> None:
        models = imported("qdrant_client.models", "qdrant", "qdrant://")
        ids, payloads = self._points(batch)
        numbers = self.numbers(batch)
        n_written = int(np.searchsorted(numbers, self.progress.n_done))  # by an interrupted run
        step = page_rows(self.n_features)
        with self._errors():
            for start in range(n_written, len(rows), step):
                part = slice(start, start + step)
                vectors = rows[part].tolist()
                self.client.upsert(
                    self.into,
                    points=models.Batch(
                        ids=ids[part],
                        payloads=payloads[part],
                        vectors={self.column: vectors} if self.column else vectors,
                    ),
                    wait=True,
                )
                # one less than was written: a chunk is done once it is committed
                self.progress = replace(self.progress, n_done=int(numbers[part][-1]))
                self.save(self.progress)

    def _points(self, batch: Batch) -> tuple[list[Any], list[Any]]:
        """The ids and payloads of a batch: those that were read, else row numbers and columns."""
        carried = pa.table({}) if batch.carried is None else batch.carried
        names = carried.column_names
        ids: list[Any] = self.numbers(batch).tolist()
        if "id" in names and (self.source or pa.types.is_integer(carried["id"].type)):
            ids = [_id(one) for one in carried["id"].to_pylist()]
            carried = carried.drop_columns(["id"])
        if self.source is not None and "payload" in names:
            return ids, [json.loads(one) for one in carried["payload"].to_pylist()]
        return ids, carried.to_pylist() if carried.num_columns else [{}] * len(ids)

    def save(self, progress: Progress) -> None:
        with self._errors():
            self.client.update_collection(self.into, metadata={MARK: str(progress)})

    def finish(self, progress: Progress) -> None:
        with self._errors():
            n_points = self.client.count(self.into, exact=True).count
        n_rows = progress.n_done - progress.n_skipped
        if n_points < n_rows:
            raise InputError(
                f"{self.path!r}: each row must have an id of its own, got {n_points:,} ids in "
                f"{n_rows:,} rows. Rename the column 'id' to number the rows instead."
            )
        part, self.into = self.into, self.address.table
        with self._errors():
            if part != self.into:
                self._copy(part)
            self.save(progress)
            if part != self.into:
                self.client.delete_collection(part)
        if self.distance == COSINE:
            _say_unit_rows(self.path)

    def _copy(self, part: str) -> None:
        """Replace the collection by another."""
        models = imported("qdrant_client.models", "qdrant", "qdrant://")
        if self.client.collection_exists(self.into):
            self.client.delete_collection(self.into)
        self._create(self.into)
        for points in _pages(self.client, part, page_rows(self.n_features), True):
            given = ({"id": p.id, "vector": p.vector, "payload": p.payload} for p in points)
            self.client.upsert(self.into, [models.PointStruct(**one) for one in given], wait=True)

    def close(self) -> None:
        if self.open is not None:
            opened, self.open = self.open, None
            opened.__exit__(None, None, None)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What the client raises, as one line."""
        with _connected(self.address):
            yield


def _id(value: Any) -> int | str:
    """An id of Qdrant: a number, or a UUID."""
    text = str(value)
    if text.isdecimal():
        return int(text)
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise InputError(
            f"an id of Qdrant must be a whole number from 0 or a UUID, got {brief(value)}. Rename "
            "the column 'id' to number the rows instead."
        ) from error
