"""Every reader of text on made-up and damaged files: what an independent reader says, or one line.

The number of examples: see fuzzing.py.
"""

import csv
import gzip
import io
import json
import math
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import isotropy
from isotropy.errors import IsotropyError
from isotropy.models.texts import each, open_texts
from isotropy.tasks import open_task
from isotropy.tasks.reading import read_table

from .fuzzing import fuzzed

MISSING = ("", "-", "?", "None", "missing", "N.A.", "nan")


def outcome(call, *arguments, **options):
    """What the call gives; None where it is refused in one clear line."""
    try:
        return call(*arguments, **options)
    except IsotropyError as error:
        message = str(error)
        assert message, "no message"
        assert message.isprintable(), ascii(message)
        assert len(message) <= 700, message[:300]
        return None


def vectors(path, chunk_rows):
    source = isotropy.open(path, chunk_rows=chunk_rows)
    batches = [batch for chunk in source.chunks() for batch in source.read(chunk)]
    return source.files[0], np.concatenate([batch.rows for batch in batches]), batches


class Written:
    """A file with these bytes, as long as it is needed."""

    def __init__(self, name, data):
        self.name, self.data = name, data

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / self.name
        path.write_bytes(gzip.compress(self.data) if self.name.endswith(".gz") else self.data)
        return path

    def __exit__(self, *error):
        self.folder.cleanup()


characters = st.characters(blacklist_categories=("Cs",))
text = st.text(characters, max_size=12) | st.text(' ,;\t"\n\r[]{}:\\-1.5ab', max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
numbers = finite.map(repr) | st.integers(-5, 5).map(str) | st.sampled_from(["1e3", "+1.5", " 2.5"])
damage = st.lists(
    st.tuples(
        st.floats(0, 1), st.integers(0, 3), st.binary(max_size=3) | st.sampled_from(
            [b'"', b",", b"\n", b"\r", b"\t", b";", b"[", b"{", b"\xff", b"\0", b"1,234.5", b"-"]
        ),
    ),
    max_size=3,
)  # fmt: skip


def damaged(data, places):
    for where, n_lost, put in places:
        at = int(where * len(data))
        data = data[:at] + put + data[at + n_lost :]
    return data


def comma_separated(rows, delimiter, end, quoting):
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows(rows)
    return out.getvalue().encode()


def cells_of(data, form):
    """Records by the csv module, or lines between tabs; None where they cannot be told."""
    try:
        whole = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    if not form.quoted:
        lines = [line.removesuffix("\r") for line in whole.split("\n")]
        return [line.split(form.delimiter) for line in lines if line]
    try:
        found = list(csv.reader(io.StringIO(whole, newline=""), delimiter=form.delimiter))
    except csv.Error:
        return None
    return [row for row in found if row]


@fuzzed(900)
@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(
            st.tuples(text, st.lists(numbers, min_size=n, max_size=n)), min_size=1, max_size=8
        )
    ),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.booleans(),
    st.none() | st.tuples(st.integers(0, 7), st.sampled_from(MISSING)),
    damage,
    st.sampled_from([None, 1, 3]),
)
def test_tables_of_vectors(rows, delimiter, end, quoting, headed, missing, places, chunk_rows):
    width = len(rows[0][1])
    table = [[f"w{t}", *values, "0.5"] for t, values in rows]
    if missing:
        table[missing[0] % len(table)][1] = missing[1]
    header = [["text", *(f"d{i}" for i in range(width + 1))]] if headed else []
    if delimiter == "\t" and quoting == csv.QUOTE_MINIMAL:
        table = [[c.replace("\t", " ").replace("\n", " ").replace("\r", " ") for c in row]
                 for row in table]  # fmt: skip
        data = end.join("\t".join(row) for row in [*header, *table]).encode()
    else:
        data = comma_separated(header + table, delimiter, end, quoting)
    data = damaged(data, places)
    name = "x.tsv" if delimiter == "\t" else "x.csv"
    with Written(name, data) as path:
        found = outcome(vectors, str(path), chunk_rows)
    if found is None:
        return
    file, values, _ = found
    expected = cells_of(data, file.form)
    assert expected is not None
    own_header = file.header[0] != "f0"
    names = [cell.strip() for cell in expected[0]] if own_header else list(file.header)
    expected = expected[own_header:]
    assert len(values) == len(expected), (data, values)
    if file.layout.is_list:
        return
    columns = [names.index(name) for name in file.features]
    for row, cells in zip(values, expected, strict=True):
        assert row.tolist() == [float(cells[i]) for i in columns], (data, row)


