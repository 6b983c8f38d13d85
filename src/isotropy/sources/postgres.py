"""Columns of pgvector in PostgreSQL, read and written with binary COPY."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from isotropy.errors import InputError, one_line, warn
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
from isotropy.sources.pgcopy import composed, parsed

TYPES = {"vector": "float32", "halfvec": "float16"}  # of pgvector
WHOLE = ("smallint", "integer", "bigint")
FIND_TABLE = """
    SELECT c.oid::int8, pg_postmaster_start_time()::text || current_database()
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = %s AND c.relkind IN ('r', 'p')
    AND CASE WHEN %s::text IS NULL THEN pg_table_is_visible(c.oid) ELSE n.nspname = %s END"""
FIND_PLACE = """
    SELECT coalesce(
        (SELECT oid FROM pg_namespace WHERE nspname = %s),
        (SELECT relnamespace FROM pg_class WHERE relname = %s AND pg_table_is_visible(oid)),
        (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
    )::int8"""
FIND_INDEXES = """
    SELECT DISTINCT i.indexrelid::regclass::text
    FROM pg_index i JOIN pg_depend d ON d.objid = i.indexrelid AND d.refobjid = i.indrelid
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid
    WHERE i.indrelid = %s AND NOT i.indisprimary AND a.attname = coalesce(%s, a.attname)
    ORDER BY 1"""
FIND_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.atttypmod,
        EXISTS (
            SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid
            AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum
            AND a.attnotnull
        ),
        EXISTS (
            SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisprimary
            AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum
        ),
        col_description(a.attrelid, a.attnum)
    FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum"""


@dataclass(frozen=True)
class Field:
    """A column of a table, as the catalogue has it."""

    name: str
    type: str
    size: int
    is_unique: bool  # and never NULL
    is_primary: bool
    comment: str | None

    @property
    def dtype(self) -> str | None:
        """That of its vectors; None if it holds something else."""
        return TYPES.get(self.type.partition("(")[0].rpartition(".")[2])

    @property
    def progress(self) -> Progress | None:
        mark, _, text = (self.comment or "").partition(": ")
        return Progress.parse(text) if mark == MARK else None

    @property
    def is_part(self) -> bool:
        """Whether its writer was interrupted."""
        return self.progress is not None and not self.progress.complete


@dataclass(frozen=True, kw_only=True)
class PostgresTable(Table):
    """A table in the order of its key; `bounds` are the keys at which pieces begin, as text."""

    kind: str = "PostgreSQL"
    key: str
    key_type: str
    bounds: tuple[str, ...]
    oid: int
    server: str

    def read(self, first_row: int, n_rows: int, place: Place, carry: bool) -> Pieces:
        from psycopg import sql

        piece = first_row // self.rows_at_once
        key, column = sql.Identifier(self.key), sql.Identifier(str(self.column))
        kind = sql.SQL(self.key_type)
        wanted = [sql.SQL("{}::{}").format(key, sql.SQL(_sent(self.key_type)))] if carry else []
        query = sql.SQL(  # by the key itself: its name alone would be the text that is selected
            "COPY (SELECT {} FROM {} AS t WHERE {} ORDER BY t.{}) TO STDOUT (FORMAT binary)"
        )
        limits = [
            sql.SQL("{} {} {}::{}").format(key, sql.SQL(sign), sql.Literal(bound), kind)
            for sign, bound in zip((">=", "<"), self.bounds[piece : piece + 2], strict=False)
        ]
        with _connected(self.address) as connection, connection.cursor() as cursor:
            statement = query.format(
                sql.SQL(", ").join([*wanted, column]),
                _identifier(self.address.table),
                sql.SQL(" AND ").join(limits),
                key,
            )
            with cursor.copy(statement) as copy:
                data = b"".join(copy)
        whole = self.key_type in WHOLE
        rows, keys = parsed(data, self.n_features, self.dtype, whole if carry else None)
        if len(rows) != n_rows:
            raise FormatError("has changed since it was opened. Open it again.")
        yield rows, None if keys is None else pa.table({self.key: keys})


def open_table(address: Address, chunk_rows: int | None) -> PostgresTable:
    with _connected(address) as connection:
        found = _find(connection, address.table)
        if found is None:
            if (part := _find(connection, _part(address.table))) is not None:
                _expect_complete(address, *_fields(connection, part[0]))
            raise InputError(
                f"{str(address)!r}: there is no table {address.table!r}, "
                f"only {listed(_tables(connection)) or 'none'}. Choose with table=."
            )
        oid, server = found
        fields = _fields(connection, oid)
        field = _vectors(address, fields)
        _expect_complete(address, field)
        key = _key(address, fields)
        n_features = field.size
        if n_features <= 0:  # a column of any width
            n_features = _first_width(connection, address, field)
        plain = PostgresTable(
            path=str(address),
            address=address,
            n_rows=1,
            n_features=n_features,
            dtype=str(field.dtype),
            column=field.name,
            chunk_rows=chunk_rows,
            features=(field.name,),
            others=((key.name, "int64" if key.type in WHOLE else "string"),),
            key=key.name,
            key_type=key.type,
            bounds=(),
            oid=oid,
            server=server,
            mark=(0, 0),
        )
        n_rows, bounds, keys = _bounds(connection, address, key, plain.rows_at_once)
    mark = mark_of([oid, field.name, key.name, bounds, keys], n_rows)
    return PostgresTable(**(vars(plain) | {"n_rows": n_rows, "bounds": bounds, "mark": mark}))


def _part(name: str) -> str:
    """The name that a column or table has until it is complete, which is short enough."""
    schema, dot, own = name.rpartition(".")
    return f"{schema}{dot}isotropy_part_{zlib.crc32(own.encode()):08x}"


def _expect_complete(address: Address, *fields: Field) -> None:
    for field in fields:
        expect_complete(address, f"the column {address.column or field.name!r}", field.progress)


def _vectors(address: Address, fields: list[Field]) -> Field:
    """The column that the URL names; by default the only one of vectors that is complete."""
    vectors = [field for field in fields if field.dtype is not None and not field.is_part]
    wanted = [field for field in fields if field.name == address.column]
    if address.column is not None and not wanted:
        _expect_complete(address, *(one for one in fields if one.name == _part(address.column)))
        raise InputError(
            f"{str(address)!r}: the table {address.table!r} has no column {address.column!r}, only "
            f"{listed([field.name for field in fields if not field.is_part])}. Choose with column."
        )
    if wanted and wanted[0].dtype is None:
        raise InputError(
            f"{str(address)!r}: the column {address.column!r} must be of the type vector or "
            f"halfvec, got {wanted[0].type}. Choose with column."
        )
    found = wanted or vectors
    if len(found) != 1:
        there = listed([field.name for field in vectors])
        raise InputError(
            f"{str(address)!r}: the table {address.table!r} must have one column of vectors, got "
            f"{there or 'none'}. Choose with column."
        )
    return found[0]


def _key(address: Address, fields: list[Field]) -> Field:
    """The column that rows are read and written by."""
    for field in fields:
        if field.name == address.key if address.key else field.is_primary:
            if not field.is_unique:
                break
            return field
    named = f"the key {address.key!r}" if address.key else "a primary key of one column"
    unique = [field.name for field in fields if field.is_unique]
    raise InputError(
        f"{str(address)!r}: the table {address.table!r} must have {named}, unique and never NULL. "
        + (f"Choose with key=, from {listed(unique)}." if unique else "Add a primary key.")
    )


def _first_width(connection: Any, address: Address, field: Field) -> int:
    from psycopg import sql

    query = sql.SQL("SELECT vector_dims({0}) FROM {1} WHERE {0} IS NOT NULL LIMIT 1")
    table, column = _identifier(address.table), sql.Identifier(field.name)
    found = connection.execute(query.format(column, table)).fetchone()
    return int(found[0]) if found else 0


def _bounds(
    connection: Any, address: Address, key: Field, n_rows: int
) -> tuple[int, tuple[str, ...], str]:
    """The number of rows, the key of every n_rows-th of them, and a checksum of all keys."""
    from psycopg import sql

    if not n_rows:
        return 0, (), ""
    query = sql.SQL(
        "SELECT CASE WHEN (i - 1) % {2} = 0 THEN k::text END, i, h::text FROM (SELECT {0} AS k, "
        "row_number() OVER (ORDER BY {0}) AS i, count(*) OVER () AS n, "
        "sum(hashtextextended({0}::text, 0)) OVER () AS h FROM {1}) AS numbered "
        "WHERE (i - 1) % {2} = 0 OR i = n ORDER BY i"
    )
    parts = sql.Identifier(key.name), _identifier(address.table), sql.Literal(n_rows)
    found = connection.execute(query.format(*parts)).fetchall()
    *_, total, keys = found[-1] if found else (0, "")
    return total, tuple(bound for bound, *_ in found if bound is not None), keys


def _find(connection: Any, table: str) -> tuple[int, str] | None:
    schema, _, name = table.rpartition(".")
    found = connection.execute(FIND_TABLE, (name, schema or None, schema or None)).fetchone()
    return None if found is None else (found[0], found[1])


def _fields(connection: Any, oid: int) -> list[Field]:
    return [Field(*row) for row in connection.execute(FIND_COLUMNS, (oid,)).fetchall()]


def _named(connection: Any, found: tuple[int, str] | None) -> dict[str, Field]:
    """The columns of what `_find` returned, by their names."""
    return {} if found is None else {field.name: field for field in _fields(connection, found[0])}


def _tables(connection: Any) -> list[str]:
    query = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND pg_table_is_visible(oid)"
    hidden = " AND relnamespace <> 'pg_catalog'::regnamespace ORDER BY relname"
    return [name for (name,) in connection.execute(query + hidden).fetchall()]


def _identifier(table: str) -> Any:
    from psycopg import sql

    schema, _, name = table.rpartition(".")
    return sql.Identifier(schema, name) if schema else sql.Identifier(name)


def _sent(key_type: str) -> str:
    """The type in which keys travel."""
    return "int8" if key_type in WHOLE else "text"


@contextmanager
def _connected(address: Address) -> Iterator[Any]:
    """A connection that commits each statement; what the driver raises becomes one line."""
    with _errors(address), _connection(address, autocommit=True) as connection:
        yield connection


def _connection(address: Address, autocommit: bool) -> Any:
    psycopg = imported("psycopg", "postgres", "postgresql://")
    return psycopg.connect(address.server, autocommit=autocommit, application_name=MARK)


@contextmanager
def _errors(address: Address, then: str = "") -> Iterator[None]:
    psycopg = imported("psycopg", "postgres", "postgresql://")
    try:
        yield
    except psycopg.Error as error:
        if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
            raise InputError(  # without the reason, which may quote a part of the password
                f"{str(address)!r} must have options that PostgreSQL knows. Check them, and write "
                "& as %26 in a password."
            ) from None
        lines = str(error.diag.message_primary or error).strip().splitlines() or ["no reason"]
        why = one_line(lines[0].rpartition(" failed: ")[2].removeprefix("FATAL:").strip(), 200)
        if "password" in why or "authentication" in why:
            fix = "Check the user, and PGPASSWORD or the password in the URL"
        elif error.sqlstate == "42704":  # there is no type of that name
            fix = "Run in the database: CREATE EXTENSION vector"
        elif error.sqlstate is None or error.sqlstate[:2] in ("08", "57"):
            fix = f"Check that the server runs, then repeat the command{then}"
        else:
            fix = "Check the table and your rights to it"
        raise InputError(f"{str(address)!r}: {why.rstrip('.')}. {fix}.") from error


def open_sink(
    address: Address,
    n_features: int,
    dtype: str | None,
    like: Source | None,
    name: str,
    job: str,
    overwrite: bool,
) -> PostgresSink:
    return PostgresSink(address, n_features, dtype, like, name, job, overwrite)


class PostgresSink(DatabaseSink):
    """A new column of the table that is read, or a new table of keys and vectors.

    Each chunk is one transaction: rows go to a temporary table and from there to the column, whose
    comment records the progress. It gets its name when it is complete, in one transaction that
    drops the one it replaces.
    """

    connection: Any = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ends: list[Any] = []  # the first and the last key of the chunk
        self.n_staged = 0
        with _connected(self.address) as connection:
            self._look(connection)

    def _look(self, connection: Any) -> Progress | None:
        """What an interrupted run has done; sets `beside` if the rows are those of the table.

        `replaces` and `has_part` say whether there is an old one, and a part of a new one.
        """
        name = self.address.table
        found = _find(connection, name)
        read = self.read if isinstance(self.read, PostgresTable) else None
        self.beside = read is not None and found == (read.oid, read.server)
        self.key, self.key_type = self._own_key()
        if self.beside and read is not None and self.key != read.key:
            raise InputError(
                f"key must be the one that is read, {read.key!r}, for a column beside it, got "
                f"{self.key!r}. Leave it out."
            )
        self.expect_other_column(self.beside)
        self._expect_replaceable(connection)
        if self.beside:
            part = _named(connection, found).get(_part(str(self.column)))
            self.has_part, progress = part is not None, None if part is None else part.progress
        else:
            half = _find(connection, _part(name))
            self.has_part, halves = half is not None, _named(connection, half).values()
            progress = next((one.progress for one in halves if one.progress), None)
        return self.expect_room(self._what, progress) if self.has_part else None

    @property
    def _what(self) -> str:
        table = f"the table {self.address.table!r}"
        return f"the column {self.column!r} of {table}" if self.beside else table

    def _expect_replaceable(self, connection: Any) -> None:
        """Raise if there is a column or table of that name which must stay.

        Sets `replaces`, whether there is one, and `indexes`, those that go with it.
        """
        found, column = _find(connection, self.address.table), str(self.column)
        fields = _named(connection, found)
        self.replaces = column in fields if self.beside else found is not None
        self.indexes: list[str] = []
        if self.replaces and found is not None:
            ours = self.beside or fields.keys() == {self.key, column}
            there = fields[column].progress if column in fields else None
            self.expect_room(self._what, there, ours)
            which = column if self.beside else None
            rows = connection.execute(FIND_INDEXES, (found[0], which)).fetchall()
            self.indexes = [name for (name,) in rows]

    def _own_key(self) -> tuple[str, str]:
        """The name and the type of the key of the rows; by default their number."""
        if isinstance(self.read, PostgresTable) and self.address.key in (None, self.read.key):
            return self.read.key, self.read.key_type
        key = self.address.key or "id"
        files = getattr(self.like, "files", ())
        kind = dict(files[0].others).get(key) if files else None
        return key, "bigint" if kind is None or "int" in kind else "text"

    def begin(self) -> Progress:
        from psycopg import sql

        with _errors(self.address):
            self.connection = _connection(self.address, autocommit=True)
            self._run("SELECT pg_advisory_lock(hashtextextended(%s, 0))", self._place())
            found = self._look(self.connection)  # which may read for long: not in a transaction
            self.connection.autocommit = False
            table, column = self.address.table, str(self.column)
            self.table = _identifier(table if self.beside else _part(table))
            self.field = sql.Identifier(_part(column) if self.beside else column)
            if found is None:
                self._make()
                found = Progress(self.job)
                self._record(found)
            self.connection.commit()
            self._run(
                sql.SQL(
                    "CREATE TEMP TABLE isotropy_rows (key {}, vector {}) ON COMMIT DELETE ROWS"
                ).format(sql.SQL(_sent(self.key_type)), self._type())
            )
            self.connection.commit()
        return found

    def _place(self) -> str:
        """What is written to, however its table is spelled: one run at a time may do so."""
        schema, _, name = self.address.table.rpartition(".")
        (place,) = self._run(FIND_PLACE, schema, name).fetchone()
        return f"{place} {name} {self.column if self.beside else ''}"

    def _make(self) -> None:
        from psycopg import sql

        key, kind = sql.Identifier(self.key), sql.SQL(self.key_type)
        if self.beside:
            if self.has_part:
                self._run(sql.SQL("ALTER TABLE {} DROP COLUMN {}").format(self.table, self.field))
            query = sql.SQL("ALTER TABLE {} ADD COLUMN {} {}")
            self._run(query.format(self.table, self.field, self._type()))
            return
        if self.has_part:
            self._run(sql.SQL("DROP TABLE {}").format(self.table))
        query = sql.SQL("CREATE TABLE {} ({} {} PRIMARY KEY, {} {})")
        self._run(query.format(self.table, key, kind, self.field, self._type()))

    def put(self, rows: NDArray[Any], batch: Batch) -> None:
        carried = pa.table({}) if batch.carried is None else batch.carried
        given = self.key in carried.column_names
        keys: Any = carried[self.key] if given else self.numbers(batch)
        whole = self.key_type in WHOLE
        data = composed(rows, np.asarray(keys) if whole else [str(key) for key in _plain(keys)])
        statement = "COPY isotropy_rows FROM STDIN (FORMAT binary)"
        with (
            _errors(self.address, "; it resumes"),
            self.connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            copy.write(data)
        plain = _plain(keys)
        self.ends = [*self.ends[:1], *plain[:1], *plain[-1:]] if plain else self.ends
        self.n_staged += len(plain)

    def save(self, progress: Progress) -> None:
        with _errors(self.address, "; it resumes"):
            if self.n_staged:
                self._move()
            self._record(progress)
            self.connection.commit()

    def _move(self) -> None:
        """Move the rows of a chunk, which are in the order of their keys, to their column."""
        from psycopg import sql

        if self.beside:
            query = sql.SQL(
                "UPDATE {0} AS t SET {1} = r.vector FROM isotropy_rows AS r "
                "WHERE t.{2} = r.key::{3} AND t.{2} BETWEEN {4}::{3} AND {5}::{3}"
            )
        else:
            query = sql.SQL("INSERT INTO {0} ({2}, {1}) SELECT key::{3}, vector FROM isotropy_rows")
        key, kind = sql.Identifier(self.key), sql.SQL(self.key_type)
        ends = [sql.Literal(str(self.ends[i])) for i in (0, -1)]
        n_rows = self._run(query.format(self.table, self.field, key, kind, *ends)).rowcount
        n_lost, self.n_staged, self.ends = self.n_staged - n_rows, 0, []
        if n_lost:
            raise InputError(
                f"{self.path!r} has changed: {n_lost} of its rows are gone. Open it again."
            )

    def finish(self, progress: Progress) -> None:
        from psycopg import sql

        with _errors(self.address, "; it resumes"):
            if _find(self.connection, self.address.table) is not None:
                query = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE")
                self._run(query.format(_identifier(self.address.table)))
            self._expect_replaceable(self.connection)  # others may have replaced it since
            self._record(progress)
            self._rename()
            self.connection.commit()
        if self.indexes:
            warn(
                f"{self.path!r}: {listed(self.indexes, 5)} went with what was replaced. Create the "
                "index again."
            )

    def _rename(self) -> None:
        """Give the column or table its name, in place of the one that it replaces."""
        from psycopg import sql

        table, column = _identifier(self.address.table), sql.Identifier(str(self.column))
        if self.beside:
            drop = sql.SQL("ALTER TABLE {} DROP COLUMN {}").format(table, column)
            rename = sql.SQL("RENAME COLUMN {} TO {}").format(self.field, column)
        else:
            name = sql.Identifier(self.address.table.rpartition(".")[2])
            drop = sql.SQL("DROP TABLE {}").format(table)
            rename = sql.SQL("RENAME TO {}").format(name)
        if self.replaces:
            self._run(drop)
        self._run(sql.SQL("ALTER TABLE {} {}").format(self.table, rename))

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def _record(self, progress: Progress) -> None:
        from psycopg import sql

        query = sql.SQL("COMMENT ON COLUMN {}.{} IS {}")
        self._run(query.format(self.table, self.field, sql.Literal(f"{MARK}: {progress}")))

    def _run(self, query: Any, *values: Any) -> Any:
        return self.connection.execute(query, values or None)

    def _type(self) -> Any:
        from psycopg import sql

        name = next(name for name, dtype in TYPES.items() if dtype == self.dtype)
        return sql.SQL(f"{name}({self.n_features})")


def _plain(keys: Any) -> list[Any]:
    listed: list[Any] = keys.to_pylist() if hasattr(keys, "to_pylist") else list(keys)
    return listed
