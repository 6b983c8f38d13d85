"""Texts in lists and files: what is read, left out, counted and refused."""

import gzip
import json
import pickle
import re

import pytest

from isotropy.errors import InputError
from isotropy.models import texts as texts_module
from isotropy.models.texts import (
    Span,
    TextList,
    distinct,
    each,
    occurrence,
    open_texts,
    sample_texts,
)

FILES = {
    "a.txt": "one\n\n  two \nthree",
    "b.tsv": "id\ttext\n1\tone\n2\ttwo\n3\tthree\n",
    "c.csv": 'id,text\n1,one\n2,"two"\r\n3,three',
    "d.jsonl": '{"text": "one"}\n{"text": "two", "n": 3}\n\n{"text": "three"}\n',
}


def write(folder, name, content):
    path = folder / name
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("file", FILES)
def test_every_kind_of_file_gives_its_texts_in_order(file, suffix, tmp_path):
    opened = open_texts(write(tmp_path, file + suffix, FILES[file]))
    assert list(each(opened)) == ["one", "two", "three"]
    assert list(each(opened)) == ["one", "two", "three"]
    assert opened.n_texts == 3


@pytest.mark.parametrize("file", FILES)
def test_blocks_do_not_change_the_texts(file, tmp_path, monkeypatch):
    monkeypatch.setattr("isotropy.models.texts.BLOCK_SIZE", 8)
    opened = open_texts(write(tmp_path, file, FILES[file]))
    assert len(opened.blocks) > 1
    assert list(each(opened)) == ["one", "two", "three"]
    assert [block[0] for block in opened.blocks] == [
        len(opened.read(block)) for block in opened.blocks
    ]


def test_lists_are_cut_into_blocks_of_bounded_size(monkeypatch):
    monkeypatch.setattr(texts_module, "BLOCK_SIZE", 10)
    opened = TextList(["aaaa"] * 7 + ["b" * 35] + ["c"])
    assert list(each(opened)) == opened.texts
    assert max(sum(map(len, opened.read(block))) for block in opened.blocks) <= 10 + 35
    assert len(opened.blocks) >= 4


def test_blank_lines_of_a_file_are_left_out_and_counted(tmp_path):
    opened = open_texts(write(tmp_path, "x.txt", "one\n\n   \ntwo\n\n"))
    assert (opened.n_blank, opened.blank_lines) == (3, [2, 3, 5])
    table = open_texts(write(tmp_path, "x.tsv", "sentence1\tsentence2\na\tb\nc\t \n\te\n"))
    assert list(each(table)) == ["a", "b", "c", "e"]
    assert (table.n_blank, table.blank_lines) == (2, [3, 4])
    nulls = open_texts(write(tmp_path, "x.jsonl", '{"text": "a"}\n{"text": null}\n{"n": 1}\n'))
    assert (list(each(nulls)), nulls.n_blank) == (["a"], 2)


@pytest.mark.parametrize("half", ["a \ud83d b", Span("cat \udc00", 0, 3)])
def test_half_a_character_in_a_list_is_refused_by_place(half):
    message = r"must hold whole characters, got half of one .* in place 2 \(counted from 0\)"
    with pytest.raises(InputError, match=message):
        open_texts(["one", "caf\xe9 \U0001f600", half])


@pytest.mark.parametrize("blank", ["", "  \n", Span(" ", 0, 1)])
def test_blank_texts_of_a_list_are_refused_by_place(blank):
    with pytest.raises(InputError, match=r"must not be blank, got a blank one in place 1"):
        open_texts(["one", blank])


def test_lists_of_other_things_are_refused():
    with pytest.raises(InputError, match="texts must be strings, got int in place 0"):
        open_texts([3])
    with pytest.raises(InputError, match="at least one text, got none"):
        open_texts([])
    with pytest.raises(InputError, match=r"no file 'the cat'.*, or give texts in a list"):
        open_texts("the cat")
    with pytest.raises(InputError, match="or give texts in a list"):
        open_texts("the cat sat on the mat. " * 99)
    with pytest.raises(InputError, match="columns are for files"):
        open_texts(["a"], ["text"])


@pytest.mark.parametrize(
    ("file", "content", "line"),
    [
        ("x.txt", b"fine\nna\xefve\n", 2),
        ("x.tsv", b"text\tn\nfine\t1\ncaf\xe9\t2\n", 3),
        ("x.csv", b'text\n"two\nlines"\n"a\ncaf\xe9"\n', 5),
        ("x.jsonl", b'{"text": "fine"}\n\n{"text": "caf\xe9"}\n', 3),
    ],
)
def test_bytes_that_are_not_utf8_are_named_with_their_line(file, content, line, tmp_path):
    path = write(tmp_path, file, content)
    with pytest.raises(InputError, match=rf"must be UTF-8, got byte 0x.. in line {line}\."):
        open_texts(path)


def test_a_byte_order_mark_is_no_text(tmp_path):
    assert list(each(open_texts(write(tmp_path, "x.txt", b"\xef\xbb\xbfone\n")))) == ["one"]
    headed = open_texts(write(tmp_path, "x.tsv", b"\xef\xbb\xbftext\tn\none\t1\n"))
    assert list(each(headed)) == ["one"]


