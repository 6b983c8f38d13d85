"""open_encoder: models and files of vectors alike give the vectors of texts."""

import numpy as np
import pytest

import isotropy
from isotropy.errors import InputError
from isotropy.models.encoder import holds_vectors

from .. import tiny_models
from ..tiny_models import TEXTS

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_models.bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def vectors(tmp_path):
    import pyarrow as pa

    columns = {"word": ["sun", "moon"], "note": ["a", "b"], "v": [[1.0, 0.0], [0.0, 1.0]]}
    parquet.write_table(pa.table(columns), tmp_path / "vectors.parquet")
    return tmp_path / "vectors.parquet"


def test_a_model_becomes_an_encoder(bert):
    found = isotropy.open_encoder(bert, layer=1, pool="cls")
    assert isinstance(found, isotropy.Encoder)
    assert (found.layers, found.pool) == ([1], "cls")
    assert isotropy.open_encoder(bert).pool == "mean"
    assert found.encode(TEXTS[:2]).shape == (2, 16)


def test_a_file_becomes_keyed_vectors(vectors):
    found = isotropy.open_encoder(vectors)
    np.testing.assert_array_equal(found.encode(["moon"]), [[0, 1]])
    np.testing.assert_array_equal(
        isotropy.open_encoder(vectors, text_column="note", column="v").encode(["a"]), [[1, 0]]
    )


def test_what_is_of_no_use_is_refused(bert, vectors):
    for option in ({"layer": 1}, {"pool": "mean"}, {"special_tokens": True}, {"device": "cpu"}):
        with pytest.raises(InputError, match=f"{next(iter(option))} can't be used with"):
            isotropy.open_encoder(vectors, **option)
    for name in ("column", "text_column"):
        with pytest.raises(InputError, match=f"open_encoder: {name} can't be used with a model"):
            isotropy.open_encoder(bert, **{name: "x"})


def test_folders_of_models_are_told_from_folders_of_vectors(bert, vectors, tmp_path):
    assert holds_vectors(vectors)
    assert holds_vectors(vectors.parent)
    assert holds_vectors("not-there.parquet")
    assert not holds_vectors(bert)
    assert not holds_vectors("owner/name")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("one\n")
    assert not holds_vectors(tmp_path / "texts")
