"""isotropy doctor: what is installed, what is missing, and what is broken."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import logging
import os
import platform
import re
import shutil
from importlib import metadata
from typing import Annotated, Any

import typer
from threadpoolctl import threadpool_info
from typer import Option

from isotropy._version import __version__
from isotropy.cli.common import JsonOption, command
from isotropy.tables import json_line, text_table
from isotropy.threads import n_threads

CORE = "core"
ENABLES = {  # extra: what it is for
    "torch": "torch tensors, and a GPU for large files: --engine torch",
    "models": "encoding texts: embed, layers, and compare and advise with a model",
    "train": "fine-tuning with calibration: train",
    "dask": "a cluster for very large files: --engine dask",
    "report": "pages and charts: report, layers --out",
    "demo": "the wordllama vectors of demo",
    "sentence-transformers": "models with a repair inside: export --to sentence-transformers",
    "onnx": "ONNX graphs of repairs: export --to onnx",
    "mteb": "evaluating a repaired model: export --to mteb",
    "lancedb": "LanceDB tables of vectors",
    "postgres": "PostgreSQL tables of vectors, with pgvector",
    "qdrant": "Qdrant collections of vectors",
    "hdf5": "HDF5 and AnnData files of vectors",
    "zarr": "Zarr folders of vectors",
    "faiss": "faiss indexes of vectors, and export --to faiss",
}
MODULES = {  # if not the package's own name
    "scikit-learn": "sklearn",
    "dask": "distributed",
    "faiss-cpu": "faiss",
    "pylance": "lance",
}
SLOW = {"torch", "transformers", "accelerate", "sentence-transformers"}  # seconds to import
FOLDERS = ("ISOTROPY_MODELS", "ISOTROPY_DATA", "ISOTROPY_CACHE")
DRIVERS = ("libcuda.so.1", "nvcuda.dll")


@command("isotropy doctor", "isotropy doctor --deep --json")
def doctor(
    deep: Annotated[
        bool,
        Option(
            "--deep", help="Also import torch and what needs it, instead of only looking for them."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check the installation: packages, extras, device and BLAS.

    Lists what each missing extra would add, and how to install it. The exit code is 1 if an
    installed package can't be imported, else 0.
    """
    found = examined(deep)
    if as_json:
        typer.echo(json_line(found))
    else:
        _print(found)
    raise typer.Exit(1 if found["broken"] else 0)


def examined(deep: bool = False) -> dict[str, Any]:
    """The findings as plain values."""
    wanted = required()
    packages = {name: version(name) for names in wanted.values() for name in names}
    there = [name for name, found in packages.items() if found is not None]
    broken = {name: why for name in there if (why := fault(name, deep or name not in SLOW))}
    device = "none: torch is not installed"
    if packages.get("torch") is not None:
        device, why = cuda(deep)
        broken |= {"torch": why} if why else {}
    return {
        "isotropy": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "device": device,
        "blas": blas(),
        "n_cores": n_threads(),
        "folders": {name: folder(os.environ.get(name)) for name in FOLDERS},
        "extras": {
            extra: {
                "there": all(packages[name] is not None for name in names),
                "packages": {name: packages[name] for name in names},
                "enables": ENABLES.get(extra, "everything else"),
                "install": f'pip install "isotropy[{extra}]"' if extra in ENABLES else None,
            }
            for extra, names in wanted.items()
        },
        "broken": broken,
    }


def required() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {CORE: [], **{extra: [] for extra in ENABLES}}
    for line in metadata.requires("isotropy") or []:
        package = re.match(r"[\w.-]+", line)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        names = found.get(extra[1] if extra else CORE)
        if package and names is not None:
            names.append(package[0])
    return found


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def fault(package: str, run: bool) -> str:
    """Why an installed package can't be imported; empty if it can."""
    module = MODULES.get(package, package.replace("-", "_"))
    said = logging.root.manager.disable
    logging.disable(logging.INFO)  # what packages say of themselves while they are imported
    try:
        if run:
            importlib.import_module(module)
        elif importlib.util.find_spec(module) is None:
            return f"there is no module {module}"
    except Exception as error:  # a package may raise anything when it is imported
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    finally:
        logging.disable(said)
    return ""


def cuda(deep: bool) -> tuple[str, str]:
    """The CUDA device, and why torch can't be imported; not imported if there is no driver."""
    if not (deep or has_driver()):
        return "none: there is no CUDA driver", ""
    why = fault("torch", run=True)
    if why:
        return "unknown: torch cannot be imported", why
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        return f"none: torch {'finds no device' if built else 'is built for the CPU only'}", ""
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"cuda: {', '.join(names)}", ""


def has_driver() -> bool:
    for name in DRIVERS:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return True
    return os.path.exists("/dev/kfd")  # AMD's, which torch calls cuda as well


def blas() -> list[dict[str, Any]]:
    """The BLAS libraries in use, with their threads."""
    found = [
        {"name": one["internal_api"], "version": one["version"], "n_threads": one["num_threads"]}
        for one in threadpool_info()
        if one["user_api"] == "blas"
    ]
    return [one for i, one in enumerate(found) if one not in found[:i]]


def folder(path: str | None) -> dict[str, Any]:
    return {"path": path, "exists": path is not None and os.path.isdir(os.path.expanduser(path))}


def _print(found: dict[str, Any]) -> None:
    typer.echo(f"isotropy {found['isotropy']}, Python {found['python']}, {found['platform']}")
    typer.echo(f"device   {found['device']}")
    libraries = [
        f"{one['name']} {one['version'] or ''} on {one['n_threads']} "
        f"{'thread' if one['n_threads'] == 1 else 'threads'}"
        for one in found["blas"]
    ]
    typer.echo(f"BLAS     {', '.join(libraries) or 'unknown'}")
    typer.echo(f"cores    {found['n_cores']}")
    for name, place in found["folders"].items():
        state = "" if place["exists"] else ", which does not exist"
        typer.echo(f"{name}  {'not set' if place['path'] is None else place['path'] + state}")
    rows = []
    for extra, about in found["extras"].items():
        packages = [
            f"{name} {'BROKEN' if name in found['broken'] else number or 'missing'}"
            for name, number in about["packages"].items()
        ]
        whole = not found["broken"].keys() & about["packages"].keys()
        there = ("yes" if whole else "broken") if about["there"] else "no"
        rows.append((extra, there, ", ".join(packages), about["enables"]))
    head = ("extra", "installed", "packages", "what it is for")
    typer.echo(text_table(head, rows, width=shutil.get_terminal_size((110, 24)).columns))
    for about in found["extras"].values():
        if not about["there"]:
            typer.echo(f"{about['install'] or 'pip install isotropy'}  # {about['enables']}")
    for name, why in found["broken"].items():
        typer.echo(f"{name} is installed but can't be imported ({why}). Install it again.")
