"""A codec as a faiss index that takes raw vectors: transforms, then the quantizer."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
from sklearn.utils.validation import check_is_fitted

from isotropy.codecs import Binary, Codec, Faiss, Float, Rescored, Scalar
from isotropy.codecs.faiss import parts
from isotropy.codecs.repaired import RepairedCodec
from isotropy.errors import InputError, warn
from isotropy.export import _faiss
from isotropy.linalg import Floats
from isotropy.repairs import check_target

SMALLEST = np.finfo(np.float32).tiny
N_FOUND = 10  # results for which a refined index takes as many candidates as its codec


def exported(codec: Codec, out: Any, overwrite: bool) -> Any:
    """See `isotropy.export.faiss`."""
    check_is_fitted(codec)
    check_target({"out": out}, overwrite=overwrite)
    index = refined(codec) if isinstance(codec, Rescored) else behind_transforms(codec)
    if codec.align_queries:
        warn(
            "export.faiss: queries must be aligned before they are asked, as an index treats them "
            "like rows. Search it with queries + codec.query_shift_, where codec is what "
            "isotropy.load reads from the saved file."
        )
    if out is not None:
        _faiss.write(index, out, overwrite)
    return index


def refined(codec: Rescored) -> Any:
    """The index of the shorter codes, refined by that of the longer ones.

    Both have one metric: a distance, as of counted bits, unless it is RaBitQ with inner products.
    Distances also order rows that are nearly of length one more like cosines than products do.
    """
    if isinstance(codec.fine_, Binary) and not codec.fine_.asymmetric:
        raise InputError(
            "fine must not be Binary for faiss, which can't count the bits of some rows only. Use "
            "Binary(asymmetric=True), or codes of more bits."
        )
    metric = faiss.METRIC_L2 if codec.coarse_.decodes else faiss.METRIC_INNER_PRODUCT
    stages = [behind_transforms(stage, metric) for stage in (codec.coarse_, codec.fine_)]
    index = faiss.IndexRefine(*stages)
    index.k_factor = max(1.0, codec.n_candidates / N_FOUND)
    return index


def behind_transforms(codec: Codec, metric: int = faiss.METRIC_INNER_PRODUCT) -> Any:
    """The index of a codec of one stage, with its transforms in front."""
    if not isinstance(codec, RepairedCodec):
        raise InputError(f"codec must be one of isotropy.codecs, got {type(codec).__name__}.")
    transforms = to_space(codec)
    if isinstance(codec, Binary) and codec.asymmetric:
        transforms.append(_faiss._centering(above(codec)))
    index = faiss.IndexPreTransform(quantizer(codec, metric))  # one of its own, which owns none
    for transform in reversed(transforms):
        index.prepend_transform(transform)
    return index


def to_space(codec: RepairedCodec) -> list[Any]:
    """The transforms of raw rows to those that are coded, of length one."""
    found: list[Any] = []
    if codec.pca_ is not None:
        found += _faiss.chain(codec.pca_)
    elif codec.n_dims is not None:
        found.append(_faiss._linear(np.eye(codec.n_dims, codec.n_features_in_)))
    if codec.repair_ is not None:
        found += _faiss.chain(codec.repair_)
    return [*found, faiss.NormalizationTransform(codec.n_dims_)]


def quantizer(codec: RepairedCodec, metric: int) -> Any:
    """The index behind the transforms, empty and trained; that of counted bits has no metric."""
    n, kinds = codec.n_dims_, faiss.ScalarQuantizer
    index: Any
    match codec:
        case Scalar():
            kind = kinds.QT_8bit if codec.bits == 8 else kinds.QT_4bit
            index = faiss.IndexScalarQuantizer(n, kind, metric)
            ends = np.concatenate([codec.low_, codec.span_])
            faiss.copy_array_to_vector(ends, index.sq.trained)
            index.is_trained = True
        case Float() if codec.half:
            index = faiss.IndexScalarQuantizer(n, kinds.QT_fp16, metric)
            index.is_trained = True
        case Float():
            index = faiss.IndexFlat(n, metric)
        case Binary() if codec.asymmetric:
            index = faiss.IndexScalarQuantizer(n, kinds.QT_1bit_tqmse, metric)
            index.train(np.eye(1, n, dtype=np.float32))  # its two values depend on n alone
        case Binary():
            index = faiss.IndexLSH(n, n, False, True)
            faiss.copy_array_to_vector(above(codec).astype(np.float32), index.thresholds)
            index.is_trained = True
        case Faiss():
            index = codec.index()
            for part in (index, parts(index)[1]):
                part.metric_type = metric
        case _:
            raise InputError(f"codec must be one of isotropy.codecs, got {type(codec).__name__}.")
    return index


def above(codec: Binary) -> Floats:
    """The next numbers above the thresholds: faiss sets a bit where a value reaches them."""
    ends = np.nextafter(codec.threshold_, np.float32(np.inf))
    return np.where(codec.threshold_ == 0, SMALLEST, ends).astype(np.float64)
