"""No output is the same file as an input, whatever the two are called, also with --overwrite.

The commands and their outputs are found in the command line itself: a new command, output or
input must be described here before this passes.
"""

from __future__ import annotations

import importlib
import os
import typing
from pathlib import Path

import numpy as np
import pytest
import typer

from isotropy.cli import MODULES, app

FUNCTIONS = {
    name: getattr(importlib.import_module(f"isotropy.cli.{module}"), name)
    for name, module in MODULES.items()
}
COMMANDS = typer.main.get_command(app).commands
WRITTEN = {"out", "save"}  # parameters that name what a command writes
GROWN = {"checkpoint", "cache"}  # folders of ours that go on growing
# What a command reads, and with what else it is called. Of demo, nothing is read.
READ = {
    "measure": (["source"], []),
    "repair": (["source"], ["--method", "center"]),
    "apply": (["repair", "source"], []),
    "calibrate": (["source", "repair"], []),
    "report": (["source", "repair", "evidence", "layers", "against"], []),
    "embed": (["model", "texts", "repair"], []),
    "layers": (["model", "texts", "against"], []),
    "compare": (["model", "data", "fit_on", "query_vectors"], ["--task", "sts"]),
    "advise": (["model", "data", "fit_on", "query_vectors"], ["--task", "sts"]),
    "compress": (["model", "data", "fit_on", "query_vectors"], ["--task", "sts"]),
    "train": (["model", "data", "models"], ["rte"]),
    "reproduce": (["model", "data", "models", "records"], ["drift/isotropy"]),
    "show": (["repair"], []),
    "export": (["repair", "model"], ["--to", "mteb"]),
    "watch": (["repair", "source"], []),
    "doctor": ([], []),
    "demo": ([], []),
}
FOLDERS = {  # inputs that are folders
    command: {"model", "data", "models"} for command in ("train", "reproduce")
}
NOT_FILES = {  # texts that are no files of anybody
    "metrics", "column", "text_column", "device", "scheduler", "title", "note", "side", "whitening",
    "layer", "pool", "repairs", "option", "header", "part", "space", "tasks", "method",
    "experiment", "skip", "search_on", "index", "group_column", "origin", "format", "rotation",
}  # fmt: skip
SUFFIX = {"report": ".html", "layers": ".html", "compress": ".html"}  # that the output must have
SPELLINGS = (
    "same", "relative", "dotted", "doubled", "up and down", "tilde", "url", "short url",
    "symlink", "link to a link", "hard link", "linked folder",
)  # fmt: skip
QUICK = ("same", "url", "symlink")


def flag(command, name):
    """How a parameter is given: its option, or nothing where it has a place of its own."""
    (found,) = (p for p in COMMANDS[command].params if p.name == name)
    return [opt for opt in found.opts[:1] if opt.startswith("--")]


def kinds(annotation):
    """The plain types that an annotation is made of."""
    parts = typing.get_args(annotation)
    return {kind for part in parts for kind in kinds(part)} if parts else {annotation}


def outputs_of(command):
    return [p.name for p in COMMANDS[command].params if p.name in WRITTEN]


PAIRS = [
    (command, written, read)
    for command in COMMANDS
    for written in outputs_of(command)
    for read in READ[command][0]
]


def test_every_parameter_that_may_name_a_file_is_known_here():
    assert READ.keys() == COMMANDS.keys() == FUNCTIONS.keys()
    for command, (read, _) in READ.items():
        known = {*read} | WRITTEN | GROWN | NOT_FILES
        for name, annotation in typing.get_type_hints(FUNCTIONS[command]).items():
            if kinds(annotation) & {str, Path}:
                assert name in known, f"say here what {name} of {command} is"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_writes_can_be_told_to_overwrite(command):
    options = {option for parameter in COMMANDS[command].params for option in parameter.opts}
    assert ("--overwrite" in options) == bool(options & {"--out", "--save"})


