"""A small language model with tied weights, trained from scratch: how its embeddings drift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy.geometry import measure
from isotropy.models import each, extra, open_texts
from isotropy.papers.experiment import Record, over_seeds
from isotropy.papers.settings import Settings, isotropies

LOSS, MOVED, COSINE = "validation loss", "distance the mean moved", "mean cosine"
NORMS = ("mean norm", "norm of the mean", "norm of the mean / mean norm")
UNUSED = {part: f"cosine of unused with {part}" for part in ("frequent", "rare")}
ALONG = ("non-targets along -h", "targets along h")
OTHERS, OUTPUT = "rows that are no target", "output layer's part of the gradient"
TOGETHER, ERROR = "mean cosine of their updates", "error of equation 5"
SIDES = ("regulariser from all pairs", "from the mean direction")
APART = ("difference", "difference of gradients")
UNKNOWN, MASK, END = "<unk>", "<mask>", "<end>"
VALIDATION_BATCHES = 4
SAME = 1 - 1e-5  # cosine of two float32 vectors that point the same way
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """Running text as rows of the vocabulary: special tokens, words by frequency, unused ones."""

    train: Integers
    validation: Integers
    n_special: int
    n_words: int
    n_unused: int

    @property
    def n_tokens(self) -> int:
        return self.n_special + self.n_words + self.n_unused

    def part(self, name: str, n_most: int) -> slice:
        """The rows of the most frequent or the rarest words, at most n_most, or the unused ones."""
        first, stop = self.n_special, self.n_special + self.n_words
        n = min(n_most, self.n_words // 2)
        return {
            "frequent": slice(first, first + n),
            "rare": slice(stop - n, stop),
            "unused": slice(stop, self.n_tokens),
        }[name]


def read_corpus(settings: Settings) -> Corpus:
    parts = {
        name: [word for line in _lines(settings, name) for word in (*line.split(), END)]
        for name in ("train", "valid")
    }
    special = (UNKNOWN, MASK)
    counts = Counter(word for word in parts["train"] if word not in special)
    words = [word for word, _ in counts.most_common(settings.options["words"])]
    row_of = {word: row for row, word in enumerate((*special, *words))}
    ids = {
        name: np.array([row_of.get(word, 0) for word in part], dtype=np.int64)
        for name, part in parts.items()
    }
    n_unused = settings.options["unused"]
    return Corpus(ids["train"], ids["valid"], len(special), len(words), n_unused)


def _lines(settings: Settings, name: str) -> Iterator[str]:
    return map(str, each(open_texts(settings.file("wikitext2", name))))


class LanguageModel:
    """A transformer whose output matrix W is its input embedding matrix, without a bias."""

    def __init__(self, n_tokens: int, causal: bool, options: Mapping[str, Any], device: Any):
        from torch import nn, ones

        width, length = options["width"], options["length"]
        embeddings, positions = nn.Embedding(n_tokens, width), nn.Embedding(length, width)
        for table in (embeddings, positions):
            nn.init.normal_(table.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            width, options["heads"], 4 * width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        encoder = nn.TransformerEncoder(
            layer, options["layers"], norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.network = nn.ModuleList([embeddings, positions, encoder]).to(device)
        self.later = ones(length, length).triu(1).bool().to(device) if causal else None

    @property
    def W(self) -> Any:
        return self.network[0].weight

    def outputs(self, batch: Batch) -> Any:
        """The output vectors h of the positions that are predicted."""
        embeddings, positions, encoder = self.network
        h = encoder(embeddings(batch.ids) + positions.weight, mask=self.later)
        return h[batch.predicted]

    def loss(self, batch: Batch) -> Any:
        return cross_entropy(self.outputs(batch), self.W, batch.targets)


def cross_entropy(h: Any, W: Any, targets: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(h @ W.T, targets)


@dataclass(frozen=True)
class Batch:
    """Tokens that are read, where one is predicted, and which one it is."""

    ids: Any
    predicted: Any
    targets: Any


def draw(
    text: Integers, causal: bool, options: Mapping[str, Any], random: Any, device: Any
) -> Batch:
    """A batch of random windows of the text; masked ones lose some of their tokens."""
    from torch import from_numpy

    length = options["length"]
    starts = random.integers(0, len(text) - length, size=(options["batch"], 1))
    windows = text[starts + np.arange(length + 1)]
    ids, targets = windows[:, :-1].copy(), windows[:, 1:]
    predicted = np.ones(ids.shape, dtype=bool)
    if not causal:
        targets = windows[:, :-1]
        predicted = random.random(ids.shape) < options["masked"]
        predicted[0, 0] = True
        ids[predicted] = 1
    found = (from_numpy(part).to(device) for part in (ids, predicted, targets[predicted]))
    return Batch(*found)


def cosine_regularizer(W: Any) -> Any:
    """Sum of the cosines of all ordered pairs of different rows over |V|^2 (Gao et al. 2019)."""
    from isotropy.losses.functional import mean_cosine

    return (len(W) - 1) / len(W) * mean_cosine(W)


def trained(settings: Settings, causal: bool, regularized: bool) -> list[Record]:
    """Records of all measured steps, over the seeds; the first and the last one say so."""
    corpus = read_corpus(settings)
    runs = [_run(settings, corpus, causal, regularized, seed) for seed in range(settings.seeds)]
    ends = {0: {"when": "start"}, settings.options["steps"]: {"when": "end"}}
    return [
        over_seeds([run[step, name] for run in runs], step=step, measure=name) | ends.get(step, {})
        for step, name in runs[0]
    ]


def _run(
    settings: Settings, corpus: Corpus, causal: bool, regularized: bool, seed: int
) -> dict[tuple[int, str], float]:
    torch, _ = extra()
    from isotropy.losses.base import seeded

    options = settings.options
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    with seeded(seed):
        model = LanguageModel(corpus.n_tokens, causal, options, device)
    W = model.W
    start = W.detach().clone()
    optimizer = torch.optim.Adam(model.network.parameters(), lr=options["rate"])
    random = np.random.default_rng(seed)
    found: dict[tuple[int, str], float] = {}
    for step in range(options["steps"] + 1):
        if step % options["every"] == 0 or step == options["steps"]:
            values = {
                **_loss(model, corpus, causal, options, device),
                **_drift(W.detach(), start, corpus, options["edge"]),
                **_updates(model, draw(corpus.train, causal, options, random, device), options),
            }
            if step == options["steps"]:
                values |= identity(W.detach())
            found |= {(step, name): value for name, value in values.items()}
        if step == options["steps"]:
            break
        batch = draw(corpus.train, causal, options, random, device)
        loss = model.loss(batch)
        if regularized:
            loss = loss + options["weight"] * cosine_regularizer(W)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found


def _loss(model: Any, corpus: Corpus, causal: bool, options: Any, device: Any) -> dict[str, float]:
    """Mean cross-entropy of a few batches of held-out text, the same at every step."""
    import torch

    random = np.random.default_rng(0)
    batches = [
        draw(corpus.validation, causal, options, random, device) for _ in range(VALIDATION_BATCHES)
    ]
    with torch.no_grad():
        return {LOSS: float(np.mean([float(model.loss(one)) for one in batches]))}


def _drift(W: Any, start: Any, corpus: Corpus, edge: int) -> dict[str, float]:
    """Where the rows of W are, as a whole and by how frequent their words are."""
    rows = W.cpu().double().numpy()
    found = measure(rows, ["norms", "mean_norm_ratio", "mean_cosine"])
    norm, ratio = found.norms["mean"], found.mean_norm_ratio
    moved = float((W - start).double().mean(dim=0).norm())
    values = (norm, ratio * norm, ratio, moved, found.mean_cosine)
    names = (*NORMS, MOVED, COSINE)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    unused = units[corpus.part("unused", edge)].mean(axis=0)
    return {
        **dict(zip(names, values, strict=True)),
        **isotropies(rows),
        **{
            name: float(units[corpus.part(part, edge)].mean(axis=0) @ unused)
            for part, name in UNUSED.items()
        },
    }


def _updates(model: LanguageModel, batch: Batch, options: Mapping[str, Any]) -> dict[str, float]:
    """How the gradient moves the rows of W: one prediction at a time, and a whole batch."""
    import torch

    from isotropy.losses.functional import mean_cosine

    W = model.W
    (whole,) = torch.autograd.grad(model.loss(batch), W)
    with torch.no_grad():
        h = model.outputs(batch)
    own = W.detach().clone().requires_grad_()
    along = np.array([
        along_h(own, one, target)
        for one, target in zip(
            h[: options["checked"]], batch.targets[: options["checked"]], strict=True
        )
    ])  # fmt: skip
    (output,) = torch.autograd.grad(cross_entropy(h, own, batch.targets), own)
    with torch.no_grad():  # eq. 5, as the mean over predictions
        y = torch.softmax(h @ W.T, dim=1)
        y[torch.arange(len(y)), batch.targets] -= 1
        written = y.T @ h / len(h)
        others = torch.ones(len(W), dtype=torch.bool, device=W.device)
        others[batch.targets] = False
        error = (written - output).abs().max() / output.abs().max()
        through = output.square().sum() / (output.square().sum() + (whole - output).square().sum())
        together = mean_cosine(output[others]) if int(others.sum()) > 1 else torch.tensor(1.0)
    return {
        **dict(zip(ALONG, along.mean(axis=0), strict=True)),
        ERROR: float(error),
        OTHERS: float(others.double().mean()),
        TOGETHER: float(together),
        OUTPUT: float(through),
    }


def along_h(W: Any, h: Any, target: Any) -> tuple[float, float]:
    """Share of the non-target rows that one prediction moves along -h, and of targets along h."""
    import torch

    (gradient,) = torch.autograd.grad(cross_entropy(h[None], W, target[None]), W)
    cosines = torch.nn.functional.cosine_similarity(-gradient, h[None], dim=1, eps=1e-30)
    is_target = torch.arange(len(W), device=W.device) == target
    away, towards = cosines[~is_target] < -SAME, cosines[is_target] > SAME
    return float(away.double().mean()), float(towards.double().mean())


def identity(W: Any) -> dict[str, float]:
    """Both sides of appendix A, in float64, and how far apart their gradients are.

    The sum of cosines over all ordered pairs of different rows, over |V|^2, is the squared norm of
    the mean unit row less 1/|V|: the two differ by a constant, so their gradients are equal.
    """
    import torch

    rows = W.double().requires_grad_()
    n = len(rows)
    units = torch.nn.functional.normalize(rows, dim=1)
    products = sum((part @ units.T).sum() for part in units.split(1024))
    pairs = (products - units.square().sum()) / n**2  # without each row's product with itself
    direction = units.mean(dim=0).square().sum() - 1 / n
    gradients = [
        torch.autograd.grad(side, rows, retain_graph=True)[0] for side in (pairs, direction)
    ]
    apart = (gradients[0] - gradients[1]).abs().max() / gradients[1].abs().max()
    values = (pairs, direction, (pairs - direction).abs(), apart)
    names = (*SIDES, *APART)
    return {name: float(value.detach()) for name, value in zip(names, values, strict=True)}
