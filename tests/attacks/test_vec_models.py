"""GGUF files and faiss indexes whose counts lie, or that are cut short."""

import struct

import numpy as np
import pytest

import isotropy

from . import vec_files as made
from .vec_files import X, read

E = "token_embd.weight"
MOST = 2**64 - 1
STRINGS, NUMBERS = struct.pack("<IQ", 8, MOST), struct.pack("<IQ", 6, MOST)
NESTED = struct.pack("<IQ", 9, 1)
GGUF = {
    "empty": (b"", "is empty"),
    "only magic": (b"GGUF", "is truncated"),
    "text": (b"this is text", "does not begin as one"),
    "version 1": (made.gguf(version=1), "is of GGUF version 1"),
    "version 4": (made.gguf(version=4), "is of GGUF version 4"),
    "the other byte order": (made.gguf(version=3 << 24), "is of GGUF version 50331648"),
    "no tensors": (made.gguf({}, b""), "holds 0 matrices among"),
    "more tensors": (made.gguf(counts=(MOST, 0)), "is"),
    "more fields": (made.gguf(counts=(1, MOST)), "is"),
    "as many strings as can be": (made.gguf(fields=[(b"a", 9, STRINGS)]), "is truncated"),
    "as many numbers as can be": (made.gguf(fields=[(b"a", 9, NUMBERS)]), "is truncated"),
    "arrays in an array": (made.gguf(fields=[(b"a", 9, NESTED)]), "a value of type 9"),
    "an unknown field": (made.gguf(fields=[(b"a", 13, b"")]), "a value of type 13"),
    "no alignment": (made.gguf(fields=[(b"general.alignment", 4, bytes(4))]), "it aligns to 0"),
    "more rows": (made.gguf({E: ((4, 13), 0, 0)}), "it ends before 'token_embd.weight' does"),
    "rows past int64": (made.gguf({E: ((4, 2**62), 0, 0)}), "it ends before"),
    "columns past int64": (made.gguf({E: ((2**62, 4), 0, 0)}), "it ends before"),
    "an offset past the end": (made.gguf({E: ((4, 12), 0, 2**63)}), "it ends before"),
    "no rows": (made.gguf({E: ((4, 0), 0, 0)}), "holds no vectors: 0 rows of 4"),
    "no columns": (made.gguf({E: ((0, 12), 0, 0)}), "holds no vectors: 12 rows of 0"),
    "one dimension": (made.gguf({E: ((48,), 0, 0)}), "without two dimensions"),
    "many dimensions": (made.gguf({E: ((1,) * 9, 0, 0)}), "a tensor has 9 dimensions"),
    "two matrices": (made.gguf({"a": ((4, 12), 0, 0), "b": ((4, 2), 0, 0)}), "Choose one with"),
    "a type that is none": (made.gguf({E: ((4, 12), 99, 0)}), "in a type (number 99)"),
    "a type without values": (made.gguf({E: ((4, 12), 26, 0)}), "in a type (number 26)"),
    "half a block": (made.gguf({E: ((4, 12), 8, 0)}), "don't fill blocks of 32"),
}


@pytest.mark.parametrize(("data", "says"), GGUF.values(), ids=GGUF)
def test_gguf_headers_that_lie_are_refused(folder, raises, data, says):
    pytest.importorskip("gguf")
    (folder / "x.gguf").write_bytes(data)
    raises(isotropy.open, "x.gguf", says=says)


def test_what_is_sound_is_read(folder):
    fields = [(b"general.alignment", 4, struct.pack("<I", 32)), (b"a", 8, struct.pack("<Q", 0))]
    (folder / "x.gguf").write_bytes(made.gguf(fields=fields))
    found, _ = read(isotropy.open("x.gguf"))
    np.testing.assert_array_equal(found, X)


def test_infinite_scales_are_refused(folder, raises):
    pytest.importorskip("gguf")
    blocks = np.full((12, 34), 255, np.uint8)  # Q8_0 with a scale of NaN
    (folder / "x.gguf").write_bytes(made.gguf({E: ((32, 12), 8, 0)}, blocks.tobytes()))
    raises(read, isotropy.open("x.gguf"), says="X must be finite, got NaN in 12 rows")


@pytest.fixture
def index(folder):
    faiss = pytest.importorskip("faiss")
    made = faiss.IndexFlatL2(4)
    made.add(X)
    faiss.write_index(made, "x.faiss")
    return bytearray((folder / "x.faiss").read_bytes())


def test_a_faiss_index_cut_short_is_refused(folder, raises, index):
    for size in (1, 4, 20, len(index) // 2, len(index) - 1):
        (folder / "x.faiss").write_bytes(index[:size])
        raises(isotropy.open, "x.faiss", says="is damaged or not a faiss index")
    (folder / "x.faiss").write_bytes(b"")
    raises(isotropy.open, "x.faiss", says="is empty")
    raises(isotropy.open, "y.faiss", says="there is no file")


@pytest.mark.parametrize("value", [0, 11, 13, 2**31 - 1, 2**62])
def test_faiss_counts_that_lie_are_refused(folder, raises, index, value):
    index[8:16] = struct.pack("<q", value)  # the number of rows, after the kind and the width
    (folder / "x.faiss").write_bytes(index)
    raises(isotropy.open, "x.faiss", says="x.faiss'")


def test_limits_of_faiss_are_as_before(folder, index):
    import faiss

    before = faiss.get_deserialization_vector_byte_limit()
    isotropy.open("x.faiss")
    assert faiss.get_deserialization_vector_byte_limit() == before


def test_faiss_rows_with_nan_are_refused_or_left_out(folder, raises, index):
    import faiss

    rows = X.copy()
    rows[3, 1] = np.nan
    made = faiss.IndexIDMap2(faiss.IndexFlatL2(4))
    made.add_with_ids(rows, np.arange(12) * 2)
    faiss.write_index(made, "x.faiss")
    raises(read, isotropy.open("x.faiss"), says="X must be finite, got NaN in 1 row")
    found, carried = read(isotropy.open("x.faiss", skip_bad_rows=True))
    np.testing.assert_array_equal(found, np.delete(X, 3, axis=0))
    assert 6 not in carried["id"].to_pylist()
