"""Codecs, compared with numpy, with what they store, and on real vectors."""

from __future__ import annotations

import pytest

from isotropy.codecs import Binary, Faiss, Float, Rescored, Scalar
from isotropy.repairs import Center, Whiten
from isotropy.testing import check_codec

CODECS = {
    "binary": Binary(),
    "binary, centred": Binary(repair=Center()),
    "binary, medians, asymmetric": Binary(threshold="median", asymmetric=True),
    "binary, first dimensions": Binary(n_dims=13),
    "int8": Scalar(),
    "int8, principal components": Scalar(n_dims=10, truncate="pca"),
    "int4": Scalar(bits=4, repair=Center()),
    "int4, odd": Scalar(bits=4, n_dims=13, truncate="pca", repair=Center()),
    "float32": Float(repair=Whiten(n_components=6, method="pca")),
    "float16": Float(half=True),
    "bits, then int8": Rescored(
        coarse=Binary(repair=Center(), n_dims=16), fine=Scalar(), n_candidates=600
    ),
    "bits, then float32": Rescored(
        coarse=Binary(asymmetric=True), fine=Float(repair=Center()), n_candidates=600
    ),
}


FAISS = {
    "PQ": Faiss(factory="PQ6x4", repair=Center()),
    "OPQ": Faiss(factory="OPQ4_16,PQ4x4", n_dims=20),
    "RaBitQ": Faiss(factory="RaBitQ", repair=Center()),
    "RaBitQ, rotated": Faiss(factory="RR,RaBitQ4"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAISS)
def test_codec_of_faiss_keeps_its_promises(name: str) -> None:
    pytest.importorskip("faiss")
    check_codec(FAISS[name])


@pytest.mark.parametrize("name", CODECS)
def test_codec_keeps_its_promises(name: str) -> None:
    check_codec(CODECS[name])
