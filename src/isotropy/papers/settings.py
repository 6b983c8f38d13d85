"""Where an experiment finds its models and data, and what it was asked to do."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from isotropy.errors import InputError
from isotropy.geometry import Geometry, measure
from isotropy.models import Encoder, Text, TokenRows
from isotropy.papers.experiment import Experiment, Record, record
from isotropy.tasks import Task, open_task
from isotropy.writing import quoted

STAND_INS = (
    "distilbert-base-cased",
    "smollm2-135m",
    "all-MiniLM-L6-v2",
    "gte-small",
    "all-mpnet-base-v2",
    "flan-t5-small",
    "glove.6B.50d",
)
SUFFIXES = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".txt", ".txt.gz")
LOG10 = np.log(10)
BOTH_SIGNS, ONE_SIGN = "log10 I", "log10 I, one sign"


@dataclass(frozen=True)
class Settings:
    """What an experiment runs on, and with which options."""

    experiment: Experiment
    out: Path  # the folder of this experiment
    data: Path | None = None  # folder with a folder per data set
    models: Path | None = None  # folder in which models are looked up before the hub
    device: str | None = None
    seeds: int = 1
    quick: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # those of the experiment
    jobs: int = 1  # fine-tuning runs at a time, each in its own process
    records: Path | None = None  # file with the runs of an experiment that fine-tunes

    def location(self, model: str) -> str:
        """The folder of a model, or its name on the hub."""
        local = None if self.models is None else self.models / model
        return str(local) if local is not None and local.is_dir() else model

    def has_model(self, model: str) -> bool:
        """Whether the model is in a local folder."""
        return os.path.isdir(self.location(model))

    def file(self, data_set: str, *names: str) -> Path:
        """The first file of a data set that has one of these names, with any usual suffix."""
        folder = self.data_folder(data_set)
        for name in names:
            for path in (folder / name, *(folder / f"{name}{suffix}" for suffix in SUFFIXES)):
                if path.is_file():
                    return path
        raise InputError(f"{quoted(folder)} must have a file {' or '.join(names)}, and has none.")

    def data_folder(self, data_set: str) -> Path:
        if not self.has_data(data_set):
            raise InputError(f"--data must have a folder {data_set}, got {quoted(self.data)}.")
        assert self.data is not None
        return self.data / data_set

    def has_data(self, data_set: str) -> bool:
        return self.data is not None and (self.data / data_set).is_dir()

    @property
    def data_sets(self) -> list[str]:
        """The data sets of the experiment that are there."""
        return [name for name in self.experiment.data if self.has_data(name)]

    def task(self, kind: str, data_set: str, part: str | None = None, **options: Any) -> Task:
        """A task from a data set, or a part of it."""
        task = open_task(kind, self.data_folder(data_set), **options)
        return task if part is None else task.subset(task.parts[part])

    def encoder(self, model: str, **options: Any) -> Encoder:
        """The model, which remembers what it encoded if it has one layer; options: see Encoder."""
        options = {"pool": "mean", "device": self.device} | options
        if options.get("layer", -1) in (-1, "first-last"):
            options.setdefault("cache", self.out.parent.parent / "cache")
        return Encoder(self.location(model), **options)

    def tokens(self, model: str, texts: Sequence[Text], **options: Any) -> TokenRows:
        """The rows of all tokens but special ones, last layer, as the papers take them."""
        return self.encoder(model, pool="mean", **options).tokens(list(texts))

    def fingerprints(self) -> dict[str, str]:
        """A checksum of each data set's files."""
        found = {}
        for name in self.data_sets:
            digest = hashlib.sha256()
            for path in sorted(p for p in self.data_folder(name).iterdir() if p.is_file()):
                digest.update(path.name.encode() + path.read_bytes())
            found[name] = digest.hexdigest()[:16]
        return found


def isotropy_records(X: Any, *, n: int | None = None, **keys: Any) -> list[Record]:
    """log10 I(W) over both signs of the eigenvectors, and with one sign, as in the papers."""
    rows = len(X) if n is None else n
    return [record(value, n=rows, measure=name, **keys) for name, value in isotropies(X).items()]


def isotropies(X: Any) -> dict[str, float]:
    """log10 I(W) in both sign conventions, by their names."""
    return isotropies_of(measure(X, ["log_partition_isotropy"]))


def isotropies_of(geometry: Geometry) -> dict[str, float]:
    """log10 I(W) in both sign conventions, of a measured space."""
    logs = geometry.drawn.log_partition
    assert logs is not None
    given = logs[0].min() - logs[0].max()
    return {
        BOTH_SIGNS: float(geometry.log_partition_isotropy / LOG10),
        ONE_SIGN: float(given / LOG10),
    }
