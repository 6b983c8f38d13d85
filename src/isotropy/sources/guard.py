"""The rule for outputs: never replace a file that is read, nor anything else unless asked to."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from isotropy.errors import InputError
from isotropy.sources import paths
from isotropy.sources.arrays import mapped_files
from isotropy.sources.base import Source
from isotropy.writing import is_ours, is_stream, quoted, status

DRAWN = (".html", ".htm", ".svg", ".png", ".pdf")  # never read, wherever they are

Identity = tuple[Any, ...]


def guard(
    outputs: Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    *,
    kept: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Raise unless every output can be written without losing anything.

    An output must not be an input, nor a folder that contains one, however they are spelled: links,
    `~` and file:// are followed to the file itself. Two outputs must differ. Existing files are
    replaced only with `overwrite`, and existing folders only if, in addition, we wrote everything
    in them. Pipes and devices are written to as they are.

    Parameters
    ----------
    outputs, inputs : mappings
        Paths by the name that messages use for them, such as "--out". None is ignored. An input
        may be a list, a glob, a folder, a source, or an array mapped from disk.
    kept : mapping, optional
        Folders that we add to, such as a checkpoint. They may exist.
    overwrite : bool
    """
    new = {name: output_path(path, name) for name, path in outputs.items() if path is not None}
    grown = {name: paths.normal(path) for name, path in (kept or {}).items() if path is not None}
    _expect_distinct(new | grown)
    read = [(name, path) for name, one in (inputs or {}).items() for path in _read(one)]
    _expect_unread(new, grown, read)
    for name, path in new.items():
        _expect_room(name, path, overwrite)


def output_path(path: Any, name: str) -> str:
    """The absolute local path of an output; messages call it `name`."""
    try:
        found = paths.normal(path)
    except TypeError as error:
        raise InputError(f"{name} must be a path, got {quoted(path)}.") from error
    if paths.is_remote(found):
        raise InputError(
            f"{name} must be a local file, got {quoted(found)}. Write here, then copy it."
        )
    if "\0" in found:
        raise InputError(f"{name} must be a path, got {quoted(found)}.")
    return found


def _expect_distinct(outputs: dict[str, str]) -> None:
    seen: dict[Identity, str] = {}
    for name, path in outputs.items():
        for place in [_identity(path), *_places_above(path)]:
            if place in seen:
                raise InputError(
                    f"{name} must be another file than {seen[place]}, and not in it, got "
                    f"{quoted(path)}. Choose another name."
                )
        seen[_identity(path)] = name
    for name, path in outputs.items():  # the other way round: an earlier one inside a later one
        for place in _places_above(path):
            if place in seen and seen[place] != name:
                raise InputError(
                    f"{name} must not be in {seen[place]}, got {quoted(path)}. Choose another name."
                )


def _expect_unread(new: dict[str, str], grown: dict[str, str], read: list[tuple[str, str]]) -> None:
    there = {name: path for name, path in (new | grown).items() if status(path) is not None}
    if not there:
        return
    files = {_identity(path): name for name, path in read}
    for name, path in there.items():
        other = files.get(_identity(path))
        if other is not None:
            raise InputError(
                f"{name} must be another file than {other}, got {quoted(path)} for both. "
                "What is read would be lost; choose another name."
            )
    replaced = {name: path for name, path in there.items() if name in new}
    for name, path in replaced.items():
        if not os.path.isdir(path):
            continue
        for other, source in read:
            if _identity(path) in _places_above(source):
                raise InputError(
                    f"{name} must not be a folder that holds {other}, got {quoted(path)}. "
                    "What is read would be lost; choose another name."
                )
    for other, folder in read:
        if os.path.isdir(folder):
            _expect_outside(replaced, other, folder)


def _expect_outside(outputs: dict[str, str], other: str, folder: str) -> None:
    """Raise if an existing output is among the files of an input folder."""
    wanted = {
        _identity(path): (name, path)
        for name, path in outputs.items()
        if os.path.splitext(path)[1].lower() not in DRAWN
    }
    if not wanted:
        return
    for inside in _files_below(folder):
        if _identity(inside) in wanted:
            name, path = wanted[_identity(inside)]
            raise InputError(
                f"{name} must be another file than those in {other}, got {quoted(path)}. "
                "What is read would be lost; choose another name."
            )


def _expect_room(name: str, path: str, overwrite: bool) -> None:
    """Raise if something is in the way, or there is no folder to write to."""
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if is_stream(path):
        return
    if os.path.islink(target):
        raise InputError(f"{name} must not be a link to itself, got {quoted(path)}.")
    if not os.path.isdir(folder):
        raise InputError(
            f"{name} must be in an existing folder, got {quoted(path)}. Make it first."
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"{name} must be in a folder that can be written, got {quoted(path)}. Choose another."
        )
    if not os.path.lexists(target):
        return
    if os.path.isdir(target) and not is_ours(target):
        raise InputError(
            f"{name} must not be a folder with files that isotropy did not write, or "
            f"that have changed since, got {quoted(path)}. Choose a new folder, or delete it first."
        )
    if not overwrite:
        how = "Add --overwrite" if name.startswith("--") else "Pass overwrite=True"
        raise InputError(f"{name} {quoted(path)} exists. {how} to replace it.")


def _read(value: Any) -> Iterator[str]:
    """The local paths of an input; a folder is one path, and so is each file of a glob."""
    if isinstance(value, (str, os.PathLike)):
        path = paths.normal(value)
        if paths.is_remote(path) or "\0" in path:
            return
        if status(path) is not None:
            yield path
        elif paths.is_pattern(path):
            yield from paths.matches(path)
    elif isinstance(value, (list, tuple)):
        if all(isinstance(one, (str, os.PathLike)) for one in value):
            for one in value:
                yield from _read(one)
    else:
        yield from _read(value.paths if isinstance(value, Source) else mapped_files(value))


def _identity(path: str) -> Identity:
    """What identifies a file, however its path is spelled.

    For a file that does not exist yet, its folder and its name in lower case: no one needs two
    outputs whose names differ only in case.
    """
    found = status(path)
    if found is not None:
        return found.st_dev, found.st_ino
    folder, name = os.path.split(os.path.realpath(path))
    above = status(folder)
    plain = unicodedata.normalize("NFC", name).casefold()
    return (folder if above is None else (above.st_dev, above.st_ino)), plain


def _places_above(path: str) -> Iterator[Identity]:
    """The folders above a path."""
    folder = os.path.dirname(os.path.realpath(path))
    while True:
        yield _identity(folder)
        above = os.path.dirname(folder)
        if above == folder:
            return
        folder = above


def _files_below(folder: str) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        for name in names:
            yield os.path.join(place, name)
        yield place
