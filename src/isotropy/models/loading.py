"""Finding and loading models, without notes of other libraries and with one-line errors."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isotropy.errors import (
    InputError,
    IsotropyError,
    MissingExtraError,
    brief,
    one_line,
    reason,
    warn,
)

STATIC_TABLE = "model.safetensors"
HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def extra() -> tuple[Any, Any]:
    """The torch and transformers modules; raise with how to install them if missing."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingExtraError(
            f"a model of texts needs {error.name}, which is not installed. "
            'Run: pip install "isotropy[models]".'
        ) from error
    return torch, transformers


def short_name(name: str) -> str:
    """A name on the hub as it is, and the last part of any other path: what files may say of it.

    Examples
    --------
    >>> short_name("thenlper/gte-small"), short_name("/home/me/models/minilm/")
    ('thenlper/gte-small', 'minilm')
    """
    if HUB_NAME.fullmatch(name):
        return name
    return os.path.basename(os.path.abspath(os.path.expanduser(name)))


def is_sentence_transformer(name_or_path: Any) -> bool:
    """Whether a local folder has the layout of a sentence-transformers model."""
    return os.path.isfile(os.path.join(name_or_path, "modules.json"))


def static_folder(name_or_path: Any) -> Path | None:
    """The folder with the table and tokenizer of a static model; None if it is not one.

    That is a folder of model2vec, or the first module of a sentence-transformers model if it is a
    StaticEmbedding. Files on the hub are downloaded.
    """
    path = Path(os.fspath(name_or_path))
    if not os.path.exists(path) and path.suffix != ".gguf":
        path = _fetched(os.fspath(name_or_path)) or path
    modules, config = _quietly(path / "modules.json"), _quietly(path / "config.json")
    if isinstance(modules, list) and modules and _is_static_module(modules[0]):
        folder = path / str(modules[0].get("path", ""))
        return folder if folder.resolve().is_relative_to(path.resolve()) else None
    if isinstance(config, dict) and config.get("model_type") == "model2vec":
        return path
    if modules is None and config is None and os.path.isfile(path / "tokenizer.json"):
        return path if os.path.isfile(path / STATIC_TABLE) else None
    return None


def _is_static_module(module: Any) -> bool:
    return isinstance(module, dict) and str(module.get("type")).endswith(".StaticEmbedding")


def _quietly(path: Path | None) -> Any:
    """What a JSON file holds; None if there is none, or it is damaged."""
    try:
        return None if path is None else json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _fetched(name: str) -> Path | None:
    """The local copy of a static model on the hub; None if it is another, or out of reach."""
    for file in ("modules.json", "config.json"):
        found = _quietly(file_of(name, file))
        first = found[0] if isinstance(found, list) and found else found
        if _is_static_module(first) or (
            isinstance(first, dict) and first.get("model_type") == "model2vec"
        ):
            from huggingface_hub import snapshot_download

            return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    return None


def pools_itself(name_or_path: Any) -> bool:
    """Whether a model has its own pooling, as those of sentence-transformers and static ones do."""
    path = Path(os.fspath(name_or_path))
    if os.path.exists(path):
        return is_sentence_transformer(path) or static_folder(path) is not None
    try:
        from huggingface_hub import errors, hf_hub_download
    except ImportError:  # reported when the model is loaded
        return False
    try:
        hf_hub_download(os.fspath(name_or_path), "modules.json")
    except errors.HFValidationError:  # not a name on the hub: reported when it is loaded
        return False
    except Exception as error:  # of many kinds: offline, no such model, no access
        there_is_none = isinstance(error, errors.EntryNotFoundError)
        if not there_is_none or isinstance(error, errors.LocalEntryNotFoundError):
            warn(
                f"Encoder: could not look up whether {os.fspath(name_or_path)!r} has its own "
                f"pooling ({first_line(error)}); the mean is used. Set pool to be sure."
            )
        return False
    return True


def is_model(name_or_path: Any) -> bool:
    """Whether a local path holds a model, rather than vectors."""
    path = Path(os.fspath(name_or_path))
    found = path.suffix == ".gguf" or os.path.isfile(path / "config.json")
    return found or is_sentence_transformer(path)


def pretrained_location(name: str) -> tuple[str, dict[str, Any]]:
    """The path and options for from_pretrained, for a name, a folder or a file."""
    path = Path(name)
    if path.suffix == ".gguf":
        return str(path.parent), {"gguf_file": path.name}
    if is_sentence_transformer(path):
        return str(path / read_modules(path / "modules.json")[0]["path"]), {}
    return name, {}


def read_modules(path: Path) -> list[dict[str, Any]]:
    """The parts of a sentence-transformers model, as its modules.json lists them."""
    modules = read_json(path)
    listed = isinstance(modules, list) and all(isinstance(module, dict) for module in modules)
    if not listed or not modules or not isinstance(modules[0].get("path"), str):
        raise InputError(
            f"{str(path)!r} must list the parts of a model with their paths, got "
            f"{str(modules)[:60]}. Save the model again."
        )
    found: list[dict[str, Any]] = modules
    return found


def file_of(name: str, file: str) -> Path | None:
    """A file of a model in a folder or on the hub; None if the model doesn't have it."""
    if os.path.exists(name):
        path = Path(name) / file
        return path if path.is_file() else None
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(name, file))
    except (ImportError, OSError, ValueError):  # no such file or name, no access, offline
        return None


def read_json(path: Path) -> Any:
    """The content of a JSON file of a model."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{str(path)!r} must be a JSON file ({first_line(error)}). Save the model again."
        ) from error


@contextlib.contextmanager
def loading(name: str) -> Iterator[None]:
    """Silence the bars and notes of other libraries, and turn failures into one line."""
    try:
        with quiet():
            yield
    except IsotropyError:
        raise
    except Exception as error:  # of many kinds, by library and by what is wrong
        raise InputError(_complaint(name, error)) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the bars and notes of other libraries."""
    _, transformers = extra()
    notes = transformers.utils.logging
    level, bars = notes.get_verbosity(), notes.is_progress_bar_enabled()
    disabled = logging.root.manager.disable
    notes.set_verbosity_error()
    notes.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        notes.set_verbosity(level)
        if bars:
            notes.enable_progress_bar()


def _complaint(name: str, error: Exception) -> str:
    path = Path(name)
    if path.suffix == ".gguf" and not os.path.isfile(name):
        return f"there is no file {brief(name)}. Check the path."
    if os.path.isdir(name) and not is_model(path):
        return (
            f"the folder {brief(name)} holds no model: there is no config.json in it. "
            "Give the folder that save_pretrained wrote."
        )
    if os.path.isfile(name) and path.suffix != ".gguf":
        return f"{brief(name)} must be a model's folder or a .gguf file, got another file."
    if not os.path.exists(name) and (path.is_absolute() or name.startswith((".", "~"))):
        return f"there is no folder {brief(name)}. Check the path."
    return (
        f"{brief(name)} must be a model that transformers can load "
        f"({one_line(first_line(error), 160)}). Check the name or the folder."
    )


def first_line(error: Exception) -> str:
    """The first line of what went wrong."""
    lines = reason(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
