"""Text tables: nothing is dropped or read wrong without a word, and bad files cost little."""

import gzip
import json

import numpy as np
import pytest

import isotropy
from isotropy.errors import InputError
from isotropy.models.texts import each, open_texts
from isotropy.sources import tables
from isotropy.tasks import open_task

PLACEHOLDERS = [
    "None", "-", "?", "missing", "N.A.", "", "nan", "NA", "n/a", "NULL", "--", "#N/A", ".", "nOnE",
]  # fmt: skip


def read(path, **options):
    source = isotropy.open(path, **options)
    batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
    return np.concatenate([batch.rows for batch in batches])


def carried(path):
    source = isotropy.open(path)
    tables = [batch.carried for chunk in source.chunks() for batch in source.read(chunk)]
    return [row for table in tables for row in table.to_pylist()]


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("word", PLACEHOLDERS)
def test_a_placeholder_is_a_missing_value_of_a_feature(word, row, refused, done, folder):
    lines = [["1.5", "2.5", "0.5"], ["2.5", "0.5", "1"], ["0.25", "1.5", "3.5"], ["1", "2", "0.5"]]
    lines[row][1] = word
    (folder / "x.csv").write_text("a,b,c\n" + "".join(",".join(line) + "\n" for line in lines))
    refused("measure", "x.csv", says=f"in 1 row (first: {row}, column 'b'")
    done("measure", "x.csv", "--skip-bad-rows")
    kept = [i for i in range(4) if i != row]
    found = read("x.csv", skip_bad_rows=True)
    assert found.tolist() == [[float(cell) for cell in lines[i]] for i in kept]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('a,b\n"1,234.5",2.5\n1.5,2.5\n', "has '1,234.5' in column 'a', row 0 (line 2)"),
        ('a,b\n1.5,2.5\n1.5,"1,234.5"\n', "has '1,234.5' in column 'b', row 1 (line 3)"),
        ('a,b\n"1,234","2,345"\n"3,456","4,567"\n', "Write numbers as 1234.5"),
        ("a;b\n1.234,5;2.5\n1.5;2.5\n", "has '1.234,5' in column 'a', row 0 (line 2)"),
        ("a;b\n0,5;1,5\n2,5;3,5\n", "Write numbers as 1234.5"),
        ("0,5;1,5\n2,5;3,5\n", "Write numbers as 1234.5"),
        ("a\tb\n1 234,5\t2.5\n1.5\t2.5\n", "has '1 234,5' in column 'a'"),
        ("a,b\n1.5,n.d.\n2.5,n.d.\n2.5,1.5\n", "has 'n.d.' in column 'b', row 0 (line 2)"),
        ("a,b\n1.5,-\n2.5,?\n", "has no value in 'b' in its first rows"),
        ("a,b\n1.5,1_0\n2.5,2.5\n2.5,1\n", "has '1_0' in column 'b'"),
        ("a,b\n1.5,2.5\n1.5,2.5,3.5\n", "must have 2 cells in every line, got 3 in line 3"),
        ('a,b\n1.5,2.5\n"1.5,2.5\n', "every quote closed"),
        ("a,b\r1.5,2.5\r3.5,4.5\r", "new-line character"),
        ("a,a\n1.5,2.5\n", "has two columns of one name, 'a'"),
        ("text,a\nx,1.5\n" + "y" * 20_000 + ",z\nw,2.5\n", "has 'z' in column 'a'"),
        ("a,b\n1.5," + "9" * 300 + "x\n1,2.5\n1,2\n", "where there must be a number"),
        ('e\n"[1, 2]"\n"[1, ' + "z" * 9999 + ']"\n', "in row 1. Write lists"),
        ("a,b\n1.5,caf\xe9\n1.5,x\n".encode("latin-1"), "must be UTF-8, got byte 0xe9 in line 2"),
        ("a,b\n1.5,2.5\n".encode("utf-16"), "must be UTF-8, got UTF-16"),
    ],
)
def test_what_is_no_number_is_named_with_its_place(content, says, refused, folder):
    name = (
        "x.tsv"
        if b"\t" in (content if isinstance(content, bytes) else content.encode())
        else ("x.csv")
    )
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    refused("measure", name, says=says)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a,b\n+1.5,2.5\n 1 ,2.\n", [[1.5, 2.5], [1, 2]]),
        ("a;b\n1.5;2.5\n1;2.5\n", [[1.5, 2.5], [1, 2.5]]),
        ("1.5,2.5\n3.5,4.5\n", [[1.5, 2.5], [3.5, 4.5]]),
        ("word,0.5,1.5\nother,2.5,3.5\n", [[0.5, 1.5], [2.5, 3.5]]),
        ("\ufeff1.5,2.5\n3.5,4.5\n", [[1.5, 2.5], [3.5, 4.5]]),
        ('\ufeff"a","b"\n"1.5","2.5"\n', [[1.5, 2.5]]),
        ("text,0,1\nx,1.5,2.5\n", [[1.5, 2.5]]),
        ('t,a\nA 5" disk,1.5\nB 3" one,2.5\nplain,3.5\n', [[1.5], [2.5], [3.5]]),
        ('t,a\n"two\nlines",1.5\nA 5" disk,2.5\n', [[1.5], [2.5]]),
        ('"two\nlines",a\nx,1.5\n', [[1.5]]),
        ("t,a\nx,1.5\n1984,2.5\nz,3.5\n", [[1.5], [2.5], [3.5]]),
        ("a,b\r\n1.5,2.5\r\n\r\n3.5,4.5\r\n", [[1.5, 2.5], [3.5, 4.5]]),
        ('e,t\n"[1, 2]",x\n"[ 3 4.5 ]",y\n', [[1, 2], [3, 4.5]]),
        ('t\ta\n"\t1.5\n"b\t2.5\n', [[1.5], [2.5]]),
        ('"t"\t"a"\n"x"\t"1.5"\n', [[1.5]]),
    ],
)
def test_what_is_written_is_read(content, expected, folder):
    name = "x.tsv" if "\t" in content else "x.csv"
    (folder / name).write_bytes(content.encode())
    assert read(name).tolist() == expected
    assert read(name, chunk_rows=1).tolist() == expected


