"""Standard input to standard output: Arrow streams and JSON lines, with everything else carried."""

import io
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import isotropy
from isotropy.cli import app

N, D = 50, 4
X = (np.random.default_rng(0).normal(size=(N, D)) + 0.5).astype(np.float32)
TEXTS = [f"text {i}" for i in range(N)]


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "repair.safetensors"
    isotropy.Whiten().fit(X).save(path)
    return path


@pytest.fixture
def apply(saved):
    """Runs the command on bytes; gives (exit code, output, what it said)."""

    def run(data, kind, *options):
        line = ["apply", str(saved), "-", "--out", "-", "--format", kind, *map(str, options)]
        result = CliRunner().invoke(app, line, input=data)
        assert result.exit_code == 0 or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout_bytes, result.stderr

    return run


@pytest.fixture
def refused(apply):
    """Asserts that there is one line on standard error, and gives it."""

    def check(data, kind, *options):
        code, output, said = apply(data, kind, *options)
        assert (code, output) == (2, b"")
        assert len(said.splitlines()) == 1
        return said

    return check


def arrow(table, rows=12):
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return file.getvalue()


def table_of(rows=X):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    return pa.table({"text": TEXTS[: len(rows)], "vector": lists, "n": range(len(rows))})


def lines(rows=X, **fields):
    found = [{"id": i, "embedding": row} | fields for i, row in enumerate(rows.tolist())]
    return "\n".join(map(json.dumps, found)).encode()


def test_an_arrow_stream_keeps_its_schema_and_batches(apply, saved):
    code, output, said = apply(arrow(table_of()), "arrow")
    assert (code, said) == (0, "")
    with pa.ipc.open_stream(output) as reader:
        batches = list(reader)
    assert [batch.num_rows for batch in batches] == [12, 12, 12, 12, 2]
    found = pa.Table.from_batches(batches)
    assert found.schema == table_of().schema
    assert found.drop_columns("vector").equals(table_of().drop_columns("vector"))
    expected = isotropy.load(saved).transform(X)
    np.testing.assert_array_equal(np.array(found["vector"].to_pylist(), np.float32), expected)


def test_json_lines_keep_their_other_fields(apply, saved):
    others = {"meta": {"a": [1, 2], "b": None}, "big": 2**70, "text": "é\u2028\n", "x": 0.1}
    code, output, said = apply(lines(**others), "jsonl", "--chunk-rows", 7)
    assert (code, said) == (0, "")
    found = [json.loads(line) for line in output.splitlines()]
    expected = isotropy.load(saved).transform(X.astype(np.float64))
    for i, (line, row) in enumerate(zip(found, expected, strict=True)):
        assert list(line) == ["id", "embedding", *others]
        assert {name: line[name] for name in others} == others
        assert line["id"] == i
        np.testing.assert_allclose(line["embedding"], row, rtol=1e-12)


def test_nested_vectors_stay_where_they_are(apply, saved):
    rows = [{"data": [{"embedding": row, "index": 0}], "model": "m"} for row in X.tolist()]
    code, output, _ = apply("\n".join(map(json.dumps, rows)).encode(), "jsonl")
    assert code == 0
    found = [json.loads(line) for line in output.splitlines()]
    assert all(line["model"] == "m" and line["data"][0]["index"] == 0 for line in found)
    rows = np.array([line["data"][0]["embedding"] for line in found])
    expected = isotropy.load(saved).transform(X.astype(np.float64))
    np.testing.assert_allclose(rows, expected, rtol=1e-12)


def test_number_fields_are_chosen_by_pattern(apply, saved):
    rows = [{"id": i} | {f"d{j}": v for j, v in enumerate(row)} for i, row in enumerate(X.tolist())]
    data = "\n".join(map(json.dumps, rows)).encode()
    code, output, _ = apply(data, "jsonl", "--column", "d*")
    assert code == 0
    found = [json.loads(line) for line in output.splitlines()]
    assert [line["id"] for line in found] == list(range(N))
    rows = np.array([[line[f"d{j}"] for j in range(D)] for line in found])
    np.testing.assert_allclose(rows, isotropy.load(saved).transform(X.astype("f8")), rtol=1e-12)


def test_bad_rows_are_refused_or_left_out(apply):
    rows = X.copy()
    rows[30, 1] = np.nan
    for kind, data in (("arrow", arrow(table_of(rows))), ("jsonl", lines(rows))):
        code, _, said = apply(data, kind)
        assert code == 2
        assert "got NaN in 1 row (first: 30, counting from 0)" in said
        code, output, said = apply(data, kind, "--skip-bad-rows", "--chunk-rows", 10)
        assert (code, said) == (0, "1 bad row left out\n")
        if kind == "arrow":
            assert pa.ipc.open_stream(output).read_all()["n"].to_pylist() == [
                i for i in range(N) if i != 30
            ]
        else:
            assert len(output.splitlines()) == N - 1
    code, output, said = apply(b'{"e": [1, 2, 3, 0.5]}\n{"e": null}\n', "jsonl", "--skip-bad-rows")
    assert (code, len(output.splitlines())) == (0, 1)


