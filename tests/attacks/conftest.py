"""Attacks end in one of two ways: a right result, or one clear line that loses nothing."""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isotropy.cli import app
from isotropy.errors import IsotropyError

LONGEST = 600  # characters of a message


def snapshot(folder):
    """What lies in a folder: of every path its kind, permissions, and bytes or link target."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("folder", mode)
        else:
            found[name] = ("file", mode, hashlib.sha256(path.read_bytes()).hexdigest())
    return found


def one_clear_line(message, says=""):
    """Asserts that a message is one line of bounded length, without control characters."""
    assert message.strip(), "there is no message"
    assert "\n" not in message.strip("\n"), message
    assert "Traceback" not in message, message
    assert len(message) <= LONGEST, f"{len(message)} characters: {message[:200]}"
    assert message.strip("\n").isprintable(), ascii(message)
    assert says in message, message


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, which is the working folder too."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder):
    """Runs a command in this process."""

    def invoke(*arguments, **options):
        with warnings.catch_warnings():  # what the command sets does not outlive it
            return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)

    return invoke


@pytest.fixture
def refused(run, folder):
    """Asserts that a command exits with 2 and one clear line, and changes nothing on disk."""

    def check(*arguments, says="", **options):
        before = snapshot(folder)
        result = run(*arguments, **options)
        assert isinstance(result.exception, SystemExit), repr(result.exception)
        assert result.exit_code == 2, (result.exit_code, result.output)
        one_clear_line(result.stderr, says)
        assert snapshot(folder) == before
        return result.stderr.strip()

    return check


@pytest.fixture
def done(run, folder):
    """Asserts that a command ends well and writes the named outputs and nothing else."""

    def check(*arguments, writes=(), **options):
        before = snapshot(folder)
        result = run(*arguments, **options)
        assert result.exit_code == 0, (result.stderr, repr(result.exception))
        after = snapshot(folder)
        written = {name for name in after if after[name] != before.get(name)}
        tops = {Path(name).parts[0] for name in written if after[name][0] != "folder"}
        assert tops <= {str(name) for name in writes}, written
        assert set(before) <= set(after), "something was deleted"
        return result

    return check


@pytest.fixture
def raises(folder):
    """Asserts that a call raises one clear line of ours, and changes nothing on disk."""

    def check(function, *arguments, says="", error=IsotropyError, **options):
        before = snapshot(folder)
        with pytest.raises(error) as caught:
            function(*arguments, **options)
        one_clear_line(str(caught.value), says)
        assert snapshot(folder) == before
        return str(caught.value)

    return check
