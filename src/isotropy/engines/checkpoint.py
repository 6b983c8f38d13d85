"""States of finished chunks on disk, so that a killed run resumes where it stopped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from isotropy import checks, stored
from isotropy._version import __version__
from isotropy.engines.base import Partial, PassCheckpoint
from isotropy.errors import InputError, one_line, reason
from isotropy.sources import Chunk, Source, output_path
from isotropy.stats import Statistic
from isotropy.writing import TEMPORARY, atomic_write, quoted, sweep

SAVING_SHARE = 20  # a state is saved again after this many times as long as saving it took
RUN_FILE = "run-{:05d}.safetensors"
PASS = re.compile(r"pass-\d{3,}")
FILE = re.compile(r"begun\.json|settled\.safetensors|run-\d{5,}\.safetensors")


class Checkpoint:
    """A folder with one subfolder for each pass of a job.

    A pass is identified by its source, its statistics with their settings, and its number in the
    job. States are saved to the last digit, so a resumed job gives the same result as one that was
    never interrupted.
    """

    def __init__(self, folder: Any) -> None:
        folder = checks.path(folder, "checkpoint")
        self.folder = Path(output_path(folder, "checkpoint"))
        self.n_passes = 0
        name = quoted(folder)
        is_folder = os.path.isdir(self.folder)
        if os.path.exists(self.folder) and not is_folder:
            raise InputError(f"checkpoint must be a folder, got {name}.")
        try:
            is_free = not is_folder or all(map(_is_pass, self.folder.iterdir()))
        except OSError as error:
            raise InputError(
                f"checkpoint {name} must be readable ({reason(error)}). Choose a new folder."
            ) from error
        if not is_free:
            raise InputError(f"{name} holds other things than a checkpoint. Choose a new folder.")

    def next_pass(self, engine: str, source: Source, statistics: Sequence[Statistic]) -> PassFolder:
        """The next pass, new or to be resumed."""
        folder = self.folder / f"pass-{self.n_passes:03d}"
        self.n_passes += 1
        identity = source.identity()
        if identity is None:
            raise InputError("a checkpoint needs files or arrays as its source.")
        chunks = source.chunks()
        cut = [len(chunks), *(chunk.n_rows for chunk in chunks[:1])]
        key = _digest([engine, identity, cut, [_settings(s) for s in statistics]])
        begun = folder / "begun.json"
        if begun.is_file():
            if _begun(begun)["key"] != key:
                raise InputError(
                    f"the checkpoint {quoted(self.folder)} is of "
                    "other data or settings. Give them as they were, or choose a new folder."
                )
        else:  # left by a pass that was killed before it had a key
            for stale in folder.iterdir() if folder.is_dir() else ():
                if FILE.fullmatch(stale.name):
                    with contextlib.suppress(OSError):
                        stale.unlink()
        sweep(str(folder))
        return PassFolder(folder, key, statistics, source)


def open_checkpoint(folder: Any) -> Checkpoint | None:
    """The checkpoint in a folder; None for None."""
    return None if folder is None else Checkpoint(folder)


class PassFolder(PassCheckpoint):
    """The folder of one pass: a file for each of its runs, and what its first rows settled."""

    def __init__(
        self, folder: Path, key: str, statistics: Sequence[Statistic], source: Source
    ) -> None:
        self.folder, self.key, self.statistics = folder, key, statistics
        self.n_features = source.n_features
        self.next_save = 0.0
        self.made: list[Path] = []

    def settled(self, statistics: Sequence[Statistic]) -> list[Statistic] | None:
        path = self.folder / "settled.safetensors"
        if not path.is_file():
            return None
        with _damage(path):
            found = self._read(path, {}).states
            for state, mine in zip(found, self.statistics, strict=True):
                if not _same(state.state(), state.empty().state()):
                    raise InputError("it must hold states before the first row, got later ones")
                asked = mine.empty().state()  # to which the first rows may have added
                if not _same(asked, {k: v for k, v in state.state().items() if k in asked}):
                    raise InputError("its settings must be those of this pass, got others")
        self.statistics = found
        return found

    def settle(self, statistics: Sequence[Statistic]) -> None:
        self._write(self.folder / "settled.safetensors", Partial(list(statistics)), {})
        self.statistics = list(statistics)

    def begin(self, n_runs: int) -> None:
        begun = self.folder / "begun.json"
        if begun.is_file():
            with _damage(begun):
                found = _begun(begun)["n_runs"]
                if found != n_runs:
                    raise InputError(f"n_runs must be {n_runs}, got {one_line(found, 30)}")
            return
        with self._writing(), atomic_write(begun) as part:
            state = {"isotropy": __version__, "key": self.key, "n_runs": n_runs}
            part.write_text(json.dumps(state))

    def load(self, run: int, chunks: Sequence[Chunk]) -> Partial | None:
        path = self.folder / RUN_FILE.format(run)
        if not path.is_file():
            return None
        with _damage(path):
            found = self._read(path, _place(chunks))
            self._expect_part(found, chunks)
        return found

    def _expect_part(self, found: Partial, chunks: Sequence[Chunk]) -> None:
        """Raise if a state covers more than the chunks of its run."""
        _expect_at_most("n_chunks", found.n_chunks, len(chunks), "chunks in this run")
        n_rows = sum(chunk.n_rows for chunk in chunks[: found.n_chunks])
        _expect_at_most("n_skipped", found.n_skipped, n_rows, "rows in its chunks")
        for state, mine in zip(found.states, self.statistics, strict=True):
            name = type(state).__name__
            if not _same(state.empty().state(), mine.empty().state()):
                raise InputError(f"the settings of {name} must be those of this pass, got others")
            n_seen, n_good = getattr(state, "n_rows", 0), n_rows - found.n_skipped
            if n_seen > n_good:
                raise InputError(f"{name} must be of at most {n_good} rows, got {n_seen}")

    def save(self, run: int, partial: Partial, chunks: Sequence[Chunk]) -> None:
        start = time.monotonic()
        last = partial.n_chunks == len(chunks)
        if not last and start < self.next_save:
            return
        self._write(self.folder / RUN_FILE.format(run), partial, _place(chunks))
        now = time.monotonic()
        self.next_save = now + SAVING_SHARE * (now - start)

    def _write(self, path: Path, partial: Partial, place: dict[str, int]) -> None:
        arrays = {
            f"{i}/{name}": np.asarray(value, order="C")
            for i, state in enumerate(partial.states)
            for name, value in state.state().items()
        }
        counts = {"n_chunks": partial.n_chunks, "n_skipped": partial.n_skipped}
        header: dict[str, Any] = {"isotropy": __version__, "key": self.key} | counts | place
        header["checksum"] = stored.checksum(header, arrays)
        with self._writing(), atomic_write(path) as part:
            part.write_bytes(save(arrays, {"isotropy.checkpoint": json.dumps(header)}))

    def _read(self, path: Path, place: dict[str, int]) -> Partial:
        with stored.open_safetensors(path) as file:
            header = stored.parse_json(file.metadata.get("isotropy.checkpoint", "{}"))
            _expect_version(header, path)
            arrays = file.arrays()
        found = header.pop("checksum", None)
        if found != stored.checksum(header, arrays):
            raise InputError("its checksum does not fit")
        if header.get("key") != self.key or any(header.get(k) != v for k, v in place.items()):
            raise InputError("it must be of this pass and run, got another's")
        counts = {name: _count(header, name, 0) for name in ("n_chunks", "n_skipped")}
        return Partial(self._states(arrays), **counts)

    def _states(self, arrays: dict[str, NDArray[Any]]) -> list[Statistic]:
        parts: list[dict[str, NDArray[Any]]] = [{} for _ in self.statistics]
        for name, array in arrays.items():
            number, _, field = name.partition("/")
            if number not in map(str, range(len(parts))):
                raise InputError(f"{one_line(name, 60)} is not expected")
            parts[int(number)][field] = array
        states = []
        for statistic, part in zip(self.statistics, parts, strict=True):
            state = type(statistic).from_state(part)
            if state.n_features not in (None, self.n_features):
                raise InputError(
                    f"{type(state).__name__} must be of {self.n_features} features, got "
                    f"{state.n_features}"
                )
            states.append(state)
        return states

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Make the folder of the pass; after a failure, remove what no later run can use."""
        try:
            self.made += [p for p in (self.folder, *self.folder.parents) if not p.exists()]
            self.folder.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            self._discard()
            raise InputError(
                f"the checkpoint {quoted(self.folder.parent)} could not be written: "
                f"{reason(error)}. Free some room, or choose another folder."
            ) from error

    def _discard(self) -> None:
        """Remove a pass without a saved run, and the folders that were made for it."""
        with contextlib.suppress(OSError):
            files = [path for path in self.folder.iterdir() if FILE.fullmatch(path.name)]
            if not any(path.name.startswith("run-") for path in files):
                for path in files:
                    path.unlink()
        for path in self.made:
            with contextlib.suppress(OSError):  # it holds other passes, or was never made
                path.rmdir()


