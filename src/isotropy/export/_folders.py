"""Copies of a model's folder, with some files changed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from isotropy.errors import InputError, needs, one_line
from isotropy.models import first_line
from isotropy.repairs import Repair
from isotropy.sources import guard, output_path
from isotropy.writing import MARKER, NewFolder, quoted, write_errors

LEFT_OUT = shutil.ignore_patterns(MARKER, ".git", ".cache")
CARD = "README.md"


def local(model: Any) -> Path:
    """The folder of a model; one on the hub is downloaded."""
    path = Path(os.path.expanduser(os.fspath(model)))
    if path.is_dir():
        return path
    if path.exists() or path.is_absolute():
        raise InputError(f"model must be a folder or a name on the hub, got {quoted(model)}.")
    with needs("huggingface_hub", "models"):
        from huggingface_hub import snapshot_download
    try:
        return Path(snapshot_download(os.fspath(model)))
    except (OSError, ValueError) as error:
        raise InputError(
            f"model must be a folder or a name on the hub, got {quoted(model)} "
            f"({first_line(error)}). Check the name, or download it first."
        ) from error


def expect_outside(folder: Path, out: Any, overwrite: bool) -> Path:
    """The path of the new folder; raise unless it can be written, and is not in the old one."""
    guard({"out": out}, {"model": folder}, overwrite=overwrite)
    target = Path(os.path.realpath(output_path(out, "out")))
    if target.is_relative_to(folder.resolve()):
        raise InputError(f"out must not be in the folder of model, got {quoted(out)}.")
    return target


@contextlib.contextmanager
def copied(folder: Path, target: Path, overwrite: bool) -> Iterator[Path]:
    """A copy of a folder, which gets the name of the target at the end, or is removed."""
    new = NewFolder(target, overwrite)
    try:
        with write_errors(target):
            new.begin()
            part = Path(new.part)
            shutil.copytree(
                folder, part, ignore=LEFT_OUT, copy_function=shutil.copy, dirs_exist_ok=True
            )
            for place, _, _ in os.walk(part):  # those of a shared store may be read-only
                os.chmod(place, os.stat(place).st_mode | stat.S_IRWXU)
            yield part
            new.finish()
    finally:
        new.discard()


def put(path: Path, data: bytes) -> None:
    """Write a file in a copied folder."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)  # a copy may be read-only
    path.write_bytes(data)


def put_json(path: Path, values: Any) -> None:
    put(path, json.dumps(values, indent=2).encode())


def put_card(folder: Path, repair: Repair, **facts: str) -> None:
    """Append the section on the repair to the model card."""
    path = folder / CARD
    text = path.read_bytes() if path.is_file() else b""
    put(path, text + card(repair, **facts).encode())


def card(repair: Repair, **facts: str) -> str:
    """The section of a model card on the repair, with further facts."""
    rows = f"{repair.n_samples_seen_:,} {repair.level_}".rstrip() + " vectors"
    told = {
        "Repair": f"`{one_line(repr(repair))}`",
        "Fitted on": f"{rows} of width {repair.n_features_in_}",
        "Their origin": one_line(str(replace(repair.origin_, evidence=None)) or "not recorded"),
        "Evidence": one_line(repair.origin_.evidence or "not recorded"),
        "Note": one_line(getattr(repair, "note_", "") or "none"),
    }
    lines = [f"- {name}: {value}" for name, value in (told | facts).items()]
    words = "The vectors of this model are repaired by [isotropy](https://pypi.org/p/isotropy)."
    return "\n".join(["\n\n## Repair", "", words, "", *lines, ""])