@fuzzed(600)
@given(
    st.integers(1, 3).flatmap(
        lambda n: st.lists(
            st.tuples(
                st.lists(finite | st.integers(-9, 9), min_size=n, max_size=n),
                st.dictionaries(text, text | st.integers(-9, 9) | st.none(), max_size=2),
            ),
            min_size=1,
            max_size=6,
        )
    ),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    damage,
    st.sampled_from([None, 1, 3]),
)
def test_json_lines_of_vectors(rows, end, places, chunk_rows):
    lines = [json.dumps(others | {"e": values}, ensure_ascii=False) for values, others in rows]
    data = damaged(end.join(lines).encode(), places)
    with Written("x.jsonl", data) as path:
        found = outcome(vectors, str(path), chunk_rows)
    if found is None:
        return
    file, values, _ = found
    expected = [json.loads(line) for line in data.decode().split("\n") if line.strip()]
    assert len(values) == len(expected), data
    for row, item in zip(values, expected, strict=True):
        wanted = item
        for part in (
            file.layout.names[0].split(".")
            if file.layout.names[0] not in item
            else [file.layout.names[0]]
        ):
            wanted = wanted[part]
        assert row.tolist() == [float(value) for value in wanted], data  # of any size


rows_of_task = st.lists(st.tuples(st.sampled_from("ABC"), text), min_size=2, max_size=8)
kinds = st.sampled_from(["csv", "tsv", "txt", "jsonl", "csv.gz", "tsv.gz", "txt.gz", "jsonl.gz"])


def as_file(rows, kind, end, mark):
    """(bytes of a file with these labels and texts, the texts as they can be written there)."""
    plain = kind.removesuffix(".gz")
    if plain == "jsonl":
        lines = [json.dumps({"label": a, "text": b}, ensure_ascii=False) for a, b in rows]
        return ("\n".join(lines)).encode(), rows
    if plain == "csv":
        returns = any("\r" in text for _, text in rows)  # which the writer leaves bare
        quoting = csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL
        data = comma_separated([("label", "text"), *rows], ",", end, quoting)
    else:
        rows = [(a, " ".join(b.replace("\t", " ").split("\n")).replace("\r", " ")) for a, b in rows]
        data = end.join("\t".join(row) for row in [("label", "text"), *rows]).encode()
    return (b"\xef\xbb\xbf" if mark else b"") + data, rows


def columns(path):
    table = read_table(path)
    return list(zip(table.columns["label"], table.columns["text"], strict=True))


@fuzzed(600)
@given(rows_of_task, kinds, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_tables_of_tasks_as_they_were_written(rows, kind, end, mark):
    data, expected = as_file(rows, kind, end, mark)
    with Written(f"x.{kind}", data) as path:
        assert columns(path) == expected
        outcome(open_task, "classification", path)


@fuzzed(500)
@given(rows_of_task, kinds, st.sampled_from(["\n", "\r\n"]), damage)
def test_damaged_tables_of_tasks(rows, kind, end, places):
    data = damaged(as_file(rows, kind, end, False)[0], places)
    with Written(f"x.{kind}", data) as path:
        found = outcome(read_table, path)
        outcome(open_task, "classification", path)
    if found is None:
        return
    plain = kind.removesuffix(".gz")
    whole = data.decode("utf-8-sig")
    if plain == "jsonl":
        items = [json.loads(line) for line in whole.split("\n") if line.strip()]
        items = [item for item in items if item]
        assert [len(found.lines)] == [len(items)]
        for name, values in found.columns.items():
            wanted = [item.get(name) for item in items]
            assert str(values) == str(wanted), data  # NaN is not equal to itself
    elif plain == "tsv":
        lines = [line.removesuffix("\r").split("\t") for line in whole.split("\n")]
        lines = [cells for cells in lines if any(cell.strip() for cell in cells)]
        if not all(cell.startswith('"') for cell in lines[0]):
            assert list(found.columns) == [cell.strip() for cell in lines[0]]
            assert [list(row) for row in zip(*found.columns.values(), strict=True)] == lines[1:]


@fuzzed(400)
@given(rows_of_task, kinds, st.sampled_from(["\n", "\r\n"]), st.booleans(), damage)
def test_files_of_texts(rows, kind, end, mark, places):
    data, written = as_file(rows, kind, end, mark)
    plain = kind.removesuffix(".gz")
    data = damaged(data, places)
    with Written(f"x.{kind}", data) as path:
        opened = outcome(open_texts, path)
        found = None if opened is None else list(each(opened))
    if found is None or (places and plain not in ("txt", "jsonl")):
        return
    if plain == "txt":
        expected = [line.strip() for line in data.decode("utf-8-sig").split("\n")]
    elif plain == "jsonl":
        lines = [line for line in data.decode("utf-8-sig").split("\n") if line.strip()]
        expected = [(json.loads(line).get(opened.columns[0]) or "").strip() for line in lines]
    else:
        expected = [text.strip() for _, text in written]
    assert found == [text for text in expected if text]
    assert all(math.isfinite(len(text)) for text in found)
