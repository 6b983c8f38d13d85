"""One safetensors file per fitted thing: arrays, and a JSON header with everything else."""

from __future__ import annotations

import datetime
import json
import os
import zlib
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from isotropy._version import __version__
from isotropy.errors import InputError, RepairFileError
from isotropy.sources import paths
from isotropy.sources.guard import guard, output_path
from isotropy.writing import explained, shown, whole

FORMAT = 1
KEY = "isotropy.repair"  # where the header of a repair is; other kinds have their own


def write(
    path: Any,
    header: dict[str, Any],
    tensors: dict[str, NDArray[Any]],
    kind: str = "repair",
    *,
    overwrite: bool = False,
) -> None:
    """Write header and tensors, whole or not at all."""
    check_target({"path": path}, overwrite=overwrite, caller="save")
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
        complete = json.loads(json.dumps(complete, default=_plain))
        text = json.dumps(complete | {"checksum": checksum(complete, tensors)})
    except TypeError as error:
        raise InputError(f"save: parameters must be plain values: {error}.") from None
    target = paths.normal(path)
    with explained(target, "save"), whole(target, overwrite=overwrite) as part:
        part.write_bytes(save(tensors, metadata={f"isotropy.{kind}": text}))


def check_target(
    outputs: dict[str, Any], inputs: dict[str, Any] | None = None, *, caller: str, **options: Any
) -> None:
    """Raise where a file could not be saved; parameters as of `guard`."""
    for name, path in outputs.items():
        if path is not None and os.path.isdir(output_path(path, name, caller)):
            raise InputError(f"{caller}: {name} must be a file, got the folder {shown(path)}.")
    guard(outputs, inputs, caller=caller, **options)


def read(
    path: Any, methods: Container[str], kind: str = "repair"
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Header and tensors of a file written by `write`, or one clear line."""
    name = str(path)
    if not Path(path).is_file():
        raise RepairFileError(f"load: {name!r} must be a file, and there is none.")
    try:
        with safe_open(name, framework="numpy") as file:
            text = (file.metadata() or {}).get(f"isotropy.{kind}")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise RepairFileError(
            f"load: {name!r} is damaged or not a safetensors file ({error}). Save it again."
        ) from None
    if text is None:
        raise RepairFileError(f"load: {name!r} is a safetensors file, but holds no {kind}.")
    try:
        header: dict[str, Any] = json.loads(text)
        version, method = header["format"], header["method"]
    except (ValueError, KeyError, TypeError) as error:
        raise RepairFileError(f"load: {name!r} has a damaged header ({error!r}).") from None
    if version != FORMAT or not isinstance(method, str) or method not in methods:
        writer = (header.get("versions") or {}).get("isotropy", "unknown")
        raise RepairFileError(
            f"load: {name!r} holds {method!r} in format {version}, written by isotropy {writer}; "
            f"this is isotropy {__version__}, which reads format {FORMAT}. Upgrade isotropy."
        )
    if header.pop("checksum", None) != checksum(header, tensors):
        raise RepairFileError(f"load: {name!r} is damaged: its checksum does not fit. Save again.")
    return header, tensors


def checksum(header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> int:
    """CRC-32 over the header, and over names, dtypes, shapes and bytes in the order of names."""
    value = zlib.crc32(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        array = np.asarray(tensors[name], order="C")
        value = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), value)
        value = zlib.crc32(array.tobytes(), value)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}")
