"""One run of a trial: its task, model, method, seed and training settings."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from isotropy import checks
from isotropy.errors import InputError
from isotropy.losses.defaults import PATIENCE
from isotropy.trial.task_data import GENERATION, SIAMESE, TaskData, read_task, task_spec

SCHEDULES = ("constant", "linear", "polynomial")
PRECISIONS = ("float32", "tf32", "bf16")
HEADS = ("model", "linear")
LAST_LR = 1e-7  # of the polynomial schedule of transformers


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of a run."""

    epochs: int = 3
    batch_size: int = 32
    lr: float = 2e-5  # of AdamW
    schedule: str = "constant"  # of SCHEDULES; polynomial goes to LAST_LR with power 1
    weight_decay: float = 0.0
    clip: float = 1.0  # largest norm of a step's gradient
    max_length: int = 128  # tokens at which texts are cut
    max_target: int = 128  # tokens at which targets are cut
    max_train: int | None = None  # most items to train on, drawn with seed 0
    max_eval: int | None = None  # most items to evaluate, drawn with seed 0
    validation: float = 0.0  # share of the training items held out for early stopping
    patience: int = PATIENCE  # epochs without a better validation score before training stops
    part: str = "dev"  # what is evaluated, or "test"
    beams: int = 1  # of generation
    precision: str = "float32"  # of PRECISIONS; bf16 uses autocast
    head: str = "model"  # of HEADS: transformers' own classifier, or one linear layer

    def __post_init__(self) -> None:
        least = {"epochs": 1, "batch_size": 2, "max_length": 8, "max_target": 2, "patience": 1}
        for name, low in {**least, "beams": 1}.items():
            checks.integer(getattr(self, name), name, low)
        for name in ("max_train", "max_eval"):
            if getattr(self, name) is not None:
                checks.integer(getattr(self, name), name, 2)
        for name, high in (("lr", 1.0), ("weight_decay", 1.0), ("validation", 0.9)):
            checks.real(getattr(self, name), name, 0.0, high)
        if not checks.real(self.clip, "clip", 0.0) > 0:
            raise InputError(f"clip must be above 0, got {self.clip}.")
        checks.choice(self.schedule, "schedule", SCHEDULES)
        if self.schedule == "polynomial" and self.lr <= LAST_LR:
            raise InputError(
                f"lr must be above {LAST_LR:g}, where a polynomial schedule ends, got {self.lr:g}."
            )
        checks.choice(self.precision, "precision", PRECISIONS)
        checks.choice(self.part, "part", ("dev", "test"))
        checks.choice(self.head, "head", HEADS)


GENERATED = {"lr": 3e-5, "schedule": "polynomial", "batch_size": 48, "epochs": 5}
GENERATED |= {"max_length": 512}


def settings_for(task: str, model: str, **given: Any) -> TrainingSettings:
    """The settings of a task with a model, in which those given (and not None) take precedence.

    GLUE and similar tasks follow Ding et al. 2022, appendix B: batch 32, 2e-5 (1e-5 for RoBERTa)
    without a schedule, 3 epochs (5 for MRPC and WNLI), the model's own head. So do
    encoder-decoders: 3e-5 with polynomial decay, batch 48, 5 epochs. Siamese networks follow Rajaee
    and Pilehvar 2021: 7e-5, batch 32, 3 epochs. The papers don't say where texts are cut: here at
    128 tokens, and sources of encoder-decoders at 512.
    """
    spec = task_spec(task)
    checks.known(given, [field.name for field in fields(TrainingSettings)], "settings")
    found: dict[str, Any] = {}
    if spec.kind == GENERATION:
        found |= GENERATED
    elif spec.kind == SIAMESE:
        found["lr"] = 7e-5
    elif "roberta" in Path(model).name.lower():
        found["lr"] = 1e-5
    found |= spec.settings
    found |= {name: value for name, value in given.items() if value is not None}
    return TrainingSettings(**found)


KINDS = ("safetensors", "bin", "gguf", "npy")  # of files with weights
SAMPLE_BYTES, N_SAMPLES = 1 << 12, 256  # what the checksum of a large file reads


@dataclass(frozen=True)
class Job:
    """What to run."""

    task: str
    model: str  # its name or folder
    method: str  # as given, which is its name in tables
    spec: str  # the method with its options, such as those that a search chose
    seed: int
    settings: TrainingSettings
    data: str | None = None  # folder with a folder for each task
    device: str = "cpu"
    search: float = 0.0  # share of the training items to score instead, when options are chosen
    save: str | None = None  # folder for the fine-tuned encoder
    overwrite: bool = False  # replace that folder

    def identity(self) -> dict[str, Any]:
        """What a record of this job must agree with."""
        return {
            "task": self.task,
            "model": Path(self.model).name,
            "method": self.method,
            "spec": self.spec,
            "seed": self.seed,
            "search": self.search,
            "settings": asdict(self.settings),
        }

    def inputs(self) -> dict[str, Any]:
        """Checksums of data and weights, which a record must agree with if it has them."""
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
    """Checksum of sizes and samples of a model folder's weights; None for a model from the hub."""
    found = hashlib.sha256()
    paths = [p for kind in KINDS for p in Path(model).glob(f"*.{kind}")]
    for path in sorted(paths):
        size = path.stat().st_size
        found.update(f"{path.name} {size}".encode())
        with open(path, "rb") as file:
            for start in range(0, size, max(SAMPLE_BYTES, size // N_SAMPLES)):
                file.seek(start)
                found.update(file.read(SAMPLE_BYTES))
    return found.hexdigest()[:16] if paths else None
