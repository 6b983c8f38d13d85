"""The demo's two verdicts, on planted spaces and on the real ones."""

import numpy as np
import pytest
from typer.testing import CliRunner

from isotropy import cli, load
from isotropy.cli import demo, demo_vectors
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
    words = demo_vectors.WordVectors("planted", vectors, row_of)
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
    (saved,) = tmp_path.iterdir()
    assert np.isfinite(load(saved).transform(drifted)).all()


def test_an_even_space_is_left_alone(monkeypatch, faithful):
    output = run(monkeypatch, *faithful)
    assert "Fine" in output
    assert "Leave it alone: no repair gains" in output


def test_a_missing_package_is_named_and_the_rest_shown(monkeypatch, faithful):
    def absent():
        raise MissingExtraError("The demo needs gguf, which is not installed.")

    words = demo_vectors.WordVectors("planted", *faithful)
    monkeypatch.setattr(demo, "SETS", {"smollm2": absent, "planted": lambda: words})
    result = CliRunner().invoke(cli.app, ["demo"])
    assert "smollm2 is left out" in result.output
    assert "planted" in result.output
    assert result.exit_code == 0


def test_a_data_folder_without_the_sets_gets_one_line(monkeypatch, faithful, tmp_path):
    words = demo_vectors.WordVectors("planted", *faithful)
    monkeypatch.setattr(demo, "SETS", {"planted": lambda: words})
    result = CliRunner().invoke(cli.app, ["demo", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "men3000.tsv" in result.output


def test_the_list_is_graded_and_long_enough():
    pairs = words_of_the_list()
    assert len({frozenset(pair[:2]) for pair in pairs}) == len(pairs) >= 200
    assert all(0 <= float(grade) <= 10 for _, _, grade in pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "verdict"),
    [("smollm2", (49152, 576), "Repair it"), ("wordllama", (32000, 256), "Leave it alone: no")],
)
def test_real_vectors_get_their_verdict(monkeypatch, name, shape, verdict):
    try:
        words = demo_vectors.SETS[name]()
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert words.vectors.shape == shape
    assert verdict in run(monkeypatch, words.vectors, words.row_of)
