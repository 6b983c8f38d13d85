"""One safetensors file per repair, codec or calibrator: arrays, and a JSON header for the rest."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Container, Iterable, Iterator
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray
from safetensors.numpy import save

from isotropy import stored
from isotropy._version import __version__
from isotropy.errors import InputError, InputTypeError, RepairFileError, brief, one_line
from isotropy.sources import guard, listed, output_path, paths
from isotropy.stored import checksum
from isotropy.writing import atomic_write, quoted, write_errors

FORMAT = 1
LONGEST_NOTE = 10_000  # characters
SIGNATURES = {
    b"\x93NUMPY": "an array of numpy (.npy)",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x89HDF": "an HDF5 file",
    b"GGUF": "a GGUF model",
    b"PK\x03\x04": "a zip file, such as .npz or .pt",
    b"\x1f\x8b": "a gzip file",
}
TEXTS = (".csv", ".json", ".jsonl", ".md", ".tsv", ".txt", ".vec")
NAME_IT = "Name the file that --save or `save` wrote."


def write(
    path: Any,
    header: dict[str, Any],
    tensors: dict[str, NDArray[Any]],
    kind: str = "repair",
    *,
    overwrite: bool = False,
) -> None:
    """Write header and tensors, completely or not at all."""
    check_note(header["note"], end=".")
    check_target({"path": path}, overwrite=overwrite)
    tensors = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    complete = header | {
        "format": FORMAT,
        "versions": {
            "isotropy": __version__,
            "numpy": np.__version__,
            "scikit-learn": sklearn.__version__,
        },
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    try:
        complete = json.loads(json.dumps(complete, default=_number))
        text = json.dumps(complete | {"checksum": checksum(complete, tensors)})
    except TypeError as error:
        raise InputError(f"parameters must be plain values: {error}.") from error
    target = paths.normal(path)
    with write_errors(target), atomic_write(target, overwrite=overwrite) as part:
        part.write_bytes(save(tensors, metadata={f"isotropy.{kind}": text}))


def check_target(
    outputs: dict[str, Any], inputs: dict[str, Any] | None = None, **options: Any
) -> None:
    """Raise if a file could not be saved; see `guard` for the parameters."""
    for name, path in outputs.items():
        if path is not None and os.path.isdir(output_path(path, name)):
            raise InputError(f"{name} must be a file, got the folder {quoted(path)}.")
    guard(outputs, inputs, **options)


def read(
    path: Any, methods: Container[str], kind: str = "repair"
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and tensors of a file that `write` wrote; raises RepairFileError for other files.

    The file is complete and of this format. Its contents are still to be checked, by
    `check_header` and by the fields that the method declares.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InputTypeError(f"path must be a path, got {type(path).__name__}.")
    name, path = quoted(path), paths.normal(path)
    if not os.path.isfile(path):
        raise RepairFileError(f"{name} does not exist, or is not a file.")
    try:
        with stored.open_safetensors(path) as file:
            text = file.metadata.get(f"isotropy.{kind}")
            arrays = sorted(file.entries)
            tensors = {} if text is None else file.arrays()
    except InputError as error:
        if other := other_kind(path):
            raise RepairFileError(f"{name} is {other}, not a {kind}. {NAME_IT}") from None
        raise RepairFileError(
            f"{name} is damaged or not a safetensors file ({error}). Save it again."
        ) from None
    if text is None:
        raise RepairFileError(
            f"{name} is a safetensors file, but holds no {kind}, only {listed(arrays, 3)}. "
            f"{NAME_IT}"
        )
    try:
        header = stored.parse_json(text)
        expect(header, dict, "the header", "an object")
        for key, type_, words in (("format", int, "an integer"), ("method", str, "a name")):
            expect(header.get(key), type_, key, words)
    except InputError as error:
        raise RepairFileError(f"{name} has a damaged header: {error}. Save it again.") from None
    versions = header.get("versions")
    writer = versions.get("isotropy") if isinstance(versions, dict) else None
    writer = one_line(writer, 30) if isinstance(writer, str) else "unknown"
    if header["format"] != FORMAT or header["method"] not in methods:
        raise RepairFileError(
            f"{name} holds {one_line(repr(header['method']), 60)} in format "
            f"{one_line(header['format'], 20)}, written by isotropy {writer}; this is "
            f"isotropy {__version__}, which reads format {FORMAT}. Upgrade isotropy."
        )
    if header.pop("checksum", None) != checksum(header, tensors):
        raise RepairFileError(f"{name} is damaged: its checksum does not fit. Save again.")
    return header, tensors


def other_kind(path: str) -> str | None:
    """What a file is that is no safetensors file, by its first bytes or its suffix."""
    with open(path, "rb") as file:
        start = file.read(8)
    suffix = os.path.splitext(path)[1].lower()
    known = (words for mark, words in SIGNATURES.items() if start.startswith(mark))
    return next(known, f"a {suffix} file" if suffix in TEXTS else None)


def holds(path: Any, kind: str) -> bool:
    """Whether there is a safetensors file at the path that holds something of this kind."""
    if not isinstance(path, (str, os.PathLike)) or not os.path.isfile(paths.normal(path)):
        return False
    try:
        with stored.open_safetensors(paths.normal(path)) as file:
            return f"isotropy.{kind}" in file.metadata
    except InputError:
        return False


def numbered(kind: str, parts: Iterable[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """The arrays of all parts, those of part i as "kind/i/name"."""
    return {
        f"{kind}/{i}/{name}": array for i, part in enumerate(parts) for name, array in part.items()
    }


def by_number(
    kind: str, tensors: dict[str, NDArray[Any]], n_parts: int
) -> list[dict[str, NDArray[Any]]]:
    """The arrays of each part, by the names that they have there; see `numbered`."""
    found: list[dict[str, NDArray[Any]]] = [{} for _ in range(n_parts)]
    numbers = {str(i): i for i in range(n_parts)}
    for name, array in tensors.items():
        head, _, rest = name.partition("/")
        number, _, own = rest.partition("/")
        if head != kind or number not in numbers:
            raise InputError(f"{brief(name)} is not expected")
        found[numbers[number]][own] = array
    return found


@contextlib.contextmanager
def validated(path: Any, kind: str = "repair") -> Iterator[None]:
    """Turn an InputError about the contents of a file into a RepairFileError that names it."""
    try:
        yield
    except InputError as error:
        raise RepairFileError(
            f"{quoted(path)} holds no valid {kind}: {str(error).removesuffix('.')}. Save it again."
        ) from None


def check_header(header: dict[str, Any], owner: str, known: Iterable[str]) -> None:
    """Raise unless the header has the entries of every file, and the owner's known parameters."""
    for name in ("params", "n_features", "n_samples", "note"):
        if name not in header:
            raise InputError(f"{name} is missing in the header")
    unknown = expect(header["params"], dict, "params", "an object").keys() - known
    for name in ("n_features", "n_samples"):
        expect(header[name], int, name, "an integer")
        if header[name] < 1:
            raise InputError(f"{name} must be at least 1, got {one_line(header[name], 30)}")
    names = header.get("feature_names")
    if names is not None:
        expect(names, list, "feature_names", "a list")
        if len(names) != header["n_features"]:
            raise InputError(
                f"feature_names must have {one_line(header['n_features'], 30)} names, got "
                f"{len(names)}"
            )
        for name in names:
            expect(name, str, "a feature name", "text")
    check_note(header["note"])
    expect(header.setdefault("time", "unknown"), str, "time", "text")
    versions = expect(header.setdefault("versions", {}), dict, "versions", "an object")
    for name, version in versions.items():
        expect(version, str, f"the version of {one_line(name, 30)}", "text")
    if unknown:
        raise InputError(f"{owner} has no parameter {one_line(repr(min(unknown)), 60)}")


def check_note(note: Any, end: str = "") -> None:
    """Raise unless the note is text of at most 10,000 characters."""
    n_characters = len(expect(note, str, "note", "text", end))
    if n_characters > LONGEST_NOTE:
        most = f"{LONGEST_NOTE:,} characters"
        raise InputError(f"note must have at most {most}, got {n_characters:,}{end}")


def expect(value: Any, type_: type, name: str, words: str, end: str = "") -> Any:
    """The value, which must have exactly this type: true is not an integer."""
    if type(value) is not type_:
        raise InputError(f"{name} must be {words}, got {one_line(repr(value), 60)}{end}")
    return value


def _number(value: Any) -> Any:
    """A numpy scalar as the Python number that JSON has for it."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}")