def test_a_field_that_first_appears_past_the_sample_is_carried(folder):
    early = {"e": [0.5] * 40, "t": "a"}
    lines = [json.dumps(early)] * 6000
    assert sum(map(len, lines)) > 1 << 20
    late = [early | {"late": 7, "sub": {"x": 1}}, early | {"sub": {"x": 2, "y": "b"}, "l2": "z"}]
    (folder / "x.jsonl").write_text("\n".join([*lines, *map(json.dumps, late), lines[0]]))
    rows = carried("x.jsonl")
    nothing = {"late": None, "l2": None, "sub": None, "t": "a"}
    assert rows[0] == rows[-1] == nothing
    assert rows[6000:6002] == [
        nothing | {"late": 7, "sub": {"x": 1, "y": None}},
        nothing | {"l2": "z", "sub": {"x": 2, "y": "b"}},
    ]
    assert read("x.jsonl").shape == (6003, 40)


def deep(n, inside="1"):
    return "[" * n + inside + "]" * n


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize(
    "value", [deep(200_000), deep(101), "[" * 200_000, '{"a":' * 5000 + "1" + "}" * 5000]
)
def test_deep_json_is_refused_by_every_reader(value, place, refused, raises, folder):
    lines = ['{"e": [1.5, 2.5], "text": "a", "label": 1}'] * 6
    lines[place] = '{"e": [1.5, 2.5], "x": "]]]]", "text": "a", "label": 2, "z": ' + value + "}"
    (folder / "x.jsonl").write_text("\n".join(lines))
    says = f"in line {place + 1}"
    refused("measure", "x.jsonl", says=says)
    raises(open_texts, "x.jsonl", says=says)
    raises(open_task, "classification", "x.jsonl", says=says)


def test_json_at_the_limit_and_brackets_in_strings_are_read(folder):
    lines = ['{"e": [1.5, 2.5], "text": "[[{", "label": 1, "z": ' + deep(98) + "}"] * 3
    lines[1] = '{"e": [0.5, 2.5], "text": "' + "[" * 300 + '\\"{", "label": 2}'
    (folder / "x.jsonl").write_text("\n".join(lines))
    assert read("x.jsonl").tolist() == [[1.5, 2.5], [0.5, 2.5], [1.5, 2.5]]
    assert len(list(each(open_texts("x.jsonl")))) == 3
    assert open_task("classification", "x.jsonl").n_items == 3


@pytest.mark.parametrize("content", ['{"e":\n[1.5,\n2.5]}\n', '{"e": [1.5]}\n[1.5]]\n{"e": [2.5]}'])
def test_objects_over_several_lines_are_refused(content, refused, folder):
    (folder / "x.jsonl").write_text(content)
    refused("measure", "x.jsonl", says="is not valid JSON in line")


