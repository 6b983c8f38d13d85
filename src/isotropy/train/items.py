"""Items of a task as tensors on a device: tokens once, batches without copies from the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isotropy.train.task_data import GENERATION, REGRESSION, SIAMESE, Part, TaskData

Tensor = Any
Rows = NDArray[np.int64]
IGNORED = -100  # label of a position that is not predicted
EVALUATED_TOGETHER = 4  # batches of evaluation are this many times as large


def on_device(rows: Rows, device: Any) -> Tensor:
    """The numbers as a tensor on the device, for which the host does not wait."""
    numbers = torch.from_numpy(rows)
    if device.type != "cuda":
        return numbers.to(device)
    return numbers.pin_memory().to(device, non_blocking=True)


class Tokens:
    """Token numbers of texts, padded to the longest, on a device; lengths on the host."""

    def __init__(self, rows: dict[str, Sequence[list[int]]], padding: int, device: Any) -> None:
        self.lengths = np.array([len(ids) for ids in rows["input_ids"]])
        width = int(self.lengths.max())
        self.columns = {}
        for name, lists in rows.items():
            fill = padding if name == "input_ids" else 0
            filled = np.full((len(lists), width), fill, dtype=np.int32)
            for row, values in zip(filled, lists, strict=True):
                row[: len(values)] = values
            self.columns[name] = torch.from_numpy(filled).to(device)
        self.on_device = torch.from_numpy(self.lengths).to(device)

    def batch(self, rows: Rows, index: Tensor, width: int) -> dict[str, Tensor]:
        found = {name: values[index, :width].long() for name, values in self.columns.items()}
        positions = torch.arange(width, device=index.device)
        found["attention_mask"] = (positions < self.on_device[index, None]).long()
        return found


@dataclass(frozen=True)
class Batch:
    """Inputs of a model, labels, and which items they are. Of pairs, the first texts come first."""

    inputs: dict[str, Tensor]
    labels: Tensor
    rows: Rows


class Items:
    """The items of a part, ready for a model.

    Parameters
    ----------
    part : Part
    data : TaskData
    tokenizer : transformers tokenizer
    prefix : str
        Put before every source.
    max_length : int
        Longer texts are cut.
    max_target : int
        Longer targets are cut.
    typed : bool
        Whether the model takes token types.
    device : torch device
    """

    def __init__(
        self,
        part: Part,
        data: TaskData,
        tokenizer: Any,
        prefix: str,
        max_length: int,
        max_target: int,
        typed: bool,
        device: Any,
    ) -> None:
        self.part, self.device = part, device
        padding = tokenizer.pad_token_id or 0

        def tokens(texts: list[tuple[str, ...]], length: int) -> Tokens:
            sides = [list(side) for side in zip(*texts, strict=True)]
            found = tokenizer(
                *sides, truncation=True, max_length=length, return_attention_mask=False
            )
            names = ("input_ids", "token_type_ids") if typed else ("input_ids",)
            kept = {name: found[name] for name in names if name in found}
            return Tokens(kept, padding, device)

        if data.spec.kind == SIAMESE:
            self.sides = [tokens([(pair[i],) for pair in part.texts], max_length) for i in (0, 1)]
        else:
            self.sides = [
                tokens([(prefix + text, *more) for text, *more in part.texts], max_length)
            ]
        self.targets: Tokens | None = None
        self.labels: Tensor = None
        if data.spec.kind == GENERATION:
            self.targets = tokens([(text,) for text in part.labels], max_target)
        else:
            scored = data.spec.kind in (REGRESSION, SIAMESE)
            kind = torch.float32 if scored else torch.long
            self.labels = torch.as_tensor(part.labels, dtype=kind, device=device)
        self.lengths = np.max([side.lengths for side in self.sides], axis=0)

    def __len__(self) -> int:
        return len(self.part)

    def batch(self, rows: Rows) -> Batch:
        index = on_device(rows, self.device)
        width = int(self.lengths[rows].max())
        sides = [side.batch(rows, index, width) for side in self.sides]
        inputs = {name: torch.cat([side[name] for side in sides]) for name in sides[0]}
        if self.targets is None:
            return Batch(inputs, self.labels[index], rows)
        width = int(self.targets.lengths[rows].max())
        target = self.targets.batch(rows, index, width)
        labels = target["input_ids"].masked_fill(target["attention_mask"] == 0, IGNORED)
        return Batch(inputs, labels, rows)

    def shuffled(self, size: int, random: np.random.Generator) -> list[Rows]:
        """Rows of the batches of an epoch; a last batch of one row joins the one before."""
        order = random.permutation(len(self))
        starts = list(range(size, len(self), size))
        if starts and len(self) - starts[-1] == 1 and size > 1:
            starts.pop()
        return list(np.split(order, starts))

    def by_length(self, size: int) -> Iterator[Batch]:
        """All items in large batches of about the same length."""
        order = np.argsort(self.lengths, kind="stable")
        step = EVALUATED_TOGETHER * size
        for start in range(0, len(order), step):
            yield self.batch(order[start : start + step])
