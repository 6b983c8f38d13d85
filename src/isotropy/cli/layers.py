"""isotropy layers: the geometry of every layer of a model, in one pass of it."""

from __future__ import annotations

import contextlib
import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from typer import Option

from isotropy import errors
from isotropy.cli.common import (
    JsonOption,
    ModelArgument,
    OverwriteOption,
    SeedOption,
    TextOptions,
    TextsArgument,
    command,
    offline_unless_reached,
    shown,
)
from isotropy.geometry import Geometry, measure
from isotropy.models.encoder import Encoder, cut_off
from isotropy.models.texts import Text, sampled
from isotropy.progress import ProgressBar
from isotropy.sources.sinks import open_sink
from isotropy.tables import json_line, text_table

KINDS = ("tokens", "cls")
COLUMNS: dict[str, Callable[[Any], float]] = {  # head: what it shows of a geometry
    "log10 I": lambda g: g.log_partition_isotropy / math.log(10),
    "mean cosine": lambda g: g.mean_cosine,
    "IsoScore": lambda g: g.isoscore,
    "effective rank": lambda g: g.effective_rank,
    "drift": lambda g: g.mean_norm_ratio,
    "mean norm": lambda g: g.norms["mean"],
}


@dataclass(frozen=True)
class Layers:
    """The geometries of a model's layers, of all tokens and of the first one of each text."""

    model: str
    first_token: str | None
    n_tokens: int
    n_truncated: int
    max_length: int
    tokens: list[Geometry]
    cls: list[Geometry]

    def title(self, kind: str) -> str:
        """What the rows of a kind are."""
        return "all tokens" if kind == "tokens" else self.first_token or "first token"

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


