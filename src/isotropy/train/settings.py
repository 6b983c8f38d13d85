"""How a task is trained: what its paper states, unless it is set otherwise."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from isotropy import checks
from isotropy.errors import InputError
from isotropy.train.task_data import CALLER, GENERATION, SIAMESE, task_spec

SCHEDULES = ("constant", "linear", "polynomial")
PRECISIONS = ("float32", "tf32", "bf16")
LAST_LR = 1e-7  # of the polynomial schedule of transformers


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes
    ----------
    epochs, batch_size : int
    lr : float
        Of AdamW.
    schedule : {"constant", "linear", "polynomial"}
        Of the learning rate; polynomial is that of transformers, to 1e-7 with power 1.
    weight_decay : float
    clip : float
        Largest norm of a step's gradient.
    max_length, max_target : int
        Tokens at which texts and targets are cut.
    max_train, max_eval : int, optional
        Items to train on and to evaluate, drawn with seed 0; all where it is None.
    validation : float
        Share of the items to train on that is kept to stop early by; 0 trains all epochs.
    patience : int
        Epochs without gain on the validation items after which training stops.
    part : {"dev", "test"}
        What is evaluated.
    beams : int
        Of generation.
    precision : {"float32", "tf32", "bf16"}
        bf16 is autocast.
    """

    epochs: int = 3
    batch_size: int = 32
    lr: float = 2e-5
    schedule: str = "constant"
    weight_decay: float = 0.0
    clip: float = 1.0
    max_length: int = 128
    max_target: int = 128
    max_train: int | None = None
    max_eval: int | None = None
    validation: float = 0.0
    patience: int = 3
    part: str = "dev"
    beams: int = 1
    precision: str = "float32"

    def __post_init__(self) -> None:
        for name, low in (("epochs", 1), ("batch_size", 2), ("max_length", 8), ("max_target", 2)):
            checks.integer(getattr(self, name), name, CALLER, low)
        for name in ("max_train", "max_eval"):
            if getattr(self, name) is not None:
                checks.integer(getattr(self, name), name, CALLER, 2)
        for name, high in (("lr", 1.0), ("weight_decay", 1.0), ("validation", 0.9)):
            checks.real(getattr(self, name), name, CALLER, 0.0, high)
        if not checks.real(self.clip, "clip", CALLER, 0.0) > 0:
            raise InputError(f"{CALLER}: clip must be above 0, got {self.clip}.")
        checks.integer(self.patience, "patience", CALLER, 1)
        checks.integer(self.beams, "beams", CALLER, 1)
        checks.choice(self.schedule, "schedule", CALLER, SCHEDULES)
        if self.schedule == "polynomial" and self.lr <= LAST_LR:
            raise InputError(
                f"{CALLER}: lr must be above {LAST_LR:g}, where a polynomial schedule ends, got "
                f"{self.lr:g}."
            )
        checks.choice(self.precision, "precision", CALLER, PRECISIONS)
        checks.choice(self.part, "part", CALLER, ("dev", "test"))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


GENERATED = {"lr": 3e-5, "schedule": "polynomial", "batch_size": 48, "epochs": 5}
GENERATED |= {"max_length": 512}


def settings_for(task: str, model: str, **given: Any) -> Settings:
    """The settings of a task with a model; those given that are not None come first.

    GLUE and its like as Ding et al. 2022, appendix B: batch 32, 2e-5 (1e-5 for RoBERTa) without a
    schedule, 3 epochs (5 for MRPC and WNLI). Encoder-decoders as there: 3e-5 with polynomial
    decay, batch 48, 5 epochs. Siamese as Rajaee and Pilehvar 2021: 7e-5, batch 32, 3 epochs. The
    papers do not say where texts are cut: 128 tokens, sources of encoder-decoders 512.
    """
    spec = task_spec(task)
    checks.known(given, [field.name for field in fields(Settings)], "settings", CALLER)
    found: dict[str, Any] = {}
    if spec.kind == GENERATION:
        found |= GENERATED
    elif spec.kind == SIAMESE:
        found["lr"] = 7e-5
    elif "roberta" in Path(model).name.lower():
        found["lr"] = 1e-5
    found |= spec.settings
    found |= {name: value for name, value in given.items() if value is not None}
    return Settings(**found)
