"""isotropy compress: how small can vectors get before a task suffers?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from isotropy.cli import common
from isotropy.cli.evidence import (
    DATA_HELP,
    Kind,
    TaskOptions,
    VectorOptions,
    VectorsArgument,
    task_inputs,
    tell,
)
from isotropy.errors import InputError, without_secrets
from isotropy.evidence import compress as find_codes
from isotropy.models import each, holds_vectors, open_texts, short_name
from isotropy.progress import ProgressBar
from isotropy.repairs import check_target
from isotropy.sources import open_source
from isotropy.writing import is_stream


@common.command(
    "isotropy compress vectors.npy",
    "isotropy compress vectors.parquet --task retrieval --data search --save codec.safetensors",
    "isotropy compress docs.npy --query-vectors queries.npy --task retrieval --data search "
    "--max-bytes 64 --out page.html",
)
def compress(
    context: typer.Context,
    model: VectorsArgument,
    *,
    task: Annotated[
        Kind | None,
        Option(
            help="The kind of task; pseudo: find the next line of a text file; omit it to compare "
            "neighbours with those of float32, which is fidelity, not quality."
        ),
    ] = None,
    data: Annotated[
        str | None,
        Option(help=f"{DATA_HELP}; without --task, a file of texts for MODEL.", show_default=False),
    ] = None,
    margin: Annotated[
        float,
        Option(
            help="Points of the metric, above 0, that a code may lose against float32.",
            min=0,
            max=100,
        ),
    ] = 1.0,
    max_bytes: Annotated[
        int | None,
        Option(
            help="Ask the reverse question: which code of at most this many bytes per vector in "
            "memory is best, and what does it lose?",
            min=1,
            show_default=False,
        ),
    ] = None,
    max_stored_bytes: Annotated[
        int | None,
        Option(
            help="Choose only among codes that store at most this many bytes per vector, in "
            "memory and on disk together.",
            min=1,
            show_default=False,
        ),
    ] = None,
    task_options: TaskOptions,
    save: Annotated[
        Path | None,
        Option(help="File for the chosen codec, fitted on all rows, to be used with `apply`."),
    ] = None,
    out: Annotated[
        Path | None,
        Option(help="HTML page with the picture: quality against bytes per vector."),
    ] = None,
    overwrite: common.OverwriteOption = False,
    options: VectorOptions,
    seed: common.SeedOption = 0,
    as_json: common.JsonOption = False,
) -> None:
    """Find the smallest code of vectors that loses little on a task.

    Tries int8, int4 and binary codes, of all dimensions or half of the principal components, as
    they are, centred, and rotated. In searches, bits are also tried with float queries, and
    rescored by int8; with --task retrieval, rotated codes also with queries that are moved to the
    mean of the documents. Each is compared with float32 on the same items.

    A third of the items, or the training part, chooses a code of each size. The others test these
    from the largest to the smallest. The answer is the smallest that is shown, with 95 %
    confidence, to lose less than --margin; or to stay with float32; or that there are too few
    items to tell, and how many it takes.

    `isotropy apply codec.safetensors VECTORS --out codes.npy` then writes the codes.
    """
    save, page = common.destination(save), common.destination(out)
    inputs = task_inputs(model, data, task_options, options)
    kept = {"--cache": options.cache}
    check_target({"--save": save, "--out": page}, inputs, kept=kept, overwrite=overwrite)
    if page is not None:
        from isotropy.report.page import check_page

        check_page(page, overwrite=overwrite, name="--out")
    common.offline_unless_reached(model, data)
    vectors, opened = _opened(model, task, data, task_options, options)
    texts = [text for some in task_options.texts().values() for text in some]
    with ProgressBar("codes") as bar:
        found = find_codes(
            vectors,
            opened,
            margin=margin,
            max_bytes=max_bytes,
            max_stored_bytes=max_stored_bytes,
            fit_on=texts or None,
            transductive=task_options.transductive,
            seed=seed,
            progress=bar.update,
        )
    with common.beside(save), common.beside(page):
        tell(found, as_json)  # before it is saved, which may fail
    saved = None
    if save is not None and found.codec is not None and found.choice is not None:
        note = ", ".join(short_name(name) for name in (model, data) if name)
        found.codec.save(save, note=note, overwrite=overwrite)  # its origin has the reason
        typer.echo(f"saved {found.choice.name} to {save}", err=True)
        saved = None if is_stream(save) else save
    elif save is not None:
        typer.echo("nothing was saved, as no code is recommended", err=True)
    if page is not None:
        from isotropy.report import write_compression

        title, command = Path(without_secrets(model)).name, common.typed(context)
        write_compression(
            found, page, title=title, command=command, codec=saved, overwrite=overwrite
        )
        if not is_stream(page):
            typer.echo(f"wrote {out}", err=True)


def _opened(
    model: str,
    task: str | None,
    data: str | None,
    task_options: TaskOptions,
    options: VectorOptions,
) -> tuple[Any, Any]:
    """The vectors, and the task if there is one."""
    if task is not None:
        if data is None:
            raise InputError("--task needs --data, got none. Name the file or folder of the task.")
        return options.open(model, task_options.open(task, data))
    for name, given in (vars(task_options) | {"query_vectors": options.query_vectors}).items():
        if given:
            raise InputError(f"--{name.replace('_', '-')} needs --task, got none. Name a task.")
    if holds_vectors(model):
        if data is not None:
            raise InputError("--data needs --task, got none. Name a task.")
        options.refuse_what_is_ignored(model, None)
        return open_source(model, column=options.column), None
    if data is None:
        raise InputError("a model needs --data, a file of texts to encode, got none.")
    encoder, _ = options.open(model, None)
    return encoder.encode(list(each(open_texts(data, None)))), None
