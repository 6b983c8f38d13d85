"""What is PostgreSQL's own: keys, NULL, types, roles, and connections that end."""

import re

import numpy as np
import pytest

import isotropy
from isotropy.errors import InputError, IsotropyWarning
from isotropy.repairs import Center
from isotropy.sources import databases
from isotropy.sources import postgres as postgres_module
from isotropy.sources.pgcopy import composed, parsed

pytest.importorskip("psycopg")

SECRET = "s3cret-w0rd"


def small(postgres, key="id int PRIMARY KEY", vector="vector(3)", value="i"):
    """A table of ten rows, of which the vectors are (i, 2i, -i)."""
    postgres.run(f"CREATE TABLE few ({key}, e {vector})")
    values = "('[' || i || ',' || 2 * i || ',' || -i || ']')"
    kind = vector.split("(")[0]
    postgres.run(
        f"INSERT INTO few SELECT {value}, {values}::{kind} "
        "FROM generate_series(0, 9) AS i ORDER BY -i"
    )
    return f"{postgres.uri}&table=few"


def wanted():
    numbers = np.arange(10.0)
    return np.stack([numbers, 2 * numbers, -numbers], axis=1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("id smallint PRIMARY KEY", "i"),
        ("id bigint PRIMARY KEY", "i - 5000000000"),
        ("id text PRIMARY KEY", "'key \u00e9' || i"),
        ("id uuid PRIMARY KEY", "lpad(i::text, 32, '0')::uuid"),
        ("id text NOT NULL UNIQUE", "'k' || i"),
        ("id numeric PRIMARY KEY", "i * 7"),
        ("id char(12) PRIMARY KEY", "'key' || i"),
    ],
)
def test_rows_are_read_and_written_by_any_unique_key(postgres, rows, key, value):
    url = small(postgres, key, value=value)
    url += "" if "PRIMARY" in key else "&key=id"
    source = isotropy.open(url, chunk_rows=4)
    assert [chunk.n_rows for chunk in source.chunks()] == [4, 4, 2]
    assert np.array_equal(rows(source), wanted())
    Center().fit(source).write(source, f"{url}&column=f")
    found = postgres.run("SELECT f::float4[] FROM few ORDER BY id").fetchall()
    assert np.allclose([row for (row,) in found], wanted() - wanted().mean(axis=0))


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("id int", "a primary key of one column.*Add a primary key"),
        ("id int UNIQUE", "a primary key of one column"),
        ("id int, PRIMARY KEY (id, e)", "a primary key of one column"),
    ],
)
def test_a_table_without_a_key_is_refused(postgres, key, rule):
    if "PRIMARY" in key:
        key = "id int, b int DEFAULT 0, PRIMARY KEY (id, b)"
        postgres.run(f"CREATE TABLE few ({key}, e vector(3))")
        url = f"{postgres.uri}&table=few"
    else:
        url = small(postgres, key, value="i")
    with pytest.raises(InputError, match=rule):
        isotropy.open(url)


def test_another_key_must_be_unique_and_never_null(postgres):
    postgres.run("ALTER TABLE docs ADD COLUMN serial int UNIQUE")
    with pytest.raises(InputError, match=r"the key 'serial', unique and never NULL.*from 'id'"):
        isotropy.open(f"{postgres.source}&key=serial")


def test_half_precision_stays_half_precision(postgres, rows):
    url = small(postgres, vector="halfvec(3)", value="i")
    source = isotropy.open(url)
    assert source.dtype == "float16"
    assert np.array_equal(rows(source), wanted())
    written = Center().fit(source).transform(source, out=f"{url}&column=f")
    assert written.dtype == "float16"
    assert np.array_equal(rows(written), wanted() - wanted().mean(axis=0))


def test_null_is_a_bad_row_that_can_be_left_out(postgres, rows):
    url = small(postgres, value="i")
    postgres.run("UPDATE few SET e = NULL WHERE id IN (2, 7)")
    with pytest.raises(InputError, match=r"NaN in 2 rows .first: 2.*skip_bad_rows"):
        isotropy.measure(url)
    source = isotropy.open(url, skip_bad_rows=True, chunk_rows=3)
    assert isotropy.measure(source, ["mean_cosine"]).n_skipped == 2
    repair = Center().fit(source)
    assert repair.write(source, f"{url}&column=f") == 2
    found = dict(postgres.run("SELECT id, f::float4[] FROM few").fetchall())
    kept = np.delete(wanted(), [2, 7], axis=0)
    assert found.pop(2) is None
    assert found.pop(7) is None
    assert np.allclose([found[i] for i in sorted(found)], kept - kept.mean(axis=0))
    written = isotropy.open(f"{url}&column=f", skip_bad_rows=True)
    assert len(rows(written)) == 8