def test_a_failed_stream_is_not_ended_as_a_whole_one_is(apply):
    rows = X.copy()
    rows[30, 1] = np.nan
    _, output, _ = apply(arrow(table_of(rows)), "arrow")
    assert not output.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    assert pa.ipc.open_stream(output).read_all().num_rows == 24


def test_what_is_no_stream_is_refused(refused):
    assert "is damaged or not a Arrow file" in refused(b"hello, this is text", "arrow")
    assert "is damaged or not a Arrow file" in refused(b"", "arrow")
    assert "is not valid JSON in line 1" in refused(b"hello\n", "jsonl")
    assert "must hold a JSON object a line" in refused(b"[1, 2]\n", "jsonl")
    assert "must hold JSON lines, got none" in refused(b"\n\n", "jsonl")
    assert "must be UTF-8" in refused(b'{"e": "\xff"}', "jsonl")
    assert "X has 2 features, but apply is expecting 4" in refused(b'{"e": [1, 0.5]}', "jsonl")
    assert "is expecting 4" in refused(arrow(table_of(X[:, :2].copy())), "arrow")
    assert "has no field with a list of numbers" in refused(b'{"a": 1}', "jsonl")
    assert "Choose with --column" in refused(b'{"a": [0.5], "b": [0.5]}', "jsonl")
    first = b'{"e": [1, 2, 3, 0.5]}\n'
    assert "must have numbers in 'e', got 'x' in line 2" in refused(first + b'{"e": "x"}', "jsonl")
    assert "in line 2" in refused(first + b'{"e": [1, 2, 3, "4"]}', "jsonl")
    assert "has no 'e' in line 3" in refused(first + b"\n{}\n", "jsonl")
    assert "has no 'e' in line 2" in refused(first + b'{"f": [1, 2, 3, 4]}', "jsonl")
    huge = b'{"e": [1, 2, 3, 1%s]}' % (b"0" * 400)
    assert "a number that is too large in line 2" in refused(first + huge, "jsonl")
    assert "--engine must be local" in refused(lines(), "jsonl", "--engine", "torch")


def test_both_ends_and_the_format_go_together(saved, tmp_path):
    np.save(tmp_path / "x.npy", X)
    for line in (
        (str(tmp_path / "x.npy"), "--out", "-", "--format", "jsonl"),
        ("-", "--out", str(tmp_path / "y.npy")),
        ("-", "--out", "-"),
        (str(tmp_path / "x.npy"), "--out", str(tmp_path / "y.npy"), "--format", "arrow"),
    ):
        result = CliRunner().invoke(app, ["apply", str(saved), *line], input=b"")
        assert result.exit_code == 2
        assert "SOURCE -, --out - and --format must be given together" in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["repair.safetensors", "x.npy"]


@pytest.mark.filterwarnings("default::isotropy.errors.IsotropyWarning")
def test_far_rows_are_warned_of(apply):
    code, _, said = apply(lines(X + 100), "jsonl")
    assert code == 0
    assert "warning: apply: drifted: Frechet distance" in said


@pytest.mark.parametrize("kind", ["arrow", "jsonl"])
def test_a_reader_that_has_gone_ends_it_silently(saved, kind):
    data = arrow(table_of()) if kind == "arrow" else lines()
    line = [sys.executable, "-m", "isotropy", "apply", str(saved), "-", "--out", "-"]
    process = subprocess.Popen(
        [*line, "--format", kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()  # before anything was written
    try:
        process.stdin.write(data)
        process.stdin.close()
    except BrokenPipeError:
        pass
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1
    assert said == b""


def test_lines_come_out_before_all_have_gone_in(saved):
    line = [sys.executable, "-m", "isotropy", "apply", str(saved), "-", "--out", "-"]
    process = subprocess.Popen(
        [*line, "--format", "jsonl", "--chunk-rows", "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    first, rest = lines().split(b"\n")[:2], lines().split(b"\n")[2:]
    process.stdin.write(b"\n".join(first) + b"\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["id"] == 0
    assert json.loads(process.stdout.readline())["id"] == 1
    output, _ = process.communicate(b"\n".join(rest))
    assert len(output.splitlines()) == N - 2
    assert process.returncode == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(JSON, st.text()), min_size=1, max_size=5))
def test_any_other_field_comes_out_as_it_went_in(others):
    from isotropy.sources.base import RowMap
    from isotropy.sources.streams import map_jsonl

    rows = RowMap(lambda batch: batch.rows * 2, 2, 2)
    whole = [{"e": [i, 0.5], "any": value, "t": text} for i, (value, text) in enumerate(others)]
    source = io.BytesIO("\n".join(map(json.dumps, whole)).encode())
    target = io.BytesIO()
    map_jsonl(source, target, rows, "e")
    found = [json.loads(line) for line in target.getvalue().split(b"\n")[:-1]]
    assert found == [line | {"e": [2.0 * line["e"][0], 1.0]} for line in whole]
