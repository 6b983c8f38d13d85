"""Training an isotropy layer on frozen features, between them and a frozen head."""

from __future__ import annotations

import copy
from typing import Any

import isotropy.losses.base  # noqa: F401  names the extra without torch

# isort: split
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, matthews_corrcoef
from torch import nn

from isotropy.errors import InputError
from isotropy.linalg import Floats
from isotropy.losses.functional import isoscore, log_inverse
from isotropy.losses.layers import IsotropyLayer, JointLoss

SCORES = {"accuracy": accuracy_score, "matthews": matthews_corrcoef}


class HeadTraining:
    """Standardised rows, targets, and the frozen head that a layer is trained for."""

    def __init__(
        self, rows: Floats, target: NDArray[Any], head: Any, mean: Floats, spread: float
    ) -> None:
        self.spread, self.mean = spread, torch.tensor(mean)
        self.rows = torch.tensor((rows - mean) / spread)
        self.of_classes = target.dtype.kind != "f"
        if head is None:
            weight, bias, target = linear_head(self.rows.numpy(), target)
            weight = weight / spread
            self.head = frozen((weight, bias - weight @ mean))
        else:
            self.head = frozen(head)
        with torch.no_grad():
            n_out = self.read(self.rows[:1]).shape[-1]
        self.target = torch.tensor(checked(target, n_out, self.of_classes))

    def read(self, rows: Any) -> Any:
        """The head's output for rows, of shape (n, n_out)."""
        found = self.head(self.mean + self.spread * rows)
        found = getattr(found, "logits", found)
        return found if found.ndim == 2 else found[:, None]

    def loss(self, answers: Any, part: Any) -> Any:
        if self.of_classes:
            return nn.functional.cross_entropy(answers, self.target[part])
        return nn.functional.mse_loss(answers[:, 0], self.target[part])

    def score(self, answers: Any, part: Any, metric: str) -> float:
        """The score of the head's answers; higher is better."""
        if not self.of_classes:
            return -float(self.loss(answers, part))
        return float(SCORES[metric](self.target[part].numpy(), answers.argmax(dim=1).numpy()))


def trained(task: HeadTraining, params: dict[str, Any]) -> tuple[Floats, Floats, int]:
    """(weight, bias, epochs) of the layer at the best epoch."""
    random = torch.Generator().manual_seed(params["random_state"])
    order = torch.randperm(len(task.rows), generator=random)
    n_held = int(params["validation"] * len(order))
    held, used = order[:n_held], order[n_held:]
    if len(used) < 2:
        raise InputError(f"X must have at least 2 rows to train on, got n_samples = {len(used)}.")
    layer = IsotropyLayer(task.rows.shape[1]).double()
    joint = JointLoss(params["alpha"], params["smoothing"]).double()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=params["learning_rate"])
    best, kept, n_kept = -np.inf, copy.deepcopy(layer), 0
    for epoch in range(1, params["n_epochs"] + 1):
        shuffled = used[torch.randperm(len(used), generator=random)]
        for part in shuffled.split(params["batch_size"]):
            if len(part) < 2:
                continue
            rows = layer(task.rows[part])
            loss = joint(task.loss(task.read(rows), part), log_inverse(isoscore(rows)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        score = 0.0
        if n_held:
            with torch.no_grad():
                score = task.score(task.read(layer(task.rows[held])), held, params["metric"])
        if score >= best:
            best, kept, n_kept = score, copy.deepcopy(layer), epoch
        if epoch - n_kept >= params["patience"]:
            break
    weight, bias = (part.detach().numpy() for part in (kept.linear.weight, kept.linear.bias))
    if not n_kept or not np.isfinite(weight).all() or not np.isfinite(bias).all():
        raise InputError(
            f"the training diverged at learning_rate={params['learning_rate']:g}. Lower it."
        )
    return weight, bias, n_kept


def frozen(head: Any) -> Any:
    """A frozen copy of the head in float64; a pair (weight, bias) becomes a linear layer."""
    if not isinstance(head, nn.Module):
        try:
            weight, bias = (torch.as_tensor(part) for part in head)
            linear = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
            linear.load_state_dict({"weight": weight, "bias": bias})
        except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
            raise InputError(
                "head must be a torch module or a pair (weight, bias) of shapes "
                f"(n_out, n_features) and (n_out,), got {type(head).__name__} "
                f"({str(error).splitlines()[0]})."
            ) from error
        head = linear
    return copy.deepcopy(head).double().cpu().eval().requires_grad_(False)


def linear_head(rows: Floats, target: NDArray[Any]) -> tuple[Floats, Floats, NDArray[Any]]:
    """(weight, bias) of a linear head fitted to the rows, and the targets as class numbers."""
    if target.dtype.kind == "f":
        found = Ridge().fit(rows, target)
        return found.coef_[None], np.atleast_1d(found.intercept_), target
    classes, numbers = np.unique(target, return_inverse=True)
    if len(classes) < 2:
        raise InputError("y must have at least two classes, got one class.")
    found = LogisticRegression(max_iter=1000).fit(rows, numbers)
    weight, bias = found.coef_, found.intercept_
    if len(classes) == 2:  # it has one score; that of the other class is zero
        weight, bias = np.vstack([np.zeros_like(weight), weight]), np.append(0.0, bias)
    return weight, bias, numbers


def checked(target: NDArray[Any], n_out: int, of_classes: bool) -> NDArray[Any]:
    """The targets, which the head must be able to predict."""
    if not of_classes:
        if n_out != 1:
            raise InputError(f"head must give one number for a float y, got {n_out}.")
        return target.astype(np.float64)
    if target.dtype.kind not in "iub":
        raise InputError(
            f"y must be class numbers from 0 if a head is given, got {str(target[0])!r}."
        )
    outside = (target < 0) | (target >= n_out)
    if outside.any():
        raise InputError(
            f"y must be classes in [0, {n_out - 1}] for this head, got "
            f"{target[outside][0]} in row {int(np.flatnonzero(outside)[0])}."
        )
    return target.astype(np.int64)
