"""What a run of the trial is of: what to run, and what it reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from isotropy.train.settings import Settings
from isotropy.train.task_data import TaskData, read_task

SAMPLED, N_SAMPLES = 1 << 12, 256  # bytes, and how often, of a file that a checksum is of


@dataclass(frozen=True)
class Job:
    """What to run.

    Attributes
    ----------
    task, model : str
        The model's name or folder.
    method : str
        As it was asked for, which is what tables call it.
    spec : str
        The same with its options, such as those that a search chose.
    seed : int
    settings : Settings
    data : str, optional
        Folder with a folder for each task.
    device : str
    search : float
        Share of the training items to be scored on instead of the evaluated ones, which is then
        all that is wanted; 0 is a run of the trial.
    """

    task: str
    model: str
    method: str
    spec: str
    seed: int
    settings: Settings
    data: str | None = None
    device: str = "cpu"
    search: float = 0.0

    def identity(self) -> dict[str, Any]:
        """What a record must agree with to be that of this job."""
        return {
            "task": self.task,
            "model": Path(self.model).name,
            "method": self.method,
            "spec": self.spec,
            "seed": self.seed,
            "search": self.search,
            "settings": self.settings.to_dict(),
        }

    def inputs(self) -> dict[str, Any]:
        """Checksums of what was read, which a record must agree with where it has them."""
        return {
            "data": data_checksum(self.task, self.data, self.settings.part),
            "weights": weights_checksum(self.model),
        }


@lru_cache(maxsize=4)
def read_once(task: str, folder: str | None, part: str) -> TaskData:
    return read_task(task, folder, part)


@lru_cache(maxsize=64)
def data_checksum(task: str, folder: str | None, part: str) -> str:
    return read_once(task, folder, part).checksum()


@lru_cache(maxsize=64)
def weights_checksum(model: str) -> str | None:
    """Of sizes and samples of the files of weights in a model's folder; None for one of the hub."""
    found = hashlib.sha256()
    paths = [p for kind in ("safetensors", "bin", "gguf") for p in Path(model).glob(f"*.{kind}")]
    for path in sorted(paths):
        size = path.stat().st_size
        found.update(f"{path.name} {size}".encode())
        with open(path, "rb") as file:
            for start in range(0, size, max(SAMPLED, size // N_SAMPLES)):
                file.seek(start)
                found.update(file.read(SAMPLED))
    return found.hexdigest()[:16] if paths else None
