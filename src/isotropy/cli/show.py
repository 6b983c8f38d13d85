"""isotropy show: a description of a saved repair."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import typer

from isotropy.cli.common import JsonOption, RepairArgument, command
from isotropy.errors import one_line
from isotropy.repairs.base import is_affine, read
from isotropy.tables import json_line

LONGEST = 2000  # characters of a line


@command("isotropy show repair.safetensors", "isotropy show repair.safetensors --json")
def show(repair: RepairArgument, as_json: JsonOption = False) -> None:
    """Describe a saved repair: what it is, what it was fitted on, how to apply it."""
    found = described(repair)
    if as_json:
        typer.echo(json_line(found))
        return
    params = ", ".join(f"{name}={value!r}" for name, value in found["params"].items())
    lines = {
        "repair": f"{found['method']}({params})",
        "fitted on": f"{found['n_samples']:,} rows of {found['n_features']} dimensions",
        "output": f"rows of {found['n_features_out']} dimensions",
        "level": {
            "token": "token: the rows of tokens, before pooling",
            "sentence": "sentence: the rows of texts, after pooling",
        }.get(found["level"], "not recorded: rows like those it was fitted on"),
        "form": "one matrix and one bias" if found["affine"] else "not affine",
        "note": found["note"] or "none",
        "saved": f"{found['time']} by isotropy {found['versions'].get('isotropy', 'unknown')}",
        "apply it": found["apply"],
    }
    for name, text in lines.items():
        typer.echo(f"{name:9}  {one_line(text, LONGEST)}")


def described(path: Path) -> dict[str, Any]:
    """The contents of a saved repair as plain values."""
    fitted, header = read(path)
    file = shlex.quote(str(path))
    of_tokens = f"isotropy embed MODEL TEXTS --repair {file} --out fixed.parquet"
    of_rows = f"isotropy apply {file} vectors.npy --out fixed.npy"
    return header | {
        "level": fitted.level_,
        "n_features_out": len(fitted.get_feature_names_out()),
        "affine": is_affine(fitted),
        "apply": of_tokens if fitted.level_ == "token" else of_rows,
    }
