"""measure, repair and apply from the command line: what they print, write and refuse."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import subprocess
import sys
import time
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import isotropy
from isotropy.cli import app
from isotropy.errors import IsotropyWarning
from isotropy.metrics import METRICS
from isotropy.repairs import Repair

METHODS = {  # name: (options, the same in Python)
    "center": ((), isotropy.Center()),
    "scaled-center": ((), isotropy.ScaledCenter()),
    "standardize": (("--normalize",), isotropy.Standardize(normalize=True)),
    "all-but-the-top": (
        ("--n-components", 2, "--side", "bottom"),
        isotropy.AllButTheTop(2, side="bottom"),
    ),
    "cluster-removal": (
        ("--n-clusters", 3, "--n-components", 2, "--seed", 1),
        isotropy.ClusterRemoval(3, 2, random_state=1),
    ),
    "whiten": (
        ("--whitening", "pca", "--n-components", 5, "--power", 0.5, "--eps", 0.01),
        isotropy.Whiten("pca", n_components=5, power=0.5, eps=0.01),
    ),
    "rotate": (
        ("--rotation", "hadamard", "--seed", 2, "--normalize"),
        isotropy.Rotate("hadamard", random_state=2, normalize=True),
    ),
}


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments, stderr=""):
    """stdout of a command that ends well."""
    result = run(*arguments)
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert result.stderr == stderr
    return result.stdout


def refused(*arguments):
    """The one line of a command that does not."""
    result = run(*arguments)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def X():
    random = np.random.default_rng(0)
    rows = random.standard_normal((2000, 8)) * np.linspace(0.5, 2, 8) + np.linspace(-1, 2, 8)
    return rows.astype(np.float32)


@pytest.fixture
def path(X, tmp_path):
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


@pytest.fixture
def saved(X, tmp_path):
    isotropy.Center().fit(X).save(tmp_path / "repair.safetensors")
    return tmp_path / "repair.safetensors"


def test_measure_prints_one_object_keyed_by_metrics(path, X):
    found = json.loads(done("measure", path, "--json", "--chunk-rows", 300))
    default = {name for name, record in METRICS.items() if record.evaluate is not None}
    assert default <= found.keys()
    assert (found["n_samples"], found["n_features"], found["n_skipped"]) == (2000, 8, 0)
    expected = np.linalg.svd(X.astype(np.float64), compute_uv=False)
    np.testing.assert_allclose(found["singular_values"], expected, rtol=1e-6)


def test_measure_prints_a_table_and_a_verdict(path):
    output = done("measure", path)
    assert output.startswith("2,000 rows of 8 dimensions")
    assert "mean_cosine" in output


def test_what_is_undefined_is_null_in_json(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((5, 3)))

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    found = json.loads(done("measure", tmp_path / "x.npy", "--json"), parse_constant=refuse)
    assert found["mean_cosine"] is None


def test_too_little_memory_is_said_in_one_line(path, monkeypatch):
    def no_room(*_, **__):
        raise MemoryError("unable to allocate 8,388,608 bytes")

    monkeypatch.setattr("isotropy.linalg.mapped", no_room)
    line = refused("measure", path)
    assert "there is too little memory (unable to allocate 8,388,608 bytes). Free some" in line


def test_chosen_metrics_alone_are_measured(path):
    found = json.loads(done("measure", path, "--json", "--metrics", "isoscore, mean_cosine"))
    assert found.keys() & METRICS.keys() == {"isoscore", "mean_cosine"}
    line = refused("measure", path, "--metrics", "isoscore,nonsense")
    assert "nonsense" in line
    assert "mean_cosine" in line


def test_hubs_among_few_rows_are_refused_in_words_of_rows(tmp_path):
    np.save(tmp_path / "few.npy", np.random.default_rng(0).standard_normal((8, 3)))
    line = refused("measure", tmp_path / "few.npy", "--metrics", "hubness")
    assert "must have more than 10 rows that are not zero" in line
    assert "got 8. Give more rows" in line


def test_measure_within_clusters(path):
    found = json.loads(done("measure", path, "--json", "--local", 2, "--metrics", "isoscore"))
    assert found["local_isotropy"]["isoscore"]["mean"] > 0
    assert "local_isotropy" in done("measure", path, "--local", 2, "--metrics", "isoscore")


@pytest.mark.parametrize("name", ["torch", "dask"])
def test_measure_with_another_engine_agrees(path, name):
    module = {"torch": "torch", "dask": "distributed"}[name]
    pytest.importorskip(module, reason=f"{name} is not installed")
    line = ("measure", path, "--json", "--chunk-rows", 300)
    options = ("--engine", name, *(("--device", "cpu") if name == "torch" else ()))
    expected, found = (json.loads(done(*line, *more)) for more in ((), options))
    np.testing.assert_allclose(found["singular_values"], expected["singular_values"], rtol=1e-9)
    assert found["mean_cosine"] == pytest.approx(expected["mean_cosine"], rel=1e-9)


def test_a_bad_row_is_left_out_and_reported(X, tmp_path):
    X[7, 2] = np.nan
    np.save(tmp_path / "x.npy", X)
    line = ("measure", tmp_path / "x.npy", "--chunk-rows", 300)
    assert "NaN in 1 row (first: 7, counting from 0)" in refused(*line, "--json")
    report = "1 bad row left out\n"
    found = json.loads(done(*line, "--json", "--skip-bad-rows", stderr=report))
    assert (found["n_skipped"], found["n_samples"]) == (1, 1999)
    result = run(*line, "--skip-bad-rows")
    assert "1 bad row" in result.stdout + result.stderr
    saved, out = tmp_path / "repair.safetensors", tmp_path / "fixed.npy"
    repair = ("repair", tmp_path / "x.npy", "--method", "center", "--out", out, "--save", saved)
    assert done(*repair, "--skip-bad-rows", stderr=report) == ""
    good = np.delete(X, 7, axis=0)
    np.testing.assert_allclose(np.load(out), good - good.mean(axis=0, dtype=float), atol=1e-5)
    apply = ("apply", saved, tmp_path / "x.npy", "--out", tmp_path / "again.npy")
    assert done(*apply, "--skip-bad-rows", stderr=report) == ""
    assert len(np.load(tmp_path / "again.npy")) == 1999


@pytest.mark.parametrize("method", METHODS)
def test_repair_equals_the_same_in_python(path, X, tmp_path, method):
    options, template = METHODS[method]
    out, saved = tmp_path / "fixed.npy", tmp_path / "repair.safetensors"
    line = ("repair", path, "--method", method, *options, "--out", out, "--save", saved)
    assert done(*line, "--note", "some text") == ""
    expected = template.fit(X).transform(X)
    np.testing.assert_allclose(np.load(out), expected, rtol=1e-4, atol=1e-4)
    assert np.load(out).dtype == np.float32
    loaded = isotropy.load(saved)
    assert (loaded.name, loaded.note_) == (method, "some text")
    assert loaded.get_params() == template.get_params()
    assert done("apply", saved, path, "--out", tmp_path / "again.npy", "--chunk-rows", 300) == ""
    np.testing.assert_allclose(np.load(tmp_path / "again.npy"), np.load(out), rtol=1e-5, atol=1e-5)
    assert names(tmp_path) == ["again.npy", "fixed.npy", "repair.safetensors", "x.npy"]


def test_every_method_is_tested_here():
    assert METHODS.keys() == {*Repair.by_name, "rotate"}


def test_several_methods_are_one_repair(path, X, tmp_path):
    out, saved = tmp_path / "fixed.npy", tmp_path / "r"
    line = ("repair", path, "--method", "center, whiten,rotate", "--power", 0.5, "--seed", 3)
    done(*line, "--normalize", "--out", out, "--save", saved)
    repairs = [isotropy.Center(), isotropy.Whiten(power=0.5), isotropy.Rotate(random_state=3)]
    expected = isotropy.Chain(repairs, normalize=True).fit(X)
    np.testing.assert_allclose(np.load(out), expected.transform(X), atol=1e-5)
    assert str(isotropy.load(saved)) == str(expected)
    shown = done("show", saved)
    assert "chain(repairs=[center(normalize=False), whiten(" in shown
    assert json.loads(done("show", saved, "--json"))["params"]["repairs"][2]["method"] == "rotate"


def test_other_columns_survive_a_repair(X, tmp_path):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), X.shape[1])
    words = [f"word {i}" for i in range(len(X))]
    table = pa.table({"text": words, "vector": lists, "id": np.arange(len(X))})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=300)
    out = tmp_path / "fixed.parquet"
    line = ("repair", tmp_path / "x.parquet", "--column", "vector", "--method", "center")
    assert done(*line, "--out", out) == ""
    fixed = pq.read_table(out)
    assert sorted(fixed.column_names) == ["id", "text", "vector"]
    assert fixed["text"].to_pylist() == words
    assert fixed["id"].to_pylist() == list(range(len(X)))
    rows = np.array(fixed["vector"].to_pylist())
    np.testing.assert_allclose(rows, X - X.mean(axis=0, dtype=float), atol=1e-5)


def test_a_target_without_suffix_is_a_folder_of_parts(path, X, tmp_path):
    line = ("repair", path, "--method", "center", "--out", tmp_path / "fixed")
    assert done(*line, "--chunk-rows", 300) == ""
    rows = np.array(pq.read_table(tmp_path / "fixed")[0].to_pylist())
    np.testing.assert_allclose(rows, X - X.mean(axis=0, dtype=float), atol=1e-5)


def test_wrong_combinations_are_refused_before_anything_is_written(path, saved, tmp_path):
    before = names(tmp_path)
    out, kept = ("--out", tmp_path / "fixed.npy"), ("--save", tmp_path / "new.safetensors")
    line = ("repair", path, "--method")
    assert "--out or --save must be given" in refused(*line, "center")
    assert "--n-clusters can't be used with" in refused(*line, "center", "--n-clusters", 3, *kept)
    assert "--whitening can't be used with" in refused(*line, "center", "--whitening", "pca", *kept)
    assert "--seed can't be used with" in refused(*line, "whiten", "--seed", 3, *kept)
    assert "--rotation can't be used with" in refused(*line, "whiten", "--rotation", "itq", *kept)
    assert "--method must be one of 'center'" in refused(*line, "center,turn", *kept)
    assert "--method must be one of 'center'" in refused(*line, "", *kept)
    both = (*line, "all-but-the-top,whiten", "--n-components", 2, *kept)
    assert "--n-components must be for one repair, got 2 that have it" in refused(*both)
    assert "side must be one of" in refused(*line, "all-but-the-top", "--side", "left", *kept)
    assert "must end in one of" in refused(*line, "center", "--out", tmp_path / "x.doc", *kept)
    assert "existing folder" in refused(*line, "center", "--out", tmp_path / "no" / "x.npy", *kept)
    assert "existing" in refused(*line, "center", "--out", tmp_path / "no" / "folder", *kept)
    assert "existing folder" in refused(*line, "center", "--save", tmp_path / "no" / "x", *out)
    assert names(tmp_path) == before


def test_dask_with_a_file_as_target_is_refused_before_the_fit(path, tmp_path):
    pytest.importorskip("distributed", reason="dask is not installed")
    line = ("repair", path, "--method", "center", "--engine", "dask")
    kept = ("--out", tmp_path / "fixed.npy", "--save", tmp_path / "new.safetensors")
    assert "out must be a folder" in refused(*line, *kept)
    assert names(tmp_path) == ["x.npy"]


def test_a_repair_for_another_width_is_refused(saved, tmp_path):
    np.save(tmp_path / "wide.npy", np.ones((10, 9)))
    line = refused("apply", saved, tmp_path / "wide.npy", "--out", tmp_path / "fixed.npy")
    assert "has 9 features, but Center is expecting 8 features" in line
    assert names(tmp_path) == ["repair.safetensors", "wide.npy"]


def test_what_is_no_repair_is_refused(path, tmp_path):
    out = ("--out", tmp_path / "fixed.npy")
    assert "is an array of numpy (.npy), not a repair" in refused("apply", path, path, *out)
    assert "does not exist" in refused("apply", tmp_path / "no.safetensors", path, *out)
    assert names(tmp_path) == ["x.npy"]


def test_swapped_arguments_get_a_hint(path, saved, X, tmp_path):
    out = ("--out", tmp_path / "fixed.npy")
    hint = f"Run: isotropy apply {saved} {path} --out ..."
    said = refused("apply", path, saved, *out)
    assert "REPAIR must come before SOURCE" in said
    assert hint in said
    done("apply", saved, path, *out)


def test_show_says_what_a_saved_repair_is(path, tmp_path):
    began = int(time.time())
    saved = tmp_path / "repair.safetensors"
    line = ("repair", path, "--method", "whiten", "--whitening", "pca", "--n-components", 5)
    done(*line, "--save", saved, "--note", "some text")
    shown = done("show", saved)
    for part in ("whiten(", "n_components=5", "2,000 rows of 8 dim", "rows of 5 dim", "some text"):
        assert part in shown
    assert "one matrix and one bias" in shown
    assert f"isotropy apply {saved} vectors.npy --out fixed.npy" in shown
    found = json.loads(done("show", saved, "--json"))
    assert (found["method"], found["n_features"], found["n_features_out"]) == ("whiten", 8, 5)
    assert found["params"] == isotropy.load(saved).get_params()
    assert found["affine"] is True
    assert began <= datetime.fromisoformat(found["time"]).timestamp() <= time.time()


def test_show_says_how_a_repair_of_tokens_is_applied(X, tmp_path):
    saved = tmp_path / "my repair"
    isotropy.ClusterRemoval(3, 2).fit(X).save(saved, level="token")
    shown = done("show", saved)
    assert "token: the rows of tokens, before pooling" in shown
    assert "not affine" in shown
    assert f"isotropy embed MODEL TEXTS --repair '{saved}'" in shown


def test_apply_warns_of_vectors_of_another_origin(path, tmp_path):
    saved, out = tmp_path / "repair", ("--out", tmp_path / "y.npy", "--overwrite")
    made = ("--origin", "model=hub/minilm", "--origin", "layer=6", "--origin", "normalised=true")
    done("repair", path, "--method", "center", "--save", saved, *made)
    assert "origin     model hub/minilm, layer 6, normalised yes\n" in done("show", saved)
    found = json.loads(done("show", saved, "--json"))["origin"]
    assert found == {"model": "hub/minilm", "layer": 6, "normalised": True}
    done("apply", saved, path, *out)
    done("apply", saved, path, *out, "--origin", "model=minilm", "--origin", "layer=6")
    warning = "apply: the vectors come from layer 5, and those fitted on from layer 6"
    said = run("apply", saved, path, *out, "--origin", "layer=5").exception
    assert isinstance(said, IsotropyWarning)
    assert warning in str(said)
    assert "--origin must be name=value" in refused("apply", saved, path, *out, "--origin", "bert")
    said = refused("apply", saved, path, *out, "--origin", "dimension=many")
    assert "dimension of an origin must be an integer, got 'many'" in said


def test_each_group_has_a_repair_of_its_own(X, tmp_path):
    X = np.asarray(X, dtype=np.float64)
    groups = np.where(np.arange(len(X)) % 3 == 0, "query", "document")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])
    vectors, saved, out = tmp_path / "x.parquet", tmp_path / "repair", tmp_path / "y.parquet"
    pq.write_table(pa.table({"tower": groups, "vector": lists}), vectors)
    column = ("--group-column", "tower")
    line = ("repair", vectors, "--method", "whiten", "--power", 0.5, *column)
    done(*line, "--save", saved, "--out", out)
    expected = np.empty_like(X)
    for name in ("query", "document"):
        expected[groups == name] = isotropy.Whiten(power=0.5).fit_transform(X[groups == name])
    for again in (out, tmp_path / "z.parquet"):
        if again != out:
            done("apply", saved, vectors, *column, "--out", again)
        table = pq.read_table(again)
        np.testing.assert_allclose(np.stack(table["vector"].to_numpy()), expected, atol=1e-6)
        assert table["tower"].to_pylist() == groups.tolist()
    shown = done("show", saved)
    assert "per-group(repair=whiten(" in shown
    assert f"2: document ({(groups == 'document').sum():,} rows), query (" in shown
    assert "--group-column GROUP" in shown
    assert json.loads(done("show", saved, "--json"))["groups"][0]["label"] == "document"
    to = ("--out", tmp_path / "w.parquet")
    said = refused("apply", saved, vectors, *to)
    assert "--group-column must be given for a repair with groups ('document', 'query')" in said
    assert "got 'towers', and there is 'tower'" in refused(
        "apply", saved, vectors, *to, "--group-column", "towers"
    )
    isotropy.Center().fit(X).save(saved, overwrite=True)
    assert "--group-column can't be used with Center" in refused(
        "apply", saved, vectors, *to, *column
    )


def test_show_refuses_what_is_no_repair(path, tmp_path):
    assert "is an array of numpy (.npy), not a repair" in refused("show", path)
    assert "does not exist" in refused("show", tmp_path / "no.safetensors")


def test_apply_warns_of_a_repair_for_tokens_that_is_not_affine(X, tmp_path):
    np.save(tmp_path / "x.npy", X)
    saved, out = tmp_path / "repair", tmp_path / "y.npy"
    clusters, center = isotropy.ClusterRemoval(3, 2).fit(X), isotropy.Center().fit(X)
    for repair, level in ((clusters, "sentence"), (clusters, ""), (center, "token")):
        repair.save(saved, level=level, overwrite=True)
        done("apply", saved, tmp_path / "x.npy", "--out", out, "--overwrite")
    clusters.save(saved, level="token", overwrite=True)
    line = ["apply", saved, tmp_path / "x.npy", "--out", out, "--overwrite"]
    command = [sys.executable, "-m", "isotropy", *map(str, line)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr.count("\n")) == (0, 1)
    assert result.stderr.startswith(
        "warning: apply: ClusterRemoval was chosen for the vectors of tok"
    )
    assert "Use `isotropy embed --repair`" in result.stderr
    assert out.exists()


def test_apply_warns_of_rows_far_from_the_fitted_ones(X, saved, tmp_path):
    far, out = tmp_path / "far.npy", tmp_path / "fixed.npy"
    np.save(far, np.tile(3 * X + 10, (10, 1)))
    line = ["apply", saved, far, "--out", out, "--chunk-rows", 2000]
    command = [sys.executable, "-m", "isotropy", *map(str, line)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("warning: apply: drifted: Frechet distance ")
    assert " 10,000 rows; means " in result.stderr
    expected = "That is a sample of 20,000 rows. Fit Center on rows like these."
    assert result.stderr.endswith(f"{expected}\n")
    assert len(np.load(out)) == 20_000


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """A folder with room for 64 kB, or for nothing where file systems cannot be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        mounted = os.getuid() == 0 and not subprocess.run(command, capture_output=True).returncode
    except OSError:
        mounted = False
    if not mounted:

        def full(*arguments, **options):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("isotropy.sources.sinks.Sink._write", full)
        monkeypatch.setattr("isotropy.sources.columnar.ParquetSink._write", full)
        monkeypatch.setattr("isotropy.repairs.files.save", full)
        monkeypatch.setattr("isotropy.engines.checkpoint.save", full)
    yield folder
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("name", ["fixed.npy", "fixed.parquet", "fixed.safetensors"])
def test_a_full_disk_gives_one_line_and_keeps_what_was_there(
    path, saved, small_disk, name, tmp_path
):
    np.save(path, np.random.default_rng(0).standard_normal((9000, 8)))
    (small_disk / name).write_bytes(b"what was there before")
    options = ("--overwrite", "--chunk-rows", 500)
    line = refused("apply", saved, path, "--out", small_disk / name, *options)
    assert "the disk is full" in line
    assert "nothing was changed" in line
    assert (small_disk / name).read_bytes() == b"what was there before"
    assert names(small_disk) == [name]


