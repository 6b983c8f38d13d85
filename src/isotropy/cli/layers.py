"""isotropy layers: the geometry of every layer of a model, in one pass of it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from isotropy import errors, layer_geometry
from isotropy.cli import common
from isotropy.layer_geometry import KINDS, LayerGeometry
from isotropy.models import cut_off, sample_texts
from isotropy.tables import json_line, text_table

COLUMNS: dict[str, Callable[[Any], float]] = {  # head: what it shows of a geometry
    "log10 I": lambda g: g.log_partition_isotropy / math.log(10),
    "mean cosine": lambda g: g.mean_cosine,
    "IsoScore": lambda g: g.isoscore,
    "effective rank": lambda g: g.effective_rank,
    "drift": lambda g: g.mean_norm_ratio,
    "mean norm": lambda g: g.norms["mean"],
}


@common.command(
    "isotropy layers bert-base-cased sentences.txt",
    "isotropy layers bert-base-cased sentences.txt --against ./my-model --out layers.html",
    "isotropy layers bert-base-cased sentences.txt --all",
)
def layers(
    model: common.ModelArgument,
    texts: common.TextsArgument,
    *,
    against: Annotated[
        str | None, Option(help="Another model, measured on the same texts.")
    ] = None,
    as_json: common.JsonOption = False,
    out: Annotated[
        Path | None,
        Option(
            help="File for a chart of -log10 I by layer: .html (self-contained), or .svg, .png or "
            ".pdf (with kaleido)."
        ),
    ] = None,
    overwrite: common.OverwriteOption = False,
    max_texts: Annotated[
        int, Option(help="Encode at most this many texts, drawn at random (--seed).", min=2)
    ] = 2000,
    max_tokens: Annotated[
        int, Option(help="Measure at most this many tokens, drawn at random (--seed).", min=2)
    ] = 50_000,
    use_all: Annotated[
        bool,
        Option(
            "--all",
            help="Encode all texts and measure all their tokens, whatever --max-texts and "
            "--max-tokens are.",
        ),
    ] = False,
    seed: common.SeedOption = 0,
    options: common.TextOptions,
) -> None:
    """Measure how isotropic each layer of MODEL is on TEXTS.

    One table is for all tokens but the special ones, one for the first token of each text, such as
    [CLS]. The model runs once; its vectors are kept on disk until they are measured.
    """
    if out is not None:
        from isotropy.report.page import check_image

        inputs = {"MODEL": model, "TEXTS": texts, "--against": against}
        check_image(out, inputs, overwrite=overwrite, name="--out")
    common.offline_unless_reached(model, against)
    opened = options.open(texts)
    picked = sample_texts(opened, None if use_all else max_texts, seed)
    found, remarks = [], []
    for name in (model,) if against is None else (model, against):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", errors.IsotropyWarning)
            geometry = layer_geometry.layers(
                name,
                picked,
                max_texts=None,
                max_tokens=None if use_all else max_tokens,
                seed=seed,
                **options.encoding,
            )
        found.append(geometry)
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


def _print(found: LayerGeometry, n_texts: int, n_listed: int) -> None:
    of = "" if n_texts == n_listed else f" of {n_listed:,}, drawn at random"
    typer.echo(f"{found.model}, {n_texts:,} texts{of}")
    for kind in KINDS:
        geometries = getattr(found, kind)
        n_rows = geometries[0].n_samples
        more = kind == "tokens" and n_rows < found.n_tokens
        drawn = f" of {found.n_tokens:,}, drawn at random" if more else ""
        title = "all tokens" if kind == "tokens" else found.first_token or "first token"
        typer.echo(f"\n{title}: {n_rows:,} rows{drawn}")
        rows = [
            (str(layer), *(f"{show(geometry):.3g}" for show in COLUMNS.values()))
            for layer, geometry in enumerate(geometries)
        ]
        typer.echo(text_table(("layer", *COLUMNS), rows, right=range(len(COLUMNS) + 1)))
        still = [i for i, geometry in enumerate(geometries) if math.isnan(geometry.isoscore)]
        if still:
            where = f"{'layer' if len(still) == 1 else 'layers'} {', '.join(map(str, still))}"
            why = "there is only one row" if n_rows == 1 else "all rows are equal"
            if n_rows > 1 and kind == "cls" and found.first_token is not None and still == [0]:
                why += f", as it has seen only {found.first_token}"
            typer.echo(f"nan in {where}: {why}")
    if found.n_truncated:
        typer.echo(cut_off(found.n_truncated, n_texts, found.max_length), err=True)
