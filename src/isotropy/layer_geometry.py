"""layers: the geometry of every layer of a model, in one pass of it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotropy import checks
from isotropy.errors import public
from isotropy.geometry import Geometry, measure
from isotropy.models import Encoder, Text, open_texts, sample_texts
from isotropy.progress import ProgressBar
from isotropy.sources import open_sink

KINDS = ("tokens", "cls")


@public
@dataclass(frozen=True)
class LayerGeometry:
    """The geometry of each layer of a model, from the embedding layer to the last one.

    Attributes
    ----------
    tokens, cls : lists of Geometry
        Of all tokens but special ones (or of a sample), and of the first token of each text.
    first_token : str or None
        The token that every text begins with, such as [CLS], if there is one.
    n_texts, n_tokens : int
        Texts that were run, and their tokens without special ones.
    n_truncated, max_length : int
        Texts that were longer than max_length tokens and truncated.
    """

    model: str
    first_token: str | None
    n_texts: int
    n_tokens: int
    n_truncated: int
    max_length: int
    tokens: list[Geometry]
    cls: list[Geometry]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, by layer."""
        pairs = zip(self.tokens, self.cls, strict=True)
        return {
            "model": self.model,
            "first_token": self.first_token,
            "n_tokens": self.n_tokens,
            "n_truncated": self.n_truncated,
            "layers": [
                {"layer": i, "tokens": tokens.to_dict(), "cls": cls.to_dict()}
                for i, (tokens, cls) in enumerate(pairs)
            ],
        }


@public
def layers(
    name_or_path: Any,
    texts: Any,
    *,
    max_texts: int | None = 2000,
    max_tokens: int | None = 50_000,
    seed: int = 0,
    device: str | None = None,
    batch_tokens: int | None = None,
    max_length: int | None = None,
    progress: bool | None = None,
) -> LayerGeometry:
    """The geometry of every layer of a model over texts, as `isotropy layers` prints it.

    The model runs once; the rows of each layer are kept on disk until they are measured.

    Parameters
    ----------
    name_or_path : str or path
        A model, as for `Encoder`.
    texts : list of str, or path
    max_texts, max_tokens : int or None
        Texts that are run and tokens that are measured at most; if there are more, a sample. None
        takes all of them, as the papers do.
    seed : int
        Of these samples, and of those that metrics draw.
    device, batch_tokens, max_length
        As for `Encoder`.
    progress : bool, optional
        Whether to show a bar; by default if standard error is a terminal.

    Examples
    --------
    With a model from the hub::

        found = isotropy.layers("bert-base-cased", "sentences.txt")
        [geometry.isoscore for geometry in found.tokens]  # 13 numbers
    """
    for name, most in (("max_texts", max_texts), ("max_tokens", max_tokens)):
        if most is not None:
            checks.integer(most, name, 2)
    picked = sample_texts(open_texts(texts, None), max_texts, seed)
    encoder = Encoder(
        name_or_path,
        layer="all",
        pool="tokens",
        device=device,
        batch_tokens=batch_tokens,
        max_length=max_length,
    )
    encodings, kept = encoder.tokenized(picked)
    chosen = _drawn(kept, max_tokens, seed)
    tokenizer = encoder.model.tokenizer
    one_start = {encoding.ids[0] for encoding in encodings} == {tokenizer.cls_token_id}
    with tempfile.TemporaryDirectory() as folder:
        files = {
            kind: [Path(folder) / f"{kind}-{layer}.npy" for layer in encoder.layers]
            for kind in KINDS
        }
        _write_layers(encoder, picked, chosen, files, progress)
        geometries: dict[str, list[Geometry]] = {kind: [] for kind in KINDS}
        with ProgressBar("layers", progress) as bar:
            bar.begin(len(encoder.layers), "measuring")
            for paths in zip(*files.values(), strict=True):
                for kind, path in zip(KINDS, paths, strict=True):
                    geometries[kind].append(measure(path, random_state=seed))
                bar.advance(1)
    return LayerGeometry(
        encoder.name,
        tokenizer.cls_token if one_start else None,
        len(picked),
        sum(map(len, kept)),
        sum(encoding.truncated for encoding in encodings),
        encoder.max_length,
        **geometries,
    )


def _drawn(
    kept: Sequence[NDArray[np.int64]], n_most: int | None, seed: int
) -> list[NDArray[np.int64]]:
    """The token numbers of each text that are among n_most drawn from all."""
    if n_most is None:
        return list(kept)
    lengths = [len(numbers) for numbers in kept]
    drawn = np.zeros(sum(lengths), dtype=bool)
    random = np.random.default_rng(seed)
    drawn[random.choice(len(drawn), min(n_most, len(drawn)), replace=False)] = True
    parts = np.split(drawn, np.cumsum(lengths)[:-1])
    return [numbers[part] for numbers, part in zip(kept, parts, strict=True)]


def _write_layers(
    encoder: Encoder,
    texts: Sequence[Text],
    chosen: Sequence[NDArray[np.int64]],
    files: dict[str, list[Path]],
    progress: bool | None,
) -> None:
    """Write the rows of the chosen tokens and of the first ones, each layer to its files."""
    with contextlib.ExitStack() as stack, ProgressBar("texts", progress) as bar:
        bar.begin(len(texts), "encoding")
        sinks = {
            kind: [stack.enter_context(open_sink(path, encoder.n_features)) for path in paths]
            for kind, paths in files.items()
        }
        for batch in encoder.batches(texts):
            for layer, (tokens, cls) in enumerate(zip(*sinks.values(), strict=True)):
                rows = [states.layers[layer] for states in batch]
                numbers = [chosen[states.number] for states in batch]
                tokens.write(np.concatenate([r[n] for r, n in zip(rows, numbers, strict=True)]))
                cls.write(np.stack([r[0] for r in rows]))
            bar.advance(len(batch))