@pytest.mark.parametrize("what", ["--save", "--checkpoint"])
def test_a_disk_too_small_for_the_state_gives_one_line(small_disk, tmp_path, what):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((200, 200)))
    line = ["repair", tmp_path / "x.npy", "--method", "whiten"]
    line += [] if what == "--save" else ["--save", tmp_path / "new.safetensors"]
    assert "full" in refused(*line, what, small_disk / "kept")
    assert names(tmp_path) == ["disk", "x.npy"]
    assert names(small_disk) == []


SLOWLY = """
import sys, time
from isotropy import cli
from isotropy.sources import files

read = files.FileSource.read

def slowly(self, chunk):
    time.sleep(0.05)
    yield from read(self, chunk)

files.FileSource.read = slowly
from rich.progress import Progress

def drawn(method):
    def call(self, *arguments, **options):
        method(self, *arguments, **options)
        self.refresh()
    return call

Progress.advance, Progress.update = drawn(Progress.advance), drawn(Progress.update)
cli.app(sys.argv[1:])
"""


def test_a_terminal_gets_a_bar_with_rows_a_second_and_time_left(path):
    ours, theirs = pty.openpty()
    line = [sys.executable, "-c", SLOWLY, "measure", str(path), "--json", "--chunk-rows", "50"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        assert json.loads(process.stdout.read())["n_samples"] == 2000
    os.close(ours)
    assert process.returncode == 0
    text = shown.decode()
    assert "rows/s" in text
    assert "pass 1" in text
    assert re.search(r"\d:\d\d:\d\d", text)


@pytest.mark.slow
def test_real_commands_are_silent_when_piped(path, X, tmp_path):
    def command(*arguments):
        line = [sys.executable, "-m", "isotropy", *map(str, arguments)]
        result = subprocess.run(line, capture_output=True, text=True)
        return result.returncode, result.stdout, result.stderr

    saved, out = tmp_path / "repair.safetensors", tmp_path / "fixed.npy"
    line = ("repair", path, "--method", "cluster-removal", "--n-clusters", 2, "--n-components", 1)
    assert command(*line, "--save", saved) == (0, "", "")
    assert command("apply", saved, path, "--out", out) == (0, "", "")
    expected = isotropy.ClusterRemoval(2, 1).fit(X).transform(X)
    np.testing.assert_allclose(np.load(out), expected, rtol=1e-4, atol=1e-4)
    code, stdout, stderr = command("measure", tmp_path / "no.npy", "--json")
    assert (code, stdout) == (2, "")
    message = f"measure: there is no file {str(tmp_path / 'no.npy')!r}. Check the path."
    assert json.loads(stderr) == {"error": message}


def test_a_warning_does_not_spoil_the_output(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((10, 8)))
    line = ("repair", tmp_path / "x.npy", "--method", "cluster-removal", "--n-components", "1")
    command = [sys.executable, "-m", "isotropy", *map(str, line), "--save", tmp_path / "r"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")
    assert "n_clusters=27 is more than the 10 rows" in result.stderr


def test_the_file_that_is_read_is_not_written_over(tmp_path):
    X = np.random.default_rng(0).standard_normal((50, 4))
    np.save(tmp_path / "x.npy", X)
    isotropy.Center().fit(X).save(tmp_path / "r.safetensors")
    same = ("--out", str(tmp_path / "x.npy"))
    for line in (
        ("repair", str(tmp_path / "x.npy"), "--method", "center", *same),
        ("apply", str(tmp_path / "r.safetensors"), str(tmp_path / "x.npy"), *same),
    ):
        result = CliRunner().invoke(app, line)
        assert result.exit_code == 2
        assert "--out must be another file than SOURCE" in result.stderr
        np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), X)


def test_a_missing_folder_is_called_missing(tmp_path):
    result = CliRunner().invoke(app, ["measure", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "there is no file or folder" in result.stderr


def test_messages_name_options_rather_than_parameters(tmp_path):
    X = np.random.default_rng(0).standard_normal((30, 4))
    X[3, 1] = np.nan
    np.save(tmp_path / "bad.npy", X)
    assert "with --skip-bad-rows" in refused("measure", tmp_path / "bad.npy")
    np.savez(tmp_path / "two.npz", a=X, b=X)
    assert "with --column" in refused("measure", tmp_path / "two.npz")
    line = ("repair", tmp_path / "bad.npy", "--method", "whiten", "--skip-bad-rows")
    said = refused(*line, "--power", -1, "--save", tmp_path / "r.safetensors")
    assert said.startswith("Whiten: --power must be")


def test_a_wrong_choice_is_told_in_plain_words(path):
    said = refused("measure", path, "--engine", "cloud")
    assert said == "Invalid value for '--engine': 'cloud' is not one of 'local', 'torch', 'dask'.\n"
