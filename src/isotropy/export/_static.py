"""A static model with a repaired table of token vectors."""

from __future__ import annotations

import os
from itertools import chain
from typing import Any

import numpy as np
from safetensors.numpy import save

from isotropy import stored
from isotropy.errors import InputError, public, warn
from isotropy.export._folders import copied, expect_outside, local, put, put_card, put_json
from isotropy.export._steps import as_repair
from isotropy.models import read_json, short_name, static_folder
from isotropy.repairs import Origin, Repair, origin_warning
from isotropy.sources import open_source
from isotropy.writing import quoted

TABLE, OWN, OTHER = "model.safetensors", "embeddings", "embedding.weight"


@public
def static(model: Any, repair: Repair, out: Any, *, overwrite: bool = False) -> None:
    """Write a static model whose table of token vectors is repaired, row by row.

    The vector of a text stays the mean of its tokens' rows, so any repair can be used, also one
    that is not affine. Model2vec's weights and mapping are multiplied into the table first.

    Parameters
    ----------
    model : path or str
        Folder or hub name of a model of model2vec, or of sentence-transformers with a
        StaticEmbedding.
    repair : fitted repair
        Of rows of the table, as `isotropy.open(model)` reads them.
    out : path
        The folder to write, in the same format, with a table in float32. It appears when it is
        complete; other files are copied as they are, apart from the model card and, if they would
        be wrong, the dtype and width in config.json.
    overwrite : bool
        Replace a folder that isotropy wrote.

    Examples
    --------
    ::

        repair = isotropy.Whiten().fit("potion-base-8M")
        isotropy.export.static("potion-base-8M", repair, "potion-whitened")
    """
    as_repair(repair)
    folder = local(model)
    inside = static_folder(folder)
    if inside is None:
        raise InputError(
            f"model must be a static model, of model2vec or StaticEmbedding, got {quoted(folder)}."
        )
    target = expect_outside(folder, out, overwrite)
    source = open_source(folder)
    if source.n_features != repair.n_features_in_:
        raise InputError(
            f"repair must be for the model's table of width {source.n_features}, got one for "
            f"{repair.n_features_in_}. Fit it on vectors of this table."
        )
    if differs := origin_warning(Origin(model=short_name(os.fspath(model))), repair.origin_):
        warn(f"static: {differs}")
    batches = chain.from_iterable(map(source.read, source.chunks()))
    rows = np.concatenate([batch.rows for batch in batches]).astype(np.float32)
    with stored.open_safetensors(inside / TABLE) as file:
        name = OWN if OWN in file.entries else OTHER
    with copied(folder, target, overwrite) as part:
        here = part / inside.relative_to(folder)
        put(here / TABLE, save({name: np.ascontiguousarray(repair.transform(rows))}))
        path = here / "config.json"
        if path.is_file() and (settings := read_json(path)) != (new := _updated(settings, repair)):
            put_json(path, new)
        put_card(part, repair, Repaired="the rows of the table of token vectors")


def _updated(settings: Any, repair: Repair) -> Any:
    """The settings of a model2vec model with this table."""
    n_out = len(repair.get_feature_names_out())
    now = {"embedding_dtype": "float32", "hidden_dim": n_out}
    kept = {k: v for k, v in settings.items() if k != "vocabulary_quantization"}
    return kept | {k: v for k, v in now.items() if k in kept}
