"""Exports: a fitted repair inside the tools that hold the vectors or judge them.

Each function is named after the package it exports to, which is imported when it is called.
"""

from __future__ import annotations

from typing import Any

from isotropy.codecs import Codec
from isotropy.errors import InputError, needs, public
from isotropy.export._sentence_transformers import first_new as expect_verifiable
from isotropy.export._sentence_transformers import sentence_transformers
from isotropy.export._static import static
from isotropy.export._verify import Verified, verify
from isotropy.repairs import Repair


@public("export.faiss")
def faiss(
    repair: Repair | Codec, index: Any = None, out: Any = None, *, overwrite: bool = False
) -> Any:
    """A faiss index that takes raw vectors and raw queries, and compares repaired ones.

    The repair becomes a chain of CenteringTransform, LinearTransform and NormalizationTransform in
    an IndexPreTransform. No service that uses the index needs isotropy.

    Parameters
    ----------
    repair : fitted repair or codec
        Every repair but `ClusterRemoval`, `Flow`, and `ScaledCenter` without `normalize=True`.
        Inner products are cosines if it ends with `normalize=True`. A codec becomes an empty index
        that codes what is added; see Notes. It takes no `index`.
    index : faiss index, path or str, optional
        An index of raw vectors, which is read back, repaired and built again: same kind, metric,
        ids and parameters. It is not changed. Only Flat, HNSWFlat, IVFFlat, IDMap and IDMap2 hold
        vectors exactly, alone or behind rotations and shifts; others are refused. A factory string
        such as "HNSW32,Flat" makes an empty index for inner products; so does None, a Flat one.
    out : path, optional
        File to write the index to.
    overwrite : bool
        Replace an existing file.

    Returns
    -------
    faiss.IndexPreTransform, or for `Rescored` faiss.IndexRefine

    Notes
    -----
    With `ScaledCenter`, a row of zeros, which has no direction, gets that of the mean, negated.

    `Scalar` becomes an IndexScalarQuantizer with the same cells; its products are those of decoded
    rows that are not scaled to length one. `Binary` becomes an IndexLSH without rotation, whose
    distances count differing bits, and with `asymmetric` an IndexScalarQuantizer of one bit
    (QT_1bit_tqmse), whose products have the order of ours. `Float` becomes a flat index or one of
    float16, and `Faiss` what its factory says. `Rescored` becomes an IndexRefine of two of these,
    whose `k_factor` is for 10 results, and which compares by squared Euclidean distance, or
    by inner product if RaBitQ finds the candidates. The repair must be one that faiss can run.
    An index can't align queries: search that of a codec with `align_queries` with
    `queries + codec.query_shift_`.

    Examples
    --------
    ::

        index = isotropy.export.faiss(repair)
        index.add(X)
        scores, ids = index.search(queries, 10)
        isotropy.export.faiss(repair, "documents.faiss", "repaired.faiss")
    """
    with needs("faiss", "faiss"):
        from isotropy.export import _faiss, _faiss_codecs

    if isinstance(repair, Codec):
        if index is not None:
            raise InputError("index can't be used with a codec, which is an index. Leave it out.")
        return _faiss_codecs.exported(repair, out, overwrite)
    return _faiss.exported(repair, index, out, overwrite)


@public("export.onnx")
def onnx(repair: Repair, out: Any = None, *, overwrite: bool = False) -> Any:
    """The repair as an ONNX model of float32 rows, any number of them.

    Its input is named "vectors" and its output "repaired". It is of opset 18, without custom
    operators. The name, parameters, origin and note of the repair are in the model's metadata.

    Parameters
    ----------
    repair : fitted repair
        Every repair but `Flow`.
    out : path, optional
        File to write the model to.
    overwrite : bool
        Replace an existing file.

    Returns
    -------
    onnx.ModelProto

    Examples
    --------
    ::

        isotropy.export.onnx(repair, "repair.onnx")
        session = onnxruntime.InferenceSession("repair.onnx")
        (repaired,) = session.run(None, {"vectors": X})
    """
    with needs("onnx", "onnx"):
        from isotropy.export import _onnx

    return _onnx.exported(repair, out, overwrite)


@public("export.torch")
def torch(repair: Repair, out: Any, *, overwrite: bool = False) -> None:
    """A program for `torch.export.load`, from any number of rows to repaired rows.

    It runs wherever torch does, without isotropy. `repair.as_module()` is the same as a module.

    Parameters
    ----------
    repair : fitted repair
        Every repair but `Flow`.
    out : path
        File to write the program to, usually .pt2.
    overwrite : bool
        Replace an existing file.

    Examples
    --------
    ::

        isotropy.export.torch(repair, "repair.pt2")
        repaired = torch.export.load("repair.pt2").module()(X)
    """
    with needs("torch", "torch"):
        from isotropy.export import _torch

    _torch.exported(repair, out, overwrite)


@public("export.mteb")
def mteb(model: Any, repair: Repair) -> Any:
    """An encoder for `mteb.evaluate` that repairs what the model encodes.

    Everything else is the model's: prompts, similarity, and metadata. The repair is named in the
    metadata's `experiment_kwargs`, with a checksum, because mteb would otherwise return the scores
    of the model itself from its cache.

    Parameters
    ----------
    model : SentenceTransformer or mteb encoder
    repair : fitted repair
        Any repair. Fit it on text that is not in the tasks: mteb's scores are only worth something
        for a repair that has not seen them.

    Returns
    -------
    encoder

    Examples
    --------
    ::

        model = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")
        mteb.evaluate(isotropy.export.mteb(model, repair), mteb.get_tasks(["STSBenchmark"]))
    """
    with needs("mteb", "mteb"):
        from isotropy.export import _mteb

    return _mteb.exported(model, repair)


__all__ = [
    "Verified",
    "faiss",
    "mteb",
    "onnx",
    "sentence_transformers",
    "static",
    "torch",
    "verify",
]
