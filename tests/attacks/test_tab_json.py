"""JSON lines: fields that come late or are very many, odd lines, and digits that do not fit."""

import json

import numpy as np
import pytest

import isotropy
from isotropy.sources import tables


def rows_of(path, **options):
    source = isotropy.open(path, **options)
    return np.concatenate([b.rows for chunk in source.chunks() for b in source.read(chunk)])


def test_the_first_line_is_named_where_it_is_nested_too_deeply(refused, folder):
    (folder / "x.jsonl").write_text('{"e": ' + "[" * 200 + "]" * 200 + "}\n")
    refused("measure", "x.jsonl", says="as deeply as in line 1")


@pytest.mark.parametrize("line", ["null", " \tnull", "null{}", "[1.5]", "1.5", '"e"', "true"])
@pytest.mark.parametrize("before", ["", "\n", "\ufeff", '{"e": [1.5]}\n'])
def test_a_line_that_is_no_object_is_named(refused, folder, before, line):
    (folder / "x.jsonl").write_text(f'{before}{line}\n{{"e": [2.5]}}\n', encoding="utf-8")
    number = 1 + before.count("\n")
    says = "is not valid JSON" if line == "null{}" else "must hold a JSON object a line"
    message = refused("measure", "x.jsonl", says=says)
    assert f"in line {number}" in str(message)


@pytest.mark.parametrize("late", [{"e": [1.5, 2.5]}, {"a": {"id": 2, "e": [1.5, 2.5]}}])
def test_vectors_that_first_appear_past_the_sample_are_read(late, folder):
    early = json.dumps({"a": {"id": 1}} if "a" in late else {"id": 1}) + "\n"
    content = early * (1 + (1 << 20) // len(early)) + json.dumps(late) + "\n"
    (folder / "x.jsonl").write_text(content)
    assert rows_of("x.jsonl", skip_bad_rows=True).tolist() == [[1.5, 2.5]]


def test_a_late_line_without_end_costs_no_more_than_a_record(refused, folder, monkeypatch):
    monkeypatch.setattr(tables, "MOST_RECORD", 1 << 20)
    read, whole = [], tables.paths.open_binary

    class Counted:
        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def read(self, n=-1):
            data = self.file.read(n)
            read.append(len(data))
            return data

    with open("x.jsonl", "wb") as file:
        file.write(b'{"e": [1.5]}\n' * 90_000 + b'{"e": [' + b"1" * (1 << 25))
    monkeypatch.setattr(tables.paths, "open_binary", lambda path: Counted(whole(path)))
    refused("measure", "x.jsonl", says="has a record of more than 1 MB")
    assert sum(read) < 1 << 23


def test_new_fields_in_every_line_are_refused_in_one(refused, folder):
    late = "".join(f'{{"e": [1.5], "f{i}": 1}}\n' for i in range(60_000))
    for name, content in {"x": late, "y": '{"e": [1.5]}\n' * 90_000 + late}.items():
        (folder / f"{name}.jsonl").write_text(content)
        refused("measure", f"{name}.jsonl", says="has more than 4,096 different fields")


@pytest.mark.parametrize("nested", [False, True])
def test_late_fields_are_carried_whatever_stands_in_texts(nested, folder):
    def line(**fields):
        return json.dumps({"a": {"e": [0.5]}, **fields} if nested else {"e": [0.5], **fields})

    lines = [line(t='"{x}": \\') for _ in range(50_000)]
    lines += [line(t=":"), line(**{'q"': 1}), line(t="\\"), line(p=2)]
    (folder / "x.jsonl").write_text("\n".join(lines))
    source = isotropy.open("x.jsonl")
    *_, last = (batch.carried for chunk in source.chunks() for batch in source.read(chunk))
    assert set(last.column_names) >= {"t", 'q"', "p"}
    assert last.to_pylist()[-1]["p"] == 2
    assert last.to_pylist()[-3]['q"'] == 1


def test_lines_of_spaces_are_blank(folder):
    (folder / "x.jsonl").write_bytes(b'  \n{"e":[1.5]}\n   \n \t\r\n  {"e":[2.5]}\n{"e":[3]}\n  ')
    for rows in (1, 2, None):
        assert rows_of("x.jsonl", chunk_rows=rows).tolist() == [[1.5], [2.5], [3.0]]


@pytest.mark.parametrize("size", range(1, 12))
def test_lines_of_spaces_are_blank_wherever_a_block_ends(size, folder, monkeypatch):
    monkeypatch.setattr("isotropy.sources.csv.BLOCK", size)
    (folder / "x.jsonl").write_bytes(b'     \n   {"e":[1.5]}\n\n   \n{"e":[2.5]}\n    ')
    assert rows_of("x.jsonl", chunk_rows=1).tolist() == [[1.5], [2.5]]


def test_two_objects_in_a_line_are_refused(refused, folder):
    (folder / "x.jsonl").write_text('{"e": [1.5]}\n{"e": [1.5]} {"e": [2.5]}\n')
    refused("measure", "x.jsonl", says="is not valid JSON in line 2 (Extra data)")


@pytest.mark.parametrize(
    "values", [("1", "18446744073709551615"), ("1.5", "9007199254740993"), ("1", "1" * 400)]
)
def test_whole_numbers_beside_the_vectors_keep_their_digits(values, raises, folder):
    (folder / "x.jsonl").write_text("".join(f'{{"e": [1.5], "id": {v}}}\n' for v in values))
    source = isotropy.open("x.jsonl")
    raises(lambda: list(source.read(source.chunks()[0])), says="in field 'id', line 2, which would")
    bare = source.bare()
    assert len(next(bare.read(bare.chunks()[0])).rows) == 2


def test_large_floats_beside_the_vectors_are_carried(folder):
    (folder / "x.jsonl").write_text('{"e": [1.5], "id": 1e300}\n{"e": [1.5], "id": 0.5}\n')
    source = isotropy.open("x.jsonl")
    table = next(source.read(source.chunks()[0])).carried
    assert table.column("id").to_pylist() == [1e300, 0.5]
