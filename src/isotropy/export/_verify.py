"""Rows through an exported repair, beside those of `transform`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from isotropy import checks, linalg
from isotropy.codecs import Codec, Rescored
from isotropy.errors import needs, public
from isotropy.export._folders import local
from isotropy.export._sentence_transformers import first_new
from isotropy.repairs import ClusterRemoval, Repair
from isotropy.repairs.steps import RemoveByCluster
from isotropy.sources import open_source

TARGETS = ("sentence-transformers", "static", "faiss", "onnx", "torch")
Rows = NDArray[Any]
LIMIT = 1e-5  # of a row's length
NEARLY = 1e-4  # relative difference of two distances below which float32 may choose either


@dataclass(frozen=True)
class Verified:
    """How far the rows of an exported repair are from those of `transform`.

    Attributes
    ----------
    largest : float
        Largest distance between two rows, in lengths of the row.
    n_rows : int
    n_left_out : int
        Rows that are as near to one cluster as to another, of which either may be taken.
    """

    largest: float
    n_rows: int
    n_left_out: int

    @property
    def close(self) -> bool:
        """Whether the largest difference is at most 1e-5."""
        return self.largest <= LIMIT

    def __str__(self) -> str:
        left_out = f", {self.n_left_out} between two clusters left out" if self.n_left_out else ""
        return (
            f"largest difference {self.largest:.2g} of a row's length over {self.n_rows:,} rows"
            f"{left_out}"
        )


@public("export.verify")
def verify(repair: Repair | Codec, out: Any, to: str, model: Any = None, X: Any = None) -> Verified:
    """Run rows through what was exported, and compare them with `transform`.

    Parameters
    ----------
    repair : Repair or Codec
        Of a codec, the rows that are coded are compared.
    out : path
        What was written.
    to : {"sentence-transformers", "static", "faiss", "onnx", "torch"}
    model : path, optional
        The model before the export, for "sentence-transformers" and "static".
    X : array of shape (n_samples, n_features), optional
        Rows to try [1,000 normal ones with the mean and covariance of the fitted rows, seed 0].
    """
    checks.choice(to, "to", TARGETS)
    if isinstance(repair, Codec):
        checks.choice(to, "to", ("faiss",))
        return _verify_codec(repair, out, X)
    if to == "static":
        return compared(_table(out), repair.transform(_table(model)))
    rows = sample(repair) if X is None else np.asarray(X, dtype=np.float32)
    kept = rows[~between_clusters(repair, rows)]
    wanted = repair.transform(kept)
    if to == "sentence-transformers":
        found, is_normalised = _of_model(repair, model, out, kept)
        wanted = linalg.unit_rows(wanted) if is_normalised else wanted
    else:
        found = {"onnx": _of_onnx, "faiss": _of_faiss, "torch": _of_torch}[to](str(out), kept)
    return compared(np.asarray(found), wanted, len(rows) - len(kept))


def _verify_codec(codec: Any, out: Any, X: Any) -> Verified:
    with needs("faiss", "faiss"):
        from isotropy.export import _faiss, _faiss_codecs
    check_is_fitted(codec)
    given = None if X is None else np.asarray(X, dtype=np.float32)
    if given is not None:
        checks.width(checks.matrix(given).shape[1], codec.n_features_in_)
    index = _faiss.read(out)
    pairs = [(codec, index)]
    if isinstance(codec, Rescored):
        pairs = list(zip((codec.coarse_, codec.fine_), _faiss.stages(index), strict=True))
    found = []
    for one, its_index in pairs:
        rows = _rows_like(one) if given is None else given
        n_transforms = len(_faiss_codecs.to_space(one))
        found.append(compared(_faiss.apply(its_index, rows, n_transforms), one.space(rows)))
    return max(found, key=lambda verified: verified.largest)


def _rows_like(codec: Any) -> Rows:
    """Rows like those that a codec was fitted on."""
    first = codec.repair_ if codec.n_dims is None else codec.pca_
    if first is not None:
        return sample(first)
    normal = np.random.default_rng(0).standard_normal((1000, codec.n_features_in_))
    return normal.astype(np.float32)


def compared(found: Rows, wanted: Rows, n_left_out: int = 0) -> Verified:
    """The largest difference of two sets of rows."""
    sizes = np.linalg.norm(wanted, axis=1)
    apart = np.linalg.norm(found - wanted.astype(np.float64), axis=1)
    ratios = np.divide(apart, sizes, out=np.where(apart > 0, np.inf, 0.0), where=sizes > 0)
    return Verified(float(ratios.max(initial=0.0)), len(found), n_left_out)


def sample(repair: Repair, n_rows: int = 1000) -> Rows:
    """Normal rows with the mean and covariance of the fitted ones, in float32."""
    random = np.random.default_rng(0)
    normal = random.standard_normal((n_rows, repair.n_features_in_))
    if repair.moments_ is None:
        return normal.astype(np.float32)
    moments = repair.moments_.at_unit_scale
    values, vectors = linalg.eigh(moments.scatter / moments.weight)
    rows = moments.mean + (normal * np.sqrt(np.maximum(values, 0))) @ vectors.T
    found: Rows = linalg.scaled(rows, -repair.moments_.exponent).astype(np.float32)
    return found


def between_clusters(repair: Repair, rows: Rows) -> Any:
    """Which rows are nearly as near to a second cluster as to the first."""
    found = np.zeros(len(rows), dtype=bool)
    if not isinstance(repair, ClusterRemoval):
        return found
    for step in repair.steps():
        if isinstance(step, RemoveByCluster) and len(step.centers) > 1:
            wide = rows.astype(np.float64)
            distances = np.stack([np.square(wide - one).sum(1) for one in step.centers])
            first, second = np.partition(distances, 1, axis=0)[:2]
            found |= second - first <= NEARLY * second
    return found


def _of_onnx(path: Any, rows: Rows) -> Rows:
    with needs("onnx", "onnx"):
        from isotropy.export import _onnx

    return _onnx.run(path, rows)


def _of_faiss(path: Any, rows: Rows) -> Rows:
    with needs("faiss", "faiss"):
        from isotropy.export import _faiss

    return _faiss.apply(_faiss.read(path), rows)


def _of_model(repair: Repair, model: Any, out: Any, rows: Rows) -> tuple[Rows, bool]:
    """(what the new modules of a model make of the rows, whether it ends with Normalize)."""
    with needs("sentence_transformers", "sentence-transformers"):
        import torch
        from sentence_transformers import SentenceTransformer
    loaded = SentenceTransformer(str(out), device="cpu", trust_remote_code=True)
    modules = list(loaded.children())
    first, width = first_new(model, repair)
    wide = np.zeros((len(rows), width or rows.shape[1]), dtype=np.float32)
    wide[:, : rows.shape[1]] = rows
    given = torch.from_numpy(wide)
    features = {"sentence_embedding": given, "token_embeddings": given[:, None]}
    features["attention_mask"] = torch.ones((len(rows), 1), dtype=torch.int64)
    with torch.inference_mode():
        for module in modules[first:]:
            features = module(features)
    return features["sentence_embedding"].numpy(), type(modules[-1]).__name__ == "Normalize"


def _table(model: Any) -> Rows:
    """The rows of a static model."""
    source = open_source(local(model))
    parts = [batch.rows for chunk in source.chunks() for batch in source.read(chunk)]
    return np.concatenate(parts).astype(np.float32)


def _of_torch(path: str, rows: Rows) -> Rows:
    import torch

    with torch.inference_mode():
        found: Rows = torch.export.load(path).module()(torch.from_numpy(rows)).numpy()
    return found
