"""Repairs and calibrators as files that were changed, with a checksum that fits again."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import numpy as np
from safetensors import safe_open, serialize_file
from safetensors.numpy import load_file, save_file

import isotropy
from isotropy.repairs import ScoreCalibrator, files

D = 6
ROWS = np.random.default_rng(0).standard_normal((200, D)) * np.arange(1, D + 1) + 2
REPAIRS = {
    "center": lambda: isotropy.Center(),
    "standardize": lambda: isotropy.Standardize(),
    "scaled-center": lambda: isotropy.ScaledCenter(),
    "all-but-the-top": lambda: isotropy.AllButTheTop(2),
    "whiten": lambda: isotropy.Whiten(),
    "pca": lambda: isotropy.Whiten(method="pca", n_components=3),
    "cluster-removal": lambda: isotropy.ClusterRemoval(2, 2),
    "rotate": lambda: isotropy.Rotate(),
    "hadamard": lambda: isotropy.Rotate("hadamard"),
    "chain": lambda: isotropy.Chain([isotropy.Center(), isotropy.Rotate()]),
    "nested": lambda: isotropy.Chain([isotropy.Chain([isotropy.Whiten("pca", n_components=3)])]),
}
CALIBRATOR = "calibrator"


@functools.cache
def parts(name):
    """(header without its checksum, tensors) of a file that is as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        kind = "repair"
        if name == CALIBRATOR:
            kind = CALIBRATOR
            ScoreCalibrator(100).fit(ROWS).save(path, note="a note")
        else:
            REPAIRS[name]().fit(ROWS).save(path, note="a note")
        with safe_open(str(path), framework="numpy") as file:
            header = json.loads(file.metadata()[f"isotropy.{kind}"])
        del header["checksum"]
        return header, load_file(path)


def fresh(name):
    """The parts, to be changed."""
    header, tensors = parts(name)
    return json.loads(json.dumps(header)), {k: v.copy() for k, v in tensors.items()}


def forge(path, header, tensors, kind="repair"):
    """Write these parts with a checksum that fits."""
    whole = header | {"checksum": files.checksum(header, tensors)}
    save_file(tensors, path, metadata={f"isotropy.{kind}": json.dumps(whole)})


def forge_text(path, text, tensors=None, kind="repair"):
    """Write this text where the header is."""
    save_file(tensors or {"mean_": np.zeros(D)}, path, metadata={f"isotropy.{kind}": text})


def forge_dtype(path, name, dtype):
    """Write a tensor of a dtype that numpy lacks."""
    tensor = {"dtype": dtype, "shape": [D], "data": bytes(2 * D)}
    serialize_file({name: tensor}, path, {"isotropy.repair": json.dumps(parts("center")[0])})


def kept(name):
    """The repair or calibrator as it was saved."""
    header, tensors = fresh(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        kind = CALIBRATOR if name == CALIBRATOR else "repair"
        forge(path, header, tensors, kind)
        return ScoreCalibrator.load(path) if kind == CALIBRATOR else isotropy.load(path)
