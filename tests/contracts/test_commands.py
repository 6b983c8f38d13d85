"""One contract over every command: help with examples, and one line for bad input."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

import isotropy
from isotropy.cli import app

COMMANDS = typer.main.get_command(app).commands
TAKING_SOURCES = [
    name
    for name, command in COMMANDS.items()
    if any(parameter.name == "source" for parameter in command.params)
]
ENGINE_OPTIONS = (
    "--engine",
    "--device",
    "--scheduler",
    "--worker-timeout",
    "--column",
    "--chunk-rows",
)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def truncated(folder):
    np.save(folder / "x.npy", np.ones((9, 4)))
    (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:200])
    return folder / "x.npy", (), "is truncated"


def mixed_widths(folder):
    lists = [[1.0, 2.0, 3.0, 4.0]] * 5 + [[1.0, 2.0]]
    pq.write_table(pa.table({"vector": lists}), folder / "x.parquet")
    return folder / "x.parquet", (), "width|lengths|values"


def empty(folder):
    (folder / "x.npy").write_bytes(b"")
    return folder / "x.npy", (), "is empty"


def text_named_npy(folder):
    (folder / "x.npy").write_text("these are words\n" * 9)
    return folder / "x.npy", (), "not a .npy file"


def missing_column(folder):
    pq.write_table(pa.table({"vector": [[1.0, 2.0, 3.0, 4.0]] * 5}), folder / "x.parquet")
    return folder / "x.parquet", ("--column", "embedding"), "'embedding'"


def missing_file(folder):
    return folder / "x.npy", (), "there is no file"


def unknown_suffix(folder):
    (folder / "x.doc").write_text("1 2 3")
    return folder / "x.doc", (), "must have a suffix"


def empty_folder(folder):
    (folder / "x").mkdir()
    return folder / "x", (), "holds no file of vectors"


def bad_row(folder):
    rows = np.ones((50, 4))
    rows[17, 3] = np.nan
    np.save(folder / "x.npy", rows)
    return folder / "x.npy", ("--chunk-rows", 7), r"NaN in 1 row \(first: 17, counting from 0\)"


def bad_row_of_several_files(folder):
    (folder / "x").mkdir()
    rows = np.ones((50, 4))
    np.save(folder / "x" / "a.npy", rows)
    rows[17, 3] = np.inf
    np.save(folder / "x" / "b.npy", rows)
    return folder / "x", ("--chunk-rows", 7), r"infinity in 1 row \(first: 17 of '.*b\.npy'"


def only_bad_rows(folder):
    np.save(folder / "x.npy", np.full((50, 4), np.nan))
    return folder / "x.npy", ("--skip-bad-rows",), "rows"


def wrong_device(folder):
    np.save(folder / "x.npy", np.ones((50, 4)))
    return folder / "x.npy", ("--device", "cpu"), "--device needs --engine torch, got local"


def wrong_scheduler(folder):
    np.save(folder / "x.npy", np.ones((50, 4)))
    return folder / "x.npy", ("--scheduler", "tcp://x:1"), "--scheduler needs --engine dask"


BAD = (
    truncated,
    mixed_widths,
    empty,
    text_named_npy,
    missing_column,
    missing_file,
    unknown_suffix,
    empty_folder,
    bad_row,
    bad_row_of_several_files,
    only_bad_rows,
    wrong_device,
    wrong_scheduler,
)


@pytest.fixture
def arguments(tmp_path):
    """arguments(command, source) that would be right for a good source of four features."""

    def make(command, source):
        out = ("--out", tmp_path / "fixed.npy")
        saved = tmp_path / "repair.safetensors"
        if command == "measure":
            return ("measure", source)
        if command == "report":
            pytest.importorskip("plotly")
            return ("report", source, "--out", tmp_path / "page.html")
        if command == "repair":
            return ("repair", source, "--method", "center", *out, "--save", saved)
        if command == "calibrate":
            return ("calibrate", source, "--save", saved)
        assert command in ("apply", "watch"), f"say here how {command} is called"
        isotropy.Center().fit(np.eye(4)).save(saved, overwrite=True)
        return (command, saved, source, *(out if command == "apply" else ()))

    return make


def test_there_are_commands():
    assert {"measure", "repair", "apply", "demo"} <= COMMANDS.keys()
    assert {"compare", "advise", "calibrate", "embed", "layers"} <= COMMANDS.keys()
    assert {"measure", "repair", "apply", "calibrate"} <= set(TAKING_SOURCES)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_a_sentence_and_examples(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert f"Usage: isotropy {command}" in result.stdout
    assert "Examples:" in result.stdout
    assert f"isotropy {command}" in result.stdout.split("Examples:")[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_help_text(command):
    for parameter in COMMANDS[command].params:
        assert getattr(parameter, "help", None), f"{parameter.name} of {command} has no help"


@pytest.mark.parametrize("command", TAKING_SOURCES)
def test_the_same_options_choose_engine_and_rows(command):
    names = {name for parameter in COMMANDS[command].params for name in parameter.opts}
    assert {*ENGINE_OPTIONS, "--skip-bad-rows"} <= names


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.__name__)
@pytest.mark.parametrize("command", TAKING_SOURCES)
def test_bad_input_gives_one_line_and_writes_nothing(command, bad, arguments, tmp_path):
    source, options, match = bad(tmp_path)
    line = arguments(command, source)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    result = run(*line, *options)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert re.search(match, result.stderr), result.stderr
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("command", TAKING_SOURCES)
def test_a_wrong_option_gives_no_traceback(command, arguments, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((5, 4)))
    for wrong in (("--engine", "spark"), ("--chunk-rows", "0"), ("--nonsense",)):
        result = run(*arguments(command, tmp_path / "x.npy"), *wrong)
        assert result.exit_code == 2
        assert isinstance(result.exception, SystemExit)
        assert wrong[0] in result.stderr
        assert result.stdout == ""
        assert not (tmp_path / "fixed.npy").exists()
