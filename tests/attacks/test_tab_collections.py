"""Collections whose files do not agree, names that are too long, and parts by other names."""

from __future__ import annotations

import os

import pytest

from isotropy.cli.common import offline_unless_reached
from isotropy.errors import InputError, IsotropyWarning
from isotropy.models.loading import is_model
from isotropy.tasks import open_task, reading
from isotropy.tasks.collections import is_smart, numbered
from isotropy.tasks.retrieval import Retrieval

LONG = "x" * 300


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("queries", "asked", "found"),
    [
        (["1", "2", "4"], ["1", "2", "4"], ["1", "2", "4"]),
        (["001", "004", "008"], ["1", "2", "3"], ["001", "004", "008"]),  # counted, as Cranfield's
        (["1", "3", "4"], ["1", "2", "3", "4"], ["1", "2", "3", "4"]),  # query 2 is missing
        (["q1", "q2"], ["q1", "q3"], ["q1", "q3"]),
    ],
)
def test_judgements_stay_with_their_queries(queries, asked, found):
    judged = numbered([(query, "7", 1.0) for query in asked], queries, ["07"])
    assert judged == [(query, "07", 1.0) for query in found]


@pytest.fixture
def collection(tmp_path):
    write(tmp_path / "corpus.tsv", "_id\ttext", *(f"d{i}\tdocument {i}" for i in range(8)))
    write(tmp_path / "queries.tsv", "_id\ttext", *(f"q{i}\tquery {i}" for i in range(8)))
    return tmp_path


def test_qrels_of_three_cells_need_no_header(collection):
    write(collection / "qrels.tsv", *(f"q{i}\td{i}\t{1 + i % 2}" for i in range(8)))
    assert Retrieval.read(collection).n_items == 8


def test_a_relevance_that_is_no_number_is_named_with_its_line(collection, raises):
    write(collection / "qrels.tsv", "q0\td0\t1", "q1\td1\tyes")
    raises(Retrieval.read, collection, says="got 'yes' in line 2")


def test_a_file_that_cannot_be_read_does_not_begin_as_any(tmp_path):
    assert not is_smart(tmp_path)  # a folder, which no one can open


def test_names_that_are_too_long_name_nothing(monkeypatch):
    monkeypatch.setattr("isotropy.cli.common.reached", lambda: True)
    offline_unless_reached(LONG)
    assert not is_model(LONG)


@pytest.mark.parametrize("task", ["sts", "retrieval"])
@pytest.mark.parametrize("name", [f"./{LONG}", f"~{LONG}/x", "~nobody-has-this-name/x.tsv"])
def test_data_of_such_a_name_is_not_there(name, task, raises):
    raises(open_task, task, name, says="data must be a f", error=InputError)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("training", "train"), ("sick_train", "train"), ("development", "dev"), ("val", "dev"),
        ("x-trial", "dev"), ("testing", "test"), ("test", "test"), ("latest", "all"),
        ("trained", "all"),
    ],
)  # fmt: skip
def test_parts_by_other_names(name, part):
    assert reading.part_of(name) == part


def test_files_beside_parts_that_are_left_out_are_named(tmp_path):
    for name in ("training", "test", "more"):
        write(tmp_path / f"{name}.tsv", "text\tlabel", "a\tx", "b\ty")
    with pytest.warns(IsotropyWarning, match=r"'more.tsv' in .* was not read"):
        found = reading.read_table(tmp_path)
    assert sorted(set(found.parts)) == ["test", "train"]
    os.unlink(tmp_path / "more.tsv")
    assert len(reading.read_table(tmp_path).lines) == 4  # and nothing is said
