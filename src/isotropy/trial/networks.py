"""What a trial trains: a pretrained body, its calibration and head; and its batches."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from isotropy.errors import InputError
from isotropy.losses.regularizers import Tensors
from isotropy.models import extra, first_line, pretrained_location
from isotropy.models.loading import loading
from isotropy.trial.settings import TrainingSettings
from isotropy.trial.task_data import GENERATION, MOST, REGRESSION, SIAMESE, Part, TaskData

Tensor = Any
ItemNumbers = NDArray[np.int64]
IGNORED = -100  # label of a position that is not predicted
EVALUATED_TOGETHER = 4  # batches of evaluation are this many times as large


def on_device(numbers: ItemNumbers, device: Any) -> Tensor:
    """The numbers as a tensor on the device, without waiting for the copy."""
    found = torch.from_numpy(numbers)
    if device.type != "cuda":
        return found.to(device)
    return found.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class PaddedTokens:
    """Token numbers of texts, padded to the longest, on a device; lengths on the host as well."""

    columns: dict[str, Tensor]
    lengths: ItemNumbers
    lengths_on_device: Tensor

    def batch(self, index: Tensor, width: int) -> dict[str, Tensor]:
        found = {name: values[index, :width].long() for name, values in self.columns.items()}
        positions = torch.arange(width, device=index.device)
        found["attention_mask"] = (positions < self.lengths_on_device[index, None]).long()
        return found

    def halves(self) -> list[PaddedTokens]:
        """The first and the second half of the texts, as wide as both together."""
        half = len(self.lengths) // 2
        return [
            PaddedTokens(
                {name: values[part] for name, values in self.columns.items()},
                self.lengths[part],
                self.lengths_on_device[part],
            )
            for part in (slice(half), slice(half, None))
        ]


def padded(rows: dict[str, Sequence[list[int]]], padding: int, device: Any) -> PaddedTokens:
    """The tokens of texts as arrays; `input_ids` are padded with `padding`, others with 0."""
    lengths = np.array([len(ids) for ids in rows["input_ids"]])
    columns = {}
    for name, lists in rows.items():
        fill = padding if name == "input_ids" else 0
        filled = np.full((len(lists), int(lengths.max())), fill, dtype=np.int32)
        for row, values in zip(filled, lists, strict=True):
            row[: len(values)] = values
        columns[name] = torch.from_numpy(filled).to(device)
    return PaddedTokens(columns, lengths, torch.from_numpy(lengths).to(device))


@dataclass(frozen=True)
class TrainingBatch:
    """Inputs of a model, labels, and the items' numbers. First texts of pairs come first."""

    inputs: dict[str, Tensor]
    labels: Tensor
    numbers: ItemNumbers


@dataclass(frozen=True)
class Items:
    """The items of a part, tokenised."""

    part: Part
    sides: list[PaddedTokens]  # one, or two for a siamese network
    targets: PaddedTokens | None  # if text is generated
    labels: Tensor  # if not
    lengths: ItemNumbers  # tokens of each item
    device: Any

    def __len__(self) -> int:
        return len(self.part)

    def batch(self, numbers: ItemNumbers) -> TrainingBatch:
        index = on_device(numbers, self.device)
        width = int(self.lengths[numbers].max())
        sides = [side.batch(index, width) for side in self.sides]
        inputs = {name: torch.cat([side[name] for side in sides]) for name in sides[0]}
        if self.targets is None:
            return TrainingBatch(inputs, self.labels[index], numbers)
        target = self.targets.batch(index, int(self.targets.lengths[numbers].max()))
        labels = target["input_ids"].masked_fill(target["attention_mask"] == 0, IGNORED)
        return TrainingBatch(inputs, labels, numbers)

    def shuffled(self, size: int, random: np.random.Generator) -> list[ItemNumbers]:
        """Items of the batches of an epoch; a last batch of one item joins the one before."""
        order = random.permutation(len(self))
        starts = list(range(size, len(self), size))
        if starts and len(self) - starts[-1] == 1 and size > 1:
            starts.pop()
        return list(np.split(order, starts))

    def by_length(self, size: int) -> Iterator[TrainingBatch]:
        """All items in large batches of similar length."""
        order = np.argsort(self.lengths, kind="stable")
        step = EVALUATED_TOGETHER * size
        for start in range(0, len(order), step):
            yield self.batch(order[start : start + step])