def _is_pass(path: Path) -> bool:
    """Whether this is the folder of a pass and holds only files that we wrote."""
    if not PASS.fullmatch(path.name) or not path.is_dir():
        return False
    names = [file.name for file in path.iterdir()]
    return all(FILE.fullmatch(name) or TEMPORARY.fullmatch(name) for name in names)


def _place(chunks: Sequence[Chunk]) -> dict[str, int]:
    """The rows of a run."""
    first_row = chunks[0].first_row if chunks else 0
    return {"first_row": first_row, "n_rows": sum(chunk.n_rows for chunk in chunks)}


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Turn what is wrong in a file into one line that names it and says what to do."""
    try:
        yield
    except OtherVersionError:
        raise
    except InputError as error:
        raise InputError(
            f"the checkpoint {quoted(path)} is damaged ({error}). Delete it, and its "
            "rows are read again."
        ) from None


class OtherVersionError(InputError):
    """A checkpoint was written by another version, whose states may differ."""


def _expect_version(found: Any, path: Path) -> None:
    """Raise unless this is an object that this version wrote."""
    if not isinstance(found, dict):
        raise InputError("it must hold an object, got something else")
    version = found.get("isotropy")
    if version != __version__:
        writer = "an earlier version" if version is None else f"isotropy {one_line(version, 30)}"
        raise OtherVersionError(
            f"the checkpoint {quoted(path.parent.parent)} was written by {writer}, and "
            f"this is isotropy {__version__}. Delete it, or go on with that version."
        )


def _begun(path: Path) -> dict[str, Any]:
    with _damage(path):
        try:
            found = stored.read_json(path)
        except OSError as error:
            raise InputError(reason(error)) from error
        _expect_version(found, path)
        if not isinstance(found.get("key"), str):
            raise InputError("key must be text")
        return {"key": found["key"], "n_runs": _count(found, "n_runs", 1)}


def _count(header: dict[str, Any], name: str, low: int) -> int:
    value = header.get(name)
    if type(value) is not int or value < low:
        raise InputError(
            f"{name} must be an integer of at least {low}, got {one_line(repr(value), 30)}"
        )
    return value


def _expect_at_most(name: str, value: int, most: int, what: str) -> None:
    if value > most:
        raise InputError(
            f"{name} must be at most {most}, as there are no more {what}, got {one_line(value, 30)}"
        )


def _same(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def _settings(statistic: Statistic) -> list[Any]:
    state = statistic.empty().state().items()
    arrays = {name: _digest([str(v.dtype), v.shape, v.tobytes().hex()]) for name, v in state}
    return [type(statistic).__name__, arrays]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
