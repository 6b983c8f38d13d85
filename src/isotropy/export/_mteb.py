"""An mteb encoder that repairs what another one encodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from mteb.models import EncoderProtocol, ModelMeta
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from sentence_transformers import SentenceTransformer
from sklearn.utils.validation import check_is_fitted

from isotropy.errors import InputError, InputTypeError, warn
from isotropy.export._steps import as_repair
from isotropy.repairs import Origin, Repair, origin_warning
from isotropy.stored import checksum


def exported(model: Any, repair: Repair) -> RepairedEncoder:
    """See `isotropy.export.mteb`."""
    check_is_fitted(as_repair(repair))
    if isinstance(model, SentenceTransformer):
        model = SentenceTransformerEncoderWrapper(model)
    if not isinstance(model, EncoderProtocol):
        raise InputTypeError(
            "model must be a SentenceTransformer or an encoder of mteb, got "
            f"{type(model).__name__}. Load it with mteb.get_model."
        )
    if repair.level_ == "token":
        raise InputError(
            "repair must be for vectors of whole texts, got one for tokens, before they are "
            "pooled. Put it into the model with export.sentence_transformers, and evaluate that."
        )
    found = RepairedEncoder(model, repair)
    name = found.mteb_model_meta.name
    known = name is not None and name != ModelMeta.create_empty().name
    remark = origin_warning(Origin(model=name if known else None), repair.origin_)
    if remark:
        warn(f"export.mteb: {remark}")
    return found


class RepairedEncoder:
    """The model, with its vectors repaired.

    It has what mteb's `EncoderProtocol` names and nothing else of the model's: a search of its own
    would go around the repair.
    """

    def __init__(self, model: Any, repair: Repair) -> None:
        self.model = model
        self.repair = repair
        meta = model.mteb_model_meta or ModelMeta.create_empty()
        kwargs = dict(meta.experiment_kwargs or {})
        before = [kwargs["isotropy"]] if "isotropy" in kwargs else []  # repaired more than once
        kwargs["isotropy"] = "+".join([*before, f"{repair.name}-{fingerprint(repair):08x}"])
        updates = {"experiment_kwargs": kwargs, "embed_dim": repair._n_features_out}
        self.mteb_model_meta = meta.model_copy(update=updates)

    def encode(self, inputs: Any, **kwargs: Any) -> Any:
        """The repaired vectors of the inputs, as mteb's `EncoderProtocol` asks for them."""
        rows = self.model.encode(inputs, **kwargs)
        rows = rows if isinstance(rows, np.ndarray) else np.asarray(rows.detach().float().cpu())
        if rows.shape[1] != self.repair.n_features_in_:
            raise InputError(
                f"model must encode to {self.repair.n_features_in_} dimensions, as the rows that "
                f"the repair was fitted on, got {rows.shape[1]}. Fit it on vectors of this model."
            )
        return self.repair.transform(rows)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        return self.model.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        return self.model.similarity_pairwise(embeddings1, embeddings2)


def fingerprint(repair: Repair) -> int:
    """A checksum of what the repair is and has learned."""
    params = {name: str(value) for name, value in repair.get_params().items()}
    return checksum({"method": repair.name, "params": params}, repair._arrays())