def test_a_hundred_thousand_columns_are_read_in_linear_time(folder):
    n = 100_000
    header = ",".join(f"d{i}" for i in range(n))
    row = ",".join(["0.5"] * n)
    (folder / "x.csv").write_text(f"{header}\n{row}\n{row}\n")
    assert read("x.csv").shape == (2, n)


def test_a_million_columns_are_refused(refused, folder):
    (folder / "x.csv").write_text("a," * (1 << 18) + "b\n")
    refused("measure", "x.csv", says="has more than 262,144 cells in line 1")


@pytest.mark.parametrize("name", ["x.txt.gz", "x.csv.gz", "x.tsv.gz", "x.jsonl.gz"])
@pytest.mark.parametrize("kind", ["task", "texts"])
@pytest.mark.parametrize("unit", [b"\n", b"text\tlabel\n", b"a" * 64])
def test_a_gzip_bomb_is_refused_after_few_bytes(name, unit, kind, raises, folder, monkeypatch):
    block = gzip.compress(unit * ((1 << 20) // len(unit)), 9)
    (folder / name).write_bytes(block * 512)  # members of 1 MB each
    n_bytes = []
    read_into = tables._Unpacked.readinto

    def counted(self, buffer):
        n_bytes.append(len(buffer))
        return read_into(self, buffer)

    monkeypatch.setattr(tables._Unpacked, "readinto", counted)
    call = (open_task, "classification") if kind == "task" else (open_texts,)
    raises(*call, name, says="unpacks to more than 100 times its size")
    assert sum(n_bytes) < 100 << 20


def test_text_that_packs_well_is_read(folder):
    lines = b"text\tlabel\n" + b"the same\t1\nthe other\t2\n" * 20_000
    (folder / "x.tsv.gz").write_bytes(gzip.compress(lines, 9))
    assert len(lines) > 100 * (folder / "x.tsv.gz").stat().st_size
    assert open_task("clustering", "x.tsv.gz").n_items == 40_000


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl", "x.txt"])
def test_a_line_without_end_is_refused(name, refused, raises, folder, monkeypatch):
    monkeypatch.setattr(tables, "MOST_RECORD", 1 << 20)
    monkeypatch.setattr("isotropy.sources.csv.MOST_RECORD", 1 << 20)
    monkeypatch.setattr("isotropy.sources.csv.BLOCK", 1 << 20)
    (folder / name).write_bytes(b"text\n" + b"a" * (1 << 22) if name != "x.txt" else b"a" * 2**22)
    raises(open_texts, name, says="has a record of more than 1 MB in line")
    raises(open_task, "clustering", name, says="has a record of more than 1 MB in line")
    if name != "x.txt":
        refused("measure", name)


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.txt", "x.jsonl"])
def test_long_values_are_shortened_in_messages(name, raises, folder):
    long = "\x1b[31m" + "a" * 10_000
    row = {"x.csv": f"{long},b\n", "x.tsv": f"{long}\tb\n", "x.txt": f"{long}\tb\n"}
    (folder / name).write_text(row.get(name, json.dumps({long: "b"}) + "\n") * 3)
    raises(open_task, "classification", name, says="must have the columns")
    if name != "x.txt":
        raises(open_texts, name, says="must have the column")
    row = {"x.jsonl": json.dumps({"score": long, "s1": "a", "s2": "b"})}
    line = {"x.csv": f"{long},a,b", "x.tsv": f"{long}\ta\tb", "x.txt": f"{long}\ta\tb"}
    head = {"x.csv": "score,s1,s2\n", "x.jsonl": ""}.get(name, "score\ts1\ts2\n")
    (folder / name).write_text(head + row.get(name, line.get(name)) + "\n")
    raises(open_task, "sts", name, says="must have a number in 'score'")


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("1" * 5000, "too many digits"),
        ('"\\ud800"', "a lone surrogate"),
        ("[1, 2]", "must have a number in 'score', got [1, 2]"),
        ("1" + "0" * 400, "must have a number in 'score', got"),
        ('"1,5"', "Write numbers as 1234.5"),
        ('"1_0"', "must have a number in 'score', got '1_0'"),
        ("NaN", "must have"),
    ],
)
def test_odd_scores_of_json_lines_give_one_line(field, says, raises, folder):
    rows = ['{"s1": "a", "s2": "b", "score": %s}' % value for value in ("1", field, "2")]  # noqa: UP031
    (folder / "x.jsonl").write_text("\n".join(rows[:2] if field == "NaN" else rows))
    raises(open_task, "sts", "x.jsonl", says=says)


