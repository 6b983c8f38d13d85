"""Folders of text tables whose columns differ: nothing is mixed, and what is asked is read."""

import pytest

import isotropy

FEATURES = {
    "order.csv": ("x,y\n1.5,2.5\n", "y,x\n1.5,2.5\n"),
    "names.csv": ("x,y\n1.5,2.5\n", "x,z\n1.5,2.5\n"),
    "lists.csv": ('e,id\n"[1.5, 2.5]",a\n', 'f,id\n"[1.5, 2.5]",a\n'),
    "lists.jsonl": ('{"e": [1.5, 2.5]}\n', '{"f": [1.5, 2.5]}\n'),
    "nested.jsonl": ('{"a": {"e": [1.5]}}\n', '{"b": {"e": [1.5]}}\n'),
}
CARRIED = {
    "name.csv": ("x,id\n1.5,a\n", "x,key\n1.5,a\n"),
    "less.csv": ("x,id\n1.5,a\n", "x\n1.5\n"),
    "more.jsonl": ('{"e": [1.5]}\n', '{"e": [1.5], "id": 1}\n'),
    "name.jsonl": ('{"e": [1.5], "id": 1}\n', '{"e": [1.5], "key": 1}\n'),
}


def write(folder, name, contents):
    for first, content in zip("ab", contents, strict=True):
        (folder / f"{first}_{name}").write_text(content)


@pytest.mark.parametrize("name", FEATURES)
def test_vectors_in_other_columns_are_refused(name, refused, folder):
    write(folder, name, FEATURES[name])
    refused("measure", f"*_{name}", says="has its vectors in")


@pytest.mark.parametrize("name", CARRIED)
def test_other_columns_beside_the_vectors_are_never_lost(name, raises, folder):
    write(folder, name, CARRIED[name])
    source = isotropy.open(f"*_{name}")
    raises(lambda: [list(source.read(chunk)) for chunk in source.chunks()], says="must have the")
    bare = source.bare()
    assert sum(len(b.rows) for chunk in bare.chunks() for b in bare.read(chunk)) == 2


def test_guessed_types_of_json_lines_may_differ(folder):
    write(folder, "x.jsonl", ('{"e": [1.5], "id": 1}\n', '{"id": "a", "e": [2.5]}\n'))
    source = isotropy.open("*_x.jsonl")
    batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
    assert [batch.rows.tolist() for batch in batches] == [[[1.5]], [[2.5]]]


def test_files_are_compared_once(folder, monkeypatch):
    write(folder, "x.csv", ("x,id\n1.5,a\n2.5,b\n", "x,id\n1.5,a\n2.5,b\n"))
    source = isotropy.open("*_x.csv", chunk_rows=1)
    monkeypatch.setattr(type(source), "_differing_others", None)
    assert sum(len(list(source.read(chunk))) for chunk in source.chunks()) == 4
