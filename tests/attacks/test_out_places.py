"""Places that are written to: one way to read a name, and nothing lost where a run is killed."""

from __future__ import annotations

import errno
import os
import re

import numpy as np
import pytest

import isotropy
from isotropy import writing
from isotropy.errors import InputError
from isotropy.models.cache import Cache
from isotropy.sources import open_sink

X = np.random.default_rng(0).standard_normal((40, 4))


@pytest.fixture
def home(folder, monkeypatch):
    place = folder / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("USERPROFILE", str(place))
    np.save("x.npy", X)
    return place


def parts(rows, **options):
    with open_sink("parts", 4, **options) as sink:
        sink.write(rows)


def test_a_folder_that_is_replaced_outlives_a_kill_between_two_renames(folder, monkeypatch):
    parts(X)
    renamed = os.rename

    def killed(one, other):
        if other == os.path.realpath("parts"):
            raise SystemExit
        renamed(one, other)

    monkeypatch.setattr(writing, "_exchanged", lambda one, other: False)
    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(SystemExit):
        parts(2 * X, overwrite=True)
    monkeypatch.setattr(os, "rename", renamed)
    writing._swept.clear()
    writing.sweep(os.getcwd())
    (left,) = os.listdir(".")
    assert re.fullmatch(r"\.parts\.[0-9a-f]{16}\.isotropy-old", left)
    assert isotropy.open(left).n_samples == 40


def test_what_somebody_put_there_is_kept_where_it_cannot_be_put_back(folder, monkeypatch):
    parts(X)
    exchanged = writing._exchanged
    if not exchanged("parts", "parts"):
        pytest.skip("this file system cannot exchange two folders")
    calls = []

    def once(one, other):
        calls.append(one)
        if len(calls) > 1:
            return False
        with open("parts/mine.txt", "w") as file:
            file.write("mine")
        return exchanged(one, other)

    monkeypatch.setattr(writing, "_exchanged", once)
    with pytest.raises(InputError, match="has appeared or changed"):
        parts(2 * X, overwrite=True)
    (aside,) = (name for name in os.listdir(".") if name.endswith("-old"))
    assert "mine.txt" in os.listdir(aside)


def test_a_file_is_closed_before_it_is_renamed_where_open_files_cannot_be(folder, monkeypatch):
    monkeypatch.setattr(writing, "fcntl", None)  # as on Windows
    replace = os.replace
    new = writing.NewFile("x.txt", True)

    def closed(one, other):
        assert new._handle is None
        replace(one, other)

    monkeypatch.setattr(os, "replace", closed)
    try:
        new.begin().write_text("1")
        new.finish()
    finally:
        new.discard()
    assert os.listdir(".") == ["x.txt"]


@pytest.mark.parametrize("code", [errno.EEXIST, errno.ENOTEMPTY])
def test_a_folder_that_another_run_has_filled_is_said_so(code):
    told = pytest.raises(InputError, match="something else writes there")
    with told, writing.write_errors("parts"):
        raise OSError(code, os.strerror(code))


def test_a_checkpoint_is_where_its_name_says(home):
    for name in ("~/ck", f"file://{home}/other"):
        isotropy.measure("x.npy", checkpoint=name)
    assert sorted(os.listdir(home)) == ["ck", "other"]
    assert sorted(os.listdir(".")) == ["home", "x.npy"]


def test_a_checkpoint_is_local(raises):
    np.save("x.npy", X)
    raises(isotropy.measure, "x.npy", checkpoint="s3://b/ck", says="a local file")


def test_a_cache_is_where_its_name_says(home):
    Cache("~/kept", {"model": "a"})
    assert os.listdir(home) == ["kept"]


def test_records_of_training_are_where_their_name_says(home):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from isotropy.trial.trial import Trial

    assert Trial(["rte"], ["m"], ["none"], "~/records").out == str(home / "records")


@pytest.mark.parametrize("name", ["~/r.safetensors", "file://{home}/r.safetensors"])
def test_a_repair_is_loaded_from_where_it_was_saved(name, home):
    name = name.format(home=home)
    isotropy.Center().fit(X).save(name)
    np.testing.assert_allclose(isotropy.load(name).transform(X), X - X.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("line", ["repair x.npy --method center", "apply r x.npy"])
def test_rows_do_not_go_to_standard_output(line, folder, refused):
    np.save("x.npy", X)
    isotropy.Center().fit(X).save("r")
    refused(*line.split(), "--out", "-", says="rows cannot go to standard output")


def test_a_checkpoint_that_cannot_be_read_is_said_so(folder, monkeypatch):
    os.mkdir("ck")
    np.save("x.npy", X)

    def denied(self):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("pathlib.Path.iterdir", denied)
    before = set(os.listdir("."))
    with pytest.raises(InputError, match=r"measure: checkpoint 'ck' must be readable"):
        isotropy.measure("x.npy", checkpoint="ck")
    assert set(os.listdir(".")) == before


def test_what_was_found_is_printed_before_it_is_saved(folder, run, monkeypatch):
    np.save("x.npy", np.random.default_rng(0).standard_normal((400, 4)))

    def full(self, path, **options):
        raise InputError(f"save: {path} could not be written: no room.")

    monkeypatch.setattr(isotropy.ScoreCalibrator, "save", full)
    found = run("calibrate", "x.npy", "--save", "c.safetensors")
    assert found.exit_code != 0
    assert "threshold for a false-match rate of 0.01" in found.stdout
