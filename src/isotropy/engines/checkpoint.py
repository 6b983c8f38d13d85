"""States of finished chunks on disk, so that a killed run goes on where it was."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from isotropy.engines.base import Partial
from isotropy.errors import InputError, reason
from isotropy.sources import Source
from isotropy.stats import Statistic
from isotropy.writing import sweep, whole

SAVING_SHARE = 20  # a state is kept again after this many times what keeping it took


class Checkpoint:
    """A folder with one subfolder for each pass of a job.

    A pass is known by its source, its statistics with their settings, and its number in the
    job. Since states come back to the last digit, a job that goes on equals one undisturbed.
    """

    def __init__(self, folder: Any, caller: str) -> None:
        self.folder = Path(folder)
        self.caller = caller
        self.n_passes = 0
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{caller}: checkpoint must be a folder, got {str(folder)!r}.")
        if self.folder.is_dir() and any(
            not path.name.startswith("pass-") for path in self.folder.iterdir()
        ):
            raise InputError(
                f"{caller}: {str(folder)!r} holds other things than a checkpoint. Choose a new "
                "folder."
            )

    def next_pass(
        self, engine: str, source: Source, statistics: Sequence[Statistic]
    ) -> CheckpointedPass:
        """The pass that follows, new or begun before."""
        folder = self.folder / f"pass-{self.n_passes:03d}"
        self.n_passes += 1
        identity = getattr(source, "identity", None)
        if identity is None:
            raise InputError(f"{self.caller}: checkpoint must be of files or arrays.")
        key = _digest([engine, identity(), [_settings(s) for s in statistics]])
        begun = folder / "begun.json"
        if begun.is_file():
            if _begun(begun)["key"] != key:
                raise InputError(
                    f"{self.caller}: the checkpoint {str(self.folder)!r} is of other data or "
                    "settings. Give them as they were, or choose a new folder."
                )
        else:
            with _writing(folder, self.caller):
                folder.mkdir(parents=True, exist_ok=True)
                for stale in folder.iterdir():  # of a pass that was killed before it had a key
                    stale.unlink()
                sweep(str(folder))
        return CheckpointedPass(folder, key, statistics)


class CheckpointedPass:
    """The folder of one pass: a file for each of its runs, and what its first rows settled."""

    def __init__(self, folder: Path, key: str, statistics: Sequence[Statistic]) -> None:
        self.folder = folder
        self.key = key
        self.statistics = statistics
        self.next_save: dict[int, float] = {}

    def settled(self, statistics: Sequence[Statistic]) -> list[Statistic] | None:
        partial = self._read(self.folder / "settled.safetensors")
        return None if partial is None else partial.states

    def settle(self, statistics: Sequence[Statistic]) -> None:
        self._write(self.folder / "settled.safetensors", Partial(list(statistics)))

    def n_runs(self, proposed: int) -> int:
        begun = self.folder / "begun.json"
        if begun.is_file():
            return int(_begun(begun)["n_runs"])
        with _writing(self.folder), whole(begun) as part:
            part.write_text(json.dumps({"key": self.key, "n_runs": proposed}))
        return proposed

    def load(self, run: int) -> Partial | None:
        return self._read(self._file(run))

    def save(self, run: int, partial: Partial, last: bool) -> None:
        start = time.monotonic()
        if not last and start < self.next_save.get(run, 0.0):
            return
        self._write(self._file(run), partial)
        now = time.monotonic()
        self.next_save[run] = now + SAVING_SHARE * (now - start)

    def _file(self, run: int) -> Path:
        return self.folder / f"run-{run:05d}.safetensors"

    def _write(self, path: Path, partial: Partial) -> None:
        arrays = {
            f"{i}/{name}": np.asarray(value, order="C")
            for i, state in enumerate(partial.states)
            for name, value in state.state().items()
        }
        counts = {"n_chunks": partial.n_chunks, "n_skipped": partial.n_skipped}
        with _writing(self.folder), whole(path) as part:
            part.write_bytes(save(arrays, metadata={"counts": json.dumps(counts)}))

    def _read(self, path: Path) -> Partial | None:
        if not path.is_file():
            return None
        try:
            with safe_open(str(path), framework="numpy") as file:
                counts = json.loads(file.metadata()["counts"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, ValueError) as error:
            raise InputError(
                f"checkpoint: {str(path)!r} is damaged ({error}). Delete it, and its rows are "
                "read again."
            ) from None
        states = []
        for i, statistic in enumerate(self.statistics):
            prefix = f"{i}/"
            part = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
            states.append(type(statistic).from_state(part))
        return Partial(states, **counts)


@contextlib.contextmanager
def _writing(folder: Path, caller: str = "checkpoint") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _clear(folder)
        raise InputError(
            f"{caller}: the checkpoint {str(folder.parent)!r} could not be written: "
            f"{reason(error)}. Free some room, or choose another folder."
        ) from None


def _clear(folder: Path) -> None:
    """Remove a pass of which nothing is done yet, where it could not be written."""
    with contextlib.suppress(OSError):
        if not any(folder.glob("run-*")):
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
            folder.parent.rmdir()  # unless there are other passes


def _begun(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
        return {"key": found["key"], "n_runs": int(found["n_runs"])}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"checkpoint: {str(path)!r} is damaged ({error}). Delete it, and its rows are read "
            "again."
        ) from None


def _settings(statistic: Statistic) -> list[Any]:
    state = statistic.empty().state()
    arrays = {
        name: _digest([str(v.dtype), v.shape, v.tobytes().hex()]) for name, v in state.items()
    }
    return [type(statistic).__name__, arrays]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
