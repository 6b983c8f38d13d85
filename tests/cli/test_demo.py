"""The demo's two verdicts, on planted spaces and on the real ones."""

import importlib.util
import shlex

import numpy as np
import pytest
from typer.testing import CliRunner

from isotropy import KeyedVectors, cli, examples, load
from isotropy.cli import demo
from isotropy.errors import MissingExtraError


def words_of_the_list():
    lines = (
        (demo.resources.files("isotropy.cli") / "data" / "word_pairs.tsv")
        .read_text()
        .splitlines()[1:]
    )
    return [line.split("\t") for line in lines]


@pytest.fixture(scope="module")
def faithful():
    """Vectors whose cosines follow the grades: each pair shares as much as its grade says."""
    random = np.random.default_rng(0)
    row_of, rows = {}, []
    for left, right, grade in words_of_the_list():
        shared = float(grade) / 10
        for word in (left, right):
            if word not in row_of:
                row_of[word] = len(rows)
                rows.append(random.standard_normal(64))
        a, b = row_of[left], row_of[right]
        rows[b] = shared * rows[a] + np.sqrt(1 - shared**2) * rows[b]
    return np.array(rows, dtype=np.float32), row_of


def run(monkeypatch, vectors, row_of, *arguments):
    words = examples.WordVectors("planted", vectors, row_of)
    monkeypatch.setattr(demo, "SETS", {"planted": lambda: words})
    result = CliRunner().invoke(cli.app, ["demo", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_drifted_space_is_repaired(monkeypatch, faithful, tmp_path):
    vectors, row_of = faithful
    strength = np.random.default_rng(1).gamma(1.0, 1.0, size=(len(vectors), 1))
    drifted = (vectors + 8 * strength).astype(np.float32)
    output = run(monkeypatch, drifted, row_of, "--out", str(tmp_path))
    assert "Drifted" in output
    assert "Repair it" in output
    saved = load(tmp_path / "planted-repair.safetensors")
    assert np.isfinite(saved.transform(drifted)).all()
    assert KeyedVectors.load(tmp_path / "planted.parquet").words == row_of
    if importlib.util.find_spec("plotly"):
        page = (tmp_path / "planted.html").read_text("utf-8")
        assert "after " in page
        assert "while choosing" in page
        assert f"The page:   {tmp_path / 'planted.html'}" in output
    else:
        assert "The page was left out" in output


def test_an_even_space_is_left_alone(monkeypatch, faithful, tmp_path):
    output = run(monkeypatch, *faithful, "--out", str(tmp_path))
    assert "Fine" in output
    assert "Leave it alone.\n" in output
    assert not (tmp_path / "planted-repair.safetensors").exists()


def test_what_to_try_next_works(monkeypatch, faithful, tmp_path):
    output = run(monkeypatch, *faithful, "--out", str(tmp_path / "shown [in here]"))
    lines = [line.strip() for line in output.splitlines() if line.startswith("  isotropy ")]
    assert len(lines) == 4
    monkeypatch.chdir(tmp_path)
    for line in lines[:3]:
        result = CliRunner().invoke(cli.app, shlex.split(line)[1:])
        assert result.exit_code == 0, result.output


def test_a_missing_package_is_named_and_the_rest_shown(monkeypatch, faithful, tmp_path):
    def absent():
        raise MissingExtraError('The demo needs gguf. Run: pip install "isotropy[demo]".')

    words = examples.WordVectors("planted", *faithful)
    monkeypatch.setattr(demo, "SETS", {"smollm2": absent, "planted": lambda: words})
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path)])
    assert "smollm2 was left out" in result.output
    assert 'pip install "isotropy[demo]"' in result.output
    assert "planted" in result.output
    assert result.exit_code == 0


def test_a_folder_that_cannot_be_made_gets_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(cli.app, ["demo", "--out", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "could not be created" in result.output


def test_the_list_is_graded_and_long_enough():
    pairs = words_of_the_list()
    assert len({frozenset(pair[:2]) for pair in pairs}) == len(pairs) >= 200
    assert all(0 <= float(grade) <= 10 for _, _, grade in pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "verdicts"),
    [
        ("demo", ("Repair it: whiten(power=1.0).", "Leave it alone.")),
        ("demo --space wordllama --out shown", ("Leave it alone.",)),
    ],
)
def test_real_vectors_get_their_verdict(line, verdicts, tmp_path, monkeypatch):
    assert f"isotropy {line}\n" in CliRunner().invoke(cli.app, ["demo", "--help"]).output
    try:
        shapes = [load_set().vectors.shape for load_set in examples.SETS.values()]
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert shapes == [(49152, 576), (32000, 256)]
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli.app, line.split())
    assert result.exit_code == 0, result.output
    for verdict in verdicts:
        assert verdict in result.output