def test_vectors_of_two_widths_are_refused(postgres):
    url = small(postgres, vector="vector", value="i")
    postgres.run("UPDATE few SET e = '[1,2]' WHERE id = 6")
    with pytest.raises(InputError, match="has 2 features in row 6, but 3 in the first"):
        isotropy.measure(url)


def test_a_table_of_another_schema_and_of_odd_names(postgres, rows):
    postgres.run('CREATE SCHEMA "My Schema"')
    name = '"My Schema"."Docs; DROP"'
    postgres.run(f'CREATE TABLE {name} ("the id" int PRIMARY KEY, "e\'s" vector(2))')
    postgres.run(f"INSERT INTO {name} VALUES (1, '[1,2]'), (2, '[3,5]')")
    url = f"{postgres.uri}&table=My%20Schema.Docs%3B%20DROP"
    assert np.array_equal(rows(isotropy.open(url)), [[1, 2], [3, 5]])
    Center().fit(url).write(url, f"{url}&column=a%22b")
    found = postgres.run(f'SELECT "a""b"::float4[] FROM {name} ORDER BY 1').fetchall()
    assert found == [([-1.0, -1.5],), ([1.0, 1.5],)]


@pytest.mark.parametrize(
    ("column", "rule"),
    [
        ("nothing", "has no column 'nothing', only 'id', 'body', 'embedding'"),
        ("body", "must be of the type vector or halfvec, got text"),
    ],
)
def test_a_missing_column_is_named(postgres, column, rule):
    with pytest.raises(InputError, match=rule):
        isotropy.open(postgres.target(column))


def test_several_columns_of_vectors_leave_the_choice_to_the_user(postgres):
    postgres.run("ALTER TABLE docs ADD COLUMN other vector(2)")
    url = f"{postgres.uri}&table=docs"
    with pytest.raises(InputError, match=r"got 'embedding', 'other'. Choose with column"):
        isotropy.open(url)
    assert isotropy.open(url, column="embedding").n_features == 384
    with pytest.raises(InputError, match="column must be the one of the URL"):
        isotropy.open(f"{url}&column=embedding", column="other")


def test_a_row_that_goes_away_is_noticed(postgres):
    url = small(postgres, value="i")
    source = isotropy.open(url)
    postgres.run("DELETE FROM few WHERE id = 3")
    with pytest.raises(InputError, match="has changed since it was opened"):
        isotropy.measure(source)


