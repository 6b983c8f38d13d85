"""Every message is one line of bounded length; with --json it is one JSON line."""

from __future__ import annotations

import errno
import importlib
import json
import os

import numpy as np
import pytest

import isotropy
from isotropy.errors import InputError, IsotropyWarning, MissingExtraError, one_line

from . import forging
from .conftest import one_clear_line

ODD = ["\x1b[31mred", "a\nb", "a\rb", "\u202eevil", "\x00", "\x07", "\ud800", "\u2028", "\x9b1m"]
LONG = "x" * 10_000


@pytest.mark.parametrize("kind", [InputError, MissingExtraError, IsotropyWarning])
@pytest.mark.parametrize("text", [*ODD, LONG, LONG * 100, "\n" * 10_000, "\U0001f600" * 10_000])
def test_messages_are_bounded_and_escaped(kind, text):
    message = str(kind(f"caller: argument must be short, got {text}. What to do is at the end."))
    assert message.startswith("caller: argument must be short, got ")
    assert message.endswith("What to do is at the end.")
    assert len(message) <= 500
    assert message.isprintable()


@pytest.mark.parametrize("text", ["", "short", "x" * 500, "é" * 500, "a b\\n"])
def test_what_is_short_and_printable_stays_as_it_is(text):
    assert one_line(text) == text


@pytest.mark.parametrize("n", [20, 60, 500])
@pytest.mark.parametrize("length", [19, 20, 21, 59, 61, 499, 501, 1001, 5000])
def test_the_length_is_kept(n, length):
    assert len(one_line("\x1b" * length, n)) <= n
    assert len(one_line("a" * length, n)) == min(n, length)


LINES = {
    "a source of many letters": ("measure", LONG),
    "a source with escapes": ("measure", "\x1b[31m\n.npy"),
    "a column of many letters": ("measure", "x.npy", "--column", LONG),
    "metrics of many letters": ("measure", "x.npy", "--metrics", LONG),
    "metrics with escapes": ("measure", "x.npy", "--metrics", "\x1b[31m\n"),
    "an option that is none": ("measure", "x.npy", f"--{LONG}"),
    "a number that is none": ("measure", "x.npy", "--seed", LONG),
    "an engine that is none": ("measure", "x.npy", "--engine", "\x1b[31m" + LONG),
    "a command that is none": (LONG,),
    "a repair of many letters": ("show", LONG),
    "a method of many letters": ("repair", "x.npy", "--method", LONG, "--save", "r"),
    "a task option that is none": (
        *("compare", "x.npy", "--task", "sts", "--data", "pairs.tsv"),
        *("--option", f"{LONG}=1"),
    ),
}


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("case", LINES)
def test_what_users_type_is_shown_in_one_bounded_line(folder, refused, case, as_json):
    np.save("x.npy", forging.ROWS)
    (folder / "pairs.tsv").write_text("score\tsentence1\tsentence2\n1\ta\tb\n2\tc\td\n")
    said = refused(*LINES[case], *(["--json"] if as_json else []))
    if as_json:
        assert list(json.loads(said)) == ["error"]


WITH_JSON = {
    "measure": ("measure", "gone.npy"),
    "show": ("show", "gone"),
    "calibrate": ("calibrate", "gone.npy"),
    "compare": ("compare", "gone.npy", "--task", "sts", "--data", "gone.tsv"),
    "advise": ("advise", "gone.npy", "--task", "sts", "--data", "gone.tsv"),
    "layers": ("layers", "./gone", "gone.txt"),
    "doctor": ("doctor", "--what"),
    "train": ("train", "--what"),
    "reproduce": ("reproduce", "--what"),
}


@pytest.mark.parametrize("command", WITH_JSON)
def test_with_json_an_error_is_one_json_line(folder, run, command):
    plain, found = run(*WITH_JSON[command]), run(*WITH_JSON[command], "--json")
    assert (plain.exit_code, found.exit_code) == (2, 2)
    assert plain.stdout == found.stdout == ""
    one_clear_line(found.stderr)
    assert json.loads(found.stderr) == {"error": plain.stderr.strip("\n")}


def test_after_two_dashes_json_is_a_name(refused):
    assert refused("show", "--", "--json") == "show: '--json' does not exist, or is not a file."


def test_with_json_warnings_do_not_break_what_is_printed(folder, done):
    np.save("x.npy", forging.ROWS[:3])
    found = done("measure", "x.npy", "--json")
    assert json.loads(found.stdout)["n_samples"] == 3
    for line in found.stderr.splitlines():
        assert list(json.loads(line)) == ["warning"]


@pytest.mark.parametrize("name", ["source", "cls", "self", "kind", "head", "", "a b", "\x1b"])
@pytest.mark.parametrize("command", ["compare", "advise"])
def test_an_option_that_the_task_does_not_have_gets_one_line(folder, refused, command, name):
    np.save("x.npy", forging.ROWS)
    (folder / "pairs.tsv").write_text("score\tsentence1\tsentence2\n1\ta\tb\n2\tc\td\n")
    line = (command, "x.npy", "--task", "sts", "--data", "pairs.tsv", "--option", f"{name}=x")
    refused(*line, says=f"{command}: ")


@pytest.mark.parametrize("value", [None, 5, 1.5, b"r", ["r"], {}, np.zeros(3)])
def test_a_path_that_is_none_gets_one_line(folder, raises, value):
    raises(isotropy.load, value, says="load: path must be a path, got ")
    raises(isotropy.ScoreCalibrator.load, value, says="load: path must be a path, got ")


READ_ONLY = ["file/report.html", "/proc/report.html", "/proc/self/report.html"]


@pytest.mark.parametrize("out", READ_ONLY)
def test_a_report_where_nothing_can_be_written_gets_one_line(folder, refused, out):
    pytest.importorskip("plotly")
    np.save("x.npy", forging.ROWS)
    (folder / "file").write_text("mine")
    refused("report", "x.npy", "--out", out, says="report: ")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_report_into_a_folder_that_refuses_it_gets_one_line(folder, refused, monkeypatch, code):
    pytest.importorskip("plotly")
    np.save("x.npy", forging.ROWS)

    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(importlib.import_module("isotropy.report.page"), "atomic_write", refuse)
    refused("report", "x.npy", "--out", "report.html", says="could not be written")
