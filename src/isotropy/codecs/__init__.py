"""Codecs: vectors as codes of a few bytes, with the repair that goes before them in one file."""

from isotropy.codecs.base import Codec, load, load_with_header
from isotropy.codecs.binary import Binary
from isotropy.codecs.faiss import Faiss
from isotropy.codecs.rescored import Rescored
from isotropy.codecs.scalar import Float, Scalar

__all__ = ["Binary", "Codec", "Faiss", "Float", "Rescored", "Scalar", "load"]
