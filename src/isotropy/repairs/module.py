"""A repair as a torch module.

Nothing of isotropy is imported here: a model that sentence-transformers can't express with its own
modules has a copy of this file, modeling_isotropy.py, and runs without isotropy.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

COPY = "modeling_isotropy.py"


class RepairModule(nn.Module):
    """The steps of a fitted repair on the last dimension of a tensor of any shape.

    Its arrays are buffers in float32, so they move with the module and are saved with it, but are
    not trained. Half-precision rows are repaired in float32, and come back in their own dtype.
    Rows without a direction stay as they are, with a gradient of zero where there is none.
    """

    def __init__(self, steps: Sequence[tuple[str, Mapping[str, ArrayLike]]]) -> None:
        """The kind of each step, such as "Subtract", and its arrays."""
        super().__init__()
        self.steps = nn.ModuleList([KINDS[kind](**arrays) for kind, arrays in steps])

    def forward(self, rows: Tensor) -> Tensor:
        wide = torch.promote_types(rows.dtype, torch.float32)
        found = rows.to(wide)
        for step in self.steps:
            found = step(found)
        return found.to(rows.dtype)


class _Kept(nn.Module):
    """A module with arrays as buffers, which keep their dtype when the module is cast."""

    dtype = torch.float32

    def __init__(self, **arrays: ArrayLike) -> None:
        super().__init__()
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(array)).to(self.dtype))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            assert buffer is not None
            found = self._buffers[name]
            if found is not None and found.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(found.device)
        return self

    def of(self, name: str, rows: Tensor) -> Tensor:
        return getattr(self, name).to(rows.dtype)


class _Subtract(_Kept):
    def forward(self, rows: Tensor) -> Tensor:
        return rows - self.of("vector", rows)


class _Add(_Kept):
    def forward(self, rows: Tensor) -> Tensor:
        return rows + self.of("vector", rows)


class _Multiply(_Kept):
    def forward(self, rows: Tensor) -> Tensor:
        return rows @ self.of("matrix", rows).T


class _SubtractScaled(_Kept):
    """On the CPU if the device has no float64, as Apple's mps."""

    dtype = torch.float64  # float32 has few digits left of rows that are far from zero

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        try:
            return super()._apply(fn, recurse)
        except TypeError:  # "Cannot convert a MPS Tensor to float64"
            return self

    def forward(self, rows: Tensor) -> Tensor:
        apart = rows.device != self.direction.device
        near = rows.to(self.direction.device) if apart else rows
        wide = near.to(self.dtype)
        found = (wide - _norms(wide) * self.direction).to(rows.dtype)
        return found.to(rows.device) if apart else found


class _Normalize(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        norms = _norms(rows)
        return rows / torch.where(norms > 0, norms, 1.0)


class _RemoveByCluster(_Kept):
    """In products of two dimensions: those with other clusters' components are set to zero."""

    def forward(self, rows: Tensor) -> Tensor:
        centers = self.of("centers", rows)
        origin = centers.mean(0)
        apart = centers - origin
        scores = (rows - origin) @ apart.T - (apart * apart).sum(1) / 2
        n_clusters, n_removed, _ = self.components.shape
        own = nn.functional.one_hot(scores.argmax(-1), n_clusters).to(rows.dtype)
        centred = rows - own @ self.of("means", rows)
        components = self.of("components", rows).flatten(0, 1)
        along = (centred @ components.T) * own.repeat_interleave(n_removed, dim=-1)
        return centred - along @ components


def _norms(rows: Tensor) -> Tensor:
    """Norms as a last dimension of one; the gradient at zero is zero."""
    squares = (rows * rows).sum(-1, keepdim=True)
    there = squares > 0
    return torch.where(there, torch.where(there, squares, 1.0).sqrt(), 0.0)


KINDS: dict[str, type[nn.Module]] = {
    "Subtract": _Subtract,
    "Multiply": _Multiply,
    "Add": _Add,
    "SubtractScaled": _SubtractScaled,
    "RemoveByCluster": _RemoveByCluster,
    "Normalize": _Normalize,
}


class FeatureRepair(nn.Module):
    """A repair as a module of a sentence-transformers model, of its sentence or token vectors."""

    def __init__(
        self,
        steps: Sequence[tuple[str, Mapping[str, ArrayLike]]],
        features: str = "sentence_embedding",
    ) -> None:
        super().__init__()
        self.repair = RepairModule(steps)
        self.settings = {"steps": [kind for kind, _ in steps], "features": features}

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        name = str(self.settings["features"])
        features[name] = self.repair(features[name])
        return features

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        folder = Path(output_path)
        (folder / "config.json").write_text(json.dumps(self.settings, indent=2), "utf-8")
        arrays = {name: array.contiguous() for name, array in self.repair.state_dict().items()}
        save_file(arrays, folder / "model.safetensors")
        shutil.copyfile(__file__, folder.parent / COPY)

    @classmethod
    def load(cls, input_path: str) -> FeatureRepair:
        settings = json.loads(Path(input_path, "config.json").read_text("utf-8"))
        found = load_file(Path(input_path, "model.safetensors"))
        steps = []
        for number, kind in enumerate(settings["steps"]):
            start = f"steps.{number}."
            own = {k.removeprefix(start): v for k, v in found.items() if k.startswith(start)}
            steps.append((kind, own))
        return cls(steps, settings["features"])
