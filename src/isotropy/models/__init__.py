"""Models and texts as sources of vectors: encoders, embeddings, vectors by key."""

from isotropy.models.encoder import Encoder, cut_off, fingerprint, holds_vectors, open_encoder
from isotropy.models.keyed import (
    KEYS,
    Embeddings,
    KeyedVectors,
    WordMeans,
    averaged,
    embeddings,
    read_rows,
)
from isotropy.models.loading import (
    extra,
    first_line,
    loading,
    pretrained_location,
    read_json,
    read_modules,
    short_name,
    static_folder,
)
from isotropy.models.models import MODES, Float32Array, default_prompt, pooling_mode
from isotropy.models.pieces import as_written, from_bytes
from isotropy.models.texts import (
    Span,
    Text,
    Texts,
    distinct,
    each,
    expect_texts,
    open_texts,
    plain_text,
    sample_texts,
)
from isotropy.models.tokens import TokenRows, bounded

__all__ = ["Embeddings", "Encoder", "KeyedVectors", "Span", "embeddings", "open_encoder"]
