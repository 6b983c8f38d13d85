"""Models and texts as sources of vectors: encoders, embeddings, vectors by key."""

from isotropy.models.embeddings import Embeddings, embeddings
from isotropy.models.encoder import Encoder
from isotropy.models.keyed import KeyedVectors
from isotropy.models.opening import open_encoder
from isotropy.models.texts import Span

__all__ = ["Embeddings", "Encoder", "KeyedVectors", "Span", "embeddings", "open_encoder"]