def test_quoted_line_breaks_of_csv_are_part_of_a_text(tmp_path):
    path = write(tmp_path, "x.csv", 'text,n\n"a ""b""\nc",1\nd,2\n')
    assert list(each(open_texts(path))) == ['a "b"\nc', "d"]


def test_quotes_inside_of_an_unquoted_cell_are_part_of_it(tmp_path):
    path = write(tmp_path, "x.csv", b'\xef\xbb\xbf"text"\nA 5" disk\nsecond\nthird\n')
    assert list(each(open_texts(path))) == ['A 5" disk', "second", "third"]


def test_columns_are_found_or_chosen(tmp_path):
    path = write(tmp_path, "x.tsv", "question\tsentence\ttitle\nq\ts\tt\n")
    assert list(each(open_texts(path))) == ["s"]
    assert list(each(open_texts(path, ["title", "question"]))) == ["t", "q"]
    with pytest.raises(InputError, match="must have the column 'body', got 'question', 'sentence'"):
        open_texts(path, ["body"])
    with pytest.raises(InputError, match=r"a \.txt file has no columns"):
        open_texts(write(tmp_path, "x.txt", "a"), ["text"])
    with pytest.raises(InputError, match="must have the column text, sentence or"):
        open_texts(write(tmp_path, "y.tsv", "a\tb\n1\t2\n"))


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        ("x.txt", "\n \n", "must hold texts, got none"),
        ("x.txt.gz", b"", None),
        ("x.tsv", "text\tn\na\n", "must have 2 cells in every line, got 1 in line 2"),
        ("x.tsv", "text\tn\na\t1\nb\t2\tc\n", "must have 2 cells in every line, got 3 in line 3"),
        ("x.csv", "text,n\na,1\nb,2,c\n", "must have 2 cells in every line, got 3 in line 3"),
        ("x.csv", 'text\none\n"two\nthree\n', "every quote closed, .* from line 3 on"),
        ("x.csv", 'text\none\n"two" 2\nthree\n', "every quote closed, .* from line 3 on"),
        ("x.jsonl", '{"text": "a"}\n{"text": "b\\ud800"}\n', "a lone surrogate, .* in line 2"),
        ("x.jsonl", '{"text": "a"}\n{"text": ' + "[" * 99_999, "as deeply as in line 2"),
        ("x.jsonl", "[1]\n", r"must hold a JSON object a line, got '\[1\]' in line 1"),
        ("x.jsonl", '{"text": "a"}\n{"text"\n', "is not valid JSON in line 2"),
        ("x.jsonl", '{"text": "a"}\n{"text": ["b"]}\n', "text in 'text', got list in line 2"),
        ("x.pdf", "a", r"must be a file of texts: .*, got '\.pdf'"),
    ],
)
def test_bad_files_give_one_line(file, content, match, tmp_path):
    path = write(tmp_path, file, content)
    with pytest.raises(InputError, match=match) as caught:
        open_texts(path)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_or_damaged_give_one_line(tmp_path):
    with gzip.open(tmp_path / "x.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write('{"text": "a cat"}')
    with pytest.raises(InputError, match=r"no file '.*x.jsonl'. Did you mean '.*x.jsonl.gz'\?"):
        open_texts(tmp_path / "x.jsonl")
    with pytest.raises(InputError, match="there is no file"):
        open_texts(tmp_path / "none.txt")
    path = write(tmp_path, "x.txt.gz", "one\n" * 1000)
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(InputError, match="is damaged or not a text file"):
        open_texts(path)
    path.write_text("no gzip")
    with pytest.raises(InputError, match="is damaged or not a text file"):
        open_texts(path)


def test_what_stands_beside_the_texts_comes_along(tmp_path):
    rows = [{"id": 7, "text": "one", "tags": ["a"]}, {"text": "two", "tags": None}]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    opened = open_texts(write(tmp_path, "x.jsonl", content))
    assert opened.table(opened.blocks[0]).to_pydict() == {
        "text": ["one", "two"],
        "id": ["7", None],
        "tags": ['["a"]', None],
    }
    pairs = open_texts(write(tmp_path, "x.tsv", "n\tsentence1\tsentence2\n1\ta\tb\n2\tc\t\n"))
    assert pairs.table(pairs.blocks[0]).to_pydict() == {
        "text": ["a", "b", "c"],
        "column": ["sentence1", "sentence2", "sentence1"],
        "n": ["1", "1", "2"],
    }


def test_a_file_is_read_after_pickling(tmp_path):
    opened = open_texts(write(tmp_path, "x.txt", "one\ntwo\n"))
    assert list(each(pickle.loads(pickle.dumps(opened)))) == ["one", "two"]


def test_samples_are_seeded_and_in_order():
    opened = open_texts([str(i) for i in range(100)])
    found = sample_texts(opened, 10, seed=3)
    assert found == sample_texts(opened, 10, seed=3) != sample_texts(opened, 10, seed=4)
    assert [int(text) for text in found] == sorted({int(text) for text in found})
    assert sample_texts(opened, 1000) == opened.texts


def test_spans_and_distinct_texts():
    span = Span("the cat sat", 4, 7)
    assert occurrence(span) == "cat"
    assert distinct(["b", span, "b", "a"]) == (["b", span, "a"], {"b": 0, span: 1, "a": 2})
    assert re.match("cat", occurrence(span))
