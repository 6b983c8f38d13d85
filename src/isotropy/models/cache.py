"""A folder of token rows, so that no text is run through a model twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy.errors import InputError, reason
from isotropy.models.models import Encoding, Float32Array
from isotropy.sources import paths
from isotropy.writing import atomic_write


def digest(value: Any) -> str:
    """A checksum of plain values, arrays, and fitted estimators by parameters and learned values.

    A fitted repair and the one loaded from its file have the same checksum. The checksum of
    anything else, such as a function, is only valid in this process.

    Examples
    --------
    >>> digest({"a": 1, "b": np.zeros(2)}) == digest({"b": np.zeros(2), "a": np.int64(1)})
    True
    """
    found = hashlib.sha256()
    for part in _parts(value):
        found.update(f"{len(part)} ".encode() + part)
    return found.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        yield f"mapping of {len(value)}".encode()
        for name in sorted(value, key=str):
            yield str(name).encode()
            yield from _parts(value[name])
    elif isinstance(value, (list, tuple)):
        yield f"list of {len(value)}".encode()
        for part in value:
            yield from _parts(part)
    elif hasattr(value, "get_params"):
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
        yield from _parts(value.get_params(deep=False))
        named = getattr(value, "learned", None)  # as repairs do
        names = named or [name for name in vars(value) if name.endswith("_")]
        yield from _parts({name: getattr(value, name) for name in names})
    else:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if array.ndim == 0 or array.dtype.hasobject:
            yield repr(array.item() if array.ndim == 0 else value).encode()
        else:
            yield f"{array.dtype.str} {array.shape}".encode()
            yield array.tobytes()


N_OPEN = 16  # shards that are memory-mapped at a time, each with a file descriptor


class Cache:
    """The rows of all tokens of texts, by a checksum of each text, for one model and layer.

    Each `add` writes one shard: its rows, then an index of them. A shard exists once its index
    does; a damaged one is ignored. Several threads and processes may use one cache. `identity` has
    plain values that identify the model and its settings.
    """

    def __init__(self, folder: Any, identity: dict[str, Any]) -> None:
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
        self.folder = Path(paths.normal(folder)) / key
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.folder / "identity.json") as part:
                part.write_text(json.dumps(identity, indent=1))
        self._load()

    def _load(self) -> None:
        self._lock = threading.Lock()
        self._where: dict[bytes, tuple[int, int]] = {}
        self._shards: list[tuple[Path, dict[str, NDArray[Any]]]] = []
        self._mapped: dict[Path, Float32Array] = {}
        for path in sorted(self.folder.glob("*.npz")):
            self._open(path)

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.folder = state["folder"]
        self._load()

    def missing(self, texts: Sequence[str]) -> list[str]:
        """The distinct texts that are not in the cache yet."""
        return [text for text in dict.fromkeys(texts) if checksum(text) not in self._where]

    def add(
        self, texts: Sequence[str], encodings: Sequence[Encoding], rows: Sequence[Float32Array]
    ) -> None:
        """Store the rows of all tokens of these texts."""
        keys = b"".join(map(checksum, texts))
        path = self.folder / hashlib.sha256(keys).hexdigest()[:24]
        index = {
            "keys": np.frombuffer(keys, np.uint8).reshape(-1, 16),
            "starts": np.cumsum([0] + [len(e) for e in encodings]),
            "special": np.concatenate([e.special for e in encodings]),
            "offsets": np.concatenate([e.offsets for e in encodings]).astype(np.int32),
            "ids": np.concatenate([np.asarray(e.ids, np.int32) for e in encodings]),
            "truncated": np.array([e.truncated for e in encodings]),
        }
        with self._writing():
            with atomic_write(path.with_suffix(".npy")) as part, open(part, "wb") as file:
                np.save(file, np.concatenate(rows))
            with atomic_write(path.with_suffix(".npz")) as part, open(part, "wb") as file:
                np.savez(file, allow_pickle=False, **index)
        if not self._open(path.with_suffix(".npz")):
            raise self._unreadable(path)

    def get(self, text: str) -> tuple[Encoding, Float32Array]:
        """The tokens of a text in the cache, and a copy of their rows."""
        shard, i = self._where[checksum(text)]
        path, index = self._shards[shard]
        part = slice(int(index["starts"][i]), int(index["starts"][i + 1]))
        encoding = Encoding(
            index["ids"][part].tolist(),
            index["special"][part],
            index["offsets"][part],
            bool(index["truncated"][i]),
        )
        return encoding, np.array(self._rows(path)[part])

    def _rows(self, path: Path) -> Float32Array:
        """The rows of a shard; those used last stay mapped."""
        with self._lock:
            rows = self._mapped.pop(path, None)
            try:
                rows = np.load(path, mmap_mode="r") if rows is None else rows
            except (OSError, ValueError, EOFError) as error:
                raise self._unreadable(path) from error
            self._mapped[path] = rows
            if len(self._mapped) > N_OPEN:
                del self._mapped[next(iter(self._mapped))]
        return rows

    def _open(self, path: Path) -> bool:
        """Register the shard with this index; False if it is damaged."""
        rows_path = path.with_suffix(".npy")
        try:
            with np.load(path) as file:
                index = {name: file[name] for name in file.files}
            rows = np.load(rows_path, mmap_mode="r")
            n_rows = int(index["starts"][-1])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return False
        if any(len(part) != n_rows for part in (rows, index["ids"])):
            return False
        with self._lock:
            self._mapped.pop(rows_path, None)
            self._shards.append((rows_path, index))
            number = len(self._shards) - 1
            for i, key in enumerate(index["keys"]):
                self._where[key.tobytes()] = (number, i)
        return True

    def _unreadable(self, path: Path) -> InputError:
        return InputError(
            f"cache {str(self.folder.parent)!r} must keep what is written to it, got "
            f"{path.stem!r}, which does not open again. Raise the limit of open files (ulimit -n), "
            "or use another folder."
        )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Explain in one line why the folder can't be written to."""
        try:
            yield
        except OSError as error:
            raise InputError(
                f"cache {str(self.folder.parent)!r} must be a folder that can be written "
                f"({reason(error)})."
            ) from error


def checksum(text: str) -> bytes:
    """Sixteen bytes that stand for a text."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
