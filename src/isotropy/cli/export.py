"""isotropy export: a saved repair inside the tool that makes or keeps the vectors."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from isotropy.cli import common
from isotropy.codecs import Codec, load
from isotropy.errors import InputError, warn
from isotropy.repairs import check_target
from isotropy.sources import guard
from isotropy.writing import atomic_write, write_errors

SCRIPT = '''"""Evaluate a model with a repair, and without it, on tasks of mteb.

Choose tasks whose texts the repair was not fitted on. Results are kept by mteb under other names.
"""

import mteb
from sentence_transformers import SentenceTransformer

import isotropy

model = SentenceTransformer({model!r})
repair = isotropy.load({repair!r})
tasks = mteb.get_tasks(tasks=["STSBenchmark"])

for encoder in (model, isotropy.export.mteb(model, repair)):
    for result in mteb.evaluate(encoder, tasks):
        print(result.task_name, result.get_score())
'''
MODEL_HELP = (
    "Folder or hub name of the model that the repair goes into: a sentence-transformers model, or "
    "for static a model2vec or StaticEmbedding one."
)
INDEX_HELP = (
    "Index to rebuild with repaired vectors, or a factory string such as HNSW32,Flat for an empty "
    "one; faiss only [Flat]."
)


class Target(StrEnum):
    """The tools that a repair can be exported to."""

    SENTENCE_TRANSFORMERS = "sentence-transformers"
    STATIC = "static"
    FAISS = "faiss"
    ONNX = "onnx"
    TORCH = "torch"
    MTEB = "mteb"


NEEDS_MODEL = (Target.SENTENCE_TRANSFORMERS, Target.STATIC, Target.MTEB)


@common.command(
    "isotropy export repair.safetensors --to onnx --out repair.onnx --verify",
    "isotropy export repair.safetensors --to faiss --index HNSW32,Flat --out empty.faiss",
    "isotropy export codec.safetensors --to faiss --out empty.faiss --verify",
)
def export(
    repair: common.RepairArgument,
    *,
    to: Annotated[Target, Option(help="The tool that the repair is for.", show_default=False)],
    out: Annotated[
        Path, Option(help="File, or folder of a model, that is written.", show_default=False)
    ],
    model: Annotated[str | None, Option(help=MODEL_HELP)] = None,
    index: Annotated[str | None, Option(help=INDEX_HELP)] = None,
    normalize: Annotated[
        bool, Option("--normalize", help="Scale the repaired vectors to length one.")
    ] = False,
    verify: Annotated[
        bool,
        Option(
            "--verify",
            help="Run 1,000 vectors like the fitted ones through what was written, and print the "
            "largest difference from `apply`.",
        ),
    ] = False,
    overwrite: common.OverwriteOption = False,
) -> None:
    """Write a saved repair, or a codec, into the tool that makes or keeps your vectors.

    \b
    sentence-transformers  a copy of --model whose encode returns repaired vectors
    static                 a copy of a static model with a repaired table
    faiss                  an index that repairs, or codes, what is added and what is asked
    onnx                   a graph from vectors to repaired vectors
    torch                  a program for torch.export.load, from vectors to repaired vectors
    mteb                   a script that evaluates --model with the repair

    The originals are left as they are: to roll back, use them again.
    """
    from isotropy import export as exports

    if to in NEEDS_MODEL and model is None:
        raise InputError(f"--model must be given with --to {to}. Name its folder.")
    if to not in NEEDS_MODEL and model is not None:
        raise InputError(f"--model can't be used with --to {to}. Leave it out.")
    if verify and to == Target.MTEB:
        raise InputError("--verify can't be used with --to mteb. Leave it out.")
    if index is not None and to != Target.FAISS:
        raise InputError(f"--index needs --to faiss, got {to}.")
    guard(
        {"--out": out}, {"REPAIR": repair, "--model": model, "--index": index}, overwrite=overwrite
    )
    fitted = load(repair)
    if isinstance(fitted, Codec) and (to != Target.FAISS or normalize):
        given = "--normalize, which codes need not" if normalize else f"--to {to}"
        raise InputError(f"a codec can be exported only with --to faiss, got {given}.")
    if normalize:
        fitted.set_params(normalize=True)
    common.offline_unless_reached(model)
    if verify and to == Target.SENTENCE_TRANSFORMERS:
        exports.expect_verifiable(model, fitted)
    match to:
        case Target.SENTENCE_TRANSFORMERS:
            exports.sentence_transformers(model, fitted, out, overwrite=overwrite)
        case Target.STATIC:
            exports.static(model, fitted, out, overwrite=overwrite)
        case Target.FAISS:
            made = exports.faiss(fitted, index, out, overwrite=overwrite)
            if not made.ntotal:
                typer.echo(f"{out} holds no vectors yet: fill it with index.add", err=True)
        case Target.ONNX:
            exports.onnx(fitted, out, overwrite=overwrite)
        case Target.TORCH:
            exports.torch(fitted, out, overwrite=overwrite)
        case Target.MTEB:
            _write_script(model, repair, out, overwrite)
    common.say(f"wrote {out}")
    if verify:
        found = exports.verify(fitted, out, to=str(to), model=model)
        typer.echo(str(found))
        if not found.close:
            warn(f"export: {found}. Report it with the repair's `isotropy show`.")
            raise typer.Exit(1)


def _write_script(model: str | None, repair: Path, out: Path, overwrite: bool) -> None:
    """Write a script for mteb, which has no file format for models."""
    check_target({"--out": out}, overwrite=overwrite)
    with write_errors(out), atomic_write(out, overwrite=overwrite) as part:
        part.write_text(SCRIPT.format(model=model, repair=str(repair)), encoding="utf-8")
