"""A codec as a faiss index that takes raw vectors: transforms, then the quantizer."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np

from isotropy.codecs import Binary, Codec, Faiss, Float, Scalar
from isotropy.codecs.repaired import RepairedCodec
from isotropy.errors import InputError
from isotropy.export import _faiss
from isotropy.linalg import Floats
from isotropy.repairs import check_target

SMALLEST = np.finfo(np.float32).tiny


def exported(codec: Codec, out: Any, overwrite: bool) -> Any:
    """See `isotropy.export.faiss`."""
    if not isinstance(codec, RepairedCodec):
        raise InputError(
            f"codec must be of one stage for faiss, got {type(codec).__name__}. Export its coarse_ "
            "and its fine_."
        )
    check_target({"out": out}, overwrite=overwrite)
    transforms = to_space(codec)
    if isinstance(codec, Binary) and codec.asymmetric:
        transforms.append(_faiss._centering(above(codec)))
    index = faiss.IndexPreTransform(quantizer(codec))  # one of its own, which owns none of them
    for transform in reversed(transforms):
        index.prepend_transform(transform)
    if out is not None:
        _faiss.write(index, out, overwrite)
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


def quantizer(codec: RepairedCodec) -> Any:
    """The index behind the transforms, empty and trained."""
    n, kinds = codec.n_dims_, faiss.ScalarQuantizer
    index: Any
    match codec:
        case Scalar():
            kind = kinds.QT_8bit if codec.bits == 8 else kinds.QT_4bit
            index = faiss.IndexScalarQuantizer(n, kind, faiss.METRIC_INNER_PRODUCT)
            ends = np.concatenate([codec.low_, codec.span_])
            faiss.copy_array_to_vector(ends, index.sq.trained)
            index.is_trained = True
        case Float() if codec.half:
            index = faiss.IndexScalarQuantizer(n, kinds.QT_fp16, faiss.METRIC_INNER_PRODUCT)
            index.is_trained = True
        case Float():
            index = faiss.IndexFlatIP(n)
        case Binary() if codec.asymmetric:
            index = faiss.IndexScalarQuantizer(n, kinds.QT_1bit_tqmse, faiss.METRIC_INNER_PRODUCT)
            index.train(np.eye(1, n, dtype=np.float32))  # its two values depend on n alone
        case Binary():
            index = faiss.IndexLSH(n, n, False, True)
            faiss.copy_array_to_vector(above(codec).astype(np.float32), index.thresholds)
            index.is_trained = True
        case Faiss():
            index = codec.index()
        case _:
            raise InputError(f"codec must be one of isotropy.codecs, got {type(codec).__name__}.")
    return index


def above(codec: Binary) -> Floats:
    """The next numbers above the thresholds: faiss sets a bit where a value reaches them."""
    ends = np.nextafter(codec.threshold_, np.float32(np.inf))
    return np.where(codec.threshold_ == 0, SMALLEST, ends).astype(np.float64)