HEAD_DEVIATION = 0.02  # of a new head's weights, as transformers starts it
DROPOUTS = ("classifier_dropout", "seq_classif_dropout", "hidden_dropout_prob", "dropout")


@dataclass(frozen=True)
class Passed:
    """One forward pass."""

    loss: Tensor  # of the task
    scores: Tensor  # of classes, or one per item; None if text is generated
    features: Tensor  # of shape (n, d): the head's input before calibration
    calibrated: Tensor  # of shape (n, d): the head's input
    tensors: Tensors


class Network(nn.Module):
    """A body with a head; between them is `calibration`, by default the identity."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.calibration: Any = nn.Identity()
        self.with_hidden = False

    @property
    def output(self) -> Tensor:
        """Weights of the layer that predicts; None if there is none."""
        return None

    @property
    def input(self) -> Tensor:
        """The token embeddings."""
        return self.body.get_input_embeddings().weight

    @property
    def n_features(self) -> int:
        """Width of the head's input."""
        return int(self.body.config.hidden_size)

    @property
    def typed(self) -> bool:
        """Whether the body takes token types."""
        return "token_type_ids" in inspect.signature(self.body.forward).parameters

    def judged(self, calibrated: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(loss of the task, scores) for the head's input."""
        raise NotImplementedError

    def expect(self, items: Items, batch_size: int) -> None:
        """Prepare the head for centred rows, from what is known before training."""

    def pooled(self, last: Tensor, batch: TrainingBatch) -> Tensor:
        """One row per text, from the last hidden states."""
        return last[:, 0]

    def forward(self, batch: TrainingBatch) -> Passed:
        found = self.body(**batch.inputs, output_hidden_states=self.with_hidden)
        features = self.pooled(found.last_hidden_state, batch)
        calibrated = self.calibration(features)
        loss, scores = self.judged(calibrated, batch.labels)
        tensors = Tensors(
            self.output,
            self.input,
            features,
            found.hidden_states if self.with_hidden else (),
            batch.inputs["attention_mask"],
        )
        return Passed(loss, scores, features, calibrated, tensors)


class Classifier(Network):
    """Scores of classes, or one score, from the last layer's [CLS].

    With the head "linear" a linear layer reads [CLS]; with "model", what the model's classifier of
    transformers has between them comes first, such as BERT's pooler and its tanh.
    """

    def __init__(self, body: Any, n_outputs: int, head: str) -> None:
        super().__init__(body)
        found = (getattr(body.config, name, None) for name in DROPOUTS)
        self.dropout = nn.Dropout(next((p for p in found if p is not None), 0.1))
        own = head == "model"
        self.pooler = own_pooler(body, self.dropout.p) if own else nn.Identity()
        self.head = new_linear(self.n_features, n_outputs)

    @property
    def output(self) -> Tensor:
        return self.head.weight

    def pooled(self, last: Tensor, batch: TrainingBatch) -> Tensor:
        return self.pooler(last[:, 0])

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def expect(self, items: Items, batch_size: int) -> None:
        """Set the bias to the mean of the labels, or to the logarithm of each class's share."""
        labels, n_outputs = items.labels, len(self.head.bias)
        if n_outputs == 1:
            self.head.bias.fill_(labels.mean())
        else:
            counts = torch.bincount(labels, minlength=n_outputs).clamp(min=1)
            self.head.bias.copy_((counts / counts.sum()).log())

    def judged(self, calibrated: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.head(self.dropout(calibrated)).float()
        if scores.shape[1] == 1:
            scores = scores[:, 0]
            return F.mse_loss(scores, labels), scores
        return F.cross_entropy(scores, labels), scores


def own_pooler(body: Any, dropout: float) -> Any:
    """What classifiers of transformers have between [CLS] and the dropout of the output layer."""
    kind, d = body.config.model_type, body.config.hidden_size
    if kind == "bert":
        return nn.Sequential(body.pooler.dense, body.pooler.activation)
    if kind == "distilbert":
        return nn.Sequential(new_linear(d, d), nn.ReLU())
    if kind in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        return nn.Sequential(nn.Dropout(dropout), new_linear(d, d), nn.Tanh())
    if kind == "electra":
        return nn.Sequential(nn.Dropout(dropout), new_linear(d, d), nn.GELU())
    raise InputError(
        f"head must be 'linear' for a model of kind {kind!r}, whose own head is not known, got "
        "'model'."
    )


def new_linear(n_inputs: int, n_outputs: int) -> Any:
    """A linear layer, started as transformers starts those of a new head."""
    layer = nn.Linear(n_inputs, n_outputs)
    nn.init.normal_(layer.weight, std=HEAD_DEVIATION)
    nn.init.zeros_(layer.bias)
    return layer


class Siamese(Network):
    """Cosine of two texts' mean-pooled last layers, trained to be their score divided by 5."""

    def pooled(self, last: Tensor, batch: TrainingBatch) -> Tensor:
        mask = batch.inputs["attention_mask"][..., None].to(last.dtype)
        return (last * mask).sum(1) / mask.sum(1)

    def judged(self, calibrated: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        one, two = calibrated.float().chunk(2)
        scores = F.cosine_similarity(one, two)
        return F.mse_loss(scores, labels / MOST), scores


class Generator(Network):
    """An encoder-decoder; the vectors are the output layer's inputs at every predicted token."""

    def __init__(self, body: Any) -> None:
        super().__init__(body)
        self._seen: tuple[Tensor, Tensor] = (None, None)
        self._predicted: Tensor = None
        body.get_output_embeddings().register_forward_pre_hook(self._calibrate)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def expect(self, items: Items, batch_size: int) -> None:
        """Replace the output layer by an equivalent one for calibrated states.

        The calibration starts from the states of the first batch. Input embeddings that were tied
        to the output layer no longer are.
        """
        with evaluating(self):
            states = self(items.batch(np.arange(min(len(items), batch_size)))).features
        centre, axes = (part.double() for part in self.calibration.start(states))
        known = self.body.get_output_embeddings()
        weight = known.weight.double()
        twin = nn.Linear(*known.weight.shape[::-1]).to(known.weight)
        twin.weight.copy_(weight @ axes.T)
        twin.bias.copy_(weight @ centre)
        if known.bias is not None:
            twin.bias.add_(known.bias)
        twin.register_forward_pre_hook(self._calibrate)
        self.body.set_output_embeddings(twin)

    def _calibrate(self, _: Any, given: tuple[Tensor, ...]) -> Tensor:
        states = given[0]
        predicted = self._predicted
        if predicted is None:  # while text is generated: all of them
            predicted = torch.ones(states.shape[:-1], dtype=torch.bool, device=states.device)
        rows = states[predicted]
        calibrated = self.calibration(rows)
        self._seen = rows, calibrated
        found = states.clone()
        found[predicted] = calibrated.to(states.dtype)
        return found

    @property
    def output(self) -> Tensor:
        return self.body.get_output_embeddings().weight

    def forward(self, batch: TrainingBatch) -> Passed:
        mask = batch.labels != IGNORED
        self._predicted = mask
        try:
            found = self.body(
                **batch.inputs, labels=batch.labels, output_hidden_states=self.with_hidden
            )
        finally:
            self._predicted = None
        rows, calibrated = self._seen
        hidden = found.decoder_hidden_states if self.with_hidden else ()
        tensors = Tensors(self.output, self.input, None, hidden, mask)
        return Passed(found.loss, None, rows, calibrated, tensors)


@dataclass(frozen=True)
class LoadedModel:
    """A network for a task with a model's weights, and what turns texts into its inputs."""

    network: Network
    tokenizer: Any
    prefix: str  # put before every source
    device: Any

    def items(self, part: Part, data: TaskData, settings: TrainingSettings) -> Items:
        """The items of a part; longer texts and targets are cut as the settings say."""
        longest = self.tokenizer.model_max_length
        length = min(settings.max_length, longest)
        targets, labels = None, None
        if data.spec.kind == SIAMESE:
            both: list[tuple[str, ...]] = [(pair[i],) for i in (0, 1) for pair in part.texts]
            sides = self._tokens(both, length).halves()
        else:
            texts = [(self.prefix + text, *more) for text, *more in part.texts]
            sides = [self._tokens(texts, length)]
        if data.spec.kind == GENERATION:
            longest = min(settings.max_target, longest)
            targets = self._tokens([(text,) for text in part.labels], longest)
        else:
            scored = data.spec.kind in (REGRESSION, SIAMESE)
            dtype = torch.float32 if scored else torch.long
            labels = torch.as_tensor(part.labels, dtype=dtype, device=self.device)
        lengths = np.max([side.lengths for side in sides], axis=0)
        return Items(part, sides, targets, labels, lengths, self.device)

    def _tokens(self, texts: list[tuple[str, ...]], length: int) -> PaddedTokens:
        sides = [list(side) for side in zip(*texts, strict=True)]
        found = self.tokenizer(
            *sides, truncation=True, max_length=length, return_attention_mask=False
        )
        names = ("input_ids", "token_type_ids") if self.network.typed else ("input_ids",)
        kept = {name: found[name] for name in names if name in found}
        return padded(kept, self.tokenizer.pad_token_id or 0, self.device)


def load_model(model: str, data: TaskData, device: Any, head: str = "model") -> LoadedModel:
    """The network for the task with the weights of a model; classifiers have this head."""
    _, transformers = extra()
    generates = data.spec.kind == GENERATION
    kind = transformers.AutoModelForSeq2SeqLM if generates else transformers.AutoModel
    with loading(model):
        where, options = pretrained_location(model)
        config = transformers.AutoConfig.from_pretrained(where, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, **options)
        expect_kind(model, config, tokenizer, data)
        body = kind.from_pretrained(where, dtype=torch.float32, **options)
    prefix = data.spec.prefix if config.model_type in ("t5", "mt5") else ""
    network: Network
    if generates:
        network = Generator(body)
    elif data.spec.kind == SIAMESE:
        network = Siamese(body)
    else:
        n_outputs = 1 if data.spec.kind == REGRESSION else len(data.classes)
        network = Classifier(body, n_outputs, head)
    try:
        return LoadedModel(network.to(device), tokenizer, prefix, device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device {str(device)!r} can't be used ({first_line(error)}). Use 'cpu'."
        ) from error


def expect_kind(model: str, config: Any, tokenizer: Any, data: TaskData) -> None:
    """Raise unless the task can be trained with this kind of model."""
    found = f"got {Path(model).name!r}, a model of kind {config.model_type!r}."
    if data.spec.kind == GENERATION:
        if not config.is_encoder_decoder:
            raise InputError(
                f"{data.name!r} needs an encoder-decoder, such as google/flan-t5-small, {found}"
            )
    elif config.is_encoder_decoder or tokenizer.cls_token_id is None:
        raise InputError(
            f"{data.name!r} needs an encoder with a [CLS] token, such as distilbert-base-cased, "
            f"{found}"
        )


@contextmanager
def evaluating(network: Network) -> Any:
    """Without dropout and gradients."""
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train()