@pytest.mark.parametrize("value", ['["a"]', '{"b": 1}', "null", '" "'])
def test_texts_that_are_no_text_are_refused(value, raises, folder):
    rows = ['{"text": "a", "label": 1}', '{"text": %s, "label": 2}' % value]  # noqa: UP031
    (folder / "x.jsonl").write_text("\n".join(rows))
    raises(open_task, "classification", "x.jsonl", says="x.jsonl, line 2 must have text in 'text'")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_bytes_that_are_not_utf8_are_named_by_every_reader(suffix, raises, folder):
    data = b"text\tlabel\nfine\t1\n\ncaf\xe9\t2\n"
    name = f"x.tsv{suffix}"
    (folder / name).write_bytes(gzip.compress(data) if suffix else data)
    says = "must be UTF-8, got byte 0xe9 in line 4. Convert it"
    raises(open_task, "classification", name, says=says)
    raises(open_texts, name, says=says)


def test_ambiguous_columns_are_not_guessed(folder):
    (folder / "x.tsv").write_text("Label\tLABEL\ttext\n1\t2\ta\n2\t1\tb\n")
    with pytest.raises(InputError, match="must have the columns 'label'"):
        open_task("classification", "x.tsv")
    assert open_task("classification", "x.tsv", label="LABEL").classes == ["1", "2"]


def test_a_cell_may_hold_a_long_vector(folder):
    vector = np.random.default_rng(0).standard_normal(8192)
    (folder / "x.csv").write_text(f'id,e\na,"{vector.tolist()}"\n')
    assert np.array_equal(read("x.csv"), vector[None])


def test_why_no_row_can_be_read_is_said(refused, folder):
    (folder / "x.csv").write_bytes(b"a,b\n1.5,\xff\n")
    refused("measure", "x.csv", says="must be UTF-8, got byte 0xff in line 2")


def test_a_record_of_many_lines_is_read_in_linear_time(folder):
    (folder / "x.csv").write_text('a,b\n1.5,"' + "\n" * 200_000 + '"\n2.5,c\n')
    with open(folder / "x.csv", "rb") as file:
        found = [(r.line, r.n_bytes) for r in tables.records(file, tables.Form(",", True))]
    assert found == [(1, 4), (2, 200_007), (200_003, 6)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("word,f0,f1\n,1.5,2.5\n,2.5,3.5\n", "pattern such as 'f*'"),
        (",f0,f1\n0,1.5,2.5\n1,2.5,3.5\n", "in its first column, which has no name. They"),
        ("a,,f0\n0,1,1.5\n1,2,2.5\n", "whole numbers in 'a', ''. They"),
    ],
)
def test_what_may_be_no_feature_is_named(content, says, refused, folder):
    (folder / "x.csv").write_text(content)
    refused("measure", "x.csv", says=says)


@pytest.mark.parametrize("cell", ["0.5\x1c", "\x1f0.5", "\x1d7\x1e"])
def test_a_separator_of_ascii_is_no_part_of_a_number(cell, raises, folder):
    """A regular expression takes it for white space, float() does not."""
    assert tables.number(cell) is None
    (folder / "x.csv").write_text(f"a,b\n1.5,2.5\n1.5,{cell}\n2.5,1.5\n")
    raises(read, "x.csv", says="in column 'b', row 1 (line 3), where there must be a number")
    (folder / "x.tsv").write_text(f"text1\ttext2\tscore\na\tb\t1\nc\td\t{cell}\n")
    raises(open_task, "sts", folder / "x.tsv", says="must have a number in 'score'")


@pytest.mark.parametrize("chunk_rows", [None, 1, 2])
def test_a_last_line_of_white_space_counts_like_any_other(chunk_rows, raises, folder):
    for content in ("w,0.0,0.5\n\t", "w,0.0,0.5\n\t\n"):
        (folder / "x.csv").write_text(content)
        raises(read, "x.csv", chunk_rows=chunk_rows, says="must have 3 cells in every line, got 1")
    for content in ("a\tb\n1.5\t2.5\n\t", "a\tb\n1.5\t2.5\n\t\n"):
        (folder / "x.tsv").write_text(content)
        raises(read, "x.tsv", chunk_rows=chunk_rows, says="must be finite, got NaN in 1 row")
        assert read("x.tsv", chunk_rows=chunk_rows, skip_bad_rows=True).tolist() == [[1.5, 2.5]]
    (folder / "x.csv").write_bytes(b"1.5,2.5\r\n\r")
    assert read("x.csv", chunk_rows=chunk_rows).tolist() == [[1.5, 2.5]]
