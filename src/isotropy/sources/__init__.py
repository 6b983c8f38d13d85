"""Where vectors come from, chunk by chunk, and where they go."""

from isotropy.sources.arrays import ArraySource, MappedSource
from isotropy.sources.base import Batch, Chunk, Source
from isotropy.sources.embeddings import Embeddings, embeddings
from isotropy.sources.encoder import Encoder
from isotropy.sources.files import FileSource
from isotropy.sources.keyed import KeyedVectors
from isotropy.sources.opening import as_source
from isotropy.sources.opening import open_source as open
from isotropy.sources.parts import PartsSink
from isotropy.sources.sinks import Sink, open_sink
from isotropy.sources.texts import Span

__all__ = [
    "ArraySource",
    "Batch",
    "Chunk",
    "Embeddings",
    "Encoder",
    "FileSource",
    "KeyedVectors",
    "MappedSource",
    "PartsSink",
    "Sink",
    "Source",
    "Span",
    "as_source",
    "embeddings",
    "open",
    "open_sink",
]