@pytest.fixture
def secured(postgres, postgres_server):
    """The URL of a role that needs a password."""
    role = f"ann_{postgres.uri.split('/test_')[1][:8]}"
    postgres.run(f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'")
    postgres.run(f"GRANT SELECT ON docs TO {role}")
    (place,) = postgres.run("SHOW hba_file").fetchone()
    with open(place, encoding="utf-8") as file:
        old = file.read()
    with open(place, "w", encoding="utf-8") as file:
        file.write(f"local all {role} scram-sha-256\n{old}")
    postgres.run("SELECT pg_reload_conf()")
    return re.sub("//[^@]*@", f"//{role}:{SECRET}@", postgres.source)


def test_a_password_comes_from_the_url_or_the_environment(secured, monkeypatch, vectors):
    assert isotropy.open(secured).n_samples == len(vectors)
    monkeypatch.setenv("PGPASSWORD", SECRET)
    assert isotropy.open(secured.replace(f":{SECRET}", "")).n_samples == len(vectors)


@pytest.mark.parametrize("wrong", [SECRET + "x", ""])
def test_a_wrong_password_is_one_line_without_it(secured, wrong, monkeypatch):
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", "/nowhere")
    url = secured.replace(f":{SECRET}", f":{wrong}" if wrong else "")
    with pytest.raises(InputError, match=r"password.*Check the user, and PGPASSWORD") as caught:
        isotropy.open(url)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


def test_missing_rights_are_one_line(secured, vectors):
    with pytest.raises(InputError, match="must be owner of table docs") as caught:
        Center().fit(vectors).write(secured, secured.replace("column=embedding", "column=f"))
    assert SECRET not in str(caught.value)


def test_a_server_that_is_not_there_is_one_line():
    url = f"postgresql://ann:{SECRET}@127.0.0.1:1/db?table=docs"
    with pytest.raises(InputError, match=r"Connection refused. Check that the server") as caught:
        isotropy.open(url)
    assert SECRET not in str(caught.value)


def test_a_connection_that_ends_is_one_line_and_the_run_resumes(postgres, vectors, monkeypatch):
    repair, out = Center().fit(vectors), postgres.target("repaired")
    source = isotropy.open(postgres.source, chunk_rows=1000)
    commit = databases.DatabaseSink.commit

    def ended(self, chunk, n_skipped):
        if chunk.first_row == 2000:
            postgres.run(f"SELECT pg_terminate_backend({self.connection.info.backend_pid}, 10000)")
        commit(self, chunk, n_skipped)

    monkeypatch.setattr(databases.DatabaseSink, "commit", ended)
    with pytest.raises(InputError, match=r"terminat.*repeat the command; it resumes"):
        repair.write(source, out)
    monkeypatch.undo()
    repair.write(source, out)
    assert np.allclose(postgres.read("repaired"), vectors - vectors.mean(axis=0), atol=1e-5)


def test_a_part_of_a_column_is_in_nobodys_way(postgres, vectors, monkeypatch):
    url, repair = small(postgres), Center().fit(wanted())
    commit = databases.DatabaseSink.commit

    def stopping(self, chunk, n_skipped):
        commit(self, chunk, n_skipped)
        raise KeyboardInterrupt

    monkeypatch.setattr(databases.DatabaseSink, "commit", stopping)
    with pytest.raises(KeyboardInterrupt):
        repair.write(isotropy.open(url, chunk_rows=4), f"{url}&column=f")
    monkeypatch.undo()
    names = [one.name for one in postgres.run("SELECT * FROM few LIMIT 0").description]
    assert names[:2] == ["id", "e"]
    assert re.fullmatch("isotropy_part_[0-9a-f]{8}", names[2])
    assert isotropy.open(url).column == "e"  # of two
    with pytest.raises(InputError, match=r"the column 'f' .* is incomplete: 4 rows"):
        isotropy.open(f"{url}&column=f")
    repair.write(isotropy.open(url, chunk_rows=4), f"{url}&column=f")
    found = postgres.run("SELECT f::float4[] FROM few ORDER BY id").fetchall()
    assert np.allclose([row for (row,) in found], wanted() - wanted().mean(axis=0))


def stopped(monkeypatch, run):
    """The run, which stops after its first chunk."""
    commit = databases.DatabaseSink.commit

    def stopping(self, chunk, n_skipped):
        commit(self, chunk, n_skipped)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(databases.DatabaseSink, "commit", stopping)
        with pytest.raises(KeyboardInterrupt):
            run()


def test_a_resumed_run_reads_outside_of_a_transaction(postgres, monkeypatch):
    url, repair, found = small(postgres), Center().fit(wanted()), []
    stopped(monkeypatch, lambda: repair.write(isotropy.open(url, chunk_rows=4), f"{url}&column=f"))
    resumes = databases.DatabaseSink.resumes

    def watched(self, progress):
        if self.connection is not None:
            pid = self.connection.info.backend_pid
            query = "SELECT state FROM pg_stat_activity WHERE pid = %s"
            found.append(postgres.run(query, pid).fetchone())
        return resumes(self, progress)

    monkeypatch.setattr(databases.DatabaseSink, "resumes", watched)
    repair.write(isotropy.open(url, chunk_rows=4), f"{url}&column=f")
    assert found == [("idle",)]


def test_a_resumed_run_notices_other_keys(postgres, monkeypatch):
    url, repair = small(postgres, value="10 * i"), Center().fit(wanted())
    out = f"{postgres.uri}&table=new"
    stopped(monkeypatch, lambda: repair.write(isotropy.open(url, chunk_rows=4), out))
    postgres.run("UPDATE few SET id = 11 WHERE id = 10")
    source = isotropy.open(url, chunk_rows=4)
    with pytest.raises(InputError, match="begun with another repair or with vectors that have"):
        repair.write(source, out)
    repair.write(source, out, overwrite=True)
    keys = [key for (key,) in postgres.run("SELECT id FROM new ORDER BY id").fetchall()]
    assert keys == [0, 11, *range(20, 100, 10)]


@pytest.mark.parametrize("beside", [False, True])
def test_the_lock_does_not_depend_on_the_spelling_of_a_table(postgres, beside, monkeypatch):
    source, repair, seen = f"{small(postgres)}&column=e", Center().fit(wanted()), []
    run = postgres_module.PostgresSink._run

    def watched(self, query, *values):
        if "pg_advisory_lock" in str(query):
            seen.append(values)
        return run(self, query, *values)

    monkeypatch.setattr(postgres_module.PostgresSink, "_run", watched)
    name = "few" if beside else "new"
    for spelled in (name, f"public.{name}"):
        repair.write(source, f"{postgres.uri}&table={spelled}&column=f", overwrite=True)
    assert len(seen) == 2
    assert len(set(seen)) == 1


@pytest.mark.parametrize("beside", [False, True])
def test_what_others_put_in_its_place_during_a_run_stays(postgres, beside, monkeypatch):
    url, repair = small(postgres), Center().fit(wanted())
    source = f"{url}&column=e"
    out = f"{url}&column=f" if beside else f"{postgres.uri}&table=new"
    repair.write(source, out)
    commit = databases.DatabaseSink.commit

    def meanwhile(self, chunk, n_skipped):
        commit(self, chunk, n_skipped)
        if beside:
            postgres.run("ALTER TABLE few DROP COLUMN f, ADD COLUMN f text DEFAULT 'theirs'")
        else:
            postgres.run("DROP TABLE new")
            postgres.run("CREATE TABLE new AS SELECT 'theirs' AS f")

    monkeypatch.setattr(databases.DatabaseSink, "commit", meanwhile)
    with pytest.raises(InputError, match="which isotropy did not write"):
        repair.write(source, out, overwrite=True)
    assert postgres.run(f"SELECT f FROM {'few' if beside else 'new'}").fetchone() == ("theirs",)


@pytest.mark.parametrize("beside", [False, True])
def test_indexes_of_what_is_replaced_are_named(postgres, beside):
    url, repair = small(postgres), Center().fit(wanted())
    source = f"{url}&column=e"
    out = f"{url}&column=f" if beside else f"{postgres.uri}&table=new&column=f"
    repair.write(source, out)
    table = "few" if beside else "new"
    postgres.run(f"CREATE INDEX by_distance ON {table} USING hnsw (f vector_l2_ops)")
    postgres.run(f"CREATE INDEX halves ON {table} USING hnsw ((f::halfvec(3)) halfvec_l2_ops)")
    postgres.run("CREATE INDEX stays ON few USING hnsw (e vector_l2_ops)")
    with pytest.warns(IsotropyWarning, match="'by_distance', 'halves' went with what was replaced"):
        repair.write(source, out, overwrite=True)
    repair.write(source, out, overwrite=True)  # without a warning
    left = postgres.run("SELECT indexname FROM pg_indexes WHERE indexname IN ('halves', 'stays')")
    assert left.fetchall() == [("stays",)]


def test_a_database_without_pgvector_says_what_to_run(postgres, vectors, tmp_path):
    postgres.run("DROP EXTENSION vector CASCADE")
    np.save(tmp_path / "rows.npy", vectors[:10])
    with pytest.raises(InputError, match="CREATE EXTENSION vector"):
        Center().fit(vectors).write(tmp_path / "rows.npy", postgres.table("new"))


def test_binary_rows_are_those_of_the_server(postgres, vectors):
    """composed() is read by the server and parsed() reads what the server sends."""
    assert np.array_equal(postgres.read(), vectors)
    statement = "COPY (SELECT id::int8, embedding FROM docs) TO STDOUT BINARY"
    with postgres.client.cursor() as cursor, cursor.copy(statement) as copy:
        data = b"".join(copy)
    rows, keys = parsed(data, 384, "float32", True)
    assert np.array_equal(rows, vectors[keys.to_numpy()])
    assert composed(rows, keys.to_numpy()) == data
