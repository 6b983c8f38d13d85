"""open_encoder: what gives the vectors of texts, from a model or from a file of vectors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from isotropy import checks
from isotropy.errors import InputError, public
from isotropy.models.encoder import Encoder
from isotropy.models.keyed import KeyedVectors
from isotropy.models.loading import is_model
from isotropy.models.models import Layer
from isotropy.sources.opening import FORMATS

NOT_ALONE = {".txt", ".bin", ".safetensors"}  # suffixes that folders of models have too


@public
def open_encoder(
    name_or_path: Any,
    *,
    layer: Layer | None = None,
    pool: str | None = None,
    special_tokens: bool = False,
    device: str | None = None,
    cache: Any = None,
    column: str | None = None,
    text_column: str | None = None,
) -> Encoder | KeyedVectors:
    """An encoder of texts, from a model or from a file that has vectors beside their texts.

    Parameters
    ----------
    name_or_path : str or path
        A model's folder, hub name or .gguf file, as for `Encoder`; or a file or folder of vectors
        with a column of texts or words, as for `KeyedVectors.load`.
    layer, pool, special_tokens, device
        For models only, as for `Encoder`.
    cache : path, optional
        As for `Encoder`; a file of vectors has no use for it.
    column, text_column : str, optional
        For files only: the column with the vectors, and the one with the texts.

    Returns
    -------
    Encoder or KeyedVectors
        Either can be given to `compare`, `advise` and `diagnose`.

    Examples
    --------
    ::

        isotropy.open_encoder("sentence-transformers/all-MiniLM-L6-v2")
        isotropy.open_encoder("vectors.parquet", text_column="question")
    """
    name = checks.path(name_or_path, "name_or_path")
    if holds_vectors(name):
        for_models = {"layer": layer, "pool": pool, "device": device}
        for_models["special_tokens"] = special_tokens or None
        _refuse(for_models, "a file of vectors, for which no model is run")
        return KeyedVectors.load(name, text_column, column)
    _refuse({"column": column, "text_column": text_column}, "a model")
    return Encoder(
        name,
        layer=-1 if layer is None else layer,
        pool=pool,
        special_tokens=special_tokens,
        device=device,
        cache=cache,
    )


def holds_vectors(name_or_path: Any) -> bool:
    """Whether this is a file or folder of vectors rather than a model."""
    path = Path(name_or_path)
    if is_model(path):
        return False
    if os.path.isdir(path):  # one with texts alone is meant as a model, and lacks its config.json
        return bool({file.suffix for file in path.iterdir()} & set(FORMATS) - NOT_ALONE)
    return os.path.exists(path) or path.suffix in FORMATS


def _refuse(options: dict[str, Any], why: str) -> None:
    for name, given in options.items():
        if given is not None:
            raise InputError(f"{name} can't be used with {why}. Leave it out.")
