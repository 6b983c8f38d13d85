"""Databases on the command line, and secrets that stay out of all it prints and writes."""

import json
import traceback

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import isotropy
from isotropy.cli import app
from isotropy.errors import InputError, brief, one_line, without_secrets
from isotropy.sources.addresses import address
from isotropy.writing import quoted

from .conftest import lists

SECRET = "s3cret-w0rd"


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("kind", ["lance", "postgres"])
def test_measure_repair_and_apply(make_database, vectors, tmp_path, kind):
    database = make_database(kind)
    found = run("measure", database.source, "--metrics", "isoscore", "--json")
    assert found.exit_code == 0, found.output
    wanted = isotropy.metrics.isoscore(vectors)
    assert json.loads(found.stdout)["isoscore"] == pytest.approx(wanted, rel=1e-5)
    saved = tmp_path / "repair.safetensors"
    options = ["--method", "center", "--save", saved, "--out", database.target("repaired")]
    assert run("repair", database.source, *options).exit_code == 0
    centred = vectors - vectors.mean(axis=0)
    assert np.allclose(database.read("repaired"), centred, atol=1e-5)
    again = run("repair", database.source, *options[:2], "--out", database.target("repaired"))
    assert again.exit_code == 2
    assert "--out: the column 'repaired'" in again.stderr
    assert "Add --overwrite to replace it" in again.stderr
    assert run("apply", saved, database.source, "--out", database.target("again")).exit_code == 0
    assert np.allclose(database.read("again"), centred, atol=1e-5)
    same = run("apply", saved, database.source, "--out", database.source, "--overwrite")
    assert same.exit_code == 2
    assert "must be another column" in same.stderr


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:{}@127.0.0.1:1/db?table=docs",
        "postgresql://ann@127.0.0.1:1/db?table=docs&password={}",
        "postgresql://ann:{}@127.0.0.1:1/db",
        "postgresql:/ann:{}@127.0.0.1:1/db?table=docs",
        "postgresql://ann:{}@127.0.0.1:99999999/db?table=docs",
        "postgres://ann:{}@[/db?table=docs",
        "qdrant://:{}@127.0.0.1:1#docs",
        "qdrant://127.0.0.1:1?api_key={}#docs",
        "nothing://key:{}@bucket/x.npy",
    ],
)
def test_secrets_in_urls_are_not_printed(url, tmp_path):
    np.save(tmp_path / "x.npy", np.eye(3))
    url = url.format(SECRET)
    for words in (
        ["measure", url],
        ["measure", url, "--json"],
        ["repair", tmp_path / "x.npy", "--method", "center", "--out", url],
        ["apply", url, tmp_path / "x.npy", "--out", tmp_path / "y.npy"],
        ["report", url, "--out", tmp_path / "page.html"],
    ):
        found = run(*words)
        assert found.exit_code == 2, (words, found.output, found.exception)
        assert SECRET not in found.output
        lines = [line for line in found.stderr.splitlines() if "warning: Api key" not in line]
        assert len(lines) == 1, found.stderr