@command(
    "isotropy layers bert-base-cased sentences.txt",
    "isotropy layers bert-base-cased sentences.txt --against ./my-model --out layers.html",
)
def layers(
    model: ModelArgument,
    texts: TextsArgument,
    *,
    against: Annotated[
        str | None, Option(help="Another model, measured on the same texts.")
    ] = None,
    as_json: JsonOption = False,
    out: Annotated[
        Path | None,
        Option(
            help="File for a chart of -log10 I by layer: .html (self-contained), or .svg, .png or "
            ".pdf (with kaleido)."
        ),
    ] = None,
    overwrite: OverwriteOption = False,
    max_texts: Annotated[
        int, Option(help="Encode at most this many texts, drawn at random (--seed).", min=2)
    ] = 2000,
    max_tokens: Annotated[
        int, Option(help="Measure at most this many tokens, drawn at random (--seed).", min=2)
    ] = 50_000,
    seed: SeedOption = 0,
    options: TextOptions,
) -> None:
    """Measure how isotropic each layer of MODEL is on TEXTS.

    One table is for all tokens but the special ones, one for the first token of each text, such as
    [CLS]. The model runs once; its vectors are kept on disk until they are measured.
    """
    if out is not None:
        from isotropy.report.page import check_image

        inputs = {"MODEL": model, "TEXTS": texts, "--against": against}
        check_image(out, inputs, overwrite=overwrite, name="--out")
    offline_unless_reached(model, against)
    opened = options.open(texts)
    picked = sampled(opened, max_texts, seed)
    found, remarks = [], []
    for name in (model,) if against is None else (model, against):
        encoder = Encoder(
            name,
            layer="all",
            device=options.device,
            batch_tokens=options.batch_tokens,
            max_length=options.max_length,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", errors.IsotropyWarning)
            found.append(measured_layers(encoder, picked, max_tokens, seed))
        remarks += sorted({f"{name}: {w.message}" for w in caught})
    if out is not None:
        from isotropy.report import charts, write_image

        figure = charts.layers({"models": [one.to_dict() for one in found]})
        write_image(figure, out, overwrite=overwrite)
    if as_json:
        given = {"n_texts": len(picked), "n_listed": opened.n_texts, "n_blank": opened.n_blank}
        result = given | {"models": [one.to_dict() for one in found], "warnings": remarks}
        typer.echo(json_line(result))
        return
    for one in found:
        _print(one, len(picked), opened.n_texts)
    for remark in remarks:
        typer.echo(f"warning: {errors.one_line(remark)}", err=True)


def measured_layers(
    encoder: Encoder, texts: Sequence[Text], max_tokens: int = 50_000, seed: int = 0
) -> Layers:
    """The geometry of every layer, in one pass of the model.

    Parameters
    ----------
    encoder : Encoder
        With layer="all" and pool="tokens".
    texts : sequence of str
    max_tokens : int
        Tokens that are measured; of more, a seeded sample.
    seed : int
        Of that sample, and of those that metrics take.
    """
    encodings, kept = encoder.tokenized(texts)
    chosen = _sample(kept, max_tokens, seed)
    firsts = {encoding.ids[0] for encoding in encodings}
    cls_id = encoder.model.tokenizer.cls_token_id
    with tempfile.TemporaryDirectory() as folder:
        files = {
            kind: [Path(folder) / f"{kind}-{layer}.npy" for layer in encoder.layers]
            for kind in KINDS
        }
        _spill(encoder, texts, chosen, files)
        with shown():
            geometries = {
                kind: [measure(path, random_state=seed) for path in files[kind]] for kind in KINDS
            }
    return Layers(
        encoder.name,
        encoder.model.tokenizer.cls_token if firsts == {cls_id} else None,
        sum(map(len, kept)),
        sum(encoding.truncated for encoding in encodings),
        encoder.max_length,
        **geometries,
    )


def _sample(kept: Sequence[NDArray[np.int64]], n_most: int, seed: int) -> list[NDArray[np.int64]]:
    """Of the tokens of each text, those among n_most drawn from all."""
    lengths = [len(numbers) for numbers in kept]
    drawn = np.zeros(sum(lengths), dtype=bool)
    random = np.random.default_rng(seed)
    drawn[random.choice(len(drawn), min(n_most, len(drawn)), replace=False)] = True
    parts = np.split(drawn, np.cumsum(lengths)[:-1])
    return [numbers[part] for numbers, part in zip(kept, parts, strict=True)]


def _spill(
    encoder: Encoder,
    texts: Sequence[Text],
    chosen: Sequence[NDArray[np.int64]],
    files: dict[str, list[Path]],
) -> None:
    """Write the rows of each layer to its files: of the chosen tokens, and of the first ones."""
    with contextlib.ExitStack() as stack, ProgressBar("texts") as bar:
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


def _reason(found: Layers, kind: str, still: list[int]) -> str:
    """Why the rows of layers have no spread."""
    if getattr(found, kind)[0].n_samples == 1:
        return "there is one row alone"
    first = kind == "cls" and found.first_token is not None and still == [0]
    seen = f", as it has seen {found.first_token} alone" if first else ""
    return f"all rows are equal there{seen}"


def _print(found: Layers, n_texts: int, n_listed: int) -> None:
    of = "" if n_texts == n_listed else f" of {n_listed:,}, drawn at random"
    typer.echo(f"{found.model}, {n_texts:,} texts{of}")
    for kind in KINDS:
        geometries = getattr(found, kind)
        n_rows = geometries[0].n_samples
        more = kind == "tokens" and n_rows < found.n_tokens
        drawn = f" of {found.n_tokens:,}, drawn at random" if more else ""
        typer.echo(f"\n{found.title(kind)}: {n_rows:,} rows{drawn}")
        rows = [
            (str(layer), *(f"{show(geometry):.3g}" for show in COLUMNS.values()))
            for layer, geometry in enumerate(geometries)
        ]
        typer.echo(text_table(("layer", *COLUMNS), rows, right=range(len(COLUMNS) + 1)))
        still = [i for i, geometry in enumerate(geometries) if math.isnan(geometry.isoscore)]
        if still:
            where = f"{'layer' if len(still) == 1 else 'layers'} {', '.join(map(str, still))}"
            typer.echo(f"nan in {where}: {_reason(found, kind, still)}")
    if found.n_truncated:
        typer.echo(cut_off(found.n_truncated, n_texts, found.max_length), err=True)