def prepared(folder, command):
    """The path of each input of a command, all there."""
    paths = {}
    for i, name in enumerate(READ[command][0]):
        path = folder / f"input{i}{SUFFIX.get(command, '.npy')}"
        if name in FOLDERS.get(command, ()):
            path = path.with_suffix("")
            (path / "inside").mkdir(parents=True)
            (path / "inside" / "config.json").write_text("{}")
        else:
            np.save(folder / "rows.npy", np.eye(4))
            (folder / "rows.npy").rename(path)
        paths[name] = path
    (folder / "sub").mkdir()
    return paths


def spelt(how, path, folder):
    """Another name of a path; links are made."""
    link = folder / "sub" / f"link to {path.name}"
    if how == "relative":
        return path.name
    if how == "dotted":
        return f"./{path.name}"
    if how == "doubled":
        return f"{path.parent}//{path.name}"
    if how == "up and down":
        return f"sub/../{path.name}"
    if how == "tilde":
        return f"~/{path.name}"
    if how == "url":
        return path.as_uri()
    if how == "short url":
        return f"file:{path}"
    if how == "linked folder":
        if not (folder / "door").exists():
            (folder / "door").symlink_to(folder, target_is_directory=True)
        return f"door/{path.name}"
    if how == "hard link" and path.is_file():
        os.link(path, link)
        return str(link)
    if how in ("symlink", "link to a link"):
        link.symlink_to(path)
        if how == "link to a link":
            second = link.with_name(f"second {path.name}")
            second.symlink_to(link)
            return str(second)
        return str(link)
    return str(path)


def called(command, values, written, target):
    """The arguments of a command, with each input where it belongs."""
    read, options = READ[command]
    given = [part for name in read for part in (*flag(command, name), values[name])]
    line = [command, *options, *given, *flag(command, written), target]
    required = [p for p in COMMANDS[command].params if p.required and p.name in WRITTEN]
    others = [p for p in required if p.name != written]
    return [*line, *(part for p in others for part in (p.opts[0], f"other-{p.name}.npy"))]


@pytest.mark.parametrize(
    "how",
    [how if how in QUICK else pytest.param(how, marks=pytest.mark.slow) for how in SPELLINGS],
)
@pytest.mark.parametrize(("command", "written", "read"), PAIRS, ids=map("-".join, PAIRS))
def test_an_input_is_never_an_output(command, written, read, how, refused, folder, monkeypatch):
    if command in ("report", "layers", "reproduce"):
        pytest.importorskip("plotly")
    if command == "train":
        pytest.importorskip("torch")
    monkeypatch.setenv("HOME", str(folder))
    paths = prepared(folder, command)
    target = spelt(how, paths[read], folder)
    place = SPELLINGS.index(how) + len(read) + len(command)
    inputs = ("same", "relative", "url", "tilde", "linked folder")
    values = {name: str(path) for name, path in paths.items()}
    values[read] = spelt(inputs[place % len(inputs)], paths[read], folder)
    for options in ([], ["--overwrite"]):
        line = called(command, values, written, target)
        refused(*line, *options, says=f"--{written} must be another file than ")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if GROWN & {p.name for p in COMMANDS[c].params} and READ[c][0]]
)
def test_an_input_is_never_a_folder_that_grows(command, overwrite, refused, folder):
    if command == "report":
        pytest.importorskip("plotly")
    paths = prepared(folder, command)
    (grown,) = [p.opts[0] for p in COMMANDS[command].params if p.name in GROWN]
    read, options = READ[command]
    given = [part for name in read for part in (*flag(command, name), str(paths[name]))]
    line = [command, *options, *given, grown, str(paths[read[0]])]
    if outputs_of(command):
        line += [f"--{outputs_of(command)[0]}", f"new{SUFFIX.get(command, '.npy')}"]
        line += ["--overwrite"] if overwrite else []
    refused(*line, says=f"{grown} must be another file than ")