def test_secrets_are_cut_out_before_a_long_text_is():
    url = f"postgresql://{'u' * 60}:{SECRET}@{'h' * 300}/db"
    for shown in (one_line(url, 90), brief(url), quoted(url), str(InputError(f"got {url!r}."))):
        assert SECRET[:4] not in shown
    assert without_secrets("https://host/x@y z") == "https://host/x@y z"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:s3cr3t/x@host/db?table=t",
        "postgresql://ann:s3cr3t#x@host/db?table=t",
        "postgresql://ann:my s3cr3t@host/db?table=t",
        "postgresql://ann:p@a s3cr3t's@host/db?table=t",
        "postgresql://host/db?password=ab's3cr3t&table=t",
        "postgresql://host/db?password=my s3cr3t&table=t",
        "postgresql://host/db?table=t&password=my s3cr3t",
        "postgresql://host/db?table=t&password=a' s3cr3t",
        "postgresql://host/db?password=a\"' s3cr3t&table=t",
        "postgresql://host/db?password=a#s3cr3t&table=t",
        "postgresql://host/db?password=a&s3cr3t&table=t",
        "postgresql://ann@corp:s3cr3t@host/db?table=t",
        "postgresql://ann lee:s3cr3t@host/db?table=t",
        "postgresql://ann:123/s3cr3t@host/db?table=t",
        "qdrant://host?api_key=a s3cr3t#docs",
        "qdrant://s3cr3t@host#docs",
    ],
)
def test_passwords_with_any_character_are_masked(url):
    shown = without_secrets(f"{url!r} must be new, got {url!r}.")
    assert "s3cr3t" not in shown
    assert shown.count("host") == 2
    assert shown.endswith(("'.", '".'))
    assert without_secrets(shown) == shown
    for shown in (without_secrets(f"got {url}"), without_secrets(url), brief(url), quoted(url)):
        assert "s3cr3t" not in shown
    try:
        shown = repr(address(url))
    except InputError as error:
        shown = "".join(traceback.format_exception(error))
    assert "s3cr3t" not in shown


def test_a_password_with_an_at_sign_is_not_taken_for_the_host():
    found = address("postgresql://ann:p@ss w0rd%2F@host:1/db?table=t")
    assert found.server == "postgresql://ann:p%40ss%20w0rd%2F@host:1/db"
    assert address("postgresql://host/db?table=t").server == "postgresql://host/db"
    assert address("postgresql://ann:@/db?table=t").server == "postgresql://ann:@/db"


def test_an_option_that_is_a_part_of_the_password_is_not_printed():
    pytest.importorskip("psycopg")
    with pytest.raises(InputError, match="write & as %26 in a password") as caught:
        isotropy.open(f"postgresql://ann@127.0.0.1:1/db?password=a&{SECRET}=&table=t")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("target", ["lance://{}/db#new", "{}/new.parquet", "{}/new"])
def test_a_table_with_two_columns_of_vectors_is_written(tmp_path, vectors, target):
    few = lists(vectors[:50])
    pq.write_table(pa.table({"a": few, "b": few, "id": range(50)}), tmp_path / "x.parquet")
    saved, out = tmp_path / "repair.safetensors", target.format(tmp_path)
    repair = isotropy.Center().fit(vectors[:50])
    repair.save(saved)
    if out.startswith("lance"):
        pytest.importorskip("lance")
    source = [tmp_path / "x.parquet", "--column", "a"]
    found = run("apply", saved, *source, "--out", out)
    assert found.exit_code == 0, found.output
    rows = isotropy.open(tmp_path / "x.parquet", column="a")
    again = repair.transform(rows, out=out, overwrite=True)
    assert (again.column, again.n_samples) == ("a", 50)


def test_the_page_of_a_report_has_no_secret(make_database, tmp_path):
    pytest.importorskip("plotly")
    from isotropy import report

    pytest.importorskip("plotly")
    pytest.importorskip("jinja2")
    postgres = make_database("postgres")
    url = postgres.source.replace("//postgres:@", f"//postgres:{SECRET}@")
    assert SECRET in url  # which a server that trusts us ignores
    found = run("report", url, "--out", tmp_path / "page.html")
    assert found.exit_code == 0, found.output
    assert SECRET not in (tmp_path / "page.html").read_text(encoding="utf-8")
    report.write(f"{url}&password={SECRET}", tmp_path / "page.html", overwrite=True)
    assert SECRET not in (tmp_path / "page.html").read_text(encoding="utf-8")
    repair = tmp_path / "repair.safetensors"
    assert run("repair", url, "--method", "center", "--save", repair).exit_code == 0
    assert SECRET.encode() not in repair.read_bytes()
    assert SECRET not in run("show", repair).output
